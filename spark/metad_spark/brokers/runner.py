"""The seam between code that wants nodes and storms simulated and code that runs them: this process, or Spark. Both
give the same results.

:data:`~metad_spark.brokers.coupling.Runner` is the same seam for the nodes of one pass; :func:`inputs_by` converts one
into the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..calibration import Calibration
from ..models.invariants import check_storm, luck_of
from ..models.node_input import NodeInput, brokers_of
from ..models.results import NodeResult, StormResult, merge
from ..models.simulate import simulate_node
from ..scenario import Scenario
from . import coupling


@dataclass(frozen=True, kw_only=True)
class Task:
    """A node to simulate."""

    input: NodeInput
    seed: int


RunTasks = Callable[[Sequence[Task]], list[NodeResult]]
"""Simulates nodes and returns their results in the tasks' order."""
Sweep = Callable[[Sequence[Scenario], Calibration], list[StormResult]]
"""Answers many scenarios by :func:`metad_spark.reduced.compared`, in their order."""


def inputs_by(run: RunTasks) -> coupling.Runner:
    """A :data:`~metad_spark.brokers.coupling.Runner` that passes its nodes to ``run``."""

    def run_inputs(inputs: Sequence[NodeInput], seed: int) -> list[NodeResult]:
        return run([Task(input=node_input, seed=seed) for node_input in inputs])

    return run_inputs


def run_here(tasks: Sequence[Task]) -> list[NodeResult]:
    """Run tasks one after the other in this process, for tests and small storms."""
    return [simulate_node(task.input, task.seed) for task in tasks]


def merged(scenario: Scenario, inputs: Sequence[NodeInput], results: Sequence[NodeResult]) -> StormResult:
    """All nodes of a scenario, given their inputs too, as one storm. Raises SimulationError where it ends sooner than
    it can."""
    regions = [region.name for region in scenario.regions]
    expiries = [(each.share, each.expiry_s) for each in scenario.sessions.expiries]
    storm = merge(results, regions, expiries, scenario.disconnect)
    brokers = scenario.brokers
    counts = brokers_of(scenario)
    handshakes_per_s = brokers.connects_per_s * sum(counts) if brokers.connects_per_s else math.inf
    luck = max(luck_of(node_input, node_input.clients / 2) for node_input in inputs)
    check_storm(storm, handshakes_per_s, luck)
    return storm
