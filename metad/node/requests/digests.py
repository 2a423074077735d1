"""The digest that binds an identity to the first request that used it. Pure.

A retry repeats a request byte by byte except its deadline and its identity, which stand in front. So the bytes after
them are digested as they came, without encoding anything again.
"""

from __future__ import annotations

from typing import Any, Final
from zlib import crc32

from metad_wire import messages as m
from metad_wire.methods import Method, encode

_OTHER: Final = 1 << 30  # not an integer: points behind any payload
_INTEGER_BYTES: Final = tuple(
    1 if first < 0x80 else {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}.get(first, _OTHER) for first in range(256)
)
"""By the first byte of a msgpack value: its length, if it is an integer from 0 on."""
_IDENTITY: Final = 0x94  # an array of 4
_SHORT: Final = 1024  # shorter payloads are cheaper to copy than to view


def digest_of(method: Method[Any, Any], request: m.Request[Any], payload: bytes | None) -> int:
    """The digest of a decoded request with an identity: 32 bits, never 0. ``payload`` is its encoded form, if any."""
    if payload is not None:
        # Runs once per write. Skips the array's header, the deadline, the identity's header and its four numbers.
        length = _INTEGER_BYTES
        try:
            at = 1 + length[payload[1]]
            if payload[at] == _IDENTITY:
                at += 1
                at += length[payload[at]]
                at += length[payload[at]]
                at += length[payload[at]]
                at += length[payload[at]]
                if at < len(payload):
                    rest = payload[at:] if len(payload) < _SHORT else memoryview(payload)[at:]
                    return crc32(rest, method.code) or 1
        except IndexError:
            pass
    # It was never encoded, or by a foreign client in another way than ours do.
    return crc32(encode((request.body, request.group)), method.code) or 1
