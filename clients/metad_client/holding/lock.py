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

_LOOKS_S = (0.5, 2.0, 8.0)
"""When to look whether a key was put by a transaction of which no answer came: seconds after one another. A server
begins no request whose deadline has passed."""


class Holder(Protocol):
    """Of the lease that the key goes with."""

    @property
    def state(self) -> LeaseState:
        """What may be believed of the lease now."""

    def _free_soon(self, lock: Lock, deadline_s: float | None) -> asyncio.Future[None]:
        """Delete the key of a lock behind the caller, as often as it takes, and call :meth:`Lock._freed`. The future
        says how the first attempt ended."""


class Turns:
    """The tasks of one holder take turns at a key. Keys that nobody waits for or has are forgotten."""

    def __init__(self) -> None:
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    def __len__(self) -> int:
        return len(self._turns)

    async def take(self, key: str) -> None:
        """Wait for the turn at this key."""
        turn, users = self._turns.get(key) or (asyncio.Lock(), 0)
        self._turns[key] = turn, users + 1
        try:
            await turn.acquire()
        except BaseException:
            self._leave(key)
            raise

    def give(self, key: str) -> None:
        """The turn is the next one's."""
        self._turns[key][0].release()
        self._leave(key)

    def _leave(self, key: str) -> None:
        turn, users = self._turns[key]
        if users > 1:
            self._turns[key] = turn, users - 1
        else:
            del self._turns[key]


class Lock:
    """A key that is the program's until it is released, or its lease is over. Made by :meth:`HeldLease.lock`.

    ``token`` is the fencing token: it is greater than that of everybody who had the key before. A resource that refuses
    tokens lower than the highest it has seen is safe from a holder that has lost the lock and does not know it yet.
    Transactions in the namespace are safe with :attr:`guard` among their compares.
    """

    def __init__(self, holder: Holder, kv: KeyValue, record: Kv, freed: Callable[[], None]) -> None:
        self._holder = holder
        self._kv = kv
        self._released = False  # the program does not believe in it any more
        self._when_freed: Callable[[], None] | None = freed  # called once the key is deleted; None: it is
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
        """Let the next one have the key. Safe to call again. If it fails or is cancelled, the holder goes on with it
        until the key is free, or the lease is over."""
        if self._when_freed is None:
            return
        self._released = True
        await self._holder._free_soon(self, deadline_s)

    async def _delete(self, *, deadline_s: float | None = None) -> None:
        """Delete the key, if it is still what this lock has put."""
        transaction = KvTransaction(self.namespace, [self.guard], [KvOperation(self.key)])
        await self._kv.transact(transaction, deadline_s=deadline_s)

    def _freed(self) -> None:
        """The key is deleted, or its lease is over."""
        freed, self._when_freed = self._when_freed, None
        if freed is not None:
            freed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(MetadError):
            await self.release()


class Attempt:
    """An attempt of a lease to have a key. Whoever gives it up gives back what it has then."""

    def __init__(
        self, kv: KeyValue, open_watch: Callable[[KvKey], Watch], namespace: str, key: str, value: bytes, lease: str
    ) -> None:
        self._kv = kv
        self._open_watch = open_watch
        self._lease = lease
        self._key = KvKey(namespace, key)
        operation = KvOperation(key, value, lease)
        self._transaction = KvTransaction(namespace, [KvCompare(key, version=0)], [operation], reads=[key])
        self.is_putting = False
        """A transaction is under way, or has put the key, or may have."""
        self.is_wanted = True

    async def won(self) -> Kv:
        """The record of the key once it is the lease's. While it is put, nobody may cancel this: it may have been sent,
        and put the key later."""
        while True:
            self.is_putting = True
            (record,) = (await self._kv.transact(self._transaction)).records
            if record is None:
                raise InternalError(f"{self._key.key} was put, and is not there")
            if record.lease == self._lease:
                return record
            self.is_putting = False
            if not self.is_wanted:
                raise ConflictError(f"another has {self._key.key}")
            await _gone(self._open_watch, self._key)

    async def found(self) -> Kv | None:
        """The record of the key if a transaction of which no answer came has put it."""
        for pause_s in _LOOKS_S:
            await asyncio.sleep(pause_s)
            with contextlib.suppress(MetadError):
                record = await self._kv.get(self._key.namespace, self._key.key)
                if record is not None and record.lease == self._lease:
                    return record
        return None


async def _gone(open_watch: Callable[[KvKey], Watch], key: KvKey) -> None:
    """Wait until nobody has the key, as far as any replica knows."""
    there = False
    async with open_watch(key) as watch:
        async for batch in watch:
            for event in batch.events:
                there = event.kind not in (ChangeKind.DELETED, ChangeKind.EXPIRED)
            if not there and (batch.kind == "changes" or (batch.kind == "snapshot" and batch.last)):
                return
