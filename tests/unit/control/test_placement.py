"""Where replicas and leaders go: on different machines, evenly, and moving no more than that takes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from metad.control.placement import (
    VOTERS_MAX,
    balanced_leaders,
    even_moves,
    machine_of,
    metadata_replicas,
    spread,
)
from metad_wire.cluster import SLOTS, GroupRecord

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
    counts, old = Counter(after), Counter(slots)
    assert max(counts[group] for group in groups) - min(counts[group] for group in groups) <= 1
    share, more = divmod(SLOTS, len(groups))
    largest = sorted((old[group] for group in groups), reverse=True)
    needed = sum(max(0, held - share - (position < more)) for position, held in enumerate(largest))
    assert sum(map(len, moves.values())) == needed
    assert even_moves(after, groups) == {}
