"""The parts of ``metad-perf drill`` that need no cluster: what counts as seen, as passed and as skipped."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from metad_perf.commands import Drill as Settings
from metad_perf.drill import command
from metad_perf.drill.command import Played
from metad_perf.drill.drills import DRILLS
from metad_perf.drill.operator import Report, fields_of
from metad_perf.drill.script import Drill
from metad_perf.drill.steps import Steps
from metad_perf.errors import UsageError

DOWN = Report(
    1,
    "WARNING: 4 of 6 nodes up, 5 of 5 groups led\n"
    "warning node_unreachable: n1 and n4: not reached: the deadline passed; n2 can reach it\n"
    "warning group_under_replicated: data-0, data-1, metadata-0 and 2 more: 2 of 3 voters reachable; missing: n3\n",
)


@pytest.mark.parametrize(
    ("verdict", "problems", "shown"),
    [
        ("warning", ["node_unreachable n1"], True),
        ("warning", ["node_unreachable n4", "group_under_replicated data-1"], True),
        ("warning", ["group_under_replicated"], True),
        ("warning", ["node_unreachable n2"], False),  # it is named for another reason
        ("warning", ["group_under_replicated n3"], False),
        ("warning", ["node_refused n1"], False),
        ("critical", ["node_unreachable n1"], False),
        ("warning", [], False),  # nothing is expected, but there is something
    ],
)
def test_what_a_status_shows(verdict: str, problems: list[str], shown: bool) -> None:
    assert DOWN.shows(verdict, problems) is shown


def test_a_verdict_needs_its_exit_status() -> None:
    line = "OK: 3 of 3 nodes up, 5 of 5 groups led\n"
    assert Report(0, line).shows("ok", [])
    assert not Report(1, line).shows("ok", [])
    assert not Report(0, line).shows("ok", ["node_unreachable n3"])
    assert not Report(0, "").shows("ok", [])


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ('{"event":"peer_lost","peer":"n2","left_out":3}', {"event": "peer_lost", "peer": "n2", "left_out": 3}),
        ('{"event":"no_leader","groups":["data-0"]}', {"event": "no_leader"}),  # a list cannot be compared
        ("metad: no room", {}),
        ("{", {}),
        ("[1]", {}),
    ],
)
def test_the_fields_of_a_line(line: str, fields: dict[str, object]) -> None:
    assert fields_of(line) == fields


def test_a_look_that_fails_tells_what_was_expected() -> None:
    told: list[str] = []
    steps = Steps(told.append)
    steps.saw("status", "ok", "warning", False)
    assert told == ["  ✗ status: expected ok, saw warning"]
    assert [step.passed for step in steps.all] == [False]


def _plays(monkeypatch: pytest.MonkeyPatch, **outcomes: Played) -> None:
    made = {name: msgspec.structs.replace(next(iter(DRILLS.values())), name=name) for name in outcomes}
    monkeypatch.setattr(command, "DRILLS", made)

    def play(drill: Drill, _seed: int, _tell: object) -> Played:
        return outcomes[drill.name]

    monkeypatch.setattr(command, "play", play)


PASSED = Played(name="a", passed=True)
FAILED = Played(name="b", passed=False)
SKIPPED = Played(name="c", passed=False, skipped="needs root")


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ({"a": PASSED}, 0),
        ({"a": PASSED, "b": FAILED}, 1),
        ({"a": PASSED, "c": SKIPPED}, 0),
        ({"c": SKIPPED}, 1),  # nothing was shown
    ],
)
def test_a_skipped_drill_has_not_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcomes: dict[str, Played], code: int
) -> None:
    _plays(monkeypatch, **outcomes)
    report = tmp_path / "drills.json"
    assert command.run(Settings(seed=1, json=report)) == code
    told = json.loads(report.read_text())
    assert told["passed"] is (code == 0)
    assert [(one["name"], one["passed"]) for one in told["drills"]] == [(o.name, o.passed) for o in outcomes.values()]
    assert all(one["skipped"] for one in told["drills"] if one["name"] == "c")


def test_a_drill_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match="no drill 'flood'"):
        command.run(Settings(names=("flood",), seed=1))


def test_a_drill_that_this_machine_cannot_play_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "root" in DRILLS["disk-full"].missing()
    assert "root" in DRILLS["region-dark"].missing()
    assert not DRILLS["leader-killed"].missing()
