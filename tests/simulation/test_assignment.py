"""What metad decides about partitions, and what the SDK's helper of a leader does, in all states of small worlds: one
leader in each leader_epoch, epochs and fences that only grow, nothing by a life that is over, no acknowledged record
lost, and a leader wherever one can be. `python -m sim.assignment`, from the folder of the tests, explores all
worlds."""

from __future__ import annotations

import pytest

from metad.state.assignment.decide import OWNERLESS_MS, Now, settle
from sim.assignment.exploring import explore
from sim.assignment.judging import PLAIN, Row, fences_of, hints, partition, resource
from sim.assignment.walking import walk
from sim.assignment.worlds import QUICK, WORLDS
from sim.mutants.assignment import ASSIGNMENT_MUTANTS
from sim.mutants.planting import Mutant, planted

SEEDS = 150
STATES_MAX = 100_000
"""A planted bug is found within so many."""


@pytest.mark.parametrize("world", QUICK)
def test_all_states_of_a_small_world_are_well(world: str) -> None:
    found = explore(WORLDS[world]())
    assert found.whole
    assert not found.violation, "\n".join(explore(WORLDS[world](), tracing=True).trace)


def test_random_ways_through_larger_worlds_are_well() -> None:
    for seed in range(SEEDS):
        violation, way = walk(seed)
        assert not violation, "\n".join([f"seed {seed}: {violation}", *way])


@pytest.mark.parametrize("mutant", ASSIGNMENT_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    (world,) = mutant.scenarios
    with planted(mutant):
        assert explore(WORLDS[world](), STATES_MAX).violation


def test_a_partition_that_nobody_owns_looks_again_whether_another_broker_has_come() -> None:
    """The fences that come tell only of brokers that have it: it stayed without an owner, with a broker that lived."""
    offline = Row(0, 1, None, frozenset(), frozenset(), (0,), 1, state="offline")
    fences, task = fences_of(((2, False, 0, 2), (1, True, 0, 0))), resource("owner", 1)
    alone, now = hints(PLAIN, fences, 2), Now(1_000, 1_000)
    waits = settle(partition(offline), task, fences, alone, now)
    assert (waits.leader, waits.due_ms) == (None, now.ms + OWNERLESS_MS)
    found = settle(waits, task, fences, hints(PLAIN._replace(replacing=True), fences, 2), now)
    assert found.leader is not None
    assert found.leader.broker == "1"
