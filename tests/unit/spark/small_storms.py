"""Small storms that exercise every part of the model."""

from __future__ import annotations

import msgspec

from metad_spark.calibration import Calibration
from metad_spark.scenario import (
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
from metad_wire.policy import RetryBudget

NOISY = Calibration(turn_s=0.003, item_s=20e-6, entry_s=0.0002, factors=(0.6, 0.8, 0.9, 1.0, 1.7))
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
"""In which the oracle and the model must agree to the last bit."""
