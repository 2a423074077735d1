"""What strangers can make a broker say is said seldom: a line a second, with the number of those that it stands for."""

from __future__ import annotations

import logging
import time
from typing import Final

_EACH_S: Final = 1.0


class Seldom:
    """A warning that is logged once a second at most."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
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
        self._next_s = now + _EACH_S
        if self._unsaid:
            text, about = f"{text} (and %d others since the last such line)", (*about, self._unsaid)
            self._unsaid = 0
        self._log.warning(text, *about)
