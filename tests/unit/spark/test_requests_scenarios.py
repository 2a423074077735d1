"""Scenarios by the model of requests: the same clients as the other models have, and nothing left out in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from metad_spark.calibration import Calibration
from metad_spark.cli import main
from metad_spark.errors import ScenarioError
from metad_spark.models.node_input import node_inputs
from metad_spark.models.population import firsts_us
from metad_spark.pipeline import progress
from metad_spark.requests import slices
from metad_spark.requests.costs import load_costs
from metad_spark.requests.simulate import simulate
from metad_spark.requests.slices import (
    Estimate,
    costs_apart,
    estimated,
    sampled,
    slices_of,
    storm_of_scenario,
    unknown,
)
from metad_spark.run_verify import sliced
from metad_spark.scenario import (
    Brokers,
    Cluster,
    Disconnect,
    Expiry,
    LeaderChange,
    Region,
    Returns,
    Scenario,
    Sessions,
    Transports,
)

SCENARIO = Scenario(
    clients=4_000,
    horizon_s=60,
    regions=(Region(name="near", share=0.75, rtt_ms=20), Region(name="far", share=0.25, rtt_ms=100)),
    transports=Transports(tcp_tls=0.5, quic=0.5),
    disconnect=Disconnect(spread_s=2.0),
    brokers=Brokers(count=4, linger_ms=5),
    cluster=Cluster(nodes=2, groups=6),
)


def _with(**changes: object) -> Scenario:
    return Scenario(**{field: getattr(SCENARIO, field) for field in SCENARIO.__struct_fields__} | changes)  # type: ignore[arg-type]


def test_clients_are_those_of_the_other_models() -> None:
    storm = storm_of_scenario(SCENARIO, 3)
    inputs = node_inputs(SCENARIO, Calibration(turn_s=0.001, item_s=1e-5))
    expected = np.concatenate([firsts_us(node_input, 3) for node_input in inputs]) * 1000
    np.testing.assert_array_equal(storm.begin_ns, expected)
    kinds = storm.settings.population.kinds
    assert {(kind.region, kind.rtt_ms) for kind in kinds} == {
        *(("near", 60.0), ("near", 40.0)),
        *(("far", 300.0), ("far", 200.0)),
    }
    counted = np.bincount(storm.kinds, minlength=len(kinds)) / SCENARIO.clients
    np.testing.assert_allclose(counted, [kind.share for kind in kinds], atol=0.03)
    assert (storm.nodes, storm.data_groups, storm.returning) == (2, 6, 4_000)


def test_whoever_comes_alone_waits_for_a_handshake() -> None:
    alone = _with(clients=60, disconnect=Disconnect(spread_s=30.0))
    storm = storm_of_scenario(alone, 0)
    found = simulate(storm, costs_apart(load_costs(), storm))
    assert (found.restored, found.attempts_per_session) == (60, 1.0)
    assert found.t99_s is not None
    assert 0.3 <= found.t99_s < 0.4  # three round trips of the far region
    assert found.storm_s[1] is not None
    assert 20 < found.storm_s[1] < 31, "from the trigger on, not from the client's own begin"


def test_clients_do_as_they_are_told_only_where_the_scenario_says_so() -> None:
    assert storm_of_scenario(SCENARIO, 0).settings.policy == "population"
    assert storm_of_scenario(_with(returns=Returns(of_capacity=0.9)), 0).settings.policy == "return-slot"


def test_what_it_does_not_know_is_named() -> None:
    assert list(unknown(SCENARIO)) == []
    lossy = (Region(name="here", share=1.0, rtt_ms=20, loss=0.1),)
    assert list(unknown(_with(regions=lossy, leader_changes=(LeaderChange(at_s=1),)))) == []
    bounded = _with(cluster=Cluster(nodes=2, groups=6, queue_items=500))
    assert list(unknown(bounded)) == ["a bound of queues by items: the server bounds them by time"]


def test_the_command_gives_what_it_knows_and_refuses_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "storm.json"
    asked = ["simulate", "--scenario", "small", "--clients", "2000", "--seeds", "2"]
    assert main([*asked, "--json", str(told)]) == 0
    found = json.loads(told.read_text())
    assert (found["model"], found["clients"], found["restored"], found["runner"]) == ("requests", 2000, 2000, "local")
    assert 0 < found["t50_s"] <= found["t99_s"] <= found["t999_s"]
    assert found["p999_s"] <= found["t999_s"]
    assert len(found["by_seed"]) == 2
    assert found["left_out"] == ["a bound of queues by items: the server bounds them by time"]
    assert not found["doubt"]
    assert (found["slices"], found["sampled"]) == (1, 1)
    assert main(["simulate", "--model", "vector", "--scenario", "small", "--sample", "1"]) == 2
    assert "--sample is of --model requests" in capsys.readouterr().err


def test_a_storm_in_which_many_are_turned_away_is_less_certain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "storm.json"

    def refused(*given: Any) -> Estimate:
        return msgspec.structs.replace(estimated(*given), rejected=101)

    monkeypatch.setattr(slices, "estimated", refused)
    asked = ["simulate", "--model", "requests", "--scenario", "small", "--clients", "2000"]
    assert main([*asked, "--json", str(told)]) == 0
    assert json.loads(told.read_text())["doubt"].startswith("Many are turned away")
    assert "Many are turned away" in "".join(capsys.readouterr())


def test_a_long_simulation_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.0)
    assert main(["simulate", "--model", "requests", "--scenario", "small", "--clients", "2000"]) == 0
    first, *_, last = [line for line in capsys.readouterr().err.splitlines() if "simulated seconds" in line]
    assert first == "seed 0: 0.0 of at most 120 simulated seconds, 0 of 2,000 clients back"
    assert ", 0 of 2,000" not in last


# --- slices


@pytest.mark.parametrize(("nodes", "sizes"), [(1, [1]), (3, [3]), (5, [5]), (6, [3, 3]), (8, [4, 4]), (10, [3, 3, 4])])
def test_every_node_and_client_is_in_one_slice_and_groups_keep_their_slots(nodes: int, sizes: list[int]) -> None:
    scenario = _with(clients=100_003, cluster=Cluster(nodes=nodes, groups=4 * nodes + 1))
    found = slices_of(scenario)
    assert [part.nodes for part in found] == sizes
    assert sum(part.clients for part in found) == 100_003
    assert sum(len(part.slots) for part in found) == 4 * nodes + 1
    assert sum(sum(part.slots) for part in found) == 1_024
    for part in found:
        assert part.clients == pytest.approx(100_003 * sum(part.slots) / 1_024, abs=1)


def test_a_slice_has_the_groups_of_its_nodes_and_its_part_of_the_brokers() -> None:
    scenario = _with(clients=60_000, cluster=Cluster(nodes=6, groups=18), brokers=Brokers(count=4, concurrency=90))
    part = slices_of(scenario)[1]
    storm = storm_of_scenario(scenario, 1, part)
    assert (storm.nodes, storm.data_groups, storm.lane_calls) == (3, 9, 5)
    assert storm.broker_share == pytest.approx(part.clients / 60_000)
    counted = np.bincount(storm.groups) / part.clients
    np.testing.assert_allclose(counted, np.array(part.slots) / sum(part.slots), atol=0.01)


def test_one_slice_is_the_storm_to_the_last_bit() -> None:
    found, whole = sliced(_with(cluster=Cluster(nodes=3, groups=6)))
    assert (found.restored, found.attempts_per_client) == (whole.restored, whole.attempts_per_session)
    assert found.t999_s == pytest.approx(whole.storm_s[2], rel=0.002)  # a bin
    assert found.errors_pct == dict.fromkeys(("t50_s", "t99_s", "t999_s", "attempts_per_client"), 0.0)


def test_rows_of_slices_add_up_to_the_storm() -> None:
    forever = Sessions(expiries=(Expiry(share=1.0, expiry_s=float("inf")),))
    scenario = _with(clients=9_000, client_timeout_s=0.5, cluster=Cluster(nodes=6, groups=12), sessions=forever)
    parts = slices_of(scenario)
    tasks = slices.tasks_of("run", scenario, load_costs(), parts, [1, 2])
    batches = [slices.simulated(task) for task in tasks.to_pylist()]
    assert batches[0].equals(slices.simulated(tasks.to_pylist()[0])), "the same task gives the same rows"
    sums = slices.summed(batches)
    for key, (task, rows) in zip(sums.clients, zip(tasks.to_pylist(), batches, strict=True), strict=True):
        counts = {name: sum(rows[name].to_pylist()) for name in slices.COUNTS}
        assert counts["clients"] == task["clients"] == sums.clients[key]
        assert counts["attempts"] == counts["restored"] + counts["refused"] + counts["timeouts"]
        assert sums.waits[key].sum() == sums.storm[key].sum() == counts["restored"] == task["clients"]
        assert set(rows["kind"].to_pylist()) == {"near", "far"}
    found = estimated(sums, 1, scenario)
    assert found.restored == 9_000


def test_a_sample_says_how_far_it_may_be_off() -> None:
    scenario = _with(clients=30_000, cluster=Cluster(nodes=30, groups=60))
    assert len(sampled(scenario, None, 1)) == 10
    parts = sampled(scenario, 3, 1)
    assert len(parts) == 3
    assert parts == sampled(scenario, 3, 1) != sampled(scenario, 3, 2)
    tasks = slices.tasks_of("run", scenario, load_costs(), parts, [1])
    sums = slices.summed([slices.simulated(task) for task in tasks.to_pylist()])
    found = estimated(sums, 1, scenario)
    assert found.restored == 30_000
    assert found.errors_pct["t50_s"] is not None
    assert 0 < found.errors_pct["t50_s"] < 20
    (one,) = {key for key in sums.clients if key[1] == parts[0].number}
    alone = slices.summed([slices.simulated(tasks.to_pylist()[0])])
    assert estimated(alone, 1, scenario).errors_pct["t50_s"] is None
    assert alone.clients[one] == parts[0].clients


def test_a_slice_in_which_a_leader_changes_is_in_every_sample_and_stands_for_itself_only() -> None:
    changes = (LeaderChange(at_s=1.0, outage_s=2.0, nodes=2),)
    scenario = _with(clients=30_000, cluster=Cluster(nodes=30, groups=60), leader_changes=changes)
    assert slices.struck(scenario) == {9}
    assert [change.node for change in storm_of_scenario(scenario, 1, slices_of(scenario)[9]).leader_changes] == [2, 1]
    assert storm_of_scenario(scenario, 1, slices_of(scenario)[8]).leader_changes == ()
    numbers = [{part.number for part in sampled(scenario, 3, seed)} for seed in range(20)]
    assert all(9 in each and len(each) == 3 for each in numbers)
    assert len(set.union(*numbers)) > 6
    assert len(sampled(scenario, 1, 1)) == 2, "and one of the others"
    keys = [(1, number) for number in (2, 5, 9)]
    clients = {key: slices_of(scenario)[key[1]].clients for key in keys}
    told = {name: dict.fromkeys(keys, 0) for name in slices.COUNTS} | {"clients": clients, "restored": clients}
    told["attempts"] = {key: count * (11 if key[1] == 9 else 1) for key, count in clients.items()}
    nothing = dict.fromkeys(keys, np.ones(slices.BINS))
    found = estimated(slices.Sums(**told, waits=nothing, storm=nothing), 1, scenario)
    # A tenth of the clients tries eleven times, all others once.
    assert found.attempts_per_client == pytest.approx(2.0, rel=0.01)
    assert found.restored == 30_000


def test_a_jackknife_is_that_of_a_mean_where_the_number_is_one() -> None:
    """Of a mean it is the standard error, which is known."""
    values = np.array([3.0, 5.0, 8.0, 4.0])
    left_out = [float(np.delete(values, at).mean()) for at in range(4)]
    expected = 2 * values.std(ddof=1) / np.sqrt(4) * np.sqrt(1 - 4 / 10) / values.mean() * 100
    assert slices._jackknife_pct(left_out, float(values.mean()), 10) == pytest.approx(expected)


def test_a_large_storm_is_sampled_and_one_that_is_too_large_says_what_to_do() -> None:
    large = _with(clients=100_000_000, cluster=Cluster(nodes=30, groups=120))
    assert len(sampled(large, None, 0)) == 2
    with pytest.raises(ScenarioError, match=r"has 101,562,500 clients.* can hold 12,000,000: .* 250 nodes"):
        sampled(_with(clients=1_000_000_000, cluster=Cluster(nodes=30, groups=120)), 2, 0)


def test_clients_wait_at_the_broker_where_so_many_calls_are_in_flight() -> None:
    """120 brokers sent 2 to 35 times the requests that brokers send: each client that came alone was one."""
    scenario = _with(clients=20_000, brokers=Brokers(count=40), disconnect=Disconnect(spread_s=0.5))
    storm = storm_of_scenario(scenario, 1)
    any_number = msgspec.structs.replace(storm, lane_calls=0)
    few = msgspec.structs.replace(storm, lane_calls=1)
    costs = costs_apart(load_costs(), storm)
    calls = [sum(crew.calls for crew in slices.play(each, costs, 1).processes) for each in (any_number, few)]
    assert calls[1] < calls[0] / 2
    found = simulate(few, costs, 1)
    assert (found.restored, found.attempts_per_session) == (20_000, 1.0)


def test_whoever_waits_too_long_at_the_broker_gives_up_and_is_counted() -> None:
    storm = storm_of_scenario(_with(clients=30_000, client_timeout_s=0.3, disconnect=Disconnect(spread_s=0.1)), 1)
    few = msgspec.structs.replace(storm, lane_calls=1)
    costs = msgspec.structs.replace(costs_apart(load_costs(), storm), item_s=2e-4)
    found = slices.play(few, costs, 1).clients
    assert found.timeouts > 0
    assert found.sent + found.again == found.restored + found.refused + found.timeouts
    assert found.told("timeouts").sum() == found.timeouts
    assert found.told("attempts").sum() == found.sent + found.again == found.attempts.sum()
