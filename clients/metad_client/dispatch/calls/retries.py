"""The calls that wait for their next attempt, and the timer that ends the wait; and one timer for the deadlines of all
calls."""

from __future__ import annotations

import asyncio
import heapq
import math
import random
from collections.abc import Callable, Iterable

from ...errors import MetadError, OverloadedError
from ...options import Options
from .alarm import Alarm
from .call import Call
from .retry import SharedBudget, verdict

SWEEP_INTERVAL_MIN_S = 0.01
"""Accuracy of deadlines: a sweep visits every call, so sweeps must not follow each other at once."""


class Deadlines:
    """Calls ``expire`` with each of ``calls`` whose deadline has passed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        calls: Callable[[], Iterable[Call]],
        expire: Callable[[Call], None],
    ) -> None:
        self._calls = calls
        self._expire = expire
        self.alarm = Alarm(loop, self._sweep, SWEEP_INTERVAL_MIN_S)

    def _sweep(self, now: float) -> None:
        earliest = math.inf
        for call in self._calls():
            if call.deadline > now:
                earliest = min(earliest, call.deadline)
            else:
                self._expire(call)
        self.alarm.set(earliest)


class Retries:
    """Calls ``due`` with the calls whose time has come, in order. A call that ends earlier stays listed until then."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: Options,
        rng: random.Random,
        due: Callable[[list[Call]], None],
    ) -> None:
        self._loop = loop
        self._backoff = options.backoff
        self._budget = SharedBudget(options.retry_budget) if options.retry_budget is not None else None
        self._repeat_refused = options.repeat_refused
        self._rng = rng
        self._due = due
        self._alarm = Alarm(loop, self._ring)
        self._heap: list[tuple[float, int, Call]] = []
        self._numbers: dict[Call, int] = {}  # of the valid entry, if a call was brought forward
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def schedule(self, call: Call, error: MetadError) -> MetadError | None:
        """Schedule a retry of the call, or return the error that ends it."""
        if isinstance(error, OverloadedError) and not self._repeat_refused and not call.in_doubt:
            return error  # otherwise an earlier attempt may have done it, and "nothing was done" would be wrong
        decision = verdict(call, error, self._loop.time(), self._backoff, self._rng, self._budget)
        if isinstance(decision, MetadError):
            return decision
        self._push(decision, call)
        return None

    def hurry(self, group: str, node: str) -> None:
        """A node leads the group: end the wait of calls that others refused, because only their target was wrong."""
        now = self._loop.time()
        for call in self.calls():
            if call.group == group and call.astray and call.refused_by != node:
                self._push(now, call)

    def calls(self) -> list[Call]:
        """The waiting calls that have not ended."""
        return [call for call in list(self._numbers) if not call.future.done()]

    def close(self) -> None:
        """Stop the timer: no wait ends any more."""
        self._alarm.cancel()

    def _push(self, due: float, call: Call) -> None:
        self._pushed += 1
        self._numbers[call] = self._pushed
        heapq.heappush(self._heap, (due, self._pushed, call))
        self._alarm.set(due)

    def _ring(self, now: float) -> None:
        calls = []
        while self._heap and self._heap[0][0] <= now:
            _, number, call = heapq.heappop(self._heap)
            if self._numbers.get(call) == number:
                del self._numbers[call]
                if not call.future.done():
                    calls.append(call)
        if self._heap:
            self._alarm.set(self._heap[0][0])
        self._due(calls)
