"""``m.subscriptions``: the topic filters of brokers' clients."""

from __future__ import annotations

from collections.abc import Sequence

from metad_wire import methods
from metad_wire.tables.subscription import (
    Subscription,
    SubscriptionKey,
    SubscriptionOptions,
)

from ..requests.requests import Verb
from ..results import SubscribeResult, WriteResult
from .declared import _SubscriptionDeclared

_NO_OPTIONS = SubscriptionOptions()


class Subscriptions(_SubscriptionDeclared):
    """Subscriptions by (tenant, client id, filter). They belong to the client's session: only its owner changes them,
    the next owner finds them, and they end with it.

    A ``*_many`` method reports errors per item in its result, and raises a MetadError only if the whole call failed. An
    item that is wrong by itself (no topic filter, a key that is too long, a field of a wrong type) is an
    InvalidItemError. The other methods raise the error of their item; those called at the same time share a request.
    ``deadline_s`` counts from now, and None means the client's default. A read sees every write that was answered
    before the read began. With ``min_revisions``, from the results of other writes, it also waits until its groups have
    reached them. With ``freshness_ms`` the nearest replica answers that can prove that it has all that was acknowledged
    so long before, or else the leader.
    """

    async def add_many(
        self, broker: str, broker_epoch: int, items: Sequence[Subscription], *, deadline_s: float | None = None
    ) -> SubscribeResult:
        """Subscribe clients. A filter that a client has already gets the options of the item; the result says which
        were ``created``. Item errors: NotFoundError (there is no session), NotOwnerError, FencedError,
        QuotaExceededError."""
        return SubscribeResult(
            await _ADD.many(self._requests, items, deadline_s, broker=broker, broker_epoch=broker_epoch)
        )

    async def remove_many(
        self, broker: str, broker_epoch: int, keys: Sequence[SubscriptionKey], *, deadline_s: float | None = None
    ) -> WriteResult:
        """Unsubscribe clients. Item errors: NotFoundError (there is no session, or it does not have the filter),
        NotOwnerError, FencedError."""
        return WriteResult(
            await _REMOVE.many(self._requests, keys, deadline_s, broker=broker, broker_epoch=broker_epoch)
        )

    async def add(
        self,
        broker: str,
        broker_epoch: int,
        tenant: str,
        client_id: str,
        filter: str,
        options: SubscriptionOptions = _NO_OPTIONS,
        *,
        deadline_s: float | None = None,
    ) -> bool:
        """Subscribe one client to one filter, as :meth:`add_many` does. Returns whether it did not have the filter."""
        return await _ADD.one(
            self._requests,
            Subscription(tenant, client_id, filter, options),
            deadline_s,
            broker=broker,
            broker_epoch=broker_epoch,
        )

    async def remove(
        self,
        broker: str,
        broker_epoch: int,
        tenant: str,
        client_id: str,
        filter: str,
        *,
        deadline_s: float | None = None,
    ) -> None:
        """Unsubscribe one client from one filter, as :meth:`remove_many` does."""
        await _REMOVE.one(
            self._requests,
            SubscriptionKey(tenant, client_id, filter),
            deadline_s,
            broker=broker,
            broker_epoch=broker_epoch,
        )


_ADD: Verb[Subscription, bool] = Verb(methods.SUBSCRIPTION_ADD)
_REMOVE: Verb[SubscriptionKey, None] = Verb(methods.SUBSCRIPTION_REMOVE)
