"""``m.subscriptions``: the topic filters of brokers' clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import TypeAlias

from metad_wire import methods
from metad_wire.messages import Revision, SessionKey
from metad_wire.tables.subscription import (
    Subscribed,
    Subscription,
    SubscriptionAdd,
    SubscriptionAddReply,
    SubscriptionGet,
    SubscriptionGetReply,
    SubscriptionKey,
    SubscriptionList,
    SubscriptionOptions,
    SubscriptionRemove,
)

from ..errors import MetadError
from ..requests.listing import of_all_groups
from ..requests.outcomes import with_errors, wrote
from ..results import ReadResult, SubscribeResult, WriteResult, newest
from . import Facade

Found: TypeAlias = ReadResult[list[Subscribed] | None]
_NO_OPTIONS = SubscriptionOptions()


class Subscriptions(Facade):
    """Subscriptions by (tenant, client id, filter). They belong to the client's session: only its owner changes them,
    the next owner finds them, and they end with it.

    A ``*_many`` method reports errors per item in its result, and raises a MetadError only if the whole call failed. An
    item that is wrong by itself (no topic filter, a key that is too long, a field of a wrong type) is an
    InvalidItemError. The other methods raise the error of their item; those called at the same time share a request.
    ``deadline_s`` counts from now, and None means the client's default. A read sees every write that was answered
    before the read began. With ``min_revisions``, from the results of other writes, it also waits until its groups have
    reached them.
    """

    async def add_many(
        self, broker: str, broker_epoch: int, items: Sequence[Subscription], *, deadline_s: float | None = None
    ) -> SubscribeResult:
        """Subscribe clients. A filter that a client has already gets the options of the item; the result says which
        were ``created``. Item errors: NotFoundError (there is no session), NotOwnerError, FencedError,
        QuotaExceededError."""
        return SubscribeResult(
            await self._requests.many(
                methods.SUBSCRIPTION_ADD, items, lambda part: SubscriptionAdd(broker, broker_epoch, part), deadline_s
            )
        )

    async def remove_many(
        self, broker: str, broker_epoch: int, keys: Sequence[SubscriptionKey], *, deadline_s: float | None = None
    ) -> WriteResult:
        """Unsubscribe clients. Item errors: NotFoundError (there is no session, or it does not have the filter),
        NotOwnerError, FencedError."""
        return WriteResult(
            await self._requests.many(
                methods.SUBSCRIPTION_REMOVE,
                keys,
                lambda part: SubscriptionRemove(broker, broker_epoch, part),
                deadline_s,
            )
        )

    async def get_many(
        self, keys: Sequence[SessionKey], *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> Found:
        """All filters of each client, in order, by position of the clients. None if they could not be read:
        ``raise_for_error`` says why."""
        wanted = newest(min_revisions)
        pieces = await self._requests.many(
            methods.SUBSCRIPTION_GET, keys, lambda part: SubscriptionGet(part, wanted), deadline_s
        )
        return ReadResult(pieces, lambda reply: reply.subscriptions, None)

    async def list(
        self,
        tenant: str | None = None,
        client_id_prefix: str = "",
        *,
        page_size: int = 1000,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> AsyncIterator[Subscription]:
        """List subscriptions in order of (tenant, client id, filter), a page at a time. The deadline is that of each
        page.

        ``tenant`` matches exactly, None matches any; ``client_id_prefix`` needs a tenant. The listing may or may not
        contain writes made while it runs. A subscription that stays comes once, wherever its slot moves.
        """
        wanted = newest(min_revisions)
        listing = of_all_groups(
            self._requests,
            methods.SUBSCRIPTION_LIST,
            lambda slots, after, page: SubscriptionList(
                tenant, client_id_prefix, page, wanted, slots, None if after is None else SubscriptionKey(*after)
            ),
            lambda reply: reply.subscriptions,
            lambda one: (one.tenant, one.client_id, one.filter),
            page_size,
            deadline_s,
        )
        async with aclosing(listing):
            async for one in listing:
                yield one

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
        return await self._requests.single(
            methods.SUBSCRIPTION_ADD,
            (broker, broker_epoch),
            Subscription(tenant, client_id, filter, options),
            _size,
            lambda items: SubscriptionAdd(broker, broker_epoch, items),
            _added,
            deadline_s,
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
        await self._requests.single(
            methods.SUBSCRIPTION_REMOVE,
            (broker, broker_epoch),
            SubscriptionKey(tenant, client_id, filter),
            _size,
            lambda items: SubscriptionRemove(broker, broker_epoch, items),
            wrote,
            deadline_s,
        )

    async def get(
        self,
        tenant: str,
        client_id: str,
        *,
        min_revisions: Sequence[Revision] = (),
        deadline_s: float | None = None,
    ) -> Sequence[Subscribed]:
        """All filters of one client, in order."""
        wanted = newest(min_revisions)
        return await self._requests.single(
            methods.SUBSCRIPTION_GET,
            tuple(wanted),
            SessionKey(tenant, client_id),
            _size_of_key,
            lambda items: SubscriptionGet(items, wanted),
            _found,
            deadline_s,
        )


def _size(item: Subscription | SubscriptionKey) -> int:
    return 24 + len(item.tenant) + len(item.client_id) + len(item.filter)


def _size_of_key(item: SessionKey) -> int:
    return 16 + len(item.tenant) + len(item.client_id)


def _added(items: list[Subscription], reply: SubscriptionAddReply) -> list[bool | MetadError]:
    return with_errors(reply.created, reply.errors)


def _found(items: list[SessionKey], reply: SubscriptionGetReply) -> list[Sequence[Subscribed] | MetadError]:
    return with_errors([found or () for found in reply.subscriptions], reply.errors)
