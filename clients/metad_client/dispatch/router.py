"""Chooses the queue of a call: that of the node that leads its group, or of the node that it is for.

While no connected node is known to lead a group, its calls are *parked*, and the client asks the nodes for the leader.

The cluster map, as a client knows it, names the nodes and the group that holds an item. It may be out of date. A node
refuses items that its group does not hold, and the client then asks for a newer map.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from metad_wire.cluster import ClusterMap, GroupId, GroupRecord, MapReply, slot_bits, unpack_slots
from metad_wire.methods import Method
from metad_wire.routing import KINDS, ROUTES, SLOT_MASK, split

from ..causes import stays
from ..errors import MetadError, NotFoundError, NotLeaderError, another
from .calls.call import Call
from .calls.call_queue import Backlog, CallQueue
from .leaders import Leaders
from .nodes import NodeQueue, Nodes
from .sender import Sender

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


@dataclass(eq=False, slots=True)
class Router:
    """Each node has its own queue, so a slow or lost node delays no other node's calls. ``seek`` is called when an
    unknown leader is wanted."""

    nodes: Nodes
    leaders: Leaders
    routes: Routes
    sender: Sender
    backlog: Backlog
    rng: random.Random
    seek: Callable[[], None]
    parked: dict[str | None, CallQueue] = field(default_factory=dict)  # by group

    def leading(self, group: str | None) -> NodeQueue | None:
        """The queue of the group's leader, if one is known and connected."""
        if not group:
            anyone = self.nodes.any_up() if group is not None else None
            return self.nodes.connections[anyone] if anyone is not None else None
        queue = self.nodes.queues.get(self.leaders.by_group.get(group, ""))
        return queue if queue is not None and queue.connection is not None else None

    def route(self, calls: Iterable[Call], *, first: bool = False) -> None:
        """Queue calls where they belong, ``first`` in front of the others, and send as many as possible."""
        queues: dict[NodeQueue, None] = {}
        for call in calls:
            queue = self.nodes.queues.get(call.node) if call.node else self.leading(call.group)
            if (refusal := self.refusal(call)) is not None:
                call.fail(refusal)
            elif queue is not None:
                queue.waiting.add(call, first=first)
                queues[queue] = None
            elif call.node:
                call.fail(NotFoundError(f"{call.node} is no member of the cluster"))
            else:
                self.park(call, first=first)
        for queue in queues:
            self.sender.send_waiting(queue)

    def reroute(self, calls: Iterable[Call]) -> None:
        """Move calls that wait in the wrong queue to the right one, in order."""
        calls = list(calls)
        for call in calls:
            call.unqueue()
        self.route(calls)

    def to_front(self, call: Call, queue: NodeQueue) -> None:
        """Put a call in front of all that wait for a node."""
        queue.waiting.add(call, first=True)
        self.sender.send_waiting(queue)

    def park(self, call: Call, *, first: bool = False) -> None:
        """Let a call wait until the leader of its group is known; a call without a group waits for the map. It ends at
        once if all nodes refuse the client."""
        if (refusal := self.refusal(call)) is not None:
            call.fail(refusal)
            return
        if call.group not in self.parked:
            self.parked[call.group] = CallQueue(self.backlog)
        self.parked[call.group].add(call, first=first)
        self.seek()

    def release(self) -> None:
        """Send on the parked calls whose leader is known now."""
        for group, parked in list(self.parked.items()):
            if group is None:
                for call in list(parked):
                    if self.routes.knows(call.method):
                        call.unqueue()
                        if not call.future.done():
                            call.future.set_result(None)
            elif self.leading(group) is not None:
                self.reroute(parked)
            if not parked:
                self.parked.pop(group, None)

    def has_leaders(self) -> bool:
        """Whether a reachable leader is known for every group that calls wait for."""
        return not any(calls for group, calls in self.parked.items() if group != ANY)

    def probe(self) -> None:
        """No leader was named for long: try one call of each such group on a node that may lead it."""
        up = [queue for queue, _ in self.nodes.up()]
        for group, parked in list(self.parked.items()):
            if group is None or group in self.leaders.by_group or not up or not parked:
                continue
            replicas = self.routes.replicas(group)
            queue = self.rng.choice([queue for queue in up if queue.node in replicas] or up)
            call = next(iter(parked))
            call.unqueue()
            queue.waiting.add(call, probes=queue.node)
            self.sender.send_waiting(queue)

    def refusal(self, call: Call | None = None, *, led: bool = False) -> MetadError | None:
        """Why no node answers a call, or any call, before the client is changed: a node that refuses the client may be
        the only one that the call is for. ``led``: the leaders that are known are those that the nodes named just
        now. None while a node may answer."""
        queues = self.nodes.queues
        if call is not None and call.node:
            return _refusal([queue] if (queue := queues.get(call.node)) is not None else [])
        if (
            call is not None
            and led
            and call.group
            and (leader := queues.get(self.leaders.by_group.get(call.group, "")))
        ):
            error = _refusal([leader])
            if error is not None:
                return another(error, text=f"{leader.node} leads {call.group}, and {error}")
        return _refusal(list(queues.values())) or (self._unmapped() if call is None or not call.node else None)

    def _unmapped(self) -> MetadError | None:
        """Why no connected node tells this client the map, before the first one was told; None if one may."""
        refusals = [queue.map_refusal for queue, _ in self.nodes.up()]
        if self.routes.map is not None or not refusals or None in refusals:
            return None
        return another(refusals[0]) if refusals[0] is not None else None

    @property
    def has_refusals(self) -> bool:
        """Whether a node refuses the client."""
        queues = self.nodes.queues.values()
        return any(queue.map_refusal is not None or _refusal([queue]) is not None for queue in queues)

    def refused(self, nodes: Iterable[str]) -> MetadError | None:
        """Why none of these nodes accepts this client; None while one may."""
        return _refusal([queue for node in nodes if (queue := self.nodes.queues.get(node)) is not None])

    def obstacle(self, call: Call) -> MetadError | None:
        """The known reason why a call was not even sent."""
        queues = self.nodes.queues
        if call.node:
            queue = queues.get(call.node)
            return queue.obstacle if queue is not None else None
        if self.leading(call.group) is not None:
            return None  # it has the call, or has no room for it yet
        if call.group is None and self.nodes.any_up() is not None:
            return NotLeaderError("the cluster is being formed")
        if call.group and (explained := self.leaderless(call.group)) is not None:
            return explained
        for queue in queues.values():
            if queue.connection is None and queue.obstacle is not None:
                return queue.obstacle
        return NotLeaderError(f"no leader of {call.group} is known") if call.group else None

    def leaderless(self, group: str) -> MetadError | None:
        """Why no call of a group can be sent, in the words of the whole group: how many of its replicas are within
        reach. None if its leader is connected, or if its replicas are unknown."""
        replicas = self.routes.replicas(group)
        if not replicas or self.leading(group) is not None:
            return None
        queues = [queue for node in replicas if (queue := self.nodes.queues.get(node)) is not None]
        there = sum(q.connection is not None and (q.hosts is None or group in q.hosts) for q in queues)
        leader = self.nodes.queues.get(self.leaders.by_group.get(group, ""))
        what = f"{group} has no leader"
        if leader is not None and there > len(replicas) // 2:  # the others can have elected it, or another by now
            what = f"{leader.node} leads {group} and cannot be reached"
        obstacle = next((q.obstacle for q in queues if q.connection is None and q.obstacle is not None), None)
        why = f": {obstacle}" if obstacle is not None else ""
        error = NotLeaderError(f"{what}; {there} of {len(replicas)} replicas reachable{why}")
        error.__cause__ = obstacle
        return error


def _refusal(queues: list[NodeQueue]) -> MetadError | None:
    """Why all of these nodes refuse the client, in the words of the first; None if one may accept it."""
    if any(queue.connection is not None or queue.obstacle is None for queue in queues):
        return None
    refusals = [queue.obstacle for queue in queues if queue.obstacle is not None and stays(queue.obstacle)]
    return another(refusals[0]) if refusals and len(refusals) == len(queues) else None
