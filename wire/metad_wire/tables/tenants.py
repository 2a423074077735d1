"""Tenants: all that one has, in the groups of every kind.

A tenant is there by use. What belongs to it are the records whose key begins with a field ``tenant`` or ``namespace``
that has its name, of the tables in the code and of declared ones. A group answers for the slots that it holds; who asks
asks every group of every kind.

``tenants.end`` orders each group to delete all of it. Where the order has a *grace*, nothing happens before that is
over by the group's log, and ``tenants.keep`` takes it back; afterwards nobody does. Then the sessions are over as by
``session.end_tenant``, wills and retained messages of before follow, and last the other records: also those that are
written until the group has carried it out, so who may write for the tenant has to be kept out first. A resource is
deleted once its brokers have deleted what they have, see *Assignment*. Roles, quotas and settings (``config``) of the
tenant stay: they are the administrators'.

A *quota* says how much a tenant or a principal may take: of requests a second at each node, and of what is stored in
the whole cluster. What is over a rate is refused with ``quota``, which says when to come again; what would be stored
beyond a limit, with ``quota_exceeded``. Reads of the control lane, heartbeats and deletes are never refused for what is
stored, nor what keeps somebody alive for a rate.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from .. import messages as m
from ..method import By, For, Lane, Method
from ..table import ANY_KIND, Table
from ..text.fields import U32, U63

SCOPES: Final = ("tenant", "namespace")
"""The fields that keys begin with which belong to a tenant."""


def is_scoped(table: Table[Any]) -> bool:
    """Whether the keys of a table begin with a tenant or a namespace."""
    return bool(table.key) and table.key[0] in SCOPES


def has_tenants(table: Table[Any]) -> bool:
    """Whether the rows of a table in the code begin with a tenant or a namespace."""
    return is_scoped(table) and not table.ordered_by


GRACE_MS_MAX: Final = 30 * 86_400_000
"""Of an order to end a tenant: ``invalid_request``."""
NAMES_MAX: Final = 1_000
"""Names in one answer of ``tenants.list``."""


class TenantsEnd(m.Message, frozen=True):
    """Orders the group to delete everything of a tenant. Ask as for ``session.end_tenant``, every group of every kind.
    ``too_large`` as there. One that asks for the same as an earlier one replaces that, with its grace."""

    tenant: str
    publish_wills: bool = False
    """The wills of the sessions are due as they end, and the order is carried out once they are published; otherwise
    they are dropped, and so are those of the tenant that were due before."""
    grace_ms: U63 = 0
    """For so long nothing happens."""
    slots: bytes = b""


class TenantsKeep(m.Message, frozen=True):
    """Takes back the orders to end a tenant whose grace is not over. Others go on: see ``tenants.endings``."""

    tenant: str
    slots: bytes = b""


class TenantsEndings(m.Message, frozen=True):
    """The orders that are not carried out, those of ``session.end_tenant``, too."""

    tenant: str | None = None
    """Nil: all."""
    slots: bytes = b""
    min_revisions: m.Revisions = []  # noqa: RUF012


class TenantsEndingsReply(m.Message, frozen=True):
    """Says which there are in one group."""

    endings: list[m.TenantEnd]


class TenantsList(m.Message, frozen=True):
    """The names of tenants and namespaces that have anything in the group, in order of their UTF-8."""

    prefix: str = ""
    after: str = ""
    """Only names behind this one."""
    limit: Annotated[int, Meta(ge=1, le=NAMES_MAX)] = NAMES_MAX
    min_revisions: m.Revisions = []  # noqa: RUF012


class TenantsListReply(m.Message, frozen=True):
    """Names some of them."""

    names: list[str]
    more: bool
    """Ask again, behind the last of ``names``."""


class TenantsUse(m.Message, frozen=True):
    """Counts what a tenant has in the group, some thousand rows at a time."""

    tenant: str
    cursor: bytes = b""
    """Of the answer before; empty: from the beginning."""
    slots: bytes = b""
    min_revisions: m.Revisions = []  # noqa: RUF012


class TableUse(m.Message, frozen=True):
    """What a tenant has of one table."""

    table: str
    records: U63
    bytes: U63
    """Keys and values of all rows, before compression, with those that belong to the records."""


class TenantsUseReply(m.Message, frozen=True):
    """What these rows were."""

    found: list[TableUse]
    """To be added up with those of the answers before."""
    cursor: bytes = b""
    """Ask again with it; empty: that was all."""


class TenantsRest(m.Message, frozen=True):
    """Between nodes: the order of this row waits no longer, or has nothing left to delete."""

    order: bytes
    """The end of the key of the order's row."""
    phase: U32
    """In which the order is."""


class TenantsRestReply(m.Message, frozen=True):
    """Between nodes: says what came of it."""

    revisions: list[m.Revision]
    errors: list[m.ItemError]
    """Always empty."""
    done: bool
    """False: nothing was done, because the order is elsewhere by now, its grace is not over, or slots are sealed."""


TENANTS: Table[Any] = Table("tenants", kind=ANY_KIND, rows={})
TENANTS_END = TENANTS.writes(0x0740, "end", TenantsEnd, m.WriteReply, Lane.RECORDS, whose=For.ADMINS, routed=False)
TENANTS_KEEP = TENANTS.writes(0x0741, "keep", TenantsKeep, m.WriteReply, Lane.RECORDS, whose=For.ADMINS, routed=False)
TENANTS_ENDINGS = TENANTS.reads(0x0742, "endings", TenantsEndings, TenantsEndingsReply, Lane.SCANS, routed=False)
TENANTS_LIST = TENANTS.reads(0x0743, "list", TenantsList, TenantsListReply, Lane.SCANS, routed=False)
TENANTS_USE = TENANTS.reads(0x0744, "use", TenantsUse, TenantsUseReply, Lane.SCANS, routed=False)
TENANTS_REST = TENANTS.writes(0x0745, "rest", TenantsRest, TenantsRestReply, Lane.SCANS, whose=For.NODES, routed=False)


QUOTAS_MAX: Final = 4_096
"""Quotas that are kept: ``quota_exceeded``."""
EACH: Final = "*"
OF_TENANT, OF_PRINCIPAL = "tenant/", "principal/"


class QuotaKey(m.Message, frozen=True):
    """Whose quota it is."""

    subject: str
    """``tenant/NAME``, ``principal/URI``, or one of these with ``*``: each that has none of its own."""


class Quota(m.Message, frozen=True):
    """How much a tenant or a principal may take. A field that is nil limits nothing."""

    subject: str
    """``tenant/NAME``, ``principal/URI``, or one of these with ``*``: each that has none of its own."""
    items_per_s: U32 | None = None
    """Items of requests a second, at each node. A second's worth may come at once, and a request that is begun may go
    over it: then nothing is begun until that is made up for."""
    bytes_per_s: U63 | None = None
    """The same of bytes of requests."""
    connections: U32 | None = None
    """Of a principal, at each node."""
    watches: U32 | None = None
    """Streams of watches of a principal, at each node."""
    sessions: U63 | None = None
    """Of a tenant that is named, in the whole cluster. What is stored is counted every second or, of many records,
    after some: within that time there may be more."""
    records: U63 | None = None
    """The same of records of all tables."""
    bytes: U63 | None = None
    """The same of the bytes of ``tenants.use``."""


class QuotaList(m.Message, frozen=True):
    """Lists quotas."""

    prefix: str = ""
    page: m.Page = m.Page()
    min_revisions: m.Revisions = []  # noqa: RUF012


class QuotaUse(m.Message, frozen=True):
    """Asks a node what the subjects of quotas take there."""

    prefix: str = ""


class Use(m.Message, frozen=True):
    """What one takes, as far as the node knows."""

    subject: str
    items_per_s: U63 = 0
    """In the last whole second, at this node."""
    bytes_per_s: U63 = 0
    """The same."""
    connections: U32 = 0
    """Of a principal, at this node."""
    watches: U32 = 0
    """The same."""
    sessions: U63 | None = None
    """Of a tenant, in the cluster; nil: it is not counted, or not yet."""
    records: U63 | None = None
    """The same."""
    bytes: U63 | None = None
    """The same."""
    refused: U63 = 0
    """Items that were refused here, since the node started."""


class QuotaUseReply(m.Message, frozen=True):
    """Says what it knows."""

    found: list[Use]
    """At most 4,096, in the order of their subjects."""


class TenantCount(m.Message, frozen=True):
    """Between nodes: what a group has of a tenant."""

    tenant: str
    """Whose records are limited."""
    group: str
    """Its name; empty: all groups together."""
    sessions: U63
    """How many it has."""
    records: U63
    """Of all tables."""
    bytes: U63
    """Of these, as ``tenants.use`` counts them."""


class QuotaCounts(m.Message, frozen=True):
    """Between nodes: what the groups have that a node leads, of tenants whose records are limited."""

    node_id: str
    """Of the node that tells it."""
    counts: list[TenantCount]
    """By tenant and group."""


class QuotaTotals(m.Message, frozen=True):
    """Between nodes: what all groups have, as far as they have told."""

    counts: list[TenantCount]
    """By tenant."""


QUOTA = Table("quota", kind="metadata", rows={"quota": 0x0B}, record=Quota, key=("subject",), routing=())
QUOTA_PUT = QUOTA.batches(
    0x0746,
    "put",
    Quota,
    "Say how much tenants and principals may take, instead of what was said before. Item errors: invalid_item, "
    "quota_exceeded.",
    named="quotas",
    by=By.METADATA,
    whose=For.ADMINS,
)
QUOTA_DELETE = QUOTA.batches(
    0x0747,
    "delete",
    QuotaKey,
    "Limit tenants and principals no more. Item errors: not_found.",
    named="keys",
    by=By.METADATA,
    whose=For.ADMINS,
)
QUOTA_LIST = QUOTA.lists(
    0x0748, "list", QuotaList, Quota, "Quotas whose subjects start with ``prefix``, in order.", by=By.METADATA
)
QUOTA_USE = QUOTA.reads(0x0749, "use", QuotaUse, QuotaUseReply, Lane.CONTROL, by=By.ANY, routed=False)
QUOTA_COUNTS = Method(
    0x074A, "quota.counts", QuotaCounts, QuotaTotals, Lane.CONTROL, mutates=False, by=By.METADATA, whose=For.NODES
)
