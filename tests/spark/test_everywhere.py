"""The same seed gives the same storm in processes, by Spark on one core, and through Spark Connect on two, each as a
user would start it. In a session on two cores: test_jobs.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spark_rig import simulated

from metad_spark.run_simulate import KEYS

pytestmark = pytest.mark.usefixtures("java")
_OF_THE_RUN = {"wall_s", "rss_max_mib", "calibration", "runner", "runner_why"}


def _storm(folder: Path, *args: str) -> dict[str, Any]:
    folder.mkdir()
    told = simulated(folder, "--model", "vector", "--seeds", "2", *args)
    assert told["wall_s"] > 0
    assert told["rss_max_mib"] > 100  # all processes are in it
    assert told["runner"] == ("local" if "local" in args else "spark")
    assert set(KEYS) <= told.keys()
    return {key: value for key, value in told.items() if key not in _OF_THE_RUN}


def test_processes_one_core_and_two_through_connect(tmp_path: Path) -> None:
    one = _storm(tmp_path / "one", "--master", "local[1]", "--report", str(tmp_path / "storm.html"))
    assert one["rejected"] > 0
    assert one["restored"] > 0.9 * one["clients"]
    assert _storm(tmp_path / "local", "--runner", "local") == one
    assert _storm(tmp_path / "connect", "--master", "local[2]", "--connect") == one
    page = (tmp_path / "storm.html").read_text()
    assert page.count("<svg") == 4
    assert "<script" not in page
    for heading in (
        "Who is back when",
        "Load against capacity",
        "Amplification",
        "Where it collapses",
        "What to change",
    ):
        assert heading in page
