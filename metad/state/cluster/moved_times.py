"""The times in rows that move to another group.

Each log has a time of its own, and two of them may be hours apart. So what crosses from one to the other is how long
ago something was, or how long it lasts. The mover learns at the beginning of an attempt how far the target's log is
ahead of the source's, and puts every time that it sends ahead by just that: what has its deadline in ten minutes there
has it in ten minutes here. One attempt has one difference, also for a row that is sent again, or deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from metad_wire import messages as m
from metad_wire.methods import encode
from metad_wire.tables.consumer import CONSUMER, ConsumerGroupInfo
from metad_wire.tables.offset import OFFSET
from metad_wire.tables.retained import RETAINED, Retained
from metad_wire.tables.session import SESSION
from metad_wire.tables.will import WILL, WillClaimant, WillDue

from ...storage import keys
from ..core.due import DUE


def _places(record: type[Any], *fields: str) -> tuple[int, ...]:
    names = [field.name for field in msgspec.structs.fields(record)]
    return tuple(map(names.index, fields))


TIMES: Final[dict[int, tuple[int, ...]]] = {
    SESSION.rows["owner"]: _places(m.SessionOwner, "disconnected_ms", "expires_ms", "will_ms"),
    WILL.rows["due"]: _places(WillDue, "due_ms"),
    WILL.rows["claim"]: _places(WillClaimant, "until_ms"),
    RETAINED.rows["message"]: _places(Retained, "expires_ms"),
    OFFSET.rows["offset"]: _places(m.Offset, "committed_ms"),
    CONSUMER.rows["group"]: _places(ConsumerGroupInfo, "since_ms"),
}
"""Row -> where its value has times of the log. 0 is none. The rows of what is due have one in their keys."""
_decode = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_time = msgspec.msgpack.Decoder(int).decode


def put_ahead(time_ms: int, ahead_ms: int) -> int:
    """The same moment by a log that is ahead by so much; 0 stays 0."""
    return max(1, time_ms + ahead_ms) if time_ms else 0


def translated(rows: Mapping[bytes, bytes | None], ahead_ms: int) -> dict[bytes, bytes | None]:
    """Rows, by their keys behind the group's prefix, as a log has them that is ahead by so much. None: a deletion."""
    if not ahead_ms:
        return dict(rows)
    found: dict[bytes, bytes | None] = {}
    for key, value in rows.items():
        if key[0] == DUE:
            at_ms = put_ahead(int.from_bytes(key[1:9], "big"), ahead_ms)
            found[key[:1] + keys.u64(at_ms) + key[9:]] = value
        elif value is not None and key[0] in TIMES:
            found[key] = _translated(value, TIMES[key[0]], ahead_ms)
        else:
            found[key] = value
    return found


def _translated(value: bytes, places: tuple[int, ...], ahead_ms: int) -> bytes:
    fields = _decode(value)
    for place in places:
        if place < len(fields) and (time_ms := _decode_time(fields[place])):  # a row may have fewer fields
            fields[place] = msgspec.Raw(encode(put_ahead(time_ms, ahead_ms)))
    return encode(fields)
