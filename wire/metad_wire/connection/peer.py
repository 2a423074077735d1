"""Between the nodes of a cluster: the same frames, another handshake. wire/INTERNAL.md, "Between nodes".

Each node dials each other node and sends on the connections it has dialled; what it receives comes on those the others
dialled. The first frame is a HELLO with a :class:`PeerHello`; the answer is a WELCOME with a :class:`PeerWelcome`, or
an ERROR and the end. Then PEER frames carry what their channel says, REQUESTs are what a client's are, and PINGs are
answered.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from ..errors import ErrorBody
from ..messages import Message
from ..text.fields import U63
from .frame import FRAME_BYTES_MAX

PEER_MAGIC: Final = "metad-peer"
PEER_VERSION: Final = 1
"""The newest that this version speaks."""
PEER_VERSION_OLDEST: Final = 1
"""And the oldest. A version is spoken until every cluster has been upgraded past those that know no other."""
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
    """Always ``metad-peer``."""
    version: U63
    """Oldest version of this section that the node speaks: 1."""
    cluster_id: str
    """Empty before the dialling node's cluster has formed or admitted it; refused if both ends name one and they
    differ."""
    node_id: str
    """Id of the dialling node."""
    store_id: str
    """Id of its data directory; refused if the map has another."""
    target: str
    """Id of the node that it means to reach; empty if unknown."""
    bulk: bool = False  # this connection is for snapshots
    life: U63 = 0  # how often the data directory was started; 0: of an older version
    incarnation: str = ""  # random, of this start
    newest: U63 = 0  # version the dialling node speaks, ``version`` being the oldest; 0: it speaks that one only
    build: str = ""
    """Version and commit of its software, for people; empty from an older one."""
    features: list[str] = []  # noqa: RUF012 - msgspec copies it
    """Features of the cluster that it knows: refused if one is switched on that it does not know."""


class _Greeting(msgspec.Struct, frozen=True, array_like=True):
    """What every first frame begins with, a client's, too."""

    magic: str


class PeerWelcome(Message, frozen=True):
    """Who answers."""

    version: U63
    """The newest version that both speak, used from here on; the connection is refused if there is none."""
    cluster_id: str
    node_id: str
    """Id of the node that answers."""
    store_id: str
    """Id of its data directory."""
    life: U63 = 0
    """As in ``PeerHello``."""
    incarnation: str = ""
    """As in ``PeerHello``."""
    build: str = ""
    """As in ``PeerHello``."""
    features: list[str] = []  # noqa: RUF012
    """As in ``PeerHello``."""


def agreed_version(oldest: int, newest: int) -> int | None:
    """The version that this node and one that speaks these have in common, the newest of them; None where there is
    none."""
    version = min(PEER_VERSION, max(oldest, newest))
    return version if version >= max(PEER_VERSION_OLDEST, oldest) else None


encode = msgspec.msgpack.Encoder().encode
decode_greeting = msgspec.msgpack.Decoder(_Greeting).decode
decode_hello = msgspec.msgpack.Decoder(PeerHello).decode
decode_welcome = msgspec.msgpack.Decoder(PeerWelcome).decode
decode_error = msgspec.msgpack.Decoder(ErrorBody).decode
