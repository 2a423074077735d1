"""Every configuration of a few nodes, whoever of them is reachable: what is changed next, and where that leads."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import combinations

import pytest

from metad.control.map.upkeep import Change, changes
from metad.raft.messages import Configuration

NODES = ("n1", "n2", "n3", "n4", "n5")


def subsets(nodes: Collection[str], least: int = 0) -> Iterator[tuple[str, ...]]:
    for size in range(least, len(nodes) + 1):
        yield from combinations(nodes, size)


def made(now: Configuration, change: Change) -> Configuration:
    """The configuration after a change."""
    voters, learners = set(now.voters), set(now.learners)
    if change.kind == "add":
        learners.add(change.member)
    else:
        voters.discard(change.member)
        learners.discard(change.member)
        if change.kind == "promote":
            voters.add(change.member)
    return Configuration(tuple(sorted(voters)), tuple(sorted(learners)))


def begun(
    now: Configuration,
    wanted: Collection[str],
    learners: Collection[str] = (),
    *,
    reachable: Collection[str] = NODES,
    gone: Collection[str] = (),
) -> list[Change]:
    return list(changes(now, sorted(wanted), sorted(learners), reachable=reachable, gone=gone))


def test_no_change_costs_a_quorum_or_a_copy_that_the_group_should_have() -> None:
    looked = removed = 0
    for voters in subsets(NODES, 1):
        for learners in subsets([node for node in NODES if node not in voters]):
            now = Configuration(voters, learners)
            for reachable in subsets(NODES, 1):
                alive = len({*voters} & {*reachable})
                if alive < now.quorum():
                    continue  # nothing commits
                for wanted in subsets(NODES, 1):
                    gone = [node for node in voters if node not in reachable]
                    for change in begun(now, wanted, reachable=reachable, gone=gone):
                        after = made(now, change)
                        left = len({*after.voters} & {*reachable})
                        assert left >= after.quorum(), (now, wanted, reachable, change)
                        assert left >= min(alive, len(wanted)), (now, wanted, reachable, change)
                        looked += 1
                        removed += change.kind == "remove"
    assert looked > 10_000
    assert removed > 1_000


def test_where_all_are_reachable_every_configuration_becomes_the_wished_one() -> None:
    for voters in subsets(NODES, 1):
        for learners in subsets([node for node in NODES if node not in voters]):
            for wanted in subsets(NODES, 1):
                now, rest = Configuration(voters, learners), [node for node in NODES[:3] if node not in wanted]
                for _ in range(20):
                    if not (next_ones := begun(now, wanted, rest)):
                        break
                    now = made(now, next_ones[0])
                assert now == Configuration(wanted, tuple(rest))


THREE = Configuration(("n1", "n2", "n3"))


def test_a_healthy_replica_stays_while_its_replacement_is_down() -> None:
    assert begun(THREE, ["n2", "n3", "n4"], reachable=["n1", "n2", "n3"]) == []
    learns = Configuration(THREE.voters, ("n4",))
    assert begun(learns, ["n2", "n3", "n4"], reachable=["n1", "n2", "n3"]) == []
    votes = Configuration(("n1", "n2", "n3", "n4"))
    assert begun(votes, ["n2", "n3", "n4"], reachable=["n1", "n2", "n3"]) == []
    assert begun(votes, ["n2", "n3", "n4"]) == [Change("remove", "n1")]


def test_a_replica_that_is_gone_goes_if_nobody_who_can_be_reached_is_waited_for() -> None:
    up = ["n2", "n3"]
    assert begun(THREE, ["n2", "n3", "n4"], reachable=up) == [], "it may only start again"
    assert begun(THREE, ["n2", "n3", "n4"], reachable=up, gone=["n1"]) == [Change("remove", "n1")]
    learns = Configuration(THREE.voters, ("n4",))
    assert begun(learns, ["n2", "n3", "n4"], reachable=[*up, "n4"], gone=["n1"]) == [Change("promote", "n4")]


def test_nobody_goes_where_those_who_stay_are_no_quorum() -> None:
    assert begun(THREE, ["n2", "n3"], reachable=["n1", "n2"]) == []
    assert begun(Configuration(("n2", "n3", "n4")), ["n3", "n4"], reachable=["n2", "n3"], gone=["n4"]) == []


@pytest.mark.parametrize("dead", NODES[2:])
def test_two_that_leave_at_once_go_one_after_the_other_as_replacements_come(dead: str) -> None:
    """n1 and n2 leave together; one of those that are to have the group is down all the time."""
    now, wanted, seen = THREE, ["n3", "n4", "n5"], []
    reachable = [node for node in NODES if node != dead]
    while next_ones := begun(now, wanted, reachable=reachable):
        now = made(now, next_ones[0])
        seen.append(len({*now.voters} & {*reachable}))
    assert min(seen) >= 3 - (dead == "n3")
    assert {*wanted} - {dead} <= {*now.voters}
