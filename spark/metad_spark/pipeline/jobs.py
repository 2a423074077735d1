"""Nodes, or whole scenarios, as one Spark job: one task each, which makes its own clients and sends back sums.

Clients never leave the task that made them, and nothing is shuffled: a task's input is its own number, and its
parameters travel with the function. So the same work gives the same results on one core, on many, and through Connect.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from ..brokers.runner import Task
from ..calibration import Calibration
from ..errors import SparkFailed
from ..models.node_input import NodeInput
from ..models.results import NodeResult, StormResult
from ..models.simulate import Model, simulate_node
from ..reduced import compared
from ..scenario import Scenario
from .session import first_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

SCHEMA = "task long, result binary"


def run(session: SparkSession, tasks: Sequence[Task], *, done_file: str | None = None) -> list[NodeResult]:
    """The result of each node, in the tasks' order. ``done_file``: tasks on this machine append a byte each when they
    end. Raises SparkFailed, also for errors of a model."""
    places: dict[int, int] = {}  # inputs that several tasks share travel once
    inputs: list[bytes] = []
    order: list[tuple[int, int, Model]] = []
    for task in tasks:
        if id(task.input) not in places:
            places[id(task.input)] = len(inputs)
            inputs.append(zlib.compress(task.input.encode(), 1))
        order.append((places[id(task.input)], task.seed, task.model))

    def simulate(index: int) -> bytes:
        at, seed, model = order[index]
        return simulate_node(NodeInput.decode(zlib.decompress(inputs[at])), seed, model).encode()

    return [NodeResult.decode(result) for result in _each(session, len(tasks), simulate, done_file)]


def sweep(
    session: SparkSession, scenarios: Sequence[Scenario], calibration: Calibration, *, done_file: str | None = None
) -> list[StormResult]:
    """Each scenario by :func:`~metad_spark.reduced.compared`, a whole storm in one task, in their order.
    Raises SparkFailed."""
    packed = [msgspec.msgpack.encode(scenario) for scenario in scenarios]
    costs = msgspec.msgpack.encode(calibration)

    def answer(index: int) -> bytes:
        scenario = msgspec.msgpack.decode(packed[index], type=Scenario)
        return msgspec.msgpack.encode(compared(scenario, msgspec.msgpack.decode(costs, type=Calibration)))

    results = _each(session, len(scenarios), answer, done_file)
    return [msgspec.msgpack.decode(result, type=StormResult) for result in results]


def _each(session: SparkSession, count: int, work: Callable[[int], bytes], done_file: str | None) -> list[bytes]:
    """``work(0)`` to ``work(count - 1)``, a partition each."""

    def part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for index in batch.column(0).to_pylist():
                result = pa.array([zlib.compress(work(index), 1)], pa.binary())
                yield pa.RecordBatch.from_arrays([pa.array([index], pa.int64()), result], names=["task", "result"])
                mark(done_file)

    if not count:
        return []
    try:
        table = session.range(0, count, 1, count).mapInArrow(part, SCHEMA).toArrow()
    except Exception as error:  # py4j, gRPC and PySpark each raise their own
        raise SparkFailed(f"a job failed: {cause(error)}") from error
    found = dict(zip(table["task"].to_pylist(), table["result"].to_pylist(), strict=True))
    return [zlib.decompress(found[index]) for index in range(count)]


def mark(done_file: str | None) -> None:
    """Mark that a task has ended, for the progress display. Appending one byte is atomic; on another machine there is
    no file."""
    if done_file is None:
        return
    with contextlib.suppress(OSError):
        handle = os.open(done_file, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, b".")
        finally:
            os.close(handle)


def cause(error: BaseException) -> str:
    """The last line of the worker's trace, if there is one: it names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Error: " in line and not line.startswith(("at ", "File "))]
    return named[-1] if named else first_line(error)
