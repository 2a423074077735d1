"""Brokers and nodes, each simulated as if it knew what the other does, in turn, until they agree.

Nodes share nothing but the brokers, so they are simulated apart (``models/simulate``), given for how long
each region's brokers keep a client waiting at each time. How long that is follows from what all nodes say about their
clients' knocks and how long they held requests. Going to and fro between the two is waveform relaxation (Lelarasmee,
Ruehli, Sangiovanni-Vincentelli, 1982): whole histories are exchanged, and one pass over the nodes is one job.

The passes that settle the brokers' waves are made with the fluid model, whatever model was asked for: it costs little
and says the same within 2 %. In the first of them each node has its share of the brokers to itself and finds out what
they do as it goes, which is the answer already where all nodes are alike; what follows tells how far they are not. The
model that was asked for goes on from there with pilots, one node for all that differ from it only by chance, until it
stands still itself; then it runs all nodes, once.

After the second, passes go half of the way only. Brokers that hold clients back empty the leaders' queues, which lets
the brokers pass on more: taken at its word each time, that swings to and fro for ever. And still is what neither t99.9
nor attempts move: each alone may stand where it was by chance while the brokers do something else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from ..calibration import Calibration
from ..models.histogram import quantile_s
from ..models.node_input import NodeInput, apportioned, node_inputs
from ..models.results import Array, NodeResult, added
from ..models.simulate import Model, simulate_node
from ..scenario import Scenario

Runner = Callable[[Sequence[NodeInput], int, Model], list[NodeResult]]
"""Simulates nodes with a seed and a model; one Spark job, or a loop."""

MOVED_MAX = 0.005
"""Passes end when t99.9 and attempts move by less than this share of themselves."""
FLUID_PASSES_MAX = 16
MODEL_PASSES_MAX = 6


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over all nodes."""

    model: Model
    t999_s: float | None
    end_s: float
    """t99.9, or, where it is beyond the horizon, the horizon and the share of it that is still out."""
    attempts_per_client: float
    moved: float | None
    """The share of itself by which the end or the attempts differ from the pass before, whichever is more; None for the
    first."""
    delay_max_s: float
    """The longest that a broker kept a client waiting."""


class Relaxed(msgspec.Struct, kw_only=True):
    """Nodes that agree with their brokers."""

    inputs: list[NodeInput]
    """With the brokers' waves in them."""
    results: list[NodeResult]
    passes: list[Pass]
    settled: bool
    """False where the passes ran out before the storm stood still."""


def run_here(inputs: Sequence[NodeInput], seed: int, model: Model) -> list[NodeResult]:
    """All nodes in this process, one after the other."""
    return [simulate_node(node_input, seed, model) for node_input in inputs]


def relax(
    scenario: Scenario,
    calibration: Calibration,
    clients: int | None,
    seed: int,
    model: Model,
    run: Runner = run_here,
    on_pass: Callable[[Pass], None] | None = None,
) -> Relaxed:
    """A storm by ``model``, brokers and nodes in agreement. ``on_pass`` hears of each pass. Raises ScenarioError and
    SimulationError."""
    passes: list[Pass] = []

    def note(of: Model, total: NodeResult, delays: Array) -> None:
        end_s = _end_s(total, scenario.horizon_s)
        attempts = total.attempts / total.clients
        moved = None
        if passes:
            before = max(passes[-1].attempts_per_client, 1e-9)  # none where the storm begins after the horizon
            moved = max(abs(end_s / passes[-1].end_s - 1), abs(attempts / before - 1))
        passes.append(
            Pass(
                model=of,
                t999_s=quantile_s(total.storm, 0.999, total.clients),
                end_s=end_s,
                attempts_per_client=attempts,
                moved=moved,
                delay_max_s=float(delays.max()) * 1e-6 if delays.size else 0.0,
            )
        )
        if on_pass is not None:
            on_pass(passes[-1])

    fluid_inputs = node_inputs(scenario, calibration, clients, merged=True)
    waves = np.zeros((len(scenario.regions), fluid_inputs[0].waves))
    results: list[NodeResult] = []
    settled = False
    for number in range(FLUID_PASSES_MAX):
        asked = with_waves(fluid_inputs, waves) if number else with_doors(scenario, fluid_inputs)
        results = run(asked, seed, "fluid")
        note("fluid", added(results), waves)
        answer = broker_waves(scenario, added(results))
        if np.abs(answer - waves).max() < 1.0 or _still(passes):
            settled = True
            break
        waves = (answer + waves) / 2 if number else answer
    if model == "fluid":
        return Relaxed(inputs=with_waves(fluid_inputs, waves), results=results, passes=passes, settled=settled)

    settled = False
    for number in range(MODEL_PASSES_MAX):
        pilots = run(with_waves(fluid_inputs, waves), seed, model)
        stand_for = [node_input.copies for node_input in fluid_inputs]
        pilots = [msgspec.structs.replace(one, copies=copies) for one, copies in zip(pilots, stand_for, strict=True)]
        note(model, added(pilots), waves)
        answer = broker_waves(scenario, added(pilots))
        if np.abs(answer - waves).max() < 1.0 or (number and _still(passes)):
            settled = True
            break
        waves = (waves + answer) / 2
    inputs = node_inputs(scenario, calibration, clients)
    results = pilots
    if max(stand_for) > 1:
        results = run(with_waves(inputs, waves), seed, model)
        note(model, added(results), waves)
    return Relaxed(inputs=with_waves(inputs, waves), results=results, passes=passes, settled=settled)


def _end_s(total: NodeResult, horizon_s: float) -> float:
    t999_s = quantile_s(total.storm, 0.999, total.clients)
    return t999_s if t999_s is not None else horizon_s * (2.0 - total.restored / total.clients)


def _still(passes: Sequence[Pass]) -> bool:
    """Whether the last pass moved nothing."""
    moved = passes[-1].moved
    return moved is not None and moved < MOVED_MAX


def with_waves(inputs: Sequence[NodeInput], waves_us: Array) -> list[NodeInput]:
    """Cases whose brokers keep clients waiting like that (region, point), in microseconds."""
    if not waves_us.size or waves_us.max() < 1.0:
        return [msgspec.structs.replace(node_input, delays_us=()) for node_input in inputs]
    delays = tuple(tuple(row) for row in np.rint(waves_us).astype(np.int64).tolist())
    return [msgspec.structs.replace(node_input, delays_us=delays) for node_input in inputs]


def with_doors(scenario: Scenario, inputs: Sequence[NodeInput]) -> list[NodeInput]:
    """Cases, of the fluid model, that have their share of each region's brokers to themselves."""
    brokers = scenario.brokers
    per_s = brokers.connects_per_s or float("inf")
    in_flight = float(brokers.concurrency * brokers.batch_items)
    total = sum(node_input.clients * node_input.copies for node_input in inputs)
    found = []
    for node_input in inputs:
        shares = [count * node_input.clients / total for count in node_input.brokers]
        doors_per_s, items = tuple(per_s * share for share in shares), tuple(in_flight * share for share in shares)
        found.append(msgspec.structs.replace(node_input, doors_per_s=doors_per_s, in_flight_items=items, delays_us=()))
    return found


def broker_waves(scenario: Scenario, total: NodeResult) -> Array:
    """How long brokers keep clients waiting, by region and point, in microseconds, given the sum of all nodes' results.

    A region's brokers are one fluid queue. They serve no more handshakes than they can do, and no more items than fit
    in the requests that they may have in flight, each of which takes as long as the leaders take. Nobody waits longer
    than clients do. What stands at a point is of who knocks when it begins.
    """
    brokers = scenario.brokers
    counts = np.array([max(1, count) for count in apportioned(brokers.count, [r.share for r in scenario.regions])])
    some = total.held > 0.5
    held_s = np.divide(total.held_s, total.held, out=np.zeros_like(total.held_s), where=some)
    # Where nothing is let in, requests take as long as those before: they are not free.
    last = np.maximum.accumulate(np.where(some, np.arange(len(held_s)), 0))
    taking_s = held_s[last] + 2e-3 * brokers.latency_ms
    by_requests = brokers.concurrency * brokers.batch_items / np.maximum(taking_s, 1e-6)
    by_handshakes = brokers.connects_per_s or np.inf
    rate = counts[:, None] * np.minimum(by_requests, by_handshakes)[None, :]
    wave_s = total.wave_s
    capacity = rate * wave_s
    regions, points = total.knocks.shape
    waiting = np.zeros((regions, points))
    queue = np.zeros(regions)
    longest = rate * scenario.client_timeout_s
    for point in range(points):
        waiting[:, point] = queue
        queue = np.clip(queue + total.knocks[:, point] - capacity[:, point], 0.0, longest[:, point])
    # A client that comes when so much waits is served when so much has been served from then on.
    edges = np.arange(points + 1) * wave_s
    delays = np.zeros((regions, points))
    for region in range(regions):
        if not waiting[region].any():
            continue
        served = np.concatenate(([0.0], np.cumsum(capacity[region])))
        wanted = served[:-1] + waiting[region]
        until = np.interp(wanted, served, edges)
        beyond = wanted > served[-1]
        until[beyond] = edges[-1] + (wanted[beyond] - served[-1]) / rate[region, -1]
        delays[region] = np.clip(until - edges[:-1], 0.0, scenario.client_timeout_s)
    return np.asarray(delays * 1e6)
