"""Locks of a lease that is held: whose key it is decides, and not who believes to have it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scripted import settled

from metad_client import (
    ClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    HeldLease,
    InvalidRequestError,
    LeaseState,
    Lock,
    NotFoundError,
)
from metad_client.holding import lock as locks
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

    def _free_soon(self, lock: Lock, deadline_s: float | None) -> asyncio.Future[None]:
        return asyncio.ensure_future(lock._delete(deadline_s=deadline_s))


def lock_of(space: Any, key: str = "k") -> tuple[Lock, Holder]:
    holder = Holder()
    return Lock(holder, space, space.records[key], lambda: None), holder


class InFlight(Space):
    """What is sent is done by the server, whoever waits no longer for its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.arrives = asyncio.Event()
        self.sent = 0

    async def transact(self, asked: KvTransaction, **_: Any) -> KvTransactionResult:
        self.sent += 1
        return await asyncio.shield(asyncio.ensure_future(self._done(asked)))

    async def _done(self, asked: KvTransaction) -> KvTransactionResult:
        await self.arrives.wait()
        return await super().transact(asked)


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


@pytest.mark.parametrize("owner", ["another", ""])
@pytest.mark.parametrize("how", ["timeout", "cancelled"])
async def test_who_gives_up_waiting_leaves_nothing_behind(how: str, owner: str) -> None:
    """Guards a key that nobody had and nobody could get: the put of a lock that timed out came after the look whether
    there was one."""
    space = InFlight()
    if owner:
        space.put("k", b"", owner)
    async with held(space) as lease:
        waiting = asyncio.ensure_future(lease.lock("k", timeout_s=0.01 if how == "timeout" else None))
        await settled()
        assert space.sent == 1
        if how == "timeout":
            with pytest.raises(DeadlineExceededError, match="no answer within") as raised:
                await waiting
            assert not raised.value.outcome_known
        else:
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        space.arrives.set()
        await settled()
        assert [record.lease for record in space.records.values()] == [owner] * bool(owner)
        assert len(lease._turns) == 0


async def test_a_key_that_may_have_been_put_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_LOOKS_S", (0.0, 0.0))
    space = Space()

    class NoAnswer(Space):
        async def transact(self, asked: KvTransaction, **_: Any) -> KvTransactionResult:
            if asked.then[0].value is None:
                return await space.transact(asked)
            await space.transact(asked)
            raise ConnectionLostError("the connection is lost", outcome_known=False)

    answers = NoAnswer()
    answers.records = space.records
    async with held(answers) as lease:
        with pytest.raises(ConnectionLostError):
            await lease.lock("k")
        await settled()
        assert not space.records
        assert len(lease._turns) == 0


async def test_a_lock_is_not_waited_for_longer_than_its_lease_lives() -> None:
    space = Space()
    space.put("k", b"", "another")
    lease = await held(space).opened()
    waiting = asyncio.ensure_future(lease.lock("k"))
    await settled()
    await lease.close()
    with pytest.raises(NotFoundError, match="is over"):
        await waiting
    with pytest.raises(NotFoundError, match="is over"):
        await lease.lock("k")


async def test_a_release_that_breaks_off_goes_on_until_the_key_is_free() -> None:
    """Guards a key that stayed for as long as its lease: a second release did nothing."""
    space = InFlight()
    space.arrives.set()
    async with held(space) as lease:
        lock = await lease.lock("k")
        space.arrives.clear()
        releasing = asyncio.ensure_future(lock.release())
        await settled()
        assert not lock.is_held
        releasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await releasing
        again = asyncio.ensure_future(lease.lock("k"))
        await settled()
        assert space.records["k"].create_revision == lock.token
        space.arrives.set()
        assert (await again).token > lock.token
        await lock.release()
        assert space.records["k"].create_revision > lock.token


@pytest.mark.parametrize("timeout_s", [0, -1, "1", float("nan")])
async def test_a_lock_refuses_times_that_make_no_sense(timeout_s: Any) -> None:
    async with held(Space()) as lease:
        with pytest.raises(InvalidRequestError, match="timeout_s"):
            await lease.lock("k", timeout_s=timeout_s)


async def test_a_lock_needs_a_lease_that_was_granted() -> None:
    with pytest.raises(InvalidRequestError, match="not granted yet"):
        await held(Space()).lock("k")


async def test_a_lease_that_nobody_waits_for_any_more_is_given_back() -> None:
    """Guards leases that lived for their whole time because their opening was cancelled or closed."""

    class Slow(Space):
        arrives: asyncio.Event

        async def grant(self, *_: Any, **__: Any) -> str:
            await self.arrives.wait()
            return await super().grant()

    for end in ("cancel", "close"):
        space = Slow()
        space.arrives = asyncio.Event()
        lease = held(space)
        first, second = (asyncio.ensure_future(lease.opened()) for _ in range(2))
        await settled()
        if end == "cancel":
            first.cancel()
            second.cancel()
        else:
            await lease.close()
        space.arrives.set()
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
        wanted = asyncio.CancelledError if end == "cancel" else ClosedError
        assert all(isinstance(outcome, wanted) for outcome in outcomes)
        await settled()
        assert len(space.revoked) == space.granted > 0


async def test_two_who_open_a_lease_have_the_same_one() -> None:
    space = Space()
    lease = held(space)
    assert await asyncio.gather(lease.opened(), lease.opened()) == [lease, lease]
    assert space.granted == 1
    await lease.close()


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
        assert other.state is SUSPENDED
    assert space.revoked == [lease.name, other.name], "it may be the holder's still"
    async with held(space, lambda: now_s) as third:
        third._alive.answered(now_s, 0.0)  # there is no such lease
        assert third.state is LOST
    assert space.revoked == [lease.name, other.name]


async def test_a_holder_waits_for_a_slow_answer_as_long_as_its_lease_lasts() -> None:
    """The service hears of a holder once it has proven its lead, unless the caller is gone by then."""
    space, waited = Space(), []

    async def keep_alive(*_: Any, deadline_s: float) -> int:
        waited.append(deadline_s)
        return 10_000

    space.keep_alive = keep_alive  # type: ignore[method-assign, assignment]
    lease = await held(space).opened()
    await asyncio.sleep(5.0)
    await lease.close()
    assert waited
    assert min(waited) >= 10.0
