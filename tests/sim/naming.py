"""The group that a request names if it is not made by the SDK."""

from __future__ import annotations

from typing import Any

from metad_wire.cluster import ClusterMap, GroupId, unpack_slots
from metad_wire.methods import By, Method
from metad_wire.routing import ROUTES, SLOT_MASK
from metad_wire.table import ANY_KIND


def kind_of(method: Method[Any, Any]) -> str:
    """Of the groups that answer it: one kind of a method that groups of every kind answer."""
    return "data" if method.kind == ANY_KIND else method.kind


def group_of(known: ClusterMap | None, method: Method[Any, Any], body: Any) -> str:
    """The group of a body's first item. The first group of the kind if the body has no slot, or there is no map; no
    group if the method needs none."""
    if method.by is not By.GROUP:
        return ""
    kind = kind_of(method)
    route = ROUTES.get(method.code)
    if known is None or route is None:
        return GroupId(kind, 0).name
    try:
        crc = next(iter(route.crcs((getattr(body, "items", None) or [body])[:1])))
    except AttributeError:  # the body has not all routing fields
        crc = 0
    return GroupId(kind, unpack_slots(known.slots[kind])[crc & SLOT_MASK]).name
