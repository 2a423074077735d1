"""What a task does, from bytes to bytes: the same function in a process of this machine and in a worker of Spark.

A task makes its own clients and sends back sums, so it neither needs nor returns anything of their size.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from ..brokers.runner import Task, run_here
from ..calibration import Calibration
from ..models.node_input import NodeInput
from ..models.results import NodeResult, StormResult
from ..models.simulate import simulate_node
from ..reduced import answered as answered_storms
from ..reduced import compared
from ..requests import slices
from ..scenario import Scenario
from ..tables.run import Question, run_of_slices, runs_of, sums_and_curve
from ..tables.store import Store

Node = tuple[bytes, int]
"""A packed input, a seed. Tasks that share an input share the object, so it travels once."""
Comparison = tuple[bytes, bytes]
"""A packed scenario, a packed calibration."""


def nodes(tasks: Sequence[Task]) -> list[Node]:
    """The tasks, ready to be sent."""
    packed: dict[int, bytes] = {}
    for task in tasks:
        if id(task.input) not in packed:
            packed[id(task.input)] = _pack(task.input.encode())
    return [(packed[id(task.input)], task.seed) for task in tasks]


def simulated(node: Node) -> bytes:
    """The packed :class:`~metad_spark.models.results.NodeResult` of a node. Raises SimulationError."""
    data, seed = node
    return _pack(simulate_node(NodeInput.decode(zlib.decompress(data)), seed).encode())


def node_result(data: bytes) -> NodeResult:
    """The inverse of what :func:`simulated` packs."""
    return NodeResult.decode(zlib.decompress(data))


def comparisons(scenarios: Sequence[Scenario], calibration: Calibration) -> list[Comparison]:
    """The scenarios, ready to be sent."""
    costs = _pack(msgspec.msgpack.encode(calibration))
    return [(_pack(msgspec.msgpack.encode(scenario)), costs) for scenario in scenarios]


def answered(comparison: Comparison) -> bytes:
    """The packed :class:`~metad_spark.models.results.StormResult` of a scenario, by
    :func:`~metad_spark.reduced.compared`. Raises SimulationError."""
    scenario, costs = (zlib.decompress(data) for data in comparison)
    storm = compared(msgspec.msgpack.decode(scenario, type=Scenario), msgspec.msgpack.decode(costs, type=Calibration))
    return _pack(msgspec.msgpack.encode(storm))


def storm_result(data: bytes) -> StormResult:
    """The inverse of what :func:`answered` packs."""
    return msgspec.msgpack.decode(zlib.decompress(data), type=StormResult)


def _pack(data: bytes) -> bytes:
    return zlib.compress(data, 1)


Asked = tuple[bytes, str, str]
"""A packed question, the folder of the tables, the runner's name."""


def question(asked: Question, folder: str, runner: str) -> Asked:
    """A question whose run a task is to write, ready to be sent."""
    return _pack(msgspec.msgpack.encode(asked)), folder, runner


def written(asked: Asked) -> bytes:
    """Simulate a whole storm and write its run, unless it is there. Raises SimulationError and OSError."""
    data, folder, runner = asked
    wanted = msgspec.msgpack.decode(zlib.decompress(data), type=Question)
    store = Store(Path(folder))
    if not store.has(wanted.run):
        found, scale = answered_storms(wanted.scenario, wanted.measured, seeds=[wanted.seed], run=run_here)
        (run,) = runs_of([wanted], found, scale, runner)
        store.write(run, found.nodes[0])
    return b""


AskedSlice = tuple[bytes, int, str, str]
"""A packed question to the model of requests, the number of a slice, the folder of the tables, the runner's name."""


def slice_question(asked: Question, number: int, folder: str, runner: str) -> AskedSlice:
    """A slice whose rows a task is to write, ready to be sent."""
    return _pack(msgspec.msgpack.encode(asked)), number, folder, runner


def slice_written(asked: AskedSlice) -> bytes:
    """Simulate a slice of a storm and keep its rows, unless they are there; the last one of a storm writes its run.
    Raises ScenarioError and OSError."""
    data, number, folder, runner = asked
    wanted = msgspec.msgpack.decode(zlib.decompress(data), type=Question)
    store = Store(Path(folder))
    if store.has(wanted.run):
        return b""
    parts = slices.sampled(wanted.scenario, wanted.sampled, wanted.brokers_seed)
    numbers = [part.number for part in parts]
    if not store.has_slice(wanted.run, number):
        assert wanted.costs is not None
        part = parts[numbers.index(number)]
        (task,) = slices.tasks_of(wanted.run, wanted.scenario, wanted.costs, [part], [wanted.seed]).to_pylist()
        store.keep_slice(wanted.run, number, pa.Table.from_batches([slices.simulated(task)]))
    rows = store.slices(wanted.run, numbers)
    if rows is not None:
        run, _ = run_of_slices(wanted, *sums_and_curve(rows), runner)
        store.write(run, rows=rows)
        store.forget_slices(wanted.run, numbers)
    return b""
