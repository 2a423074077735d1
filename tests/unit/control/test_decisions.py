"""Decisions about the cluster map, without a controller."""

from collections import Counter

import msgspec
from test_controller import cluster, node

from metad.config import ClusterConfig, Config, GroupsConfig
from metad.control.map import decisions, leaving
from metad.control.map.decisions import Decision
from metad.control.map.seen import Reach
from metad_wire.cluster import (
    METADATA,
    SLOTS,
    ClusterMap,
    GroupId,
    GroupRecord,
    Transfer,
    slots_count,
    slots_in,
    unpack_slots,
)
from metad_wire.methods import encode


def following(decision: Decision) -> ClusterMap:
    assert decision.map is not None
    return decision.map


def test_a_decision_leaves_the_map_it_is_made_from_alone_and_counts_versions() -> None:
    before = cluster()
    stored = encode(before)
    for decision in (
        decisions.join(before, node("n4"), Reach.UNKNOWN),
        leaving.leave(before, "n1", (), (), 2),
        decisions.add_group(before, "data", 3, ()),
        decisions.rebalance(before, 3, (), 3),
        decisions.transfer(before, Transfer("data-0", "n2")),
    ):
        assert following(decision).version == before.version + 1
    assert encode(before) == stored


def test_nothing_changes_where_the_map_says_so_already() -> None:
    known = cluster()
    assert decisions.join(known, node("n2"), Reach.ALIVE) == Decision(None, "already known")
    assert decisions.moved(known, 7) == Decision(None, "already known")


def test_a_node_alone_founds_its_cluster_and_one_that_joins_founds_none() -> None:
    alone = Config(node_id="n1")
    first = decisions.first_map(alone, "n1:2", "c1")
    assert (first.version, first.cluster_id, [one.peer_endpoint for one in first.nodes]) == (1, "c1", ["n1:2"])
    assert {group.preferred for group in first.groups} == {"n1"}
    assert decisions.founders(alone).voters == ("n1",)
    joins = msgspec.structs.replace(alone, cluster=msgspec.structs.replace(alone.cluster, join=["n2:2"]))
    assert decisions.founders(joins).members == ()


def formed(count: int, **groups: int) -> ClusterMap:
    """A cluster of so many nodes."""
    seeds = {f"n{number}": f"n{number}:2" for number in range(1, count + 1)}
    config = Config(node_id="n1", cluster=ClusterConfig(seeds=seeds), groups=GroupsConfig(**groups))
    return decisions.first_map(config, "", "c1")


def test_groups_of_kind_metadata_share_its_slots_and_every_node_follows_the_first_of_them() -> None:
    known = formed(7, metadata=4, data=4, offset=4)
    assert [group.group_id.name for group in known.groups[:5]] == [f"metadata-{n}" for n in range(4)] + ["offset-0"]
    of_metadata = [group for group in known.groups if group.kind == "metadata"]
    for group in of_metadata:
        held = [slot for slot, ordinal in enumerate(unpack_slots(known.slots["metadata"])) if ordinal == group.ordinal]
        assert held == slots_in(group.initial_slots) == list(range(256 * group.ordinal, 256 * (group.ordinal + 1)))
    first, *others = of_metadata
    assert sorted(first.replicas + first.learners) == [node.node_id for node in known.nodes]
    assert {(len(group.replicas), len(group.learners)) for group in others} == {(3, 0)}
    assert len({group.preferred for group in of_metadata}) == 4
    loads = Counter(node for group in known.groups if group != first for node in group.replicas)
    assert max(loads.values()) - min(loads.values()) <= 1, "every node has the first, so it counts for none"


def test_slots_of_kind_metadata_become_even_and_slot_0_stays_where_the_map_is() -> None:
    known = formed(3)
    assert {group.kind: slots_count(group.initial_slots) for group in known.groups}["metadata"] == SLOTS
    for _ in range(3):
        known = following(decisions.add_group(known, "metadata", 3, ()))
    known = following(decisions.rebalance(known, 3, (), 3))
    assert [(move.kind, move.source, slots_count(move.slots)) for move in known.moves] == [("metadata", 0, 256)] * 3
    for move in known.moves:
        known = following(decisions.moved(known, move.move))
    assert Counter(unpack_slots(known.slots["metadata"])) == dict.fromkeys(range(4), 256)
    assert unpack_slots(known.slots["metadata"])[0] == METADATA.ordinal


def test_nodes_that_are_lost_are_given_replicas_last() -> None:
    five = cluster(["n1", "n2", "n3", "n4", "n5"])
    added = following(decisions.add_group(five, "data", 3, {"n1", "n2"})).group(GroupId("data", 1))
    assert isinstance(added, GroupRecord)
    assert added.replicas == ["n3", "n4", "n5"]
