"""Which connections have left a request unanswered for long: their nodes may have stopped, or lead no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .node_connection import NodeConnection
from .nodes import Nodes

SUSPECT_S = 1.0
"""A request unanswered for this long may be with a node that no longer leads its group: the other nodes are asked."""
LOOK_S = 0.5


class Suspects:
    """Looks while something is in flight, and calls ``found`` when there are some. Does nothing while there is only one
    node: no other could be asked."""

    def __init__(self, loop: asyncio.AbstractEventLoop, nodes: Nodes, found: Callable[[], None]) -> None:
        self.connections: set[NodeConnection] = set()
        self._loop = loop
        self._nodes = nodes
        self._found = found
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Something is in flight."""
        if self._timer is None and len(self._nodes.queues) > 1:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        oldest = {connection: calls[0] for connection in self._nodes.connections if (calls := connection.calls())}
        self.connections = {connection for connection, call in oldest.items() if now - call.sent >= SUSPECT_S}
        if self.connections:
            self._found()
        if oldest:
            self.watch()
