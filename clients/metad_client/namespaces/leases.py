"""``m.leases``: leases of namespaces, and the keys that go with them. :mod:`metad_client.holding` keeps one alive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from metad_wire import methods
from metad_wire.tables.lease import (
    LeaseGrantItem,
    LeaseGrantReply,
    LeaseKey,
)

from ..errors import MetadError
from ..requests.batcher import with_errors
from ..requests.requests import Verb
from ..results import GrantResult, ReadResult
from .declared import _LeaseDeclared

Ttls: TypeAlias = ReadResult[int]


class Leases(_LeaseDeclared):
    """Leases by (namespace, lease).

    A ``*_many`` method reports errors per item in its result, and raises a MetadError only if the whole call failed. An
    item that is wrong by itself (a name is too long, a time to live out of bounds) is an InvalidItemError. The other
    methods raise the error of their item; those called at the same time share a request. ``deadline_s`` counts from
    now, and None means the client's default. A program that holds a lease uses :meth:`metad_client.Client.hold`.
    """

    async def grant_many(self, items: Sequence[LeaseGrantItem], *, deadline_s: float | None = None) -> GrantResult:
        """Grant leases. The result has their names. Item errors: ConflictError (the name is in use),
        QuotaExceededError (there are too many)."""
        return GrantResult(await _GRANT.many(self._requests, items, deadline_s))

    async def keep_alive_many(self, leases: Sequence[LeaseKey], *, deadline_s: float | None = None) -> Ttls:
        """Say that the holders of leases live. By position: for how many milliseconds from when this was called the
        lease lasts; 0 if there is no such lease."""
        return await _KEEP_ALIVE.read(self._requests, leases, deadline_s)

    async def grant(
        self,
        namespace: str,
        ttl_ms: int,
        lease: str = "",
        *,
        holder: str = "",
        attributes: bytes = b"",
        deadline_s: float | None = None,
    ) -> str:
        """Grant one lease; returns its name, which the server makes if none is given. Raises ConflictError."""
        item = LeaseGrantItem(namespace, ttl_ms, lease, holder, attributes)
        return await _GRANT.one(self._requests, item, deadline_s)

    async def keep_alive(self, namespace: str, lease: str, *, deadline_s: float | None = None) -> int:
        """Say that the holder of one lease lives, as :meth:`keep_alive_many` does."""
        item = LeaseKey(namespace, lease)
        return await _KEEP_ALIVE.one(self._requests, item, deadline_s)


def _granted(items: list[LeaseGrantItem], reply: LeaseGrantReply) -> list[str | MetadError]:
    return with_errors([name or "" for name in reply.leases], reply.errors)


_GRANT: Verb[LeaseGrantItem, str] = Verb(methods.LEASE_GRANT, _granted)
_KEEP_ALIVE: Verb[LeaseKey, int] = Verb(methods.LEASE_KEEP_ALIVE)
