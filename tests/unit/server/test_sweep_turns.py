"""The turns of works that nobody waits for: they give way to whatever makes the node slow, and yet go on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, cast

import pytest

from metad.node.chores.chore import Done
from metad.node.chores.sweeps import LOOK_S, REST, TURN_S, SweepTurns
from metad.node.environment import Environment


class _Timer:
    def __init__(self, when_s: float, callback: Callable[[], None]) -> None:
        self.when_s = when_s
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class _Bug(Exception):
    """Of one of the works."""


class World:
    """Time that a test lets pass, and turns that take as long as it says."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[_Timer] = []

    def now(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, callback: Callable[[], None]) -> _Timer:
        self.timers.append(_Timer(when_s, callback))
        return self.timers[-1]

    def run(self, seconds: float, turns: SweepTurns) -> None:
        """Let time pass, with looks as a node has them."""
        end_s = self.now_s + seconds

        def look() -> None:
            self.call_at(self.now_s + LOOK_S, look)
            turns.look()

        self.call_at(self.now_s, look)
        while self.timers:
            timer = min(self.timers, key=lambda one: one.when_s)
            if timer.when_s > end_s:
                break
            self.timers.remove(timer)
            self.now_s = max(self.now_s, timer.when_s)
            if not timer.cancelled:
                with contextlib.suppress(_Bug):  # as a node does, which logs it
                    timer.callback()
        self.now_s = end_s


class Work:
    """There is something to do as long as ``left`` is over 0. A turn takes ``took_s``; None: it is never answered."""

    def __init__(self, world: World, *, left: int = 1_000_000, took_s: float | None = 0.001) -> None:
        self.world = world
        self.left = left
        self.took_s = took_s
        self.fails = self.has_a_bug = False
        self.hurry = 1.0
        self.begun_s: list[float] = []
        self.asked = 0

    def begin(self, room: int, done: Done) -> bool:
        if self.has_a_bug:
            raise _Bug
        if not self.left:
            return False
        self.begun_s.append(self.world.now_s)
        asked = min(room, 100, self.left)
        self.left -= asked
        self.asked += asked
        if self.took_s is not None:
            self.world.call_at(self.world.now_s + self.took_s, lambda: done(None if self.fails else asked))
        return True


def turns_of(world: World, *works: Work, rate: float = 1e9) -> SweepTurns:
    turns = SweepTurns(rate, 100, cast("Environment", world))
    turns.serve(cast("Any", works))
    return turns


@pytest.mark.parametrize("took_s", [0.004, 0.02, 0.15])
def test_a_turn_is_followed_by_a_rest_that_is_longer(took_s: float) -> None:
    world = World()
    work = Work(world, took_s=took_s)
    world.run(3.0, turns_of(world, work))
    between = [b - a for a, b in zip(work.begun_s, work.begun_s[1:], strict=False)]
    assert between
    assert between == pytest.approx([took_s * (1 + REST)] * len(between))


def test_who_is_in_a_hurry_rests_for_less_and_only_behind_his_own_turns() -> None:
    world = World()
    late, other = Work(world, took_s=0.02), Work(world, took_s=0.02)
    late.hurry = 8.0
    world.run(3.0, turns_of(world, late, other))
    behind_late = [other - mine for mine, other in zip(late.begun_s, other.begun_s, strict=False)]
    behind_other = [mine - other for mine, other in zip(late.begun_s[1:], other.begun_s, strict=False)]
    assert behind_late == pytest.approx([0.02 * (1 + REST / 8)] * len(behind_late))
    assert behind_other == pytest.approx([0.02 * (1 + REST)] * len(behind_other))


def test_however_busy_the_node_is_a_turn_comes_about_every_second() -> None:
    world = World()
    work = Work(world, took_s=0.7)
    world.run(30.0, turns_of(world, work))
    between = [b - a for a, b in zip(work.begun_s, work.begun_s[1:], strict=False)]
    assert TURN_S <= min(between) <= max(between) <= TURN_S + LOOK_S
    assert len(between) >= 20


def test_a_turn_that_is_never_answered_does_not_hold_up_the_others() -> None:
    world = World()
    stuck, works = Work(world, took_s=None, left=100), [Work(world, left=500) for _ in range(2)]
    world.run(TURN_S + LOOK_S + 1.0, turns_of(world, stuck, *works))
    assert len(stuck.begun_s) == 1
    assert [work.left for work in works] == [0, 0]


def test_a_late_answer_begins_no_turn_beside_the_one_that_goes_on() -> None:
    world = World()
    late, other = Work(world, took_s=1.65, left=100), Work(world, took_s=0.1, left=10_000)
    late.fails = True
    world.run(4.0, turns_of(world, late, other))
    between = [b - a for a, b in zip(other.begun_s, other.begun_s[1:], strict=False)]
    assert between == pytest.approx([0.1 * (1 + REST)] * len(between))


def test_no_more_sessions_are_asked_for_than_the_rate_allows() -> None:
    world = World()
    works = [Work(world), Work(world)]
    world.run(10.0, turns_of(world, *works, rate=500.0))
    asked = sum(work.asked for work in works)
    assert 0.95 * 5_000 <= asked <= 5_000 + 125
    assert works[0].asked == pytest.approx(works[1].asked, abs=125)


def test_a_rate_below_one_batch_is_kept_too() -> None:
    world = World()
    work = Work(world)
    world.run(20.0, turns_of(world, work, rate=2.0))
    assert 35 <= work.asked - 100 <= 41, "the first batch, and then two a second"


def test_after_a_failure_the_next_look_tries_again() -> None:
    world = World()
    work = Work(world)
    work.fails = True
    world.run(2.1, turns_of(world, work))
    assert len(work.begun_s) == 9
    assert work.begun_s == pytest.approx([100.0 + LOOK_S * number for number in range(9)])


def test_one_that_has_a_bug_holds_up_the_others_for_a_turn_at_most() -> None:
    """All chores of a node share the turns, so one of them must not end the others for good."""
    world = World()
    bad, good = Work(world), Work(world)
    bad.has_a_bug = True
    world.run(10.5, turns_of(world, bad, good))
    between = [b - a for a, b in zip(good.begun_s, good.begun_s[1:], strict=False)]
    assert len(between) >= 7
    assert max(between) <= TURN_S + 2 * LOOK_S


def test_work_that_comes_later_is_found_by_a_look() -> None:
    world = World()
    work = Work(world, left=0)
    turns = turns_of(world, work)
    world.run(1.0, turns)
    assert work.begun_s == []
    work.left = 100
    world.run(LOOK_S, turns)
    assert work.left == 0


def test_nothing_begins_after_the_stop() -> None:
    world = World()
    work = Work(world, took_s=0.01)
    turns = turns_of(world, work)
    turns.look()
    turns.stop()
    for timer in list(world.timers):
        world.now_s = timer.when_s
        if not timer.cancelled:
            timer.callback()
    assert len(work.begun_s) == 1
    assert len(world.timers) == 1


def test_thousands_that_have_nothing_to_do_hold_up_nobody() -> None:
    world = World()
    turns = SweepTurns(1_000.0, 10, cast("Environment", world))
    asked: list[float] = []
    slices: list[float] = []

    class Idle:
        hurry = 1.0

        def begin(self, room: int, done: Done) -> bool:
            asked.append(world.now_s)
            world.now_s += 0.00002
            slices[-1] += 0.00002
            return False

    call_at = world.call_at

    def counted(when_s: float, callback: Callable[[], None]) -> _Timer:
        def called() -> None:
            slices.append(0.0)
            callback()

        return call_at(when_s, called)

    world.call_at = counted  # type: ignore[method-assign]
    turns.serve(cast("Any", [Idle() for _ in range(3_000)]))
    world.run(1.5, turns)
    assert len(asked) >= 2 * 3_000, "each is asked several times, and all of them"
    assert max(slices) < 0.0015
    assert sum(slices) < 1.5 / REST
