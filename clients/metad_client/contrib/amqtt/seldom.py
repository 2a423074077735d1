"""What strangers can make a broker say is said seldom: one line in a while, with the number of those it stands for."""

from __future__ import annotations

import logging
import time
from typing import Final

_EACH_S: Final = 1.0


class Seldom:
    """A warning that is logged once in so many seconds at most."""

    def __init__(self, log: logging.Logger, each_s: float = _EACH_S) -> None:
        self._log = log
        self._each_s = each_s
        self._next_s = float("-inf")
        self.count = 0
        """How often it was said, or would have been."""
        self._unsaid = 0

    def warn(self, text: str, *about: object) -> None:
        """Say it, unless that was done just now."""
        self.count += 1
        now = time.monotonic()
        if now < self._next_s:
            self._unsaid += 1
            return
        self._next_s = now + self._each_s
        if self._unsaid:
            text, about = f"{text} (and %d others since the last such line)", (*about, self._unsaid)
            self._unsaid = 0
        self._log.warning(text, *about)
