"""Who holds each slot after groups were taken up without their majority. Pure.

Slots may have been on their way when the nodes were lost: the cluster map, the source and the target of a move may each
have lost the end of their log, so that two groups hold a slot, or none. Whoever recovers the cluster knows all logs
that are left, and decides once, for all groups:

1. A slot is held by the group to which the newest move brought it of which any log tells: numbers of moves only grow,
   so no other group has newer rows.
2. If that group had sealed it, and no log tells of an adoption, it takes the slot back: its rows are complete up to the
   seal. In a group that has kept its majority only its leader may write that. So there the move stays in the map, and
   its mover does it: it asks the target first.
3. Of a slot that no group has, the rows were on lost nodes only. A group that is taken up goes on with it, empty: the
   one that the map names, or the one that was importing it. What it had imported is dropped, for rows of one record may
   be missing.
4. All other groups give the slot up.
5. The target may have kept its majority, whose nodes do not agree whether it has adopted the slot. Then nothing of it
   is known to be committed. The source seals the slot, and the move stays in the map: its mover asks the target.
6. All other moves that are not over begin anew with new numbers, for which attempts of lost leaders do not count.

A group that has kept its majority is changed by none of this. What it holds by a committed entry no other group can
hold by an older move, unless that one is taken up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from metad_wire.cluster import (
    MOVES_OF_A_MAP,
    ClusterMap,
    GroupId,
    SlotMove,
    pack_slots,
    slot_bits,
    slots_in,
    unpack_slots,
)

from ..errors import ConfigError
from ..state.core.slot_assignment import RESTORES, AssignedSlots
from .migration import ATTEMPTS_OF_A_TERM

REVISIONS_LOST = 1 << 32
"""More than a group can have written on lost nodes only. A group that goes on with slots of which nothing is left has
revisions above all that clients may have seen there."""


class Holding(msgspec.Struct, frozen=True):
    """What a log says at its end of the slots of its group."""

    slots: AssignedSlots
    brought: dict[int, bytes]
    """Move -> bit map of the slots that it brought, of all that are held or sealed; 0: the group was made with them."""
    revision: int


class Standing(NamedTuple):
    """A group that goes on."""

    rows: list[Holding]
    """At the end of each log with which it may go on, the newest first."""
    taken: bool
    """It is taken up: there is one log, to which the decision is added."""
    anew: bool = False
    """Nothing is left of it, and it begins anew."""


class Change(msgspec.Struct, frozen=True):
    """What is added to the log of a group that is taken up."""

    group: str
    slots: AssignedSlots
    brought: dict[int, bytes]
    """Move -> bit map of the slots that it brought."""
    emptied: bytes = b""
    """Bit map of slots whose rows are dropped first."""
    least_term: int = 0
    """Its next term must not be lower, or the target of a move would take its attempts for old ones."""


class Settlement(NamedTuple):
    """The decision."""

    slots: dict[str, bytes]
    """As in the map."""
    moves: list[SlotMove]
    changes: list[Change]
    texts: list[str]
    """What it means, for people."""


def settle(known: ClusterMap, standings: Mapping[GroupId, Standing], version: int) -> Settlement:
    """Decide. ``known`` is the newest map, ``version`` that of the map that will follow it. Raises ConfigError if it
    cannot be decided."""
    found = Settlement({}, [], [], [])
    for kind in sorted(known.slots):
        groups = {group.ordinal: standing for group, standing in sorted(standings.items()) if group.kind == kind}
        _Kind(known, kind, groups, version * MOVES_OF_A_MAP, found).settle()
    return found


class _Kind:
    """The groups of a kind. Groups are named by their ordinals."""

    def __init__(
        self, known: ClusterMap, kind: str, groups: dict[int, Standing], number: int, found: Settlement
    ) -> None:
        self._kind = kind
        self._groups = groups
        self._number = number
        self._found = found
        self._word = unpack_slots(known.slots[kind])
        self._moves = [move for move in known.moves if move.kind == kind]
        self._owners = [*self._word]
        self._brought = [0] * len(self._word)  # the move that brought the slot to its owner
        self._held = {one: {*slots_in(standing.rows[0].slots.slots)} for one, standing in groups.items()}
        self._keeps: dict[int, tuple[int, set[int]]] = {}  # group that is taken up -> (move, slots that it seals)
        self._gained: dict[int, set[int]] = {}
        self._kept: dict[int, SlotMove] = {}  # moves that go on, by number
        self._fresh: list[SlotMove] = []

    def settle(self) -> None:
        """Decide, and add it to what was found."""
        self._find_owners()
        self._give_up_stale()
        self._ask_targets()
        self._take_back()
        self._begin_anew()
        moves = sorted(self._kept.values(), key=lambda one: one.move) + self._fresh
        self._found.moves.extend(moves)
        for one, standing in self._groups.items():
            if standing.taken:
                self._change(one, standing)
        source = {slot: move.source for move in self._kept.values() for slot in slots_in(move.slots)}
        self._found.slots[self._kind] = pack_slots([source.get(slot, one) for slot, one in enumerate(self._owners)])
        for move in moves:
            count = len(slots_in(move.slots))
            text = f"{count} slots go on to move from {move.source_id.name} to {move.target_id.name}"
            self._found.texts.append(text)

    def _name(self, one: int) -> str:
        return GroupId(self._kind, one).name

    # --- who has it --------------------------------------------------------------------------------------

    def _find_owners(self) -> None:
        claims: dict[int, list[tuple[int, bool, bool, int]]] = {}
        for one, standing in self._groups.items():
            newest = standing.rows[0].slots
            for row in standing.rows:
                held = {*slots_in(row.slots.slots)}
                for move, bits in row.brought.items():
                    adopted = newest.adopted_move < move == row.slots.adopted_move  # and the newest log lacks that
                    if row is standing.rows[0] or adopted:
                        for slot in slots_in(bits):
                            claims.setdefault(slot, []).append((move, slot in held, self._word[slot] == one, one))
        taken = {one: standing.rows[0].slots for one, standing in self._groups.items() if standing.taken}
        imports = {one: {*slots_in(row.opened_slots)} if _opened(row) else set[int]() for one, row in taken.items()}
        for slot, word in enumerate(self._word):
            if slot in claims:
                self._brought[slot], *_, self._owners[slot] = max(claims[slot])
                continue
            heirs = [(one == word, taken[one].opened_move if slot in imports[one] else 0, -one) for one in taken]
            if (heir := self._heir(slot, word, heirs)) is not None:
                self._owners[slot] = heir
                self._gained.setdefault(heir, set()).add(slot)

    def _heir(self, slot: int, word: int, heirs: list[tuple[bool, int, int]]) -> int | None:
        """Who goes on with a slot of which nothing is left: the best of those that are taken up. None: nobody can,
        because its group cannot."""
        if heirs:
            return -max(heirs)[2]
        if word not in self._groups:
            return None
        raise ConfigError(
            f"slot {slot} of kind {self._kind} is {self._name(word)}'s by the cluster map, which does not have it, and "
            "nobody else has: restore a backup"
        )

    def _give_up_stale(self) -> None:
        for one, held in self._held.items():
            stale = {slot for slot in held if self._owners[slot] != one}
            if stale and not self._groups[one].taken:
                other = self._name(self._owners[min(stale)])
                raise ConfigError(
                    f"{self._name(one)} has its majority and {len(stale)} slots that {other} has by a later move: "
                    "restore a backup"
                )
            if stale:
                held -= stale
                self._found.texts.append(f"{self._name(one)} gives up {len(stale)} slots, which others have got since")

    # --- moves that go on --------------------------------------------------------------------------------

    def _ask_targets(self) -> None:
        """Of adoptions that may not be committed."""
        doubtful: dict[tuple[int, int], set[int]] = {}
        for slot, owner in enumerate(self._owners):
            rows, move = self._groups[owner].rows if owner in self._groups else [], self._brought[slot]
            adopted = [row.slots.adopted_move for row in rows]
            if rows and min(adopted) < move <= max(adopted):
                doubtful.setdefault((move, owner), set()).add(slot)
        for (move, target), slots in doubtful.items():
            source = self._source(move, target, slots)
            if source is None:
                raise ConfigError(
                    f"the nodes of {self._name(target)} do not agree yet whether it got {len(slots)} slots: start the "
                    "nodes that are left for ten seconds, stop them, and begin again with new reports"
                )
            self._kept[move] = SlotMove(move, self._kind, source, target, slot_bits(slots))
            if self._groups[source].taken:
                self._keeps[source] = move, slots

    def _source(self, move: int, target: int, slots: set[int]) -> int | None:
        """Who gave up just these slots by a move, or has lost that it did; None: nobody can have."""
        candidates: list[tuple[bool, int, int]] = []
        for one, standing in self._groups.items():
            for row in standing.rows:
                sealed = row.slots.sealed_move == move and {*slots_in(row.slots.sealed)} == slots
                lost = standing.taken and slots.issubset(slots_in(row.slots.slots))
                if one != target and (sealed or lost):
                    came = max((number for number, bits in row.brought.items() if slots & {*slots_in(bits)}), default=0)
                    candidates.append((sealed, came, one))
        return max(candidates)[2] if candidates else None

    def _take_back(self) -> None:
        """Slots that were given up, and that nobody else has got."""
        for one, standing in self._groups.items():
            for row in standing.rows:
                move, sealed = _sealed(row.slots)
                mine = {slot for slot in sealed if self._owners[slot] == one}
                if not mine:
                    continue
                if standing.taken:
                    self._held[one] |= mine
                    text = f"{self._name(one)} takes back {len(mine)} slots, which nobody else has got"
                    self._found.texts.append(text)
                    continue
                # Also by a log that lacks that they were taken back: a seal whose move is not in the map is closed.
                target = self._target(move, one)
                if mine != sealed or target is None:
                    raise ConfigError(
                        f"{self._name(one)} has its majority, and has given up {len(sealed)} slots, which no group "
                        "that is left can get: restore a backup"
                    )
                self._kept[move] = SlotMove(move, self._kind, one, target, slot_bits(mine))

    def _target(self, move: int, source: int) -> int | None:
        """Who is to get slots that a group with a majority has sealed: any group will do, if it can, because the
        source takes them back first."""
        meant = [one.target for one in self._moves if one.move == move]
        meant += [
            one for one, standing in self._groups.items() if any(row.slots.opened_move == move for row in standing.rows)
        ]
        for one in [*meant, *self._groups]:
            standing = self._groups.get(one)
            if standing is None or one == source:
                continue
            rows = [row.slots for row in standing.rows]
            free = standing.taken or not any(row.sealed_move for row in rows)
            if free and all(row.adopted_move < move and (standing.taken or row.opened_move <= move) for row in rows):
                return one
        return None

    def _begin_anew(self) -> None:
        """What was ordered, and is neither over nor one of the moves that go on."""
        wishes = [(one.move, one.source, one.target, {*slots_in(one.slots)}) for one in self._moves]
        numbers = {*self._kept, *(one.move for one in self._moves)}
        for target, standing in self._groups.items():
            for row in standing.rows:
                if _opened(row.slots) and row.slots.opened_move not in numbers:
                    numbers.add(row.slots.opened_move)
                    slots = {*slots_in(row.slots.opened_slots)}
                    owners = [self._owners[slot] for slot in slots]
                    source = max(sorted({*owners}), key=owners.count, default=target)
                    wishes.append((row.slots.opened_move, source, target, slots))
        moving = {slot for move in self._kept.values() for slot in slots_in(move.slots)}
        for number, source, target, slots in sorted(wishes):
            over = target in self._groups and any(row.slots.adopted_move >= number for row in self._groups[target].rows)
            slots = {slot for slot in slots - moving if self._owners[slot] == source}
            if number in self._kept or over or not slots or source == target or not {source, target} <= {*self._groups}:
                continue
            moving |= slots
            fresh = self._number + sum(map(len, (self._found.moves, self._fresh)))
            self._fresh.append(SlotMove(fresh, self._kind, source, target, slot_bits(slots)))

    # --- what groups are told ----------------------------------------------------------------------------

    def _change(self, one: int, standing: Standing) -> None:
        """What a group that is taken up has to know."""
        (row,) = standing.rows
        held, gained = self._held[one], self._gained.get(one, set())
        move, sealed = self._keeps.get(one, (0, set()))
        after = row.slots
        if held | gained != {*slots_in(after.slots)}:
            after = msgspec.structs.replace(after, slots=slot_bits(held | gained))
        if row.slots.sealed_move != RESTORES:
            after = msgspec.structs.replace(after, sealed=slot_bits(sealed) if sealed else b"", sealed_move=move)
        if _opened(after):
            after = msgspec.structs.replace(
                after, opened_move=after.adopted_move, opened_attempt=0, opened_batch=0, opened_slots=b""
            )
        mine = held | sealed | {*slots_in(after.sealed)}
        brought = {
            number: slot_bits(kept)
            for number, bits in row.brought.items()
            if number and (kept := mine.intersection(slots_in(bits)))
        }
        if gained:
            brought[self._number + MOVES_OF_A_MAP - 1] = slot_bits(gained)
            most = max(each.revision for other in self._groups.values() for each in other.rows)
            base = max(row.slots.base, most + REVISIONS_LOST - (row.revision - row.slots.base))
            after = msgspec.structs.replace(after, base=base)
            text = f"of {len(gained)} slots nothing is left: {self._name(one)} goes on with them, empty"
            self._found.texts.append(text)
        if after == row.slots and not standing.anew:
            return
        attempts = [each.slots.opened_attempt for other in self._groups.values() for each in other.rows]
        least_term = max(attempts) // ATTEMPTS_OF_A_TERM + 1 if sealed else 0
        emptied = slot_bits(gained) if gained else b""
        self._found.changes.append(Change(self._name(one), after, brought, emptied, least_term))


def _sealed(row: AssignedSlots) -> tuple[int, set[int]]:
    """The move, and its slots. A group into which a backup is put has only put its slots aside."""
    return (0, set()) if row.sealed_move == RESTORES else (row.sealed_move, {*slots_in(row.sealed)})


def _opened(row: AssignedSlots) -> bool:
    """Whether the group takes part in a move as its target, and has not adopted the slots."""
    return row.opened_move > row.adopted_move
