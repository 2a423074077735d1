"""Every key on disk is built here: order-preserving tuples behind a group prefix.

::

    state/  <group: u8 kind, u16 ordinal> <table: u8> <fields>
    raft/   <group: u8 kind, u16 ordinal> <u8 0 = metadata, 1 = entry> [<index: u64>]

A text field is its UTF-8 with every 0x00 escaped to 0x00 0xFF, ended by 0x00 0x01; so a tuple sorts as its
fields do and no field can run into the next. Clients route by the same bytes: :mod:`metad_wire.routing` makes them.
Integers are big-endian and unsigned. Group kind 0 is the process's own (:data:`STORE_PREFIX`).
"""

from __future__ import annotations

import functools
import struct
from zlib import crc32

from metad_wire.routing import SLOT_MASK
from metad_wire.routing import TEXT_END as TEXT_END
from metad_wire.routing import text as text
from metad_wire.routing import text2 as text2

_u32 = struct.Struct(">I")
_u64 = struct.Struct(">Q")
u32 = _u32.pack
u64 = _u64.pack

KINDS = ("metadata", "offset", "data")
"""Group kinds; a kind's number in keys is its position here plus one."""

STORE_PREFIX = b"\0\0\0"
GROUP_PREFIX_BYTES = 3

# Tables, as the byte behind the group prefix. A number is never reused.
TABLE_GROUP = 0x00  # the group's own: applied index, snapshot mark
TABLE_DEDUPE = 0x01
TABLE_CLUSTER = 0x02
TABLE_SESSION_OWNER = 0x10
TABLE_SESSION_PROPERTIES = 0x11
TABLE_OFFSET = 0x20
TABLE_OFFSET_GENERATION = 0x21
TABLE_KV = 0x30


# Fields in front of a key that route it, by table: records that agree in them are in one slot.
ROUTING_FIELDS = {
    TABLE_SESSION_OWNER: 2,
    TABLE_SESSION_PROPERTIES: 2,
    TABLE_OFFSET: 2,
    TABLE_OFFSET_GENERATION: 2,
    TABLE_KV: 1,
}


def group_prefix(kind: str, ordinal: int) -> bytes:
    """The three bytes in front of every key of a group."""
    return struct.pack(">BH", KINDS.index(kind) + 1, ordinal)


@functools.cache  # tables × groups; building one costs more than the rest of a key
def table_prefix(group: bytes, table: int) -> bytes:
    """The four bytes in front of every key of one table of a group."""
    return group + bytes((table,))


def text3(first: str, second: str, third: str) -> bytes:
    """Three text fields."""
    return text2(first, second) + text(third)


def text_prefix(value: str) -> bytes:
    """What every text field that starts with ``value`` starts with."""
    return value.encode().replace(b"\0", b"\0\xff")


def split_text(key: bytes, offset: int) -> tuple[str, int]:
    """Read one text field back: (value, offset behind it)."""
    end = key.index(TEXT_END, offset)
    return key[offset:end].replace(b"\0\xff", b"\0").decode(), end + len(TEXT_END)


def after_prefix(prefix: bytes) -> bytes:
    """The smallest key greater than every key that starts with ``prefix``."""
    trimmed = prefix.rstrip(b"\xff")
    if not trimmed:
        raise ValueError("no key is greater than this prefix")
    return trimmed[:-1] + bytes((trimmed[-1] + 1,))


def applied(group: bytes) -> bytes:
    """state/: the index of the last entry in a group's state."""
    return table_prefix(group, TABLE_GROUP) + b"applied"


def snapshot_mark(group: bytes) -> bytes:
    """state/: where the log goes on behind the newest snapshot that was installed."""
    return table_prefix(group, TABLE_GROUP) + b"snapshot"


def log_metadata(group: bytes) -> bytes:
    """raft/: a group's term, vote and configuration."""
    return group + b"\x00"


def log_entry(group: bytes, index: int) -> bytes:
    """raft/: one log entry."""
    return group + b"\x01" + u64(index)


def log_index(key: bytes) -> int:
    """raft/: the index in an entry's key."""
    return int(_u64.unpack_from(key, GROUP_PREFIX_BYTES + 1)[0])


def slot_of_key(key: bytes) -> int | None:
    """The slot of a key behind its group prefix; None where its table is the group's own."""
    fields = ROUTING_FIELDS.get(key[0])
    if fields is None:
        return None
    end = 1
    for _ in range(fields):
        end = key.index(TEXT_END, end) + len(TEXT_END)
    slot: int = crc32(key[1:end]) & SLOT_MASK
    return slot
