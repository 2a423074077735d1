"""Which group an item belongs to: key fields -> bytes -> slot -> group. wire/PROTOCOL.md, "Routing"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .key import SLOT_MASK as SLOT_MASK
from .key import text as text
from .key import text2 as text2
from .method import METHODS, By, For, Route
from .table import ANY_KIND
from .tables import TABLES as TABLES  # all of them: each declares its methods

ROUTES: Final[dict[int, Route]] = {method.code: method.route for method in METHODS.values() if method.route is not None}
"""By method code. Methods that are not here belong to no group, or as session.list to all of a kind."""

KINDS: Final[dict[int, str]] = {
    method.code: method.kind
    for method in METHODS.values()
    if method.table is not None and method.kind != ANY_KIND and method.by is By.GROUP and method.whose is not For.NODES
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
