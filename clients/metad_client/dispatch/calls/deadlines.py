"""Deadlines: one timer for all calls."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable

from .alarm import Alarm
from .call import Call

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
