"""The cluster map: which nodes there are, which of them hold which group, and which group holds which slot.

One record in ``metadata-0``, with a version that grows with every change. Clients cache it to go straight to each
group's leader; nodes follow it to know what they host. And the names of groups. Pure.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from .messages import ItemError, Message, Revision, SessionKey, TenantEnd, TenantMove
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


GROUP_KINDS: Final = ("metadata", "offset", "data")
"""The kinds of groups. Keys on disk have their positions here: only add to the end."""
METADATA: Final = GroupId("metadata", 0)
"""The group that keeps the cluster map, the registry of brokers and the declarations of tables, none of which is in a
slot. Its leader decides about the cluster. Like every group of its kind it also holds slots, and slot 0 for ever: a
watch reads what is in no slot where it reads slot 0."""


_RECOVERED: Final = re.compile(r"(.*)~([1-9][0-9]{0,8})-([0-9a-f]{16})", re.DOTALL)


class ClusterName(NamedTuple):
    """What the id of a cluster says. A cluster whose groups were recovered without a majority gets another id, so that
    nothing of before takes part in it."""

    name: str
    recovered: int = 0
    """How often."""
    mark: str = ""
    """16 hexadecimal digits: which nodes went on, and without whom."""

    @classmethod
    def parse(cls, cluster_id: str) -> ClusterName:
        """Take it apart. An id of any form has a name."""
        found = _RECOVERED.fullmatch(cluster_id)
        return cls(cluster_id) if found is None else cls(found[1], int(found[2]), found[3])

    @property
    def cluster_id(self) -> str:
        """The id."""
        return f"{self.name}~{self.recovered}-{self.mark}" if self.recovered else self.name

    def supersedes(self, other: ClusterName) -> bool:
        """Whether this is what the other one became, or would have: of two recoveries of one cluster exactly one
        supersedes the other."""
        return self.name == other.name and self > other


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
    """A member of the cluster."""

    node_id: str
    endpoint: str
    """``host:port`` for clients; empty until the node first serves."""
    peer_endpoint: str
    """``host:port`` for other nodes."""
    region: str = ""
    """Region of the node."""
    store_id: str = ""
    """Id of its data directory; the node is refused with any other."""
    leaving: bool = False
    """Its replicas move elsewhere, and it gets no new ones."""
    quic_endpoint: str = ""
    """``host:port`` for clients over QUIC; empty: none."""
    features: list[str] = []  # noqa: RUF012 - msgspec copies it
    """The features that its software knows, in order of their names; empty from an older version."""
    drained: bool = False
    """It leads nothing if others can."""


class GroupRecord(Message, frozen=True):
    """Says where a group should be."""

    kind: str
    """``metadata``, ``offset`` or ``data``."""
    ordinal: U32
    """The group's name is kind and ordinal, as in ``data-0``."""
    initial: list[str]
    """Ids of the nodes it was created with."""
    replicas: list[str]
    """Ids of the nodes that should vote in it."""
    preferred: str = ""
    """Id of the node that should lead it whenever it can."""
    learners: list[str] = []  # noqa: RUF012 - msgspec copies it
    """Ids of the nodes that should follow it without a vote."""
    initial_slots: bytes = b""
    """The slots it was created with, as a bit map; never changed."""
    region: str = ""
    """Region whose nodes should lead it; empty: any."""

    @property
    def group_id(self) -> GroupId:
        """The group that this record is about."""
        return GroupId(self.kind, self.ordinal)


MOVES_OF_A_MAP = 10_000
"""The most that one version can order: every slot of a kind moves at most once. A move's number is the version of the
map that orders it times this, plus the move's position."""


class SlotMove(Message, frozen=True):
    """Slots on their way from one group to another of its kind."""

    move: U63
    """Version of the map that ordered it x 10000, plus a number below 10000; moves that share a group are made in this
    order."""
    kind: str
    """Of both groups."""
    source: U32
    """Ordinal of the group that has them."""
    target: U32
    """Ordinal of the group that gets them."""
    slots: bytes
    """Bit map of slots."""

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
    """Grows with every change."""
    nodes: list[NodeRecord]
    groups: list[GroupRecord]
    slots: dict[str, bytes]
    """By kind of group: 1024 u16, big-endian, the ordinal of each slot's group."""
    moves: list[SlotMove] = []  # noqa: RUF012
    """In progress; until a move is done, ``slots`` names its source."""
    cluster_id: str = ""
    """Which cluster this is: decided by whoever forms it, and taken over by every node."""
    replicas: U32 = 0
    """How many voters every group but ``metadata-0`` should have, if there are as many machines. 0: an older version
    formed the cluster; its next leader of ``metadata-0`` notes what is configured."""
    ordinals: dict[str, U32] = {}  # noqa: RUF012
    """By kind, where groups were removed: the least ordinal that none had."""

    def node(self, node_id: str) -> NodeRecord | None:
        """Return the record of a member. None means that the node is no member."""
        return next((record for record in self.nodes if record.node_id == node_id), None)

    def group(self, group: GroupId | None) -> GroupRecord | None:
        """Return the record of a group. None means that the map has no such group."""
        return next((record for record in self.groups if record.group_id == group), None)

    def holders(self, kind: str) -> dict[GroupId, list[int]]:
        """The slots that each group of a kind has, in order, by the groups in order; those without any are left out."""
        found: dict[GroupId, list[int]] = {}
        for slot, ordinal in enumerate(unpack_slots(self.slots[kind])):
            found.setdefault(GroupId(kind, ordinal), []).append(slot)
        return dict(sorted(found.items()))

    def next_ordinal(self, kind: str) -> int:
        """Return the ordinal that the next group of a kind gets: no group has had it before."""
        last = max((record.ordinal for record in self.groups if record.kind == kind), default=-1)
        return max(self.ordinals.get(kind, 0), last + 1)

    def has_removed(self, group: GroupId) -> bool:
        """Whether there was such a group, and it was removed. A group that the map has not heard of was not."""
        return group.ordinal < self.next_ordinal(group.kind) and self.group(group) is None


class MapRequest(Message, frozen=True):
    """A client asks when it connects, and again when an answer shows that its map is outdated."""

    version: U63 = 0
    """Version of the map that the client has."""


class MapReply(Message, frozen=True):
    """The map, if it is newer than the one that the client has, and who leads."""

    version: U63
    """Version of the node's map; 0: the cluster is being formed."""
    map: ClusterMap | None
    """Nil if the client's map is as new."""
    leaders: dict[str, str]
    """By name of each group that has a replica on this node: id of its leader, or empty."""


class StoreMap(Message, frozen=True):
    """Between a node and its metadata group: replace the map if its version is still ``expected``. The first map also
    gives ``metadata-0`` the ``initial_slots`` of its record; until then the group answers ``not_leader`` to requests
    that name it."""

    expected: U63
    """The version to replace; 0: there is no map yet."""
    map: ClusterMap
    """The new map."""


class Moved(Message, frozen=True):
    """Between nodes: the slots of this move are the target's now."""

    move: U63
    """Number of a ``SlotMove`` of the map."""


class ReturnReport(Message, frozen=True):
    """Between nodes: a busy node asks for its part of the cluster's budget of returns. It can answer ``per_s`` items
    per second by its own measure, has answered ``answered_per_s`` lately, and its slots are taken for ``ahead_ms``.
    Without an answer for a second it divides what it can answer by the number of nodes."""

    node_id: str
    """The node that asks, a member of the cluster."""
    per_s: U63
    """Items that it can answer per second, by its own measure."""
    answered_per_s: U63 = 0
    """Items that it has answered per second, since it asked last."""
    ahead_ms: U63 = 0
    """For how long from now on all its slots are taken."""


class ReturnGrant(Message, frozen=True):
    """Let so many items come back per second, for so long from when you asked."""

    per_s: U63
    """Items per second that it may let come back."""
    for_ms: U63
    """For how long, from when it asked."""


class FenceItem(Message, frozen=True):
    """A fence of a broker: its lives with an epoch below ``least_epoch`` are over, since ``age_ms`` ago by the log that
    tells it. ``at_ms`` is that moment by the same log, which means nothing to another; it counts only where an older
    node does not say the age.

    Two fences of a broker are merged: the greater pair of ``least_epoch`` and ``live`` counts, and each of the other
    epochs is the greater one."""

    broker: str
    """Its name."""
    least_epoch: U63
    """The least epoch that may write from now on."""
    at_ms: U63 = 0
    """Since when the lives before are over, by the log that tells it; it counts only without ``age_ms``."""
    age_ms: U63 | None = None
    """How long ago that was, by the log that tells it; nil from an older node."""
    live: bool = False
    """Whether exactly the life ``least_epoch`` is registered and has not ended."""
    unclean_epoch: U63 = 0
    """The newest life that began without all that the one before had; 0: none."""
    quiet_epoch: U63 = 0
    """No life below it serves any more: its lease is over, or it is dead, or gone."""

    @property
    def values(self) -> tuple[int, bool, int, int]:
        """What it says; two fences with the same say the same."""
        return self.least_epoch, self.live, self.unclean_epoch, self.quiet_epoch

    def merged(self, other: FenceItem) -> FenceItem:
        """This one of a broker and another one. The time is that of the higher ``least_epoch``, this one's if they are
        equal."""
        newer = other if other.least_epoch > self.least_epoch else self
        least_epoch, live = max((self.least_epoch, self.live), (other.least_epoch, other.live))
        unclean_epoch = max(self.unclean_epoch, other.unclean_epoch)
        quiet_epoch = max(self.quiet_epoch, other.quiet_epoch)
        return FenceItem(self.broker, least_epoch, newer.at_ms, newer.age_ms, live, unclean_epoch, quiet_epoch)


class GroupFence(Message, frozen=True):
    """Between nodes: the group that the request names does no write any more in the name of lives that are over. It
    merges each fence with the one that it has. ``forget``: fences that the group need not keep, for their brokers
    ended long ago; ``errors`` of the reply has the positions of those it has to keep. They are a ``conflict``: raised
    since, with sessions that look connected, or with partitions that name the broker."""

    items: Batch[FenceItem]
    """To raise."""
    forget: list[FenceItem] = []  # noqa: RUF012
    """To drop."""


class GroupCommand(Message, frozen=True):
    """Between nodes: a step of a slot move, for the log of the group that the request names. ``slots`` is a bit map;
    ``rows`` are keys behind the group prefix, None deletes. ``revision`` of an ``adopt`` is the source's with which it
    sealed, ``sealed_index`` the index in the source's log of the entry that sealed. The times in ``rows`` and ``ends``
    are the target's; ``sealed_ms`` is the seal's time where an older source sends its own instead, and 0 otherwise.
    ``other`` is the ordinal of the other group: of a ``seal`` the target, of an ``adopt`` the source. ``fences`` of an
    ``adopt`` are the source's, as it had them once it had sealed, or later, and so are ``ends``."""

    step: str
    """One of these. Opening an attempt makes all earlier ones void.

    At the target: ``open`` begins an attempt, or answers ``adopted`` if the move is done; ``conflict`` if this
    attempt or a later one was opened, or the group holds or has sealed some of the slots. ``sweep`` deletes rows of
    slots that the group does not hold. ``import`` stores a batch of rows, once; ``conflict`` if the attempt is void
    or it is not the next. ``adopt``: the group holds the slots, and its revision is above ``revision``; ``conflict``
    if the attempt is void or a batch is missing.

    At the source: ``seal``: the group holds the slots no more; ``conflict`` if another move is not closed or it does
    not hold all of them. ``unseal``: it holds them again. ``close``: the move is over. Neither has an effect if the
    move is not sealed.

    At either: ``drop`` deletes rows of slots that the group does not hold; ``conflict`` while another attempt
    imports."""
    move: U63
    """Number of the move; 0 for a ``drop`` outside any move."""
    attempt: U63 = 0
    """Grows with every attempt, whichever node leads the source."""
    batch: U63 = 0
    """With ``import`` and ``adopt``: 1 for the first after ``open``, then without gaps."""
    slots: bytes = b""
    """Bit map of slots."""
    rows: dict[bytes, bytes | None] = {}  # noqa: RUF012
    """Key without its group prefix to row; nil deletes the row. Their times are of the target's log, which is ahead of
    the source's by ``now_ms`` of the reply to ``open`` less the source's time when it sent that."""
    revision: U63 = 0
    """With ``adopt``: revision of the source's ``seal``; 0 from a node that does not know it."""
    other: U32 = 0
    """Ordinal of the other group of the move: with ``seal`` the target, with ``adopt`` the source."""
    sealed_index: U63 = 0
    """With ``adopt``: index in the source's log of the entry of its last ``seal``; 0 from a node that does not know
    it."""
    sealed_ms: U63 = 0
    """With ``adopt``: 0. An older source does not put its rows ahead, and says the time of that entry instead: the time
    of the target's log is not before it."""
    fences: list[FenceItem] = []  # noqa: RUF012
    """With ``adopt``: the fences of the source, as it has them once it has sealed, or later."""
    ends: list[TenantEnd] = []  # noqa: RUF012
    """With ``adopt``: the orders of the source to end tenants, likewise, with times of the target's log; they count for
    the slots of the move."""
    moved: list[TenantMove] = []  # noqa: RUF012
    """With ``adopt``: the tenants that have left the source's cluster, and are refused there."""


class GroupReply(Message, frozen=True):
    """Between nodes: a step was taken, by entry ``index`` of the group's log, whose time is ``now_ms``. ``adopted``:
    nothing was opened, for the group has adopted the move's slots."""

    revisions: list[Revision]
    """Of the entry; none after a ``sweep``, which writes as many entries as it needs."""
    errors: list[ItemError]
    """Always empty."""
    adopted: bool = False
    """After ``open``: nothing was opened, because the group has already adopted the slots of the move."""
    index: U63 = 0
    """Of the entry, in the group's log; 0 after a ``sweep``, and from a node that does not say it."""
    now_ms: U63 = 0
    """The time of the entry; 0 after a ``sweep``, and from a node that does not say it."""


class SessionDue(Message, frozen=True):
    """Something is due of a session: its end, or its will. Or the end of a retained message, where ``client_id`` is the
    topic."""

    tenant: str
    client_id: ClientId
    """Or the topic of a retained message."""
    at_ms: U63
    """The deadline."""
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
    """Fences of which no session is left that looks connected."""
    adopted_move: U63 = 0
    """The last move whose slots the group had adopted when it began to look; after a later one, ``swept`` does not
    count."""
    slots: bytes = b""
    """Bit map of the slots whose sessions were looked at; where the group holds others by then, ``swept`` does not
    count."""
    tenant_moves: U63 = 0
    """How often the leader had seen tenants come, freeze or thaw here when it began to look; where it has by then seen
    it again, ``swept`` does not count."""


class SessionEndItem(Message, frozen=True):
    """A session, a will of a client, or a retained message, where ``client_id`` is the topic."""

    tenant: str
    client_id: ClientId
    """Or the topic of a retained message."""
    id: str = ""
    """Of a will."""


class SessionCopy(Message, frozen=True):
    """Between nodes: data directories of format 3 have no copies of properties beside the counts of sessions. The
    copies of these sessions are written. One that has none to be copied is passed over."""

    items: Batch[SessionKey]
    """What the leader has found."""


class SessionEndStep(Message, frozen=True):
    """Between nodes: the next step of an order to end a tenant, that of the row ``order``, if the order is in ``phase``
    and has come to ``begin``. It then has come to ``cursor``, or through the phase if ``last``; ``items`` are what is
    between, of that phase."""

    items: Batch[SessionEndItem]
    """What the leader has found, of the phase."""
    order: bytes
    """The end of the key of the order's row."""
    phase: U32
    """In which the order is."""
    begin: bytes
    """Its ``cursor``."""
    cursor: bytes
    """How far the leader has looked."""
    last: bool
    """There is no more of this phase."""


class SessionEndStepReply(Message, frozen=True):
    """Between nodes: how many sessions were ended. ``done`` False: nothing was done, because the order has come to
    another place, or slots are sealed."""

    revisions: list[Revision]
    errors: list[ItemError]
    """Always empty."""
    done: bool
    """False: nothing was done, because the order is elsewhere by now, or slots are sealed."""
    sessions: U32 = 0
    """That were ended."""


class SessionSweepReply(Message, frozen=True):
    """Between nodes: how many sessions were ended, how many wills are due, how many items are not due yet, and how many
    retained messages have ended. The others were no more what they had been."""

    revisions: list[Revision]
    errors: list[ItemError]
    """Always empty."""
    ended: U32 = 0
    """Sessions that were ended."""
    wills: U32 = 0
    """Wills that are due now."""
    waiting: U32 = 0
    """Items whose deadline has not passed, or not yet counts (see The time of a log)."""
    retained: U32 = 0
    """Retained messages that have ended."""


class ReadIndex(Message, frozen=True):
    """Between nodes: how far the group's log is committed. The leader answers once it has proven that it leads, by its
    lease or by a round that began after the request came."""


class ReadIndexReply(Message, frozen=True):
    """A replica that has applied ``index`` has everything that was acknowledged before the request came."""

    index: U63
    """Index in the group's log."""


class GroupCompare(Message, frozen=True):
    """Between nodes: asks a replica for the checksum of a part of its state, as it was with entry ``index`` of the log
    applied and none after it. The leader names its newest entry, before it sends a later one. ``conflict`` if the
    replica has applied a later one, or does not come so far in time; ``not_replica`` if it is none."""

    group: str
    """Name of the group."""
    index: U63
    """Index in the group's log."""
    begin: bytes
    """Where the part begins: a key behind the group prefix."""
    rows: U32
    """How many rows the part has at most. It has fewer if they are longer than 2 MiB."""
    doubted: list[str] = []  # noqa: RUF012
    """Ids of the nodes that differed when the part was compared last. They should not be made the leader."""


class GroupSum(Message, frozen=True):
    """What a replica has in a part of its state. What belongs to the replica alone is left out."""

    digest: bytes
    """BLAKE2b of 16 bytes, of the msgpack of each row: an array of key and value."""
    rows: U32
    """In the part."""
    end: bytes = b""
    """Where the next part begins; empty: there is none."""


class GroupRebuild(Message, frozen=True):
    """Between nodes: the leader has found that the state of a replica is not that of the majority. The replica applies
    nothing more and serves no reads, and takes the next snapshot that the leader sends in place of its state. If none
    comes, it goes on as before. ``conflict`` if the replica leads, or takes a snapshot already."""

    group: str
    """Name of the group."""


class GroupRebuilding(Message, frozen=True):
    """The replica waits for the snapshot."""

    index: U63
    """The snapshot must end with this entry or a later one."""


class Join(Message, frozen=True):
    """A node joins the cluster, or reports new addresses. It fails with ``conflict`` if the node was a member with
    another data directory, or if it says that it was one in some map, and has left since. It fails with
    ``invalid_request`` if

    - a node id, region or store id has more than 256, 64 or 64 bytes, or contains invisible characters;
    - an endpoint is not HOST:PORT, or is an unspecified, link-local, multicast or broadcast address.

    This and the methods below fail with ``conflict`` while another change of the map is being made, and with
    ``invalid_request`` if the map would have more than 2 MiB."""

    node: NodeRecord
    member_at: U63 = (
        0  # version of the newest map that the node knows to have it; 0: none. It is not taken in anew then
    )
    """Version of the newest map that the node knows to have it; 0: none. Above 0, it is not taken in anew."""


class Leave(Message, frozen=True):
    """Moves the replicas of a node to other nodes. Once no group needs the node any more, the leader of ``metadata-0``
    removes it from the map, and the node ends. Called again, it removes the node at once, or fails with ``conflict``
    and names the groups that may still need it. A group removes a working replica only after its replacement has
    caught up and votes. So if the replacement is down, the leave waits until it is back or leaves as well.
    ``not_found`` if the node is not a member; ``invalid_request`` if no other node would stay. ``conflict`` also if

    - a group of the node has no majority within reach, or would have none without it;
    - groups would have fewer replicas than now and than the cluster wants, and neither ``fewer`` nor ``lost`` is set,
      or another node is leaving;
    - ``lost`` is set and the node is connected to the leader of ``metadata-0``, or was within the last ten seconds."""

    node_id: str
    fewer: bool = False
    """The node may leave even if groups then have fewer replicas than the cluster wants."""
    lost: bool = False
    """The node leaves only if it is out of reach, and then with fewer replicas too."""


class Transfer(Message, frozen=True):
    """Makes a node the preferred leader of a group. The leader of ``metadata-0`` writes the preference into the map,
    and ``Done`` is the answer to that alone. The group's leader hands over later, once the preferred node is
    reachable and has caught up, and whenever the group is led by another node after that. ``not_found`` if there is
    no such group, ``invalid_request`` if ``to`` is not among the group's ``replicas`` in the map, ``conflict`` if the
    group prefers a region in which ``to`` is not.

    With ``region`` it says instead in which region the group should be led, until that is taken back. While no voter
    there can lead, others do. ``invalid_request`` if no node is in that region; ``conflict`` if the feature
    ``leader-regions`` is not on."""

    group: str
    """Name of the group, as in ``data-0``."""
    to: str
    """Id of the node that should lead; empty with ``region``."""
    region: str | None = None
    """Region whose nodes should lead; empty: those of any region. Nil: this is about ``to``."""


class AddGroup(Message, frozen=True):
    """Adds a group of a kind, without slots. ``invalid_request`` if there are 1024 groups of the kind already."""

    kind: str
    """``metadata``, ``offset`` or ``data``."""


class Rebalance(Message, frozen=True):
    """Spreads slots, replicas and preferred leaders evenly over groups and nodes. ``conflict`` while slots are being
    moved. During a move, requests for slots that are changing hands, and requests to the group that had them, get
    ``stale_route`` with nothing done. The client then gets the map and sends the items to the group that it names."""

    replicas: U32 = 0
    """How many replicas every group should have from now on, at most 15; 0: as many as before."""
    keep_slots: bool = False
    """Slots stay where they are, but for those that groups without slots get. A server that does not know this evens
    all."""


class Drain(Message, frozen=True):
    """Has a node lead nothing, and keep its replicas. This lasts until it is undone, also over restarts. The leader of
    ``metadata-0`` writes it into the map; the node hands over what it leads soon after. ``not_found`` if the node is no
    member; ``conflict`` if it is leaving, or a group would have no voter within reach that may lead."""

    node_id: str
    undo: bool = False
    """The node may lead again, and becomes the preferred leader of its share of groups."""


class MoveSlots(Message, frozen=True):
    """Moves slots to another group. Both serve meanwhile. ``conflict`` while slots move from or to one of the groups.
    ``not_found`` if there is no such group. ``invalid_request`` if the groups are of different kinds, a slot is not the
    group's, slot 0 of kind ``metadata`` would leave ``metadata-0``, or nothing says which slots."""

    to: str = ""
    """Name of the group that gets them; empty: a group that is added for them, of the kind of ``group``."""
    group: str = ""
    """Name of the group that has them; empty: those of ``slots``, whichever groups have them."""
    slots: bytes = b""
    """Bit map of slots; empty: all that ``group`` has."""
    half: bool = False
    """Only the upper half of these."""


class MoveReplica(Message, frozen=True):
    """Moves a replica of a group to another node. That has all rows before the first is taken out.
    ``not_found`` if there is no such group or node. ``invalid_request`` if the group is ``metadata-0``, ``source`` has
    no replica of it, or ``target`` or its machine has one; ``conflict`` if ``target`` is leaving or out of reach."""

    group: str
    """Name of the group."""
    source: str
    """Id of the node that has it."""
    target: str
    """Id of the node that gets it."""


class RemoveGroup(Message, frozen=True):
    """Removes a group without slots. Its replicas on all nodes go, and no other group is called so again.
    ``not_found`` if there never was such a group. ``invalid_request`` if it is ``metadata-0``. ``conflict`` if it has
    slots, or slots move from or to it, or its leader does not say that it has none, or the feature ``removed-groups``
    is not on."""

    group: str
    """Name of the group."""


class Done(Message, frozen=True):
    """A change of the cluster is done, or has begun."""

    text: str = ""
    """What is done, or has begun; for people."""
    version: U63 = 0
    """Version of the map that contains the change; 0: none does."""
