"""Storms of one scenario with different seeds: brokers and nodes in agreement, on any runner of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..calibration import Calibration
from ..errors import DoesNotHold
from ..models import conditions
from ..models.histogram import quantile_s
from ..models.node_input import node_inputs
from ..models.results import NodeResult, StormResult, added
from ..models.simulate import Model
from ..scenario import Scenario
from . import coupling
from .coupling import Pass
from .runner import RunTasks, Task, inputs_by, merged

INSTEAD_MAX = 20_000_000
"""Clients that the vector model simulates, though the fluid one was asked for: a minute or two of work."""


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
    model: Model
    """By which they were simulated: not the fluid one where its conditions do not hold, though it was asked for."""
    doubt: str | None
    """Which of its conditions does not hold."""
    disagreement: str | None
    """How the fluid model and the other disagree though its conditions hold."""

    @property
    def faults(self) -> list[str]:
        """Why the result must not be relied on, in words."""
        return faults(self.settled, self.disagreement)

    @property
    def middle(self) -> StormResult:
        """The storm with the median t99.9; of an even number the later of the two in the middle."""
        return sorted(self.by_seed, key=_end_s)[len(self.by_seed) // 2]


def faults(settled: bool, disagreement: str | None) -> list[str]:
    """Why a result must not be relied on, in words."""
    found = [] if settled else ["Brokers and nodes did not come to agree: the result is one of several."]
    return found + ([f"The models disagree: {disagreement}."] if disagreement else [])


def simulate_storms(
    scenario: Scenario,
    calibration: Calibration,
    *,
    model: Model,
    seeds: Sequence[int],
    run: RunTasks,
    alike: bool = False,
) -> Storms:
    """A storm for each seed. Brokers are settled with the first; the others, which differ from it only by chance, meet
    the same brokers, all in one job. Where the fluid model's conditions do not hold, the vector model answers in its
    place. Raises DoesNotHold where that would be too many clients. With ``alike``, one node stands
    for all that differ from it only by chance."""
    relaxed = coupling.relax(scenario, calibration, None, seeds[0], model, inputs_by(run), alike=alike)
    if model == "fluid" and relaxed.doubt is not None:
        if scenario.clients > INSTEAD_MAX:
            raise DoesNotHold(f"the fluid model does not hold here, because {relaxed.doubt}: take the vector model")
        model = "vector"
        relaxed = coupling.relax(scenario, calibration, None, seeds[0], model, inputs_by(run), alike=alike)
    nodes = [relaxed.results]
    if len(seeds) > 1:
        results = run(
            [Task(input=node_input, seed=seed, model=model) for seed in seeds[1:] for node_input in relaxed.inputs]
        )
        size = len(relaxed.inputs)
        nodes += [results[at : at + size] for at in range(0, len(results), size)]
    storms = [merged(scenario, relaxed.inputs, each) for each in nodes]
    delay_max_s = relaxed.passes[-1].delay_max_s
    disagreement = None
    if model != "fluid" and relaxed.doubt is None:
        disagreement = conditions.disagreement(_said(relaxed.fluid), _said(added(relaxed.results)))
    return Storms(
        by_seed=storms,
        nodes=nodes,
        passes=relaxed.passes,
        settled=bool(relaxed.settled),
        delay_max_s=delay_max_s,
        model=model,
        doubt=relaxed.doubt,
        disagreement=disagreement,
    )


def _said(total: NodeResult) -> tuple[float | None, float, float]:
    t999_s = quantile_s(total.storm, 0.999, total.clients)
    return t999_s, total.restored / total.clients, total.attempts / total.clients


def clients_by_region(scenario: Scenario, calibration: Calibration) -> list[int]:
    """The number of clients in each region of the storm, in the scenario's order."""
    counts = [0] * len(scenario.regions)
    for node_input in node_inputs(scenario, calibration):
        for kind in node_input.kinds:
            counts[kind.region] += kind.clients
    return counts


def _end_s(storm: StormResult) -> float:
    return float("inf") if storm.t999_s is None else storm.t999_s
