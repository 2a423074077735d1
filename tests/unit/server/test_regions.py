"""Nodes of one region speak one transport, those of different regions another, and the first where that is blocked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from metad.config import Config, load_config
from metad.server.network import Network
from metad.server.peers import outbound
from metad.server.serve import Server
from metad_wire.transport import Handler
from sim.memory import MemoryTransport
from waiting import until

TIMEOUT_S = 120.0


class Far(MemoryTransport):
    """What QUIC is to the nodes. ``blocked``: nothing gets through. ``refused``: so many dials are refused first."""

    def __init__(self) -> None:
        super().__init__()
        self.blocked = False
        self.refused = 0
        self.dials = 0

    async def dial(self, host: str, port: int, factory: Callable[[], Handler], timeout_s: float) -> Handler:
        self.dials += 1
        if self.blocked:
            raise TimeoutError("no answer")
        if self.refused:
            self.refused -= 1
            raise ConnectionRefusedError("nobody listens there")
        return await super().dial(host, port, factory, timeout_s)


def configured(name: str, regions: dict[str, str]) -> Config:
    seeds = {node: f"{node}:1" for node in regions}
    raft = {"election_timeout_ms": 300, "heartbeat_ms": 50}
    return load_config(
        None,
        {
            "node_id": name,
            "listen": f"{name}:2",
            "storage": {"engine": "memory"},
            "cluster": {"seeds": seeds, "seed_regions": {node: region for node, region in regions.items() if region}},
            "raft": raft,
        },
    )


@asynccontextmanager
async def cluster(regions: dict[str, str], far: Far) -> AsyncIterator[dict[str, Server]]:
    near = MemoryTransport()
    servers: dict[str, Server] = {}
    running: list[asyncio.Task[None]] = []
    try:
        for name, region in regions.items():
            network = Network(near, None, near, far if region else None, near, encrypted=False)
            servers[name] = await Server.start(configured(name, regions), network)
            running.append(asyncio.create_task(servers[name].run()))
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*(server.node.serving() for server in servers.values()))
        yield servers
    finally:
        for server in servers.values():
            await server.stop()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def links(server: Server) -> dict[str, str]:
    """Peer -> transport of the links that are up."""
    return {link.node_id: link.transport for link in server.node.status().links if link.up}


def regions(server: Server) -> dict[str, str]:
    known = server.node.map
    return {} if known is None else {node.node_id: node.region for node in known.nodes}


async def test_across_regions_nodes_speak_another_transport() -> None:
    far = Far()
    async with cluster({"a": "eu", "b": "eu", "c": "us"}, far) as servers:
        await until(lambda: links(servers["a"]) == {"b": "tcp", "c": "quic"})
        await until(lambda: links(servers["b"]) == {"a": "tcp", "c": "quic"})
        await until(lambda: links(servers["c"]) == {"a": "quic", "b": "quic"})
        assert servers["c"].node.status().region == "us"
        # Each announces where it is by itself, behind the links.
        await until(lambda: regions(servers["a"]) == {"a": "eu", "b": "eu", "c": "us"})


async def test_where_there_are_no_regions_there_is_one_transport() -> None:
    far = Far()
    async with cluster({"a": "", "b": "", "c": ""}, far) as servers:
        await until(lambda: links(servers["a"]) == {"b": "tcp", "c": "tcp"})
    assert far.dials == 0


async def test_a_node_without_a_region_is_near_to_all() -> None:
    far = Far()
    async with cluster({"a": "eu", "b": "us", "c": ""}, far) as servers:
        await until(lambda: links(servers["a"]) == {"b": "quic", "c": "tcp"})


async def test_where_the_other_does_not_get_through_they_speak_the_first() -> None:
    far = Far()
    far.blocked = True
    async with cluster({"a": "eu", "b": "us", "c": "ap"}, far) as servers:
        await until(lambda: far.dials >= 6)
        await until(lambda: all(set(links(server).values()) == {"tcp"} for server in servers.values()))
        assert far.dials <= 6 * 4, "it is not tried again and again"


async def test_links_go_over_to_the_other_transport_once_that_gets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound, "_FAR_AGAIN_S", 0.5)
    far = Far()
    far.blocked = True
    async with cluster({"a": "eu", "b": "us", "c": "ap"}, far) as servers:
        await until(lambda: far.dials >= 6)
        await until(lambda: all(set(links(server).values()) == {"tcp"} for server in servers.values()))
        far.blocked = False
        await until(lambda: all(set(links(server).values()) == {"quic"} for server in servers.values()))


async def test_a_node_that_only_begins_to_listen_is_tried_again_soon() -> None:
    """It refused the first dial across regions and took the next by TCP: they spoke that for a minute."""
    far = Far()
    far.refused = 6
    async with cluster({"a": "eu", "b": "us", "c": "ap"}, far) as servers:
        await until(lambda: all(set(links(server).values()) == {"quic"} for server in servers.values()))
