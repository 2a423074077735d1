"""``m.inflight``: what is in flight between brokers and their clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from metad_wire import methods
from metad_wire.messages import Revision, SessionKey
from metad_wire.tables.inflight import (
    Inflight,
    InflightDelete,
    InflightGet,
    InflightGetReply,
    InflightKey,
    InflightPut,
    InflightState,
)

from ..errors import MetadError
from ..requests.outcomes import with_errors, wrote
from ..results import ReadResult, WriteResult, newest
from . import Facade

Found: TypeAlias = ReadResult[list[InflightState] | None]


class InflightStates(Facade):
    """Packet identifiers and states of QoS 1 and 2, by (tenant, client id, name); the name and the value are the
    broker's choice. They belong to the client's session: its owner changes them, the next owner finds them, and they
    end with it. Other brokers may leave something, such as a message for a client that is away.

    A ``*_many`` method reports errors per item in its result, and raises a MetadError only if the whole call failed. An
    item that is wrong by itself (a key or value is too long, a field of a wrong type) is an InvalidItemError.
    The other methods raise the error of their item; those called at the same time share a request. ``deadline_s``
    counts from now, and None means the client's default. A read sees every write that was answered before the read
    began. With ``min_revisions``, from the results of other writes, it also waits until its groups have reached them.
    """

    async def put_many(
        self,
        broker: str,
        broker_epoch: int,
        items: Sequence[Inflight],
        *,
        any_owner: bool = False,
        deadline_s: float | None = None,
    ) -> WriteResult:
        """Write states. ``any_owner``: for sessions of other brokers, too, whose next owner finds them; choose names
        that no other broker chooses. Item errors: NotFoundError (there is no session), NotOwnerError, FencedError,
        QuotaExceededError."""
        return WriteResult(
            await self._requests.many(
                methods.INFLIGHT_PUT, items, lambda part: InflightPut(broker, broker_epoch, part, any_owner), deadline_s
            )
        )

    async def delete_many(
        self, broker: str, broker_epoch: int, keys: Sequence[InflightKey], *, deadline_s: float | None = None
    ) -> WriteResult:
        """Delete states. Item errors: NotFoundError (there is no session, or nothing of this name), NotOwnerError,
        FencedError."""
        return WriteResult(
            await self._requests.many(
                methods.INFLIGHT_DELETE, keys, lambda part: InflightDelete(broker, broker_epoch, part), deadline_s
            )
        )

    async def get_many(
        self, keys: Sequence[SessionKey], *, min_revisions: Sequence[Revision] = (), deadline_s: float | None = None
    ) -> Found:
        """All that is in flight for each client, in order of the name, by position of the clients. None if it could
        not be read: ``raise_for_error`` says why."""
        wanted = newest(min_revisions)
        pieces = await self._requests.many(
            methods.INFLIGHT_GET, keys, lambda part: InflightGet(part, wanted), deadline_s
        )
        return ReadResult(pieces, lambda reply: reply.states, None)

    async def put(
        self,
        broker: str,
        broker_epoch: int,
        tenant: str,
        client_id: str,
        name: str,
        value: bytes,
        *,
        any_owner: bool = False,
        deadline_s: float | None = None,
    ) -> None:
        """Write one state, as :meth:`put_many` does."""
        await self._requests.single(
            methods.INFLIGHT_PUT,
            (broker, broker_epoch, any_owner),
            Inflight(tenant, client_id, name, value),
            _size_of_state,
            lambda items: InflightPut(broker, broker_epoch, items, any_owner),
            wrote,
            deadline_s,
        )

    async def delete(
        self,
        broker: str,
        broker_epoch: int,
        tenant: str,
        client_id: str,
        name: str,
        *,
        deadline_s: float | None = None,
    ) -> None:
        """Delete one state, as :meth:`delete_many` does."""
        await self._requests.single(
            methods.INFLIGHT_DELETE,
            (broker, broker_epoch),
            InflightKey(tenant, client_id, name),
            _size,
            lambda items: InflightDelete(broker, broker_epoch, items),
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
    ) -> Sequence[InflightState]:
        """All that is in flight for one client, in order of the name."""
        wanted = newest(min_revisions)
        return await self._requests.single(
            methods.INFLIGHT_GET,
            tuple(wanted),
            SessionKey(tenant, client_id),
            _size_of_key,
            lambda items: InflightGet(items, wanted),
            _found,
            deadline_s,
        )


def _size(item: Inflight | InflightKey) -> int:
    return 24 + len(item.tenant) + len(item.client_id) + len(item.name)


def _size_of_state(item: Inflight) -> int:
    return _size(item) + len(item.value)


def _size_of_key(item: SessionKey) -> int:
    return 16 + len(item.tenant) + len(item.client_id)


def _found(items: list[SessionKey], reply: InflightGetReply) -> list[Sequence[InflightState] | MetadError]:
    return with_errors([found or () for found in reply.states], reply.errors)
