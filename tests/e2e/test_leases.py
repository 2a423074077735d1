"""Leases, locks, elections and sequences of real nodes: a holder that is killed, and a leader that is."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from e2e_nodes import Nodes

from metad_client import (
    Client,
    DeadlineExceededError,
    KvCompare,
    KvKey,
    KvOperation,
    KvPutItem,
    KvTransaction,
    LeaseState,
    SequenceAddItem,
    blocking,
    connect,
)
from metad_client.options import Options

OPTIONS = Options(deadline_s=60, connect_timeout_s=60)
PATIENCE_S = 120.0
TTL_S = 5.0
HOLDER = """
import sys
from metad_client import blocking

with blocking.connect(sys.argv[1]) as m:
    with m.hold("jobs", ttl_s=3, holder="the one that is killed") as lease:
        m.kv.put("jobs", "worker", b"here", lease=lease.name)
        lock = lease.lock("nightly", b"the one that is killed")
        print(lock.token, flush=True)
        sys.stdin.read()
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("leases")) as nodes:
        yield nodes


async def shows(m: Client, key: KvKey, value: bytes) -> None:
    """Wait until a watcher of the key is told this value."""
    async with asyncio.timeout(PATIENCE_S), m.watch("kv", keys=[key], start="snapshot") as watch:
        async for batch in watch:
            for event in batch.events:
                if event.record is not None and event.record.value == value:
                    return


async def leader_of(m: Client, namespace: str) -> str:
    """The node that leads the group of a namespace, by the group of an answer."""
    result = await m.kv.put_many([KvPutItem(namespace, "anything", b"")])
    group = result.revisions[0].group
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for status in (await m.cluster.statuses()).values():
                for each in getattr(status, "groups", ()):
                    if each.name == group and each.leader:
                        return str(each.leader)


async def test_the_next_one_gets_the_lock_of_a_program_that_is_killed(nodes: Nodes, tmp_path: Path) -> None:
    program = tmp_path / "holder.py"
    program.write_text(HOLDER)
    holder = await asyncio.create_subprocess_exec(
        sys.executable, str(program), nodes.url, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        token = int(await holder.stdout.readline())
        async with connect(nodes.url, OPTIONS) as m, m.hold("jobs", ttl_s=TTL_S, holder="next") as lease:
            with pytest.raises(DeadlineExceededError):
                await lease.lock("nightly", timeout_s=0.5)
            leases = {each.holder async for each in m.leases.list("jobs")}
            assert leases == {"next", "the one that is killed"}
            waiting = asyncio.create_task(lease.lock("nightly", b"next", timeout_s=PATIENCE_S))
            holder.kill()
            lock = await waiting
            assert lock.token > token
            assert lock.is_held
            assert await m.kv.get("jobs", "worker") is None, "it ended with the same lease"
            stale = KvTransaction("jobs", [KvCompare("nightly", create_revision=token)], [KvOperation("x", b"")])
            assert not (await m.kv.transact(stale)).succeeded
            mine = KvTransaction("jobs", [lock.guard], [KvOperation("x", b"")])
            assert (await m.kv.transact(mine)).succeeded
            await lock.release()
            assert await m.kv.get("jobs", "nightly") is None
    finally:
        if holder.returncode is None:
            with suppress(ProcessLookupError):
                holder.kill()
        await holder.communicate()


async def test_a_lease_outlives_the_leader_of_its_group(nodes: Nodes) -> None:
    async with connect(nodes.url, OPTIONS) as m, connect(nodes.url, OPTIONS) as other:
        async with m.hold("space", ttl_s=20) as lease, other.hold("space", ttl_s=20) as rival:
            lead = await lease.lock("leader", b"m")
            await shows(other, KvKey("space", "leader"), b"m")
            killed = await leader_of(m, "space")
            nodes.kill(killed)
            await m.kv.put("space", "after", b"1", lease=lease.name)
            assert lease.state is not LeaseState.LOST
            await lead.proclaim(b"m again")
            await shows(other, KvKey("space", "leader"), b"m again")
            assert lead.is_held or lease.state is LeaseState.SUSPENDED
            waiting = asyncio.create_task(rival.lock("leader", b"rival", timeout_s=PATIENCE_S))
            await lead.release()
            next_lead = await waiting
            assert next_lead.token > lead.token
            assert [key async for key in m.leases.keys("space", lease.name)] == ["after"]
            nodes.restart(killed)
        assert [each async for each in m.leases.list("space")] == [], "both were given back"
        assert await m.kv.get("space", "after") is None


async def test_a_revoked_lease_is_lost_to_its_holder(nodes: Nodes) -> None:
    async with connect(nodes.url, OPTIONS) as m, m.hold("space", ttl_s=1) as lease:
        told: list[LeaseState] = []
        lease.on_state(told.append)
        await m.leases.revoke("space", lease.name)
        async with asyncio.timeout(PATIENCE_S):
            await lease.lost()
        assert lease.state is LeaseState.LOST
        assert told[-1] is LeaseState.LOST


async def test_numbers_are_given_once(nodes: Nodes) -> None:
    async with connect(nodes.url, OPTIONS) as m:
        counted = await asyncio.gather(*(m.sequences.add("space", "order", 10) for _ in range(50)))
        assert sorted(counted) == list(range(10, 501, 10))
        several = await m.sequences.add_many([SequenceAddItem("space", "order", 1), SequenceAddItem("space", "b", 5)])
        assert several.values == [501, 5]


def test_the_blocking_client_holds_leases_too(nodes: Nodes) -> None:
    with blocking.connect(nodes.url, OPTIONS) as m, m.hold("blocked", ttl_s=TTL_S) as lease:
        m.kv.put("blocked", "a", b"1", lease=lease.name)
        with lease.lock("l", timeout_s=PATIENCE_S) as lock:
            assert lock.is_held
            assert m.sequences.add("blocked", "s") == 1
        assert list(m.leases.keys("blocked", lease.name)) == ["a"]
        assert lease.state is LeaseState.CONNECTED
