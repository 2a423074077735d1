"""The clocks that a test moves on: each timer fires once, in order, at its own time."""

from __future__ import annotations

import asyncio

import pytest

from metad.embedded.serving import MovableClocks


async def test_timers_fire_in_order_at_their_times() -> None:
    clocks = MovableClocks()
    begin, wall_ms = clocks.now(), clocks.wall_ms()
    fired: list[tuple[str, float]] = []

    def note(name: str) -> None:
        fired.append((name, clocks.now() - begin))

    def again() -> None:
        note("again")
        clocks.call_at(begin + 250, lambda: note("made meanwhile"))

    clocks.call_at(begin + 300, lambda: note("late"))
    clocks.call_at(begin + 100, again)
    clocks.call_at(begin + 1_000, lambda: note("too late"))
    clocks.call_at(begin + 50, lambda: note("cancelled")).cancel()
    assert await clocks.advance(500) == 3
    assert [name for name, _ in fired] == ["again", "made meanwhile", "late"]
    assert [round(at, -1) for _, at in fired] == [100, 250, 300]
    assert 500 <= clocks.now() - begin < 600
    assert 499_990 <= clocks.wall_ms() - wall_ms < 600_000  # each is in whole milliseconds
    await clocks.advance(0)
    assert len(fired) == 3
    for wrong in (-1, float("nan"), float("inf")):  # of these, the last one took for ever
        with pytest.raises(ValueError, match="back"):
            await clocks.advance(wrong)
    clocks.close()


async def test_an_hour_of_moves_leaves_nothing_in_the_event_loop() -> None:
    clocks = MovableClocks()

    def again() -> None:
        clocks.call_at(clocks.now() + 1, again)

    again()
    await clocks.advance(3_600)
    scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    assert len(scheduled) < 500, "each second left a timer until its hour would have come"
    clocks.close()


async def test_a_timer_that_its_time_comes_to_by_itself_fires_once() -> None:
    clocks = MovableClocks()
    fired = asyncio.Event()
    count = 0

    def note() -> None:
        nonlocal count
        count += 1
        fired.set()

    clocks.call_at(clocks.now() + 0.01, note)
    await fired.wait()
    assert await clocks.advance(10) == 0
    assert count == 1
    clocks.close()
