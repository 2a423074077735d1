"""The way to one node: its connection, while there is one, and what waits for it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from ..errors import MetadError
from .call import Call
from .node_connection import NodeConnection


class NodeQueue:
    """See the module. ``connection`` takes new requests; None while there is none."""

    __slots__ = ("asked_s", "connection", "connects", "down", "node", "obstacle", "suspect", "waiting")

    def __init__(self, node: str) -> None:
        self.node = node
        self.connection: NodeConnection | None = None
        self.waiting: OrderedDict[Call, None] = OrderedDict()  # for room in the window, or for the node itself
        self.obstacle: MetadError | None = None  # why there is no connection, as far as known
        self.down = asyncio.Event()  # it wants a connection
        self.down.set()
        self.connects = 0
        self.asked_s = 0.0  # when it was last asked for the map
        self.suspect = False  # something has been unanswered for long: it may have stopped, or lead no longer

    def __repr__(self) -> str:
        return f"<NodeQueue {self.node} {'up' if self.connection is not None else 'down'}>"
