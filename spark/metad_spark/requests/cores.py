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
from typing import Any, Final, TypeAlias

Job: TypeAlias = Callable[[float], tuple[float, Callable[[float], None] | None]]
"""Called when it begins, with the time; returns its cost in seconds of a core, and what to call when it ends."""


_NONE_UNUSED: Final = 2.75
"""Processes that want a core, in times of the cores, with which none is unused. With as many less as there are cores,
all are that are unused at times."""


class Process:
    """One loop, with three lines of jobs: what it has begun, what a crowd wants it to begin, and what of that is heavy.
    In each turn of the loop it does as many of the second as are worth a turn, one heavy one, and all that waits in the
    first. ``used_s``: the CPU time of its jobs so far."""

    __slots__ = (
        *("alive", "busy", "ended", "heavy", "heavy_left", "jobs", "left", "machine", "room", "used_s", "waiting"),
    )

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.jobs: deque[Job] = deque()
        self.waiting: deque[tuple[Job, float]] = deque()
        """Those of the second line (:meth:`add_to_begin`), and what part of a turn each is worth."""
        self.heavy: deque[Job] = deque()
        self.room = 1.0  # for jobs of the second line, in this turn
        self.heavy_left = True  # no heavy one was done in it
        self.left = 0  # jobs of the first line that are done before the next turn
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

    def add_to_begin(self, job: Job, worth: float) -> None:
        """Do this after all others of its line. ``worth``: the part of a turn of the loop that it takes, of those that
        are begun in one."""
        if self.alive:
            self.waiting.append((job, worth))
            if not self.busy:
                self.machine.next_of(self)

    def add_heavy(self, job: Job) -> None:
        """Do this after all others of its line, one in each turn of the loop."""
        if self.alive:
            self.heavy.append(job)
            if not self.busy:
                self.machine.next_of(self)

    def take(self) -> Job | None:
        """The job whose turn it is."""
        if (self.waiting or self.heavy) and not (self.left and self.jobs):
            if self.waiting and self.room > 0.0:
                job, worth = self.waiting.popleft()
                self.room -= worth
                return job
            if self.heavy and self.heavy_left:
                self.heavy_left = False
                return self.heavy.popleft()
            self.room, self.heavy_left, self.left = 1.0, True, len(self.jobs)
            if not self.jobs:
                return self.take()
        self.left = max(0, self.left - 1)
        return self.jobs.popleft() if self.jobs else None

    def kill(self) -> None:
        """End it: what it was doing, and what waits, never ends."""
        self.alive, self.ended = False, None
        self.jobs.clear()
        self.waiting.clear()
        self.heavy.clear()


class Machine:
    """The clock, in seconds, and the events of a run. ``cores``: those that its processes can have. ``beside``: other
    programs that want a core all the time, and get their share. ``unused``: cores that nobody uses although some wait
    for one, because each waits for another; none where many times more want a core than there are."""

    def __init__(self, cores: float, beside: float = 0.0, unused: float = 0.0) -> None:
        self.now = 0.0
        self._beside = beside
        self._cores = cores
        self._unused = unused
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

    def _speed(self, wanted: float) -> float:
        lacking = min(max(0.0, _NONE_UNUSED - wanted / self._cores), 1.0)
        return min(1.0, (self._cores - self._unused * lacking) / wanted)

    def run(self, until_s: float, done: Callable[[], bool]) -> None:
        """Let time pass until then, until nothing happens any more, or until ``done``."""
        events, ends, never = self._events, self._ends, float("inf")
        while (events or ends) and not done():
            speed, end_s = 1.0, never
            if ends:
                if (wanted := self._busy + self._beside) > self._cores - self._unused:
                    speed = self._speed(wanted)
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
