"""Random walks through worlds that are too large to be explored: each seed is a world and a way of its own. At the end
all happens that happens by itself, and the goals must be reached."""

from __future__ import annotations

import random
from typing import Any

from metad_judge.invariants import Violation

from . import external, in_sync, owner, position
from .exploring import Goal, Step, World

STEPS = 150
_REST_STEPS_MAX = 2_000


def drawn(rng: random.Random) -> World:
    """A world."""
    brokers = rng.randint(3, 5)
    order = rng.sample(range(brokers), brokers)
    count = rng.randint(1, min(3, brokers - 1))
    replicas, wanted = tuple(order[:count]), tuple(rng.sample(order, count)) if rng.random() < 0.5 else ()
    kind = rng.choice(("isr", "isr", "isr", "owner", "position", "position", "external"))

    def few() -> int:
        return rng.randint(0, 3)

    if kind == "owner":
        outside = rng.random() < 0.5
        return owner.Owner(
            owner.Config(brokers, replicas, outside, lives=few(), fences=few(), hands=few(), wanted=wanted)
        )
    if kind == "position":
        less, copies = sorted(rng.choices(range(1, count + 1), k=2))
        return position.Position(
            position.Config(
                brokers, replicas, copies, few(), 2 + few(), few(), few(), rng.randint(0, 1), wanted, less, few(), few()
            )
        )
    if kind == "external":
        return external.External(
            external.Config(count, terms=2 + few(), stops=few(), fences=few(), seals=few(), deletes=rng.randint(0, 1))
        )
    min_isr, then = rng.randint(1, count), rng.choice((0, rng.randint(1, count)))
    repairs, groups = 0 if wanted else rng.randint(0, 1), rng.randint(1, 3)
    return in_sync.InSync(
        in_sync.Config(
            brokers,
            replicas,
            min_isr,
            records=few(),
            stops=2 + few(),
            losses=rng.randint(0, 2),
            fences=few(),
            elections=few(),
            doubts=few(),
            forces=rng.randint(0, 1),
            groups=groups,
            moves=few() if groups > 1 else 0,
            wanted=wanted,
            repairs=repairs,
            min_isr_then=then,
            late=rng.random() < 0.3,
        )
    )


def walk(seed: int, steps: int = STEPS) -> tuple[str, list[str]]:
    """Walk. Returns what was wrong, empty if nothing was, and the way."""
    rng = random.Random(seed)
    world = drawn(rng)
    state: Any = world.canonical(world.start())
    way = [f"seed {seed}: {world!r}"]
    try:
        for _ in range(steps):
            world.check(state)
            found = list(world.steps(state))
            if not found:
                break
            kind = rng.choice(sorted({step.kind for step in found}))
            state = _taken(world, state, rng.choice([step for step in found if step.kind == kind]), way)
        for goal in world.goals:
            way.append(f"and then by itself: {goal.kinds}")
            _rests(world, state, goal, way)
    except Violation as error:
        return str(error), [*way, str(state)]
    return "", way


def _taken(world: World, state: Any, step: Step, way: list[str]) -> Any:
    way.append(step.name)
    world.check_step(state, step.state)
    return world.canonical(step.state)


def _rests(world: World, state: Any, goal: Goal, way: list[str]) -> None:
    for _ in range(_REST_STEPS_MAX):
        world.check(state)
        ahead = [step for step in world.steps(state) if step.kind in goal.kinds]
        ahead = [step for step in ahead if world.canonical(step.state) != state]
        if not ahead:
            goal.reached(state)
            return
        state = _taken(world, state, min(ahead, key=lambda step: goal.kinds.index(step.kind)), way)
    raise Violation("liveness", f"what happens by itself goes on for ever: {state}")
