"""The keys of the state on disk: order-preserving tuples behind a group prefix.

::

    state/  <group: u8 kind, u16 ordinal> <table: u8> <fields>

Those of the logs are in :mod:`.log`.

A text field is its UTF-8 with every 0x00 escaped to 0x00 0xFF, ended by 0x00 0x01; so a tuple sorts as its fields do
and no field can run into the next. Clients route by the same bytes: :mod:`metad_wire.key` makes them. The byte of a row
is in the declaration of its table (:mod:`metad_wire.tables`). Integers are big-endian and unsigned. The number of a
group's kind is its position in ``GROUP_KINDS`` plus one; 0 is for the process itself (:data:`STORE_PREFIX`).
"""

from __future__ import annotations

import functools
import struct

from metad_wire.cluster import GROUP_KINDS, GroupId
from metad_wire.key import TEXT_END as TEXT_END
from metad_wire.key import split_text as split_text
from metad_wire.key import text as text
from metad_wire.key import text2 as text2
from metad_wire.key import text_prefix as text_prefix
from metad_wire.tables import ROWS
from metad_wire.tables.cluster import GROUP

u64 = struct.Struct(">Q").pack

STORE_PREFIX = b"\0\0\0"
GROUP_PREFIX_BYTES = 3

_GROUP = GROUP.rows["state"]


def group_prefix(group: GroupId) -> bytes:
    """The three bytes in front of every key of a group."""
    return struct.pack(">BH", GROUP_KINDS.index(group.kind) + 1, group.ordinal)


@functools.cache  # tables × groups; building one costs more than the rest of a key
def table_prefix(group: bytes, table: int) -> bytes:
    """The four bytes in front of every key of one table's row of a group. Only rows that a table declares have a
    prefix: a slot would move without rows that are not declared."""
    if table not in ROWS:
        raise ValueError(f"no table declares row {table:#04x}")
    return group + bytes((table,))


def after_prefix(prefix: bytes) -> bytes:
    """The smallest key greater than every key that starts with ``prefix``."""
    trimmed = prefix.rstrip(b"\xff")
    if not trimmed:
        raise ValueError("no key is greater than this prefix")
    return trimmed[:-1] + bytes((trimmed[-1] + 1,))


def applied(group: bytes) -> bytes:
    """state/: the index of the last entry in a group's state."""
    return table_prefix(group, _GROUP) + b"applied"


def log_time(group: bytes) -> bytes:
    """state/: the time of the newest entry in a group's state, in milliseconds."""
    return table_prefix(group, _GROUP) + b"time"


def snapshot_mark(group: bytes) -> bytes:
    """state/: the index after which the log continues behind the newest installed snapshot."""
    return table_prefix(group, _GROUP) + b"snapshot"


def slot_of_key(key: bytes) -> int | None:
    """The slot of a key behind its group prefix; None if its table belongs to the group itself."""
    table = ROWS.get(key[0])
    return None if table is None else table.slot_of(key[1:])
