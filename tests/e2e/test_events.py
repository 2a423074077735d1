"""``metadctl events`` of three real nodes: what happens when the leader is killed and comes back, from all of them
together and in order of time; and what is said of the node that is gone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from e2e_metadctl import metadctl
from e2e_nodes import Nodes

from metad_client import blocking
from waiting import WAIT_S, wait_until

METADCTL = Path(sys.executable).with_name("metadctl")


def events(nodes: Nodes, *arguments: str) -> dict[str, Any]:
    done = metadctl(nodes.where, "events", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_killed_leader_is_told_by_those_that_are_left_and_by_itself_once_it_is_back(tmp_path: Path) -> None:
    with Nodes(tmp_path) as nodes:
        with blocking.connect(nodes.url) as m:
            leader = m.cluster.map().leaders["metadata-0"]
            m.brokers.register("b1")
        others = {*nodes.servers} - {leader}
        begun = events(nodes)["events"]
        assert {one["node"] for one in begun if one["event"] == "serving"} == {*nodes.servers}
        assert {one["event"] for one in begun} >= {"listening", "peer_connected", "leader_gained", "broker_registered"}
        assert [one["when_ms"] for one in begun] == sorted(one["when_ms"] for one in begun)

        follow = [str(METADCTL), "--endpoint", nodes.where, "events", "--follow", "--json", "--limit", "1"]
        with subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
            assert following.stdout is not None
            assert following.stderr is not None
            assert json.loads(following.stdout.readline())["event"]  # the last before it
            nodes.kill(leader)
            told = set[tuple[str, str]]()
            while not {(one, "peer_lost") for one in others} <= told:
                line = json.loads(following.stdout.readline())
                told.add((line["node"], line["event"]))
            assert following.stderr.readline().startswith(f"metadctl: {leader} does not answer: ")
            following.terminate()
            following.communicate(timeout=WAIT_S)

        def led_again() -> bool:
            found = events(nodes)["events"]
            gained = [(one["node"], one["fields"]["term"]) for one in found if _is_gained(one)]
            return gained[-1][0] in others and gained[-1][1] > 1

        wait_until(led_again, "another node leads metadata-0")
        page = metadctl(nodes.where, "events", "--since", "1h")
        assert page.returncode == 0
        assert f"metadctl: {leader} does not answer, so what it has logged is missing" in page.stderr
        assert all(len(line) <= 80 for line in page.stdout.splitlines())
        assert not any(f"Z  {leader}  " in line for line in page.stdout.splitlines())
        lost = metadctl(nodes.where, "events", "--node", leader)
        assert (lost.returncode, lost.stdout) == (1, "")

        nodes.restart(leader)
        since = events(nodes, "--node", leader)
        assert [one["event"] for one in since["events"]].count("recovered") == 1
        assert {one["node"] for one in since["events"]} == {leader}
        known = metadctl(nodes.where, "events", "--since", "1h").stderr
        assert known.startswith("metadctl: nothing is known of before (")
        assert f"{leader}: " in known


def _is_gained(one: dict[str, Any]) -> bool:
    return bool(one["event"] == "leader_gained" and one["fields"]["group"] == "metadata-0")
