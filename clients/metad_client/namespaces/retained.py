"""``m.retained``: the message that each topic retains, and all whose topics match a filter."""

from __future__ import annotations

from collections.abc import Sequence

from metad_wire import methods
from metad_wire.tables.retained import (
    RetainedDeleteItem,
    RetainedPutItem,
)

from ..requests.requests import Verb
from ..results import WriteResult
from .declared import _RetainedDeclared


class RetainedMessages(_RetainedDeclared):
    """Retained messages by (tenant, topic).

    A ``*_many`` method reports errors per item in its result, and raises a MetadError only if the whole call failed. An
    item that is wrong by itself (a key or value is too long, a field of a wrong type) is an InvalidItemError.
    The other methods raise the error of their item; those called at the same time share a request. ``deadline_s``
    counts from now, and None means the client's default. A read sees every write that was answered before the read
    began. With ``min_revisions``, from the results of other writes, it also waits until its groups have reached them.
    With ``freshness_ms`` the nearest replica answers that can prove that it has all that was acknowledged so long
    before, or else the leader.
    A topic that ``get_many`` could not read looks as if it retained nothing: ``raise_for_error`` tells them apart. No
    read returns a message that has expired.
    """

    async def put_many(self, items: Sequence[RetainedPutItem], *, deadline_s: float | None = None) -> WriteResult:
        """Retain messages, each in place of the one that its topic retained. An empty payload deletes that one, as in
        MQTT. Item errors: InvalidItemError (nobody may publish to a topic of this name)."""
        return WriteResult(await _PUT.many(self._requests, items, deadline_s))

    async def delete_many(self, items: Sequence[RetainedDeleteItem], *, deadline_s: float | None = None) -> WriteResult:
        """Delete messages, also expired ones that are still there. Item errors: NotFoundError, ConflictError (another
        write than that of ``revision`` was the last)."""
        return WriteResult(await _DELETE.many(self._requests, items, deadline_s))

    async def put(
        self,
        tenant: str,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        properties: bytes = b"",
        expiry_interval_s: int | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """Retain one message, as :meth:`put_many` does. Raises InvalidItemError."""
        await _PUT.one(
            self._requests, RetainedPutItem(tenant, topic, payload, qos, properties, expiry_interval_s), deadline_s
        )

    async def delete(self, tenant: str, topic: str, *, revision: int = 0, deadline_s: float | None = None) -> None:
        """Delete one message. With ``revision`` only the one that this entry wrote. Raises NotFoundError,
        ConflictError."""
        await _DELETE.one(self._requests, RetainedDeleteItem(tenant, topic, revision), deadline_s)


_PUT: Verb[RetainedPutItem, None] = Verb(methods.RETAINED_PUT)
_DELETE: Verb[RetainedDeleteItem, None] = Verb(methods.RETAINED_DELETE)
