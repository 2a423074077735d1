"""What an identity is bound to: a digest of the request that came with it first. Pure.

A retry repeats a request byte by byte, but for its deadline and its identity, which stand in front. So what follows
them is digested as it came, and nothing is encoded again.
"""

from __future__ import annotations

from typing import Any, Final
from zlib import crc32

from metad_wire import messages as m
from metad_wire.methods import Method, encode


def _integer_bytes() -> bytes:
    """By the first byte of a msgpack value: how long it is, if it is an integer from 0 on; 0 for others."""
    lengths = bytearray(256)
    lengths[0x00:0x80] = bytes([1]) * 0x80
    lengths[0xCC:0xD0] = bytes([2, 3, 5, 9])
    return bytes(lengths)


_INTEGER_BYTES: Final = _integer_bytes()
_ARRAY: Final = 0x90  # an array of up to 15 elements, and how many
_ARRAY_MAX: Final = 15


def digest_of(method: Method[Any, Any], request: m.Request[Any], payload: bytes | None) -> int:
    """Of a decoded request with an identity: 32 bits, never 0. ``payload`` is what it was decoded from, if anything."""
    if payload is not None:
        position = 1 + _INTEGER_BYTES[payload[1]]  # behind the array's header and the deadline
        fields = payload[position] - _ARRAY
        if 0 < fields <= _ARRAY_MAX:
            position += 1
            for _ in range(fields):
                length = _INTEGER_BYTES[payload[position]]
                if not length:
                    break
                position += length
            else:
                return crc32(memoryview(payload)[position:], method.code) or 1
    # It was never encoded, or in a way that no client of ours does.
    return crc32(encode((request.body, request.group)), method.code) or 1
