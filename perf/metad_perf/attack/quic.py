"""Attacks over QUIC: by strangers, and by admitted clients that break the protocol."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial

from metad_wire import methods
from metad_wire.transport.credentials import TlsFiles

from .payloads import bombs
from .peer import GET_LARGE, HELLO, Outcome, QuicPeer, Target, put, request
from .strangers import strangers

_GARBAGE_PER_S = 20_000  # datagrams
_SPOOFED_PER_S = 5_000
_SPOOFED_MADE = 200  # Initials, each of another connection; making one costs more than examining it
_SPOOFED_SOURCES = 64
_AT_LEAST_S = 1.0
_REPLAYS_PER_S = 500
_HALF_OPEN = 1_000
_SLOW_READERS = 3
_REQUESTS_OF_A_READER = 200
_CUT_OFF_S = 8.0
_STALLED_S = 15.0  # the node closes a connection that does not read after 10 s
_AMPLIFICATION_MAX = 3.0  # RFC 9000, 8.1
REPLAYED = ("replayed", "key")
"""Namespace and key of the write that is sent in 0-RTT data; it must never take effect."""


def handshake_flood(target: Target, until_s: float) -> Outcome:
    """Handshakes without a certificate, one after the other."""
    return strangers([target.none], until_s, partial(_meet, target))


def wrong_certificates(target: Target, until_s: float) -> Outcome:
    """Every wrong kind of certificate, and none."""
    return strangers([*target.wrong.values(), target.none], until_s, partial(_meet, target))


def _meet(target: Target, files: TlsFiles) -> int:
    with QuicPeer(target, files) as peer:
        if peer.connect():
            peer.open(HELLO)
            peer.until(lambda: peer.heard.frames > 0)
        return peer.heard.welcomes + peer.heard.responses


def garbage(target: Target, until_s: float) -> Outcome:
    """Noise in datagrams, some of which looks like the beginning of a packet."""
    rng = random.Random(1)
    heads = [bytes([first]) for first in (0x00, 0x40, 0x7F, 0xFF)]
    heads += [bytes([first]) + version + b"\x08" for first in (0xC0, 0xE0, 0xF0) for version in (b"\0\0\0\1", b"abcd")]
    noise = [rng.choice(heads) + rng.randbytes(rng.choice((1, 20, 200, 1_200))) for _ in range(500)]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        tried, _ = _send(lambda n: sender.sendto(noise[n % len(noise)], target.address), _GARBAGE_PER_S, until_s)
        received = _drain([sender])
    sent = sum(len(noise[n % len(noise)]) for n in range(tried))
    return Outcome(tried, f"{received} bytes came back for {sent}" if received > sent else "")


def spoofed_initials(target: Target, until_s: float) -> Outcome:
    """Genuine first packets of connections that are never completed, from many addresses. The server must not send more
    than three times the bytes it got, and must keep room for honest connections."""
    made: list[bytes] = []
    for _ in range(_SPOOFED_MADE):
        with QuicPeer(target, target.none) as peer:
            made.append(peer.connection.datagrams_to_send(time.monotonic())[0][0])
            peer.connection = QuicPeer(target, target.none).connection  # it sends no close frame
    rng = random.Random(3)
    with contextlib.ExitStack() as stack:
        senders = []
        for _ in range(_SPOOFED_SOURCES):
            sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            sender.bind((f"127.{rng.randrange(1, 255)}.{rng.randrange(256)}.{rng.randrange(1, 255)}", 0))
            sender.setblocking(False)
            senders.append(sender)

        def one(number: int) -> None:
            datagram = bytearray(made[number % len(made)])
            if number >= len(made):  # another connection each: the keys no longer fit, but the packets look the same
                datagram[6:14] = rng.randbytes(8)
            senders[number % len(senders)].sendto(datagram, target.address)

        # making the packets took a while
        tried, _ = _send(one, _SPOOFED_PER_S, max(until_s, time.monotonic() + _AT_LEAST_S))
        received = _drain(senders)
        sent = sum(len(made[n % len(made)]) for n in range(tried))
    if received > _AMPLIFICATION_MAX * sent:
        return Outcome(tried, f"{received} bytes came back for {sent}")
    return Outcome(tried, _still_welcome(target))


def stream_abuse(target: Target, until_s: float) -> Outcome:
    """Streams over the limit, offsets beyond the window, ends that move: the server must close the connection."""
    tried = survived = 0

    def many_streams(peer: QuicPeer) -> None:
        peer.lift_limits()
        for n in range(1, 400):
            peer.connection.send_stream_data(4 * n, b"x")

    def far_offset(peer: QuicPeer) -> None:
        peer.jump(0, 1 << 40)
        peer.connection.send_stream_data(0, b"x")

    def over_the_window(peer: QuicPeer) -> None:
        peer.jump(0, 64 * 1024 * 1024)
        peer.connection.send_stream_data(0, bytes(1_000))

    def moved_end(peer: QuicPeer) -> None:
        peer.connection.send_stream_data(0, b"x", end_stream=True)
        peer.flush()
        peer.connection._streams[0].sender._buffer_fin = None
        peer.jump(0, 100_000)
        peer.connection.send_stream_data(0, b"y")

    ways: tuple[Callable[[QuicPeer], None], ...] = (many_streams, far_offset, over_the_window, moved_end)
    while time.monotonic() < until_s or tried < len(ways):
        way = ways[tried % len(ways)]
        tried += 1
        with QuicPeer(target, target.good) as peer:
            if not peer.connect():
                continue
            peer.open(HELLO)
            peer.until(lambda peer=peer: peer.heard.frames > 0)
            peer.lift_limits()
            way(peer)
            if not peer.until(lambda peer=peer: peer.ended or peer.reset, _CUT_OFF_S):
                survived += 1
    return Outcome(tried, f"{survived} connections survived" if survived else "")


def slow_readers(target: Target, until_s: float) -> Outcome:
    """Connections that ask for gigabytes and grant no credit for them. The server must close them."""
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(QuicPeer(target, target.good)) for _ in range(_SLOW_READERS)]
        for peer in peers:
            peer.connect()
            peer.open(HELLO)
            peer.until(lambda peer=peer: peer.heard.frames > 0)
            peer.connection.stingy = True
            for number in range(1, _REQUESTS_OF_A_READER):
                peer.connection.send_stream_data(0, request(number, methods.KV_GET.code, GET_LARGE))
        until_s = max(until_s, time.monotonic() + _STALLED_S)
        while time.monotonic() < until_s and not all(peer.ended or peer.reset for peer in peers):
            for peer in peers:
                peer.until(lambda peer=peer: peer.ended or peer.reset, 0.05)
        kept = sum(not (peer.ended or peer.reset) for peer in peers)
        return Outcome(len(peers), f"{kept} were not hung up on" if kept else "")


def early_replays(target: Target, until_s: float) -> Outcome:
    """A write in 0-RTT data, replayed again and again from elsewhere. The caller checks whether it took effect; this
    attack checks that every answer is a refusal."""
    with QuicPeer(target, target.good) as first:
        if not first.connect():
            return Outcome(0, "no connection")
        first.open(HELLO)
        if not first.until(lambda: bool(first.tickets)):
            return Outcome(0, "no session ticket")
        ticket = first.tickets[0]
    early = HELLO + request(1, methods.KV_PUT.code, put(*REPLAYED, b"written in 0-RTT"))
    with QuicPeer(target, target.good, ticket=ticket) as again:
        again.open(early)
        again.flush()
        recorded = list(again.sent)
        again.until(lambda: again.heard.errors > 0 or again.heard.responses > 0)
        answered = again.heard.responses
        refused = again.heard.errors > 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as replayer:
        replayer.setblocking(False)
        tried, _ = _send(
            lambda n: replayer.sendto(recorded[n % len(recorded)], target.address),
            _REPLAYS_PER_S,
            max(until_s, time.monotonic() + _AT_LEAST_S),  # getting a ticket took a while
        )
    return Outcome(tried, "" if refused and not answered else "a write in 0-RTT data was not refused")


def frame_bombs(target: Target, until_s: float) -> Outcome:
    """Malicious frames from an admitted client. Each must end in an error."""
    tried = blown = 0
    rng = random.Random(2)
    while time.monotonic() < until_s or tried < 1:
        for bomb in bombs(rng):
            tried += 1
            with QuicPeer(target, target.good) as peer:
                if not peer.connect():
                    continue
                peer.open(HELLO)
                peer.connection.send_stream_data(0, bomb)
                over = peer.until(lambda peer=peer: peer.heard.errors > 0 or peer.ended or peer.reset)
                blown += peer.heard.responses > 0 or not over
    return Outcome(tried, f"{blown} did not end in an error" if blown else "")


def half_open(target: Target, until_s: float) -> Outcome:
    """Handshakes that are begun and abandoned. An honest client must still be admitted."""
    tried = 0
    with contextlib.ExitStack() as stack:
        while tried < _HALF_OPEN and time.monotonic() < until_s:
            tried += 1
            peer = stack.enter_context(contextlib.closing(_Silent(target)))
            peer.begin()
        time.sleep(max(0.0, until_s - time.monotonic()))
        return Outcome(tried, _still_welcome(target))


class _Silent:
    """Sends its first flight, follows a Retry, and then falls silent."""

    def __init__(self, target: Target) -> None:
        self._peer = QuicPeer(target, target.none)

    def begin(self) -> None:
        self._peer.flush()

    def close(self) -> None:
        self._peer.socket.close()


def _still_welcome(target: Target) -> str:
    """The reason why an honest client is not admitted; empty: it is."""
    for _ in range(3):  # the first datagrams may be lost in the flood
        with QuicPeer(target, target.good) as peer:
            if peer.connect():
                peer.open(HELLO)
                if peer.until(lambda peer=peer: peer.heard.frames > 0):
                    return ""
    return "who may come in did not get in"


def _send(one: Callable[[int], object], per_s: float, until_s: float) -> tuple[int, int]:
    """Call ``one`` at this rate until then; returns how often, and how often the kernel had no room."""
    count = full = 0
    begin_s = time.monotonic()
    while (now := time.monotonic()) < until_s:
        due = int((now - begin_s) * per_s)
        while count < due:
            try:
                one(count)
            except BlockingIOError:
                full += 1
            count += 1
        time.sleep(0.001)
    return count, full


def _drain(sockets: Sequence[socket.socket]) -> int:
    """Read all datagrams; returns their number of bytes."""
    received = 0
    for one in sockets:
        with contextlib.suppress(OSError):
            while data := one.recv(65_536):
                received += len(data)
    return received
