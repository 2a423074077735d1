"""The fluid model answers only where its conditions hold, and models that disagree are no success."""

from __future__ import annotations

import msgspec
import pytest

from metad_spark import reduced
from metad_spark.brokers import coupling, storm
from metad_spark.brokers.runner import run_here
from metad_spark.brokers.storm import Storms, simulate_storms
from metad_spark.errors import DoesNotHold
from metad_spark.models import conditions, fluid
from metad_spark.proofs import trials
from metad_spark.reduced import compared
from metad_spark.scenario import Brokers, LeaderChange, Returns, Scenario
from metad_wire.policy import RetryBudget

pytestmark = pytest.mark.slow

_change = msgspec.structs.replace
_LARGE = _change(trials.NEAR[0], clients=200_000)
_AT_DOORS = _change(_LARGE, brokers=Brokers(count=16, connects_per_s=500), clients=100_000)


def _by(scenario: Scenario, model: str) -> Storms:
    return simulate_storms(scenario, trials.STEADY, model=model, seeds=[1], run=run_here)  # type: ignore[arg-type]


@pytest.mark.parametrize("scenario", trials.NEAR, ids=lambda scenario: scenario.name)
def test_the_trials_that_the_fluid_must_be_near_in_keep_its_conditions(scenario: Scenario) -> None:
    node_input = trials.input_of(scenario, trials.STEADY)
    result = fluid.simulate(node_input, 1)
    assert conditions.broken(node_input, result) is None
    assert conditions.is_chance(node_input, result) is None


@pytest.mark.parametrize(
    ("says", "scenario"),
    [
        ("give up at brokers' doors", _AT_DOORS),
        ("linger", _change(_LARGE, brokers=Brokers(count=16, linger_ms=50))),
        ("several retries", _change(_LARGE, retry_budget=RetryBudget(burst=3, interval_s=5))),
        (
            "chance fills",
            _change(
                _LARGE,
                cluster=_change(_LARGE.cluster, batch_items=4, queue_items=8),
                disconnect=_change(_LARGE.disconnect, spread_s=200),
            ),
        ),
        ("return slots", _change(_LARGE, returns=Returns(of_capacity=0.9), leader_changes=(LeaderChange(at_s=2.0),))),
    ],
)
def test_each_condition_is_named_when_it_breaks(says: str, scenario: Scenario) -> None:
    node_input = trials.input_of(scenario, trials.STEADY)
    assert says in (conditions.broken(node_input, fluid.simulate(node_input, 1)) or "")


def test_few_turns_are_chance() -> None:
    node_input = trials.input_of(_change(_LARGE, clients=2_000), trials.NOISY)
    assert "too few" in (conditions.is_chance(node_input, fluid.simulate(node_input, 1)) or "")


def test_where_it_does_not_hold_the_vector_model_answers() -> None:
    asked, other = _by(_AT_DOORS, "fluid"), _by(_AT_DOORS, "vector")
    assert asked.model == "vector"
    assert asked.doubt == "clients give up at brokers' doors"
    assert asked.middle == other.middle
    assert asked.faults == other.faults == []
    held = _by(_LARGE, "fluid")
    assert held.model == "fluid"
    assert held.doubt is None


def test_at_a_reduced_scale_where_there_are_too_many_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storm, "INSTEAD_MAX", 1_000)
    monkeypatch.setattr(reduced, "STAND_IN_CLIENTS_MAX", 25_000)
    four = _change(_AT_DOORS, cluster=_change(_AT_DOORS.cluster, nodes=4, groups=4))
    with pytest.raises(DoesNotHold, match="take the vector model"):
        _by(four, "fluid")
    found, scale = reduced.stand_in(four, trials.STEADY, [1], run_here)
    whole = _by(four, "vector").middle
    assert scale == pytest.approx(0.25, rel=0.01)
    assert found.middle.clients == four.clients
    assert found.middle.restored == pytest.approx(whole.restored, rel=0.01)
    assert found.middle.t999_s == pytest.approx(whole.t999_s, rel=0.05)
    assert found.middle.attempts_per_client == pytest.approx(whole.attempts_per_client, rel=0.05)


def test_comparisons_are_made_by_the_model_that_holds() -> None:
    assert compared(_LARGE, trials.STEADY).model == "fluid"
    by_vector = compared(_AT_DOORS, trials.STEADY)
    assert by_vector.model == "vector"
    assert by_vector.clients == _AT_DOORS.clients
    assert by_vector.t999_s == pytest.approx(_by(_AT_DOORS, "vector").middle.t999_s, rel=0.05)


def test_models_that_disagree_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    node_of = fluid._Storm._node
    monkeypatch.setattr(fluid._Storm, "_node", lambda self: node_of(self)._replace(factor=1.1))
    found = _by(_LARGE, "vector")
    assert found.disagreement is not None
    assert "by the fluid model" in found.faults[0]


def test_what_does_not_settle_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    few = _change(trials.EQUAL[0], brokers=Brokers(count=4, batch_items=1, concurrency=1))
    monkeypatch.setattr(coupling, "FLUID_PASSES_MAX", 2)
    monkeypatch.setattr(coupling, "_still", lambda passes: False)
    found = _by(few, "vector")
    assert not found.settled
    assert "did not come to agree" in found.faults[0]


@pytest.mark.parametrize(
    ("first", "second", "agree"),
    [
        ((100.0, 1.0, 2.0), (101.0, 1.0, 2.0), True),
        ((100.0, 1.0, 2.0), (103.0, 1.0, 2.0), False),
        ((0.5, 1.0, 1.0), (0.55, 1.0, 1.0), True),
        ((None, 0.7, 2.0), (None, 0.7, 2.0), True),
        ((None, 0.7, 2.0), (100.0, 1.0, 2.0), False),
        ((100.0, 1.0, 2.0), (100.0, 1.0, 2.1), False),
    ],
)
def test_what_is_a_disagreement(
    first: tuple[float | None, float, float], second: tuple[float | None, float, float], agree: bool
) -> None:
    assert (conditions.disagreement(first, second) is None) == agree
