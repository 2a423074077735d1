"""Breadth first through all states of a world, and what must hold: in each state, over each step, and at rest.

A world *rests* where none of the steps is left that happen by themselves. From every state such steps alone must lead
to rest, and there a goal must be reached: that is what liveness means here. Visited states are kept as hashes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, Protocol

from metad_judge.invariants import Violation


class Step(NamedTuple):
    """What may happen in a state."""

    kind: str
    """One letter. Which kinds happen by themselves is up to each goal."""
    name: str
    state: Any


class Goal(NamedTuple):
    """What is reached where the world rests."""

    kinds: str
    """Of the steps that happen by themselves. Of those of one state the first kind goes first."""
    reached: Callable[[Any], None]
    """Raises Violation where it is not reached."""


class World(Protocol):
    """Something to explore."""

    goals: tuple[Goal, ...]

    def start(self) -> Hashable:
        """The first state."""

    def steps(self, state: Any) -> Iterable[Step]:
        """All that may happen. Raises Violation where something does that must not."""

    def canonical(self, state: Any) -> Any:
        """The same state, in the form in which it is compared."""

    def check(self, state: Any) -> None:
        """Raises Violation if it must not be."""

    def check_step(self, before: Any, after: Any) -> None:
        """Raises Violation if one must not follow the other. Both as the step has them."""


class Found(NamedTuple):
    """What an exploration came to."""

    states: int
    depth: int
    violation: str
    """Empty: all is well."""
    trace: list[str]
    """What led to the violation, if it was asked for, and the state last."""
    seconds: float
    whole: bool
    """Whether all states were visited."""

    def __str__(self) -> str:
        what = self.violation or ("clean" if self.whole else "clean so far")
        return f"{self.states:8} states, depth {self.depth:2}, {what} [{self.seconds:.0f} s]"


def explore(world: World, states_max: int = 0, *, tracing: bool = False) -> Found:
    """Visit all states, or so many. Stops at the first violation."""
    began_s = time.monotonic()
    first = world.canonical(world.start())
    seen = {hash(first)}
    todo: deque[tuple[Any, int]] = deque([(first, 0)])
    parents: dict[Any, tuple[Any, str]] = {}
    ways: list[dict[int, int]] = [{} for _ in world.goals]
    count, depth, why, state, whole = 0, 0, "", first, True
    try:
        while todo:
            if states_max and count >= states_max:
                whole = False
                break
            state, depth = todo.popleft()
            count += 1
            world.check(state)
            here = hash(state)
            ahead: list[tuple[int, int] | None] = [None] * len(world.goals)
            for kind, name, after in world.steps(state):
                world.check_step(state, after)
                after = world.canonical(after)
                there = hash(after)
                for at, goal in enumerate(world.goals):
                    rank = goal.kinds.find(kind)
                    best = ahead[at]
                    if rank >= 0 and there != here and (best is None or rank < best[0]):
                        ahead[at] = rank, there
                if there not in seen:
                    seen.add(there)
                    todo.append((after, depth + 1))
                    if tracing:
                        parents[after] = state, name
            for at, best in enumerate(ahead):
                if best is None:
                    world.goals[at].reached(state)
                else:
                    ways[at][here] = best[1]
        for way in ways if whole else ():
            _require_no_cycle(way)
    except Violation as error:
        why = str(error)
    trace = _trace(parents, state) if tracing and why else []
    return Found(count, depth, why, trace, time.monotonic() - began_s, whole)


def _require_no_cycle(way: dict[int, int]) -> None:
    """Every state must have a way to one at rest."""
    done: set[int] = set()
    for begin in way:
        path: set[int] = set()
        here = begin
        while here in way and here not in done:
            if here in path:
                raise Violation("liveness", "what happens by itself goes on for ever, and leads nowhere")
            path.add(here)
            here = way[here]
        done |= path


def _trace(parents: dict[Any, tuple[Any, str]], state: Any) -> list[str]:
    lines = [str(state)]
    while state in parents:
        state, name = parents[state]
        lines.append(name)
    return lines[::-1]
