"""Storms of the proofs, one for each thing that a scenario may say."""

from __future__ import annotations

import msgspec

from metad_wire.policy import RetryBudget

from ..calibration import Calibration
from ..models.node_input import NodeInput, node_inputs
from ..scenario import (
    Brokers,
    Cluster,
    Disconnect,
    LeaderChange,
    Region,
    Returns,
    Scenario,
    Sdk,
    Transports,
)

STEADY = Calibration(turn_s=0.003, item_s=20e-6)
_change = msgspec.structs.replace

_EIGHT = tuple(Region(name=f"region {at}", share=1 / 8, rtt_ms=20 + at * 220 / 7) for at in range(8))
_LARGE = Scenario(
    name="full jitter",
    clients=900_000,
    horizon_s=300,
    client_timeout_s=5,
    regions=_EIGHT,
    cluster=Cluster(nodes=1, groups=1, batch_items=256, queue_items=20_000),
    brokers=Brokers(count=16),
    sdks=(Sdk(name="x", share=1, family="full", base_s=1, cap_s=60),),
)


def _large(name: str, **changes: object) -> Scenario:
    return _change(_LARGE, name=name, **changes)


def _sdk(family: str, base_s: float, cap_s: float) -> tuple[Sdk, ...]:
    return (Sdk(name=family, share=1, family=family, base_s=base_s, cap_s=cap_s),)


NEAR = (
    _LARGE,
    _large("equal jitter", sdks=_sdk("equal", 1, 20)),
    _large("exponential", sdks=_sdk("exponential", 1, 20)),
    _large("proportional", sdks=_sdk("proportional", 0.5, 20)),
    _large("decorrelated", sdks=_sdk("decorrelated", 1, 20)),
    _large("return slots", returns=Returns(of_capacity=0.9)),
    _large("retry budget", retry_budget=RetryBudget(burst=1, interval_s=8.0), sdks=_sdk("full", 0.5, 4)),
    _large("a leader dies", leader_changes=(LeaderChange(at_s=3, outage_s=2, slowdown=1.5),)),
    _large("transports", transports=Transports(tcp_tls=0.5, quic=0.3, quic_0rtt=0.2)),
    _large("packet loss", regions=tuple(_change(region, loss=0.01) for region in _EIGHT)),
    _large(
        "timeouts",
        clients=300_000,
        cluster=Cluster(nodes=1, groups=1, batch_items=256, queue_items=0),
        client_timeout_s=3,
    ),
    _large(
        "four groups and linger",
        cluster=Cluster(nodes=1, groups=4, batch_items=256, queue_items=5_000),
        brokers=Brokers(count=8, linger_ms=5),
    ),
    _large("busy doors", brokers=Brokers(count=16, connects_per_s=1_000), client_timeout_s=60),
)
"""Larger scenarios, one for each thing that a scenario may say."""


def patience(queue_items: int, cap_s: float) -> Scenario:
    """Clients that wait three seconds, from 20 to 240 ms away, and a group that serves some 31,500 items a second: a
    queue of 90,000 takes longer than the far ones wait, one of 80,000 does not."""
    return _large(
        f"queue {queue_items:,}, waits up to {cap_s:g} s",
        clients=625_000,
        client_timeout_s=3,
        transports=Transports(tcp_tls=0, quic_0rtt=1),
        cluster=Cluster(nodes=1, groups=1, batch_items=256, queue_items=queue_items),
        sdks=_sdk("full", 1, cap_s),
    )


def input_of(scenario: Scenario, calibration: Calibration) -> NodeInput:
    """The one node of a trial."""
    (node_input,) = node_inputs(scenario, calibration)
    return node_input


def queue(arrivals_per_s: float, fixed_s: float, item_s: float, batch_max: int, jobs: int) -> NodeInput:
    """Jobs that arrive at random and never come back, at a node that takes at most ``batch_max`` at a time: a queue
    with a known solution. Their own times are longer by a handshake, :data:`QUEUE_ROUND_TRIPS` milliseconds."""
    scenario = Scenario(
        name="queue",
        clients=jobs,
        horizon_s=3_600,
        client_timeout_s=3_600,
        regions=(Region(name="here", share=1, rtt_ms=1),),
        transports=Transports(tcp_tls=0, quic_0rtt=1),
        disconnect=Disconnect(spread_s=jobs / arrivals_per_s),
        cluster=Cluster(nodes=1, groups=1, batch_items=batch_max, queue_items=0),
        brokers=Brokers(count=1, latency_ms=0),
    )
    # A handshake longer than 1 ms keeps the model's buckets, and so the work, few.
    node_input = input_of(scenario, Calibration(turn_s=fixed_s, item_s=item_s))
    return _change(node_input, round_trips=(1, 1, QUEUE_ROUND_TRIPS))


QUEUE_ROUND_TRIPS = 50
"""Milliseconds that a job of :func:`queue` takes besides its time in the queue."""


def drain(clients: int, spread_s: float, connects_per_s: float = 0.0) -> Scenario:
    """More clients than can be served at once, who wait as long as it takes: the group serves some 31,500 a second, ten
    brokers let through ten times ``connects_per_s`` (0: any number)."""
    return Scenario(
        name="drain",
        clients=clients,
        horizon_s=60,
        client_timeout_s=3_600,
        regions=(Region(name="here", share=1, rtt_ms=10),),
        disconnect=Disconnect(spread_s=spread_s),
        cluster=Cluster(nodes=1, groups=1, batch_items=256, queue_items=0),
        brokers=Brokers(count=10, connects_per_s=connects_per_s),
    )
