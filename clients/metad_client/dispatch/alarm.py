"""One timer for many times."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Alarm:
    """Calls ``ring`` with the time, once the earliest time set has come. ``interval_min_s``: not sooner after it was
    set than this."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, ring: Callable[[float], None], interval_min_s: float = 0.0
    ) -> None:
        self.at = math.inf
        self._loop = loop
        self._ring = ring
        self._interval_min_s = interval_min_s
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        """Ring at this time, unless it rings sooner anyway."""
        if at < self.at:
            self.cancel()
            # Kept here and not asked of the timer: for a time that has passed, uvloop returns a handle without one.
            self.at = at
            self._timer = self._loop.call_at(max(at, self._loop.time() + self._interval_min_s), self._over)

    def cancel(self) -> None:
        """Do not ring."""
        self.at = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        # The loop may call a little early, by its clock's resolution.
        now, self.at, self._timer = max(self._loop.time(), self.at), math.inf, None
        self._ring(now)
