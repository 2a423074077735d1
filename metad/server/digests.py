"""What an identity is bound to: a digest of the request that came with it first. Pure.

A retry repeats a request byte by byte, but for its deadline and its identity, which stand in front. So what follows
them is digested as it came, and nothing is encoded again.
"""

from __future__ import annotations

from typing import Any, Final
from zlib import crc32

from metad_wire import messages as m
from metad_wire.methods import Method, encode

_OTHER: Final = 1 << 30  # no integer: further than any payload reaches
_INTEGER_BYTES: Final = tuple(
    1 if first < 0x80 else {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}.get(first, _OTHER) for first in range(256)
)
"""By the first byte of a msgpack value: how long it is, if it is an integer from 0 on."""
_IDENTITY: Final = 0x94  # an array of 4
_SHORT: Final = 1024  # what is cheaper to copy than to look at


def digest_of(method: Method[Any, Any], request: m.Request[Any], payload: bytes | None) -> int:
    """Of a decoded request with an identity: 32 bits, never 0. ``payload`` is what it was decoded from, if anything."""
    if payload is not None:
        # Once for each write: its array's header, the deadline, the identity's header and four numbers are skipped.
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
    # It was never encoded, or in a way that no client of ours does.
    return crc32(encode((request.body, request.group)), method.code) or 1
