"""``metad-perf drill``: one drill on a real cluster, its report, and nothing left behind by an interrupted one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import psutil
from e2e_perf import METAD_PERF, metad_perf

DRILL = "leader-killed"
_LONG_S = 120.0
_POLL_S = 0.05


def test_a_drill_is_played_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "drills.json"
    done = metad_perf("drill", DRILL, "--seed", 1, "--json", path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(path.read_text())
    (drill,) = report["drills"]
    assert report["passed"] is drill["passed"] is True
    assert (drill["name"], drill["lost"], drill["failed_calls"]) == (DRILL, 0, 0)
    assert drill["acknowledged"] > 0
    assert {frozenset(step) for step in drill["steps"]} == {frozenset(("what", "expected", "seen", "passed"))}
    assert "metadctl status --check" in {step["what"] for step in drill["steps"]}


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    """The moment is when the nodes are there."""
    env = os.environ | {"TMPDIR": str(tmp_path)}
    command = [str(METAD_PERF), "drill", DRILL]
    # A shell lets its background jobs ignore Ctrl-C, and the tests may run in one.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env, preexec_fn=heed) as process:
        nodes: list[psutil.Process] = []
        until = time.monotonic() + _LONG_S
        while len(nodes) < 3:
            assert time.monotonic() < until
            time.sleep(_POLL_S)
            nodes = [child for child in psutil.Process(process.pid).children() if "serve" in child.cmdline()]
        assert any(tmp_path.iterdir())
        process.send_signal(signal.SIGINT)
        assert process.wait(_LONG_S) == 130
    assert not [node for node in nodes if node.is_running()]
    assert not any(tmp_path.iterdir())
