"""Runs seeds: ``python -m metad.testing.simulate --seeds 0..999 --nodes 5``."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from .chaos import Chaos, draw
from .linearizability import Outcome, check
from .world import World

STEPS = 2000
CONVERGE_S = 20.0


@dataclass
class Result:
    """Of one seed."""

    seed: int
    violation: str = ""
    steps: int = 0
    crashes: int = 0
    elections: int = 0
    snapshots: int = 0
    membership_changes: int = 0
    answered: int = 0
    trace: list[str] = field(default_factory=list)


def run_seed(seed: int, nodes: int, *, trace: bool = False, steps: int = STEPS) -> Result:
    """One run. Never raises: what went wrong is in ``violation``."""
    rng = random.Random(f"{nodes}/{seed}")
    world = World(rng.getrandbits(64), draw(rng, nodes), tracing=trace)
    chaos = Chaos(world, rng)
    result = Result(seed)
    try:
        while world.steps < steps and world.clock.now < 60.0:
            world.run(0.25)
        chaos.end()
        world.require_convergence(CONVERGE_S)
        world.run(1.0)
        world.require_answers()
        verdict = check(chaos.history())
        if verdict.outcome is not Outcome.LINEARIZABLE:
            result.violation = f"linearizability: {verdict}"
    except Exception as error:
        result.violation = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        if trace:
            raise
    result.steps, result.crashes, result.snapshots = world.steps, world.crashes, world.snapshots
    result.elections = sum(ledger.elections for ledger in world.ledgers.values())
    result.membership_changes = sum(ledger.changes for ledger in world.ledgers.values())
    result.answered = chaos.answered
    result.trace = world.traced
    return result
