"""Virtual time: what happens when, and in which order."""

from __future__ import annotations

import pytest

from sim.replicas.clock import Clock


def test_events_happen_by_time_and_those_of_one_moment_as_they_were_asked_for() -> None:
    clock = Clock()
    seen: list[tuple[str, float]] = []

    def ask(name: str, time: float) -> None:
        clock.call_at(time, lambda: seen.append((name, clock.now)))

    for name, time in (("late", 2.0), ("b", 1.0), ("c", 1.0), ("early", 0.5)):
        ask(name, time)
    assert clock.pending == 4
    clock.run_until(10)
    assert seen == [("early", 0.5), ("b", 1.0), ("c", 1.0), ("late", 2.0)]
    assert (clock.now, clock.pending, clock.events) == (10, 0, 4)


def test_it_runs_up_to_a_time_which_is_included() -> None:
    clock = Clock()
    seen: list[str] = []
    clock.call_at(1, lambda: seen.append("a"))
    clock.call_at(2, lambda: seen.append("b"))
    clock.run_until(1)
    assert (seen, clock.now) == (["a"], 1)
    clock.run_until(0.5)  # time does not go back
    assert clock.now == 1
    assert clock.next_time == 2


def test_an_event_may_ask_for_others_of_the_same_moment() -> None:
    clock = Clock(5)
    seen: list[str] = []

    def ask(name: str, then: str, time: float) -> None:
        seen.append(name)
        clock.call_at(time, lambda: seen.append(then))

    clock.call_later(1, lambda: ask("a", "c", 6))
    clock.call_later(1, lambda: ask("b", "d", 0))
    clock.run_until(6)
    assert seen == ["a", "b", "c", "d"]
    assert clock.now == 6


def test_a_cancelled_event_does_not_happen() -> None:
    clock = Clock()
    seen: list[str] = []
    first = clock.call_at(1, lambda: seen.append("first"))

    def cancel_third() -> None:
        seen.append("second")
        third.cancel()

    second = clock.call_at(1, cancel_third)
    third = clock.call_at(1, lambda: seen.append("third"))
    first.cancel()
    first.cancel()
    assert not first.pending
    assert clock.pending == 2
    clock.run_until(1)
    assert seen == ["second"]
    second.cancel()  # it has happened
    assert not second.pending
    assert clock.pending == 0
    assert clock.next_time is None


def test_a_step_is_one_event_and_passes_over_cancelled_ones() -> None:
    clock = Clock()
    seen: list[str] = []
    clock.call_at(1, lambda: seen.append("no")).cancel()
    clock.call_at(2, lambda: seen.append("yes"))
    clock.call_at(3, lambda: seen.append("later"))
    assert clock.step()
    assert (seen, clock.now) == (["yes"], 2)
    assert clock.step()
    assert not clock.step()


def test_what_an_event_raises_is_raised_and_the_rest_still_happens() -> None:
    clock = Clock()
    seen: list[str] = []
    clock.call_at(1, lambda: 1 // 0)
    clock.call_at(1, lambda: seen.append("after"))
    with pytest.raises(ZeroDivisionError):
        clock.run_until(1)
    clock.run_until(1)
    assert seen == ["after"]


def test_timers_that_are_put_off_for_ever_take_no_room() -> None:
    clock = Clock()
    kept = [clock.call_at(1000 + i, lambda: None) for i in range(10)]
    for i in range(10_000):
        clock.call_at(500 + i, lambda: None).cancel()
    assert clock.pending == 10
    assert len(clock._queue) < 200
    clock.run_until(1004)
    assert [handle.pending for handle in kept] == [False] * 5 + [True] * 5


def test_no_time_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a time"):
        Clock().call_at(float("nan"), lambda: None)
