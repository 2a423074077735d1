"""Coming back with a ticket: reads go out with the HELLO in 0-RTT data, writes are refused there and sent again. A real
server in this process, over QUIC on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import metad.embedded
from metad.server import connection as server_connection
from metad_client import Client, Options, connect
from metad_client.connections import connection as client_connection
from metad_perf.attack import sites as certificates
from metad_wire.methods import KV_GET, KV_PUT
from metad_wire.transport.quic.tickets import KeptTickets

TIMEOUT_S = 120.0


class Watch:
    """What both ends did while it mattered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.early: list[bool] = []  # of each connection the client made
        self.refused: list[int] = []  # methods
        self.taken: list[int] = []  # methods, early
        made, judged = client_connection.Connection.connection_made, server_connection.Connection._too_early

        def connection_made(connection: Any, stream: Any) -> None:
            made(connection, stream)
            self.early.append(connection.early)

        def too_early(connection: Any, method: int) -> bool:
            refused = judged(connection, method)
            if refused:
                self.refused.append(method)
            elif connection._early:
                self.taken.append(method)
            return refused

        monkeypatch.setattr(client_connection.Connection, "connection_made", connection_made)
        monkeypatch.setattr(server_connection.Connection, "_too_early", too_early)

        self.ticket = asyncio.Event()  # the client has one
        keep = KeptTickets.keep

        def kept(tickets: Any, endpoint: Any, ticket: Any) -> None:
            keep(tickets, endpoint, ticket)
            self.ticket.set()

        monkeypatch.setattr(KeptTickets, "keep", kept)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


@pytest.fixture
async def client(watch: Watch) -> AsyncIterator[Client]:
    node = certificates.node("node-1")
    security = {"certificate": node.certificate, "key": node.key, "ca": node.ca}
    async with (
        metad.embedded.serve(quic="127.0.0.1:0", security=security) as server,
        connect(f"metadq://{server.quic_endpoint}", Options(tls=certificates.client())) as client,
    ):
        await client.kv.put("early", "key", b"before")
        yield client


async def cut(client: Client, watch: Watch) -> None:
    """End the connection as a lost network would, once the server's ticket has come."""
    async with asyncio.timeout(TIMEOUT_S):
        await watch.ticket.wait()
    client.reconnect()


async def test_a_read_is_answered_in_0_rtt_data(client: Client, watch: Watch) -> None:
    await cut(client, watch)
    async with asyncio.timeout(TIMEOUT_S):
        found = await client.kv.get("early", "key")
    assert found is not None
    assert found.value == b"before"
    assert watch.early[0] is False
    assert True in watch.early[1:]
    assert KV_GET.code in watch.taken


async def test_a_write_in_0_rtt_data_is_refused_and_done_once_unseen(client: Client, watch: Watch) -> None:
    await cut(client, watch)
    async with asyncio.timeout(TIMEOUT_S):
        version = await client.kv.put("early", "key", b"after")
    assert watch.refused == [KV_PUT.code]
    assert version == 2
    found = await client.kv.get("early", "key")
    assert found is not None
    assert (found.value, found.version) == (b"after", 2)


async def test_many_calls_at_once_come_back_together(client: Client, watch: Watch) -> None:
    await cut(client, watch)
    async with asyncio.timeout(TIMEOUT_S):
        versions = await asyncio.gather(*(client.kv.put("early", f"k{i}", b"x") for i in range(50)))
    assert versions == [1] * 50
    assert client.statistics().in_flight == client.statistics().waiting == 0
