"""Storms as tables with Spark: a sweep writes the runs that processes write, and Spark reads them and adds them up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from spark_rig import write_storm

from metad_spark.cli import main
from metad_spark.pipeline.context import Context
from metad_spark.tables import queries
from metad_spark.tables.store import Store

pytestmark = pytest.mark.timeout(600)


def test_spark_and_processes_write_the_same_runs(context: Context, tmp_path: Path) -> None:
    storm = str(write_storm(tmp_path))
    told = {}
    for runner, vary in (("local", "clients=300,600"), ("spark", "clients=300,600,400")):
        out = tmp_path / f"{runner}.json"
        args = [
            "sweep",
            storm,
            "--model",
            "vector",
            "--vary",
            vary,
            "--tables",
            str(tmp_path / runner),
            "--json",
            str(out),
        ]
        assert main([*args, "--runner", runner]) in (0, 3)  # 3: the models may disagree of so few clients
        told[runner] = json.loads(out.read_text())
        assert told[runner]["runner"] == runner
    local, spark = Store(tmp_path / "local"), Store(tmp_path / "spark")
    assert len(spark.ids()) == 3
    assert set(local.ids()) < set(spark.ids())
    for run in local.ids():
        here, there = local.read(run), spark.read(run)
        assert (here.runner, there.runner) == ("local", "spark")
        assert queries.storm(local, here) == queries.storm(spark, there)
        for table in ("nodes", "histograms"):
            assert local.table(run, table).equals(spark.table(run, table))
    nodes = context.session.read.option("basePath", str(spark.folder)).parquet(f"{spark.folder}/run=*/nodes.parquet")
    sums = nodes.selectExpr("run", "restored * copies as restored").groupBy("run").sum("restored").collect()
    assert {row[0]: row[1] for row in sums} == {run: spark.read(run).storm.restored for run in spark.ids()}
