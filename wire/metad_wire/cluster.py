"""The cluster map: which nodes there are, which of them hold which group, and which group holds which slot.

One record in ``metadata-0``, with a version that grows with every change. Clients cache it to go straight to each
group's leader; nodes follow it to know what they host.
"""

from __future__ import annotations

import struct
from typing import Final

from .fields import U32, U63
from .messages import Message

SLOTS: Final = 1024
"""Hash buckets of routing keys per group kind. Fixed for the life of a cluster."""

_slots = struct.Struct(f">{SLOTS}H")


def pack_slots(slots: list[int]) -> bytes:
    """Slot -> ordinal of its group, as u16."""
    return _slots.pack(*slots)


def unpack_slots(data: bytes) -> list[int]:
    """The reverse. Raises ValueError where the length is wrong."""
    if len(data) != _slots.size:
        raise ValueError(f"a slot table of {len(data)} bytes, not {_slots.size}")
    return list(_slots.unpack(data))


def group_name(kind: str, ordinal: int) -> str:
    """As in ``data-0``."""
    return f"{kind}-{ordinal}"


class NodeRecord(Message, frozen=True):
    """A member of the cluster. ``store_id`` is of its data directory: one that comes back with another has lost what
    it had promised, and is refused."""

    node_id: str
    endpoint: str  # for clients; empty until it first served
    peer_endpoint: str
    region: str = ""
    store_id: str = ""


class GroupRecord(Message, frozen=True):
    """A group. ``initial`` are the voters it was made with, ``replicas`` those it should have, ``learners`` who should
    follow it without a vote; ``preferred`` leads it when it can."""

    kind: str
    ordinal: U32
    initial: list[str]
    replicas: list[str]
    preferred: str = ""
    learners: list[str] = []  # noqa: RUF012 - msgspec copies it


class ClusterMap(Message, frozen=True):
    """Everything about a cluster that clients and nodes must agree on."""

    version: U63
    nodes: list[NodeRecord]
    groups: list[GroupRecord]
    slots: dict[str, bytes]


class MapRequest(Message, frozen=True):
    """Asks for the map, if it is newer than ``version``."""

    version: U63 = 0


class MapReply(Message, frozen=True):
    """``map`` is None where the asker's is current. ``leaders`` of the groups this node hosts, as far as it knows."""

    version: U63
    map: ClusterMap | None
    leaders: dict[str, str]


class StoreMap(Message, frozen=True):
    """Between a node and its metadata group: replace the map if its version is still ``expected``."""

    expected: U63
    map: ClusterMap


class Join(Message, frozen=True):
    """A node takes part, or says where it is now."""

    node: NodeRecord


class Leave(Message, frozen=True):
    """A node's replicas move elsewhere, then it is forgotten."""

    node_id: str


class Transfer(Message, frozen=True):
    """Hand the leadership of a group to one of its voters."""

    group: str
    to: str


class AddGroup(Message, frozen=True):
    """One more group of a kind, without slots yet."""

    kind: str


class Rebalance(Message, frozen=True):
    """Spread slots, replicas and leaders evenly."""


class Done(Message, frozen=True):
    """It is done, or under way; ``text`` says what."""

    text: str = ""
    version: U63 = 0
