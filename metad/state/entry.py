"""An entry of the log: the writes that its commands make, and where they come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from ..errors import DamagedStoreError
from .part import Origin, Writes

ENTRY_FORMAT: Final = 3
RECORD_HEADER_BYTES: Final = 9
"""Term and kind, in front of an entry in the log."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """``now_ms`` is the leader's clock when the entry was evaluated. ``heard`` are the writes to rows that a
    :class:`.part.StatePart` hears of, by row. The other writes are applied without being looked at."""

    format: int
    origin: Origin
    now_ms: int
    writes: Writes
    heard: dict[int, Writes]

    def __len__(self) -> int:
        return len(self.writes) + sum(map(len, self.heard.values()))

    def __iter__(self) -> Iterator[Writes]:
        yield self.writes
        yield from self.heard.values()


NO_WRITES: Final = Entry(ENTRY_FORMAT, Origin.CLIENT, 0, {}, {})
"""What an entry does that is Raft's own."""


class _Format(msgspec.Struct, array_like=True):
    """The first field of an entry of any format."""

    format: int


_decode = msgspec.msgpack.Decoder(Entry).decode
_decode_format = msgspec.msgpack.Decoder(_Format).decode


def decode_entry(group: str, index: int, record: bytes) -> Entry:
    """The entry in a log record. Raises DamagedStoreError if this version cannot read it."""
    payload = memoryview(record)[RECORD_HEADER_BYTES:]
    try:
        entry = _decode(payload)
        if entry.format == ENTRY_FORMAT:
            return entry
    except msgspec.DecodeError as error:
        if _format_of(payload) in (None, ENTRY_FORMAT):
            raise DamagedStoreError(f"entry {index} of group {group} in the log is unreadable ({error})") from None
    raise DamagedStoreError(
        f"entry {index} of group {group} has format {_format_of(payload)}, this version reads {ENTRY_FORMAT}: "
        "it was written by another version of metad",
        "Start that version",
    )


def _format_of(payload: memoryview) -> int | None:
    try:
        return _decode_format(payload).format
    except msgspec.DecodeError:
        return None
