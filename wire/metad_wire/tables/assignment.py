"""Assignment: which brokers have a partition, and which of them leads it. metad places, elects and moves.

A *resource* (a topic, a connector, a share group, a shard) has *partitions*, numbered from 0. A *member* is one life of
a broker: its name and its epoch. The rows are the tables ``resource`` and ``partition``: they are read, listed, counted
and watched as other tables are, and written by the methods here only. All rows of a resource live in one group of kind
``metadata``. The leader of that group decides about them, by the fences of that group: a broker is *alive* for it while
its last life is registered there and has not ended.

``partition_epoch`` grows with each change of a record. ``leader_epoch`` grows whenever another life leads, or none.
A broker leads a partition only if the record names its own life, and takes the records of a leader only under the
``leader_epoch`` of its record.

**By in-sync replicas** (``election: isr``). The leader proposes who is in sync (``assignment.in_sync``): members that
have all records that were acknowledged. A dead leader is replaced by a member in sync. While fewer than ``min_isr`` are
in sync, those that left are *eligible* (``elr``): they have every acknowledged record, for none is acknowledged then.
With nobody in sync, an eligible one leads in a later life, unless that began *unclean*, without all that it had.

1. A record is acknowledged once all members in sync have it, and these are at least the ``min_isr`` of the record.
2. From a proposal until its outcome is known, *in sync* means those of the record and those proposed, together.
   A newer ``partition_epoch``, or the answer, is the outcome; a lost answer is none.
3. The leader proposes the life with which a follower fetches, not one that it has heard of elsewhere.
4. It adds a follower that has all that is acknowledged, and all from before its own ``leader_epoch``. After
   ``ineligible`` it forgets what it knows of that follower, until that fetches again.

**One owner** (``election: owner``), for tasks and share groups: nobody else serves. A hand-over is cooperative: the
record is ``releasing``, the owner stops, and says so (``assignment.release``). A dead owner is replaced when its lease
is over: when the group knows that it is *quiet*.

**By position** (``election: position``), for masters with asynchronous replicas. When the master is dead, the record is
``electing`` with the next ``leader_epoch``. A replica that learns it takes no record of a lower one any more, and
reports its position (``assignment.report``). Once so many have reported that one of them has every record that
``copies`` brokers acknowledged, the greatest position leads. Fewer suffice if the election is forced; then records may
be lost.

A living master hands over when an administrator wants another, when it drains, or when it is to lose the partition. The
record is ``releasing``: the master takes nothing any more, lets ``target`` fetch the rest, and says by
``assignment.in_sync`` that this life has everything. Then that leads. Otherwise the master goes on after 30 seconds.

While a partition moves, only brokers of ``wanted`` count as copies once the master knows of the move (of ``original``,
once that is cancelled), and it says by ``assignment.in_sync`` who has everything. A life that began unclean has lost
its promise: it reads the record anew before it follows anybody.

**External** (``election: external``): the replicas elect among themselves, and the leader says so
(``assignment.claim``).

``why`` of a record says what changed it last, ``assignment.explain`` what is decided next.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from .. import messages as m
from ..cluster import FenceItem
from ..method import For, Lane, Method
from ..table import Table
from ..text.fields import U32, U63, Batch
from .broker import Attributes
from .table import DueRows

PARTITIONS_MAX = 10_000
"""Partitions of a resource, without trimmed ones."""
REPLICAS_MAX = 16
"""Replicas of a partition, with those that a move adds."""

TERM_STEP_MAX = 2**32
"""A claim's ``term`` is no further above ``leader_epoch``, so that nobody uses up all terms."""

Some = Annotated[int, Meta(ge=1, le=0xFFFF_FFFF)]
Count = Annotated[int, Meta(ge=0, le=PARTITIONS_MAX)]
Copies = Annotated[int, Meta(ge=1, le=REPLICAS_MAX // 2)]
Replicas = Annotated[list[str], Meta(max_length=REPLICAS_MAX)]
Members = Annotated[list[m.Owner], Meta(max_length=REPLICAS_MAX)]
Milliseconds = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Election = Literal["isr", "owner", "position", "external"]
Spread = Literal["rack", "region", "none"]
Labels = Annotated[dict[str, str], Meta(max_length=16)]

ONLINE: Final = "online"
OFFLINE: Final = "offline"
RELEASING: Final = "releasing"
ELECTING: Final = "electing"
SEALED: Final = "sealed"
DELETING: Final = "deleting"
READABLE: Final = "readable"


class ResourceKey(m.Message, frozen=True):
    """Names a resource. Tenant and resource route it."""

    tenant: str
    resource: str
    """Unique within the tenant and the kind."""
    kind: str
    """What it is to its brokers: ``topic``, ``connector``, ``share_group``, ``shard``, or their own word."""


class PartitionKey(ResourceKey, frozen=True):
    """Names a partition."""

    partition: U32
    """From 0."""


class ResourceCreate(m.Message, frozen=True):
    """A resource that is to be made, with all its partitions, in one entry."""

    tenant: str
    resource: str
    kind: str
    partitions: Count = 1
    """How many it has; also those that are only read. All fit one entry, or it is ``too_large``: some 4,000 of three
    replicas. A resource may grow to more."""
    write_partitions: Count | None = None
    """The first so many take new records; nil: all."""
    replication: Copies = 1
    """How many brokers have each partition."""
    min_isr: Copies = 1
    """A record is acknowledged only while so many are in sync."""
    election: Election = "isr"
    """By which of the rules above its leaders are elected."""
    copies: Copies = 1
    """With ``position``: how many brokers have a record when it is acknowledged."""
    force_after_ms: Milliseconds | None = None
    """When so long nobody could lead, a broker may that lacks acknowledged records; nil: an administrator decides."""
    repair_after_ms: Milliseconds = 30 * 60_000
    """When a broker has been dead for so long, another one gets its replicas; 0: never."""
    spread: Spread = "rack"
    """Replicas of a partition are in different ones of these, as far as there are enough."""
    labels: Labels = {}  # noqa: RUF012 - msgspec copies it
    """Attributes that a broker must have to be given a replica, such as ``tier: hot``."""
    attributes: Attributes = {}  # noqa: RUF012
    """Anything else that its brokers should know."""
    replicas: Annotated[list[Replicas], Meta(max_length=PARTITIONS_MAX)] | None = None
    """By partition: where the author wants them, the preferred leader first; nil: metad chooses."""


class Resource(m.Message, frozen=True):
    """A resource as it is. The fields of ``ResourceCreate`` mean the same here."""

    tenant: str
    resource: str
    kind: str
    resource_id: U63
    """No other resource of the cluster gets it, also one of the same name."""
    partitions: U32
    """The number of the last one, and one more; with trimmed ones."""
    first_partition: U32
    """Those before it were trimmed."""
    write_partitions: U32
    replication: Copies
    min_isr: Copies
    election: Election
    copies: Copies
    force_after_ms: U63 | None
    repair_after_ms: U63
    spread: Spread
    labels: Labels
    attributes: Attributes
    state: Literal["active", "deleting"] = "active"
    """A resource that is deleted stays until each broker that has some of it says that it has deleted that."""


class ResourceAlter(m.Message, frozen=True):
    """What is to change of a resource; nil stays as it is."""

    tenant: str
    resource: str
    kind: str
    min_isr: Copies | None = None
    copies: Copies | None = None
    """Fewer only: with more, an election would count on copies that records of before do not have."""
    force_after_ms: Milliseconds | None = None
    """0: never."""
    repair_after_ms: Milliseconds | None = None
    spread: Spread | None = None
    labels: Labels | None = None
    attributes: Attributes | None = None


class ResourceResize(m.Message, frozen=True):
    """How many partitions a resource is to have. Only the tail grows and shrinks. It shrinks in two steps: first fewer
    take records, and once the others are read to their end, they go."""

    tenant: str
    resource: str
    kind: str
    partitions: U32
    write_partitions: U32 | None = None
    """Nil: as many as ``partitions``."""
    first_partition: U32 | None = None
    """Those before it are deleted; nil: as it is. For shards whose old segments go."""
    replicas: Annotated[list[Replicas], Meta(max_length=PARTITIONS_MAX)] | None = None
    """Of each new partition; nil: metad chooses."""


class Move(m.Message, frozen=True):
    """A change of replicas that is under way."""

    original: Replicas
    """Who had the partition before."""
    wanted: Replicas
    """Who is to have it."""
    throttle_bytes: U63 | None = None
    """So many bytes a second each broker may copy; nil: any."""
    cancelling: bool = False
    """Whether those that were added are to go again."""


class Report(m.Message, frozen=True):
    """The position of a replica that has promised to take nothing of a lower ``leader_epoch`` than the record's."""

    member: m.Owner
    last_epoch: U63
    """The ``leader_epoch`` of its last record."""
    length: U63
    """How many records it has."""


class Partition(m.Message, frozen=True):
    """A partition as it is."""

    tenant: str
    resource: str
    kind: str
    partition: U32
    resource_id: U63
    """Of its resource; of a partition that came later, one of its own. With the number of the partition it tells all
    partitions apart that there ever were."""
    replicas: Replicas
    """Brokers that have it, or are to get it; the first one is the preferred leader."""
    leader: m.Owner | None
    """The life that leads; nil: none does."""
    leader_epoch: U63
    """Grows whenever another life leads, or none."""
    partition_epoch: U63
    """Grows with each change of the record."""
    isr: Members
    """Lives that are in sync."""
    elr: Members = []  # noqa: RUF012
    """Lives that have every acknowledged record, though they are not in sync. With ``position``: the lives whose
    reports count, as far as they did not begin unclean since."""
    min_isr: Copies = 1
    """A leader learns it with those in sync."""
    state: Literal["online", "readable", "releasing", "electing", "offline", "sealed", "deleting"] = "online"
    """``online``: it has a leader; ``readable``: none, but a replica lives; ``offline``: nobody has it that lives;
    ``releasing``: its owner or master is to stop, for ``target``; ``electing``: replicas report; ``sealed``: it ends at
    ``end``; ``deleting``: its replicas delete it."""
    target: str = ""
    """The broker that is to own or lead it next."""
    move: Move | None = None
    """The change of replicas that is under way."""
    plan: str | None = None
    """The plan that moves it; nil: none does."""
    reports: Annotated[list[Report], Meta(max_length=REPLICAS_MAX)] = []  # noqa: RUF012
    """While it is ``electing``."""
    end: U63 | None = None
    """Of a sealed one: how many records it has."""
    missing: Replicas = []  # noqa: RUF012
    """While nobody may lead: who was in sync last. After a forced election: who may have had records that are lost."""
    why: str = ""
    """What changed it last, for people."""
    changed_ms: U63 = 0
    """Unix time of the last change of its leader or state, by the group's log."""
    due_ms: U63 = 0
    """When the group looks at it again, by its log; 0: when something changes."""
    election: Election = "isr"
    """Of its resource: how its leader is elected."""


class InSync(m.Message, frozen=True):
    """The leader says who is in sync."""

    tenant: str
    resource: str
    kind: str
    partition: U32
    broker: str
    """The leader's own life."""
    broker_epoch: U63
    leader_epoch: U63
    partition_epoch: U63
    """Of the record that it knows."""
    isr: Members
    """It is one of them itself."""


class Release(m.Message, frozen=True):
    """A broker has stopped: the owner of a partition that is ``releasing``, or of one that it does not want to own any
    longer; or a replica that has deleted what it had of one that is ``deleting``."""

    tenant: str
    resource: str
    kind: str
    partition: U32
    broker: str
    broker_epoch: U63
    leader_epoch: U63
    """Of the record that it knows."""


class ReportPosition(m.Message, frozen=True):
    """A replica has promised ``leader_epoch``, and has this position."""

    tenant: str
    resource: str
    kind: str
    partition: U32
    broker: str
    broker_epoch: U63
    leader_epoch: U63
    """Of the record that is ``electing``."""
    last_epoch: U63
    """The ``leader_epoch`` of its last record."""
    length: U63
    """How many records it has."""


class Claim(m.Message, frozen=True):
    """The replicas have elected this broker, in a term of their own."""

    tenant: str
    resource: str
    kind: str
    partition: U32
    broker: str
    broker_epoch: U63
    term: U63
    """Becomes the ``leader_epoch``: greater than before."""


class Seal(m.Message, frozen=True):
    """The leader ends a partition. With ``successor`` the next one begins in the same entry: the resource grows by
    one."""

    tenant: str
    resource: str
    kind: str
    partition: U32
    broker: str
    broker_epoch: U63
    leader_epoch: U63
    end: U63
    """How many records it has."""
    successor: bool = True


class Elect(m.Message, frozen=True):
    """Let a partition have another leader."""

    tenant: str
    resource: str
    kind: str
    partition: U32
    broker: str = ""
    """It; empty: the first of the replicas that can."""
    force: bool = False
    """Whether it may lack acknowledged records."""


class MovePartition(PartitionKey, frozen=True):
    """Give a partition to these brokers, or give up what moves it."""

    wanted: Replicas
    """The preferred leader first; none: the move that is under way is cancelled."""


class Candidate(m.Message, frozen=True):
    """A broker that has a partition, or could, and what it lacks to lead it."""

    broker: str
    broker_epoch: U63
    """Of its life; 0: none lives."""
    lacks: str
    """For people; empty: nothing."""


class Explanation(m.Message, frozen=True):
    """What a group knows of a partition, and what it decides."""

    tenant: str
    resource: str
    kind: str
    partition: U32
    state: str
    why: str
    """What changed it last."""
    next: str
    """What is decided next, and what that waits for."""
    candidates: Annotated[list[Candidate], Meta(max_length=REPLICAS_MAX)]
    due_ms: U63 = 0


class Due(m.Message, frozen=True):
    """Something that was due, and is not any more."""

    at_ms: U63
    """When, by the group's log."""
    key: bytes
    """Of a resource or partition, as it is on disk."""


class ResourceDone(ResourceKey, frozen=True):
    """All partitions of a resource have followed its change."""

    version: U63
    """Of the record that they follow."""
    at_ms: U63
    """Since when it was due."""
    empty: bool = False
    """Whether it has no partitions any more."""


class PlannedMove(MovePartition, frozen=True):
    """A move that a plan begins."""

    plan: str
    """Its name."""
    throttle_bytes: U63 | None = None
    """That of the plan."""


class AssignmentStep(m.Message, frozen=True):
    """Between nodes: look at these partitions, and decide."""

    items: Batch[PartitionKey]
    """They are judged by what the group knows now."""
    due: Batch[Due] = []  # noqa: RUF012
    """What led to them."""
    done: Batch[ResourceDone] = []  # noqa: RUF012
    """Resources that need no further look."""
    moves: Batch[PlannedMove] = []  # noqa: RUF012
    """Those that cannot begin any more are left out."""
    stepped: Batch[FenceItem] = []  # noqa: RUF012
    """Brokers all of whose partitions were gone through, with their fences as they were then. It counts only if no
    slots have come since."""
    slots: bytes = b""
    """Bit map of those that the group held then."""
    adopted_move: U63 = 0
    """The move that had brought the last of them; 0: none had."""


ASSIGNMENT = Table(
    "assignment",
    kind="metadata",
    rows={},
    record=ResourceKey,
    key=("tenant", "resource", "kind"),
    routing=("tenant", "resource"),
)
"""Has no rows of its own: those are in the tables ``resource`` and ``partition``."""
ASSIGNMENT_DUES = DueRows("assignment_due", rows={"due": 0x64}, kind="metadata")
"""When a group looks at a partition again: the time by its log, and the key of the partition."""


def _batches(
    code: int, verb: str, item: type[Any], about: str, *, named: str = "items", whose: For = For.CLIENTS
) -> Method[m.Items[Any], m.WriteReply]:
    return ASSIGNMENT.batches(code, verb, item, about, named=named, whose=whose)


ASSIGNMENT_CREATE = _batches(
    0x0701,
    "create",
    ResourceCreate,
    "Make resources. Item errors: conflict (there is one), no_place, invalid_item, quota_exceeded.",
    named="resources",
)
ASSIGNMENT_ALTER = _batches(
    0x0702, "alter", ResourceAlter, "Change resources. Item errors: not_found, conflict, invalid_item."
)
ASSIGNMENT_RESIZE = _batches(
    0x0703,
    "resize",
    ResourceResize,
    "Give resources more partitions, or fewer. Item errors: not_found, conflict, no_place, invalid_item.",
)
ASSIGNMENT_DELETE = _batches(
    0x0704, "delete", ResourceKey, "Delete resources, in two phases. Item errors: not_found.", named="keys"
)
ASSIGNMENT_IN_SYNC = _batches(
    0x0705,
    "in_sync",
    InSync,
    "Say who is in sync. Item errors: not_found, fenced, conflict, no_replica, ineligible.",
)
ASSIGNMENT_RELEASE = _batches(
    0x0706, "release", Release, "Give partitions back. Item errors: not_found, fenced, conflict."
)
ASSIGNMENT_REPORT = _batches(
    0x0707, "report", ReportPosition, "Report positions. Item errors: not_found, fenced, conflict, no_replica."
)
ASSIGNMENT_CLAIM = _batches(
    0x0708, "claim", Claim, "Say who was elected elsewhere. Item errors: not_found, fenced, conflict, no_replica."
)
ASSIGNMENT_SEAL = _batches(
    0x0709, "seal", Seal, "End partitions, and begin the next ones. Item errors: not_found, fenced, conflict, no_place."
)
ASSIGNMENT_ELECT = _batches(
    0x070A,
    "elect",
    Elect,
    "Let partitions have other leaders. Item errors: not_found, conflict, no_candidate.",
    whose=For.ADMINS,
)
ASSIGNMENT_MOVE = _batches(
    0x070B,
    "move",
    MovePartition,
    "Move partitions, or cancel that. Item errors: not_found, conflict, invalid_item, no_replica.",
    whose=For.ADMINS,
)
ASSIGNMENT_EXPLAIN = ASSIGNMENT.gets(
    0x070C, "explain", PartitionKey, Explanation, "What is decided about each partition, and why."
)
ASSIGNMENT_STEP = ASSIGNMENT.writes(0x070D, "step", AssignmentStep, m.WriteReply, Lane.CONTROL, whose=For.NODES)
