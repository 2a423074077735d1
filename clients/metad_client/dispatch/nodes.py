"""The nodes that a client knows, and the connections to them. Each has a queue: the calls that wait for room on its
connection, or for a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from metad_wire.messages import Welcome

from ..errors import MetadError
from .calls.call import ENVELOPE_BYTES_MAX
from .calls.call_queue import Backlog, CallQueue
from .node_connection import NodeConnection


class NodeQueue:
    """The calls for one node of the map. ``connection`` takes new requests; it is None while there is none."""

    __slots__ = ("connection", "connects", "down", "hosts", "map_refusal", "named", "node", "obstacle", "waiting")

    def __init__(self, node: str, backlog: Backlog) -> None:
        self.node = node
        self.waiting = CallQueue(backlog)
        self.connection: NodeConnection | None = None
        self.obstacle: MetadError | None = None  # why there is no connection, as far as known
        self.map_refusal: MetadError | None = None  # why the node does not tell this client the map, and will not
        self.down = asyncio.Event()  # set while a connection is wanted
        self.down.set()
        self.named = asyncio.Event()  # set when others say that it leads a group
        self.connects = 0
        self.hosts: Collection[str] | None = None
        """The groups with a replica there, as the node said last. None means that it has not said."""

    def __repr__(self) -> str:
        return f"<NodeQueue {self.node} {'up' if self.connection is not None else 'down'}>"

    def open_for(self, body_bytes: int, *, ahead: bool = False) -> NodeConnection | None:
        """The connection, if it can send a request with a body of this size now. ``ahead``: one that goes ahead."""
        connection = self.connection
        size = body_bytes + ENVELOPE_BYTES_MAX
        return connection if connection is not None and connection.can_send(size, ahead=ahead) else None

    def connect(self, connection: NodeConnection) -> None:
        """Send new requests by this connection from now on."""
        self.connection, self.obstacle, self.map_refusal = connection, None, None
        self.connects += 1
        self.hosts = None  # it may be another process by now
        self.down.clear()

    def told(self, groups: Collection[str]) -> None:
        """The node says which groups have a replica there."""
        self.hosts = groups

    def disconnect(self, obstacle: MetadError | None) -> None:
        """Have no connection for new requests."""
        self.connection, self.obstacle = None, obstacle
        self.down.set()

    def unreachable(self, obstacle: MetadError) -> None:
        """The node could not be reached."""
        self.obstacle = obstacle


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
        up = [(queue, queue.connection) for queue in list(self.queues.values())]
        return [(queue, connection) for queue, connection in up if connection is not None]

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
