"""The verdict of ``metadctl status``: what is a problem, how it is named, and that none is missed."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metad_client.cli import overview, people
from metad_client.cli.lamps.explained import explained
from metad_client.cli.printing import PAGE_CHARS, Printer
from metad_client.cli.verdict import (
    ALIKE,
    CODES,
    ENDS_MS,
    EXIT_STATUS,
    LAG_ENTRIES,
    LATE_MS,
    SLOW,
    WAIT_MS,
    Backup,
    lines,
    problems,
    too_old,
    verdict,
)
from metad_client.cli.view import ClusterView, Statuses, view
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.errors import ConnectionLostError, MetadError
from metad_wire.tables.access import AuditEntry
from metad_wire.tables.broker import Broker

NAMES = ("n1", "n2", "n3")
GROUPS = ("metadata-0", "data-0")
OTHER_DIRECTORY = "'n3' was here with another data directory"
Changes = dict[str, Any]
replace: Callable[..., Any] = msgspec.structs.replace


class Cluster:
    """Three nodes with two groups, all well; a test changes what it is about."""

    def __init__(self, names: tuple[str, ...] = NAMES) -> None:
        nodes = [c.NodeRecord(name, f"{name}:7420", f"{name}:7421") for name in names]
        groups = [c.GroupRecord("metadata", 0, list(names), list(names)), c.GroupRecord("data", 0, *[list(names)] * 2)]
        slots = {kind: c.pack_slots([0] * c.SLOTS) for kind in ("metadata", "data")}
        self.map: c.ClusterMap | None = c.ClusterMap(
            7, nodes, groups, slots, cluster_id="c1", replicas=min(3, len(names))
        )
        self.statuses: dict[str, m.StatusReply | MetadError] = {name: self._status(name, names) for name in names}

    def _status(self, name: str, names: tuple[str, ...]) -> m.StatusReply:
        links = [m.PeerLink(other, "tcp", True, 80) for other in names if other != name]
        groups = [self._group(group, name, names) for group in GROUPS]
        return m.StatusReply(
            name, "c1", "0.1.0", 1, 12_000_000, 65_000_000, 12_900_000, True, 3, 4, 0, 9, 9, groups, "", links
        )

    def _group(self, group: str, name: str, names: tuple[str, ...]) -> m.GroupStatus:
        leads = name == names[0]
        followers = [m.FollowerStatus(other, "replicate", 100, True) for other in names[1:]] if leads else []
        return m.GroupStatus(
            group,
            group.partition("-")[0],
            1024,
            100,
            1,
            100,
            0,
            "leader" if leads else "follower",
            names[0],
            4,
            100,
            list(names),
            [],
            1,
            followers,
        )

    def status(self, node: str) -> m.StatusReply:
        found = self.statuses[node]
        assert isinstance(found, m.StatusReply)
        return found

    def change(self, node: str, **fields: Any) -> None:
        self.statuses[node] = replace(self.status(node), **fields)

    def group(self, node: str, name: str = "data-0", **fields: Any) -> None:
        groups = [replace(g, **fields) if g.name == name else g for g in self.status(node).groups]
        self.change(node, groups=groups)

    def follower(self, node: str, name: str = "data-0", **fields: Any) -> None:
        """What the leader, n1, says about a follower."""
        (leading,) = [group for group in self.status("n1").groups if group.name == name]
        followers = [replace(one, **fields) if one.node_id == node else one for one in leading.followers]
        self.group("n1", name, followers=followers)

    def link(self, node: str, to: str, **fields: Any) -> None:
        links = [replace(link, **fields) if link.node_id == to else link for link in self.status(node).links]
        self.change(node, links=links)

    def cut(self, one: str, other: str, **fields: Any) -> None:
        self.link(one, other, up=False, **fields)
        self.link(other, one, up=False)

    def fails(self, node: str) -> None:
        """It does not answer, and the others have lost it."""
        self.statuses[node] = ConnectionLostError(f"connection refused by {node}:7420")
        for other in NAMES:
            if isinstance(self.statuses.get(other), m.StatusReply):
                self.link(other, node, up=False, obstacle="connection refused")
        if node != "n1" and isinstance(self.statuses["n1"], m.StatusReply):
            for group in GROUPS:
                self.follower(node, group, reachable=False)

    def leaderless(self, node: str, ms: int = 12_000) -> None:
        for group in GROUPS:
            self.group(node, group, role="follower", leader="", leaderless_ms=ms, followers=[])

    def record(self, node: str, **fields: Any) -> None:
        assert self.map is not None
        nodes = [replace(one, **fields) if one.node_id == node else one for one in self.map.nodes]
        self.map = replace(self.map, nodes=nodes)

    @property
    def view(self) -> ClusterView:
        return view(c.MapReply(0 if self.map is None else self.map.version, self.map, {}), self.statuses)

    @property
    def found(self) -> dict[tuple[str, str], str]:
        """(code, what it is about) -> text."""
        return {(one.code, one.group or one.node): one.text for one in problems(self.view)}

    @property
    def verdict(self) -> str:
        return verdict(self.view, problems(self.view))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.mark.parametrize("names", [("n1",), ("n1", "n2"), NAMES, ("n1", "n2", "n3", "n4", "n5")])
def test_a_healthy_cluster_of_any_size_is_ok(names: tuple[str, ...]) -> None:
    healthy = Cluster(names)
    assert (healthy.found, healthy.verdict) == ({}, "ok")


def test_every_code_has_a_test() -> None:
    tested = set()
    for name, test in globals().items():
        if name.startswith("test_code_"):
            tested.add(name.removeprefix("test_code_").partition("__")[0])
            assert callable(test)
    assert tested == set(CODES)


def test_code_node_unreachable__a_node_that_does_not_answer(cluster: Cluster) -> None:
    cluster.fails("n3")
    assert cluster.verdict == "warning"
    assert cluster.found == {
        ("node_unreachable", "n3"): "n3: not reached: connection refused by n3:7420",
        ("group_under_replicated", "metadata-0"): "metadata-0: 2 of 3 voters reachable; missing: n3",
        ("group_under_replicated", "data-0"): "data-0: 2 of 3 voters reachable; missing: n3",
    }


def test_code_node_unreachable__only_for_the_client(cluster: Cluster) -> None:
    cluster.statuses["n3"] = ConnectionLostError("no route")
    assert cluster.found == {("node_unreachable", "n3"): "n3: not reached: no route; n1 and n2 can reach it"}


def test_code_node_unreachable__only_for_the_other_nodes(cluster: Cluster) -> None:
    cluster.cut("n3", "n1", obstacle="it does not answer")
    cluster.cut("n3", "n2")
    assert cluster.found == {("node_unreachable", "n3"): "n3: no connection with n1 and n2: it does not answer"}


def test_code_node_unreachable__a_node_that_nobody_asked(cluster: Cluster) -> None:
    del cluster.statuses["n3"]
    assert cluster.found == {("node_unreachable", "n3"): "n3: not reached: it was not asked; n1 and n2 can reach it"}


def test_code_node_refused__is_not_up_and_not_believed(cluster: Cluster) -> None:
    for other in ("n1", "n2"):
        cluster.link(other, "n3", up=False, refuses=OTHER_DIRECTORY)
        cluster.link("n3", other, up=False, refused=OTHER_DIRECTORY)
    for group in GROUPS:
        cluster.follower("n3", group, reachable=False)
    # What it says of its groups must not count: it has forgotten what it promised.
    cluster.group("n3", role="leader", leader="n3", term=99)
    assert cluster.verdict == "warning"
    assert cluster.found["node_refused", "n3"] == f"n3: refused by n1 and n2: {OTHER_DIRECTORY}"
    row = overview.status(cluster.view, {}, "warning", [])
    assert (row["nodes_up"], row["nodes_total"]) == (2, 3)
    assert [node["state"] for node in row["nodes"]] == ["up", "up", "refused"]
    assert [group["leader"] for group in row["groups"]] == ["n1", "n1"]
    assert ("group_under_replicated", "data-0") in cluster.found


def test_code_node_refused__the_odd_one_out_of_three(cluster: Cluster) -> None:
    """Nodes of two clusters refuse each other. The one that more nodes refuse is the wrong one."""
    for other in ("n1", "n2"):
        cluster.link(other, "n3", up=False, refuses="this is cluster 'a', not 'b'")
        cluster.link("n3", other, up=False, refuses="this is cluster 'b', not 'a'")
    refused = [about for code, about in cluster.found if code == "node_refused"]
    assert refused == ["n3"]


def test_code_node_refused__of_two_that_refuse_each_other_both(cluster: Cluster) -> None:
    pair = Cluster(("n1", "n2"))
    pair.link("n1", "n2", up=False, refuses="x")
    pair.link("n2", "n1", up=False, refuses="x")
    assert {about for code, about in pair.found if code == "node_refused"} == {"n1", "n2"}


def test_code_node_unreachable__somebody_else_has_its_address(cluster: Cluster) -> None:
    """Once wrong: what the stranger says to the other nodes counted as n1's word, and nobody was believed."""
    cluster.statuses["n1"] = ConnectionLostError("n1:7420 is n9, not n1")
    for other in ("n2", "n3"):
        cluster.link(other, "n1", up=False, refused="this is 'n9', not 'n1'")
        for group in GROUPS:
            cluster.group(other, group, role="leader" if other == "n2" else "follower", leader="n2", term=5)
    for group in GROUPS:
        followers = [m.FollowerStatus("n1", "replicate", 90, False), m.FollowerStatus("n3", "replicate", 100, True)]
        cluster.group("n2", group, followers=followers)
    assert cluster.verdict == "warning"
    assert cluster.found["node_unreachable", "n1"] == "n1: not reached: n1:7420 is n9, not n1"
    assert {code for code, _ in cluster.found} == {"node_unreachable", "group_under_replicated"}
    assert cluster.view.cluster_id == "c1"


def test_code_node_unreachable__a_node_of_another_cluster_has_its_name_and_address(cluster: Cluster) -> None:
    cluster.change("n1", cluster_id="c2", links=[])
    for group in GROUPS:
        cluster.group("n1", group, term=99)
        followers = [m.FollowerStatus("n1", "replicate", 90, False), m.FollowerStatus("n3", "replicate", 100, True)]
        cluster.group("n2", group, role="leader", leader="n2", term=5, followers=followers)
        cluster.group("n3", group, leader="n2", term=5)
    for other in ("n2", "n3"):
        cluster.link(other, "n1", up=False, refused="this is cluster 'c2', not 'c1'")
    assert cluster.verdict == "warning"
    assert cluster.found["node_unreachable", "n1"] == "n1: not reached: cluster 'c2' has its address"
    assert [group.leader for group in cluster.view.groups] == ["n2", "n2"]


def test_code_node_unreachable__one_that_refuses_all_others_is_wrong_about_them(cluster: Cluster) -> None:
    for other in ("n1", "n2"):
        cluster.link("n3", other, up=False, refuses="its certificate has ended")
        cluster.link(other, "n3", up=False, refused="its certificate has ended")
    assert cluster.verdict == "warning"
    assert cluster.found == {
        ("node_unreachable", "n3"): "n3: no connection with n1 and n2: its certificate has ended",
    }


def test_code_node_drained__and_what_it_leads_yet(cluster: Cluster) -> None:
    cluster.record("n3", drained=True)
    assert cluster.found == {("node_drained", "n3"): "n3: drained: it leads nothing until it is undrained"}
    assert verdict(cluster.view, problems(cluster.view), ["node_drained"]) == "ok"
    cluster.record("n1", drained=True)
    assert cluster.found["node_drained", "n1"].endswith("until it is undrained; it leads 2 groups yet")
    assert [node.state for node in cluster.view.nodes] == ["drained", "up", "drained"]


def test_code_node_leaving__until_its_replicas_have_moved(cluster: Cluster) -> None:
    cluster.record("n3", leaving=True)
    assert cluster.verdict == "warning"
    assert cluster.found["node_leaving", "n3"] == "n3: leaving; 2 replicas have not moved yet"
    row = overview.status(cluster.view, {}, "warning", [])
    assert (row["nodes_up"], row["nodes"][2]["state"]) == (3, "leaving")


@pytest.mark.parametrize("setting", ALIKE)
def test_code_settings_differ__one_node_lacks_what_others_have(cluster: Cluster, setting: str) -> None:
    for node in NAMES:
        cluster.change(node, **{setting: node == "n1"})
    assert {about for code, about in cluster.found if code == "settings_differ"} == {"n2", "n3"}
    assert cluster.found["settings_differ", "n2"] == f"n2: {setting} is off, and on at n1: it {ALIKE[setting]}"
    assert cluster.verdict == "warning"
    for node in NAMES:
        cluster.change(node, **{setting: False})
    assert cluster.found == {}, "nobody has it"


def test_code_settings_differ__values_in_which_all_nodes_should_be_alike(cluster: Cluster) -> None:
    cluster.change("n3", settings={"limits.queue_ms": "5000"})
    text = "n3: limits.queue_ms is 5000, and its default at n1 and n2"
    assert cluster.found == {("settings_differ", "n3"): text}
    cluster.change("n1", settings={"limits.queue_ms": "5000"})
    assert cluster.found == {
        ("settings_differ", "n2"): "n2: limits.queue_ms is its default, and 5000 at n1 and n3",
    }
    cluster.change("n2", settings={"limits.queue_ms": "5000"})
    assert cluster.found == {}


def test_another_version_may_not_say_what_it_has(cluster: Cluster) -> None:
    cluster.change("n1", version="0.2.0", settings={"limits.queue_ms": "5000"})
    assert {code for code, _ in cluster.found} == {"versions_differ"}


def test_code_expiry_late__only_after_a_while(cluster: Cluster) -> None:
    cluster.change("n2", overdue_ms=LATE_MS, backlog=m.Backlog(deadlines=70))
    assert cluster.verdict == "ok"  # many clients have gone at once, or a leader has just changed
    cluster.change("n2", overdue_ms=LATE_MS + 60_000)
    assert cluster.verdict == "warning"
    assert cluster.found == {("expiry_late", "n2"): "n2: 70 deadlines have passed and are not carried out for 6 min"}


def test_code_group_overloaded__only_while_much_waits(cluster: Cluster) -> None:
    cluster.group("n1", waiting_items=40_000, wait_ms=WAIT_MS, served_per_s=80_000)
    assert cluster.verdict == "ok"
    cluster.group("n1", waiting_items=80_000, wait_ms=1_000, served_per_s=80_000)
    assert cluster.verdict == "warning"
    assert cluster.found == {("group_overloaded", "data-0"): "data-0: 80,000 items wait, 1 s at 80,000 a second"}


def test_code_wills_unclaimed__only_after_a_while(cluster: Cluster) -> None:
    cluster.change("n2", backlog=m.Backlog(wills=9, unclaimed=7, unclaimed_ms=LATE_MS))
    assert cluster.verdict == "ok"
    cluster.change("n2", backlog=m.Backlog(wills=9, unclaimed=7, unclaimed_ms=LATE_MS + 60_000))
    assert cluster.verdict == "warning"
    assert cluster.found == {("wills_unclaimed", "n2"): "n2: 7 due wills, and no broker publishes them for 6 min"}


def test_what_ends_by_itself_is_told_of_all_nodes_together(cluster: Cluster) -> None:
    assert overview.life(overview.status(cluster.view, {}, "ok", [])) == []
    cluster.change("n1", sessions_ended=2_000, overdue_ms=1_500, backlog=m.Backlog(1_000, 2, more=True))
    cluster.change("n2", sessions_ended=30, overdue_ms=300, wills_due=5, backlog=m.Backlog(4, 1, 3, 0, 0))
    row = overview.status(cluster.view, {}, "ok", [], {"active": 2, "fenced": 1})
    assert overview.life(row) == [
        "brokers: 2 active, 1 fenced",
        "sessions: 2,030 ended, over 1,004 deadlines not carried out, the oldest 1 s late, 3 fences not swept",
        "wills: 5 came due, over 3 wait",
    ]


def test_code_disk_failing__as_the_node_says(cluster: Cluster) -> None:
    cluster.change("n2", failing="the disk makes nothing durable")
    assert cluster.found == {("disk_failing", "n2"): "n2: the disk makes nothing durable"}


_MIB = 1024 * 1024


def ending(cluster: Cluster, lasts_ms: int) -> list[str]:
    """The problems of the certificates of n2, which last for so long, and of its authority, which lasts."""
    certificates = [m.CertificateStatus("certificate", 1, lasts_ms), m.CertificateStatus("ca", 1, ENDS_MS)]
    cluster.change("n2", certificates=certificates)
    assert all("`certificate`" in text for text in cluster.found.values())
    return [code for code, node in cluster.found if node == "n2"]


def test_code_certificate_ends__within_two_weeks(cluster: Cluster) -> None:
    assert ending(cluster, ENDS_MS) == []
    assert ending(cluster, ENDS_MS - 1) == ending(cluster, 1) == ["certificate_ends"]
    assert cluster.verdict == "warning"


def test_code_certificate_ended__also_of_a_node_that_nobody_reaches_therefore(cluster: Cluster) -> None:
    cluster.statuses["n2"] = ConnectionLostError("the peer's certificate is refused: certificate has expired")
    assert cluster.verdict == "critical"
    assert ("certificate_ended", "n2") in cluster.found


def test_code_certificate_ended__at_its_end(cluster: Cluster) -> None:
    assert ending(cluster, 0) == ["certificate_ended"]
    assert cluster.verdict == "critical"


def test_code_disk_low__below_twice_the_nodes_own_mark(cluster: Cluster) -> None:
    cluster.change("n2", disk=m.DiskStatus(20 * _MIB, 100 * _MIB, 10 * _MIB))
    assert cluster.verdict == "ok"
    cluster.change("n2", disk=m.DiskStatus(19 * _MIB, 100 * _MIB, 10 * _MIB))
    assert cluster.verdict == "warning"
    assert ("disk_low", "n2") in cluster.found
    cluster.change("n2", disk=m.DiskStatus())
    assert cluster.verdict == "ok", "an older node does not say"


def test_code_disk_full__below_the_mark(cluster: Cluster) -> None:
    cluster.change("n2", disk=m.DiskStatus(9 * _MIB, 100 * _MIB, 10 * _MIB))
    assert cluster.verdict == "critical"
    assert cluster.found[("disk_full", "n2")].startswith("n2: its disk has 9.0 MiB free of 100.0 MiB: what")


def test_the_room_of_a_disk_is_told_with_how_long_it_lasts(cluster: Cluster) -> None:
    three_days_ms = 3 * 86_400_000 + 7_200_000
    cluster.change("n2", disk=m.DiskStatus(19 * _MIB, 100 * _MIB, 10 * _MIB, 0, three_days_ms))
    said = "19.0 MiB free of 100.0 MiB, lasts some 3 d"
    assert cluster.found[("disk_low", "n2")].startswith(f"n2: its disk has {said}: ")
    assert overview.room(cluster.view) == [f"disk: n2 has {said}"]
    cluster.change("n1", disk=m.DiskStatus(41 * 1024 * _MIB, 102_400 * _MIB, 512 * _MIB))
    cluster.change("n2", disk=m.DiskStatus(82 * 1024 * _MIB, 102_400 * _MIB, 512 * _MIB, 0, three_days_ms))
    assert overview.room(cluster.view) == ["fullest disk: n1 has 41.0 GiB free of 100.0 GiB"]
    cluster.change("n2", disk=m.DiskStatus(0, 102_400 * _MIB, 512 * _MIB, 2, 0))
    assert overview.room(cluster.view) == ["fullest disk: n2 has 0 B free of 100.0 GiB"]


def test_nothing_is_told_of_disks_that_nodes_do_not_have(cluster: Cluster) -> None:
    assert overview.room(cluster.view) == []


def test_code_versions_differ__until_the_upgrade_has_ended(cluster: Cluster) -> None:
    cluster.change("n2", version="0.9.1")
    cluster.change("n3", version="0.10.0")
    assert cluster.found == {
        ("versions_differ", "n1"): "n1: version 0.1.0, and 0.10.0 at n3",
        ("versions_differ", "n2"): "n2: version 0.9.1, and 0.10.0 at n3",
    }
    assert cluster.verdict == "warning"
    assert verdict(cluster.view, problems(cluster.view), ["versions_differ"]) == "ok"
    cluster.change("n1", version="0.10.0+g0123456789")
    cluster.change("n2", version="0.10.0+g0123456789")
    assert cluster.found == {("versions_differ", "n3"): "n3: version 0.10.0, and 0.10.0+g0123456789 at n1 and n2"}
    cluster.change("n1", version="0.9.1")
    cluster.fails("n1")  # whoever does not answer has no version
    assert ("versions_differ", "n1") not in cluster.found
    assert verdict(cluster.view, problems(cluster.view), ["versions_differ"]) == "critical"


@pytest.mark.parametrize("what", ["sync_us", "apply_us", "loop_us"])
def test_code_node_slow__only_one_among_others_that_are_not(cluster: Cluster, what: str) -> None:
    for node, us in (("n1", 5_000), ("n2", 100_000), ("n3", 10_000)):
        cluster.change(node, tail=m.Tail(**{what: us}))
    assert cluster.found == {}, "within the bound"
    cluster.change("n2", tail=m.Tail(**{what: 250_000}))
    ((key, text),) = cluster.found.items()
    assert key == ("node_slow", "n2")
    assert text.startswith(f"n2: {SLOW[what]} 250 ms, at the others ")
    cluster.change("n3", tail=m.Tail(**{what: 250_000}))
    cluster.change("n1", tail=m.Tail(**{what: 250_000}))
    assert cluster.found == {}, "all have the same disks, and the same to do"
    assert Cluster(("n1",)).found == {}


def test_code_broker_silent__while_it_lives(cluster: Cluster) -> None:
    brokers = [Broker("b1", 1, "active", 15_000, silent_ms=9_500), Broker("b2", 1, "active", 15_000)]
    (found,) = problems(cluster.view, brokers)
    assert found.text == "b1: not heard of for 9 s; its life ends after 15 s"
    assert found.fields() == {"code": "broker_silent", "severity": "warning", "broker": "b1", "text": found.text}


def test_code_group_no_leader__says_for_how_long(cluster: Cluster) -> None:
    cluster.fails("n1")
    cluster.fails("n2")
    cluster.leaderless("n3")
    assert cluster.verdict == "critical"
    text = "data-0: no leader for 12 s; 1 of 3 replicas reachable"
    assert cluster.found["group_no_leader", "data-0"] == text
    assert overview.status(cluster.view, {}, "critical", [])["groups_led"] == 0


def test_code_group_no_leader__a_follower_that_names_a_node_that_does_not_lead(cluster: Cluster) -> None:
    cluster.group("n1", role="follower", followers=[])
    assert cluster.found[("group_no_leader", "data-0")] == "data-0: no leader; 3 of 3 replicas reachable"


def test_code_group_no_leader__a_follower_that_lost_the_leader_it_names(cluster: Cluster) -> None:
    cluster.fails("n1")
    assert ("group_no_leader", "data-0") in cluster.found


def test_code_group_no_leader__not_while_others_follow_one_that_the_client_cannot_reach(cluster: Cluster) -> None:
    cluster.statuses["n1"] = ConnectionLostError("no route")
    assert set(cluster.found) == {("node_unreachable", "n1")}


def test_code_group_no_leader__a_cluster_that_is_being_formed(cluster: Cluster) -> None:
    cluster.map = None
    assert cluster.found == {("group_no_leader", "metadata-0"): "metadata-0: the cluster is being formed"}


def test_code_group_no_quorum__although_somebody_still_leads(cluster: Cluster) -> None:
    cluster.fails("n2")
    cluster.fails("n3")
    assert cluster.verdict == "critical"
    text = "data-0: no quorum: 1 of 3 voters reachable, 2 are needed"
    assert cluster.found["group_no_quorum", "data-0"] == text
    assert ("group_no_leader", "data-0") not in cluster.found


def test_code_group_under_replicated__fewer_voters_than_the_map_wants(cluster: Cluster) -> None:
    cluster.group("n1", voters=["n1", "n2"], learners=["n3"])
    assert cluster.found == {("group_under_replicated", "data-0"): "data-0: 2 voters, the map wants 3"}


def test_code_group_under_replicated__fewer_machines_than_replicas_are_wanted() -> None:
    """After nodes were lost and left. The verdict was OK again at the last machine. One that was always alone wants no
    more, and metadata-0 counts too."""
    for names, replicas, missing in (
        (("n1", "n2"), 3, "2 of 3 replicas that the cluster wants; it needs one machine more"),
        (("n1",), 3, "1 of 3 replicas that the cluster wants; it needs 2 machines more"),
        (("n1", "n2"), 2, ""),
        (("n1",), 0, ""),
        (NAMES, 3, ""),
    ):
        cluster = Cluster(names)
        cluster.map = replace(cluster.map, replicas=replicas)
        assert set(cluster.found.values()) == ({f"{name}: {missing}" for name in GROUPS} if missing else set())


def test_code_group_under_replicated__fewer_than_the_nodes_allow(cluster: Cluster) -> None:
    """After a leave the map may want two of three nodes: nobody would notice."""
    assert cluster.map is not None
    groups = [replace(g, replicas=["n1", "n2"]) if g.kind == "data" else g for g in cluster.map.groups]
    cluster.map = replace(cluster.map, groups=groups)
    cluster.group("n1", voters=["n1", "n2"])
    text = "data-0: the map wants 2 voters, 3 are possible"
    assert cluster.found == {("group_under_replicated", "data-0"): text}
    cluster.map = replace(cluster.map, replicas=2)
    text = "data-0: the cluster wants 2 replicas, and the loss of a node may stop it"
    assert cluster.found == {("group_under_replicated", "data-0"): text}


@pytest.mark.parametrize("names", [("n1", "n2"), NAMES, ("n1", "n2", "n3", "n4", "n5")])
def test_code_group_under_replicated__one_replica_is_wanted_although_there_are_three_machines(
    names: tuple[str, ...],
) -> None:
    """`groups rebalance --replicas 1` was followed by OK, and the next failure by groups without a leader."""
    cluster = Cluster(names)
    assert cluster.map is not None
    groups = [replace(g, replicas=["n1"]) if g.kind == "data" else g for g in cluster.map.groups]
    cluster.map = replace(cluster.map, groups=groups, replicas=1)
    cluster.group("n1", voters=["n1"], followers=[])
    text = "data-0: the cluster wants one replica, and the loss of a node may stop it"
    assert cluster.found == ({("group_under_replicated", "data-0"): text} if len(names) > 2 else {})


def test_code_group_under_replicated__workers_of_one_machine_allow_one(cluster: Cluster) -> None:
    workers = Cluster(("n1/0", "n1/1"))
    assert workers.map is not None
    groups = [replace(g, replicas=["n1/0"]) for g in workers.map.groups]
    workers.map = replace(workers.map, groups=groups, replicas=0)
    for group in GROUPS:
        workers.group("n1/0", group, voters=["n1/0"], followers=[])
    assert workers.verdict == "ok"


def test_code_group_under_replicated__a_replica_that_lost_what_it_acknowledged(cluster: Cluster) -> None:
    cluster.follower("n3", state="lost")
    text = "data-0: 2 of 3 voters reachable; missing: n3; n3 has lost what it acknowledged"
    assert cluster.found == {("group_under_replicated", "data-0"): text}


def test_code_replica_lagging__by_more_than_replication_under_load(cluster: Cluster) -> None:
    cluster.group("n1", last=100 + LAG_ENTRIES)
    assert cluster.verdict == "ok"
    cluster.group("n1", last=101 + LAG_ENTRIES)
    assert cluster.found == {("replica_lagging", "data-0"): "data-0: n2 lacks 1,001 entries"} | cluster.found
    assert [one.node for one in problems(cluster.view)] == ["n2", "n3"]


@pytest.mark.parametrize("state", ["probe", "snapshot"])
def test_code_replica_catching_up__in_each_state(cluster: Cluster, state: str) -> None:
    cluster.follower("n2", state=state)
    assert set(cluster.found) == {("replica_catching_up", "data-0")}
    assert cluster.verdict == "warning"


def test_code_replica_unlike__while_a_wrong_state_is_replaced(cluster: Cluster) -> None:
    cluster.group("n1", unlike=["n3"])
    text = "data-0: the state of n3 is not that of the majority, and is being replaced"
    assert cluster.found == {("replica_unlike", "data-0"): text}
    assert cluster.verdict == "warning"


def test_code_restoring__which_backup_and_for_how_long(cluster: Cluster) -> None:
    for node in NAMES:
        cluster.group(node, slots=0, restoring="a1b2", restoring_ms=61_000)
    text = "data-0: backup a1b2 is being put into it, and it serves nothing for 1 min 1 s"
    assert (cluster.found, cluster.verdict) == ({("restoring", "data-0"): text}, "critical")


def test_code_tenant_moving__and_why_slots_wait(cluster: Cluster) -> None:
    for node in NAMES:
        cluster.group(node, tenants_moving=2)
    text = "data-0: 2 tenants on the way to or from another cluster: no slots move meanwhile"
    assert (cluster.found, cluster.verdict) == ({("tenant_moving", "data-0"): text}, "warning")


def complete(name: str, when_ms: int) -> AuditEntry:
    return AuditEntry("1", when_ms, "admin", "n1", "metad://client/ops", "10.0.0.9", "backup.end", name, waited_ms=50)


@pytest.mark.parametrize(
    ("newest", "unknown", "text"),
    [
        (complete("20261129T200000.500Z-a1b2", 0), "", ""),
        (complete("20261129T193000.000Z-a1b2", 0), "", "the newest backup, 20261129T193000.000Z-a1b2, is 1 h old"),
        (complete("mine", 1_795_983_000_050), "", ""),
        (complete("mine", 1_795_977_000_050), "", "the newest backup, mine, is 2 h old"),
        (None, "", "the audit trail knows no complete backup"),
        (None, "permission denied", "nobody says which backup is the newest: permission denied"),
    ],
)
def test_code_backup_old__by_when_it_was_begun(
    cluster: Cluster, newest: AuditEntry | None, unknown: str, text: str
) -> None:
    now_ms = 1_795_984_200_000  # 20:30 of that day
    known = None if newest is None else Backup.of(newest, now_ms)
    found = problems(cluster.view, backups=too_old(known, 3_000_000, unknown))
    assert lines(found) == ([f"warning backup_old: the cluster: {text}"] if text else [])
    assert verdict(cluster.view, found) == ("warning" if text else "ok")


def test_code_group_undecided__whoever_is_wrong(cluster: Cluster) -> None:
    cluster.group("n1", unlike=["n1", "n3"], undecided=True)
    text = "data-0: the states of n1 and n3 differ, and no majority says which is right"
    assert cluster.found == {("group_undecided", "data-0"): text}
    assert cluster.verdict == "critical"


def test_slots_that_move_are_no_problem(cluster: Cluster) -> None:
    assert cluster.map is not None
    cluster.map = replace(cluster.map, moves=[c.SlotMove(70_000, "data", 0, 1, b"\xff" * 128)])
    assert cluster.verdict == "ok"
    assert "1 slot moves under way" in overview.facts(overview.status(cluster.view, {}, "ok", []))


def test_a_move_is_under_way_until_the_group_that_gave_the_slots_has_closed_it(cluster: Cluster) -> None:
    """The map forgets a move before its source has closed it, and until then the source is not removed, for instance.
    A restore gives up slots, too, and a map that is older than a move has not heard of it."""
    for node in NAMES:
        cluster.group(node, sealed_move=70_000)
    assert (cluster.view.moves, [one.closing for one in cluster.view.groups]) == (1, [0, 70_000])
    assert cluster.map is not None
    (found,) = [one for one in explained(cluster.map, cluster.view) if one.group == "data-0"]
    assert found.next == "move 70000 is closed: its slots are in another group"
    move = c.SlotMove(70_000, "data", 0, 1, b"\xff" * 128)
    for changes in ({"moves": [move]}, {"version": 6}):
        cluster.map, before = replace(cluster.map, **changes), cluster.map
        assert [one.closing for one in cluster.view.groups] == [0, 0]
        assert cluster.view.moves == len(cluster.map.moves)
        cluster.map = before
    for node in NAMES:
        cluster.group(node, sealed_move=1 << 62, restoring="a1b2")
    assert cluster.view.moves == 0


def test_without_any_answer_nothing_is_known(cluster: Cluster) -> None:
    for name in NAMES:
        cluster.statuses[name] = ConnectionLostError("gone")
    assert cluster.verdict == "unknown"


def test_how_long_is_not_taken_from_who_was_cut_off_or_started_again(cluster: Cluster) -> None:
    for name, ms in (("n1", 5_000), ("n2", 3_600_000), ("n3", 900)):
        cluster.leaderless(name, ms)
    cluster.change("n3", uptime_ms=1_000)
    assert "for 5 s" in cluster.found["group_no_leader", "data-0"]
    for name in ("n1", "n2"):
        cluster.change(name, uptime_ms=1_000)
    assert "for 1 h" in cluster.found["group_no_leader", "data-0"]


def test_alike_problems_share_a_line(cluster: Cluster) -> None:
    cluster.fails("n3")
    assert lines(problems(cluster.view)) == [
        "warning node_unreachable: n3: not reached: connection refused by n3:7420",
        "warning group_under_replicated: data-0 and metadata-0: 2 of 3 voters reachable; missing: n3",
    ]


def test_exit_statuses_are_documented() -> None:
    assert EXIT_STATUS == {"ok": 0, "warning": 1, "critical": 2, "unknown": 3}


# --- no problem is missed ---


def is_healthy(known: c.ClusterMap | None, statuses: Statuses) -> bool:
    """Said in other words than the code: everybody answers, is wanted, works and is connected to all others, and each
    group has one leader whose followers are the voters that the map wants and have what it has."""
    if known is None:
        return False
    answers = {name: status for name, status in statuses.items() if isinstance(status, m.StatusReply)}
    for record in known.nodes:
        status = answers.get(record.node_id)
        if status is None or record.leaving or status.failing or status.overdue_ms > LATE_MS:
            return False
        if status.backlog.unclaimed_ms > LATE_MS:
            return False
        others = {other.node_id for other in known.nodes} - {record.node_id}
        if {link.node_id for link in status.links if link.up} != others or any(not link.up for link in status.links):
            return False
    for group in known.groups:
        here = {n: g for n, status in answers.items() for g in status.groups if g.name == group.group_id.name}
        leading = [(g.term, n) for n, g in here.items() if g.role == "leader"]
        if not leading:
            return False
        _, leader = max(leading)
        said = here[leader]
        least = 3 if group.kind == "metadata" else known.replicas
        if len(known.nodes) >= 3 and known.replicas in (1, 2):
            return False
        if len(said.voters) < len(group.replicas) or len(group.replicas) < min(least, len(known.nodes)):
            return False
        followers = {one.node_id: one for one in said.followers}
        if not {*said.voters} <= {leader, *followers} or leader not in said.voters:
            return False
        for one in followers.values():
            if not one.reachable or one.state != "replicate" or said.last - one.match > LAG_ENTRIES:
                return False
    return True


def apply(cluster: Cluster, change: str) -> None:
    """One thing that goes wrong, or that only looks so."""
    what, _, of = change.partition(" ")
    node, _, other = of.partition(" ")
    leading = cluster.statuses.get("n1")
    leader_answers = isinstance(leading, m.StatusReply) and bool(leading.groups)
    answers = isinstance(cluster.statuses.get(node), m.StatusReply)
    match what:
        case "fails":
            cluster.statuses[node] = ConnectionLostError("gone")
        case "unasked":
            cluster.statuses.pop(node, None)
            cluster.statuses.setdefault("n1", ConnectionLostError("gone"))
        case "leaving":
            cluster.record(node, leaving=True)
        case "down" if answers:
            cluster.link(node, other, up=False)
        case "refuses" if answers:
            cluster.link(node, other, up=False, refuses="no")
        case "refused" if answers:
            cluster.link(node, other, up=False, refused="no")
        case "failing" if answers:
            cluster.change(node, failing="disk")
        case "late" if answers:
            cluster.change(node, overdue_ms=LATE_MS + 1)
        case "unclaimed" if answers:
            cluster.change(node, backlog=m.Backlog(unclaimed=1, unclaimed_ms=LATE_MS + 1))
        case "leads" if answers:
            cluster.group(node, other, role="leader", leader=node)
        case "follows" if answers:
            cluster.group(node, other, role="follower", leaderless_ms=1)
        case "bare" if answers:
            cluster.change(node, groups=[])
        case "term" if answers:
            cluster.group(node, other, term=9)
        case "unreachable" if leader_answers:
            cluster.follower(node, other, reachable=False)
        case "probe" | "snapshot" | "lost" if leader_answers:
            cluster.follower(node, other, state=what)
        case "behind" if leader_answers:
            cluster.group("n1", other, last=2_000)
        case "shrunk" if leader_answers:
            cluster.group("n1", other, voters=["n1", node])


def _all(kinds: Iterable[str], *places: Iterable[str]) -> list[str]:
    return [" ".join(one) for one in itertools.product(kinds, *places)]


IN_A_GROUP = ("leads", "follows", "term", "unreachable", "probe", "snapshot", "lost", "behind", "shrunk")
CHANGES = [
    *_all(IN_A_GROUP, NAMES, GROUPS),
    *_all(("fails", "unasked", "leaving", "failing", "late", "unclaimed", "bare"), NAMES),
    *_all(("down", "refuses", "refused"), NAMES, NAMES),
]


def examine(changes: Iterable[str], *, formed: bool = True) -> None:
    cluster = Cluster()
    for change in changes:
        apply(cluster, change)
    if not formed:
        cluster.map = None
    found = problems(cluster.view)
    judged = verdict(cluster.view, found)
    if any(isinstance(status, m.StatusReply) for status in cluster.statuses.values()):
        assert (judged == "ok") == (not found) == is_healthy(cluster.map, cluster.statuses), found
        assert (judged == "critical") == any(one.severity == "critical" for one in found)
    else:
        assert judged == "unknown"
    # Whatever is wrong can be shown.
    row = overview.unknown("gone") if judged == "unknown" else overview.status(cluster.view, {}, judged, found)
    json.dumps(row)
    assert len(overview.summary(row, found)) <= 1 + len(found)
    assert all({"code", "severity", "text"} <= {*problem} for problem in row["problems"])


def test_the_verdict_is_ok_only_if_nothing_is_wrong() -> None:
    examine([])
    examine(["fails n1", "fails n2", "fails n3"])  # once wrong: nobody is left to say how the cluster is
    for change in CHANGES:
        examine([change])
    for pair in itertools.combinations(CHANGES, 2):
        examine(pair)


@given(st.lists(st.sampled_from(CHANGES), min_size=3, max_size=8), st.booleans())
def test_the_verdict_is_ok_only_if_nothing_of_many_things_is_wrong(changes: list[str], formed: bool) -> None:
    examine(changes, formed=formed)


# --- for people ---


names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=100)


@given(st.lists(names, min_size=1, max_size=9, unique=True), names)
def test_the_tables_fit_a_terminal(nodes: list[str], cluster_id: str) -> None:
    cluster = Cluster(tuple(nodes))
    written = io.StringIO()
    tables = [overview.node_table(cluster.view), overview.group_table(cluster.view), overview.link_table(cluster.view)]
    Printer(False, written).page({}, [], tables)
    assert max(map(len, written.getvalue().splitlines())) <= PAGE_CHARS == 80


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (250_000, "4 min 10 s"),
        (3_600_000, "1 h"),
        (12_000_000, "3 h 20 min"),
        (1_050_000_000, "12 d 3 h"),
    ],
)
def test_durations(ms: int, text: str) -> None:
    assert people.duration(ms) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1_023, "1023 B"),
        (1_024, "1.0 KiB"),
        (12_897_485, "12.3 MiB"),
        (1_048_575, "1.0 MiB"),
        (1 << 60, "1024.0 PiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert people.size(count) == text


def test_lists() -> None:
    assert [people.listed(["a", "b", "c", "d", "e"][:n]) for n in (1, 2, 4, 5)] == [
        "a",
        "a and b",
        "a, b, c and d",
        "a, b, c and 2 more",
    ]
