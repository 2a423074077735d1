"""Which runner is chosen, and that processes of this machine give the digits that one process gives. No JVM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from metad_spark.brokers.runner import Task, run_here
from metad_spark.calibration import load_calibration
from metad_spark.errors import ProcessDied, SimulationError, UsageError
from metad_spark.models.node_input import node_inputs
from metad_spark.pipeline import work
from metad_spark.pipeline.choice import LOCAL_CLIENTS_MAX, choose
from metad_spark.pipeline.context import Processes
from metad_spark.scenario import Brokers, Cluster, Scenario


@pytest.mark.parametrize(
    ("given", "runner", "why"),
    [
        ({}, "local", "one storm of fewer than 100,000,000 clients"),
        ({"clients": LOCAL_CLIENTS_MAX - 1}, "local", "one storm"),
        ({"clients": LOCAL_CLIENTS_MAX}, "spark", "100,000,000 clients or more"),
        ({"storms": 2}, "spark", "there are 2 storms"),
        ({"master": "local[2]"}, "spark", "--master says so"),
        ({"connect": True}, "spark", "--connect says so"),
        ({"submitted": True}, "spark", "spark-submit started it"),
        ({"asked": "spark"}, "spark", "--runner says so"),
        ({"asked": "local", "clients": 10**9, "storms": 9, "submitted": True}, "local", "--runner says so"),
    ],
)
def test_who_runs_and_why(given: dict[str, object], runner: str, why: str) -> None:
    choice = choose(**{"asked": "auto", "clients": 1000, "submitted": False} | given)  # type: ignore[arg-type]
    assert choice.runner == runner
    assert why in choice.why


@pytest.mark.parametrize("flag", [{"master": "local[2]"}, {"connect": True}])
def test_no_flag_of_spark_goes_with_the_local_runner(flag: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="leave --master and --connect out"):
        choose("local", clients=1, submitted=False, **flag)  # type: ignore[arg-type]


@pytest.fixture(scope="module", autouse=True)
def found_by_others() -> Iterator[None]:
    """Other processes import this module by its name, wherever the tests run from."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[3])
        yield


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes(2) as started:
        yield started


def test_processes_give_the_digits_of_one_in_order(processes: Processes) -> None:
    scenario = Scenario(
        clients=2_000,
        horizon_s=20,
        brokers=Brokers(count=4, connects_per_s=400),
        cluster=Cluster(nodes=3, groups=5, queue_items=20, batch_items=16),
    )
    inputs = node_inputs(scenario, load_calibration())
    tasks = [Task(input=node_input, seed=seed) for seed in (3, 4) for node_input in inputs]
    there = [work.node_result(data).encode() for data in processes.each(work.simulated, work.nodes(tasks))]
    assert there == [result.encode() for result in run_here(tasks)]
    assert len(set(there)) == len(tasks)  # all different, so their order is seen


def _process_of(_: int) -> bytes:
    return str(os.getpid()).encode()


def _refuse(number: int) -> bytes:
    if number == 1:
        raise SimulationError("one is not simulated")
    return b""


def _die(number: int) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return bytes(number)


def test_small_work_starts_no_process(processes: Processes, tmp_path: Path) -> None:
    done = tmp_path / "done"
    done.touch()
    here = str(os.getpid()).encode()
    assert processes.each(_process_of, [1, 2, 3], done_file=str(done), small=True) == [here] * 3
    assert done.read_bytes() == b"..."
    assert here not in processes.each(_process_of, [1, 2, 3], done_file=str(done))
    until_s = time.monotonic() + 60
    while done.read_bytes() != b"......" and time.monotonic() < until_s:  # the marks are made by another thread
        time.sleep(0.01)
    assert done.read_bytes() == b"......"
    assert processes.each(_process_of, []) == []


def test_what_a_task_raises_is_raised_as_it_is(processes: Processes) -> None:
    with pytest.raises(SimulationError, match=r"^one is not simulated$"):
        processes.each(_refuse, [0, 1, 2])


def test_a_process_that_is_killed_is_told_in_one_line() -> None:
    with pytest.raises(ProcessDied, match="out of memory") as caught, Processes(2) as started:
        started.each(_die, [0, 1])
    assert "\n" not in str(caught.value)


_PARENT = """
import sys, time
from metad_spark.pipeline.context import Processes
from metad_spark.pipeline import work

if __name__ == "__main__":
    with Processes(2) as started:
        started.each(time.sleep, [600, 600])
"""


def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    program = tmp_path / "parent.py"
    program.write_text(_PARENT)
    parent = subprocess.Popen([sys.executable, str(program)])
    me = psutil.Process(parent.pid)
    begun: list[psutil.Process] = []
    until = time.monotonic() + 120
    while len(begun) < 3:  # the one that forks, and its two; others may be there for semaphores
        assert time.monotonic() < until
        assert parent.poll() is None
        begun = [each for each in me.children(recursive=True) if each.children() or each.ppid() != parent.pid]
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    _, left = psutil.wait_procs(begun, timeout=60)
    for each in left:
        each.kill()
    assert not left
