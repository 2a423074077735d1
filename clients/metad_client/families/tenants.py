"""``m.tenants``: everything of a tenant."""

from __future__ import annotations

import asyncio
import builtins
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from metad_wire import methods
from metad_wire.messages import TenantEnd
from metad_wire.tables.tenants import (
    NAMES_MAX,
    TableUse,
    TenantsEnd,
    TenantsEndings,
    TenantsKeep,
    TenantsList,
    TenantsUse,
    TenantsUseReply,
)

from ..dispatch.calls.call import Call
from ..errors import ConflictError, InvalidRequestError, NotFoundError, StaleRouteError
from ..namespaces import Facade
from ..requests.everywhere import everywhere, in_order
from ..requests.wrong import argument

_ATTEMPTS_MAX = 10
"""Of a count, where slots move meanwhile."""


class Tenants(Facade):
    """Tenants are there by use: to one belong the records whose key begins with its name, as ``tenant`` or
    ``namespace``, of the tables in the code and of declared ones. ``deadline_s`` is that of each request, and None
    means the client's default."""

    async def list(self, prefix: str = "", *, deadline_s: float | None = None) -> AsyncIterator[str]:
        """The names of tenants and namespaces that have any record, in order. One that gets its first or loses its last
        record meanwhile may be missing."""
        after = ""
        while True:
            groups = await self._requests.groups(methods.TENANTS_LIST, deadline_s)
            body = TenantsList(prefix, after, NAMES_MAX)
            calls = [self._requests.begin(methods.TENANTS_LIST, body, deadline_s, group) for group in groups]
            replies = await self._replies(calls)
            ends = [reply.names[-1] for reply in replies if reply.more]
            names = sorted({name for reply in replies for name in reply.names}, key=str.encode)
            if ends:
                end = min(ends, key=str.encode)
                names = names[: names.index(end) + 1]  # behind it, another group may have more
            for name in names:
                yield name
            if not ends:
                return
            after = end

    async def _replies(self, calls: builtins.list[Call]) -> builtins.list[Any]:
        try:
            return [await self._requests.reply(call) for call in calls]
        finally:
            for call in calls:
                self._requests.abandon(call)

    async def use(self, tenant: str, *, deadline_s: float | None = None) -> builtins.list[TableUse]:
        """How many records a tenant has of each table, and what they take with all that belongs to them, before
        compression and on each replica. Empty: it has nothing. All of its rows are counted, some thousand at a time: a
        million sessions take some seconds. What changes meanwhile may be counted or not, and twice where its slot
        moves."""
        for attempt in range(_ATTEMPTS_MAX):
            records, sizes = Counter[str](), Counter[str]()
            try:
                await self._count(tenant, records, sizes, deadline_s)
                return [TableUse(table, records[table], sizes[table]) for table in sorted(sizes)]
            except StaleRouteError:
                if attempt + 1 == _ATTEMPTS_MAX:
                    raise
        raise AssertionError

    async def _count(self, tenant: str, records: Counter[str], sizes: Counter[str], deadline_s: float | None) -> None:
        async def rest_of(group: str, slots: bytes, reply: TenantsUseReply) -> None:
            while True:
                for one in reply.found:
                    records[one.table] += one.records
                    sizes[one.table] += one.bytes
                if not reply.cursor:
                    return
                body = TenantsUse(tenant, reply.cursor, slots)
                reply = await self._requests.reply(self._requests.begin(methods.TENANTS_USE, body, deadline_s, group))

        first = await everywhere(
            self._requests, methods.TENANTS_USE, lambda slots: TenantsUse(tenant, slots=slots), deadline_s
        )
        await asyncio.gather(*(rest_of(*piece) for piece in first))

    async def end(
        self, tenant: str, *, publish_wills: bool = False, grace_s: float = 0.0, deadline_s: float | None = None
    ) -> None:
        """Order that everything of a tenant is deleted, in all groups: once ``grace_s`` is over, and :meth:`keep` has
        not taken the order back.

        Its sessions are over then, as by :meth:`Sessions.end_tenant`, and their wills are published or dropped. The
        other records go at the pace of the expiry: also those that are written until :meth:`endings` is empty, so keep
        out first who writes for the tenant. Resources go once their brokers have deleted what they have. Roles that
        principals have for the tenant stay. If it raises, groups may have the order and others not: repeat it.

        Raises NotFoundError for a tenant that has nothing, and no order; InvalidRequestError for a grace over 30
        days.
        """
        argument("grace_s", grace_s, float)
        if not 0 <= grace_s < float("inf"):
            raise InvalidRequestError(f"grace_s is {grace_s}: not a time")
        if not await self.use(tenant, deadline_s=deadline_s) and not await self.endings(tenant, deadline_s=deadline_s):
            raise NotFoundError(f"tenant {tenant!r} has nothing: check its name; nothing was ordered")
        grace_ms = round(1000 * grace_s)
        await everywhere(
            self._requests,
            methods.TENANTS_END,
            lambda slots: TenantsEnd(tenant, publish_wills, grace_ms, slots),
            deadline_s,
        )

    async def keep(self, tenant: str, *, deadline_s: float | None = None) -> None:
        """Take back the orders of :meth:`end` whose grace is not over. Raises NotFoundError if there is none, and
        ConflictError if the grace was over in some groups already: what they had of the tenant goes."""
        if not any(end.begins_ms for end in await self.endings(tenant, deadline_s=deadline_s)):
            raise NotFoundError(f"there is no order with a grace to end tenant {tenant!r}")
        await everywhere(self._requests, methods.TENANTS_KEEP, lambda slots: TenantsKeep(tenant, slots), deadline_s)
        if gone := [end for end in await self.endings(tenant, deadline_s=deadline_s) if end.begins_ms]:
            raise ConflictError(f"the grace was over already in {len(gone)} groups: what they had of {tenant!r} goes")

    async def endings(self, tenant: str | None = None, *, deadline_s: float | None = None) -> builtins.list[TenantEnd]:
        """What is left to do of :meth:`end` and :meth:`Sessions.end_tenant`, by group and order, in the order of their
        tenants. Empty: all is done that was ordered before, of this tenant (None: of any)."""
        pieces = await everywhere(
            self._requests, methods.TENANTS_ENDINGS, lambda slots: TenantsEndings(tenant, slots), deadline_s
        )
        return in_order(pieces)
