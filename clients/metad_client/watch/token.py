"""The token of a watch: its position as text, to be stored and to resume from. Pure.

A token names its cluster, and the kinds of groups that the watch reads. It says nothing about filters: a program may
resume with others, and then has the changes that these let pass. But it names the tables that programs have declared:
one that was dropped and declared anew is another table, of whose records the watch has heard nothing.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Mapping
from typing import Annotated, Final
from zlib import crc32

import msgspec
from msgspec import Meta

from metad_wire.cluster import SLOTS
from metad_wire.method import MALFORMED, encode
from metad_wire.text.fields import U32, U63

from ..errors import InvalidRequestError
from .position import NOBODY, Position, Reader

FORMAT: Final = "w1."
CHECK_BYTES: Final = 4


class _Slots(msgspec.Struct, frozen=True, array_like=True):
    """How the slots are read. ``runs``: from the first slot on, the number of a reader and how many slots it has."""

    readers: list[tuple[Annotated[int, Meta(ge=NOBODY, lt=1 << 32)], U63, U63]]
    runs: list[tuple[U32, Annotated[int, Meta(ge=1, le=SLOTS)]]]


class _Kind(msgspec.Struct, frozen=True, array_like=True):
    indexes: dict[U32, U63]
    slots: _Slots


class _Token(msgspec.Struct, frozen=True, array_like=True):
    cluster_id: str
    kinds: dict[str, _Kind]
    declared: list[U32] = []


_decode = msgspec.msgpack.Decoder(_Token).decode


def packed_slots(position: Position) -> bytes:
    """The part of a token that only moves and gaps change."""
    readers = sorted(position.readers)
    runs: list[tuple[int, int, int]] = []
    for number, reader in enumerate(readers):
        left = position.readers[reader]
        while left:
            begin = left.bit_length()  # the first slot is the highest bit
            end = (~left & ((1 << begin) - 1)).bit_length()
            runs.append((begin, number, begin - end))
            left &= (1 << end) - 1
    runs.sort(reverse=True)
    return encode(_Slots(readers, [(number, count) for _, number, count in runs]))  # type: ignore[arg-type]


def to_text(
    cluster_id: str, kinds: Mapping[str, tuple[Mapping[int, int], bytes]], declared: Collection[int] = ()
) -> str:
    """The token of a position: per kind its indexes, and its :func:`packed_slots`; and the numbers of the declared
    tables that the watch reads."""
    positions = {
        kind: (dict(sorted(indexes.items())), msgspec.Raw(slots)) for kind, (indexes, slots) in sorted(kinds.items())
    }
    data = encode((cluster_id, positions, sorted(declared)) if declared else (cluster_id, positions))
    return FORMAT + base64.urlsafe_b64encode(crc32(data).to_bytes(CHECK_BYTES, "big") + data).rstrip(b"=").decode()


def from_text(text: str) -> tuple[str, dict[str, Position]]:
    """The cluster and the position per kind. Raises InvalidRequestError if this is no token."""
    return read(text)[:2]


def read(text: str) -> tuple[str, dict[str, Position], list[int]]:
    """As :func:`from_text`, and the numbers of the declared tables that the watch has read."""
    if not text.startswith(FORMAT):
        raise InvalidRequestError(f"token: a token begins with {FORMAT!r}")
    encoded = text[len(FORMAT) :]
    try:
        data = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        if crc32(data[CHECK_BYTES:]) != int.from_bytes(data[:CHECK_BYTES], "big"):
            raise InvalidRequestError("token: it is damaged or cut off")
        token = _decode(data[CHECK_BYTES:])
        positions = {kind: _position(part) for kind, part in token.kinds.items()}
        return token.cluster_id, positions, token.declared
    except (binascii.Error, ValueError, *MALFORMED) as error:
        raise InvalidRequestError(f"token: it is damaged or cut off ({error})") from None


def _position(part: _Kind) -> Position:
    slots: dict[Reader, int] = {}
    left = SLOTS
    for number, count in part.slots.runs:
        left -= count
        reader = Reader(*part.slots.readers[number]) if number < len(part.slots.readers) else None
        if reader is None or left < 0:
            raise ValueError("it has runs of slots that do not fit")
        slots[reader] = slots.get(reader, 0) | ((1 << count) - 1) << left
    if left:
        raise ValueError(f"it says nothing of {left} slots")
    return Position(part.indexes, slots)
