"""What belongs to sessions and is rows of its own, by name: subscriptions, and state that is in flight.

A session may have a limited number of such rows, and of bytes in them. So its end, which drops them all, fits an entry,
and what is restored of it fits a reply. One row of the session counts both, for all tables. While the session's rows
are short, it has a copy of them and of its properties, encoded as they go on the wire: so all sessions of a storm are
restored by one look-up, without a scan. See :mod:`..core.counts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec

from metad_wire import messages as m
from metad_wire.errors import NotFoundError, QuotaExceededError, TooLargeError
from metad_wire.methods import encode
from metad_wire.table import Table
from metad_wire.tables.session import SESSION

from ...storage import keys
from ..core.counts import Changes, Count, Counts, changed_counts, decode_counts, with_properties
from ..core.limits import LOOKED_AT_BYTES_MAX, check_reply
from ..core.part import Writes
from ..core.verb import SPENT_BYTES, Command, Reader, written
from ..core.view import Rows, View, column
from .owned import absences, refusals

_PROPERTIES, _COUNTS = SESSION.rows["properties"], SESSION.rows["parts"]
_PAIR = b"\x92"  # the header of an array on the wire, of a name and a value
READ_ROWS_MAX = 16_384
"""Rows of one kind that one request reads, of all its sessions: some 100 ms, for which nobody else is served."""

_Sizes: TypeAlias = dict[bytes, tuple[int, int]]
"""Session -> how many rows it has, and how many bytes."""


class Found(NamedTuple):
    """The rows of sessions: of each an array of pairs of a name and a value, as it goes on the wire, in order. And how
    many bytes they all take at most."""

    rows: list[msgspec.Raw]
    size: int


def rows_of_sessions(body: Any) -> Rows:
    """Those of a request whose items have the fields of a session's key."""
    sessions, crcs = SESSION.keys(body.items)
    return Rows(body.items, sessions, column(crcs, len(sessions)))


def _check(counts: Sequence[Count], bytes_max: int) -> int:
    """How many bytes the rows of these sessions take at most. Raises TooLargeError where that is more than
    ``bytes_max``, or they are too many to read for one request."""
    if sum([count.rows for count in counts]) > READ_ROWS_MAX:
        raise TooLargeError(f"these sessions have over {READ_ROWS_MAX} rows of one kind: ask for fewer of them at once")
    size = sum([count.size for count in counts])
    check_reply(size, bytes_max)
    return size


def _encoded(rows: Sequence[tuple[bytes, bytes]], skip: int) -> msgspec.Raw:
    """The rows of one session as they go on the wire. The name begins behind the first ``skip`` bytes of the key."""
    pairs = [_PAIR + encode(keys.split_text(key, skip)[0]) + value for key, value in rows]
    return msgspec.Raw(encode(list(map(msgspec.Raw, pairs))))


def _sizes(count: Count) -> tuple[int, int]:
    return count.rows, count.size


def counts_of(source: View | Reader, sessions: Iterable[bytes]) -> list[Counts]:
    """What these sessions have, by position."""
    prefix = keys.table_prefix(source.group, _COUNTS)
    return decode_counts(source.get_many(list(map(prefix.__add__, sessions)), LOOKED_AT_BYTES_MAX))


class SessionParts:
    """The rows of one table: ``part`` is the row of a part."""

    def __init__(self, table: Table[Any], part: str, *, rows_max: int, bytes_max: int) -> None:
        self.row = table.rows[part]
        self.count: Callable[[Counts], Count] = attrgetter(table.name)
        """Its count, of all that a session has."""
        self._table = table.name
        self._name = attrgetter(table.key[-1])
        self._rows_max = rows_max
        self._bytes_max = bytes_max

    def put(
        self,
        view: View,
        command: Command[Any],
        values: Sequence[bytes],
        *,
        any_owner: bool = False,
    ) -> tuple[list[m.ItemError], list[bool]]:
        """Write a row for each item of the owner of its session, or of any session that there is. The errors, and
        whether each row is new."""
        rows = command.rows
        sessions, errors = self._owned(view, command, any_owner=any_owner)
        targets = list(map(keys.table_prefix(view.group, self.row).__add__, rows.keys))
        before = view.get_many(targets, LOOKED_AT_BYTES_MAX)
        if errors or len(set(targets)) < len(targets):
            return self._put_in_turn(view, rows, sessions, targets, before, values, errors)
        # Different rows of sessions that the broker owns, as nearly always: by columns.
        changed = [at for at, (value, old) in enumerate(zip(values, before, strict=True)) if value != old]
        added: dict[bytes, tuple[int, int]] = {}
        dropped: dict[bytes, int] = {}
        for at in changed:
            old, session = before[at], sessions[at]
            count, size = added.get(session, (0, 0))
            if old is None:
                added[session] = count + 1, size + len(rows.keys[at]) + len(values[at])
            elif (grown := len(values[at]) - len(old)) > 0:
                added[session] = count, size + grown
            else:
                added[session] = count, size
                dropped[session] = dropped.get(session, 0) - grown
        known = self._known(view, added)
        after: _Sizes = {}
        for session, (count, size) in added.items():
            of = self.count(known[session])
            count, size = of.rows + count, of.size + size
            if self._is_over(count, size):  # perhaps not, if a row that shrinks has its turn before
                return self._put_in_turn(view, rows, sessions, targets, before, values, {})
            after[session] = count, size - dropped.get(session, 0)
        view.write(self.row, {targets[at]: values[at] for at in changed})
        changes: dict[bytes, Changes] = {}
        for at in changed:
            changes.setdefault(sessions[at], {})[self._name(rows.items[at])] = values[at]
        self._write_counts(view, known, after, changes)
        return [], [old is None for old in before]

    def _put_in_turn(
        self,
        view: View,
        rows: Rows,
        sessions: Sequence[bytes],
        targets: Sequence[bytes],
        before: Sequence[bytes | None],
        values: Sequence[bytes],
        errors: dict[int, m.ItemError],
    ) -> tuple[list[m.ItemError], list[bool]]:
        stored = dict(zip(targets, before, strict=True))
        known = self._known(view, sessions)
        after: _Sizes = {}
        changes: dict[bytes, Changes] = {}
        writes = view.writes_of(self.row)
        created = [False] * len(targets)
        for at, (target, session, value) in enumerate(zip(targets, sessions, values, strict=True)):
            if at in errors:
                continue
            old = stored[target]
            if value == old:
                continue
            count, size = after.get(session) or _sizes(self.count(known[session]))
            if old is None:
                now = count + 1, size + len(rows.keys[at]) + len(value)
            else:
                now = count, size + len(value) - len(old)
            if now > (count, size) and self._is_over(*now):
                what = f"{self._rows_max} of them and {self._bytes_max} bytes are allowed for one session"
                errors[at] = m.ItemError(at, QuotaExceededError.code, what)
                continue
            after[session] = now
            changes.setdefault(session, {})[self._name(rows.items[at])] = value
            writes[target] = stored[target] = value
            created[at] = old is None
        self._write_counts(view, known, after, changes)
        return [errors[at] for at in sorted(errors)], created

    def remove(self, view: View, command: Command[Any]) -> m.WriteReply:
        """Delete the row of each item of the owner of its session."""
        rows = command.rows
        sessions, errors = self._owned(view, command)
        targets = list(map(keys.table_prefix(view.group, self.row).__add__, rows.keys))
        before = view.get_many(targets, LOOKED_AT_BYTES_MAX)
        writes: dict[bytes, bytes | None] = {}
        removed: _Sizes = {}
        changes: dict[bytes, Changes] = {}
        for at, (target, session, old) in enumerate(zip(targets, sessions, before, strict=True)):
            if at in errors:
                continue
            if old is None or target in writes:  # the second time in one batch it is gone already
                errors[at] = m.ItemError(at, NotFoundError.code)
                continue
            writes[target] = None
            count, size = removed.get(session, (0, 0))
            removed[session] = count + 1, size + len(rows.keys[at]) + len(old)
            changes.setdefault(session, {})[self._name(rows.items[at])] = None
        known = self._known(view, removed)
        after = {
            session: (of.rows - count, of.size - size)
            for session, (count, size) in removed.items()
            for of in [self.count(known[session])]
        }
        view.write(self.row, writes)
        self._write_counts(view, known, after, changes)
        return written(view, [errors[at] for at in sorted(errors)])

    def read(self, reader: Reader, sessions: Sequence[bytes], counts: Sequence[Count], bytes_max: int) -> Found:
        """The rows of sessions that have these counts. Raises TooLargeError if they are more than ``bytes_max``
        together."""
        size = _check(counts, bytes_max)
        rows = [count.copy for count in counts]
        prefix = keys.table_prefix(reader.group, self.row)
        for at, count in enumerate(counts):
            if not count.copy:
                reader.spent += count.rows + count.size // SPENT_BYTES
                begin = prefix + sessions[at]
                rows[at] = _encoded(reader.engine.scan(begin, keys.after_prefix(begin), count.rows), len(begin))
        return Found(rows, size)

    def read_get(self, reader: Reader, command: Command[m.Get[m.SessionKey]]) -> m.GetReply[Any]:
        """The reply to a request for the rows of sessions."""
        sessions = command.rows.keys
        counts = list(map(self.count, counts_of(reader, sessions)))
        return m.GetReply([*self.read(reader, sessions, counts, command.reply_bytes_max).rows])

    def restored(self, view: View, sessions: Sequence[bytes], counts: Sequence[Count], bytes_max: int) -> Found:
        """:meth:`read` for a command: what it must believe in."""
        size = _check(counts, bytes_max)
        found = [count.copy for count in counts]
        if uncopied := [at for at, rows in enumerate(found) if not rows]:
            prefix = keys.table_prefix(view.group, self.row)
            changed = self._in_flight(view, prefix)
            for at in uncopied:
                begin = prefix + sessions[at]
                scanned, _ = view.scan(begin, keys.after_prefix(begin), self._rows_max, LOOKED_AT_BYTES_MAX)
                rows = dict(scanned) | changed.get(sessions[at], {})
                there = [(key, value) for key, value in sorted(rows.items()) if value is not None]
                found[at] = _encoded(there, len(begin))
        return Found(found, size)

    def _in_flight(self, view: View, prefix: bytes) -> dict[bytes, Writes]:
        """The writes of entries in flight and of the command, by session."""
        young, old = view.in_flight(self.row)
        begin = len(prefix)
        found: dict[bytes, Writes] = {}
        for writes in (old, young, view.writes_of(self.row)):
            for key, value in writes.items():
                if key.startswith(prefix):
                    tenant_end = key.index(keys.TEXT_END, begin) + len(keys.TEXT_END)
                    end = key.index(keys.TEXT_END, tenant_end) + len(keys.TEXT_END)
                    found.setdefault(key[begin:end], {})[key] = value
        return found

    def _owned(
        self, view: View, command: Command[Any], *, any_owner: bool = False
    ) -> tuple[list[bytes], dict[int, m.ItemError]]:
        """The session of each item; and why the broker that asks may not touch some of them, by position."""
        rows, body = command.rows, command.body
        sessions, _ = SESSION.keys(rows.items)
        of_sessions = Rows(rows.items, sessions, rows.crcs)
        if any_owner:
            return sessions, absences(view, of_sessions)
        return sessions, refusals(view, of_sessions, body.broker, body.broker_epoch)

    def _is_over(self, count: int, size: int) -> bool:
        return count > self._rows_max or size > self._bytes_max

    def _known(self, view: View, sessions: Iterable[bytes]) -> dict[bytes, Counts]:
        """What these sessions have before the command."""
        distinct = list(dict.fromkeys(sessions))
        return dict(zip(distinct, counts_of(view, distinct), strict=True))

    def _write_counts(
        self, view: View, known: Mapping[bytes, Counts], after: _Sizes, changes: Mapping[bytes, Changes]
    ) -> None:
        """Write how many rows and bytes sessions have after these changes."""
        uncounted = [session for session in after if known[session].is_empty]  # without a copy of their properties
        stored = kept_properties(view, uncounted, None, LOOKED_AT_BYTES_MAX)
        properties = {session: value for session, value in zip(uncounted, stored, strict=True) if value is not None}
        prefix = keys.table_prefix(view.group, _COUNTS)
        counts: Writes = {}
        for session, now in after.items():
            before = known[session]
            count = self.count(before)
            if count.copy or now != _sizes(count):
                kept = properties.get(session, before.properties)
                counts[prefix + session] = changed_counts(session, before, self._table, *now, changes[session], kept)
        view.beside += sum([len(count) for count in counts.values() if count is not None])
        view.writes_of(_COUNTS).update(counts)


def kept_properties(
    view: View, sessions: Sequence[bytes], counts: Sequence[Counts] | None, bytes_max: int
) -> list[msgspec.Raw | None]:
    """The properties of sessions, by position. ``counts``: what they have, if that has been looked up; where it has a
    copy of them, they are not looked up."""
    prefix = keys.table_prefix(view.group, _PROPERTIES)
    found: list[msgspec.Raw | None] = [None] * len(sessions) if counts is None else [of.properties for of in counts]
    uncopied = [at for at, copy in enumerate(found) if not copy]
    values = view.get_many([prefix + sessions[at] for at in uncopied], bytes_max)
    for at, value in zip(uncopied, values, strict=True):
        found[at] = None if value is None else msgspec.Raw(value)
    return found


def copy_properties(view: View, properties: Mapping[bytes, bytes]) -> None:
    """The command that is evaluated writes these properties, by session: write their copies, too, where there are
    counts."""
    prefix = keys.table_prefix(view.group, _COUNTS)
    targets = [prefix + session for session in properties]
    stored = view.get_many(targets, LOOKED_AT_BYTES_MAX)
    copies = {
        target: with_properties(counts, copied)
        for target, counts, copied in zip(targets, stored, properties.values(), strict=True)
        if counts is not None
    }
    view.beside += sum([len(target) + len(counts) for target, counts in copies.items()])
    view.writes_of(_COUNTS).update(copies)


def read(
    reader: Reader, parts: Sequence[SessionParts], sessions: Sequence[bytes], counts: Sequence[Counts], bytes_max: int
) -> list[Found]:
    """The rows of sessions that have these counts, by table. Raises TooLargeError if they are more than ``bytes_max``
    together."""
    return _each(parts, reader, sessions, counts, bytes_max, SessionParts.read)


def restored(
    view: View, parts: Sequence[SessionParts], sessions: Sequence[bytes], counts: Sequence[Counts], bytes_max: int
) -> list[Found]:
    """:func:`read` for a command: what it must believe in."""
    return _each(parts, view, sessions, counts, bytes_max, SessionParts.restored)


def _each(
    parts: Sequence[SessionParts],
    source: Any,
    sessions: Sequence[bytes],
    counts: Sequence[Counts],
    bytes_max: int,
    read_one: Callable[[SessionParts, Any, Sequence[bytes], Sequence[Count], int], Found],
) -> list[Found]:
    found: list[Found] = []
    for one in parts:
        found.append(read_one(one, source, sessions, list(map(one.count, counts)), bytes_max))
        bytes_max -= found[-1].size
    return found
