"""``m.inflight``: what is in flight between brokers and their clients."""

from __future__ import annotations

from collections.abc import Sequence

from metad_wire import methods
from metad_wire.tables.inflight import Inflight, InflightKey

from ..requests.requests import Verb
from ..results import WriteResult
from .declared import _InflightDeclared


class InflightStates(_InflightDeclared):
    """Packet identifiers and states of QoS 1 and 2, by (tenant, client id, name); the name and the value are the
    broker's choice. They belong to the client's session: its owner changes them, the next owner finds them, and they
    end with it. Other brokers may leave something, such as a message for a client that is away.

    A ``*_many`` method reports errors per item in its result, and raises a MetadError only if the whole call failed. An
    item that is wrong by itself (a key or value is too long, a field of a wrong type) is an InvalidItemError.
    The other methods raise the error of their item; those called at the same time share a request. ``deadline_s``
    counts from now, and None means the client's default. A read sees every write that was answered before the read
    began. With ``min_revisions``, from the results of other writes, it also waits until its groups have reached them.
    With ``freshness_ms`` the nearest replica answers that can prove that it has all that was acknowledged so long
    before, or else the leader.
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
            await _PUT.many(
                self._requests, items, deadline_s, broker=broker, broker_epoch=broker_epoch, any_owner=any_owner
            )
        )

    async def delete_many(
        self, broker: str, broker_epoch: int, keys: Sequence[InflightKey], *, deadline_s: float | None = None
    ) -> WriteResult:
        """Delete states. Item errors: NotFoundError (there is no session, or nothing of this name), NotOwnerError,
        FencedError."""
        return WriteResult(
            await _DELETE.many(self._requests, keys, deadline_s, broker=broker, broker_epoch=broker_epoch)
        )

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
        await _PUT.one(
            self._requests,
            Inflight(tenant, client_id, name, value),
            deadline_s,
            broker=broker,
            broker_epoch=broker_epoch,
            any_owner=any_owner,
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
        await _DELETE.one(
            self._requests, InflightKey(tenant, client_id, name), deadline_s, broker=broker, broker_epoch=broker_epoch
        )


_PUT: Verb[Inflight, None] = Verb(methods.INFLIGHT_PUT)
_DELETE: Verb[InflightKey, None] = Verb(methods.INFLIGHT_DELETE)
