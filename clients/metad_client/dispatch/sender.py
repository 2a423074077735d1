"""Sends attempts: each carries the time left until the deadline, and a write carries its identity.

**A write happens once**, through any number of leaders: all its attempts carry one identity, and one group, which the
request names, answers for it. That group remembers identities in its replicated state, and no other does the write. The
identities of each group are a separate series (a random client id, and numbers). So a group that cannot be reached does
not keep others from forgetting answered writes, and two series never collide.

Suspects are connections that have left requests unanswered for long: their nodes may have stopped, or lead no longer.

A request whose caller waits no longer counts until its connection answers another one. Otherwise callers that are less
patient than this, as a heartbeat of a short lease is, would ask a node that stands still for ever.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from metad_wire.faults import UNFIT
from metad_wire.methods import AHEAD, encode

from ..errors import FrameError, InvalidRequestError, TooLargeError
from .calls.call import Call, IdentitySource
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
