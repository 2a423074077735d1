"""``m.kv``: small values by (namespace, key), with versions, and transactions within a namespace."""

from __future__ import annotations

from collections.abc import Sequence

from metad_wire import methods
from metad_wire.messages import (
    TRANSACTIONS_MAX,
    KvDeleteItem,
    KvPutItem,
    KvTransaction,
    KvTransactionResult,
)

from ..requests.requests import Verb
from ..requests.transacting import items_max_of, transacted
from ..requests.wrong import sequence_of
from ..results import PutResult, TransactResult, WriteResult
from .declared import _KvDeclared


class KeyValue(_KvDeclared):
    """Keys by (namespace, key).

    A ``*_many`` method reports errors per item in its result, and raises a MetadError only if the whole call failed. An
    item that is wrong by itself (a key or value is too long, a field of a wrong type) is an InvalidItemError.
    The other methods raise the error of their item; those called at the same time share a request. ``deadline_s``
    counts from now, and None means the client's default. A read sees every write that was answered before the read
    began. With ``min_revisions``, from the results of other writes, it also waits until its groups have reached them.
    With ``freshness_ms`` the nearest replica answers that can prove that it has all that was acknowledged so long
    before, or else the leader.
    A key that ``get_many`` could not read has the value of an absent record: ``raise_for_error`` tells them apart.
    """

    async def put_many(
        self, items: Sequence[KvPutItem], *, lease: str = "", deadline_s: float | None = None
    ) -> PutResult:
        """Write keys. The result has their new ``versions``. With a ``lease`` of their namespace they are deleted when
        that ends; without one they stay, also those that had one. Item errors: ConflictError; with a lease
        NotFoundError and QuotaExceededError."""
        return PutResult(await _PUT.many(self._requests, items, deadline_s, lease=lease))

    async def delete_many(self, items: Sequence[KvDeleteItem], *, deadline_s: float | None = None) -> WriteResult:
        """Delete keys. Item errors: NotFoundError, ConflictError."""
        return WriteResult(await _DELETE.many(self._requests, items, deadline_s))

    async def transact_many(self, items: Sequence[KvTransaction], *, deadline_s: float | None = None) -> TransactResult:
        """Run transactions. Each is atomic by itself; the batch is not."""
        items = sequence_of(methods.KV_TRANSACT, items)
        items_max = items_max_of(items)
        return TransactResult(await _TRANSACT.many(self._requests, items, deadline_s, items_max=items_max))

    async def put(
        self,
        namespace: str,
        key: str,
        value: bytes,
        *,
        expected_version: int | None = None,
        lease: str = "",
        deadline_s: float | None = None,
    ) -> int:
        """Write one key; returns its new version. ``expected_version`` (0: must not exist) makes it a
        compare-and-set; ``lease`` is that of :meth:`put_many`. Raises ConflictError; with a lease NotFoundError and
        QuotaExceededError."""
        return await _PUT.one(
            self._requests, KvPutItem(namespace, key, value, expected_version), deadline_s, lease=lease
        )

    async def delete(
        self, namespace: str, key: str, *, expected_version: int | None = None, deadline_s: float | None = None
    ) -> None:
        """Delete one key. Raises NotFoundError, ConflictError."""
        await _DELETE.one(self._requests, KvDeleteItem(namespace, key, expected_version), deadline_s)

    async def transact(self, transaction: KvTransaction, *, deadline_s: float | None = None) -> KvTransactionResult:
        """Run one transaction."""
        return await _TRANSACT.one(self._requests, transaction, deadline_s)


_PUT: Verb[KvPutItem, int] = Verb(methods.KV_PUT)
_DELETE: Verb[KvDeleteItem, None] = Verb(methods.KV_DELETE)
_TRANSACT: Verb[KvTransaction, KvTransactionResult] = Verb(methods.KV_TRANSACT, transacted, items_max=TRANSACTIONS_MAX)
