"""Tokens: the credentials of a client that has no certificate. ``NAME.SECRET``, of which a server keeps a hash.

A secret has 256 random bits, so one round of SHA-256 is as good as any slow hash: nobody can guess the secret. A
server's file has a line for each token, ``NAME sha256:HEX``. A name may have several lines, so that a new token can be
given out before the old one is removed. A token makes its holder a client, never a node.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from pathlib import Path
from typing import Final

SECRET_BYTES: Final = 32
TOKEN_BYTES_MAX: Final = 256
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_LINE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]{0,63}) +sha256:([0-9a-f]{64})")
_NOBODY: Final = bytes(32)


class TokenFileError(Exception):
    """The file of tokens cannot be used; the message says why."""


def new_token(name: str) -> str:
    """Make a token, which only its holder keeps. Raises ValueError if the name is not valid."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid name: use letters, digits, '_' and '-', at most 64")
    return f"{name}.{secrets.token_urlsafe(SECRET_BYTES)}"


def line_of(token: str) -> str:
    """The line that a server's file keeps of a token, without the end of line."""
    return f"{token.partition('.')[0]} sha256:{_hash(token.encode()).hex()}"


class Tokens:
    """The tokens that a server accepts."""

    def __init__(self, hashes: dict[str, list[bytes]]) -> None:
        self._hashes = hashes

    def __len__(self) -> int:
        return sum(map(len, self._hashes.values()))

    @classmethod
    def parse(cls, text: str) -> Tokens:
        """Parse the text of a file; empty lines and lines that begin with ``#`` are skipped. Raises TokenFileError."""
        hashes: dict[str, list[bytes]] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            match = _LINE.fullmatch(line.strip())
            if match is None:
                raise TokenFileError(f"line {number} is not NAME sha256:HEX, the format of `metadctl token`")
            hashes.setdefault(match[1], []).append(bytes.fromhex(match[2]))
        return cls(hashes)

    @classmethod
    def read(cls, path: str) -> Tokens:
        """Read a file. Raises TokenFileError."""
        try:
            return cls.parse(Path(path).read_text())
        except OSError as error:
            raise TokenFileError(f"cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise TokenFileError(f"{path} is not text") from None
        except TokenFileError as error:
            raise TokenFileError(f"{path}: {error}") from None

    def holder(self, credentials: bytes) -> str | None:
        """The name of the token's holder; None if the token is unknown. Takes the same time however much of it is
        right."""
        if len(credentials) > TOKEN_BYTES_MAX:
            return None
        name = credentials.partition(b".")[0].decode("ascii", "replace")
        given, found = _hash(credentials), False
        for known in self._hashes.get(name, [_NOBODY]):
            found |= hmac.compare_digest(known, given)
        return name if found else None


def _hash(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
