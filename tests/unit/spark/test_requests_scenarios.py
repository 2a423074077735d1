"""Scenarios by the model of requests: the same clients as the other models have, and nothing left out in silence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from metad_spark import run_simulate
from metad_spark.calibration import Calibration
from metad_spark.cli import main
from metad_spark.models.node_input import node_inputs
from metad_spark.models.population import firsts_us
from metad_spark.pipeline import progress
from metad_spark.requests.costs import load_costs
from metad_spark.requests.simulate import Outcome, simulate
from metad_spark.run_simulate import costs_apart, storm_of_scenario, unknown
from metad_spark.scenario import Brokers, Cluster, Disconnect, LeaderChange, Region, Returns, Scenario, Transports

SCENARIO = Scenario(
    clients=4_000,
    horizon_s=60,
    regions=(Region(name="near", share=0.75, rtt_ms=20), Region(name="far", share=0.25, rtt_ms=100)),
    transports=Transports(tcp_tls=0.5, quic=0.5),
    disconnect=Disconnect(spread_s=2.0),
    brokers=Brokers(count=4, linger_ms=5),
    cluster=Cluster(nodes=2, groups=6),
)


def _with(**changes: object) -> Scenario:
    return Scenario(**{field: getattr(SCENARIO, field) for field in SCENARIO.__struct_fields__} | changes)  # type: ignore[arg-type]


def test_clients_are_those_of_the_other_models() -> None:
    storm = storm_of_scenario(SCENARIO, 3)
    inputs = node_inputs(SCENARIO, Calibration(turn_s=0.001, item_s=1e-5))
    expected = np.concatenate([firsts_us(node_input, 3) for node_input in inputs]) * 1000
    np.testing.assert_array_equal(storm.begin_ns, expected)
    kinds = storm.settings.population.kinds
    assert {(kind.region, kind.rtt_ms) for kind in kinds} == {
        *(("near", 60.0), ("near", 40.0)),
        *(("far", 300.0), ("far", 200.0)),
    }
    counted = np.bincount(storm.kinds, minlength=len(kinds)) / SCENARIO.clients
    np.testing.assert_allclose(counted, [kind.share for kind in kinds], atol=0.03)
    assert (storm.nodes, storm.data_groups, storm.returning) == (2, 6, 4_000)


def test_whoever_comes_alone_waits_for_a_handshake() -> None:
    alone = _with(clients=60, disconnect=Disconnect(spread_s=30.0))
    storm = storm_of_scenario(alone, 0)
    found = simulate(storm, costs_apart(load_costs(), storm))
    assert (found.restored, found.attempts_per_session) == (60, 1.0)
    assert found.t99_s is not None
    assert 0.3 <= found.t99_s < 0.4  # three round trips of the far region
    assert found.storm_s[1] is not None
    assert 20 < found.storm_s[1] < 31, "from the trigger on, not from the client's own begin"


def test_clients_do_as_they_are_told_only_where_the_scenario_says_so() -> None:
    assert storm_of_scenario(SCENARIO, 0).settings.policy == "population"
    assert storm_of_scenario(_with(returns=Returns(of_capacity=0.9)), 0).settings.policy == "return-slot"


def test_what_it_does_not_know_is_named() -> None:
    assert list(unknown(SCENARIO)) == []
    lossy = (Region(name="here", share=1.0, rtt_ms=20, loss=0.1),)
    found = list(unknown(_with(regions=lossy, leader_changes=(LeaderChange(at_s=1),))))
    assert found == ["lost packets", "leader changes at a time"]


def test_the_command_gives_what_it_knows_and_refuses_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "storm.json"
    asked = ["simulate", "--model", "requests", "--scenario", "small", "--clients", "2000", "--seeds", "2"]
    assert main([*asked, "--json", str(told)]) == 0
    found = json.loads(told.read_text())
    assert (found["model"], found["clients"], found["restored"], found["runner"]) == ("requests", 2000, 2000, "local")
    assert 0 < found["t50_s"] <= found["t99_s"] <= found["t999_s"]
    assert found["p999_s"] <= found["t999_s"]
    assert len(found["by_seed"]) == 2
    assert "lost packets" in found["left_out"]
    assert not found["doubt"]
    assert main([*asked, "--tables", str(tmp_path / "tables")]) == 2
    assert "leave --tables" in capsys.readouterr().err


def test_a_storm_in_which_many_are_turned_away_is_less_certain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "storm.json"
    turned_away = run_simulate._MANY_REFUSED * 2_000 + 1

    def refused(scenario: Scenario, outcome: Outcome) -> dict[str, object]:
        return _told(scenario, outcome) | {"rejected": turned_away}

    _told = run_simulate._told
    monkeypatch.setattr(run_simulate, "_told", refused)
    asked = ["simulate", "--model", "requests", "--scenario", "small", "--clients", "2000"]
    assert main([*asked, "--json", str(told)]) == 0
    assert json.loads(told.read_text())["doubt"].startswith("Many are turned away")
    assert "Many are turned away" in "".join(capsys.readouterr())


def test_a_long_simulation_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.0)
    assert main(["simulate", "--model", "requests", "--scenario", "small", "--clients", "2000"]) == 0
    first, *_, last = [line for line in capsys.readouterr().err.splitlines() if "simulated seconds" in line]
    assert first == "seed 0: 0.0 of at most 120 simulated seconds, 0 of 2,000 clients back"
    assert "0 of 2,000" not in last
