"""Between the nodes of a cluster: the same frames, another handshake. wire/PROTOCOL.md, "Between nodes".

Each node dials each other node and sends on the connections it has dialled; what it receives comes on those the others
dialled. The first frame is a HELLO with a :class:`PeerHello`; the answer is a WELCOME with a :class:`PeerWelcome`, or
an ERROR and the end. Then PEER frames carry what their channel says, REQUESTs are what a client's are, and PINGs are
answered.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from .errors import ErrorBody
from .fields import U63
from .frame import FRAME_BYTES_MAX
from .messages import Message

PEER_MAGIC: Final = "metad-peer"
PEER_VERSION: Final = 1
PEER_FRAME_BYTES_MAX: Final = 2 * FRAME_BYTES_MAX
"""One request may be one log entry, and a few more bytes are around it here."""


class Channel(enum.IntEnum):
    """What a PEER frame carries: its ``method`` field."""

    RAFT = 1
    SNAPSHOT = 2


class PeerHello(Message, frozen=True):
    """Who dials. ``target`` is the node it means to reach, empty where it does not know; ``store_id`` that of its data
    directory."""

    magic: str
    version: U63
    cluster_id: str
    node_id: str
    store_id: str
    target: str
    bulk: bool = False  # this connection is for snapshots
    life: U63 = 0  # how often the data directory was started; 0: of an older version
    incarnation: str = ""  # random, of this start


class PeerWelcome(Message, frozen=True):
    """Who answers."""

    version: U63
    cluster_id: str
    node_id: str
    store_id: str
    life: U63 = 0
    incarnation: str = ""


encode = msgspec.msgpack.Encoder().encode
decode_hello = msgspec.msgpack.Decoder(PeerHello).decode
decode_welcome = msgspec.msgpack.Decoder(PeerWelcome).decode
decode_error = msgspec.msgpack.Decoder(ErrorBody).decode
