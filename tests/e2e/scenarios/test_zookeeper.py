"""ZooKeeper: names that die with their owner, watches in order, an election, numbered nodes and readers that follow.

What a program keeps with a lease is gone when it is killed, and whoever watches is told. The first to create a key is
the controller; the next one gets it when the first one is gone, with a higher number. Sequences number the entries of
a queue. An image is read without asking the leader, as an observer's clients read.

Not yet: permissions. Rules are kept (``metadctl acls``), and metad itself holds nobody to them. ZooKeeper's own
protocol is not spoken.
"""

from __future__ import annotations

import asyncio
import sys

import pytest
from e2e_nodes import Nodes

from metad_client import (
    ChangeKind,
    Client,
    ConflictError,
    KvCompare,
    KvKey,
    KvOperation,
    KvTransaction,
    NotFoundError,
    connect,
)
from waiting import until

SHOWS = """
kv.put kv.get kv.scan kv.delete kv.transact watch.open lease.grant lease.keep_alive lease.get lease.list lease.keys
lease.attach lease.detach lease.revoke sequence.add sequence.get sequence.list sequence.delete
"""
OWNER = """
import sys
from metad_client import blocking

with blocking.connect(sys.argv[1]) as m:
    with m.hold("zk", ttl_s=2, holder="the owner") as lease:
        m.kv.put("zk", "/brokers/1", b"here", lease=lease.name)
        lead = lease.lock("/controller", b"the owner")
        print(lead.token, flush=True)
        sys.stdin.read()
"""


async def test_what_is_ephemeral_ends_with_its_owner_and_the_next_controller_is_elected(
    m: Client, cluster: Nodes
) -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, cluster.url, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert owner.stdout is not None
        token = int(await owner.stdout.readline())
        with pytest.raises(ConflictError):  # the first to create it has won
            await m.kv.put("zk", "/controller", b"somebody else", expected_version=0)
        assert [lease.holder async for lease in m.leases.list("zk")] == ["the owner"]
        async with (
            await m.watch("kv", tenant="zk", start="snapshot").opened() as watch,
            m.hold("zk", ttl_s=20, holder="the next") as lease,
        ):
            waiting = asyncio.create_task(lease.lock("/controller", b"the next"))
            owner.kill()
            lead = await waiting
            assert lead.token > token
            assert await m.kv.get("zk", "/brokers/1") is None
            late = KvTransaction("zk", [KvCompare("/controller", create_revision=token)], [KvOperation("/plan", b"")])
            assert not (await m.kv.transact(late)).succeeded, "of a controller that does not know yet that it is none"
            assert (await m.kv.transact(KvTransaction("zk", [lead.guard], [KvOperation("/plan", b"1")]))).succeeded
            told = []
            while ("/plan", ChangeKind.CREATED) not in told:
                batch = await watch.next()
                assert batch is not None
                told += [(event.key.key, event.kind) for event in batch.events]
        assert told[:2] == [("/brokers/1", ChangeKind.WRITTEN), ("/controller", ChangeKind.WRITTEN)], "as it was"
        gone, elected = told.index(("/brokers/1", ChangeKind.EXPIRED)), told.index(("/plan", ChangeKind.CREATED))
        assert gone < elected
    finally:
        if owner.returncode is None:
            owner.kill()
        await owner.communicate()


async def test_sequential_nodes_of_a_queue_are_taken_in_order(m: Client, cluster: Nodes) -> None:
    async with connect(cluster.url) as other, m.image("kv", tenant="zkq") as image:
        numbers = []
        for client in (m, other, m, other):
            number = await client.sequences.add("zkq", "/queue/n-")
            await client.kv.put("zkq", f"/queue/n-{number:010}", b"%d" % number, expected_version=0)
            numbers.append(number)
        assert numbers == [1, 2, 3, 4]
        record = await m.sequences.get("zkq", "/queue/n-")
        assert record is not None
        assert record.value == 4
        children = [kv.key async for kv in m.kv.scan("zkq", "/queue/")]
        assert children == [f"/queue/n-{number:010}" for number in numbers]
        await m.kv.delete("zkq", children[0])
        with pytest.raises(NotFoundError):  # another took it
            await other.kv.delete("zkq", children[0])
        await image.caught_up()
        await until(lambda: [key.key for key in image["kv"]] == children[1:], "the image follows")
        assert image["kv"][KvKey("zkq", children[1])].value == b"2"
        assert [found.sequence async for found in m.sequences.list("zkq")] == ["/queue/n-"]
        await m.sequences.delete("zkq", "/queue/n-")
        assert await m.sequences.add("zkq", "/queue/n-") == 1


async def test_a_session_keeps_what_is_attached_to_it(m: Client) -> None:
    session = await m.leases.grant("zks", 60_000, holder="a client")
    assert await m.leases.keep_alive("zks", session) > 50_000
    for key in ("/a", "/b", "/stays"):
        await m.kv.put("zks", key, b"")
        await m.leases.attach("zks", session, key)
    await m.leases.detach("zks", session, "/stays")
    assert [key async for key in m.leases.keys("zks", session)] == ["/a", "/b"]
    found = await m.leases.get("zks", session)
    assert found is not None
    assert (found.holder, found.keys) == ("a client", 2)
    await m.leases.revoke("zks", session)
    assert [kv.key async for kv in m.kv.scan("zks", "")] == ["/stays"]
    assert await m.leases.keep_alive("zks", session) == 0
