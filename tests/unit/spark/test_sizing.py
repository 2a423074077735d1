"""Sizing finds the smallest cluster of all that there are, says when there is none, and what is left until it
collapses."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

from metad_spark.calibration import Calibration, load_calibration
from metad_spark.models.results import StormResult
from metad_spark.proofs import trials
from metad_spark.reduced import sweep_here
from metad_spark.scenario import Brokers, Cluster, Disconnect, Scenario, Sdk, load_scenario
from metad_spark.sizing import NODES_MIN, Sizing, least_nodes, shapes, size, sized
from metad_spark.target import Target
from metad_wire.cluster import SLOTS

_change = msgspec.structs.replace
_NODES_MAX = 11


def _random_case(seed: int) -> tuple[Scenario, Calibration, Target]:
    rng = random.Random(seed)
    nodes = rng.choice((3, 4, 8))
    sdk = rng.choice((("full", 1.0, 60.0), ("full", 1.0, 4.0), ("exponential", 1.0, 1.0), ("equal", 1.0, 20.0)))
    scenario = Scenario(
        clients=rng.choice((60_000, 200_000, 600_000)),
        horizon_s=120,
        client_timeout_s=rng.choice((2.0, 5.0, 20.0)),
        sdks=(Sdk(name="x", share=1, family=sdk[0], base_s=sdk[1], cap_s=sdk[2]),),
        disconnect=Disconnect(spread_s=rng.choice((0.0, 1.0))),
        brokers=Brokers(count=20, connects_per_s=rng.choice((0, 0, 0, 20_000))),
        cluster=Cluster(
            nodes=nodes,
            groups=nodes * rng.choice((1, 2, 4)),
            batch_items=rng.choice((64, 256)),
            queue_items=rng.choice((0, 2_000, 20_000)),
        ),
    )
    costs = _change(trials.STEADY, entry_s=rng.choice((0.0, 0.001)), item_s=rng.choice((2e-5, 1e-4)))
    return scenario, costs, Target(key="t999", seconds=rng.choice((3.0, 8.0, 25.0)))


class _Remembered:
    """A sweep that answers a scenario that it knows from memory."""

    def __init__(self) -> None:
        self.known: dict[Scenario, StormResult] = {}

    def __call__(self, scenarios: Sequence[Scenario], calibration: Calibration) -> list[StormResult]:
        for scenario in scenarios:
            if scenario not in self.known:
                (self.known[scenario],) = sweep_here([scenario], calibration)
        return [self.known[scenario] for scenario in scenarios]


@pytest.mark.parametrize("seed", range(20))
def test_no_smaller_cluster_meets_the_target_and_one_is_found_if_there_is_one(seed: int) -> None:
    """It once chose 17 nodes where 14 do, and none where 500 do."""
    scenario, costs, target = _random_case(seed)
    sweep = _Remembered()
    found = size(scenario, costs, target, sweep, nodes_max=_NODES_MAX)
    horizon_s = max(1.0, min(scenario.horizon_s, 1.25 * target.seconds + scenario.disconnect.spread_s))
    every = {
        sized(shape, nodes): nodes
        for shape in shapes(_change(scenario, horizon_s=horizon_s)).values()
        for nodes in range(NODES_MIN, _NODES_MAX + 1)
    }
    storms = sweep(list(every), costs)
    meeting = [
        nodes
        for nodes, storm in zip(every.values(), storms, strict=True)
        if storm.t999_s is not None and storm.t999_s <= target.seconds
    ]
    assert (found.best.nodes if found.best else None) == min(meeting, default=None)


def _sized_for(seconds: float, **changes: object) -> Sizing:
    base = _change(trials.NEAR[0], cluster=_change(trials.NEAR[0].cluster, nodes=4, groups=4), **changes)
    return size(base, trials.STEADY, Target(key="t999", seconds=seconds), sweep_here)


def test_it_says_how_far_the_answer_is_from_missing_the_target_and_from_collapse() -> None:
    found = _sized_for(6.0)
    assert found.best is not None
    assert found.best.storm.t999_s is not None
    assert found.best.storm.t999_s <= 6.0
    assert set(found.best.costs) == {"nodes", "groups", "batch_items"}
    assert [load.factor for load in found.loads] == sorted(load.factor for load in found.loads)
    assert found.misses_at is not None
    assert found.collapses_at is None or found.collapses_at >= found.misses_at


def test_only_what_metad_has_is_changed() -> None:
    found = _sized_for(6.0)
    asked = trials.NEAR[0]
    for option in found.options:
        assert option.scenario.cluster.queue_items == asked.cluster.queue_items
        assert option.scenario.returns == asked.returns
        assert option.scenario.brokers == asked.brokers


def test_a_cluster_has_no_more_groups_than_slots() -> None:
    scenario = load_scenario("default")
    for base in shapes(scenario).values():
        assert sized(base, SLOTS).cluster.groups == SLOTS
        assert all(sized(base, nodes).cluster.groups <= SLOTS for nodes in (3, 30, 300, 700))


def test_brokers_that_cannot_are_named_without_a_search() -> None:
    found = _sized_for(6.0, brokers=Brokers(count=10, connects_per_s=1_000))
    assert found.best is None
    assert found.nearest is None
    assert found.rounds == 0
    assert found.why_none == "the brokers alone need 89.91 s for that many handshakes"


def test_where_nothing_meets_the_target_the_nearest_is_told() -> None:
    found = _sized_for(2.0, clients=50_000, disconnect=Disconnect(spread_s=5))
    assert found.best is None
    assert found.nearest in found.options
    assert any(option.nodes == SLOTS for option in found.options)


def test_no_size_below_the_bound_can_do_it() -> None:
    scenario, costs = load_scenario("default"), load_calibration()
    asked = _change(scenario, clients=100_000_000)
    target = Target(key="t999", seconds=60)
    least = least_nodes(asked, costs, target, SLOTS)
    assert least > NODES_MIN
    assert least_nodes(asked, costs, Target(key="t999", seconds=0.01), SLOTS) == SLOTS + 1
