"""What waits for a turn, and when turns are asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from metad.node.replicas.groups import Agenda


class Rig:
    def __init__(self) -> None:
        self.queue: deque[Callable[[], None]] = deque()
        environment: Any = SimpleNamespace(call_soon=self.queue.append)
        self.agenda = Agenda(environment)
        self.ran: list[str] = []
        self.agenda.serve(lambda: self.ran.append("turn"), lambda: self.ran.append("apply"))

    def run(self) -> list[str]:
        while self.queue:
            self.queue.popleft()()
        ran, self.ran = self.ran, []
        return ran


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_turn_is_asked_for_once_and_then_again(rig: Rig) -> None:
    first, second = drivers(2)
    rig.agenda.schedule(first)
    rig.agenda.schedule(second)
    rig.agenda.woken()
    rig.agenda.commit(first)
    rig.agenda.schedule_apply()
    assert rig.run() == ["turn", "apply"]
    rig.agenda.woken()
    assert rig.run() == ["turn"]


def test_replicas_that_wake_while_groups_make_entries_need_no_turn(rig: Rig) -> None:
    rig.agenda.begin()
    rig.agenda.woken()
    assert not rig.run()
    rig.agenda.end()
    rig.agenda.woken()
    assert rig.run() == ["turn"]


def test_groups_left_over_come_before_those_that_came_meanwhile(rig: Rig) -> None:
    left, came, again = drivers(3)
    rig.agenda.dirty[left] = rig.agenda.dirty[again] = None
    assert rig.agenda.begin() == [left, again]
    rig.agenda.dirty[came] = rig.agenda.dirty[again] = None
    rig.agenda.put_first([left, again])
    assert rig.agenda.begin() == [left, again, came]


def test_a_group_that_is_closed_waits_for_nothing(rig: Rig) -> None:
    closed, other = drivers(2)
    for driver in (closed, other):
        rig.agenda.schedule(driver)
        rig.agenda.commit(driver)
        rig.agenda.stalled[driver] = None
    rig.agenda.forget(closed)
    rig.agenda.hold(other)
    assert [*rig.agenda.dirty, *rig.agenda.stalled] == [other, other]
    assert not rig.agenda.committed


def drivers(count: int) -> list[Any]:
    return [object() for _ in range(count)]
