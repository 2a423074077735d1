"""Simulates brokers and nodes in turn, each as if it knew the other's behaviour, until they agree.

Each node has its share of every broker's door (``models/node_input``), so handshakes need no agreement. What does is
the number of requests that a broker may have in flight: how many clients it lets through follows from how long all
leaders take. Going to and fro between the two is waveform relaxation (Lelarasmee, Ruehli, Sangiovanni-Vincentelli,
1982): whole histories are exchanged, and one pass over the nodes is one job.

The passes that settle these histories are made with the fluid model, whatever model was asked for. In the first of them
each node finds out by itself how long requests take. If that never is what keeps a client waiting, there is nothing to
settle. Otherwise passes go on with what the pass before gave. Then the requested model runs pilots, one node for all
that differ from it only by chance, until it stands still itself; then it runs all nodes, once.

After the second, passes go half of the way only: brokers that hold clients back empty the leaders' queues, which lets
the brokers pass on more, and the whole way each time swings to and fro for ever. The relaxation has converged when a
pass changes neither t99.9 nor the attempts per client: each alone may stand still by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from ..calibration import Calibration
from ..models import conditions
from ..models.histogram import quantile_s
from ..models.node_input import NodeInput, door_rates, node_inputs, with_doors
from ..models.results import Array, NodeResult, added
from ..models.simulate import Model, simulate_node
from ..scenario import Scenario

Runner = Callable[[Sequence[NodeInput], int, Model], list[NodeResult]]
"""Simulates nodes with a seed and a model; one Spark job, or a loop."""

MOVED_MAX = 0.005
"""The passes end when t99.9 and attempts change by less than this share."""
FLUID_PASSES_MAX = 16
MODEL_PASSES_MAX = 6


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over all nodes."""

    model: Model
    t999_s: float | None
    end_s: float
    """t99.9 or, if it is beyond the horizon, the horizon extended by the share of clients that is still out."""
    attempts_per_client: float
    moved: float | None
    """The relative change of the end or of the attempts since the pass before, whichever is larger; None for the
    first."""
    delay_max_s: float
    """The longest that a broker kept a client waiting that it let through."""


class Relaxed(msgspec.Struct, kw_only=True):
    """Nodes that agree with their brokers."""

    inputs: list[NodeInput]
    """With the doors that brokers and nodes agreed on."""
    results: list[NodeResult]
    passes: list[Pass]
    settled: bool
    """False where the passes ran out before the storm stood still."""
    fluid: NodeResult
    """The sum of the last pass of the fluid model."""
    doubt: str | None
    """The condition of the fluid model that this pass breaks (:mod:`metad_spark.models.conditions`)."""


def run_here(inputs: Sequence[NodeInput], seed: int, model: Model) -> list[NodeResult]:
    """Run all nodes in this process, one after the other."""
    return [simulate_node(node_input, seed, model) for node_input in inputs]


def relax(
    scenario: Scenario,
    calibration: Calibration,
    clients: int | None,
    seed: int,
    model: Model,
    run: Runner = run_here,
    on_pass: Callable[[Pass], None] | None = None,
    *,
    alike: bool = False,
) -> Relaxed:
    """A storm by ``model``, brokers and nodes in agreement. ``on_pass`` hears of each pass. With ``alike``, one
    node stands for all that differ from it only by chance. Raises ScenarioError and
    SimulationError."""
    passes: list[Pass] = []

    def note(of: Model, total: NodeResult) -> None:
        end_s = _end_s(total, scenario.horizon_s)
        attempts = total.attempts / total.clients
        moved = None
        if passes:
            before = max(passes[-1].attempts_per_client, 1e-9)  # no attempts if the storm begins after the horizon
            moved = max(abs(end_s / passes[-1].end_s - 1), abs(attempts / before - 1))
        passes.append(
            Pass(
                model=of,
                t999_s=quantile_s(total.storm, 0.999, total.clients),
                end_s=end_s,
                attempts_per_client=attempts,
                moved=moved,
                delay_max_s=total.kept_max_s,
            )
        )
        if on_pass is not None:
            on_pass(passes[-1])

    fluid_inputs = node_inputs(scenario, calibration, clients, merged=True)
    asked = with_requests(scenario, fluid_inputs)
    results: list[NodeResult] = []
    taking_s: Array | None = None
    settled = False
    for _ in range(FLUID_PASSES_MAX):
        results = run(asked, seed, "fluid")
        total = added(results)
        note("fluid", total)
        answer = request_s(scenario, total)
        if taking_s is None and not (total.kept_max_s and are_scarce(scenario, answer)):
            settled = True
            break
        if _still(passes):
            settled = True
            break
        taking_s = answer if taking_s is None else (answer + taking_s) / 2
        asked = with_doors_for(scenario, fluid_inputs, taking_s)
    broke = [conditions.broken(*pair) or conditions.is_chance(*pair) for pair in zip(asked, results, strict=True)]
    doubt = next((why for why in broke if why), None)
    fluid = added(results)
    if model == "fluid":
        return Relaxed(inputs=asked, results=results, passes=passes, settled=settled, fluid=fluid, doubt=doubt)

    inputs = fluid_inputs if alike else node_inputs(scenario, calibration, clients)
    if taking_s is not None:
        settled = False
        for number in range(MODEL_PASSES_MAX):
            pilots = run(with_doors_for(scenario, fluid_inputs, taking_s), seed, model)
            note(model, added(pilots))
            if number and _still(passes):
                settled = True
                break
            taking_s = (taking_s + request_s(scenario, added(pilots))) / 2
        inputs = with_doors_for(scenario, inputs, taking_s)
    results = run(inputs, seed, model)
    note(model, added(results))
    return Relaxed(inputs=inputs, results=results, passes=passes, settled=settled, fluid=fluid, doubt=doubt)


def _end_s(total: NodeResult, horizon_s: float) -> float:
    t999_s = quantile_s(total.storm, 0.999, total.clients)
    return t999_s if t999_s is not None else horizon_s * (2.0 - total.restored / total.clients)


def _still(passes: Sequence[Pass]) -> bool:
    """Whether the last pass changed nothing."""
    moved = passes[-1].moved
    return moved is not None and moved < MOVED_MAX


def _in_flight(scenario: Scenario, inputs: Sequence[NodeInput]) -> list[Array]:
    """Items that each region's brokers may have under way for the clients of each of all nodes."""
    brokers = scenario.brokers
    total = sum(node_input.clients * node_input.copies for node_input in inputs)
    items = brokers.concurrency * brokers.batch_items
    return [np.array(each.brokers, np.float64) * (items * each.clients / total) for each in inputs]


def with_requests(scenario: Scenario, inputs: Sequence[NodeInput]) -> list[NodeInput]:
    """Nodes, for the fluid model, that have their share of what brokers may have in flight to themselves."""
    return [
        msgspec.structs.replace(node_input, in_flight_items=tuple(items.tolist()))
        for node_input, items in zip(inputs, _in_flight(scenario, inputs), strict=True)
    ]


def with_doors_for(scenario: Scenario, inputs: Sequence[NodeInput], taking_s: Array) -> list[NodeInput]:
    """Nodes whose brokers let through what they can, given how long requests take that are sent at each point."""
    total = sum(node_input.clients * node_input.copies for node_input in inputs)
    found = []
    for node_input, items in zip(inputs, _in_flight(scenario, inputs), strict=True):
        rates = items[:, None] / taking_s[None, :]
        if scenario.brokers.connects_per_s:
            rates = np.minimum(rates, door_rates(scenario, node_input, round(total))[:, None])
        found.append(with_doors(node_input, rates))
    return found


def request_s(scenario: Scenario, total: NodeResult) -> Array:
    """How long a request takes that is sent at each point, given the sum of all nodes' results. A broker that is
    allowed so many requests at a time can do no more of them in a second than that number over this time."""
    some = total.held > 0.5
    held_s = np.divide(total.held_s, total.held, out=np.zeros_like(total.held_s), where=some)
    # If nothing is let in, requests take as long as those before: they are not free.
    last = np.maximum.accumulate(np.where(some, np.arange(len(held_s)), 0))
    return np.asarray(np.maximum(held_s[last] + 2e-3 * scenario.brokers.latency_ms, 1e-6))


def are_scarce(scenario: Scenario, taking_s: Array) -> bool:
    """Whether requests in flight ever keep a broker from what it could do otherwise."""
    brokers = scenario.brokers
    per_s = brokers.concurrency * brokers.batch_items / float(taking_s.max())
    return not brokers.connects_per_s or per_s < brokers.connects_per_s
