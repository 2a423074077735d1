"""A storm at a reduced scale: fewer clients, and all capacities smaller by the same factor, so that all times stay.

Clients, queues, entries, requests, handshakes and what a second of a node's work is worth go by one factor. What is
left of the difference is that a turn with fewer items in it is a coarser measure: 0.1 % of t99.9 and 1 % of attempts at
a tenth of a hundred million.

Comparisons of many settings are storms at a reduced scale.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from msgspec.structs import replace

from .brokers.runner import RunTasks, run_here
from .brokers.storm import Storms, simulate_storms
from .calibration import Calibration
from .errors import TooMany, UsageError
from .models.results import StormResult
from .scenario import Scenario

COMPARED_CLIENTS_MAX = 300_000
"""Of a storm that is simulated for a comparison."""
STAND_IN_CLIENTS_MAX = 10_000_000
"""Of a storm that is simulated for one that is too large."""


def compared(scenario: Scenario, calibration: Calibration) -> StormResult:
    """A scenario's storm, near enough for a comparison, at a reduced scale. Counts are those of the whole storm."""
    smaller, costs, scale = reduced(scenario, calibration, COMPARED_CLIENTS_MAX)
    found = simulate_storms(smaller, costs, seeds=[0], run=run_here, alike=True).middle
    return _enlarged(found, scenario, scale)


def stand_in(scenario: Scenario, calibration: Calibration, seeds: Sequence[int], run: RunTasks) -> tuple[Storms, float]:
    """The storms of a scenario whose nodes have too many clients, at a reduced scale, and the scale. One node stands
    for all that differ from it only by chance. Counts are those of the whole storm."""
    smaller, costs, scale = reduced(scenario, calibration, STAND_IN_CLIENTS_MAX)
    found = simulate_storms(smaller, costs, seeds=seeds, run=run, alike=True)
    whole = [_enlarged(storm, scenario, scale) for storm in found.by_seed]
    return dataclasses.replace(found, by_seed=whole), scale


def answered(
    scenario: Scenario, calibration: Calibration, *, seeds: Sequence[int], run: RunTasks
) -> tuple[Storms, float]:
    """The storms, or those that stand in for them, and their scale. Raises SimulationError."""
    try:
        return simulate_storms(scenario, calibration, seeds=seeds, run=run), 1.0
    except TooMany:
        return stand_in(scenario, calibration, seeds, run)


def sweep_here(scenarios: Sequence[Scenario], calibration: Calibration) -> list[StormResult]:
    """One after the other in this process."""
    return [compared(scenario, calibration) for scenario in scenarios]


def _enlarged(storm: StormResult, scenario: Scenario, scale: float) -> StormResult:
    """The counts of a storm at a reduced scale as those of the whole one."""
    counts = ("restored", "rejected", "queue_max", "timeouts", "wasted", "expired")
    rows = ("rejected_by_s", "served_by_s", "served_fine", "queue_by_s", "capacity_by_s")
    tables = ("restored_by_s", "attempts_by_s", "restored_fine", "attempts_fine")
    return replace(
        storm,
        clients=scenario.clients,
        **{key: round(getattr(storm, key) / scale) for key in counts},
        **{key: [value / scale for value in getattr(storm, key)] for key in rows},
        **{key: [[value / scale for value in row] for row in getattr(storm, key)] for key in tables},
    )


def scaled(scenario: Scenario, scale: float) -> Scenario:
    """The storm with clients, queues and brokers' handshakes scaled, and every time unchanged. The cluster's capacity
    must be scaled too, which is left to the user of the replay. Raises UsageError."""
    if not 0 < scale <= 1:
        raise UsageError(f"--scale must be over 0 and at most 1, not {scale:g}")
    cluster, brokers = scenario.cluster, scenario.brokers
    queue = max(1, round(cluster.queue_items * scale)) if cluster.queue_items else 0
    return replace(
        scenario,
        clients=max(1, round(scenario.clients * scale)),
        cluster=replace(cluster, queue_items=queue),
        brokers=replace(brokers, connects_per_s=brokers.connects_per_s * scale),
    )


def reduced(scenario: Scenario, calibration: Calibration, clients_max: int) -> tuple[Scenario, Calibration, float]:
    """The storm with about ``clients_max`` clients, and the factor; the unchanged storm if it has no more than that, or
    entries are too small to be divided. A full turn takes as long as before, because the entries can be divided by the
    factor, so the storm may be a little larger than requested."""
    items = scenario.cluster.batch_items
    fewer = -(-items * min(clients_max, scenario.clients) // scenario.clients)
    scale = fewer / items
    if scale * scenario.clients < scenario.cluster.groups:
        return scenario, calibration, 1.0
    smaller = scaled(scenario, scale)
    return (
        replace(
            smaller,
            cluster=replace(smaller.cluster, batch_items=fewer),
            brokers=replace(smaller.brokers, batch_items=max(1, round(smaller.brokers.batch_items * scale))),
        ),
        replace(calibration, item_s=calibration.item_s / scale),
        scale,
    )
