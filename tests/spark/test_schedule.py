"""Schedules hold every client once, at the time at which the model lets it try, in files that a generator can play."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet
import pytest
from spark_rig import write_storm

from metad_spark import run_schedule
from metad_spark.calibration import load_calibration
from metad_spark.cli import main
from metad_spark.errors import UsageError
from metad_spark.models.node_input import node_inputs
from metad_spark.models.population import firsts_us
from metad_spark.pipeline.context import Context
from metad_spark.reduced import scaled
from metad_spark.run_schedule import Part, parts, rows
from metad_spark.scenario import Scenario, load_scenario


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    return load_scenario(write_storm(tmp_path))


def _parts(scenario: Scenario, generators: int, seed: int = 5) -> list[Part]:
    return parts(scenario, load_calibration(scenario.calibration), seed=seed, generators=generators)


def test_generators_share_the_clients_and_each_client_has_the_models_time(scenario: Scenario) -> None:
    whole = [rows(part) for part in _parts(scenario, 3)]
    clients = np.concatenate([part["client_id"] for part in whole])
    times = np.concatenate([part["t_ns"] for part in whole])
    inputs = node_inputs(scenario, load_calibration(scenario.calibration))
    expected = np.concatenate([firsts_us(node_input, 5) for node_input in inputs]) * 1000
    assert sorted(clients.tolist()) == list(range(scenario.clients))
    np.testing.assert_array_equal(times[np.argsort(clients)], expected)


def test_a_generator_plays_whole_brokers_and_gets_its_rows_in_order(scenario: Scenario) -> None:
    one = rows(_parts(scenario, 1)[0])
    for part in (rows(part) for part in _parts(scenario, 3)):
        order = np.lexsort((part["client_id"], part["t_ns"]))
        np.testing.assert_array_equal(order, np.arange(len(order)))
        # who shares a batch with whom does not depend on how many generators there are
        hints = dict(zip(one["client_id"].tolist(), one["batch_hint"].tolist(), strict=True))
        assert [hints[client] for client in part["client_id"].tolist()] == part["batch_hint"].tolist()


def test_columns_are_what_the_scenario_says(scenario: Scenario) -> None:
    part = rows(_parts(scenario, 1)[0])
    regions, transports, policies = zip(*(part["names"][kind] for kind in part["kind"].tolist()), strict=True)
    assert regions.count("near") == pytest.approx(0.7 * scenario.clients, rel=0.01)
    assert set(transports) == {"tcp_tls", "quic"}
    assert policies.count("rude") == pytest.approx(0.4 * scenario.clients, rel=0.01)
    assert set(part["group"].tolist()) == set(range(scenario.cluster.groups))
    assert part["batch_hint"].min() >= 1
    assert part["batch_hint"].max() > 1


def test_scaling_keeps_times_and_scales_clients_queue_and_doors_together(scenario: Scenario) -> None:
    small = scaled(scenario, 0.1)
    assert (small.clients, small.cluster.queue_items, small.brokers.connects_per_s) == (600, 4, 40)
    assert (small.horizon_s, small.cluster.groups, small.client_timeout_s) == (40, 6, 3)
    for scale in (0, -1, 1.5, float("nan")):
        with pytest.raises(UsageError, match="--scale"):
            scaled(scenario, scale)


def test_more_rows_than_a_generator_can_sort_are_refused(scenario: Scenario) -> None:
    with pytest.raises(UsageError, match="take 8"):
        _parts(load_scenario("default").__class__(clients=200_000_000), 4)


@pytest.fixture(scope="module")
def written(context: Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command has written for three generators."""
    folder = tmp_path_factory.mktemp("written")
    storm = ("--scenario", str(write_storm(folder)), "--scale", "0.1", "--seed", "5")
    assert main(["schedule", *storm, "--generators", "3", "--out", str(folder / "out")]) == 0
    return folder / "out"


def test_the_command_writes_a_file_for_each_generator(written: Path) -> None:
    manifest = json.loads((written / "manifest.json").read_text())
    assert (manifest["clients"], manifest["clients_of_the_storm"], manifest["queue_items"]) == (600, 6000, 4)
    assert len(manifest["files"]) == 3
    assert manifest["folder"] == run_schedule.FOLDER
    found: list[int] = []
    for file in manifest["files"]:
        table = parquet.read_table(written / manifest["folder"] / file["file"])
        assert table.column_names == ["t_ns", "client_id", "group", "region", "transport", "policy", "batch_hint"]
        times = table["t_ns"].to_pylist()
        assert times == sorted(times)
        assert len(times) == file["rows"]
        found += table["client_id"].to_pylist()
    assert sorted(found) == list(range(600))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_brokers_begin_each_client_when_the_schedule_says(written: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    replayed = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "metad_perf.cli",
                "storm",
                "--replay",
                str(written),
                "--trace",
                str(tmp_path / "trace"),
            ),
            *("--nodes", "1", "--brokers", "4", "--lease-s", "60", "--steady-s", "1", "--background", "100"),
            *("--seconds-limit", "200", "--json", str(report)),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert replayed.returncode == 0, replayed.stderr + replayed.stdout
    assert json.loads(report.read_text())["restored"] == 600

    schedule = parquet.read_table(written / run_schedule.FOLDER, columns=["t_ns", "client_id"]).sort_by("client_id")
    attempts = [
        parquet.read_table(file).to_pandas() for file in sorted((tmp_path / "trace").glob("attempts-*.parquet"))
    ]
    firsts = pd.concat(attempts).query("attempt == 1").set_index("client").sort_index()
    assert firsts.index.tolist() == schedule["client_id"].to_pylist()
    assert firsts["scheduled_ns"].tolist() == schedule["t_ns"].to_pylist()
    assert (firsts["sent_ns"] >= firsts["scheduled_ns"]).all(), "no client is ahead of its time"
