"""The seam between what wants nodes and storms simulated and what does it: this process, or Spark. Both give the same.

:data:`metad_spark.coupling.Runner` is the same seam for the nodes of one pass; :func:`cases_by` makes one of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import coupling
from .calibration import Calibration
from .cases import NodeCase, node_cases
from .results import NodeResult, StormResult, merge
from .scenario import Scenario
from .simulate import Model, simulate_node


@dataclass(frozen=True, kw_only=True)
class Task:
    """A node to simulate."""

    case: NodeCase
    seed: int
    model: Model


RunTasks = Callable[[Sequence[Task]], list[NodeResult]]
"""Simulates nodes and gives their results in the tasks' order."""
Sweep = Callable[[Sequence[Scenario], Calibration], list[StormResult]]
"""Answers many scenarios by :func:`fluid_storm`, in their order."""


def cases_by(run: RunTasks) -> coupling.Runner:
    """What the coupling calls, by whoever runs tasks."""

    def run_cases(cases: Sequence[NodeCase], seed: int, model: Model) -> list[NodeResult]:
        return run([Task(case=case, seed=seed, model=model) for case in cases])

    return run_cases


def run_here(tasks: Sequence[Task]) -> list[NodeResult]:
    """One after the other in this process, for tests and small storms."""
    return [simulate_node(task.case, task.seed, task.model) for task in tasks]


def sweep_here(scenarios: Sequence[Scenario], calibration: Calibration) -> list[StormResult]:
    """One after the other in this process."""
    return [fluid_storm(scenario, calibration) for scenario in scenarios]


def fluid_storm(scenario: Scenario, calibration: Calibration) -> StormResult:
    """A scenario's storm by the fluid model in one pass, near enough for a comparison: brokers do as many handshakes as
    they can, and each node has its share of them to itself."""
    cases = coupling.with_doors(scenario, node_cases(scenario, calibration, merged=True))
    return merged(scenario, coupling.run_here(cases, 0, "fluid"))


def merged(scenario: Scenario, results: Sequence[NodeResult]) -> StormResult:
    """All nodes of a scenario as one storm."""
    regions = [region.name for region in scenario.regions]
    expiries = [(each.share, each.expiry_s) for each in scenario.sessions.expiries]
    return merge(results, regions, expiries)
