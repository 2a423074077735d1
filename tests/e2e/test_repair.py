"""Real nodes that mend what is broken: a state that a bad memory has changed is found and replaced; a cluster that lost
two of three disks goes on from the third, and only from that."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from e2e_metadctl import metadctl, printed
from e2e_nodes import Nodes
from e2e_server import METAD, Server

from metad_client import KvDeleteItem, KvKey, KvPutItem, blocking
from metad_perf.errors import ServerError
from metad_perf.lamps.alerts import flip
from waiting import wait_until

TEXT = b"a value that a bad memory changes"


def has(directory: Path, text: bytes) -> bool:
    """Whether the state of a node that does not run has this."""
    try:
        flip(directory, text)
    except ServerError:  # no row has it
        return False
    return True


def codes(nodes: Nodes) -> set[str]:
    return {problem["code"] for problem in printed(nodes.where, "status")["problems"]}


def test_a_changed_state_is_found_and_replaced(tmp_path: Path) -> None:
    with Nodes(tmp_path) as nodes:
        with blocking.connect(nodes.url) as client:
            for number in range(200):
                client.kv.put("ns", f"k{number}", TEXT if number == 77 else b"%d" % number)
        assert nodes.servers["n3"].terminate() == 0
        flip(tmp_path / "n3", TEXT)
        nodes.restart("n3")
        leaders = [nodes.servers[name] for name in ("n1", "n2", "n3")]
        wait_until(lambda: any(server.events("replicas_alike") for server in leaders), "it is replaced")
        (found,) = [line for server in leaders for line in server.events("replica_unlike")]
        assert found["peer"] == "n3"
        assert nodes.servers["n3"].events("replica_rebuilds")
        wait_until(lambda: not codes(nodes), "all is well")
        assert nodes.servers["n3"].terminate() == 0
        assert has(tmp_path / "n3", TEXT)


def test_what_is_deleted_is_dropped_from_the_files(tmp_path: Path) -> None:
    with Server(tmp_path / "one") as server:
        server.ready()
        with blocking.connect(server.url) as client:
            for begin in range(0, 4_000, 200):
                names = [f"k{number}" for number in range(begin, begin + 200)]
                client.kv.put_many([KvPutItem("ns", name, name.encode() * 100) for name in names]).raise_for_error()
                client.kv.delete_many([KvDeleteItem("ns", name) for name in names[10:]]).raise_for_error()
        (found,) = printed(server.endpoint, "compact", "all")
        assert (found["node"], found["error"]) == ("node-1", "")
        assert found["done"] == found["parts"] > 0
        assert found["freed_bytes"] > 100_000
        stranger = metadctl(server.endpoint, "compact", "n9")
        assert stranger.stderr == "metadctl: n9 is no member of the cluster\n"


PUTS = [KvPutItem(f"w{number}", "k", b"%d" % number) for number in range(60)]


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(METAD.with_name(program)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def recover(directory: Path, *arguments: str) -> Any:
    ran = run("metad", "recover", "--data-dir", str(directory), "--json", *arguments)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_two_of_three_disks_are_lost(tmp_path: Path) -> None:
    with Nodes(tmp_path) as nodes:
        with blocking.connect(nodes.url) as client:
            client.kv.put_many(PUTS).raise_for_error()
            split = metadctl(nodes.where, "groups", "split", "data-0", "--wait")
            assert split.returncode == 0, split.stderr
            before = client.cluster.map().map
            assert before is not None
        refused = run("metad", "recover", "--data-dir", str(tmp_path / "n1"), "--lost", "n2,n3", "--confirm")
        assert "is in use by another metad process" in refused.stderr
        for name in ("n1", "n2", "n3"):
            nodes.kill(name)
        shutil.move(tmp_path / "n2", tmp_path / "n2-of-before")
        nodes.lose_disk("n3")

        plan = recover(tmp_path / "n1", "--lost", "n2,n3")
        assert not plan["done"]
        assert {one["node"] for one in plan["taken"]} == {"n1"}
        assert {one["group"] for one in plan["taken"]} >= {"metadata-0", "data-0", "data-1", "offset-0"}
        assert recover(tmp_path / "n1", "--lost", "n2,n3", "--confirm") == plan | {"done": True}

        # It serves with everything that it had, and takes more.
        nodes.restart("n1")
        assert nodes.servers["n1"].events("groups_recovered")[0]["lost"] == ["n2", "n3"]
        where = nodes.endpoints["n1"]
        with blocking.connect(f"metad://{where}") as client:
            found = client.kv.get_many([KvKey(put.namespace, put.key) for put in PUTS])
            found.raise_for_error()
            assert [kv and kv.value for kv in found] == [put.value for put in PUTS]
            client.kv.put("after", "k", b"1")
            after = client.cluster.map().map
            assert after is not None
            assert (after.slots, after.moves) == (before.slots, [])

        # What was lost and comes back takes part in nothing.
        shutil.move(tmp_path / "n2-of-before", tmp_path / "n2")
        words = nodes.start("n2").refused(3)
        assert "was recovered as" in words
        assert "without this data directory" in words
        assert "was recovered as" in nodes.start("n2").refused(3), "it remembers"

        # It grows back to three, with empty directories.
        for name in ("n2", "n3"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            nodes.start(name, join="n1").ready()
        wait_until(lambda: not codes(nodes), "all is well")
        nodes.kill("n1")
        with blocking.connect(nodes.url) as client:
            found = client.kv.get_many([KvKey(put.namespace, put.key) for put in PUTS])
            found.raise_for_error()
            assert [kv and kv.value for kv in found] == [put.value for put in PUTS]
            record = client.kv.get("after", "k")
            assert record is not None
        listed = metadctl(nodes.where, "audit")
        assert "metad recover" in listed.stdout


def test_two_of_five_are_left(tmp_path: Path) -> None:
    """Each has to know of the other: the newest log of both goes on, and both come to the same cluster."""
    names = ("n1", "n2", "n3", "n4", "n5")
    with Nodes(tmp_path, names, config="replicas = 5\n[groups]\ndata = 1\noffset = 1\n") as nodes:
        with blocking.connect(nodes.url) as client:
            client.kv.put_many(PUTS[:20]).raise_for_error()
        nodes.kill("n2")
        with blocking.connect(nodes.url) as client:
            client.kv.put_many(PUTS[20:]).raise_for_error()
        for name in names:
            nodes.kill(name)
        for name in ("n3", "n4", "n5"):
            nodes.lose_disk(name)
        for name in ("n1", "n2"):
            (tmp_path / f"{name}.json").write_text(json.dumps(recover(tmp_path / name)))

        lost = ("--lost", "n3,n4,n5", "--confirm")
        alone = run("metad", "recover", "--data-dir", str(tmp_path / "n1"), *lost)
        assert alone.returncode == 1
        assert "has replicas on n2 too: name them in --lost, or give their reports" in alone.stderr
        one = recover(tmp_path / "n1", *lost, "--others", str(tmp_path / "n2.json"))
        other = recover(tmp_path / "n2", *lost, "--others", str(tmp_path / "n1.json"))
        assert one == other
        assert {taken["node"] for taken in one["taken"] if taken["group"] == "data-0"} == {"n1"}

        for name in ("n2", "n1"):
            nodes.start(name)
        nodes.servers["n1"].ready()
        where = f"metad://{nodes.endpoints['n1']},{nodes.endpoints['n2']}"
        with blocking.connect(where) as client:
            found = client.kv.get_many([KvKey(put.namespace, put.key) for put in PUTS])
            found.raise_for_error()
            assert [kv and kv.value for kv in found] == [put.value for put in PUTS]
            client.kv.put("after", "k", b"1")
        nodes.servers["n2"].ready()
        assert nodes.servers["n2"].process.poll() is None
