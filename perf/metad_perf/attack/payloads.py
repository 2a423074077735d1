"""Frames that are more than they seem. Pure."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

from metad_wire import methods
from metad_wire.frame import FrameType

from .peer import request

_MIB = 1024 * 1024


def bombs(rng: random.Random) -> Iterator[bytes]:
    """One of each kind: what a server that believes lengths, counts and depths would choke on."""
    put = methods.KV_PUT.code
    yield struct.pack(">IBBHQ", 2**32 - 1, FrameType.REQUEST, 0, put, 1)  # four gigabytes, it says
    yield struct.pack(">IBBHQ", 2**31, FrameType.HELLO, 0, 0, 0)
    yield request(1, put, b"\x94\x01\xc0\x91\xdd\xff\xff\xff\xff")  # four thousand million items
    yield request(1, put, b"\x94\x01\xc0\x91\xc6\xff\xff\xff\xff")  # a value as large
    yield request(1, put, b"\x91" * _MIB)  # a million arrays within each other
    yield request(1, put, b"\x94\x01\xc0\x91\xdd\x00\x0f\xff\xff" + b"\xc0" * 0xFFFFF)  # a million times nothing
    yield request(1, put, b"\x94\x01\xc0\x91\xdd\x00\x0f\xff\xff" + b"\x90" * 0xFFFFF)
    yield request(1, 0xFFFF, rng.randbytes(1_000))
    yield request(1, put, rng.randbytes(_MIB))
