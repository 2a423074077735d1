"""One timer for many times."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Alarm:
    """Calls ``ring`` with the time once the earliest time set has come, but not within ``interval_min_s`` of setting
    it."""

    loop: asyncio.AbstractEventLoop
    ring: Callable[[float], None]
    interval_min_s: float = 0.0
    at: float = math.inf
    timer: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        """Ring at this time, unless it rings sooner anyway."""
        if at < self.at:
            self.cancel()
            # Stored here and not read from the timer: for a time that has passed, uvloop returns a handle without one.
            self.at = at
            self.timer = self.loop.call_at(max(at, self.loop.time() + self.interval_min_s), self._over)

    def cancel(self) -> None:
        """Cancel the ring."""
        self.at = math.inf
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _over(self) -> None:
        # The loop may call a little early, by its clock's resolution.
        now, self.at, self.timer = max(self.loop.time(), self.at), math.inf, None
        self.ring(now)
