"""A client of Oxia: gRPC calls with messages that are encoded before the clock starts.

A batch is one request to each shard, all at once. A session has two records, one for its properties and one for its
owner; a takeover writes the owners and reads the properties, both under way at once. A lapsing session is an ephemeral
record: it belongs to the session that this client has with the shard, and lapses when the client falls silent.

Oxia's coordinator looks every 30 s for leaders to move. The client follows the assignments of
shards, which any node streams, and sends again what a node refuses that does not lead any more, or what was under way
there: as Oxia's own clients do. The client's session of a shard goes on with the next leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

import grpc

from ..load.workload import ABSENT
from . import oxia_wire as wire
from .etcd_client import CHANNEL_OPTIONS, CONNECTIONS_MAX, GrpcCalls
from .peer import CALL_TIMEOUT_S, LAPSING_S, Answer, Call, Lifeless, PeerError, Record

T = TypeVar("T")
_CONNECT_S = 10.0
_AGAIN_S = 0.05
_REST_S = 0.2
_MOVED = frozenset(
    {
        grpc.StatusCode.ABORTED,  # it does not lead
        grpc.StatusCode.CANCELLED,  # it led when the call came
        grpc.StatusCode.FAILED_PRECONDITION,  # it is about to lead, or to follow
        grpc.StatusCode.UNAVAILABLE,
    }
)
"""What says that another node may lead, or will."""
_LAPSE_MS = 1_000 * LAPSING_S


class Connections:
    """Of one client, to all nodes that lead or have led."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._channels: dict[str, list[grpc.aio.Channel]] = {}

    def to(self, node: str) -> list[grpc.aio.Channel]:
        """Those to a node, new or not."""
        if node not in self._channels:
            self._channels[node] = [
                grpc.aio.insecure_channel(node, options=CHANNEL_OPTIONS) for _ in range(self._count)
            ]
        return self._channels[node]

    async def close(self) -> None:
        """End them. What gRPC has to say of streams that were cancelled must find this loop, not the process's next."""
        for channels in self._channels.values():
            for one in channels:
                await one.close()
        await asyncio.sleep(_REST_S)


class Writes:
    """A stream of writes to one shard over one connection, as Oxia's own clients write: answered in their order."""

    def __init__(self, shard: int, channel: grpc.aio.Channel) -> None:
        self._stream = channel.stream_stream(wire.WRITE_STREAM)(metadata=wire.of_stream(shard))
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._sending = asyncio.Lock()
        self._ended = False
        self._answers = asyncio.create_task(self._read())

    async def ask(self, request: bytes) -> bytes:
        """Send, and wait for the answer. Raises MovedError."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        async with self._sending:
            if self._ended:
                raise MovedError
            self._waiting.append(future)
            try:
                await self._stream.write(request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                self._end()
        return await future

    async def _read(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            while (reply := await self._stream.read()) is not grpc.aio.EOF:
                future = self._waiting.popleft()
                if not future.done():
                    future.set_result(reply)
        self._end()

    def _end(self) -> None:
        """Nobody knows what has become of the writes that were not answered."""
        self._ended = True
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(MovedError())

    def close(self) -> None:
        """End the stream."""
        self._answers.cancel()
        self._stream.cancel()
        self._end()

    @property
    def ended(self) -> bool:
        """Whether it takes no more."""
        return self._ended


class MovedError(Exception):
    """A stream of writes has ended: another node leads, or will."""


class Shard:
    """One shard: its leader, whoever that is, and this client's session there."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.session = 0
        self._channels: Sequence[grpc.aio.Channel] = ()
        self._calls = GrpcCalls([])
        self._reads: Sequence[Callable[..., grpc.aio.UnaryStreamCall]] = ()
        self._writes: dict[int, Writes] = {}  # by connection
        self._turn = 0

    def led_by(self, channels: Sequence[grpc.aio.Channel]) -> None:
        """From now on, over these."""
        self._channels, self._calls = channels, GrpcCalls(channels)
        self._reads = [one.unary_stream(wire.READ) for one in channels]
        self.part()

    def part(self) -> None:
        """End the streams of writes. What is under way there is sent again, or nobody waits for it."""
        for one in self._writes.values():
            one.close()
        self._writes.clear()

    async def open(self) -> None:
        """Begin the session."""
        request = wire.create_session(self.shard, _LAPSE_MS, "metad-perf")
        self.session = wire.session_of(await self._unary(wire.CREATE_SESSION, request))

    async def keep_alive(self) -> None:
        """One heartbeat."""
        await self._calls.method(wire.KEEP_ALIVE)(wire.of_session(self.shard, self.session))

    async def close(self) -> None:
        """End the session, with what belongs to it."""
        await self._calls.method(wire.CLOSE_SESSION)(wire.of_session(self.shard, self.session))

    async def write(self, request: bytes) -> list[str]:
        """Send; the failures. What is sent again may have been done the first time: then nothing is left to delete."""
        tries = 0

        async def once() -> bytes:
            nonlocal tries
            tries += 1
            turn = self._next()
            stream = self._writes.get(turn)
            if stream is None or stream.ended:
                stream = self._writes[turn] = Writes(self.shard, self._channels[turn])
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await stream.ask(request)

        statuses = wire.statuses(await _from_leader(once))
        return [f"oxia {one}" for one in statuses if tries == 1 or one != wire.KEY_NOT_FOUND]

    async def read(self, request: bytes) -> list[bytes | int]:
        """Send; what each get has found."""

        async def once() -> list[bytes | int]:
            found: list[bytes | int] = []
            async for reply in self._reads[self._next()](request, timeout=CALL_TIMEOUT_S):
                found += wire.values(reply)
            return found

        return await _from_leader(once)

    def _next(self) -> int:
        self._turn = (self._turn + 1) % len(self._channels)
        return self._turn

    async def _unary(self, method: str, request: bytes) -> bytes:
        async def once() -> bytes:
            reply: bytes = await self._calls.method(method)(request)
            return reply

        return await _from_leader(once)


async def _from_leader(once: Callable[[], Awaitable[T]]) -> T:
    """The answer of the leader, whoever it is by then. Raises AioRpcError; TimeoutError if nobody leads in time."""
    loop = asyncio.get_running_loop()
    until = loop.time() + CALL_TIMEOUT_S
    while True:
        with contextlib.suppress(MovedError):
            try:
                return await once()
            except grpc.aio.AioRpcError as error:
                if error.code() not in _MOVED:
                    raise
        if loop.time() > until:
            raise TimeoutError
        await asyncio.sleep(_AGAIN_S)


class Leaders:
    """Follows the assignments, and tells each shard who leads it."""

    def __init__(self, endpoints: str, connections: Connections) -> None:
        self.shards: dict[int, Shard] = {}
        self.moves = 0
        """How often a shard that had a leader got another."""
        self._endpoints, self._connections = endpoints.split(","), connections
        self._led: dict[int, str] = {}
        self._known = asyncio.Event()

    async def known(self) -> None:
        """Return when every shard has a leader. Raises TimeoutError."""
        async with asyncio.timeout(_CONNECT_S):
            await self._known.wait()

    async def follow(self) -> None:
        """Until cancelled: the stream of one node, and of the next when it ends."""
        for endpoint in itertools.cycle(self._endpoints):
            with contextlib.suppress(grpc.aio.AioRpcError):
                async with grpc.aio.insecure_channel(endpoint) as channel:
                    async for reply in channel.unary_stream(wire.ASSIGNMENTS)(wire.assignments_request()):
                        self.assigned(wire.leaders(reply))
            await asyncio.sleep(_AGAIN_S)

    def assigned(self, leaders: dict[int, str]) -> None:
        """A node says who leads. A shard whose leader is being elected has none."""
        for number, leader in leaders.items():
            shard = self.shards.setdefault(number, Shard(number))
            if leader and self._led.get(number) != leader:
                self.moves += number in self._led
                self._led[number] = leader
                shard.led_by(self._connections.to(leader))
        if self.shards and self.shards.keys() == self._led.keys():
            self._known.set()


class OxiaClient(Lifeless):
    """See :class:`~metad_perf.peers.peer.Client`."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
        self._kept = asyncio.create_task(self._keep_alive())
        self.abandoned = False

    def insert(self, records: Sequence[Record]) -> Call:
        """As put."""
        return self.put(records)

    def put(self, records: Sequence[Record]) -> Call:
        """Puts without an expected version."""
        return self._write([(key, wire.put(f"k-{key}", value)) for key, value in records], len(records))

    def get(self, keys: Sequence[str]) -> Call:
        """Gets."""
        return self._read([(key, wire.get(f"k-{key}")) for key in keys])

    def delete(self, keys: Sequence[str]) -> Call:
        """Deletes."""
        return self._write([(key, wire.delete(f"k-{key}")) for key in keys], len(keys))

    def create(self, sessions: Sequence[Record], owner: str) -> Call:
        """Two records for each session, in one shard."""
        parts = [(name, wire.put(f"s-{name}", value)) for name, value in sessions]
        parts += [(name, wire.put(f"o-{name}", owner.encode())) for name, _ in sessions]
        return self._write(parts, len(sessions))

    def take_over(self, sessions: Sequence[str], owner: str) -> Call:
        """The puts of the owners, and the gets of the properties."""
        write = self._write([(name, wire.put(f"o-{name}", owner.encode())) for name in sessions], len(sessions))
        read = self._read([(name, wire.get(f"s-{name}")) for name in sessions])

        async def call() -> Answer:
            written, found = await asyncio.gather(write(), read())
            failed = written.failed or found.failed or [ABSENT] * found.values.count(None)
            return Answer(failed, found.values)

        return call

    def owners(self, sessions: Sequence[str]) -> Call:
        """A read."""
        return self._read([(name, wire.get(f"o-{name}")) for name in sessions])

    def begin(self, sessions: Sequence[Record]) -> Call:
        """Ephemeral records."""
        parts = [(name, wire.put(f"l-{name}", value, session=self._shard_of(name).session)) for name, value in sessions]
        return self._write(parts, len(sessions))

    def alive(self, sessions: Sequence[str]) -> Call:
        """A read."""
        return self._read([(name, wire.get(f"l-{name}")) for name in sessions])

    def end(self, sessions: Sequence[str]) -> Call:
        """Deletes."""
        return self._write([(name, wire.delete(f"l-{name}")) for name in sessions], len(sessions))

    async def abandon(self) -> None:
        """No more heartbeats."""
        self.abandoned = True
        await self.close()

    async def close(self) -> None:
        """Stop the heartbeats; end the sessions unless they are abandoned."""
        if not self._kept.done():
            self._kept.cancel()
            await asyncio.wait([self._kept])
        if not self.abandoned:
            for shard in self._shards:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await shard.close()
        for shard in self._shards:
            shard.part()

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(LAPSING_S / 4)
            await asyncio.gather(*(shard.keep_alive() for shard in self._shards), return_exceptions=True)

    def _shard_of(self, name: str) -> Shard:
        return self._shards[wire.place_of(name, len(self._shards))]

    def _split(self, parts: Sequence[tuple[str, bytes]]) -> dict[Shard, list[int]]:
        """The positions of each shard's parts."""
        places: dict[Shard, list[int]] = {}
        for at, (name, _) in enumerate(parts):
            places.setdefault(self._shard_of(name), []).append(at)
        return places

    def _write(self, parts: Sequence[tuple[str, bytes]], count: int) -> Call:
        requests = [
            (shard, wire.to_shard(shard.shard, [parts[at][1] for at in places]))
            for shard, places in self._split(parts).items()
        ]

        async def call() -> Answer:
            failed = await _each([shard.write(request) for shard, request in requests])
            return Answer([failed] * count) if isinstance(failed, str) else Answer([one for of in failed for one in of])

        return call

    def _read(self, parts: Sequence[tuple[str, bytes]]) -> Call:
        count = len(parts)
        split = self._split(parts)
        requests = [
            (shard, wire.to_shard(shard.shard, [parts[at][1] for at in places])) for shard, places in split.items()
        ]

        async def call() -> Answer:
            found = await _each([shard.read(request) for shard, request in requests])
            if isinstance(found, str):
                return Answer([found] * count)
            values: list[bytes | None] = [None] * count
            failed = []
            for places, of_shard in zip(split.values(), found, strict=True):
                for at, one in zip(places, of_shard, strict=True):
                    if isinstance(one, bytes):
                        values[at] = one
                    elif one != wire.KEY_NOT_FOUND:
                        failed.append(f"oxia {one}")
            return Answer(failed, values)

        return call


async def _each(work: Sequence[Awaitable[list[T]]]) -> list[list[T]] | str:
    """All results; or why one of them failed."""
    try:
        return [await work[0]] if len(work) == 1 else list(await asyncio.gather(*work))
    except grpc.aio.AioRpcError as error:
        return f"grpc {error.code().name}"
    except TimeoutError:
        return "timeout"


@asynccontextmanager
async def open_oxia(endpoints: str, in_flight: int) -> AsyncIterator[OxiaClient]:
    """Connections to the leader of each shard, and to the next one when it moves. Raises PeerError."""
    async with AsyncExitStack() as stack:
        connections = Connections(max(1, min(CONNECTIONS_MAX, in_flight)))
        stack.push_async_callback(connections.close)
        leaders = Leaders(endpoints, connections)
        following = asyncio.create_task(leaders.follow())
        stack.push_async_callback(_ended, following)
        try:
            await leaders.known()
        except TimeoutError:
            raise PeerError(f"oxia at {endpoints} names no leaders of the namespace {wire.NAMESPACE}") from None
        shards = [shard for _, shard in sorted(leaders.shards.items())]
        for shard in shards:
            await shard.open()
        client = OxiaClient(shards)
        stack.push_async_callback(client.close)
        yield client


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
