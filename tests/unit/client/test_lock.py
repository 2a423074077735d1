"""Locks of a lease that is held: whose key it is decides, and not who believes to have it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metad_client import DeadlineExceededError, HeldLease, LeaseState, Lock
from metad_client.holding.lock import given_up
from metad_wire.messages import Kv, KvTransaction, KvTransactionResult

LOST, SUSPENDED, CONNECTED = LeaseState.LOST, LeaseState.SUSPENDED, LeaseState.CONNECTED


class Space:
    """One namespace, as :class:`KeyValue` and :class:`Leases` show it."""

    def __init__(self) -> None:
        self.records: dict[str, Kv] = {}
        self.revision = 0
        self.granted = 0
        self.revoked: list[str] = []

    async def get(self, namespace: str, key: str, **_: Any) -> Kv | None:
        return self.records.get(key)

    async def transact(self, asked: KvTransaction, **_: Any) -> KvTransactionResult:
        self.revision += 1
        for compare in asked.compares:
            record = self.records.get(compare.key)
            version = 0 if record is None else record.version
            created = 0 if record is None else record.create_revision
            if compare.version not in (None, version) or compare.create_revision not in (None, created):
                return KvTransactionResult(False, [self.records.get(key) for key in asked.reads])
        for operation in asked.then:
            if operation.value is None:
                self.records.pop(operation.key, None)
            else:
                self.put(operation.key, operation.value, operation.lease)
        return KvTransactionResult(True, [self.records.get(key) for key in asked.reads])

    def put(self, key: str, value: bytes, lease: str) -> None:
        before = self.records.get(key)
        version, created = (1, self.revision) if before is None else (before.version + 1, before.create_revision)
        self.records[key] = Kv("n", key, value, version, created, self.revision, lease)

    async def grant(self, *_: Any, **__: Any) -> str:
        self.granted += 1
        return f"lease-{self.granted}"

    async def keep_alive(self, *_: Any, **__: Any) -> int:
        return 10_000

    async def revoke(self, namespace: str, lease: str, **_: Any) -> None:
        self.revoked.append(lease)


class NoEvents:
    """A watch that tells nothing."""

    async def __aenter__(self) -> NoEvents:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def __aiter__(self) -> NoEvents:
        return self

    async def __anext__(self) -> Any:
        await asyncio.get_running_loop().create_future()


def held(space: Any, now: Any = None) -> HeldLease:
    watch: Any = lambda key: NoEvents()  # noqa: E731
    clock = now or asyncio.get_running_loop().time
    return HeldLease(space, space, watch, "n", ttl_s=10.0, holder="", attributes=b"", now=clock)


class Holder:
    state = CONNECTED


def lock_of(space: Any, key: str = "k") -> tuple[Lock, Holder]:
    holder = Holder()
    turn = asyncio.Lock()
    turn._locked = True
    return Lock(holder, space, turn, space.records[key]), holder


async def test_a_release_leaves_the_key_of_the_next_one_alone() -> None:
    space = Space()
    space.put("k", b"mine", "lease-1")
    lock, _ = lock_of(space)
    space.records.clear()
    space.revision = 7
    space.put("k", b"another's", "lease-2")
    await lock.release()
    assert space.records["k"].value == b"another's"


async def test_the_token_stays_while_the_value_changes() -> None:
    space = Space()
    space.revision = 5
    space.put("k", b"mine", "lease-1")
    before, _ = lock_of(space)
    space.revision = 9
    space.put("k", b"mine, changed", "lease-1")
    lock, _ = lock_of(space)
    assert lock.token == before.token == lock.guard.create_revision == 5
    await lock.proclaim(b"mine again")
    assert space.records["k"].value == b"mine again"
    await lock.release()
    assert not space.records


@pytest.mark.parametrize(("state", "is_held"), [(CONNECTED, True), (SUSPENDED, False), (LOST, False)])
async def test_a_lock_is_held_only_while_nobody_doubts_the_lease(state: LeaseState, is_held: bool) -> None:
    space = Space()
    space.put("k", b"", "lease-1")
    lock, holder = lock_of(space)
    holder.state = state
    assert lock.is_held == is_held
    holder.state = CONNECTED
    await lock.release()
    assert not lock.is_held


async def test_who_gives_up_waiting_takes_nothing_from_others() -> None:
    space: Any = Space()
    space.put("k", b"", "lease-2")
    await given_up(space, "n", "k", "lease-1")
    assert "k" in space.records
    await given_up(space, "n", "k", "lease-2")
    assert not space.records


async def test_who_has_waited_too_long_may_wait_again() -> None:
    space = Space()
    space.put("k", b"", "another")
    async with held(space) as lease:
        for _ in range(2):
            with pytest.raises(DeadlineExceededError, match="others have had k"):
                await lease.lock("k", timeout_s=0.01)
        space.records.clear()
        lock = await lease.lock("k", b"mine", timeout_s=10.0)
        assert space.records["k"].lease == lease.name
        await lock.release()


async def test_a_lease_that_is_closed_is_given_back_unless_it_is_lost() -> None:
    space, now_s = Space(), 100.0
    async with held(space, lambda: now_s) as lease:
        assert lease.state is CONNECTED
    assert space.revoked == [lease.name]
    async with held(space, lambda: now_s) as other:
        now_s += 20.0
        assert other.state is LOST
    assert space.revoked == [lease.name]
