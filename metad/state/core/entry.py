"""An entry of the log: the writes that its commands make, and where they come from.

An entry writes a row once at most, so that who follows the log sees every version of a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from zlib import crc32

import msgspec
import numpy as np

from metad_wire.methods import encode
from metad_wire.watch import SlotMarker

from ... import formats
from ...errors import DamagedStoreError, StorageError
from ...storage.log import ENTRY_KIND, HEADER_BYTES
from .part import Origin, Writes

ENTRY_FORMAT: Final = formats.LOG_ENTRY.writes
CHECKED_FORMAT: Final = formats.LOG_ENTRY.newest
"""Of an entry that ends with a checksum: once all nodes read it."""
CHECKSUM_BYTES: Final = 4
_CHECKSUM_ROOM: Final = 0xFFFFFFFF
"""Stands where the checksum comes: so large that its place has all four bytes."""
RECORD_HEADER_BYTES: Final = HEADER_BYTES
"""In front of an entry in the log."""

Previous = dict[int, list[tuple[bytes, list[int]]]]
"""Row -> each distinct value that the writes to the row replace, with the positions of those writes among all writes to
the row; no positions if all writes replace this value. ``b""``: there was no value."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """``now_ms`` is the log's time when the entry was evaluated, see :class:`..machine.LogTime`. ``heard`` are the
    writes to rows that a :class:`.part.StatePart` hears of, by row. The other writes are applied without being looked
    at. The fields behind those are newer than some logs."""

    format: int
    origin: Origin
    now_ms: int
    writes: Writes
    heard: dict[int, Writes]
    revision: int = 0
    """The group's once the entry is applied, so that of the records in it. 0: an older version wrote the entry."""
    marker: SlotMarker | None = None
    """Of a step of a slot move after which the group holds other slots."""
    previous: Previous = {}
    """Of rows whose previous values the evaluation knows: for a takeover they are the sessions' last owners."""

    def __len__(self) -> int:
        return len(self.writes) + sum(map(len, self.heard.values()))

    def __iter__(self) -> Iterator[Writes]:
        yield self.writes
        yield from self.heard.values()

    def encoded(self) -> bytes:
        """As it goes to the log: without the last two fields if they are empty, as nearly always, or with all and a
        checksum of what is in front of that."""
        if self.format == CHECKED_FORMAT:
            body = encode((*msgspec.structs.astuple(self), _CHECKSUM_ROOM))[:-CHECKSUM_BYTES]
            return body + crc32(body).to_bytes(CHECKSUM_BYTES, "big")
        if self.marker is None and not self.previous:
            return encode((self.format, self.origin, self.now_ms, self.writes, self.heard, self.revision))
        return encode(self)

    def replaced(self, row: int) -> list[bytes] | None:
        """The values that the writes to a row replace, in the order of the writes; ``b""`` where there was none. None
        if the entry does not say them."""
        distinct = self.previous.get(row)
        if distinct is None:
            return None
        values = [distinct[0][0]] * len(self.heard.get(row, ()))
        for value, positions in distinct:
            for position in positions:
                values[position] = value
        return values


class Replaced:
    """What writes to a row replace, in the order of the writes; None: nothing. ``found`` are all of these values, once
    each, and perhaps others."""

    __slots__ = ("_found", "_values")

    def __init__(self, values: list[bytes | None], found: dict[bytes | None, None]) -> None:
        self._values = values
        self._found = found

    def extend(self, more: Replaced) -> None:
        """Further writes to the row follow."""
        self._values += more._values
        self._found |= more._found

    @property
    def size(self) -> int:
        """Bytes in the log, at most, about."""
        if len(self._values) == 1:
            return len(self._values[0] or b"")
        return 3 * len(self._values) + sum(map(len, filter(None, self._found)))

    def distinct(self) -> list[tuple[bytes, list[int]]]:
        """An element of :data:`Previous`."""
        values, found = self._values, self._found
        if len(found) == 1:
            return [(value or b"", []) for value in found]
        numbers = dict(zip(found, range(len(found)), strict=True))
        column = np.fromiter(map(numbers.__getitem__, values), np.uint8 if len(found) <= 256 else np.int64, len(values))
        places = np.argsort(column, kind="stable").tolist()
        said: list[tuple[bytes, list[int]]] = []
        begin = 0
        for value, count in zip(found, np.bincount(column, minlength=len(found)).tolist(), strict=True):
            if count:
                said.append((value or b"", places[begin : begin + count] if count < len(values) else []))
                begin += count
        return said


NO_WRITES: Final = Entry(ENTRY_FORMAT, Origin.CLIENT, 0, {}, {})
"""What an entry does that is Raft's own."""


class _Format(msgspec.Struct, array_like=True):
    """The first field of an entry of any format."""

    format: int


_decode = msgspec.msgpack.Decoder(Entry).decode
_decode_format = msgspec.msgpack.Decoder(_Format).decode


def decode_entry(group: str, index: int, record: bytes) -> Entry:
    """The entry in a log record. Raises DamagedStoreError if it is not what was written, and StorageError if another
    version wrote it, which this one does not read."""
    payload = memoryview(record)[RECORD_HEADER_BYTES:]
    try:
        entry = _decode(payload)
        if entry.format == ENTRY_FORMAT:
            return entry
        if entry.format == CHECKED_FORMAT:
            return _checked(entry, payload, f"entry {index} of group {group}")
    except msgspec.DecodeError as error:
        if (found := _format_of(payload)) is None or formats.LOG_ENTRY.reads(found):
            raise DamagedStoreError(f"entry {index} of group {group} in the log is unreadable ({error})") from None
        entry_format = found
    else:
        entry_format = entry.format
    raise StorageError(formats.refusal(f"entry {index} of group {group}", formats.LOG_ENTRY, entry_format))


def decode_record(group: str, index: int, record: bytes) -> Entry:
    """The entry in any log record, as :func:`decode_entry` reads it; one without writes where it is Raft's own."""
    return decode_entry(group, index, record) if record[HEADER_BYTES - 1] == ENTRY_KIND else NO_WRITES


def _checked(entry: Entry, payload: memoryview, what: str) -> Entry:
    """The entry, if it is what its leader made. Raises DamagedStoreError."""
    if crc32(payload[:-CHECKSUM_BYTES]) != int.from_bytes(payload[-CHECKSUM_BYTES:], "big"):
        raise DamagedStoreError(f"{what} in the log is not what its leader made: its checksum is another")
    return entry


def _format_of(payload: memoryview) -> int | None:
    try:
        return _decode_format(payload).format
    except msgspec.DecodeError:
        return None
