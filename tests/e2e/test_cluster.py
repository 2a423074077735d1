"""Three real nodes: writes go on while one is killed and comes back, and nothing that was acknowledged is missing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from e2e_metadctl import metadctl
from e2e_nodes import NAMES, PAUSE_S, Nodes
from e2e_server import until_settled

from metad_client import (
    Client,
    KvKey,
    KvOperation,
    KvPutItem,
    KvTransaction,
    MetadError,
    OffsetCommitItem,
    OffsetKey,
    SessionTakeoverItem,
    connect,
)
from metad_client.options import Options
from waiting import wait_until


class Writer:
    """Writes new keys and offsets, and remembers what was acknowledged."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self.written: dict[tuple[str, str], bytes] = {}
        self.committed: dict[tuple[str, int], int] = {}
        self.failures: list[MetadError] = []
        self.rounds = 0
        self.stopping = False

    async def run(self) -> None:
        while not self.stopping:
            self.rounds += 1
            number = self.rounds
            # The counter's versions tell whether a retry was done twice.
            items = [KvPutItem(f"{self._name}-{i}", f"k{number}", str(number).encode()) for i in range(16)]
            items += [KvPutItem(f"{self._name}-{i}", "counter", b"", number - 1) for i in range(8)]
            commits = [OffsetCommitItem("t", f"{self._name}-{i}", "topic", i, number) for i in range(8)]
            put = await self._client.kv.put_many(items)
            commit = await self._client.offsets.commit_many(commits)
            self.failures += [*put.errors.values(), *commit.errors.values()]
            self.written |= {(i.namespace, i.key): i.value for i in items if i.key != "counter"}
            self.committed |= {(c.group, c.partition): c.offset for c in commits}
            await asyncio.sleep(PAUSE_S)

    async def check(self) -> None:
        keys = list(self.written)
        found = await self._client.kv.get_many([KvKey(*key) for key in keys])
        found.raise_for_error()
        assert [(kv.value if kv is not None else None) for kv in found] == list(self.written.values())
        assert {kv.version for kv in found if kv is not None} == {1}
        counters = await self._client.kv.get_many([KvKey(f"{self._name}-{i}", "counter") for i in range(8)])
        counters.raise_for_error()
        assert {kv.version for kv in counters if kv is not None} == {self.rounds}
        offsets = await self._client.offsets.fetch_many([OffsetKey("t", g, "topic", p) for g, p in self.committed])
        offsets.raise_for_error()
        assert [(o.offset if o is not None else None) for o in offsets] == list(self.committed.values())


async def leaders(client: Client) -> dict[str, str]:
    return (await client.cluster.map()).leaders


async def until_leaders(client: Client, condition: Callable[[dict[str, str]], object]) -> dict[str, str]:
    async with asyncio.timeout(120):
        while not condition(found := await leaders(client)):  # noqa: ASYNC110 - the nodes do not call back
            await asyncio.sleep(0.05)
        return found


async def until_written(writers: list[Writer], rounds: int) -> None:
    """Wait until each writer has begun this many more rounds."""
    wanted = [writer.rounds + rounds for writer in writers]
    async with asyncio.timeout(120):
        while any(writer.rounds < most for writer, most in zip(writers, wanted, strict=True)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_every_acknowledged_write_survives_a_node(nodes: Nodes) -> None:
    async with connect(nodes.url, Options(deadline_s=20)) as client:
        before = await until_settled(client)
        writers = [Writer(client, f"w{i}") for i in range(3)]
        tasks = [asyncio.create_task(writer.run()) for writer in writers]
        try:
            await until_written(writers, 3)
            victim = before["data-1"]
            await asyncio.to_thread(nodes.kill, victim)
            await until_written(writers, 4)  # the others go on
            after = await until_leaders(client, lambda found: all(found.values()) and victim not in found.values())
            await asyncio.to_thread(nodes.restart, victim)
            # It is given back what it should lead.
            await until_leaders(client, lambda found: found["data-1"] == victim)
            target = next(n for n in NAMES if n != after["offset-0"])
            await client.cluster.transfer("offset-0", target)
            await until_leaders(client, lambda found: found["offset-0"] == target)
            await until_written(writers, 1)
        finally:
            for writer in writers:
                writer.stopping = True
            await asyncio.gather(*tasks)
        assert [writer.failures for writer in writers] == [[], [], []]
        for writer in writers:
            await writer.check()
        assert client.statistics().nodes == 3


async def test_reads_listings_and_the_shell_see_the_whole_cluster(nodes: Nodes) -> None:
    async with connect(f"metad://{nodes.endpoints['n2']}", Options(deadline_s=10)) as client:
        names = [f"c{i:03}" for i in range(200)]
        taken = await client.sessions.takeover_many("b", 1, [SessionTakeoverItem("t", name) for name in names])
        taken.raise_for_error()
        assert [s.client_id async for s in client.sessions.list("t", page_size=30)] == names
        known = await client.cluster.map()
        assert known.map is not None
        groups = [group.group_id.name for group in known.map.groups]

    def ctl(*arguments: str) -> str:
        done = metadctl(nodes.endpoints["n3"], *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed = json.loads(await asyncio.to_thread(ctl, "groups", "--json"))
    assert sorted(group["group"] for group in listed) == sorted(groups)
    assert all(group["leader"] in NAMES for group in listed)
    members = json.loads(await asyncio.to_thread(ctl, "members", "--json"))
    assert [member["node"] for member in members] == list(NAMES)
    target = next(name for name in NAMES if name != listed[0]["leader"])
    await asyncio.to_thread(ctl, "transfer", listed[0]["group"], target)

    def moved() -> bool:
        groups = json.loads(ctl("groups", "--json"))
        return next(g["leader"] for g in groups if g["group"] == listed[0]["group"]) == target

    await asyncio.to_thread(wait_until, moved, "the transfer", 10)


def spread(operations: int, namespace: str) -> list[KvTransaction]:
    """Transactions of so many puts of some 8 KB each, for they share a long namespace."""
    puts = [KvOperation(f"{i}", b"") for i in range(100)]
    return [KvTransaction(f"{namespace}{n:04000}", [], puts) for n in range(operations // 100)]


async def test_whatever_is_accepted_is_replicated(nodes: Nodes) -> None:
    # An entry over the frame limit between nodes was sent again and again: no write of the group got through until its
    # leader was killed.
    async with connect(nodes.url, Options(deadline_s=20)) as client:
        await until_settled(client)
        # 4.8 MB, which the server refuses as one change: the SDK sends it in halves.
        (await client.kv.transact_many(spread(600, "over"))).raise_for_error()
        assert await client.kv.put("n", "k", b"behind what was refused") == 1
        (await client.kv.transact_many(spread(200, "most"))).raise_for_error()  # 1.6 MB
        keys = [KvPutItem("n", f"{i:04080}", b"") for i in range(4_080)]
        (await client.kv.put_many(keys)).raise_for_error()
        values = [KvPutItem("n", f"v{i}", bytes(1024 * 1024 - 200)) for i in range(15)]
        (await client.kv.put_many(values)).raise_for_error()
        assert await client.kv.put("n", "k", b"behind what was taken") == 2
        # Every replica has all of it.
        for name in NAMES:
            async with connect(f"metad://{nodes.endpoints[name]}", Options(deadline_s=20)) as one:
                async with asyncio.timeout(120):
                    while True:
                        status = await one.status()
                        if all(group.applied == group.last for group in status.groups):
                            break
                        await asyncio.sleep(0.05)
