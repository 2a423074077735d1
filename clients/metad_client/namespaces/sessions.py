"""``m.sessions``: the sessions of brokers' clients."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

from metad_wire import methods
from metad_wire.messages import (
    SessionDeleteItem,
    SessionDisconnectItem,
    SessionEndings,
    SessionEndTenant,
    SessionProperties,
    SessionTakeoverItem,
    SessionTakeoverReply,
    SessionUpdateItem,
    TenantEnd,
)

from ..errors import MetadError
from ..requests.batcher import with_errors
from ..requests.everywhere import everywhere, in_order
from ..requests.requests import Verb
from ..results import Takeover, TakeoverResult, WriteResult, attachment_of
from .declared import _SessionDeclared


class Sessions(_SessionDeclared):
    """Sessions by (tenant, client id).

    A ``*_many`` method reports errors per item in its result, and raises a MetadError only if the whole call failed. An
    item that is wrong by itself (a key or value is too long, a field of a wrong type) is an InvalidItemError.
    The other methods raise the error of their item; those called at the same time share a request. ``deadline_s``
    counts from now, and None means the client's default. A read sees every write that was answered before the read
    began. With ``min_revisions``, from the results of other writes, it also waits until its groups have reached them.
    With ``freshness_ms`` the nearest replica answers that can prove that it has all that was acknowledged so long
    before, or else the leader.
    A key that ``get_many`` could not read has the value of an absent record: ``raise_for_error`` tells them apart.
    """

    async def takeover_many(
        self,
        broker: str,
        broker_epoch: int,
        items: Sequence[SessionTakeoverItem],
        *,
        restore: bool = False,
        restore_parts: bool = False,
        deadline_s: float | None = None,
    ) -> TakeoverResult:
        """Make the broker, in its life ``broker_epoch``, the owner of these sessions, and create missing ones.

        ``broker_epoch`` is a number that you choose, higher in each life of the broker. Another broker's session is
        always taken over. ``restore`` asks for the stored properties; the properties of an item replace them, None
        keeps them. ``restore_parts`` asks for the subscriptions and what is in flight, too. Item errors: FencedError
        (the session belongs to a newer life of this broker).

        The result's ``attachments`` say which takeover this was. With them, what the broker says later of a connection
        counts for that connection only: see :meth:`disconnect_many`.
        """
        pieces = await _TAKEOVER.many(
            self._requests,
            items,
            deadline_s,
            broker=broker,
            broker_epoch=broker_epoch,
            restore=restore,
            restore_parts=restore_parts,
        )
        return TakeoverResult(pieces, tuple(items))

    async def update_many(
        self, broker: str, broker_epoch: int, items: Sequence[SessionUpdateItem], *, deadline_s: float | None = None
    ) -> WriteResult:
        """Replace the properties of sessions that this broker owns.

        Item errors: NotFoundError, NotOwnerError, FencedError, ConflictError (as for :meth:`disconnect_many`).
        """
        return WriteResult(
            await _UPDATE.many(self._requests, items, deadline_s, broker=broker, broker_epoch=broker_epoch)
        )

    async def disconnect_many(
        self,
        broker: str,
        broker_epoch: int,
        items: Sequence[SessionDisconnectItem],
        *,
        deadline_s: float | None = None,
    ) -> WriteResult:
        """Mark the sessions of clients that have gone as disconnected. A session stays for the expiry interval of its
        properties, or of the item; with an interval of 0 it ends at once. Its will is due after its delay, unless the
        item discards it or the client comes back before.

        An item with an ``attachment``, that of the takeover which connected the client, is done only if it still
        connects it: not if it has left meanwhile, or has come again, to this broker or by way of another. This is
        promised to brokers that have registered.

        Item errors: NotFoundError, NotOwnerError, FencedError, ConflictError (the attachment is no longer the one that
        may speak).
        """
        return WriteResult(
            await _DISCONNECT.many(self._requests, items, deadline_s, broker=broker, broker_epoch=broker_epoch)
        )

    async def delete_many(
        self,
        items: Sequence[SessionDeleteItem],
        *,
        broker: str = "",
        broker_epoch: int = 0,
        deadline_s: float | None = None,
    ) -> WriteResult:
        """Delete sessions and all that belongs to them; with a ``broker``, only those that it owns. An item with
        ``disconnected_ms`` is deleted only if it is disconnected since exactly then; one with an ``attachment``, which
        needs a ``broker``, only if that may speak, as for :meth:`disconnect_many`. No will is published.

        Item errors: NotFoundError, NotOwnerError, FencedError, ConflictError (it is not disconnected since then, or the
        attachment may not speak).
        """
        return WriteResult(
            await _DELETE.many(self._requests, items, deadline_s, broker=broker, broker_epoch=broker_epoch)
        )

    async def end_tenant(
        self, tenant: str, *, publish_wills: bool, retained: bool = False, deadline_s: float | None = None
    ) -> None:
        """End all sessions that a tenant has now, whoever owns them, and all that belongs to them.

        When this returns, they are over: a takeover finds none of them, and one that it begins lives. The groups clear
        up at the pace of their expiry; until they have come to a session, reads show it and its broker may still write
        to it. :meth:`endings` says how far they are. A watch shows each end, so brokers can send the clients away.

        ``publish_wills`` makes their wills due as they end. Otherwise these are dropped, with those of the tenant that
        are due already. ``retained`` deletes the tenant's retained messages, too. Messages that are put and wills that
        become due after this stay.

        If it raises, groups may have the order and others not: repeat it. A group has at most 256 orders that are not
        carried out; one more is a TooLargeError.
        """
        await everywhere(
            self._requests,
            methods.SESSION_END_TENANT,
            lambda slots: SessionEndTenant(tenant, publish_wills, retained, slots),
            deadline_s,
        )

    async def endings(self, tenant: str | None = None, *, deadline_s: float | None = None) -> builtins.list[TenantEnd]:
        """What is left to do of :meth:`end_tenant`, by group and order, in the order of their tenants. Empty: all is
        done that was ordered before, of this tenant (None: of any)."""
        pieces = await everywhere(
            self._requests, methods.SESSION_ENDINGS, lambda slots: SessionEndings(tenant, slots), deadline_s
        )
        return in_order(pieces)

    async def takeover(
        self,
        broker: str,
        broker_epoch: int,
        tenant: str,
        client_id: str,
        *,
        clean_start: bool = False,
        properties: SessionProperties | None = None,
        restore: bool = False,
        restore_parts: bool = False,
        deadline_s: float | None = None,
    ) -> Takeover:
        """Take over the session of one client that has connected, as :meth:`takeover_many` does."""
        return await _TAKEOVER.one(
            self._requests,
            SessionTakeoverItem(tenant, client_id, clean_start, properties),
            deadline_s,
            broker=broker,
            broker_epoch=broker_epoch,
            restore=restore,
            restore_parts=restore_parts,
        )

    async def update(
        self,
        broker: str,
        broker_epoch: int,
        tenant: str,
        client_id: str,
        properties: SessionProperties,
        *,
        attachment: int = 0,
        deadline_s: float | None = None,
    ) -> None:
        """Replace the properties of one session, as :meth:`update_many` does."""
        await _UPDATE.one(
            self._requests,
            SessionUpdateItem(tenant, client_id, properties, attachment),
            deadline_s,
            broker=broker,
            broker_epoch=broker_epoch,
        )

    async def disconnect(
        self,
        broker: str,
        broker_epoch: int,
        tenant: str,
        client_id: str,
        *,
        expiry_interval_s: int | None = None,
        will_discard: bool = False,
        attachment: int = 0,
        deadline_s: float | None = None,
    ) -> None:
        """Mark the session of one client as disconnected, as :meth:`disconnect_many` does."""
        await _DISCONNECT.one(
            self._requests,
            SessionDisconnectItem(tenant, client_id, expiry_interval_s, will_discard, attachment),
            deadline_s,
            broker=broker,
            broker_epoch=broker_epoch,
        )

    async def delete(
        self,
        tenant: str,
        client_id: str,
        *,
        broker: str = "",
        broker_epoch: int = 0,
        disconnected_ms: int = 0,
        attachment: int = 0,
        deadline_s: float | None = None,
    ) -> None:
        """Delete one session, as :meth:`delete_many` does."""
        await _DELETE.one(
            self._requests,
            SessionDeleteItem(tenant, client_id, disconnected_ms, attachment),
            deadline_s,
            broker=broker,
            broker_epoch=broker_epoch,
        )


def _taken(items: list[SessionTakeoverItem], reply: SessionTakeoverReply) -> list[Takeover | MetadError]:
    nothing = [None] * len(items)
    columns = reply.properties or nothing, reply.subscriptions or nothing, reply.inflight or nothing
    attachment = attachment_of(reply)
    taken = [
        Takeover(
            reply.owners[index] if index >= 0 else None,
            index >= 0 and not item.clean_start,
            stored,
            filters or (),
            states or (),
            attachment,
        )
        for item, index, stored, filters, states in zip(items, reply.previous, *columns, strict=True)
    ]
    return with_errors(taken, reply.errors)


_TAKEOVER: Verb[SessionTakeoverItem, Takeover] = Verb(methods.SESSION_TAKEOVER, _taken)
_UPDATE: Verb[SessionUpdateItem, None] = Verb(methods.SESSION_UPDATE)
_DISCONNECT: Verb[SessionDisconnectItem, None] = Verb(methods.SESSION_DISCONNECT)
_DELETE: Verb[SessionDeleteItem, None] = Verb(methods.SESSION_DELETE)
