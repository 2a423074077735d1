"""Storms of one scenario with different seeds: brokers and nodes in agreement, on any runner of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..calibration import Calibration
from ..models.node_input import node_inputs
from ..models.results import NodeResult, StormResult
from ..scenario import Scenario
from . import coupling
from .coupling import Pass
from .runner import RunTasks, Task, inputs_by, merged


@dataclass(frozen=True, kw_only=True)
class Storms:
    """The simulated storms."""

    by_seed: list[StormResult]
    nodes: list[list[NodeResult]]
    """The nodes of each storm, at the scale at which they were simulated."""
    passes: list[Pass]
    """The passes over the nodes until they and the brokers agreed, with the first seed."""
    settled: bool
    """Whether they agreed."""
    delay_max_s: float
    """The longest that a broker kept a client waiting."""

    @property
    def faults(self) -> list[str]:
        """Why the result must not be relied on, in words."""
        return faults(self.settled)

    @property
    def middle(self) -> StormResult:
        """The storm with the median t99.9; of an even number the later of the two in the middle."""
        return sorted(self.by_seed, key=_end_s)[len(self.by_seed) // 2]


def faults(settled: bool) -> list[str]:
    """Why a result must not be relied on, in words."""
    return [] if settled else ["Brokers and nodes did not come to agree: the result is one of several."]


def simulate_storms(
    scenario: Scenario, calibration: Calibration, *, seeds: Sequence[int], run: RunTasks, alike: bool = False
) -> Storms:
    """A storm for each seed. Brokers are settled with the first; the others, which differ from it only by chance, meet
    the same brokers, all in one job. With ``alike``, one node stands for all that differ from it only by chance. Raises
    TooMany where a node has more clients than can be simulated."""
    relaxed = coupling.relax(scenario, calibration, None, seeds[0], inputs_by(run), alike=alike)
    nodes = [relaxed.results]
    if len(seeds) > 1:
        results = run([Task(input=node_input, seed=seed) for seed in seeds[1:] for node_input in relaxed.inputs])
        size = len(relaxed.inputs)
        nodes += [results[at : at + size] for at in range(0, len(results), size)]
    return Storms(
        by_seed=[merged(scenario, relaxed.inputs, each) for each in nodes],
        nodes=nodes,
        passes=relaxed.passes,
        settled=relaxed.settled,
        delay_max_s=relaxed.passes[-1].delay_max_s,
    )


def clients_by_region(scenario: Scenario, calibration: Calibration) -> list[int]:
    """The number of clients in each region of the storm, in the scenario's order."""
    counts = [0] * len(scenario.regions)
    for node_input in node_inputs(scenario, calibration):
        for kind in node_input.kinds:
            counts[kind.region] += kind.clients
    return counts


def _end_s(storm: StormResult) -> float:
    return float("inf") if storm.t999_s is None else storm.t999_s
