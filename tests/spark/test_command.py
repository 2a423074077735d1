"""Whatever is wrong is told in one line, with an exit code, and without a stack trace."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path

import pytest
from spark_rig import metad_spark, write_storm

from metad_spark import run_validate
from metad_spark.cli import main
from metad_spark.requests.costs import load_costs


def _without_java(folder: Path) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in ("JAVA_HOME", "PATH")} | {"PATH": str(folder)}


@pytest.mark.parametrize(
    "command", ["simulate --runner spark", "simulate --model vector --seeds 2", "schedule --out out"]
)
def test_without_java(tmp_path: Path, command: str) -> None:
    done = metad_spark(*command.split(), "--clients", "1000", env=_without_java(tmp_path))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "Java 17" in done.stderr
    assert "openjdk-17-jre-headless" in done.stderr


def test_one_storm_needs_no_java_and_says_so(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    storm = ["--model", "vector", "--scenario", str(write_storm(tmp_path)), "--json", str(out)]
    done = metad_spark("simulate", *storm, env=_without_java(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "without Spark: it is one storm of fewer than 100,000,000 clients." in done.stdout
    told = json.loads(out.read_text())
    assert told["runner"] == "local"
    assert "one storm" in told["runner_why"]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["simulate", "--scenario", "nowhere.toml"], 1, "No such file"),
        (["simulate", "--clients", "many"], 2, "not a number"),
        (["simulate", "--clients", "1.5"], 2, "whole number"),
        (["simulate", "--target", "soon"], 2, "t999<=300s"),
        (["simulate", "--model", "magic"], 2, "invalid choice"),
        (["simulate", "--runner", "local", "--master", "local[2]"], 2, "leave --master and --connect out"),
        (["simulate", "--master", "sc://localhost", "--connect"], 2, "--master sc://HOST:PORT"),
        (["size", "--clients", "1e6"], 2, "--target"),
        (["schedule", "--out", "here", "--scale", "7"], 2, "--scale must be"),
        (["schedule", "--out", "here", "--clients", "1e9"], 2, "take 40"),
        (["simulate", "--model", "vector", "--master", "local[1]", "--clients", "10"], 1, "clients must be at least"),
    ],
)
def test_what_is_wrong_is_said_before_spark_is_started(
    args: list[str], code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no Java: Spark would be what is wrong."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    try:
        found = main(args)
    except SystemExit as ended:
        found = ended.code  # type: ignore[assignment]
    told = capsys.readouterr().err
    assert found == code, told
    assert said in told
    assert "Traceback" not in told


@pytest.mark.usefixtures("java")
def test_a_taken_connect_port_is_said_at_once() -> None:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # somebody else has it: as good
            stack.enter_context(socket.create_server(("127.0.0.1", 15002)))
        done = metad_spark("simulate", "--master", "local[1]", "--connect")
    assert done.returncode == 1
    assert "port 15002 is taken" in done.stderr


def test_a_folder_with_something_in_it_is_not_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").write_text("mine")
    storm = ("--scenario", str(write_storm(tmp_path)), "--clients", "1000")
    assert main(["schedule", *storm, "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.slow
def test_a_blind_storm_is_drawn_made_and_held_against_its_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real nodes and brokers, but a small storm, and one run of it. How far off it is depends on the machine."""
    monkeypatch.setattr(run_validate, "_RUNS", 1)
    out = tmp_path / "blind.json"
    assert main(["validate", "--blind", "1", "--scale", "0.01", "--json", str(out)]) in (0, 1)
    told = json.loads(out.read_text())
    assert told.keys() == {
        *("frozen", "storms", "class_right"),
        *("t50_pct_median", "t999_pct_p90", "attempts_pct_p90", "earlier"),
    }
    (storm,) = told["storms"]
    assert storm.keys() == {"settings", "inside", "refused", "recovered", "metrics", "class_right"}
    assert storm["inside"] is False, "so small a storm was never checked"
    (settings,) = run_validate.drawn(1, int(told["frozen"]["seed"]), 0.01)
    assert storm["settings"] == settings
    assert told["frozen"]["model"] == run_validate.frozen(load_costs())["model"]
    assert storm["metrics"]["t50_s"]["measured"] > 0
