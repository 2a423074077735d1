"""Peers that break the protocol, flood, stall or hoard, over TCP: a typed error or a closed connection, bounded memory,
and a good client is served all the while."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from e2e_server import SMALL, Server, rss_bytes

from metad_client import KvPutItem, blocking
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.connection.frame import FrameDecoder, FrameType, encode_frame
from metad_wire.connection.session import decode_error
from metad_wire.errors import MetadError
from metad_wire.methods import encode
from waiting import WAIT_S, wait_until

MIB = 1024 * 1024
CONNECTIONS_MAX = 60
CONFIG = f"""
log_level = "warning"
[limits]
connections_max = {CONNECTIONS_MAX}
connection_window_bytes = {16 * MIB}
in_flight_bytes_max = {32 * MIB}
unfinished_bytes_max = {16 * MIB}
handshake_timeout_ms = 400
idle_timeout_ms = 2500
write_stall_timeout_ms = 700
[groups]
offset = 1
data = 1
{SMALL}
"""
GROWTH_BYTES_MAX = 96 * MIB
STARVED_S = 30.0
"""Ten times what the limits above may keep anybody waiting: a busy machine is no attack."""
# What is freed is the system's again at once: the bound is for what the server holds, not for what malloc keeps.
LET_GO = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
HELLO = encode_frame(FrameType.HELLO, encode(m.Hello("metad", 1, 1)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("hostile") / "d", config=CONFIG, environment=LET_GO) as server:
        server.ready()
        with blocking.connect(server.url) as client:
            for i in range(7):
                client.kv.put("large", f"k{i}", bytes(MIB - 100))
        yield server
        assert server.terminate() == 0
        server.quiet()  # no stack trace, whatever was thrown at it


class Good:
    """A client that works without a pause, in a thread of its own."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.done = 0
        self.slowest_s = 0.0
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with blocking.connect(self.server.url) as client:
                while not self._stop.is_set():
                    begun_s = time.monotonic()
                    client.kv.put("good", "k", b"%d" % self.done)
                    record = client.kv.get("good", "k")
                    assert record is not None
                    assert record.value == b"%d" % self.done
                    self.slowest_s = max(self.slowest_s, time.monotonic() - begun_s)
                    self.done += 1
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.error = error

    def __enter__(self) -> Good:
        self._thread.start()
        wait_until(lambda: self.done or self.error, "the good client's first call")
        return self

    def __exit__(self, *_: object) -> None:
        before = self.done
        wait_until(lambda: self.done > before + 3 or self.error, "the good client after the attack")
        self._stop.set()
        self._thread.join()
        assert self.error is None, self.error


@pytest.fixture(autouse=True)
def good(server: Server) -> Iterator[Good]:
    """Every test has a witness."""
    with Good(server) as good:
        yield good
    assert good.slowest_s < STARVED_S, "the good client starved"


class Peer:
    """A socket that says what it likes."""

    def __init__(self, server: Server, *, hello: bool = True) -> None:
        self.socket = socket.create_connection(server.address)
        self.socket.settimeout(WAIT_S)
        self.decoder = FrameDecoder()
        if hello:
            self.send(HELLO)
            assert self.next() is not None

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def try_send(self, data: bytes) -> bool:
        """False once the server no longer takes it."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def next(self) -> tuple[int, int, bytes] | None:
        """The next frame, None at the end of the stream."""
        while (frame := self.decoder.next()) is None:
            try:
                data = self.socket.recv(256 * 1024)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.decoder.feed(data)
        return frame.type, frame.request_id, frame.payload

    def rest(self) -> list[MetadError]:
        """Reads to the end; the connection errors that came."""
        errors: list[MetadError] = []
        while (frame := self.next()) is not None:
            if frame[0] == FrameType.ERROR and frame[1] == 0:
                errors.append(decode_error(frame[2]))
        return errors

    def request(self, request_id: int, method: int, payload: bytes) -> None:
        self.send(encode_frame(FrameType.REQUEST, payload, request_id, method))


def told(peer: Peer, *names: str) -> None:
    """The connection ended, and if it could still be said why, it was."""
    assert [error.name for error in peer.rest()] in ([], *([name] for name in names))


def put(size: int = 10, items: int = 1) -> bytes:
    return methods.KV_PUT.encode_request(m.KvPut([m.KvPutItem("hostile", "k", bytes(size))] * items), group="data-0")


GET_LARGE = methods.KV_GET.encode_request(
    methods.KV_GET.body([m.KvKey("large", f"k{i}") for i in range(3)]), group="data-0"
)


# --- broken bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"GET / HTTP/1.1\r\nHost: metad\r\n\r\n", "bad_frame"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40), "bad_frame"),  # a TLS hello
        (b"\0" * 64, "bad_frame"),
        (b"\xff" * 64, "bad_frame"),
        (struct.pack(">IBBHQ", 2**32 - 1, FrameType.HELLO, 0, 0, 0), "frame_too_large"),
        (struct.pack(">IBBHQ", 20_000, FrameType.HELLO, 0, 0, 0), "frame_too_large"),
        (encode_frame(FrameType.HELLO, b"\xc1"), "bad_frame"),
        (encode_frame(FrameType.HELLO, encode(m.Hello("other", 1, 1))), "handshake_failed"),
        (encode_frame(FrameType.HELLO, encode(m.Hello("metad", 7, 9))), "handshake_failed"),
        (encode_frame(FrameType.REQUEST, b"", 1, 1), "unexpected_frame"),
        (HELLO + HELLO, "unexpected_frame"),
    ],
)
def test_a_wrong_beginning(server: Server, data: bytes, name: str) -> None:
    with Peer(server, hello=False) as peer:
        peer.send(data)
        assert [error.name for error in peer.rest()] == [name]


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (struct.pack(">IBBHQ", 16 * MIB, FrameType.REQUEST, 0, 0x302, 1), "frame_too_large"),
        (struct.pack(">IBBHQ", 3, FrameType.REQUEST, 0, 0x302, 1), "bad_frame"),
        (struct.pack(">IBBHQ", 12, 99, 0, 0, 1), "bad_frame"),
        (encode_frame(FrameType.REQUEST, put(), 0, 0x302), "unexpected_frame"),
        (encode_frame(FrameType.REQUEST, put(), 7, 0x302) * 2, "unexpected_frame"),
        (encode_frame(FrameType.RESPONSE, b"", 1), "unexpected_frame"),
        (encode_frame(FrameType.WELCOME, b""), "unexpected_frame"),
        (encode_frame(FrameType.GOAWAY, b""), "unexpected_frame"),
    ],
)
def test_a_wrong_frame_later(server: Server, data: bytes, name: str) -> None:
    with Peer(server) as peer:
        peer.send(data)
        told(peer, name)


def test_an_unknown_method_and_wrong_bodies_cost_one_request_each(server: Server) -> None:
    with Peer(server) as peer:
        cases = [(0x7777, b"", "unknown_method"), (0, b"", "unknown_method")]
        bodies = (
            b"",
            b"\xc1",
            b"\x90",
            b"\x93\x00\xc0\xc0",
            b"\x93\x00\xc0\x91\x91\x93\x01\x02\x03",
            b"\xdd\xff\xff\xff\xff",
        )
        cases += [(0x302, body, "invalid_request") for body in bodies]
        cases += [(0x302, b"\x93\x00\xc0\x91\xdc\xff\xff" + b"\x90" * 65_535, "invalid_request")]
        cases += [(0x302, b"\x91" * 100_000, "invalid_request")]  # deep nesting
        for number, (method, body, _) in enumerate(cases, 1):
            peer.request(number, method, body)
        answers: dict[int, str] = {}
        while len(answers) < len(cases):
            frame = peer.next()
            assert frame is not None
            assert frame[0] == FrameType.ERROR
            answers[frame[1]] = decode_error(frame[2]).name
        assert answers == {number: name for number, (_, _, name) in enumerate(cases, 1)}
        peer.request(
            99, methods.KV_GET.code, methods.KV_GET.encode_request(methods.KV_GET.body([]), group="data-0")
        )  # it goes on
        assert peer.next() == (FrameType.RESPONSE, 99, encode(methods.KV_GET.reply([])))


def test_one_byte_at_a_time_is_slow_and_no_fault(server: Server) -> None:
    with Peer(server, hello=False) as peer:
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        frames = HELLO + encode_frame(FrameType.REQUEST, put(50), 1, methods.KV_PUT.code)
        for byte in frames:
            peer.send(bytes((byte,)))
        assert [frame[0] for frame in (peer.next(), peer.next()) if frame] == [FrameType.WELCOME, FrameType.RESPONSE]


# --- silence ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beginning", [b"", HELLO[:1], HELLO[:-1]])
def test_a_handshake_that_does_not_come_is_given_up(server: Server, beginning: bytes) -> None:
    with Peer(server, hello=False) as peer:
        peer.send(beginning)
        (error,) = peer.rest()
        assert "no handshake within 400 ms" in error.message


def test_half_a_frame_and_then_silence_is_given_up(server: Server) -> None:
    with Peer(server) as peer:
        frame = encode_frame(FrameType.REQUEST, put(100_000), 1, methods.KV_PUT.code)
        peer.send(frame[:50_000])
        (error,) = peer.rest()
        assert "the client was silent for 2500 ms" in error.message


def test_a_half_closed_connection_ends(server: Server) -> None:
    with Peer(server) as peer:
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.rest() == []


# --- too much --------------------------------------------------------------------------------------------


class Memory:
    """Highest resident memory of the server while the block runs, over that at its beginning."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.before = self.highest = rss_bytes(server.process)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.highest = max(self.highest, rss_bytes(self.server.process))

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def growth(self) -> int:
        return self.highest - self.before


def test_more_requests_than_the_window_end_the_connection(server: Server) -> None:
    with Peer(server) as peer, Memory(server) as memory:
        frame = put(MIB - 100)
        # The answers are read only at the end, so a server that took them all would have them in flight.
        for number in range(1, 200):
            if not peer.try_send(encode_frame(FrameType.REQUEST, frame, number, methods.KV_PUT.code)):
                break
        told(peer, "credit_exceeded", "slow_reader")  # one that keeps up has answered them, and hears no more
    assert memory.growth < GROWTH_BYTES_MAX


def test_a_slow_reader_is_held_back_and_then_cut_off(server: Server) -> None:
    with contextlib.ExitStack() as stack, Memory(server) as memory:
        peers = [stack.enter_context(Peer(server)) for _ in range(3)]
        for peer in peers:
            for number in range(1, 300):  # 2 GiB of replies
                peer.try_send(encode_frame(FrameType.REQUEST, GET_LARGE, number, methods.KV_GET.code))
        for peer in peers:
            read = 0
            while (frame := peer.next()) is not None:
                read += len(frame[2])
                if read > 200 * MIB:
                    break
            assert read < 200 * MIB or frame is not None
    assert memory.growth < GROWTH_BYTES_MAX, f"{memory.growth / MIB:.0f} MiB"


def test_a_reader_that_never_reads_is_cut_off(server: Server) -> None:
    aborted = len(server.events("client_aborted"))
    with Peer(server) as peer, Memory(server) as memory:
        for number in range(1, 300):
            peer.try_send(encode_frame(FrameType.REQUEST, GET_LARGE, number, methods.KV_GET.code))
        wait_until(lambda: len(server.events("client_aborted")) > aborted, "abort")
        while peer.next() is not None:  # what the kernels hold, and then the end
            pass
    assert memory.growth < GROWTH_BYTES_MAX, f"{memory.growth / MIB:.0f} MiB"


def test_a_closed_connection_does_not_wait_for_its_reader_for_ever(server: Server) -> None:
    # Once wrong: with less unread than makes the server pause, a connection that was told to go stayed.
    get = methods.KV_GET.encode_request(methods.KV_GET.body([m.KvKey("large", "k0")] * 3), group="data-0")
    with blocking.connect(server.url) as client:
        before = client.status().connections
        with Peer(server) as peer:
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for number in (1, 2):  # the kernels hold one of them
                peer.request(number, methods.KV_GET.code, get)
            wait_until(lambda: client.status().connections > before, "the connection")
            peer.try_send(b"\xff" * 64)
            wait_until(lambda: client.status().connections <= before, "the end of the connection")


def test_pings_without_reading(server: Server) -> None:
    with Peer(server) as peer, Memory(server) as memory:
        pings = encode_frame(FrameType.PING, encode(m.Ping(1))) * 10_000
        peer.socket.settimeout(0.5)
        sent = 0
        with contextlib.suppress(OSError):
            while sent < 200 * MIB:
                sent += peer.socket.send(pings)
        assert sent < 200 * MIB, "the server read on although its pongs were not read"
    assert memory.growth < GROWTH_BYTES_MAX


def test_a_storm_of_cancels(server: Server) -> None:
    with Peer(server) as peer, Memory(server) as memory:
        cancel = encode_frame(FrameType.CANCEL, b"", 12345)
        for _ in range(20):
            peer.send(cancel * 10_000)
        for number in range(1, 2_001):
            peer.send(encode_frame(FrameType.REQUEST, put(), number, methods.KV_PUT.code))
            peer.send(encode_frame(FrameType.CANCEL, b"", number) * 3)
        answered = set()
        while len(answered) < 2_000:
            frame = peer.next()
            assert frame is not None
            assert frame[0] in (FrameType.RESPONSE, FrameType.ERROR)
            assert frame[1] not in answered
            answered.add(frame[1])
    assert memory.growth < GROWTH_BYTES_MAX


def test_tiny_items_do_not_become_gigabytes(server: Server) -> None:
    request = methods.OFFSET_COMMIT.encode_request(
        m.OffsetCommit([m.OffsetCommitItem("", "", "", 0, 0)] * m.BATCH_ITEMS_MAX), group="offset-0"
    )
    with contextlib.ExitStack() as stack, Memory(server) as memory:
        peers = [stack.enter_context(Peer(server)) for _ in range(4)]
        aborted = len(server.events("client_aborted"))
        for number in range(1, 401):
            frame = encode_frame(FrameType.REQUEST, request, number, methods.OFFSET_COMMIT.code)
            for peer in peers:
                peer.try_send(frame)
        for peer in peers:
            answers = list(itertools.takewhile(bool, (peer.next() for _ in range(400))))
            errors = [
                (frame[1], decode_error(frame[2]).name) for frame in answers if frame and frame[0] == FrameType.ERROR
            ]
            silent = (0, "slow_reader") in errors  # on a slow machine the others were read for too long before it
            assert {name for request_id, name in errors if request_id} <= {"overloaded"}
            assert {name for request_id, name in errors if not request_id} <= {"slow_reader"}
            if len(answers) < 400 and not silent:  # a machine that is slow to send them reads too late
                wait_until(lambda: len(server.events("client_aborted")) > aborted, "abort")
    assert memory.growth < GROWTH_BYTES_MAX, f"{memory.growth / MIB:.0f} MiB"


def test_unfinished_frames_on_many_connections(server: Server) -> None:
    # 40 times 12 MiB would be half a gigabyte; each alone is within its frame limit.
    frame = encode_frame(FrameType.REQUEST, bytes(15 * MIB), 1, methods.KV_PUT.code)[: 12 * MIB]
    with contextlib.ExitStack() as stack, Memory(server) as memory:
        peers = [stack.enter_context(Peer(server)) for _ in range(40)]
        threads = [threading.Thread(target=peer.try_send, args=(frame,)) for peer in peers]
        for thread in threads:
            thread.start()
        for peer in peers:
            told(peer, "overloaded", "slow_reader")
        for thread in threads:
            thread.join()
    wait_until(
        lambda: any("the rest of a frame" in line["detail"] for line in server.events("client_refused")),
        "the line, which is written beside the loop",
    )
    assert memory.growth < GROWTH_BYTES_MAX, f"{memory.growth / MIB:.0f} MiB"


def test_connections_over_the_limit_are_told_and_closed(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        peers = []
        refused = welcomed = 0
        for _ in range(CONNECTIONS_MAX + 30):  # each greets at once: it has 400 ms
            peers.append(stack.enter_context(Peer(server, hello=False)))
            peers[-1].try_send(HELLO)
        for peer in peers:
            frame = peer.next()
            if frame is not None and frame[0] == FrameType.WELCOME:
                welcomed += 1
            else:
                refused += 1
                assert frame is None or decode_error(frame[2]).name == "overloaded"
        assert welcomed == CONNECTIONS_MAX - 1  # and the good client
        assert refused == 31
    wait_until(lambda: _connects(server), "a place after they have gone")


def _connects(server: Server) -> bool:
    with Peer(server, hello=False) as peer:
        peer.send(HELLO)
        frame = peer.next()
        return frame is not None and frame[0] == FrameType.WELCOME


def test_connecting_and_going_in_a_hurry(server: Server) -> None:
    for number in range(300):
        with Peer(server, hello=False) as peer:
            if number % 3:
                peer.try_send(HELLO + encode_frame(FrameType.REQUEST, put(), 1, methods.KV_PUT.code))
            if number % 2:
                peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST
    wait_until(lambda: _connects(server), "a place after they have gone")


def test_a_garbled_stream_of_good_frames(server: Server) -> None:
    good = b"".join(encode_frame(FrameType.REQUEST, put(20), n, methods.KV_PUT.code) for n in range(1, 40))
    for at in range(0, len(good), 97):
        data = bytearray(good)
        data[at] ^= 0x5A
        with Peer(server) as peer:
            peer.try_send(bytes(data))
            peer.socket.shutdown(socket.SHUT_WR)
            peer.rest()


def test_a_batch_whose_answers_are_errors_keeps_the_reply_small(server: Server) -> None:
    with Peer(server) as peer, Memory(server) as memory:
        conflicts = m.KvPut([m.KvPutItem("absent", "k0", b"", 77)] * m.BATCH_ITEMS_MAX)
        payload = methods.KV_PUT.encode_request(conflicts, group="data-0")
        for number in range(1, 101):
            peer.request(number, methods.KV_PUT.code, payload)
            frame = peer.next()
            assert frame is not None
            assert len(frame[2]) < MIB
    assert memory.growth < GROWTH_BYTES_MAX


def test_the_good_data_is_untouched(server: Server) -> None:
    with blocking.connect(server.url) as client:
        assert [record.version for record in client.kv.scan("large")] == [1] * 7
        client.kv.put_many([KvPutItem("after", f"k{i}", b"v") for i in range(1000)]).raise_for_error()
