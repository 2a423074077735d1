"""Storms as tables: a run comes back as it was, is there whole or not at all, and whatever is wrong is told by name."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from metad_spark import run_size
from metad_spark.brokers.runner import run_here
from metad_spark.brokers.storm import Storms
from metad_spark.calibration import Calibration
from metad_spark.cli import main
from metad_spark.errors import TablesError
from metad_spark.pipeline.choice import Choice
from metad_spark.pipeline.context import open_context
from metad_spark.reduced import answered, sweep_here
from metad_spark.scenario import Brokers, Cluster, Expiry, LeaderChange, Region, Scenario, Sdk, Sessions
from metad_spark.tables import queries, schema
from metad_spark.tables.run import Question, Run, questions, runs_of, version
from metad_spark.tables.store import Store

SCENARIO = Scenario(
    name="small",
    clients=900,
    horizon_s=20,
    client_timeout_s=0.8,
    regions=(Region(name="near", share=0.7, rtt_ms=20), Region(name="far", share=0.3, rtt_ms=150)),
    sdks=(Sdk(name="rude", share=1.0, family="exponential", base_s=0.2, cap_s=2),),
    sessions=Sessions(expiries=(Expiry(share=0.5, expiry_s=2.0), Expiry(share=0.5, expiry_s=float("inf")))),
    brokers=Brokers(count=4, connects_per_s=400),
    cluster=Cluster(nodes=3, groups=5, queue_items=60, batch_items=16),
    leader_changes=(LeaderChange(at_s=1),),
)
COSTS = Calibration(name="slow", turn_s=0.01, item_s=0.006, factors=(0.5, 1.0, 1.5))
Changed = Callable[[Question], Question]


@pytest.fixture(scope="module")
def found() -> tuple[list[Question], Storms]:
    asked = questions(SCENARIO, COSTS, model="vector", seeds=[3, 4], version="1+test")
    storms, scale = answered(SCENARIO, COSTS, seeds=[3, 4], run=run_here)
    assert scale == 1.0
    return asked, storms


@pytest.fixture
def store(tmp_path: Path, found: tuple[list[Question], Storms]) -> Store:
    made = Store(tmp_path / "tables")
    made.prepare()
    asked, storms = found
    for run, nodes in zip(runs_of(asked, storms, 1.0, "local"), storms.nodes, strict=True):
        assert made.write(run, nodes)
    return made


def test_a_storm_comes_back_as_it_was(store: Store, found: tuple[list[Question], Storms]) -> None:
    asked, storms = found
    assert storms.middle.rejected > 0
    assert storms.middle.timeouts > 0
    for question, storm in zip(asked, storms.by_seed, strict=True):
        run = store.read(question.run)
        assert run.question == msgspec.structs.replace(question)
        assert run.passes == storms.passes
        assert queries.storm(store, run) == msgspec.structs.replace(storm, model="vector")


def test_any_reader_of_parquet_adds_up_the_nodes(store: Store, found: tuple[list[Question], Storms]) -> None:
    asked, storms = found
    for table in ("nodes", "regions"):
        files = [str(path) for path in sorted(store.folder.glob(f"run=*/{table}.parquet"))]
        rows = pyarrow.dataset.dataset(files, partitioning="hive", partition_base_dir=str(store.folder)).to_table()
        sums = rows.group_by("run").aggregate([("restored", "sum")]).to_pylist()
        assert {row["run"]: row["restored_sum"] for row in sums} == {
            question.run: storm.restored for question, storm in zip(asked, storms.by_seed, strict=True)
        }


def test_nodes_at_a_reduced_scale_add_up_to_the_whole_storm(
    tmp_path: Path, found: tuple[list[Question], Storms]
) -> None:
    asked, storms = found
    store = Store(tmp_path)
    run = runs_of(asked, storms, 0.25, "local")[0]
    store.write(run, storms.nodes[0])
    told = queries.storm(store, run)
    assert sum(told.served_by_s) == 4 * sum(storms.by_seed[0].served_by_s)
    assert max(told.queue_by_s) == 4 * storms.by_seed[0].queue_max


_OTHERS: list[Changed] = [
    lambda asked: msgspec.structs.replace(asked, seed=5),
    lambda asked: msgspec.structs.replace(asked, brokers_seed=5),
    lambda asked: msgspec.structs.replace(asked, model="requests"),
    lambda asked: msgspec.structs.replace(asked, kind="comparison"),
    lambda asked: msgspec.structs.replace(asked, version="2+test"),
    lambda asked: msgspec.structs.replace(asked, scenario=msgspec.structs.replace(SCENARIO, clients=901)),
    lambda asked: msgspec.structs.replace(asked, calibration=msgspec.structs.replace(COSTS, item_s=0.003)),
]


@pytest.mark.parametrize("change", _OTHERS)
def test_another_question_is_another_run(found: tuple[list[Question], Storms], change: Changed) -> None:
    assert change(found[0][0]).run != found[0][0].run


def test_the_same_question_is_the_same_run(found: tuple[list[Question], Storms]) -> None:
    again = msgspec.structs.replace(SCENARIO, description="in other words", calibration="/elsewhere/slow.toml")
    assert questions(again, COSTS, model="vector", seeds=[3], version="1+test")[0].run == found[0][0].run
    assert version() == version()


def test_a_run_is_written_once(store: Store, found: tuple[list[Question], Storms]) -> None:
    asked, storms = found
    before = {path: path.read_bytes() for path in store.folder.rglob("*.parquet")}
    assert not store.write(runs_of(asked, storms, 1.0, "spark")[0], storms.nodes[0])
    assert {path: path.read_bytes() for path in store.folder.rglob("*.parquet")} == before


def test_a_run_that_another_writes_meanwhile_stays(
    store: Store, found: tuple[list[Question], Storms], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, storms = found
    monkeypatch.setattr(store, "has", lambda _: False)  # it was not there when it was looked for
    assert not store.write(runs_of(asked, storms, 1.0, "spark")[0], storms.nodes[0])
    assert store.read(asked[0].run).runner == "local"
    assert not list(store.folder.glob(".*"))


def test_a_crash_leaves_no_half_run(
    tmp_path: Path, found: tuple[list[Question], Storms], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, storms = found
    store = Store(tmp_path)
    run = runs_of(asked, storms, 1.0, "local")[0]
    whole = pq.write_table
    written: list[Path] = []

    def crash(table: pa.Table, path: Path, **options: Any) -> None:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(path)
        whole(table, path, **options)

    monkeypatch.setattr(pq, "write_table", crash)
    with pytest.raises(KeyboardInterrupt):
        store.write(run, storms.nodes[0])
    assert len(written) == 3
    assert store.ids() == []
    monkeypatch.setattr(pq, "write_table", whole)
    assert store.write(run, storms.nodes[0])


def test_what_a_crash_left_is_removed_later(tmp_path: Path) -> None:
    for name, age_s in (("old", 7200), ("new", 0)):
        left = tmp_path / f".writing-{name}"
        left.mkdir()
        (left / "runs.parquet").write_bytes(b"half")
        os.utime(left, (time.time() - age_s,) * 2)
    Store(tmp_path).prepare()
    assert [path.name for path in tmp_path.iterdir()] == [".writing-new"]
    assert Store(tmp_path).ids() == []


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[40] ^= 0xFF
    path.write_bytes(data)


def _newer(path: Path) -> None:
    table = pq.read_table(path, partitioning=None)
    number = str(schema.FORMAT + 1).encode()
    pq.write_table(table.replace_schema_metadata({schema.FORMAT_KEY: number}), path)


def _foreign(path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), path)


def _columnless(path: Path) -> None:
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.drop_columns(table.column_names[:1]), path)


@pytest.mark.parametrize("table", ["runs", "regions"])
@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_cut, "damaged"),
        (_flip, "damaged"),
        (Path.unlink, "this file of the run is missing"),
        (_newer, f"it is of format {schema.FORMAT + 1}, and this version reads up to {schema.FORMAT}"),
        (_foreign, "metad-spark did not write it"),
        (_columnless, "damaged: it has no column"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    store: Store, table: str, harm: Callable[[Path], None], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = store.ids()[0]
    path = store.folder / f"run={run}" / f"{table}.parquet"
    harm(path)
    with pytest.raises(TablesError, match=said) as caught:
        queries.storm(store, store.read(run))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert main(["report", "--tables", str(store.folder), "--run", run, "--out", str(path.parent / "a.html")]) == 1
    assert said in capsys.readouterr().err


def test_runs_are_found_by_how_they_begin(store: Store, tmp_path: Path) -> None:
    first, second = store.ids()
    assert store.find(first[:6]) == first
    assert store.find(second) == second
    with pytest.raises(TablesError, match="2 runs begin with ''; give more digits"):
        store.find("")
    with pytest.raises(TablesError, match="there is no run 'xyz'; there are 2 others"):
        store.find("xyz")
    with pytest.raises(TablesError, match="no such folder"):
        Store(tmp_path / "nowhere").ids()
    with pytest.raises(TablesError, match="no such run"):
        store.table("xyz", "runs")


def test_groups_differ_by_more_than_their_seeds(store: Store) -> None:
    runs = [store.read(run) for run in store.ids()]
    larger = msgspec.structs.replace(SCENARIO, cluster=msgspec.structs.replace(SCENARIO.cluster, nodes=4))

    def of(run: Run, scenario: Scenario, t999_s: float | None) -> Run:
        return msgspec.structs.replace(
            run,
            question=msgspec.structs.replace(run.question, scenario=scenario),
            storm=msgspec.structs.replace(run.storm, t999_s=t999_s),
        )

    one, two = queries.groups(
        [of(runs[0], SCENARIO, 3.0), of(runs[1], larger, 2.0), of(runs[1], SCENARIO, None), of(runs[0], larger, 1.0)]
    )
    assert one.settings == {"cluster.nodes": 3}
    assert two.settings == {"cluster.nodes": 4}
    assert one.spread("t999_s") == queries.Spread(median=float("inf"), low=3.0, high=float("inf"))
    assert two.spread("t999_s") == queries.Spread(median=2.0, low=1.0, high=2.0)


def test_comparisons_are_made_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    asked: list[int] = []

    def sweep(scenarios: Any, calibration: Calibration) -> Any:
        asked.append(len(scenarios))
        return sweep_here(scenarios, calibration)

    small = msgspec.structs.replace(SCENARIO, clients=300, leader_changes=())
    scenarios = [small, msgspec.structs.replace(small, clients=200)]
    compared = store.compare(sweep, "local")
    first = compared(scenarios, COSTS)
    assert [storm.clients for storm in first] == [300, 200]
    assert compared([*reversed(scenarios)], COSTS) == first[::-1]
    assert asked == [2, 0]
    assert first[0].t999_s == sweep_here([small], COSTS)[0].t999_s


TOML = """
name = "small"
clients = 600
horizon_s = 20
calibration = "CALIBRATION"
[brokers]
count = 4
[cluster]
nodes = 3
groups = 6
queue_items = 20
batch_items = 16
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    costs, path = tmp_path / "slow.toml", tmp_path / "small.toml"
    costs.write_text('name = "slow"\nturn_s = 0.01\nitem_s = 0.006\nfactors = [0.5, 1.0, 1.5]\n')
    path.write_text(TOML.replace("CALIBRATION", str(costs)))
    return path


def test_simulate_writes_a_run_and_does_not_simulate_it_again(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables, out, page = tmp_path / "tables", tmp_path / "out.json", tmp_path / "page.html"
    args = ["simulate", "--model", "vector", "--scenario", str(scenario), "--tables", str(tables), "--json", str(out)]
    assert main(args) == 0
    told = json.loads(out.read_text())
    (run,) = told["runs"]
    assert Store(tables).ids() == [run]
    assert "without Spark" in capsys.readouterr().out
    assert main(args) == 0
    assert "nothing was simulated" in capsys.readouterr().out
    again = json.loads(out.read_text())
    of_the_run = {"wall_s", "rss_max_mib", "runner_why"}
    assert {key: again[key] for key in again if key not in of_the_run} == {
        key: told[key] for key in told if key not in of_the_run
    }
    assert main(["report", "--tables", str(tables), "--out", str(page)]) == 0
    text = page.read_text()
    assert "Who is back when" in text
    assert run in text
    assert "What to change" not in text  # the tables have no comparisons


def _sweep(scenario: Path, *args: str) -> list[str]:
    tables = str(scenario.parent / "tables")
    return ["sweep", str(scenario), "--model", "vector", "--runner", "local", "--tables", tables, *args]


def test_a_sweep_goes_on_where_it_stopped(scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "sweep.json", tmp_path / "sweep.html"
    assert main(_sweep(scenario, "--vary", "cluster.nodes=3", "--seeds", "2")) == 0
    args = ("--vary", "cluster.nodes=2,3", "--vary", "clients=4e2,600", "--seeds", "2", "--json", str(out))
    assert main(_sweep(scenario, *args, "--report", str(page))) == 0
    said = capsys.readouterr().out
    assert "has 2 of the 8 runs: they are not run again." in said
    assert "6 storms simulated" in said
    told = json.loads(out.read_text())
    assert (told["runs"], told["simulated"], told["runner"]) == (8, 6, "local")
    assert [cell["settings"] for cell in told["cells"]] == [
        {"clients": clients, "cluster.nodes": nodes} for nodes in (2, 3) for clients in (400, 600)
    ]
    assert all(len(set(cell["runs"])) == 2 for cell in told["cells"])
    for cell in told["cells"]:
        for spread in cell["metrics"].values():
            assert spread["min"] <= spread["median"] <= spread["max"]
    slow, quick = (told["cells"][at]["metrics"]["t999_s"]["median"] for at in (1, 3))
    assert quick < slow  # three nodes against two
    assert "8 storms in 4 settings" in page.read_text()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "tables").rglob("*")}
    assert main(_sweep(scenario, *args)) == 0
    assert "has 8 of the 8 runs" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "tables").rglob("*")} == before
    assert json.loads(out.read_text())["cells"] == told["cells"]
    assert main(["report", "--tables", str(tmp_path / "tables"), "--out", str(page)]) == 0
    assert "8 storms in 4 settings" in page.read_text()


def test_a_run_of_a_sweep_is_that_of_simulate(scenario: Path, tmp_path: Path) -> None:
    assert main(_sweep(scenario, "--vary", "clients=500,600")) == 0
    out = tmp_path / "out.json"
    asked = ["simulate", "--model", "vector", "--scenario", str(scenario), "--clients", "500", "--json", str(out)]
    assert main([*asked, "--tables", str(tmp_path / "others")]) == 0
    told = json.loads(out.read_text())
    (run,) = told["runs"]
    swept = Store(tmp_path / "tables").read(run)
    assert swept.storm == Store(tmp_path / "others").read(run).storm
    assert swept.storm.clients == told["clients"] == 500


def test_a_sweep_that_is_killed_goes_on(scenario: Path, tmp_path: Path) -> None:
    grid = ("--vary", f"clients={','.join(str(200 + at) for at in range(40))}")
    store = Store(tmp_path / "tables")
    sweep = subprocess.Popen([sys.executable, "-m", "metad_spark.cli", *_sweep(scenario, *grid)])
    until = time.monotonic() + 200
    while not list(store.folder.glob("run=*")):
        assert sweep.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    sweep.send_signal(signal.SIGKILL)
    sweep.wait()
    kept = store.ids()
    for run in kept:
        assert store.read(run).storm.clients < 240
    out = tmp_path / "out.json"
    assert main(_sweep(scenario, *grid, "--json", str(out))) == 0
    told = json.loads(out.read_text())
    assert 0 < told["simulated"] <= 40 - len(kept)
    assert len(store.ids()) == told["runs"] == 40
    assert set(kept) < {run for cell in told["cells"] for run in cell["runs"]}


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (
            ["--vary", "cluster.nodez=3"],
            2,
            "there is no such key; cluster has nodes, groups, clients, batch_items, queue_items",
        ),
        (["--vary", "name=a,b"], 2, "there is no such key; there are clients, horizon_s"),
        (["--vary", "sdks.1.cap_s=3"], 2, "there is no such key; sdks has 0"),
        (["--vary", "cluster=3"], 2, "it has keys of its own: cluster.nodes"),
        (["--vary", "sdks=3"], 2, "it is a list; vary what is in it, as in sdks.0"),
        (["--vary", "retry_budget=3"], 2, "the scenario has none"),
        (["--vary", "clients=600,many"], 2, "'many' is no number"),
        (["--vary", "clients=600.5"], 2, "'600.5' is no whole number"),
        (["--vary", "clients=600,1"], 1, "clients=1: clients must be at least cluster.groups, 6"),
        (["--vary", "cluster.nodes=3,7"], 1, "cluster.nodes=7: cluster.groups must be cluster.nodes or more"),
        (["--vary", "horizon_s=nan"], 1, "horizon_s must be from 1 to 3600"),
        (["--vary", "calibration=nowhere.toml"], 1, "No such file"),
        (["--vary", "clients=600", "--vary", "clients=700"], 2, "clients: it is given twice"),
        (["--vary", "clients=600,700", "--seeds", "1e5"], 2, "a sweep has at most 100,000 runs"),
    ],
)
def test_what_cannot_be_varied_is_told_before_anything_is_written(
    scenario: Path, args: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_sweep(scenario, *args)) == code
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert not (scenario.parent / "tables").exists()


@pytest.mark.parametrize("text", ["clients", "clients=", "=3", "clients=1,,2", "clients=600,600"])
def test_a_variation_has_a_key_and_values(scenario: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(_sweep(scenario, "--vary", text))
    assert ended.value.code == 2
    assert "argument --vary" in capsys.readouterr().err


def test_tables_are_a_folder(scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tables").write_text("mine")
    assert main(_sweep(scenario, "--vary", "clients=600")) == 1
    assert "it is a file; tables need a folder" in capsys.readouterr().err
    assert (tmp_path / "tables").read_text() == "mine"


def test_tables_without_storms_make_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store(tmp_path).prepare()
    assert main(["report", "--tables", str(tmp_path), "--out", str(tmp_path / "a.html")]) == 1
    assert "it has no storm" in capsys.readouterr().err


def test_size_tries_nothing_twice(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    local = Choice(runner="local", why="a test has no JVM")
    monkeypatch.setattr(run_size, "open_context", lambda **_: open_context(choice=local))
    out, tables = tmp_path / "size.json", tmp_path / "tables"
    args = ["size", "--target", "t999<=15s", "--scenario", str(scenario), "--clients", "2000", "--no-check"]
    told = []
    for _ in range(2):
        code = main([*args, "--tables", str(tables), "--json", str(out)])
        told.append((code, {**json.loads(out.read_text()), "wall_s": 0, "rss_max_mib": 0}))
        runs = Store(tables).ids()
        assert len(runs) > len(told[-1][1]["options"]) > 0
        assert all(Store(tables).read(run).question.kind == "comparison" for run in runs)
        simulated = re.search(r"storms to compare: .*, \d+ tasks", capsys.readouterr().err)
        assert (simulated is not None) is (len(told) == 1)
    assert told[0] == told[1]
