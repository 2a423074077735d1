"""Simulates brokers and nodes in turn, each as if it knew the other's behaviour, until they agree.

Each node has its share of every broker's door (``models/node_input``), so handshakes need no agreement. What does is
the number of requests that a broker may have in flight: how many clients it lets through follows from how long all
leaders take. Going to and fro between the two is waveform relaxation (Lelarasmee, Ruehli, Sangiovanni-Vincentelli,
1982): whole histories are exchanged, and one pass over the nodes is one job.

A pass runs pilots: one node stands for all that differ from it only by chance. In the first of them requests in flight
are not bounded. If never more are in flight than brokers may have, there is nothing to settle. Otherwise passes go on
with what the pass before gave, until they stand still; then all nodes run, once.

After the second, passes go half of the way only: brokers that hold clients back empty the leaders' queues, which lets
the brokers pass on more, and the whole way each time swings to and fro for ever. The relaxation has converged when a
pass changes neither t99.9 nor the attempts per client: each alone may stand still by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from ..calibration import Calibration
from ..models.histogram import quantile_s
from ..models.node_input import NodeInput, brokers_of, door_rates, node_inputs, with_doors
from ..models.results import Array, NodeResult, added
from ..models.simulate import MODEL, simulate_node
from ..scenario import Scenario

Runner = Callable[[Sequence[NodeInput], int], list[NodeResult]]
"""Simulates nodes with a seed; one Spark job, or a loop."""

MOVED_MAX = 0.005
"""The passes end when t99.9 and attempts change by less than this share."""
PASSES_MAX = 20


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over all nodes."""

    model: str
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


def run_here(inputs: Sequence[NodeInput], seed: int) -> list[NodeResult]:
    """Run all nodes in this process, one after the other."""
    return [simulate_node(node_input, seed) for node_input in inputs]


def relax(
    scenario: Scenario,
    calibration: Calibration,
    clients: int | None,
    seed: int,
    run: Runner = run_here,
    *,
    alike: bool = False,
) -> Relaxed:
    """A storm, brokers and nodes in agreement. With ``alike``, one node stands for all that differ from it only by
    chance. Raises ScenarioError and SimulationError."""
    passes: list[Pass] = []

    def note(results: Sequence[NodeResult]) -> NodeResult:
        total = added(results)
        end_s = _end_s(total, scenario.horizon_s)
        attempts = total.attempts / total.clients
        moved = None
        if passes:
            before = max(passes[-1].attempts_per_client, 1e-9)  # no attempts if the storm begins after the horizon
            moved = max(abs(end_s / passes[-1].end_s - 1), abs(attempts / before - 1))
        passes.append(
            Pass(
                model=MODEL,
                t999_s=quantile_s(total.storm, 0.999, total.clients),
                end_s=end_s,
                attempts_per_client=attempts,
                moved=moved,
                delay_max_s=total.kept_max_s,
            )
        )
        return total

    pilots = asked = node_inputs(scenario, calibration, clients, merged=True)
    taking_s: Array | None = None
    settled = False
    for number in range(PASSES_MAX):
        results = run(asked, seed)
        total = note(results)
        settled = not are_scarce(scenario, total) if taking_s is None else _still(passes)
        if settled or number + 1 == PASSES_MAX:
            break
        answer = request_s(scenario, total)
        taking_s = answer if taking_s is None else (answer + taking_s) / 2
        asked = with_doors_for(scenario, pilots, taking_s)
    if alike:
        return Relaxed(inputs=asked, results=results, passes=passes, settled=settled)
    inputs = node_inputs(scenario, calibration, clients)
    if taking_s is not None:
        inputs = with_doors_for(scenario, inputs, taking_s)
    if inputs != asked:
        results = run(inputs, seed)
        note(results)
    return Relaxed(inputs=inputs, results=results, passes=passes, settled=settled)


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


def are_scarce(scenario: Scenario, total: NodeResult) -> bool:
    """Whether requests in flight ever keep a broker from what it could do otherwise, given the sum of all nodes'
    results without a bound of them."""
    brokers = scenario.brokers
    may = brokers.concurrency * brokers.batch_items
    if brokers.connects_per_s:
        return may / float(request_s(scenario, total).max()) < brokers.connects_per_s
    each_s = np.divide(total.held_s, total.held, out=np.zeros_like(total.held_s), where=total.held > 0.5)
    points = (each_s + 2e-3 * brokers.latency_ms) / total.wave_s
    # A request is in flight for so many points, or for a part of its own.
    begun = total.held * np.minimum(points, 1.0)
    ends = np.minimum(np.arange(len(begun)) + np.maximum(np.ceil(points), 1), len(begun)).astype(np.int64)
    in_flight = np.cumsum(begun) - np.cumsum(np.bincount(ends, begun, len(begun) + 1))[:-1]
    return float(in_flight.max()) > may * sum(brokers_of(scenario))
