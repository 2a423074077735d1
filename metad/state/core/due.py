"""What is due, and when: rows in the order of their deadlines, for the sweep.

A disconnected session's owner row holds its deadlines. With it a row is written here for each of them, and deleted
when the owner row goes. So whoever reads the rows from the first on finds what is due without looking at any session.

A retained message that expires has a row, too. A put does not read the message that it replaces, so it cannot delete
that one's row: the row stays until its time comes, and then says nothing. A topic with a put each second does not have
a row for each, because rows stand at moments that are up to an eighth of the interval apart, behind the deadlines.

Records of declared tables have rows of their own (:data:`metad_wire.tables.table.DUES`), written and deleted by whoever
writes the record.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from metad_wire import messages as m
from metad_wire.tables.session import SESSION_DUE
from metad_wire.tables.table import DUES

from ...storage import keys
from .part import Origin, PartContext, StatePart, Writes

RECORD_DUE = DUES.rows["due"]
DUE = SESSION_DUE.rows["due"]
_APART_MS_MIN: Final = 1024  # rows of a topic, where intervals are short


class DueKind(enum.IntEnum):
    """A part of the rows' format, and of their order: a will is due before its session ends."""

    WILL = 1
    EXPIRY = 2
    RETAINED = 3
    """The end of a retained message. ``session`` is the message's key: a tenant, too, and a topic."""


class Due(NamedTuple):
    """A row."""

    at_ms: int
    kind: int
    session: bytes
    """Its key, as in the owner row's."""


def away(
    broker: str,
    epoch: int,
    since_ms: int,
    interval_s: int,
    will: m.Will | None,
    least_ms: int,
    outlives: int = 0,
    stolen: int = 0,
) -> m.SessionOwner:
    """The owner row of a session whose client has been away since then: with its deadlines, of which none is before
    ``least_ms``. That is the time of the entry: behind what is due at a time, nothing earlier comes into the index."""
    return m.SessionOwner(
        False,
        broker,
        epoch,
        since_ms,
        expires_ms=0 if interval_s == m.NEVER_S else max(least_ms, since_ms + 1_000 * interval_s),
        will_ms=0 if will is None else max(least_ms, since_ms + 1_000 * min(will.delay_s, interval_s)),
        outlives=outlives,
        stolen=stolen,
    )


def due_key(group: bytes, at_ms: int, kind: int, session: bytes) -> bytes:
    """Of a row."""
    return keys.table_prefix(group, DUE) + keys.u64(at_ms) + bytes((kind,)) + session


def split_due(key: bytes) -> Due:
    """The reverse."""
    begin = keys.GROUP_PREFIX_BYTES + 1
    return Due(int.from_bytes(key[begin : begin + 8], "big"), key[begin + 8], key[begin + 9 :])


def retained_due_ms(interval_ms: int, expires_ms: int) -> int:
    """Where the row of a retained message stands: at its deadline or a little later."""
    apart_ms = max(_APART_MS_MIN, 1 << (interval_ms >> 3).bit_length() - 1 if interval_ms >> 3 else 0)
    return -(-expires_ms // apart_ms) * apart_ms


def note_retained(writes: Writes, group: bytes, message: bytes, interval_ms: int, expires_ms: int) -> None:
    """Write the row of a retained message that expires."""
    writes[due_key(group, retained_due_ms(interval_ms, expires_ms), DueKind.RETAINED, message)] = b""


def note(writes: Writes, group: bytes, session: bytes, owner: m.SessionOwner) -> None:
    """Write the rows of a session with this owner row."""
    for key in _keys(group, session, owner):
        writes[key] = b""


def drop(writes: Writes, group: bytes, session: bytes, owner: m.SessionOwner) -> None:
    """Delete the rows of a session that had this owner row."""
    for key in _keys(group, session, owner):
        writes[key] = None


def _keys(group: bytes, session: bytes, owner: m.SessionOwner) -> list[bytes]:
    found = []
    if owner.will_ms:
        found.append(due_key(group, owner.will_ms, DueKind.WILL, session))
    if owner.expires_ms:
        found.append(due_key(group, owner.expires_ms, DueKind.EXPIRY, session))
    return found


class RecordDues(StatePart):
    """Where the rows of records begin. A record may say any time, so a row may come in front of those that were looked
    at; and the engine keeps deleted rows for a while, which nobody wants to pass again and again."""

    rows = (RECORD_DUE,)

    def __init__(self, context: PartContext) -> None:
        self._prefix = keys.table_prefix(context.group, RECORD_DUE)

    def load(self) -> None:
        self.first = self._prefix
        """There is no row in front of this. Whoever has had rows deleted puts it behind them."""

    def stage(self, index: int, origin: Origin, writes: Writes) -> None:
        self.first = min([self.first, *(key for key, value in writes.items() if value is not None)])
