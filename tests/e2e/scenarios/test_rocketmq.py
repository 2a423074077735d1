"""RocketMQ broker metadata: what a broker of many tenants keeps in its configuration files, kept in metad.

Topics of a namespace are written in one batch that is answered item by item. A change of one topic writes one record,
and its watcher is told of that one. Queues are taken from the end of a topic: first for writing, then for reading.
The queues of broker groups are at the brokers that the author names, and shrink in the same order; a queue is there
until its brokers have said that they deleted it. A slave of a master that wrote in two places is promoted; where it
wrote in one only (asynchronously), somebody has to force that. Brokers that elect their master among themselves
(DLedger) say who it is, in terms that only grow. Subscription groups, consumers that share queues, and offsets, of
which a commit writes those that have changed.

Not yet: limits of tenants and permissions are kept and watched, but metad enforces them on nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

import msgspec
import pytest
from e2e_nodes import Nodes
from serving_brokers import Broker, created, joined, parts, placed

from metad_client import (
    Client,
    ConflictError,
    FencedError,
    InvalidItemError,
    Member,
    OffsetCommitItem,
    OffsetRegressionError,
    ShrinkError,
    TablePutItem,
    Watched,
    connect,
)
from metad_wire.families.core import NAMESPACES, TENANTS, TOPICS, Namespace, Tenant, Topic
from metad_wire.families.queue import SUBSCRIPTION_GROUPS, SubscriptionGroup
from waiting import until

SHOWS = """
table.put table.get table.list table.count table.delete table.transact watch.open
assignment.create assignment.resize assignment.release assignment.claim assignment.report assignment.elect
assignment.explain
offset.commit offset.fetch offset.delete offset.list offset.groups offset.generations offset.reset_generations
offset.delete_groups consumer.join consumer.heartbeat consumer.assign consumer.describe consumer.get consumer.members
consumer.leave
"""
QUEUES = 8


async def test_topics_are_written_in_batches_and_one_by_one(m: Client) -> None:
    topics = m.table(TOPICS)
    await m.table(TENANTS).put(Tenant("rocket", topics_max=1_000))
    await m.table(NAMESPACES).put_many([TablePutItem(Namespace("rocket", name)) for name in ("eu", "us")])
    batch = [Topic("rocket", f"eu%t{i:03}", read_queues=QUEUES, write_queues=QUEUES) for i in range(300)]
    batch[7] = msgspec.structs.replace(batch[7], permission=99)
    batch += [Topic("rocket", "us%t000"), Topic("other", "eu%t000")]
    result = await topics.put_many([TablePutItem(topic) for topic in batch])
    assert {at: type(error) for at, error in result.errors.items()} == {7: InvalidItemError}
    listed = [found.record.topic async for found in topics.list("rocket", prefix="eu%")]
    assert listed == [topic.topic for at, topic in enumerate(batch[:300]) if at != 7]
    assert await topics.count("rocket", prefix="us%") == 1

    # A topic shrinks: its last queues take no new messages, and go when they have been read.
    async with await m.watch(TOPICS, tenant="rocket").opened() as watch:
        await m.topics.resize("rocket", "eu%t000", write_queues=4)
        with pytest.raises(ConflictError) as stale:  # a broker that has read the topic before
            await topics.put(msgspec.structs.replace(batch[0], read_queues=16), expected_version=1)
        assert stale.value.current == 2
        with pytest.raises(ShrinkError):  # somebody writes to the queues that would go
            await m.topics.resize("rocket", "eu%t001", read_queues=4)
        await m.topics.resize("rocket", "eu%t000", read_queues=4)
        await topics.delete("rocket", "us%t000")
        told = []
        async for changes in watch:
            told += [
                (event.key.topic, found and (found.record.read_queues, found.record.write_queues))
                for event in changes.events
                for found in [event.record]
            ]
            if ("us%t000", None) in told and len(told) >= 3:
                break
    of_eu = [one for one in told if one[0] != "us%t000"]
    assert of_eu == [("eu%t000", (8, 4)), ("eu%t000", (4, 4))], "the 298 others were not written again"
    versions = {found.record.topic: found.version async for found in topics.list("rocket")}
    assert versions.pop("eu%t000") == 3
    assert {*versions.values()} == {1}


GROUPS = [["rocket-a", "rocket-b"], ["rocket-c", "rocket-d"]]
"""Each has a master and a slave."""


async def test_queues_of_broker_groups_shrink_at_the_tail_and_have_masters(m: Client, cluster: Nodes) -> None:
    async with AsyncExitStack() as stack:
        names = [name for group in GROUPS for name in group]
        brokers = {name: await joined(stack, cluster, name, "message_queue", "dledger") for name in names}
        queues, settings = m.assignments.message_queues, Topic("rocket2", "eu%t000", read_queues=4, write_queues=4)
        with pytest.raises(InvalidItemError):  # of which brokers?
            await queues.create("rocket2", "eu%t000", QUEUES, settings=settings)
        await placed(lambda: queues.create("rocket2", "eu%t000", QUEUES, settings=settings, replicas=GROUPS))
        assert [part.replicas for part in await parts(m, "rocket2", "eu%t000")] == GROUPS * 4
        await until(lambda: [len(each.led) for each in brokers.values()] == [4, 0, 4, 0], "each queue has a master")
        for broker in brokers.values():
            for key in broker.led:
                broker.append(key, 5)
        with pytest.raises(ShrinkError):  # producers write to the queues that would go
            await queues.resize("rocket2", "eu%t000", 4)
        await queues.resize("rocket2", "eu%t000", write_partitions=4)
        shrinking = await m.assignments.resources.get("rocket2", "eu%t000", "message_queue")
        assert shrinking is not None
        assert (shrinking.record.partitions, shrinking.record.write_partitions) == (QUEUES, 4)
        assert sum(len(broker.led) for broker in brokers.values()) == QUEUES, "consumers read the others to their end"

        brokers["rocket-a"].may_stop.clear()
        await queues.resize("rocket2", "eu%t000", 4)
        with pytest.raises(ConflictError):  # the same queue must not come again while somebody has the old one
            await queues.resize("rocket2", "eu%t000", 5, replicas=GROUPS)
        brokers["rocket-a"].may_stop.set()

        async def shrunk() -> bool:
            return len(await parts(m, "rocket2", "eu%t000")) == 4

        await until(shrunk, "the queues of the tail are deleted")
        assert {key[3] for broker in brokers.values() for key in broker.logs} == {0, 1, 2, 3}
        await queues.resize("rocket2", "eu%t000", 6, replicas=GROUPS)
        await until(lambda: sum(len(broker.led) for broker in brokers.values()) == 6, "new queues, which are empty")
        new = {broker.logs[key] for broker in brokers.values() for key in broker.led if key[3] >= 4}
        assert new == {(0, 0)}

        # Replicas that elect their master themselves. A master of an older term is refused.
        group = {"replicas": [names[1:]], "replication": 3, "election": "external"}
        await created(m, "rocket2", "log", "dledger", **group)
        key = ("rocket2", "log", "dledger", 0)
        for term, broker in ((7, brokers["rocket-b"]), (9, brokers["rocket-c"])):
            await m.assignments.claim(*key, broker.name, broker.life.epoch, term)
            await until(lambda broker=broker: key in broker.led, "the master is told")
        late = brokers["rocket-b"]
        with pytest.raises(ConflictError) as old:
            await m.assignments.claim(*key, late.name, late.life.epoch, 8)
        assert old.value.current == 9
        assert key not in late.led
        await a_master_dies(m, brokers)


async def a_master_dies(m: Client, brokers: Mapping[str, Broker]) -> None:
    """With two copies its slave has all that was acknowledged, and leads. With one copy somebody has to say that what
    only the master had may be lost."""
    await placed(lambda: m.assignments.message_queues.create("rocket2", "async", replicas=GROUPS[:1], copies=1))
    sync, single = (("rocket2", topic, "message_queue", 0) for topic in ("eu%t000", "async"))
    master, slave = brokers["rocket-a"], brokers["rocket-b"]
    await until(lambda: single in master.led and single in slave.serving.held, "both have the queue")
    master.append(sync, 3)
    master.append(single, 3)
    slave.logs[sync] = master.logs[sync]
    slave.logs[single] = (1, 2)
    await m.brokers.fence(master.name)
    await until(lambda: sync in slave.led, "the slave is promoted")
    assert slave.led[sync].leader_epoch == 2

    async def reported() -> bool:
        (now,) = await parts(m, "rocket2", "async")
        return now.state == "electing" and len(now.reports) == 1

    await until(reported, "the slave has said how far it is")
    assert single not in slave.led
    why = await m.assignments.explain(*single)
    assert why is not None
    assert why.next.startswith("waits for positions: 1 of 2 replicas that count have reported; ")
    assert why.next.endswith(f"{master.name} (dead) have not")
    await m.assignments.elect(*single, force=True)
    await until(lambda: single in slave.led, "it leads by force")
    (now,) = await parts(m, "rocket2", "async")
    assert now.missing == [master.name]


def share_out(_: str, members: Sequence[Member]) -> Mapping[str, bytes]:
    return {member.member: bytes(range(at, QUEUES, len(members))) for at, member in enumerate(members)}


async def test_consumers_share_queues_and_commit_what_has_changed(m: Client, cluster: Nodes) -> None:
    groups = m.table(SUBSCRIPTION_GROUPS)
    await groups.put(SubscriptionGroup("rocket", "billing", retries_max=3, subscriptions={"eu%t001": "paid"}))
    found = await groups.get("rocket", "billing")
    assert found is not None
    assert found.record.subscriptions == {"eu%t001": "paid"}

    async with connect(cluster.url) as other, m.consume("rocket", "billing", assign=share_out) as first:
        alone = await anext(aiter(first))
        assert [*alone.assignment] == [*range(QUEUES)]
        await alone.commit("eu%t001", 0, 10)
        async with other.consume("rocket", "billing", assign=share_out) as second:
            await alone.ended()
            # Both join the next generation, whichever of them asks first.
            mine, theirs = await anext(aiter(first)), await anext(aiter(second))
            assert sorted([*mine.assignment, *theirs.assignment]) == [*range(QUEUES)]
            assert len(mine.assignment) == len(theirs.assignment)
            members = [member.member async for member in m.consumers.members("rocket", "billing")]
            assert {*members} == {mine.member, theirs.member}
            with pytest.raises(FencedError):
                await m.offsets.commit("rocket", "billing", "eu%t001", 0, 11, generation=alone.number)
            await theirs.commit("eu%t001", theirs.assignment[0], 20)
            async with await m.watch(Watched("offset", tenant="rocket", rows=("offset",))).opened() as watch:
                await mine.commit("eu%t001", mine.assignment[0], 30)
                batch = await watch.next()
                assert batch is not None
                assert [(event.key.partition, event.record.offset) for event in batch.events if event.record] == [
                    (mine.assignment[0], 30)
                ]
    described = await m.consumers.describe("rocket", "billing")
    assert described is not None
    assert described.members == 0

    # Offsets that go forward only, in a batch that is answered item by item.
    batch = [OffsetCommitItem("rocket", "audit", "eu%t002", queue, 100 + queue) for queue in range(QUEUES)]
    assert (await m.offsets.commit_many(batch, monotonic=True)).ok
    again = [msgspec.structs.replace(batch[0], offset=50), msgspec.structs.replace(batch[1], offset=300)]
    result = await m.offsets.commit_many(again, monotonic=True)
    assert {at: type(error) for at, error in result.errors.items()} == {0: OffsetRegressionError}
    assert [found.offset async for found in m.offsets.list("rocket", "audit")] == [100, 300, *range(102, 108)]
    await m.offsets.delete("rocket", "audit", "eu%t002", 7)
    assert await m.offsets.fetch("rocket", "audit", "eu%t002", 7) is None
    assert {known.group async for known in m.offsets.groups("rocket")} == {"audit", "billing"}
    generation = await m.offsets.generation("rocket", "billing")
    assert generation >= mine.number
    await m.offsets.reset_generation("rocket", "billing", generation, 0)
    assert await m.offsets.generation("rocket", "billing") == 0
    assert await m.offsets.delete_group("rocket", "audit") == QUEUES - 1
    assert [found async for found in m.offsets.list("rocket", "audit")] == []
