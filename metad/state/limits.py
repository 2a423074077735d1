"""Limits on single records. Breaking one refuses the whole request before anything is done."""

from __future__ import annotations

from metad_wire.errors import InvalidRequestError
from metad_wire.messages import KEY_BYTES_MAX

REPLY_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of records in one reply; what holds more is asked for in parts."""


def reply_share(frame_bytes: int, rows: int, items: int, parts: int) -> int:
    """Bytes of records in the reply of one of ``parts`` groups that holds ``rows`` of a request's ``items``. Half the
    frame is shared by rows, half by groups, for either may hold the larger records; an eighth is for the rest."""
    half = frame_bytes // 16 * 7
    return min(REPLY_BYTES_MAX, half * rows // max(items, 1) + half // parts)


def check_reply(size: int, bytes_max: int) -> None:
    """Raise InvalidRequestError where a reply is getting longer than its share."""
    if size > bytes_max:
        raise InvalidRequestError(f"the reply would be over {bytes_max} bytes: ask for fewer records at once")


def check_key(key: bytes, position: int) -> None:
    """Raise InvalidRequestError where an item's encoded key is too long."""
    if len(key) > KEY_BYTES_MAX:
        raise InvalidRequestError(f"item {position}: its key fields take {len(key)} bytes, {KEY_BYTES_MAX} are allowed")
