"""Leases: what a holder keeps while it is alive, and the keys that go with it.

A lease lives in one namespace, whose group also has the keys that are attached to it: so they end in one entry.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from .. import messages as m
from ..method import For, Lane
from ..table import Shown, Table
from ..text.fields import U32, U63, Batch

LEASE_TTL_MS_MIN = 500
LEASE_TTL_MS_MAX = 24 * 60 * 60 * 1000
LEASE_NAME_BYTES_MAX = 128  # of a lease's name, UTF-8 encoded; each attached key has it in a row
LEASE_VALUE_BYTES_MAX = 4_096  # of a lease's holder and attributes together
LEASE_KEYS_MAX = 1_000
"""Keys of one lease: they are deleted in one entry, in which others wait for them."""
LEASE_KEY_BYTES_MAX = 1024 * 1024
"""The same in bytes of rows that are deleted, so that they fit the entry."""

TtlMs = Annotated[int, Meta(ge=LEASE_TTL_MS_MIN, le=LEASE_TTL_MS_MAX)]


class LeaseKey(m.Message, frozen=True):
    """Identity of a lease; the namespace routes it, as it does the keys."""

    namespace: str
    lease: str


class Lease(m.Message, frozen=True):
    """A lease as read. ``version`` counts its writes since it was granted, ``keys`` those attached to it now, and
    ``key_bytes`` what these take of what a lease may have. ``left_ms``: for how long it lasts from now on if nothing is
    heard of its holder; 0 if it is about to end, and in what a watch shows. ``granted_by``: the holder of the
    certificate or token that asked for it (a URI), or its host where nobody is checked."""

    namespace: str
    lease: str
    ttl_ms: U32
    holder: str
    attributes: bytes
    version: U63
    create_revision: U63
    mod_revision: U63
    keys: U32 = 0
    key_bytes: U32 = 0
    left_ms: U32 = 0
    granted_by: str = ""


class LeaseGrantItem(m.Message, frozen=True):
    """``lease``: its name, which must not be in use; empty: the server makes one that was never in use."""

    namespace: str
    ttl_ms: TtlMs
    lease: str = ""
    holder: str = ""
    attributes: bytes = b""


class LeaseGrant(m.Message, frozen=True):
    """Grant leases."""

    items: Batch[LeaseGrantItem]


class LeaseGrantReply(m.Message, frozen=True):
    """``leases``: their names by position; empty where the item failed."""

    columns: ClassVar[dict[str, int | None]] = {"leases": None}

    revisions: list[m.Revision]
    errors: list[m.ItemError]
    leases: list[str | None]


class LeaseKeepAlive(m.Message, frozen=True):
    """Say that the holders of leases live. Nothing is written."""

    items: Batch[LeaseKey]
    min_revisions: m.Revisions = []  # noqa: RUF012 - msgspec copies it


class LeaseKeepAliveReply(m.Message, frozen=True):
    """``ttl_ms`` by position: the lease lasts so long from when the request was sent; 0: there is no such lease."""

    columns: ClassVar[dict[str, int | None]] = {"ttl_ms": 0}

    ttl_ms: list[U32]
    errors: list[m.ItemError] = []  # noqa: RUF012


class LeaseList(m.Message, frozen=True):
    """Leases of one namespace whose name starts with ``prefix``, in order."""

    namespace: str
    prefix: str = ""
    page: m.Page = m.Page()
    min_revisions: m.Revisions = []  # noqa: RUF012


class LeaseKeys(m.Message, frozen=True):
    """The keys attached to one lease, in order."""

    namespace: str
    lease: str
    page: m.Page = m.Page()
    min_revisions: m.Revisions = []  # noqa: RUF012


class LeaseKeyItem(m.Message, frozen=True):
    """A lease, and a key of the same namespace."""

    namespace: str
    lease: str
    key: str


class LeaseExpire(m.Message, frozen=True):
    """End those of these leases that are over by the clock of the leader."""

    items: Batch[LeaseKey]


def _value_bytes(item: object) -> int:
    return len(item.holder.encode()) + len(item.attributes) if isinstance(item, LeaseGrantItem) else 0


LEASE = Table(
    "lease",
    kind="data",
    rows={"lease": 0x31, "key": 0x32},
    record=Lease,
    key=("namespace", "lease"),
    routing=("namespace",),
    value_bytes_max=LEASE_VALUE_BYTES_MAX,
    value_bytes=_value_bytes,
    shows={"lease": Shown(LeaseKey, Lease, counted=True)},
)
LEASE_GRANT = LEASE.writes(0x0310, "grant", LeaseGrant, LeaseGrantReply, Lane.RECORDS)
LEASE_REVOKE = LEASE.batches(
    0x0311,
    "revoke",
    LeaseKey,
    "End leases, and delete the keys attached to them, each lease with its keys in one entry; too_large if they have "
    "over 10,000 keys together. Item errors: not_found.",
    named="leases",
)
LEASE_KEEP_ALIVE = LEASE.reads(
    0x0312, "keep_alive", LeaseKeepAlive, LeaseKeepAliveReply, Lane.CONTROL, repeatable=False
)
LEASE_GET = LEASE.gets(0x0313, "get", LeaseKey, Lease, "Each lease as it is.")
LEASE_LIST = LEASE.lists(
    0x0314, "list", LeaseList, Lease, "Leases of a namespace whose names start with ``prefix``, in order."
)
LEASE_KEYS = LEASE.lists(0x0315, "keys", LeaseKeys, str, "The keys attached to a lease, in order.")
LEASE_ATTACH = LEASE.batches(
    0x0316,
    "attach",
    LeaseKeyItem,
    "Attach keys to leases: they end with them. This writes the record of each key, so that its version grows; a key "
    "of another lease moves to this one. Item errors: not_found (there is no such key or lease), quota_exceeded.",
)
LEASE_DETACH = LEASE.batches(
    0x0317,
    "detach",
    LeaseKeyItem,
    "Detach keys from leases: they stay. Item errors: not_found (there is no such key), conflict (another lease has "
    "the key, or none).",
)
LEASE_EXPIRE = LEASE.writes(0x031F, "expire", LeaseExpire, m.WriteReply, Lane.CONTROL, whose=For.NODES)
