"""Finds connections that have left a request unanswered for long: their nodes may have stopped, or lead no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from .node_connection import NodeConnection
from .nodes import Nodes

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
    timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Begin to check: a request is in flight."""
        if self.timer is None and len(self.nodes.queues) > 1:
            self.timer = self.loop.call_later(LOOK_S, self._look)

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
        self.connections = {connection for connection, call in oldest.items() if now - call.sent >= SUSPECT_S}
        if self.connections:
            self.found()
        if oldest:
            self.watch()
