"""The methods of ``m.kv``, ``m.sessions`` and others that read keys or list, as the tables declare them.

This module is made of the declarations by ``python tests/unit/client/typed_verbs.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from metad_wire.messages import InflightState, Kv, KvKey, Offset, OffsetKey, Revision, Session, SessionKey, Subscribed
from metad_wire.tables.consumer import CONSUMER_GET, CONSUMER_MEMBERS, Member, MemberKey
from metad_wire.tables.inflight import INFLIGHT_GET
from metad_wire.tables.kv import KV_GET, KV_SCAN
from metad_wire.tables.lease import LEASE_GET, LEASE_KEYS, LEASE_LIST, Lease, LeaseKey
from metad_wire.tables.offset import OFFSET_FETCH, OFFSET_GROUPS, OFFSET_LIST, KnownGroup
from metad_wire.tables.retained import RETAINED_GET, RETAINED_MATCH, Retained, RetainedKey
from metad_wire.tables.sequence import SEQUENCE_GET, SEQUENCE_LIST, SequenceKey, SequenceRecord
from metad_wire.tables.session import SESSION_GET, SESSION_LIST
from metad_wire.tables.subscription import SUBSCRIPTION_GET, SUBSCRIPTION_LIST, Subscription
from metad_wire.tables.will import WILL_LIST, DueWill

from ..requests.listing import Listing
from ..requests.verb import Verb
from ..results import ReadResult
from . import Facade


class _ConsumerReads(Facade):
    async def get_many(
        self, keys: Sequence[MemberKey], *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> ReadResult[Member | None]:
        """Each member as it is. None if there is none, or if it could not be read: ``raise_for_error`` says why."""
        return await _CONSUMER_GET.read(self._requests, keys, deadline_s, min_revisions)

    async def get(
        self,
        tenant: str,
        group: str,
        member: str,
        *,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> Member | None:
        """Read one, as :meth:`get_many` does; None if there is none."""
        return await _CONSUMER_GET.one_read(self._requests, MemberKey(tenant, group, member), deadline_s, min_revisions)

    def members(
        self,
        tenant: str,
        group: str,
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> AsyncIterator[Member]:
        """The members of one group, in order of their ids. It is read a page at a time; the deadline is that of each
        page."""
        return _CONSUMER_MEMBERS.of_group(
            self._requests, page_size, deadline_s, min_revisions, tenant=tenant, group=group
        )


class _InflightReads(Facade):
    async def get_many(
        self, keys: Sequence[SessionKey], *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> ReadResult[list[InflightState] | None]:
        """All that is in flight for each client, in order of the name. None if it could not be read:
        ``raise_for_error`` says why."""
        return await _INFLIGHT_GET.read(self._requests, keys, deadline_s, min_revisions)

    async def get(
        self, tenant: str, client_id: str, *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> list[InflightState]:
        """Read one, as :meth:`get_many` does."""
        return await _INFLIGHT_GET.one_read(self._requests, SessionKey(tenant, client_id), deadline_s, min_revisions)


class _KvReads(Facade):
    async def get_many(
        self, keys: Sequence[KvKey], *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> ReadResult[Kv | None]:
        """Each key as it is. None if there is none, or if it could not be read: ``raise_for_error`` says why."""
        return await _KV_GET.read(self._requests, keys, deadline_s, min_revisions)

    async def get(
        self, namespace: str, key: str, *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> Kv | None:
        """Read one, as :meth:`get_many` does; None if there is none."""
        return await _KV_GET.one_read(self._requests, KvKey(namespace, key), deadline_s, min_revisions)

    def scan(
        self,
        namespace: str,
        prefix: str = "",
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> AsyncIterator[Kv]:
        """Keys of a namespace that start with ``prefix``, in order. It is read a page at a time; the deadline is that
        of each page."""
        return _KV_SCAN.of_group(
            self._requests, page_size, deadline_s, min_revisions, namespace=namespace, prefix=prefix
        )


class _LeaseReads(Facade):
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
        deadline_s: float | None = None,
    ) -> AsyncIterator[str]:
        """The keys attached to a lease, in order. It is read a page at a time; the deadline is that of each page."""
        return _LEASE_KEYS.of_group(
            self._requests, page_size, deadline_s, min_revisions, namespace=namespace, lease=lease
        )


class _OffsetReads(Facade):
    async def fetch_many(
        self, keys: Sequence[OffsetKey], *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> ReadResult[Offset | None]:
        """The offset that was committed last for each key. None if there is none, or if it could not be read:
        ``raise_for_error`` says why."""
        return await _OFFSET_FETCH.read(self._requests, keys, deadline_s, min_revisions)

    async def fetch(
        self,
        tenant: str,
        group: str,
        topic: str,
        partition: int,
        *,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> Offset | None:
        """Read one, as :meth:`fetch_many` does; None if there is none."""
        return await _OFFSET_FETCH.one_read(
            self._requests, OffsetKey(tenant, group, topic, partition), deadline_s, min_revisions
        )

    def list(
        self,
        tenant: str,
        group: str,
        topic_prefix: str = "",
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> AsyncIterator[Offset]:
        """The offsets of a consumer group, in order of (topic, partition). It is read a page at a time; the deadline is
        that of each page."""
        return _OFFSET_LIST.of_group(
            self._requests, page_size, deadline_s, min_revisions, tenant=tenant, group=group, topic_prefix=topic_prefix
        )

    def groups(
        self,
        tenant: str,
        prefix: str = "",
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> AsyncIterator[KnownGroup]:
        """The consumer groups of a tenant that have offsets or a generation, in order of their names. It is read a page
        at a time; the deadline is that of each page. All groups are asked, and what stays comes once, wherever its slot
        moves."""
        return _OFFSET_GROUPS.of_all_groups(
            self._requests, page_size, deadline_s, min_revisions, tenant=tenant, prefix=prefix
        )


class _RetainedReads(Facade):
    async def get_many(
        self, keys: Sequence[RetainedKey], *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> ReadResult[Retained | None]:
        """The message that each topic retains and that has not expired. None if there is none, or if it could not be
        read: ``raise_for_error`` says why."""
        return await _RETAINED_GET.read(self._requests, keys, deadline_s, min_revisions)

    async def get(
        self, tenant: str, topic: str, *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> Retained | None:
        """Read one, as :meth:`get_many` does; None if there is none."""
        return await _RETAINED_GET.one_read(self._requests, RetainedKey(tenant, topic), deadline_s, min_revisions)

    def match(
        self,
        tenant: str,
        filter: str,
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> AsyncIterator[Retained]:
        """The messages of a tenant whose topics match a filter of MQTT, in order of the topic. Raises
        InvalidRequestError if the filter is not right, or is of a shared subscription, which MQTT sends no retained
        messages. It is read a page at a time; the deadline is that of each page. All groups are asked, and what stays
        comes once, wherever its slot moves."""
        return _RETAINED_MATCH.of_all_groups(
            self._requests, page_size, deadline_s, min_revisions, tenant=tenant, filter=filter
        )


class _SequenceReads(Facade):
    async def get_many(
        self, keys: Sequence[SequenceKey], *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> ReadResult[SequenceRecord | None]:
        """Each sequence as it is. None if there is none, or if it could not be read: ``raise_for_error`` says why."""
        return await _SEQUENCE_GET.read(self._requests, keys, deadline_s, min_revisions)

    async def get(
        self, namespace: str, sequence: str, *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> SequenceRecord | None:
        """Read one, as :meth:`get_many` does; None if there is none."""
        return await _SEQUENCE_GET.one_read(self._requests, SequenceKey(namespace, sequence), deadline_s, min_revisions)

    def list(
        self,
        namespace: str,
        prefix: str = "",
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> AsyncIterator[SequenceRecord]:
        """Sequences of a namespace whose names start with ``prefix``, in order. It is read a page at a time; the
        deadline is that of each page."""
        return _SEQUENCE_LIST.of_group(
            self._requests, page_size, deadline_s, min_revisions, namespace=namespace, prefix=prefix
        )


class _SessionReads(Facade):
    async def get_many(
        self, keys: Sequence[SessionKey], *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> ReadResult[Session | None]:
        """The session of each client. None if there is none, or if it could not be read: ``raise_for_error`` says
        why."""
        return await _SESSION_GET.read(self._requests, keys, deadline_s, min_revisions)

    async def get(
        self, tenant: str, client_id: str, *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> Session | None:
        """Read one, as :meth:`get_many` does; None if there is none."""
        return await _SESSION_GET.one_read(self._requests, SessionKey(tenant, client_id), deadline_s, min_revisions)

    def list(
        self,
        tenant: str | None = None,
        client_id_prefix: str = "",
        broker: str | None = None,
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> AsyncIterator[Session]:
        """Sessions in order of (tenant, client id). ``tenant`` and ``broker`` match exactly, None matches any;
        ``client_id_prefix`` needs a tenant. Writes made while the listing runs may be in it or not. It is read a page
        at a time; the deadline is that of each page. All groups are asked, and what stays comes once, wherever its slot
        moves."""
        return _SESSION_LIST.of_all_groups(
            self._requests,
            page_size,
            deadline_s,
            min_revisions,
            tenant=tenant,
            client_id_prefix=client_id_prefix,
            broker=broker,
        )


class _SubscriptionReads(Facade):
    async def get_many(
        self, keys: Sequence[SessionKey], *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> ReadResult[list[Subscribed] | None]:
        """All topic filters of each client, in order. None if it could not be read: ``raise_for_error`` says why."""
        return await _SUBSCRIPTION_GET.read(self._requests, keys, deadline_s, min_revisions)

    async def get(
        self, tenant: str, client_id: str, *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> list[Subscribed]:
        """Read one, as :meth:`get_many` does."""
        return await _SUBSCRIPTION_GET.one_read(
            self._requests, SessionKey(tenant, client_id), deadline_s, min_revisions
        )

    def list(
        self,
        tenant: str | None = None,
        client_id_prefix: str = "",
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> AsyncIterator[Subscription]:
        """Subscriptions in order of (tenant, client id, filter). ``tenant`` matches exactly, None matches any;
        ``client_id_prefix`` needs a tenant. Writes made while the listing runs may be in it or not. It is read a page
        at a time; the deadline is that of each page. All groups are asked, and what stays comes once, wherever its slot
        moves."""
        return _SUBSCRIPTION_LIST.of_all_groups(
            self._requests, page_size, deadline_s, min_revisions, tenant=tenant, client_id_prefix=client_id_prefix
        )


class _WillReads(Facade):
    def list(
        self,
        tenant: str | None = None,
        client_id_prefix: str = "",
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> AsyncIterator[DueWill]:
        """The wills that are due, in order of (tenant, client id, id). ``tenant`` matches exactly, None matches any;
        ``client_id_prefix`` needs a tenant. It is read a page at a time; the deadline is that of each page. All groups
        are asked, and what stays comes once, wherever its slot moves."""
        return _WILL_LIST.of_all_groups(
            self._requests, page_size, deadline_s, min_revisions, tenant=tenant, client_id_prefix=client_id_prefix
        )


_CONSUMER_GET: Verb[MemberKey, Member | None] = Verb(CONSUMER_GET)
_CONSUMER_MEMBERS: Listing[Member] = Listing(CONSUMER_MEMBERS)
_INFLIGHT_GET: Verb[SessionKey, list[InflightState]] = Verb(INFLIGHT_GET)
_KV_GET: Verb[KvKey, Kv | None] = Verb(KV_GET)
_KV_SCAN: Listing[Kv] = Listing(KV_SCAN)
_LEASE_GET: Verb[LeaseKey, Lease | None] = Verb(LEASE_GET)
_LEASE_LIST: Listing[Lease] = Listing(LEASE_LIST)
_LEASE_KEYS: Listing[str] = Listing(LEASE_KEYS)
_OFFSET_FETCH: Verb[OffsetKey, Offset | None] = Verb(OFFSET_FETCH)
_OFFSET_LIST: Listing[Offset] = Listing(OFFSET_LIST)
_OFFSET_GROUPS: Listing[KnownGroup] = Listing(OFFSET_GROUPS)
_RETAINED_GET: Verb[RetainedKey, Retained | None] = Verb(RETAINED_GET)
_RETAINED_MATCH: Listing[Retained] = Listing(RETAINED_MATCH)
_SEQUENCE_GET: Verb[SequenceKey, SequenceRecord | None] = Verb(SEQUENCE_GET)
_SEQUENCE_LIST: Listing[SequenceRecord] = Listing(SEQUENCE_LIST)
_SESSION_GET: Verb[SessionKey, Session | None] = Verb(SESSION_GET)
_SESSION_LIST: Listing[Session] = Listing(SESSION_LIST)
_SUBSCRIPTION_GET: Verb[SessionKey, list[Subscribed]] = Verb(SUBSCRIPTION_GET)
_SUBSCRIPTION_LIST: Listing[Subscription] = Listing(SUBSCRIPTION_LIST)
_WILL_LIST: Listing[DueWill] = Listing(WILL_LIST)
