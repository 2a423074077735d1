"""Leases: what lasts while its holder is alive, and the keys that end with it.

Keys of the lease's namespace can be attached to it: by a ``kv.put`` or an operation of a ``kv.transact`` with
``lease``, or by ``lease.attach``. When the lease ends, all its keys are deleted, in one entry of the log. A put without
``lease`` detaches the key.

A lease ends by ``lease.revoke``, or when its holder was not heard of for ``ttl_ms``. Only the leader of the group knows
when that is. All leases get a full ``ttl_ms`` again when another node begins to lead, when the slot moves, and when the
leader notices that it was not running or out of reach. So a lease may last longer than its ``ttl_ms``, never shorter.

**What a holder may believe.** ``lease.keep_alive`` writes nothing. A leader answers it only if it is certain that no
other node leads the group. With the answer the holder may rely on the lease for ``ttl_ms`` from when it *sent* the
request, by a clock that also counts while the machine is suspended. Compare that clock whenever the lease is used: the
timer of a process that was stopped comes too late. Without an answer in time the holder **must not** rely on the lease,
and goes on asking: the next answer says whether the lease still is its own or is over (``ttl_ms`` 0). While the service
is away, no lease ends. The same holds for members of consumer groups and ``consumer.heartbeat``.

**Fencing.** The ``create_revision`` of a key only grows within a namespace. A lock is a key that its holder creates
with a lease, and the key's ``create_revision`` is its *token*. A guarded resource refuses tokens lower than the highest
it has seen. Guard writes to metad itself by a ``kv.transact`` that compares the ``create_revision`` of the lock's key.

A holder that chooses names should not use one twice, or a late keep-alive of its former life keeps the new lease alive.
The server never makes a name twice.
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
"""``ttl_ms`` of a lease: ``invalid_item``."""
LEASE_NAME_BYTES_MAX = 128
"""The name of a lease, as UTF-8: ``invalid_item``."""
LEASE_VALUE_BYTES_MAX = 4_096
"""A lease's holder and attributes together: ``invalid_item``."""
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
    """A lease as read."""

    namespace: str
    lease: str
    ttl_ms: U32
    """How long it lasts after its holder was last heard of."""
    holder: str
    attributes: bytes
    """Opaque."""
    version: U63
    """Writes of this row since it was granted."""
    create_revision: U63
    """Revision of the write that granted it."""
    mod_revision: U63
    """Revision of the last write of this row."""
    keys: U32 = 0
    """Attached to it now."""
    key_bytes: U32 = 0
    """What these take of LEASE_KEY_BYTES_MAX."""
    left_ms: U32 = 0
    """For how long it lasts from now on if nothing is heard of its holder; 0 if it is about to end, and in what a watch
    shows."""
    granted_by: str = ""
    """Who asked for it, as in ``registered_by`` of ``Broker``."""


class LeaseGrantItem(m.Message, frozen=True):
    """One lease to grant."""

    namespace: str
    ttl_ms: TtlMs
    lease: str = ""
    """Name; empty: the server makes one."""
    holder: str = ""
    attributes: bytes = b""
    """Opaque."""


class LeaseGrant(m.Message, frozen=True):
    """Item errors: ``conflict`` if there is a lease of this name; ``quota_exceeded`` if the leases of who asks would
    take more of the group's room than is left free: a lease takes 1,024 bytes and its ``holder`` and ``attributes``,
    of 100,663,296 in all, about. See "Shared room"."""

    items: Batch[LeaseGrantItem]


class LeaseGrantReply(m.Message, frozen=True):
    """The names of the leases."""

    columns: ClassVar[dict[str, int | None]] = {"leases": None}

    revisions: list[m.Revision]
    errors: list[m.ItemError]
    leases: list[str | None]
    """By position: the name."""


class LeaseKeepAlive(m.Message, frozen=True):
    """Say that the holders of leases live. Nothing is written."""

    items: Batch[LeaseKey]
    min_revisions: m.Revisions = []  # noqa: RUF012 - msgspec copies it


class LeaseKeepAliveReply(m.Message, frozen=True):
    """How long each lease lasts from when the request was sent."""

    columns: ClassVar[dict[str, int | None]] = {"ttl_ms": 0}

    ttl_ms: list[U32]
    """By position: how long it lasts from when the request was sent; 0 also for one that is ending."""
    errors: list[m.ItemError] = []  # noqa: RUF012


class LeaseList(m.Message, frozen=True):
    """Lists leases of one namespace."""

    namespace: str
    prefix: str = ""
    page: m.Page = m.Page()
    min_revisions: m.Revisions = []  # noqa: RUF012


class LeaseKeys(m.Message, frozen=True):
    """The keys attached to one lease; none if there is no such lease."""

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
