"""The cells of spark/examples/notebook.py, in their order, against a real cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_rig import SMALL

import metad.embedded
from metad_spark.pipeline.context import Context

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PAGE = Path(__file__).resolve().parents[2] / "spark" / "examples" / "notebook.py"
CELLS = re.findall(r"(?ms)^# %%\n(.*?)(?=^# %%|\Z)", PAGE.read_text())


@pytest.fixture(scope="module")
def cells(context: Context, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What is known after all cells have run, one after the other, as in a notebook."""
    known: dict[str, Any] = {}
    with metad.embedded.cluster(nodes=1) as nodes, pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAD_URL", nodes.url)
        patch.chdir(tmp_path_factory.mktemp("notebook"))
        for number, cell in enumerate(CELLS, 1):
            exec(compile(cell, f"{PAGE.name}, cell {number}", "exec"), known)
            for key, value in SMALL.items():  # a cell sets some of them for larger tables
                context.session.conf.set(key, value)
        yield known
    assert SparkSession.getActiveSession() is context.session


def test_every_piece_of_code_on_the_page_is_a_cell() -> None:
    assert len(CELLS) >= 8
    told = [line for line in PAGE.read_text().splitlines() if line and not line.startswith("#")]
    assert told == [line for cell in CELLS for line in cell.splitlines() if line and not line.startswith("#")]


def test_the_census_counts_who_is_there(cells: dict[str, Any]) -> None:
    rows = {row["broker"]: row for row in cells["by_broker"].collect()}
    assert {name: row["sessions"] for name, row in rows.items()} == {
        "broker-near-1500": 1_500,
        "broker-near-500": 500,
        "broker-far-1000": 1_000,
    }
    assert {row["payload_bytes"] for row in rows.values()} == {100.0}
    assert (cells["census"]["sessions"], cells["census"]["connected"]) == (3_000, 3_000)


def test_the_storm_is_that_of_these_clients(cells: dict[str, Any]) -> None:
    storm = cells["storm"]
    assert (storm["clients"], storm["population"]["connected"]) == (500_000, 3_000)
    assert storm["population"]["regions_assumed"] == []
    assert storm["t999_s"] > 1.0
    assert storm["restored"] == 500_000
    rows = cells["back"].collect()
    back = {region: sum(row[region] or 0 for row in rows) for region in ("near", "far")}
    assert sum(back.values()) == 500_000
    assert back["near"] == pytest.approx(2 * back["far"], rel=0.01)


def test_the_cluster_is_in_time(cells: dict[str, Any]) -> None:
    size = cells["size"]
    assert size["met"] is True
    low, likely, high = size["band"]["t999_s"]
    assert low <= likely <= high <= 5.0
    assert size["population"] == cells["storm"]["population"]
    assert size["band"]["validation"] == "Not validated against a measured storm."
    assert set(size["band"]) & {"error_pct"} == set()


def test_the_error_of_a_prediction_is_measured(cells: dict[str, Any]) -> None:
    assert {name for name, *_ in cells["errors"]} == set(cells["judged"]["metrics"])
    for metric in cells["judged"]["metrics"].values():
        assert metric["error_pct"] == pytest.approx(100 * (metric["predicted"] / metric["measured"] - 1), rel=1e-3)
    assert cells["judged"]["class_right"] in (True, False)
    assert cells["judged"]["seen"] is False
