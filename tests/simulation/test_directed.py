"""Situations that decide whether a rule of Raft holds, played out by hand: see tests/sim/replicas/scenarios/."""

from __future__ import annotations

import pytest

from sim.replicas.scenarios import SCENARIOS


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    SCENARIOS[name]()
