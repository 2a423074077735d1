"""A storm small enough for a test and hard enough to refuse, time out and change leaders; and running the command."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from metad_spark.cli import main

DELTA = Path(sys.prefix) / f"delta-{importlib.metadata.version('delta-spark')}"
"""Where delta_jars.py puts the jars of Delta Lake."""

SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Of Spark: a query here has a few rows. To compile its plan, to cut them into parts, or to plan anew behind each step
takes longer than to run it."""
STORM = """
name = "small"
clients = 6_000
horizon_s = 40
client_timeout_s = 3
regions = [
    { name = "near", share = 0.7, rtt_ms = 20, loss = 0.01 },
    { name = "far", share = 0.3, rtt_ms = 150 },
]
sdks = [
    { name = "polite", share = 0.6, family = "full", base_s = 0.5, cap_s = 8 },
    { name = "rude", share = 0.4, family = "exponential", base_s = 0.2, cap_s = 2 },
]
calibration = "CALIBRATION"
[transports]
tcp_tls = 0.5
quic = 0.5
[brokers]
count = 6
linger_ms = 2
connects_per_s = 400
[cluster]
nodes = 3
groups = 6
queue_items = 40
batch_items = 32
[[leader_changes]]
at_s = 2
outage_s = 1
"""
SLOW = 'name = "slow"\nturn_s = 0.01\nitem_s = 0.002\nfactors = [0.5, 1.0, 1.5]\n'


def delta_jars() -> list[str]:
    """Those that are not Spark's own, too; none if ``make setup`` could not fetch them."""
    return sorted(map(str, (DELTA / "jars").glob("io.*.jar")))


def example(name: str) -> ModuleType:
    """A program of spark/examples, as a module."""
    path = Path(__file__).resolve().parents[2] / "spark" / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_storm(folder: Path) -> Path:
    """The scenario as a file, with its calibration beside it."""
    calibration = folder / "slow.toml"
    calibration.write_text(SLOW)
    scenario = folder / "small.toml"
    scenario.write_text(STORM.replace("CALIBRATION", str(calibration)))
    return scenario


def metad_spark(
    *args: str, env: dict[str, str] | None = None, timeout_s: float = 600
) -> subprocess.CompletedProcess[str]:
    """Runs the command as a user does, in a process of its own."""
    command = [sys.executable, "-m", "metad_spark.cli", *args]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL, env=env, check=False
    )


def simulated(folder: Path, *args: str, here: bool = False) -> dict[str, Any]:
    """What ``metad-spark simulate`` of the small storm writes as JSON. ``here``: in this process, and in the session of
    Spark that it has."""
    out = folder / "out.json"
    command = ["simulate", "--scenario", str(write_storm(folder)), "--json", str(out), *args]
    if here:
        assert main(command) == 0
    else:
        done = metad_spark(*command)
        assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    return found
