"""Kafka on ZooKeeper: a controller that is elected among the brokers, and gives each partition a leader.

Brokers are processes. The controller hears by a watch that they have come, computes which broker has which partition
of a new topic, and writes topic and partitions at once. Each broker is told what it leads. One is killed: the
controller hears of it and gives its partitions to replicas in sync, with the next leader epoch. A controller that was
replaced, and does not know it, writes nothing.

Not yet: metad computes no assignment itself. There is no engine for placement; each system brings its controller.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence

import msgspec
from e2e_nodes import Nodes

from metad_client import Client, Compare, Put, Transaction, connect
from metad_wire.families.core import TOPICS, Topic
from metad_wire.families.stream import TOPIC_PARTITIONS as PARTITIONS
from metad_wire.families.stream import TopicPartition as Partition

SHOWS = """
broker.list watch.open kv.transact lease.grant table.transact table.list
"""
PARTS = 6
BROKER = """
import asyncio, sys
from metad_client import connect
from metad_wire.families.stream import TOPIC_PARTITIONS as PARTITIONS

async def main(url, name):
    async with connect(url) as m, m.watch(PARTITIONS, tenant="kafka", start="snapshot") as watch:
        await m.brokers.register(name, lease_s=2, address=name + ":9092")
        async for batch in watch:
            for event in batch.events:
                part = event.record and event.record.record
                if part is not None and part.leader == name:
                    print(part.topic, part.partition, part.leader_epoch, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def leads(process: asyncio.subprocess.Process, count: int) -> list[list[str]]:
    """What a broker is told that it leads: topic, partition, epoch."""
    assert process.stdout is not None
    return sorted([(await process.stdout.readline()).decode().split() for _ in range(count)])


class Controller:
    """Follows the brokers by a watch. ``candidate`` names it in the election."""

    def __init__(self, m: Client) -> None:
        self._m = m
        self._watch = m.watch("broker", prefix="kafka-", start="snapshot")
        self.alive: set[str] = set()

    async def hears(self, alive: set[str]) -> None:
        """Wait until it knows of these brokers and no others."""
        while self.alive != alive:
            batch = await self._watch.next()
            assert batch is not None
            for event in batch.events:
                lives = event.record is not None and event.record.state in ("registered", "active")
                (self.alive.add if lives else self.alive.discard)(event.key.broker)

    async def create(self, topic: str) -> bool:
        """Give each partition replicas on two brokers, in turn; False if there is the topic already."""
        brokers = sorted(self.alive)
        made = [Put(TOPICS, Topic("kafka", topic, PARTS, 2))]
        for part in range(PARTS):
            replicas = [brokers[(part + copy) % len(brokers)] for copy in range(2)]
            made.append(Put(PARTITIONS, Partition("kafka", topic, part, replicas, replicas, replicas[0], 1, 1)))
        new = Compare(TOPICS, ("kafka", topic), version=0)
        return (await self._m.tables.transact(Transaction(compares=[new], then=made))).succeeded

    async def replace(self, dead: str, seen: Sequence[Partition]) -> list[bool]:
        """Give the partitions that a broker led to others in sync, if they are as they were seen: which were given."""
        given = []
        for old in seen:
            if old.leader == dead:
                rest = [broker for broker in old.in_sync if broker != dead]
                new = msgspec.structs.replace(
                    old,
                    in_sync=rest,
                    leader=rest[0],
                    leader_epoch=old.leader_epoch + 1,
                    partition_epoch=old.partition_epoch + 1,
                )
                key = (old.tenant, old.topic, old.partition)
                unchanged = Compare(PARTITIONS, key, field="partition_epoch", value=old.partition_epoch)
                change = Transaction(compares=[unchanged], then=[Put(PARTITIONS, new)])
                given.append((await self._m.tables.transact(change)).succeeded)
        return given


async def test_a_controller_assigns_partitions_and_replaces_a_leader_that_dies(m: Client, cluster: Nodes) -> None:
    names = ["kafka-1", "kafka-2", "kafka-3"]
    processes = {
        name: await asyncio.create_subprocess_exec(
            sys.executable, "-c", BROKER, cluster.url, name, stdout=asyncio.subprocess.PIPE
        )
        for name in names
    }
    try:
        async with connect(cluster.url) as other, m.hold("kafka", ttl_s=20) as mine, other.hold("kafka") as theirs:
            first = await mine.lock("/controller", b"first")
            waiting = asyncio.create_task(theirs.lock("/controller", b"second"))
            controller, successor = Controller(m), Controller(other)
            await controller.hears({*names})
            assert await controller.create("orders")
            assert not await controller.create("orders"), "as one who did not know"
            told = await asyncio.gather(*(leads(processes[name], PARTS // 3) for name in names))
            assert sorted(int(part) for each in told for _, part, _ in each) == [*range(PARTS)]
            assert {epoch for each in told for _, _, epoch in each} == {"1"}

            seen = [found.record async for found in m.table(PARTITIONS).list("kafka", "orders")]
            processes["kafka-1"].kill()
            await successor.hears({*names})
            await first.release()
            assert (await waiting).token > first.token
            await successor.hears({"kafka-2", "kafka-3"})
            assert await successor.replace("kafka-1", seen) == [True, True]
            assert await controller.replace("kafka-1", seen) == [False, False], "it has been replaced"
            assert await leads(processes["kafka-2"], 2) == [["orders", "0", "2"], ["orders", "3", "2"]]
            now = [found.record async for found in m.table(PARTITIONS).list("kafka", "orders")]
            assert Counter(part.leader for part in now) == {"kafka-2": 4, "kafka-3": 2}
            assert [broker.broker async for broker in m.brokers.list("kafka-", state="fenced")] == ["kafka-1"]
    finally:
        for process in processes.values():
            if process.returncode is None:
                process.kill()
            await process.communicate()
