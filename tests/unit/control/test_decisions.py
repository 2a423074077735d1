"""Decisions about the cluster map, without a controller."""

import msgspec
from test_controller import cluster, node

from metad.config import Config
from metad.control.map import decisions, leaving
from metad.control.map.decisions import Decision
from metad.control.map.seen import Reach
from metad_wire.cluster import ClusterMap, GroupId, GroupRecord, Transfer
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


def test_nodes_that_are_lost_are_given_replicas_last() -> None:
    five = cluster(["n1", "n2", "n3", "n4", "n5"])
    added = following(decisions.add_group(five, "data", 3, {"n1", "n2"})).group(GroupId("data", 1))
    assert isinstance(added, GroupRecord)
    assert added.replicas == ["n3", "n4", "n5"]
