"""The model against an oracle, to the last bit, and what each storm is."""

from __future__ import annotations

import random

import exact_storm as exact
import msgspec
import numpy as np
import pytest
import small_storms

from metad_spark.brokers.runner import run_here
from metad_spark.brokers.storm import simulate_storms
from metad_spark.models import vector, vector_steps
from metad_spark.models.node_input import NodeInput
from metad_spark.models.results import NodeResult
from metad_spark.models.simulate import simulate_node
from metad_spark.proofs import trials
from metad_spark.scenario import Brokers, Cluster, Disconnect, Scenario
from metad_wire.policy import FAMILIES, Admission, Backoff, BatchWindow, RetryBudget, ReturnSlots

pytestmark = pytest.mark.slow


def differences(first: NodeResult, second: NodeResult) -> list[str]:
    """The fields in which two results differ in any bit."""
    return [
        field
        for field in NodeResult.__struct_fields__
        if not np.array_equal(getattr(first, field), getattr(second, field))
    ]


@pytest.mark.parametrize("scenario", small_storms.EQUAL, ids=lambda scenario: scenario.name)
def test_the_oracle_and_the_arrays_agree_to_the_last_bit(scenario: Scenario) -> None:
    node_input = trials.input_of(scenario, small_storms.NOISY)
    node_input = msgspec.structs.replace(
        node_input, kinds=tuple(msgspec.structs.replace(k, clients=k.clients // 3) for k in node_input.kinds)
    )
    one, other = exact.simulate(node_input, 7), vector.simulate(node_input, 7)
    assert differences(one, other) == []
    assert one.restored > 0
    assert one.attempts > one.clients * 0.9


def _random_input(seed: int) -> NodeInput:
    """A node in which anything may be: what nobody thought of when the trials were chosen."""
    rng = random.Random(seed)
    node_input = trials.input_of(rng.choice(small_storms.EQUAL), small_storms.NOISY)
    base = rng.choice((0.0, 0.05, 1.0))
    family = rng.choice(FAMILIES)
    timeout_us = rng.choice((30_000, 300_000, 3_000_000))
    return msgspec.structs.replace(
        node_input,
        kinds=tuple(msgspec.structs.replace(k, clients=rng.randint(1, 900)) for k in node_input.kinds),
        first_client=rng.randint(0, 10**9),
        backoffs=tuple(
            Backoff(base_s=base, cap_s=rng.choice((base, 2.0, 9.0)) + base, family=family) for _ in node_input.backoffs
        ),
        rtt_us=tuple(2 * rng.randint(500, 60_000) for _ in node_input.rtt_us),
        latency_us=rng.choice((0, 250, 20_000)),
        loss=tuple(rng.choice((0.0, 0.1)) for _ in node_input.loss),
        timeout_us=timeout_us,
        horizon_us=rng.choice((800_000, 6_000_000)),
        spread_us=rng.choice((0, 1, 500_000)),
        groups=rng.choice((1, 2, 3, 5, 300)),
        batch_items=rng.choice((1, 7, 500)),
        admission=Admission(items_max=rng.choice((0, 1, 40))),
        returns=ReturnSlots(per_s=rng.choice((50.0, 5e3))) if rng.random() < 0.3 else None,
        budget=RetryBudget(burst=rng.randint(1, 3), interval_s=0.7) if rng.random() < 0.3 else None,
        window=BatchWindow(items_max=rng.choice((1, 4, 1_000)), linger_s=rng.choice((0.0, 0.003, 0.2))),
        turn_us=float(rng.choice((1, 900, 40_000))),
        **_random_doors(rng, len(node_input.regions)),
    )


def _random_doors(rng: random.Random, regions: int) -> dict[str, object]:
    """Doors that are now and then so slow that most clients give up there."""
    if rng.random() < 0.4:
        return {}
    slowest_ns = rng.choice((100_000, 3_000_000, 50_000_000))
    door_ns = tuple(tuple(rng.randint(1, slowest_ns) for _ in range(rng.randint(1, 20))) for _ in range(regions))
    return {"doors": tuple(rng.randint(1, 3) for _ in range(regions)), "door_ns": door_ns}


@pytest.mark.parametrize("seed", range(12))
def test_they_agree_in_cases_that_nobody_chose(seed: int) -> None:
    node_input = _random_input(seed)
    assert differences(exact.simulate(node_input, seed), vector.simulate(node_input, seed)) == []


def test_whole_numbers_are_not_compiled_for() -> None:
    """Compiling takes twenty seconds. Steps that were compiled once for bounds of whole seconds, once for others, once
    for each mix of them, took minutes of every first run."""
    for node_input in (trials.input_of(scenario, small_storms.NOISY) for scenario in small_storms.EQUAL):
        vector.simulate(
            msgspec.structs.replace(
                node_input,
                kinds=tuple(msgspec.structs.replace(kind, clients=10) for kind in node_input.kinds),
                factors=(1,),
            ),
            1,
        )
    assert [len(step.signatures) for step in (vector_steps.begin, vector_steps.advance)] == [1, 1]


def test_the_comparison_finds_a_microsecond() -> None:
    node_input = trials.input_of(small_storms.EQUAL[0], small_storms.NOISY)
    later = msgspec.structs.replace(node_input, turn_us=node_input.turn_us + 1.5)
    assert differences(exact.simulate(node_input, 1), exact.simulate(later, 1))


def test_a_seed_gives_one_result_and_another_another() -> None:
    node_input = trials.input_of(small_storms.EQUAL[0], small_storms.NOISY)
    first, again = (simulate_node(node_input, 5).encode() for _ in range(2))
    assert first == again
    assert first != simulate_node(node_input, 6).encode()


@pytest.mark.parametrize("spread_s", [0.0, 1.0])
def test_doors_let_through_no_more_than_they_can(spread_s: float) -> None:
    """They once did as many handshakes as came between two points of a wave, and the distance of these was a share of
    the horizon: 600,000 clients were back after 2 s at brokers that need 30 s for them."""
    found = set()
    for horizon_s in (60.0, 900.0):
        scenario = Scenario(
            clients=6_000,
            horizon_s=horizon_s,
            client_timeout_s=60,
            disconnect=Disconnect(spread_s=spread_s),
            brokers=Brokers(count=10, connects_per_s=20),
            cluster=Cluster(nodes=3, groups=6),
        )
        storms = simulate_storms(scenario, trials.STEADY, seeds=[1], run=run_here)
        storm = storms.middle
        assert storms.settled
        assert storm.restored == pytest.approx(scenario.clients)
        for share, reached_s in ((0.5, storm.t50_s), (0.99, storm.t99_s), (0.999, storm.t999_s)):
            assert reached_s is not None
            assert 30 * share * 0.997 <= reached_s <= 30 * share * 1.01 + 0.1
        found.add((storm.t50_s, storm.t999_s, storm.p999_s))
    assert len(found) == 1


def test_the_waves_add_up() -> None:
    node_input = trials.input_of(small_storms.EQUAL[9], small_storms.NOISY)
    result = simulate_node(node_input, 5)
    assert result.restored_by_s.sum() == pytest.approx(result.restored)
    assert result.storm.sum() == pytest.approx(result.restored)
    assert result.own.sum() == pytest.approx(result.restored)
    assert result.attempts_by_s.sum() == pytest.approx(result.attempts)
    assert result.rejected_by_s.sum() == pytest.approx(result.rejected)
    assert result.served_by_s.sum() >= result.restored * 0.999
    assert result.queue_by_s.max() == result.queue_max
    assert np.all(result.served_by_s <= result.capacity_by_s.max() * 2)


def test_the_queue_bound_decides_between_recovery_and_lockout() -> None:
    """A bound of more work than a far client's patience leaves locks it out; with a little less all are back."""
    scenario = trials.NEAR[0]
    impatient = msgspec.structs.replace(
        scenario,
        clients=400_000,
        horizon_s=90,
        client_timeout_s=3,
        sdks=(msgspec.structs.replace(scenario.sdks[0], cap_s=4),),
    )

    def storm(bound: int) -> tuple[float, list[float]]:
        cluster = msgspec.structs.replace(impatient.cluster, queue_items=bound)
        node_input = trials.input_of(msgspec.structs.replace(impatient, cluster=cluster), trials.STEADY)
        result = vector.simulate(node_input, 1)
        return result.restored / result.clients, (result.restored_by_s.sum(axis=1) / (result.clients / 8)).tolist()

    restored, _ = storm(60_000)
    assert restored > 0.999
    restored, by_region = storm(90_000)
    assert restored < 0.9
    assert by_region[0] > 0.99
    assert by_region[-1] < 0.5
