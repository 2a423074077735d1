"""Virtual time: it stands still while something happens and jumps to the next thing that will.

Events of one moment happen in the order in which they were asked for, so a simulation is the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush

_HANDLES_MIN = 64  # a queue shorter than this is not worth tidying


class Handle:
    """One event to come."""

    __slots__ = ("_cancelled_one", "_fn", "time")

    def __init__(self, time: float, fn: Callable[[], object], cancelled_one: Callable[[], None]) -> None:
        self.time = time
        self._fn: Callable[[], object] | None = fn
        self._cancelled_one = cancelled_one

    @property
    def pending(self) -> bool:
        """Whether it has neither happened nor been cancelled."""
        return self._fn is not None

    def cancel(self) -> None:
        """It will not happen. No effect where it has."""
        if self._fn is not None:
            self._fn = None
            self._cancelled_one()

    def _take(self) -> Callable[[], object] | None:
        fn, self._fn = self._fn, None
        return fn


class Clock:
    """A queue of events, in seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.events = 0
        """That have happened."""
        self._queue: list[tuple[float, int, Handle]] = []
        self._asked = 0
        self._cancelled = 0  # still in the queue

    @property
    def pending(self) -> int:
        """Events to come."""
        return len(self._queue) - self._cancelled

    @property
    def next_time(self) -> float | None:
        """When the next event happens, None where there is none."""
        self._skip()
        return self._queue[0][0] if self._queue else None

    def call_at(self, time: float, fn: Callable[[], object]) -> Handle:
        """Call ``fn`` at a time; a time that has passed is now, behind what was asked for before."""
        if math.isnan(time):
            raise ValueError("an event needs a time")
        time = max(time, self.now)
        handle = Handle(time, fn, self._cancelled_one)
        self._asked += 1
        heappush(self._queue, (time, self._asked, handle))
        return handle

    def call_later(self, delay: float, fn: Callable[[], object]) -> Handle:
        """Call ``fn`` after a time."""
        return self.call_at(self.now + delay, fn)

    def step(self) -> bool:
        """Let the next event happen; False where there is none. What it raises is raised here, and the clock may be
        used on."""
        self._skip()
        if not self._queue:
            return False
        self._happen()
        return True

    def run_until(self, time: float) -> None:
        """Let everything happen up to a time, which is included and which it is then."""
        self._skip()
        while self._queue and self._queue[0][0] <= time:
            self._happen()
            self._skip()
        self.now = max(self.now, time)

    def _happen(self) -> None:
        self.now, _, handle = heappop(self._queue)
        self.events += 1
        fn = handle._take()
        if fn is not None:
            fn()

    def _skip(self) -> None:
        while self._queue and not self._queue[0][2].pending:
            heappop(self._queue)
            self._cancelled -= 1

    def _cancelled_one(self) -> None:
        self._cancelled += 1
        # Timers that are always put off would fill the queue.
        if self._cancelled > _HANDLES_MIN and self._cancelled * 2 > len(self._queue):
            self._queue[:] = [each for each in self._queue if each[2].pending]
            heapify(self._queue)
            self._cancelled = 0
