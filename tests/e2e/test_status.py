"""What ``metadctl status`` says of real nodes that are killed, wiped, cut off from a quorum or leaving."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_metadctl import Said, metadctl
from e2e_nodes import NAMES, Nodes
from e2e_server import METAD

from waiting import wait_until

GROUPS = {"metadata-0", "offset-0", "offset-1", "data-0", "data-1"}
PAGE_CHARS = 80


class Watched(Nodes):
    """Three nodes, and what metadctl says of them."""

    def ctl(self, *arguments: str) -> Said:
        return metadctl(self.endpoints["n1"], *arguments)


class Local:
    """``metad cluster`` with three nodes."""

    def __init__(self, home: Path) -> None:
        self.directory, self.ready, self.log = home / "d", home / "ready", home / "stderr"
        self.start()

    def start(self) -> None:
        command = [str(METAD), "cluster", "--nodes", "3", "--data-dir", str(self.directory)]
        with self.log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*command, "--ready-file", str(self.ready)], stdout=subprocess.DEVNULL, stderr=stderr
            )

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(120) == 0

    def events(self, name: str = "", node: str = "") -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if name in ("", line["event"]) and node in ("", line["node"])]

    def endpoints(self) -> list[str]:
        wait_until(self.ready.exists, "ready file")
        return list(json.loads(self.ready.read_text())["endpoints"])

    def ctl(self, *arguments: str) -> Said:
        wait_until(lambda: self.events("serving", "n1"), "n1 serves")
        return metadctl(self.events("serving", "n1")[0]["endpoint"], *arguments)

    def know_each_other(self) -> bool:
        """Whether every node has told the others of its data directory."""
        done = self.ctl("members", "--json")
        return done.returncode == 0 and all(row["clients"] for row in json.loads(done.stdout))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Watched]:
    with Watched(tmp_path) as nodes:
        yield nodes


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    local = Local(tmp_path)
    yield local
    if local.process.poll() is None:
        local.process.kill()
        local.process.wait()


def until(nodes: Watched | Local, verdict: str, *codes: str, everywhere: str = "", text: str = "") -> dict[str, Any]:
    """Wait until this is the verdict and these are the codes of the problems, and return everything. All groups have
    the problem ``everywhere``, and a problem's text begins with ``text``."""
    row: dict[str, Any] = {}

    def seen() -> bool:
        row.clear()
        row.update(json.loads(nodes.ctl("status", "--json").stdout))
        found = row["problems"]
        about = {one["group"] for one in found if one["code"] == everywhere}
        return (
            row["verdict"] == verdict
            and {one["code"] for one in found} == {*codes}
            and about == (GROUPS if everywhere else about)
            and (not text or any(one["text"].startswith(text) for one in found))
        )

    try:
        wait_until(seen, f"{verdict} with {codes}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {json.dumps(row['problems'], indent=1)}") from None
    return row


def check(nodes: Watched | Local, status: int, first: str) -> list[str]:
    """The lines of ``--check``, and that the page begins like them and fits a terminal."""
    done = nodes.ctl("status", "--check")
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[0]) == (status, first), done.stdout + done.stderr
    page = nodes.ctl("status")
    assert page.returncode == 0
    assert page.stdout.splitlines()[0] == first
    tables = page.stdout.split("\n\n")[2:]
    assert all(len(line) <= PAGE_CHARS for table in tables for line in table.splitlines())
    return lines[1:]


def test_one_of_three_is_a_warning_and_two_are_critical(nodes: Watched) -> None:
    row = until(nodes, "ok")
    assert (row["nodes_up"], row["groups_led"]) == (3, len(GROUPS))
    assert check(nodes, 0, "OK: 3 of 3 nodes up, 5 of 5 groups led") == []

    nodes.kill("n3")
    row = until(nodes, "warning", "node_unreachable", "group_under_replicated", everywhere="group_under_replicated")
    assert [one["node"] for one in row["problems"] if one["code"] == "node_unreachable"] == ["n3"]
    waited = nodes.ctl("status", "--wait", "OK", "--timeout", "1s")
    assert (waited.returncode, waited.stdout.splitlines()[0]) == (1, "WARNING: 2 of 3 nodes up, 5 of 5 groups led")
    assert nodes.ctl("status", "--wait", "WARN").returncode == 0
    first, second = check(nodes, 1, "WARNING: 2 of 3 nodes up, 5 of 5 groups led")
    assert first.startswith("warning node_unreachable: n3: not reached: connection refused by ")
    text = "warning group_under_replicated: data-0, data-1, metadata-0 and 2 more: 2 of 3 voters reachable; missing: n3"
    assert second == text

    nodes.kill("n2")
    codes = ("group_no_leader", "group_no_quorum", "node_unreachable")
    row = until(nodes, "critical", *codes, everywhere="group_no_leader")
    assert all(
        "1 of 3 replicas reachable" in one["text"] for one in row["problems"] if one["code"] == "group_no_leader"
    )
    assert len(check(nodes, 2, "CRITICAL: 1 of 3 nodes up, 0 of 5 groups led")) == 4
    write = nodes.ctl("put", "kv", "ns", "key", "value", "--timeout", "2")
    assert write.returncode == 1
    assert " has no leader; 1 of 3 replicas reachable" in write.stderr
    assert write.stderr.startswith("metadctl: ")

    nodes.start("n2")
    nodes.start("n3")
    waited = nodes.ctl("status", "--wait", "OK", "--check", "--timeout", "120s")
    assert (waited.returncode, waited.stdout) == (0, "OK: 3 of 3 nodes up, 5 of 5 groups led\n")

    for name in NAMES:
        nodes.kill(name)
    done = nodes.ctl("status", "--check")
    assert done.returncode == 3
    assert done.stdout.startswith("UNKNOWN: no node could be asked: connection refused by ")


def test_a_node_that_lost_its_disk_is_refused_and_its_supervisor_goes_on(local: Local) -> None:
    """It is not up, it ends after a while, and the logs say why and are not filled."""
    wait_until(local.know_each_other, "nodes that know each other")
    local.stop()
    (*_, last) = local.events("ended")
    assert (last["node"], last["reason"], last["status"]) == ("cluster", "SIGTERM", 0)
    shutil.rmtree(local.directory / "n3")
    local.start()
    codes = ("node_refused", "group_under_replicated")
    both = "n3: refused by n1 and n2: n3 "  # at first one of the two may not have been dialled yet
    row = until(local, "warning", *codes, everywhere="group_under_replicated", text=both)
    (refused,) = [one for one in row["problems"] if one["code"] == "node_refused"]
    assert refused["node"] == "n3"
    assert refused["text"].startswith(both)
    assert " another data directory, and " in refused["text"]
    assert (row["nodes_up"], row["nodes_total"]) == (2, 3)
    assert {node["node"]: node["state"] for node in row["nodes"]} == {"n1": "up", "n2": "up", "n3": "refused"}
    check(local, 1, "WARNING: 2 of 3 nodes up, 5 of 5 groups led")
    pairs = {("n1", "n3"), ("n2", "n3"), ("n3", "n1"), ("n3", "n2")}

    def told() -> bool:
        down = [link for link in json.loads(local.ctl("links", "--json").stdout) if not link["up"]]
        reasons = {(link["node"], link["to"]): link["reason"] for link in down}
        return reasons.keys() == pairs and all("another data directory" in reason for reason in reasons.values())

    wait_until(told, "the reason of each link")  # one may have tried before the other was there

    wait_until(lambda: local.events("member_given_up"), "it is given up", 120)
    assert [line["status"] for line in local.events("member_given_up")] == [3]
    assert local.events("member_ended") == []
    assert len(local.endpoints()) == 2
    lines = local.events(node="n3")
    assert all(line["ts"].endswith("Z") for line in lines)
    last = lines[-1]
    assert (last["event"], last["status"]) == ("ended_by_error", 3)
    assert last["reason"].startswith("n1, n2 refuse this node: n3 was here with another data directory, and ")
    words = [line for line in local.log.read_text().splitlines() if not line.startswith("{")]
    assert words == [f"metad: {last['reason']}"]
    assert {line["peer"] for line in local.events("refused_by_peer", "n3")} == {"n1", "n2"}
    assert sum(line["level"] in ("warning", "error") for line in lines) <= 12
    assert all(len(local.events("peer_refused", other)) <= 4 for other in ("n1", "n2"))
    assert any(line["peer"] == "n3" for line in local.events("peer_refused", "n1"))
    # Who comes later still learns why it is not there.
    assert until(local, "warning", *codes)["nodes"][2]["state"] == "refused"
    local.stop()


def test_a_supervisor_that_is_started_again_goes_on_without_a_node_that_has_left(local: Local) -> None:
    """Once wrong: that node did not start, and its end was the end of all."""
    wait_until(local.know_each_other, "nodes that know each other")
    left = local.ctl("leave", "n3", "--allow-fewer-replicas")
    assert left.returncode == 0, left.stderr
    wait_until(lambda: local.events("member_left"), "n3 has left", 60)
    local.stop()
    local.start()
    wait_until(lambda: local.events("member_given_up"), "it is given up", 60)
    assert len(local.endpoints()) == 2
    (given_up,) = local.events("member_given_up")
    assert (given_up["member"], given_up["status"]) == ("n3", 3)
    assert any("n3 has left cluster" in line["reason"] for line in local.events("ended_by_error"))
    assert local.events("member_ended") == []
    local.stop()


def test_a_node_that_leaves_says_so(nodes: Watched) -> None:
    until(nodes, "ok")
    assert nodes.ctl("leave", "n3").returncode == 1, "groups would have two replicas of three"
    assert nodes.ctl("leave", "n3", "--allow-fewer-replicas").returncode == 0
    rows: list[dict[str, Any]] = []

    def gone() -> bool:
        rows.append(json.loads(nodes.ctl("status", "--json").stdout))
        return rows[-1]["nodes_total"] == 2

    wait_until(gone, "the end of the leave")
    leaving = [one for row in rows for one in row["problems"] if one["code"] == "node_leaving"]
    assert all(one["text"].startswith("n3: leaving; ") for one in leaving)
    row = until(nodes, "warning", "group_under_replicated")
    assert (row["nodes_up"], row["nodes_total"]) == (2, 2)
