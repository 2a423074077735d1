"""``m.quotas``: how much tenants and principals may take, and what they take."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Sequence
from typing import Any

from metad_wire.cluster import MapRequest
from metad_wire.methods import CLUSTER_MAP, QUOTA_USE
from metad_wire.tables.tenants import QUOTA_LIST, Quota, QuotaUse, Use

from ..namespaces.declared import _QUOTA_PUT, _QuotaDeclared
from ..requests.listing import Listing
from ..requests.wrong import sequence


class Quotas(_QuotaDeclared):
    """Quotas of tenants (``tenant/NAME``) and principals (``principal/URI``), or of each that has none of its own
    (``tenant/*``, ``principal/*``). Only administrators change them. A ``*_many`` method reports errors per item in its
    result."""

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
        """Say how much one may take, instead of what was said before; None limits nothing. ``items_per_s``,
        ``bytes_per_s`` (of requests), ``connections`` and ``watches`` hold at each node, the last two of principals
        only; ``sessions``, ``records`` and ``bytes`` are what a tenant may have stored in the cluster. Raises
        InvalidItemError, QuotaExceededError."""
        item = Quota(subject, items_per_s, bytes_per_s, connections, watches, sessions, records, bytes)
        await _QUOTA_PUT.one(self._requests, item, deadline_s)

    def list(self, prefix: str = "", *, page_size: int = 1000, deadline_s: float | None = None) -> AsyncIterator[Quota]:
        """The quotas whose subjects start with ``prefix``, in order."""
        return _QUOTAS.of_group(self._requests, page_size, deadline_s, (), prefix=prefix)

    async def use(
        self, prefix: str = "", *, nodes: Sequence[str] = (), deadline_s: float | None = None
    ) -> builtins.list[Use]:
        """What the subjects of quotas take, of all nodes together or of these: what a second has brought, connections
        and watches are added up; of what is stored the node counts that knows most. Those of ``*`` are listed as long
        as a node remembers them. Raises the error of a node that does not answer."""
        nodes = sequence("nodes", nodes, "str")
        known = (await self._requests.one(CLUSTER_MAP, MapRequest(), deadline_s)).map
        names = nodes or ([] if known is None else [node.node_id for node in known.nodes])
        replies = await asyncio.gather(
            *(self._requests.one(QUOTA_USE, QuotaUse(prefix), deadline_s, node=name) for name in names)
        )
        found: dict[str, Use] = {}
        for use in (one for reply in replies for one in reply.found):
            before = found.get(use.subject)
            found[use.subject] = use if before is None else _together(before, use)
        return [found[subject] for subject in sorted(found)]


def _together(one: Use, other: Use) -> Use:
    def most(name: str) -> Any:
        return max((value for use in (one, other) if (value := getattr(use, name)) is not None), default=None)

    def both(name: str) -> Any:
        return getattr(one, name) + getattr(other, name)

    added = {name: both(name) for name in ("items_per_s", "bytes_per_s", "connections", "watches", "refused")}
    return Use(one.subject, **added, **{name: most(name) for name in ("sessions", "records", "bytes")})


_QUOTAS: Listing[Quota] = Listing(QUOTA_LIST)
