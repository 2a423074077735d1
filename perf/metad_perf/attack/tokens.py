"""Attacks of strangers on a node that accepts tokens as well as certificates: there every TLS handshake succeeds, and
the node decides on admission afterwards."""

from __future__ import annotations

import contextlib
import hmac
import os
import random
import socket
import ssl
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from metad_wire import messages as m
from metad_wire.connection.frame import FrameType, encode_frame
from metad_wire.methods import encode

from .insider import GoneError, Insider
from .peer import HELLO, WAIT_S, Outcome, Target, TlsPeer, tls_context

CONNECTIONS_MAX = 500
"""Connection limit of the node that accepts tokens: a TLS handshake is as much work for the attacker as for the node,
and the attacker has only a few seconds."""
_HELD = CONNECTIONS_MAX + 100
_FRIENDS = 20
_KEY_UPDATES = 5_000  # sent at once
_APPLICATION_DATA, _HANDSHAKE, _TLS_1_2 = 23, 22, 0x0303  # of records, RFC 8446, 5.1
_KEY_UPDATE = 24
_TAG_BYTES, _NONCE_BYTES = 16, 12


def silent_connections(target: Target, until_s: float) -> Outcome:
    """More connections than the node accepts, which shake hands and then stay silent, and come again when they are
    closed. Clients with certificates must be admitted throughout."""
    tried = refused = met = 0
    with contextlib.ExitStack() as stack:
        held: list[TlsPeer] = []
        while time.monotonic() < until_s or met < _FRIENDS:
            if len(held) < _HELD:
                with contextlib.suppress(OSError):
                    held.append(stack.enter_context(TlsPeer(target, target.none)))
                    tried += 1
            else:
                held = [peer for peer in held if not _gone(peer)]
                time.sleep(0.01)
            if len(held) >= CONNECTIONS_MAX or tried >= _HELD or time.monotonic() >= until_s:
                met += 1
                refused += not _gets_in(target)
    return Outcome(tried, f"{refused} of {met} clients with certificates did not get in" if refused else "")


def _gone(peer: TlsPeer) -> bool:
    peer.socket.settimeout(0.0)
    try:
        return not peer.socket.recv(4_096)
    except (ssl.SSLWantReadError, BlockingIOError):
        return False
    except OSError:
        return True


def _gets_in(target: Target) -> bool:
    try:
        Insider(target).close()
    except (OSError, GoneError):
        return False
    return True


def wrong_tokens(target: Target, until_s: float) -> Outcome:
    """Greetings with unknown tokens, of all lengths, one after the other. None may be admitted; each refusal is also
    logged."""
    rng = random.Random(7)
    tried = let_in = 0
    while time.monotonic() < until_s:
        tried += 1
        begun = (b"app.", b"", b"\xff", b"nobody.")[tried % 4]
        token = begun + rng.randbytes(rng.choice((0, 43, 300, 6_000))).hex().encode()
        hello = encode_frame(FrameType.HELLO, encode(m.Hello(m.MAGIC, 1, 1, 0, token)))
        with contextlib.suppress(OSError), TlsPeer(target, target.none) as peer:
            peer.send(hello)
            peer.read()
            let_in += peer.heard.welcomes
    return Outcome(tried, f"{let_in} were let in" if let_in else "")


def refused_greetings(target: Target, until_s: float) -> Outcome:
    """Several greetings in one connection, and malformed greetings: each refusal is also logged."""
    greetings = [
        HELLO * 3,
        encode_frame(FrameType.HELLO, b"\x91" * 1_000),
        encode_frame(FrameType.REQUEST, b"", 1, 1),
        encode_frame(FrameType.HELLO, encode(m.Hello("mqtt", 1, 1))),
        encode_frame(FrameType.HELLO, encode(m.Hello(m.MAGIC, 77, 99))),
    ]
    tried = let_in = 0
    while time.monotonic() < until_s:
        tried += 1
        with contextlib.suppress(OSError), TlsPeer(target, target.none) as peer:
            peer.send(greetings[tried % len(greetings)])
            peer.read()
            let_in += peer.heard.welcomes
    return Outcome(tried, f"{let_in} were let in" if let_in else "")


def key_updates(target: Target, until_s: float) -> Outcome:
    """New keys for every record, thousands of them in a second, half of them requesting new keys in return. The server
    must close the connection, or no other client may notice."""
    tried = 0
    while time.monotonic() < until_s or not tried:
        with contextlib.suppress(OSError), KeyUpdater(target) as updater:
            tried += updater.send(_KEY_UPDATES, until_s)
    return Outcome(tried, "" if _gets_in(target) else "a client with a certificate did not get in")


class KeyUpdater:
    """A TLS client that continues by hand after its handshake: neither Python nor OpenSSL's command line can send many
    KeyUpdates. Keys as in RFC 8446, 7.1 to 7.3."""

    def __init__(self, target: Target) -> None:
        with tempfile.TemporaryDirectory() as directory:
            log = Path(directory) / "keys"
            context = tls_context(target.none)
            context.keylog_filename = str(log)
            raw = socket.create_connection(target.address, WAIT_S)
            self._tls = context.wrap_socket(raw)
            lines = [line.split() for line in log.read_text().splitlines()]
        (self._secret,) = [bytes.fromhex(line[2]) for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0"]
        cipher = self._tls.cipher()
        assert cipher is not None
        self._hash = "sha384" if cipher[0].endswith("SHA384") else "sha256"
        self._sequence = 0  # of records under the current key
        self._key_bytes = 32 if "256_GCM" in cipher[0] else 16
        # These writes bypass OpenSSL, which does not know our new keys.
        self._raw = socket.socket(fileno=os.dup(self._tls.fileno()))
        self._raw.settimeout(WAIT_S)

    def __enter__(self) -> KeyUpdater:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()
        self._tls.close()

    def send(self, records: int, until_s: float) -> int:
        """Continue until the server closes the connection, or until then; returns the number of records sent."""
        sent = 0
        while True:
            self._raw.sendall(b"".join(self._records(records)))
            sent += records
            if time.monotonic() >= until_s:
                return sent

    def say(self, data: bytes) -> None:
        """Send one record of data under the current key."""
        self._raw.sendall(self._sealed(data, _APPLICATION_DATA))

    def _records(self, count: int) -> Iterator[bytes]:
        for number in range(count):
            yield self._sealed(struct.pack(">B3sB", _KEY_UPDATE, b"\0\0\1", number % 2), _HANDSHAKE)
            self._secret = self._derive(b"traffic upd", len(self._secret))
            self._sequence = 0

    def _sealed(self, data: bytes, kind: int) -> bytes:
        inner = data + bytes([kind])
        head = struct.pack(">BHH", _APPLICATION_DATA, _TLS_1_2, len(inner) + _TAG_BYTES)
        nonce = int.from_bytes(self._derive(b"iv", _NONCE_BYTES), "big") ^ self._sequence
        self._sequence += 1
        key = AESGCM(self._derive(b"key", self._key_bytes))
        return head + key.encrypt(nonce.to_bytes(_NONCE_BYTES, "big"), inner, head)

    def _derive(self, label: bytes, length: int) -> bytes:
        label = b"tls13 " + label
        info = struct.pack(">HB", length, len(label)) + label + b"\0\x01"
        return hmac.digest(self._secret, info, self._hash)[:length]
