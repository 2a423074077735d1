"""In which order a node applies what its groups have committed, how long what is heavy rests, and whether the node
stood still."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import metad
from metad.node.meters import Meters
from metad.node.replicas.groups import Agenda
from metad.node.requests import scheduler
from metad.node.requests.scheduler import Scheduler, Standstills
from metad.raft.base import Timing
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

    def finish(self, begun_s: float) -> None:
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
        self.meters = Meters()
        self._soon: deque[Callable[[], None]] = deque()
        environment: Any = SimpleNamespace(now=lambda: self.now_s, wall_ms=lambda: 0, call_soon=self._soon.append)
        self.agenda = Agenda(environment)
        self.precedence = Precedence(environment.now)
        parts: dict[str, Any] = {
            "state": SimpleNamespace(write=lambda *_: None),
            "writer": SimpleNamespace(after_durable=lambda _: None),
            "replicas": SimpleNamespace(turn=lambda _: float("inf"), timing=Timing()),
            "health": SimpleNamespace(failure=None, stop_for_bug=self._raise),
        }
        self.scheduler = Scheduler(
            **parts,
            agenda=self.agenda,
            precedence=self.precedence,
            environment=environment,
            meters=self.meters,
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
    assert sum(rig.meters.apply_s.buckets) == 11, "each turn that applied something"


def test_what_is_heavy_rests_as_long_as_it_took_while_something_small_is_in_progress() -> None:
    rig = Rig()
    rig.agenda.schedule(Driver(rig, "data-0"))  # type: ignore[arg-type]
    rig.run()
    assert not rig.precedence.heavy_wait_s
    rig.precedence.small = 1
    assert rig.precedence.heavy_wait_s == pytest.approx(PIECE_S)


# --- standstills -----------------------------------------------------------------------------------------


class Clock:
    """Time that passes as the test says."""

    def __init__(self, timing: Timing) -> None:
        self.now_s = 100.0
        self.set_ms = 1_700_000_000_000
        self.told = 0
        self.meters = Meters()
        self._due: tuple[float, Callable[[], None]] = (0.0, lambda: None)
        environment: Any = self
        self.standstills = Standstills(environment, timing, self.meters)
        self.standstills.listeners.append(self._tell)

    def _tell(self) -> None:
        self.told += 1

    def now(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return round(1_000 * self.now_s) + self.set_ms

    def call_at(self, when_s: float, callback: Callable[[], None]) -> SimpleNamespace:
        self._due = when_s, callback
        return SimpleNamespace(cancel=lambda: None)

    def run(self, seconds: float) -> None:
        """The loop runs for so long."""
        end_s = self.now_s + seconds
        while self._due[0] <= end_s:
            self.now_s = max(self.now_s, self._due[0])
            self._due[1]()
        self.now_s = end_s


@pytest.mark.parametrize("first", ["its timer", "somebody who judges"])
def test_a_standstill_is_told_once_whatever_looks_first(first: str) -> None:
    clock = Clock(Timing())
    clock.standstills.start()
    clock.run(10.03)
    assert clock.told == 0
    clock.now_s += 0.36
    if first == "somebody who judges":
        assert clock.standstills.running_s() == 0.0
        assert clock.told == 1
    clock.run(10.0)
    assert clock.told == 1
    assert clock.standstills.running_s() == pytest.approx(10.0)


def test_a_listener_with_a_bug_leaves_the_others_their_next_standstill() -> None:
    clock = Clock(Timing())
    clock.standstills.start()
    clock.standstills.listeners.insert(0, lambda: {}[0])
    clock.now_s += 1.0
    with pytest.raises(KeyError):
        clock.run(0.0)
    del clock.standstills.listeners[0]
    clock.run(1.0)
    clock.now_s += 1.0
    clock.run(0.0)
    assert clock.told == 1


def test_how_late_the_loop_is_is_counted() -> None:
    clock = Clock(Timing())
    clock.standstills.start()
    clock.run(1.05)
    assert sum(clock.meters.loop_late_s.buckets) == clock.meters.loop_late_s.buckets[0] == 10
    clock.now_s += 0.3
    clock.run(0.0)
    assert clock.meters.loop_late_s.total == pytest.approx(0.25), "from when the timer was due"


def test_a_start_that_took_long_is_no_standstill() -> None:
    clock = Clock(Timing())
    clock.standstills.look(clock.now_s)
    clock.now_s += 60.0
    clock.standstills.start()
    clock.run(1.0)
    assert clock.told == 0


@pytest.mark.parametrize(("heartbeat_s", "election_s"), [(0.1, 0.6), (0.05, 0.3), (0.01, 0.03), (1.0, 10.0)])
@pytest.mark.parametrize("patience", [0.5, 1.0, 2.0])
def test_a_standstill_that_nobody_is_told_of_is_short(heartbeat_s: float, election_s: float, patience: float) -> None:
    """Who was heard a heartbeat before it begins is not silent for too long when it ends."""
    patience_s = max(3 * heartbeat_s, patience * election_s)
    timing = Timing(heartbeat_s=heartbeat_s, election_s=election_s, step_down_s=patience_s)
    longest_s = 0.0
    for thousandth in range(1, 1_000):
        clock = Clock(timing)
        clock.standstills.start()
        clock.run(10.0 + heartbeat_s * (thousandth % 10) / 10)
        stood_s = 0.4 * thousandth / 1_000
        clock.now_s += stood_s
        clock.run(0.0)
        if not clock.told:
            longest_s = stood_s
    assert longest_s < 0.36
    assert longest_s + heartbeat_s <= min(patience_s, election_s)


def test_the_timer_keeps_what_the_last_minute_was_like() -> None:
    clock = Clock(Timing())
    clock.standstills.start()
    for _ in range(300):
        clock.now_s += 0.25
        clock.run(0.0)
    assert clock.meters.tail().loop_us == 250_000
    clock.run(75.0)
    assert clock.meters.tail().loop_us <= 100, "it is over for a minute"


def test_a_standstill_and_a_clock_that_was_set_are_events(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock(Timing())
    clock.standstills.start()
    clock.run(1.0)
    assert not caplog.records
    clock.now_s += 3.0
    clock.run(0.5)
    clock.set_ms -= 60_000
    clock.run(0.5)
    found = [(record.getMessage(), vars(record)["fields"]) for record in caplog.records]
    assert [key for key, _ in found] == ["stood_still", "clock_set"]
    assert found[0][1]["stood_ms"] == pytest.approx(3_000, abs=110)
    assert found[1][1] == {"by_ms": -60_000}


def test_nobody_else_compares_a_timer_with_the_clock() -> None:
    """Five did, by four thresholds: what judges silence asks :class:`Standstills`, or is told."""
    root = Path(metad.__file__).parent
    places = [path for name in ("node", "server", "control", "state") for path in (root / name).rglob("*.py")]
    lateness = re.compile(r"\b_?(late|stood|slept|before)_s\b|_LATE_S|_STOOD_S")
    found = {path.relative_to(root).as_posix() for path in places if lateness.search(path.read_text())}
    assert found == {"node/requests/scheduler.py"}
