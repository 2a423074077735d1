"""A key that one holder has at a time: a lock, or the lead of an election."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from metad_wire.messages import Kv, KvCompare, KvKey, KvOperation, KvTransaction
from metad_wire.watch import ChangeKind

from ..errors import ConflictError, InternalError, MetadError
from ..namespaces.kv import KeyValue
from ..watch.watch import Watch
from .belief import LeaseState


class Holder(Protocol):
    """Of the lease that the key goes with."""

    @property
    def state(self) -> LeaseState:
        """What may be believed of the lease now."""


class Lock:
    """A key that is the program's until it is released, or its lease is over. Made by :meth:`HeldLease.lock`.

    ``token`` is the fencing token: it is greater than that of everybody who had the key before. A resource that refuses
    tokens lower than the highest it has seen is safe from a holder that has lost the lock and does not know it yet.
    Transactions in the namespace are safe with :attr:`guard` among their compares.
    """

    def __init__(self, holder: Holder, kv: KeyValue, turn: asyncio.Lock, record: Kv) -> None:
        self._holder = holder
        self._kv = kv
        self._turn = turn
        self._released = False
        self.namespace = record.namespace
        self.key = record.key
        self.token = record.create_revision

    def __repr__(self) -> str:
        return f"<Lock {self.namespace}/{self.key} {self.token}>"

    @property
    def is_held(self) -> bool:
        """Whether the lock may be relied on now. Look before each use."""
        return not self._released and self._holder.state is LeaseState.CONNECTED

    @property
    def guard(self) -> KvCompare:
        """Holds in a transaction of the namespace as long as the lock is the program's."""
        return KvCompare(self.key, create_revision=self.token)

    async def proclaim(self, value: bytes, *, deadline_s: float | None = None) -> None:
        """Change what others read. Raises ConflictError if the key is another's now."""
        found = await self._kv.get(self.namespace, self.key, deadline_s=deadline_s)
        lease = "" if found is None else found.lease
        operation = KvOperation(self.key, value, lease)
        transaction = KvTransaction(self.namespace, [self.guard], [operation])
        if not (await self._kv.transact(transaction, deadline_s=deadline_s)).succeeded:
            raise ConflictError(f"{self.key} is not ours any more")

    async def release(self, *, deadline_s: float | None = None) -> None:
        """Let the next one have the key. Safe to call again. If it fails, the key is free when the lease ends."""
        if self._released:
            return
        self._released = True
        try:
            transaction = KvTransaction(self.namespace, [self.guard], [KvOperation(self.key)])
            await self._kv.transact(transaction, deadline_s=deadline_s)
        finally:
            self._turn.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(MetadError):
            await self.release()


async def acquired(
    kv: KeyValue, open_watch: Callable[[KvKey], Watch], namespace: str, key: str, value: bytes, lease: str
) -> Kv:
    """The record of a key once it is this lease's."""
    transaction = KvTransaction(namespace, [KvCompare(key, version=0)], [KvOperation(key, value, lease)], reads=[key])
    while True:
        (record,) = (await kv.transact(transaction)).records
        if record is None:
            raise InternalError(f"{key} was put, and is not there")
        if record.lease == lease:
            return record
        await _gone(open_watch, KvKey(namespace, key))


async def given_up(kv: KeyValue, namespace: str, key: str, lease: str) -> None:
    """Delete a key if it is this lease's."""
    record = await kv.get(namespace, key)
    if record is not None and record.lease == lease:
        guard = KvCompare(key, create_revision=record.create_revision)
        await kv.transact(KvTransaction(namespace, [guard], [KvOperation(key)]))


async def _gone(open_watch: Callable[[KvKey], Watch], key: KvKey) -> None:
    """Wait until nobody has the key, as far as any replica knows."""
    there = False
    async with open_watch(key) as watch:
        async for batch in watch:
            for event in batch.events:
                there = event.kind not in (ChangeKind.DELETED, ChangeKind.EXPIRED)
            if not there and (batch.kind == "changes" or (batch.kind == "snapshot" and batch.last)):
                return
