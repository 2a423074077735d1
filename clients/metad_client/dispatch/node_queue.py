"""The queue of one node: its connection, if there is one, and the calls that wait for room on it or for a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

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
