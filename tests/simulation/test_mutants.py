"""Every planted bug is found: a simulation that lets one live would not find those that nobody planted."""

from __future__ import annotations

import pytest

from metad.testing.mutants.nodes import NODE_MUTANTS
from metad.testing.mutants.planting import Mutant
from metad.testing.mutants.replicas import MUTANTS
from metad.testing.nodes.scenarios import SCENARIOS as NODE_SCENARIOS
from metad.testing.replicas.scenarios import SCENARIOS
from metad.testing.simulate import killers


def test_names_are_unique_and_scenarios_exist() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25
    assert len({mutant.name for mutant in (*MUTANTS, *NODE_MUTANTS)}) == len(MUTANTS) + len(NODE_MUTANTS)
    for mutant in MUTANTS:
        assert mutant.scenarios, mutant.name
        assert set(mutant.scenarios) <= set(SCENARIOS), mutant.name
    for mutant in NODE_MUTANTS:
        assert mutant.scenarios, mutant.name
        assert set(mutant.scenarios) <= set(NODE_SCENARIOS), mutant.name


@pytest.mark.parametrize("mutant", [*MUTANTS, *NODE_MUTANTS], ids=lambda mutant: mutant.name)
def test_mutant_is_killed(mutant: Mutant) -> None:
    found = killers(mutant, seeds=0)
    assert found, f"nothing objects to {mutant.name}"
    assert found[0].partition(":")[0] in mutant.scenarios, f"not what was expected: {found[0]}"
