"""Chooses the queue of a call: that of the node that leads its group, or of the node that it is for.

While no connected node is known to lead a group, its calls are *parked*, and the client asks the nodes for the leader.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..causes import stays
from ..errors import MetadError, NotFoundError, NotLeaderError, another
from .calls.call import Call
from .calls.call_queue import Backlog, CallQueue
from .leaders import Leaders
from .nodes import NodeQueue, Nodes
from .routes import ANY, Routes
from .sender import Sender


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
