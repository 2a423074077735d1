"""One budget of returns for all nodes: what they are granted together is never more than they can answer together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metad_wire.cluster import ReturnReport
from metad_wire.policy.returns import GRANT_MS, ReturnBudget, alone


def report(node: str, per_s: int, answered_per_s: int = 0, ahead_ms: int = 0) -> ReturnReport:
    return ReturnReport(node, per_s, answered_per_s, ahead_ms)


def test_a_node_that_is_busy_alone_has_all_that_it_can_answer() -> None:
    assert ReturnBudget().grant(report("n1", 90_000), 3, 0.0).per_s == 90_000


def test_nodes_that_are_busy_together_share_what_they_answer_together() -> None:
    """Each has measured 90,000 while the others were idle; together they answer 100,000."""
    budget = ReturnBudget()
    assert budget.grant(report("n1", 90_000, 33_334), 3, 0.0).per_s == 90_000
    assert budget.grant(report("n2", 90_000, 33_334), 3, 0.3).per_s == 30_000  # until n1 has asked again
    assert budget.grant(report("n3", 90_000, 33_334), 3, 0.6).per_s == 30_000
    second = [budget.grant(report(f"n{n}", 90_000, 33_334), 3, 1.0 + n / 10).per_s for n in (1, 2, 3)]
    assert sum(second) <= 100_002
    third = [budget.grant(report(f"n{n}", 90_000, 33_334), 3, 2.0 + n / 10).per_s for n in (1, 2, 3)]
    assert third == [33_334] * 3


def test_nodes_that_do_not_hinder_each_other_are_not_held_back() -> None:
    budget = ReturnBudget()
    for second in range(3):
        grants = [budget.grant(report(f"n{n}", 50_000, 50_000), 3, second + n / 10).per_s for n in (1, 2, 3)]
    assert grants == [50_000] * 3


def test_the_clients_of_a_node_that_died_still_come() -> None:
    budget = ReturnBudget()
    for second in range(3):
        budget.grant(report("n1", 50_000, 25_000, ahead_ms=10_000), 2, float(second))
        left = budget.grant(report("n2", 50_000, 25_000, ahead_ms=10_000), 2, second + 0.5).per_s
    assert left == 25_000
    assert budget.grant(report("n2", 50_000, 50_000), 2, 11.9).per_s == 25_000  # those of n1 have slots until 12
    assert budget.grant(report("n2", 50_000, 50_000), 2, 12.1).per_s == 50_000


def test_what_was_answered_together_fades() -> None:
    budget = ReturnBudget()
    budget.grant(report("n1", 10_000, 60_000), 2, 0.0)
    assert budget.grant(report("n1", 100_000), 2, 60.0).per_s == 100_000
    assert budget._budget(60.0) == 100_000
    quiet = ReturnBudget()
    quiet.grant(report("n1", 10_000, 60_000), 2, 0.0)
    quiet.grant(report("n1", 10_000), 2, 60.0)
    assert quiet._budget(60.0) == pytest.approx(30_000)


@given(
    per_s=st.lists(st.integers(1, 10**6), min_size=1, max_size=6),
    answered=st.lists(st.integers(0, 10**6), min_size=6, max_size=6),
    order=st.lists(st.integers(0, 5), max_size=30),
)
def test_the_parts_are_never_more_than_the_budget_once_all_have_asked_again(
    per_s: list[int], answered: list[int], order: list[int]
) -> None:
    budget, count = ReturnBudget(), len(per_s)
    parts: dict[int, int] = {}
    now = 0.0
    ask_all = [*range(count)] * 2
    for step in [*(node % count for node in order), *ask_all]:
        now += 0.01
        said = report(f"n{step}", per_s[step], answered[step])
        parts[step] = budget.grant(said, count, now).per_s
        assert 1 <= parts[step] <= per_s[step]
        # Before that, each newcomer has no more than what it would take without being granted anything.
        assert sum(parts.values()) <= budget._budget(now) + sum(alone(one, count) for one in per_s) + count
    floors = sum(max(0.0, alone(one, count) - budget._budget(now) * one / sum(per_s)) for one in per_s)
    assert sum(parts.values()) <= budget._budget(now) + floors + count
    assert floors <= 1e-6 * sum(per_s), "what a node has by itself is no more than its part"
    assert GRANT_MS == 3_000
