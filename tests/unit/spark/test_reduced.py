"""Storms at a reduced scale stand for those that are too large, and brokers that do not settle are no success."""

from __future__ import annotations

import msgspec
import pytest
import small_storms

from metad_spark import reduced
from metad_spark.brokers import coupling
from metad_spark.brokers.runner import run_here
from metad_spark.brokers.storm import Storms, simulate_storms
from metad_spark.errors import TooMany
from metad_spark.models import vector
from metad_spark.proofs import trials
from metad_spark.reduced import answered, compared
from metad_spark.scenario import Brokers, Scenario

pytestmark = pytest.mark.slow

_change = msgspec.structs.replace
_LARGE = _change(trials.NEAR[0], clients=200_000)
_AT_DOORS = _change(_LARGE, brokers=Brokers(count=16, connects_per_s=500), clients=100_000)


def _storms(scenario: Scenario) -> Storms:
    return simulate_storms(scenario, trials.STEADY, seeds=[1], run=run_here)


def test_at_a_reduced_scale_where_there_are_too_many_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    four = _change(_AT_DOORS, cluster=_change(_AT_DOORS.cluster, nodes=4, groups=4))
    whole = _storms(four).middle
    assert answered(four, trials.STEADY, seeds=[1], run=run_here)[1] == 1.0
    monkeypatch.setattr(reduced, "STAND_IN_CLIENTS_MAX", 25_000)
    monkeypatch.setattr(vector, "CLIENTS_MAX", 10_000)
    with pytest.raises(TooMany, match="take more nodes"):
        _storms(four)
    found, scale = answered(four, trials.STEADY, seeds=[1], run=run_here)
    assert scale == pytest.approx(0.25, rel=0.01)
    assert found.middle.clients == four.clients
    assert found.middle.restored == pytest.approx(whole.restored, rel=0.01)
    assert found.middle.t999_s == pytest.approx(whole.t999_s, rel=0.05)
    assert found.middle.attempts_per_client == pytest.approx(whole.attempts_per_client, rel=0.05)


@pytest.mark.parametrize("scenario", [*trials.NEAR, _AT_DOORS], ids=lambda scenario: scenario.name)
def test_comparisons_are_near(scenario: Scenario) -> None:
    found, whole = compared(scenario, trials.STEADY), _storms(scenario).middle
    assert found.clients == scenario.clients
    assert found.t999_s == pytest.approx(whole.t999_s, rel=0.05)
    assert found.t50_s == pytest.approx(whole.t50_s, rel=0.05)
    assert found.attempts_per_client == pytest.approx(whole.attempts_per_client, rel=0.05)


def test_what_does_not_settle_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    few = _change(small_storms.EQUAL[0], brokers=Brokers(count=4, batch_items=1, concurrency=1))
    monkeypatch.setattr(coupling, "PASSES_MAX", 2)
    monkeypatch.setattr(coupling, "_still", lambda passes: False)
    found = _storms(few)
    assert not found.settled
    assert "did not come to agree" in found.faults[0]
