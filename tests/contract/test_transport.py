"""What every transport promises (metad_wire.transport), held by each implementation.

To hold another one to it (QUIC), add a row to TRANSPORTS.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from metad_perf.attack import sites as certificates
from metad_wire.transport import Listener, Stream, Transport, join_endpoint, split_endpoint
from metad_wire.transport.pace import Pace
from metad_wire.transport.quic import QuicTransport
from metad_wire.transport.tcp import TcpTransport
from metad_wire.transport.tls import TlsTransport
from sim.memory import MemoryTransport
from sim.nodes.links import SimNetwork
from sim.nodes.loop import VirtualLoop

uvloop = pytest.importorskip("uvloop", reason="the TCP transport is also held to the contract on uvloop's loop")

TIMEOUT_S = 120.0
TRANSPORTS: dict[str, tuple[Callable[[], Transport], Callable[[], asyncio.AbstractEventLoop]]] = {
    "memory": (MemoryTransport, asyncio.new_event_loop),
    "simulated": (lambda: SimNetwork(VirtualLoop.running()).transport("127.0.0.1"), VirtualLoop),
    "tcp": (TcpTransport, asyncio.new_event_loop),
    "tcp-uvloop": (TcpTransport, uvloop.new_event_loop),
    "tcp-paced": (lambda: TcpTransport(Pace(200, 4)), asyncio.new_event_loop),
    "tcp-paced-uvloop": (lambda: TcpTransport(Pace(200, 4)), uvloop.new_event_loop),
    "tls": (lambda: TlsTransport(TcpTransport(), certificates.node()), asyncio.new_event_loop),
    "tls-uvloop": (lambda: TlsTransport(TcpTransport(), certificates.node()), uvloop.new_event_loop),
    "quic": (lambda: QuicTransport(certificates.node()), asyncio.new_event_loop),
    "quic-uvloop": (lambda: QuicTransport(certificates.node()), uvloop.new_event_loop),
    "quic-paced": (lambda: QuicTransport(certificates.node(), pace=Pace(200, 4)), asyncio.new_event_loop),
    "tls-memory": (lambda: TlsTransport(MemoryTransport(), certificates.node()), asyncio.new_event_loop),
}


def contract(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a coroutine of (network, …) or (transport, …) a test of every transport, each on its own kind of loop."""
    subject, *others = inspect.signature(test).parameters.values()

    def held_by(kind: str, **arguments: Any) -> None:
        new_transport, new_loop = TRANSPORTS[kind]

        async def run() -> None:
            if subject.name == "transport":
                await test(new_transport(), **arguments)
                return
            async with connected(new_transport()) as network:
                await test(network, **arguments)

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(run())

    held_by.__name__, held_by.__doc__ = test.__name__, test.__doc__
    kind = inspect.Parameter("kind", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    held_by.__signature__ = inspect.Signature([kind, *others])  # type: ignore[attr-defined]
    return pytest.mark.parametrize("kind", TRANSPORTS)(held_by)


class Recorder:
    """A handler that writes down what it is told, and wakes whoever waits for it."""

    def __init__(self) -> None:
        self.stream: Stream
        self.received = bytearray()
        self.calls: list[str] = []  # all but data_received, in order
        self.lost_with: Exception | None = None
        self.on_data: Callable[[bytes], None] | None = None
        self._changed = asyncio.Event()

    def connection_made(self, stream: Any) -> None:
        self.stream = stream
        self._note("made")

    def data_received(self, data: bytes) -> None:
        assert self.calls[0] == "made"
        assert "eof" not in self.calls
        assert "lost" not in self.calls
        self.received += data
        self._changed.set()
        if self.on_data is not None:
            self.on_data(data)

    def eof_received(self) -> None:
        self._note("eof")

    def pause_writing(self) -> None:
        self._note("pause")

    def resume_writing(self) -> None:
        self._note("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost_with = exc
        self._note("lost")

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is looked at again after each call from the transport."""
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_received(self, count: int) -> None:
        await self.until(lambda: len(self.received) >= count)

    async def until_called(self, call: str) -> None:
        await self.until(lambda: call in self.calls)


class Network:
    """A listener, and the pairs of ends that are dialled to it."""

    def __init__(self, transport: Transport, listener: Listener, accepted: asyncio.Queue[Recorder]) -> None:
        self.transport = transport
        self.listener = listener
        self._accepted = accepted
        self.ends: list[Recorder] = []

    async def connect(self) -> tuple[Recorder, Recorder]:
        """(the end that dialled, the end that accepted)"""
        host, port = split_endpoint(self.listener.endpoint)
        near = await self.transport.dial(host, port, Recorder, TIMEOUT_S)
        async with asyncio.timeout(TIMEOUT_S):
            far = await self._accepted.get()
        await far.until_called("made")
        self.ends += [near, far]
        return near, far


async def listen(transport: Transport) -> Network:
    accepted: asyncio.Queue[Recorder] = asyncio.Queue()

    def accept() -> Recorder:
        recorder = Recorder()
        accepted.put_nowait(recorder)
        return recorder

    return Network(transport, await transport.listen("127.0.0.1", 0, accept), accepted)


@contextlib.asynccontextmanager
async def connected(transport: Transport) -> AsyncIterator[Network]:
    """A network, whose ends have been told of their loss exactly once, and last, when it is left."""
    network = await listen(transport)
    yield network
    await network.listener.close()
    for end in network.ends:
        end.stream.abort()
    for end in network.ends:
        await end.until_called("lost")
        assert end.calls.count("lost") == 1
        assert end.calls.count("eof") <= 1
        assert end.calls[-1] == "lost"


async def pass_through(network: Network) -> None:
    """Return when everything that was on its way has been delivered: a byte makes the round on a new pair, and
    the loop turns over, several times."""
    for _ in range(5):
        near, far = await network.connect()
        near.stream.write(b"?")
        await far.until_received(1)
        far.stream.write(b"!")
        await near.until_received(1)


# --- bytes -----------------------------------------------------------------------------------------------


@contract
async def test_bytes_arrive_in_order_and_whole_both_ways(network: Network) -> None:
    near, far = await network.connect()
    rng = random.Random(11)
    pieces = [rng.randbytes(rng.choice((1, 2, 100, 5_000))) for _ in range(500)]
    whole = b"".join(pieces)
    for piece in pieces:
        near.stream.write(piece)
        far.stream.write(piece)
    await far.until_received(len(whole))
    await near.until_received(len(whole))
    assert far.received == whole
    assert near.received == whole


@contract
async def test_a_big_transfer_is_cut_but_whole(network: Network) -> None:
    near, far = await network.connect()
    sizes: list[int] = []
    far.on_data = lambda data: sizes.append(len(data))
    whole = random.Random(12).randbytes(8 * 1024 * 1024)
    near.stream.write(whole)
    await far.until_received(len(whole))
    assert far.received == whole
    assert max(sizes) <= 256 * 1024  # what a decoder may be asked to hold beside its frame


@contract
async def test_what_is_written_on_arrival_is_answered_without_recursion(network: Network) -> None:
    near, far = await network.connect()
    depth = most = 0

    def bounce(end: Recorder) -> Callable[[bytes], None]:
        def on_data(data: bytes) -> None:
            nonlocal depth, most
            depth += 1
            most = max(most, depth)
            if len(end.received) < 2_000:
                end.stream.write(data)
            depth -= 1

        return on_data

    near.on_data, far.on_data = bounce(near), bounce(far)
    near.stream.write(b"x")
    await near.until_received(1_999)
    assert most == 1


@contract
async def test_an_empty_write_is_nothing(network: Network) -> None:
    near, far = await network.connect()
    near.stream.write(b"")
    near.stream.write(b"x")
    await far.until_received(1)
    assert far.received == b"x"


@contract
async def test_bytes_like_objects_may_change_after_the_write(network: Network) -> None:
    near, far = await network.connect()
    buffer = bytearray(b"before")
    near.stream.write(buffer)  # type: ignore[arg-type]
    buffer[:] = b"behind"
    await far.until_received(6)
    assert far.received == b"before"


@contract
async def test_connections_do_not_mix(network: Network) -> None:
    pairs = [await network.connect() for _ in range(10)]
    for index, (near, far) in enumerate(pairs):
        near.stream.write(b"%d" % index)
        far.stream.write(b"%d" % (9 - index))
    for index, (near, far) in enumerate(pairs):
        await far.until_received(1)
        await near.until_received(1)
        assert (far.received, near.received) == (b"%d" % index, b"%d" % (9 - index))


# --- back-pressure ---------------------------------------------------------------------------------------


@contract
async def test_a_paused_reader_is_spared_until_it_resumes(network: Network) -> None:
    near, far = await network.connect()
    far.stream.pause_reading()
    near.stream.write(b"x" * 100_000)
    await pass_through(network)
    early = len(far.received)
    await pass_through(network)
    assert len(far.received) == early, "what was on its way came; nothing more does"
    far.stream.resume_reading()
    await far.until_received(100_000)


@contract
async def test_a_reader_that_pauses_at_every_chunk_gets_one_at_a_time(network: Network) -> None:
    near, far = await network.connect()
    far.on_data = lambda _: far.stream.pause_reading()
    total = 3 * 1024 * 1024
    near.stream.write(bytes(total))
    turns = 0
    await far.until_received(1)
    while len(far.received) < total:
        before = len(far.received)
        far.stream.resume_reading()
        await far.until(lambda before=before: len(far.received) > before)  # type: ignore[misc]
        assert len(far.received) - before <= 256 * 1024
        turns += 1
    assert turns >= total // (256 * 1024) - 1


@contract
async def test_a_writer_is_told_to_pause_and_to_go_on(network: Network) -> None:
    """A handler that stops writing when told is buffered within a bound, however long its reader sleeps."""
    near, far = await network.connect()
    far.stream.pause_reading()
    chunk, sent = bytes(64 * 1024), 0
    for _ in range(2_000):
        near.stream.write(chunk)
        sent += len(chunk)
        if "pause" in near.calls:
            break
        if sent % (1024 * 1024) == 0:
            await pass_through(network)  # the kernel's own buffers fill first
    assert near.calls == ["made", "pause"]
    await pass_through(network)
    assert near.calls == ["made", "pause"]
    assert 0 < near.stream.get_write_buffer_size() <= 1.1 * sent  # sealed, it is a little more
    assert len(far.received) <= 256 * 1024
    far.stream.resume_reading()
    await near.until_called("resume")
    await far.until_received(sent)
    async with asyncio.timeout(120):
        while near.stream.get_write_buffer_size():  # noqa: ASYNC110 - the last acknowledgement has no event
            await asyncio.sleep(0.001)
    assert near.calls == ["made", "pause", "resume"]
    assert len(far.received) == sent


@contract
async def test_a_writer_that_goes_on_regardless_is_not_cut(network: Network) -> None:
    near, far = await network.connect()
    far.stream.pause_reading()
    whole = random.Random(13).randbytes(16 * 1024 * 1024)
    for start in range(0, len(whole), 1024 * 1024):
        near.stream.write(whole[start : start + 1024 * 1024])
    await near.until_called("pause")
    far.stream.resume_reading()
    await far.until_received(len(whole))
    assert far.received == whole
    await near.until_called("resume")
    assert near.calls == ["made", "pause", "resume"]


# --- the end ---------------------------------------------------------------------------------------------


@contract
async def test_close_delivers_what_was_written_then_ends_both_sides(network: Network) -> None:
    near, far = await network.connect()
    whole = random.Random(14).randbytes(3 * 1024 * 1024)
    near.stream.write(whole)
    near.stream.close()
    near.stream.write(b"too late")
    await far.until_called("lost")
    await near.until_called("lost")
    assert far.received == whole
    assert [call for call in far.calls if call not in ("pause", "resume")] == ["made", "eof", "lost"]
    assert near.lost_with is None
    assert "eof" not in near.calls


@contract
async def test_close_is_heard_by_a_reader_that_resumes_later(network: Network) -> None:
    near, far = await network.connect()
    far.stream.pause_reading()
    near.stream.write(b"farewell")
    near.stream.close()
    await near.until_called("lost")
    await pass_through(network)
    assert "lost" not in far.calls
    far.stream.resume_reading()
    await far.until_called("lost")
    assert far.received == b"farewell"


@contract
async def test_abort_ends_both_sides_at_once(network: Network) -> None:
    near, far = await network.connect()
    near.stream.abort()
    near.stream.write(b"too late")
    await near.until_called("lost")
    await far.until_called("lost")
    assert far.received == b""


@contract
async def test_abort_does_not_wait_for_a_reader_that_sleeps(network: Network) -> None:
    """Guards the way out: close() towards a stopped reader may wait for ever, abort() may not."""
    near, far = await network.connect()
    far.stream.pause_reading()
    near.stream.write(bytes(32 * 1024 * 1024))
    await near.until_called("pause")
    near.stream.close()
    near.stream.abort()
    await near.until_called("lost")


@contract
async def test_writing_to_an_end_that_has_gone_loses_the_connection(network: Network) -> None:
    """Even while reading is paused, when nothing else would tell: a driver under back-pressure finds out."""
    near, far = await network.connect()
    far.stream.pause_reading()
    near.stream.close()
    await near.until_called("lost")
    for _ in range(1_000):
        if "lost" in far.calls:
            break
        far.stream.write(b"hello?")
        await pass_through(network)
    assert far.calls == ["made", "lost"]
    assert isinstance(far.lost_with, OSError)


@contract
async def test_both_ends_may_close_at_once(network: Network) -> None:
    near, far = await network.connect()
    near.stream.close()
    far.stream.close()
    await near.until_called("lost")
    await far.until_called("lost")


@contract
async def test_closing_again_and_pausing_what_is_lost_does_nothing(network: Network) -> None:
    near, far = await network.connect()
    near.stream.close()
    near.stream.close()
    far.stream.abort()
    far.stream.abort()
    for end in (near, far):
        await end.until_called("lost")
        end.stream.pause_reading()
        end.stream.resume_reading()
        end.stream.close()
        end.stream.abort()
    await pass_through(network)


@contract
async def test_closing_from_within_a_delivery_ends_it(network: Network) -> None:
    near, far = await network.connect()
    far.on_data = lambda _: far.stream.close()
    near.stream.write(bytes(5 * 1024 * 1024))
    await far.until_called("lost")
    assert 0 < len(far.received) <= 256 * 1024
    await near.until_called("lost")


@contract
async def test_a_handler_that_fails_loses_its_connection(network: Network) -> None:
    near, far = await network.connect()
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def fail(data: bytes) -> None:
        raise ZeroDivisionError

    far.on_data = fail
    near.stream.write(b"x")
    await far.until_called("lost")
    await near.until_called("lost")
    assert [type(context["exception"]) for context in reported] == [ZeroDivisionError]


# --- listening and dialling ------------------------------------------------------------------------------


@contract
async def test_port_0_picks_a_free_port_each_time(transport: Transport) -> None:
    networks = [await listen(transport) for _ in range(3)]
    endpoints = [split_endpoint(network.listener.endpoint) for network in networks]
    assert len(set(endpoints)) == 3
    assert all(host == "127.0.0.1" and port > 0 for host, port in endpoints)
    for network in networks:
        near, far = await network.connect()
        near.stream.write(b"x")
        await far.until_received(1)
        near.stream.abort()
        await far.until_called("lost")
        await network.listener.close()


@contract
async def test_port_0_avoids_what_is_taken(transport: Transport) -> None:
    """Guards the in-memory network: it gave out port 1 although somebody had asked for just that."""
    first = await listen(transport)
    host, port = split_endpoint(first.listener.endpoint)
    await first.listener.close()
    taken = await transport.listen(host, port, Recorder)
    others = [await listen(transport) for _ in range(3)]
    endpoints = {taken.endpoint, *(other.listener.endpoint for other in others)}
    assert len(endpoints) == 4
    for listener in (taken, *(other.listener for other in others)):
        await listener.close()


@contract
async def test_a_taken_address_is_refused_and_comes_free(transport: Transport) -> None:
    network = await listen(transport)
    host, port = split_endpoint(network.listener.endpoint)
    with pytest.raises(OSError, match="in use"):
        await transport.listen(host, port, Recorder)
    await network.listener.close()
    again = await transport.listen(host, port, Recorder)
    assert again.endpoint == network.listener.endpoint
    await again.close()


@contract
async def test_a_listener_that_closes_keeps_its_connections_and_takes_no_more(network: Network) -> None:
    near, far = await network.connect()
    await network.listener.close()
    host, port = split_endpoint(network.listener.endpoint)
    with pytest.raises(OSError):  # noqa: PT011  the platform's wording
        await network.transport.dial(host, port, Recorder, TIMEOUT_S)
    near.stream.write(b"still here")
    await far.until_received(10)
    assert "lost" not in near.calls + far.calls


@contract
async def test_dialling_nobody_is_an_os_error(transport: Transport) -> None:
    network = await listen(transport)
    host, port = split_endpoint(network.listener.endpoint)
    await network.listener.close()
    with pytest.raises(ConnectionRefusedError):
        await transport.dial(host, port, Recorder, TIMEOUT_S)


@pytest.mark.parametrize(("host", "port"), [("a" * 100, 7420), ("nul\0host", 7420), ("127.0.0.1", 70_000)])
@contract
async def test_dialling_nonsense_is_an_os_error_too(transport: Transport, host: str, port: int) -> None:
    """Guards the seam: asyncio lets UnicodeError, ValueError and OverflowError through."""
    with pytest.raises(OSError):  # noqa: PT011  the platform's wording
        await transport.dial(host, port, Recorder, TIMEOUT_S)


async def test_a_tcp_dial_ends_at_its_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf, pytest.raises(TimeoutError):
        await TcpTransport().dial(*deaf.getsockname(), Recorder, 0.0)


@contract
async def test_the_peer_has_a_name(network: Network) -> None:
    near, far = await network.connect()
    for end in (near, far):
        assert end.stream.get_extra_info("peername") is not None
        assert end.stream.get_extra_info("no such thing", "default") == "default"


# --- endpoints -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:7420", "127.0.0.1", 7420), ("[::1]:0", "::1", 0), ("metad.example:65535", "metad.example", 65535)],
)
def test_endpoints_round_trip(text: str, host: str, port: int) -> None:
    assert split_endpoint(text) == (host, port)
    assert join_endpoint(host, port) == text


@pytest.mark.parametrize("text", ["", "7420", ":7420", "host", "host:", "host:x", "host:-1", "host:65536", "host:７"])
def test_what_is_no_endpoint_says_why(text: str) -> None:
    with pytest.raises(ValueError, match=r"not HOST:PORT|not a port"):
        split_endpoint(text)


def test_every_host_and_port_pair_survives() -> None:
    for host, port in itertools.product(("::", "fe80::1", "10.0.0.1", "a"), (0, 1, 65535)):
        assert split_endpoint(join_endpoint(host, port)) == (host, port)
