"""A census as a storm: its clients are those that were counted, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from metad_spark.band import unevenness
from metad_spark.calibration import load_calibration
from metad_spark.errors import ScenarioError, UsageError
from metad_spark.models.node_input import node_inputs
from metad_spark.population import (
    Census,
    fullest,
    in_words,
    load_census,
    of_census,
    strange_regions,
    to_size,
    told,
)
from metad_spark.scenario import REGIONS_MAX, LeaderChange, Scenario, load_scenario
from metad_wire.messages import NEVER_S


def kind(tenant: str, region: str, sessions: int, connected: int, **more: Any) -> dict[str, Any]:
    given = {"endless": 0, "subscriptions": 2.0, "expiry_s": [60.0] * 21, "ends": 0, "ends_in_s": None}
    return {"tenant": tenant, "region": region, "sessions": sessions, "connected": connected, **given, **more}


KINDS = [
    kind("a", "eu-west", 500, 400, endless=250, expiry_s=[10.0] * 10 + [100.0] * 11),
    kind("a", "moon", 300, 300, subscriptions=4.0),
    kind("b", "eu-west", 400, 300),
    kind("b", "us-east", 50, 0, expiry_s=None, ends=40, ends_in_s=[float(10 * step) for step in range(21)]),
]


def counted(**changes: Any) -> dict[str, Any]:
    """A census of 1,250 sessions in four groups, of which group 2 has as many clients as all others together."""
    owners = [slot % 4 for slot in range(1024)]
    connected = [0] * 1024
    for slot, count in ((0, 100), (1, 200), (5, 100), (2, 500), (3, 100)):
        connected[slot] = count
    found = {
        "format": 1,
        "source": "metad://here:1",
        "sessions": 1_250,
        "connected": 1_000,
        "population": KINDS,
        "brokers": [
            {"region": "eu-west", "state": "active", "brokers": 6},
            {"region": "moon", "state": "draining", "brokers": 1},
            {"region": "eu-west", "state": "gone", "brokers": 9},
        ],
        "slots": {"sessions": connected, "connected": connected},
        "groups": {"nodes": 2, "ordinals": {"data": [0, 1, 2, 3]}, "slots": {"data": owners}},
    }
    return found | changes


def census(**changes: Any) -> Census:
    return msgspec.convert(counted(**changes), Census)


def test_the_clients_are_those_of_the_census() -> None:
    default = load_scenario("default")
    made = of_census(default, census())
    assert made.clients == 1_000
    assert {region.name: region.share for region in made.regions} == {"eu-west": 0.7, "moon": 0.3}
    known = {region.name: region for region in default.regions}
    eu, moon = made.regions
    assert (eu.rtt_ms, eu.loss) == (known["eu-west"].rtt_ms, known["eu-west"].loss)
    assert moon.rtt_ms == pytest.approx(sum(region.share * region.rtt_ms for region in default.regions))
    assert strange_regions(default, census()) == ["moon"]
    assert made.sessions.subscriptions == pytest.approx((400 * 2 + 300 * 4 + 300 * 2) / 1_000)
    shares = {one.expiry_s: one.share for one in made.sessions.expiries}
    assert shares == pytest.approx({10.0: 0.1, 60.0: 0.6, 100.0: 0.1, float(NEVER_S): 0.2})
    assert (made.brokers.count, made.tenants.count) == (7, 0)
    assert (made.sdks, made.transports, made.disconnect) == (default.sdks, default.transports, default.disconnect)


def test_nodes_have_the_clients_of_the_groups_that_they_lead() -> None:
    made = of_census(load_scenario("default"), census())
    assert (made.cluster.nodes, made.cluster.groups, made.cluster.clients) == (2, 4, (100, 300, 500, 100))
    inputs = node_inputs(made, load_calibration("default"))
    assert [one.clients for one in inputs] == [600, 400]
    assert [one.first_client for one in inputs] == [0, 600]
    merged = node_inputs(made, load_calibration("default"), merged=True)
    assert [one.clients for one in merged] == [600, 400], "nodes with other numbers of clients are not alike"
    other = msgspec.structs.replace(made, cluster=msgspec.structs.replace(made.cluster, groups=6))
    assert [one.clients for one in node_inputs(other, load_calibration("default"))] == [500, 500]


def test_a_node_without_clients_is_an_error_in_one_line() -> None:
    connected = [1_000 if slot == 0 else 0 for slot in range(1024)]
    made = of_census(load_scenario("default"), census(slots={"sessions": connected, "connected": connected}))
    with pytest.raises(ScenarioError, match="leaves a node fewer clients than the groups"):
        node_inputs(made, load_calibration("default"))


def test_a_search_begins_at_the_censuss_cluster_with_all_deaths() -> None:
    default = load_scenario("default")
    made = to_size(default, census())
    assert (made.cluster.nodes, made.cluster.groups, made.cluster.clients) == (2, 4, ())
    assert (made.clients, made.leader_changes) == (1_000, default.leader_changes)
    assert [region.name for region in made.regions] == [region.name for region in of_census(default, census()).regions]
    three = msgspec.structs.replace(default, leader_changes=(LeaderChange(at_s=1, nodes=3),))
    made = to_size(three, census())
    assert (made.cluster.nodes, made.cluster.groups) == (3, 6), "groups a node stay"
    assert made.leader_changes == three.leader_changes


def test_the_fullest_group_is_what_the_census_counted_in_its_slots() -> None:
    even = fullest(census(slots={"sessions": [5] * 1024, "connected": [1] * 1024}))
    assert (even(4), even(1024)) == (1.0, 1.0)
    assert even(240) == pytest.approx(unevenness(240))
    heavy = [4 if slot < 512 else 1 for slot in range(1024)]  # away from what slots alone say
    found = fullest(census(slots={"sessions": heavy, "connected": heavy}))
    assert found(2) == pytest.approx(2 * 4 / 5)
    assert found(1) == 1.0
    assert found(240) == pytest.approx(5 * 4 * 240 / (512 * 5))
    single = [1_000 if slot == 700 else 0 for slot in range(1024)]
    assert fullest(census(slots={"sessions": single, "connected": single}))(64) == 64


def test_nobody_dies_alone() -> None:
    assert len(of_census(load_scenario("default"), census()).leader_changes) == 1
    groups = counted()["groups"] | {"nodes": 1}
    assert of_census(load_scenario("default"), census(groups=groups)).leader_changes == ()


def test_too_many_regions_are_put_together() -> None:
    many = [kind("a", f"r{number:03}", 10 + number, 10 + number) for number in range(REGIONS_MAX + 10)]
    total = sum(one["connected"] for one in many)
    made = of_census(Scenario(), census(population=many, connected=total, sessions=total))
    assert len(made.regions) == REGIONS_MAX
    assert made.regions[-1].name == "others"
    assert made.regions[-1].share == pytest.approx(sum(10 + number for number in range(11)) / total)
    assert sum(region.share for region in made.regions) == pytest.approx(1.0)


def test_what_a_result_says_of_its_clients() -> None:
    default = load_scenario("default")
    said = told(default, census())
    assert said == {
        "source": "metad://here:1",
        "sessions": 1_250,
        "connected": 1_000,
        "away": 250,
        "away_ending": 40,  # all 20 steps end within 900 s
        "tenants": 2,
        "largest_tenant": 0.7,
        "regions_assumed": ["moon"],
    }
    half = msgspec.structs.replace(default, horizon_s=100.0)
    assert told(half, census())["away_ending"] == 20
    assert "the network of 'moon'" in in_words(said)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"{", "--population .*: Input data was truncated"),
        (b"{}", "--population .*missing required field `format`"),
        (msgspec.json.encode(counted(format=2)), "it is of format 2"),
        (msgspec.json.encode(counted(connected=0)), "no client is connected"),
    ],
)
def test_what_is_no_census_is_refused(tmp_path: Path, content: bytes, line: str) -> None:
    path = tmp_path / "census.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=line):
        load_census(path)
    with pytest.raises(UsageError, match="No such file"):
        load_census(tmp_path / "nowhere.json")
