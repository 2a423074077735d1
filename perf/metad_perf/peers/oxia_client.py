"""A client of Oxia: gRPC calls with messages that are encoded before the clock starts.

A batch is one request to each shard, all at once. A session has two records, one for its properties and one for its
owner; a takeover writes the owners and reads the properties, both under way at once. A lapsing session is an ephemeral
record: it belongs to the session that this client has with the shard, and lapses when the client falls silent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

import grpc

from ..load.workload import ABSENT
from . import oxia_wire as wire
from .etcd_client import CHANNEL_OPTIONS, CONNECTIONS_MAX, GrpcCalls
from .peer import CALL_TIMEOUT_S, LAPSING_S, Answer, Call, Lifeless, PeerError, Record

T = TypeVar("T")
_CONNECT_S = 10.0
_LAPSE_MS = 1_000 * LAPSING_S


class Shard:
    """One shard: its leader, and this client's session there."""

    def __init__(self, shard: int, channels: Sequence[grpc.aio.Channel]) -> None:
        self.shard = shard
        calls = GrpcCalls(channels)
        self._write, self._ask = calls.method(wire.WRITE), calls.method
        self._reads = [one.unary_stream(wire.READ) for one in channels]
        self._turn = 0
        self.session = 0

    async def open(self) -> None:
        """Begin the session."""
        request = wire.create_session(self.shard, _LAPSE_MS, "metad-perf")
        self.session = wire.session_of(await self._ask(wire.CREATE_SESSION)(request))

    async def keep_alive(self) -> None:
        """One heartbeat."""
        await self._ask(wire.KEEP_ALIVE)(wire.of_session(self.shard, self.session))

    async def close(self) -> None:
        """End the session, with what belongs to it."""
        await self._ask(wire.CLOSE_SESSION)(wire.of_session(self.shard, self.session))

    async def write(self, request: bytes) -> list[str]:
        """Send; the failures."""
        return [f"oxia {one}" for one in wire.statuses(await self._write(request))]

    async def read(self, request: bytes) -> list[bytes | int]:
        """Send; what each get has found."""
        self._turn = (self._turn + 1) % len(self._reads)
        found: list[bytes | int] = []
        async for reply in self._reads[self._turn](request, timeout=CALL_TIMEOUT_S):
            found += wire.values(reply)
        return found


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

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(LAPSING_S / 4)
            for shard in self._shards:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await shard.keep_alive()

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


@asynccontextmanager
async def open_oxia(endpoints: str, in_flight: int) -> AsyncIterator[OxiaClient]:
    """Connections to the leader of each shard. Raises PeerError."""
    async with AsyncExitStack() as stack:
        leaders = await _leaders(endpoints)
        channels: dict[str, list[grpc.aio.Channel]] = {}
        for leader in sorted(set(leaders.values())):
            channels[leader] = [
                await stack.enter_async_context(grpc.aio.insecure_channel(leader, options=CHANNEL_OPTIONS))
                for _ in range(max(1, min(CONNECTIONS_MAX, in_flight)))
            ]
        shards = [Shard(shard, channels[leader]) for shard, leader in sorted(leaders.items())]
        for shard in shards:
            await shard.open()
        client = OxiaClient(shards)
        stack.push_async_callback(client.close)
        yield client


async def _leaders(endpoints: str) -> dict[int, str]:
    """Of all shards, by any node. Raises PeerError."""
    for endpoint in endpoints.split(","):
        with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
            async with asyncio.timeout(_CONNECT_S), grpc.aio.insecure_channel(endpoint) as channel:
                async for reply in channel.unary_stream(wire.ASSIGNMENTS)(wire.assignments_request()):
                    if found := wire.leaders(reply):
                        return found
    raise PeerError(f"oxia at {endpoints} names no leaders of the namespace {wire.NAMESPACE}")
