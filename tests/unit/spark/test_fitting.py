"""Costs from runs: what is put in comes out, nothing is below 0, and an interval says what the runs allow."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from metad_spark.errors import CalibrationError
from metad_spark.requests import fitting, grid
from metad_spark.requests.costs import BROKER, MEMTABLE_S, NODE, REFUSAL_S, REFUSED_ITEM_S, growth, load_costs
from metad_spark.requests.fitting import fit, nnls
from metad_spark.requests.grid import Grid, Refused, Row
from metad_spark.run_calibrate import run

TRUE = {
    "request_s": 1e-4,
    "item_s": 8e-6,
    "restore_s": 3e-6,
    "part_s": 2e-6,
    "refusal_s": 2e-5,
    "refused_item_s": 5e-7,
    "entry_s": 3e-4,
    "follower_entry_s": 2e-4,
    "follower_item_s": 5e-6,
    "grown_item_s": 2e-6,
    "call_s": 2e-4,
    "attempt_s": 0.9e-5,
    "back_s": 1.5e-5,  # of the two a fit tells only the sum
    "back_part_s": 3e-7,
    "grown_back_s": 2e-6,
}
IDLE, BESIDE = 0.02, 0.05


def _row(rng: np.random.Generator, number: int, kind: str, part: str, noise: float) -> Row:
    counts = {
        "requests": rng.integers(10, 3_000),
        "items": rng.integers(1_000, 100_000),
        "entries": rng.integers(10, 1_000),
        "follower_entries": rng.integers(10, 1_000),
        "follower_items": rng.integers(1_000, 100_000),
    }
    counts["restored"] = counts["items"] * (number % 2)
    if kind == "storm":
        counts |= {name: rng.integers(1_000, 50_000) for name in ("parts", "refusals", "refused_items")}
        counts["grown_items"] = rng.integers(1_000, 300_000)
        counts["memtable_items"] = rng.integers(1_000, 1_000_000)
    if part == "brokers":
        counts = {name: rng.integers(1_000, 50_000) for name in ("calls", "attempts", "back")}
        counts |= {name: rng.integers(10_000, 300_000) for name in ("parts", "grown_items")}
    row = Row(
        run=f"{kind}-{number}",
        kind=kind,
        seen=True,
        part=part,
        seconds=float(rng.uniform(3, 10)),
        others_cores=0.0,
        cpu_s=0.0,
        **{name: float(count) for name, count in counts.items()},
    )
    of = {"request_s": row.requests, "item_s": row.items, "restore_s": row.restored, "part_s": row.parts}
    of |= {"refusal_s": row.refusals, "refused_item_s": row.refused_items, "entry_s": row.entries}
    of |= {"follower_entry_s": row.follower_entries, "follower_item_s": row.follower_items}
    of |= {"grown_item_s": row.grown_items}
    if part == "brokers":
        of = {"call_s": row.calls, "attempt_s": row.attempts, "back_s": row.back}
        of |= {"back_part_s": row.parts, "grown_back_s": row.grown_items}
    cpu_s = sum(TRUE[name] * count for name, count in of.items())
    cpu_s += MEMTABLE_S * row.memtable_items
    cpu_s += row.seconds * (IDLE + BESIDE * (kind == "storm")) * (part == "node")
    return msgspec.structs.replace(row, cpu_s=cpu_s * float(rng.normal(1.0, noise)))


def _grid(noise: float = 0.0) -> Grid:
    rng = np.random.default_rng(5)
    rows = [_row(rng, number, "load", "node", noise) for number in range(20) for _ in range(3)]
    rows += [_row(rng, number, "storm", "node", noise) for number in range(10) for _ in range(3)]
    rows += [_row(rng, number, "storm", "brokers", noise) for number in range(10) for _ in range(2)]
    refused = [
        Refused(items=items, cpu_s=(TRUE["refusal_s"] + items * TRUE["refused_item_s"]) * error, core_us=0.0)
        for items in (1, 100)
        for error in (0.9, 1.0, 1.1)
    ]
    return Grid(rows=rows, fsync_s=[0.001, 0.002, 0.004], refused=refused, cpus=4, setting="synthetic")


def test_costs_without_noise_are_found_exactly() -> None:
    found = fit(_grid())
    for name, value in TRUE.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-3), name
    assert found.idle_cores == pytest.approx(IDLE + BESIDE, rel=1e-3)
    assert found.r2 == {"nodes": 1.0, "brokers": 1.0}
    assert found.cores == 4
    assert found.fsync_s[0] < 0.0011
    assert found.fsync_s[-1] > 0.0038


def test_a_refusal_costs_what_was_measured_whatever_storms_say() -> None:
    """A fit over storms said 456 us, from 0 to 807, and a leader that does nothing else takes a ninth of it."""
    rows = [
        msgspec.structs.replace(row, cpu_s=row.cpu_s + 4e-4 * row.refusals * (row.part == "node"))
        for row in _grid().rows
    ]
    dear = msgspec.structs.replace(_grid(), rows=rows)
    assert fit(dear).refusal_s == fit(_grid()).refusal_s == pytest.approx(TRUE["refusal_s"], rel=1e-3)
    assert fit(dear).intervals["refusal_s"].low < TRUE["refusal_s"] < fit(dear).intervals["refusal_s"].high
    faster = [msgspec.structs.replace(one, cpu_s=one.cpu_s / 2, core_us=50.0) for one in dear.refused]
    assert fitting._refusals(msgspec.structs.replace(dear, refused=faster), 100.0)["refusal_s"][0] == pytest.approx(
        TRUE["refusal_s"], rel=1e-3
    )
    known = fit(msgspec.structs.replace(dear, refused=[]))
    assert (known.refusal_s, known.refused_item_s) == (REFUSAL_S, REFUSED_ITEM_S)


def test_costs_are_those_of_cores_of_one_speed() -> None:
    """A shared machine has cores that are slower in one minute than in the next."""
    rng = np.random.default_rng(3)
    speeds = {run: float(rng.uniform(50, 100)) for run in sorted({row.run for row in _grid().rows})}
    rows = [
        msgspec.structs.replace(
            row,
            cpu_s=(row.cpu_s - MEMTABLE_S * row.memtable_items) * speeds[row.run] / 50,
            memtable_items=0.0,  # not fitted
            core_us=speeds[row.run],
            storm_s=row.seconds * (row.kind == "storm"),
        )
        for row in _grid().rows
    ]
    refused = [msgspec.structs.replace(one, core_us=50.0) for one in _grid().refused]
    found = fit(msgspec.structs.replace(_grid(), rows=rows, refused=refused))
    storms = [speed for run, speed in speeds.items() if run.startswith("storm")]
    assert found.core_us == pytest.approx(sum(storms) / len(storms), rel=1e-3)
    at_50 = found.at_speed(50.0)
    for name, value in TRUE.items():
        assert getattr(at_50, name) == pytest.approx(value, rel=1e-3), name
    assert at_50.fsync_s == found.fsync_s, "a disk is not faster"
    assert found.at_speed(0.0) is found, "a report of before it was measured"
    one_unknown = [msgspec.structs.replace(row, core_us=0.0) if row.run == "load-0" else row for row in rows]
    assert fit(msgspec.structs.replace(_grid(), rows=one_unknown)).core_us == 0.0


def test_cores_that_nobody_used_in_storms_are_found() -> None:
    """Before and behind a storm the nodes do the other work, which is no part of it."""
    made = _grid()
    assert fit(made).unused_cores == 0.0, "rows of an older version"
    rows: list[Row] = []
    for row in made.rows:
        if row.kind == "storm":
            cpu_s = (row.seconds - 2.0) * 0.5 + (2.0 * (IDLE + BESIDE) if row.part == "node" else 0.0)
            row = msgspec.structs.replace(row, run="one", seconds=10.0, storm_s=8.0, cpu_s=cpu_s, refused_items=0.0)
        rows.append(row)
    storms = [row for row in rows if row.kind == "storm"]
    used = sum(row.cpu_s - (2.0 * (IDLE + BESIDE) if row.part == "node" else 0.0) for row in storms) / 8.0
    unused, unled = fitting._unused(rows, 1_000, IDLE + BESIDE)
    assert (unused, unled) == (pytest.approx(1_000 - used), 0.0)
    assert fitting._unused(rows, 1, IDLE + BESIDE) == (0.0, 0.0), "never below 0"
    # In another storm two nodes lead nothing, and half as much is used.
    idle = [msgspec.structs.replace(row, run="two", cpu_s=row.cpu_s - 0.5 * used * 8.0 / len(storms)) for row in storms]
    nodes = [at for at, row in enumerate(idle) if row.part == "node"]
    assert len(nodes) > 2
    for at in nodes:
        idle[at] = msgspec.structs.replace(idle[at], items=0.0 if at in nodes[:2] else 1.0)
    led = [msgspec.structs.replace(row, items=1.0) for row in storms]
    assert fitting._unused([*led, *idle], 1_000, IDLE + BESIDE) == (
        pytest.approx(1_000 - used),
        pytest.approx(0.25 * used),
    )
    never_ended = [msgspec.structs.replace(row, storm_s=0.0) for row in idle]
    assert fitting._unused([*led, *never_ended], 1_000, IDLE + BESIDE)[1] == 0.0
    # A storm that waits for clients who were turned away, or for one busy process, says nothing of the machine.
    waits = [msgspec.structs.replace(row, refused_items=row.items) for row in idle]
    alone = [*idle[1:], msgspec.structs.replace(idle[0], cpu_s=7.9)]
    for storm in (waits, alone):
        assert fitting._unused([*led, *storm], 1_000, IDLE + BESIDE) == (pytest.approx(1_000 - used), 0.0)


def test_what_restoring_costs_is_found_through_noise_with_an_interval() -> None:
    """It came out as 0 once, without a word of how little was known."""
    found = fit(_grid(noise=0.03))
    interval = found.intervals["restore_s"]
    assert found.restore_s > 0
    assert interval.low <= TRUE["restore_s"] <= interval.high
    assert interval.low < interval.high
    assert set(found.intervals) == {*NODE, *BROKER}
    for name, bounds in found.intervals.items():
        assert 0 <= bounds.low <= getattr(found, name) * 1.001, name
        assert getattr(found, name) <= bounds.high * 1.001, name


def test_storms_that_are_unseen_change_nothing() -> None:
    seen = _grid()
    rng = np.random.default_rng(9)
    strange = [msgspec.structs.replace(_row(rng, 99, "storm", "node", 0.0), seen=False, cpu_s=1e3) for _ in range(9)]
    assert fit(msgspec.structs.replace(seen, rows=[*seen.rows, *strange])) == fit(seen)


def test_the_fit_has_the_conditions_of_an_optimum() -> None:
    """Karush, Kuhn, Tucker: no gradient where a value is free, none that pulls up where it is 0."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        design, target = rng.normal(size=(30, 8)), rng.normal(size=30)
        found = nnls(design, target)
        gradient = design.T @ (target - design @ found)
        assert (found >= 0).all()
        assert np.abs(gradient[found > 0]).max(initial=0.0) < 1e-8
        assert gradient[found == 0].max(initial=0.0) < 1e-8


def test_rows_survive_being_kept(tmp_path: Path) -> None:
    made = _grid(noise=0.02)
    grid.keep(made, tmp_path / "grid.parquet")
    again = grid.read([tmp_path / "grid.parquet"])
    assert again == made
    assert fit(again) == fit(made)


def test_the_command_writes_what_can_be_read(tmp_path: Path) -> None:
    grid.keep(_grid(noise=0.02), tmp_path / "grid.parquet")
    out, kept, json = tmp_path / "costs.toml", tmp_path / "again.parquet", tmp_path / "costs.json"
    assert run(runs=[tmp_path / "grid.parquet"], out=out, name="here", keep=kept, json=json) == 0
    costs = load_costs(out)
    assert costs.name == "here"
    assert costs == fit(_grid(noise=0.02), "here")
    assert grid.read([kept]) == _grid(noise=0.02)
    assert msgspec.json.decode(json.read_bytes())["rows"] == 110


def test_runs_that_are_not_sufficient_are_refused(tmp_path: Path) -> None:
    made = _grid()
    with pytest.raises(CalibrationError, match="four loads and two storms"):
        fit(msgspec.structs.replace(made, rows=[row for row in made.rows if row.kind == "load"]))
    with pytest.raises(CalibrationError, match="fsync"):
        fit(msgspec.structs.replace(made, fsync_s=[]))
    with pytest.raises(CalibrationError, match="no runs were given"):
        grid.read([])
    with pytest.raises(CalibrationError, match=str(tmp_path)):
        grid.read([tmp_path])
    (tmp_path / "not.parquet").write_bytes(b"no parquet")
    with pytest.raises(CalibrationError, match=r"not\.parquet"):
        grid.read([tmp_path / "not.parquet"])


def test_the_costs_that_ship_are_those_of_the_grid_that_is_kept() -> None:
    kept = Path(__file__).resolve().parents[3] / "spark" / "calibration-grid.parquet"
    assert fit(grid.read([kept]), "default") == load_costs()


def test_an_item_costs_more_the_more_a_node_leads_as_far_as_was_measured() -> None:
    assert growth(0) == growth(10) == growth(100_000) == 0.0
    assert growth(250_000) == pytest.approx(1.5)
    assert growth(500_000) == growth(10_000_000) == pytest.approx(4.0)
