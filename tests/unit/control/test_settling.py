"""Who holds each slot after groups were taken up without their majority: exactly one group, the one with the newest
rows, whatever the map and the ends of a move have lost; and no move waits for ever."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from metad.control.settling import Holding, Settlement, Standing, settle
from metad.errors import ConfigError
from metad.state.core.slot_assignment import RESTORES, AssignedSlots, SlotMoves, slots_brought
from metad_wire.cluster import (
    MOVES_OF_A_MAP,
    SLOTS,
    ClusterMap,
    GroupId,
    SlotMove,
    pack_slots,
    slot_bits,
    slots_in,
    unpack_slots,
)

VERSION = 1_000_009
S, T, U = 0, 1, 2
MOVING = range(10, 20)
M1, M2 = 3 * MOVES_OF_A_MAP, 4 * MOVES_OF_A_MAP
ALL = {S: range(500), T: range(500, 900), U: range(900, SLOTS)}


def row(
    held: Iterable[int],
    *,
    sealed: Iterable[int] = (),
    by: int = 0,
    opened: int = 0,
    attempt: int = 0,
    opens: Iterable[int] = (),
    adopted: int = 0,
    brought: dict[int, Iterable[int]] | None = None,
    revision: int = 50,
) -> Holding:
    moves = {move: slot_bits(slots) for move, slots in (brought or {}).items()}
    slots = AssignedSlots(
        slot_bits(held),
        sealed=slot_bits(sealed) if by else b"",
        sealed_move=by,
        opened_move=opened,
        opened_attempt=attempt,
        opened_slots=slot_bits(opens) if opened else b"",
        adopted_move=adopted,
    )
    return Holding(slots, slots_brought(slots.slots, slots.sealed, SlotMoves(moves)), revision)


def without(slots: Iterable[int]) -> list[int]:
    return [slot for slot in slots if slot not in MOVING]


def word(owners: dict[int, Iterable[int]] | None = None, *moves: SlotMove) -> ClusterMap:
    """A map that has slots as the groups were made with them, but for these."""
    slots = [next(group for group, mine in ALL.items() if slot in mine) for slot in range(SLOTS)]
    for group, mine in (owners or {}).items():
        for slot in mine:
            slots[slot] = group
    return ClusterMap(9, [], [], {"data": pack_slots(slots)}, [*moves])


def move(number: int = M1, source: int = S, target: int = T) -> SlotMove:
    return SlotMove(number, "data", source, target, slot_bits(MOVING))


def taken(one: Holding, *, anew: bool = False) -> Standing:
    return Standing([one], taken=True, anew=anew)


def leads(*rows: Holding) -> Standing:
    return Standing([*rows], taken=False)


def settled(known: ClusterMap, s: Standing, t: Standing, u: Standing | None = None) -> Settlement:
    """Decide, and check what must hold of every decision."""
    standings = {GroupId("data", group): one for group, one in enumerate([s, t, u or leads(row(ALL[U]))])}
    found = settle(known, standings, VERSION)
    changes = {change.group: change for change in found.changes}
    holders: dict[int, list[int]] = {}
    moving = {slot for one in found.moves for slot in slots_in(one.slots)}
    for group, standing in standings.items():
        for each in standing.rows:
            slots = each.slots if not standing.taken or group.name not in changes else changes[group.name].slots
            for slot in slots_in(slots.slots):
                if group.ordinal not in holders.setdefault(slot, []):
                    holders[slot].append(group.ordinal)
    owners = unpack_slots(found.slots["data"])
    for slot in range(SLOTS):
        if slot not in moving:
            assert holders.get(slot, []) == [owners[slot]] or any(
                slot in slots_in(one.rows[0].slots.sealed) and one.rows[0].slots.sealed_move == RESTORES
                for one in standings.values()
            ), slot
    return found


def changed(found: Settlement, group: int) -> AssignedSlots:
    return next(change.slots for change in found.changes if change.group == f"data-{group}")


def owner(found: Settlement) -> set[int]:
    return {unpack_slots(found.slots["data"])[slot] for slot in MOVING}


S_HELD, S_GAVE = row(ALL[S]), row(without(ALL[S]))
S_SEALED = row(without(ALL[S]), sealed=MOVING, by=M1)
T_HAS = row([*ALL[T], *MOVING], opened=M1, attempt=7_000_001, opens=MOVING, adopted=M1, brought={M1: MOVING})
T_OPENED = row(ALL[T], opened=M1, attempt=7_000_001, opens=MOVING)


@pytest.mark.parametrize("known", [word(), word(None, move()), word({T: MOVING})])
def test_the_group_with_the_newest_rows_keeps_a_slot(known: ClusterMap) -> None:
    """The source has lost that it gave the slots up, and the map perhaps even that it ordered the move."""
    found = settled(known, taken(S_HELD), leads(T_HAS))
    assert owner(found) == {T}
    assert not {*slots_in(changed(found, S).slots)}.intersection(MOVING)
    assert not found.moves
    assert found.texts == ["data-0 gives up 10 slots, which others have got since"]


def test_the_later_of_two_moves_counts() -> None:
    """It went to T and on to U; T and S have both forgotten that they gave it up."""
    has = row([*ALL[U], *MOVING], opened=M2, opens=MOVING, adopted=M2, brought={M2: MOVING})
    found = settled(word(), taken(S_HELD), taken(T_HAS), leads(has))
    assert owner(found) == {U}
    assert {change.group for change in found.changes} == {"data-0", "data-1"}


def test_who_gave_a_slot_up_takes_it_back_if_nobody_has_got_it() -> None:
    """And the move begins anew, by a number that no lost leader knows."""
    found = settled(word({T: MOVING}), taken(S_SEALED), taken(T_OPENED))
    assert owner(found) == {S}
    assert {*MOVING} <= {*slots_in(changed(found, S).slots)}
    assert (changed(found, S).sealed_move, changed(found, T).opened_move) == (0, 0)
    assert found.moves == [SlotMove(VERSION * MOVES_OF_A_MAP, "data", S, T, slot_bits(MOVING))]
    assert found.changes[0].emptied == b""


def test_a_seal_whose_slots_others_have_is_over() -> None:
    found = settled(word(None, move()), taken(S_SEALED), leads(T_HAS))
    assert owner(found) == {T}
    assert (changed(found, S).sealed, changed(found, S).sealed_move) == (b"", 0)
    assert not found.moves


@pytest.mark.parametrize("known", [word(), word(None, move()), word({T: MOVING})])
@pytest.mark.parametrize("target", [taken(T_OPENED), leads(T_OPENED), taken(row([]), anew=True)])
def test_a_source_with_a_majority_goes_on_itself(known: ClusterMap, target: Standing) -> None:
    """Only its leader may write that it takes the slots back; the move that it sealed stays in the map for that."""
    if target.anew:
        known = word({T: MOVING}, move())
    found = settle(known, {GroupId("data", 0): leads(S_SEALED), GroupId("data", 1): target}, VERSION)
    assert [(one.move, one.source, one.target) for one in found.moves] == [(M1, S, T)]
    assert owner(found) == {S}
    assert "data-0" not in {change.group for change in found.changes}


def test_a_seal_that_may_come_back_keeps_its_move() -> None:
    """The newest log has that the slots were taken back, and another one with which the source may go on has not. A
    seal whose move is not in the map is closed."""
    found = settled(word(None, move()), leads(S_HELD, S_SEALED), leads(T_OPENED))
    assert [(one.move, one.source, one.target) for one in found.moves] == [(M1, S, T)]


def test_a_source_with_a_majority_gets_another_target() -> None:
    """Nothing tells to whom the slots were to go: any group will do, for the source takes them back first."""
    found = settled(word(), leads(S_SEALED), leads(row(ALL[T])))
    assert [(one.move, one.source, one.target) for one in found.moves] == [(M1, S, T)]
    other = settled(word(), leads(S_SEALED), leads(row(ALL[T], adopted=M2, opened=M2)))
    assert [(one.move, one.source, one.target) for one in other.moves] == [(M1, S, U)]


def test_slots_of_which_nothing_is_left_are_served_empty() -> None:
    """The source has closed and dropped the rows, and the target has lost that it had them all."""
    known = word({T: MOVING})
    found = settled(known, leads(S_GAVE), taken(T_OPENED))
    assert owner(found) == {T}
    (change,) = found.changes
    assert {*slots_in(change.slots.slots)} == {*ALL[T], *MOVING}
    assert {*slots_in(change.emptied)} == {*MOVING}
    assert change.slots.base > 1 << 31, "no version is given twice"
    assert {*slots_in(max(change.brought.items())[1])} == {*MOVING}
    assert found.texts == ["of 10 slots nothing is left: data-1 goes on with them, empty"]
    # The map has forgotten that they moved.
    assert owner(settled(word(), leads(S_GAVE), taken(T_OPENED), taken(row(ALL[U])))) == {T}


def test_a_group_that_begins_anew_has_what_the_map_names() -> None:
    found = settled(word(), leads(S_HELD), taken(row([]), anew=True))
    (change,) = found.changes
    assert {*slots_in(change.slots.slots)} == {*ALL[T]}


def test_an_adoption_that_may_not_be_committed_is_asked_for() -> None:
    """The nodes of the target do not agree. The source, which has lost its seal, seals again; its attempts count."""
    found = settled(word(), taken(S_HELD), leads(T_HAS, T_OPENED))
    assert [(one.move, one.source, one.target) for one in found.moves] == [(M1, S, T)]
    assert owner(found) == {S}, "until the move is done"
    (change,) = found.changes
    assert change.slots.sealed_move == M1
    assert not {*slots_in(change.slots.slots)}.intersection(MOVING)
    assert {*slots_in(change.slots.sealed)} == {*MOVING}
    assert change.least_term == 8
    for source in (taken(S_SEALED), leads(S_SEALED)):
        again = settled(word(), source, leads(T_OPENED, T_HAS))
        assert [(one.move, one.source, one.target) for one in again.moves] == [(M1, S, T)]


def test_a_move_that_was_ordered_begins_anew() -> None:
    """With the slots that the source still has, and without what the target began."""
    found = settled(word(None, move()), leads(S_HELD), taken(T_OPENED))
    assert found.moves == [SlotMove(VERSION * MOVES_OF_A_MAP, "data", S, T, slot_bits(MOVING))]
    assert changed(found, T) == AssignedSlots(slot_bits(ALL[T]))
    forgotten = settled(word(), leads(S_HELD), leads(T_OPENED))
    assert forgotten.moves == found.moves
    assert not forgotten.changes


def test_what_is_as_the_map_says_stays() -> None:
    found = settled(word({T: MOVING}), taken(S_GAVE), taken(T_HAS))
    assert found == Settlement(word({T: MOVING}).slots, [], [], [])


def test_a_group_that_is_being_restored_is_left_alone() -> None:
    found = settled(word(), taken(row([], sealed=ALL[S], by=RESTORES)), leads(row(ALL[T])))
    assert not found.changes
    assert not found.moves


@pytest.mark.parametrize(
    ("s", "t", "why"),
    [
        (leads(S_HELD), leads(T_HAS), "data-0 has its majority and 10 slots that data-1 has by a later move"),
        (leads(S_GAVE), leads(T_HAS, T_OPENED), "the nodes of data-1 do not agree yet whether it got 10 slots"),
        (leads(S_GAVE), leads(T_OPENED), "slot 10 of kind data is data-0's by the cluster map, which does not have it"),
        (leads(S_SEALED), leads(row(ALL[T], adopted=M2)), "data-0 has its majority, and has given up 10 slots"),
    ],
)
def test_what_cannot_be_decided_is_refused(s: Standing, t: Standing, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        settled(word(), s, t, leads(row(ALL[U], adopted=M2)))
