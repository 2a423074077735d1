"""A cluster of real nodes that grows and shrinks under writes, and whom it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from e2e_nodes import PAUSE_S, Nodes
from e2e_server import METAD, SMALL, Server, free_ports

from metad_client import Client, ConflictError, KvKey, KvPutItem, SessionTakeoverItem, connect
from metad_wire.cluster import ClusterMap, unpack_slots
from metad_wire.messages import StatusReply
from waiting import WAIT_S, until, wait_until


class Writer:
    """Counters whose versions tell whether anything was lost or done twice, and sessions that change hands."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.rounds = 0
        self._revisions = [0] * 40
        self._stopping = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while not self._stopping:
            puts = [KvPutItem(f"w{i}", "counter", b"%d" % self.rounds, self.rounds) for i in range(40)]
            put = await self._client.kv.put_many(puts)
            assert not put.errors
            found = await self._client.kv.get_many([KvKey(f"w{i}", "counter") for i in range(40)])
            found.raise_for_error()
            for i, record in enumerate(found):
                assert record is not None
                assert record.mod_revision > self._revisions[i], "it went back when the slot moved"
                self._revisions[i] = record.mod_revision
            takeover = await self._client.sessions.takeover_many(
                f"b{self.rounds % 3}", 1, [SessionTakeoverItem("t", f"c{i}") for i in range(40)]
            )
            assert not takeover.errors
            self.rounds += 1
            await asyncio.sleep(PAUSE_S)

    async def stop(self) -> None:
        self._stopping = True
        await self._task

    async def check(self) -> None:
        found = await self._client.kv.get_many([KvKey(f"w{i}", "counter") for i in range(40)])
        found.raise_for_error()
        assert [kv.version if kv is not None else 0 for kv in found] == [self.rounds] * 40
        assert [kv.mod_revision if kv is not None else 0 for kv in found] == self._revisions
        listed = [(s.client_id, s.broker) async for s in self._client.sessions.list()]
        assert sorted(listed) == sorted((f"c{i}", f"b{(self.rounds - 1) % 3}") for i in range(40))


async def cluster_map(client: Client) -> ClusterMap:
    known = (await client.cluster.map()).map
    assert known is not None
    return known


async def settled(nodes: Nodes) -> ClusterMap | None:
    """The map, once nothing moves, every node has said where it serves, and every group is where it should be, as its
    leader says. (A node says so a moment after it is ready: once the map had a version more than it was compared with.)
    """
    async with connect(nodes.url) as client:  # one that works has no reason to ask for the newest map
        known = await cluster_map(client)
        if not all(node.endpoint for node in known.nodes):
            return None
        statuses = [s for s in (await client.cluster.statuses()).values() if isinstance(s, StatusReply)]
    leading = {g.name: g for s in statuses for g in s.groups if g.role == "leader"}
    for group in known.groups:
        status = leading.get(group.group_id.name)
        if status is None or (status.voters, status.learners) != (group.replicas, group.learners):
            return None
    return None if known.moves else known


async def led_as_wished(nodes: Nodes) -> bool:
    """Whether every group is led by the node that the map prefers."""
    async with connect(nodes.url) as client:
        known = await cluster_map(client)
        statuses = [s for s in (await client.cluster.statuses()).values() if isinstance(s, StatusReply)]
    leaders = {g.name: s.node_id for s in statuses for g in s.groups if g.role == "leader"}
    return all(leaders.get(g.group_id.name) == g.preferred for g in known.groups if g.preferred)


async def hosted(client: Client, node: str) -> set[str]:
    """Groups with a replica on a node, as it says."""
    status = (await client.cluster.statuses()).get(node)
    return {group.name for group in status.groups} if isinstance(status, StatusReply) else set()


async def rebalance(client: Client) -> None:
    async def asked() -> bool:
        try:
            await client.cluster.rebalance()
        except ConflictError:  # another change was quicker
            return False
        return True

    await until(asked, "rebalance")


async def forgotten(client: Client, node: str) -> bool:
    return node not in [record.node_id for record in (await cluster_map(client)).nodes]


async def test_a_cluster_grows_and_shrinks_under_writes(nodes: Nodes) -> None:
    async with connect(nodes.url) as client:
        writer = Writer(client)
        await client.cluster.add_group("data")
        await client.cluster.add_group("offset")
        await rebalance(client)
        known = await until(lambda: settled(nodes), "the slots' moves")
        for kind, groups in (("data", 3), ("offset", 3)):
            counts = Counter(unpack_slots(known.slots[kind]))
            assert len(counts) == groups
            assert max(counts.values()) - min(counts.values()) <= 1

        # A node joins, through one that does not decide.
        leaders = (await client.cluster.map()).leaders
        through = next(name for name in ("n1", "n2", "n3") if name != leaders["metadata-0"])
        nodes.start("n4", join=through)
        await asyncio.to_thread(nodes.servers["n4"].ready)
        known = await until(lambda: settled(nodes), "the join")
        metadata = known.groups[0]
        assert "n4" in (*metadata.replicas, *metadata.learners)

        # One that leads something leaves: first its replicas, then itself.
        leaver = leaders["metadata-0"]
        await client.cluster.leave(leaver)
        known = await until(lambda: settled(nodes), "the replicas of who leaves")
        assert all(leaver not in group.replicas for group in known.groups)
        assert {node for group in known.groups for node in group.replicas} == set(nodes.peers) - {leaver}
        await until(lambda: forgotten(client, leaver), "who leaves is forgotten")

        nodes.forgotten = leaver
        assert await asyncio.to_thread(nodes.servers[leaver].exited) == 0
        known = await until(lambda: settled(nodes), "the map without who left")
        assert leaver not in [node.node_id for node in known.nodes]
        await writer.stop()
        await writer.check()
        # Nothing of it is needed any more, and it has dropped what it had.
        groups = {g.group_id.name for g in known.groups if g.kind != "metadata"}

        assert groups == {event["group"] for event in nodes.servers[leaver].events("replica_removed")}
        await writer.check()
        assert writer.rounds > 20


async def test_a_node_that_was_let_go_may_come_back(nodes: Nodes) -> None:
    async with connect(nodes.url) as client:
        writer = Writer(client)
        await asyncio.to_thread(lambda: nodes.start("n4", join="n2").ready())
        await until(lambda: settled(nodes), "the join")
        await client.cluster.leave("n3")
        await until(lambda: settled(nodes), "the replicas of who leaves")

        assert await asyncio.to_thread(nodes.servers["n3"].exited) == 0, "it ends when nothing needs it any more"
        assert nodes.servers["n3"].events("node_left")
        (ended,) = nodes.servers["n3"].events("ended")
        assert ended["reason"] == "n3 has left the cluster; to join again, it needs an empty data directory"
        nodes.forgotten = "n3"
        # Started again as before it says what it needs, and ends.
        for join in ("", "n1"):
            words = await asyncio.to_thread(nodes.start("n3", join=join).refused, 3)
            assert "n3 has left cluster" in words
            assert words.endswith("To join again, give it an empty data directory and [cluster] join")
        # It was one of the founders, whom the groups began with. With an empty disk it must not believe that.
        nodes.lose_disk("n3")
        await asyncio.to_thread(lambda: nodes.start("n3", join="n1").ready())
        nodes.forgotten = ""
        await client.cluster.leave("n4")
        known = await until(lambda: settled(nodes), "the replicas come back")
        assert all(group.replicas == ["n1", "n2", "n3"] for group in known.groups)
        await writer.stop()
        await writer.check()


async def test_nodes_that_end_one_after_the_other_hand_over_what_they_lead(nodes: Nodes) -> None:
    handed: list[dict[str, Any]] = []
    async with connect(nodes.url) as client:
        writer = Writer(client)
        for name in ("n1", "n2", "n3"):
            await until(lambda: settled(nodes), "all is well")
            await until(lambda: led_as_wished(nodes), "no group is on its way to the node it prefers")
            rounds = writer.rounds
            server = nodes.servers[name]
            assert await asyncio.to_thread(server.terminate) == 0
            assert server.events("stopped")[0]["drained"] is True
            handed += server.events("handed_over")  # it may have led nothing
            server.__exit__(None, None, None)

            async def go_on(rounds: int = rounds) -> bool:
                return writer.rounds > rounds + 5

            await until(go_on, "the others take writes")
            await asyncio.to_thread(lambda name=name: nodes.start(name).ready())  # type: ignore[misc]
        await writer.stop()
        await writer.check()
    assert handed
    assert all(event["groups"] == event["of"] for event in handed)


def test_who_is_of_another_cluster_or_has_lost_its_disk_is_refused(nodes: Nodes) -> None:
    stranger = nodes.start("n4", join="n1", top='cluster_id = "theirs"')

    def why(server: Server, event: str) -> str:
        wait_until(lambda: server.events(event), event)
        return str(server.events(event)[0]["error"])

    assert re.search("this is cluster '[0-9a-f]{32}', not 'theirs'", why(stranger, "cannot_join_yet"))
    assert not stranger.ready_file.exists()
    stranger.kill()
    nodes.servers["n3"].kill()
    nodes.servers["n3"].__exit__(None, None, None)
    nodes.lose_disk("n3")
    wiped = nodes.start("n3")
    lost = "n3 was here with another data directory, and has been out of reach since. If its disk is lost, replace"
    wait_until(lambda: any(lost in line["error"] for line in wiped.events("refused_by_peer")), "what to do")
    assert not wiped.ready_file.exists()

    async def the_others_serve() -> None:
        async with connect("metad://" + ",".join(nodes.endpoints[name] for name in ("n1", "n2"))) as client:
            assert not (await client.kv.put_many([KvPutItem(f"w{i}", "k", b"v") for i in range(20)])).errors

    asyncio.run(the_others_serve())


async def test_a_second_node_of_one_name_is_sent_away_and_the_first_is_not_harmed(nodes: Nodes) -> None:
    """Once wrong: whoever followed the message of the second one let the first one leave."""
    good = nodes.servers["n3"]
    copied = nodes.home / "copied"

    def second(home: Path, how: str) -> Server:
        peer, client = (f"127.0.0.1:{port}" for port in free_ports(2))
        config = f'node_id = "n3"\n[cluster]\n{how}\nlisten = "{peer}"\n'
        return Server(home, config=config, listen=client)

    async with connect(nodes.url) as client:
        writer = Writer(client)
        led = await until(lambda: settled(nodes), "all is well")
        shutil.copytree(nodes.home / "n3", copied, ignore=shutil.ignore_patterns("LOCK"))
        join = f'join = ["{nodes.peers["n1"]}", "{nodes.peers["n2"]}", "{nodes.peers["n3"]}"]'
        for home, words in (
            (nodes.home / "empty", "with its own data directory; give this node another node_id"),
            (copied, "and this one runs on a copy of its data directory"),
        ):
            with second(home, join) as other:
                said = f"another node named n3 is alive at {nodes.peers['n3']}"

                def refusals(other: Server = other) -> list[str]:
                    lines = other.events("refused_by_peer") + other.events("cannot_join_yet")
                    return [line["error"] for line in lines]

                await asyncio.to_thread(wait_until, lambda: len(refusals()) >= 3, "the refusals")
                assert all(text.startswith(said) and words in text for text in refusals())
                assert not other.ready_file.exists()
        rounds = writer.rounds

        async def go_on() -> bool:
            return writer.rounds > rounds + 5

        await until(go_on, "writes go on")
        await writer.stop()
        await writer.check()
        after = await until(lambda: settled(nodes), "all is well")
        assert after == led
    assert good.process.poll() is None
    assert not good.events("peer_lost")
    assert not good.events("refused_by_peer")


async def test_two_of_three_do_not_leave_at_once(nodes: Nodes) -> None:
    async with connect(nodes.url) as client:
        with pytest.raises(ConflictError, match=r"n3 would leave .* with 2 of 3 replicas"):
            await client.cluster.leave("n3")
        await client.cluster.leave("n3", fewer=True)
        with pytest.raises(ConflictError, match="n2 cannot leave while n3 is still leaving"):
            await client.cluster.leave("n2", fewer=True)
        assert await asyncio.to_thread(nodes.servers["n3"].exited) == 0
        nodes.forgotten = "n3"
        await until(lambda: settled(nodes), "two nodes are left")
        await client.kv.put("w", "k", b"v")


def test_a_copy_of_a_data_directory_that_was_put_back_is_refused_and_nothing_is_lost(nodes: Nodes) -> None:
    """Writes that n1 and n3 have: with n2, who lacks them, an older n3 would be a quorum that has forgotten them."""

    def write(version: int, *names: str) -> None:
        async def put() -> None:
            async with connect("metad://" + ",".join(nodes.endpoints[name] for name in names)) as client:
                result = await client.kv.put_many([KvPutItem(f"w{i}", "k", b"%d" % version) for i in range(50)])
                assert not result.errors
                assert set(result.versions) == {version}

        asyncio.run(put())

    write(1, "n1", "n2", "n3")
    assert nodes.servers["n3"].terminate() == 0
    nodes.servers["n3"].__exit__(None, None, None)
    shutil.copytree(nodes.home / "n3", nodes.home / "backup")
    nodes.start("n3").ready()
    nodes.servers["n2"].__exit__(None, None, None)
    write(2, "n1", "n3")
    for name in ("n1", "n3"):
        nodes.servers[name].__exit__(None, None, None)
    nodes.lose_disk("n3")
    shutil.move(nodes.home / "backup", nodes.home / "n3")
    older, behind = nodes.start("n3"), nodes.start("n2")
    why = "'n3' runs on an older copy of its data directory (life 2, and life 2 was here)"
    wait_until(lambda: any(why in line["error"] for line in older.events("refused_by_peer")), "the refusal")
    refused = next(line["error"] for line in older.events("refused_by_peer") if why in line["error"])
    assert "Stop it, replace it (metadctl replace), and start it with an empty data directory" in refused
    wait_until(lambda: any(why in line["detail"] for line in behind.events("peer_refused")), "it is logged")
    assert not older.ready_file.exists()
    assert not behind.ready_file.exists(), "n2 alone is no quorum"
    nodes.start("n1").ready()
    write(3, "n1", "n2")


REGIONS = {"a1": "eu", "a2": "eu", "b1": "us", "b2": "us", "c1": "ap", "c2": "ap"}


async def test_every_namespace_is_writable_without_any_one_region(tmp_path: Path) -> None:
    """Six nodes in three regions, as their seeds say: 20 of 40 namespaces were not, while placement knew no regions."""
    puts = [KvPutItem(f"space-{number}", "k", b"v") for number in range(40)]
    with await asyncio.to_thread(Nodes, tmp_path, REGIONS, config="[groups]\ndata = 4\noffset = 2\n") as nodes:
        async with connect(nodes.url) as client:
            known = await cluster_map(client)
            assert {node.node_id: node.region for node in known.nodes} == REGIONS
            for group in known.groups:
                assert {REGIONS[node] for node in group.replicas} == set(REGIONS.values())
            for region in ("eu", "us", "ap"):
                dead = [name for name in REGIONS if REGIONS[name] == region]
                for name in dead:
                    nodes.kill(name)
                written = await client.kv.put_many(puts, deadline_s=WAIT_S)
                assert not written.errors, f"without {region}"
                await asyncio.to_thread(nodes.start_all, dead)


def test_workers_serve_and_one_that_is_killed_is_started_again(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready"
    (tmp_path / "metad.toml").write_text(SMALL)
    first = free_ports(1)[0]
    command = [str(METAD), "serve", "--workers", "2", "--data-dir", str(tmp_path / "data")]
    command += ["--listen", f"127.0.0.1:{first}", "--config", str(tmp_path / "metad.toml"), "--http", "127.0.0.1:0"]
    with (tmp_path / "stderr").open("wb") as stderr:
        process = subprocess.Popen([*command, "--ready-file", str(ready_file)], stderr=stderr)
    try:
        wait_until(lambda: ready_file.exists() or process.poll() is not None, "ready file")
        assert process.poll() is None, (tmp_path / "stderr").read_text()
        ready = json.loads(ready_file.read_text())
        assert len(ready["endpoints"]) == len(ready["pids"]) == 2
        asyncio.run(_workers_work(ready, ready_file))
        _one_port_shows_them(ready["http_endpoints"], json.loads(ready_file.read_text())["pids"])
        wait_until(lambda: '"stood_still"' in (tmp_path / "stderr").read_text(), "the worker says that it stood still")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        assert not ready_file.exists()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(WAIT_S)


def _one_port_shows_them(endpoints: list[str], pids: dict[str, int]) -> None:
    """Also while one of them stands still: it costs a bounded wait, and is named."""
    (endpoint,) = endpoints

    def ask(path: str) -> tuple[int, list[str], float]:
        begin_s = time.monotonic()
        try:
            with urllib.request.urlopen(f"http://{endpoint}{path}", timeout=WAIT_S) as answer:
                return answer.status, answer.read().decode().splitlines(), time.monotonic() - begin_s
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode().splitlines(), time.monotonic() - begin_s

    wait_until(lambda: ask("/readyz")[:2] == (200, ["ready"]), "both are ready")
    _, page, _ = ask("/metrics")
    assert {'metad_node_up{node="node-1/0"} 1.0', 'metad_node_up{node="node-1/1"} 1.0'} <= {*page}
    assert any(line.startswith('metad_group_leads{node="node-1/1",group="') for line in page)
    os.kill(pids["node-1/1"], signal.SIGSTOP)
    try:
        assert ask("/livez")[:2] == (200, ["alive"])
        code, page, took_s = ask("/metrics")
        assert (code, took_s < 10) == (200, True)
        assert {'metad_node_up{node="node-1/0"} 1.0', 'metad_node_up{node="node-1/1"} 0.0'} <= {*page}
        code, page, took_s = ask("/readyz")
        assert (code, took_s < 10) == (503, True)
        assert "[-] node-1/1: the process did not answer within 3.5 s" in page
    finally:
        os.kill(pids["node-1/1"], signal.SIGCONT)
    wait_until(lambda: ask("/readyz")[:2] == (200, ["ready"]), "both are ready again")


async def _workers_work(ready: dict[str, Any], ready_file: Path) -> None:
    puts = [KvPutItem(f"w{i}", "k", b"v") for i in range(40)]
    async with connect("metad://" + ",".join(ready["endpoints"])) as client:
        assert not (await client.kv.put_many(puts)).errors
        assert {name for name, pid in ready["pids"].items() if pid} == {"node-1/0", "node-1/1"}
        os.kill(ready["pids"]["node-1/1"], signal.SIGKILL)
        assert not (await client.kv.put_many(puts)).errors, "the client waits until it is back"

        async def restarted() -> bool:
            return bool(json.loads(await asyncio.to_thread(ready_file.read_text))["pids"] != ready["pids"])

        await until(restarted, "the worker is started again")
