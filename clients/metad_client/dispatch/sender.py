"""Sends attempts: each carries the time left until the deadline, and a write carries its identity.

**A write happens once**, through any number of leaders: all its attempts carry one identity, and one group, which the
request names, answers for it. That group remembers identities in its replicated state, and no other does the write. The
identities of each group are a separate series (a random client id, and numbers). So a group that cannot be reached does
not keep others from forgetting answered writes, and two series never collide.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from metad_wire.faults import UNFIT
from metad_wire.methods import AHEAD, encode

from ..errors import FrameError, InvalidRequestError, TooLargeError
from .calls.call import Call
from .calls.identity import IdentitySource
from .node_connection import NodeConnection
from .node_queue import NodeQueue
from .suspects import Suspects


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
