"""FairShare at the loop: one slice each, in order, whoever fails."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

from metad_wire.transport.fair_share import TURN, FairShare, Rank


def worker(name: str, slices: int, done: list[str]) -> Callable[[], bool]:
    left = slices

    def work() -> bool:
        nonlocal left
        left -= 1
        done.append(name)
        return left > 0

    return work


async def test_each_turn_of_the_loop_does_one_slice_of_the_next() -> None:
    done: list[str] = []
    turns = FairShare.here()
    for name, slices in (("a", 3), ("b", 1), ("c", 2)):
        turns.take(worker(name, slices, done))
    counts = []
    while len(done) < 6:
        await asyncio.sleep(0)
        counts.append(len(done))
    assert done == ["a", "b", "c", "a", "c", "a"]
    assert counts == [1, 2, 3, 4, 5, 6]


async def test_holders_take_turns_however_many_workers_each_has() -> None:
    done: list[str] = []
    turns = FairShare.here()
    for number in range(50):
        turns.take(worker(f"crowd {number}", 2, done), "one")
    turns.take(worker("alone", 3, done), "other")
    for _ in range(6):
        await asyncio.sleep(0)
    assert done.count("alone") == 3


async def test_what_is_small_goes_first_and_each_rank_has_its_turn() -> None:
    done: list[str] = []
    turns = FairShare.here()

    def counted(work: Callable[[], bool], slices: float, rank: Rank) -> Callable[[], bool]:
        def do() -> bool:
            turns.spend(slices, rank)
            return work()

        return do

    turns.take(worker("heavy", 2, done), rank=Rank.HEAVY)
    turns.take(worker("plain", 2, done), rank=Rank.PLAIN)
    for number in range(20):
        turns.take(counted(worker(f"small {number}", 1, done), 0.5, Rank.SMALL), rank=Rank.SMALL)
    await asyncio.sleep(0)
    assert done == [*(f"small {number}" for number in range(int(2 * TURN))), "plain", "heavy"]
    assert not turns.has_left(Rank.PLAIN)
    assert turns.has_left(Rank.SMALL)


async def test_what_comes_is_bounded_in_a_turn_of_the_loop() -> None:
    turns = FairShare.here()
    turns.spend(10 * TURN)
    assert turns.left == 0.0, "large work takes nothing of what is small"
    for _ in range(int(2 * TURN)):
        assert turns.has_left(Rank.SMALL)
        turns.spend(0.5, Rank.SMALL)
    assert not turns.has_left(Rank.SMALL)
    await asyncio.sleep(0)
    assert turns.left == TURN


async def test_what_is_heavy_rests_and_keeps_its_turn() -> None:
    done: list[str] = []
    turns = FairShare.here()
    rests = True

    def first() -> bool:
        if rests:
            turns.rest(0.001)
            return True
        done.append("first")
        return False

    turns.take(first, rank=Rank.HEAVY)
    turns.take(worker("second", 1, done), rank=Rank.HEAVY)
    await asyncio.sleep(0)
    assert done == []
    rests = False
    for _ in range(1_000):
        if len(done) < 2:
            await asyncio.sleep(0.001)
    assert done == ["first", "second"]


async def test_who_fails_has_no_more_turns_and_takes_nobodys() -> None:
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    done: list[str] = []

    def fails() -> bool:
        raise ValueError("of this worker")

    turns = FairShare.here()
    turns.take(fails)
    turns.take(worker("b", 2, done))
    for _ in range(3):
        await asyncio.sleep(0)
    assert done == ["b", "b"]
    assert [type(failure) for failure in failures] == [ValueError]


def test_a_loop_has_one_and_is_not_kept_by_it() -> None:
    async def of_this() -> FairShare:
        return FairShare.here()

    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(of_this()) is loop.run_until_complete(of_this())
    gone = weakref.ref(loop)
    loop.close()
    del loop
    gc.collect()
    assert gone() is None


async def test_it_is_behind_while_something_waits_that_is_not_heavy() -> None:
    turns = FairShare.here()
    turns.take(worker("heavy", 3, []), rank=Rank.HEAVY)
    assert not turns.is_behind
    for rank in (Rank.UNCUT, Rank.SMALL, Rank.PLAIN):
        turns.take(worker("one", 2, []), rank=rank)
        assert turns.is_behind
        for _ in range(5):
            await asyncio.sleep(0)
        assert not turns.is_behind
