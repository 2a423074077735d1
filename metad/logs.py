"""Structured logs: one JSON object per line on stderr. :mod:`.log_events` declares the events. They are written beside
the event loop: who logs never waits for who reads. The last of those that tell a change are kept in memory, too, for
``system.events``."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TextIO

import msgspec

from metad_wire.errors import InvalidRequestError
from metad_wire.messages import Events, EventsReply, LoggedEvent, Said
from metad_wire.program.lines import LineHandler, LineWriter
from metad_wire.program.sparing import Sparing

from .log_events import BUG, CHANGES, EVENTS, LINES_DROPPED, NOTE, Event

logger = logging.getLogger("metad")

REPEAT_S: Final = 60.0
"""A warning or an error that says the same again is logged once in this time."""
DISTINCT_MAX: Final = 256
"""Warnings that differ in what they are about, of one minute. A peer can invent more: those are counted by key only."""
KEPT: Final[dict[str, int]] = {"cluster": 1_200, "broker": 500, "audit": 300}
"""Events in memory, of each table that :data:`.CHANGES` names. Each has a room of its own: ten thousand brokers that
register do not push out why a node was restarted."""
KEPT_BYTES: Final = 512
"""For each of these, on average: all together a node keeps 1 MiB at most."""
_TEXT_CHARS_MAX: Final = 1_000
_LIST_ITEMS_MAX: Final = 20
_PAGE_BYTES_MAX: Final = 256 * 1024  # of fields in a reply


COUNTS: Final = dict.fromkeys(EVENTS, 0)
"""How often each event came about in this process, also where its line was left out."""


def event(said: Event, *, exc_info: BaseException | None = None, **fields: Any) -> None:
    """Log an event with its fields. ``exc_info`` adds a traceback."""
    COUNTS[said.key] += 1
    logger.log(said.level, said.key, exc_info=exc_info, extra={"fields": fields, "is_kept": True})
    for recent in _of_thread():  # whatever the level of the log is
        recent.note(said, fields)


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
        if declared is None:
            return True
        fields = getattr(record, "fields", {})
        left_out = self.admit(declared, fields)
        if left_out:
            record.fields = {**fields, "left_out": left_out}
        return left_out is not None

    def admit(self, declared: Event, fields: Mapping[str, Any]) -> int | None:
        """None: it was said just now. Else how many like it were left out before it."""
        if declared is BUG or (declared.level < logging.WARNING and not declared.about):
            return 0
        return self._of(declared.key, tuple(str(fields.get(name)) for name in declared.about)).admit()

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


class _Kept(NamedTuple):
    """An event in memory."""

    number: int
    when_ms: int
    said: Event
    fields: bytes


class Recent:
    """The last events of one node that tell a change. Any thread may note one."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._repeats = Repeats()
        self._noting = threading.Lock()
        self._rooms: dict[str, deque[_Kept]] = {table: deque() for table in KEPT}
        self._bytes = dict.fromkeys(KEPT, 0)
        self._numbers = itertools.count(1)
        self._instance = time.time_ns()
        self._begins_ms = int(clock() * 1000)

    def note(self, said: Event, fields: Mapping[str, Any]) -> None:
        """Keep an event, in the place of the oldest ones of its table, unless it tells no change or was noted just
        now."""
        table = CHANGES.get(said.key)
        if table is None:
            return
        with self._noting:
            left_out = self._repeats.admit(said, fields)
            if left_out is None:
                return
            noted: dict[str, Said] = {name: _brief(value) for name, value in fields.items()}
            if left_out:
                noted["left_out"] = left_out
            line = _Kept(next(self._numbers), int(self._clock() * 1000), said, msgspec.msgpack.encode(noted))
            room = self._rooms[table]
            room.append(line)
            self._bytes[table] += len(line.fields)
            while len(room) > KEPT[table] or self._bytes[table] > KEPT[table] * KEPT_BYTES:
                gone = room.popleft()
                self._bytes[table] -= len(gone.fields)
                self._begins_ms = max(self._begins_ms, gone.when_ms + 1)

    def page(self, asked: Events, tables: Collection[str]) -> EventsReply:
        """Answer ``system.events`` for somebody who may read these tables. Raises InvalidRequestError."""
        after = self._place(asked.page.cursor)
        with self._noting:
            lines = sorted(line for room in self._rooms.values() for line in room if line.number > after)
        found: list[LoggedEvent] = []
        size = withheld = 0
        for position, line in enumerate(lines):
            if len(found) >= asked.page.limit or size >= _PAGE_BYTES_MAX:
                return self._reply(found, lines[position - 1].number, True, withheld)
            if line.when_ms < asked.since_ms:
                continue
            if CHANGES[line.said.key] not in tables:
                withheld += 1
                continue
            size += len(line.fields) + len(line.said.text)
            level = logging.getLevelName(line.said.level).lower()
            fields = _fields_of(line.fields)
            found.append(LoggedEvent(line.when_ms, level, line.said.key, fields, line.said.text))
        return self._reply(found, lines[-1].number if lines else after, False, withheld)

    def _reply(self, found: list[LoggedEvent], last: int, more: bool, withheld: int) -> EventsReply:
        return EventsReply(found, f"{self._instance}:{last}".encode(), more, self._begins_ms, withheld)

    def _place(self, cursor: bytes) -> int:
        if not cursor:
            return 0
        instance, _, number = cursor.partition(b":")
        if not (instance.isdigit() and number.isdigit() and len(cursor) < 64):
            raise InvalidRequestError("page.cursor: it is none of system.events")
        return int(number) if int(instance) == self._instance else 0


def _brief(value: Any) -> Said:
    """The value of a field, as it is kept."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        shown = [str(one)[:_TEXT_CHARS_MAX] for one in itertools.islice(value, _LIST_ITEMS_MAX)]
        return [*shown, "…"] if len(value) > _LIST_ITEMS_MAX else shown
    text = str(value)
    return text if len(text) <= _TEXT_CHARS_MAX else text[: _TEXT_CHARS_MAX - 1] + "…"


_fields_of = msgspec.msgpack.Decoder(dict[str, Said]).decode
_here = threading.local()  # the events of the node whose loop runs in a thread
_all: weakref.WeakSet[Recent] = weakref.WeakSet()


@contextlib.contextmanager
def keeping() -> Iterator[Recent]:
    """Keep, until the end of a ``with`` block, what is logged in this thread, in which a node runs, and in threads in
    which none does: that belongs to every node of the process."""
    before = getattr(_here, "recent", None)
    recent = _here.recent = Recent()
    _all.add(recent)
    try:
        yield recent
    finally:
        _here.recent = before
        _all.discard(recent)


def kept() -> Recent:
    """What is kept in this thread. Nothing is, of a node in virtual time."""
    return getattr(_here, "recent", None) or Recent()


def _of_thread() -> Iterable[Recent]:
    recent: Recent | None = getattr(_here, "recent", None)
    return (recent,) if recent is not None else tuple(_all)


def _note(record: logging.LogRecord) -> bool:
    """Keep what the transports log by themselves; it is logged all the same."""
    declared = EVENTS.get(str(record.msg))
    if declared is not None and not getattr(record, "is_kept", False):
        for recent in _of_thread():
            recent.note(declared, getattr(record, "fields", {}))
    return True


logger.addFilter(_note)  # no handler: the process that carries a node chooses its own


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
    set_level(level)


def set_level(level: str) -> None:
    """Log from ``level`` on, in this whole process."""
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
