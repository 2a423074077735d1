"""Every cluster that ``size`` may recommend can exist: metad takes its settings, and can place its groups."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metad.config import Config, load_config
from metad.config.declarations import ClusterConfig, LimitsConfig, StorageConfig
from metad.control import controller
from metad.node.chores import session_sweeps as lost_sweep
from metad.node.chores import sweeps
from metad.node.replicas import driver
from metad.node.requests import admission as gate
from metad.node.requests import scheduler
from metad.node.requests.admission import ITEM_BYTES
from metad.server import connection
from metad_perf.storm import background as harness_background
from metad_perf.storm import wave
from metad_spark import sizing
from metad_spark.band import unevenness
from metad_spark.calibration import Calibration, load_calibration
from metad_spark.changes import changes, grid
from metad_spark.requests import brokers, node
from metad_spark.requests import simulate as background
from metad_spark.requests import simulate as sweep
from metad_spark.requests.storm import Storm
from metad_spark.run_size import settings as settings_of
from metad_spark.run_size import to_toml
from metad_spark.scenario import BROKERS_MAX, CLIENTS_MAX, Brokers, Cluster, Returns, Scenario, load_scenario
from metad_spark.sizing import NODES_MIN, Footprint, shapes, sized
from metad_wire.cluster import SLOTS
from metad_wire.policy.slots import even_slots

_change = msgspec.structs.replace
_DECLARED = Config()


def _declared(key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(_DECLARED, section), name)


_CLUSTERS = st.integers(1, 3_000).flatmap(
    lambda nodes: st.builds(
        Cluster,
        nodes=st.just(nodes),
        groups=st.integers(nodes, 100 * nodes),
        batch_items=st.integers(1, 250_000),
        queue_items=st.one_of(st.just(0), st.integers(1, 10_000_000)),
    )
)
_SCENARIOS = st.builds(
    Scenario,
    clients=st.integers(NODES_MIN, CLIENTS_MAX),
    cluster=_CLUSTERS,
    brokers=st.builds(Brokers, count=st.integers(1, BROKERS_MAX)),
    returns=st.builds(Returns, of_capacity=st.sampled_from((0.0, 0.001, 0.9, 10.0))),
)
_COSTS = st.builds(
    Calibration,
    turn_s=st.floats(1e-6, 60),
    entry_s=st.floats(0, 60),
    item_s=st.floats(1e-9, 60),
)


@settings(max_examples=100, deadline=None)
@given(scenario=_SCENARIOS, costs=_COSTS, nodes=st.integers(NODES_MIN, SLOTS), shape=st.integers(0, 3))
@example(scenario=load_scenario("collapse"), costs=load_calibration(), nodes=SLOTS, shape=3)
def test_metad_takes_whatever_the_search_may_choose(
    tmp_path_factory: pytest.TempPathFactory, scenario: Scenario, costs: Calibration, nodes: int, shape: int
) -> None:
    """It once recommended more groups than there are slots."""
    every = list(shapes(scenario).values())
    chosen = sized(every[shape % len(every)], min(nodes, scenario.clients))
    cluster = chosen.cluster
    found = settings_of(chosen, costs)
    for setting in found:
        assert type(setting.value) is type(_declared(setting.key))
        assert setting.cost
    path: Path = tmp_path_factory.getbasetemp() / "metad.toml"
    path.write_text(to_toml(found))
    seeds = {f"node-{n}": f"127.0.0.1:{20_000 + n}" for n in range(1, cluster.nodes + 1)}
    config = load_config(path, {"data_dir": "/data", "cluster": {"seeds": seeds}})
    assert config.groups.data == cluster.groups
    assert len(config.cluster.seeds) == cluster.nodes
    slots = even_slots(config.groups.data)
    sizes = [slots.count(group) for group in {slots[0], slots[-1]}] if cluster.groups > 1 else [SLOTS]
    few, most = sizing.footprint(chosen).slots_per_group
    assert all(few <= size <= most for size in sizes)
    assert cluster.groups >= cluster.nodes, "a node that leads nothing"
    assert chosen.clients >= cluster.groups


@pytest.mark.parametrize("groups", [1, 3, 7, 120, 240, 513, 1000, 1023, 1024])
def test_how_uneven_groups_are_is_what_metad_makes_of_their_slots(groups: int) -> None:
    slots = even_slots(groups)
    largest = max(slots.count(group) for group in set(slots))
    assert unevenness(groups) == pytest.approx(largest * groups / SLOTS)


def test_two_hundred_and_forty_groups_are_uneven_by_a_sixth() -> None:
    assert unevenness(240) == pytest.approx(1.17, abs=0.005)


def test_budgets_are_those_of_metad() -> None:
    limits, storage = LimitsConfig(), StorageConfig()
    assert ClusterConfig().replicas == sizing.REPLICAS
    assert storage.block_cache_bytes == sizing.BLOCK_CACHE_BYTES
    assert storage.memtable_bytes == sizing.MEMTABLE_BYTES
    assert storage.owner_cache_bytes == sizing.OWNER_CACHE_BYTES
    assert storage.row_cache_bytes == sizing.ROW_CACHE_BYTES
    assert storage.log_retained_bytes == sizing.LOG_RETAINED_BYTES
    assert storage.watch_retained_bytes == sizing.WATCH_RETAINED_BYTES
    assert _DECLARED.raft.log_cache_bytes == sizing.LOG_CACHE_BYTES
    assert limits.in_flight_bytes_max == sizing.IN_FLIGHT_BYTES
    assert limits.unfinished_bytes_max == sizing.UNFINISHED_BYTES
    assert limits.unsent_bytes_max == sizing.UNSENT_BYTES
    assert limits.connections_max == sizing.CONNECTIONS_MAX
    assert sizing.ITEM_BYTES == ITEM_BYTES


def _of(**changes: Any) -> Footprint:
    base = Scenario(clients=10_000_000, cluster=Cluster(nodes=8, groups=64), brokers=Brokers(count=100))
    cluster = {key: changes.pop(key) for key in ("nodes", "groups", "queue_items") if key in changes}
    return sizing.footprint(_change(base, cluster=_change(base.cluster, **cluster), **changes))


def test_more_sessions_take_disk_and_more_queues_take_memory() -> None:
    least = _of()
    assert least.replicas_per_node == 24
    assert least.sessions_per_node == 10_000_000 * 3 // 8
    assert _of(clients=20_000_000).disk_bytes > 1.5 * least.disk_bytes
    assert _of(nodes=16).disk_bytes < least.disk_bytes
    assert _of(queue_items=1_000_000).memory_bytes > least.memory_bytes
    assert _of(clients=1_000_000_000).owner_cache_bytes > least.owner_cache_bytes


def test_a_map_and_a_table_of_changes_name_no_cluster_that_cannot_be() -> None:
    scenario = _change(load_scenario("default"), cluster=Cluster(nodes=900, groups=1000))
    costs = load_calibration()
    tried = [one for line in grid(scenario, costs).scenarios for one in line]
    tried += [change.scenario for change in changes(scenario, costs)]
    assert all(one.cluster.nodes <= one.cluster.groups <= SLOTS for one in tried)


def test_a_file_of_settings_is_toml() -> None:
    read = tomllib.loads(to_toml(settings_of(load_scenario("default"), load_calibration())))
    assert read["groups"] == {"data": 120}
    assert read["commit"]["entry_items_max"] == 1_000


def test_the_model_of_requests_goes_by_the_numbers_of_the_server_and_of_the_harness() -> None:
    assert _declared("commit.pipeline_entries_max") == node.PIPELINE_ENTRIES
    assert _declared("commit.entry_items_max") == node.ENTRY_ITEMS
    assert (node.PIPELINE_ITEMS, node._LOOK_FOR_SMALL, node._COMPANY_S, node._COMPANY_ITEMS) == (
        driver._PIPELINE_ITEMS_MAX,
        driver._LOOK_FOR_SMALL,
        driver._COMPANY_S,
        driver._COMPANY_ITEMS,
    )
    assert (node._AT_ONCE_ITEMS, node._ENTRY_WORTH) == (scheduler._AT_ONCE_ITEMS, driver.ENTRY_ITEMS)
    assert (node._SLICE_BYTES, node._SLICE_FRAMES, node._SLICE_S, node._SMALL_BYTES) == (
        connection._SLICE_BYTES,
        connection._SLICE_FRAMES,
        connection._SLICE_S,
        connection._SMALL_BYTES,
    )
    assert (node._WAITED_S, node._SHARE_S) == (gate.WAITED_S, controller.SHARE_S)
    assert (lost_sweep._PASS_ROWS, _declared("expiry.batch_sessions")) == (sweep.PASS_ROWS, sweep.BATCH)
    turns = sweeps
    assert (sweep.REST, sweep.LOOK_S, sweep.TURN_S) == (turns.REST, turns.LOOK_S, turns.TURN_S)
    assert sweep._REST_MIN_S == turns._REST_MIN_S
    assert brokers.YIELD_CALLS == wave._YIELD_CALLS
    ours, theirs = background, harness_background
    assert (ours._TICK_S, ours._DEADLINE_S) == (theirs._TICK_S, theirs._DEADLINE_S)


def test_the_model_of_requests_has_the_bound_of_time_that_metad_has_by_default() -> None:
    bound = next(field for field in msgspec.structs.fields(Storm) if field.name == "queue_s")
    assert bound.default * 1000 == LimitsConfig().queue_ms
