"""``metad-perf``, run to its end. What it has started ends with it, also where it hangs."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from e2e_metadctl import ran

from metad_perf.cli import main

METAD_PERF = Path(sys.executable).with_name("metad-perf")


class Done(NamedTuple):
    """A command that has ended."""

    pid: int
    returncode: int
    stdout: str
    stderr: str


def metad_perf(*args: object, timeout_s: float = 600.0) -> Done:
    """Run a command. Raises subprocess.TimeoutExpired if it hangs; then nothing that it has started is left."""
    command = [str(METAD_PERF), *map(str, args)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, errors = process.communicate(timeout=timeout_s)
        finally:
            end_with_all(process)
    return Done(process.pid, process.returncode, out, errors)


def end_with_all(process: subprocess.Popen[str], ending_s: float = 30.0) -> None:
    """End a process that still runs. Its servers are in sessions of their own, so it is asked to end them; whatever
    has not ended after ``ending_s`` seconds is killed."""
    if process.poll() is not None:
        return
    started = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(ending_s)
    except subprocess.TimeoutExpired:
        process.kill()
    for one in started:
        if one.is_running():
            one.kill()
            one.wait()


def report_of(tmp_path: Path, *args: object) -> dict[str, Any]:
    """The report of a command that succeeds."""
    path = tmp_path / "report.json"
    done = metad_perf(*args, "--json", path)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}{done.stdout}"
    assert "Traceback" not in done.stderr
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def usage_error(word: str, *args: object) -> None:
    """A wrong command line is told in one line that has the word, or in the last of those that argparse writes. In this
    process: a new one takes a second to start."""
    policy, terminated = asyncio.get_event_loop_policy(), signal.getsignal(signal.SIGTERM)
    try:
        wrong = ran(main, [*map(str, args)])
    finally:
        asyncio.set_event_loop_policy(policy)
        signal.signal(signal.SIGTERM, terminated)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    *before, told = wrong.stderr.splitlines()
    assert told.startswith("metad-perf")
    assert word in told
    assert not before or before[0].startswith("usage: metad-perf ")
