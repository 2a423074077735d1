"""FairShare at the loop: one slice each, in order, whoever fails."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

from metad_wire.transport.fair_share import FairShare


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
