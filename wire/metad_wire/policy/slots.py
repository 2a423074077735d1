"""Which groups get slots: as many each, whatever is in them. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from ..cluster import SLOTS


def even_slots(groups: int) -> list[int]:
    """Slot -> ordinal of its group, in runs of equal length (give or take one)."""
    if not 1 <= groups <= SLOTS:
        raise ValueError(f"{groups} groups: there must be 1 to {SLOTS}, the number of slots")
    return [slot * groups // SLOTS for slot in range(SLOTS)]


def even_moves(slots: Sequence[int], groups: Sequence[int]) -> dict[tuple[int, int], list[int]]:
    """(source, target) -> slots to move, so that every group holds as many as every other, give or take one, and no
    slot moves without need. A group that has slots keeps the first of them, so slot 0 of a kind never moves."""
    held: dict[int, list[int]] = {group: [] for group in groups}
    for slot, group in enumerate(slots):
        held[group].append(slot)
    share, more = divmod(len(slots), len(groups))
    # The groups that hold most keep the odd ones.
    wanted = {
        group: share + (position < more)
        for position, group in enumerate(sorted(groups, key=lambda g: (-len(held[g]), g)))
    }
    spare = [(group, slot) for group in groups for slot in held[group][wanted[group] :]]
    moves: dict[tuple[int, int], list[int]] = {}
    for target in groups:
        for _ in range(wanted[target] - len(held[target])):
            source, slot = spare.pop()
            moves.setdefault((source, target), []).append(slot)
    return moves


def filling_moves(slots: Sequence[int], groups: Sequence[int]) -> dict[tuple[int, int], list[int]]:
    """(source, target) -> slots to move, so that every group without slots gets its share, each slot from the group
    that holds most. The other slots stay where somebody has put them. A group that has slots keeps the first of
    them."""
    held: dict[int, list[int]] = {group: [] for group in groups}
    for slot, group in enumerate(slots):
        held[group].append(slot)
    targets = [(0, group) for group in groups if not held[group]]
    sources = [(-len(mine), group) for group, mine in held.items() if mine]
    heapq.heapify(sources)
    share = -(-len(slots) // len(groups))
    moves: dict[tuple[int, int], list[int]] = {}
    while targets:
        (got, target), (left, source) = targets[0], sources[0]
        if got == share or -left - got <= 1:
            break
        moves.setdefault((source, target), []).append(held[source].pop())
        heapq.heapreplace(targets, (got + 1, target))
        heapq.heapreplace(sources, (left + 1, source))
    return moves
