"""What a node says of its groups and links: followers as their leader sees them, refusals, and no leader since when."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metad.config import Config, load_config
from metad.server.network import Network
from metad.server.serve import Server
from metad_wire import messages as m
from sim.memory import MemoryTransport
from waiting import until

TIMEOUT_S = 120.0
NAMES = ("a", "b", "c")


SMALL = {"block_cache_bytes": 8 << 20, "memtable_bytes": 32 << 20, "owner_cache_bytes": 1_000_000}


def configured(name: str, directory: Path) -> Config:
    return load_config(
        None,
        {
            "node_id": name,
            "listen": f"{name}:2",
            "data_dir": str(directory),
            "fsync": False,
            "storage": SMALL,
            "cluster": {"seeds": {node: f"{node}:1" for node in NAMES}},
            "raft": {"election_timeout_ms": 300, "heartbeat_ms": 50},
        },
    )


class Cluster:
    """Three servers."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._transport = MemoryTransport()
        self.servers: dict[str, Server] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    async def start(self, name: str) -> None:
        network = Network(self._transport, None, self._transport, None, self._transport, encrypted=False)
        server = self.servers[name] = await Server.start(configured(name, self._home / name), network)
        self._running[name] = asyncio.create_task(server.run())

    async def stop(self, name: str) -> None:
        await self.servers.pop(name).stop()
        task = self._running.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def stop_and_lose_disk(self, name: str) -> None:
        await self.stop(name)
        await asyncio.to_thread(shutil.rmtree, self._home / name)

    def status(self, name: str) -> m.StatusReply:
        return self.servers[name].node.status()

    def knows_all(self, name: str) -> bool:
        """Whether its map has the data directory of every node."""
        known = self.servers[name].node.map
        return known is not None and all(node.store_id for node in known.nodes)

    def link(self, name: str, to: str) -> m.PeerLink:
        return next(link for link in self.status(name).links if link.node_id == to)

    def group(self, name: str) -> m.GroupStatus:
        return next(group for group in self.status(name).groups if group.name == "data-0")

    @property
    def leader(self) -> str:
        return next((name for name in self.servers if self.group(name).role == "leader"), "")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        for name in NAMES:
            await cluster.start(name)
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*(server.node.serving() for server in cluster.servers.values()))
        await until(lambda: all(map(cluster.knows_all, cluster.servers)))
        yield cluster
    finally:
        for name in list(cluster.servers):
            await cluster.stop(name)


def followers(cluster: Cluster) -> dict[str, tuple[str, bool, bool]]:
    """Of the leader of data-0: follower -> state, whether it is reachable, and whether it has everything."""
    leader = cluster.leader
    if not leader:
        return {}
    group = cluster.group(leader)
    return {one.node_id: (one.state, one.reachable, one.match == group.last) for one in group.followers}


async def test_only_the_leader_tells_of_its_followers(cluster: Cluster) -> None:
    # The groups may still go to their preferred leaders.
    await until(lambda: set(followers(cluster).values()) == {("replicate", True, True)})
    leader = cluster.leader
    assert set(followers(cluster)) == {*NAMES} - {leader}
    assert all(not cluster.group(name).followers for name in NAMES if name != leader)
    assert {cluster.status(name).failing for name in NAMES} == {""}


async def test_who_is_out_of_reach_and_who_has_no_leader(cluster: Cluster) -> None:
    await cluster.stop("c")
    await until(lambda: followers(cluster).get("c", ("", True))[1] is False)
    await until(lambda: cluster.link("a", "c").obstacle)
    assert cluster.link("a", "c").obstacle == "nobody listens on c:1"
    await cluster.stop_and_lose_disk("b")
    await until(lambda: not cluster.group("a").leader)
    first = cluster.group("a").leaderless_ms
    assert first > 0
    await until(lambda: cluster.group("a").leaderless_ms > max(first, 100))
    await cluster.start("b")  # it cannot help
    await until(lambda: cluster.link("b", "a").refused)
    assert cluster.group("a").leaderless_ms > first


async def test_a_node_that_lost_its_disk_is_refused_and_both_ends_say_why(cluster: Cluster) -> None:
    await cluster.stop_and_lose_disk("c")
    await cluster.start("c")
    await until(lambda: cluster.link("a", "c").refuses and cluster.link("c", "a").refused)
    await until(lambda: "c is a member" in cluster.link("a", "c").refuses)
    why = "c is a member with another data directory, and it is not known yet whether that node is alive"
    assert cluster.link("a", "c").refuses.startswith(why)
    assert cluster.link("c", "a").refused.startswith(why)
    assert not cluster.link("a", "c").up
    assert cluster.link("a", "b") == m.PeerLink("b", "tcp", True)


async def test_a_disk_that_hangs_and_a_node_that_has_failed_say_so(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.servers["a"].node
    (watch,) = [driver.group for driver in node.drivers.values() if driver.group.name == "data-0"]
    monkeypatch.setattr(type(watch), "disk_hangs", property(lambda group: group is watch))
    assert cluster.status("a").failing == "the disk makes nothing durable"
    assert cluster.status("b").failing == ""
