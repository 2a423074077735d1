"""Chooses the queue of a call: that of the node that leads its group, or of the node that it is for.

While no connected node is known to lead a group, its calls are *parked*, and the client asks the nodes for the leader.

The cluster map, as a client knows it, names the nodes and the group that holds an item. It may be out of date. A node
refuses items that its group does not hold, and the client then asks for a newer map.

A call is sent in *attempts*: each carries the time left until the deadline, and a write carries its identity.

**A write happens once**, through any number of leaders: all its attempts carry one identity, and one group, which the
request names, answers for it. That group remembers identities in its replicated state, and no other does the write. The
identities of each group are a separate series (a random client id, and numbers). So a group that cannot be reached does
not keep others from forgetting answered writes, and two series never collide.

Suspects are connections that have left requests unanswered for long: their nodes may have stopped, or lead no longer.

A read that the leader need not answer goes to the nearest replica that is connected: nodes of the client's own region
go before all others, and of several the one with the shortest round trip, to a millisecond, so reads spread over those
that are as near. A node that could not prove that it is as new as a read wants, or had no room, is left out for a
moment, and the read goes to the leader.

A request whose caller waits no longer counts until its connection answers another one. Otherwise callers that are less
patient than this, as a heartbeat of a short lease is, would ask a node that stands still for ever.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from metad_wire.cluster import METADATA, ClusterMap, GroupId, GroupRecord, MapReply, slot_bits, unpack_slots
from metad_wire.faults import UNFIT
from metad_wire.methods import AHEAD, Method, encode
from metad_wire.routing import SLOT_MASK, split
from metad_wire.table import ANY_KIND

from ..causes import stays
from ..errors import FrameError, InvalidRequestError, MetadError, NotFoundError, NotLeaderError, TooLargeError, another
from .calls.call import Call, IdentitySource
from .calls.call_queue import Backlog, CallQueue
from .leaders import Leaders
from .node_connection import NodeConnection
from .nodes import NodeQueue, Nodes

SUSPECT_S = 1.0
"""After this time the node may no longer lead the request's group, so the client asks the other nodes."""
LOOK_S = 0.5


@dataclass(eq=False, slots=True)
class Suspects:
    """Checks while requests are in flight, and calls ``found`` when there are suspects. Idle while there is only one
    node: no other could be asked."""

    loop: asyncio.AbstractEventLoop
    nodes: Nodes
    found: Callable[[], None]
    connections: set[NodeConnection] = field(default_factory=set)
    given_up: dict[NodeConnection, float] = field(default_factory=dict)
    """Connections that have answered nothing since a call was given up -> when the first such call was sent."""
    timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Begin to check: a request is in flight."""
        if self.timer is None and len(self.nodes.queues) > 1:
            self.timer = self.loop.call_later(LOOK_S, self._look)

    def give_up(self, call: Call) -> None:
        """A call in flight is not waited for any more."""
        if call.carrier is not None and call.connection is not None and call.events is None:
            self.given_up.setdefault(call.connection, call.sent)

    def heard(self, connection: NodeConnection | None) -> None:
        """A connection has answered, or has ended."""
        if connection is not None:
            self.given_up.pop(connection, None)

    def close(self) -> None:
        """Stop checking."""
        if self.timer is not None:
            self.timer.cancel()

    def _look(self) -> None:
        self.timer = None
        now = self.loop.time()
        oldest = {
            connection: call
            for connection in self.nodes.connections
            # a node may take long to begin a watch: another one may not know the position it begins at yet
            if (call := next((call for call in connection.calls() if call.events is None), None)) is not None
        }
        since = {connection: call.sent for connection, call in oldest.items()} | self.given_up
        self.connections = {connection for connection, sent in since.items() if now - sent >= SUSPECT_S}
        if self.connections:
            self.found()
        if since:
            self.watch()


@dataclass(eq=False, slots=True)
class Sender:
    """Sends the attempts of one client."""

    loop: asyncio.AbstractEventLoop
    rng: random.Random
    suspects: Suspects
    identities: dict[str | None, IdentitySource] = field(default_factory=dict)  # by group
    retries: int = 0  # attempts beyond each request's first

    def send(self, connection: NodeConnection, call: Call) -> None:
        """Begin an attempt on a connection that has room for it."""
        now = self.loop.time()
        if call.attempts:
            self.retries += 1
        identities: IdentitySource | None = None
        if call.method.mutates:
            identities = self.identities.get(call.group) or self._series_of(call.group)
        call.connection = connection
        try:
            connection.send(call, encode(call.attempt(now, identities)))
        except FrameError as error:  # over the limit of this server, so a retry would not help
            call.fail(TooLargeError(f"{call.method.name}: {error}"))
        except UNFIT as error:  # whoever sends what waits has other calls to send
            call.fail(InvalidRequestError(f"{call.method.name}: {error}"))
        if self.suspects.timer is None:
            self.suspects.watch()

    def send_waiting(self, queue: NodeQueue) -> None:
        """Send the calls that wait for a node, as far as they fit."""
        waiting = queue.waiting
        while waiting:
            call = next(iter(waiting))
            connection = queue.open_for(len(call.body), ahead=call.method.code in AHEAD)
            if connection is None:
                return
            waiting.remove(call)
            self.send(connection, call)

    def _series_of(self, group: str | None) -> IdentitySource:
        source = self.identities[group] = IdentitySource(self.rng.getrandbits(64))
        return source


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
        self._names: frozenset[str] = frozenset()

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

    def followers(self, group: str) -> list[str]:
        """The nodes that follow the log of a group, with a vote or without, its leader among them, as far as known."""
        record = self.record(group)
        return [] if record is None else [*record.replicas, *record.learners]

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
        self._names = frozenset(record.group_id.name for record in reply.map.groups)
        return True

    def has_removed(self, group: str | None) -> bool:
        """Whether the map says that there was such a group, and that it was removed."""
        if not group or self.map is None or not self.map.ordinals or group in self._names:
            return False
        known = GroupId.parse(group)
        return known is not None and self.map.has_removed(known)

    def knows(self, method: Method[Any, Any]) -> bool:
        """Whether the groups of a method's items are known."""
        return bool(self._kinds) if method.kind == ANY_KIND else method.kind in self._kinds

    def group_of(self, method: Method[Any, Any], item: Any) -> str | None:
        """The group of one item; None if it is not known yet. May raise one of :data:`metad_wire.faults.UNFIT`."""
        kind, route = self._kinds.get(method.kind), method.route
        if route is None:
            return METADATA.name
        if kind is None or kind.only is not None:
            return kind.only if kind is not None else None
        (crc,) = route.crcs([item])
        return kind.names[kind.slots[crc & SLOT_MASK]]

    def split(self, method: Method[Any, Any], items: Sequence[Any]) -> str | ByGroup | None:
        """The group of all items, or positions by group if there are several; None if they are not known yet.

        May raise one of :data:`metad_wire.faults.UNFIT`: a value of a wrong type has no slot.
        """
        kind, route = self._kinds.get(method.kind), method.route
        if route is None:
            return METADATA.name
        if kind is None or kind.only is not None:
            return kind.only if kind is not None else None
        by_ordinal = split(route, items, kind.slots, kind.ordinals)
        names = kind.names
        if len(by_ordinal) == 1:
            return names[next(iter(by_ordinal))]
        return {names[ordinal]: positions for ordinal, positions in by_ordinal.items()}

    def groups(self, method: Method[Any, Any]) -> list[str]:
        """The groups that a method's items are spread over; empty if unknown."""
        return [group for kind in self._of(method) for group in kind.groups]

    def slots(self, method: Method[Any, Any]) -> dict[str, bytes]:
        """The groups that a method's items are spread over, with bit maps of their slots; empty if unknown."""
        return {group: bits for kind in self._of(method) for group, bits in kind.bits.items()}

    def _of(self, method: Method[Any, Any]) -> Iterable[_Kind]:
        """The kinds of a method's groups that are known."""
        kind = self._kinds.get(method.kind)
        return self._kinds.values() if method.kind == ANY_KIND else [] if kind is None else [kind]


CHOSEN_S: Final = 1.0
"""For so long reads of a group go to the same replica: to measure a round trip is a system call."""
AVOID_S: Final = 0.25
"""A replica that has refused is asked again after this time: it has asked its leader by then, over a long path, too."""


@dataclass(eq=False, slots=True)
class Nearest:
    """The nearest replicas of groups, of which there are as many as the cluster has."""

    loop: asyncio.AbstractEventLoop
    region: str
    nodes: Nodes
    leaders: Leaders
    routes: Routes
    suspects: Suspects
    rng: random.Random
    _chosen: dict[str, tuple[NodeQueue | None, float]] = field(default_factory=dict)  # by group: until when
    _avoided: dict[tuple[str, str], float] = field(default_factory=dict)  # by group and node: until when

    def replica(self, group: str) -> NodeQueue | None:
        """The node to ask, be it the leader. None if no replica is connected, or none is known."""
        now, suspects = self.loop.time(), self.suspects.connections
        chosen, until = self._chosen.get(group, (None, 0.0))
        if now >= until or chosen is None or chosen.connection is None or chosen.connection in suspects:
            chosen = self._choose(group, now)
            self._chosen[group] = chosen, now + CHOSEN_S
        return chosen

    def leading(self, group: str | None) -> NodeQueue | None:
        """The queue of the group's leader, if one is known and connected."""
        queue = self.nodes.queues.get(self.leaders.by_group.get(group or "", ""))
        return queue if queue is not None and queue.connection is not None else None

    def refused(self, call: Call, queue: NodeQueue) -> NodeQueue | None:
        """A node has refused a read. Returns the leader, which is asked now; None if it is out of reach: then a replica
        may know more a moment later."""
        now, group = self.loop.time(), call.group or ""
        self._avoided = {who: until for who, until in self._avoided.items() if until > now}
        self._avoided[group, queue.node] = now + AVOID_S
        self._chosen.pop(group, None)
        leader = self.leading(group)
        if leader is None or leader is queue:
            return None
        call.go_far()
        return leader

    def _choose(self, group: str, now: float) -> NodeQueue | None:
        regions, best, chosen = self.routes.regions, (True, True, inf, inf), None
        for node in self.routes.followers(group):
            queue = self.nodes.queues.get(node)
            connection = None if queue is None else queue.connection
            if connection is None or connection in self.suspects.connections:
                continue
            path = connection.path_lately(glance=True)
            rank = (
                self._avoided.get((group, node), 0.0) > now,
                bool(self.region) and regions.get(node) != self.region,
                0.0 if path is None else round(1000 * path.rtt_s),
                self.rng.random(),
            )
            if rank < best:
                best, chosen = rank, queue
        return chosen


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
    nearest: Nearest
    parked: dict[str | None, CallQueue] = field(default_factory=dict)  # by group

    def leading(self, group: str | None) -> NodeQueue | None:
        """The queue of the group's leader, if one is known and connected."""
        if not group:
            anyone = self.nodes.any_up() if group is not None else None
            return self.nodes.connections[anyone] if anyone is not None else None
        return self.nearest.leading(group)

    def queue_of(self, call: Call) -> NodeQueue | None:
        """The queue where a call belongs, if one is known and connected."""
        if call.node:
            return self.nodes.queues.get(call.node)
        leader = self.leading(call.group)
        if call.freshness_ms and call.group and (leader is None or not call.is_far):
            return self.nearest.replica(call.group) or leader
        return leader

    def route(self, calls: Iterable[Call], *, first: bool = False) -> None:
        """Queue calls where they belong, ``first`` in front of the others, and send as many as possible."""
        queues: dict[NodeQueue, None] = {}
        for call in calls:
            queue = self.queue_of(call)
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
