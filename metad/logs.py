"""Structured logs: one JSON object per line on stderr, with the fields given in ``extra={"fields": {...}}``."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

logger = logging.getLogger("metad")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def configure(level: str) -> None:
    """Send metad's logs to stderr from ``level`` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


def event(name: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event with its fields."""
    logger.log(level, name, extra={"fields": fields})


class Sparing:
    """Lets ``lines`` pass in ``seconds`` and counts the rest: for what somebody else can make happen without end."""

    def __init__(self, lines: int, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._lines = lines
        self._seconds = seconds
        self._now = now
        self._since_s = float("-inf")
        self._passed = 0
        self._left_out = 0

    def admit(self) -> int | None:
        """None: leave this line out. Otherwise log it, and say how many were left out before it."""
        now_s = self._now()
        if now_s - self._since_s >= self._seconds:
            self._since_s, self._passed = now_s, 0
        if self._passed >= self._lines:
            self._left_out += 1
            return None
        self._passed += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


# A request that meets a bug may be repeated thousands of times a second, and a traceback takes kilobytes.
_bugs = Sparing(10, 60.0)


def bug(where: str, error: BaseException) -> None:
    """Log an exception that nobody foresaw, with its traceback, unless many were logged just now."""
    left_out = _bugs.admit()
    if left_out is not None:
        fields = {"left_out": left_out} if left_out else {}
        logger.error("a bug in %s", where, exc_info=error, extra={"fields": fields})
