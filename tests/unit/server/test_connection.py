"""A connection against a stream that a test stalls: what is unread, unfinished or closed does not stay for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec
import pytest

import metad.server.budgets as intake_module
import metad.server.budgets as unsent_module
import metad.server.connection as connection_module
import metad.server.serve as serve_module
from metad.config import load_config
from metad.server.budgets import SendBudget
from metad.server.connection import Connection
from metad.server.network import Network
from metad.server.serve import Server
from metad.state.core.verb import SCAN_ROWS_MAX
from metad.watch.frames import FRAME_BYTES
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.connection.frame import FrameDecoder, FrameType, encode_frame
from metad_wire.connection.session import decode_error
from metad_wire.errors import MetadError
from metad_wire.methods import encode
from metad_wire.transport.fair_share import TURN, FairShare
from metad_wire.watch import WatchCredit, WatchEvents, WatchFilter, WatchOpen
from sim.memory import MemoryTransport
from waiting import until

HELLO = encode_frame(FrameType.HELLO, encode(m.Hello("metad", 1, 1)))
MIB = 1024 * 1024


class FakeStream:
    """Takes what is written, and says what it was asked to do."""

    def __init__(self) -> None:
        self.written = b""
        self.read = True  # by the peer
        self.reading = True
        self.closed = False
        self.aborted = False

    def write(self, data: bytes) -> None:
        assert not self.aborted
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return 0 if self.read else len(self.written)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def frames(self) -> list[tuple[int, int, bytes]]:
        decoder = FrameDecoder()
        decoder.feed(self.written)
        found = []
        while (frame := decoder.next()) is not None:
            found.append((frame.type, frame.request_id, frame.payload))
        return found

    def errors(self) -> list[MetadError]:
        return [decode_error(payload) for kind, _, payload in self.frames() if kind == FrameType.ERROR]


@pytest.fixture
def timeout_ms() -> int:
    """Of the server's patience with peers. Tests of it want less; in the others a busy machine must not use it up."""
    return 600_000


impatient = pytest.mark.parametrize("timeout_ms", [20])


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch, timeout_ms: int) -> AsyncIterator[Server]:
    monkeypatch.setattr(serve_module, "_SWEEP_S", 0.001)
    limits = dict.fromkeys(("write_stall_timeout_ms", "handshake_timeout_ms", "idle_timeout_ms"), timeout_ms)
    limits["connections_max"] = 4
    groups = {"offset": 1, "data": 1}
    settings = {"storage": {"engine": "memory"}, "groups": groups, "listen": "h:1", "limits": limits}
    config = load_config(None, settings)
    server = await Server.start(config, Network.only(MemoryTransport()))
    running = asyncio.create_task(server.run())
    yield server
    await server.stop()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def connect(server: Server, *, hello: bool = True) -> tuple[Connection, FakeStream]:
    FairShare.here().left = TURN  # others have come in turns before
    connection, stream = server._accept(), FakeStream()
    connection.connection_made(stream)
    if hello:
        connection.data_received(HELLO)
        assert stream.frames()[0][0] == FrameType.WELCOME
    return connection, stream


def put(request_id: int, size: int = 10, key: str = "k") -> bytes:
    payload = methods.KV_PUT.encode_request(m.KvPut([m.KvPutItem("n", key, bytes(size))]), group="data-0")
    return encode_frame(FrameType.REQUEST, payload, request_id, methods.KV_PUT.code)


async def test_a_request_is_answered_once(server: Server) -> None:
    connection, stream = connect(server)
    connection.data_received(put(1) + put(2))
    await until(lambda: len(stream.frames()) == 3)
    assert [frame[:2] for frame in stream.frames()[1:]] == [(FrameType.RESPONSE, 1), (FrameType.RESPONSE, 2)]
    connection.connection_lost(None)
    assert server.node.connections == 0


def listing(request_id: int) -> bytes:
    """A page of which every row is looked at and none is wanted: 30 bytes for milliseconds."""
    payload = methods.SESSION_LIST.encode_request(m.SessionList(broker="nobody"), group="data-0")
    return encode_frame(FrameType.REQUEST, payload, request_id, methods.SESSION_LIST.code)


async def test_small_requests_that_cost_much_take_turns(server: Server) -> None:
    # 5 KB of listings held the loop for 1.9 s in one turn, 39 KB for 11.9 s.
    node = server.node
    for start in range(0, 10_000, 1_000):
        items = [m.SessionTakeoverItem("t", f"{start + i}") for i in range(1_000)]
        await node.requests.call(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, items), group="data-0")
    connection, stream = connect(server)
    other, other_stream = connect(server)
    for each, its_stream in ((connection, stream), (other, other_stream)):
        each.data_received(put(1))
        await until(lambda its_stream=its_stream: len(its_stream.frames()) == 2)
    before = node.requests.spent
    connection.data_received(b"".join(listing(i) for i in range(2, 102)))
    assert node.requests.spent - before <= connection_module._SLICE_SPENT + SCAN_ROWS_MAX
    assert len(stream.frames()) <= 4
    get = methods.KV_GET.encode_request(methods.KV_GET.body([m.KvKey("n", "k")]), group="data-0")
    other.data_received(encode_frame(FrameType.REQUEST, get, 2, methods.KV_GET.code))
    await until(lambda: len(other_stream.frames()) == 3)
    assert len(stream.frames()) < 50, "it waits for a turn, not for all of them"
    await until(lambda: len(stream.frames()) == 102)
    for each in (connection, other):
        each.connection_lost(None)


@pytest.mark.parametrize(
    "frame", [encode_frame(FrameType.PING, encode(m.Ping(1))), encode_frame(FrameType.CANCEL, b"", 77)], ids=["p", "c"]
)
async def test_frames_that_ask_for_nothing_are_taken_in_slices(server: Server, frame: bytes) -> None:
    """Thousands of them held up the loop, in one go."""
    connection, stream = connect(server)
    connection.data_received(frame * 1_500 + put(1))
    assert len(stream.frames()) <= 1 + connection_module._SLICE_FRAMES + connection_module._CUT_FRAMES
    assert not stream.reading
    await until(lambda: stream.frames()[-1][:2] == (FrameType.RESPONSE, 1) or stream.errors())
    assert stream.errors() == []
    assert stream.reading


async def test_many_connections_that_ask_for_much_take_turns(server: Server) -> None:
    # 150 connections that each asked for 7 MB, once, held the loop for 2 s: each was the first slice of its own.
    node = server.node
    await put_three_mib(server)
    get = methods.KV_GET.encode_request(methods.KV_GET.body([m.KvKey("n", f"k{i}") for i in range(3)]), group="data-0")
    greedy, modest = [connect(server) for _ in range(3)], connect(server)
    modest[0].data_received(put(1))
    await until(lambda: len(modest[1].frames()) == 2)
    for number in (1, 2):
        before = node.requests.spent
        for connection, _ in greedy:
            connection.data_received(encode_frame(FrameType.REQUEST, get, number, methods.KV_GET.code))
        if number == 1:
            assert [len(stream.frames()) for _, stream in greedy] == [2, 1, 1]
        else:
            assert node.requests.spent == before  # nothing yet: in the turns that follow, one at a time
        small = methods.KV_GET.encode_request(methods.KV_GET.body([m.KvKey("n", "k")]), group="data-0")
        modest[0].data_received(encode_frame(FrameType.REQUEST, small, number + 1, methods.KV_GET.code))
        for _ in range(4):  # turns: the first times it was not known how much the others would ask
            await asyncio.sleep(0)
        assert len(modest[1].frames()) == number + 2
        await until(lambda number=number: all(len(stream.frames()) == number + 1 for _, stream in greedy))
    for connection, _ in (*greedy, modest):
        connection.connection_lost(None)


async def put_three_mib(server: Server) -> None:
    for i in range(3):
        item = m.KvPutItem("n", f"k{i}", bytes(MIB - 100))
        await server.node.requests.call(methods.KV_PUT, m.KvPut([item]), group="data-0")


async def test_replies_that_nobody_reads_are_bounded_for_all_connections_together(server: Server) -> None:
    # 64 bytes of request held 8 MiB: 150 connections took 1.2 GB.
    await put_three_mib(server)
    get = methods.KV_GET.encode_request(methods.KV_GET.body([m.KvKey("n", f"k{i}") for i in range(3)]), group="data-0")
    server._unsent = SendBudget(4 * MIB)
    (first, first_stream), (second, second_stream) = connect(server), connect(server)
    for connection, stream in ((first, first_stream), (second, second_stream)):
        stream.read = False
        connection.data_received(encode_frame(FrameType.REQUEST, get, 1, methods.KV_GET.code))
        await until(lambda stream=stream: len(stream.frames()) == 2)
    assert [len(stream.written) // MIB for stream in (first_stream, second_stream)] == [2, 0]
    assert [(e.name, e.retryable, e.retry_after_ms > 0) for e in second_stream.errors()] == [("overloaded", True, True)]
    second.data_received(put(2))
    await until(lambda: len(second_stream.frames()) == 3)  # what is short goes on
    first_stream.read = True
    second.data_received(encode_frame(FrameType.REQUEST, get, 3, methods.KV_GET.code))
    await until(lambda: len(second_stream.written) // MIB == 2)
    for connection in (first, second):
        connection.connection_lost(None)
    assert server._unsent.held_bytes == 0


async def test_a_long_reply_to_a_write_is_not_said_to_be_undone(server: Server) -> None:
    await put_three_mib(server)
    server._unsent = SendBudget(4 * MIB)
    (first, first_stream), (second, second_stream) = connect(server), connect(server)
    transaction = m.KvTransaction("n", [], [m.KvOperation("done", b"")], [], [f"k{i}" for i in range(3)])
    body, identity = m.KvTransact([transaction]), m.Identity(1, 1, 0)
    frame = partial(encode_frame, FrameType.REQUEST, methods.KV_TRANSACT.encode_request(body, 0, identity, "data-0"))
    get = methods.KV_GET.encode_request(methods.KV_GET.body([m.KvKey("n", f"k{i}") for i in range(3)]), group="data-0")
    first_stream.read = False
    first.data_received(encode_frame(FrameType.REQUEST, get, 1, methods.KV_GET.code))
    await until(lambda: len(first_stream.frames()) == 2)
    second.data_received(frame(1, methods.KV_TRANSACT.code))
    await until(lambda: len(second_stream.frames()) == 2)
    assert [(error.name, error.outcome_known) for error in second_stream.errors()] == [("unknown_outcome", False)]
    first_stream.read = True
    again = m.Identity(1, 1, 0, 5)
    payload = methods.KV_TRANSACT.encode_request(body, 0, again, "data-0")
    second.data_received(encode_frame(FrameType.REQUEST, payload, 2, methods.KV_TRANSACT.code))
    await until(lambda: len(second_stream.frames()) == 3)
    assert len(second_stream.errors()) == 1  # the retry has its reply
    for connection in (first, second):
        connection.connection_lost(None)


async def test_a_peer_that_reads_nothing_is_cut_off_while_others_have_no_room(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsent_module, "_STUCK_S", 0.01)
    await put_three_mib(server)
    server._unsent = SendBudget(3 * MIB)
    connection, stream = connect(server)
    get = methods.KV_GET.encode_request(methods.KV_GET.body([m.KvKey("n", f"k{i}") for i in range(3)]), group="data-0")
    stream.read = False
    connection.data_received(encode_frame(FrameType.REQUEST, get, 1, methods.KV_GET.code))
    await until(lambda: len(stream.frames()) == 2)  # once wrong: on a busy machine the other one was answered first
    other, other_stream = connect(server)
    for number in range(1, 1_000):
        other.data_received(encode_frame(FrameType.REQUEST, get, number, methods.KV_GET.code))
        if len(other_stream.written) > MIB:
            break
        await asyncio.sleep(0.001)
        if stream.aborted and server.node.connections == 2:
            connection.connection_lost(None)
    assert stream.aborted
    assert len(other_stream.written) > MIB
    other.connection_lost(None)


@impatient
async def test_a_closed_connection_whose_peer_does_not_read_is_aborted(server: Server) -> None:
    # Once wrong: the stream waits for ever to deliver what was written before it was closed.
    connection, stream = connect(server)
    connection.data_received(b"\xff" * 64)
    await until(lambda: stream.closed)
    assert [error.name for error in stream.errors()] == ["bad_frame"]
    await until(lambda: stream.aborted)
    connection.connection_lost(None)


@impatient
async def test_a_peer_that_stops_reading_is_aborted(server: Server) -> None:
    connection, stream = connect(server)
    connection.pause_writing()
    await until(lambda: stream.aborted)
    connection.connection_lost(None)


async def test_a_peer_that_reads_again_in_time_goes_on(server: Server) -> None:
    connection, stream = connect(server)
    connection.pause_writing()
    connection.data_received(put(1))  # it was on its way
    assert len(stream.frames()) == 1
    connection.resume_writing()
    await until(lambda: stream.reading and len(stream.frames()) == 2)
    connection.connection_lost(None)


async def test_answers_that_pile_up_unread_end_the_connection(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_STALLED_BYTES_MAX", 100)
    connection, stream = connect(server)
    connection.data_received(put(1))  # the first of a process takes as long as a turn lasts
    before = len(stream.written)
    await until(lambda: len(stream.written) > before)
    FairShare.here().left = TURN
    connection.data_received(b"".join(put(number) for number in range(2, 50)))
    connection.pause_writing()  # the writes were taken, their answers come
    connection.paused_since_s = 1e12  # never too long
    await until(lambda: stream.aborted)
    connection.connection_lost(None)


@impatient
async def test_a_handshake_that_does_not_come_is_closed_with_a_reason(server: Server) -> None:
    connection, stream = connect(server, hello=False)
    await until(lambda: stream.closed)
    assert "no handshake within 20 ms" in stream.errors()[0].message
    connection.connection_lost(None)


async def test_who_holds_up_the_others_with_half_a_frame_is_closed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server._intake.bytes_max = 100_000
    monkeypatch.setattr(intake_module, "_TURN_S", 0.01)
    (first, first_stream), (slow, slow_stream), (other, other_stream) = (connect(server) for _ in range(3))
    first.data_received(put(1, 200_000)[:90_000])
    slow.data_received(put(1, 50_000)[:40_000])
    other.data_received(put(1, 50_000)[:40_000])
    assert [stream.reading for stream in (first_stream, slow_stream, other_stream)] == [True, True, False]
    await until(lambda: slow_stream.closed)  # it was its turn
    assert [error.name for error in slow_stream.errors()] == ["overloaded"]
    slow.connection_lost(None)
    assert other_stream.reading
    monkeypatch.setattr(intake_module, "_UNFINISHED_S_MAX", 0.0)
    fourth, _ = connect(server)
    fourth.data_received(put(1, 50_000)[:40_000])
    await until(lambda: first_stream.closed)
    for connection in (first, other, fourth):
        connection.connection_lost(None)
    assert server._intake.held_bytes == 0


async def test_waiting_for_memory_and_for_the_reader_are_two_reasons_not_to_read(server: Server) -> None:
    server._intake.bytes_max = 100_000
    (first, _), (turn, turn_stream), (second, stream) = (connect(server) for _ in range(3))
    first.data_received(put(1, 200_000)[:90_000])
    turn.data_received(put(1, 50_000)[:40_000])
    second.data_received(put(1, 50_000)[:40_000])
    second.pause_writing()
    second.resume_writing()
    assert not stream.reading  # memory is still short
    second.pause_writing()
    second._stalled_bytes = connection_module._UNREAD_BYTES + 1
    first.connection_lost(None)
    assert not stream.reading  # its replies are still unread
    second.resume_writing()
    assert stream.reading
    assert turn_stream.reading
    turn.connection_lost(None)
    second.connection_lost(None)


async def test_one_connection_too_many_is_told(server: Server) -> None:
    connections = [connect(server) for _ in range(4)]
    extra, stream = connect(server, hello=False)
    extra.data_received(HELLO)
    assert stream.closed
    (error,) = stream.errors()
    assert (error.name, error.retry_after_ms > 0) == ("overloaded", True)
    extra.connection_lost(None)
    assert server.node.connections == 4
    connections.pop()[0].connection_lost(None)
    assert server.node.connections == 3
    connect(server)[0].connection_lost(None)
    for connection, _ in connections:
        connection.connection_lost(None)


async def test_a_lost_connection_cancels_what_was_not_begun_and_hears_no_more(server: Server) -> None:
    connection, stream = connect(server)
    connection.data_received(put(1, key="gone"))
    connection.connection_lost(ConnectionResetError())
    before = stream.written
    await until(lambda: all(driver.idle for driver in server.node.drivers.values()))
    assert stream.written == before
    reply = await server.node.requests.call(methods.KV_GET, methods.KV_GET.body([m.KvKey("n", "gone")]), group="data-0")
    assert reply.found == [None]
    assert server.node.status().in_flight_bytes == 0


async def test_draining_tells_who_is_connected_and_who_comes(server: Server) -> None:
    connection, stream = connect(server)
    server.node.requests.drain()
    connection.goaway("the node is shutting down")
    late, late_stream = connect(server)
    assert [frame[0] for frame in late_stream.frames()] == [FrameType.WELCOME, FrameType.GOAWAY]
    connection.data_received(put(1))
    await until(lambda: len(stream.frames()) == 3)
    assert stream.frames()[1][0] == FrameType.GOAWAY
    assert [error.name for error in stream.errors()] == ["draining"]
    connection.connection_lost(None)
    late.connection_lost(None)


# --- watches ----------------------------------------------------------------------------------------------------


def watching(request_id: int, **opening: Any) -> bytes:
    payload = methods.WATCH_OPEN.encode_request(WatchOpen([WatchFilter("kv")], **opening), group="data-0")
    return encode_frame(FrameType.REQUEST, payload, request_id, methods.WATCH_OPEN.code)


def grant(request_id: int, size: int) -> bytes:
    return encode_frame(FrameType.CREDIT, encode(WatchCredit(size)), request_id)


def events(stream: FakeStream, request_id: int) -> list[WatchEvents]:
    return [
        msgspec.msgpack.decode(payload, type=WatchEvents)
        for kind, number, payload in stream.frames()
        if kind == FrameType.EVENT and number == request_id
    ]


def reported(stream: FakeStream, request_id: int) -> int:
    return sum(len(one.changes) for event in events(stream, request_id) for one in event.entries)


async def write(server: Server, count: int, size: int = 10) -> None:
    for i in range(count):
        item = m.KvPutItem("n", f"k{i}", bytes(size))
        await server.node.requests.call(methods.KV_PUT, m.KvPut([item]), group="data-0")


async def test_a_watch_is_a_request_whose_answer_begins_a_stream(server: Server) -> None:
    connection, stream = connect(server)
    connection.data_received(watching(1) + watching(2))
    await until(lambda: len(stream.frames()) == 3)
    assert [frame[:2] for frame in stream.frames()[1:]] == [(FrameType.RESPONSE, 1), (FrameType.RESPONSE, 2)]
    assert connection._session.unanswered_bytes == 0
    await write(server, 3)
    await until(lambda: reported(stream, 1) == reported(stream, 2) == 3)
    connection.data_received(encode_frame(FrameType.CANCEL, b"", 1) + put(3))
    await until(lambda: reported(stream, 2) == 4)
    assert reported(stream, 1) == 3
    assert server.node.watches.count == 1
    connection.data_received(watching(1))  # the id is free again
    await until(lambda: server.node.watches.count == 2)
    connection.connection_lost(None)
    assert server.node.watches.count == 0


async def test_a_refused_watch_is_an_error_of_its_request(server: Server) -> None:
    connection, stream = connect(server)
    payload = methods.WATCH_OPEN.encode_request(WatchOpen([]), group="data-0")
    connection.data_received(encode_frame(FrameType.REQUEST, payload, 1, methods.WATCH_OPEN.code) + put(2))
    await until(lambda: len(stream.frames()) == 3)
    assert [error.name for error in stream.errors()] == ["invalid_request"]
    connection.data_received(watching(1) + encode_frame(FrameType.CANCEL, b"", 1))
    await until(lambda: server.node.watches.count == 0)
    connection.data_received(watching(5, position=1 << 40))
    await until(lambda: server.node.watches.count == 1)
    connection.data_received(encode_frame(FrameType.CANCEL, b"", 5))
    await until(lambda: len(stream.errors()) == 2)
    assert [error.name for error in stream.errors()] == ["invalid_request", "cancelled"]
    assert server.node.watches.count == 0
    connection.connection_lost(None)


async def test_credit_is_of_one_stream(server: Server) -> None:
    await write(server, 20, 1_000)
    connection, stream = connect(server)
    connection.data_received(watching(1, position=0, credit_bytes=0) + watching(2, position=0))
    await until(lambda: reported(stream, 2) == 20)
    assert not events(stream, 1)
    connection.data_received(grant(1, 5_000))
    await until(lambda: events(stream, 1))
    first = reported(stream, 1)
    assert 0 < first < 10
    connection.data_received(grant(1, 100_000) + grant(77, 5))  # the second is of no stream
    await until(lambda: reported(stream, 1) == 20)
    connection.data_received(encode_frame(FrameType.CREDIT, b"\xc1", 1))
    assert [error.name for error in stream.errors()] == ["bad_frame"]
    assert stream.closed
    connection.connection_lost(None)


async def test_a_peer_that_does_not_read_is_told_later(server: Server) -> None:
    await write(server, 3)
    connection, stream = connect(server)
    connection.data_received(watching(1))
    connection.pause_writing()
    await write(server, 10, 100_000)
    await asyncio.sleep(0.005)
    assert reported(stream, 1) == 0
    assert server.node.watches.held_bytes <= 400_000
    connection.resume_writing()
    await until(lambda: reported(stream, 1) > 0 or events(stream, 1))
    connection.data_received(grant(1, 10_000_000))
    await until(lambda: reported(stream, 1) == 10)
    connection.connection_lost(None)


async def test_events_that_nobody_reads_are_bounded_for_all_connections_together(server: Server) -> None:
    await write(server, 100, 30_000)
    server._unsent = SendBudget(400_000)
    connections = [connect(server) for _ in range(4)]
    for connection, stream in connections:
        stream.read = False
        connection.data_received(watching(1, snapshot=b"\xff" * 128, credit_bytes=1 << 30))
    await asyncio.sleep(0.05)
    assert server._unsent.held_bytes < 400_000 + 2 * FRAME_BYTES
    for _, stream in connections:
        stream.read = True
    server._unsent.review(0.0)
    done = lambda stream: any(event.snapshot_done for event in events(stream, 1))  # noqa: E731
    await until(lambda: server._unsent.review(0.0) or all(done(stream) for _, stream in connections))
    for connection, stream in connections:
        rows = [key for event in events(stream, 1) for rows in event.rows for key in rows.keys]
        assert len(rows) == len(set(rows)) == 100
        connection.connection_lost(None)


async def test_watches_of_a_connection_are_bounded(server: Server) -> None:
    connection, stream = connect(server)
    connection.limits = msgspec.structs.replace(connection.limits, connection_watch_streams_max=2)
    connection.data_received(watching(1) + watching(2) + watching(3))
    await until(lambda: stream.errors())
    assert [error.name for error in stream.errors()] == ["overloaded"]
    assert server.node.watches.count == 2
    connection.connection_lost(None)


async def test_a_connection_that_is_sent_away_ends_its_watches(server: Server) -> None:
    connection, stream = connect(server)
    connection.data_received(watching(1))
    await write(server, 2)
    connection.goaway("the keys are used up")
    assert [frame[0] for frame in stream.frames()[-2:]] == [FrameType.GOAWAY, FrameType.EVENT]
    ended = events(stream, 1)[-1].ended
    assert ended is not None
    assert ended.message == "the keys are used up"
    assert reported(stream, 1) == 2
    assert server.node.watches.count == 0
    connection.connection_lost(None)
