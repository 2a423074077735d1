"""What must hold in every storm, and that a model in which it does not is caught."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import small_storms

from metad_spark.brokers import runner
from metad_spark.brokers.storm import simulate_storms
from metad_spark.errors import SimulationError
from metad_spark.models import vector
from metad_spark.models.invariants import check_node
from metad_spark.models.node_input import NodeInput
from metad_spark.models.results import NodeResult
from metad_spark.models.simulate import simulate_node
from metad_spark.proofs import trials
from metad_spark.scenario import Scenario

pytestmark = pytest.mark.slow

_DOORS = next(scenario for scenario in small_storms.EQUAL if scenario.name == "busy doors")
_change = msgspec.structs.replace


@pytest.mark.parametrize("scenario", small_storms.EQUAL, ids=lambda scenario: scenario.name)
def test_every_trial_keeps_them(scenario: Scenario) -> None:
    node_input = trials.input_of(scenario, small_storms.NOISY)
    assert simulate_node(node_input, 5).restored > 0


def _sooner(result: NodeResult) -> NodeResult:
    served = np.zeros_like(result.served_by_s)
    served[0] = result.served_by_s.sum()
    return _change(result, served_by_s=served)


def _all_at_once(result: NodeResult) -> NodeResult:
    passed = np.zeros_like(result.passed_by_s)
    passed[:, 0] = result.passed_by_s.sum(axis=1)
    return _change(result, passed_by_s=passed)


@pytest.mark.parametrize(
    ("says", "change"),
    [
        ("are not the", lambda result: _change(result, wasted=result.wasted + 1_000)),
        ("are not the", lambda result: _change(result, restored=result.restored - 1_000, timeouts=result.timeouts)),
        ("attempts", lambda result: _change(result, attempts=result.attempts + 1_000)),
        ("attempts", lambda result: _change(result, timeouts=result.timeouts + 1_000)),
        ("attempts", lambda result: _change(result, rejected=result.rejected + 1_000)),
        ("can serve", _sooner),
        ("have let through", _all_at_once),
    ],
)
def test_a_result_that_breaks_one_is_refused(says: str, change: Callable[[NodeResult], NodeResult]) -> None:
    node_input = trials.input_of(_DOORS, small_storms.NOISY)
    result = vector.simulate(node_input, 1)
    check_node(node_input, result)
    with pytest.raises(SimulationError, match=says):
        check_node(node_input, change(result))


def test_doors_that_let_everybody_through_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate = vector.simulate

    def wide(given: NodeInput, seed: int) -> NodeResult:
        return simulate(_change(given, doors=tuple(100 * doors for doors in given.doors)), seed)

    monkeypatch.setattr(vector, "simulate", wide)
    with pytest.raises(SimulationError, match="have let through"):
        simulate_node(trials.input_of(_DOORS, small_storms.NOISY), 1)


def test_turns_that_take_half_as_long_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate = vector.simulate

    def half(given: NodeInput, seed: int) -> NodeResult:
        costs = {name: getattr(given, name) / 2 for name in ("turn_us", "entry_us", "item_us")}
        return _change(simulate(_change(given, **costs), seed), capacity_by_s=simulate(given, seed).capacity_by_s)

    monkeypatch.setattr(vector, "simulate", half)
    with pytest.raises(SimulationError, match="can serve"):
        simulate_node(trials.input_of(small_storms.EQUAL[0], small_storms.NOISY), 1)


def test_a_storm_that_ends_sooner_than_it_can_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits of clients are told apart from what is served: a histogram in another unit would go unnoticed."""
    added = runner.merge

    def too_soon(*given: object) -> object:
        return _change(added(*given), t999_s=0.1)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "merge", too_soon)
    with pytest.raises(SimulationError, match=r"99.9 % are back after 0.1 s, and serving them takes"):
        simulate_storms(small_storms.EQUAL[0], small_storms.NOISY, seeds=[1], run=runner.run_here)


def test_work_in_vain_is_not_counted_before_it_is_done() -> None:
    """An endless queue holds items of clients that have given up and that nobody serves until the end."""
    scenario = next(scenario for scenario in small_storms.EQUAL if scenario.name == "endless queue")
    node_input = trials.input_of(_change(scenario, horizon_s=8), trials.STEADY)
    result = simulate_node(node_input, 1)
    assert result.wasted <= result.served_by_s.sum()
    assert result.wasted < 0.95 * result.timeouts
