"""Clocks that a test may move on, so that what takes an hour is over at once."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable
from functools import partial

from ..node.environment import AsyncEnvironment, Timer


class _Timer:
    """A call at a time of the clock that may be moved."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self.own: Timer | None = None
        """That of the event loop, for if nobody moves the clock. It ends with this one, or an hour of moves would leave
        thousands of them."""
        self.is_over = False

    def cancel(self) -> None:
        """Cancel the call."""
        self.is_over = True
        if self.own is not None:
            self.own.cancel()

    def fire(self) -> None:
        """Call, once."""
        if not self.is_over:
            self.cancel()
            self._callback()


class MovableClocks(AsyncEnvironment):
    """The real environment. Its monotonic clock and its calendar go as they do, and :meth:`advance` moves both on: to
    each timer that is due meanwhile, in order, as if the time had passed. For the clients no time passes, so nobody is
    heard of meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead_s = 0.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        return super().now() + self._ahead_s

    def wall_ms(self) -> int:
        return super().wall_ms() + int(self._ahead_s * 1000)

    def call_at(self, when_s: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(partial(self._run, callback))
        heapq.heappush(self._timers, (when_s, next(self._numbers), timer))
        timer.own = super().call_at(when_s, timer.fire)
        while self._timers and self._timers[0][2].is_over:
            heapq.heappop(self._timers)
        return timer

    async def advance(self, seconds: float) -> int:
        """Move on. Returns how many timers were due."""
        if not (seconds >= 0 and math.isfinite(seconds)):
            raise ValueError(f"time goes on by a number of seconds, and not back; got {seconds!r}")
        until_s, fired = self.now() + seconds, 0
        while self._timers and self._timers[0][0] <= until_s:
            when_s, _, timer = heapq.heappop(self._timers)
            if timer.is_over:
                continue
            self._ahead_s += max(0.0, when_s - self.now())
            timer.fire()
            fired += 1
            await self._settled()
        self._ahead_s += max(0.0, until_s - self.now())
        await self._settled()
        return fired

    async def _settled(self) -> None:
        """Let the node do what was due, and the threads beside it."""
        for _ in range(3):
            await asyncio.sleep(0)
