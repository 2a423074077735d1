"""Wills that are due: what brokers claim, publish and acknowledge. They outlive the sessions that they come from."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .. import messages as m
from ..method import For, Lane
from ..session_part import part_keys
from ..table import Shown, Table
from ..text.fields import BATCH_ITEMS_MAX, U32, U63, Batch, ClientId
from .session import SESSION

WILL_LEASE_MS_MAX = 3_600_000  # a claimant that died holds wills back for so long at most
WILL_WAIT_MS_MAX = 60_000  # a broker that is gone without a word is remembered for so long at most

LeaseMs = Annotated[int, Meta(ge=1, le=WILL_LEASE_MS_MAX)]
WaitMs = Annotated[int, Meta(ge=0, le=WILL_WAIT_MS_MAX)]
ClaimLimit = Annotated[int, Meta(ge=1, le=BATCH_ITEMS_MAX)]


class WillKey(m.Message, frozen=True):
    """Identity of a will that is due; (tenant, client_id) routes it. ``id`` tells it from the client's other ones, and
    a later one is greater."""

    tenant: str
    client_id: ClientId
    id: str


class WillDue(m.Message, frozen=True):
    """A will, and since when it is due, in the time of the group's log."""

    will: m.Will
    due_ms: U63


class WillClaimant(m.Message, frozen=True):
    """The life of a broker that has claimed a will until a time of the group's log, as the ``claims``-th one."""

    broker: str
    broker_epoch: U63
    until_ms: U63
    claims: U32


class DueWill(m.Message, frozen=True):
    """A will that is due, as listed. ``claimant`` is the last one; None: nobody has claimed it."""

    tenant: str
    client_id: ClientId
    id: str
    will: m.Will
    due_ms: U63
    claimant: WillClaimant | None = None


class WillClaim(m.Message, frozen=True):
    """Claim up to ``limit`` wills of a group for ``lease_ms``, behind ``cursor``: those that nobody has claimed, and
    those whose claim is over because it is late, or because its broker's life is."""

    broker: str
    broker_epoch: U63
    lease_ms: LeaseMs
    limit: ClaimLimit = 100
    tenant: str | None = None
    cursor: bytes = b""


class ClaimedWill(m.Message, frozen=True):
    """One will that a broker has claimed. ``claims`` counts all claims of it: with more than one, an earlier claimant
    may have published it."""

    tenant: str
    client_id: ClientId
    id: str
    claims: U32


class WillClaimReply(m.Message, frozen=True):
    """``wills[i]`` is what ``claimed[i]`` is about; None if a retry finds it acknowledged. There may be more behind
    ``cursor``, even if this reply has none; empty: the group has no more."""

    revisions: list[m.Revision]
    claimed: list[ClaimedWill]
    wills: list[WillDue | None]
    cursor: bytes


class WillWait(m.Message, frozen=True):
    """Wait for ``wait_ms`` until it is this broker's turn to claim wills of a group. The group has one turn at a time,
    and gives it to the one of those who wait that has waited the longest, when there is a will behind ``cursor`` that
    may be claimed. ``tenant`` matches exactly (None: any)."""

    broker: str
    broker_epoch: U63
    wait_ms: WaitMs = 0
    tenant: str | None = None
    cursor: bytes = b""
    min_revisions: m.Revisions = []  # noqa: RUF012 - msgspec copies it


class WillWaitReply(m.Message, frozen=True):
    """``claimable``: it is the broker's turn, and a claim behind ``cursor`` finds wills unless somebody else is first.
    Otherwise the wait is over, and there may be wills behind ``cursor`` if it is not empty. ``others``: without a wait,
    there are wills that cannot be claimed now."""

    claimable: bool
    cursor: bytes
    others: bool = False


class WillAcknowledge(m.Message, frozen=True):
    """These wills are published: they are dropped. Item errors: not_found (it was acknowledged before), conflict
    (another life has claimed it since, or this one never did)."""

    broker: str
    broker_epoch: U63
    items: Batch[WillKey]


class WillRelease(m.Message, frozen=True):
    """These wills were not published: others may claim them at once. Item errors are those of an acknowledgement."""

    broker: str
    broker_epoch: U63
    items: Batch[WillKey]


class WillExpire(m.Message, frozen=True):
    """Between nodes: drop those of these wills that are due for ``keep_ms`` and that nobody has claimed, or whose claim
    is over."""

    items: Batch[WillKey]
    keep_ms: U63


class WillExpireReply(m.Message, frozen=True):
    """Between nodes: how many of them were dropped."""

    revisions: list[m.Revision]
    errors: list[m.ItemError]
    dropped: U32 = 0


class WillList(m.Message, frozen=True):
    """Wills that are due, in order of (tenant, client_id, id). ``tenant`` matches exactly (None: any);
    ``client_id_prefix`` needs a tenant. ``slots`` and ``after`` are those of a SessionList. ``claimable_by``: only
    those that this life of a broker could claim now."""

    tenant: str | None = None
    client_id_prefix: ClientId = ""
    page: m.Page = m.Page()
    min_revisions: m.Revisions = []  # noqa: RUF012 - msgspec copies it
    slots: bytes = b""
    after: WillKey | None = None
    claimable_by: m.Owner | None = None


WILL = Table(
    "will",
    kind="data",
    rows={"due": 0x16, "claim": 0x19},
    record=DueWill,
    key=("tenant", "client_id", "id"),
    routing=("tenant", "client_id"),
    shows={"due": Shown(WillKey, WillDue), "claim": Shown(WillKey, WillClaimant)},
    crcs=SESSION.crcs,
    keys=part_keys(SESSION, "id"),
)
"""``due``: the will. ``claim``: who has claimed it last, so that a claim does not write the will again."""
WILL_CLAIM = WILL.writes(0x0130, "claim", WillClaim, WillClaimReply, Lane.RECORDS, routed=False)
WILL_ACKNOWLEDGE = WILL.writes(0x0131, "acknowledge", WillAcknowledge, m.WriteReply, Lane.RECORDS)
WILL_RELEASE = WILL.writes(0x0132, "release", WillRelease, m.WriteReply, Lane.RECORDS)
WILL_LIST = WILL.lists(
    0x0133,
    "list",
    WillList,
    DueWill,
    "The wills that are due, in order of (tenant, client id, id). ``tenant`` matches exactly, None matches any; "
    "``client_id_prefix`` needs a tenant.",
)
WILL_WAIT = WILL.reads(0x0135, "wait", WillWait, WillWaitReply, Lane.RECORDS, routed=False, repeatable=False)
WILL_EXPIRE = WILL.writes(0x0134, "expire", WillExpire, WillExpireReply, Lane.SCANS, whose=For.NODES)
