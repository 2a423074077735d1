"""Real nodes whose groups are changed by hand while clients write and watch: nothing is lost or told twice, a removed
group is gone from all nodes and from a backup, and its name is not used again. And a node that is drained: it leads
nothing, also after a restart, and has its share back when it is undrained. And a group that prefers a region: it is led
there whenever it can be, through the deaths of nodes."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from e2e_metadctl import metadctl
from e2e_nodes import PAUSE_S, Nodes
from e2e_server import METAD, Server

from metad_client import Client, NotFoundError, Watch, Watched, connect
from waiting import WAIT_S, until

SPACES = [f"space-{number}" for number in range(30)]
FEATURES = "features_after_ms = 1"
WAITS = ("--wait", "--deadline", f"{WAIT_S:g}")


class Writer:
    """Counts in namespaces of all groups, each count exactly once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.rounds = 0
        self._ending = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while not self._ending:
            for space in SPACES:
                await self._client.kv.put(space, "counter", b"%d" % self.rounds, expected_version=self.rounds)
            self.rounds += 1
            await asyncio.sleep(PAUSE_S)

    async def more(self) -> None:
        seen = self.rounds
        await until(lambda: self._task.done() or self.rounds > seen + 2, "writes")
        assert not self._task.done(), self._task.exception()

    async def end(self) -> None:
        self._ending = True
        await self._task


async def follow(watch: Watch, seen: list[tuple[str, int]]) -> None:
    """Note each version that comes, and each gap."""
    async for batch in watch:
        seen.extend((batch.kind, event.record.version) for event in batch.events if event.record is not None)
        if batch.kind == "gap":
            seen.append(("gap", 0))


async def ctl(where: str, *words: str, status: int = 0) -> str:
    """What ``metadctl`` says: on stdout, or on stderr if it is to fail."""
    done = await asyncio.to_thread(metadctl, where, *words)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status else done.stdout


async def process(where: str, *words: str) -> None:
    """The command as a process of its own, beside others."""
    command = [METAD.with_name("metadctl"), "--endpoint", where, *words]
    done = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
    assert await done.wait() == 0


async def told(where: str, *words: str) -> Any:
    return json.loads(await ctl(where, *words, "--json"))


async def test_groups_are_split_moved_merged_and_removed_under_writes(tmp_path: Path) -> None:
    with Nodes(tmp_path / "nodes", config=f"{FEATURES}\n[groups]\ndata = 2\noffset = 1") as nodes:
        nodes.start("n4", join="n1").ready()
        async with connect(nodes.url) as client, client.watch(Watched("kv", tenant=SPACES[0])) as watch:
            seen: list[tuple[str, int]] = []
            following = asyncio.create_task(follow(watch, seen))
            writer = Writer(client)
            await writer.more()
            await ctl(nodes.where, "groups", "split", "data-0", *WAITS)
            (new,) = {one["group"] for one in (await told(nodes.where, "groups"))} - {
                *("metadata-0", "offset-0", "data-0", "data-1")
            }
            found = await told(nodes.where, "groups", "explain", new)
            assert (new, found["slots"], found["slot_ranges"], found["moves"]) == ("data-2", 256, [[256, 511]], [])
            await ctl(nodes.where, "groups", "move", "--slots", "0-3,256", "--to", "data-1", *WAITS)
            (source, *_), (target, *_) = (
                [one["node"] for one in found["replicas"]],
                {*["n1", "n2", "n3", "n4"]} - {one["node"] for one in found["replicas"]},
            )
            await ctl(nodes.where, "groups", "move", "data-2", "--from", source, "--to", target, *WAITS)
            found = await told(nodes.where, "groups", "explain", "data-2")
            assert {one["node"] for one in found["replicas"]} == {*["n1", "n2", "n3", "n4"]} - {source}
            await writer.more()
            refused = await ctl(nodes.where, "groups", "remove", "data-2", status=1)
            assert "data-2 has 255 slots: move them first" in refused
            for gone in ("data-2", "data-0"):
                await ctl(nodes.where, "groups", "merge", gone, "--into", "data-1", *WAITS)
                await until(lambda: _is_on(client), "groups can be removed")
                await ctl(nodes.where, "groups", "remove", gone, *WAITS)
                await writer.more()
            assert "cannot be removed" in await ctl(nodes.where, "groups", "remove", "metadata-0", status=1)
            await ctl(nodes.where, "groups", "add", "--kind", "data")
            await ctl(nodes.where, "groups", "rebalance")
            await writer.more()
            listed = await told(nodes.where, "groups")
            assert sorted(one["group"] for one in listed if one["group"].startswith("data")) == ["data-1", "data-3"]
            for name in ("n1", "n2"):  # a node that starts again finds nothing of what was removed
                await asyncio.to_thread(nodes.servers[name].terminate)
                await asyncio.to_thread(nodes.restart, name)
            await writer.more()
            await writer.end()
            await until(lambda: bool(seen) and seen[-1][1] == writer.rounds, "the watch")
            following.cancel()
            versions = [version for _, version in seen]
            assert versions == list(range(versions[0], writer.rounds + 1)), "lost, repeated, or a gap"
        await ctl(nodes.where, "backup", f"{tmp_path}/backup")
    with Server(tmp_path / "other") as other:
        other.ready()
        await ctl(other.endpoint, "restore", f"{tmp_path}/backup")
        async with connect(other.url) as client:
            for space in SPACES:
                record = await client.kv.get(space, "counter")
                assert record is not None
                assert record.value == b"%d" % (writer.rounds - 1)


async def test_two_operators_regroup_at_once_and_are_told_of_the_end_when_it_has_come(tmp_path: Path) -> None:
    """Once one of them was refused; and what ``--wait`` had waited for was still under way for whoever asked another
    node."""
    with Nodes(tmp_path, config="[groups]\ndata = 2\noffset = 1") as nodes:

        async def moves() -> list[int]:
            return [(await told(endpoint, "status"))["slot_moves"] for endpoint in nodes.where.split(",")]

        async with connect(nodes.url) as client:
            writer = Writer(client)
            await writer.more()
            both = (process(nodes.where, "groups", "split", group, *WAITS) for group in ("data-0", "data-1"))
            await asyncio.gather(*both)
            assert await moves() == [0, 0, 0]
            found = {one["group"]: one for one in (await told(nodes.where, "groups", "explain"))["groups"]}
            new = [found["data-2"], found["data-3"]]
            halves = [[[0, 255]], [[512, 767]], [[256, 511]], [[768, 1023]]]
            new.sort(key=lambda one: one["slot_ranges"])
            assert [one["slot_ranges"] for one in (found["data-0"], found["data-1"], *new)] == halves
            both = (
                process(nodes.where, "groups", "merge", one["group"], "--into", f"data-{number}", *WAITS)
                for number, one in enumerate(new)
            )
            await asyncio.gather(*both)
            assert await moves() == [0, 0, 0]
            await writer.more()
            await writer.end()


async def _is_on(client: Client, feature: str = "removed-groups") -> bool:
    return feature in [one.feature async for one in client.features.list() if one.state == "on"]


async def test_a_drained_node_is_restarted_without_a_leader_that_is_lost(nodes: Nodes) -> None:
    async with connect(nodes.url) as client:
        writer = Writer(client)
        name = (await client.cluster.map()).leaders["metadata-0"]

        async def leads() -> list[str]:
            return [one["group"] for one in await told(nodes.where, "groups") if one["leader"] == name]

        await ctl(nodes.where, "node", "drain", name, *WAITS)
        assert await leads() == []
        await ctl(nodes.where, "status", "--check", status=1)
        (problem,) = (await told(nodes.where, "status"))["problems"]
        assert (problem["code"], problem["severity"], problem["node"]) == ("node_drained", "warning", name)
        await ctl(nodes.where, "status", "--check", "--despite", "node_drained")
        lost = {one: len(nodes.servers[one].events("leader_lost")) for one in nodes.servers if one != name}
        await asyncio.to_thread(nodes.servers[name].terminate)
        await writer.more()
        await asyncio.to_thread(nodes.restart, name)
        await ctl(nodes.where, "status", "--wait", "OK", "--despite", "node_drained", "--timeout", f"{WAIT_S:g}")
        assert await leads() == []
        assert {one: len(nodes.servers[one].events("leader_lost")) for one in lost} == lost, "others went on leading"
        assert "is drained" in await ctl(nodes.where, "transfer", "metadata-0", name, status=1)
        await ctl(nodes.where, "node", "undrain", name, *WAITS)
        assert await leads() != []
        await ctl(nodes.where, "status", "--wait", "OK", "--timeout", f"{WAIT_S:g}")
        await writer.more()
        await writer.end()
        with pytest.raises(NotFoundError, match="n9"):
            await client.cluster.drain("n9")


async def test_a_group_is_led_in_the_region_that_it_prefers_whenever_it_can_be(tmp_path: Path) -> None:
    """Its preferred leader there dies, then the other voter there, and both come back; clients write all the while."""
    regions = {"n1": "us", "n2": "us", "n3": "us", "n4": "eu", "n5": "eu"}
    config = f"replicas = 5\n{FEATURES}\n[groups]\ndata = 2"
    with Nodes(tmp_path, regions, config=config) as nodes:
        where = ",".join(nodes.endpoints[name] for name in ("n1", "n2", "n3"))

        async def row() -> Any:
            return next(one for one in await told(where, "groups") if one["group"] == "data-0")

        async with connect(f"metad://{where}") as client:

            async def leader() -> str:
                return (await client.cluster.map()).leaders["data-0"]

            async def led_by(*names: str) -> str:
                async def is_led() -> bool:
                    return await leader() in names

                await until(is_led, f"{names} lead")
                return await leader()

            await until(lambda: _is_on(client, "leader-regions"), "a region can be preferred")
            writer = Writer(client)
            await ctl(where, "groups", "prefer", "data-0", "--region", "eu", *WAITS)
            assert (await row())["preferred_region"] == "eu"
            first = await led_by("n4", "n5")
            found = await told(where, "groups", "explain", "data-0")
            assert (found["region"], found["preferred"]) == ("eu", first)
            assert found["why"].endswith("it is led in eu, as it should be")
            assert "data-1" in await ctl(where, "groups")
            refused = await ctl(where, "transfer", "data-0", "n1", status=1)
            assert "data-0 prefers leaders in eu, and n1 is not there" in refused
            assert "regions of nodes: eu, us" in await ctl(
                where, "groups", "prefer", "data-0", "--region", "ap", status=1
            )
            nodes.kill(first)
            (other,) = {"n4", "n5"} - {first}
            assert await led_by(other) == other
            await writer.more()
            nodes.kill(other)
            await led_by("n1", "n2", "n3")
            await writer.more()
            found = await told(where, "groups", "explain", "data-0")
            assert "it should be led in eu, where no voter can: n4 is unreachable, n5 is unreachable" in found["why"]
            await asyncio.to_thread(nodes.restart, other)
            assert await led_by(other) == other
            await asyncio.to_thread(nodes.restart, first)
            assert await led_by(first) == first
            await ctl(where, "groups", "rebalance")
            await ctl(where, "groups", "prefer", "data-0", "--none", *WAITS)
            assert (await row())["preferred_region"] is None
            await ctl(where, "transfer", "data-0", "n1")
            assert await led_by("n1") == "n1"
            await writer.more()
            await writer.end()
            for space in SPACES:
                record = await client.kv.get(space, "counter")
                assert record is not None
                assert record.value == b"%d" % (writer.rounds - 1)
