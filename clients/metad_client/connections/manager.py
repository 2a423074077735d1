"""Keeps a connection to every node of the cluster up, as far as they can be reached.

The first connection is made through the user's endpoints; what the node at the other end says of the cluster gives the
others. WELCOME says which node has answered, and that alone decides whose lane a connection is, so an endpoint may be a
proxy's, and the map's endpoints need not be reachable where the user's are.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence

from metad_wire.transport import split_endpoint

from ..dispatch.dispatcher import Dispatcher
from ..dispatch.node_connection import NodeConnection
from ..dispatch.node_queue import NodeQueue
from ..endpoint import Endpoint, name_of
from ..errors import ConnectionLostError, DrainingError, MetadError
from ..options import Options
from .dialer import Dialer

STEER_S = 0.5
"""How often the paths are looked at, where there is a choice of transports."""


REFRESH_S, REFRESH_S_MAX = 2.0, 60.0
"""How often the map is asked for, at first and at last, while it does not say where nodes are reached over QUIC: they
say so a moment after they began to serve, or never."""


class ConnectionManager:
    """Dials, and dials again."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        dialer: Dialer,
        dispatcher: Dispatcher,
        options: Options,
        rng: random.Random,
    ) -> None:
        self.obstacle: MetadError | None = None  # the last failure to connect
        self.connects = 0
        self.changes = 0  # from one transport to another
        self._endpoints = list(endpoints)
        self._dialer = dialer
        self._dispatcher = dispatcher
        self._options = options
        self._rng = rng
        self._reached: dict[Endpoint, str] = {}  # which node answered there
        self._last: dict[str, Endpoint] = {}  # node -> where it answered last
        self._advertised: dict[str, Endpoint] = {}  # node -> where the map says it is
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Until cancelled. Raises MetadError where nobody was ever reached and waiting would not help."""
        await self._reach_first()
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._dispatcher.on_lanes = self._sync
            self._sync()
            if self._dialer.transports.chooses:
                await self._steer()
            await asyncio.Event().wait()

    async def _steer(self) -> None:
        """Have each lane go by the transport that its path asks for."""
        loop, refresh_s = asyncio.get_running_loop(), REFRESH_S
        refresh_at = loop.time() + refresh_s
        while True:
            await asyncio.sleep(STEER_S)
            if loop.time() >= refresh_at:
                if not self._dialer.transports.knows_twins(self._last.values()):
                    self._dispatcher.refresh()
                    refresh_s = min(2 * refresh_s, REFRESH_S_MAX)
                refresh_at = loop.time() + refresh_s
            for lane in list(self._dispatcher.lanes.values()):
                connection, endpoint = lane.connection, self._last.get(lane.node)
                if connection is None or endpoint is None:
                    continue
                wanted = self._dialer.transports.note(endpoint, connection.via, connection.path_lately())
                if wanted != connection.via:
                    await self._change(lane, connection, endpoint, wanted)

    async def _change(self, lane: NodeQueue, old: NodeConnection, endpoint: Endpoint, name: str) -> None:
        try:
            connection = await self._dialer.dial_by(endpoint, name)
        except MetadError:
            self._dialer.transports.failed(endpoint, name)
            return
        if lane.connection is old and self._dispatcher.exchange(lane, connection):
            self.connects += 1
            self.changes += 1
        else:
            connection.close()

    async def _reach_first(self) -> None:
        """Endpoints in turn, a wait after each round without success."""
        rounds = 0
        while True:
            errors: list[MetadError] = []
            for endpoint in self._endpoints:
                error = await self._try(endpoint)
                if error is None:
                    return
                errors.append(error)
            if not self._options.connect_timeout_s or not any(error.retryable for error in errors):
                raise errors[-1]
            await asyncio.sleep(self._options.backoff.delay_s(rounds, self._rng))
            rounds += 1

    async def _try(self, endpoint: Endpoint, node: str = "") -> MetadError | None:
        """Dial, and give the connection to whoever answered; None where that was ``node``, or anybody where it is
        empty, otherwise why not."""
        try:
            connection = await self._dialer.dial(endpoint)
        except MetadError as error:
            self.obstacle = error
            return error
        welcome = connection.session.welcome
        assert welcome is not None
        answered = welcome.node_id
        self._reached[endpoint] = answered
        if self._dispatcher.attach(connection):
            self._last[answered] = endpoint
            self.connects += 1
            if not node or answered == node:
                return None
        else:
            connection.close()
        if not node or answered == node:
            self.obstacle = DrainingError(f"{name_of(endpoint)} takes no requests")
            return self.obstacle
        return ConnectionLostError(f"{name_of(endpoint)} is {answered}, not {node}")

    def _sync(self) -> None:
        """Have one task for each lane."""
        if self._group is None:
            return
        lanes = self._dispatcher.lanes
        for node in [node for node in self._tasks if node not in lanes]:
            self._tasks.pop(node).cancel()
        self._follow_endpoints()
        for node, lane in lanes.items():
            if node not in self._tasks:
                self._tasks[node] = self._group.create_task(self._keep(lane), name=f"metad-client {node}")

    def _follow_endpoints(self) -> None:
        """A node that says it is elsewhere is not where it was: whoever answers there is a past life of it."""
        advertised: dict[str, Endpoint] = {}
        for node, text in self._dispatcher.routes.endpoints.items():
            try:
                advertised[node] = split_endpoint(text)
            except ValueError:  # it has not served yet
                continue
            before = self._advertised.get(node)
            if before is None or before == advertised[node]:
                continue
            self._reached.pop(before, None)
            lane = self._dispatcher.lanes.get(node)
            connection = lane.connection if lane is not None else None
            if self._last.get(node) == before and connection is not None:
                connection.leave()
        self._advertised = advertised
        twins = self._dispatcher.routes.twins
        with contextlib.suppress(ValueError):  # a node that says nonsense of itself
            self._dialer.transports.learn({split_endpoint(tcp): split_endpoint(quic) for tcp, quic in twins.items()})

    async def _keep(self, lane: NodeQueue) -> None:
        rounds = 0
        connection: NodeConnection | None = lane.connection
        while True:
            await lane.down.wait()
            if connection is not None:
                if connection.was_useful:
                    rounds = 0
                await asyncio.sleep(self._options.backoff.delay_s(rounds, self._rng))
                rounds += 1
            for endpoint in self._candidates(lane):
                if lane.connection is not None:
                    break
                error = await self._try(endpoint, lane.node)
                if error is not None and lane.connection is None:
                    self._dispatcher.unreachable(lane, error)
            connection = lane.connection
            if connection is None:
                await asyncio.sleep(self._options.backoff.delay_s(rounds, self._rng))
                rounds += 1

    def _candidates(self, lane: NodeQueue) -> list[Endpoint]:
        """Where a node may be reached, best first."""
        node, reached = lane.node, self._reached
        advertised = self._advertised.get(node)
        others = {endpoint for other, endpoint in self._advertised.items() if other != node}
        last = self._last.get(node)
        proven = [endpoint for endpoint, answered in reached.items() if answered == node and endpoint != last]
        # Of the user's endpoints that nobody has tried, any may be this node's, by another name than the map's.
        untried = [endpoint for endpoint in self._endpoints if endpoint not in reached and endpoint not in others]
        candidates = [*proven, *untried]
        if last is not None and reached.get(last) == node:
            candidates.append(last)
        if advertised is not None:
            if proven or last in candidates:
                candidates.append(advertised)
            else:
                candidates.insert(0, advertised)
        if not any(each.connection is not None for each in self._dispatcher.lanes.values()):
            candidates += self._endpoints  # nobody is left who knows better
        return list(dict.fromkeys(candidates))
