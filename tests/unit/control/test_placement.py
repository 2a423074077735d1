"""Where replicas and leaders go: on different machines, evenly, and moving no more than that takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metad.control.map.placement import (
    VOTERS_MAX,
    able_leaders,
    balanced_leaders,
    metadata_replicas,
    returned_leaders,
    spread,
)
from metad_wire.cluster import SLOTS, GroupRecord, machine_of
from metad_wire.policy.slots import even_moves, even_slots, filling_moves

node_names = st.builds(lambda machine, worker: f"n{machine}/{worker}", st.integers(0, 6), st.integers(0, 2))
nodes_lists = st.lists(node_names, min_size=1, max_size=12, unique=True)


def place(nodes: list[str], count: int, groups: int) -> list[GroupRecord]:
    placed: list[GroupRecord] = []
    for ordinal in range(groups):
        replicas = spread(nodes, count, placed)
        placed.append(GroupRecord("data", ordinal, replicas, replicas))
    return placed


@given(nodes_lists, st.integers(1, 5), st.integers(0, 12))
def test_replicas_of_a_group_are_on_different_machines_as_many_as_there_are(
    nodes: list[str], count: int, groups: int
) -> None:
    machines = {machine_of(node) for node in nodes}
    for group in place(nodes, count, groups):
        assert len(group.replicas) == min(count, len(machines))
        assert len({machine_of(node) for node in group.replicas}) == len(group.replicas)
        assert set(group.replicas) <= set(nodes)
        assert group.replicas == sorted(group.replicas)


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 20))
def test_replicas_are_spread_evenly_over_equal_machines(machines: int, count: int, groups: int) -> None:
    nodes = [f"n{i}" for i in range(machines)]
    load = Counter(node for group in place(nodes, count, groups) for node in group.replicas)
    assert max(load[node] for node in nodes) - min(load[node] for node in nodes) <= 1


@given(nodes_lists, st.integers(1, 5), st.data())
def test_kept_replicas_stay(nodes: list[str], count: int, data: st.DataObject) -> None:
    keep = spread(nodes, count, [])
    gone = data.draw(st.sampled_from(keep))
    rest = [node for node in nodes if node != gone]
    if not rest:
        return
    replicas = spread(rest, count, [], keep=keep)
    assert set(keep) - {gone} <= set(replicas)
    assert gone not in replicas
    assert len({machine_of(node) for node in replicas}) == len(replicas)


@given(nodes_lists, st.data())
def test_everyone_follows_the_metadata_group_and_few_on_different_machines_vote(
    nodes: list[str], data: st.DataObject
) -> None:
    voters, learners = metadata_replicas(nodes)
    assert sorted(voters + learners) == sorted(nodes)
    machines = {machine_of(node) for node in nodes}
    assert len(voters) == len({machine_of(node) for node in voters}) == min(VOTERS_MAX, len(machines))
    added = data.draw(node_names.filter(lambda node: node not in nodes))
    again, _ = metadata_replicas([*nodes, added], keep=voters)
    assert set(voters) <= set(again), "who votes goes on voting"


# --- regions -------------------------------------------------------------------------------------------------

places = st.dictionaries(node_names, st.sampled_from(["eu", "us", "ap"]), min_size=1, max_size=12)


def in_regions(nodes: Iterable[str], regions: Mapping[str, str]) -> Counter[str]:
    return Counter(regions[node] for node in nodes)


@given(places, st.integers(1, 5), st.data())
def test_replicas_are_spread_over_regions_first_and_machines_second(
    drawn: dict[str, str], count: int, data: st.DataObject
) -> None:
    of_machine = {machine_of(node): region for node, region in drawn.items()}  # a machine is in one region
    regions = {node: of_machine[machine_of(node)] for node in drawn}
    machines = Counter(of_machine.values())
    keep = data.draw(st.lists(st.sampled_from(sorted(regions)), max_size=count, unique=True))
    replicas = spread(list(regions), count, [], keep, regions=regions)
    assert len(replicas) == len({machine_of(node) for node in replicas}) == min(count, len(of_machine))
    found = in_regions(replicas, regions)
    for region, held in found.items():
        for other, all_of in machines.items():
            assert found[other] >= held - 1 or found[other] == all_of, f"{region} has {held}, {other} {found[other]}"


@given(st.integers(1, 20), st.integers(2, 4))
def test_no_group_has_a_quorum_in_one_region_and_leaders_are_even(groups: int, per_region: int) -> None:
    regions = {f"n{number}": ("eu", "us", "ap")[number % 3] for number in range(3 * per_region)}
    placed: list[GroupRecord] = []
    for ordinal in range(groups):
        replicas = spread(list(regions), 3, placed, regions=regions)
        assert set(in_regions(replicas, regions).values()) == {1}
        placed.append(GroupRecord("data", ordinal, replicas, replicas))
    load = Counter(node for group in placed for node in group.replicas)
    assert max(load[node] for node in regions) - min(load[node] for node in regions) <= 1
    leaders = in_regions([group.preferred for group in balanced_leaders(placed, list(regions), regions)], regions)
    assert max(leaders.values()) <= groups // 3 + 1


@given(places)
def test_the_loss_of_a_region_leaves_the_metadata_a_quorum_where_three_regions_have_machines(
    drawn: dict[str, str],
) -> None:
    of_machine = {machine_of(node): region for node, region in drawn.items()}
    regions = {node: of_machine[machine_of(node)] for node in drawn}
    voters, learners = metadata_replicas(list(regions), regions=regions)
    assert sorted(voters + learners) == sorted(regions)
    assert len({machine_of(node) for node in voters}) == len(voters)
    if len(set(regions.values())) == 3:
        assert max(in_regions(voters, regions).values()) <= len(voters) - len(voters) // 2 - 1
        assert len(voters) >= 3


def test_who_is_kept_stays_as_far_as_the_regions_allow() -> None:
    regions = {"a1": "eu", "a2": "eu", "b1": "us", "b2": "us", "c1": "ap", "c2": "ap"}
    nodes = list(regions)
    assert spread(nodes, 3, [], ["a2", "b2", "c2"], regions=regions) == ["a2", "b2", "c2"]
    assert spread(nodes, 3, [], ["a1", "a2", "b2"], regions=regions) == ["a1", "b2", "c1"]
    rest = [node for node in nodes if regions[node] != "ap"]
    assert spread(rest, 3, [], ["a2", "b2"], regions=regions) == ["a1", "a2", "b2"], "two regions hold three"
    assert metadata_replicas(nodes, ["a2", "b2", "c2"], regions)[0] == ["a1", "a2", "b1", "b2", "c2"]


def test_who_is_out_of_reach_comes_last_unless_it_is_kept() -> None:
    regions = {"a1": "eu", "a2": "eu", "b1": "us", "b2": "us", "c1": "ap"}
    nodes = list(regions)
    assert spread(nodes, 3, [], ["a1", "b1"], ["c1"], regions) == ["a1", "a2", "b1"]
    assert spread(nodes, 3, [], ["a1", "b1", "c1"], ["c1"], regions) == ["a1", "b1", "c1"]
    assert spread(["a1", "b1", "c1"], 3, [], ["a1", "b1"], ["c1"], regions) == ["a1", "b1", "c1"]


@given(nodes_lists, st.integers(1, 12), st.integers(1, 5))
def test_leaders_are_replicas_and_balanced_preferences_stay(nodes: list[str], groups: int, count: int) -> None:
    placed = balanced_leaders(place(nodes, count, groups), nodes)
    assert all(group.preferred in group.replicas for group in placed)
    assert [group.preferred for group in balanced_leaders(placed, nodes)] == [group.preferred for group in placed]


@given(st.integers(1, 7), st.integers(1, 21))
def test_leaders_are_even_where_every_node_has_every_group(machines: int, groups: int) -> None:
    nodes = [f"n{i}" for i in range(machines)]
    load = Counter(group.preferred for group in balanced_leaders(place(nodes, machines, groups), nodes))
    assert max(load[node] for node in nodes) - min(load[node] for node in nodes) <= 1


@given(places, st.integers(1, 12), st.integers(1, 5), st.data())
def test_groups_that_prefer_a_region_are_led_there_if_they_have_a_replica_there(
    regions: dict[str, str], groups: int, count: int, data: st.DataObject
) -> None:
    nodes = list(regions)
    wishes = data.draw(st.lists(st.sampled_from(["", "eu", "us", "ap"]), min_size=groups, max_size=groups))
    wanted = [
        msgspec.structs.replace(group, region=region)
        for group, region in zip(place(nodes, count, groups), wishes, strict=True)
    ]
    placed = balanced_leaders(wanted, nodes, regions)
    back = data.draw(st.sampled_from(nodes))
    for group in [*placed, *returned_leaders(placed, back, nodes, regions)]:
        there = [node for node in group.replicas if regions[node] == group.region]
        assert group.preferred in (there or group.replicas)
        assert able_leaders(group, nodes, regions) == (there or group.replicas)
    assert balanced_leaders(placed, nodes, regions) == placed, "preferences that fit stay"


@settings(deadline=None)  # a busy machine takes its time
@given(st.integers(1, 12), st.integers(0, 6), st.randoms(use_true_random=False))
def test_slots_become_even_by_the_fewest_moves(before: int, added: int, random: object) -> None:
    choice = random.randrange  # type: ignore[attr-defined]
    slots = [choice(before) for _ in range(SLOTS)]
    groups = list(range(before + added))
    moves = even_moves(slots, groups)
    after = list(slots)
    for (source, target), moving in moves.items():
        for slot in moving:
            assert after[slot] == source == slots[slot], "a slot moves once, and from who has it"
            after[slot] = target
    assert all(after[slots.index(group)] == group for group in set(slots)), "the first slot of a group stays"
    counts, old = Counter(after), Counter(slots)
    assert max(counts[group] for group in groups) - min(counts[group] for group in groups) <= 1
    share, more = divmod(SLOTS, len(groups))
    largest = sorted((old[group] for group in groups), reverse=True)
    needed = sum(max(0, held - share - (position < more)) for position, held in enumerate(largest))
    assert sum(map(len, moves.values())) == needed
    assert even_moves(after, groups) == {}


@settings(deadline=None)  # a busy machine takes its time
@given(st.integers(1, 12), st.integers(0, 6), st.randoms(use_true_random=False))
def test_only_groups_without_slots_get_some_where_the_others_stay_as_they_are(
    before: int, added: int, random: object
) -> None:
    choice = random.randrange  # type: ignore[attr-defined]
    slots = [choice(before) for _ in range(SLOTS)]
    old = Counter(slots)
    groups = list(range(before + added))
    empty = [group for group in groups if not old[group]]
    after = list(slots)
    for (source, target), moving in filling_moves(slots, groups).items():
        assert target in empty
        assert source not in empty
        for slot in moving:
            assert after[slot] == source == slots[slot], "a slot moves once, and from who has it"
            after[slot] = target
    assert all(after[slots.index(group)] == group for group in set(slots)), "the first slot of a group stays"
    new, share = Counter(after), -(-SLOTS // len(groups))
    most = max(new[group] for group in old)
    assert all(new[group] == share or most - new[group] <= 1 for group in empty)
    gave = [new[group] for group in old if new[group] < old[group]]
    assert all(new[group] <= min(gave, default=SLOTS) + 1 for group in old), "whoever has most gives"
    assert filling_moves(after, groups) == {}


@pytest.mark.parametrize(("before", "added"), [(1, 1), (3, 1), (3, 2), (5, 1), (7, 6), (1023, 1)])
def test_where_nobody_has_moved_slots_by_hand_all_groups_are_even_again(before: int, added: int) -> None:
    slots, groups = even_slots(before), list(range(before + added))
    moves = filling_moves(slots, groups)
    for (_, target), moving in moves.items():
        for slot in moving:
            slots[slot] = target
    assert even_moves(slots, groups) == {}
    assert sum(map(len, moves.values())) == sum(map(len, even_moves(even_slots(before), groups).values()))
