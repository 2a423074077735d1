"""The client of Oxia finds the leader of a shard again after it has moved. The nodes are made up; ``tests/contract``
has the suite for real ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import pytest

from metad_perf.peers import oxia_client, oxia_wire
from metad_perf.peers.etcd_wire import field, fields, number
from metad_perf.peers.oxia_client import OxiaClient, open_oxia
from metad_perf.peers.peer import PeerError

_OK = field(1, b"")  # of a put or get
_SESSION = 7


class Cluster:
    """Nodes with one shard, which one of them leads; what was written goes with it."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.leader = 0
        self.moved = asyncio.Condition()
        self.records: dict[bytes, bytes] = {}
        self.kept: list[int] = []
        """Which node heard each heartbeat."""
        self.silent = False
        """The leader does what it hears, and then stands still for ever."""

    async def move(self, to: int) -> None:
        async with self.moved:
            self.leader, self.silent = to, False
            self.moved.notify_all()


class Node(grpc.GenericRpcHandler):
    """One of them: what the client calls, bytes in and bytes out."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster, self._number = cluster, number

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return {
            oxia_wire.ASSIGNMENTS: grpc.unary_stream_rpc_method_handler(self._assignments),
            oxia_wire.WRITE_STREAM: grpc.stream_stream_rpc_method_handler(self._write),
            oxia_wire.READ: grpc.unary_stream_rpc_method_handler(self._read),
            oxia_wire.CREATE_SESSION: grpc.unary_unary_rpc_method_handler(self._create),
            oxia_wire.KEEP_ALIVE: grpc.unary_unary_rpc_method_handler(self._keep_alive),
            oxia_wire.CLOSE_SESSION: grpc.unary_unary_rpc_method_handler(self._keep_alive),
        }.get(details.method)

    async def _check(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        if self._cluster.leader != self._number:
            await context.abort(grpc.StatusCode.ABORTED, "oxia: node is not leader")

    async def _assignments(self, _: bytes, __: object) -> AsyncIterator[bytes]:
        while True:
            leader = self._cluster.leader
            shard = field(2, self._cluster.addresses[leader].encode())  # shard 0 is left out
            yield field(1, field(1, b"default") + field(2, field(1, shard)))
            async with self._cluster.moved:
                await self._cluster.moved.wait_for(lambda leader=leader: self._cluster.leader != leader)

    async def _write(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        await self._check(context)
        assert set(oxia_wire.of_stream(0)) <= {*(context.invocation_metadata() or ())}
        async for request in requests:
            await self._check(context)
            answer = b""
            for kind, part in fields(request):
                if isinstance(part, bytes):
                    key, value = (dict(fields(part)).get(at, b"") for at in (1, 2))
                    assert isinstance(key, bytes)
                    assert isinstance(value, bytes)
                    if kind == 2:
                        self._cluster.records[key] = value
                        answer += field(1, b"")
                    else:
                        there = self._cluster.records.pop(key, None) is not None
                        answer += field(2, b"" if there else number(1, oxia_wire.KEY_NOT_FOUND))
            if self._cluster.silent:
                await asyncio.Event().wait()
            yield answer

    async def _read(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        await self._check(context)
        answer = b""
        for kind, part in fields(request):
            if kind == 2 and isinstance(part, bytes):
                key = dict(fields(part))[1]
                assert isinstance(key, bytes)
                value = self._cluster.records.get(key)
                answer += field(1, number(1, oxia_wire.KEY_NOT_FOUND) if value is None else field(3, value))
        yield answer

    async def _create(self, _: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await self._check(context)
        return number(1, _SESSION)

    async def _keep_alive(self, _: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await self._check(context)
        self._cluster.kept.append(self._number)
        return b""


@asynccontextmanager
async def stage() -> AsyncIterator[tuple[Cluster, OxiaClient]]:
    cluster, servers = Cluster(), []
    for n in range(2):
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Node(cluster, n),))
        cluster.addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        servers.append(server)
    try:
        async with open_oxia(",".join(cluster.addresses), 2) as client:
            yield cluster, client
    finally:
        for server in servers:
            await server.stop(None)


async def _until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(60.0):
        while True:
            if what():
                return
            await asyncio.sleep(0.01)


async def test_calls_go_to_the_next_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oxia_client, "LAPSING_S", 0.1)
    async with stage() as (cluster, client):
        records = [(f"k{n}", b"%d" % n) for n in range(20)]
        put, get = client.put(records), client.get([key for key, _ in records])
        assert (await put()).failed == []
        for leader in (1, 0, 1):
            await cluster.move(leader)  # nobody has told the client
            assert (await client.alive(["x"])()).values == [None]
            assert (await put()).failed == []
            assert list((await get()).values) == [value for _, value in records]
        heard = len(cluster.kept)
        await _until(lambda: len(cluster.kept) > heard)
        assert cluster.kept[-1] == 1, "the session goes on with the next leader"


@pytest.mark.parametrize("call", ["put", "delete"])
async def test_what_was_under_way_when_a_leader_moves_is_done_once_more(call: str) -> None:
    """Also what was done already: a record that is gone then is no fault."""
    async with stage() as (cluster, client):
        await client.put([("a", b"1")])()
        cluster.silent = True
        work: Awaitable[object] = client.put([("a", b"2")])() if call == "put" else client.delete(["a"])()
        doing = asyncio.ensure_future(work)
        await _until(lambda: cluster.records.get(b"k-a") != b"1")
        await cluster.move(1)
        answer = await doing
        assert answer.failed == []  # type: ignore[attr-defined]
        assert (await client.get(["a"])()).values == ([b"2"] if call == "put" else [None])
        assert (await client.delete(["never there"])()).failed == ["oxia 1"]


async def test_nodes_that_name_no_leader_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oxia_client, "_CONNECT_S", 0.1)
    with pytest.raises(PeerError, match="names no leaders"):
        async with open_oxia("127.0.0.1:1", 1):
            pass
