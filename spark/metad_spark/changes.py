"""Possible changes of a cluster before a storm, one at a time and together, and the sizes at which it would collapse.

Pure: makes scenarios. Each is answered within seconds, at a reduced scale, so all of them are one job.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from metad_wire.cluster import SLOTS

from .calibration import Calibration
from .scenario import ROUND_TRIPS, Scenario, Sdk, Transports
from .wording import seconds, short

QUEUE_FACTORS = (0.25, 1.0, 4.0, 16.0, 64.0)
NODE_FACTORS = (0.25, 0.5, 1.0, 2.0)
"""Multiples of the scenario's own bound and nodes, for the map: from far too few to more than enough."""
_RETURNS_OF_CAPACITY = 0.9
"""Share of the capacity for return slots: the rest is for clients that come without a slot."""
_QUEUE_MARGIN = 0.8
"""Share of the time that a client's patience leaves for the queue."""


_QUEUE_NEAR = 0.25
"""A bound this near to the recommended one is not worth a change."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A scenario that differs from the user's."""

    name: str
    price: str
    """Its cost for the operator of the cluster."""
    scenario: Scenario


def serves(scenario: Scenario, calibration: Calibration) -> float:
    """Items per second that the whole cluster serves at its best."""
    cluster = scenario.cluster
    whole, more = divmod(cluster.groups, cluster.nodes)
    weight = scenario.sessions.item_weight()
    return sum(
        nodes * calibration.items_per_s(groups, cluster.batch_items, weight)
        for groups, nodes in ((whole + 1, more), (whole, cluster.nodes - more))
        if nodes
    )


def queue_s(scenario: Scenario, calibration: Calibration) -> float:
    """Seconds that the last client in a full queue waits; infinite without a bound."""
    if not scenario.cluster.queue_items:
        return math.inf
    return scenario.cluster.queue_items * scenario.cluster.groups / serves(scenario, calibration)


def patience_s(scenario: Scenario) -> float:
    """The part of a client's timeout that is left for the queue on the longest way: a later answer is useless."""
    rtt_s = max(region.rtt_ms for region in scenario.regions) / 1000
    trips = max(n for n, share in zip(ROUND_TRIPS, scenario.transports.shares(), strict=True) if share)
    return scenario.client_timeout_s - rtt_s * trips


def wise_queue_items(scenario: Scenario, calibration: Calibration) -> int:
    """The bound of a group's queue at which nobody waits in vain."""
    per_group = serves(scenario, calibration) / scenario.cluster.groups
    return max(scenario.cluster.batch_items, round(_QUEUE_MARGIN * max(patience_s(scenario), 0.0) * per_group))


def changes(scenario: Scenario, calibration: Calibration) -> list[Change]:
    """The changes worth trying, the scenario itself first, without those that would change nothing. No node dies: all
    are alike then, and one stands for all."""
    scenario = replace(scenario, leader_changes=())
    cluster = scenario.cluster
    found = [Change(name="as it is", price="", scenario=scenario)]

    def offer(name: str, price: str, changed: Scenario) -> None:
        if changed != scenario:
            found.append(Change(name=name, price=price, scenario=changed))

    wise = wise_queue_items(scenario, calibration)
    bounded = scenario
    if not cluster.queue_items or abs(cluster.queue_items / wise - 1) > _QUEUE_NEAR:
        bounded = replace(scenario, cluster=replace(cluster, queue_items=wise))
        offer(
            f"room for {short(wise)} items in a group's queue, and no more",
            "metad bounds it by time: limits.queue_ms",
            bounded,
        )
    told = replace(scenario, returns=replace(scenario.returns, of_capacity=_RETURNS_OF_CAPACITY))
    offer("tell the refused when to come back", "clients must heed it", told)
    wide = replace(scenario, cluster=replace(cluster, batch_items=cluster.batch_items * 4))
    offer(f"entries of {cluster.batch_items * 4:,} items", "latency on a calm day", wide)
    nodes = max(cluster.nodes, min(SLOTS, cluster.nodes * 2))
    groups = max(nodes, min(SLOTS, cluster.groups * 2))
    more = replace(scenario, cluster=replace(cluster, nodes=nodes, groups=groups))
    offer(f"{nodes} nodes, {groups} groups", f"{nodes - cluster.nodes} nodes more", more)
    doors = replace(scenario, brokers=replace(scenario.brokers, count=scenario.brokers.count * 2))
    offer(f"{scenario.brokers.count * 2} brokers", f"{scenario.brokers.count} brokers more", doors)
    quick = replace(scenario, transports=Transports(tcp_tls=0.0, quic=0.0, quic_0rtt=1.0))
    offer("QUIC with 0-RTT for every client", "new SDKs", quick)
    polite = (Sdk(name="full jitter 1-60 s", share=1.0, family="full", base_s=1.0, cap_s=60.0),)
    offer("full jitter, 1 to 60 s, in every client", "new SDKs", replace(scenario, sdks=polite))
    both = replace(told, cluster=replace(more.cluster, queue_items=bounded.cluster.queue_items))
    offer(
        f"{nodes} nodes, and tell the refused when", f"{nodes - cluster.nodes} nodes more; clients must heed it", both
    )
    return found


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Scenarios by bound of the queue (rows) and number of nodes (columns)."""

    rows: Sequence[str]
    columns: Sequence[str]
    scenarios: Sequence[Sequence[Scenario]]
    here: tuple[int, int]
    """Row and column of the scenario itself."""


def grid(scenario: Scenario, calibration: Calibration) -> Grid:
    """A grid around the scenario, from a cluster and a queue that are far too small to ample ones; no node dies."""
    scenario = replace(scenario, leader_changes=())
    cluster = scenario.cluster
    base = cluster.queue_items or wise_queue_items(scenario, calibration)
    bounds = [max(1, round(base * factor)) for factor in QUEUE_FACTORS]
    here_row = QUEUE_FACTORS.index(1.0)
    if not cluster.queue_items:  # the scenario itself is in the last row, which has no bound
        bounds[-1] = 0
        here_row = len(bounds) - 1
    most = max(SLOTS, cluster.nodes)
    sizes = sorted({min(most, max(1, round(cluster.nodes * factor))) for factor in NODE_FACTORS})
    per_node = cluster.groups / cluster.nodes
    table = [
        [
            replace(
                scenario,
                cluster=replace(
                    cluster,
                    nodes=nodes,
                    groups=max(nodes, min(max(SLOTS, cluster.groups), round(per_node * nodes))),
                    queue_items=bound,
                ),
            )
            for nodes in sizes
        ]
        for bound in bounds
    ]
    per_group = serves(scenario, calibration) / cluster.groups
    rows = [f"{short(bound)} items, {seconds(bound / per_group)}" if bound else "no bound" for bound in bounds]
    columns = [f"{nodes} nodes" if nodes > 1 else "1 node" for nodes in sizes]
    return Grid(rows=rows, columns=columns, scenarios=table, here=(here_row, sizes.index(cluster.nodes)))
