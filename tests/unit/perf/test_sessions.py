"""What metad-perf sessions makes of its windows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from metad_perf.sessions.command import compared


class Window:
    """The result of one window."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.latencies = SimpleNamespace(percentile_ms=lambda _: 10_000 / rate)

    def items_per_s(self) -> float:
        return self.rate


def pairs(*windows: tuple[float, float]) -> Any:
    """Pairs with these rates, on nodes with sessions and without."""
    return [(Window(held), Window(bare)) for held, bare in windows]


def test_a_loss_is_by_pairs_and_by_what_the_nodes_differed_before() -> None:
    before = pairs((900, 1000), (90, 100), (2, 100))  # the machine is ten times slower, and once one window stalls
    after = pairs((450, 1000), (45, 100), (100, 2))
    found = compared(before, after)
    assert found["foreground_loss"] == pytest.approx(0.5)
    assert found["foreground_p99_ratio"] == pytest.approx(2.0)
    assert found["pairs_before"] == pytest.approx([0.9, 0.9, 0.02])
    assert found["pairs_with"] == pytest.approx([0.45, 0.45, 50])
    assert (found["foreground_items_per_s_before"], found["foreground_items_per_s_with"]) == (90, 100)


def test_equal_windows_lose_nothing() -> None:
    same = pairs((80, 100), (70, 100), (75, 100))
    found = compared(same, same)
    assert found["foreground_loss"] == pytest.approx(0.0)
    assert found["foreground_p99_ratio"] == pytest.approx(1.0)
