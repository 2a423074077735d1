"""Attacks over TCP with TLS: by strangers, and by admitted clients that break the protocol."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import struct
import time
from functools import partial

from metad_wire import methods
from metad_wire.connection.frame import FrameType
from metad_wire.transport.credentials import TlsFiles

from .payloads import bombs
from .peer import GET_LARGE, HELLO, WAIT_S, Outcome, Target, TlsPeer, request, tls_context
from .strangers import strangers

_MIB = 1024 * 1024
_HALF_OPEN = 600
_HELD = 400
_SLOW_READERS = 3
_REQUESTS_OF_A_READER = 600
_STALLED_S = 12.0  # the node closes a connection that does not read after 10 s
_KERNEL_BYTES = 64 * _MIB  # that the buffers of both kernels and of the server may still hold for a reader
_GARBAGE_BYTES_MAX = 16 * 1024


def handshake_flood(target: Target, until_s: float) -> Outcome:
    """Handshakes without a certificate, one after the other."""
    return strangers([target.none], until_s, partial(_meet, target))


def wrong_certificates(target: Target, until_s: float) -> Outcome:
    """Every wrong kind of certificate, and none."""
    return strangers([*target.wrong.values(), target.none], until_s, partial(_meet, target))


def _meet(target: Target, files: TlsFiles) -> int:
    with contextlib.suppress(OSError), TlsPeer(target, files) as peer:
        # In TLS 1.3 a client learns the server's verdict on its certificate after its own handshake.
        peer.send(HELLO)
        peer.read()
        return peer.heard.welcomes + peer.heard.responses
    return 0


def garbage(target: Target, until_s: float) -> Outcome:
    """Bytes that are not TLS: noise, clear text, records with wrong lengths."""
    rng = random.Random(1)
    tried = answered = 0
    while time.monotonic() < until_s:
        tried += 1
        noise = rng.randbytes(rng.randrange(1, _GARBAGE_BYTES_MAX))
        beginning = (b"", b"\x16\x03\x01\xff\xff", b"GET / HTTP/1.1\r\n\r\n", HELLO)[tried % 4]
        with contextlib.suppress(OSError), socket.create_connection(target.address, WAIT_S) as peer:
            peer.settimeout(WAIT_S)
            peer.sendall(beginning + noise)
            peer.shutdown(socket.SHUT_WR)
            heard = peer.recv(65_536)
            answered += heard[:1] not in (b"", b"\x15")  # a TLS alert is the only proper answer
    return Outcome(tried, f"{answered} were answered" if answered else "")


def held_connections(target: Target, until_s: float) -> Outcome:
    """More connections than the node may open files, which say nothing and are dialled again where they are closed. A
    node that has no descriptor left cannot open the next file of its store."""
    tried = 0
    with contextlib.ExitStack() as stack:
        held: list[socket.socket] = []
        while time.monotonic() < until_s or tried < _HELD:
            with contextlib.suppress(OSError):
                held.append(stack.enter_context(socket.create_connection(target.address, WAIT_S)))
            tried += 1
            if len(held) >= _HELD:
                held.pop(0).close()
    return Outcome(tried)


def half_open(target: Target, until_s: float) -> Outcome:
    """Connections that stop before the handshake, within it, and after it. All must be closed."""
    hello = _client_hello(target)
    with contextlib.ExitStack() as stack:
        held: list[socket.socket] = []
        while len(held) < _HALF_OPEN:
            try:
                kind = len(held) % 3
                if kind == 2 and len(held) < _HALF_OPEN / 6:  # a handshake costs us as much as the server
                    one: socket.socket = stack.enter_context(TlsPeer(target, target.good)).socket
                else:
                    one = stack.enter_context(socket.create_connection(target.address, WAIT_S))
                    one.sendall(hello[: len(hello) // 2] if kind else b"")
            except OSError:
                continue  # already refused
            held.append(one)
        time.sleep(max(0.0, until_s - time.monotonic()))
        kept = sum(not hung_up(one) for one in held)
        return Outcome(len(held), f"{kept} were not hung up on" if kept else "")


def hung_up(peer: socket.socket) -> bool:
    """Whether the server closes the connection in time."""
    peer.settimeout(WAIT_S)
    try:
        while peer.recv(65_536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def _client_hello(target: Target) -> bytes:
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        tls_context(target.none).wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


def frame_bombs(target: Target, until_s: float) -> Outcome:
    """Malicious frames from an admitted client. Each must end in an error."""
    tried = blown = 0
    rng = random.Random(2)
    while time.monotonic() < until_s or tried < 1:
        for bomb in bombs(rng):
            tried += 1
            try:
                with TlsPeer(target, target.good) as peer:
                    peer.send(HELLO)
                    peer.send(bomb)
                    while peer.heard.errors == 0 and peer.read():
                        pass
                    blown += peer.heard.responses > 0 or (peer.heard.errors == 0 and not hung_up(peer.socket))
            except OSError:
                continue
    return Outcome(tried, f"{blown} did not end in an error" if blown else "")


def unfinished_frames(target: Target, until_s: float) -> Outcome:
    """Many frames of full size that never end."""
    begun = struct.pack(">IBBHQ", 15 * _MIB, FrameType.REQUEST, 0, methods.KV_PUT.code, 1)
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(TlsPeer(target, target.good)) for _ in range(32)]
        for peer in peers:
            peer.send(HELLO)
            peer.read()
            peer.send(begun)
            peer.socket.settimeout(0.05)
        chunk = bytes(256 * 1024)
        alive = list(peers)
        while alive and time.monotonic() < until_s:
            alive = [peer for peer in alive if _still_takes(peer, chunk)]
        answered = sum(peer.heard.responses for peer in peers)
        return Outcome(len(peers), f"{answered} were answered" if answered else "")


def _still_takes(peer: TlsPeer, chunk: bytes) -> bool:
    try:
        peer.socket.sendall(chunk)
    except TimeoutError:
        return False  # a record is half sent, so this connection can send nothing more
    except OSError:
        return False
    return True


def slow_readers(target: Target, until_s: float) -> Outcome:
    """Connections that ask for gigabytes and read nothing. The server must close them."""
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(TlsPeer(target, target.good)) for _ in range(_SLOW_READERS)]
        for peer in peers:
            peer.send(HELLO)
            peer.read()
            for number in range(1, _REQUESTS_OF_A_READER):
                if not peer.send(request(number, methods.KV_GET.code, GET_LARGE)):
                    break
        time.sleep(max(_STALLED_S, until_s - time.monotonic()))
        kept = sum(not peer.read_to_end(_KERNEL_BYTES) for peer in peers)
        return Outcome(len(peers), f"{kept} were not hung up on" if kept else "")
