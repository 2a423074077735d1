"""The methods of ``m.kv``, ``m.sessions`` and others that read keys, as the tables declare them.

This module is made of the declarations by ``python tests/unit/client/typed_verbs.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from metad_wire.messages import InflightState, Kv, KvKey, Offset, OffsetKey, Revision, Session, SessionKey, Subscribed
from metad_wire.tables.consumer import CONSUMER_GET, Member, MemberKey
from metad_wire.tables.inflight import INFLIGHT_GET
from metad_wire.tables.kv import KV_GET
from metad_wire.tables.lease import LEASE_GET, Lease, LeaseKey
from metad_wire.tables.offset import OFFSET_FETCH
from metad_wire.tables.retained import RETAINED_GET, Retained, RetainedKey
from metad_wire.tables.sequence import SEQUENCE_GET, SequenceKey, SequenceRecord
from metad_wire.tables.session import SESSION_GET
from metad_wire.tables.subscription import SUBSCRIPTION_GET

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


_CONSUMER_GET: Verb[MemberKey, Member | None] = Verb(CONSUMER_GET)
_INFLIGHT_GET: Verb[SessionKey, list[InflightState]] = Verb(INFLIGHT_GET)
_KV_GET: Verb[KvKey, Kv | None] = Verb(KV_GET)
_LEASE_GET: Verb[LeaseKey, Lease | None] = Verb(LEASE_GET)
_OFFSET_FETCH: Verb[OffsetKey, Offset | None] = Verb(OFFSET_FETCH)
_RETAINED_GET: Verb[RetainedKey, Retained | None] = Verb(RETAINED_GET)
_SEQUENCE_GET: Verb[SequenceKey, SequenceRecord | None] = Verb(SEQUENCE_GET)
_SESSION_GET: Verb[SessionKey, Session | None] = Verb(SESSION_GET)
_SUBSCRIPTION_GET: Verb[SessionKey, list[Subscribed]] = Verb(SUBSCRIPTION_GET)
