"""Settings of real nodes are set while they run: they count at once, survive a kill, and everybody can see who differs
and who has set what."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from e2e_metadctl import metadctl as ctl
from e2e_metadctl import printed as told
from e2e_nodes import Nodes
from e2e_server import METAD, Server

from waiting import wait_until


def test_what_is_set_counts_at_once_and_after_a_crash(tmp_path: Path) -> None:
    with Server(tmp_path / "one") as server:
        server.ready()
        assert not server.events("client_admitted")
        (done,) = told(server.endpoint, "settings", "set", "all", "log_level", "debug")["settings"]
        assert (done["node"], done["value"], done["source"]) == ("node-1", "debug", "run time")
        (done,) = told(server.endpoint, "settings", "set", "node-1", "limits.slow_ms", "1500ms")["settings"]
        assert (done["value"], done["default"], done["live"], done["most"]) == (1_500, 1_000, True, 86_400_000)
        wait_until(lambda: bool(server.events("client_admitted")), "the log has what `debug` has")
        server.kill()
    with Server(tmp_path / "one") as server:
        server.ready()
        (found,) = told(server.endpoint, "settings", "get", "node-1", "limits.slow_ms")["settings"]
        assert (found["value"], found["source"]) == (1_500, "run time")
        changed = told(server.endpoint, "settings", "diff", status=1)["settings"]
        assert {one["setting"] for one in changed} == {"log_level", "limits.slow_ms"}
        for setting in ("log_level", "limits.slow_ms"):
            told(server.endpoint, "settings", "unset", "all", setting)
        assert told(server.endpoint, "settings", "diff")["settings"] == []
        listed = told(server.endpoint, "settings", "get", "all")["settings"]
        assert {one["setting"] for one in listed} > {"data_dir", "limits.slow_ms", "raft.heartbeat_ms"}


def test_what_is_refused_says_why_in_a_line(tmp_path: Path) -> None:
    with Server(tmp_path / "one") as server:
        server.ready()
        for words, text in (
            (["node-1", "raft.heartbeat_ms", "50"], "conflict: raft.heartbeat_ms needs a restart: set it in "),
            (["node-1", "limits.slow", "50"], "there is no setting limits.slow; did you mean limits.slow_ms?\n"),
            (["node-1", "limits.slow_ms", "2d"], "limits.slow_ms: 172800000 is too large: at most 86,400,000\n"),
            (["n9", "limits.slow_ms", "1s"], "n9 is no member of the cluster\n"),
        ):
            ran = ctl(server.endpoint, "settings", "set", *words)
            assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
            assert ran.stderr.startswith(f"metadctl: {text}")
        ran = ctl(server.endpoint, "config", "get", "node-1", "limits.slow_ms")
        assert (ran.returncode, "`metadctl settings` has those of nodes" in ran.stderr) == (2, True)


def test_everybody_sees_who_differs_and_who_has_set_it(tmp_path: Path) -> None:
    with Nodes(tmp_path) as nodes:
        told(nodes.where, "settings", "set", "n2", "limits.queue_ms", "5s")

        def problems() -> list[str]:
            found: list[str] = [one["text"] for one in told(nodes.where, "status")["problems"]]
            return found

        text = "n2: limits.queue_ms is 5000, and its default at n1 and n3"
        wait_until(lambda: problems() == [text], "the status says that n2 differs")
        (one,) = told(nodes.where, "settings", "diff", "n2", status=1)["settings"]
        assert (one["values"], one["between_nodes"], one["set_at_run_time"]) == (
            {"n1": 10_000, "n2": 5_000, "n3": 10_000},
            True,
            ["n2"],
        )
        assert told(nodes.where, "settings", "diff", "n1")["settings"] == []
        assert len(told(nodes.where, "settings", "set", "all", "limits.queue_ms", "5s")["settings"]) == 3
        wait_until(lambda: not problems(), "all nodes are alike")

        def trail() -> list[str]:
            lines = told(nodes.where, "audit", "--method", "system.")["audit"]
            return sorted(f"{line['method']} {line['names']} {line['node']}" for line in lines)

        wanted = sorted(f"system.set limits.queue_ms/5s {node}" for node in ("n1", "n2", "n2", "n3"))
        wait_until(lambda: trail() == wanted, "the audit trail has each of them, and no looks")
        nodes.servers["n3"].kill()
        ran = ctl(nodes.where, "settings", "set", "all", "limits.queue_ms", "6s", "--timeout", "5")
        assert (ran.returncode, "metadctl: deadline" in ran.stderr or "n3" in ran.stderr) == (1, True)
        assert ran.stdout.count("6000 (6 s)") == 2


def test_a_supervised_node_names_the_file_that_a_person_edits(tmp_path: Path) -> None:
    """Each process of `metad cluster` reads a file of its own, which is made anew at each start."""
    file, ready = tmp_path / "mine.toml", tmp_path / "ready"
    file.write_text("[limits]\nslow_ms = 700\n")
    flags = ["--nodes", "2", "--config", str(file), "--data-dir", str(tmp_path / "d"), "--ready-file", str(ready)]
    process = subprocess.Popen([METAD, "cluster", *flags], stderr=subprocess.DEVNULL)
    try:
        wait_until(ready.exists, "the nodes serve")
        where = ",".join(json.loads(ready.read_text())["endpoints"])
        values = [one["value"] for one in told(where, "settings", "get", "all", "limits.slow_ms")["settings"]]
        assert values == [700, 700]
        refused = ctl(where, "settings", "set", "n1", "raft.heartbeat_ms", "50").stderr
        assert f"needs a restart: set it in {file}, and start the node again" in refused
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
