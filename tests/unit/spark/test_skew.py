"""Moves of slots that even out groups: they are what they say, and the fewest of those that help."""

from __future__ import annotations

from random import Random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metad.control.map import decisions
from metad_spark.queries import skew
from metad_wire.cluster import SLOTS, ClusterMap, GroupRecord, NodeRecord, pack_slots, slots_in
from metad_wire.policy.slots import even_slots
from sim.mutants.planting import Mutant, one_edit, planted

FLAT = [10] * SLOTS


def loads(weights: list[int], owners: list[int], groups: list[int]) -> dict[int, int]:
    return {group: sum(w for w, owner in zip(weights, owners, strict=True) if owner == group) for group in groups}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    heaviest=st.integers(0, 5_000),
    groups_count=st.integers(1, 7),
    within=st.floats(1.0, 1.5),
    steps=st.integers(1, 40),
)
def test_moves_are_valid_and_do_what_they_promise(
    seed: int, heaviest: int, groups_count: int, within: float, steps: int
) -> None:
    random = Random(seed)
    weights = [random.randrange(100) for _ in range(SLOTS)]
    weights[random.randrange(SLOTS)] = heaviest
    groups = list(range(1, 1 + groups_count))
    owners = [random.choice(groups) for _ in range(SLOTS)]
    found = skew.propose("data", "bytes", weights, owners, groups, within, steps)
    after = list(owners)
    moved: list[int] = []
    for move in found.moves:
        assert move.source != move.target
        assert {move.source, move.target} <= set(groups)
        for slot in move.slots:
            assert owners[slot] == move.source, "it moves from where it is"
            after[slot] = move.target
            moved.append(slot)
    assert len(moved) == len(set(moved)) <= steps
    mean = sum(weights) / groups_count
    if mean:
        assert abs(found.before - max(loads(weights, owners, groups).values()) / mean) < 1e-9
        assert abs(found.after - max(loads(weights, after, groups).values()) / mean) < 1e-9
    assert found.after <= found.before
    assert found.met == (found.after <= within)
    if found.before <= within:
        assert not found.moves
    if found.heaviest_slot is not None:
        assert not found.met


def test_what_one_move_can_do_one_move_does() -> None:
    weights = [1] * SLOTS
    weights[3] = weights[5] = 100  # of group 0, which then has 454 of 1,222
    found = skew.propose("data", "rows", weights, even_slots(4), [0, 1, 2, 3], 1.2, 64)
    assert [(move.source, move.target, move.slots) for move in found.moves] == [(0, 1, [3])]
    assert found.met


def test_a_slot_that_is_too_heavy_by_itself_is_named() -> None:
    weights = list(FLAT)
    weights[700] = 100_000
    found = skew.propose("data", "bytes", weights, even_slots(4), [0, 1, 2, 3], 1.1, 64)
    assert (found.heaviest_slot, found.met, found.added) == (700, False, None)
    assert found.after < found.before, "its group keeps nothing else, as far as the steps go"


def test_more_groups_help_where_no_slot_is_too_heavy() -> None:
    # Half of the slots, group 0's, are three times as heavy: six groups of 170 slots, or two and moves.
    weights = [30 if slot < 512 else 10 for slot in range(SLOTS)]
    found = skew.propose("data", "bytes", weights, even_slots(2), [0, 1], 1.1, 512)
    assert (found.before, found.met) == (1.5, True)
    assert found.rebalance == 1.5
    assert found.added is not None
    assert 0 < found.added <= skew.ADDED_MAX
    none_needed = skew.propose("data", "bytes", FLAT, even_slots(2), [0, 1], 1.1, 512)
    assert (none_needed.added, none_needed.moves) == (0, [])


def test_what_rebalance_does_is_what_the_server_decides() -> None:
    weights = [slot % 13 for slot in range(SLOTS)]
    owners = [0 if slot % 3 else 1 for slot in range(SLOTS)]
    groups = [GroupRecord("data", number, ["n1"], ["n1"]) for number in range(3)]
    groups += [GroupRecord("metadata", 0, ["n1"], ["n1"]), GroupRecord("offset", 0, ["n1"], ["n1"])]
    slots = {"data": pack_slots(owners), **dict.fromkeys(("metadata", "offset"), pack_slots([0] * SLOTS))}
    current = ClusterMap(1, [NodeRecord("n1", "a:1", "a:2")], groups, slots)
    decided = decisions.rebalance(current, 1, [], 1).map
    assert decided is not None
    after = list(owners)
    for move in decided.moves:
        for slot in slots_in(move.slots):
            after[slot] = move.target
    found = skew.propose("data", "rows", weights, owners, [0, 1, 2], 1.1, 10)
    held = loads(weights, after, [0, 1, 2])
    assert found.rebalance == max(held.values()) / (sum(weights) / 3)
    assert found.rebalance_slots == sum(one != two for one, two in zip(owners, after, strict=True))


def test_groups_have_the_sums_of_their_slots() -> None:
    slots = {"data": {"rows": [1] * SLOTS, "bytes": list(range(SLOTS))}}
    first, second = skew.by_group(slots, {"data": [0] * 1000 + [1] * 24}, {"data": [0, 1]})
    assert (first["slots"], first["rows"], second["rows"]) == (1000, 1000, 24)
    assert first["bytes"] + second["bytes"] == sum(range(SLOTS))
    assert abs(first["rows_times"] - 2 * 1000 / 1024) < 1e-12


def test_a_group_may_have_just_as_much_as_was_asked() -> None:
    weights = [15] * 512 + [5] * 512
    found = skew.propose("data", "rows", weights, even_slots(2), [0, 1], 1.5, 64)
    assert (found.moves, found.met, found.added, found.after) == ([], True, 0, 1.5)
    alone = [0] * SLOTS
    alone[0] = alone[600] = 10
    even = skew.propose("data", "rows", alone, even_slots(2), [0, 1], 1.0, 64)
    assert (even.heaviest_slot, even.met) == (None, True)
    nothing = skew.propose("data", "rows", [0] * SLOTS, even_slots(2), [0, 1], 1.0, 64)
    assert (nothing.before, nothing.moves, nothing.met) == (1.0, [], True)


def test_the_slot_goes_that_brings_both_nearest_to_each_other() -> None:
    weights = [0] * SLOTS
    weights[0], weights[1], weights[2], weights[3], weights[700] = 240, 130, 30, 100, 200
    found = skew.propose("data", "rows", weights, even_slots(2), [0, 1], 1.0, 1)
    assert [(move.source, move.target, move.slots) for move in found.moves] == [(0, 1, [1])]


def test_a_slot_that_goes_on_is_told_once() -> None:
    """From the heaviest to the lightest, which may then be the heaviest."""
    weights = [0] * SLOTS
    weights[0], weights[1], weights[700] = 60, 50, 20
    found = skew.propose("data", "rows", weights, [0] * 512 + [1] * 256 + [2] * 256, [0, 1, 2], 1.0, 64)
    assert [(move.source, move.target, move.slots) for move in found.moves] == [(0, 2, [0])]
    assert (found.before, found.after) == (pytest.approx(110 / (130 / 3)), pytest.approx(60 / (130 / 3)))


_BEST: Final = (
    test_what_one_move_can_do_one_move_does,
    test_a_group_may_have_just_as_much_as_was_asked,
    test_the_slot_goes_that_brings_both_nearest_to_each_other,
    test_a_slot_that_goes_on_is_told_once,
    test_a_slot_that_is_too_heavy_by_itself_is_named,
    test_more_groups_help_where_no_slot_is_too_heavy,
    test_what_rebalance_does_is_what_the_server_decides,
    test_groups_have_the_sums_of_their_slots,
)
MUTANTS: Final = tuple(
    one_edit(name, breaks, f"metad_spark.queries.skew:{function}", old, new)
    for name, breaks, function, old, new in (
        ("any_group", "a group's slots", "by_group", "if owner == ordinal", "if owner >= ordinal"),
        ("share_of_one", "of the kind", "by_group", "row[name] / whole if whole", "row[name] / len(mine) if whole"),
        ("times_of_slots", "the mean group", "by_group", "* len(groups[kind])", "* len(mine)"),
        ("as_much_is_too_much", "within", "propose", "loads[heavy] <= within * mean", "loads[heavy] < within * mean"),
        ("heaviest_slot_first", "nearest to each other", "propose", "abs(gap - 2 * weights[one])", "-weights[one]"),
        ("half_the_gap", "nearest to each other", "propose", "abs(gap - 2 * weights[one])", "abs(gap - weights[one])"),
        ("from_the_lightest", "the heaviest", "propose", "heavy = max(loads", "heavy = min(loads"),
        ("to_the_heaviest", "the lightest", "propose", "light = min(loads", "light = max(loads"),
        ("nothing_moves_on", "what is moved", "propose", "loads[heavy] -= weights[slot]", "pass"),
        ("before_after", "after", "propose", "after = _greatest(loads, mean)", "after = before"),
        ("just_met_is_not", "met", "propose", "met=after <= within", "met=after < within"),
        ("just_heavy", "too heavy", "propose", "weights[worst] > within * mean", "weights[worst] >= mean / 2"),
        ("groups_are_free", "the mean of today", "_added", "max(loads.values()) <= most", "True"),
        ("one_group_only", "as many as it takes", "_added", "range(ADDED_MAX + 1)", "range(1)"),
        ("moves_lose", "moved is there", "_moved", "loads[target] += weights[slot]", "pass"),
        ("moves_double", "moved is gone", "_moved", "loads[source] -= weights[slot]", "pass"),
        ("empty_is_uneven", "nothing is even", "_greatest", "if mean else 1.0", "if mean else 2.0"),
        ("the_least", "the greatest", "_greatest", "max(loads.values())", "min(loads.values())"),
    )
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_killed(mutant: Mutant) -> None:
    """Tests that no planted bug fails would not find those that nobody planted."""
    with planted(mutant):
        for test in _BEST:
            try:
                test()
            except AssertionError:
                return
    pytest.fail(f"nothing objects to {mutant.name}")
