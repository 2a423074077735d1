"""What counts the rows that belong to a session, and has a copy of them and of its properties while they are short.

A scan costs as much as a dozen look-ups, for it asks every memtable and every file, and no bloom filter spares it any
of them. A storm restores all sessions, and nearly all have few and short rows. So the row that counts them has them as
well, encoded as they go on the wire: one look-up finds whether a session has any, and which. It is one row for all
tables, because a look-up asks the filters of all files, and asks them all for a row that is not there. Each change of a
row makes the copy anew, so it is bounded: a session that has outgrown the bound with a table has no copy of that until
all its rows there are gone.

The same row has a copy of the session's properties, so that look-up is the only one that a storm needs for a session:
two of them were a quarter of what it cost the nodes. Who writes properties writes the copy, too, where there is one. A
session that has no such rows has no counts, and no copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from metad_wire.methods import encode
from metad_wire.tables.inflight import INFLIGHT
from metad_wire.tables.subscription import SUBSCRIPTION

COUNTED: Final = (SUBSCRIPTION.name, INFLIGHT.name)
"""The tables whose rows are counted, in the order in which the counts are stored."""
COPY_BYTES_MAX: Final = 512
"""Rows of a table whose names and values take more are not copied."""

Changes: TypeAlias = dict[str, bytes | None]
"""Of a session's rows, by name: new values, as they go on the wire; None deletes."""


class Count(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of one session: how many rows it has of a table, and how many bytes they are, their keys behind the table's byte
    and their values. ``copy`` is all of them in order, as an array of pairs of a name and a value; empty if there is no
    copy."""

    rows: int
    size: int
    copy: msgspec.Raw = msgspec.Raw()


class Counts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of one session: a count of each table in :data:`COUNTED`, and a copy of the session's properties; empty if these
    are long."""

    subscription: Count
    inflight: Count
    properties: msgspec.Raw = msgspec.Raw()

    @property
    def is_empty(self) -> bool:
        """The session has no rows."""
        return not any(getattr(self, name).rows for name in COUNTED)


_NONE: Final = b"\x93\0\0\x90"  # a count of no rows, with a copy of them
_NOTHING: Final = bytes([0x90 + len(COUNTED)]) + len(COUNTED) * _NONE
_ARRAY: Final = b"\xdd"  # the header of an array, behind which its length takes four bytes
_decode_one = msgspec.msgpack.Decoder(Counts).decode
_decode = msgspec.msgpack.Decoder(list[Counts]).decode
_decode_copy = msgspec.msgpack.Decoder(list[tuple[str, msgspec.Raw]]).decode


def decode_counts(stored: Sequence[bytes | None]) -> list[Counts]:
    """The counts of sessions, by position; a session that has no such row has no rows. A storm's sessions pass here, so
    it is one call for all."""
    return _decode(b"".join([_ARRAY, len(stored).to_bytes(4, "big"), *[row or _NOTHING for row in stored]]))


def changed_counts(
    session: bytes, before: Counts, table: str, rows: int, size: int, changes: Changes, properties: bytes | msgspec.Raw
) -> bytes | None:
    """What is stored of a session that had ``before``, and has so many rows and bytes of a table after these changes,
    and these properties; empty if they are not to be copied."""
    counts = {name: getattr(before, name) for name in COUNTED}
    if not rows and not any(count.rows for name, count in counts.items() if name != table):
        return None
    encoded = {name: _encoded(count) for name, count in counts.items() if name != table}
    encoded[table] = _changed(session, counts[table], rows, size, changes)
    return _stored([encoded[name] for name in COUNTED], properties)


def lacks_properties(stored: bytes) -> bool:
    """Whether what is stored has no copy of the session's properties: these are long, or format 3 has written it."""
    return not _decode_one(stored).properties


def with_properties(stored: bytes, properties: bytes) -> bytes:
    """What is stored of a session that has these properties from now on."""
    counts = _decode_one(stored)
    return _stored([_encoded(getattr(counts, name)) for name in COUNTED], properties)


def _stored(counts: list[bytes], properties: bytes | msgspec.Raw) -> bytes:
    copies = [properties] if 0 < len(memoryview(properties)) <= COPY_BYTES_MAX else []
    return encode(list(map(msgspec.Raw, [*counts, *copies])))


def _encoded(count: Count) -> bytes:
    return encode((count.rows, count.size, count.copy) if count.copy else (count.rows, count.size))


def _changed(session: bytes, before: Count, rows: int, size: int, changes: Changes) -> bytes:
    if not rows:
        return _NONE
    if not before.copy or size - rows * len(session) > COPY_BYTES_MAX:
        return encode((rows, size))
    values = dict(_decode_copy(before.copy)) if before.rows else {}
    for name, value in changes.items():
        if value is None:
            del values[name]
        else:
            values[name] = msgspec.Raw(value)
    return encode((rows, size, sorted(values.items())))  # the order of names is that of their keys
