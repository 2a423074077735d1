"""What Spark's workers make of nodes and storms is, bit for bit, what this process makes of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from spark_rig import simulated, write_storm

from metad_spark import sliced
from metad_spark.brokers.runner import Task, run_here
from metad_spark.brokers.storm import simulate_storms
from metad_spark.calibration import load_calibration
from metad_spark.errors import SparkFailed
from metad_spark.models.node_input import node_inputs
from metad_spark.pipeline import work
from metad_spark.pipeline.context import Context
from metad_spark.pipeline.slices import collected, rows_of, summed
from metad_spark.reduced import sweep_here
from metad_spark.requests import slices
from metad_spark.requests.costs import load_costs
from metad_spark.scenario import Cluster, Scenario, load_scenario
from metad_spark.tables.store import Store


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


def test_slices_of_the_model_of_requests_add_up_to_the_same(context: Context, scenario: Scenario) -> None:
    """A task is a row of a DataFrame, and what slices give are rows that queries add up."""
    wanted = replace(scenario, clients=3_000, cluster=Cluster(nodes=9, groups=18), leader_changes=())
    tasks = slices.tasks_of("run", wanted, load_costs(), slices.slices_of(wanted), [1, 2])
    here = [slices.simulated(task) for task in tasks.to_pylist()]
    there = rows_of(context.session, tasks)
    assert there.rdd.getNumPartitions() == tasks.num_rows == 6
    back = {row[0]: row[1] for row in there.groupBy("kind").sum("restored").collect()}
    assert sum(back.values()) == 6_000
    assert back.keys() == {"near", "far"}
    ours, (theirs, curve) = slices.summed(here), summed(context.session, tasks)
    assert sum(row["restored"] for row in curve) == 6_000
    rows = collected(context.session, tasks)
    assert rows.num_rows == sum(batch.num_rows for batch in here)
    kept = slices.summed(rows.to_batches())
    for seed in (1, 2):
        assert slices.estimated(theirs, seed, wanted) == slices.estimated(ours, seed, wanted)
        assert slices.estimated(kept, seed, wanted) == slices.estimated(ours, seed, wanted)


def test_a_storm_of_a_sweep_is_written_by_the_worker_that_ends_its_last_slice(
    context: Context, scenario: Scenario, tmp_path: Path
) -> None:
    wanted = replace(scenario, clients=3_000, cluster=Cluster(nodes=9, groups=18), leader_changes=())
    there, here = Store(tmp_path / "there"), Store(tmp_path / "here")
    asked = [sliced.asked_of(wanted, load_costs(), seed, sample) for seed, sample in ((1, None), (2, 2))]
    for store in (there, here):
        store.prepare()
        tasks = [
            work.slice_question(question, part.number, str(store.folder), "spark")
            for question, parts in asked
            for part in parts
        ]
        assert len(tasks) == 5
        if store is there:
            context.each("slices", work.slice_written, tasks)
        else:
            for task in reversed(tasks):
                work.slice_written(task)
        assert {path.name for path in store.folder.iterdir()} == {f"run={question.run}" for question, _ in asked}
    for question, _ in asked:
        assert there.read(question.run).storm == here.read(question.run).storm
        assert there.read(question.run).storm.clients == 3_000


def test_the_command_simulates_slices_by_spark_as_here(context: Context, tmp_path: Path) -> None:
    asked = ("--clients", "2000", "--sample", "1")
    by_spark = simulated(tmp_path, *asked, "--runner", "spark", here=True)
    here = simulated(tmp_path, *asked, "--runner", "local", here=True)
    assert (by_spark["runner"], here["runner"]) == ("spark", "local")
    differ = {key for key in here if here[key] != by_spark[key]}
    assert differ <= {"runner", "runner_why", "wall_s", "rss_max_mib"}
