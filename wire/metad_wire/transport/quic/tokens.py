"""Tokens that a server can verify without remembering them: proofs of a client's address, and the token by which a
server that has lost its connections tells a client so (stateless reset, RFC 9000 section 10.3).

All are derived from the certificate's key, so they stay valid when a server restarts on the same files.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import struct
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from .sockets import Address

RESET_TOKEN_BYTES: Final = 16
_RESET_BYTES_MIN: Final = 5 + RESET_TOKEN_BYTES
_RETRY_LIFE_S: Final = 15.0  # a Retry is answered at once
_ADDRESS_LIFE_S: Final = 24 * 3600.0
_NONCE_BYTES: Final = 12
_RETRY, _ADDRESS = b"r", b"a"
_head = struct.Struct("!cdBB")  # kind, when, lengths of two connection ids


class Proof(NamedTuple):
    """The content of a valid token."""

    original_connection_id: bytes
    retry_connection_id: bytes | None
    """None: the token is from an earlier connection, no Retry was sent."""


class AddressTokens:
    """Makes and checks both kinds of QUIC address token: in a Retry (valid for one address and port, and for seconds),
    and sent on a connection for the next one (valid for the address, and for a day)."""

    def __init__(self, secret: bytes, *, clock: Callable[[], float] = time.time) -> None:
        self._aead = AESGCM(hmac.digest(secret, b"address tokens", hashlib.sha256))
        self._clock = clock

    def retry(self, address: Address, original_connection_id: bytes, retry_connection_id: bytes) -> bytes:
        """Make a token for a Retry packet."""
        return self._seal(_RETRY, _host(address) + _port(address), original_connection_id, retry_connection_id)

    def address(self, address: Address) -> bytes:
        """Make a token for a NEW_TOKEN frame."""
        return self._seal(_ADDRESS, _host(address), b"", b"")

    def check(self, token: bytes, address: Address, connection_id: bytes) -> Proof | None:
        """The content of a client's token; None if it proves nothing."""
        if len(token) < _NONCE_BYTES + _head.size or len(token) > 256:
            return None
        for kind, bound, life_s in (
            (_RETRY, _host(address) + _port(address), _RETRY_LIFE_S),
            (_ADDRESS, _host(address), _ADDRESS_LIFE_S),
        ):
            try:
                plain = self._aead.decrypt(token[:_NONCE_BYTES], token[_NONCE_BYTES:], bound)
            except InvalidTag:
                continue
            found, when_s, first, second = _head.unpack_from(plain)
            if found != kind or not -60.0 <= self._clock() - when_s <= life_s:
                return None
            if kind == _ADDRESS:
                return Proof(connection_id, None)
            original = plain[_head.size : _head.size + first]
            retried = plain[_head.size + first : _head.size + first + second]
            return Proof(original, retried) if retried == connection_id else None
        return None

    def _seal(self, kind: bytes, bound: bytes, first: bytes, second: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        plain = _head.pack(kind, self._clock(), len(first), len(second)) + first + second
        return nonce + self._aead.encrypt(nonce, plain, bound)


class ResetTokens:
    """The stateless reset token of each connection id of a server."""

    def __init__(self, secret: bytes) -> None:
        self._secret = hmac.digest(secret, b"stateless reset", hashlib.sha256)

    def of(self, connection_id: bytes) -> bytes:
        """The 16-byte token of a connection id."""
        return hmac.digest(self._secret, connection_id, hashlib.sha256)[:RESET_TOKEN_BYTES]

    def packet(self, connection_id: bytes, answering_bytes: int) -> bytes | None:
        """A datagram that tells the sender of one of this size, to this connection id, that the connection is unknown;
        None if it would be too small. Always smaller than the one it answers, so two servers cannot keep each other
        busy."""
        size = min(answering_bytes - 1, 43)
        if size < _RESET_BYTES_MIN:
            return None
        noise = os.urandom(size - RESET_TOKEN_BYTES)
        return bytes((0x40 | noise[0] & 0x3F,)) + noise[1:] + self.of(connection_id)


def _host(address: Address) -> bytes:
    return ipaddress.ip_address(str(address[0]).partition("%")[0]).packed


def _port(address: Address) -> bytes:
    return int(address[1]).to_bytes(2, "big")
