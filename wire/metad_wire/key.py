"""A key's fields as bytes. wire/PROTOCOL.md, "Routing".

Client and server must agree about every byte here: a client that does not would send each item to the wrong leader. The
encoding is also that of the keys on disk, so that a listing's order is the order of the encoded fields.
"""

from __future__ import annotations

import struct
from typing import Final

from .cluster import SLOTS

TEXT_END: Final = b"\0\x01"
ESCAPED: Final = b"\0\xff"
"""A 0x00 in a text."""
SLOT_MASK: Final = SLOTS - 1
"""``crc & SLOT_MASK`` is the slot."""

u32 = struct.Struct(">I").pack
"""One integer field."""


def text(value: str) -> bytes:
    """One text field: UTF-8 with every 0x00 escaped to 0x00 0xFF, ended by 0x00 0x01."""
    return value.encode().replace(b"\0", ESCAPED) + TEXT_END


def text2(first: str, second: str) -> bytes:
    """Two text fields; the hot path of every session."""
    raw = f"{first}\0\x01{second}\0\x01".encode()
    if raw.count(0) == 2:
        return raw
    return text(first) + text(second)


def truth(value: bool) -> bytes:
    """One truth value of an index."""
    return b"\x01" if value else b"\0"


def number(value: int) -> bytes:
    """One integer of 64 bits of an index, in order of size: 2^63 is added."""
    return (value + 2**63).to_bytes(8, "big")


def text_prefix(value: str) -> bytes:
    """What every text field that starts with ``value`` starts with."""
    return value.encode().replace(b"\0", ESCAPED)


def split_text(key: bytes, offset: int) -> tuple[str, int]:
    """Read back one text field: (value, offset behind it)."""
    end = key.index(TEXT_END, offset)
    return key[offset:end].replace(ESCAPED, b"\0").decode(), end + len(TEXT_END)
