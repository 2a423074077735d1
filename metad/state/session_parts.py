"""What belongs to sessions and is rows of its own, by name: subscriptions, and state that is in flight.

A session may have a limited number of such rows, and of bytes in them. So its end, which drops them all, fits an entry,
and what is restored of it fits a reply. A row of the session counts both; it changes only if they do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from metad_wire import messages as m
from metad_wire.errors import NotFoundError, QuotaExceededError, TooLargeError
from metad_wire.methods import encode
from metad_wire.table import Table
from metad_wire.tables.session import SESSION

from ..storage import keys
from .limits import LOOKED_AT_BYTES_MAX, check_reply
from .owned import absences, refusals
from .part import Writes
from .rows import Rows, column
from .tables import SPENT_BYTES, Command, Reader
from .view import View

_decode_count = msgspec.msgpack.Decoder(tuple[int, int]).decode
_NONE = (0, 0)
READ_ROWS_MAX = 16_384
"""Rows of one kind that one request reads, of all its sessions: some 100 ms, for which nobody else is served."""

Named = list[tuple[bytes, bytes]]
"""Of one session, in order: what of a row's key is behind that of the session, and the value."""
Counts = dict[bytes, tuple[int, int]]
"""Session -> how many rows it has, and how many bytes: their keys behind the table's byte, and their values."""


def rows_of_sessions(body: Any) -> Rows:
    """Those of a request whose items have the fields of a session's key."""
    sessions, crcs = SESSION.keys(body.items)
    return Rows(body.items, sessions, column(crcs, len(sessions)))


def _check_rows(counts: Sequence[bytes | None]) -> None:
    """Raise TooLargeError where sessions that have so many rows are too much to read for one request."""
    if sum([_decode_count(count)[0] for count in counts if count is not None]) > READ_ROWS_MAX:
        raise TooLargeError(f"these sessions have over {READ_ROWS_MAX} rows of one kind: ask for fewer of them at once")


class SessionParts:
    """The rows of one table: ``part`` is the row of a part, and ``count`` that of what a session has of them."""

    def __init__(self, table: Table[Any], part: str, count: str, *, rows_max: int, bytes_max: int) -> None:
        self.row = table.rows[part]
        self._count = table.rows[count]
        self._rows_max = rows_max
        self._bytes_max = bytes_max

    def put(
        self,
        view: View,
        command: Command[Any],
        values: Sequence[bytes],
        faults: Mapping[int, m.ItemError],
        *,
        any_owner: bool = False,
    ) -> tuple[list[m.ItemError], list[bool]]:
        """Write a row for each item of the owner of its session, or of any session that there is, but those that have
        a fault. The errors, and whether each row is new."""
        rows = command.rows
        sessions, errors = self._owned(view, command, any_owner=any_owner)
        errors |= faults
        targets = list(map(keys.table_prefix(view.group, self.row).__add__, rows.keys))
        before = view.get_many(targets, LOOKED_AT_BYTES_MAX)
        if errors or len(set(targets)) < len(targets):
            return self._put_in_turn(view, rows, sessions, targets, before, values, errors)
        # Different rows of sessions that the broker owns, as nearly always: by columns.
        changed = [at for at, (value, old) in enumerate(zip(values, before, strict=True)) if value != old]
        added: Counts = {}
        dropped: dict[bytes, int] = {}
        for at in changed:
            old, session = before[at], sessions[at]
            count, size = added.get(session, _NONE)
            if old is None:
                added[session] = count + 1, size + len(rows.keys[at]) + len(values[at])
            elif (grown := len(values[at]) - len(old)) > 0:
                added[session] = count, size + grown
            elif grown:
                added[session] = count, size
                dropped[session] = dropped.get(session, 0) - grown
        counted = self._counted(view, added)
        for session, (count, size) in added.items():
            known = counted[session]
            count, size = known[0] + count, known[1] + size
            if self._is_over(count, size):  # perhaps not, if a row that shrinks has its turn before
                return self._put_in_turn(view, rows, sessions, targets, before, values, {})
            counted[session] = count, size - dropped.get(session, 0)
        view.write(self.row, {targets[at]: values[at] for at in changed})
        self._write_counts(view, counted)
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
        counted = self._counted(view, sessions)
        found = dict(counted)
        writes = view.writes_of(self.row)
        created = [False] * len(targets)
        for at, (target, session, value) in enumerate(zip(targets, sessions, values, strict=True)):
            if at in errors:
                continue
            old, (count, size) = stored[target], counted[session]
            if value == old:
                continue
            if old is None:
                after = count + 1, size + len(rows.keys[at]) + len(value)
            else:
                after = count, size + len(value) - len(old)
            if after > (count, size) and self._is_over(*after):
                what = f"{self._rows_max} of them and {self._bytes_max} bytes are allowed for one session"
                errors[at] = m.ItemError(at, QuotaExceededError.code, what)
                continue
            counted[session] = after
            writes[target] = stored[target] = value
            created[at] = old is None
        self._write_counts(view, {session: now for session, now in counted.items() if now != found[session]})
        return [errors[at] for at in sorted(errors)], created

    def remove(self, view: View, command: Command[Any]) -> list[m.ItemError]:
        """Delete the row of each item of the owner of its session. The errors."""
        rows = command.rows
        sessions, errors = self._owned(view, command)
        targets = list(map(keys.table_prefix(view.group, self.row).__add__, rows.keys))
        before = view.get_many(targets, LOOKED_AT_BYTES_MAX)
        writes: dict[bytes, bytes | None] = {}
        removed: Counts = {}
        for at, (target, session, old) in enumerate(zip(targets, sessions, before, strict=True)):
            if at in errors:
                continue
            if old is None or target in writes:  # the second time in one batch it is gone already
                errors[at] = m.ItemError(at, NotFoundError.code)
                continue
            writes[target] = None
            count, size = removed.get(session, _NONE)
            removed[session] = count + 1, size + len(rows.keys[at]) + len(old)
        counted = self._counted(view, removed)
        for session, (count, size) in removed.items():
            known = counted[session]
            counted[session] = known[0] - count, known[1] - size
        view.write(self.row, writes)
        self._write_counts(view, counted)
        return [errors[at] for at in sorted(errors)]

    def read(self, reader: Reader, sessions: Sequence[bytes], bytes_max: int) -> Iterator[Named]:
        """The rows of each session. A session without any costs one look-up. Raises TooLargeError if they are more than
        ``bytes_max`` together."""
        count_prefix = keys.table_prefix(reader.group, self._count)
        prefix = keys.table_prefix(reader.group, self.row)
        counts = reader.get_many([count_prefix + session for session in sessions], bytes_max)
        _check_rows(counts)
        size = 0
        for session, count in zip(sessions, counts, strict=True):
            if count is None:
                yield []
                continue
            rows, stored = _decode_count(count)
            size += stored
            check_reply(size, bytes_max)
            reader.spent += rows + stored // SPENT_BYTES
            begin = prefix + session
            skip = len(begin)
            found = reader.engine.scan(begin, keys.after_prefix(begin), rows)
            yield [(key[skip:], value) for key, value in found]

    def restored(self, view: View, sessions: Sequence[bytes], bytes_max: int) -> Iterator[Named]:
        """:meth:`read` for a command: what it must believe in."""
        count_prefix = keys.table_prefix(view.group, self._count)
        prefix = keys.table_prefix(view.group, self.row)
        counts = view.get_many([count_prefix + session for session in sessions], LOOKED_AT_BYTES_MAX)
        changed: dict[bytes, Writes] = {}
        _check_rows(counts)
        if len(counts) > counts.count(None):
            changed = self._in_flight(view, prefix)
        size = 0
        for session, count in zip(sessions, counts, strict=True):
            if count is None:
                yield []
                continue
            size += _decode_count(count)[1]
            check_reply(size, bytes_max)
            begin = prefix + session
            skip = len(begin)
            found, _ = view.scan(begin, keys.after_prefix(begin), self._rows_max, LOOKED_AT_BYTES_MAX)
            rows = dict(found) | changed.get(session, {})
            yield [(key[skip:], value) for key, value in sorted(rows.items()) if value is not None]

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

    def _counted(self, view: View, sessions: Sequence[bytes] | Counts) -> Counts:
        """What these sessions have before the command."""
        distinct = list(dict.fromkeys(sessions))
        prefix = keys.table_prefix(view.group, self._count)
        stored = view.get_many([prefix + session for session in distinct], LOOKED_AT_BYTES_MAX)
        counts = [_NONE if count is None else _decode_count(count) for count in stored]
        return dict(zip(distinct, counts, strict=True))

    def _write_counts(self, view: View, counted: Counts) -> None:
        prefix = keys.table_prefix(view.group, self._count)
        counts = {prefix + session: encode(now) if now[0] else None for session, now in counted.items()}
        view.writes_of(self._count).update(counts)
