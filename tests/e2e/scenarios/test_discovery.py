"""Discovery: how nodes find their cluster, and clients find the nodes.

A cluster is founded by static seeds. Others join while it serves, each through any node that lives, also one that has
joined itself: no configuration of the others changes, and none starts again. A client that knows one address learns of
all nodes, so it goes on when the one it began with leaves. A name may have several addresses, of which some answer.

Records of type SRV tell clients and nodes where the cluster is in ``tests/e2e/test_services.py``.

Not yet: multicast, which is left out on purpose: clouds do not pass it on.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from e2e_nodes import Nodes
from e2e_server import free_ports

from metad_client import Client, MetadError, connect
from waiting import until

SHOWS = """
cluster.map cluster.join cluster.leave system.status system.events system.compact system.settings system.set
kv.put kv.get
"""


async def hosts(m: Client, *nodes: str) -> bool:
    """Whether these are the nodes of the cluster, and each has replicas of each group."""
    known = (await m.cluster.map()).map
    return (
        known is not None
        and sorted(node.node_id for node in known.nodes) == sorted(nodes)
        and all(sorted(group.replicas) == sorted(nodes) for group in known.groups)
    )


async def test_nodes_join_through_any_node_and_clients_find_them(
    tmp_path: Path, metadctl: Callable[..., Awaitable[Any]]
) -> None:
    with Nodes(tmp_path, ("n1",)) as nodes:
        nodes.peers["n5"], nodes.endpoints["n5"] = (f"127.0.0.1:{port}" for port in free_ports(2))
        seeds = (nodes.servers["n1"].home / "metad.toml").read_text()
        async with connect(nodes.url) as m:  # which is told of n1 only
            await m.kv.put("found", "by", b"n1")
            nodes.start("n4", join="n1")
            await asyncio.to_thread(nodes.servers["n4"].ready)
            # The next one joins through that one, and an administrator has said beforehand who it is.
            who = ("--peer", nodes.peers["n5"], "--clients", nodes.endpoints["n5"])
            await metadctl("join", "n5", *who, endpoint=nodes.where)
            nodes.start("n5", join="n4")
            await asyncio.to_thread(nodes.servers["n5"].ready)
            await until(lambda: hosts(m, "n1", "n4", "n5"), "three nodes have all groups")

            async def knows() -> bool:
                return sorted(await m.cluster.statuses()) == ["n1", "n4", "n5"]

            await until(knows, "the client hears of all nodes")
            assert (nodes.servers["n1"].home / "metad.toml").read_text() == seeds
            assert nodes.servers["n1"].process.poll() is None
            told = await m.cluster.events(nodes=["n1"])  # who leads metadata-0 has logged who joined
            assert not isinstance(told["n1"], MetadError)
            joined = [one.fields["member"] for one in told["n1"].events if one.event == "node_joined"]
            assert joined == ["n4", "n5"]
            (begun,) = (await m.cluster.compact(nodes=["n4"])).values()
            assert not isinstance(begun, MetadError)
            assert begun.parts > 0
            (made,) = (await m.cluster.set("limits.slow_ms", "2s", nodes=["n4"])).values()
            assert not isinstance(made, MetadError)
            (has,) = (await m.cluster.settings("limits.slow_ms", nodes=["n4"])).values()
            assert not isinstance(has, MetadError)
            assert has.settings == made.settings
            assert (has.settings[0].value, has.settings[0].source) == ("2000", "run time")

            # The founder leaves, and with it the only address that this client was given.
            await metadctl("leave", "n1", "--allow-fewer-replicas", endpoint=nodes.endpoints["n5"])
            assert await asyncio.to_thread(nodes.servers["n1"].exited) == 0
            await until(lambda: hosts(m, "n4", "n5"), "two nodes have all groups")
            found = await m.kv.get("found", "by")
            assert found is not None
            assert found.value == b"n1"
            await m.kv.put("found", "by", b"those that joined")


async def test_a_name_with_several_addresses(cluster: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is known to this process only: its resolver says what a DNS would."""
    host, port = cluster.endpoints["n1"].split(":")
    asked: list[str] = []
    resolve = socket.getaddrinfo

    def resolved(name: Any, *how: Any, **more: Any) -> Any:
        if name != "metad.test":
            return resolve(name, *how, **more)
        asked.append(name)
        return [*resolve("127.0.0.9", *how, **more), *resolve(host, *how, **more)]  # nobody is at the first

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.9", int(port)))
    async with connect(f"metad://metad.test:{port}") as m:
        await m.kv.put("found", "by", b"a name")
        assert sorted(await m.cluster.statuses()) == ["n1", "n2", "n3"]
    assert asked
