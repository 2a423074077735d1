"""Several streams to one node as one link: who carries what, and what the end of one stream means for the others."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from metad_client import Client, KvPutItem, Options
from metad_client.connections.transport_choice import TransportChoice
from metad_client.endpoint import parse_url
from metad_wire.policy import PathRule
from sim.memory import MemoryTransport

STREAMS = 4


@pytest.fixture
def multi_stream(server: Any, dial: Any) -> Any:
    """Opens a client that takes the network for QUIC, and waits for all of its streams."""

    async def opened(transport: Any = None, streams: int = STREAMS, **options: Any) -> Client:
        transports = TransportChoice({"quic": transport or server.transport}, PathRule())
        client = Client(
            parse_url("metadq://a"),
            Options(quic_streams=streams, **options),
            transports=transports,
            rng=random.Random(7),
        )
        dial.clients.append(client)
        await client.open()
        if transport is None:
            await server.until(lambda: len(server.live) == streams)
        return client

    return opened


def put(client: Client, key: str, size: int = 1) -> asyncio.Future[Any]:
    return asyncio.ensure_future(client.kv.put_many([KvPutItem("ns", key, b"v" * size)]))


def carriers(server: Any) -> Counter[int]:
    """How many requests came over each stream."""
    return Counter(server.peers.index(received.peer) for received in server.received)


async def test_requests_go_to_the_stream_with_the_least_unanswered(server: Any, multi_stream: Any, settle: Any) -> None:
    client = await multi_stream()
    await settle()
    server.answer = None
    large = put(client, "large", 10_000)
    await server.requests(1)
    small = [put(client, f"k{i}") for i in range(9)]
    await server.requests(10)
    busy = server.received[0].peer
    assert sorted(carriers(server).values()) == [1, 3, 3, 3]
    assert [received.peer for received in server.received].count(busy) == 1
    assert client.statistics().in_flight == 10
    for received in server.received:
        received.reply()
    await asyncio.gather(large, *small)
    assert client.statistics().in_flight == 0
    assert (client.statistics().connects, client.statistics().via) == (1, {"n1": "quic"})


async def test_one_stream_is_used_before_the_others_are_up(server: Any, multi_stream: Any) -> None:
    client = await multi_stream(streams=1)
    assert await client.kv.put("ns", "k", b"1") == 1
    assert len(server.live) == 1


async def test_a_broken_stream_takes_the_others_with_it_and_nothing_is_lost(server: Any, multi_stream: Any) -> None:
    client = await multi_stream()
    server.answer = None
    calls = [put(client, f"k{i}") for i in range(12)]
    await server.requests(12)
    first = {received.body.items[0].key: received.identity.seq for received in server.received}
    old = list(server.live)
    old[2].cut()
    await server.until(lambda: len(server.received) == 24)
    again = {received.body.items[0].key: received.identity.seq for received in server.received[12:]}
    assert again == first
    assert not any(received.peer in old for received in server.received[12:])
    for received in server.received[12:]:
        received.reply()
    await asyncio.gather(*calls)
    assert all(peer.gone for peer in old)
    assert client.statistics().reconnects == 1


async def test_a_goaway_on_one_stream_lets_all_be_answered(server: Any, multi_stream: Any) -> None:
    client = await multi_stream()
    server.answer = None
    calls = [put(client, f"k{i}") for i in range(8)]
    await server.requests(8)
    old = list(server.live)
    old[1].goaway()
    await server.until(lambda: len([peer for peer in server.live if peer not in old]) == STREAMS)
    assert not any(peer.gone for peer in old), "each has requests to answer"
    for received in list(server.received):
        received.reply()
    await asyncio.gather(*calls)
    await server.until(lambda: all(peer.gone for peer in old))
    assert len(server.received) == 8
    assert client.statistics().retries == 0
    server.answer = lambda received: received.reply()
    assert await client.kv.put("ns", "k", b"1") == 1


async def test_closing_in_flight_ends_all(server: Any, multi_stream: Any) -> None:
    client = await multi_stream()
    server.answer = None
    calls = [put(client, f"k{i}") for i in range(6)]
    await server.requests(6)
    await client.close()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(outcome).__name__ for outcome in outcomes} == {"ClosedError"}
    await server.until(lambda: not server.live)


async def test_a_passed_deadline_cancels_on_the_stream_that_carries_the_call(server: Any, multi_stream: Any) -> None:
    client = await multi_stream(deadline_s=1.0)
    server.answer = None
    calls = [put(client, f"k{i}") for i in range(STREAMS)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(outcome).__name__ for outcome in outcomes} <= {"DeadlineExceededError", "UnknownOutcomeError"}
    await server.until(lambda: all(received.cancelled for received in server.received))


class _Once(MemoryTransport):
    """Refuses every dial but the first."""

    def __init__(self, below: MemoryTransport) -> None:
        super().__init__()
        self._below = below
        self.dials = 0

    async def dial(self, host: str, port: int, factory: Any, timeout_s: float) -> Any:
        self.dials += 1
        if self.dials > 1:
            raise ConnectionRefusedError("no more streams")
        return await self._below.dial(host, port, factory, timeout_s)


async def test_streams_that_do_not_come_up_are_done_without(server: Any, multi_stream: Any) -> None:
    transport = _Once(server.transport)
    client = await multi_stream(transport)
    await asyncio.gather(*[client.kv.put_many([KvPutItem("ns", f"k{i}", b"1")]) for i in range(10)])
    assert transport.dials == STREAMS
    assert len(server.live) == 1


def test_there_is_at_least_one_stream() -> None:
    with pytest.raises(ValueError, match="quic_streams"):
        Options(quic_streams=0)
