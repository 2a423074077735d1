"""Every planted bug is found: a simulation that lets one live would not find those that nobody planted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sim.mutants.nodes import NODE_MUTANTS
from sim.mutants.planting import Mutant, planted
from sim.mutants.replicas import MUTANTS
from sim.mutants.units import UNIT_MUTANTS
from sim.nodes.scenarios import SCENARIOS as NODE_SCENARIOS
from sim.replicas.scenarios import SCENARIOS
from simulate import killers

TESTS = Path(__file__).resolve().parent.parent


def test_names_are_unique_and_scenarios_exist() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25
    every = (*MUTANTS, *NODE_MUTANTS, *UNIT_MUTANTS)
    assert len({mutant.name for mutant in every}) == len(every)
    for mutant in MUTANTS:
        assert mutant.scenarios, mutant.name
        assert set(mutant.scenarios) <= set(SCENARIOS), mutant.name
    for mutant in NODE_MUTANTS:
        assert mutant.scenarios, mutant.name
        assert set(mutant.scenarios) <= set(NODE_SCENARIOS), mutant.name


def test_every_bug_can_be_planted() -> None:
    """Code moves. `make test` runs the scenarios of all of them, which takes minutes; this says it at once."""
    for mutant in (*MUTANTS, *NODE_MUTANTS, *UNIT_MUTANTS):
        with planted(mutant):
            pass


def test_tests_of_units_are_no_cases() -> None:
    """Each is run once for each of its bugs, with all of its cases, so that a case cannot be named."""
    assert not [name for mutant in UNIT_MUTANTS for name in mutant.scenarios if "[" in name]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # of scenarios that were broken off
@pytest.mark.parametrize("mutant", [*MUTANTS, *NODE_MUTANTS], ids=lambda mutant: mutant.name)
def test_mutant_is_killed(mutant: Mutant) -> None:
    found = killers(mutant, seeds=0)
    assert found, f"nothing objects to {mutant.name}"
    assert found[0].partition(":")[0] in mutant.scenarios, f"not what was expected: {found[0]}"


def test_every_mutant_of_units_is_killed_by_its_test() -> None:
    """In another process, for a planted bug is in the code of all tests of a process."""
    named = sorted({test for mutant in UNIT_MUTANTS for test in mutant.scenarios})
    command = [
        sys.executable,
        *("-m", "pytest", "-q", "-rN", "--tb=no", "-p", "no:cacheprovider", "-p", "sim.mutants.units"),
        *named,
    ]
    ran = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=600, check=False)
    survive = [line for line in ran.stdout.splitlines() if line.startswith("mutants that survive:")]
    assert survive == ["mutants that survive: none"], ran.stderr  # where some do, the names are what matters
