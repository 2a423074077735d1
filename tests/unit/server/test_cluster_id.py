"""Which cluster a node is of: decided once, by whoever forms it, and never mixed up with another."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from peer_rig import Stranger
from server_rig import Rig, VirtualEnvironment

from metad.config import load_config
from metad.errors import ConfigError
from metad.node.disk.stores import Stores, pair_stores, read_identity
from metad.node.health import Health
from metad.node.lives import Lives
from metad.server.network import Network
from metad.server.serve import Server
from metad.storage.log import LogStore
from metad_wire.connection.frame import FrameType
from sim.disk import SimDisk
from sim.memory import MemoryTransport
from sim.nodes.host import Pace, SimEnvironment
from sim.nodes.loop import VirtualLoop
from waiting import until

RANDOM = re.compile("[0-9a-f]{32}")


class Fleet:
    """Nodes on one network and in virtual time, with disks that outlive them."""

    def __init__(self, founders: str = "abc") -> None:
        self.network = MemoryTransport()
        self.seeds = {name: f"{name}:1" for name in founders}
        self.disks: dict[str, tuple[SimDisk, SimDisk]] = {}
        self.servers: dict[str, Server] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    def stores(self, name: str, **settings: Any) -> Stores:
        log, state = self.disks.setdefault(name, (SimDisk(), SimDisk()))
        config = load_config(None, {"node_id": name, "storage": {"engine": "memory"}, **settings})
        return pair_stores(config, LogStore(log), state)

    async def start(self, *names: str, join: str = "", **settings: Any) -> None:
        for name in names:
            cluster = {"join": [f"{join}:1"], "listen": f"{name}:1"} if join else {"seeds": self.seeds}
            overrides = {"node_id": name, "listen": f"{name}:2", "storage": {"engine": "memory"}, "cluster": cluster}
            config = load_config(None, {**overrides, **settings})
            environment = SimEnvironment(VirtualLoop.running(), random.Random(name), Pace())
            stores = self.stores(name, **settings)
            server = await Server.start(config, Network.only(self.network), stores=stores, environment=environment)
            self.servers[name] = server
            self._running[name] = asyncio.create_task(server.run())

    async def formed(self, *names: str) -> set[str]:
        """The ids that these nodes have durably."""
        async with asyncio.timeout(120):
            await asyncio.gather(*(self.servers[name].node.serving() for name in names))
        for name in names:
            node = self.servers[name].node
            assert node.map is not None
            assert node.map.cluster_id == node.identity.cluster_id == node.status().cluster_id
        identities = [read_identity(self.disks[name][0], "raft") for name in names]
        return {identity.cluster_id for identity in identities if identity is not None}

    async def stop(self, *names: str) -> None:
        for name in names:
            await self.servers.pop(name).stop()
            self._running[name].cancel()
            await asyncio.gather(self._running.pop(name), return_exceptions=True)


@asynccontextmanager
async def fleet(founders: str = "abc") -> AsyncIterator[Fleet]:
    nodes = Fleet(founders)
    try:
        yield nodes
    finally:
        await nodes.stop(*nodes.servers)


async def test_a_node_alone_gets_a_name_of_its_own_and_keeps_it() -> None:
    ids = []
    for _ in range(2):
        rig = Rig()
        rig.environment = VirtualEnvironment
        first = (await rig.open()).identity.cluster_id
        rig.kill()
        assert (await rig.open()).identity.cluster_id == first
        ids.append(first)
        await rig.close()
    assert all(RANDOM.fullmatch(each) for each in ids)
    assert ids[0] != ids[1]


async def test_founders_agree_also_one_that_comes_late_and_one_that_joins() -> None:
    async with fleet() as nodes:
        await nodes.start("a", "b")
        (formed,) = await nodes.formed("a", "b")
        assert RANDOM.fullmatch(formed)
        await nodes.start("c")
        assert await nodes.formed("c") == {formed}
        await nodes.start("d", join="b")
        assert await nodes.formed("d") == {formed}
        await nodes.stop("a", "b", "c", "d")
        await nodes.start("a", "b", "c")
        assert await nodes.formed("a", "b", "c") == {formed}


async def test_lives_are_remembered_of_members_that_were_connected_before_they_were() -> None:
    async with fleet("ab") as nodes:
        await nodes.start("a", "b")
        await nodes.formed("a", "b")
        await nodes.start("c", join="a")
        await nodes.formed("c")

        def known(name: str) -> dict[str, int]:
            """As it is on the disk."""
            server = nodes.servers[name]
            log = LogStore(nodes.disks[name][0])
            return {peer: life.number for peer, life in Lives(log, server.node.environment, Health())._durable.items()}

        await until(lambda: known("a") == {"b": 1, "c": 1} and known("c") == {"a": 1, "b": 1})


async def test_nodes_of_two_clusters_with_the_default_configuration_refuse_each_other() -> None:
    async with fleet("ab") as ours, fleet("cd") as theirs:
        theirs.network = ours.network
        await ours.start("a", "b")
        await theirs.start("c", "d")
        (here,), (there,) = await ours.formed("a", "b"), await theirs.formed("c", "d")
        assert here != there
        peer = await Stranger.dial(ours.network, "a")
        await peer.greet(theirs.servers["c"], "c")
        assert f"this is cluster {here!r}, not {there!r}" in await peer.refused()


async def test_a_configured_name_is_kept_and_another_is_refused() -> None:
    async with fleet() as nodes:
        await nodes.start("a", "b", "c", cluster_id="prod")
        assert await nodes.formed("a", "b", "c") == {"prod"}
        await nodes.stop("a", "b", "c")
        with pytest.raises(ConfigError, match="of cluster 'prod', the configuration says 'a' of 'test'"):
            nodes.stores("a", cluster_id="test")
        assert nodes.stores("a").identity.cluster_id == "prod", "a directory keeps the name it has"


async def test_founders_that_are_configured_differently_stop_and_say_so() -> None:
    async with fleet() as nodes:
        await nodes.start("a", "b")
        await nodes.formed("a", "b")
        await nodes.start("c", cluster_id="prod")
        peer = await Stranger.dial(nodes.network, "c")
        await peer.greet(nodes.servers["a"], "a")
        assert "this is cluster 'prod', not" in await peer.refused()
        with pytest.raises(ConfigError, match="must be configured on all founders, or none"):
            nodes.stores("c", cluster_id="prod").adopt("another")


async def test_who_names_no_cluster_and_is_no_member_takes_no_part_in_raft() -> None:
    """It may be about to join, or the founder of another cluster whose seeds are mistaken."""
    async with fleet("ab") as nodes:
        await nodes.start("a", "b")
        await nodes.formed("a", "b")
        node = nodes.servers["a"].node
        heard: list[str] = []
        node.peer_received = lambda peer, payload: heard.append(peer)  # type: ignore[method-assign]
        for name, cluster_id in (("z", ""), ("b", "")):
            record = next((n for n in node.map.nodes if n.node_id == name), None) if node.map is not None else None
            store_id = record.store_id if record is not None else "new"
            peer = await Stranger.dial(nodes.network, "a")
            assert (await peer.greet(nodes.servers["a"], name, cluster_id=cluster_id, store_id=store_id)).type == 2
            peer.raft(b"\x90")
            peer.send(FrameType.PING)
            assert (await peer.next()).type == FrameType.PONG
        await until(lambda: heard)
        assert "z" not in heard
