"""Which group an item belongs to: key fields -> bytes -> slot -> group. wire/PROTOCOL.md, "Routing"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from . import tables as tables  # all of them
from .key import SLOT_MASK as SLOT_MASK
from .key import text as text
from .key import text2 as text2
from .method import By, For
from .table import TABLES, Table

ROUTES: Final[dict[int, Table]] = {method.code: table for table in TABLES.values() for method in table.routed}
"""By method code: the table that says how its items, or its body where it has none, are routed. Methods that are not
here belong to no group, or as session.list to all of a kind."""

KINDS: Final[dict[int, str]] = {
    method.code: table.kind
    for table in TABLES.values()
    for method in table.methods
    if method.by is By.GROUP and method.whose is not For.NODES
}
"""Method code -> kind of the groups that answer it."""


def split(route: Table, items: Sequence[Any], slots: Sequence[int], ordinals: int) -> dict[int, list[int]]:
    """Positions of the items by ordinal of their group, in order. ``slots`` is slot -> ordinal, ``ordinals`` more than
    the highest of them."""
    if len(items) == 1:
        (crc,) = route.crcs(items)
        return {slots[crc & SLOT_MASK]: [0]}
    parts: list[list[int]] = [[] for _ in range(ordinals)]
    for position, crc in enumerate(route.crcs(items)):
        parts[slots[crc & SLOT_MASK]].append(position)
    return {ordinal: positions for ordinal, positions in enumerate(parts) if positions}
