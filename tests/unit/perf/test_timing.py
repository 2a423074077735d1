"""Waking at a point in time: never early, and reusable."""

from __future__ import annotations

import asyncio

import pytest

from metad_perf.load.timing import SystemTime


async def test_wakes_at_or_after_its_time() -> None:
    time = SystemTime()
    for wait_us in (0, 50, 300, 2_000):
        due_ns = time.now_ns() + wait_us * 1_000
        await time.sleep_until_ns(due_ns)
        assert time.now_ns() >= due_ns


async def test_many_sleep_at_once() -> None:
    time = SystemTime()
    begin_ns = time.now_ns()
    woken: list[int] = []

    async def sleep(after_ms: int) -> None:
        due_ns = begin_ns + after_ms * 1_000_000
        await time.sleep_until_ns(due_ns)
        assert time.now_ns() >= due_ns
        woken.append(after_ms)

    await asyncio.gather(*(sleep(ms) for ms in (9, 1, 5, 3)))
    assert sorted(woken) == [1, 3, 5, 9]


async def test_a_cancelled_sleep_lets_the_others_sleep() -> None:
    time = SystemTime()
    sleeping = asyncio.create_task(time.sleep_until_ns(time.now_ns() + 10**12))
    await asyncio.sleep(0)
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping
    await time.sleep_until_ns(time.now_ns() + 1_000)
