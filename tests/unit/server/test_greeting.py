"""Connections that have not been welcomed: they take no place from those that have, and fill no log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from test_connection import FakeStream

from metad.config import load_config
from metad.logs import Repeats
from metad.server import serve
from metad.server.connection import Connection
from metad.server.network import Network
from metad.server.serve import Server
from metad_wire import messages as m
from metad_wire.connection.frame import FrameType, encode_frame
from metad_wire.methods import encode
from metad_wire.transport.credentials import PEERCERT, Principal, Role
from metad_wire.transport.fair_share import TURN, FairShare
from sim.memory import MemoryTransport

SERVED_MAX, GREETING_MAX = 3, 5


def hello(client_name: str = "") -> bytes:
    return encode_frame(FrameType.HELLO, encode(m.Hello("metad", 1, 1, 0, b"", client_name)))


class Shown(FakeStream):
    """The stream of a peer with this certificate, or none."""

    def __init__(self, holder: Principal | None = None) -> None:
        super().__init__()
        self._holder = holder

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return ("10.0.0.1", 1)
        if name == PEERCERT and self._holder is not None:
            return {"subjectAltName": (("URI", self._holder.uri),)}
        return default


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(serve, "GREETING_MAX", GREETING_MAX)
    limits = {"connections_max": SERVED_MAX}
    config = load_config(None, {"storage": {"engine": "memory"}, "listen": "h:1", "limits": limits})
    server = await Server.start(config, Network.only(MemoryTransport()))
    server.access.encrypted = True
    running = asyncio.create_task(server.run())
    yield server
    await server.stop()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def arrive(server: Server, holder: Principal | None = None) -> tuple[Connection, Shown]:
    FairShare.here().left = TURN  # others have come in turns before
    connection, stream = server._accept(), Shown(holder)
    connection.connection_made(stream)
    return connection, stream


APP = Principal(Role.CLIENT, "app")


async def test_strangers_take_no_place_from_those_who_may_come_in(server: Server) -> None:
    strangers = [arrive(server)[1] for _ in range(100)]
    for number in range(SERVED_MAX):
        await asyncio.sleep(0)  # a turn of the loop does no more than so much for all connections
        connection, stream = arrive(server, APP)
        connection.data_received(hello())
        assert [frame[0] for frame in stream.frames()] == [FrameType.WELCOME], number
    assert sum(not stream.closed for stream in strangers) <= GREETING_MAX
    assert {error.name for stream in strangers for error in stream.errors()} == {"overloaded"}
    await asyncio.sleep(0)
    one_more, stream = arrive(server, APP)
    one_more.data_received(hello())
    assert [error.name for error in stream.errors()] == ["overloaded"]


async def test_who_has_shown_a_certificate_goes_last(server: Server) -> None:
    certified = [arrive(server, APP) for _ in range(GREETING_MAX - 1)]
    strangers = [arrive(server)[1] for _ in range(100)]
    assert [stream.closed for _, stream in certified] == [False] * len(certified)
    assert [stream.closed for stream in strangers] == [True] * 99 + [False]
    certified += [arrive(server, APP) for _ in range(2)]
    assert [stream.closed for _, stream in certified] == [True, *[False] * GREETING_MAX]


async def test_a_place_is_free_again_when_its_connection_is_over(server: Server) -> None:
    for _ in range(5 * SERVED_MAX):
        connection, stream = arrive(server, APP)
        connection.data_received(hello())
        assert [frame[0] for frame in stream.frames()] == [FrameType.WELCOME]
        connection.connection_lost(None)
        arrive(server)[0].connection_lost(None)
    assert server.node.connections == 0


async def test_refused_greetings_are_counted_rather_than_logged(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    repeats = Repeats(lambda: 0.0)
    with caplog.filtering(repeats), caplog.at_level(logging.WARNING, "metad"):
        for _ in range(3_000):
            connection, stream = arrive(server)
            connection.data_received(hello())
            assert [error.name for error in stream.errors()] == ["unauthenticated"]
            connection.connection_lost(None)
    refused = [record for record in caplog.records if record.getMessage() == "client_refused"]
    assert len(refused) == 1


async def test_the_log_says_which_client_it_is(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    connection = arrive(server, APP)[0]
    with caplog.at_level(logging.DEBUG, "metad"):
        connection.data_received(hello("broker-7\n" + "x" * 1_000))
        connection.data_received(hello())
    fields = [record.fields for record in caplog.records if hasattr(record, "fields")]
    said = {entry["client"] for entry in fields if "client" in entry}
    (name,) = said
    assert name.startswith("client 'app' 'broker-7\\nxxx")
    assert len(name) < 100


async def test_who_has_all_connections_leaves_others_theirs(server: Server) -> None:
    def welcomed(holder: Principal) -> Shown | None:
        connection, stream = arrive(server, holder)
        connection.data_received(hello())
        return stream if [frame[0] for frame in stream.frames()] == [FrameType.WELCOME] else None

    hoarded = [welcomed(APP) for _ in range(SERVED_MAX)]
    assert None not in hoarded
    other = Principal(Role.CLIENT, "other")
    assert welcomed(other) is not None
    assert [stream.closed for stream in hoarded if stream] == [False] * (SERVED_MAX - 1) + [True]
    assert welcomed(APP) is None
