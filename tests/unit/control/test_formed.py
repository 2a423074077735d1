"""Settings that have no effect on a cluster that is there are refused, or named in the log; the others are not."""

from __future__ import annotations

import msgspec
import pytest

from metad.config import ClusterConfig, Config, GroupsConfig
from metad.control.map.decisions import first_map
from metad.control.map.formed import refusal, without_effect
from metad_wire.cluster import ClusterMap, GroupRecord

THREE = {"a": "h:1", "b": "h:2", "c": "h:3"}


def config(groups: GroupsConfig | None = None, **cluster: object) -> Config:
    made = msgspec.convert(cluster, ClusterConfig)
    return Config(node_id="a", data_dir="d", cluster=made, groups=groups or GroupsConfig())


def formed(by: Config) -> ClusterMap:
    return first_map(by, "", "cluster")


@pytest.mark.parametrize("same", [config(), config(seeds={"a": "h:1"}), config(seeds=THREE)])
def test_the_settings_that_formed_a_cluster_are_fine(same: Config) -> None:
    assert refusal(same, formed(same)) is None
    assert not list(without_effect(same, formed(same)))


def test_seeds_do_not_turn_a_cluster_of_one_into_one_of_three() -> None:
    text = refusal(config(seeds=THREE), formed(config()))
    assert text is not None
    assert "seeds do not add b, c" in text
    assert refusal(config(seeds={"a": "h:1"}), formed(config())) is None, "the remedy that the message names"


def test_a_founder_that_is_left_alone_starts_with_its_old_settings() -> None:
    """At night, when its two peers have left for good, this node must come up."""
    current = formed(config(seeds=THREE))
    alone = msgspec.structs.replace(current, nodes=[node for node in current.nodes if node.node_id == "a"])
    assert refusal(config(seeds=THREE), alone) is None
    ((key, text),) = without_effect(config(seeds=THREE), alone)
    assert key == "cluster.seeds"
    assert text.startswith("not in the cluster: b, c.")


def test_a_member_needs_its_listener_for_nodes() -> None:
    text = refusal(config(), formed(config(seeds=THREE)))
    assert text is not None
    assert "a cluster with b, c" in text
    assert refusal(config(join=["h:2"]), formed(config(seeds=THREE))) is None


@pytest.mark.parametrize(
    ("data", "noticed"),
    [
        pytest.param(4, False, id="as it was formed"),
        pytest.param(2, False, id="the default, which a node that joins has"),
        pytest.param(5, False, id="as many as there are now"),
        pytest.param(8, True, id="more"),
        pytest.param(3, True, id="fewer"),
    ],
)
def test_another_number_of_groups_is_noticed(data: int, noticed: bool) -> None:
    current = formed(config(GroupsConfig(data=4), seeds=THREE))
    added = GroupRecord("data", 4, ["a"], ["a"])
    current = msgspec.structs.replace(current, groups=[*current.groups, added])
    found = list(without_effect(config(GroupsConfig(data=data), seeds=THREE), current))
    wanted = [("groups.data", "the cluster has 5; metadctl groups add --kind data adds one")]
    assert found == (wanted if noticed else [])
