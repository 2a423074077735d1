"""Every room that clients share, on a running server: one holder with many connections takes all that it can, and one
connection of somebody else still gets what it asks for. Nobody is checked here, so a holder is a host.

A new room fails the first test until it stands in :data:`ROOMS`, with a request that takes of it."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import msgspec
import pytest
from test_connection import HELLO, FakeStream
from test_rooms import calls

from metad.config import load_config
from metad.server.connection import Connection
from metad.server.network import Network
from metad.server.serve import Server
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import SLOTS
from metad_wire.connection.frame import FrameType, encode_frame
from metad_wire.declaration import Declaration, DeclaredField
from metad_wire.errors import OverloadedError, QuotaExceededError, TooLargeError
from metad_wire.policy.fair_room import FairRoom
from metad_wire.tables import broker as b
from metad_wire.tables import lease as w
from metad_wire.tables import will
from metad_wire.tables.declaration import Declare
from metad_wire.transport.fair_share import TURN, FairShare
from metad_wire.watch import WatchEvents, WatchFilter, WatchOpen
from sim.memory import MemoryTransport

CONNECTIONS, EACH = 40, 4
HOG, OTHER = "10.0.0.1", "10.0.0.2"
HOUR_MS = 3_600_000
Asked = tuple[methods.Method[Any, Any], Any, str]
"""A method, a body, and a group."""
Request = Callable[[int], Asked]
"""The request of a number."""


class Room(NamedTuple):
    """``size_max``: so much is there, some twenty times what one request takes. ``kept``: which part of it one holder
    has at least when it is alone. ``at_once``: nothing else may happen meanwhile, or it is given back. ``unread``: the
    clients do not read their answers."""

    size_max: int
    request: Request | None
    kept: float = 0.9
    at_once: bool = False
    unread: bool = False


def _put(number: int) -> Asked:
    return methods.KV_PUT, m.KvPut([m.KvPutItem("n", f"k{number}", b"v")]), "data-0"


def _watch(**fields: Any) -> Request:
    return lambda _: (methods.WATCH_OPEN, WatchOpen([WatchFilter("kv")], credit_bytes=0, **fields), "data-0")


def _read(_: int) -> Asked:
    return methods.KV_GET, methods.KV_GET.body([m.KvKey("n", "k")], [m.Revision("data-0", 2**62)]), "data-0"


def _wait(number: int) -> Asked:
    return methods.WILL_WAIT, will.WillWait(f"b{number}", 1, 60_000), "data-0"


def _register(number: int) -> Asked:
    return methods.BROKER_REGISTER, b.BrokerRegister(f"b{number}", HOUR_MS, wait_ms=0), ""


def _grant(number: int) -> Asked:
    return methods.LEASE_GRANT, w.LeaseGrant([w.LeaseGrantItem(f"l{number}", HOUR_MS)]), "data-0"


def _declare(number: int) -> Asked:
    declared = Declaration(f"t{number}", "data", [DeclaredField("k", "str")], ["k"], 1)
    return methods.DECLARATION_DECLARE, Declare([declared]), ""


def _end(number: int) -> Asked:
    return methods.SESSION_END_TENANT, m.SessionEndTenant(f"t{number}", False), "data-0"


ROOMS = {
    "connections": Room(24, None),
    "bytes of requests in flight": Room(24 * 2_040, _put, kept=0.6, at_once=True),
    "bytes of reads that wait for a revision": Room(24 * 2_500, _read),
    "bytes of requests that are not begun": Room(24 * 830, _put, unread=True),
    "bytes of requests that wait for a turn": Room(24 * 1_850, _wait),
    "streams of watches": Room(24, _watch()),
    "bytes of filters of watches": Room(24 * 1_700, _watch()),
    "snapshots of watches": Room(24, _watch(snapshot=b"\xff" * (SLOTS // 8))),
    "bytes of names of brokers": Room(24 * 2_048, _register, kept=0.4),
    "bytes of leases of a group": Room(200 * 1_024, _grant, kept=0.4),
    "declared tables": Room(24, _declare, kept=0.4),
    "bytes of orders to end tenants": Room(24 * 1_024, _end, kept=0.4),
}


class Client:
    """A connection of a host."""

    def __init__(self, server: Server, host: str) -> None:
        FairShare.here().left = TURN
        self.connection: Connection = server._accept()
        self.stream = HostStream(host)
        self.connection.connection_made(self.stream)
        self.connection.data_received(HELLO)
        self.asked: dict[int, methods.Method[Any, Any]] = {}

    def ask(self, request: Request, number: int) -> None:
        method, body, group = request(number)
        request_id = len(self.asked) + 1
        self.asked[request_id] = method
        FairShare.here().left = TURN  # each comes in a turn of its own
        if not self.stream.closed:
            payload = method.encode_request(body, 600_000, None, group)
            self.connection.data_received(encode_frame(FrameType.REQUEST, payload, request_id, method.code))

    def refusals(self) -> list[int]:
        """The codes of what it was told that it cannot have, also as the end of a stream or for an item."""
        found = [error.code for error in self.stream.errors()]
        for kind, request_id, payload in self.stream.frames():
            if kind == FrameType.RESPONSE:
                found += [error.code for error in getattr(self.asked[request_id].decode_reply(payload), "errors", [])]
            elif kind == FrameType.EVENT and (end := msgspec.msgpack.decode(payload, type=WatchEvents).end):
                found.append(end.code)
        return found


class HostStream(FakeStream):
    def __init__(self, host: str) -> None:
        super().__init__()
        self.host = host

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.host, 1) if name == "peername" else default


def test_every_room_stands_here() -> None:
    assert {call.args[0].value for call in calls("FairRoom")} == ROOMS.keys()  # type: ignore[attr-defined]


@pytest.fixture
def rooms() -> weakref.WeakSet[FairRoom]:
    """Those of the server that are tried."""
    return weakref.WeakSet()


@pytest.fixture
async def server(what: str, rooms: weakref.WeakSet[FairRoom], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    """A server with little of one room."""
    make = FairRoom.__init__

    def made(room: FairRoom, name: str, size_max: int, *, ends: str) -> None:
        make(room, name, ROOMS[what].size_max if name == what else size_max, ends=ends)
        if name == what:
            rooms.add(room)

    monkeypatch.setattr(FairRoom, "__init__", made)
    groups = {"offset": 1, "data": 1}
    config = load_config(None, {"storage": {"engine": "memory"}, "groups": groups, "listen": "h:1"})
    server = await Server.start(config, Network.only(MemoryTransport()))
    running = asyncio.create_task(server.run())
    yield server
    await server.stop()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def settle(room: Room, clients: list[Client]) -> None:
    """Until what they have asked is answered, or waits."""
    if not room.at_once:
        for _ in range(20):
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("what", ROOMS)
async def test_many_connections_of_one_holder_leave_another_its_share(
    server: Server, rooms: weakref.WeakSet[FairRoom], what: str
) -> None:
    room = ROOMS[what]

    async def clients(host: str, count: int) -> list[Client]:
        made = [Client(server, host) for _ in range(count)]
        for client in made:
            client.connection.wait_unsent(room.unread)
        return made

    async def ask(some: list[Client], numbers: range) -> None:
        for number in numbers if room.request is not None else ():
            for at, client in enumerate(some):
                client.ask(room.request, number * len(some) + at)
            await settle(room, some)

    hogs = await clients(HOG, CONNECTIONS)
    await ask(hogs, range(EACH))
    told = {code for hog in hogs for code in hog.refusals()}
    assert told, "the room was never full"
    assert told <= {error.code for error in (OverloadedError, QuotaExceededError, TooLargeError)}
    assert any(one.held for one in rooms)
    assert all(one.held >= room.kept * one.size_max - 2 * one.size_max / 24 for one in rooms if one.held), (
        "it may use what nobody needs"
    )
    (other,) = await clients(OTHER, 1)
    await ask([other], range(1_000, 1_002))
    assert not other.refusals()
    assert not other.stream.closed
    assert other.stream.frames()[0][0] == FrameType.WELCOME
