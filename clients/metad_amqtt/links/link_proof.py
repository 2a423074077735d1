"""How both ends of a link between brokers prove who they are, without a secret that anybody else could read.

Each life of a broker has a key pair of its own (X25519) that dies with the process. Its public key is in metad beside
its address. Both ends compute the same secret, one from its own private key and the other's public key in metad, and
prove it by a code over two fresh random numbers and both names. Whoever reads the link or metad learns neither key.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from .routes import LifeKey

NONCE_BYTES: Final = 32
_CALLER: Final = "metad-link caller"
_CALLED: Final = "metad-link called"

_encode: Final = msgspec.msgpack.Encoder().encode


class RefusedError(ConnectionError):
    """The peer is not what it should be."""


class Peer(msgspec.Struct, frozen=True):
    """The other end, as metad has it."""

    life: LifeKey
    public: str
    """Its public key."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The caller's first frame: who it is, and a random number."""

    broker: str
    epoch: int
    nonce: bytes


class Welcome(msgspec.Struct, frozen=True, array_like=True):
    """The answer: another random number, and the proof that it is the life that was called."""

    nonce: bytes
    proof: bytes


class Proof(msgspec.Struct, frozen=True, array_like=True):
    """The caller's second frame: the proof that it is who it says."""

    proof: bytes


class LinkKey:
    """The key pair of one life, and its name once the life has begun."""

    def __init__(self, life: LifeKey = ("", 0)) -> None:
        self._private = X25519PrivateKey.generate()
        self.public: Final = self._private.public_key().public_bytes_raw().hex()
        self.life = life

    def hello(self) -> Hello:
        """Begin a call."""
        return Hello(*self.life, secrets.token_bytes(NONCE_BYTES))

    def welcome(self, hello: Hello, caller: Peer) -> tuple[Welcome, Proof]:
        """Answer a call by a life that metad knows: what to say, and what the caller must say then. Raises
        RefusedError."""
        if len(hello.nonce) != NONCE_BYTES:
            raise RefusedError("it sends no random number")
        nonce = secrets.token_bytes(NONCE_BYTES)
        said = _Transcript(caller, Peer(self.life, self.public), hello.nonce, nonce)
        secret = self._secret(caller)
        return Welcome(nonce, said.code(secret, _CALLED)), Proof(said.code(secret, _CALLER))

    def proof(self, hello: Hello, welcome: Welcome, called: Peer) -> Proof:
        """Check the answer, and prove who calls. Raises RefusedError."""
        said = _Transcript(Peer(self.life, self.public), called, hello.nonce, welcome.nonce)
        secret = self._secret(called)
        if not hmac.compare_digest(said.code(secret, _CALLED), welcome.proof):
            raise RefusedError(f"it cannot prove that it is life {called.life[1]} of broker {called.life[0]!r}")
        return Proof(said.code(secret, _CALLER))

    def _secret(self, peer: Peer) -> bytes:
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(peer.public)))
        except ValueError:
            raise RefusedError(f"metad has no key of broker {peer.life[0]!r}") from None


class _Transcript(msgspec.Struct, frozen=True, array_like=True):
    """What both ends agree on."""

    caller: Peer
    called: Peer
    callers_nonce: bytes
    called_nonce: bytes

    def code(self, secret: bytes, side: str) -> bytes:
        return hmac.digest(secret, _encode((side, self)), "sha256")
