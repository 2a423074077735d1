"""Slots move between groups of kind ``metadata``: opened, sealed, the source's fences read, adopted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .exploring import Step
from .judging import Said, merged


class Move(NamedTuple):
    """Of a slot, under way."""

    source: int
    target: int
    fences: tuple[Said, ...] | None
    """The source's, once they are read."""


class Slot(NamedTuple):
    """The one that has the record."""

    group: int
    """That holds it; -1: it is sealed."""
    move: Move | None
    unstepped: bool
    """Whether its group has to go through the record. Counts only where slots move."""


def opened(source: int, target: int, fences: tuple[Said, ...]) -> Move:
    """A move that begins. What fences the source has says nothing yet: more may come until it seals."""
    return Move(source, target, None)


def adopted(known: tuple[Said, ...], carried: tuple[Said, ...]) -> tuple[Said, ...]:
    """The target's fences after an adoption."""
    return tuple(merged(old, new) for old, new in zip(known, carried, strict=True))


def may_adopt(move: Move) -> bool:
    """Whether all is read that goes along."""
    return move.fences is not None


def came(group: int) -> Slot:
    """The slot once it was adopted: nothing is known of whether the record fits these fences."""
    return Slot(group, None, True)


def steps(state: Any, groups: int) -> Iterator[Step]:
    """What may happen of a move, and to it."""
    slot, left = state.slot, state.left
    if slot.move is None:
        for target in range(groups) if left.moves else ():
            if target != slot.group:
                move = opened(slot.group, target, state.fences[slot.group])
                less = left._replace(moves=left.moves - 1)
                after = state._replace(slot=slot._replace(move=move), left=less)
                yield Step("x", f"a move of the slot to {target} is opened", after)
        return
    move = slot.move
    if slot.group == move.source:
        yield Step("s", "sealed", state._replace(slot=slot._replace(group=-1)))
    elif not may_adopt(move):
        read = move._replace(fences=state.fences[move.source])
        yield Step("s", "the fences of the source are read", state._replace(slot=slot._replace(move=read)))
    else:
        known = state.fences[move.target]
        fences = adopted(known, known if move.fences is None else move.fences)
        after = state._replace(
            slot=came(move.target),
            fences=(*state.fences[: move.target], fences, *state.fences[move.target + 1 :]),
            fenced=tuple(max(was, said[0]) for was, said in zip(state.fenced, fences, strict=True)),
        )
        yield Step("s", f"adopted by group {move.target}", after)
