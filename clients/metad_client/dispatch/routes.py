"""What a client believes about the cluster: which group holds an item, and which node leads the group. Pure.

Beliefs may be out of date. Nothing here decides what is true: a node that is asked in vain says so, and whoever is told
something newer calls :meth:`Routes.learn` or sets a leader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metad_wire.cluster import ClusterMap, MapReply, group_name, unpack_slots
from metad_wire.methods import Method
from metad_wire.routing import KINDS, ROUTES, SLOT_MASK, split

METADATA = group_name("metadata", 0)
"""The group whose leader decides about the cluster."""
ANY = ""
"""In place of a group: whoever is connected may answer."""

Parts = dict[str, list[int]]
"""Group -> positions of its items."""


class _Kind:
    """Where the slots of one kind are."""

    def __init__(self, kind: str, slots: list[int]) -> None:
        self.slots = slots
        self.ordinals = max(slots) + 1
        self.names = [group_name(kind, ordinal) for ordinal in range(self.ordinals)]
        self.groups = sorted(set(slots))
        self.only = self.names[slots[0]] if len(self.groups) == 1 else None


class Routes:
    """See the module. ``alone`` is for a server that knows no clusters: it takes everything as it comes."""

    def __init__(self) -> None:
        self.map: ClusterMap | None = None
        self.alone = False
        self.leaders: dict[str, str] = {}
        """Group -> node id, as far as known."""
        self.by_quic = False
        """Whether endpoints are wanted that speak QUIC."""
        self._kinds: dict[str, _Kind] = {}

    @property
    def version(self) -> int:
        """Of the map; 0 where there is none."""
        return self.map.version if self.map is not None else 0

    @property
    def endpoints(self) -> dict[str, str]:
        """Node id -> where it says that clients reach it; empty where it has not said."""
        nodes = self.map.nodes if self.map is not None else []
        return {node.node_id: node.quic_endpoint if self.by_quic else node.endpoint for node in nodes}

    @property
    def twins(self) -> dict[str, str]:
        """Endpoint of TCP -> the one of QUIC, of the nodes that have both."""
        nodes = self.map.nodes if self.map is not None else []
        return {node.endpoint: node.quic_endpoint for node in nodes if node.endpoint and node.quic_endpoint}

    def replicas(self, group: str) -> list[str]:
        """The nodes that have one, as far as known."""
        groups = self.map.groups if self.map is not None else []
        return next((each.replicas for each in groups if group_name(each.kind, each.ordinal) == group), [])

    def learn(self, reply: MapReply, *, anew: bool = False) -> bool:
        """Take over the map of a reply, if it is newer than what is known (``anew``: in any case); whether it was.

        Groups whose leader nobody has named are believed to be led by who should.
        """
        if reply.map is None or (not anew and reply.map.version <= self.version):
            return False
        try:
            kinds = {kind: _Kind(kind, unpack_slots(packed)) for kind, packed in reply.map.slots.items()}
        except ValueError:  # a map of some other making: the groups themselves say where to go
            return False
        self.map, self._kinds, self.alone = reply.map, kinds, False
        for group in reply.map.groups:
            if group.preferred:
                self.leaders.setdefault(group_name(group.kind, group.ordinal), group.preferred)
        return True

    def knows(self, method: Method[Any, Any]) -> bool:
        """Whether the groups of a method's items are known."""
        return self.alone or KINDS[method.code] in self._kinds

    def group_of(self, method: Method[Any, Any], item: Any) -> str | None:
        """The group of one item; None where it is not known yet."""
        if self.alone:
            return ANY
        route = ROUTES[method.code]
        kind = self._kinds.get(route.kind)
        if kind is None or kind.only is not None:
            return kind.only if kind is not None else None
        try:
            (crc,) = route.crcs([item])
        except (AttributeError, TypeError):
            return kind.names[kind.slots[0]]
        return kind.names[kind.slots[crc & SLOT_MASK]]

    def split(self, method: Method[Any, Any], items: Sequence[Any]) -> str | Parts | None:
        """The group of all items, or positions by group where there are several; None where it is not known yet.

        Values of a wrong type have no slot. Their request goes to some group, whose leader says what is wrong with it.
        """
        if self.alone:
            return ANY
        route = ROUTES[method.code]
        kind = self._kinds.get(route.kind)
        if kind is None or kind.only is not None:
            return kind.only if kind is not None else None
        try:
            parts = split(route, items, kind.slots, kind.ordinals)
        except (AttributeError, TypeError):
            return kind.names[kind.slots[0]]
        names = kind.names
        if len(parts) == 1:
            return names[next(iter(parts))]
        return {names[ordinal]: positions for ordinal, positions in parts.items()}

    def groups(self, method: Method[Any, Any]) -> list[tuple[int, str]]:
        """(ordinal, name) of the groups that a method's items are spread over; empty where they are not known."""
        kind = self._kinds.get(KINDS[method.code])
        return [] if self.alone or kind is None else [(ordinal, kind.names[ordinal]) for ordinal in kind.groups]
