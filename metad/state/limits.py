"""Limits on single records. Breaking one refuses the whole request before anything is done."""

from __future__ import annotations

from metad_wire.errors import InvalidRequestError
from metad_wire.messages import KEY_BYTES_MAX

REPLY_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of records in one reply; what holds more is asked for in parts."""


def check_key(key: bytes, position: int) -> None:
    """Raise InvalidRequestError where an item's encoded key is too long."""
    if len(key) > KEY_BYTES_MAX:
        raise InvalidRequestError(f"item {position}: its key fields take {len(key)} bytes, {KEY_BYTES_MAX} are allowed")
