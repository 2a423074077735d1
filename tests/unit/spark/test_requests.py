"""The model of requests: its clock, its brokers and nodes, and that it begins as the harness does."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metad_perf.storm.plan import FAMILIES, POLICIES, POPULATION, RETURN_SLOT, places
from metad_perf.storm.plan import TRIGGERS as HARNESS_TRIGGERS
from metad_perf.storm.plan import Storm as HarnessStorm
from metad_perf.storm.population import Clients
from metad_spark.errors import CalibrationError, ScenarioError
from metad_spark.requests.cores import Job, Machine, Process
from metad_spark.requests.costs import Costs, load_costs, to_toml
from metad_spark.requests.messages import ITEM_BYTES, NOBODY, Entry, Request
from metad_spark.requests.node import Cluster, Node
from metad_spark.requests.simulate import Outcome, quantiles, restored_by_s, simulate
from metad_spark.requests.storm import TRIGGERS, Settings, Storm, storm_of
from metad_wire.policy import Admission
from metad_wire.policy.returns import Returns

COSTS = Costs(
    cores=2,
    request_s=60e-6,
    item_s=8e-6,
    refusal_s=15e-6,
    refused_item_s=0.5e-6,
    entry_s=3e-4,
    follower_entry_s=2e-4,
    follower_item_s=6e-6,
    call_s=1e-4,
    attempt_s=1e-6,
    back_s=1e-6,
    fsync_s=(0.001, 0.002),
)


def _report(**settings: Any) -> dict[str, Any]:
    storm = HarnessStorm(**{"sessions": 20_000, "brokers": 4, "processes": 2, "limit_s": 120.0, **settings}).checked()
    chosen = msgspec.to_builtins(storm) | {"replay": False, "trace": False}
    return {"settings": chosen, "nodes": 3, "groups": "data=3,offset=1", "fsync": True}


def _run(costs: Costs = COSTS, seed: int = 0, **settings: Any) -> Outcome:
    return simulate(storm_of(_report(**settings)), costs, seed)


# --- the clock


def _timed(machine: Machine, process: Process, cost_s: float, ends: list[float]) -> None:
    process.add(lambda now: (cost_s, ends.append))


def test_processes_share_the_cores_evenly() -> None:
    machine, ends = Machine(2.0), list[float]()
    processes = [Process(machine) for _ in range(4)]
    for process, cost_s in zip(processes, (1.0, 1.0, 1.0, 2.0), strict=True):
        _timed(machine, process, cost_s, ends)
    machine.run(100.0, lambda: False)
    # Four at half speed until 2 s; then one alone, at full speed.
    assert ends == pytest.approx([2.0, 2.0, 2.0, 3.0])


def test_a_process_does_one_job_at_a_time_in_order() -> None:
    machine, ends = Machine(2.0), list[float]()
    process = Process(machine)
    for cost_s in (1.0, 0.5):
        _timed(machine, process, cost_s, ends)
    machine.at(0.25, lambda: _timed(machine, process, 1.0, ends))
    machine.run(100.0, lambda: False)
    assert ends == pytest.approx([1.0, 1.5, 2.5])
    assert process.used_s == pytest.approx(2.5)


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0.0, 2.0)), min_size=1, max_size=40), st.integers(1, 4))
def test_no_work_is_lost_and_no_core_works_twice(jobs: list[tuple[int, float]], cores: int) -> None:
    machine, ends = Machine(float(cores)), list[float]()
    processes = [Process(machine) for _ in range(5)]
    for which, cost_s in jobs:
        _timed(machine, processes[which], cost_s, ends)
    machine.run(1e9, lambda: False)
    by_process = [sum(cost_s for which, cost_s in jobs if which == number) for number in range(5)]
    assert len(ends) == len(jobs)
    assert ends == sorted(ends)
    # A lower bound for any schedule, and an upper one for a schedule that leaves no core idle.
    assert machine.now >= max(*by_process, sum(by_process) / cores) - 1e-9
    assert machine.now <= max(by_process) + sum(by_process) / cores + 1e-9


def test_what_a_killed_process_was_doing_never_ends() -> None:
    machine, ends = Machine(2.0), list[float]()
    process = Process(machine)
    _timed(machine, process, 1.0, ends)
    _timed(machine, process, 1.0, ends)
    machine.at(0.5, process.kill)
    machine.run(10.0, lambda: False)
    assert ends == []


# --- as the harness begins


@pytest.mark.parametrize("trigger", ["all", "rolling", "region", "leader-kill"])
@pytest.mark.parametrize("seed", [1, 7])
def test_clients_are_where_the_harness_has_them(trigger: str, seed: int) -> None:
    harness = HarnessStorm(sessions=5_000, brokers=7, trigger=trigger, seed=seed).checked()
    theirs = places(harness, Clients(harness.population, harness.seed))
    ours = storm_of(_report(sessions=5_000, brokers=7, trigger=trigger, seed=seed))
    assert np.array_equal(ours.kinds, theirs.kinds)
    assert np.array_equal(ours.returns, theirs.returns)
    assert np.array_equal(ours.brokers, theirs.after)
    assert np.array_equal(ours.begin_ns, theirs.begin_ns)


def _declared(struct: type[msgspec.Struct]) -> dict[str, tuple[Any, Any]]:
    """Type and default of each field."""
    return {field.name: (field.type, field.default) for field in msgspec.structs.fields(struct)}


def test_its_settings_are_those_of_the_harness() -> None:
    """They are read from reports by name: one that the harness renames, or gives another type, must be noticed."""
    ours, theirs = _declared(Settings), _declared(HarnessStorm)
    population, harness_population = ours["population"][0], theirs["population"][0]
    (our_kind, _), (their_kind, _) = (_declared(each)["kinds"][0].__args__ for each in (population, harness_population))
    for mine, of_harness, apart in (
        (ours, theirs, {"population", "replay", "sessions", "brokers", "processes"}),
        (_declared(population), _declared(harness_population), {"kinds"}),
        (_declared(our_kind), _declared(their_kind), set()),
    ):
        assert {name: of_harness.get(name) for name in mine.keys() - apart} == {
            name: mine[name] for name in mine.keys() - apart
        }
    assert all(ours[name][0] is theirs[name][0] is int for name in ("sessions", "brokers", "processes"))
    # What does not change a prediction: the records' sizes, what ends, where the trace goes.
    assert set(theirs) - set(ours) == {"expiring", "lease_s", "steady_s", "trace"}
    assert set(TRIGGERS) == set(HARNESS_TRIGGERS) - {"expiry"}


def test_it_knows_every_policy_of_the_harness() -> None:
    storm = storm_of(_report(sessions=100))
    for policy, family in FAMILIES.items():
        chosen = msgspec.structs.replace(storm.settings, policy=policy)
        found = msgspec.structs.replace(storm, settings=chosen).backoffs
        assert [backoff.family for backoff in found] == [family] * len(chosen.population.kinds)
    for policy in (RETURN_SLOT, POPULATION):
        chosen = msgspec.structs.replace(storm.settings, policy=policy)
        own = [kind.backoff for kind in chosen.population.kinds]
        assert msgspec.structs.replace(storm, settings=chosen).backoffs == own
    assert set(POLICIES) == {*FAMILIES, RETURN_SLOT, POPULATION}


def test_settings_that_it_does_not_know_are_refused() -> None:
    with pytest.raises(ScenarioError, match="expiry"):
        storm_of(_report(trigger="expiry"))
    with pytest.raises(ScenarioError, match="not a report"):
        storm_of({"settings": {}})
    replayed = _report()
    replayed["settings"]["replay"] = True
    with pytest.raises(ScenarioError, match="schedule"):
        storm_of(replayed)
    with pytest.raises(ScenarioError, match="schedule has 5"):
        storm_of(replayed, np.zeros(5, dtype=np.int64))


# --- storms


def test_the_same_seed_gives_the_same_storm() -> None:
    assert _run(policy="full-jitter") == _run(policy="full-jitter")
    assert _run(policy="full-jitter") != _run(policy="full-jitter", seed=1)


def test_a_light_storm_takes_a_round_trip_and_one_attempt() -> None:
    found = _run(sessions=100)
    assert found.attempts_per_session == 1.0
    assert found.t999_s is not None
    assert 0.15 < found.t999_s < 0.2  # the farthest clients are 150 ms away


@pytest.mark.parametrize("policy", ["return-slot", "full-jitter", "none", "population", "exponential"])
def test_all_attempts_are_accounted_for(policy: str) -> None:
    found = _run(policy=policy, sessions=60_000, sdk_retries=policy == "return-slot")
    assert found.recovered
    assert round(found.attempts_per_session * found.returning) == found.restored + found.rejected + found.timeouts


def test_a_storm_takes_as_long_as_its_cpu_time_on_the_cores_there_are() -> None:
    """Nobody backs off for long, so two cores are busy throughout."""
    found = _run(policy="return-slot", sessions=120_000, sdk_retries=True)
    used_s = sum(found.node_cpu_s) + sum(found.broker_cpu_s)
    assert found.t999_s is not None
    assert used_s / 2 <= found.t999_s <= 1.5 * used_s / 2 + 0.2


def test_the_servers_own_policies_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    returning, admitted = Returns.returning, Admission.admitted

    def returning_(self: Returns, *arguments: Any) -> tuple[int, int]:
        asked.append("slot")
        return returning(self, *arguments)

    def admitted_(self: Admission, *arguments: Any) -> int:
        asked.append("admission")
        return admitted(self, *arguments)

    monkeypatch.setattr(Returns, "returning", returning_)
    monkeypatch.setattr(Admission, "admitted", admitted_)
    storm = storm_of(_report(policy="return-slot", sessions=120_000, sdk_retries=True))
    assert simulate(msgspec.structs.replace(storm, queue_s=1.0), COSTS, 0).rejected > 0
    assert {"slot", "admission"} == set(asked)


@pytest.mark.parametrize(
    ("worth", "ran"),
    [
        (1.0, "request 0, apply 0, apply 1, request 1, request 2"),
        (0.4, "request 0, request 1, request 2, apply 0, apply 1"),
        (0.6, "request 0, request 1, apply 0, apply 1, request 2"),
    ],
)
def test_in_each_turn_of_the_loop_as_many_of_a_crowds_requests_begin_as_are_worth_it(worth: float, ran: str) -> None:
    machine, done = Machine(1.0), list[str]()
    process = Process(machine)

    def job(name: str) -> Job:
        return lambda now: (1.0, lambda end: done.append(name))

    process.add(job("first"))
    for number in range(3):
        process.add_to_begin(job(f"request {number}"), worth)
    process.add(job("apply 0"))
    process.add(job("apply 1"))
    machine.run(10.0, lambda: False)
    assert ", ".join(done) == f"first, {ran}"


def test_a_node_begins_many_small_requests_in_a_turn_and_one_that_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the server's connections, and by its own numbers."""
    begun: list[float] = []
    monkeypatch.setattr(Process, "add_to_begin", lambda self, job, worth: begun.append(worth))
    monkeypatch.setattr(Process, "add_heavy", lambda self, job: begun.append(1.0))
    node = _cluster().nodes[0]
    for items in (1, 80, 600, 700):
        node.receive(Request(_Nobody(), NOBODY, 0, 1, b"t", 10.0, background=items), 0)
    one, short, plain, long = begun
    assert one == pytest.approx(1 / (4 * 128))
    assert short == pytest.approx(80 * ITEM_BYTES / (4 * 16 * 1024))
    assert plain == pytest.approx(600 * ITEM_BYTES / (2 * 16 * 1024))
    assert long == 1.0


class _Nobody:
    """Asks, and minds no answer."""

    def send(self, request: Request) -> None: ...

    def done(self, request: Request, now: float) -> None: ...

    def refused(self, request: Request, after_ms: int, jitter_ms: int, now: float) -> None: ...

    def lost(self, request: Request, now: float) -> None: ...


def _cluster(nodes: int = 1, **costs: Any) -> Cluster:
    chosen = msgspec.structs.replace(COSTS, request_s=0.0, item_s=1e-9, entry_s=0.0, **costs)
    return Cluster(
        Machine(10.0), chosen, random.Random(1), nodes=nodes, groups=1, sessions=1_000, queue_s=10.0, fsync=True
    )


@pytest.mark.parametrize("small", [True, False])
def test_heavy_work_rests_while_something_small_is_in_progress(monkeypatch: pytest.MonkeyPatch, small: bool) -> None:
    """As in the server, and by its own policy."""
    cluster = _cluster(restore_s=1e-4, fsync_s=(5.0,))
    machine, node = cluster.machine, cluster.nodes[0]
    begun: list[tuple[int, float]] = []
    evaluate = Node._evaluate

    def evaluate_(self: Node, group: Any, entry: Entry, begun_s: float) -> Any:
        begun.append((entry.items, begun_s))
        return evaluate(self, group, entry, begun_s)

    monkeypatch.setattr(Node, "_evaluate", evaluate_)
    for number, clients in enumerate((*((0,) if small else ()), 600, 600)):
        request = Request(_Nobody(), np.arange(clients), 0, 0, b"t", 100.0, background=not clients)
        machine.at(number / 1000, node.receive, request, 0)
    machine.run(1.0, lambda: False)
    first, second = (at for items, at in begun if items > 1)
    assert second - first == pytest.approx(0.12 if small else 0.06, abs=0.005)


def test_a_killed_node_follows_again_once_it_has_what_it_lacks() -> None:
    cluster = _cluster(nodes=3)
    machine, (other, leader, dead) = cluster.machine, cluster.nodes
    cluster.kill(2)
    for number in range(100):
        request = Request(_Nobody(), np.arange(100), 0, 0, b"t", 100.0)
        machine.at(number / 200, leader.receive, request, 0)
    machine.run(0.9, lambda: False)
    assert cluster.done_items == 10_000
    assert dead.process.used_s == 0.0
    machine.run(4.0, lambda: False)
    assert dead.process.used_s == pytest.approx(COSTS.start_s + 10_000 * COSTS.follower_item_s)
    assert leader._groups[0].followers == [other, dead]


def test_threads_of_an_idle_machine_are_the_storms_own() -> None:
    report = _report(policy="return-slot")
    assert storm_of(report | {"accounts": {"others_running": 2.5, "others_cores": 0.01}}).beside == 0.0
    assert storm_of(report | {"accounts": {"others_running": 2.5, "others_cores": 0.8}}).beside == 2.5


def test_a_storm_is_predicted_for_the_speed_that_its_cores_had() -> None:
    costs = msgspec.structs.replace(COSTS, core_us=50.0)
    report = _report(policy="return-slot", sessions=60_000)
    as_measured, slow = (
        simulate(storm_of(report | {"accounts": {"core_us": core_us}}), costs, 0) for core_us in (50.0, 100.0)
    )
    assert as_measured.t999_s is not None
    assert slow.t999_s is not None
    assert as_measured == simulate(storm_of(report), costs, 0) == simulate(storm_of(report), COSTS, 0)
    assert 1.5 * as_measured.t999_s < slow.t999_s < 2.5 * as_measured.t999_s


def test_nodes_with_a_short_queue_turn_more_away() -> None:
    report = _report(policy="return-slot", sessions=60_000)
    assert storm_of(report).queue_s == 10.0, "the default, and what endpoints have for all that is known"
    longer, short = (simulate(storm_of(report | {"queue_ms": queue_ms}), COSTS, 0) for queue_ms in (10_000, 100))
    assert longer == simulate(storm_of(report), COSTS, 0)
    assert short.rejected > longer.rejected


def test_brokers_that_restart_have_the_sessions_of_their_old_lives_looked_for() -> None:
    rolling = {"trigger": "rolling", "rolling_s": 2.0, "sessions": 20_000}
    free, dear = (_run(msgspec.structs.replace(COSTS, sweep_row_s=cost_s), **rolling) for cost_s in (0.0, 20e-6))
    looked_s = [used - before for used, before in zip(dear.node_cpu_s, free.node_cpu_s, strict=True)]
    # Each row is looked at once in a pass, and a fifth of the time is theirs at most, but for turns that all wait for.
    assert 3 * 20_000 * 20e-6 / 3 <= sum(looked_s) <= 3 * 0.25 * dear.storm_s[2]  # type: ignore[operator]
    assert dear.t99_s > free.t99_s  # type: ignore[operator]
    alike = (_run(msgspec.structs.replace(COSTS, sweep_row_s=cost_s)) for cost_s in (0.0, 20e-6))
    assert len({outcome.t99_s for outcome in alike}) == 1, "nobody has begun a new life"


def test_who_ignores_its_slot_comes_more_often() -> None:
    heeds, ignores = (
        simulate(msgspec.structs.replace(storm_of(report), queue_s=1.0), COSTS, 0)
        for report in (
            _report(policy="return-slot", sessions=400_000, sdk_retries=True),
            _report(policy="return-slot", sessions=400_000, sdk_retries=True, ignore_slots=1.0),
        )
    )
    assert ignores.attempts_per_session > 1.5 * heeds.attempts_per_session


def test_clients_outlive_the_death_of_a_node() -> None:
    slow = msgspec.structs.replace(COSTS, failover_s=1.5)
    quiet = _run(slow, policy="return-slot", sessions=60_000, sdk_retries=True)
    killed = _run(slow, policy="return-slot", sessions=60_000, sdk_retries=True, trigger="leader-kill")
    assert killed.recovered
    assert killed.t999_s is not None
    assert quiet.t999_s is not None
    assert killed.t999_s > quiet.t999_s + 0.5 * slow.failover_s


def test_a_cluster_that_is_too_slow_is_not_said_to_recover() -> None:
    found = _run(msgspec.structs.replace(COSTS, item_s=0.01), policy="none", sessions=20_000, limit_s=20.0)
    assert not found.recovered
    assert found.t999_s is None


def test_dear_items_make_it_slower() -> None:
    dear = msgspec.structs.replace(COSTS, restore_s=30e-6, part_s=10e-6)
    first, second = _run(sessions=60_000, policy="return-slot"), _run(dear, sessions=100_000, policy="return-slot")
    assert first.t99_s is not None
    assert second.t99_s is not None
    assert second.t99_s > 1.3 * first.t99_s


def test_percentiles_are_those_of_the_harness() -> None:
    waited_s = np.array([3.0, 1.0, np.inf, 2.0])
    assert restored_by_s(waited_s, 50.0) == 2.0
    assert restored_by_s(waited_s, 75.0) == 3.0
    assert restored_by_s(waited_s, 99.0) is None
    assert quantiles(waited_s)[0] == 1.0
    assert quantiles(waited_s)[-1] == np.inf


# --- costs


def test_costs_survive_their_file(tmp_path: Any) -> None:
    path = tmp_path / "costs.toml"
    path.write_text(to_toml(COSTS))
    assert load_costs(path) == COSTS


@pytest.mark.parametrize("line", ["item_s = -1", "cores = 0", "fsync_s = []", "iten_s = 1"])
def test_costs_out_of_range_are_refused(tmp_path: Any, line: str) -> None:
    path = tmp_path / "costs.toml"
    name = line.partition(" ")[0]
    text = to_toml(COSTS)
    head = "\n".join(one for one in text.splitlines() if not one.startswith(f"{name} ="))
    path.write_text(f"{line}\n{head}\n")
    with pytest.raises(CalibrationError, match=name):
        load_costs(path)


def test_a_storm_is_a_value() -> None:
    assert isinstance(storm_of(_report()), Storm)


@pytest.mark.parametrize("count", [3, 5, 6, 9])
def test_followers_are_spread_over_all_nodes(count: int) -> None:
    """Those of all groups went to the first three nodes, whatever their number."""
    costs = load_costs()
    machine = Machine(costs.cores)
    groups = 4 * count
    cluster = Cluster(
        machine, costs, random.Random(1), nodes=count, groups=groups, sessions=1_000.0, queue_s=10.0, fsync=False
    )
    followed = Counter(
        node.number for leader in cluster.nodes for group in leader._groups.values() for node in group.followers
    )
    assert followed == dict.fromkeys(range(count), 8), "each leads four groups, and follows in eight"
    for leader in cluster.nodes:
        for group in leader._groups.values():
            assert leader not in group.followers
            assert len(set(group.followers)) == 2
