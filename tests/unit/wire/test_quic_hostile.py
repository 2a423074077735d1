"""What a peer that has the keys may send: any frames, in any order, with any numbers in them."""

from __future__ import annotations

import asyncio
import copy
import random
import socket
from typing import Any

import pytest
from aioquic import tls
from quic_rig import CLIENT, Handler, Link

from metad_perf.attack import sites as fleet
from metad_wire.transport import split_endpoint
from metad_wire.transport.quic import QuicTransport
from metad_wire.transport.quic.packets import PacketEngine, _encoded
from metad_wire.transport.quic.settings import KIB, QuicSettings

EDGES = (0, 1, 2, 3, 4, 7, 8, 28, 63, 64, 1_000, 16_383, 16_384, 262_144, 1 << 30, (1 << 32) + 1, (1 << 62) - 1)
KINDS = (*range(0x20), 0x30, 0x31, 0x3F)


def established(settings: QuicSettings | None = None) -> Link:
    link = Link(settings=settings)
    link.connect()
    for _ in range(3):
        link.client.open_stream().sender.write(b"hello")
    link.until(lambda: len(link.end("server")._streams) == 3)
    return link


def sealed(client: PacketEngine, plain: bytes) -> bytes:
    """A packet of the client's with this payload."""
    number = client._packet_number
    client._packet_number += 1
    header = b"\x41" + client._peer_cid.cid + (number & 0xFFFF).to_bytes(2, "big")
    return client._cryptos[tls.Epoch.ONE_RTT].encrypt_packet(header, plain, number)


def frames(rng: random.Random) -> bytes:
    """Frames, most of them nearly right."""
    parts = []
    for _ in range(rng.choice((1, 1, 2, 5))):
        kind = rng.choice(KINDS)
        numbers = [rng.choice(EDGES) if rng.random() < 0.7 else rng.randrange(200) for _ in range(rng.randrange(7))]
        parts.append(bytes((kind,)) + b"".join(map(_encoded, numbers)) + rng.randbytes(rng.choice((0, 0, 8, 16, 40))))
    whole = b"".join(parts)
    return whole[: rng.randrange(len(whole) + 1)] if rng.random() < 0.3 else whole


@pytest.mark.parametrize("seed", range(2))
def test_no_payload_is_more_than_the_engine_can_take(seed: int) -> None:
    """It acts on it, ignores it or closes; it never fails, and never holds more than its windows."""
    rng = random.Random(seed)
    settings = QuicSettings(window_bytes=64 * KIB, window_bytes_max=64 * KIB)
    link = established(settings)
    closed = 0
    for _ in range(250):
        server = link.end("server")
        run = [sealed(link.client, frames(rng).ljust(4, b"\0")) for _ in range(rng.choice((1, 1, 3)))]
        server.receive_run(run, CLIENT, link.now)
        while server.next_event() is not None:
            pass
        assert server.held_bytes() <= 3 * 64 * KIB
        assert len(server._streams) <= settings.streams_max
        server.datagrams_to_send(link.now)
        link.now += 0.001
        if server.over or server._state.name != "CONNECTED":
            closed += 1
            link = established(settings)
    assert closed > 20  # or nothing was wrong enough


@pytest.mark.parametrize("seed", range(2))
def test_damaged_packets_are_as_good_as_lost(seed: int) -> None:
    rng = random.Random(seed)
    link = established()
    server = link.end("server")
    before = copy.copy(server._spaces[tls.Epoch.ONE_RTT].largest_received_packet)
    for _ in range(300):
        packet = bytearray(sealed(link.client, b"\x01" + bytes(30)))
        for _ in range(rng.randrange(1, 4)):
            packet[rng.randrange(len(packet))] ^= 1 << rng.randrange(8)
        data = bytes(packet[: rng.randrange(1, len(packet) + 1)])
        server.receive_run([data], CLIENT, link.now)
    assert server._spaces[tls.Epoch.ONE_RTT].largest_received_packet == before
    assert not server.over
    server.receive_run([sealed(link.client, b"\x01" + bytes(30))], CLIENT, link.now)
    assert server._spaces[tls.Epoch.ONE_RTT].largest_received_packet > before


def test_a_packet_that_comes_twice_counts_once() -> None:
    link = established()
    server = link.end("server")
    stream = server._streams[0]
    consumed = stream.receiver.take(100)
    assert consumed == b"hello"
    packet = sealed(link.client, b"\x0e\x00" + _encoded(5) + b"\x03abc")
    server.receive_run([packet, packet], CLIENT, link.now)
    server.receive_run([packet], CLIENT, link.now)
    assert stream.receiver.take(100) == b"abc"
    assert server._local_max_data.used == 5 + 5 + 5 + 3


def test_streams_beyond_the_limit_end_the_connection() -> None:
    link = established()
    server = link.end("server")
    server.receive_run([sealed(link.client, b"\x0a" + _encoded(8 * 4) + b"\x01x")], CLIENT, link.now)
    server.datagrams_to_send(link.now)
    assert server.over
    assert server.end_reason()[0] == 4  # STREAM_LIMIT_ERROR


def test_acknowledging_what_was_never_sent_ends_the_connection() -> None:
    """An acknowledgement ahead of its packet would let a peer have the window grow at will."""
    link = established()
    server = link.end("server")
    flying = dict(server._spaces[tls.Epoch.ONE_RTT].sent_packets)
    ack = b"\x02" + _encoded(1 << 40) + b"\x00\x00" + _encoded(1 << 20)
    server.receive_run([sealed(link.client, ack)], CLIENT, link.now)
    assert dict(server._spaces[tls.Epoch.ONE_RTT].sent_packets) == flying
    server.datagrams_to_send(link.now)
    assert server.over
    assert server.end_reason()[0] == 0x0A  # PROTOCOL_VIOLATION


def test_a_peer_that_only_asks_leaves_nothing_behind() -> None:
    """Guards the memory of a server that is pinged for days: nobody acknowledges acknowledgements."""
    link = established()
    server = link.end("server")
    for _ in range(2_000):
        link.now += 0.01
        server.receive_run([sealed(link.client, b"\x01" + bytes(3))], CLIENT, link.now)
        link.now += 0.01
        server.datagrams_to_send(link.now)
    assert len(server._spaces[tls.Epoch.ONE_RTT].sent_packets) < 100


def test_a_handshake_message_without_end_is_not_collected() -> None:
    link = established()
    server = link.end("server")
    offset, piece = 0, b"\x01\xff\xff\xff" + bytes(996)  # a TLS message that says it takes 16 MiB
    while not server._close_pending and not server.over:
        frame = b"\x06" + _encoded(offset) + _encoded(len(piece)) + piece
        server.receive_run([sealed(link.client, frame)], CLIENT, link.now)
        offset += len(piece)
        assert offset < 100_000
    assert len(server.tls._receive_buffer) <= 64 * KIB


def test_a_gap_in_a_greeting_is_not_filled() -> None:
    link = Link()
    sender = link.client._crypto_streams[tls.Epoch.INITIAL].sender
    sender._buffer_start = sender._buffer_stop = 400_000
    sender._pending = type(sender._pending)()
    sender.write(b"far ahead")
    sender.buffer_is_empty = False
    link.until(lambda: link.server is not None)
    server = link.end("server")
    link.until(lambda: link.client.over)
    assert link.client.end_reason()[0] == 0x0D  # CRYPTO_BUFFER_EXCEEDED
    assert len(server._crypto_streams[tls.Epoch.INITIAL].receiver._buffer) == 0


async def test_mutilated_greetings_end_at_the_door(caplog: pytest.LogCaptureFixture) -> None:
    """ClientHellos with anything in them, properly sealed: nobody has proven anything yet, and anyone can send them."""
    rng = random.Random(1)
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    transport = QuicTransport(fleet.node())
    listener = await transport.listen("127.0.0.1", 0, Handler)
    host, port = split_endpoint(listener.endpoint)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for _ in range(150):
            stranger.sendto(_mutilated(rng), (host, port))
            await asyncio.sleep(0)
    near = await QuicTransport(fleet.client()).dial(host, port, Handler, 10.0)
    near.stream.abort()
    await listener.close()
    await asyncio.sleep(0)
    assert not failed
    assert not [record for record in caplog.records if record.levelname == "ERROR" and record.name != "quic"]
    for carrier in tuple(listener._ids):  # type: ignore[attr-defined]
        carrier.fail(ConnectionResetError("the test is over"))


def _mutilated(rng: random.Random) -> bytes:
    """A client's first datagram, with some bytes of its TLS message or its frames changed."""
    client = Link().client
    sender = client._crypto_streams[tls.Epoch.INITIAL].sender
    hello = bytearray(sender._buffer)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(hello))
        hello[at] = rng.choice((0, 1, 0xFF, hello[at] ^ 1 << rng.randrange(8), rng.randrange(256)))
    if rng.random() < 0.2:
        del hello[rng.randrange(len(hello)) :]
    sender._buffer[:] = hello.ljust(len(sender._buffer), b"\0")
    return client.datagrams_to_send(100.0)[0][0]
