"""However many connections come at one moment, a turn of the loop does a bounded piece of what they ask for.

Each of many new connections sends the largest request of a verb, all in the same turn. What is counted is work: bytes
that are decoded, and rows of the engine. The verbs and their bodies are made of the declarations, so a new one is
tested without a word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from test_connection import FakeStream, connect, until
from test_steps import _ENDS, MANY, VERBS, request_of

from metad.config import load_config
from metad.server.connection import _SLICE_BYTES, _SLICE_SPENT, Connection
from metad.server.network import Network
from metad.server.serve import Server
from metad.storage.memory import MemoryEngine
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.connection.frame import FrameType, encode_frame
from metad_wire.method import Method
from metad_wire.policy.slices import SLICE_ROWS
from metad_wire.transport.fair_share import TURN, Rank
from sim.memory import MemoryTransport

pytestmark = pytest.mark.slow
CROWD = 80
SLICES = 2 * TURN + len(Rank)  # of small work and of the rest, and one of each rank


class Turns:
    """What is done in each turn of the loop: the most of all, and the current one."""

    def __init__(self) -> None:
        self.decoded = self.rows = self.decoded_most = self.rows_most = 0

    def over(self) -> None:
        self.decoded_most = max(self.decoded_most, self.decoded)
        self.rows_most = max(self.rows_most, self.rows)
        self.decoded = self.rows = 0


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    """Count meanwhile."""
    turns, loop = Turns(), asyncio.get_running_loop()
    decode, get, get_many, scan = Method.decode_what_fits, MemoryEngine.get, MemoryEngine.get_many, MemoryEngine.scan
    run_once = loop._run_once  # type: ignore[attr-defined]

    def decoding(method: Method[Any, Any], payload: bytes) -> Any:
        turns.decoded += len(payload)
        return decode(method, payload)

    def getting(engine: MemoryEngine, key: bytes) -> Any:
        turns.rows += 1
        return get(engine, key)

    def getting_many(engine: MemoryEngine, keys: Any) -> Any:
        turns.rows += len(keys)
        return get_many(engine, keys)

    def scanning(engine: MemoryEngine, *args: Any) -> Any:
        found = scan(engine, *args)
        turns.rows += len(found)
        return found

    def once() -> None:
        turns.over()
        run_once()
        turns.over()

    with monkeypatch.context() as patched:
        patched.setattr(Method, "decode_what_fits", decoding)
        for name, method in (("get", getting), ("get_many", getting_many), ("scan", scanning)):
            patched.setattr(MemoryEngine, name, method)
        patched.setattr(loop, "_run_once", once, raising=False)
        yield turns


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    settings = {"storage": {"engine": "memory"}, "groups": {"offset": 1, "data": 1}, "listen": "h:1"}
    server = await Server.start(load_config(None, settings), Network.only(MemoryTransport()))
    running = asyncio.create_task(server.run())
    yield server
    server.node.will_turns.drain()
    await server.stop()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def prepare(server: Server, verb: Method[Any, Any]) -> None:
    """Have it write what this verb may read."""
    table = verb.name.partition(".")[0]
    for method in VERBS:
        if method.mutates and method.name.startswith((table, "session.takeover")) and not method.name.endswith(_ENDS):
            answers: list[object] = []
            server.node.requests.submit(method.code, request_of(method, MANY)[0], answers.append)
            await until(lambda answers=answers: answers)


async def ask(clients: list[tuple[Connection, FakeStream]], method: Method[Any, Any], items: int) -> int:
    """All at one moment; how many bytes each has sent."""
    payload, _ = request_of(method, items)
    frame = encode_frame(FrameType.REQUEST, payload, 1, method.code)
    for connection, _ in clients:
        asyncio.get_running_loop().call_soon(connection.data_received, frame)
    await until(lambda: all(len(stream.frames()) > 1 for _, stream in clients))
    return len(payload)


async def in_short_turns(server: Server, monkeypatch: pytest.MonkeyPatch, method: Method[Any, Any]) -> None:
    await prepare(server, method)
    with counted(monkeypatch) as one:
        size = await ask([connect(server)], method, MANY)
    clients = [connect(server) for _ in range(CROWD)]
    with counted(monkeypatch) as crowd:
        await ask(clients, method, MANY)
    for connection, _ in clients:
        connection.connection_lost(None)
    assert crowd.decoded_most <= SLICES * _SLICE_BYTES + 3 * size
    # What is written together is evaluated together, and applied together.
    entries = 3 if method.mutates else 0
    assert crowd.rows_most <= SLICES * _SLICE_SPENT + (3 + entries) * one.rows_most + entries * m.BATCH_ITEMS_MAX


@pytest.mark.parametrize("method", VERBS, ids=lambda method: method.name)
async def test_a_crowd_of_new_connections_makes_no_turn_long(
    server: Server, monkeypatch: pytest.MonkeyPatch, method: Method[Any, Any]
) -> None:
    await in_short_turns(server, monkeypatch, method)


async def test_reads_of_a_crowd_share_turns(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    await in_short_turns(server, monkeypatch, methods.KV_GET)


async def test_heartbeats_of_a_crowd_count_to_a_turn(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    await in_short_turns(server, monkeypatch, methods.BROKER_HEARTBEAT)


async def test_the_status_goes_before_a_crowds_long_reads(server: Server) -> None:
    clients = [connect(server) for _ in range(CROWD)]
    modest, heard = connect(server)
    keys = [m.KvKey("n", f"{number:032}") for number in range(SLICE_ROWS)]
    long = methods.KV_GET.encode_request(methods.KV_GET.body(keys), 60_000, None, "data-0")
    status, _ = request_of(methods.STATUS, 1)
    loop = asyncio.get_running_loop()
    for connection, _ in clients:
        loop.call_soon(connection.data_received, encode_frame(FrameType.REQUEST, long, 1, methods.KV_GET.code))
    loop.call_soon(modest.data_received, encode_frame(FrameType.REQUEST, status, 1, methods.STATUS.code))
    await until(lambda: len(heard.frames()) > 1)
    assert sum(len(stream.frames()) > 1 for _, stream in clients) < CROWD // 2
    await until(lambda: all(len(stream.frames()) > 1 for _, stream in clients))
    for connection, _ in (*clients, (modest, heard)):
        connection.connection_lost(None)
