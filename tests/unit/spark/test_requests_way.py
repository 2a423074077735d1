"""The model of requests knows what ``vector`` knows: lost packets, doors of brokers, retry budgets, leaders that
change, uneven groups. Each is held against ``vector`` or against what is known of such a storm. A storm with none of
these is what it was before the model knew them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from metad_spark.calibration import Calibration
from metad_spark.models import vector
from metad_spark.models.histogram import quantile_s
from metad_spark.models.node_input import node_inputs
from metad_spark.models.results import NodeResult, added
from metad_spark.proofs import laws
from metad_spark.requests import slices
from metad_spark.requests.clients import AWAY, Clients, Floats
from metad_spark.requests.cores import Machine
from metad_spark.requests.costs import Costs, load_costs
from metad_spark.requests.messages import Ints
from metad_spark.requests.simulate import Outcome, play, simulate
from metad_spark.requests.way import Way
from metad_spark.run_verify import verify
from metad_spark.scenario import (
    Brokers,
    Cluster,
    Disconnect,
    LeaderChange,
    Region,
    Scenario,
    Sdk,
    Transports,
)
from metad_wire.policy import RetryBudget

_change = msgspec.structs.replace

PLAIN = Scenario(
    clients=4_000,
    horizon_s=60,
    client_timeout_s=60,
    regions=(Region(name="here", share=1.0, rtt_ms=20),),
    sdks=(Sdk(name="soon", share=1.0, family="equal", base_s=0.2, cap_s=1.0),),
    disconnect=Disconnect(spread_s=0.1),
    brokers=Brokers(count=2, linger_ms=5),
    cluster=Cluster(nodes=1, groups=1, batch_items=10, queue_items=0),
)
"""One node, of which both models have the same clients, and two brokers, which have equally many."""


def _with(**changes: Any) -> Scenario:
    return _change(PLAIN, **changes)


def _requests(scenario: Scenario, **costs: Any) -> Outcome:
    storm = slices.storm_of_scenario(scenario, 1)
    chosen = Costs(**{"request_s": 0.0, "item_s": 1e-6, "fsync_s": (0.0,), "delay_s": 0.0} | costs)
    return simulate(storm, slices.costs_apart(chosen, storm), 1)


def _vector(scenario: Scenario, item_s: float = 1e-6) -> NodeResult:
    calibration = Calibration(turn_s=1e-6, item_s=item_s)
    return added([vector.simulate(node_input, 1) for node_input in node_inputs(scenario, calibration)])


def _assert_alike(found: Outcome, expected: NodeResult, rel: float) -> None:
    assert (found.restored, found.returning) == (expected.restored, expected.clients)
    for share, at_s in zip((0.5, 0.99, 0.999), found.storm_s, strict=True):
        assert at_s == pytest.approx(quantile_s(expected.storm, share, expected.clients), rel=rel)


def test_whoever_loses_a_packet_has_less_patience_left() -> None:
    """An answer takes 1.4 s and clients wait for 2 s: who lost a packet, and so a second, gives up in the middle of the
    call. Both models draw the same losses, so the numbers are equal."""
    lossy = (Region(name="here", share=1.0, rtt_ms=20, loss=0.05),)
    scenario = _with(regions=lossy, client_timeout_s=2.0, brokers=Brokers(count=2, linger_ms=20, latency_ms=700))
    found, expected = _requests(scenario, delay_s=0.7), _vector(scenario)
    assert (found.restored, found.rejected, found.timeouts) == (4_000, 0, expected.timeouts)
    assert found.attempts_per_session == expected.attempts / 4_000
    assert found.timeouts > 1_000
    patient = _change(scenario, client_timeout_s=10.0)
    found, expected = _requests(patient, delay_s=0.7), _vector(patient)
    assert found.attempts_per_session == 1.0
    for share, waited_s in ((0.5, found.t50_s), (0.99, found.t99_s), (0.999, found.t999_s)):
        assert waited_s == pytest.approx(quantile_s(expected.own, share, 4_000), rel=0.02)
    assert found.t99_s == pytest.approx(1.46 + 3.0, rel=0.02), "two packets in a row"


@pytest.mark.parametrize("budget", [None, RetryBudget(burst=1, interval_s=2.5)])
def test_clients_give_up_at_doors(budget: RetryBudget | None) -> None:
    brokers = Brokers(count=2, linger_ms=2, connects_per_s=500)
    scenario = _with(clients=6_000, client_timeout_s=2.0, brokers=brokers, retry_budget=budget, horizon_s=120)
    found, expected = _requests(scenario), _vector(scenario)
    _assert_alike(found, expected, rel=0.06)
    assert found.attempts_per_session == pytest.approx(expected.attempts / expected.clients, rel=0.06)
    assert found.timeouts > 3_000
    assert found.rejected == 0


def test_a_leader_that_changes_costs_the_outage_and_slows_down_the_rest() -> None:
    changes = (LeaderChange(at_s=1.0, outage_s=2.0, slowdown=2.0),)
    soon = (Sdk(name="at once", share=1.0, family="exponential", base_s=0.02, cap_s=0.02),)
    brokers = Brokers(count=2, concurrency=4, batch_items=10, linger_ms=2)
    scenario = _with(sdks=soon, leader_changes=changes, brokers=brokers)
    found, expected = _requests(scenario, item_s=4e-4), _vector(scenario, item_s=4e-4)
    _assert_alike(found, expected, rel=0.05)  # one of them knows that few requests wait for company in a crowd
    assert found.timeouts == found.rejected == 0
    assert 1.0 < found.attempts_per_session < 1.1, "brokers repeat the calls that were under way"


def test_groups_of_which_some_are_larger_take_longer() -> None:
    uneven = Cluster(nodes=4, groups=4, batch_items=10, queue_items=0, clients=(30, 8, 1, 1))
    scenario = _with(clients=8_000, cluster=uneven, brokers=Brokers(count=2, batch_items=100, linger_ms=2))
    storm = slices.storm_of_scenario(scenario, 1)
    assert np.bincount(storm.groups).tolist() == pytest.approx([6_000, 1_600, 200, 200], rel=0.15)
    found, expected = _requests(scenario, item_s=4e-4), _vector(scenario, item_s=4e-4)
    assert found.storm_s[1] == pytest.approx(quantile_s(expected.storm, 0.99, expected.clients), rel=0.03)
    six = _with(clients=60_000, cluster=Cluster(nodes=6, groups=6, clients=(4, 4, 4, 1, 1, 0)))
    assert [part.clients for part in slices.slices_of(six)] == [51_428, 8_572]
    assert [part.slots for part in slices.slices_of(six)] == [(4, 4, 4), (1, 1, 0)]


ALL = _with(
    clients=12_000,
    client_timeout_s=1.2,
    regions=(
        Region(name="near", share=0.7, rtt_ms=20, loss=0.02),
        Region(name="far", share=0.3, rtt_ms=120, loss=0.05),
    ),
    transports=Transports(tcp_tls=0.5, quic=0.3, quic_0rtt=0.2),
    brokers=Brokers(count=4, linger_ms=5, connects_per_s=600, concurrency=24),
    cluster=Cluster(nodes=3, groups=6, clients=(5, 4, 3, 2, 2, 2)),
    retry_budget=RetryBudget(burst=2, interval_s=1.0),
)


class _Host:
    """Brokers that have no time yet."""

    def __init__(self) -> None:
        self.due_s: list[float] = []
        self.gone: list[int] = []

    def come(self, clients: Ints, due_s: Floats) -> None:
        self.due_s += due_s.tolist()

    def in_vain(self, clients: Ints, slot: tuple[int, int] | None) -> None:
        self.gone += clients.tolist()


def test_whoever_gives_up_before_its_broker_has_time_is_not_there_any_more() -> None:
    """A door lets ten a second through, and clients wait for 0.25 s. The first was not late: its call is as patient as
    it is."""
    slow = _with(clients=4, client_timeout_s=0.25, brokers=Brokers(count=2, linger_ms=5, connects_per_s=5))
    machine, host = Machine(1.0), _Host()
    clients = Clients(slices.storm_of_scenario(slow, 1))
    way = Way(machine, clients)
    way.hosts = dict.fromkeys(range(2), host)
    everybody = np.arange(4)
    way.go(host, everybody, np.zeros(4))
    machine.run(0.24, lambda: False)
    assert sorted(host.due_s) == pytest.approx([0.0, 0.1, 0.2])
    assert host.gone == []
    machine.run(1.0, lambda: False)
    assert sorted(host.gone) == [1, 2, 3]
    assert clients.timeouts == clients.sent == 3
    assert way.arrived(everybody, 1.0).tolist() == [0]


@pytest.mark.parametrize("slow", [{"item_s": 4e-4}, {"attempt_s": 2e-3}], ids=["nodes", "brokers"])
def test_every_attempt_ends_once(slow: dict[str, float]) -> None:
    """With all of it together, and nodes or brokers that are too slow: clients give up at doors, before their broker
    has time for them, in lanes and in calls."""
    storm = slices.storm_of_scenario(ALL, 1)
    costs = _change(load_costs(), **slow)
    clients = play(storm, slices.costs_apart(costs, storm), 1).clients
    assert clients.restored == int((clients.restored_s != AWAY).sum())
    assert clients.attempts.sum() == clients.sent
    under_way = clients.sent + clients.again - clients.restored - clients.refused - clients.timeouts
    assert clients.restored == 12_000
    assert under_way == 0
    assert clients.timeouts > 3_000
    counted = [int(clients.told(name).sum()) for name in ("attempts", "refused", "timeouts")]
    assert counted == [clients.sent, clients.refused, clients.timeouts]


def test_a_slice_has_its_share_of_the_doors() -> None:
    scenario = _with(clients=60_000, cluster=Cluster(nodes=6, groups=6), brokers=Brokers(count=4, connects_per_s=100))
    storms = [slices.storm_of_scenario(scenario, 1, part) for part in (None, *slices.slices_of(scenario))]
    whole, *parts = [storm.doors * 1e9 / storm.door_ns for storm in storms]
    assert whole == pytest.approx(400)
    assert sum(parts) == pytest.approx(400)


def test_the_laws_hold_and_one_that_is_broken_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    proofs = verify(only=["requests"])
    assert [proof for proof in proofs if not proof.passed] == []
    assert len(proofs) == 9
    monkeypatch.setattr(Way, "_give_up", lambda self: None)
    assert not next(laws._lost_attempts()).passed
