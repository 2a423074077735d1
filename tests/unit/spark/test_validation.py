"""Predictions against storms: what is an error, what passes, and what every report says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metad_perf.calibration.command import storms
from metad_perf.storm.plan import Storm as HarnessStorm
from metad_spark import validation
from metad_spark.errors import CalibrationError, ScenarioError, UsageError
from metad_spark.requests.costs import load_costs
from metad_spark.requests.simulate import Outcome, simulate
from metad_spark.requests.storm import storm_of
from metad_spark.run_validate import (
    GROUPS,
    LINGERS_MS,
    NODES,
    PROCESSES,
    QUEUES_MS,
    blind_errors,
    blind_passes,
    drawn,
    earlier,
    frozen,
    run,
)
from metad_spark.validation import (
    Judged,
    Metric,
    Verdict,
    differences,
    distance,
    headline,
    judge,
    replaced,
    storms_of,
    table_of,
)

COSTS = load_costs()


def _report(sessions: int = 2_000, stretch: float = 1.0, attempts: float = 1.0, **settings: Any) -> dict[str, Any]:
    """What the model itself says, as the report of a storm; its times are stretched."""
    storm = HarnessStorm(sessions=sessions, brokers=4, limit_s=60.0, **settings).checked()
    made: dict[str, Any] = {"settings": msgspec.to_builtins(storm) | {"replay": False}}
    made |= {"nodes": 3, "groups": "data=3,offset=1", "fsync": True, "sessions": sessions}
    found: Outcome = simulate(storm_of(made), COSTS)
    times = {name: value * stretch for name in ("t50_s", "t99_s", "t999_s") if (value := getattr(found, name))}
    shares = {"50": times["t50_s"], "99": times["t99_s"], "99.9": times["t999_s"], "100": times["t999_s"]}
    made |= {"returning": found.returning, "restored": found.restored, "percentiles_s": shares}
    return made | times | {"attempts_per_session": found.attempts_per_session * attempts}


def _written(folder: Path, name: str, report: dict[str, Any], *, seen: bool = False) -> None:
    made = {"kind": "storm", "name": name, "seen": seen, "report": report}
    (folder / f"{name}.json").write_text(json.dumps(made))


def test_what_the_model_says_is_predicted_without_error() -> None:
    report = _report()
    found = judge([validation.Measured("itself", False, report, None, None)], COSTS, seeds=1)
    assert {name: one.error_pct for name, one in found.metrics.items()} == dict.fromkeys(validation.BARS_PCT, 0.0)
    assert found.class_right
    assert found.within


def test_what_a_report_does_not_say_is_as_the_model_takes_it() -> None:
    report = _report()
    del report["settings"]["trigger"]
    assert judge([validation.Measured("old", False, report, None, None)], COSTS, seeds=1).trigger == "all"


@pytest.mark.parametrize(("stretch", "attempts", "within"), [(1.08, 1.0, True), (1.2, 1.0, False), (1.0, 1.1, False)])
def test_errors_are_of_what_was_measured(stretch: float, attempts: float, within: bool) -> None:
    report = _report(stretch=stretch, attempts=attempts)
    found = judge([validation.Measured("off", False, report, None, None)], COSTS, seeds=1)
    assert found.metrics["t99_s"].error_pct == pytest.approx(100 * (1 / stretch - 1))
    assert found.metrics["attempts_per_session"].error_pct == pytest.approx(100 * (1 / attempts - 1))
    assert found.within is within


def test_a_storm_that_did_not_end_is_no_storm_that_is_predicted_to_end() -> None:
    report = _report() | {"restored": 5, "t50_s": None, "t99_s": None, "t999_s": None}
    found = judge([validation.Measured("stuck", False, report, None, None)], COSTS, seeds=1)
    assert not found.class_right
    assert not found.within
    assert found.metrics["t50_s"].measured is None
    assert found.metrics["t50_s"].error_pct is None


def _judged(
    seen: bool, error_pct: float = 1.0, *, right: bool = True, others: float = 0.0, runs: tuple[float, ...] = ()
) -> Judged:
    metrics = {name: Metric(1.0, 1.0, error_pct) for name in validation.BARS_PCT}
    return Judged(
        trace="one",
        seen=seen,
        trigger="all",
        sessions=1_000,
        metrics=metrics,
        errors_pct={name: [error_pct, *runs] for name in validation.BARS_PCT},
        recovered=True,
        class_right=right,
        ks=0.1,
        wasserstein_s=0.1,
        others_cores=others,
    )


@pytest.mark.parametrize(
    ("judged", "passed"),
    [
        ([_judged(True)] * 3 + [_judged(False)] * 3, True),
        ([_judged(True, 50.0)] * 3 + [_judged(False)] * 3, True),  # it was fitted to the seen
        ([_judged(True)] * 4 + [_judged(False)] * 2, False),
        ([_judged(False)] * 5, False),
        ([_judged(False)] * 5 + [_judged(False, -5.1)], False),  # attempts
        ([_judged(False)] * 5 + [_judged(False, right=False)], False),
        ([], False),
    ],
)
def test_it_passes_with_six_storms_three_unseen_and_all_unseen_within_the_bars(
    judged: list[Judged], passed: bool
) -> None:
    assert validation.verdict_of(judged, COSTS, "2026-01-01").passed is passed


def test_what_ran_beside_is_counted() -> None:
    found = validation.verdict_of([_judged(False, others=1.0), _judged(False, -7.0)], COSTS, "")
    assert (found.disturbed, found.within, found.worst_pct["t50_s"]) == (1, 1, 7.0)


def test_the_run_with_the_median_error_counts_for_each_metric_by_itself() -> None:
    off = [(1.3, 1.0), (1.05, 1.2), (0.7, 1.02)]
    reports = [_report(stretch=stretch, attempts=attempts) for stretch, attempts in off]
    found = judge([validation.Measured("three", False, one, None, None) for one in reports], COSTS, seeds=1)
    assert found.metrics["t99_s"].measured == reports[1]["t99_s"]
    assert found.metrics["t99_s"].error_pct == pytest.approx(100 * (1 / 1.05 - 1))
    assert found.metrics["attempts_per_session"].measured == reports[2]["attempts_per_session"]
    assert found.errors_pct["t99_s"] == pytest.approx([100 * (1 / stretch - 1) for stretch, _ in off])
    assert (found.runs, found.within) == (3, True)


def test_of_two_runs_the_worse_counts() -> None:
    reports = [_report(stretch=stretch) for stretch in (1.0, 1.3)]
    runs = [validation.Measured("two", False, one, None, None) for one in reports]
    for order in (runs, runs[::-1]):
        assert judge(order, COSTS, seeds=1).metrics["t99_s"].measured == reports[1]["t99_s"]


def test_one_run_that_ends_wrongly_is_enough() -> None:
    """Whatever the others do: recover or collapse is to be right always."""
    good = validation.Measured("mixed", False, _report(), None, None)
    stuck = validation.Measured(
        "mixed", False, good.report | {"restored": 5, "t50_s": None, "t99_s": None, "t999_s": None}, None, None
    )
    found = judge([good, good, stuck], COSTS, seeds=1)
    assert found.recovered
    assert not found.class_right
    assert not found.within
    assert found.errors_pct["t50_s"] == [0.0, 0.0, None]
    assert judge([good, stuck, stuck], COSTS, seeds=1).metrics["t50_s"].measured is None


def test_runs_of_one_setting_are_one_storm(tmp_path: Path) -> None:
    for name, sessions in (("a-1", 1_000), ("a-2", 1_000), ("a-3", 1_500), ("b-1", 1_000)):
        made = {"kind": "storm", "name": name, "setting": name[0], "seen": False, "report": _report(sessions=sessions)}
        (tmp_path / f"{name}.json").write_text(json.dumps(made))
    (tmp_path / "c.json").write_text(json.dumps(_report(sessions=1_000) | {"setting": "a"}))  # the report's own: 2 CPUs
    storms = validation.by_storm(storms_of([tmp_path, tmp_path / "c.json"]))
    assert [(runs[0].name, len(runs)) for runs in storms] == [("a", 2), ("a", 1), ("b", 1), ("c", 1)]


def test_a_single_run_may_be_further_off_and_is_told() -> None:
    found = validation.verdict_of([_judged(False, 4.0, runs=(-12.0, 3.0))] * 6, COSTS, "")
    assert (found.passed, found.runs, found.worst_pct["t99_s"], found.worst_run_pct["t99_s"]) == (True, 18, 4.0, 12.0)
    assert "(18 runs; the median of each counts)" in headline(found, "requests")
    assert "| -12, +3, +4 |" in table_of([_judged(False, 4.0, runs=(-12.0, 3.0))], found)


GOOD = Verdict(
    passed=True,
    storms=6,
    unseen=3,
    within=3,
    disturbed=0,
    worst_pct={"t50_s": 3.0, "attempts_per_session": 2.0},
    nodes=[3],
    linger_ms=[20.0],
    sessions=[350_000, 900_000],
)
INSIDE: dict[str, Any] = {"nodes": 3, "linger_ms": 20.0, "sessions": 400_000, "rejected": 0, "apart": False}


def _differs(**other: Any) -> list[str]:
    told = INSIDE | other
    settings = storm_of(_report(sessions=1_000)).settings
    settings = msgspec.structs.replace(settings, sessions=told["sessions"], linger_ms=told["linger_ms"])
    storm = msgspec.structs.replace(storm_of(_report(sessions=1_000)), settings=settings, nodes=told["nodes"])
    return differences(GOOD, storm, told["rejected"], apart=told["apart"])


def test_reports_say_that_nothing_is_validated_until_it_is() -> None:
    bad = msgspec.structs.replace(GOOD, passed=False, within=1, classes_wrong=1)
    assert headline(None, "requests") == "Not validated against a measured storm."
    assert headline(GOOD, "requests").startswith("Validated against 3 storms")
    assert "with 3 nodes, linger 20 ms, 350,000 to 900,000 clients, nobody refused" in headline(GOOD, "requests")
    assert headline(GOOD, "requests").endswith("errors of at most t50 3 %, attempts 2 %.")
    assert headline(bad, "requests").startswith("Not validated: of 3 storms")
    assert "wrong about whether they end" in headline(bad, "requests")


def test_no_other_model_is_given_the_errors_of_the_one_that_was_checked() -> None:
    for verdict in (GOOD, msgspec.structs.replace(GOOD, passed=False)):
        for model in ("vector", "compared"):
            assert headline(verdict, model) == "Not validated against a measured storm."


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"nodes": 5}, "5 nodes"),
        ({"linger_ms": 1.0}, "linger 1 ms"),
        ({"sessions": 100_000}, "100,000 clients"),
        ({"sessions": 2_000_000}, "2,000,000 clients"),
        ({"rejected": 7}, "7 refused"),
        ({"apart": True}, "a core for each process"),
    ],
)
def test_outside_of_what_was_checked_no_error_is_named(other: dict[str, Any], said: str) -> None:
    """It said "at most 6.2 %" above a prediction of "never", where two storms ended after 4 and 6 s."""
    assert _differs() == []
    assert _differs(**other) == [said]
    text = headline(GOOD, "requests", _differs(**other))
    assert text.startswith(f"Outside of what was checked: it has {said}.")
    assert "%" not in text


def test_what_was_checked_is_that_of_the_unseen_storms() -> None:
    storms = [msgspec.structs.replace(_judged(seen), nodes=n, linger_ms=20.0) for seen, n in ((True, 9), (False, 3))]
    found = validation.verdict_of(storms, COSTS, "")
    assert (found.nodes, found.linger_ms, found.sessions, found.rejected) == ([3], [20.0], [1_000, 1_000], 0)


def test_a_verdict_survives_its_file(tmp_path: Path) -> None:
    made = validation.verdict_of([_judged(False)] * 6, COSTS, "2026-01-01")
    path = tmp_path / "verdict.toml"
    path.write_text(validation.to_toml(made))
    assert validation.toml.load("validations", path, Verdict, CalibrationError) == made


def test_the_verdict_that_ships_is_of_the_costs_that_ship() -> None:
    found = validation.last_verdict()
    assert found is not None
    assert found.costs == f"{COSTS.name}: {COSTS.setting}"
    assert validation.validity("vector").startswith("Not validated")


def test_curves_that_are_apart_have_a_distance() -> None:
    one = np.array([1.0, 2.0, 3.0, 4.0])
    assert distance(one, one) == (0.0, 0.0)
    assert distance(one, one + 1.0) == (0.25, 1.0)
    assert distance(one, one + 10.0) == (1.0, 10.0)
    assert distance(one, np.full(4, np.inf)) == (1.0, 0.0)


def test_a_trace_gives_the_times_of_clients_and_when_they_began(tmp_path: Path) -> None:
    report = _report(sessions=40)
    report["settings"]["replay"] = True
    _written(tmp_path, "replayed", report)
    (tmp_path / "replayed").mkdir()
    clients = np.arange(40, dtype=np.int64)
    begun = clients * 1_000_000
    table = pa.table(
        {
            "client": np.concatenate([clients, clients[:30]]).astype(np.uint32),
            "attempt": np.array([1] * 40 + [2] * 30, dtype=np.uint16),
            "scheduled_ns": np.concatenate([begun, begun[:30] + 7]),
            "answered_ns": np.array([10_000_000_000] * 40 + [20_000_000_000] * 30),
            "outcome": pa.array(["refused"] * 40 + ["restored"] * 30).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "replayed" / "attempts-00.parquet")
    (storm,) = storms_of([tmp_path])
    assert storm.begin_ns is not None
    assert storm.waits_s is not None
    np.testing.assert_array_equal(storm.begin_ns, begun)
    np.testing.assert_allclose(np.sort(storm.waits_s)[:30], np.sort(20.0 - begun[:30] / 1e9))
    assert np.isinf(storm.waits_s).sum() == 10
    assert judge([storm], COSTS, seeds=1).sessions == 40


def test_the_command_says_what_it_found(tmp_path: Path) -> None:
    for number in range(6):
        _written(tmp_path, f"storm-{number}", _report(sessions=1_000 + number), seen=number < 3)
    _written(tmp_path, "other", _report(sessions=1_000) | {"settings": _expiring()})
    (tmp_path / "fsync.json").write_text('{"kind": "fsync"}')
    page = tmp_path / "page.md"
    page.write_text(f"before\n{validation.BEGIN_MARK}\nold\n{validation.END_MARK}\nafter\n")
    out, verdict = tmp_path / "out" / "v.json", tmp_path / "data" / "last.toml"
    out.parent.mkdir()
    assert (
        run(
            traces=[tmp_path],
            blind=None,
            scale=1.0,
            calibration="default",
            seeds=1,
            json=out,
            verdict=verdict,
            tables=page,
        )
        == 0
    )
    made = json.loads(out.read_text())
    assert made["passed"] is True
    assert [one["seen"] for one in made["storms"]] == [True] * 3 + [False] * 3
    first = made["storms"][0]
    assert {"trace", "seen", "metrics", "class_right"} <= set(first)
    assert first["metrics"]["t50_s"] == {"predicted": 0, "measured": 0, "error_pct": 0.0} | {
        key: pytest.approx(first["metrics"]["t50_s"][key]) for key in ("predicted", "measured")
    }
    assert [one["trace"] for one in made["left_out"]] == ["other"]
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert text.count("| storm-") == 6
    assert "**passed**" in text
    assert "passed = true" in verdict.read_text()


def _expiring() -> dict[str, Any]:
    return msgspec.to_builtins(HarnessStorm(sessions=1_000, brokers=4, trigger="expiry")) | {"replay": False}


def test_it_fails_where_a_prediction_does(tmp_path: Path) -> None:
    for number in range(6):
        _written(tmp_path, f"storm-{number}", _report(sessions=1_000, stretch=1.0 + 0.1 * number))
    assert (
        run(
            traces=[tmp_path],
            blind=None,
            scale=1.0,
            calibration="default",
            seeds=1,
            json=None,
            verdict=None,
            tables=None,
        )
        == 1
    )


def test_what_is_no_storm_is_named(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="no storms in"):
        storms_of([tmp_path])
    (tmp_path / "one.json").write_text("{}")
    with pytest.raises(CalibrationError, match=r"one\.json: no report of metad-perf storm"):
        storms_of([tmp_path / "one.json"])
    with pytest.raises(CalibrationError, match=r"none\.json"):
        storms_of([tmp_path / "none.json"])
    with pytest.raises(ScenarioError, match="the page needs the lines"):
        replaced("a page", table_of([], validation.verdict_of([], COSTS, "")))


# --- storms of settings that nobody has chosen


def test_settings_are_drawn_from_the_declared_ranges_and_another_seed_draws_others() -> None:
    found = drawn(200, 7, 1.0)
    assert found == drawn(200, 7, 1.0) != drawn(200, 8, 1.0)
    for key, values in (("nodes", NODES), ("groups", GROUPS), ("linger_ms", LINGERS_MS)):
        assert {one[key] for one in found} == set(values)
    assert all(one["trigger"] != "leader-kill" for one in found if one["nodes"] == 1)
    assert {one["trigger"] for one in found if one["nodes"] > 1} == {"all", "rolling", "leader-kill"}
    assert min(one["sessions"] for one in found) < 60_000 < 400_000 < max(one["sessions"] for one in found) <= 600_000
    assert max(one["sessions"] for one in drawn(50, 7, 0.01)) <= 6_000


def test_of_twelve_storms_three_fill_the_queues_and_two_come_back_together_for_ever() -> None:
    for seed in range(20):
        hard = [one for one in drawn(12, seed, 1.0) if one["queue_ms"] == 250 and one["sessions"] >= 250_000]
        assert len(hard) >= 5
        assert sum(one["policy"] == "exponential" and one["trigger"] == "all" for one in hard) >= 2


def test_seen_storms_have_all_that_blind_ones_are_drawn_from() -> None:
    """So that the costs do not have to guess."""
    seen = [one for one in storms() if one.seen]
    assert {one.nodes for one in seen} == set(NODES)
    assert {one.linger_ms for one in seen} == set(LINGERS_MS)
    assert {one.processes for one in seen} == set(PROCESSES)
    assert {one.groups for one in seen} >= set(GROUPS)
    assert {one.queue_ms for one in seen} >= {QUEUES_MS[0], 0}


def test_what_is_frozen_changes_with_the_costs_and_with_nothing_else() -> None:
    dear = msgspec.structs.replace(COSTS, item_s=2 * COSTS.item_s)
    assert frozen(COSTS) == frozen(load_costs())
    assert frozen(dear)["model"] == frozen(COSTS)["model"]
    assert frozen(dear)["costs"] != frozen(COSTS)["costs"]


def test_blind_storms_pass_where_each_class_is_right_and_times_are_within() -> None:
    good = [_judged(False, 4.0) for _ in range(12)]
    assert blind_passes(good)
    assert blind_errors(good) == {
        "class_right": 12,
        "t50_pct_median": 4.0,
        "t999_pct_p90": 4.0,
        "attempts_pct_p90": 4.0,
    }
    few_far = [*good[3:], *(_with_times(20.0) for _ in range(3))]
    assert blind_passes(few_far)
    assert not blind_passes([*few_far[1:], _with_times(20.0)]), "four of twelve are over 15 %"
    assert not blind_passes([*good[1:], _with_times(26.0)])
    assert not blind_passes([*good[1:], _judged(False, 11.0)]), "attempts"
    assert not blind_passes([*good[1:], _judged(False, 1.0, right=False)])


def _with_times(error_pct: float) -> Judged:
    one = _judged(False, error_pct)
    return msgspec.structs.replace(one, metrics=one.metrics | {"attempts_per_session": Metric(1.0, 1.0, 1.0)})


def test_a_blind_storm_of_which_only_the_prediction_ends_is_off_by_any_number() -> None:
    one = _judged(False)
    never = msgspec.structs.replace(one, metrics=one.metrics | {"t999_s": Metric(1.0, None, None)})
    assert blind_errors([never])["t999_pct_p90"] == float("inf")
    assert not blind_passes([never])


def test_storms_that_happened_or_blind_ones() -> None:
    for given in ({"traces": [], "blind": None}, {"traces": [Path("x")], "blind": 1}):
        with pytest.raises(UsageError, match="name storms that happened, or give --blind N"):
            run(**given, scale=1.0, calibration="default", seeds=1, json=None, verdict=None, tables=None)  # type: ignore[arg-type]


def test_a_report_of_blind_storms_keeps_the_verdicts_before(tmp_path: Path) -> None:
    file = tmp_path / "blind.json"
    assert earlier(file) == earlier(None) == []
    file.write_text('{"passed": true}')
    assert earlier(file) == []
    errors = {"class_right": 2, "t50_pct_median": 1.0, "t999_pct_p90": 2.0, "attempts_pct_p90": 3.0}
    for number in range(3):
        made = {"frozen": {"model": f"{number}"}, "storms": [{}, {}], **errors, "earlier": earlier(file)}
        file.write_bytes(msgspec.json.encode(made))
    assert [one["frozen"]["model"] for one in earlier(file)] == ["0", "1", "2"]
    assert earlier(file)[0] == {"frozen": {"model": "0"}, "storms": 2, **errors}
