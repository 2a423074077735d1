"""A process of naive clients: they send at their pace, whatever they are told, and never wait.

A request that is refused is not sent again and slows nobody down; the next one comes when it is due. What is under
way is bounded by time: a request that is not answered by its deadline is given up, and one that finds no room in its
connection's window until then was never sent. What is given up is cancelled, as the SDK does. The clients follow the
hint of a node that does not lead, and do nothing else about refusals.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import msgspec

from metad_wire.cluster import ClusterMap
from metad_wire.connection.frame import FrameType
from metad_wire.connection.session import ClientSession, decode_error
from metad_wire.errors import MetadError

from ..commands import Overload
from ..errors import WorkerError
from ..load.timing import SYSTEM
from ..report.histogram import Latencies
from .plan import Ready, requests
from .tally import Tally

_OPEN_S = 10.0
_BURST = 32  # requests that may be sent without looking at answers
_PING_S = 2.0
_AGAIN_S = 0.2
_LAG_NS = 100_000_000  # later than this, the sender is too slow and not the node
_WRITE_BYTES = 64 * 1024
"""What the network has not taken yet may be so much: more would be sent although nobody waits for it any more."""
_PATIENCE_S = 10.0  # of the closed loop, which does not give up


class Ramp(msgspec.Struct, frozen=True):
    """Closed loop: so many requests in flight, for so long. The reply: items acknowledged a second, however late."""

    in_flight: int
    seconds: float


class Pace(msgspec.Struct, frozen=True):
    """Open loop from now on: so many items a second, counted as of this phase. 0: none."""

    phase: str
    rate: float


class Tell(msgspec.Struct, frozen=True):
    """The reply: the :class:`~.tally.Tally` of each phase so far."""


class _Request:
    """One that was due."""

    __slots__ = ("count", "done", "due_ns", "ready")

    def __init__(self, ready: Ready, due_ns: int, count: _Count, done: Callable[[], None] | None) -> None:
        self.ready = ready
        self.due_ns = due_ns
        self.count = count
        self.done = done


class _Count:
    """What is counted of a phase."""

    def __init__(self, batch: int, begin_ns: int) -> None:
        self.batch = batch
        self.begin_ns = begin_ns
        self.tally = Tally()
        self.by_second: Counter[int] = Counter()
        self.errors: Counter[str] = Counter()
        self.latencies = Latencies()

    def told(self) -> Tally:
        return msgspec.structs.replace(
            self.tally,
            errors=dict(self.errors),
            good_by_second=dict(self.by_second),
            latencies=self.latencies.encode(),
        )


class Connection(asyncio.Protocol):
    """One connection to one node."""

    def __init__(self, clients: Naive) -> None:
        self._clients = clients
        self._session = ClientSession(client_name="naive")
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_Request] = deque()
        self._under_way: dict[int, _Request] = {}
        self._scheduled = False
        self._paused = False
        self.welcomed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The node's name."""

    def ask(self, request: _Request) -> None:
        """Send it as soon as there is room."""
        self._waiting.append(request)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def give_up(self, before_ns: int) -> None:
        """Forget what was due earlier."""
        while self._waiting and self._waiting[0].due_ns < before_ns:
            self._clients.given_up(self._waiting.popleft(), sent=False)
        for number in [n for n, one in self._under_way.items() if one.due_ns < before_ns]:
            request = self._under_way[number]
            if not self._clients.is_late(request):
                # Its answer still comes, which may be that it was done.
                self._session.cancel(number)
                self._clients.given_up(request, sent=True)

    def ping(self) -> None:
        """Say that we live."""
        if self._transport is not None and self.welcomed.done():
            self._session.ping(1)
            self._flush()

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        self._scheduled = False
        session, transport = self._session, self._transport
        if transport is None:
            return
        while self._waiting and not self._paused and session.can_send(self._waiting[0].ready.size):
            request = self._waiting.popleft()
            payload = request.ready.payload(self._clients.left_ms(request))
            self._under_way[session.request(request.ready.method, payload)] = request
            request.count.tally.sent += request.count.batch
            transport.write(session.data_to_send())  # which may say that this is enough
        if data := session.data_to_send():
            transport.write(data)

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._transport.set_write_buffer_limits(_WRITE_BYTES)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _WRITE_BYTES)
        self._flush()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    def data_received(self, data: bytes) -> None:
        session = self._session
        session.receive_data(data)
        while (frame := session.next_event()) is not None:
            if frame.type == FrameType.WELCOME:
                assert session.welcome is not None
                self.welcomed.set_result(session.welcome.node_id)
            elif frame.type in (FrameType.RESPONSE, FrameType.ERROR):
                request = self._under_way.pop(frame.request_id, None)
                if request is not None:
                    error = decode_error(frame.payload) if frame.type == FrameType.ERROR else None
                    self._clients.answered(request, error)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.welcomed.done():
            self.welcomed.set_exception(WorkerError(f"a connection of a naive client was refused: {exc}"))
        for request in (*self._waiting, *self._under_way.values()):
            self._clients.broken(request)
        self._waiting.clear()
        self._under_way.clear()
        self._clients.lost(self)


class Naive:
    """The role of the process. ``endpoints``: host:port of every node."""

    def __init__(self, measurement: Overload, cluster: ClusterMap, leaders: dict[str, str], share: int) -> None:
        self._measurement = measurement
        self._next = requests(measurement, cluster, share)
        self._leaders = dict(leaders)
        self._connections: dict[str, list[Connection]] = {}
        self._turn = 0
        self._patience_s = measurement.timeout_s
        self._counts: dict[str, _Count] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._pacing: asyncio.Task[None] | None = None
        self._late: set[int] = set()  # of given-up requests, by identity
        self._closed = False
        self._endpoints: list[str] = []

    async def open(self, endpoints: list[str]) -> None:
        """Connect to every node."""
        self._endpoints = endpoints
        for endpoint in endpoints:
            for _ in range(self._measurement.connections):
                await self._connect(endpoint)
        self._tasks = [asyncio.create_task(self._sweep()), asyncio.create_task(self._reconnect())]

    async def _connect(self, endpoint: str) -> None:
        host, _, port = endpoint.rpartition(":")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_OPEN_S):
            _, connection = await loop.create_connection(lambda: Connection(self), host, int(port))
            self._connections.setdefault(await connection.welcomed, []).append(connection)

    async def carry_out(self, order: Any) -> Any:
        match order:
            case Ramp(in_flight, seconds):
                return await self._ramp(in_flight, seconds)
            case Pace(phase, rate):
                await self._stop_pacing()
                if rate:
                    self._pacing = asyncio.create_task(self._pace(self._count(phase), rate))
                return None
            case Tell():
                if self._pacing is not None and self._pacing.done():
                    self._pacing.result()  # raises what ended it
                return {phase: count.told() for phase, count in self._counts.items()}
        raise TypeError(f"no order {order!r}")

    async def close(self) -> None:
        """End all."""
        self._closed = True
        await self._stop_pacing()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connections in self._connections.values():
            for connection in list(connections):
                connection.close()

    async def _stop_pacing(self) -> None:
        if self._pacing is not None:
            self._pacing.cancel()
            with suppress(asyncio.CancelledError):
                await self._pacing
            self._pacing = None

    def _count(self, phase: str) -> _Count:
        if phase not in self._counts:
            self._counts[phase] = _Count(self._measurement.batch, SYSTEM.now_ns())
        return self._counts[phase]

    # --- the load ---

    async def _pace(self, count: _Count, rate: float) -> None:
        interval_ns = 1e9 * self._measurement.batch / rate
        begin_ns = SYSTEM.now_ns()
        number = 0
        while True:
            due_ns = begin_ns + round(number * interval_ns)
            if due_ns > SYSTEM.now_ns():
                await SYSTEM.sleep_until_ns(due_ns)
            elif number % _BURST == 0:
                await asyncio.sleep(0)  # behind: answers must be read all the same
            number += 1
            self._send(due_ns, count, None)

    async def _ramp(self, in_flight: int, seconds: float) -> float:
        count = _Count(self._measurement.batch, SYSTEM.now_ns())
        self._patience_s = _PATIENCE_S
        begin_ns = SYSTEM.now_ns()
        until_ns = begin_ns + round(seconds * 1e9)

        ended, going = asyncio.Event(), in_flight

        def again() -> None:
            nonlocal going
            if SYSTEM.now_ns() < until_ns and not self._closed:
                asyncio.get_running_loop().call_soon(lambda: self._send(SYSTEM.now_ns(), count, again))
                return
            going -= 1
            if not going:
                ended.set()

        for _ in range(in_flight):
            self._send(SYSTEM.now_ns(), count, again)
        await asyncio.sleep(seconds)
        done = count.tally.good
        took_s = (SYSTEM.now_ns() - begin_ns) / 1e9
        await ended.wait()
        self._patience_s = self._measurement.timeout_s
        return done / took_s

    def _send(self, due_ns: int, count: _Count, done: Callable[[], None] | None) -> None:
        ready = self._next()
        request = _Request(ready, due_ns, count, done)
        count.tally.offered += count.batch
        count.tally.lagged += count.batch * (SYSTEM.now_ns() - due_ns > _LAG_NS)
        connections = self._connections.get(self._leaders.get(ready.group, ""))
        if not connections:
            self.broken(request)
            return
        self._turn += 1
        connections[self._turn % len(connections)].ask(request)

    # --- what becomes of requests ---

    def left_ms(self, request: _Request) -> int:
        """How much longer its sender waits."""
        return max(1, round(self._patience_s * 1e3 - (SYSTEM.now_ns() - request.due_ns) / 1e6))

    def answered(self, request: _Request, error: MetadError | None) -> None:
        """A node has answered. In a reply of these methods items do not fail one by one: nothing is conditional."""
        count = request.count
        if error is not None:
            count.errors[error.name] += count.batch
            if error.leader:
                self._leaders[request.ready.group] = error.leader
        if self.is_late(request):
            self._late.discard(id(request))
            count.tally.unanswered -= count.batch
            if error is None:
                count.tally.late += count.batch
            else:
                count.tally.refused += count.batch
            return
        if error is None:
            count.tally.good += count.batch
            count.by_second[(request.due_ns - count.begin_ns) // 1_000_000_000] += count.batch
            count.latencies.note(SYSTEM.now_ns() - request.due_ns)
        else:
            count.tally.refused += count.batch
        self._done(request)

    def given_up(self, request: _Request, *, sent: bool) -> None:
        """Its sender waits no longer."""
        if sent:
            request.count.tally.unanswered += request.count.batch
            self._late.add(id(request))
        else:
            request.count.tally.unsent += request.count.batch
        self._done(request)

    def broken(self, request: _Request) -> None:
        """Its connection is lost, or there is none."""
        if self.is_late(request):
            self._late.discard(id(request))
            return
        request.count.errors["no_connection"] += request.count.batch
        request.count.tally.unsent += request.count.batch
        self._done(request)

    def is_late(self, request: _Request) -> bool:
        """Whether its sender has given up."""
        return id(request) in self._late

    def _done(self, request: _Request) -> None:
        done, request.done = request.done, None
        if done is not None:
            done()

    # --- connections ---

    def lost(self, connection: Connection) -> None:
        """It is over."""
        for connections in self._connections.values():
            if connection in connections:
                connections.remove(connection)

    async def _sweep(self) -> None:
        pinged = 0.0
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(0.05, self._measurement.timeout_s / 4))
            pings = loop.time() - pinged >= _PING_S
            for connections in list(self._connections.values()):
                for connection in list(connections):
                    connection.give_up(SYSTEM.now_ns() - round(self._patience_s * 1e9))
                    if pings:
                        connection.ping()
            if pings:
                pinged = loop.time()

    async def _reconnect(self) -> None:
        """A client whose connection was closed comes back at once, as naive ones do."""
        wanted = len(self._endpoints) * self._measurement.connections
        turn = 0
        while True:
            await asyncio.sleep(_AGAIN_S)
            if sum(map(len, self._connections.values())) < wanted:
                turn += 1
                with suppress(OSError, TimeoutError, WorkerError, MetadError):
                    await self._connect(self._endpoints[turn % len(self._endpoints)])


@asynccontextmanager
async def open_naive(
    endpoints: list[str], measurement: Overload, cluster: ClusterMap, leaders: dict[str, str], share: int
) -> AsyncIterator[Naive]:
    """The role of a process."""
    clients = Naive(measurement, cluster, leaders, share)
    try:
        await clients.open(endpoints)
        yield clients
    finally:
        await clients.close()
