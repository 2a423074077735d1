"""Small storms that exercise every part of the models: the proofs and the tests compare the models in them."""

from __future__ import annotations

import msgspec

from metad_wire.policy import RetryBudget

from ..calibration import Calibration
from ..models.node_input import NodeInput, node_inputs
from ..scenario import (
    Brokers,
    Cluster,
    Disconnect,
    Keepalive,
    LeaderChange,
    Region,
    Returns,
    Scenario,
    Sdk,
    Transports,
)

NOISY = Calibration(turn_s=0.003, item_s=20e-6, entry_s=0.0002, factors=(0.6, 0.8, 0.9, 1.0, 1.7))
STEADY = Calibration(turn_s=0.003, item_s=20e-6)
_change = msgspec.structs.replace

_TWO = (
    Region(name="near", share=0.6, rtt_ms=20, loss=0.01),
    Region(name="far", share=0.4, rtt_ms=80, loss=0.05),
)
_SMALL = Scenario(
    name="full queue",
    clients=12_000,
    horizon_s=60,
    client_timeout_s=3,
    regions=_TWO,
    cluster=Cluster(nodes=1, groups=2, batch_items=16, queue_items=300),
    brokers=Brokers(count=4),
)
_IMPATIENT = (Sdk(name="x", share=1, family="equal", base_s=0.5, cap_s=2),)


def _small(name: str, **changes: object) -> Scenario:
    return _change(_SMALL, name=name, **changes)


EQUAL = (
    _SMALL,
    _small("short linger", brokers=Brokers(count=4, linger_ms=5, batch_items=3)),
    _small("linger past the timeout", brokers=Brokers(count=4, linger_ms=300, batch_items=50), client_timeout_s=0.4),
    _small(
        "endless queue",
        cluster=Cluster(nodes=1, groups=2, batch_items=4, queue_items=0),
        sdks=_IMPATIENT,
        client_timeout_s=1,
    ),
    _small("round trip past the timeout", client_timeout_s=0.07, clients=3_000),
    _small(
        "every family",
        sdks=(
            Sdk(name="a", share=0.3, family="decorrelated", base_s=1, cap_s=20),
            Sdk(name="b", share=0.2, family="proportional", base_s=0.2, cap_s=20),
            Sdk(name="c", share=0.2, family="exponential", base_s=1, cap_s=8),
            Sdk(name="d", share=0.2, family="full", base_s=0.5, cap_s=10),
            Sdk(name="e", share=0.1, family="none", base_s=0, cap_s=0),
        ),
    ),
    _small("return slots", returns=Returns(of_capacity=0.9)),
    _small(
        "retry budget",
        retry_budget=RetryBudget(burst=2, interval_s=4.0),
        sdks=(Sdk(name="x", share=1, family="full", base_s=0.1, cap_s=2),),
    ),
    _small("a leader dies", leader_changes=(LeaderChange(at_s=1.1, outage_s=2, slowdown=1.5),)),
    _small(
        "a leader hands over",
        leader_changes=(LeaderChange(at_s=1.1, outage_s=0.0, slowdown=2),),
        returns=Returns(of_capacity=0.9),
        brokers=Brokers(count=4, linger_ms=2),
    ),
    _small("transports", transports=Transports(tcp_tls=0.5, quic=0.3, quic_0rtt=0.2)),
    _small(
        "silent disconnects",
        disconnect=Disconnect(
            spread_s=2,
            silent_share=0.3,
            keepalives=(Keepalive(share=0.5, keepalive_s=10), Keepalive(share=0.5, keepalive_s=25)),
        ),
    ),
    _small("light load", clients=2_000, disconnect=Disconnect(spread_s=50)),
    _small("cut short", horizon_s=2),
    _small("busy doors", brokers=Brokers(count=4, connects_per_s=300), client_timeout_s=30),
    _small("clients give up at doors", brokers=Brokers(count=4, connects_per_s=150, linger_ms=5), sdks=_IMPATIENT),
)
"""Scenarios in which the oracle and the vector model must agree to the last bit."""

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
