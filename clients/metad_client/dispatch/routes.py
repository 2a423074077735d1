"""The cluster map as a client knows it: the nodes, and the group that holds an item. Pure.

The map may be out of date. A node refuses items that its group does not hold, and the client then asks for a newer map.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from metad_wire.cluster import ClusterMap, GroupRecord, MapReply, slot_bits, unpack_slots
from metad_wire.group import GroupId
from metad_wire.methods import Method
from metad_wire.routing import KINDS, ROUTES, SLOT_MASK, split

ANY = ""
"""In place of a group, for methods that any node answers."""

ByGroup = dict[str, list[int]]
"""Group -> positions of its items."""


class _Kind:
    """The slots of one kind."""

    def __init__(self, kind: str, slots: list[int]) -> None:
        self.slots = slots
        self.ordinals = max(slots) + 1
        self.names = [GroupId(kind, ordinal).name for ordinal in range(self.ordinals)]
        self.groups = [self.names[ordinal] for ordinal in sorted(set(slots))]
        self.only = self.names[slots[0]] if len(self.groups) == 1 else None

    @functools.cached_property
    def bits(self) -> dict[str, bytes]:
        """Group -> a bit map of its slots."""
        held: dict[int, list[int]] = {}
        for slot, ordinal in enumerate(self.slots):
            held.setdefault(ordinal, []).append(slot)
        return {self.names[ordinal]: slot_bits(slots) for ordinal, slots in sorted(held.items())}


class Routes:
    """The newest known map and what follows from it. ``by_quic``: use the QUIC endpoints."""

    def __init__(self, *, by_quic: bool = False) -> None:
        self.map: ClusterMap | None = None
        self._by_quic = by_quic
        self._doubted = True
        self._kinds: dict[str, _Kind] = {}

    @property
    def version(self) -> int:
        """The version of the map; 0 if there is none."""
        return self.map.version if self.map is not None else 0

    @property
    def wanted(self) -> int:
        """Only a map with a higher version is wanted."""
        return 0 if self._doubted else self.version

    @property
    def endpoints(self) -> dict[str, str]:
        """Node id -> the address for clients that the node published; empty if it has published none."""
        nodes = self.map.nodes if self.map is not None else []
        return {node.node_id: node.quic_endpoint if self._by_quic else node.endpoint for node in nodes}

    @property
    def twins(self) -> dict[str, str]:
        """TCP endpoint -> QUIC endpoint, for the nodes that have both."""
        nodes = self.map.nodes if self.map is not None else []
        return {node.endpoint: node.quic_endpoint for node in nodes if node.endpoint and node.quic_endpoint}

    def record(self, group: str) -> GroupRecord | None:
        """What the map says of a group; None if it does not know it."""
        return None if self.map is None else self.map.group(GroupId.parse(group))

    def replicas(self, group: str) -> list[str]:
        """The nodes that have a replica of a group, as far as known."""
        record = self.record(group)
        return [] if record is None else record.replicas

    @property
    def regions(self) -> dict[str, str]:
        """Node id -> the region that it is in."""
        return {node.node_id: node.region for node in self.map.nodes} if self.map is not None else {}

    def preferred(self) -> dict[str, str]:
        """Group -> the node that should lead it, where the map names one."""
        groups = self.map.groups if self.map is not None else []
        return {each.group_id.name: each.preferred for each in groups if each.preferred}

    def doubt(self) -> None:
        """No connected node knows this map: the next map replaces it, whatever its version."""
        self._doubted = True

    def learn(self, reply: MapReply) -> bool:
        """Replace the map by that of a reply if it is newer; returns whether it was."""
        if reply.map is None or (not self._doubted and reply.map.version <= self.version):
            return False
        try:
            kinds = {kind: _Kind(kind, unpack_slots(packed)) for kind, packed in reply.map.slots.items()}
        except ValueError:  # the map is malformed: the groups' own answers lead the calls
            return False
        self.map, self._kinds, self._doubted = reply.map, kinds, False
        return True

    def knows(self, method: Method[Any, Any]) -> bool:
        """Whether the groups of a method's items are known."""
        return KINDS[method.code] in self._kinds

    def group_of(self, method: Method[Any, Any], item: Any) -> str | None:
        """The group of one item; None if it is not known yet. May raise one of :data:`metad_wire.faults.UNFIT`."""
        route = ROUTES[method.code]
        kind = self._kinds.get(route.kind)
        if kind is None or kind.only is not None:
            return kind.only if kind is not None else None
        (crc,) = route.crcs([item])
        return kind.names[kind.slots[crc & SLOT_MASK]]

    def split(self, method: Method[Any, Any], items: Sequence[Any]) -> str | ByGroup | None:
        """The group of all items, or positions by group if there are several; None if they are not known yet.

        May raise one of :data:`metad_wire.faults.UNFIT`: a value of a wrong type has no slot.
        """
        route = ROUTES[method.code]
        kind = self._kinds.get(route.kind)
        if kind is None or kind.only is not None:
            return kind.only if kind is not None else None
        by_ordinal = split(route, items, kind.slots, kind.ordinals)
        names = kind.names
        if len(by_ordinal) == 1:
            return names[next(iter(by_ordinal))]
        return {names[ordinal]: positions for ordinal, positions in by_ordinal.items()}

    def groups(self, method: Method[Any, Any]) -> list[str]:
        """The groups that a method's items are spread over; empty if unknown."""
        kind = self._kinds.get(KINDS[method.code])
        return [] if kind is None else kind.groups

    def slots(self, method: Method[Any, Any]) -> dict[str, bytes]:
        """The groups that a method's items are spread over, with bit maps of their slots; empty if unknown."""
        kind = self._kinds.get(KINDS[method.code])
        return {} if kind is None else kind.bits
