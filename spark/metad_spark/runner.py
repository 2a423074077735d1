"""The seam between what wants nodes and storms simulated and what does it: this process, or Spark. Both give the same.

:data:`metad_spark.coupling.Runner` is the same seam for the nodes of one pass; :func:`cases_by` makes one of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from . import coupling
from .calibration import Calibration
from .cases import NodeCase, node_cases
from .results import NodeResult, StormResult, added, merge
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
Waves = npt.NDArray[np.float64]
"""(region, point): how long brokers keep a client waiting, in microseconds."""


class Sweep(Protocol):
    """Answers many scenarios by the fluid model, brokers and nodes in agreement, in the scenarios' order. ``waves_us``:
    of each scenario, as for :func:`fluid_storm`."""

    def __call__(
        self,
        scenarios: Sequence[Scenario],
        calibration: Calibration,
        waves_us: Sequence[Waves | None] | None = None,
    ) -> list[StormResult]: ...


_PASSES_MAX = 4
_MOVED_MAX = 0.02


def cases_by(run: RunTasks) -> coupling.Runner:
    """What the coupling calls, by whoever runs tasks."""

    def run_cases(cases: Sequence[NodeCase], seed: int, model: Model) -> list[NodeResult]:
        return run([Task(case=case, seed=seed, model=model) for case in cases])

    return run_cases


def run_here(tasks: Sequence[Task]) -> list[NodeResult]:
    """One after the other in this process, for tests and small storms."""
    return [simulate_node(task.case, task.seed, task.model) for task in tasks]


def sweep_here(
    scenarios: Sequence[Scenario], calibration: Calibration, waves_us: Sequence[Waves | None] | None = None
) -> list[StormResult]:
    """One after the other in this process."""
    known = waves_us or [None] * len(scenarios)
    return [fluid_storm(scenario, calibration, wave) for scenario, wave in zip(scenarios, known, strict=True)]


def fluid_storm(scenario: Scenario, calibration: Calibration, waves_us: Waves | None = None) -> StormResult:
    """A scenario's storm by the fluid model. ``waves_us``: how long brokers keep clients waiting in a storm much like
    it; from there a few passes are near enough for a comparison."""
    if waves_us is None:
        return merged(scenario, coupling.relax(scenario, calibration, None, 0, "fluid").results)
    cases = node_cases(scenario, calibration, merged=True)
    before_s: float | None = None
    for _ in range(_PASSES_MAX):
        results = coupling.run_here(coupling.with_waves(cases, waves_us), 0, "fluid")
        storm = merged(scenario, results)
        if before_s is not None and storm.t999_s is not None and abs(storm.t999_s - before_s) < _MOVED_MAX * before_s:
            break
        before_s = storm.t999_s
        answer = coupling.broker_waves(scenario, added(results))
        if np.abs(answer - waves_us).max() < 1.0:
            break
        waves_us = answer
    return storm


def merged(scenario: Scenario, results: Sequence[NodeResult]) -> StormResult:
    """All nodes of a scenario as one storm."""
    regions = [region.name for region in scenario.regions]
    expiries = [(each.share, each.expiry_s) for each in scenario.sessions.expiries]
    return merge(results, regions, expiries)
