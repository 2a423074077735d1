"""The cluster map: which nodes there are, which of them hold which group, and which group holds which slot.

One record in ``metadata-0``, with a version that grows with every change. Clients cache it to go straight to each
group's leader; nodes follow it to know what they host. And the names of groups. Pure.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from .messages import ItemError, Message, Revision, SessionKey, TenantEnd
from .text.fields import U32, U63, Batch, ClientId

_NAME: Final = re.compile(r"([a-z]+)-(0|[1-9][0-9]{0,4})")


class GroupId(NamedTuple):
    """A group: its kind, and its number among the groups of that kind."""

    kind: str
    ordinal: int

    @property
    def name(self) -> str:
        """The text form, as in ``data-0``."""
        return f"{self.kind}-{self.ordinal}"

    @classmethod
    def parse(cls, name: str) -> GroupId | None:
        """Return the group that is called so. None means that no group can have this name."""
        found = _NAME.fullmatch(name)
        return None if found is None else cls(found[1], int(found[2]))


METADATA: Final = GroupId("metadata", 0)
"""The group that keeps the cluster map. Its leader decides about the cluster."""


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


def slot_bits(slots: Iterable[int]) -> bytes:
    """A bit map of slots; the first is the highest bit of the first byte."""
    bits = 0
    for slot in slots:
        bits |= 1 << (SLOTS - 1 - slot)
    return bits.to_bytes(SLOTS // 8, "big")


def slots_in(bits: bytes) -> list[int]:
    """The reverse."""
    number = int.from_bytes(bits, "big")
    return [slot for slot in range(SLOTS) if number >> (SLOTS - 1 - slot) & 1]


def slots_count(bits: bytes) -> int:
    """How many slots a bit map holds."""
    return int.from_bytes(bits, "big").bit_count()


def machine_of(node: str) -> str:
    """The machine that a node is on: workers of one node share what is before the slash."""
    return node.partition("/")[0]


def machine_count(nodes: Iterable[str]) -> int:
    """How many machines these nodes are on."""
    return len({machine_of(node) for node in nodes})


class NodeRecord(Message, frozen=True):
    """A member of the cluster. ``store_id`` is of its data directory: one that comes back with another has lost what
    it had promised, and is refused."""

    node_id: str
    endpoint: str  # for clients; empty until it first served
    peer_endpoint: str
    region: str = ""
    store_id: str = ""
    leaving: bool = False  # it gets nothing new, and goes once it has nothing left
    quic_endpoint: str = ""  # for clients over QUIC; empty where there is none


class GroupRecord(Message, frozen=True):
    """A group. ``initial`` are the voters it was made with, ``replicas`` those it should have, ``learners`` who should
    follow it without a vote; ``preferred`` leads it when it can."""

    kind: str
    ordinal: U32
    initial: list[str]
    replicas: list[str]
    preferred: str = ""
    learners: list[str] = []  # noqa: RUF012 - msgspec copies it
    initial_slots: bytes = b""  # bit map of the slots it was made with

    @property
    def group_id(self) -> GroupId:
        """The group that this record is about."""
        return GroupId(self.kind, self.ordinal)


class SlotMove(Message, frozen=True):
    """Slots on their way from one group to another of its kind. ``slots`` is a bit map; moves are numbered by the
    version of the map that ordered them."""

    move: U63
    kind: str
    source: U32
    target: U32
    slots: bytes

    @property
    def source_id(self) -> GroupId:
        """The group that the slots leave."""
        return GroupId(self.kind, self.source)

    @property
    def target_id(self) -> GroupId:
        """The group that the slots go to."""
        return GroupId(self.kind, self.target)


class ClusterMap(Message, frozen=True):
    """Everything about a cluster that clients and nodes must agree on."""

    version: U63
    nodes: list[NodeRecord]
    groups: list[GroupRecord]
    slots: dict[str, bytes]
    moves: list[SlotMove] = []  # noqa: RUF012
    cluster_id: str = ""
    """Which cluster this is: decided by whoever forms it, and taken over by every node."""
    replicas: U32 = 0
    """How many voters every group but ``metadata-0`` should have, if there are as many machines. 0: an older version
    formed the cluster, and its next leader of ``metadata-0`` notes what is configured there."""

    def node(self, node_id: str) -> NodeRecord | None:
        """Return the record of a member. None means that the node is no member."""
        return next((record for record in self.nodes if record.node_id == node_id), None)

    def group(self, group: GroupId | None) -> GroupRecord | None:
        """Return the record of a group. None means that the map has no such group."""
        return next((record for record in self.groups if record.group_id == group), None)


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


class Moved(Message, frozen=True):
    """Between nodes: the slots of this move are the target's now."""

    move: U63


class ReturnReport(Message, frozen=True):
    """Between nodes: a busy node asks for its part of the cluster's budget of returns. It can answer ``per_s`` items
    per second by its own measure, has answered ``answered_per_s`` lately, and its slots are taken for ``ahead_ms``."""

    node_id: str
    per_s: U63
    answered_per_s: U63 = 0
    ahead_ms: U63 = 0


class ReturnGrant(Message, frozen=True):
    """Let so many items come back per second, for so long from when you asked."""

    per_s: U63
    for_ms: U63


class FenceItem(Message, frozen=True):
    """A fence of a broker: its lives with an epoch below ``least_epoch`` are over, since ``age_ms`` ago by the log that
    tells it. ``at_ms`` is that moment by the same log, which means nothing to another; it counts only where an older
    node does not say the age."""

    broker: str
    least_epoch: U63
    at_ms: U63 = 0
    age_ms: U63 | None = None


class GroupFence(Message, frozen=True):
    """Between nodes: the group that the request names does no write any more in the name of lives that are over. A
    fence that is as high already stays as it is. ``forget``: fences that the group need not keep, for their brokers
    ended long ago; ``errors`` of the reply has the positions of those it has to keep."""

    items: Batch[FenceItem]
    forget: list[FenceItem] = []  # noqa: RUF012


class GroupCommand(Message, frozen=True):
    """Between nodes: a step of a slot move, for the log of the group that the request names. ``slots`` is a bit map;
    ``rows`` are keys behind the group prefix, None deletes. ``revision`` of an ``adopt`` is the source's with which it
    sealed, ``sealed_index`` the index in the source's log of the entry that sealed. The times in ``rows`` and ``ends``
    are the target's; ``sealed_ms`` is the seal's time where an older source sends its own instead, and 0 otherwise.
    ``other`` is the ordinal of the other group: of a ``seal`` the target, of an ``adopt`` the source. ``fences`` of an
    ``adopt`` are the source's, as it had them once it had sealed, or later, and so are ``ends``."""

    step: str
    move: U63
    attempt: U63 = 0
    batch: U63 = 0
    slots: bytes = b""
    rows: dict[bytes, bytes | None] = {}  # noqa: RUF012
    revision: U63 = 0
    other: U32 = 0
    sealed_index: U63 = 0
    sealed_ms: U63 = 0
    fences: list[FenceItem] = []  # noqa: RUF012
    ends: list[TenantEnd] = []  # noqa: RUF012


class GroupReply(Message, frozen=True):
    """Between nodes: a step was taken, by entry ``index`` of the group's log, whose time is ``now_ms``. ``adopted``:
    nothing was opened, for the group has adopted the move's slots."""

    revisions: list[Revision]
    errors: list[ItemError]
    adopted: bool = False
    index: U63 = 0
    now_ms: U63 = 0


class SessionDue(Message, frozen=True):
    """Something is due of a session: its end, or its will. Or the end of a retained message, where ``client_id`` is the
    topic."""

    tenant: str
    client_id: ClientId
    at_ms: U63
    kind: U32  # 1: its will, 2: its end, 3: the end of a retained message


class SessionSweep(Message, frozen=True):
    """Between nodes: end those of these sessions and retained messages whose time has come, and have the wills
    published."""

    items: Batch[SessionDue]


class SessionLose(Message, frozen=True):
    """Between nodes: the clients of those of these sessions are away whose broker's life is over. ``swept``: of these
    fences no session is left that looks connected, if the group still holds ``slots``, the bit map of those that were
    looked at, and has adopted none since ``adopted_move``."""

    items: Batch[SessionKey]
    swept: list[FenceItem] = []  # noqa: RUF012
    adopted_move: U63 = 0
    slots: bytes = b""


class SessionEndItem(Message, frozen=True):
    """A session, a will of a client, or a retained message, where ``client_id`` is the topic."""

    tenant: str
    client_id: ClientId
    id: str = ""


class SessionEndStep(Message, frozen=True):
    """Between nodes: the next step of an order to end a tenant, that of the row ``order``, if the order is in ``phase``
    and has come to ``begin``. It then has come to ``cursor``, or through the phase if ``last``; ``items`` are what is
    between, of that phase."""

    items: Batch[SessionEndItem]
    order: bytes
    phase: U32
    begin: bytes
    cursor: bytes
    last: bool


class SessionEndStepReply(Message, frozen=True):
    """Between nodes: how many sessions were ended. ``done`` False: nothing was done, because the order has come to
    another place, or slots are sealed."""

    revisions: list[Revision]
    errors: list[ItemError]
    done: bool
    sessions: U32 = 0


class SessionSweepReply(Message, frozen=True):
    """Between nodes: how many sessions were ended, how many wills are due, how many items are not due yet, and how many
    retained messages have ended. The others were no more what they had been."""

    revisions: list[Revision]
    errors: list[ItemError]
    ended: U32 = 0
    wills: U32 = 0
    waiting: U32 = 0
    retained: U32 = 0


class ReadIndex(Message, frozen=True):
    """Between nodes: how far the group's log is committed. The leader answers once it has proven that it leads, by its
    lease or by a round that began after the request came."""


class ReadIndexReply(Message, frozen=True):
    """A replica that has applied ``index`` has everything that was acknowledged before the request came."""

    index: U63


class Join(Message, frozen=True):
    """A node takes part, or says where it is now."""

    node: NodeRecord
    member_at: U63 = (
        0  # version of the newest map that the node knows to have it; 0: none. It is not taken in anew then
    )


class Leave(Message, frozen=True):
    """A node's replicas move elsewhere, then it is forgotten."""

    node_id: str
    fewer: bool = False  # even if groups then have fewer replicas than the cluster wants
    lost: bool = False  # only if the node is out of reach


class Transfer(Message, frozen=True):
    """Hand the leadership of a group to one of its voters."""

    group: str
    to: str


class AddGroup(Message, frozen=True):
    """One more group of a kind, without slots yet."""

    kind: str


class Rebalance(Message, frozen=True):
    """Spread slots, replicas and leaders evenly."""

    replicas: U32 = 0  # that every group should have from now on; 0: as many as before


class Done(Message, frozen=True):
    """It is done, or under way; ``text`` says what."""

    text: str = ""
    version: U63 = 0
