"""Coordinator, broker and replica design (Coo-M-S): coordinators place, masters serve, replicas wait to be promoted.

Masters say with their heartbeats how loaded they are, and follow what is placed with them. The coordinator places the
partitions by a hash that is weighted by load, so that a master that joins gets its share and nothing else moves. When
a master dies, its replica is promoted, and the dead one's life is fenced: the two never write beside each other. A
client routes by key with a copy, and a master refuses a route that is old by its revision.

Not yet: the coordinator is a program of the test. metad has no engine for placement, no throttled plan of moves, no
advice to scale out, and no metrics over HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from hashlib import blake2b
from math import log
from zlib import crc32

import msgspec
import pytest
from e2e_nodes import Nodes

from metad_client import Client, Compare, FencedError, Put, StaleRouteError, Transaction, connect
from metad_wire.families.core import TOPICS, Topic
from metad_wire.families.stream import TOPIC_PARTITIONS as PARTITIONS
from metad_wire.families.stream import TopicPartition as Partition
from waiting import until

SHOWS = """
broker.register broker.heartbeat broker.get broker.fence watch.open table.transact table.list offset.commit
offset.fetch
"""
PARTS = 60
SERVES = ("registered", "active")


def placed(part: int, weights: Mapping[str, float]) -> list[str]:
    """Master and replica of a partition, by the highest weighted hash."""

    def score(master: str) -> float:
        hashed = int.from_bytes(blake2b(f"{master}/{part}".encode(), digest_size=7).digest(), "big")
        return -weights[master] / log((hashed + 1) / (2**56 + 1))

    return sorted(weights, key=score, reverse=True)[:2]


class Coordinator:
    def __init__(self, m: Client) -> None:
        self._m = m

    async def weights(self, names: list[str]) -> dict[str, float]:
        """Of the masters that live: the less load, the more."""
        found = await self._m.brokers.get_many(names)
        return {each.broker: 100.0 - each.load for each in found if each is not None and each.state in SERVES}

    async def place(self, weights: Mapping[str, float]) -> int:
        """Write what is placed elsewhere than it should be, each partition with its next epoch; how many."""
        known = {found.record.partition: found.record async for found in self._m.table(PARTITIONS).list("coms", "t")}
        changes = []
        for part in range(PARTS):
            old, replicas = known.get(part), placed(part, weights)
            if old is not None and old.replicas == replicas:
                continue
            epoch = 1 if old is None else old.leader_epoch + 1
            seen = Compare(PARTITIONS, ("coms", "t", part), field="leader_epoch", value=epoch - 1)
            if old is None:
                seen = Compare(PARTITIONS, ("coms", "t", part), version=0)
            new = Partition("coms", "t", part, replicas, replicas, replicas[0], epoch)
            changes.append(Transaction(compares=[seen], then=[Put(PARTITIONS, new)]))
        done = await self._m.tables.transact_many(changes)
        done.raise_for_error()
        return sum(result is not None and result.succeeded for result in done.results)

    async def promote(self, dead: str) -> int:
        """Fence a master first, and only then give what it had to the replicas."""
        ended = await self._m.brokers.fence(dead)
        assert ended.unfenced == []
        promoted = 0
        async for found in self._m.table(PARTITIONS).list("coms", "t"):
            if found.record.leader == dead:
                rest = [each for each in found.record.in_sync if each != dead]
                epoch = found.record.leader_epoch + 1
                new = msgspec.structs.replace(found.record, leader=rest[0], in_sync=rest, leader_epoch=epoch)
                seen = Compare(PARTITIONS, ("coms", "t", found.record.partition), version=found.version)
                done = await self._m.tables.transact(Transaction(compares=[seen], then=[Put(PARTITIONS, new)]))
                promoted += done.succeeded
        return promoted


async def joined(cluster: Nodes, stack: AsyncExitStack, name: str, load: int) -> Client:
    """One that has come, and says with its heartbeats how loaded it is."""
    client = await stack.enter_async_context(connect(cluster.url))
    (await client.brokers.register(name, lease_s=2)).report(load)
    return client


async def test_masters_are_placed_promoted_and_fenced(m: Client, cluster: Nodes) -> None:
    async with AsyncExitStack() as stack:
        loads = {"coms-1": 0, "coms-2": 0, "coms-3": 50}
        clients = {name: await joined(cluster, stack, name, load) for name, load in loads.items()}
        names, coordinator = sorted(clients), Coordinator(m)

        async def reported() -> bool:
            return await coordinator.weights(names) == {"coms-1": 100, "coms-2": 100, "coms-3": 50}

        await until(reported, "the loads")
        await m.table(TOPICS).put(Topic("coms", "t", PARTS, 2))
        assert await coordinator.place(await coordinator.weights(names)) == PARTS
        image = await stack.enter_async_context(await m.image(PARTITIONS, tenant="coms").caught_up())

        def leaders() -> dict[int, tuple[str, int]]:
            """As a client routes: partition -> master, epoch."""
            return {key.partition: (r.record.leader, r.record.leader_epoch) for key, r in image[PARTITIONS].items()}

        first = leaders()
        led = {name: [master for master, _ in first.values()].count(name) for name in names}
        assert led["coms-3"] < min(led["coms-1"], led["coms-2"])

        # A master joins: it gets its share, and nothing moves between the others.
        clients["coms-4"] = await joined(cluster, stack, "coms-4", 0)
        names.append("coms-4")
        moved = await coordinator.place(await coordinator.weights(names))
        await until(lambda: [e for _, e in leaders().values()].count(2) == moved, "the moves")
        assert 0 < moved < PARTS
        for part, (master, _) in leaders().items():
            assert master in (first[part][0], "coms-4")

        # A client routes by key, with a copy that it reads anew when a master refuses it. The master of the key writes;
        # one that dies is fenced before another writes.
        part = next(
            crc32(b"%d" % key) % PARTS for key in range(999) if leaders()[crc32(b"%d" % key) % PARTS][0] == "coms-1"
        )
        route = leaders()[part]
        copy, at_master = [await one.routes(PARTITIONS, "coms", "t") for one in (m, clients["coms-2"])]
        known = copy[part]
        assert (known.record.leader, known.record.leader_epoch) == route
        await clients["coms-1"].offsets.commit("coms", "written", "t", part, 10, generation=route[1])
        lead = [master for master, _ in leaders().values()].count("coms-1")
        assert await coordinator.promote("coms-1") == lead
        await until(lambda: "coms-1" not in {master for master, _ in leaders().values()}, "the promotions")
        await at_master.refresh()
        with pytest.raises(StaleRouteError):
            await at_master.check(known.mod_revision, part)
        await copy.refresh()
        found = await at_master.check(copy[part].mod_revision, part)
        successor, epoch = leaders()[part]
        assert (found.record.leader, found.record.leader_epoch) == (successor, epoch)
        assert epoch == route[1] + 1
        with pytest.raises(FencedError):  # it has not heard of anything, and still sends heartbeats
            await clients["coms-1"].offsets.commit("coms", "written", "t", part, 11, generation=route[1])
        await clients[successor].offsets.commit("coms", "written", "t", part, 12, generation=epoch)
        with pytest.raises(FencedError):  # a route that is old, at whatever master
            await m.offsets.commit("coms", "written", "t", part, 13, generation=route[1])
        written = await m.offsets.fetch("coms", "written", "t", part)
        assert written is not None
        assert (written.offset, written.generation) == (12, epoch)
