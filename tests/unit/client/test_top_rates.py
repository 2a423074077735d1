"""The numbers of ``metadctl top``: rates between two looks. It guards that a counter which began anew is no rate below
0 and none of millions, and that what is not known is no 0."""

from __future__ import annotations

from test_status import Cluster

from metad_client.cli.lamps.sampling import PROBLEMS_SHOWN, Shown, shown
from metad_wire import messages as m


def texts(found: Shown, node: str, *columns: str) -> list[str]:
    return [found.nodes[node][column].text for column in columns]


def worked(cluster: Cluster, node: str, *, ms: int, lanes: list[m.LaneStatus], **grown: int) -> None:
    status = cluster.status(node)
    fields = {name: getattr(status, name) + more for name, more in grown.items()}
    cluster.change(node, uptime_ms=status.uptime_ms + ms, lanes=lanes, **fields)


def test_rates_are_of_the_nodes_own_clock_and_add_up() -> None:
    cluster = Cluster()
    for node in ("n1", "n2"):
        cluster.change(node, lanes=[m.LaneStatus("records", 1_000, 5)])
    before = cluster.view
    assert texts(shown(None, before), "n1", "CPU", "writes/s", "entries/s") == ["-", "-", "-"]
    worked(cluster, "n1", ms=2_000, lanes=[m.LaneStatus("records", 4_000, 25)], cpu_us=1_500_000, entries=400, syncs=20)
    worked(cluster, "n2", ms=4_000, lanes=[m.LaneStatus("records", 1_400, 5)], cpu_us=40_000)
    cluster.group("n1", commit=300)
    now = shown(before, cluster.view)
    columns = ("CPU", "writes/s", "refused/s", "entries/s", "fsyncs/s")
    assert texts(now, "n1", *columns) == ["75%", "1,500", "10", "200", "10"]
    assert texts(now, "n2", "CPU", "writes/s", "memory") == ["1%", "100", "12.3 MiB"]
    assert now.groups["data-0"]["entries/s"].text == "100"
    assert now.head == [
        "OK: 3 of 3 nodes up, 2 of 2 groups led",
        "write requests 1,600/s, entries 200/s, fsyncs 10/s, clients 12, watches 0",
        "by lane: records 1,600 (refused 10)",
    ]


def test_a_process_that_was_started_again_has_no_rate_yet() -> None:
    cluster = Cluster()
    before = cluster.view
    cluster.change("n1", pid=2, uptime_ms=13_000_000, entries=1)
    cluster.change("n2", uptime_ms=100, entries=1)
    now = shown(before, cluster.view)
    for node in ("n1", "n2"):
        assert texts(now, node, "CPU", "entries/s", "clients") == ["-", "-", "4"]
    assert now.groups["data-0"]["entries/s"].text == "-"


def test_a_node_that_is_gone_is_sorted_below_those_with_a_0() -> None:
    cluster = Cluster()
    before = cluster.view
    cluster.fails("n3")
    now = shown(before, cluster.view)
    assert texts(now, "n3", "state", "CPU", "memory", "clients") == ["unreachable", "-", "-", "-"]
    order = sorted(now.nodes, key=lambda node: now.nodes[node]["clients"].order)
    assert order[0] == "n3"
    assert now.groups["data-0"]["replicas"].text == "2 of 3"


def test_a_new_leader_has_no_rate_of_the_one_before_and_problems_leave_room_for_the_tables() -> None:
    cluster = Cluster()
    before = cluster.view
    cluster.group("n1", role="follower", leader="n2", followers=[])
    followers = [m.FollowerStatus(node, "replicate", 100, True) for node in ("n1", "n3")]
    cluster.group("n2", role="leader", leader="n2", term=5, commit=9_000, followers=followers)
    for node in ("n1", "n2", "n3"):
        cluster.change(node, failing=f"the disk of {node} hangs")
    now = shown(before, cluster.view)
    assert now.groups["data-0"]["leader"].text == "n2"
    assert now.groups["data-0"]["entries/s"].text == "-"
    assert now.head[0].startswith("WARNING: ")
    assert now.head[1 + PROBLEMS_SHOWN] == "and 1 more: metadctl status"
