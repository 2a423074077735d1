"""Structured logs: one JSON object per line on stderr. :mod:`.log_events` declares the events. They are written beside
the event loop: who logs never waits for who reads."""

from __future__ import annotations

import atexit
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Final, TextIO

import msgspec

from metad_wire.program.lines import LineHandler, LineWriter
from metad_wire.program.sparing import Sparing

from .log_events import BUG, EVENTS, LINES_DROPPED, NOTE, Event

logger = logging.getLogger("metad")

REPEAT_S: Final = 60.0
"""A warning or an error that says the same again is logged once in this time."""
DISTINCT_MAX: Final = 256
"""Warnings that differ in what they are about, of one minute. A peer can invent more: those are counted by key only."""


COUNTS: Final = dict.fromkeys(EVENTS, 0)
"""How often each event came about in this process, also where its line was left out."""


def event(said: Event, *, exc_info: BaseException | None = None, **fields: Any) -> None:
    """Log an event with its fields. ``exc_info`` adds a traceback."""
    COUNTS[said.key] += 1
    logger.log(said.level, said.key, exc_info=exc_info, extra={"fields": fields})


# Requests that meet a bug may come thousands of times a second, and a traceback takes kilobytes.
_bugs = Sparing(10, 60.0)


def bug(where: str, error: BaseException) -> None:
    """Log an unexpected exception with its traceback, unless many were logged just now."""
    left_out = _bugs.admit()
    if left_out is not None:
        event(BUG, exc_info=error, where=where, **({"left_out": left_out} if left_out else {}))


class Repeats(logging.Filter):
    """Lets a warning, or information about something, pass once a minute for the same values of what it is about, and
    counts what it leaves out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[tuple[Any, ...], Sparing] = {}
        self._began_s = clock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is logged. If so, it says how many like it were left out before."""
        declared = EVENTS.get(str(record.msg))
        if declared is None or declared is BUG or (declared.level < logging.WARNING and not declared.about):
            return True
        fields = getattr(record, "fields", {})
        sparing = self._of(declared.key, tuple(str(fields.get(name)) for name in declared.about))
        left_out = sparing.admit()
        if left_out:
            record.fields = {**fields, "left_out": left_out}
        return left_out is not None

    def _of(self, key: str, about: tuple[str, ...]) -> Sparing:
        now_s = self._clock()
        if now_s - self._began_s >= 2 * REPEAT_S and len(self._said) >= DISTINCT_MAX:
            self._said.clear()
            self._began_s = now_s
        at = (key, *about)
        if at not in self._said and len(self._said) >= DISTINCT_MAX:
            at = (key,)
        if at not in self._said:
            self._said[at] = Sparing(1, REPEAT_S, self._clock)
        return self._said[at]


class JsonLines(logging.Formatter):
    """One line: when, how bad, on which node, what, the fields of the event, and from warnings on a sentence."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        declared = EVENTS.get(str(record.msg))
        line: dict[str, Any] = {
            "ts": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "node": self._node,
            "event": NOTE.key if declared is None else declared.key,
        }
        if declared is None:
            line |= {"logger": record.name, "text": record.getMessage()}
        line |= getattr(record, "fields", {})
        if declared is not None and record.levelno >= logging.WARNING:
            line.setdefault("text", declared.text)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


_writers: dict[TextIO, LineWriter] = {}


def configure(level: str, node: str) -> None:
    """Send the logs of this process to stderr from ``level`` on. ``node`` is in every line."""
    handler = LineHandler(_writer())
    handler.setFormatter(JsonLines(node))
    handler.addFilter(Repeats())
    # asyncio reports exceptions that nobody has waited for. They are lines like all others.
    for source in (logger, logging.getLogger("asyncio")):
        source.handlers[:] = [handler]
        source.propagate = False
    logger.setLevel(level.upper())


def say(text: str) -> None:
    """Write a line for people to stderr, behind those of the log, and wait for a moment until they are written."""
    writer = _writer()
    writer.write(text)
    writer.flush()


def flush() -> bool:
    """Wait for a moment until what was logged is written. True if it is."""
    return all(writer.flush() for writer in _writers.values())


def _writer() -> LineWriter:
    """The one that writes to stderr."""
    if sys.stderr not in _writers:
        _writers.clear()  # stderr is another now
        _writers[sys.stderr] = LineWriter(sys.stderr, lambda count: event(LINES_DROPPED, count=count))
        atexit.unregister(flush)
        atexit.register(flush)
    return _writers[sys.stderr]
