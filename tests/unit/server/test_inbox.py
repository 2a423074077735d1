"""What has come on connections and is not begun: its order, its bound, and the shares of connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from test_connection import HELLO, FakeStream, until

import metad.server.connection as connection_module
from metad.config import load_config
from metad.node.requests.requests import Requests
from metad.server.budgets import FRAME_BYTES, Inbox
from metad.server.connection import Connection
from metad.server.network import Network
from metad.server.serve import Server
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.connection.frame import Frame, FrameType, encode_frame
from metad_wire.errors import OverloadedError
from metad_wire.methods import encode
from metad_wire.policy.fair_room import FairRoom
from metad_wire.tables import broker as b
from sim.memory import MemoryTransport

MIB = 1024 * 1024


def frame(request_id: int, size: int = 0) -> Frame:
    """One that takes ``size`` bytes of the bound."""
    length = max(size - FRAME_BYTES, 16)
    return Frame(int(FrameType.REQUEST), 0, methods.KV_PUT.code, request_id, b"", length)


def room_of(size: int) -> FairRoom:
    return FairRoom("bytes", size, ends="soon")


def kept_quiet(_: Frame) -> None:
    """Nobody is told that a frame is turned away."""


def fill(inbox: Inbox, first_id: int, size: int, turn_away: Callable[[Frame], None] = kept_quiet) -> int:
    """Put in frames of this size until one finds no room; how many were let in."""
    count = 0
    while inbox.add(frame(first_id + count, size), 0.0, turn_away):
        count += 1
    return count


def test_requests_come_out_in_their_order_with_the_time_at_which_they_came() -> None:
    inbox = Inbox(room_of(MIB))
    for number, arrived_s in ((5, 1.0), (3, 1.5), (4, 2.0)):
        assert inbox.add(frame(number), arrived_s, kept_quiet)
    assert len(inbox) == 3
    assert [(taken.request_id, at_s) for taken, at_s in (inbox.pop() for _ in range(3))] == [
        (5, 1.0),
        (3, 1.5),
        (4, 2.0),
    ]
    assert not inbox


def test_what_is_held_is_counted_until_it_is_taken_discarded_or_cleared() -> None:
    budget = room_of(MIB)
    one, other = Inbox(budget), Inbox(budget)
    one.holder, other.holder = "one", "other"
    for number in range(1, 5):
        assert one.add(frame(number, 1_000), 0.0, kept_quiet)
    assert other.add(frame(1, 5_000), 0.0, kept_quiet)
    assert (budget.held, len(budget)) == (9_000, 2)
    one.pop()
    assert one.discard(3)
    assert not one.discard(3)
    assert [taken.request_id for taken, _ in (one.pop(), one.pop())] == [2, 4]
    assert (budget.held, len(budget)) == (5_000, 1)
    other.clear()
    other.clear()
    assert (budget.held, len(budget)) == (0, 0)


def test_one_connection_fills_the_room_and_others_take_it_back() -> None:
    budget = room_of(MIB)
    away: list[int] = []
    hog, modest = Inbox(budget), Inbox(budget)
    count = fill(hog, 1, 10_000, lambda frame: away.append(frame.request_id))
    assert hog.held_bytes > MIB - 10_000
    assert modest.add(frame(1, 9_000), 0.0, kept_quiet)
    assert away == [count], "the newest of the one that holds most is turned away"
    assert not hog.add(frame(10_000, 10_000), 0.0, kept_quiet)
    assert modest.add(frame(2, 1_000), 0.0, kept_quiet)
    assert budget.held <= MIB


def test_a_crowd_of_connections_keeps_to_the_bound() -> None:
    budget = room_of(MIB)
    for inbox in [Inbox(budget) for _ in range(500)]:
        fill(inbox, 1, 700)
    assert MIB // 2 < budget.held <= MIB


@pytest.mark.parametrize("brokers", [2, 5, 20, 100])
def test_a_crowd_that_sends_alike_fills_the_room(brokers: int) -> None:
    budget = room_of(MIB)
    inboxes = [Inbox(budget) for _ in range(brokers)]
    number = 0
    while sum(inbox.add(frame(number, 500), 0.0, kept_quiet) for inbox in inboxes):
        number += 1
    assert budget.held > MIB * 3 // 4
    assert max(inbox.held_bytes for inbox in inboxes) - min(inbox.held_bytes for inbox in inboxes) <= MIB // brokers
    assert Inbox(budget).add(frame(0, 500), 0.0, kept_quiet), "who has nothing here yet finds room"


def test_short_frames_count_for_what_they_take() -> None:
    assert fill(Inbox(room_of(MIB)), 1, 0) <= MIB // FRAME_BYTES


def test_the_longest_frame_fits_alone_and_beside_a_few_others() -> None:
    budget = room_of(24 * MIB)
    one, other = Inbox(budget), Inbox(budget)
    assert one.add(frame(1, 16 * MIB), 0.0, kept_quiet)
    assert not other.add(frame(1, 16 * MIB), 0.0, kept_quiet)
    assert one.pop()
    assert one.add(frame(1, 100), 0.0, kept_quiet)
    assert other.add(frame(1, 16 * MIB), 0.0, kept_quiet)
    assert Inbox(room_of(100)).add(frame(1, MIB), 0.0, kept_quiet)


# --- on a connection -------------------------------------------------------------------------------------


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(connection_module, "_SLICE_S", 60.0)  # slices end by bytes and counts, however slow the machine
    groups = {"offset": 1, "data": 1}
    settings = {"storage": {"engine": "memory"}, "groups": groups, "listen": "h:1"}
    server = await Server.start(load_config(None, settings), Network.only(MemoryTransport()))
    running = asyncio.create_task(server.run())
    yield server
    await server.stop()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class Submitted:
    """What a node was asked to begin: method, and how long it had waited. Nothing is begun before :meth:`let`."""

    def __init__(self, requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[int, float]] = []
        submit = requests.submit

        def spy(method: int, payload: bytes, *args: Any, waited_s: float = 0.0, **more: Any) -> Any:
            self.seen.append((method, waited_s))
            return submit(method, payload, *args, waited_s=waited_s, **more)

        monkeypatch.setattr(requests, "submit", spy)


def connect(server: Server) -> tuple[Connection, FakeStream]:
    connection, stream = server._accept(), FakeStream()
    connection.connection_made(stream)
    connection.data_received(HELLO)
    return connection, stream


def put(request_id: int, size: int = 10, deadline_ms: int = 0) -> bytes:
    body = m.KvPut([m.KvPutItem("n", f"k{request_id}", bytes(size))])
    payload = methods.KV_PUT.encode_request(body, deadline_ms, group="data-0")
    return encode_frame(FrameType.REQUEST, payload, request_id, methods.KV_PUT.code)


def heartbeat(request_id: int) -> bytes:
    payload = methods.BROKER_HEARTBEAT.encode_request(b.BrokerHeartbeat([b.BrokerBeat("b", 1)]))
    return encode_frame(FrameType.REQUEST, payload, request_id, methods.BROKER_HEARTBEAT.code)


def answered(stream: FakeStream) -> list[int]:
    """The ids of the answers, in their order."""
    kinds = (FrameType.RESPONSE, FrameType.ERROR)
    return [request_id for kind, request_id, _ in stream.frames() if kind in kinds]


async def test_a_heartbeat_goes_before_all_that_its_connection_has_sent(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, stream = connect(server)
    seen = Submitted(server.node.requests, monkeypatch).seen
    connection.data_received(b"".join(put(number, 20_000) for number in range(1, 11)) + heartbeat(11))
    # One put is a slice; the others wait for theirs, and are read on meanwhile.
    assert [method for method, _ in seen] == [methods.KV_PUT.code, methods.BROKER_HEARTBEAT.code]
    assert stream.reading
    assert len(connection._inbox) == 9
    connection.data_received(put(12, 20_000) + heartbeat(13))
    assert [method for method, _ in seen][2:] == [methods.BROKER_HEARTBEAT.code]
    await until(lambda: len(answered(stream)) == 13)
    assert sorted(answered(stream)) == list(range(1, 14))
    assert [method for method, _ in seen].count(methods.KV_PUT.code) == 11
    assert not any(isinstance(error, OverloadedError) for error in stream.errors())
    assert (server._unbegun.held, len(server._unbegun)) == (0, 0)
    connection.connection_lost(None)


async def test_cancels_pings_and_heartbeats_wait_for_nobody_who_does_not_read(server: Server) -> None:
    connection, stream = connect(server)
    connection.pause_writing()
    ping = encode_frame(FrameType.PING, encode(m.Ping(1)))
    cancel = encode_frame(FrameType.CANCEL, b"", 2)
    connection.data_received(put(1) + put(2) + heartbeat(3) + ping + cancel)
    assert stream.reading
    assert len(connection._inbox) == 1
    assert FrameType.PONG in [kind for kind, _, _ in stream.frames()]
    assert {2, 3} <= set(answered(stream))
    (name,) = [error.name for error in stream.errors() if "was cancelled before" in error.message]
    assert name == "cancelled"
    connection.resume_writing()
    await until(lambda: sorted(answered(stream)) == [1, 2, 3])
    connection.connection_lost(None)


async def test_a_peer_that_does_not_read_is_heard_only_for_a_little(server: Server) -> None:
    connection, stream = connect(server)
    connection.pause_writing()
    connection.data_received(b"".join(put(number, 10_000) for number in range(1, 6)))
    assert stream.reading
    connection.data_received(b"".join(put(number, 10_000) for number in range(6, 11)))
    assert not stream.reading
    connection.resume_writing()
    await until(lambda: stream.reading and sorted(answered(stream)) == list(range(1, 11)))
    connection.connection_lost(None)


async def test_pings_of_a_peer_that_does_not_read_are_bounded(server: Server) -> None:
    connection, stream = connect(server)
    connection.pause_writing()
    pings = encode_frame(FrameType.PING, encode(m.Ping(1))) * 4_000
    connection.data_received(pings)
    await until(lambda: not connection._uncut)
    assert not stream.reading
    connection.connection_lost(None)


async def test_what_has_waited_too_long_is_refused_before_it_is_decoded(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, stream = connect(server)
    connection.pause_writing()
    connection.data_received(put(1, deadline_ms=60_000) + put(2, deadline_ms=1_000) + put(3, deadline_ms=60_000))
    loop = connection._loop
    come_s = dict(zip((1, 2, 3), (0.6, 0.6, 10.1), strict=True))  # by the stamps, so long ago
    frames = connection._inbox._frames
    for number, ago_s in come_s.items():
        frames[number] = frames[number][0], loop.time() - ago_s, frames[number][2]
    decoded: list[object] = []
    decode = methods.KV_PUT.decode_what_fits
    monkeypatch.setattr(methods.KV_PUT, "decode_what_fits", lambda payload: decoded.append(payload) or decode(payload))
    connection.resume_writing()
    await until(lambda: len(answered(stream)) == 3)
    assert len(decoded) == 1  # of request 1: less than half of its deadline, and less than limits.queue_ms
    refused = {request_id for kind, request_id, _ in stream.frames() if kind == FrameType.ERROR}
    assert refused == {2, 3}
    assert {error.name for error in stream.errors()} == {"overloaded"}
    assert all(error.retry_after_ms + error.retry_jitter_ms > 0 for error in stream.errors())
    assert server.node.gate.refused[methods.KV_PUT.lane] == 2
    connection.connection_lost(None)


async def test_what_finds_no_room_is_turned_away_and_the_connection_is_read_on(server: Server) -> None:
    server._unbegun.size_max = 100_000
    connection, stream = connect(server)
    connection.data_received(b"".join(put(number, 20_000) for number in range(1, 20)) + heartbeat(20))
    assert stream.reading
    assert server._unbegun.held <= 100_000
    assert {error.name for error in stream.errors()} >= {"overloaded"}
    assert all(
        error.retry_after_ms + error.retry_jitter_ms > 0 for error in stream.errors() if error.name == "overloaded"
    )
    await until(lambda: sorted(answered(stream)) == list(range(1, 21)))
    kinds = {request_id: kind for kind, request_id, _ in stream.frames()}
    assert [number for number in range(1, 20) if kinds[number] == FrameType.RESPONSE]
    connection.connection_lost(None)


async def test_a_connection_that_ends_leaves_nothing_behind(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Submitted(server.node.requests, monkeypatch).seen
    for end in ("lost", "broken"):
        connection, stream = connect(server)
        connection.pause_writing()
        connection.data_received(put(1) + put(2))
        assert len(server._unbegun) == 1
        if end == "broken":
            connection.data_received(put(2))  # the id is in flight
            assert stream.closed
            assert server._unbegun.held == 0
        connection.connection_lost(None)
        assert (server._unbegun.held, len(server._unbegun)) == (0, 0)
    await asyncio.sleep(0)
    assert seen == []  # nobody waits for it
