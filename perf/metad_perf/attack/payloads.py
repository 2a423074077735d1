"""Malicious frames that declare more than they hold. Pure."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

from metad_wire import methods
from metad_wire.connection.frame import FrameType

from .peer import request

_MIB = 1024 * 1024


def bombs(rng: random.Random) -> Iterator[bytes]:
    """One frame of each kind, against servers that trust lengths, counts and depths."""
    put = methods.KV_PUT.code
    yield struct.pack(">IBBHQ", 2**32 - 1, FrameType.REQUEST, 0, put, 1)  # declares four gigabytes
    yield struct.pack(">IBBHQ", 2**31, FrameType.HELLO, 0, 0, 0)
    yield request(1, put, b"\x94\x01\xc0\x91\xdd\xff\xff\xff\xff")  # declares four thousand million items
    yield request(1, put, b"\x94\x01\xc0\x91\xc6\xff\xff\xff\xff")  # declares a value as large
    yield request(1, put, b"\x91" * _MIB)  # a million arrays within each other
    yield request(1, put, b"\x94\x01\xc0\x91\xdd\x00\x0f\xff\xff" + b"\xc0" * 0xFFFFF)  # a million nils
    yield request(1, put, b"\x94\x01\xc0\x91\xdd\x00\x0f\xff\xff" + b"\x90" * 0xFFFFF)
    yield request(1, 0xFFFF, rng.randbytes(1_000))
    yield request(1, put, rng.randbytes(_MIB))
