"""The members of consumer groups: who is in a group, in which generation, and what its leader has assigned to whom.

A consumer group whose consumers share work has *members*, in the group of metad that has its offsets. It goes from
generation to generation:

| state | number | meaning |
|---|---|---|
| empty | 0 | it has no members |
| joining | 1 | a rebalance: members join the next generation, and those of this one may still commit |
| assigning | 2 | the generation has begun; its leader has not stored the assignments yet |
| stable | 3 | every member has what the leader assigned |

1. ``consumer.join`` makes a member. A rebalance begins, and the group is *joining*, when a member is new, leaves, is
   sent away, or joins again with other metadata or protocols, or with ``rebalance``.
2. Each member learns of it by its next ``consumer.heartbeat``, or from a watch. It stops its work, commits, and joins
   again with its own id. Joining twice changes nothing.
3. When all members have joined, the next generation begins: the group is *assigning*. The same entry raises the
   generation of the offsets, so that commits of the generation before are fenced. The leader stays if it is still a
   member; otherwise another member leads. The protocol is the first of the leader's that all members know.
4. The leader reads the members (``consumer.members``) and stores once what it assigns to each (``consumer.assign``):
   the group is *stable*. A member reads its own row (``consumer.get``). The assignment counts while ``assigned`` is the
   group's generation.

A member is sent away if it was not heard of for ``session_ms``; if it has not joined a rebalance for ``rebalance_ms``,
or leads and has not assigned for as long. For a rebalance the greatest of all these times among all members counts.
They begin again where those of leases do. A member **must** count its time from when it *sent* the heartbeat that was
acknowledged, as the holder of a lease does, and stop working when it is over.

**Commits.** ``offset.commit`` with ``member`` is stored only if it is a member of the group and the generation is the
group's. While a group has members, no commit raises its generation and nobody can reset it.

**Places.** A member with an ``instance`` that restarts within its ``session_ms`` joins with the same ``instance`` and
without an id. It gets a new id, the place and the assignment of its predecessor, which is no member any more. There is
no rebalance if it has the same protocols and metadata and the group is not *assigning*.

CONSUMER_MEMBERS_MAX, CONSUMER_BYTES_MAX, ASSIGNMENT_BYTES_MAX and the limits of a MEMBER bound a group. No group begins
a generation after JOINED_GENERATION_MAX: reset the generation while it has no members.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from .. import messages as m
from ..key import text, text2
from ..method import For, Lane
from ..table import Shown, Table
from ..text.fields import U32, U53, U63, Batch

MEMBER_TIMEOUT_MS_MIN = 500
MEMBER_TIMEOUT_MS_MAX = 24 * 60 * 60 * 1000
"""``session_ms`` and ``rebalance_ms`` of a member as they are decoded: ``invalid_item``. See MEMBER_PATIENCE_MS_MAX."""
MEMBER_PATIENCE_MS_MAX = 10 * 60 * 1000
"""Of both times that a member names: for so long at most it keeps its group from going on without it."""
MEMBER_NAME_BYTES_MAX = 256
"""A member's id, as UTF-8: ``invalid_item``."""
INSTANCE_BYTES_MAX = 128
"""The instance of a member, as UTF-8: ``invalid_item``."""
MEMBER_PROTOCOLS_MAX = 16
"""Protocols of a member: ``invalid_item``."""
MEMBER_VALUE_BYTES_MAX = 4_096
"""A member's holder, protocols and metadata together: ``invalid_item``."""
CONSUMER_MEMBERS_MAX = 1_000
"""Members of one group: the entry that begins a generation looks at each."""
CONSUMER_BYTES_MAX = 512 * 1024
"""The rows of all members of a group without what is assigned to them, so that one entry can write them."""
ASSIGNMENT_BYTES_MAX = 512 * 1024
"""What a leader assigns to all members of a group together."""
JOINED_GENERATION_MAX = 2**52
"""No group begins a generation after this: a commit without members may name higher ones, and must be reset."""

TimeoutMs = Annotated[int, Meta(ge=MEMBER_TIMEOUT_MS_MIN, le=MEMBER_TIMEOUT_MS_MAX)]
Protocols = Annotated[list[str], Meta(max_length=MEMBER_PROTOCOLS_MAX)]
Assignments = Annotated[list["MemberAssignment"], Meta(max_length=CONSUMER_MEMBERS_MAX)]


class GroupState(enum.IntEnum):
    """What a consumer group does. Stored."""

    EMPTY = 0
    """It has no members."""
    JOINING = 1
    """Members are to join the next generation; those of this one may still commit."""
    ASSIGNING = 2
    """The generation has begun; its leader has not said yet who gets what."""
    STABLE = 3
    """Everybody has what the leader assigned."""


class MemberKey(m.Message, frozen=True):
    """Identity of a member; tenant and group route it, as they do the offsets."""

    tenant: str
    group: str
    member: str


class Member(m.Message, frozen=True):
    """A member as read."""

    tenant: str
    group: str
    member: str
    instance: str
    """Its place; empty: it has none."""
    holder: str
    session_ms: U32
    """How long it may be silent."""
    rebalance_ms: U32
    """For how long it may take to join."""
    protocols: list[str]
    """Those that it knows, the best first."""
    metadata: bytes
    """Its own; for the leader."""
    joined: U63
    """The generation that it is in, or waits for."""
    assigned: U63 = 0
    """The generation in which ``assignment`` was stored; 0: none."""
    assignment: bytes = b""
    """What the leader gave to it."""


class ConsumerGroupInfo(m.Message, frozen=True):
    """A consumer group that has or had members."""

    tenant: str
    group: str
    state: U32
    """A number of the table above."""
    generation: U63
    protocol: str
    """Of the generation; empty: the members named none."""
    leader: str
    """Id of the member; empty: none."""
    members: U32
    waiting: U32
    """Members that have not joined the next generation."""
    rebalance_ms: U32
    """For how long a rebalance may last."""
    since_ms: U63
    """Since when it is in this state, by the log's time."""
    common: list[str]
    """Protocols that all members know, the best first."""
    member_bytes: U32
    """What the members take of CONSUMER_BYTES_MAX."""


class JoinItem(m.Message, frozen=True):
    """One member that joins."""

    tenant: str
    group: str
    session_ms: TimeoutMs
    """How long it may be silent."""
    rebalance_ms: TimeoutMs = 60_000
    """For how long it may take to join the next generation."""
    member: str = ""
    """Its id; empty: the server makes one that was never in use."""
    instance: str = ""
    """The place to take; empty: none."""
    protocols: Protocols = []  # noqa: RUF012 - msgspec copies it
    """Those that it knows, the best first; none: one without a name."""
    metadata: bytes = b""
    holder: str = ""
    rebalance: bool = False
    """Begin a rebalance in any case."""


class ConsumerJoin(m.Message, frozen=True):
    """Item errors: ``quota_exceeded`` if the group is full; ``conflict`` if the member has no protocol in common
    with the others, or no generation can follow; ``fenced`` if another member has taken the place of ``instance``;
    ``not_found`` if there is no member of this id and ``instance``; ``invalid_item`` if the key would be too long,
    or a time is over MEMBER_PATIENCE_MS_MAX. A member that joins gives up what was assigned to it in generations
    before the last."""

    items: Batch[JoinItem]


class ConsumerJoinReply(m.Message, frozen=True):
    """By position: the member's id, and the generation that it is in or waits for; empty where the item failed."""

    columns: ClassVar[dict[str, int | None]] = {"members": None, "joined": 0}

    revisions: list[m.Revision]
    errors: list[m.ItemError]
    members: list[str | None]
    """By position: the id."""
    joined: list[U63]
    """By position: the generation that it is in, or waits for."""


class ConsumerHeartbeat(m.Message, frozen=True):
    """Writes nothing. A leader answers only if it is certain that nobody else leads the group."""

    items: Batch[MemberKey]
    min_revisions: m.Revisions = []  # noqa: RUF012


class Beat(m.Message, frozen=True):
    """What a member hears."""

    session_ms: U32
    """It is a member for so long from when the request was sent."""
    state: U32
    """Of the group."""
    generation: U63
    """Of the group."""


class ConsumerHeartbeatReply(m.Message, frozen=True):
    """By position; nil: there is no such member."""

    columns: ClassVar[dict[str, int | None]] = {"beats": None}

    beats: list[Beat | None]
    """By position; nil also for a member that is being sent away."""
    errors: list[m.ItemError] = []  # noqa: RUF012


class MemberAssignment(m.Message, frozen=True):
    """What one member gets."""

    member: str
    assignment: bytes


class AssignItem(m.Message, frozen=True):
    """Members that are not named get nothing."""

    tenant: str
    group: str
    member: str
    generation: U53
    assignments: Assignments


class ConsumerAssign(m.Message, frozen=True):
    """Stores what a leader assigns to the members of its generation, all in one entry. Members that are not named get
    nothing. Item errors, checked in this order: ``not_found`` if the group has no members; ``fenced`` if
    ``generation`` is not the group's; ``not_owner`` if ``member`` is not its leader; ``conflict`` if the generation
    has its assignment already, or a rebalance has begun; ``not_found`` if one of the members is not there. One
    request has at most 1000 items and assignments."""

    items: Batch[AssignItem]


class ConsumerMembers(m.Message, frozen=True):
    """The members of one group, in order of their ids."""

    tenant: str
    group: str
    page: m.Page = m.Page()
    min_revisions: m.Revisions = []  # noqa: RUF012


class ConsumerDescribe(m.Message, frozen=True):
    """Read groups."""

    items: Batch[m.ConsumerGroup]
    min_revisions: m.Revisions = []  # noqa: RUF012


class ConsumerDescribeReply(m.Message, frozen=True):
    """By position; nil where the group never had a member, or where the item failed."""

    columns: ClassVar[dict[str, int | None]] = {"groups": None}

    groups: list[ConsumerGroupInfo | None]
    """By position; nil if it never had a member, or was deleted since."""
    errors: list[m.ItemError] = []  # noqa: RUF012


class ConsumerExpire(m.Message, frozen=True):
    """End those of these members that are silent by the clock of the leader. An empty ``member``: the rebalance of the
    group, if it has taken too long."""

    items: Batch[MemberKey]


def _key_bytes(item: Any) -> int:
    group = len(text2(item.tenant, item.group))
    return group if isinstance(item, m.ConsumerGroup) else group + len(text(item.member))


def _value_bytes(item: object) -> int:
    if isinstance(item, JoinItem):
        return len(item.holder.encode()) + len(item.metadata) + sum([len(name.encode()) for name in item.protocols])
    return 0


CONSUMER = Table(
    "consumer",
    kind="offset",
    rows={"member": 0x22, "group": 0x23},
    record=Member,
    key=("tenant", "group", "member"),
    routing=("tenant", "group"),
    key_bytes=_key_bytes,
    value_bytes_max=MEMBER_VALUE_BYTES_MAX,
    value_bytes=_value_bytes,
    row_cache=True,
    shows={"member": Shown(MemberKey, Member), "group": Shown(m.ConsumerGroup, ConsumerGroupInfo)},
)


def _groups(items: Any) -> Any:
    """Of each item that names a group: the key of a member that there is not."""
    return [MemberKey(item.tenant, item.group, "") for item in items]


CONSUMER_JOIN = CONSUMER.writes(0x0207, "join", ConsumerJoin, ConsumerJoinReply, Lane.RECORDS)
CONSUMER_HEARTBEAT = CONSUMER.reads(
    0x0208, "heartbeat", ConsumerHeartbeat, ConsumerHeartbeatReply, Lane.CONTROL, repeatable=False
)
CONSUMER_LEAVE = CONSUMER.batches(
    0x0209, "leave", MemberKey, "Let members go, or send them away. Item errors: not_found.", named="members"
)
CONSUMER_ASSIGN = CONSUMER.writes(0x020A, "assign", ConsumerAssign, m.WriteReply, Lane.RECORDS)
CONSUMER_GET = CONSUMER.gets(0x020B, "get", MemberKey, Member, "Each member as it is.")
CONSUMER_MEMBERS = CONSUMER.lists(
    0x020C, "members", ConsumerMembers, Member, "The members of one group, in order of their ids."
)
CONSUMER_DESCRIBE = CONSUMER.reads(
    0x020D, "describe", ConsumerDescribe, ConsumerDescribeReply, Lane.SCANS, keyed=_groups
)
CONSUMER_EXPIRE = CONSUMER.writes(0x021F, "expire", ConsumerExpire, m.WriteReply, Lane.SCANS, whose=For.NODES)
