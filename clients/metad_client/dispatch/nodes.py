"""The nodes that a client knows: a queue for each, and the connections to them."""

from __future__ import annotations

import asyncio

from metad_wire.messages import Welcome

from .calls.call_queue import Backlog
from .node_connection import NodeConnection
from .node_queue import NodeQueue


class Nodes:
    """``queues`` by node id; ``connections`` may have calls in flight, draining ones included, and are listed with the
    queue of their node. ``changed`` is set when a node was added or removed, or the map was replaced."""

    def __init__(self, backlog: Backlog) -> None:
        self.queues: dict[str, NodeQueue] = {}
        self.connections: dict[NodeConnection, NodeQueue] = {}
        self.changed = asyncio.Event()
        self.reached = 0  # nodes that were ever connected to
        self._backlog = backlog
        self._cluster_id = ""

    def up(self) -> list[tuple[NodeQueue, NodeConnection]]:
        """The nodes that take requests now: the queue and the connection of each."""
        return [(queue, queue.connection) for queue in self.queues.values() if queue.connection is not None]

    def any_up(self) -> NodeConnection | None:
        """A connection to any node that takes requests."""
        for queue in self.queues.values():
            if queue.connection is not None:
                return queue.connection
        return None

    def attach(self, connection: NodeConnection, instead_of: NodeConnection | None) -> NodeQueue | None:
        """The queue that sends its new requests by this connection from now on. None if the connection is not wanted:
        the node has another connection than ``instead_of``, or is not in the cluster while nodes of the cluster are
        connected."""
        welcome = connection.welcome
        queue = self.queues.get(welcome.node_id)
        if self.any_up() is None:
            self._cluster_id = welcome.cluster_id
        elif queue is None or queue.connection is not instead_of or self._is_foreign(welcome):
            return None
        if queue is None:
            queue = self._add(welcome.node_id)
        self._cluster_id = welcome.cluster_id or self._cluster_id
        self.reached += not queue.connects
        queue.connect(connection)
        self.connections[connection] = queue
        return queue

    def follow(self, nodes: dict[str, str]) -> list[NodeQueue]:
        """Keep a queue for each of these nodes and no other. Returns the removed queues."""
        removed = [self.queues.pop(node) for node in list(self.queues) if node not in nodes]
        for node in nodes:
            if node not in self.queues:
                self._add(node)
        self.changed.set()
        return removed

    def _add(self, node: str) -> NodeQueue:
        queue = self.queues[node] = NodeQueue(node, self._backlog)
        self.changed.set()
        return queue

    def _is_foreign(self, welcome: Welcome) -> bool:
        """Whether this is a node of another cluster. A cluster that is forming has no name yet."""
        return bool(welcome.cluster_id and self._cluster_id) and welcome.cluster_id != self._cluster_id
