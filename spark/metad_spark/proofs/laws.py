"""What every storm obeys, whatever its numbers: retries are geometric, budgets bound them, a storm that is twice as
fast is the same storm, and what came was served, was refused, or waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from metad_wire.policy import Admission, Backoff, RetryBudget

from ..calibration import Calibration
from ..models import vector
from ..models.histogram import quantile_s
from ..models.node_input import FINE_POINTS, FINE_US, NodeInput
from ..models.results import NodeResult
from ..requests import slices
from ..requests.costs import Costs
from ..requests.simulate import Outcome, simulate
from ..scenario import Brokers, Cluster, Disconnect, LeaderChange, Region, Returns, Scenario, Sdk, Transports
from . import theory, trials
from .proof import ANCHOR_ERROR_MAX, Proof, anchor, proof

_change = msgspec.structs.replace


def laws() -> Iterator[Proof]:
    """All of them."""
    yield from _retries()
    yield from _budget()
    yield from _scaling()
    yield from _conservation()
    yield from _refusals()


_NEVER = (Backoff(family="exponential", base_s=3_600, cap_s=3_600),)
"""Refused once is refused for good, within any horizon here."""


def _small_queue(per_s: float, items_max: int) -> NodeInput:
    """A server of 1,000/s with hardly any room, to which the refused come back after up to 5 s, as if by chance."""
    return _change(
        trials.queue(per_s, 0.001, 0.0, 1, 600_000),
        admission=Admission(items_max=items_max),
        backoffs=(Backoff(family="full", base_s=5, cap_s=5),),
    )


def _retries() -> Iterator[Proof]:
    """If every attempt is refused with probability p, whatever happened before, a client makes 1 / (1 - p) of them. The
    retries are part of the load that makes p what it is."""
    for per_s in (700.0, 900.0):
        refused = 0.0
        for _ in range(200):
            refused = theory.md1k_blocking(per_s / (1 - refused), 0.001, 4)
        result = vector.simulate(_small_queue(per_s, 4), 1)
        name = f"geometric retries: each attempt is refused with {100 * refused:.3g} %"
        yield anchor(name, 1 / (1 - refused), result.attempts / result.clients, "attempts per client")


_BUDGET_HORIZON_S, _BUDGET_INTERVAL_S = 30.0, 4.0


def _refused_by_all(burst: int) -> NodeInput:
    """Nobody leads from the begin to the end: every attempt is refused, and clients come back as soon as their budget
    lets them."""
    scenario = Scenario(
        name="nobody leads",
        clients=50_000,
        horizon_s=_BUDGET_HORIZON_S,
        regions=(Region(name="here", share=1, rtt_ms=20),),
        disconnect=Disconnect(spread_s=0.5),
        sdks=(Sdk(name="soon", share=1, family="full", base_s=0.1, cap_s=0.1),),
        cluster=Cluster(nodes=1, groups=1),
        brokers=Brokers(count=4),
        retry_budget=RetryBudget(burst=burst, interval_s=_BUDGET_INTERVAL_S),
        leader_changes=(LeaderChange(at_s=0, outage_s=2 * _BUDGET_HORIZON_S),),
    )
    return trials.input_of(scenario, trials.STEADY)


def _budget() -> Iterator[Proof]:
    """The first attempt, the burst, and one retry in each interval since the first retry. No client's interval ends
    near the horizon."""
    for burst in (1, 3):
        node_input = _refused_by_all(burst)
        expected = 1 + burst + _BUDGET_HORIZON_S // _BUDGET_INTERVAL_S
        result = vector.simulate(node_input, 1)
        name = f"a retry budget of {burst} and one each {_BUDGET_INTERVAL_S:g} s, {_BUDGET_HORIZON_S:g} s"
        yield anchor(name, expected, result.attempts / result.clients, "attempts per client")


def faster(scenario: Scenario, calibration: Calibration, factor: float) -> tuple[Scenario, Calibration]:
    """All rates times, and all times divided by, a factor. Packets must not be lost, because the time until they are
    sent again is a constant of TCP and QUIC."""

    def times(part: Any, *names: str) -> dict[str, Any]:
        return {name: getattr(part, name) / factor for name in names}

    brokers, disconnect, returns, budget = (
        *(scenario.brokers, scenario.disconnect),
        *(scenario.returns, scenario.retry_budget),
    )
    changes = [_change(each, **times(each, "at_s", "outage_s")) for each in scenario.leader_changes]
    connects_per_s = brokers.connects_per_s * factor
    made = _change(
        scenario,
        **times(scenario, "horizon_s", "client_timeout_s"),
        regions=tuple(_change(each, **times(each, "rtt_ms")) for each in scenario.regions),
        sdks=tuple(_change(each, **times(each, "base_s", "cap_s")) for each in scenario.sdks),
        disconnect=_change(
            disconnect,
            **times(disconnect, "spread_s"),
            keepalives=tuple(_change(each, **times(each, "keepalive_s")) for each in disconnect.keepalives),
        ),
        brokers=_change(brokers, **times(brokers, "linger_ms", "latency_ms"), connects_per_s=connects_per_s),
        returns=_change(returns, **times(returns, "wait_min_s", "jitter_s")),
        retry_budget=None if budget is None else _change(budget, **times(budget, "interval_s")),
        leader_changes=tuple(changes),
    )
    return made, _change(calibration, **times(calibration, "turn_s", "entry_s", "item_s"))


def _scaling() -> Iterator[Proof]:
    base = _change(trials.NEAR[0], clients=300_000, horizon_s=120)
    for name, scenario in (
        ("full queue", base),
        ("return slots", _change(base, returns=Returns(of_capacity=0.9))),
        ("a leader dies", _change(base, leader_changes=(LeaderChange(at_s=3, outage_s=2, slowdown=1.5),))),
        ("retry budget", _change(base, retry_budget=RetryBudget(burst=1, interval_s=2.0))),
        ("timeouts", _change(base, client_timeout_s=3, cluster=_change(base.cluster, queue_items=0))),
    ):
        inputs = [trials.input_of(*pair) for pair in ((scenario, trials.STEADY), faster(scenario, trials.STEADY, 2.0))]
        slow, fast = (vector.simulate(each, 1) for each in inputs)
        errors = {
            f"t{100 * share:g}": 2 * _reached_s(fast, share) / _reached_s(slow, share) - 1
            for share in (0.5, 0.99, 0.999)
        }
        errors["attempts"] = fast.attempts / slow.attempts - 1
        worst = max(errors, key=lambda key: abs(errors[key]))
        yield proof(
            f"twice as fast is the same storm: {name}",
            f"t99.9 {_reached_s(slow, 0.999):.4g} s, {slow.attempts / slow.clients:.4g} attempts",
            f"twice {_reached_s(fast, 0.999):.4g} s, {fast.attempts / fast.clients:.4g} attempts; {worst} is worst",
            abs(errors[worst]),
            ANCHOR_ERROR_MAX,
            "of itself",
        )


def _reached_s(result: NodeResult, share: float) -> float:
    return quantile_s(result.storm, share, result.clients) or float("inf")


_PATIENT = Scenario(
    name="two seconds of too many",
    clients=220_000,
    horizon_s=10,
    client_timeout_s=3_600,
    regions=(Region(name="here", share=1, rtt_ms=40),),
    transports=Transports(tcp_tls=0, quic_0rtt=1),
    disconnect=Disconnect(spread_s=2),
    sdks=(Sdk(name="x", share=1, family="full", base_s=1, cap_s=2),),
    cluster=Cluster(nodes=1, groups=1, batch_items=256, queue_items=40_000),
    brokers=Brokers(count=4, latency_ms=0),
)
"""Half a round trip from a client to the leader, 20 ms, is a point of the first seconds' waves. The queue is full for
some seconds, and empty before the end."""
_UNDER_WAY = 1
"""Points from where the model counts an attempt to the leader."""


def _conservation() -> Iterator[Proof]:
    """At the end of each second, what has come less what was served and what was refused is what waits: four counters
    that are kept apart. The turn that is under way has up to an entry's items."""
    node_input = trials.input_of(_PATIENT, trials.STEADY)
    result = vector.simulate(node_input, 1)
    begun = np.cumsum(result.attempts_fine.sum(axis=0))
    per_s = 1_000_000 // FINE_US
    came = np.array([begun[second * per_s - 1 - _UNDER_WAY] for second in range(1, FINE_POINTS // per_s)])
    served, refused = (np.cumsum(each)[: len(came)] for each in (result.served_by_s, result.rejected_by_s))
    left = came - served - refused
    # The longest queue of a second is at its begin while it falls, and at its end while it is full or grows.
    queue = result.queue_by_s[: len(came) + 1]
    wait = np.minimum(queue[:-1], queue[1:])
    apart = np.abs(left - wait)
    second = int(np.argmax(apart))
    yield proof(
        f"what came was served, was refused, or waits, at the end of each of {len(came)} s",
        f"{wait[second]:,.0f} wait after {second + 1} s",
        f"{came[second]:,.0f} - {served[second]:,.0f} - {refused[second]:,.0f} = {left[second]:,.0f}",
        apart[second] / result.queue_max,
        ANCHOR_ERROR_MAX,
        "of the longest queue",
    )


def _refusals() -> Iterator[Proof]:
    """More come, for some time, than can be served, and who is refused does not come back: refused are all but those
    that are served meanwhile and those that fit into the queue in the end."""
    per_s = trials.STEADY.items_per_s(1, 256)
    for spread_s in (0.0, 2.0, 8.0):
        scenario = _change(_PATIENT, clients=600_000, horizon_s=60, disconnect=Disconnect(spread_s=spread_s))
        node_input = _change(trials.input_of(scenario, trials.STEADY), backoffs=_NEVER)
        expected = scenario.clients - scenario.cluster.queue_items - per_s * spread_s
        name = f"{scenario.clients:,} clients in {spread_s:g} s, refused for good"
        yield anchor(name, expected, vector.simulate(node_input, 1).rejected, "clients")


# --- the model of requests


def by_requests() -> Iterator[Proof]:
    """What is known of clients on their way, their budgets, changing leaders and uneven groups, of the model of
    requests. Two brokers have equally many clients each."""
    yield from _lost_attempts()
    yield from _drains_at_doors()
    yield from _given_up_at_doors()
    yield from _budget_by_requests()
    yield from _handover()
    yield from _uneven()


_ONE = Scenario(
    name="one node",
    clients=40_000,
    horizon_s=60,
    client_timeout_s=3_600,
    regions=(Region(name="here", share=1, rtt_ms=10),),
    disconnect=Disconnect(spread_s=0),
    cluster=Cluster(nodes=1, groups=1),
    brokers=Brokers(count=2, linger_ms=2),
)
_HANDSHAKE_S = 0.03


def _outcome(scenario: Scenario, item_s: float) -> Outcome:
    """Of nodes that do nothing but their items, and take no time for anything else."""
    storm = slices.storm_of_scenario(scenario, 1)
    costs = Costs(request_s=0.0, item_s=item_s, memtable_s=0.0, fsync_s=(0.0,), delay_s=0.0)
    return simulate(storm, slices.costs_apart(costs, storm), 1)


def _lost_attempts() -> Iterator[Proof]:
    """Clients that wait for less than a retransmission try again whenever one of the handshake's packets is lost."""
    for loss, transports, packets in ((0.05, Transports(), 6), (0.1, Transports(tcp_tls=0, quic_0rtt=1), 2)):
        lossy = (Region(name="here", share=1, rtt_ms=10, loss=loss),)
        impatient = _change(
            _ONE,
            regions=lossy,
            transports=transports,
            client_timeout_s=0.9,
            disconnect=Disconnect(spread_s=1),
            brokers=Brokers(count=2, linger_ms=20),
        )
        found = _outcome(impatient, 1e-6)
        name = f"requests: {loss:.0%} of packets are lost, of {packets} in a handshake"
        yield anchor(name, (1 - loss) ** -packets, found.attempts_per_session, "attempts per client")


def _drains_at_doors() -> Iterator[Proof]:
    """N over capacity, as for the vector model."""
    rate = 10_000.0
    for spread_s in (0.0, 1.0):
        brokers = _change(_ONE.brokers, connects_per_s=rate / 2)
        found = _outcome(_change(_ONE, brokers=brokers, disconnect=Disconnect(spread_s=spread_s)), 1e-6)
        expected = 0.999 * _ONE.clients / rate + _HANDSHAKE_S
        name = f"requests: {_ONE.clients:,} clients in {spread_s:g} s at doors, 99.9 %"
        yield anchor(name, expected, found.storm_s[2] or 0.0, "s")


def _given_up_at_doors() -> Iterator[Proof]:
    """Whoever has waited at the door for as long as it is patient costs the door nothing, and comes back after the
    storm."""
    rate, patience_s = 10_000.0, 2.0
    later = (Sdk(name="later", share=1, family="exponential", base_s=3_600, cap_s=3_600),)
    brokers = _change(_ONE.brokers, connects_per_s=rate / 2)
    found = _outcome(_change(_ONE, client_timeout_s=patience_s, sdks=later, brokers=brokers), 1e-6)
    name = f"requests: clients that wait {patience_s:g} s at doors of {rate:,.0f}/s, restored"
    yield anchor(name, rate * patience_s, found.restored, "clients")


def _budget_by_requests() -> Iterator[Proof]:
    """As for the vector model; where nobody leads, brokers keep a call until its clients have waited long enough."""
    for burst in (1, 3):
        scenario = _change(
            _ONE,
            clients=5_000,
            horizon_s=_BUDGET_HORIZON_S,
            client_timeout_s=0.1,
            sdks=(Sdk(name="soon", share=1, family="full", base_s=0.1, cap_s=0.1),),
            brokers=Brokers(count=2, linger_ms=20),
            retry_budget=RetryBudget(burst=burst, interval_s=_BUDGET_INTERVAL_S),
            leader_changes=(LeaderChange(at_s=0, outage_s=2 * _BUDGET_HORIZON_S),),
        )
        expected = 1 + burst + _BUDGET_HORIZON_S // _BUDGET_INTERVAL_S
        found = _outcome(scenario, 1e-6)
        name = f"requests: a retry budget of {burst} and one each {_BUDGET_INTERVAL_S:g} s, {_BUDGET_HORIZON_S:g} s"
        yield anchor(name, expected, found.attempts_per_session, "attempts per client")


_SERVED_PER_S = 2_500.0


def _handover() -> Iterator[Proof]:
    """A node works until its groups have no leader, and another one does the rest, more slowly. Small calls, because
    those under way are done again."""
    clients, change = 10_000, LeaderChange(at_s=1.0, outage_s=2.0, slowdown=2.0)
    brokers = Brokers(count=2, concurrency=4, batch_items=10, linger_ms=2)
    scenario = _change(_ONE, clients=clients, brokers=brokers, leader_changes=(change,))
    found = _outcome(scenario, 1 / _SERVED_PER_S)
    left = 0.99 * clients - _SERVED_PER_S * (change.at_s - _HANDSHAKE_S)
    expected = change.at_s + change.outage_s + left * change.slowdown / _SERVED_PER_S
    yield anchor("requests: a leader changes, and takes twice as long, 99 %", expected, found.storm_s[1] or 0.0, "s")


def _uneven() -> Iterator[Proof]:
    """The node with three quarters of the clients is the last one. Two followers have nothing else to do: entries wait
    for no loop that is busy."""
    cluster = Cluster(nodes=4, groups=4, clients=(3, 1, 0, 0))
    scenario = _change(_ONE, cluster=cluster, brokers=Brokers(count=2, batch_items=100, linger_ms=2))
    found = _outcome(scenario, 1e-4)
    expected = _HANDSHAKE_S + (0.75 - 0.01) * scenario.clients / 1e4
    yield anchor(
        "requests: three quarters of the clients in one of four groups, 99 %", expected, found.storm_s[1] or 0.0, "s"
    )
