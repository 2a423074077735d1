"""The end of a tenant on three nodes: nothing of it is left in the raw state of any replica."""

from __future__ import annotations

import asyncio
from pathlib import Path

from e2e_nodes import Nodes

from metad.config import StorageConfig
from metad.storage.keys import text
from metad.storage.rocks import RocksEngine, Shared, state_options
from metad_client import Client, KvPutItem, OffsetCommitItem, SessionProperties, SessionTakeoverItem, Will, connect
from metad_wire.families.core import TOPICS, Topic
from waiting import until

MIB = 1024 * 1024
SESSIONS = 1_000


async def fill(m: Client, epoch: int, tenant: str) -> None:
    properties = SessionProperties(60, b"p", Will("gone", b"bye"))
    items = [SessionTakeoverItem(tenant, f"c{number}", False, properties) for number in range(SESSIONS)]
    (await m.sessions.takeover_many("b", epoch, items)).raise_for_error()
    (await m.kv.put_many([KvPutItem(tenant, f"k{number}", b"v") for number in range(100)])).raise_for_error()
    commits = [OffsetCommitItem(tenant, f"g{number % 9}", "t", number, number) for number in range(100)]
    (await m.offsets.commit_many(commits)).raise_for_error()
    await m.retained.put(tenant, "site/door", b"open")
    await m.leases.grant(tenant, 60_000)
    await m.sequences.add(tenant, "s")
    await m.table(TOPICS).put(Topic(tenant, "orders"))


def rows(directory: Path, tenant: str) -> int:
    """How many keys in the state of a node that does not run have the tenant in them."""
    shared = Shared(StorageConfig(block_cache_bytes=8 * MIB, memtable_bytes=16 * MIB))
    engine = RocksEngine(directory / "state", state_options(shared), wal=False)
    try:
        return sum(text(tenant) in key for key, _ in engine.scan(b"", b"\xff" * 16, 10**6))
    finally:
        engine.close()


async def test_no_replica_has_anything_of_a_tenant_that_has_ended(tmp_path: Path) -> None:
    with Nodes(tmp_path) as nodes:
        async with connect(nodes.url) as m:
            epoch = (await m.brokers.register("b")).epoch
            for tenant in ("acme", "acme2"):
                await fill(m, epoch, tenant)
            await m.tenants.end("acme")

            async def is_over() -> bool:
                return not await m.tenants.endings()

            await until(is_over, "the tenant ends")
            assert await m.tenants.use("acme") == []
            await asyncio.sleep(1)  # the followers apply the last entries
        for server in nodes.servers.values():
            assert server.terminate() == 0
        left = {name: (rows(nodes.home / name, "acme"), rows(nodes.home / name, "acme2")) for name in nodes.servers}
    assert {gone for gone, _ in left.values()} == {0}
    assert min(stays for _, stays in left.values()) > 2 * SESSIONS
