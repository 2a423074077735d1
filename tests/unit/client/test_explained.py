"""``metadctl groups explain``: what it says of a group follows from the map and what the nodes say, in every state that
a change by hand goes through."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from metad_client.cli.lamps.explained import Explained, explained
from metad_client.cli.view import view
from metad_wire import messages as m
from metad_wire.cluster import SLOTS, ClusterMap, GroupRecord, MapReply, NodeRecord, SlotMove, pack_slots, slot_bits

NODES = ("n1", "n2", "n3", "n4")
VOTERS = list(NODES[:3])


def status(name: str, node: str, **fields: Any) -> m.GroupStatus:
    """What a node says of a group that n1 leads."""
    leads = node == "n1"
    followers = [m.FollowerStatus(other, "replicate", 90, True) for other in VOTERS[1:]] if leads else []
    said: dict[str, Any] = {
        "name": name,
        "kind": "data",
        "slots": 0,
        "applied": 100,
        "first": 1,
        "last": 100,
        "log_bytes": 0,
        "role": "leader" if leads else "follower",
        "leader": "n1",
        "term": 1,
        "commit": 100,
        "voters": VOTERS,
        "followers": followers,
        **fields,
    }
    return m.GroupStatus(**said)


class Cluster:
    """Four nodes, two groups of data, one on n1 to n3 and the other, too; a test changes what it is about."""

    def __init__(self) -> None:
        nodes = [NodeRecord(name, f"{name}:1", f"{name}:2", "eu" if name < "n3" else "us") for name in NODES]
        groups = [GroupRecord("metadata", 0, VOTERS, VOTERS, "n1"), GroupRecord("data", 0, VOTERS, VOTERS, "n1")]
        groups.append(GroupRecord("data", 2, VOTERS, VOTERS, "n1"))
        slots = {"metadata": pack_slots([0] * SLOTS)}
        slots["data"] = pack_slots([2 if slot in (0, 5, 6, 7) else 0 for slot in range(SLOTS)])
        self.map = ClusterMap(7, nodes, groups, slots, cluster_id="c1", replicas=3)
        self.said: dict[tuple[str, str], dict[str, Any]] = {}
        self.away: set[str] = set()

    def group(self, name: str, **fields: Any) -> None:
        records = [
            msgspec.structs.replace(one, **fields) if one.group_id.name == name else one for one in self.map.groups
        ]
        self.map = msgspec.structs.replace(self.map, groups=records)

    def explain(self, name: str) -> Explained:
        statuses = {}
        for node in NODES:
            links = [m.PeerLink(other, "tcp", True, 80) for other in NODES if other != node]
            names = [one.group_id.name for one in self.map.groups]
            groups = [status(each, node, **self.said.get((each, node), {})) for each in names]
            groups = groups if node != "n4" else []
            if node not in self.away:
                statuses[node] = m.StatusReply(node, "c1", "1", 1, 0, 0, 0, True, 3, 0, 0, 0, 0, groups, "", links)
        found = explained(self.map, view(MapReply(7, self.map, {}), statuses))
        return next(one for one in found if one.group == name)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_group_that_is_well_says_so_with_its_slots_and_places(cluster: Cluster) -> None:
    found = cluster.explain("data-2")
    assert (found.slots, found.slot_ranges, found.leader, found.preferred) == (4, [(0, 0), (5, 7)], "n1", "n1")
    assert found.why == "the cluster wants 3 replicas; n1 leads it, as the map prefers"
    assert found.next == "nothing: the group is as the map wants it"
    assert {one["node"]: one["why"] for one in found.replicas} == {
        "n1": "one of 3 that the map wants, one of its region",
        "n2": "one of 3 that the map wants, one of its region",
        "n3": "one of 3 that the map wants, the only one of its region",
    }
    assert [(one["role"], one["lag_entries"]) for one in found.replicas] == [
        ("leader", 0),
        ("voter", 10),
        ("voter", 10),
    ]
    assert found.facts()["slots"] == "4: 0, 5-7"


def test_a_replica_that_moves_is_told_step_by_step(cluster: Cluster) -> None:
    cluster.group("data-0", replicas=["n1", "n2", "n4"])
    assert cluster.explain("data-0").next == (
        "n4 is taken in as a learner; n3 is taken out once the 3 that the map wants vote and are in reach"
    )
    followers = [m.FollowerStatus(other, "replicate", 60, True) for other in ("n2", "n3", "n4")]
    cluster.said["data-0", "n1"] = {"learners": ["n4"], "followers": followers}
    found = cluster.explain("data-0")
    assert found.next.startswith("n4 becomes a voter once it has the entries: it lacks 40; ")
    assert [one["role"] for one in found.replicas] == ["leader", "voter", "voter", "learner"]
    assert found.replicas[2]["why"] == "the map gives its place to another: it goes when the others are enough"


def test_the_leader_that_the_map_prefers(cluster: Cluster) -> None:
    cluster.group("data-0", preferred="n2")
    found = cluster.explain("data-0")
    assert found.why.endswith("n1 leads it instead of n2, which has yet to get it")
    assert found.next == "n1 hands over to n2: it lacks 10 entries"


def test_a_group_that_prefers_a_region_says_why_it_is_led_there_or_not(cluster: Cluster) -> None:
    cluster.group("data-0", region="eu")
    found = cluster.explain("data-0")
    assert (found.region, found.why.partition("prefers; ")[2]) == ("eu", "it is led in eu, as it should be")
    cluster.group("data-0", region="us", preferred="n3")
    found = cluster.explain("data-0")
    assert found.why.endswith("it should be led in us, and n3 can take it once caught up and settled")
    assert found.next == "n1 hands over to n3: it lacks 10 entries"
    cluster.away.add("n3")
    followers = [m.FollowerStatus("n2", "replicate", 90, True), m.FollowerStatus("n3", "lost", 90, False)]
    cluster.said["data-0", "n1"] = {"followers": followers}
    found = cluster.explain("data-0")
    assert found.why.endswith("it should be led in us, where no voter can: n3 is unreachable")
    assert found.next == "n3 leads again once it is back"
    cluster.group("data-0", region="ap", preferred="n1")
    assert cluster.explain("data-0").why.endswith("it should be led in ap, where it has no voter")


def test_another_voter_of_the_region_leads_while_the_preferred_one_is_away(cluster: Cluster) -> None:
    nodes = [msgspec.structs.replace(one, region="eu" if one.node_id == "n1" else "us") for one in cluster.map.nodes]
    cluster.map = msgspec.structs.replace(cluster.map, nodes=nodes)
    cluster.group("data-0", region="us", preferred="n3")
    cluster.away.add("n3")
    followers = [m.FollowerStatus("n2", "replicate", 90, True), m.FollowerStatus("n3", "lost", 90, False)]
    cluster.said["data-0", "n1"] = {"followers": followers}
    assert cluster.explain("data-0").next == "n1 hands over to n2, in us; n3 leads again once it is back"


def test_a_group_without_a_majority_waits(cluster: Cluster) -> None:
    followers = [m.FollowerStatus(other, "replicate", 90, False) for other in ("n2", "n3")]
    cluster.said["data-0", "n1"] = {"followers": followers}
    assert cluster.explain("data-0").next == "nothing before a majority is back: n2 and n3 out of reach"


@pytest.mark.parametrize(
    ("source", "target", "phase", "waits_for"),
    [
        ({}, {}, "beginning", "for data-0 to begin"),
        ({"sealed_move": 60_000}, {}, "waiting", "for move 60000 to be closed"),
        ({"tenants_moving": 1}, {}, "waiting", "until no tenant is on the way to or from another cluster"),
        ({}, {"opened_move": 70_000, "opened_batch": 12}, "copying", "for the rows: 12 batches are there"),
        (
            {"sealed_move": 70_000},
            {"opened_move": 70_000},
            "sealed",
            "for the last rows: writes of these slots wait, too",
        ),
        ({"sealed_move": 70_000}, {"adopted_move": 70_000}, "adopted", "for the map to say so"),
    ],
)
def test_each_phase_of_a_move(
    cluster: Cluster, source: dict[str, int], target: dict[str, int], phase: str, waits_for: str
) -> None:
    moves = [SlotMove(70_000 + at, "data", 0, 2, slot_bits([at])) for at in (0, 1)]
    cluster.map = msgspec.structs.replace(cluster.map, moves=moves)
    cluster.said = {("data-0", "n1"): source, ("data-2", "n1"): target}
    first, second = cluster.explain("data-2").moves
    assert (first["source"], first["target"], first["slots"]) == ("data-0", "data-2", 1)
    assert (first["phase"], first["waits_for"]) == (phase, waits_for)
    assert (second["phase"], second["waits_for"]) == ("queued", "for move 70000")
    assert phase in cluster.explain("data-0").next
