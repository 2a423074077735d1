"""Decisions about the cluster map, without a controller."""

import msgspec
import pytest
from test_controller import cluster, leads, node

from metad.config import Config
from metad.control import decisions
from metad.control.decisions import Decision
from metad_wire.cluster import ClusterMap, GroupRecord, Transfer
from metad_wire.errors import ConflictError, NotFoundError
from metad_wire.group import METADATA, GroupId
from metad_wire.methods import encode


def following(decision: Decision) -> ClusterMap:
    assert decision.map is not None
    return decision.map


def test_a_decision_leaves_the_map_it_is_made_from_alone_and_counts_versions() -> None:
    before = cluster()
    stored = encode(before)
    for decision in (
        decisions.join(before, node("n4")),
        decisions.leave(before, "n1", ()),
        decisions.add_group(before, "data", 3, ()),
        decisions.rebalance(before, 3, ()),
        decisions.transfer(before, Transfer("data-0", "n2")),
    ):
        assert following(decision).version == before.version + 1
    assert encode(before) == stored


def test_nothing_changes_where_the_map_says_so_already() -> None:
    known = cluster()
    assert decisions.join(known, node("n2")) == Decision(None, "already known")
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


def test_a_node_is_forgotten_when_the_leaders_of_all_groups_have_let_it_go() -> None:
    known = following(decisions.leave(cluster(), "n1", ()))
    assert decisions.is_leaving(known, "n1")
    assert not decisions.is_leaving(known, "n2")
    with pytest.raises(NotFoundError):
        decisions.is_leaving(known, "n9")
    reports = [leads(kind, ["n2", "n3"]) for kind in ("metadata", "offset", "data")]
    with pytest.raises(ConflictError, match="data-0"):
        decisions.forget(known, "n1", reports[:2])
    after = following(decisions.forget(known, "n1", reports))
    assert after.node("n1") is None
    assert all("n1" not in group.learners for group in after.groups if group.group_id == METADATA)
