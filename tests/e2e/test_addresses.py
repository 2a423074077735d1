"""Nodes behind address translation: each binds one address and is dialled at another, by nodes and by clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from e2e_server import Server, free_ports

from metad_client import connect

NAMES = ("n1", "n2", "n3")


@contextlib.asynccontextmanager
async def translated(ports: dict[int, int], used: set[int]) -> AsyncIterator[None]:
    """Pass connections from each outer port on to its inner one, and note which outer ports were used."""

    writers: set[asyncio.StreamWriter] = set()
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def pass_on(outer: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        used.add(outer)
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", ports[outer])
        except OSError:
            writer.close()
            return
        writers.add(inner_writer)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    def accept(outer: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        tasks.add(asyncio.create_task(pass_on(outer, reader, writer)))

    listeners = [await asyncio.start_server(partial(accept, outer), "127.0.0.1", outer) for outer in ports]
    try:
        yield
    finally:
        for listener in listeners:
            listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


async def test_a_cluster_is_reached_at_the_addresses_that_it_tells(tmp_path: Path) -> None:
    """``cluster.listen`` was ignored beside ``seeds``, so a node in a container could not bind what it has."""
    outer, inner = free_ports(6), free_ports(6)
    peers, clients = dict(zip(NAMES, outer[:3], strict=True)), dict(zip(NAMES, outer[3:], strict=True))
    seeds = ", ".join(f'{name} = "127.0.0.1:{port}"' for name, port in peers.items())
    used: set[int] = set()
    async with translated(dict(zip(outer, inner, strict=True)), used):
        with contextlib.ExitStack() as servers:
            for at, name in enumerate(NAMES):
                config = (
                    f'node_id = "{name}"\n[security]\nplaintext = true\n[cluster]\nseeds = {{ {seeds} }}\n'
                    f'listen = "0.0.0.0:{inner[at]}"\nadvertise_clients = "127.0.0.1:{clients[name]}"\n'
                )
                servers.enter_context(Server(tmp_path / name, config=config, listen=f"0.0.0.0:{inner[3 + at]}"))
            async with connect(f"metad://127.0.0.1:{clients['n1']}") as client:
                batch = [("config", f"k{n}", b"v") for n in range(300)]
                for namespace, key, value in batch:  # over all groups: every leader is asked at its told address
                    await client.kv.put(namespace, key, value)
                while True:  # each node publishes its address for clients a moment after it serves
                    known = await client.cluster.map()
                    assert known.map is not None
                    if all(node.endpoint for node in known.map.nodes):
                        break
                    await asyncio.sleep(0.05)
    assert {node.node_id: node.peer_endpoint for node in known.map.nodes} == {
        name: f"127.0.0.1:{port}" for name, port in peers.items()
    }
    assert {node.node_id: node.endpoint for node in known.map.nodes} == {
        name: f"127.0.0.1:{port}" for name, port in clients.items()
    }
    assert used >= set(peers.values())
