"""Structured logs: one JSON object per line on stderr, with the fields given in ``extra={"fields": {...}}``."""

from __future__ import annotations

import logging
import sys
from collections import defaultdict
from typing import Any

import msgspec

from metad_wire.sparing import Sparing

logger = logging.getLogger("metad")
# Limits are per event name, of which there are few. A flood of one event is logged ten times a second.
_seldom: defaultdict[str, Sparing] = defaultdict(lambda: Sparing(10, 1.0))


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


# Requests that meet a bug may come thousands of times a second, and a traceback takes kilobytes.
_bugs = Sparing(10, 60.0)


def bug(where: str, error: BaseException) -> None:
    """Log an unexpected exception with its traceback, unless many were logged just now."""
    left_out = _bugs.admit()
    if left_out is not None:
        fields = {"left_out": left_out} if left_out else {}
        logger.error("a bug in %s", where, exc_info=error, extra={"fields": fields})


def seldom(name: str, level: int = logging.WARNING, **fields: Any) -> None:
    """Log an event that peers can cause without limit: at most ten lines a second, with the number left out before."""
    left_out = _seldom[name].admit()
    if left_out is not None:
        event(name, level, **fields, **({"left_out": left_out} if left_out else {}))
