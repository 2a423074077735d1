"""The model of requests answers ``simulate`` and checks ``size``: what it says is kept, drawn, and told with what it
leaves open; a collapse is told in words and by the exit code; and the other model says first that it is not validated.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_population import counted

import pictures
from metad_spark import run_size, sliced
from metad_spark.cli import main
from metad_spark.models.collapse import KEEPALIVES, collapsed
from metad_spark.pipeline import work
from metad_spark.pipeline.choice import Choice
from metad_spark.pipeline.context import open_context
from metad_spark.requests import slices
from metad_spark.requests.costs import load_costs, to_toml
from metad_spark.requests.simulate import Look
from metad_spark.scenario import Brokers, Cluster, Region, Scenario
from metad_spark.tables.store import Store

Floats = npt.NDArray[np.float64]
TOML = """
name = "four slices"
clients = 8_000
horizon_s = 60
client_timeout_s = 2
regions = [{ name = "near", share = 0.75, rtt_ms = 20 }, { name = "far", share = 0.25, rtt_ms = 120 }]
sdks = [{ name = "often", share = 1.0, family = "full", base_s = 0.2, cap_s = 0.4 }]
[disconnect]
spread_s = 2.0
keepalives = [{ share = 1.0, keepalive_s = 10 }]
[brokers]
count = 6
linger_ms = 5
concurrency = 96
[cluster]
nodes = 12
groups = 24
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.toml"
    path.write_text(TOML)
    return path


def _told(out: Path, *args: str, code: int = 0) -> dict[str, Any]:
    assert main(["simulate", *args, "--json", str(out)]) == code
    found: dict[str, Any] = json.loads(out.read_text())
    return found


# --- collapse


def _curve(seconds: int, *parts: tuple[int, int, float, float]) -> tuple[Floats, Floats]:
    """``parts``: from and to which second, and how many come back and try in each of them."""
    restored, attempts = np.zeros(seconds), np.zeros(seconds)
    for begin, end, back, tried in parts:
        restored[begin:end], attempts[begin:end] = back, tried
    return restored, attempts


_LONG = round(KEEPALIVES * 60)


@pytest.mark.parametrize(
    ("curve", "collapses"),
    [
        pytest.param(_curve(400, (0, 10, 100, 900)), False, id="over before long"),
        pytest.param(_curve(400, (0, 400, 1, 900)), True, id="to the end"),
        pytest.param(_curve(400, (0, _LONG + 20, 1, 900), (_LONG + 20, _LONG + 30, 100, 100)), True, id="for long"),
        pytest.param(_curve(400, (0, 90, 1, 900), (90, 100, 100, 100)), False, id="for less"),
        pytest.param(_curve(400, (0, 200, 5, 9)), False, id="most of it succeeds"),
        pytest.param(_curve(60, (0, 60, 1, 900)), True, id="to the end of a short scenario"),
        pytest.param(_curve(60, (0, 20, 1, 900), (20, 60, 24, 24)), False, id="a short scenario recovers"),
        pytest.param(_curve(2, (0, 2, 1, 900)), False, id="cut short"),
        pytest.param(_curve(400, (0, 10, 99, 99), (300, 301, 10, 10)), False, id="the last ones wait long"),
        pytest.param(_curve(400, (0, 1, 900, 990), (70, 71, 1, 99), (140, 141, 1, 99)), True, id="in waves, in vain"),
        pytest.param(_curve(400, (0, 200, 0, 1), (0, 1, 999.5, 1_000)), False, id="one of a thousand never comes"),
    ],
)
def test_a_collapse_is_work_in_vain_for_two_keepalives(curve: tuple[Floats, Floats], collapses: bool) -> None:
    assert collapsed(1_000, *curve, 60.0) is collapses


def test_a_storm_that_collapses_says_so_in_words_and_by_the_exit_code(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nodes so slow that answers come when clients have given up: what they do is in vain."""
    slow = tmp_path / "slow.toml"
    slow.write_text(to_toml(msgspec.structs.replace(load_costs(), item_s=0.05)))
    asked = ("--scenario", str(scenario), "--sample", "1")
    found = _told(tmp_path / "out.json", *asked, "--calibration", str(slow), code=4)
    assert found["collapsed"] is True
    said = capsys.readouterr().out
    assert "It collapses: for 2 keepalives (20 s)" in said
    assert "under half of what clients attempt succeeds" in said
    assert _told(tmp_path / "out.json", *asked)["collapsed"] is False


# --- simulate


def test_the_other_model_says_first_that_it_is_not_validated(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario.write_text(TOML + "queue_items = 500\n")
    lacks = list(slices.unknown(msgspec.toml.decode(scenario.read_text(), type=Scenario)))
    assert main(["simulate", "--scenario", str(scenario), "--model", "vector"]) in (
        0,
        3,
    )  # so few clients may not settle
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("Not validated against a measured storm.")
    assert "--model vector" in first
    assert lacks
    assert all(lack in first for lack in lacks)
    assert rest


def test_many_slices_are_simulated_here_where_there_is_no_java(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sliced, "_HERE_CLIENTS_MAX", 1_000)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    told = _told(tmp_path / "out.json", "--scenario", str(scenario))
    assert told["runner"] == "local"
    assert "because Spark needs Java" in told["runner_why"]


def test_a_run_is_kept_and_not_simulated_again(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = tmp_path / "tables"
    asked = ("--scenario", str(scenario), "--seeds", "2", "--sample", "2", "--tables", str(tables))
    told = _told(tmp_path / "out.json", *asked)
    assert sorted(told["runs"]) == Store(tables).ids()
    assert (told["slices"], told["sampled"]) == (4, 2)
    assert "nothing was simulated" not in capsys.readouterr().out
    again = _told(tmp_path / "out.json", *asked)
    assert "nothing was simulated" in capsys.readouterr().out
    of_the_run = {"wall_s", "rss_max_mib", "runner_why"}
    assert {key: again[key] for key in again.keys() - of_the_run} == {
        key: told[key] for key in told.keys() - of_the_run
    }
    for run, storm in zip(told["runs"], told["by_seed"], strict=True):
        rows = pq.read_table(tables / f"run={run}" / "slices.parquet", partitioning=None)
        assert len(set(rows["slice"].to_pylist())) == 2
        assert sum(rows["clients"].to_pylist()) == pytest.approx(4_000, rel=0.01)
        assert sum(rows["restored"].to_pylist()) == pytest.approx(storm["restored"] / 2, rel=0.01)
        assert sum(count for bins in rows["histogram"].to_pylist() for _, count in bins) == sum(
            rows["restored"].to_pylist()
        )
    _told(tmp_path / "out.json", "--scenario", str(scenario), "--tables", str(tables))
    assert len(Store(tables).ids()) == 3, "all slices are another run than two of them"


# --- sweep


def test_a_sweep_is_a_grid_of_slices_and_goes_on_where_it_was_stopped(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, out, page = tmp_path / "tables", tmp_path / "sweep.json", tmp_path / "sweep.html"
    store, simulated = Store(tables), []
    store.prepare()
    simulate = slices.simulated

    def counted(task: dict[str, Any], look: Look | None = None) -> pa.RecordBatch:
        simulated.append((task["run"], task["slice"]))
        return simulate(task, look)

    monkeypatch.setattr(slices, "simulated", counted)
    plain = msgspec.toml.decode(scenario.read_text(), type=Scenario)
    question, parts = sliced.asked_of(plain, load_costs(), 3, 2)
    first, last = (part.number for part in parts)
    work.slice_written(work.slice_question(question, first, str(tables), "local"))
    assert store.ids() == [], "a storm is there whole or not at all"
    args = ["sweep", str(scenario), "--vary", "cluster.nodes=6,12", "--seed", "3", "--sample", "2"]
    args += ["--tables", str(tables), "--json", str(out)]
    assert main([*args, "--report", str(page)]) == 0
    told = json.loads(out.read_text())
    assert (told["runs"], told["simulated"], told["runner"]) == (2, 2, "local")
    assert [cell["settings"] for cell in told["cells"]] == [{"cluster.nodes": 6}, {"cluster.nodes": 12}]
    assert told["cells"][1]["runs"] == [question.run]
    assert len(simulated) == len(set(simulated)) == 4, "two slices of each, and what was there is not simulated again"
    assert {number for run, number in simulated if run == question.run} == {first, last}
    assert sorted(store.ids()) == sorted(path.name.removeprefix("run=") for path in tables.iterdir()), "nothing else"
    assert "2 storms in 2 settings" in page.read_text()
    for said in (page.read_text(), capsys.readouterr().out):
        assert "Outside of what was checked: it has 8,000 clients, a core for each process." in " ".join(said.split())
    one = _told(tmp_path / "one.json", *("--scenario", str(scenario), "--seed", "3", "--sample", "2"))
    assert {key: told["cells"][1]["metrics"][key]["median"] for key in ("t50_s", "t999_s", "rejected")} == {
        key: one[key] for key in ("t50_s", "t999_s", "rejected")
    }
    assert main(args) == 0
    assert "has 2 of the 2 runs" in capsys.readouterr().out
    assert len(simulated) == 6, "simulate has no tables here, and the sweep has all"


def test_a_sweep_varies_the_costs_of_requests(scenario: Path, tmp_path: Path) -> None:
    slow, out = tmp_path / "slow.toml", tmp_path / "sweep.json"
    slow.write_text(to_toml(msgspec.structs.replace(load_costs(), name="slow", item_s=0.001)))
    args = ["--vary", f"calibration=default,{slow}", "--tables", str(tmp_path / "tables"), "--json", str(out)]
    assert main(["sweep", str(scenario), "--sample", "1", *args]) == 0
    quick, slowed = (cell["metrics"]["t999_s"]["median"] for cell in json.loads(out.read_text())["cells"])
    assert quick < slowed


def test_the_vector_model_takes_no_sample(scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--model", "vector", "--sample", "1", "--tables", str(tmp_path / "tables")]
    assert main(["sweep", str(scenario), *args]) == 2
    assert "--sample is of --model requests" in capsys.readouterr().err


# --- pages


def test_a_page_says_first_what_it_is_worth_and_draws_what_the_tables_have(scenario: Path, tmp_path: Path) -> None:
    page, other, tables = tmp_path / "page.html", tmp_path / "other.html", tmp_path / "tables"
    slow = tmp_path / "slow.toml"
    slow.write_text(to_toml(msgspec.structs.replace(load_costs(), item_s=0.001)))
    scenario.write_text(TOML + "queue_items = 20\n")
    asked = ("--scenario", str(scenario), "--calibration", str(slow), "--sample", "2", "--tables", str(tables))
    told = _told(tmp_path / "out.json", *asked, "--report", str(page))
    html = page.read_text()
    assert html.index(told["validation"]) < html.index('class="verdict')
    assert html.index("Outside of what was checked") < html.index("Who is back when")
    for heading in ("Who is back when", "What is attempted", "Amplification", "How long clients wait"):
        assert f"<h2>{heading}</h2>" in html
    assert ("<h2>What is turned away</h2>" in html) is (told["rejected"] > 0)
    assert "two standard errors" in html
    assert f"half are back, ± {told['errors_pct']['t50_s']:.2g} %" in html
    assert "near" in html
    assert "<script" not in html
    drawn = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(drawn) >= 4
    assert [fault for svg in drawn for fault in pictures.faults(svg)] == []
    (run,) = told["runs"]
    assert main(["report", "--tables", str(tables), "--run", run, "--out", str(other)]) == 0
    assert other.read_text().partition("<footer>")[0] == html.partition("<footer>")[0]


def test_the_clients_of_a_census_come_back(scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    people = tmp_path / "census.json"
    people.write_bytes(msgspec.json.encode(counted()))
    told = _told(tmp_path / "out.json", "--scenario", str(scenario), "--population", str(people))
    assert (told["clients"], told["restored"], told["model"]) == (1_000, 1_000, "requests")
    assert told["population"]["connected"] == 1_000
    assert "The clients are those of metad://here:1" in capsys.readouterr().out


# --- size


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    local = Choice(runner="local", why="a test has no JVM")
    monkeypatch.setattr(run_size, "open_context", lambda **_: open_context(choice=local))


def _sized(scenario: Path, tmp_path: Path, target: str, costs: str, code: int) -> dict[str, Any]:
    calibration, out = tmp_path / "costs.toml", tmp_path / "size.json"
    calibration.write_text(costs)
    scenario.write_text(TOML.replace("nodes = 12", "nodes = 4").replace("groups = 24", "groups = 8"))
    asked = ["--scenario", str(scenario), "--calibration", str(calibration), "--config", str(tmp_path / "size.toml")]
    assert main(["size", "--target", target, *asked, "--json", str(out)]) == code
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.usefixtures("here")
def test_an_answer_and_its_neighbour_are_asked_of_the_model_of_requests(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = _sized(scenario, tmp_path, "t999<=6s", "turn_s = 0.01\nitem_s = 0.002\n", 0)
    checked, neighbour = told["checked"], told["neighbour"]
    assert (checked["model"], checked["nodes"], checked["meets"]) == ("requests", told["nodes"], True)
    assert neighbour is None or neighbour["nodes"] == told["nodes"] - 1
    low, high = checked["band"]["t999_s"]
    assert low <= checked["t999_s"] <= high
    assert checked["band"]["seeds"] == 3
    assert told["unchecked"] == ""
    said = capsys.readouterr().out
    assert "by the vector model" in said
    of = checked["slices"]
    assert f"{told['nodes']} nodes by the model of requests, from {of} of {of} slices" in said
    lines = (tmp_path / "size.toml").read_text().splitlines()
    assert all(before.startswith("# ") for before, line in itertools.pairwise(lines) if " = " in line)


@pytest.mark.usefixtures("here")
def test_an_answer_that_misses_by_the_model_of_requests_is_not_to_be_relied_on(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = msgspec.structs.replace(load_costs(), item_s=0.002)
    monkeypatch.setattr(run_size, "load_costs", lambda: slow)
    told = _sized(scenario, tmp_path, "t999<=3s", "turn_s = 0.0001\nitem_s = 0.000001\n", 3)
    assert told["met"] is False
    assert told["checked"]["meets"] is False
    assert told["neighbour"]["nodes"] == told["nodes"] + 1
    assert "The models disagree" in capsys.readouterr().out


def test_a_band_has_the_seeds_what_slices_leave_open_and_what_predictions_were_off() -> None:
    scenario = Scenario(
        clients=3_000,
        horizon_s=30,
        regions=(Region(name="here", share=1.0, rtt_ms=20),),
        brokers=Brokers(count=4, linger_ms=5),
        cluster=Cluster(nodes=12, groups=24),
    )
    found = sliced.answer(scenario, load_costs(), [1, 2, 3], sample=2, where=sliced.Where(runner="local"))
    times = [(one.t999_s or 0.0, one.errors_pct["t999_s"] or 0.0) for one in found.found]
    low, high = found.band_s("t999_s")
    assert low == pytest.approx(min(time_s * (1 - pct / 100) for time_s, pct in times))
    assert high == pytest.approx(max(time_s * (1 + pct / 100) for time_s, pct in times))
    wider = found.band_s("t999_s", 5.0)
    assert wider[0] is not None
    assert wider[1] is not None
    assert wider[0] < low < high < wider[1]
