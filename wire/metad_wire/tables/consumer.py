"""The members of consumer groups: who is in a group, in which generation, and what its leader has assigned to whom.

A group that has members goes from generation to generation. A change of the members begins a *rebalance*: each member
joins the next generation, having let go of what it had, and once all have joined, the generation begins. Its leader
stores what it assigns to each member. Offsets live in the same group of metad, so a commit of an older generation is
fenced from the entry on that begins the next one.
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
MEMBER_PATIENCE_MS_MAX = 10 * 60 * 1000
"""Of both times that a member names: for so long at most it keeps its group from going on without it."""
MEMBER_NAME_BYTES_MAX = 256  # of a member's id, UTF-8 encoded
INSTANCE_BYTES_MAX = 128  # the same of an instance; the id that is made from it is longer
MEMBER_PROTOCOLS_MAX = 16
MEMBER_VALUE_BYTES_MAX = 4_096  # of a member's holder, protocols and metadata together
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
    """A member as read. ``joined`` is the generation it is in, or waits for. ``assignment`` is what the leader of
    generation ``assigned`` gave to it, and counts only while that is the group's generation."""

    tenant: str
    group: str
    member: str
    instance: str
    holder: str
    session_ms: U32
    rebalance_ms: U32
    protocols: list[str]
    metadata: bytes
    joined: U63
    assigned: U63 = 0
    assignment: bytes = b""


class ConsumerGroupInfo(m.Message, frozen=True):
    """A consumer group that has or had members. ``waiting`` of its ``members`` have not joined the next generation;
    they have ``rebalance_ms`` for it. ``common`` are the protocols that all of them know. ``since_ms`` is when it came
    into this state, by the log's time."""

    tenant: str
    group: str
    state: U32
    generation: U63
    protocol: str
    leader: str
    members: U32
    waiting: U32
    rebalance_ms: U32
    since_ms: U63
    common: list[str]
    member_bytes: U32


class JoinItem(m.Message, frozen=True):
    """``member``: its id; empty: the server makes one that was never in use. ``instance``: names the place of a member
    that comes back: whoever joins with it takes the place, and what is assigned to it, from whoever had it.
    ``rebalance``: begin a rebalance even if this member is known and as it was."""

    tenant: str
    group: str
    session_ms: TimeoutMs
    rebalance_ms: TimeoutMs = 60_000
    member: str = ""
    instance: str = ""
    protocols: Protocols = []  # noqa: RUF012 - msgspec copies it
    metadata: bytes = b""
    holder: str = ""
    rebalance: bool = False


class ConsumerJoin(m.Message, frozen=True):
    """Become a member, or join the next generation."""

    items: Batch[JoinItem]


class ConsumerJoinReply(m.Message, frozen=True):
    """By position: the member's id, and the generation that it is in or waits for; empty where the item failed."""

    columns: ClassVar[dict[str, int | None]] = {"members": None, "joined": 0}

    revisions: list[m.Revision]
    errors: list[m.ItemError]
    members: list[str | None]
    joined: list[U63]


class ConsumerHeartbeat(m.Message, frozen=True):
    """Say that members live. Nothing is written."""

    items: Batch[MemberKey]
    min_revisions: m.Revisions = []  # noqa: RUF012


class Beat(m.Message, frozen=True):
    """What a member hears: it is a member for ``session_ms`` from when the request was sent, and what its group
    does."""

    session_ms: U32
    state: U32
    generation: U63


class ConsumerHeartbeatReply(m.Message, frozen=True):
    """By position; None: there is no such member."""

    columns: ClassVar[dict[str, int | None]] = {"beats": None}

    beats: list[Beat | None]
    errors: list[m.ItemError] = []  # noqa: RUF012


class MemberAssignment(m.Message, frozen=True):
    """What one member gets."""

    member: str
    assignment: bytes


class AssignItem(m.Message, frozen=True):
    """What ``member``, the leader of ``generation``, assigns. Members that are not named get nothing."""

    tenant: str
    group: str
    member: str
    generation: U53
    assignments: Assignments


class ConsumerAssign(m.Message, frozen=True):
    """Store the assignments of generations, each once."""

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
    """By position; None where the group never had a member, or where the item failed."""

    columns: ClassVar[dict[str, int | None]] = {"groups": None}

    groups: list[ConsumerGroupInfo | None]
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
