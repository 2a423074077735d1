"""Keeps peers from filling the log."""

from __future__ import annotations

import time
from collections.abc import Callable


class Sparing:
    """Lets ``lines`` log lines pass in ``seconds`` and counts the rest, for events that peers can repeat."""

    def __init__(self, lines: int, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._lines = lines
        self._seconds = seconds
        self._now = now
        self._since_s = float("-inf")
        self._passed = 0
        self._left_out = 0

    def admit(self) -> int | None:
        """None: leave this line out. Otherwise log it, and say how many lines were left out before it."""
        now_s = self._now()
        if now_s - self._since_s >= self._seconds:
            self._since_s, self._passed = now_s, 0
        if self._passed >= self._lines:
            self._left_out += 1
            return None
        self._passed += 1
        left_out, self._left_out = self._left_out, 0
        return left_out
