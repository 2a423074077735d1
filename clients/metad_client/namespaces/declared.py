"""The methods of ``m.kv``, ``m.sessions`` and others that the tables declare by their shape.

This module is made of the declarations by ``python tests/unit/client/typed_verbs.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from metad_wire.messages import InflightState, Kv, KvKey, Offset, OffsetKey, Revision, Session, SessionKey, Subscribed
from metad_wire.tables.access import (
    PRINCIPAL_CHANGE,
    PRINCIPAL_DELETE,
    PRINCIPAL_GET,
    PRINCIPAL_PUT,
    ROLE_DELETE,
    ROLE_PUT,
    BindingChange,
    PrincipalKey,
    PrincipalRoles,
    Role,
    RoleKey,
)
from metad_wire.tables.assignment import (
    ASSIGNMENT_ALTER,
    ASSIGNMENT_CLAIM,
    ASSIGNMENT_CREATE,
    ASSIGNMENT_DELETE,
    ASSIGNMENT_ELECT,
    ASSIGNMENT_EXPLAIN,
    ASSIGNMENT_IN_SYNC,
    ASSIGNMENT_MOVE,
    ASSIGNMENT_RELEASE,
    ASSIGNMENT_REPORT,
    ASSIGNMENT_RESIZE,
    ASSIGNMENT_SEAL,
    Claim,
    Elect,
    Explanation,
    InSync,
    MovePartition,
    PartitionKey,
    Release,
    ReportPosition,
    ResourceAlter,
    ResourceCreate,
    ResourceKey,
    ResourceResize,
    Seal,
)
from metad_wire.tables.consumer import CONSUMER_GET, CONSUMER_LEAVE, CONSUMER_MEMBERS, Member, MemberKey
from metad_wire.tables.declaration import DECLARATION_DROP, DECLARATION_GET, DeclarationKey, DeclaredTable
from metad_wire.tables.feature import FEATURE_CHANGE, FeatureWish
from metad_wire.tables.inflight import INFLIGHT_GET
from metad_wire.tables.kv import KV_GET, KV_SCAN
from metad_wire.tables.lease import (
    LEASE_ATTACH,
    LEASE_DETACH,
    LEASE_GET,
    LEASE_KEYS,
    LEASE_LIST,
    LEASE_REVOKE,
    Lease,
    LeaseKey,
    LeaseKeyItem,
)
from metad_wire.tables.offset import OFFSET_DELETE, OFFSET_FETCH, OFFSET_GROUPS, OFFSET_LIST, KnownGroup
from metad_wire.tables.plan import PLAN_CREATE, PLAN_DELETE, PLAN_GET, PLAN_SET, NewPlan, Plan, PlanKey, PlanState
from metad_wire.tables.retained import RETAINED_GET, RETAINED_MATCH, Retained, RetainedKey
from metad_wire.tables.sequence import SEQUENCE_DELETE, SEQUENCE_GET, SEQUENCE_LIST, SequenceKey, SequenceRecord
from metad_wire.tables.session import SESSION_GET, SESSION_LIST
from metad_wire.tables.subscription import SUBSCRIPTION_GET, SUBSCRIPTION_LIST, Subscription
from metad_wire.tables.tenants import QUOTA_DELETE, QUOTA_PUT, Quota, QuotaKey
from metad_wire.tables.will import WILL_LIST, DueWill

from ..requests.listing import Listing
from ..requests.requests import Verb
from ..results import ReadResult, WriteResult
from . import Facade


class _AssignmentDeclared(Facade):
    async def explain_many(
        self,
        keys: Sequence[PartitionKey],
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> ReadResult[Explanation | None]:
        """What is decided about each partition, and why. None if there is none, or if it could not be read:
        ``raise_for_error`` says why."""
        return await _ASSIGNMENT_EXPLAIN.read(self._requests, keys, deadline_s, min_revisions, freshness_ms)

    async def explain(
        self,
        tenant: str,
        resource: str,
        kind: str,
        partition: int,
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> Explanation | None:
        """Read one, as :meth:`explain_many` does; None if there is none."""
        return await _ASSIGNMENT_EXPLAIN.one_read(
            self._requests, PartitionKey(tenant, resource, kind, partition), deadline_s, min_revisions, freshness_ms
        )

    async def create_many(self, resources: Sequence[ResourceCreate], *, deadline_s: float | None = None) -> WriteResult:
        """Make resources. Item errors: ConflictError (there is one), NoPlaceError, InvalidItemError,
        QuotaExceededError."""
        return WriteResult(await _ASSIGNMENT_CREATE.many(self._requests, resources, deadline_s))

    async def alter_many(self, items: Sequence[ResourceAlter], *, deadline_s: float | None = None) -> WriteResult:
        """Change resources. Item errors: NotFoundError, ConflictError, InvalidItemError."""
        return WriteResult(await _ASSIGNMENT_ALTER.many(self._requests, items, deadline_s))

    async def resize_many(self, items: Sequence[ResourceResize], *, deadline_s: float | None = None) -> WriteResult:
        """Give resources more partitions, or fewer. Item errors: NotFoundError, ConflictError, NoPlaceError,
        InvalidItemError."""
        return WriteResult(await _ASSIGNMENT_RESIZE.many(self._requests, items, deadline_s))

    async def delete_many(self, keys: Sequence[ResourceKey], *, deadline_s: float | None = None) -> WriteResult:
        """Delete resources, in two phases. Item errors: NotFoundError."""
        return WriteResult(await _ASSIGNMENT_DELETE.many(self._requests, keys, deadline_s))

    async def delete(self, tenant: str, resource: str, kind: str, *, deadline_s: float | None = None) -> None:
        """The same with one, as :meth:`delete_many` does it. Raises the error of its item."""
        await _ASSIGNMENT_DELETE.one(self._requests, ResourceKey(tenant, resource, kind), deadline_s)

    async def in_sync_many(self, items: Sequence[InSync], *, deadline_s: float | None = None) -> WriteResult:
        """Say who is in sync. Item errors: NotFoundError, FencedError, ConflictError, NoReplicaError,
        IneligibleError."""
        return WriteResult(await _ASSIGNMENT_IN_SYNC.many(self._requests, items, deadline_s))

    async def release_many(self, items: Sequence[Release], *, deadline_s: float | None = None) -> WriteResult:
        """Give partitions back. Item errors: NotFoundError, FencedError, ConflictError."""
        return WriteResult(await _ASSIGNMENT_RELEASE.many(self._requests, items, deadline_s))

    async def release(
        self,
        tenant: str,
        resource: str,
        kind: str,
        partition: int,
        broker: str,
        broker_epoch: int,
        leader_epoch: int,
        *,
        deadline_s: float | None = None,
    ) -> None:
        """The same with one, as :meth:`release_many` does it. Raises the error of its item."""
        await _ASSIGNMENT_RELEASE.one(
            self._requests, Release(tenant, resource, kind, partition, broker, broker_epoch, leader_epoch), deadline_s
        )

    async def report_many(self, items: Sequence[ReportPosition], *, deadline_s: float | None = None) -> WriteResult:
        """Report positions. Item errors: NotFoundError, FencedError, ConflictError, NoReplicaError."""
        return WriteResult(await _ASSIGNMENT_REPORT.many(self._requests, items, deadline_s))

    async def report(
        self,
        tenant: str,
        resource: str,
        kind: str,
        partition: int,
        broker: str,
        broker_epoch: int,
        leader_epoch: int,
        last_epoch: int,
        length: int,
        *,
        deadline_s: float | None = None,
    ) -> None:
        """The same with one, as :meth:`report_many` does it. Raises the error of its item."""
        await _ASSIGNMENT_REPORT.one(
            self._requests,
            ReportPosition(tenant, resource, kind, partition, broker, broker_epoch, leader_epoch, last_epoch, length),
            deadline_s,
        )

    async def claim_many(self, items: Sequence[Claim], *, deadline_s: float | None = None) -> WriteResult:
        """Say who was elected elsewhere. Item errors: NotFoundError, FencedError, ConflictError, NoReplicaError."""
        return WriteResult(await _ASSIGNMENT_CLAIM.many(self._requests, items, deadline_s))

    async def claim(
        self,
        tenant: str,
        resource: str,
        kind: str,
        partition: int,
        broker: str,
        broker_epoch: int,
        term: int,
        *,
        deadline_s: float | None = None,
    ) -> None:
        """The same with one, as :meth:`claim_many` does it. Raises the error of its item."""
        await _ASSIGNMENT_CLAIM.one(
            self._requests, Claim(tenant, resource, kind, partition, broker, broker_epoch, term), deadline_s
        )

    async def seal_many(self, items: Sequence[Seal], *, deadline_s: float | None = None) -> WriteResult:
        """End partitions, and begin the next ones. Item errors: NotFoundError, FencedError, ConflictError,
        NoPlaceError."""
        return WriteResult(await _ASSIGNMENT_SEAL.many(self._requests, items, deadline_s))

    async def seal(
        self,
        tenant: str,
        resource: str,
        kind: str,
        partition: int,
        broker: str,
        broker_epoch: int,
        leader_epoch: int,
        end: int,
        *,
        successor: bool = True,
        deadline_s: float | None = None,
    ) -> None:
        """The same with one, as :meth:`seal_many` does it. Raises the error of its item."""
        await _ASSIGNMENT_SEAL.one(
            self._requests,
            Seal(tenant, resource, kind, partition, broker, broker_epoch, leader_epoch, end, successor),
            deadline_s,
        )

    async def elect_many(self, items: Sequence[Elect], *, deadline_s: float | None = None) -> WriteResult:
        """Let partitions have other leaders. Item errors: NotFoundError, ConflictError, NoCandidateError."""
        return WriteResult(await _ASSIGNMENT_ELECT.many(self._requests, items, deadline_s))

    async def elect(
        self,
        tenant: str,
        resource: str,
        kind: str,
        partition: int,
        *,
        broker: str = "",
        force: bool = False,
        deadline_s: float | None = None,
    ) -> None:
        """The same with one, as :meth:`elect_many` does it. Raises the error of its item."""
        await _ASSIGNMENT_ELECT.one(self._requests, Elect(tenant, resource, kind, partition, broker, force), deadline_s)

    async def move_many(self, items: Sequence[MovePartition], *, deadline_s: float | None = None) -> WriteResult:
        """Move partitions, or cancel that. Item errors: NotFoundError, ConflictError, InvalidItemError,
        NoReplicaError."""
        return WriteResult(await _ASSIGNMENT_MOVE.many(self._requests, items, deadline_s))


class _ConsumerDeclared(Facade):
    async def get_many(
        self,
        keys: Sequence[MemberKey],
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> ReadResult[Member | None]:
        """Each member as it is. None if there is none, or if it could not be read: ``raise_for_error`` says why."""
        return await _CONSUMER_GET.read(self._requests, keys, deadline_s, min_revisions, freshness_ms)

    async def get(
        self,
        tenant: str,
        group: str,
        member: str,
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> Member | None:
        """Read one, as :meth:`get_many` does; None if there is none."""
        return await _CONSUMER_GET.one_read(
            self._requests, MemberKey(tenant, group, member), deadline_s, min_revisions, freshness_ms
        )

    async def leave_many(self, members: Sequence[MemberKey], *, deadline_s: float | None = None) -> WriteResult:
        """Let members go, or send them away. Item errors: NotFoundError."""
        return WriteResult(await _CONSUMER_LEAVE.many(self._requests, members, deadline_s))

    async def leave(self, tenant: str, group: str, member: str, *, deadline_s: float | None = None) -> None:
        """The same with one, as :meth:`leave_many` does it. Raises the error of its item."""
        await _CONSUMER_LEAVE.one(self._requests, MemberKey(tenant, group, member), deadline_s)

    def members(
        self,
        tenant: str,
        group: str,
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> AsyncIterator[Member]:
        """The members of one group, in order of their ids. It is read a page at a time; the deadline is that of each
        page."""
        return _CONSUMER_MEMBERS.of_group(
            self._requests, page_size, deadline_s, min_revisions, freshness_ms, tenant=tenant, group=group
        )


class _DeclarationDeclared(Facade):
    async def get_many(
        self, keys: Sequence[DeclarationKey], *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> ReadResult[DeclaredTable | None]:
        """Each table as declared. None if there is none, or if it could not be read: ``raise_for_error`` says why."""
        return await _DECLARATION_GET.read(self._requests, keys, deadline_s, min_revisions)

    async def get(
        self, name: str, *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> DeclaredTable | None:
        """Read one, as :meth:`get_many` does; None if there is none."""
        return await _DECLARATION_GET.one_read(self._requests, DeclarationKey(name), deadline_s, min_revisions)

    async def drop_many(self, keys: Sequence[DeclarationKey], *, deadline_s: float | None = None) -> WriteResult:
        """Drop tables with all their records. Item errors: NotFoundError."""
        return WriteResult(await _DECLARATION_DROP.many(self._requests, keys, deadline_s))

    async def drop(self, name: str, *, deadline_s: float | None = None) -> None:
        """The same with one, as :meth:`drop_many` does it. Raises the error of its item."""
        await _DECLARATION_DROP.one(self._requests, DeclarationKey(name), deadline_s)


class _FeatureDeclared(Facade):
    async def change_many(self, changes: Sequence[FeatureWish], *, deadline_s: float | None = None) -> WriteResult:
        """Hold features back, or allow them. Item errors: ConflictError (it is on, which is for ever), InvalidItemError
        (no software here knows it), QuotaExceededError."""
        return WriteResult(await _FEATURE_CHANGE.many(self._requests, changes, deadline_s))


class _InflightDeclared(Facade):
    async def get_many(
        self,
        keys: Sequence[SessionKey],
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> ReadResult[list[InflightState] | None]:
        """All that is in flight for each client, in order of the name. None if it could not be read:
        ``raise_for_error`` says why."""
        return await _INFLIGHT_GET.read(self._requests, keys, deadline_s, min_revisions, freshness_ms)

    async def get(
        self,
        tenant: str,
        client_id: str,
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> list[InflightState]:
        """Read one, as :meth:`get_many` does."""
        return await _INFLIGHT_GET.one_read(
            self._requests, SessionKey(tenant, client_id), deadline_s, min_revisions, freshness_ms
        )


class _KvDeclared(Facade):
    async def get_many(
        self,
        keys: Sequence[KvKey],
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> ReadResult[Kv | None]:
        """Each key as it is. None if there is none, or if it could not be read: ``raise_for_error`` says why."""
        return await _KV_GET.read(self._requests, keys, deadline_s, min_revisions, freshness_ms)

    async def get(
        self,
        namespace: str,
        key: str,
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> Kv | None:
        """Read one, as :meth:`get_many` does; None if there is none."""
        return await _KV_GET.one_read(self._requests, KvKey(namespace, key), deadline_s, min_revisions, freshness_ms)

    def scan(
        self,
        namespace: str,
        prefix: str = "",
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> AsyncIterator[Kv]:
        """Keys of a namespace that start with ``prefix``, in order. It is read a page at a time; the deadline is that
        of each page."""
        return _KV_SCAN.of_group(
            self._requests, page_size, deadline_s, min_revisions, freshness_ms, namespace=namespace, prefix=prefix
        )


class _LeaseDeclared(Facade):
    async def get_many(
        self, keys: Sequence[LeaseKey], *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> ReadResult[Lease | None]:
        """Each lease as it is. None if there is none, or if it could not be read: ``raise_for_error`` says why."""
        return await _LEASE_GET.read(self._requests, keys, deadline_s, min_revisions)

    async def get(
        self, namespace: str, lease: str, *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> Lease | None:
        """Read one, as :meth:`get_many` does; None if there is none."""
        return await _LEASE_GET.one_read(self._requests, LeaseKey(namespace, lease), deadline_s, min_revisions)

    async def revoke_many(self, leases: Sequence[LeaseKey], *, deadline_s: float | None = None) -> WriteResult:
        """End leases, and delete the keys attached to them, each lease with its keys in one entry; TooLargeError if
        they have over 10,000 keys together. Item errors: NotFoundError."""
        return WriteResult(await _LEASE_REVOKE.many(self._requests, leases, deadline_s))

    async def revoke(self, namespace: str, lease: str, *, deadline_s: float | None = None) -> None:
        """The same with one, as :meth:`revoke_many` does it. Raises the error of its item."""
        await _LEASE_REVOKE.one(self._requests, LeaseKey(namespace, lease), deadline_s)

    async def attach_many(self, items: Sequence[LeaseKeyItem], *, deadline_s: float | None = None) -> WriteResult:
        """Attach keys to leases: they end with them. This writes the record of each key, so that its version grows; a
        key of another lease moves to this one. Item errors: NotFoundError (there is no such key or lease),
        QuotaExceededError."""
        return WriteResult(await _LEASE_ATTACH.many(self._requests, items, deadline_s))

    async def attach(self, namespace: str, lease: str, key: str, *, deadline_s: float | None = None) -> None:
        """The same with one, as :meth:`attach_many` does it. Raises the error of its item."""
        await _LEASE_ATTACH.one(self._requests, LeaseKeyItem(namespace, lease, key), deadline_s)

    async def detach_many(self, items: Sequence[LeaseKeyItem], *, deadline_s: float | None = None) -> WriteResult:
        """Detach keys from leases: they stay. Item errors: NotFoundError (there is no such key), ConflictError (another
        lease has the key, or none)."""
        return WriteResult(await _LEASE_DETACH.many(self._requests, items, deadline_s))

    async def detach(self, namespace: str, lease: str, key: str, *, deadline_s: float | None = None) -> None:
        """The same with one, as :meth:`detach_many` does it. Raises the error of its item."""
        await _LEASE_DETACH.one(self._requests, LeaseKeyItem(namespace, lease, key), deadline_s)

    def list(
        self,
        namespace: str,
        prefix: str = "",
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> AsyncIterator[Lease]:
        """Leases of a namespace whose names start with ``prefix``, in order. It is read a page at a time; the deadline
        is that of each page."""
        return _LEASE_LIST.of_group(
            self._requests, page_size, deadline_s, min_revisions, namespace=namespace, prefix=prefix
        )

    def keys(
        self,
        namespace: str,
        lease: str,
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> AsyncIterator[str]:
        """The keys attached to a lease, in order. It is read a page at a time; the deadline is that of each page."""
        return _LEASE_KEYS.of_group(
            self._requests, page_size, deadline_s, min_revisions, freshness_ms, namespace=namespace, lease=lease
        )


class _OffsetDeclared(Facade):
    async def fetch_many(
        self,
        keys: Sequence[OffsetKey],
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> ReadResult[Offset | None]:
        """The offset that was committed last for each key. None if there is none, or if it could not be read:
        ``raise_for_error`` says why."""
        return await _OFFSET_FETCH.read(self._requests, keys, deadline_s, min_revisions, freshness_ms)

    async def fetch(
        self,
        tenant: str,
        group: str,
        topic: str,
        partition: int,
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> Offset | None:
        """Read one, as :meth:`fetch_many` does; None if there is none."""
        return await _OFFSET_FETCH.one_read(
            self._requests, OffsetKey(tenant, group, topic, partition), deadline_s, min_revisions, freshness_ms
        )

    async def delete_many(self, keys: Sequence[OffsetKey], *, deadline_s: float | None = None) -> WriteResult:
        """Delete offsets. Item errors: NotFoundError."""
        return WriteResult(await _OFFSET_DELETE.many(self._requests, keys, deadline_s))

    async def delete(
        self, tenant: str, group: str, topic: str, partition: int, *, deadline_s: float | None = None
    ) -> None:
        """The same with one, as :meth:`delete_many` does it. Raises the error of its item."""
        await _OFFSET_DELETE.one(self._requests, OffsetKey(tenant, group, topic, partition), deadline_s)

    def list(
        self,
        tenant: str,
        group: str,
        topic_prefix: str = "",
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> AsyncIterator[Offset]:
        """The offsets of a consumer group, in order of (topic, partition). It is read a page at a time; the deadline is
        that of each page."""
        return _OFFSET_LIST.of_group(
            self._requests,
            page_size,
            deadline_s,
            min_revisions,
            freshness_ms,
            tenant=tenant,
            group=group,
            topic_prefix=topic_prefix,
        )

    def groups(
        self,
        tenant: str,
        prefix: str = "",
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> AsyncIterator[KnownGroup]:
        """The consumer groups of a tenant that have offsets or a generation, in order of their names. It is read a page
        at a time; the deadline is that of each page. All groups are asked, and what stays comes once, wherever its slot
        moves."""
        return _OFFSET_GROUPS.of_all_groups(
            self._requests, page_size, deadline_s, min_revisions, freshness_ms, tenant=tenant, prefix=prefix
        )


class _PlanDeclared(Facade):
    async def get_many(
        self, keys: Sequence[PlanKey], *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> ReadResult[Plan | None]:
        """Each plan as it is. None if there is none, or if it could not be read: ``raise_for_error`` says why."""
        return await _PLAN_GET.read(self._requests, keys, deadline_s, min_revisions)

    async def get(
        self, plan: str, *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> Plan | None:
        """Read one, as :meth:`get_many` does; None if there is none."""
        return await _PLAN_GET.one_read(self._requests, PlanKey(plan), deadline_s, min_revisions)

    async def create_many(self, plans: Sequence[NewPlan], *, deadline_s: float | None = None) -> WriteResult:
        """Begin plans. Item errors: ConflictError (there is one of the name), NotFoundError (a broker),
        InvalidItemError, QuotaExceededError."""
        return WriteResult(await _PLAN_CREATE.many(self._requests, plans, deadline_s))

    async def set_many(self, items: Sequence[PlanState], *, deadline_s: float | None = None) -> WriteResult:
        """Let plans pause, go on, or be cancelled. Item errors: NotFoundError, ConflictError (it has ended)."""
        return WriteResult(await _PLAN_SET.many(self._requests, items, deadline_s))

    async def delete_many(self, keys: Sequence[PlanKey], *, deadline_s: float | None = None) -> WriteResult:
        """Delete plans that have ended. Item errors: NotFoundError, ConflictError (it has not)."""
        return WriteResult(await _PLAN_DELETE.many(self._requests, keys, deadline_s))

    async def delete(self, plan: str, *, deadline_s: float | None = None) -> None:
        """The same with one, as :meth:`delete_many` does it. Raises the error of its item."""
        await _PLAN_DELETE.one(self._requests, PlanKey(plan), deadline_s)


class _PrincipalDeclared(Facade):
    async def get_many(
        self, keys: Sequence[PrincipalKey], *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> ReadResult[PrincipalRoles | None]:
        """What each principal may do. None if there is none, or if it could not be read: ``raise_for_error`` says
        why."""
        return await _PRINCIPAL_GET.read(self._requests, keys, deadline_s, min_revisions)

    async def get(
        self, principal: str, *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> PrincipalRoles | None:
        """Read one, as :meth:`get_many` does; None if there is none."""
        return await _PRINCIPAL_GET.one_read(self._requests, PrincipalKey(principal), deadline_s, min_revisions)

    async def put_many(self, bindings: Sequence[PrincipalRoles], *, deadline_s: float | None = None) -> WriteResult:
        """Say what principals may do, instead of what was said before. Item errors: NotFoundError (no such role),
        InvalidItemError (it is no principal, or an administrator or a node, which may do everything),
        QuotaExceededError."""
        return WriteResult(await _PRINCIPAL_PUT.many(self._requests, bindings, deadline_s))

    async def delete_many(self, keys: Sequence[PrincipalKey], *, deadline_s: float | None = None) -> WriteResult:
        """Take everything from principals. Item errors: NotFoundError."""
        return WriteResult(await _PRINCIPAL_DELETE.many(self._requests, keys, deadline_s))

    async def delete(self, principal: str, *, deadline_s: float | None = None) -> None:
        """The same with one, as :meth:`delete_many` does it. Raises the error of its item."""
        await _PRINCIPAL_DELETE.one(self._requests, PrincipalKey(principal), deadline_s)

    async def change_many(self, changes: Sequence[BindingChange], *, deadline_s: float | None = None) -> WriteResult:
        """Give principals roles, take roles from them, deny them everything or end that. Item errors: as of put."""
        return WriteResult(await _PRINCIPAL_CHANGE.many(self._requests, changes, deadline_s))


class _QuotaDeclared(Facade):
    async def put_many(self, quotas: Sequence[Quota], *, deadline_s: float | None = None) -> WriteResult:
        """Say how much tenants and principals may take, instead of what was said before. Item errors: InvalidItemError,
        QuotaExceededError."""
        return WriteResult(await _QUOTA_PUT.many(self._requests, quotas, deadline_s))

    async def put(
        self,
        subject: str,
        *,
        items_per_s: int | None = None,
        bytes_per_s: int | None = None,
        connections: int | None = None,
        watches: int | None = None,
        sessions: int | None = None,
        records: int | None = None,
        bytes: int | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """The same with one, as :meth:`put_many` does it. Raises the error of its item."""
        await _QUOTA_PUT.one(
            self._requests,
            Quota(subject, items_per_s, bytes_per_s, connections, watches, sessions, records, bytes),
            deadline_s,
        )

    async def delete_many(self, keys: Sequence[QuotaKey], *, deadline_s: float | None = None) -> WriteResult:
        """Limit tenants and principals no more. Item errors: NotFoundError."""
        return WriteResult(await _QUOTA_DELETE.many(self._requests, keys, deadline_s))

    async def delete(self, subject: str, *, deadline_s: float | None = None) -> None:
        """The same with one, as :meth:`delete_many` does it. Raises the error of its item."""
        await _QUOTA_DELETE.one(self._requests, QuotaKey(subject), deadline_s)


class _RetainedDeclared(Facade):
    async def get_many(
        self,
        keys: Sequence[RetainedKey],
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> ReadResult[Retained | None]:
        """The message that each topic retains and that has not expired. None if there is none, or if it could not be
        read: ``raise_for_error`` says why."""
        return await _RETAINED_GET.read(self._requests, keys, deadline_s, min_revisions, freshness_ms)

    async def get(
        self,
        tenant: str,
        topic: str,
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> Retained | None:
        """Read one, as :meth:`get_many` does; None if there is none."""
        return await _RETAINED_GET.one_read(
            self._requests, RetainedKey(tenant, topic), deadline_s, min_revisions, freshness_ms
        )

    def match(
        self,
        tenant: str,
        filter: str,
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> AsyncIterator[Retained]:
        """The messages of a tenant whose topics match a filter of MQTT, in order of the topic. Raises
        InvalidRequestError if the filter is not right, or is of a shared subscription, which MQTT sends no retained
        messages. It is read a page at a time; the deadline is that of each page. All groups are asked, and what stays
        comes once, wherever its slot moves."""
        return _RETAINED_MATCH.of_all_groups(
            self._requests, page_size, deadline_s, min_revisions, freshness_ms, tenant=tenant, filter=filter
        )


class _RoleDeclared(Facade):
    async def put_many(self, roles: Sequence[Role], *, deadline_s: float | None = None) -> WriteResult:
        """Make roles, or replace them. Item errors: ConflictError (it is built in), InvalidItemError,
        QuotaExceededError."""
        return WriteResult(await _ROLE_PUT.many(self._requests, roles, deadline_s))

    async def delete_many(self, keys: Sequence[RoleKey], *, deadline_s: float | None = None) -> WriteResult:
        """Delete roles that nobody has. Item errors: NotFoundError, ConflictError."""
        return WriteResult(await _ROLE_DELETE.many(self._requests, keys, deadline_s))

    async def delete(self, role: str, *, deadline_s: float | None = None) -> None:
        """The same with one, as :meth:`delete_many` does it. Raises the error of its item."""
        await _ROLE_DELETE.one(self._requests, RoleKey(role), deadline_s)


class _SequenceDeclared(Facade):
    async def get_many(
        self,
        keys: Sequence[SequenceKey],
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> ReadResult[SequenceRecord | None]:
        """Each sequence as it is. None if there is none, or if it could not be read: ``raise_for_error`` says why."""
        return await _SEQUENCE_GET.read(self._requests, keys, deadline_s, min_revisions, freshness_ms)

    async def get(
        self,
        namespace: str,
        sequence: str,
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> SequenceRecord | None:
        """Read one, as :meth:`get_many` does; None if there is none."""
        return await _SEQUENCE_GET.one_read(
            self._requests, SequenceKey(namespace, sequence), deadline_s, min_revisions, freshness_ms
        )

    async def delete_many(self, keys: Sequence[SequenceKey], *, deadline_s: float | None = None) -> WriteResult:
        """Delete sequences: they begin at 0 again. Item errors: NotFoundError."""
        return WriteResult(await _SEQUENCE_DELETE.many(self._requests, keys, deadline_s))

    async def delete(self, namespace: str, sequence: str, *, deadline_s: float | None = None) -> None:
        """The same with one, as :meth:`delete_many` does it. Raises the error of its item."""
        await _SEQUENCE_DELETE.one(self._requests, SequenceKey(namespace, sequence), deadline_s)

    def list(
        self,
        namespace: str,
        prefix: str = "",
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> AsyncIterator[SequenceRecord]:
        """Sequences of a namespace whose names start with ``prefix``, in order. It is read a page at a time; the
        deadline is that of each page."""
        return _SEQUENCE_LIST.of_group(
            self._requests, page_size, deadline_s, min_revisions, freshness_ms, namespace=namespace, prefix=prefix
        )


class _SessionDeclared(Facade):
    async def get_many(
        self,
        keys: Sequence[SessionKey],
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> ReadResult[Session | None]:
        """The session of each client. None if there is none, or if it could not be read: ``raise_for_error`` says
        why."""
        return await _SESSION_GET.read(self._requests, keys, deadline_s, min_revisions, freshness_ms)

    async def get(
        self,
        tenant: str,
        client_id: str,
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> Session | None:
        """Read one, as :meth:`get_many` does; None if there is none."""
        return await _SESSION_GET.one_read(
            self._requests, SessionKey(tenant, client_id), deadline_s, min_revisions, freshness_ms
        )

    def list(
        self,
        tenant: str | None = None,
        client_id_prefix: str = "",
        broker: str | None = None,
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> AsyncIterator[Session]:
        """Sessions in order of (tenant, client id). ``tenant`` and ``broker`` match exactly, None matches any;
        ``client_id_prefix`` needs a tenant. It is read a page at a time; the deadline is that of each page. All groups
        are asked, and what stays comes once, wherever its slot moves."""
        return _SESSION_LIST.of_all_groups(
            self._requests,
            page_size,
            deadline_s,
            min_revisions,
            freshness_ms,
            tenant=tenant,
            client_id_prefix=client_id_prefix,
            broker=broker,
        )


class _SubscriptionDeclared(Facade):
    async def get_many(
        self,
        keys: Sequence[SessionKey],
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> ReadResult[list[Subscribed] | None]:
        """All topic filters of each client, in order. None if it could not be read: ``raise_for_error`` says why."""
        return await _SUBSCRIPTION_GET.read(self._requests, keys, deadline_s, min_revisions, freshness_ms)

    async def get(
        self,
        tenant: str,
        client_id: str,
        *,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> list[Subscribed]:
        """Read one, as :meth:`get_many` does."""
        return await _SUBSCRIPTION_GET.one_read(
            self._requests, SessionKey(tenant, client_id), deadline_s, min_revisions, freshness_ms
        )

    def list(
        self,
        tenant: str | None = None,
        client_id_prefix: str = "",
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> AsyncIterator[Subscription]:
        """Subscriptions in order of (tenant, client id, filter). ``tenant`` matches exactly, None matches any;
        ``client_id_prefix`` needs a tenant. It is read a page at a time; the deadline is that of each page. All groups
        are asked, and what stays comes once, wherever its slot moves."""
        return _SUBSCRIPTION_LIST.of_all_groups(
            self._requests,
            page_size,
            deadline_s,
            min_revisions,
            freshness_ms,
            tenant=tenant,
            client_id_prefix=client_id_prefix,
        )


class _WillDeclared(Facade):
    def list(
        self,
        tenant: str | None = None,
        client_id_prefix: str = "",
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        freshness_ms: int = 0,
        deadline_s: float | None = None,
    ) -> AsyncIterator[DueWill]:
        """The wills that are due, in order of (tenant, client id, id). ``tenant`` matches exactly, None matches any;
        ``client_id_prefix`` needs a tenant. It is read a page at a time; the deadline is that of each page. All groups
        are asked, and what stays comes once, wherever its slot moves."""
        return _WILL_LIST.of_all_groups(
            self._requests,
            page_size,
            deadline_s,
            min_revisions,
            freshness_ms,
            tenant=tenant,
            client_id_prefix=client_id_prefix,
        )


_ASSIGNMENT_EXPLAIN: Verb[PartitionKey, Explanation | None] = Verb(ASSIGNMENT_EXPLAIN)
_ASSIGNMENT_CREATE: Verb[ResourceCreate, None] = Verb(ASSIGNMENT_CREATE)
_ASSIGNMENT_ALTER: Verb[ResourceAlter, None] = Verb(ASSIGNMENT_ALTER)
_ASSIGNMENT_RESIZE: Verb[ResourceResize, None] = Verb(ASSIGNMENT_RESIZE)
_ASSIGNMENT_DELETE: Verb[ResourceKey, None] = Verb(ASSIGNMENT_DELETE)
_ASSIGNMENT_IN_SYNC: Verb[InSync, None] = Verb(ASSIGNMENT_IN_SYNC)
_ASSIGNMENT_RELEASE: Verb[Release, None] = Verb(ASSIGNMENT_RELEASE)
_ASSIGNMENT_REPORT: Verb[ReportPosition, None] = Verb(ASSIGNMENT_REPORT)
_ASSIGNMENT_CLAIM: Verb[Claim, None] = Verb(ASSIGNMENT_CLAIM)
_ASSIGNMENT_SEAL: Verb[Seal, None] = Verb(ASSIGNMENT_SEAL)
_ASSIGNMENT_ELECT: Verb[Elect, None] = Verb(ASSIGNMENT_ELECT)
_ASSIGNMENT_MOVE: Verb[MovePartition, None] = Verb(ASSIGNMENT_MOVE)
_CONSUMER_GET: Verb[MemberKey, Member | None] = Verb(CONSUMER_GET)
_CONSUMER_LEAVE: Verb[MemberKey, None] = Verb(CONSUMER_LEAVE)
_CONSUMER_MEMBERS: Listing[Member] = Listing(CONSUMER_MEMBERS)
_DECLARATION_GET: Verb[DeclarationKey, DeclaredTable | None] = Verb(DECLARATION_GET)
_DECLARATION_DROP: Verb[DeclarationKey, None] = Verb(DECLARATION_DROP)
_FEATURE_CHANGE: Verb[FeatureWish, None] = Verb(FEATURE_CHANGE)
_INFLIGHT_GET: Verb[SessionKey, list[InflightState]] = Verb(INFLIGHT_GET)
_KV_GET: Verb[KvKey, Kv | None] = Verb(KV_GET)
_KV_SCAN: Listing[Kv] = Listing(KV_SCAN)
_LEASE_GET: Verb[LeaseKey, Lease | None] = Verb(LEASE_GET)
_LEASE_REVOKE: Verb[LeaseKey, None] = Verb(LEASE_REVOKE)
_LEASE_ATTACH: Verb[LeaseKeyItem, None] = Verb(LEASE_ATTACH)
_LEASE_DETACH: Verb[LeaseKeyItem, None] = Verb(LEASE_DETACH)
_LEASE_LIST: Listing[Lease] = Listing(LEASE_LIST)
_LEASE_KEYS: Listing[str] = Listing(LEASE_KEYS)
_OFFSET_FETCH: Verb[OffsetKey, Offset | None] = Verb(OFFSET_FETCH)
_OFFSET_DELETE: Verb[OffsetKey, None] = Verb(OFFSET_DELETE)
_OFFSET_LIST: Listing[Offset] = Listing(OFFSET_LIST)
_OFFSET_GROUPS: Listing[KnownGroup] = Listing(OFFSET_GROUPS)
_PLAN_GET: Verb[PlanKey, Plan | None] = Verb(PLAN_GET)
_PLAN_CREATE: Verb[NewPlan, None] = Verb(PLAN_CREATE)
_PLAN_SET: Verb[PlanState, None] = Verb(PLAN_SET)
_PLAN_DELETE: Verb[PlanKey, None] = Verb(PLAN_DELETE)
_PRINCIPAL_GET: Verb[PrincipalKey, PrincipalRoles | None] = Verb(PRINCIPAL_GET)
_PRINCIPAL_PUT: Verb[PrincipalRoles, None] = Verb(PRINCIPAL_PUT)
_PRINCIPAL_DELETE: Verb[PrincipalKey, None] = Verb(PRINCIPAL_DELETE)
_PRINCIPAL_CHANGE: Verb[BindingChange, None] = Verb(PRINCIPAL_CHANGE)
_QUOTA_PUT: Verb[Quota, None] = Verb(QUOTA_PUT)
_QUOTA_DELETE: Verb[QuotaKey, None] = Verb(QUOTA_DELETE)
_RETAINED_GET: Verb[RetainedKey, Retained | None] = Verb(RETAINED_GET)
_RETAINED_MATCH: Listing[Retained] = Listing(RETAINED_MATCH)
_ROLE_PUT: Verb[Role, None] = Verb(ROLE_PUT)
_ROLE_DELETE: Verb[RoleKey, None] = Verb(ROLE_DELETE)
_SEQUENCE_GET: Verb[SequenceKey, SequenceRecord | None] = Verb(SEQUENCE_GET)
_SEQUENCE_DELETE: Verb[SequenceKey, None] = Verb(SEQUENCE_DELETE)
_SEQUENCE_LIST: Listing[SequenceRecord] = Listing(SEQUENCE_LIST)
_SESSION_GET: Verb[SessionKey, Session | None] = Verb(SESSION_GET)
_SESSION_LIST: Listing[Session] = Listing(SESSION_LIST)
_SUBSCRIPTION_GET: Verb[SessionKey, list[Subscribed]] = Verb(SUBSCRIPTION_GET)
_SUBSCRIPTION_LIST: Listing[Subscription] = Listing(SUBSCRIPTION_LIST)
_WILL_LIST: Listing[DueWill] = Listing(WILL_LIST)
