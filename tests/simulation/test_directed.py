"""Situations that decide whether a rule of Raft holds, played out by hand: see metad/testing/replicas/scenarios/."""

from __future__ import annotations

import pytest

from metad.testing.replicas.scenarios import SCENARIOS


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    SCENARIOS[name]()
