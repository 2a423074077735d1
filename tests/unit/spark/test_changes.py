"""What is proposed differs from what is, in one thing, and the map has the storm itself in its frame."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from metad_spark.calibration import load_calibration
from metad_spark.changes import changes, grid, patience_s, queue_s, serves, wise_queue_items
from metad_spark.scenario import LeaderChange, Scenario, load_scenario

COSTS = load_calibration()


@pytest.fixture
def scenario() -> Scenario:
    return load_scenario("default")


def test_each_change_differs_from_what_is_and_from_the_others(scenario: Scenario) -> None:
    offered = changes(scenario, COSTS)
    assert offered[0].scenario == replace(scenario, leader_changes=())
    assert len({change.scenario for change in offered}) == len(offered)
    assert len({change.name for change in offered}) == len(offered)
    assert all(change.price for change in offered[1:])


def test_what_is_so_already_is_not_proposed(scenario: Scenario) -> None:
    wise = wise_queue_items(scenario, COSTS)
    done = replace(
        scenario,
        cluster=replace(scenario.cluster, queue_items=wise),
        returns=replace(scenario.returns, of_capacity=0.9),
    )
    before = {change.name for change in changes(scenario, COSTS)}
    after = {change.name for change in changes(done, COSTS)}
    assert {name for name in before - after if "queue" in name or name.startswith("tell")} == before - after
    assert len(before - after) == 2


def test_a_wise_queue_is_served_while_who_is_farthest_still_waits(scenario: Scenario) -> None:
    wise = replace(scenario, cluster=replace(scenario.cluster, queue_items=wise_queue_items(scenario, COSTS)))
    assert 0.5 * patience_s(wise) < queue_s(wise, COSTS) < patience_s(wise)
    assert queue_s(replace(scenario, cluster=replace(scenario.cluster, queue_items=0)), COSTS) == float("inf")


def test_uneven_nodes_serve_what_each_of_them_serves(scenario: Scenario) -> None:
    uneven = replace(scenario, cluster=replace(scenario.cluster, nodes=3, groups=7))
    batch = uneven.cluster.batch_items
    weight = uneven.sessions.item_weight()
    expected = sum(COSTS.items_per_s(groups, batch, weight) for groups in (3, 2, 2))
    assert serves(uneven, COSTS) == pytest.approx(expected)


@pytest.mark.parametrize("queue_items", [0, 20_000])
def test_the_frame_of_the_map_is_the_storm_itself(scenario: Scenario, queue_items: int) -> None:
    asked = replace(scenario, cluster=replace(scenario.cluster, queue_items=queue_items))
    around = grid(replace(asked, leader_changes=(LeaderChange(at_s=1.0),)), COSTS)
    row, column = around.here
    assert around.scenarios[row][column].cluster == asked.cluster
    assert {len(line) for line in around.scenarios} == {len(around.columns)}
    assert len(around.scenarios) == len(around.rows)
    assert all(not each.leader_changes for line in around.scenarios for each in line)
