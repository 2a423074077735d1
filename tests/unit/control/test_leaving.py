"""Which nodes may leave, and what is left then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import msgspec
import pytest
from test_controller import cluster, leads, node

from metad.control.map import decisions, leaving
from metad.control.map.seen import Reach
from metad_wire.cluster import GROUP_KINDS, METADATA, ClusterMap, GroupRecord
from metad_wire.errors import ConflictError, MetadError, NotFoundError


def subsets(nodes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for size in range(len(nodes) + 1):
        yield from combinations(nodes, size)


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(1, count + 1)]


def on_first_three(count: int) -> ClusterMap:
    """So many nodes, and the groups on the first three of them."""
    known = cluster(names(count))
    groups = [
        msgspec.structs.replace(g, replicas=g.replicas[:3]) if g.group_id != METADATA else g for g in known.groups
    ]
    return msgspec.structs.replace(known, groups=groups)


def after(known: ClusterMap, name: str, lost: Sequence[str] = (), *, fewer: bool = False) -> ClusterMap | None:
    """None if it is refused."""
    try:
        decision = leaving.leave(known, name, lost, (), 3, fewer=fewer)
    except MetadError:
        return None
    assert decision.map is not None
    return decision.map


def left(known: ClusterMap, name: str) -> ClusterMap:
    """The map once a node that leaves is forgotten."""
    reports = [leads(g.kind, g.replicas) for g in known.groups]
    decision = leaving.forget(known, name, reports)
    assert decision.map is not None
    return decision.map


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_whoever_leaves_whatever_is_lost_every_group_keeps_a_majority_and_its_copies(count: int) -> None:
    """Every leave of one node, and then of a second one at once, with every set of nodes out of reach."""
    accepted = 0
    for fewer in (False, True):
        for lost in subsets(names(count)):
            for first in names(count):
                one = after(on_first_three(count), first, lost, fewer=fewer)
                for second in names(count):
                    two = one and second != first and after(one, second, lost, fewer=fewer)
                    for known in (one, two):
                        if not known:
                            continue
                        accepted += 1
                        for group, before in zip(known.groups, on_first_three(count).groups, strict=True):
                            if group.replicas == before.replicas:
                                continue  # it is not touched
                            alive = set(group.replicas) - set(lost)
                            assert len(alive) > len(group.replicas) / 2, (lost, first, second, group)
                            assert not {n.node_id for n in known.nodes if n.leaving} & set(group.replicas)
                            fewest = min(3, len(before.replicas)) - fewer
                            assert len(group.replicas) >= fewest, (lost, first, second, group)
    assert accepted > (0 if count == 2 else 10)


def test_two_of_three_at_once_may_not_leave_and_one_only_if_fewer_replicas_are_wanted() -> None:
    three = cluster()
    with pytest.raises(ConflictError, match=r"n3 would leave metadata-0 \(and 2 more groups\) with 2 of 3 replicas"):
        leaving.leave(three, "n3", (), (), 3)
    one = after(three, "n3", fewer=True)
    assert one is not None
    with pytest.raises(ConflictError, match="n2 cannot leave while n3 is still leaving"):
        leaving.leave(one, "n2", (), (), 3, fewer=True)
    two = left(one, "n3")
    with pytest.raises(ConflictError, match="--allow-fewer-replicas"):
        leaving.leave(two, "n2", (), (), 3)
    assert after(two, "n2", fewer=True) is not None


def test_nodes_may_leave_one_after_the_other_or_at_once_while_enough_stay() -> None:
    known: ClusterMap | None = on_first_three(5)
    for name in ("n1", "n2"):
        assert known is not None
        known = after(known, name)
    assert known is not None
    assert known.groups[-1].replicas == ["n3", "n4", "n5"]
    assert after(known, "n3") is None


def test_a_node_may_not_leave_if_a_group_has_no_majority_to_decide_it() -> None:
    known = on_first_three(4)
    alone = msgspec.structs.replace(known.groups[-1], replicas=["n4"])
    known = msgspec.structs.replace(known, groups=[*known.groups[:-1], alone])
    with pytest.raises(ConflictError, match=r"data-0 has 0 of 1 replicas within reach, no majority. Bring n4 back"):
        leaving.leave(known, "n4", ("n4",), (), 3, fewer=True)
    # The leader says that by now it is on others too.
    voters = leads("data", ["n1", "n2", "n4"])
    assert leaving.leave(known, "n4", ("n4",), [voters], 3, fewer=True).map is not None


def test_only_a_node_that_is_out_of_reach_leaves_as_lost() -> None:
    leaving.check_lost("n3", Reach.LOST)
    for reach, text in ((Reach.ALIVE, "n3 is alive"), (Reach.UNKNOWN, "a moment ago")):
        with pytest.raises(ConflictError, match=text):
            leaving.check_lost("n3", reach)


def test_a_node_is_forgotten_when_the_leaders_of_all_groups_have_let_it_go() -> None:
    known = after(cluster(), "n1", fewer=True)
    assert known is not None
    assert leaving.is_leaving(known, "n1")
    assert not leaving.is_leaving(known, "n2")
    with pytest.raises(NotFoundError):
        leaving.is_leaving(known, "n9")
    reports = [leads(kind, ["n2", "n3"]) for kind in GROUP_KINDS]
    with pytest.raises(ConflictError, match="data-0"):
        leaving.forget(known, "n1", reports[:2])
    forgotten = leaving.forget(known, "n1", reports).map
    assert forgotten is not None
    assert forgotten.node("n1") is None
    assert all("n1" not in group.learners for group in forgotten.groups if group.group_id == METADATA)


def test_a_node_that_only_follows_is_forgotten_in_metadata_0_and_nowhere_else() -> None:
    added = GroupRecord("metadata", 1, ["n2", "n3"], ["n2", "n3"])
    known = cluster()
    known = msgspec.structs.replace(known, groups=[*known.groups, added])
    known = after(known, "n1", fewer=True)
    assert known is not None
    follows = [leads(kind, ["n2", "n3"], learners=("n1",) if kind == "metadata" else ()) for kind in GROUP_KINDS]
    other = msgspec.structs.replace(follows[0], name="metadata-1")
    assert leaving.still_needed(known, "n1", [*follows, other]) == ["metadata-1"]
    assert leaving.still_needed(known, "n1", [*follows, msgspec.structs.replace(other, learners=[])]) == []


def test_a_namesake_is_told_what_is_true_and_never_to_remove_a_member_that_is_alive() -> None:
    stranger = node("n2", store_id="new")
    texts = {}
    for reach in Reach:
        with pytest.raises(ConflictError) as caught:
            decisions.join(cluster(), stranger, reach)
        texts[reach] = str(caught.value)
    assert texts[Reach.ALIVE] == (
        "another node named n2 is alive at n2:2 with its own data directory; give this node another node_id"
    )
    assert "leave" not in texts[Reach.UNKNOWN]
    assert "has been out of reach since" in texts[Reach.LOST]
