"""Retained messages: put, get, delete by topic, and all whose topics match a filter.

On disk a message is the wire's Retained. What has expired is left out by reads, and deleted by the sweep
(:mod:`..core.due`).

A topic filter is a scan that skips (:class:`TopicScan`): from each topic that it sees it knows where the next one may
be that matches.

Topics are in the order of their UTF-8, as bytes. The levels of a filter are literal up to the first "+", so what
matches is in one range, and within that range a "+" takes one value after the other. Behind a topic whose level is not
the literal one, the scan goes to that literal, or, if it is past it, to the next value of the last "+" before it.

If literal levels follow the last "+", then one topic of each of its values can match, and the value says which. The
scan does not go there: it names that topic, and goes on with the next value. So the caller can get many such topics by
their keys at once, and none of those that are not stored here. That costs less than a look into an order, and there is
one of those for each value that a "+" takes, whatever else is stored.

Levels do not make the order a tree: "a!" is between "a" and "a/b", because "!" is less than "/". The steps below allow
for that. All texts here are UTF-8 and have no NUL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import ConflictError, NotFoundError
from metad_wire.methods import encode
from metad_wire.tables.retained import (
    RETAINED,
    Retained,
    RetainedDelete,
    RetainedKey,
    RetainedMatch,
    RetainedPut,
)
from metad_wire.text.fields import U63
from metad_wire.text.topics import ALL_BELOW, ANY_LEVEL, SEPARATOR, WILDCARDS

from ...storage import keys
from ...storage.engine import Pin
from ..core import due as index
from ..core.due import DUE, DueKind, due_key
from ..core.limits import LOOKED_AT_BYTES_MAX
from ..core.slot_assignment import is_held
from ..core.verb import (
    PAGE_BYTES_MAX,
    SPENT_BYTES,
    Command,
    Reader,
    Verb,
    mismatch,
    read_values,
    wanted_slots,
    written,
)
from ..core.view import Numbers, View, in_chunks

_SEPARATOR: Final = SEPARATOR.encode()
_ANY_LEVEL: Final = ANY_LEVEL.encode()
_BEHIND_SEPARATOR: Final = bytes((_SEPARATOR[0] + 1,))
"""Greater than all that begins with a separator, and no more."""
_BEHIND_HIDDEN: Final = b"%"
"""Greater than all that begins with "$"."""
AFTER: Final = b"\0\x02"
"""Behind a topic: greater than the topic's key, which ends with 0x00 0x01, and less than that of any longer topic."""


class TopicScan:
    """``begin``: nothing that is less matches the filter, which has to be right and not a shared one."""

    def __init__(self, filter_: str) -> None:
        levels = filter_.split(SEPARATOR)
        self._hides = levels[0] in WILDCARDS
        self._below = levels[-1] == ALL_BELOW
        if self._below:
            levels.pop()
        self._levels = [level.encode() for level in levels]
        self._tail_at, self._tail = self._tail_of()
        self._literals = [self._literal(at) for at in range(len(levels) + 1)]
        self.begin = self._literals[0]

    def _literal(self, begin: int) -> bytes:
        """What everything has from this level on that matches: the levels up to the next "+"."""
        levels = self._levels
        end = next((at for at in range(begin, len(levels)) if levels[at] == _ANY_LEVEL), len(levels))
        literal = _SEPARATOR.join(levels[begin:end])
        return literal + _SEPARATOR if begin < end < len(levels) else literal

    def _tail_of(self) -> tuple[int, bytes]:
        """At which level the literal ones behind the last "+" begin, and these, with the separator in front of them; 0
        if there are none, or no "+", or if topics below them match, too."""
        begin = len(self._levels)
        while begin and self._levels[begin - 1] != _ANY_LEVEL:
            begin -= 1
        if self._below or begin in (0, len(self._levels)):
            return 0, b""
        return begin, _SEPARATOR + _SEPARATOR.join(self._levels[begin:])

    def look(self, topic: bytes) -> tuple[bytes | None, bytes | None]:
        """A stored topic is this. The topic that matches if it is stored: this one, or a greater one; None if nothing
        is known to match. And a text that is greater than the given topic, while between them nothing else matches;
        None if nothing matches any more."""
        if self._hides and topic.startswith(b"$"):
            return None, _BEHIND_HIDDEN
        levels, wanted = topic.split(_SEPARATOR), self._levels
        last_any = -1  # the last "+" so far
        for at, (level, one) in enumerate(zip(levels, wanted, strict=False)):
            if at == self._tail_at and at:
                value = _SEPARATOR.join(levels[:at])
                match = value + self._tail  # before this topic it is not stored, or the listing has passed it
                return match if match >= topic else None, value + _BEHIND_SEPARATOR
            if one == _ANY_LEVEL:
                last_any = at
            elif one != level:
                return None, self._behind_mismatch(topic, levels, at, last_any)
        if len(levels) < len(wanted):
            if last_any == len(levels) - 1:
                # Its last level may be longer by a character that is less than the separator.
                return None, topic + AFTER
            return None, topic + _SEPARATOR + self._literals[len(levels)]
        if self._below or (len(levels) == len(wanted) and last_any == len(levels) - 1):
            return topic, topic + AFTER
        return topic if len(levels) == len(wanted) else None, _next_value(levels, last_any)

    def _behind_mismatch(self, topic: bytes, levels: list[bytes], at: int, last_any: int) -> bytes | None:
        """The same of a topic whose level ``at`` is another than the literal one of the filter."""
        candidate = _SEPARATOR.join([*levels[:at], self._literals[at]])
        if candidate > topic:
            return candidate
        if self._below and _ANY_LEVEL not in self._levels[at:]:
            # All levels are literal up to "#": the candidate itself matches, and then only what is below it.
            candidate += _SEPARATOR
            if candidate > topic:
                return candidate
        return _next_value(levels, last_any)


def _next_value(levels: list[bytes], at: int) -> bytes | None:
    """Where a greater value of level ``at`` may begin, for the same levels before it: values that are this one and a
    character less than the separator were seen before it had levels below. None if there is no such level."""
    return None if at < 0 else _SEPARATOR.join(levels[: at + 1]) + _BEHIND_SEPARATOR


_MESSAGE = RETAINED.rows["message"]
_LOOK_ROWS = 4  # a look into the engine costs about as much as so many rows, and more where it reads from files
_GET_ROWS = 2  # and getting a row by its key about as much as so many
_NAMED_MAX = 64  # topics that a scan has named are got together
_SPENT_MAX = 640  # for one page, in rows: some three milliseconds, for which nobody else is served
_READ_BYTES_MAX = 4 * PAGE_BYTES_MAX  # for one page, where messages are long and do not match
_ROWS_MIN, _ROWS_MAX = 1, 64  # of one look into the engine: few while the scan skips, many while it does not


class _Numbers(m.Message, frozen=True):
    """The numbers of a row, without making objects of the rest."""

    tenant: msgspec.Raw
    topic: msgspec.Raw
    payload: msgspec.Raw
    qos: int
    properties: msgspec.Raw
    expires_ms: U63
    revision: U63


_decode = msgspec.msgpack.Decoder(_Numbers).decode


def _evaluate_put(view: View, command: Command[RetainedPut]) -> m.WriteReply:
    prefix, writes = keys.table_prefix(view.group, _MESSAGE), view.writes_of(_MESSAGE)
    now_ms, revision = view.now_ms, view.revision
    due = view.writes_of(DUE)
    for _, item, suffix in command.rows:
        key = prefix + suffix
        if not item.payload:
            # Undone, a write of the same batch shows what was there before it: if nothing was, nothing is deleted.
            writes.pop(key, None)
            if view.get(key) is not None:
                writes[key] = None
            continue
        interval_s = item.expiry_interval_s
        expires_ms = 0
        if interval_s is not None:
            expires_ms = now_ms + 1000 * interval_s
            index.note_retained(due, view.group, suffix, 1000 * interval_s, expires_ms)
        # A Retained as a tuple: the bytes are the same, and it is made sooner.
        writes[key] = encode((item.tenant, item.topic, item.payload, item.qos, item.properties, expires_ms, revision))
    return written(view, [])


def _evaluate_delete(view: View, command: Command[RetainedDelete]) -> m.WriteReply:
    prefix, writes = keys.table_prefix(view.group, _MESSAGE), view.writes_of(_MESSAGE)
    errors: list[m.ItemError] = []
    for position, item, suffix in command.rows:
        key = prefix + suffix
        value = view.get(key)
        if value is None:
            errors.append(m.ItemError(position, NotFoundError.code))
            continue
        current = _decode(value).revision
        if item.revision and item.revision != current:
            errors.append(mismatch(position, ConflictError, "revision", current, item.revision))
        else:
            writes[key] = None
    return written(view, errors)


def expire(view: View, items: Iterable[tuple[int, bytes]]) -> tuple[int, int]:
    """Delete the messages with these keys that have expired by the time beside them, if it has passed, and what was due
    then. Returns how many were deleted, and of how many items the time has not passed. Raises TooLargeError."""
    prefix, writes, due = keys.table_prefix(view.group, _MESSAGE), view.writes_of(_MESSAGE), view.writes_of(DUE)
    passed: dict[bytes, int] = {}
    waiting = 0
    for at_ms, suffix in items:
        if at_ms <= view.past_ms:
            due[due_key(view.group, at_ms, DueKind.RETAINED, suffix)] = None
            passed[suffix] = max(at_ms, passed.get(suffix, 0))
        else:
            waiting += 1
    deleted = 0
    rows = view.get_many([prefix + suffix for suffix in passed], LOOKED_AT_BYTES_MAX)
    for (suffix, at_ms), row in zip(passed.items(), rows, strict=True):
        if row is not None and _is_over(row, at_ms):
            writes[prefix + suffix] = None
            deleted += 1
    return deleted, waiting


def delete_older(view: View, suffixes: Sequence[bytes], revision: int) -> int:
    """Delete those of the messages with these keys that were written before a revision. Returns how many."""
    prefix, writes = keys.table_prefix(view.group, _MESSAGE), view.writes_of(_MESSAGE)
    found = [prefix + suffix for suffix in suffixes]
    older = [
        key
        for key, row in zip(found, view.get_many(found, LOOKED_AT_BYTES_MAX), strict=True)
        if row is not None and _decode(row).revision < revision
    ]
    writes.update(dict.fromkeys(older))
    return len(older)


def _is_over(row: bytes, now_ms: int) -> bool:
    return 0 < _decode(row).expires_ms <= now_ms


def _read_get(reader: Reader, command: Command[m.Get[RetainedKey]]) -> m.GetReply[Retained]:
    now_ms = reader.now_ms()
    values = read_values(reader, command, _MESSAGE)
    found = [None if value is None or _is_over(value, now_ms) else msgspec.Raw(value) for value in values]
    return m.GetReply(found)  # type: ignore[arg-type]  # rows are encoded messages


def _read_match(reader: Reader, command: Command[RetainedMatch]) -> m.ListReply[Retained]:
    body = command.body
    scan = TopicScan(body.filter)
    after = body.after.encode() + AFTER if body.after else b""
    begin = max(scan.begin, after, body.page.cursor)
    return _Match(reader, body, scan, wanted_slots(reader, body.slots)).page(begin)


class _Match:
    """One page of what matches a filter. Topics that the scan only names are gathered, and got some at a time."""

    def __init__(self, reader: Reader, body: RetainedMatch, scan: TopicScan, wanted: Numbers | None) -> None:
        self._reader = reader
        self._scan = scan
        self._wanted = wanted
        self._prefix = keys.table_prefix(reader.group, _MESSAGE) + keys.text(body.tenant)
        self._end = keys.after_prefix(self._prefix)
        self._limit = body.page.limit
        self._now_ms = reader.now_ms()
        self._found: list[bytes] = []
        self._found_bytes = 0
        self._named: list[tuple[bytes, bytes]] = []  # keys, and what the listing goes on with behind them
        self._spent = self._spent_bytes = 0

    def page(self, begin: bytes) -> m.ListReply[Retained]:
        """What matches from this text on."""
        pin = self._reader.engine.pin(self._prefix, self._end, brief=True)
        try:
            stopped_at = self._go(pin, self._prefix + begin)
        finally:
            pin.close()
        cursor = self._get_named() or stopped_at
        return m.ListReply([msgspec.Raw(row) for row in self._found], cursor)  # type: ignore[misc]

    def _go(self, pin: Pin, begin: bytes) -> bytes:
        """Look at topics until the page is full or has cost enough. Returns what to go on with; nothing if that was
        all."""
        skip, count = len(self._prefix), _ROWS_MIN
        while True:
            rows = pin.scan(begin, self._end, count, PAGE_BYTES_MAX)
            size = sum([len(key) + len(row) for key, row in rows])
            self._note(_LOOK_ROWS + len(rows), size)
            for key, row in rows:
                if key < begin:
                    continue
                topic = key[skip : -len(keys.TEXT_END)]
                match, behind = self._scan.look(topic)
                if match is not None and (match != topic or self._named):
                    assert behind is not None
                    if stopped_at := self._name(match, behind):
                        return stopped_at
                elif match is not None and self._is_wanted(key):
                    self._take(row)
                if behind is None:
                    return b""
                begin = self._prefix + behind
                if self._is_full():
                    return behind
            if len(rows) < count and size < PAGE_BYTES_MAX:
                return b""
            if self._spent + _GET_ROWS * len(self._named) >= _SPENT_MAX or self._spent_bytes >= _READ_BYTES_MAX:
                return begin[skip:]
            count = min(2 * count, _ROWS_MAX) if begin.endswith(AFTER) else _ROWS_MIN

    def _name(self, topic: bytes, behind: bytes) -> bytes:
        """This topic is in the page if it is stored. Returns what to go on with if the page is full now."""
        key = self._prefix + topic + keys.TEXT_END
        if not self._is_wanted(key):
            return b""
        self._named.append((key, behind))
        return self._get_named() if len(self._named) >= min(_NAMED_MAX, self._limit - len(self._found)) else b""

    def _get_named(self) -> bytes:
        """Get the rows that were named. Returns what to go on with if the page is full before the last of them."""
        named, self._named = self._named, []
        places = iter(named)
        for rows, size in in_chunks(self._reader.engine, [key for key, _ in named]):
            self._note(_GET_ROWS * len(rows), size)
            for row, (_, behind) in zip(rows, places, strict=False):
                if row is not None:
                    self._take(row)
                    if self._is_full():
                        return behind
        return b""

    def _is_wanted(self, key: bytes) -> bool:
        return self._wanted is None or is_held(self._wanted, key)

    def _take(self, row: bytes) -> None:
        if not _is_over(row, self._now_ms):
            self._found.append(row)
            self._found_bytes += len(row)

    def _is_full(self) -> bool:
        return len(self._found) >= self._limit or self._found_bytes >= PAGE_BYTES_MAX

    def _note(self, rows: int, size: int) -> None:
        """Note what was spent."""
        self._reader.spent += rows + size // SPENT_BYTES
        self._spent += rows
        self._spent_bytes += size


VERBS = (
    Verb(methods.RETAINED_PUT, RETAINED, evaluate=_evaluate_put),
    Verb(methods.RETAINED_GET, RETAINED, read=_read_get),
    Verb(methods.RETAINED_DELETE, RETAINED, evaluate=_evaluate_delete, grows=False),
    Verb(methods.RETAINED_MATCH, RETAINED, read=_read_match),
)
