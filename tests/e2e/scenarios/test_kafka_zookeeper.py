"""Kafka on ZooKeeper: a controller that is elected among the brokers, and gives each partition a leader.

Brokers are processes. The controller hears by a watch that they have come, computes which broker has which partition
of a new topic, and has it made so. Each broker is told what it leads. One is killed: metad gives its partitions to
replicas in sync, with the next leader epoch, and the controller that has taken over spreads the leaders again. What a
controller asks for that has been done already changes nothing.

Not yet: its own protocol. Beside its controller's lock, metad does not ask which controller gives an order.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

from e2e_nodes import Nodes
from serving_brokers import parts

from metad_client import Client, ConflictError, connect
from metad_client.errors import NoCandidateError
from waiting import WAIT_S

SHOWS = """
broker.list watch.open kv.transact lease.grant table.list assignment.create assignment.elect
"""
PARTS = 6
BROKER = """
import asyncio, sys
from metad_client import connect
from metad_wire.families.assignment import PARTITIONS

async def main(url, name):
    led = set()
    async with connect(url) as m, m.watch(PARTITIONS, tenant="kafka", start="snapshot") as watch:
        await m.brokers.register(name, lease_s=10, address=name + ":9092")
        async for batch in watch:
            for event in batch.events:
                part = event.record and event.record.record
                if part is None or part.leader is None or part.leader.broker != name:
                    continue
                if (part.partition, part.leader_epoch) not in led:
                    led.add((part.partition, part.leader_epoch))
                    print(part.resource, part.partition, part.leader_epoch, flush=True)

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
        replicas = [[brokers[(part + copy) % len(brokers)] for copy in range(2)] for part in range(PARTS)]
        try:
            await self._m.assignments.create(
                "kafka", topic, "topic", partitions=PARTS, replication=2, replicas=replicas
            )
        except ConflictError:
            return False
        return True

    async def lead(self, topic: str, part: int, broker: str) -> bool:
        """Let this replica lead; False if it does already, or is not in sync."""
        try:
            await self._m.assignments.elect("kafka", topic, "topic", part, broker=broker)
        except NoCandidateError:
            return False
        return True


async def test_a_controller_assigns_partitions_and_replaces_a_leader_that_dies(m: Client, cluster: Nodes) -> None:
    names = ["kafka-1", "kafka-2", "kafka-3"]
    processes = {
        name: await asyncio.create_subprocess_exec(
            sys.executable, "-c", BROKER, cluster.url, name, stdout=asyncio.subprocess.PIPE
        )
        for name in names
    }
    try:
        async with (
            asyncio.timeout(WAIT_S),
            connect(cluster.url) as other,
            m.hold("kafka", ttl_s=20) as mine,
            other.hold("kafka") as theirs,
        ):
            first = await mine.lock("/controller", b"first")
            waiting = asyncio.create_task(theirs.lock("/controller", b"second"))
            controller, successor = Controller(m), Controller(other)
            await controller.hears({*names})
            assert await controller.create("orders")
            assert not await controller.create("orders"), "as one who did not know"
            told = await asyncio.gather(*(leads(processes[name], PARTS // 3) for name in names))
            assert sorted(int(part) for each in told for _, part, _ in each) == [*range(PARTS)]
            assert {epoch for each in told for _, _, epoch in each} == {"1"}

            processes["kafka-1"].kill()
            await successor.hears({*names})
            await first.release()
            assert (await waiting).token > first.token
            await successor.hears({"kafka-2", "kafka-3"})
            assert await leads(processes["kafka-2"], 2) == [["orders", "0", "2"], ["orders", "3", "2"]]
            now = await parts(m, "kafka", "orders")
            assert Counter(part.leader.broker for part in now if part.leader) == {"kafka-2": 4, "kafka-3": 2}
            assert await successor.lead("orders", 1, "kafka-3")
            assert not await controller.lead("orders", 1, "kafka-3"), "as one who did not know"
            assert not await controller.lead("orders", 0, "kafka-1"), "it is dead"
            assert await leads(processes["kafka-3"], 1) == [["orders", "1", "2"]]
            assert [broker.broker async for broker in m.brokers.list("kafka-", state="fenced")] == ["kafka-1"]
    finally:
        for process in processes.values():
            if process.returncode is None:
                process.kill()
            await process.communicate()
