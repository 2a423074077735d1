"""Keeps up a connection to every node of the cluster that can be reached.

The first connection is made through the user's endpoints; the map of the node that answers names the others. Only a
node's greeting (WELCOME) decides which node a connection leads to. So an endpoint may be a proxy's, and the map's
endpoints need not be reachable from the same place as the user's.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence

from metad_wire.transport import split_endpoint
from metad_wire.transport.services import endpoints_of, is_service

from ..dispatch.dispatcher import Dispatcher
from ..dispatch.node_connection import NodeConnection
from ..dispatch.nodes import NodeQueue
from ..endpoint import Endpoint, name_of
from ..errors import ConnectionLostError, DrainingError, MetadError
from ..options import Options
from .dialer import Dialer
from .transport_choice import TransportChoice

STAGGER_S = 0.25
"""Opening dials the next endpoint if the ones before have not greeted within this time. RFC 8305 recommends it for the
addresses of one host."""

STEER_S = 0.5
"""Interval at which the paths are measured, if there is a choice of transports."""

LOCATE_S = 10.0
"""How often a service is looked up at most, while a node is away."""

MAPLESS_S = 2.0
"""The client leaves a node that knows no map for so long, if the user named other endpoints: that node waits for a
cluster that may never take it in. A new cluster forms within a second."""

REFRESH_S, REFRESH_S_MAX = 2.0, 60.0
"""First and last interval of requests for the map while it does not say where nodes are reached over QUIC. Nodes
publish that a moment after they began to serve, or never."""


class ConnectionManager:
    """Dials every node, and dials again."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        transports: TransportChoice,
        dispatcher: Dispatcher,
        options: Options,
        rng: random.Random,
    ) -> None:
        self.obstacle: MetadError | None = None  # the last failure to connect
        self.connects = 0
        self.changes = 0  # of transport
        self.asked: dict[Endpoint, None] = {}  # the endpoints that were dialled to open the client
        self._fixed = [endpoint for endpoint in endpoints if not is_service(endpoint[0])]
        self._services = [name for name, _ in endpoints if is_service(name)]
        self._located_s = float("-inf")
        self._endpoints = list(self._fixed)  # and those of the services
        self._transports = transports
        self._dialer = Dialer(transports, dispatcher, options)
        self._dispatcher = dispatcher
        self._nodes = dispatcher.nodes
        self._options = options
        self._rng = rng
        self._reached: dict[Endpoint, str] = {}  # endpoint -> the node that answered there
        self._last: dict[str, Endpoint] = {}  # node -> the endpoint where it answered last
        self._advertised: dict[str, Endpoint] = {}  # node -> its endpoint in the map

    async def run(self) -> None:
        """Run until cancelled. Raises MetadError if no node was ever reached and waiting would not help."""
        await self._reach_first()
        tasks: dict[NodeQueue, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            if len(self._endpoints) > 1:  # those of the first look-up
                group.create_task(self._insist_on_a_map(), name="metad-client map")
            if self._transports.chooses:
                group.create_task(self._steer(), name="metad-client paths")
            while True:  # one task for each node
                self._nodes.changed.clear()
                queues = list(self._nodes.queues.values())
                for queue in [queue for queue in tasks if queue not in queues]:
                    tasks.pop(queue).cancel()
                self._follow_endpoints()
                for queue in queues:
                    if queue not in tasks:
                        tasks[queue] = group.create_task(self._keep(queue), name=f"metad-client {queue.node}")
                await self._nodes.changed.wait()

    async def _insist_on_a_map(self) -> None:
        """Hang up where no node tells a map, so that the user's other endpoints are tried."""
        while True:
            await asyncio.sleep(MAPLESS_S)
            if self._dispatcher.routes.map is not None:
                return
            for _, connection in self._nodes.up():
                connection.leave()

    async def _steer(self) -> None:
        """Move each node's connection to the transport that suits its path."""
        loop, refresh_s = asyncio.get_running_loop(), REFRESH_S
        refresh_at = loop.time() + refresh_s
        while True:
            await asyncio.sleep(STEER_S)
            if loop.time() >= refresh_at:
                if not self._transports.knows_twins(self._last.values()):
                    self._dispatcher.seek(at_once=True)
                    refresh_s = min(2 * refresh_s, REFRESH_S_MAX)
                refresh_at = loop.time() + refresh_s
            for queue in list(self._nodes.queues.values()):
                connection, endpoint = queue.connection, self._last.get(queue.node)
                if connection is None or endpoint is None:
                    continue
                wanted = self._transports.note(endpoint, connection.via, connection.path_lately())
                if wanted != connection.via:
                    await self._change(queue, connection, endpoint, wanted)

    async def _change(self, queue: NodeQueue, old: NodeConnection, endpoint: Endpoint, name: str) -> None:
        try:
            connection = await self._dialer.dial_by(endpoint, name)
        except MetadError:
            self._transports.failed(endpoint, name)
            return
        if queue.connection is old and self._dispatcher.attach(connection, instead_of=old):
            self.connects += 1
            self.changes += 1
        else:
            connection.close()

    async def _reach_first(self) -> None:
        """Dial the endpoints until one greets, with a wait after each round without success."""
        rounds = 0
        while errors := await self._try_endpoints():
            if not self._options.connect_timeout_s or not any(error.retryable for error in errors):
                raise errors[-1]
            await asyncio.sleep(self._options.backoff.delay_s(rounds, self._rng))
            rounds += 1

    async def _try_endpoints(self) -> list[MetadError]:
        """Dial each endpoint once, each a moment after the one before, or at once if that one failed. The first that
        greets ends the other attempts. Returns nothing then, else why each endpoint failed, in their order."""
        unknown = await self._locate(0.0)
        endpoints = list(dict.fromkeys(self._endpoints))
        errors: dict[Endpoint, MetadError] = {}
        attempts: dict[asyncio.Task[MetadError | None], Endpoint] = {}
        waiting = list(endpoints)
        try:
            while waiting or attempts:
                if waiting:
                    endpoint = waiting.pop(0)
                    self.asked[endpoint] = None
                    attempts[asyncio.create_task(self._try(endpoint), name="metad-client dial")] = endpoint
                patience_s = STAGGER_S if waiting else None
                done, _ = await asyncio.wait(attempts, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    endpoint = attempts.pop(task)
                    error = task.result()
                    if error is None:
                        return []
                    self._dispatcher.reports.unreached(name_of(endpoint), error)
                    errors[endpoint] = error
        finally:
            for task in attempts:
                task.cancel()
            if attempts:
                await asyncio.wait(attempts)
        return [*unknown, *(errors[endpoint] for endpoint in endpoints)]

    async def _locate(self, interval_s: float) -> list[MetadError]:
        """Look up the services, if that was not done within the interval. Returns why some were not found; what was
        found of these before stays."""
        loop = asyncio.get_running_loop()
        if not self._services or loop.time() - self._located_s < interval_s:
            return []
        self._located_s = loop.time()
        errors: list[MetadError] = []
        located: list[Endpoint] = []
        for name, found in zip(
            self._services,
            await asyncio.gather(*map(endpoints_of, self._services), return_exceptions=True),
            strict=True,
        ):
            if isinstance(found, OSError):
                self.obstacle = ConnectionLostError(str(found))
                self._dispatcher.reports.unreached(name, self.obstacle)
                self.asked[name, 0] = None
                errors.append(self.obstacle)
            elif isinstance(found, BaseException):
                raise found
            else:
                located += found
        if located:
            self._endpoints = [*self._fixed, *located]
        return errors

    async def _try(self, endpoint: Endpoint, node: str = "") -> MetadError | None:
        """Dial, and give the connection to the node that answered. None if that is ``node`` or ``node`` is empty, else
        why not."""
        try:
            connection = await self._dialer.dial(endpoint)
        except MetadError as error:
            self.obstacle = error
            return error
        answered = self._reached[endpoint] = connection.welcome.node_id
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

    def _follow_endpoints(self) -> None:
        """Close connections to an address that a node has left: an earlier process of it answers there."""
        advertised: dict[str, Endpoint] = {}
        for node, text in self._dispatcher.routes.endpoints.items():
            try:
                advertised[node] = split_endpoint(text)
            except ValueError:  # the node has not served yet
                continue
            before = self._advertised.get(node)
            if before is None or before == advertised[node]:
                continue
            self._reached.pop(before, None)
            queue = self._nodes.queues.get(node)
            connection = queue.connection if queue is not None else None
            if self._last.get(node) == before and connection is not None:
                connection.leave()
        self._advertised = advertised
        twins = self._dispatcher.routes.twins
        with contextlib.suppress(ValueError):  # a node has named a malformed endpoint
            self._transports.learn({split_endpoint(tcp): split_endpoint(quic) for tcp, quic in twins.items()})

    async def _keep(self, queue: NodeQueue) -> None:
        rounds = 0
        connection: NodeConnection | None = queue.connection
        loop = asyncio.get_running_loop()
        while True:
            await queue.down.wait()
            if connection is not None:
                if connection.was_useful:
                    rounds = 0
                await self._wait(queue, self._options.backoff.delay_s(rounds, self._rng))
                rounds += 1
            begun_s = loop.time()
            if rounds:
                await self._locate(LOCATE_S)
            own = self._own(queue.node)  # what else fails may never have been this node's
            for endpoint in self._candidates(queue):
                if queue.connection is not None:
                    break
                error = await self._try(endpoint, queue.node)
                if error is not None and queue.connection is None and (endpoint in own or not own):
                    self._dispatcher.unreachable(queue, error)
            connection = queue.connection
            if connection is None:
                # A dial that was not answered has taken its time already: so a node that stands still is dialled all
                # the time, and greets as soon as it goes on.
                await self._wait(queue, begun_s + self._options.backoff.delay_s(rounds, self._rng) - loop.time())
                rounds += 1

    async def _wait(self, queue: NodeQueue, seconds: float) -> None:
        """Dial no sooner, unless others say that the node leads a group: then it is there."""
        queue.named.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await queue.named.wait()

    def _own(self, node: str) -> set[Endpoint]:
        """The endpoints that are known to be the node's."""
        proven = {endpoint for endpoint, answered in self._reached.items() if answered == node}
        advertised = self._advertised.get(node)
        return proven if advertised is None else {*proven, advertised}

    def _candidates(self, queue: NodeQueue) -> list[Endpoint]:
        """The endpoints where a node may be reached, best first."""
        node, reached = queue.node, self._reached
        advertised = self._advertised.get(node)
        others = {endpoint for other, endpoint in self._advertised.items() if other != node}
        last = self._last.get(node)
        proven = [endpoint for endpoint, answered in reached.items() if answered == node and endpoint != last]
        # An untried endpoint of the user may be this node's under another name than the map's.
        untried = [endpoint for endpoint in self._endpoints if endpoint not in reached and endpoint not in others]
        candidates = [*proven, *untried]
        if last is not None and reached.get(last) == node:
            candidates.append(last)
        if advertised is not None:
            if proven or last in candidates:
                candidates.append(advertised)
            else:
                candidates.insert(0, advertised)
        if self._nodes.any_up() is None:
            candidates += self._endpoints  # no connected node is left to ask
        return list(dict.fromkeys(candidates))
