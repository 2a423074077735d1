"""Groups get the replicas that they lack, a few at a time, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

import msgspec
import pytest
from test_controller import cluster, node

from metad.control.map.decisions import join
from metad.control.map.seen import Reach
from metad.control.map.upkeep import AT_ONCE, lacking, repaired
from metad_wire import messages as m
from metad_wire.cluster import METADATA, ClusterMap, GroupRecord, machine_of

WORKERS = ["n1/0", "n1/1", "n2/0", "n2/1", "n3/0"]


def on(nodes: Sequence[str], *replicas: Sequence[str], wanted: int = 3) -> ClusterMap:
    """A cluster of these nodes, with a group of data for each of ``replicas``."""
    known = cluster(list(nodes), replicas=wanted)
    groups = [GroupRecord("data", at, list(each), list(each), each[0]) for at, each in enumerate(replicas)]
    return msgspec.structs.replace(known, groups=[known.groups[0], *groups])


def reports(known: ClusterMap, behind: Sequence[int] = ()) -> list[m.GroupStatus]:
    """What the leaders say: the replicas are as the map wants, but for groups whose last one is on its way."""
    return [
        m.GroupStatus(
            g.group_id.name,
            g.kind,
            0,
            9,
            1,
            9,
            0,
            "leader",
            "",
            1,
            9,
            g.replicas[: -1 if at in behind else None],
            [],
            5,
        )
        for at, g in enumerate(known.groups)
    ]


def changed(before: ClusterMap, after: ClusterMap) -> list[tuple[GroupRecord, GroupRecord]]:
    pairs = zip(before.groups, after.groups, strict=True)
    return [(then, now) for then, now in pairs if then != now]


@pytest.mark.parametrize("nodes", [["n1"], ["n1", "n2"], ["n1", "n2", "n3"], ["n1", "n2", "n3", "n4"], WORKERS])
@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_replicas_are_added_where_they_lack_and_machines_allow_and_nothing_else_changes(
    nodes: list[str], wanted: int
) -> None:
    """Every set of nodes within reach, every two placements of groups."""
    sets = [each for size in (1, 2, 3) for each in combinations(nodes, size)]
    placements = [each for each in sets if len({machine_of(n) for n in each}) == len(each)]
    looked = added = 0
    for first, second in product(placements, repeat=2):
        known = on(nodes, first, second, wanted=wanted)
        for size in range(1, len(nodes) + 1):
            for reachable in combinations(nodes, size):
                looked += 1
                decision = repaired(known, reachable, reports(known))
                if decision.map is None:
                    continue
                after = decision.map
                expected = msgspec.structs.replace(known, version=known.version + 1, groups=after.groups)
                assert after == expected, "only groups change"
                for then, now in changed(known, after):
                    added += 1
                    assert msgspec.structs.replace(then, replicas=now.replicas) == now
                    assert set(then.replicas) < set(now.replicas), "no replica is given up"
                    assert set(now.replicas) - set(then.replicas) <= set(reachable)
                    assert len({machine_of(n) for n in now.replicas}) == len(now.replicas) <= wanted
        following = repaired(known, nodes, reports(known)).map or known
        most = min(wanted, len({machine_of(n) for n in nodes}))
        assert not lacking(following)
        assert all(len(group.replicas) >= most for group in following.groups[1:])
    assert looked
    assert added or wanted == 1 or len(nodes) == 1


def test_a_few_groups_at_a_time_and_the_neediest_first() -> None:
    known = on(["n1", "n2", "n3"], *[["n1", "n2"]] * 5, ["n1"], ["n1", "n2", "n3"])
    steps = 0
    while lacking(known):
        after = repaired(known, ["n1", "n2", "n3"], reports(known)).map
        assert after is not None
        now = [then.ordinal for then, _ in changed(known, after)]
        assert len(now) <= AT_ONCE
        assert steps or 5 in now
        on_their_way = [at for at, group in enumerate(after.groups) if group.ordinal in now and at]
        assert repaired(after, ["n1", "n2", "n3"], reports(after, on_their_way)).map is None, "two are on their way"
        known, steps = after, steps + 1
    assert steps == 3


def test_a_replica_on_its_way_to_a_node_that_is_down_keeps_no_others_waiting() -> None:
    known = on(["n1", "n2", "n3", "n4"], ["n1", "n2", "n4"], ["n1", "n3", "n4"], ["n1", "n2"])
    behind = reports(known, [1, 2])
    assert repaired(known, ["n1", "n2", "n3", "n4"], behind).map is None
    after = repaired(known, ["n1", "n2", "n3"], behind).map
    assert after is not None
    assert after.groups[3].replicas == ["n1", "n2", "n3"]


def test_a_group_without_a_leader_and_one_whose_node_is_down_are_left_alone() -> None:
    known = on(["n1", "n2", "n3", "n4"], ["n1", "n2"], ["n1", "n2", "n3"])
    leaderless = [report for report in reports(known) if report.name != "data-0"]
    assert repaired(known, ["n1", "n2", "n4"], leaderless).map is None


def test_new_replicas_go_to_other_regions_and_to_nodes_that_have_few() -> None:
    known = on(["n1", "n2"], *[["n1", "n2"]] * 2)
    for name, region in (("n3", ""), ("n4", "eu"), ("n5", "eu")):
        following = join(known, node(name, region=region), Reach.UNKNOWN).map
        assert following is not None
        known = following
    after = repaired(known, ["n1", "n2", "n3", "n4", "n5"], reports(known))
    assert after.map is not None
    assert [group.replicas for group in after.map.groups[1:]] == [["n1", "n2", "n4"], ["n1", "n2", "n5"]]
    assert after.text == "data-0: n4 is added; data-1: n5 is added"


def test_nothing_lacks_where_nobody_said_how_many_are_wanted() -> None:
    assert not lacking(on(["n1", "n2", "n3"], ["n1"], wanted=0))
    assert [group.group_id for group in lacking(on(["n1", "n2", "n3"], ["n1"]))] != [METADATA]
