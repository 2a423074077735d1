"""Which group an item belongs to: key fields -> bytes -> slot -> group. wire/PROTOCOL.md, "Routing"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from .key import SLOT_MASK as SLOT_MASK
from .key import text as text
from .key import text2 as text2
from .method import By, For
from .table import Keyed, Table
from .tables import TABLES


class Route(NamedTuple):
    """How the items of a method are routed: ``kind`` of their groups, and their CRCs by position. ``fault`` says why an
    item would be refused whatever is stored; None if it would not."""

    kind: str
    crcs: Callable[[Sequence[Any]], Iterable[int]]
    fault: Callable[[Any], str | None]


def _route(table: Table[Any], keyed: Keyed | None) -> Route:
    if keyed is None:
        return Route(table.kind, table.crcs, table.fault)
    return Route(table.kind, lambda items: table.crcs(keyed(items)), table.fault)


ROUTES: Final[dict[int, Route]] = {
    method.code: _route(table, keyed) for table in TABLES.values() for method, keyed in table.routed.items()
}
"""By method code. Methods that are not here belong to no group, or as session.list to all of a kind."""

KINDS: Final[dict[int, str]] = {
    method.code: table.kind
    for table in TABLES.values()
    for method in table.methods
    if method.by is By.GROUP and method.whose is not For.NODES
}
"""Method code -> kind of the groups that answer it."""


def split(route: Route, items: Sequence[Any], slots: Sequence[int], ordinals: int) -> dict[int, list[int]]:
    """Positions of the items by ordinal of their group, in order. ``slots`` is slot -> ordinal, ``ordinals`` more than
    the highest of them."""
    if len(items) == 1:
        (crc,) = route.crcs(items)
        return {slots[crc & SLOT_MASK]: [0]}
    parts: list[list[int]] = [[] for _ in range(ordinals)]
    for position, crc in enumerate(route.crcs(items)):
        parts[slots[crc & SLOT_MASK]].append(position)
    return {ordinal: positions for ordinal, positions in enumerate(parts) if positions}
