"""Scenarios, node inputs, results, brokers and nodes in agreement, calibration, theory: what is around the models."""

from __future__ import annotations

from pathlib import Path

import exact_storm
import msgspec
import numpy as np
import pytest
import small_storms

from metad_spark import calibrate
from metad_spark.brokers import coupling
from metad_spark.brokers.coupling import relax, run_here
from metad_spark.calibration import Calibration, load_calibration
from metad_spark.errors import CalibrationError, ScenarioError, SimulationError
from metad_spark.models import vector
from metad_spark.models.histogram import counted, quantile_s
from metad_spark.models.node_input import NodeInput, apportioned, node_inputs, shares
from metad_spark.models.results import NodeResult, added, merge
from metad_spark.proofs import anchors, laws, theory, trials
from metad_spark.proofs.proof import Proof
from metad_spark.reduced import reduced
from metad_spark.run_verify import cores, shapes, verify
from metad_spark.scenario import Brokers, Cluster, Scenario, Tenants, load_scenario, scenario_names


@pytest.mark.parametrize("name", scenario_names())
def test_shipped_scenarios_are_read_and_make_node_inputs(name: str) -> None:
    scenario = load_scenario(name)
    inputs = node_inputs(scenario, load_calibration(scenario.calibration))
    assert sum(node_input.clients for node_input in inputs) == scenario.clients
    assert sum(node_input.groups for node_input in inputs) == scenario.cluster.groups
    firsts = [node_input.first_client for node_input in inputs]
    assert firsts == np.cumsum([0, *(node_input.clients for node_input in inputs)])[:-1].tolist()
    assert NodeInput.decode(inputs[0].encode()) == inputs[0]
    alike = node_inputs(scenario, load_calibration(scenario.calibration), merged=True)
    assert len(alike) < len(inputs)
    assert sum(node_input.clients * node_input.copies for node_input in alike) == pytest.approx(
        scenario.clients, rel=1e-12
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("clients = 0", "clients must be from 1"),
        ('clients = "many"', r"Expected `int`, got `str` - at `\$.clients`"),
        ("surprise = 1", "unknown field `surprise`; there are name, description, clients, horizon_s"),
        ("[cluster]\nsurprise = 1", r"`\$.cluster`; there are nodes, groups, clients, batch_items, queue_items"),
        ("[[sdks]]\nsurprise = 1", r"`\$.sdks\[0\]`; there are name, share, family"),
        ("[retry_budget]\nburst = 2\nintervals = 1", "there are burst, interval_s"),
        ('regions = [{ name = "a", share = 0.5, rtt_ms = 20 }]', "regions: shares must be 0 or more and add up to 1"),
        ('regions = [{ name = "a", share = 1, rtt_ms = 0.1 }]', "regions.rtt_ms must be from 1"),
        ('sdks = [{ name = "a", share = 1, family = "foo" }]', "family must be one of none, exponential"),
        ('sdks = [{ name = "a", share = 1, family = "full", cap_s = 0.5 }]', "cap_s"),
        ("[cluster]\nnodes = 5\ngroups = 3", "cluster.groups must be cluster.nodes or more"),
        ("[transports]\nquic = 0.5", "transports: shares"),
        ("[retry_budget]\nburst = 0", "burst must be at least 1"),
        ("horizon_s = 1e9", "horizon_s must be from 1 to 3600"),
        ("[[leader_changes]]\nat_s = 1\nnodes = 31", "leader_changes.nodes must be at most cluster.nodes"),
        ("clients = ", "not TOML"),
        ("[transports]\ntcp_tls = nan", "transports.tcp_tls must be a finite number"),
        ("[transports]\ntcp_tls = -1\nquic = 2", "transports: shares must be 0 or more"),
        ("[transports]\nquic = inf", "transports.quic must be a finite number"),
        ("horizon_s = nan", "horizon_s must be a finite number"),
        ("[[leader_changes]]\nat_s = nan", r"leader_changes\[0\].at_s must be a finite number"),
        ("[retry_budget]\nburst = 2\ninterval_s = -inf", "retry_budget.interval_s must be a finite number"),
        ("[retry_budget]\nburst = 2\ninterval_s = -1.0", "interval_s"),
        ("[brokers]\nlinger_ms = -1", "brokers.linger_ms must be from 0"),
        ("[brokers]\nconnects_per_s = -5.0", "brokers.connects_per_s must be from 0"),
        ("[cluster]\nqueue_items = -1", "cluster.queue_items must be from 0"),
        ("[returns]\nof_capacity = -0.5", "returns.of_capacity must be from 0"),
        ("[tenants]\ncount = -1", "tenants.count must be from 0"),
        ('sdks = [{ name = "a", share = nan, family = "full" }]', r"sdks\[0\].share must be a finite number"),
    ],
)
def test_a_scenario_that_makes_no_sense_is_refused_by_its_key(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "storm.toml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=says) as caught:
        load_scenario(path)
    assert str(path) in str(caught.value)


def test_a_scenario_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ScenarioError, match=r"give a TOML file, or one of .*default"):
        load_scenario("no such storm")


def test_a_calibration_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "costs.toml"
    path.write_text("turn_s = 0.0\nitem_s = 0.0")
    with pytest.raises(CalibrationError, match="must not all be 0"):
        load_calibration(path)


def test_shares_of_tenants_are_near_the_declared_ones_unless_one_is_large() -> None:
    scenario = load_scenario("default")
    declared = shares(msgspec.structs.replace(scenario, tenants=Tenants(count=0)))
    many = shares(msgspec.structs.replace(scenario, tenants=Tenants(count=10_000, exponent=0.8)))
    few = shares(msgspec.structs.replace(scenario, tenants=Tenants(count=3, exponent=2.0)))
    for found in (declared, many, few):
        assert sum(found.values()) == pytest.approx(1.0)
    assert max(abs(many.get(kind, 0.0) - share) for kind, share in declared.items()) < 0.03
    assert max(few.values()) > 0.5


def test_whole_numbers_are_apportioned_without_loss() -> None:
    assert apportioned(10, [1, 1, 1]) == [4, 3, 3]
    assert apportioned(7, [0.5, 0.25, 0.25]) == [3, 2, 2]
    assert sum(apportioned(1_000_003, [0.1] * 7)) == 1_000_003


def test_quantiles_are_those_of_the_times() -> None:
    rng = np.random.default_rng(5)
    times_us = (rng.lognormal(15.5, 1.0, 200_000)).astype(np.int64)
    counts = counted(times_us)
    for share in (0.01, 0.5, 0.99, 0.999):
        assert quantile_s(counts, share, len(times_us)) == pytest.approx(np.quantile(times_us, share) * 1e-6, rel=0.002)
    assert quantile_s(counts, 0.999, len(times_us) * 1.1) is None


def test_results_add_up_and_come_back_from_bytes() -> None:
    node_input = trials.input_of(small_storms.EQUAL[0], small_storms.NOISY)
    parts = [msgspec.structs.replace(node_input, node=node) for node in range(3)]
    results = run_here(parts, 1)
    again = [NodeResult.decode(result.encode()) for result in results]
    storm = merge(again, node_input.regions, [(0.5, 2.0), (0.5, float("inf"))])
    assert storm == merge(results, node_input.regions, [(0.5, 2.0), (0.5, float("inf"))])
    assert storm.clients == 3 * node_input.clients
    assert storm.attempts_per_client == pytest.approx(sum(r.attempts for r in results) / storm.clients)
    assert storm.queue_max == max(result.queue_max for result in results)
    copied = added([msgspec.structs.replace(results[0], copies=3)])
    assert copied.attempts == 3 * results[0].attempts
    with pytest.raises(SimulationError, match="nothing to merge"):
        merge([], node_input.regions)


def test_a_storm_that_nobody_ends_has_collapsed_and_one_cut_short_has_not() -> None:
    endless = next(scenario for scenario in small_storms.EQUAL if scenario.name == "endless queue")
    node_input = trials.input_of(endless, small_storms.NOISY)
    storm = merge(run_here([node_input], 1), node_input.regions)
    assert storm.collapsed
    assert storm.t999_s is None
    short = next(scenario for scenario in small_storms.EQUAL if scenario.name == "cut short")
    node_input = trials.input_of(short, small_storms.NOISY)
    assert not merge(run_here([node_input], 1), node_input.regions).collapsed


def _busy(connects_per_s: float) -> Scenario:
    base = small_storms.EQUAL[0]
    return msgspec.structs.replace(base, brokers=Brokers(count=4, connects_per_s=connects_per_s))


def test_brokers_that_are_not_busy_keep_nobody_waiting() -> None:
    relaxed = relax(_busy(0.0), small_storms.NOISY, None, 1)
    assert relaxed.settled
    assert len(relaxed.passes) == 1
    assert relaxed.inputs[0].doors == ()


def test_busy_doors_need_no_agreement() -> None:
    scenario = _busy(300.0)
    relaxed = relax(scenario, small_storms.NOISY, None, 1)
    assert relaxed.settled
    assert len(relaxed.passes) == 1
    assert relaxed.passes[-1].delay_max_s > 1.0
    total = added(relaxed.results)
    # 1,200 handshakes a second are all that the brokers can do.
    assert quantile_s(total.storm, 0.999, total.clients) > scenario.clients / 1_200  # type: ignore[operator]
    assert total.passed_by_s.sum(axis=0).max() <= 1_200 + 4


def test_a_node_has_its_share_of_every_door() -> None:
    scenario = msgspec.structs.replace(_busy(300.0), cluster=Cluster(nodes=3, groups=6))
    inputs = node_inputs(scenario, small_storms.NOISY)
    rates = sum(node_input.doors_per_s()[:, 0] for node_input in inputs)
    assert rates == pytest.approx(300.0 * np.array(inputs[0].brokers), rel=1e-6)
    # A share that is slower than a handshake in 20 ms is not cut into doors that are slower still.
    slow = msgspec.structs.replace(scenario, brokers=Brokers(count=40, connects_per_s=9))
    (first, *_) = node_inputs(slow, small_storms.NOISY)
    assert all(1 <= doors < brokers for doors, brokers in zip(first.doors, first.brokers, strict=True))
    assert max(max(row) for row in first.door_ns) <= 20_000_001 * 2


def test_the_same_brokers_settle_the_oracle() -> None:
    scenario = msgspec.structs.replace(
        _busy(0.0), clients=3_000, brokers=Brokers(count=4, batch_items=1, concurrency=1)
    )
    one = relax(
        scenario, small_storms.NOISY, None, 1, lambda inputs, seed: [exact_storm.simulate(one, seed) for one in inputs]
    )
    other = relax(scenario, small_storms.NOISY, None, 1)
    assert one.inputs[0].doors
    assert [result.encode() for result in one.results] == [result.encode() for result in other.results]


def test_requests_in_flight_bound_what_brokers_pass_on() -> None:
    few = msgspec.structs.replace(_busy(0.0), brokers=Brokers(count=4, batch_items=8, concurrency=1))
    relaxed = relax(few, small_storms.NOISY, None, 1)
    assert relaxed.passes[-1].delay_max_s > 0.1
    assert relaxed.settled
    assert len(relaxed.passes) <= coupling.PASSES_MAX


def test_theory_agrees_with_itself() -> None:
    assert theory.bulk_response_s(800, 0.001, 0.0, 1) == pytest.approx(theory.md1_response_s(800, 0.001), rel=1e-9)
    assert theory.bulk_response_s(1e-6, 0.003, 1e-4, 8) == pytest.approx(0.0031, rel=1e-6)
    with pytest.raises(SimulationError, match="no mean"):
        theory.md1_response_s(1_000, 0.001)
    with pytest.raises(SimulationError, match="no mean"):
        theory.bulk_response_s(3_000, 0.003, 0.0, 8)


def test_published_shapes_are_reproduced() -> None:
    heard: list[Proof] = []
    proofs = verify(heard.append, only=["brooker"])
    assert proofs == heard
    proofs += shapes(0.1)
    assert len(proofs) == 9
    assert all(proof.passed for proof in proofs), [proof for proof in proofs if not proof.passed]
    assert all(anchors.stays_down(trigger, 0) == trigger.stays_down for trigger in anchors.METASTABLE_CASES)


def test_storms_obey_their_laws() -> None:
    proofs = [*verify(only=["laws"]), *cores(100_000)]
    assert [proof for proof in proofs if not proof.passed] == []
    assert {proof.bar for proof in proofs} == {0.01}


@pytest.mark.long
def test_proofs_hold_at_their_full_size() -> None:
    proofs = verify(only=["shapes", "metastable", "cores"])
    assert len(proofs) == 13
    assert all(proof.passed for proof in proofs), [proof for proof in proofs if not proof.passed]


def test_a_law_that_is_broken_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate = vector.simulate

    def has_no_budget(given: NodeInput, seed: int) -> NodeResult:
        return simulate(msgspec.structs.replace(given, budget=None), seed)

    def forgets_a_tenth(given: NodeInput, seed: int) -> NodeResult:
        result = simulate(given, seed)
        return msgspec.structs.replace(result, rejected_by_s=result.rejected_by_s * 0.9)

    monkeypatch.setattr(laws.vector, "simulate", has_no_budget)
    assert [proof.passed for proof in laws._budget()] == [False, False]
    monkeypatch.setattr(laws.vector, "simulate", forgets_a_tenth)
    assert not next(laws._conservation()).passed


def _report(batch: int, cpu_s: float, groups: int = 1, replicas: int = 3) -> dict[str, object]:
    per_s = batch / (cpu_s * 1.1)
    return {
        "batch": batch, "in_flight": 1, "items_per_s": per_s, "entries_per_s": per_s / batch * groups,
        "server_cpu_us_per_item": cpu_s / batch * 1e6, "replicas": replicas, "fsync": True, "nodes": replicas,
        "verb": "session.takeover", "keys": 1_000, "p50_ms": cpu_s * 1e3, "p99_ms": cpu_s * 2e3, "p999_ms": cpu_s * 3e3,
        "max_ms": cpu_s * 4e3, "setting": {"cpus": 2, "cpu": "some"}, "versions": {"python": "3.11"},
    }  # fmt: skip


def test_a_calibration_recovers_what_it_was_made_from(tmp_path: Path) -> None:
    cluster = [_report(batch, 0.004 + batch * 7e-6) for batch in (32, 256, 1_000)]
    alone = [_report(1_000, 0.005 + groups * 0.0004, groups, 1) for groups in (1, 4)]
    found = calibrate.fit(cluster, alone, name="made up")
    assert found.item_s == pytest.approx(7e-6, rel=0.01)
    assert found.entry_s == pytest.approx(0.0012, rel=0.01)
    assert found.turn_s == pytest.approx(0.0028, rel=0.01)
    assert found.r2 > 0.999
    path = tmp_path / "made_up.toml"
    path.write_text(calibrate.to_toml(found))
    assert load_calibration(path) == found
    with pytest.raises(CalibrationError, match="at least two batch sizes"):
        calibrate.fit(cluster[:1])
    with pytest.raises(CalibrationError, match="not a report of metad-perf load"):
        calibrate.fit([{"batch": 100}])


def test_the_default_calibration_is_a_measurement() -> None:
    found = load_calibration()
    assert isinstance(found, Calibration)
    assert "metad-perf load" in found.setting
    assert found.fsync
    assert 10_000 < found.items_per_s(4, 1_000) < 1_000_000


def test_a_storm_at_a_reduced_scale_takes_as_long() -> None:
    scenario = msgspec.structs.replace(
        trials.NEAR[5], brokers=Brokers(count=16, linger_ms=2, connects_per_s=8_000, batch_items=500)
    )
    smaller, costs, scale = reduced(scenario, trials.STEADY, scenario.clients // 10)
    assert scale == pytest.approx(0.1, rel=0.02)
    assert smaller.clients == pytest.approx(scenario.clients * scale, abs=1)
    one = relax(scenario, trials.STEADY, None, 3)
    other = relax(smaller, costs, None, 3)
    totals = [added(relaxed.results) for relaxed in (one, other)]
    for share in (0.5, 0.999):
        expected, measured = (quantile_s(total.storm, share, total.clients) for total in totals)
        assert measured == pytest.approx(expected, rel=0.01)
    attempts = [total.attempts / total.clients for total in totals]
    assert attempts[1] == pytest.approx(attempts[0], rel=0.01)


def test_a_small_storm_is_not_reduced() -> None:
    scenario = trials.NEAR[0]
    assert reduced(scenario, trials.STEADY, scenario.clients) == (scenario, trials.STEADY, 1.0)
    one_by_one = msgspec.structs.replace(scenario, cluster=msgspec.structs.replace(scenario.cluster, batch_items=1))
    assert reduced(one_by_one, trials.STEADY, 100) == (one_by_one, trials.STEADY, 1.0)
