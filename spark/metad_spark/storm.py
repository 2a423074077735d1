"""Storms of one scenario that differ in their seed, node by node, by whoever runs nodes."""

from __future__ import annotations

from collections.abc import Sequence

from .calibration import Calibration
from .cases import node_cases
from .results import StormResult, merge
from .runner import Runner, Task
from .scenario import Scenario
from .simulate import Model


def simulate_storms(
    scenario: Scenario, calibration: Calibration, *, model: Model, seeds: Sequence[int], run: Runner
) -> list[StormResult]:
    """A result for each seed."""
    cases = node_cases(scenario, calibration, merged=model == "fluid")
    results = run([Task(case=case, seed=seed, model=model) for seed in seeds for case in cases])
    regions = [region.name for region in scenario.regions]
    expiries = [(each.share, each.expiry_s) for each in scenario.sessions.expiries]
    size = len(cases)
    return [merge(results[at * size : (at + 1) * size], regions, expiries) for at in range(len(seeds))]


def middle(storms: Sequence[StormResult]) -> StormResult:
    """The one whose 99.9 % came back neither sooner nor later than most; of an even number the later of the two."""
    return sorted(storms, key=lambda storm: float("inf") if storm.t999_s is None else storm.t999_s)[len(storms) // 2]
