"""What a peer's payload is before any rule of Raft sees it: messages that are written for, or an error.

The rules take for granted that terms only grow within a log, and that numbers are what they count. A peer is another
process, perhaps of another version, perhaps not one of ours at all: what breaks this costs it its connection, and must
not stop the node that it was sent to.
"""

from __future__ import annotations

import struct
from itertools import repeat
from typing import Final

import msgspec

from metad_wire.method import MALFORMED

from .log.journal import CONFIGURATION, HEADER, REGULAR
from .messages import AnyMessage, Append, Configuration, Snapshot

TERM_JUMP_MAX: Final = 1 << 24
"""How far above its own a replica believes a term. A term is taken over before anything else and never taken back, so
one message of term 2**62 would leave a group no terms to elect in. The honest jump is the number of elections that a
replica has missed: 2**24, at the default timeout, are a hundred days in which its group does nothing but elect. Who
climbs to the last term in such steps has 2**39 of them to make."""

_decode = msgspec.msgpack.Decoder(list[tuple[bytes, AnyMessage]]).decode
_decode_configuration = msgspec.msgpack.Decoder(Configuration).decode


class PeerProtocolError(Exception):
    """A peer has sent what no node of this cluster sends."""


def decode_payload(payload: bytes) -> list[tuple[bytes, AnyMessage]]:
    """Messages, each with its group's prefix. Raises PeerProtocolError."""
    try:
        messages = _decode(payload)
        for _, message in messages:
            if isinstance(message, Append):
                _check_records(message)
            elif isinstance(message, Snapshot) and message.index_term > message.term:
                raise PeerProtocolError(f"a snapshot of term {message.index_term} in term {message.term}")
    except (*MALFORMED, struct.error) as error:
        raise PeerProtocolError(f"unreadable: {error}") from None
    return messages


def _check_records(message: Append) -> None:
    before = message.prev_term
    if before > message.term:
        raise PeerProtocolError(f"an append behind term {before} in {message.term}")
    plain = HEADER.pack(message.term, REGULAR)
    if all(map(bytes.startswith, message.records, repeat(plain))):  # as nearly all are, and not a loop of Python
        return
    for record in message.records:
        term, kind = HEADER.unpack_from(record)
        if not before <= term <= message.term or kind > CONFIGURATION:
            raise PeerProtocolError(f"a record of term {term} and kind {kind} behind term {before} in {message.term}")
        if kind == CONFIGURATION:
            _decode_configuration(record[HEADER.size :])
        before = term
