"""What Spark's workers make of nodes and storms is, bit for bit, what this process makes of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from spark_rig import write_storm

from metad_spark.brokers.runner import Task, run_here
from metad_spark.brokers.storm import simulate_storms
from metad_spark.calibration import load_calibration
from metad_spark.errors import SparkFailed
from metad_spark.models.node_input import node_inputs
from metad_spark.pipeline.context import Context
from metad_spark.reduced import sweep_here
from metad_spark.scenario import Scenario, load_scenario


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    return load_scenario(write_storm(tmp_path))


def test_nodes_come_back_as_they_are_here_and_in_order(context: Context, scenario: Scenario) -> None:
    inputs = node_inputs(scenario, load_calibration(scenario.calibration))
    tasks = [Task(input=node_input, seed=seed) for seed in (3, 4) for node_input in inputs]
    there = [result.encode() for result in context.run(tasks)]
    assert there == [result.encode() for result in run_here(tasks)]
    assert len(set(there)) == len(tasks)  # all different, so their order is seen


def test_the_storm_is_one_worth_comparing(scenario: Scenario) -> None:
    storms = simulate_storms(scenario, load_calibration(scenario.calibration), seeds=[0], run=run_here)
    assert storms.middle.rejected > 0
    assert storms.middle.timeouts > 0
    assert storms.delay_max_s > 0


def test_seeds_differ_and_the_middle_is_one_of_them(context: Context, scenario: Scenario) -> None:
    storms = simulate_storms(scenario, load_calibration(scenario.calibration), seeds=[0, 1, 2], run=context.run)
    # Quantiles come from the bins of a histogram: two seeds may well have the same.
    assert len({storm.attempts_per_client for storm in storms.by_seed}) == 3
    assert storms.middle.t999_s == sorted(storm.t999_s or float("inf") for storm in storms.by_seed)[1]


def test_sweeps_answer_in_order(context: Context, scenario: Scenario) -> None:
    calibration = load_calibration(scenario.calibration)
    asked = [msgspec.structs.replace(scenario, clients=clients) for clients in (600, 6000, 1200)]
    assert context.sweep(asked, calibration) == sweep_here(asked, calibration)
    assert [storm.clients for storm in context.sweep(asked, calibration)] == [600, 6000, 1200]


def test_what_fails_in_a_worker_is_told_in_one_line(context: Context, scenario: Scenario) -> None:
    node_input = node_inputs(scenario, load_calibration(scenario.calibration))[0]
    many = msgspec.structs.replace(
        node_input, kinds=(msgspec.structs.replace(node_input.kinds[0], clients=200_000_000),)
    )
    with pytest.raises(SparkFailed, match="the vector model holds") as caught:
        context.run([Task(input=many, seed=0)])
    assert "\n" not in str(caught.value)
