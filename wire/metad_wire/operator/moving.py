"""The messages with which a tenant moves to another cluster, while both serve.

Whoever moves it copies its rows from each group that has some, follows the logs of these groups, and puts both into the
groups of the other cluster that hold the rows' slots there.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from ..messages import ItemError, Message, Revision, Revisions, TenantMove
from ..text.fields import U32, U63

LEAVES, FROZEN, LEFT, COMES, CAME = range(5)
"""The phases of a move in a group: the first three where the tenant was, the others where it goes. A part of the rows'
format."""
PUT_ROWS_MAX: Final = 10_000
"""In one batch."""


class TenantPosition(Message, frozen=True):
    """Says how far a group has what one group of the cluster has that the tenant leaves."""

    cursor: bytes = b""
    """The last key that was copied, without the group's prefix."""
    copied: bool = False
    """All rows are copied."""
    index: U63 = 0
    """All entries of the log up to this one are followed, from the one on with which copying began."""
    ahead_ms: int = 0
    """By how much the log of the group to which rows come is ahead of the other: times in rows are put ahead by it."""


class TenantStep(Message, frozen=True):
    """A step of moving a tenant, for the log of one group. ``conflict`` where a step is not allowed.

    Where the tenant is: ``leave`` begins, or lets a later attempt go on. No slots move to or from the group from then
    on. ``freeze``: all requests about the tenant are refused from this entry on, and nothing of it changes. ``thaw``:
    it is served again, as if nothing had happened. ``left``: it is elsewhere, for good.

    Where it goes: ``come`` begins, or lets a later attempt go on; ``conflict`` if there is anything of the tenant.
    ``came``: it is served here, if everything has come. ``give_up``: it does not come; all rows have to be dropped.

    At either: ``look`` writes nothing."""

    step: str = "look"
    """One of these."""
    tenant: str = ""
    move: Annotated[str, Meta(max_length=64)] = ""
    attempt: U63 = 0
    other: str = ""
    """With ``leave``, ``left`` and ``come``: the other cluster."""
    revision: U63 = 0
    """With ``come`` and ``came``: the highest revision of a group that the tenant leaves. The group's is above it."""
    times: dict[str, U63] = {}  # noqa: RUF012
    """With ``come``: the time now of the log of each group that the tenant leaves."""
    frozen: dict[str, U63] = {}  # noqa: RUF012
    """With ``came``: of each group that the tenant leaves, the index of the entry that froze it."""


class TenantStepped(Message, frozen=True):
    """A step was taken, or looked at."""

    revisions: list[Revision]
    """Of the entry."""
    errors: list[ItemError]
    """Always empty."""
    state: TenantMove | None = None
    """How the move is now; nil: the group knows of none."""
    slots: bytes = b""
    """Bit map of the slots of the group."""
    now_ms: U63 = 0
    """The time of the group's log."""
    batch: U63 = 0
    """Where the tenant goes: the last batch of this attempt."""
    positions: dict[str, TenantPosition] = {}  # noqa: RUF012
    """Where the tenant goes: by the names of the groups that it leaves."""


class TenantPut(Message, frozen=True):
    """Brings rows of a tenant that comes. A batch that is there already does nothing. ``conflict`` if the attempt is
    void, if it is not the next batch, or if a row is not the tenant's; ``stale_route`` if the group does not hold its
    slot."""

    tenant: str
    move: Annotated[str, Meta(max_length=64)] = ""
    attempt: U63 = 0
    batch: U63 = 0
    """1 for the first after ``come``; with ``drop`` it is not looked at."""
    rows: Annotated[dict[bytes, bytes | None], Meta(max_length=PUT_ROWS_MAX)] = {}  # noqa: RUF012
    """Key without its group prefix to row; nil deletes the row. Their times are of the log of this group."""
    positions: dict[str, TenantPosition] = {}  # noqa: RUF012
    """How far the group is with these rows, by the names of the groups that the tenant leaves; ``ahead_ms`` stays."""
    drop: bool = False
    """Drop some of the rows instead, and forget all positions."""


class TenantPutReply(Message, frozen=True):
    """The rows are there."""

    revisions: list[Revision]
    """Of the entry."""
    errors: list[ItemError]
    """Always empty."""
    dropped: U32 = 0
    """Rows that were dropped; ask again until it is 0."""


class TenantCopy(Message, frozen=True):
    """Reads rows of a tenant that leaves, as they are stored, a page at a time. ``conflict`` where it does not."""

    tenant: str
    move: Annotated[str, Meta(max_length=64)] = ""
    cursor: bytes = b""
    """Of the answer before; empty: from the beginning."""
    min_revisions: Revisions = []  # noqa: RUF012


class TenantCopied(Message, frozen=True):
    """The rows of a page."""

    rows: dict[bytes, bytes]
    """Key without the group's prefix to row."""
    cursor: bytes
    """Ask again with it; empty: that was all."""
    index: U63
    """The rows are as of this entry of the group's log."""
