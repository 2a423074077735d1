"""Nodes of storms as one Spark job: a task each, which makes its own clients and sends back sums.

Clients never leave the task that made them, and nothing is shuffled: the tasks' input is their own number, and the
cases travel with the function. So the same work gives the same results on one core, on many, and through Connect.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from .cases import NodeCase
from .errors import SparkFailed
from .results import NodeResult
from .runner import Task
from .session import first_line
from .simulate import Model, simulate_node

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

SCHEMA = "task long, result binary"


def run(session: SparkSession, tasks: Sequence[Task], *, done_file: str | None = None) -> list[NodeResult]:
    """What became of each, in the tasks' order: one job, a partition a task. ``done_file``: where tasks on this machine
    leave a byte each when they end. Raises SparkFailed, and what a model raises as that too."""
    if not tasks:
        return []
    frame = session.range(0, len(tasks), 1, len(tasks)).mapInArrow(_runner(tasks, done_file), SCHEMA)
    try:
        table = frame.toArrow()
    except Exception as error:  # py4j, gRPC and PySpark each raise their own
        raise SparkFailed(f"a job failed: {cause(error)}") from error
    found = dict(zip(table["task"].to_pylist(), table["result"].to_pylist(), strict=True))
    return [NodeResult.decode(zlib.decompress(found[index])) for index in range(len(tasks))]


def _runner(
    tasks: Sequence[Task], done_file: str | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that Spark sends to its workers. Cases that several tasks share travel once."""
    places: dict[int, int] = {}
    cases: list[bytes] = []
    order: list[tuple[int, int, Model]] = []
    for task in tasks:
        if id(task.case) not in places:
            places[id(task.case)] = len(cases)
            cases.append(zlib.compress(task.case.encode(), 1))
        order.append((places[id(task.case)], task.seed, task.model))

    def simulate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for index in batch.column(0).to_pylist():
                at, seed, model = order[index]
                result = simulate_node(NodeCase.decode(zlib.decompress(cases[at])), seed, model)
                packed = zlib.compress(result.encode(), 1)
                yield pa.RecordBatch.from_arrays(
                    [pa.array([index], pa.int64()), pa.array([packed], pa.binary())], names=["task", "result"]
                )
                mark(done_file)

    return simulate


def mark(done_file: str | None) -> None:
    """Tell whoever watches that a task has ended. Appending one byte is atomic; on another machine there is no file."""
    if done_file is None:
        return
    with contextlib.suppress(OSError):
        handle = os.open(done_file, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, b".")
        finally:
            os.close(handle)


def cause(error: BaseException) -> str:
    """The last line of the worker's trace where there is one: it names what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Error: " in line and not line.startswith(("at ", "File "))]
    return named[-1] if named else first_line(error)
