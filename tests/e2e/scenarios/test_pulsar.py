"""Pulsar's pluggable metadata: one interface over a store in the process of a test, a single node, and a cluster.

The same program, which has paths, versions, children, ephemeral and numbered nodes and listeners, as brokers and
bookies have of their metadata store, does and is told the same over all three. What differs is the URL.

Not yet: metad is no implementation of Pulsar's own interface in Java.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from e2e_nodes import Nodes
from e2e_server import Server

from metad import embedded
from metad_client import ChangeKind, Client, ConflictError, HeldLease, KvKey, NotFoundError, connect
from metad_wire.families.core import NAMESPACES, SCHEMAS, TENANTS, Namespace, Schema, Tenant

SHOWS = """
kv.put kv.get kv.scan kv.delete lease.grant lease.revoke sequence.add watch.open table.put table.get table.list
"""


class Store:
    """What Pulsar asks of a metadata store."""

    def __init__(self, m: Client) -> None:
        self._m = m

    async def put(self, path: str, value: bytes, expected: int | None = None, lease: HeldLease | None = None) -> int:
        """``expected``: the version that it has now; 0: there is none."""
        name = "" if lease is None else lease.name
        return await self._m.kv.put("pulsar", path, value, expected_version=expected, lease=name)

    async def put_sequential(self, path: str, value: bytes) -> str:
        path = f"{path}-{await self._m.sequences.add('pulsar', path):010}"
        await self.put(path, value, 0)
        return path

    async def get(self, path: str) -> tuple[bytes, int] | None:
        found = await self._m.kv.get("pulsar", path)
        return None if found is None else (found.value, found.version)

    async def delete(self, path: str, expected: int) -> None:
        await self._m.kv.delete("pulsar", path, expected_version=expected)

    async def children(self, path: str) -> list[str]:
        found = [kv.key.removeprefix(f"{path}/") async for kv in self._m.kv.scan("pulsar", f"{path}/")]
        return sorted({key.partition("/")[0] for key in found})


@pytest.fixture(params=["in this process", "a node", "a cluster"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    match request.param:
        case "in this process":
            async with embedded.serve() as server:
                yield server.url
        case "a node":
            with Server(tmp_path / "node") as process:
                yield process.ready().url
        case _:
            nodes: Nodes = request.getfixturevalue("cluster")
            yield nodes.url


async def test_a_metadata_store(url: str) -> None:
    async with connect(url) as m, connect(url) as bookie, await m.watch("kv", tenant="pulsar").opened() as listener:
        store = Store(m)
        assert await store.put("/managed-ledgers/a/b/1", b"ledger 1", 0) == 1
        with pytest.raises(ConflictError):
            await store.put("/managed-ledgers/a/b/1", b"another", 0)
        assert await store.put("/managed-ledgers/a/b/1", b"ledgers 1, 2", 1) == 2
        assert await store.get("/managed-ledgers/a/b/1") == (b"ledgers 1, 2", 2)
        with pytest.raises(ConflictError):
            await store.delete("/managed-ledgers/a/b/1", 1)
        await store.put("/managed-ledgers/c", b"", 0)
        assert await store.children("/managed-ledgers") == ["a", "c"]
        assert await store.children("/managed-ledgers/a/b") == ["1"]
        paths = [await store.put_sequential("/ledgers/id", b"") for _ in range(3)]
        assert paths == [f"/ledgers/id-{number:010}" for number in (1, 2, 3)]

        async with bookie.hold("pulsar", ttl_s=20) as session:
            await Store(bookie).put("/bookies/b1", b"10.0.0.1:3181", 0, session)
            assert await store.children("/bookies") == ["b1"]
        assert await store.get("/bookies/b1") is None
        await store.delete("/managed-ledgers/c", 1)
        with pytest.raises(NotFoundError):
            await store.delete("/managed-ledgers/c", 1)

        told: list[tuple[str, ChangeKind]] = []
        while ("/managed-ledgers/c", ChangeKind.DELETED) not in told:
            batch = await listener.next()
            assert batch is not None
            told += [(event.key.key, event.kind) for event in batch.events]
        assert told == [
            ("/managed-ledgers/a/b/1", ChangeKind.CREATED),
            ("/managed-ledgers/a/b/1", ChangeKind.CHANGED),
            ("/managed-ledgers/c", ChangeKind.CREATED),
            *((path, ChangeKind.CREATED) for path in paths),
            ("/bookies/b1", ChangeKind.CREATED),
            ("/bookies/b1", ChangeKind.DELETED),
            ("/managed-ledgers/c", ChangeKind.DELETED),
        ]

        # What has a table of its own, with types.
        await m.table(TENANTS).put(Tenant("pulsar"), expected_version=0)
        await m.table(NAMESPACES).put(Namespace("pulsar", "ns", retention_ms=3_600_000))
        await m.table(SCHEMAS).put(Schema("pulsar", "ns/orders", 1, "avro", '"string"'), expected_version=0)
        versions = [found.record.schema_version async for found in m.table(SCHEMAS).list("pulsar", "ns/orders")]
        assert versions == [1]
        namespace = await m.table(NAMESPACES).get("pulsar", "ns")
        assert namespace is not None
        assert namespace.record.retention_ms == 3_600_000
        async with await m.image("kv", tenant="pulsar").caught_up() as cache:
            assert cache["kv"][KvKey("pulsar", "/managed-ledgers/a/b/1")].version == 2
