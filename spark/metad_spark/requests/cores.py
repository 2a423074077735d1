"""Processes that share the cores of a machine, and a clock. Each process is a loop that does one job at a time, in the
order in which they came.

All processes that have something to do run at the same speed: one core each, or an equal share if there are more
processes than cores. So one virtual clock that runs at that speed says when any job ends, and nothing is recomputed
when a process becomes busy or idle. Pure.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

Job: TypeAlias = Callable[[float], tuple[float, Callable[[float], None] | None]]
"""Called when it begins, with the time; returns its cost in seconds of a core, and what to call when it ends."""


class Process:
    """One loop, with two lines of jobs: what it has begun, and what a crowd wants it to begin. In each turn of the loop
    it does all that waits in the first line, and one job of the other. ``used_s``: the CPU time of its jobs so far."""

    __slots__ = ("alive", "busy", "ended", "jobs", "left", "machine", "used_s", "waiting")

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.jobs: deque[Job] = deque()
        self.waiting: deque[Job] = deque()
        """Those of the other line (:meth:`add_to_begin`)."""
        self.left = 0  # jobs of the first line that are done before the next of the other
        self.busy = False
        self.alive = True
        self.ended: Callable[[float], None] | None = None
        self.used_s = 0.0

    def add(self, job: Job) -> None:
        """Do this after all that waits."""
        if self.alive:
            self.jobs.append(job)
            if not self.busy:
                self.machine.next_of(self)

    def add_first(self, job: Job) -> None:
        """Do this before all that waits."""
        if self.alive:
            self.jobs.appendleft(job)
            if not self.busy:
                self.machine.next_of(self)

    def add_to_begin(self, job: Job) -> None:
        """Do this after all others of its line, one in each turn of the loop."""
        if self.alive:
            self.waiting.append(job)
            if not self.busy:
                self.machine.next_of(self)

    def take(self) -> Job | None:
        """The job whose turn it is."""
        if self.waiting and not (self.left and self.jobs):
            self.left = len(self.jobs)
            return self.waiting.popleft()
        self.left = max(0, self.left - 1)
        return self.jobs.popleft() if self.jobs else None

    def kill(self) -> None:
        """End it: what it was doing, and what waits, never ends."""
        self.alive, self.ended = False, None
        self.jobs.clear()
        self.waiting.clear()


class Machine:
    """The clock, in seconds, and the events of a run. ``cores``: those that its processes can have. ``beside``: other
    programs that want a core all the time, and get their share."""

    def __init__(self, cores: float, beside: float = 0.0) -> None:
        self.now = 0.0
        self._beside = beside
        self._cores = cores
        self._virtual = 0.0
        self._busy = 0
        self._ends: list[tuple[float, int, Process]] = []
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, time_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call this at that time, or now if it has passed."""
        self._count += 1
        heapq.heappush(self._events, (time_s if time_s > self.now else self.now, self._count, call, arguments))

    def next_of(self, process: Process) -> None:
        """Begin the next job of a process that is idle."""
        while process.alive and (job := process.take()) is not None:
            cost_s, ended = job(self.now)
            process.used_s += cost_s
            if cost_s > 0:
                process.busy, process.ended = True, ended
                self._busy += 1
                self._count += 1
                heapq.heappush(self._ends, (self._virtual + cost_s, self._count, process))
                return
            if ended is not None:
                process.busy = True  # what it adds waits for its turn
                ended(self.now)
                process.busy = False

    def run(self, until_s: float, done: Callable[[], bool]) -> None:
        """Let time pass until then, until nothing happens any more, or until ``done``."""
        events, ends, never = self._events, self._ends, float("inf")
        while (events or ends) and not done():
            speed, end_s = 1.0, never
            if ends:
                if (wanted := self._busy + self._beside) > self._cores:
                    speed = self._cores / wanted
                end_s = self.now + (ends[0][0] - self._virtual) / speed
            if events and events[0][0] <= end_s:
                time_s, _, call, arguments = events[0]
                if time_s > until_s:
                    break
                heapq.heappop(events)
                self._virtual += (time_s - self.now) * speed if self._busy else 0.0
                self.now = time_s
                call(*arguments)
                continue
            if end_s > until_s:
                break
            self._virtual, _, process = heapq.heappop(ends)
            self.now = end_s
            self._busy -= 1
            ended, process.ended = process.ended, None
            if ended is not None and process.alive:
                ended(end_s)  # still busy: what it adds waits for its turn
            process.busy = False
            if process.alive:
                self.next_of(process)
        self.now = max(self.now, min(until_s, self.now))
