"""Who takes up a group that has lost its majority for good, that exactly one cluster comes of it, and that its groups
are told which slots they hold. ``unit/control/test_settling.py`` has who holds which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from metad.config import Config, StorageConfig
from metad.control.map.decisions import VERSIONS_LOST, recovered
from metad.control.settling import Holding
from metad.errors import ConfigError, RefusedError
from metad.node.disk import recovery
from metad.node.disk.recovery import Anew, GroupEnd, Report, planned
from metad.node.disk.stores import Stores, open_stores
from metad.raft.log.journal import REGULAR, RaftLog, record
from metad.raft.messages import Configuration
from metad.state.cluster.cluster import MAP_KEY
from metad.state.core.entry import ENTRY_FORMAT, Entry, decode_record
from metad.state.core.part import Origin, Writes
from metad.state.core.slot_assignment import ALL_SLOTS, AssignedSlots, decode_slots, state_key
from metad.storage import keys
from metad.storage.log import LogWriter
from metad_wire.cluster import (
    METADATA,
    SLOTS,
    ClusterMap,
    ClusterName,
    GroupId,
    GroupRecord,
    pack_slots,
)
from metad_wire.methods import encode
from metad_wire.tables.cluster import CLUSTER, GROUP
from metad_wire.tables.kv import KV

FIVE = ["n1", "n2", "n3", "n4", "n5"]


ALL = Holding(AssignedSlots(ALL_SLOTS), {0: ALL_SLOTS}, 9)
MAP = ClusterMap(
    7,
    [],
    [GroupRecord(kind, 0, FIVE, FIVE, initial_slots=ALL_SLOTS) for kind in ("data", "metadata")],
    {"data": pack_slots([0] * SLOTS), "metadata": pack_slots([0] * SLOTS)},
    cluster_id="c",
)


def end(group: str, term: int, index: int, voters: list[str], learners: list[str] | None = None) -> GroupEnd:
    return GroupEnd(group, voters, learners or [], term, index, 0, ALL)


def report(node: str, *groups: GroupEnd, cluster: str = "c", life: int = 3, removed: list[str] | None = None) -> Report:
    store = f"store of {node}"
    return Report(node=node, cluster=cluster, store=store, life=life, groups=[*groups], removed=removed or [], map=MAP)


def test_the_newest_log_takes_a_group_up() -> None:
    """The later term counts before the longer log, as in an election."""
    reports = [
        report("n1", end("data-0", 5, 900, FIVE), end("metadata-0", 4, 10, ["n1", "n3", "n4"])),
        report("n2", end("data-0", 6, 100, FIVE)),
    ]
    plan = planned(reports, ["n3", "n4", "n5"])
    assert [(one.group, one.node, one.term, one.index) for one in plan.taken] == [
        ("data-0", "n2", 6, 100),
        ("metadata-0", "n1", 4, 10),
    ]
    assert plan.taken[1].without == ["n3", "n4"]
    assert not plan.gone


def test_a_group_with_a_majority_is_left_alone() -> None:
    left = [
        report(node, end("data-0", 5, 9, ["n1", "n2", "n3"]), end("metadata-0", 5, 9, FIVE)) for node in ("n1", "n2")
    ]
    plan = planned(left, ["n3", "n4", "n5"])
    assert [one.group for one in plan.taken] == ["metadata-0"]


def test_a_learner_may_be_all_that_is_left() -> None:
    plan = planned([report("n4", end("data-0", 5, 9, ["n1", "n2", "n3"], ["n4"]))], ["n1", "n2", "n3"])
    assert [(one.group, one.node) for one in plan.taken] == [("data-0", "n4")]
    assert plan.gone == ["metadata-0"]


@pytest.mark.parametrize(
    ("reports", "lost", "why"),
    [
        ([report("n1", end("data-0", 5, 9, ["n1", "n2", "n3"]))], ["n2"], "data-0 has replicas on n3 too"),
        ([report("n1", end("data-0", 5, 9, ["n1", "n2", "n3"]))], ["n1", "n2", "n3"], "n1 is named in --lost"),
        ([report("n1"), report("n1", life=4)], ["n2"], "two reports of n1"),
        ([report("n1"), report("n2", cluster="c~1-0123456789abcdef")], ["n3"], "of different clusters"),
        ([report("n1", end("data-0", 5, 9, ["n1"]))], ["n2"], "every group has a majority"),
    ],
)
def test_what_must_not_be_done_is_refused(reports: list[Report], lost: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        planned(reports, lost)


def test_a_voter_that_never_had_a_replica_counts() -> None:
    """It has acknowledged nothing. One whose replica was taken out may have."""
    one, other = report("n1", end("data-0", 5, 9, FIVE[:3]), end("metadata-0", 5, 9, FIVE)), report("n2")
    plan = planned([one, other], ["n3", "n4", "n5"])
    assert [taken.group for taken in plan.taken] == ["metadata-0"]
    assert plan.settled is not None
    assert plan.settled.unfounded == ["data-0"], "n2 begins it by the map, or n1 gets no votes"
    plan = planned([one, report("n2", removed=["data-0"])], ["n3", "n4", "n5"])
    assert [taken.group for taken in plan.taken] == ["data-0", "metadata-0"]


def test_a_group_of_which_nothing_is_left_begins_anew() -> None:
    """On a node that never had a replica of it, and nobody else begins it once more."""
    reports = [report(node, end("metadata-0", 5, 9, FIVE)) for node in ("n1", "n2")]
    lost = ["n3", "n4", "n5"]
    plan = planned(reports, lost)
    assert plan.anew == [Anew("data-0", "n1")]
    assert "data-0: no replica is left, so all of it is lost, and n1 begins it anew" in [*plan.lines()]
    assert not plan.gone
    (change,) = plan.changes
    assert change.slots.slots == ALL_SLOTS
    assert plan.settled is not None
    following = recovered(MAP, plan.cluster, plan.lost, plan.settled).map
    assert following is not None
    assert following.version == 7 + VERSIONS_LOST
    assert all(not group.initial for group in following.groups)
    none = [report(node, end("metadata-0", 5, 9, FIVE), removed=["data-0"]) for node in ("n1", "n2")]
    assert planned(none, lost).anew == [Anew("data-0", "n1")], "nobody else can"


def test_a_group_that_was_never_begun_is_begun_by_its_first_voters() -> None:
    left = [report(node, end("metadata-0", 5, 9, FIVE)) for node in ("n1", "n2", "n3")]
    left[2] = report("n3", end("metadata-0", 6, 9, [*FIVE, "n6", "n7"]))  # without a majority
    plan = planned(left, ["n4", "n5", "n6", "n7"])
    assert not plan.anew
    assert plan.settled is not None
    assert plan.settled.unfounded == ["data-0"]
    following = recovered(MAP, plan.cluster, plan.lost, plan.settled).map
    assert following is not None
    assert [group.initial for group in following.groups] == [FIVE, []]


def test_all_who_have_the_same_reports_make_the_same_plan() -> None:
    one, other = report("n1", end("data-0", 5, 9, FIVE)), report("n2", end("data-0", 5, 8, FIVE))
    lost = ["n3", "n4", "n5"]
    assert planned([one, other], lost) == planned([other, one], [*reversed(lost)])


def test_of_two_plans_exactly_one_remains() -> None:
    """Two operators, each of whom takes the other's node for lost."""
    one, other = report("n1", end("data-0", 5, 9, FIVE)), report("n2", end("data-0", 5, 8, FIVE))
    mine = ClusterName.parse(planned([one], ["n2", "n3", "n4", "n5"]).cluster)
    theirs = ClusterName.parse(planned([other], ["n1", "n3", "n4", "n5"]).cluster)
    assert mine.supersedes(theirs) != theirs.supersedes(mine)
    before = ClusterName.parse("c")
    assert mine.supersedes(before)
    assert not before.supersedes(mine)
    later = planned([report("n1", end("data-0", 6, 9, FIVE), cluster=mine.cluster_id)], ["n2", "n3", "n4", "n5"])
    assert ClusterName.parse(later.cluster).recovered == 2
    assert ClusterName.parse(later.cluster).supersedes(max(mine, theirs))


@pytest.mark.parametrize("cluster_id", ["", "a", "a~b", "a~0-0123456789abcdef", "a~1-xyz", "ü~2-0123456789abcdef"])
def test_a_cluster_id_is_what_it_says(cluster_id: str) -> None:
    assert ClusterName.parse(cluster_id).cluster_id == cluster_id
    assert not ClusterName.parse("b~9-0123456789abcdef").supersedes(ClusterName.parse(cluster_id))


# --- on a data directory ---


def config(directory: Path) -> Config:
    small = StorageConfig(block_cache_bytes=8 << 20, memtable_bytes=16 << 20)
    return Config(node_id="n1", cluster_id="c", data_dir=str(directory), storage=small)


def log_of(stores: Stores, group: GroupId) -> RaftLog:
    writer = LogWriter(stores.log, recovery._AtOnce(stores.log), failed=recovery._raise)
    return RaftLog(group, stores.log, writer, initial=Configuration(("n1", "n2", "n3")), cache_bytes=1)


def entry(writes: Writes, row: int = KV.rows["record"]) -> bytes:
    heard = {} if row == KV.rows["record"] else {row: writes}
    return Entry(ENTRY_FORMAT, Origin.CLIENT, 1_000, {} if heard else writes, heard, 1).encoded()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of n1, which has voted in term 9, and has three entries of term 7."""
    stores = open_stores(config(tmp_path / "n1"))
    for group in (GroupId("metadata", 0), GroupId("data", 0)):
        log = log_of(stores, group)
        log.append([record(7, REGULAR, entry({}))] * 3)
        log.save(9, "n2")
        log._writer.flush()
    stores.close()
    return tmp_path / "n1"


def taken_up(directory: Path, told: Callable[[recovery.Plan], None] | None = None) -> recovery.Plan:
    with recovery.opened(config(directory)) as here:
        mine = recovery.report(here)
        plan = planned([mine], ["n2", "n3"])
        recovery.carry_out(here, mine, plan, 1_000)
    return plan


def test_a_report_changes_nothing(directory: Path) -> None:
    for _ in range(2):
        with recovery.opened(config(directory)) as here:
            found = recovery.report(here)
        assert found.life == 1
        assert [(one.group, one.term, one.index, one.voters) for one in found.groups] == [
            ("metadata-0", 7, 3, ["n1", "n2", "n3"]),
            ("data-0", 7, 3, ["n1", "n2", "n3"]),
        ]


def test_the_node_is_the_only_voter_by_an_entry_of_a_new_term(directory: Path) -> None:
    """A later term than any in which it may have voted for another, and with everything that its log had."""
    plan = taken_up(directory)
    stores = open_stores(config(directory))
    assert stores.identity.cluster_id == plan.cluster
    assert stores.identity.recovery is not None
    assert stores.identity.recovery.groups == ["data-0", "metadata-0"]
    assert not stores.identity.recovery.told
    log = log_of(stores, GroupId("data", 0))
    assert (log.last_index, log.last_term, log.term) == (4, 10, 10)
    assert log.getVotedForNodeId() == "n1"
    assert log.configuration == Configuration(("n1",))
    assert log.configuration_at(3) == Configuration(("n1", "n2", "n3"))
    stores.close()
    with recovery.opened(config(directory)) as here, pytest.raises(ConfigError, match="every group has a majority"):
        planned([recovery.report(here)], ["n2", "n3"])


def test_a_configured_name_goes_on_to_count(directory: Path) -> None:
    plan = taken_up(directory)
    assert ClusterName.parse(plan.cluster).name == "c"
    stores = open_stores(config(directory))
    stores.adopt("c")  # as the map still says
    assert stores.identity.cluster_id == plan.cluster
    with pytest.raises(ConfigError, match="belongs to"):
        stores.adopt("d")
    stores.close()


def test_a_node_of_before_never_starts_again(directory: Path) -> None:
    stores = open_stores(config(directory))
    stores.supersede("c~1-0123456789abcdef")
    stores.close()
    with pytest.raises(RefusedError, match="was recovered as 'c~1-0123456789abcdef' without this data directory"):
        open_stores(config(directory))
    with pytest.raises(RefusedError, match="was recovered"), recovery.opened(config(directory)):
        pass


def test_groups_are_told_which_slots_they_hold(tmp_path: Path) -> None:
    """data-1 was to get all slots of data-0, which has closed the move. It has lost that it adopted them: it goes on
    with them, without the rows that had come, be they in its state or only in its log."""
    stores, (source, target) = open_stores(config(tmp_path / "n1")), (GroupId("data", 0), GroupId("data", 1))
    prefix, state = keys.group_prefix(target), GROUP.rows["state"]
    rows = [keys.table_prefix(prefix, KV.rows["record"]) + KV.key_of(["ns", name]) for name in ("a", "b")]
    records = [GroupRecord(*group, ["n1"], ["n1"]) for group in (METADATA, source, target)]
    slots = {"metadata": pack_slots([0] * SLOTS), "data": pack_slots([1] * SLOTS)}
    opened = AssignedSlots(b"", opened_move=10_000, opened_attempt=4_000_001, opened_slots=ALL_SLOTS)
    written = {
        METADATA: [entry({MAP_KEY: encode(ClusterMap(1, [], records, slots, cluster_id="c"))}, CLUSTER.rows["map"])],
        source: [entry({state_key(keys.group_prefix(source)): encode(AssignedSlots(b""))}, state)],
        target: [entry({state_key(prefix): encode(opened)}, state), entry({rows[1]: b"came"})],
    }
    for group, entries in written.items():
        log = log_of(stores, group)
        log.append([record(7, REGULAR, one) for one in entries])
        log._writer.flush()
    stores.state.write({rows[0]: b"came", keys.applied(prefix): keys.u64(1), state_key(prefix): encode(opened)})
    stores.close()

    plan = taken_up(tmp_path / "n1")
    assert [change.group for change in plan.changes] == ["data-1"]
    stores = open_stores(config(tmp_path / "n1"))
    log = log_of(stores, target)
    told = [decode_record(log.name, log.last_index, data) for data in log.records(4, 1 << 20)]
    assert [one.origin for one in told] == [Origin.MIGRATION] * 2
    assert {key for writes in told[0] for key in writes} == {*rows}
    assert {value for writes in told[0] for value in writes.values()} == {None}
    held = decode_slots(told[1].heard[state][state_key(prefix)], b"")
    assert (held.slots, held.opened_move) == (ALL_SLOTS, 0)
    assert told[1].revision == log.last_index + held.base
    assert told[1].now_ms == 1_000
    assert stores.settled == plan.settled
    assert stores.settled is not None
    assert stores.settled.slots == slots
    stores.close()


def test_what_is_no_data_directory_is_not_made_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no data directory of a node"), recovery.opened(config(tmp_path / "no")):
        pass
    assert not (tmp_path / "no").exists()
