"""Wills that are due: brokers claim, publish and acknowledge them.

A will is what a client wants to be published if it goes without a word. Once it is due, it is a record of its own,
which outlives the session. A broker *claims* due wills for a time, publishes them and acknowledges them; an
acknowledgement drops the will, so each is acknowledged once. A claim keeps other brokers away until its time has
passed, by the time of the group's log, which stands still for a while after a new leader. It ends at once if its
broker's life is fenced, and for a later life of the same broker. ``claims`` tells the next claimant that a will was
claimed before, and so may have been published. A will that no broker publishes for ``expiry.will_keep_s`` is dropped.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .. import messages as m
from ..method import For, Lane
from ..session_part import part_keys
from ..table import Shown, Table
from ..text.fields import BATCH_ITEMS_MAX, U32, U63, Batch, ClientId
from .session import SESSION

WILL_LEASE_MS_MAX = 3_600_000
"""``lease_ms`` of a claim: ``invalid_request``. A claimant that died holds wills back for so long at most."""
WILL_WAIT_MS_MAX = 60_000
"""``wait_ms`` of ``will.wait``: ``invalid_request``."""

LeaseMs = Annotated[int, Meta(ge=1, le=WILL_LEASE_MS_MAX)]
WaitMs = Annotated[int, Meta(ge=0, le=WILL_WAIT_MS_MAX)]
ClaimLimit = Annotated[int, Meta(ge=1, le=BATCH_ITEMS_MAX)]


class WillKey(m.Message, frozen=True):
    """Identity of a will that is due; (tenant, client_id) routes it."""

    tenant: str
    client_id: ClientId
    id: str
    """Tells it from the client's other wills; a later one is greater."""


class WillDue(m.Message, frozen=True):
    """A will, and since when it is due, in the time of the group's log."""

    will: m.Will
    due_ms: U63
    """Since when, in the time of the group's log."""


class WillClaimant(m.Message, frozen=True):
    """The life of a broker that has claimed a will."""

    broker: str
    broker_epoch: U63
    until_ms: U63
    """In the time of the group's log."""
    claims: U32
    """How often the will was claimed."""


class DueWill(m.Message, frozen=True):
    """A will that is due, as listed."""

    tenant: str
    client_id: ClientId
    id: str
    will: m.Will
    due_ms: U63
    claimant: WillClaimant | None = None
    """The last one; nil: nobody has claimed it."""


class WillClaim(m.Message, frozen=True):
    """Claims wills of one group, which the request names: those without a claim, and those whose claim is over. Ask
    each data group. A group looks at a limited number of wills for one request: go on from the cursor while there is
    one."""

    broker: str
    broker_epoch: U63
    lease_ms: LeaseMs
    """How long others are kept away."""
    limit: ClaimLimit = 100
    """Of wills."""
    tenant: str | None = None
    """Nil: all."""
    cursor: bytes = b""
    """From the last reply."""


class ClaimedWill(m.Message, frozen=True):
    """One will that a broker has claimed."""

    tenant: str
    client_id: ClientId
    id: str
    claims: U32
    """1: nobody had it before."""


class WillClaimReply(m.Message, frozen=True):
    """The wills that the broker has now."""

    revisions: list[m.Revision]
    claimed: list[ClaimedWill]
    wills: list[WillDue | None]
    """By position of ``claimed``; nil if a retry finds the will acknowledged."""
    cursor: bytes
    """Empty: no further ones; otherwise there may be more, even if this reply has none."""


class WillWait(m.Message, frozen=True):
    """Waits for a turn to claim wills of the group that the request names. While there is a will that may be
    claimed, the group gives one turn at a time, to the longest wait first; so one broker hears of a will, however
    many wait. A turn ends with a ``will.claim`` of its broker, or after 200 ms; then that broker is behind all
    others until it uses a turn. A broker that publishes wills keeps one wait at each data group. Any client may
    claim at any time without a turn. A wait is answered ``fenced`` if the life is over, ``stale_route`` if slots of
    the group move (get a newer map, and wait at the groups that it names), and ``overloaded`` if a connection has
    more than its share of the waits at a node.

    A will whose claim is over, or whose slot comes from another group, gives a turn within about a second, others at
    once.
    """

    broker: str
    broker_epoch: U63
    wait_ms: WaitMs = 0
    """For how long, and no longer than the request's deadline; 0: answer at once, without a turn."""
    tenant: str | None = None
    """Wills of exactly this one; nil: of all."""
    cursor: bytes = b""
    """Where to look for wills without a wait; a wait is about all of them."""
    min_revisions: m.Revisions = []  # noqa: RUF012 - msgspec copies it
    """See Reading what was written; not of a wait."""


class WillWaitReply(m.Message, frozen=True):
    """The wait is over."""

    claimable: bool
    """It is the broker's turn; without a wait: there is a will that it could claim, about."""
    cursor: bytes
    """A claim behind it finds wills, if ``claimable``; otherwise empty, but without a wait there may be wills behind
    it."""
    others: bool = False
    """Without a wait: there are wills that cannot be claimed now."""


class WillAcknowledge(m.Message, frozen=True):
    """These wills are published; they are dropped. Item errors: ``not_found`` if the will was acknowledged before,
    ``conflict`` if another life has claimed it since or nobody has. A broker that is late may still acknowledge what
    nobody else has claimed."""

    broker: str
    broker_epoch: U63
    items: Batch[WillKey]


class WillRelease(m.Message, frozen=True):
    """These wills were not published: others may claim them at once. Item errors are those of ``will.acknowledge``."""

    broker: str
    broker_epoch: U63
    items: Batch[WillKey]


class WillExpire(m.Message, frozen=True):
    """Between nodes: drop those of these wills that are due for ``keep_ms`` and that nobody has claimed, or whose claim
    is over."""

    items: Batch[WillKey]
    keep_ms: U63
    """For how long a will is kept."""


class WillExpireReply(m.Message, frozen=True):
    """Between nodes: how many of them were dropped."""

    revisions: list[m.Revision]
    errors: list[m.ItemError]
    """Always empty."""
    dropped: U32 = 0
    """Wills that were dropped."""


class WillList(m.Message, frozen=True):
    """Wills that are due, in order of (tenant, client_id, id)."""

    tenant: str | None = None
    """Nil: all."""
    client_id_prefix: ClientId = ""
    page: m.Page = m.Page()
    min_revisions: m.Revisions = []  # noqa: RUF012 - msgspec copies it
    slots: bytes = b""
    after: WillKey | None = None
    claimable_by: m.Owner | None = None
    """Only wills that this life of a broker could claim now, about; a claim decides."""


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
