"""The methods of ``m.kv``, ``m.sessions`` and others that read keys, as the tables declare them.

This module is made of the declarations by ``python tests/unit/client/typed_verbs.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from metad_wire.messages import InflightState, Revision, SessionKey, Subscribed
from metad_wire.tables.inflight import INFLIGHT_GET
from metad_wire.tables.subscription import SUBSCRIPTION_GET

from ..requests.verb import Verb
from ..results import ReadResult
from . import Facade


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
        """One item of :meth:`get_many`."""
        return await _INFLIGHT_GET.one_read(self._requests, SessionKey(tenant, client_id), deadline_s, min_revisions)


class _SubscriptionReads(Facade):
    async def get_many(
        self, keys: Sequence[SessionKey], *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> ReadResult[list[Subscribed] | None]:
        """All topic filters of each client, in order. None if it could not be read: ``raise_for_error`` says why."""
        return await _SUBSCRIPTION_GET.read(self._requests, keys, deadline_s, min_revisions)

    async def get(
        self, tenant: str, client_id: str, *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> list[Subscribed]:
        """One item of :meth:`get_many`."""
        return await _SUBSCRIPTION_GET.one_read(
            self._requests, SessionKey(tenant, client_id), deadline_s, min_revisions
        )


_INFLIGHT_GET: Verb[SessionKey, list[InflightState]] = Verb(INFLIGHT_GET)
_SUBSCRIPTION_GET: Verb[SessionKey, list[Subscribed]] = Verb(SUBSCRIPTION_GET)
