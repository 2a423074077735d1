"""Combined roles: brokers that carry the nodes of metad in their own processes, and give them processes of their own.

Three brokers are the cluster: nothing else runs. One is killed, and with it its node. The two others have the quorum,
end its life as a broker, and take its clients over. Its node goes on as a process of its own, on the same directory,
and the broker comes back beside it with the next epoch. Nothing is copied.

Not yet: the directory stays on its machine; a node moves to another one by `join` and `leave`, which copies.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from e2e_server import METAD, free_ports

from metad_client import Client, FencedError, SessionTakeoverItem, connect
from waiting import until

SHOWS = """
broker.register broker.heartbeat broker.get session.takeover session.list kv.get system.status
"""
NAMES = ("b1", "b2", "b3")
BROKER = """
import asyncio, sys
from pathlib import Path
from metad import embedded
from metad_client import SessionProperties, SessionTakeoverItem, connect

async def main(name, listen, brokers):
    seeds = dict(broker.split("=") for broker in brokers.split(","))
    small = {"block_cache_bytes": 8 << 20, "memtable_bytes": 32 << 20, "owner_cache_bytes": 1_000_000}
    node = embedded.node(f"{name}.data", node_id=name, listen=listen, cluster={"seeds": seeds}, storage=small)
    async with node, connect(node.url) as m:
        Path(f"{name}.toml").write_text(node.toml)
        life = await m.brokers.register(name, lease_s=3)
        items = [SessionTakeoverItem("b+c", f"{name}-{i}", properties=SessionProperties(3_600)) for i in range(50)]
        (await m.sessions.takeover_many(name, life.epoch, items)).raise_for_error()
        await m.kv.put("b+c", name, b"%d" % life.epoch)
        print(life.epoch, flush=True)
        await node.ended()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_three_brokers_are_the_cluster(tmp_path: Path) -> None:
    peers = dict(zip(NAMES, (f"127.0.0.1:{port}" for port in free_ports(3)), strict=True))
    clients = dict(zip(NAMES, (f"127.0.0.1:{port}" for port in free_ports(3)), strict=True))
    seeds = ",".join(f"{name}={address}" for name, address in peers.items())
    (tmp_path / "broker.py").write_text(BROKER)
    processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(name: str, *command: str) -> None:
        pipe = asyncio.subprocess.PIPE
        with (tmp_path / f"{name}.log").open("ab") as log:
            processes[name] = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdout=pipe, stderr=log)

    try:
        for name in NAMES:
            await start(name, sys.executable, "broker.py", name, clients[name], seeds)
        epochs: dict[str, int] = {}
        for name, process in processes.items():
            assert process.stdout is not None
            epochs[name] = int(await process.stdout.readline() or (tmp_path / f"{name}.log").read_text())
        async with connect(f"metad://{clients['b2']},{clients['b3']}") as m:
            assert sorted(await m.cluster.statuses()) == [*NAMES]
            processes["b1"].kill()

            async def is_dead() -> bool:
                broker = await m.brokers.get("b1")
                return broker is not None and broker.state == "fenced"

            await until(is_dead, "the end of b1")
            assert [s.client_id async for s in m.sessions.list("b+c", broker="b1", page_size=20)] == sorted(
                f"b1-{i}" for i in range(50)
            )
            taken = await m.sessions.takeover_many(
                "b2", epochs["b2"], [SessionTakeoverItem("b+c", f"b1-{i}") for i in range(50)]
            )
            taken.raise_for_error()
            assert {(owner.broker, owner.broker_epoch) for owner in taken.owners} == {("b1", epochs["b1"])}
            with pytest.raises(FencedError):
                await m.sessions.takeover("b1", epochs["b1"], "b+c", "late")

            # Its node goes on alone, on what it had.
            before = {*(tmp_path / "b1.data").iterdir()}
            await start("b1", str(METAD), "serve", "--config", "b1.toml")
            async with connect(f"metad://{clients['b1']}") as beside:
                found = await beside.kv.get("b+c", "b1")
                assert found is not None
                assert (found.value, found.version) == (b"%d" % epochs["b1"], 1)
                await until(lambda: agrees(beside, "b1"), "it has what the others have")
                life = await beside.brokers.register("b1", lease_s=20)
                assert life.epoch > epochs["b1"]
                back = await beside.sessions.takeover("b1", life.epoch, "b+c", "b1-7")
                assert back.previous is not None
                assert back.previous.broker == "b2"
                await life.end()
            assert before <= {*(tmp_path / "b1.data").iterdir()}
    finally:
        for process in processes.values():
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def agrees(m: Client, name: str) -> bool:
    """Whether a node has applied what the leaders of its groups have committed."""
    statuses = await m.cluster.statuses()
    groups = {node: {each.name: each for each in getattr(status, "groups", ())} for node, status in statuses.items()}
    return len(groups) == 3 and all(
        groups[name][group].applied >= each.commit > 0
        for node in groups
        for group, each in groups[node].items()
        if group in groups[name]
    )
