"""Programs that want the same locks, die with them, and write to a resource with the lock as their guard. The rules: a
lock has one holder, its tokens rise, and no holder writes behind a later one."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from metad_client import Client, HeldLease, KvOperation, KvTransaction, LeaseState, Lock, MetadError
from metad_judge.invariants import Violation
from metad_wire.tables.kv import KV

from ..cluster import Cluster, SimClient
from .actor import Actor

NAMESPACE = "locks"
_LOCKS = ("one", "other")


class LockJudge:
    """Who has which lock."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._last: dict[str, tuple[str, Lock]] = {}
        self.acquired = 0

    def has(self, who: str, key: str, lock: Lock) -> None:
        """Somebody has been given a lock, and may rely on it."""
        if not lock.is_held:
            return  # the answer was so late that it is over
        self.acquired += 1
        last = self._last.get(key)
        if last is not None:
            if last[1].is_held:
                raise Violation("locks", f"{who} and {last[0]} have {key}: {lock} {last[1]}")
            if lock.token <= last[1].token:
                raise Violation("locks", f"{who} has {lock}, after {last[0]} had {last[1]}")
        self._last[key] = who, lock

    def check_resources(self) -> None:
        """What was written under guard has tokens that never fall."""
        highest: dict[str, int] = {}
        for change in self._cluster.written.log:
            if change.key.row != KV.rows["record"] or change.value is None:
                continue
            record = change.key.record(change.value)
            if record.namespace == NAMESPACE and record.key.startswith("resource"):
                token = int(record.value)
                if token < highest.get(record.key, 0):
                    raise Violation("locks", f"{change} has token {token}, behind {highest[record.key]}")
                highest[record.key] = token


class Locker(Actor):
    """One such program."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random, judge: LockJudge) -> None:
        super().__init__(cluster, name, rng)
        self._judge = judge

    async def live(self, sim: SimClient, client: Client) -> None:
        """See Actor."""
        while not self.quiet:
            held = HeldLease(
                client.leases,
                client.kv,
                lambda key: client.watch("kv", keys=[key], start="snapshot"),
                NAMESPACE,
                ttl_s=self._rng.choice([0.5, 1.0, 2.0]),
                holder=self.name,
                attributes=b"",
                now=self._cluster.loop.time,
            )
            with suppress(MetadError):
                async with held:
                    while not self.quiet and held.state is not LeaseState.LOST:
                        await self._lock(client, held)
            await self.pause(0.05, 0.3)

    async def _lock(self, client: Client, held: HeldLease) -> None:
        key = self._rng.choice(_LOCKS)
        lock = await held.lock(key, self.name.encode(), timeout_s=2.0)
        async with lock:
            self._judge.has(f"{self.name} {held}", key, lock)
            for _ in range(self._rng.randrange(5)):
                # It does not look whether it still has the lock: the guard does.
                operation = KvOperation(f"resource of {key}", str(lock.token).encode())
                work = client.kv.transact(KvTransaction(NAMESPACE, [lock.guard], [operation]))
                await self.ask(f"write under {lock}", work)
                await asyncio.sleep(self._rng.choice([0.0, 0.05, 0.4]))

    def settle(self) -> None:
        """See Actor."""
        self._judge.check_resources()
