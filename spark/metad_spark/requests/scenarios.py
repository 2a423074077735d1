"""A scenario as a storm of the model of requests: the same clients, network, brokers and cluster.

The model's own storms share the cores of one machine. Those of a scenario do not: each node, and each broker, is a
process with a core to itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from ..calibration import Calibration
from ..models.node_input import node_inputs, shares
from ..models.population import firsts_us
from ..scenario import ROUND_TRIPS, TRANSPORTS, Brokers, Cluster, Scenario
from .costs import Costs
from .storm import Kind, Population, Settings, Storm, storm_from

_LINGER_MS_MIN: Final = 1.0
"""A tick of the model's brokers, where the scenario's do not wait for further items."""


def unknown(scenario: Scenario) -> Iterator[str]:
    """What the scenario has and the model does not know, in words."""
    if any(region.loss for region in scenario.regions):
        yield "lost packets"
    if scenario.brokers.connects_per_s:
        yield "the brokers' handshakes"
    if scenario.retry_budget is not None:
        yield "clients' retry budgets"
    if scenario.leader_changes:
        yield "leader changes at a time"
    if scenario.cluster.clients:
        yield "uneven groups"


def storm_of_scenario(scenario: Scenario, seed: int) -> Storm:
    """The scenario's storm, without what :func:`unknown` names. A group's queue is bounded by time, as the server's
    is. Raises ScenarioError if the model cannot hold it."""
    brokers = scenario.brokers.count
    settings = Settings(
        population=Population(kinds=tuple(_kinds(scenario)), timeout_s=scenario.client_timeout_s),
        sessions=scenario.clients,
        brokers=brokers,
        processes=brokers,
        policy="return-slot" if scenario.returns.of_capacity else "population",
        batch=min(scenario.brokers.batch_items, 1_000),
        linger_ms=max(scenario.brokers.linger_ms, _LINGER_MS_MIN),
        limit_s=scenario.horizon_s,
        background=0.0,
        seed=seed,
    )
    # When clients learn of the disconnect depends on nothing else, so one node has them all.
    alone = replace(scenario, brokers=Brokers(), cluster=Cluster(nodes=1, groups=1), leader_changes=())
    (node_input,) = node_inputs(alone, Calibration(turn_s=1.0, item_s=1.0))
    begin_ns = firsts_us(node_input, seed) * 1000
    return storm_from(settings, nodes=scenario.cluster.nodes, data_groups=scenario.cluster.groups, begin_ns=begin_ns)


def costs_apart(costs: Costs, storm: Storm) -> Costs:
    """The costs where each process has a core to itself."""
    return replace(costs, cores=storm.nodes + storm.settings.processes, unused_cores=0.0, unled_cores=0.0)


def _kinds(scenario: Scenario) -> Iterator[Kind]:
    for (region, transport, sdk), share in shares(scenario).items():
        near, policy = scenario.regions[region], scenario.sdks[sdk]
        yield Kind(
            name=f"{near.name}, {TRANSPORTS[transport]}, {policy.name}",
            share=share,
            region=near.name,
            rtt_ms=ROUND_TRIPS[transport] * near.rtt_ms,
            backoff=policy.backoff(),
            subscriptions=round(scenario.sessions.subscriptions),
        )
