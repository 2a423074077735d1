"""In which order a node applies what its groups have committed, and how long what is heavy rests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from metad.node.replicas.agenda import Agenda
from metad.node.requests import scheduler
from metad.node.requests.scheduler import Scheduler
from metad_wire.policy.fair_queue import Precedence

PIECE_S = 0.004


class Driver:
    """A group that has ``committed`` items to apply, and for which much waits."""

    def __init__(self, rig: Rig, name: str, committed: int = 0) -> None:
        self.name, self._rig = name, rig
        self.machine = SimpleNamespace(applied=0, unexpected=None)
        self.group = SimpleNamespace(applicable=committed, log=SimpleNamespace(bytes=0))
        self.urgent = self.stalled = False
        self.waiting_items = 5_000

    def stage(self, batches: list[Any], items_max: int) -> tuple[int, int]:
        added = min(items_max, self.group.applicable - self.machine.applied)
        self.machine.applied += added
        self._rig.applied.append(f"{self.name} {added}")
        return added, 0

    def finish(self) -> None:
        return None

    def pump(self, now_s: float, calendar_ms: int) -> float | None:
        self.waiting_items -= 1_000
        self._rig.now_s += PIECE_S
        return None


class Rig:
    """A scheduler whose groups, log and replicas do nothing."""

    def __init__(self) -> None:
        self.now_s = 1.0
        self.applied: list[str] = []
        self._soon: deque[Callable[[], None]] = deque()
        environment: Any = SimpleNamespace(now=lambda: self.now_s, wall_ms=lambda: 0, call_soon=self._soon.append)
        self.agenda = Agenda(environment)
        self.precedence = Precedence(environment.now)
        parts: dict[str, Any] = {
            "state": SimpleNamespace(write=lambda *_: None),
            "writer": SimpleNamespace(after_durable=lambda _: None),
            "replicas": SimpleNamespace(turn=lambda _: float("inf")),
            "health": SimpleNamespace(failure=None, stop_for_bug=self._raise),
        }
        self.scheduler = Scheduler(
            **parts,
            agenda=self.agenda,
            precedence=self.precedence,
            environment=environment,
            log_grown=lambda _: None,
            overslept=lambda _: None,
        )

    def _raise(self, error: Exception) -> None:
        raise error

    def run(self) -> None:
        while self._soon:
            self._soon.popleft()()


def test_a_group_that_has_ever_more_to_apply_does_not_hold_up_the_others() -> None:
    rig = Rig()
    busy, other = Driver(rig, "busy", 10_000), Driver(rig, "other", 20)
    for driver in (busy, other):
        rig.agenda.commit(driver)  # type: ignore[arg-type]
    rig.run()
    piece = scheduler._APPLY_ITEMS
    assert rig.applied[:3] == [f"busy {piece}", "other 20", f"busy {piece - 20}"]
    assert (busy.machine.applied, other.machine.applied) == (10_000, 20)
    assert not rig.agenda.committed


def test_what_is_heavy_rests_as_long_as_it_took_while_something_small_is_in_progress() -> None:
    rig = Rig()
    rig.agenda.schedule(Driver(rig, "data-0"))  # type: ignore[arg-type]
    rig.run()
    assert not rig.precedence.heavy_wait_s
    rig.precedence.small = 1
    assert rig.precedence.heavy_wait_s == pytest.approx(PIECE_S)
