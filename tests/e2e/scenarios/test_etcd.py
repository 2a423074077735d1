"""etcd: reads that prove themselves and reads from a copy, transactions, leases, watches from a revision, compaction.

A read sees every write that was acknowledged before it, from whatever node. A transaction compares, does one thing or
another and reads, all at once, within a namespace. A watch from a token delivers what has happened since, once and in
order; from one whose log is gone it says so and begins with a snapshot.

Not yet: old revisions of a key cannot be read; nothing spans groups; the log is cut by its size, not by a command.
"""

from __future__ import annotations

import asyncio

import pytest
from e2e_nodes import NAMES, Nodes

from metad_client import (
    ChangeKind,
    Client,
    ConflictError,
    KvCompare,
    KvDeleteItem,
    KvKey,
    KvOperation,
    KvPutItem,
    KvTransaction,
    NotFoundError,
    connect,
)

SHOWS = """
kv.get kv.put kv.delete kv.scan kv.transact lease.grant lease.revoke watch.open
"""


async def test_reads_and_transactions(m: Client, cluster: Nodes) -> None:
    readers = [connect(f"metad://{cluster.endpoints[name]}") for name in NAMES]
    await asyncio.gather(*(reader.open() for reader in readers))
    async with m.image("kv", tenant="etcd") as image:
        await image.caught_up()
        for number in range(50):  # linearizable, whichever node is asked
            await m.kv.put("etcd", "counter", b"%d" % number)
            found = await asyncio.gather(*(reader.kv.get("etcd", "counter") for reader in readers))
            assert [kv and kv.value for kv in found] == [b"%d" % number] * 3
        # What a copy shows may be old, and says by how much; this one is not older than the last write from here on.
        kv = await (await m.image("kv", tenant="etcd").caught_up()).caught_up()
        assert kv["kv"][KvKey("etcd", "counter")].value == b"49"
        await kv.close()
    await asyncio.gather(*(reader.close() for reader in readers))

    buy = KvTransaction(
        "etcd",
        compares=[KvCompare("counter", value=b"49"), KvCompare("sold", version=0)],
        then=[KvOperation("counter", b"48"), KvOperation("sold", b"1")],
        otherwise=[KvOperation("refused", b"1")],
        reads=["counter", "refused"],
    )
    won, lost = [await m.kv.transact(buy), await m.kv.transact(buy)]
    assert (won.succeeded, lost.succeeded) == (True, False)
    assert [kv and kv.value for kv in won.records] == [b"48", None]
    assert [kv and kv.value for kv in lost.records] == [b"48", b"1"]

    # Batches are answered item by item; what goes with a lease ends with it.
    lease = await m.leases.grant("etcd", 60_000)
    batch = [KvPutItem("etcd", f"node/{i}", b"", 0 if i != 3 else 9) for i in range(100)]
    result = await m.kv.put_many(batch, lease=lease)
    assert {at: type(error) for at, error in result.errors.items()} == {3: ConflictError}
    gone = await m.kv.delete_many([KvDeleteItem("etcd", "node/3"), KvDeleteItem("etcd", "node/4")])
    assert {at: type(error) for at, error in gone.errors.items()} == {0: NotFoundError}
    assert len([kv async for kv in m.kv.scan("etcd", "node/")]) == 98
    await m.leases.revoke("etcd", lease)
    assert [kv.key async for kv in m.kv.scan("etcd", "")] == ["counter", "refused", "sold"]


async def test_a_watch_from_a_revision(m: Client, cluster: Nodes) -> None:
    watch = await m.watch("kv", tenant="etcdw").opened()
    token = watch.token
    await watch.close()
    for number in range(20):
        await m.kv.put("etcdw", f"k{number % 4}", b"%d" % number)
    await m.kv.delete("etcdw", "k0")
    async with connect(f"metad://{cluster.endpoints['n2']}") as other:
        for _ in range(2):  # from one token the same changes, however often
            told = []
            async with other.watch("kv", tenant="etcdw", token=token, previous=True) as watch:
                while len(told) < 21:
                    batch = await watch.next()
                    assert batch is not None
                    told += batch.events
            values = [event.record.value for event in told if event.record is not None]
            assert values == [b"%d" % number for number in range(20)], "in order, none twice"
            assert (told[-1].kind, told[-1].previous and told[-1].previous.value) == (ChangeKind.DELETED, b"16")
            revisions = [event.version for event in told]
            assert revisions == sorted(revisions)


async def test_a_watch_from_a_revision_whose_log_is_gone(m: Client) -> None:
    watch = await m.watch("kv", tenant="etcdc").opened()
    token = watch.token
    await watch.close()
    kinds: list[str] = []
    async with asyncio.timeout(100):
        for number in range(1_000):  # until the log is cut behind the token
            items = [KvPutItem("etcdc", f"k{i}", b"-" * 5_000) for i in range(100)]
            (await m.kv.put_many([*items, KvPutItem("etcdc", "last", b"%d" % number)])).raise_for_error()
            state: dict[str, bytes] = {}
            kinds = []
            async with m.watch("kv", tenant="etcdc", token=token) as watch:
                while state.get("last") != b"%d" % number:
                    batch = await watch.next()
                    assert batch is not None
                    kinds.append(batch.kind)
                    state |= {event.key.key: event.record.value for event in batch.events if event.record is not None}
            if "gap" in kinds:
                break
    assert kinds.index("gap") < kinds.index("snapshot")
    assert "changes" not in kinds[: kinds.index("gap")], "nothing is told that has a hole behind it"
    assert {key: len(value) for key, value in state.items() if key != "last"} == {f"k{i}": 5_000 for i in range(100)}
    with pytest.raises(NotFoundError):
        await m.kv.delete("etcdc", "never")
