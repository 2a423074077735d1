"""Facades over assignment, on a real node: each kind has what is usual for its family of brokers, refuses what does not
fit, and is made with its settings by one call that completes what was left half-done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from serving_brokers import idle_brokers

from metad import embedded
from metad_client import (
    Assigned,
    Client,
    ConflictError,
    InvalidItemError,
    NoPlaceError,
    NotFoundError,
    ShrinkError,
    blocking,
    connect,
)
from metad_client.assignment.kinds import KINDS
from metad_wire.families.amqp import QUEUES, Queue
from metad_wire.families.core import CONNECTORS, TOPICS, Connector, Topic
from metad_wire.families.journal import SHARDS, Shard
from metad_wire.tables.assignment import Resource, ResourceCreate
from waiting import until

BROKERS = ("b1", "b2", "b3")
NAMED = [["b1", "b2"], ["b3", "b1"]]


@pytest.fixture(scope="module")
def server() -> Iterator[embedded.Server]:
    with idle_brokers(BROKERS) as server:
        yield server


@pytest.fixture
async def m(server: embedded.Server) -> AsyncIterator[Client]:
    async with connect(server.url) as client:
        yield client


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    name: str = request.node.name
    return name


def of(m: Client, kind: str) -> Assigned:
    found: Assigned = getattr(m.assignments, KINDS[kind].plural)
    return found


async def made(m: Client, tenant: str, resource: str, kind: str) -> Resource:
    found = await m.assignments.resources.get(tenant, resource, kind)
    assert found is not None
    return found.record


@pytest.mark.parametrize(
    ("kind", "election", "replication", "min_isr", "copies"),
    [
        ("topic", "isr", 3, 2, 1),
        ("message_queue", "position", 2, 1, 2),
        ("master", "position", 3, 1, 2),
        ("connector", "owner", 1, 1, 1),
        ("share_group", "owner", 1, 1, 1),
        ("shard", "isr", 3, 2, 1),
        ("quorum_queue", "external", 3, 2, 1),
        ("classic_queue", "owner", 1, 1, 1),
    ],
)
async def test_each_kind_has_what_is_usual_for_its_brokers(
    m: Client, tenant: str, kind: str, election: str, replication: int, min_isr: int, copies: int
) -> None:
    name = "%2F/q" if "queue" in kind else "r"
    await of(m, kind).create(tenant, name, replicas=NAMED if kind == "message_queue" else None)
    found = await made(m, tenant, name, kind)
    assert (found.election, found.replication, found.min_isr, found.copies) == (election, replication, min_isr, copies)
    assert found.partitions == (2 if kind == "message_queue" else 1)
    await of(m, kind).create(tenant, name, replicas=NAMED if kind == "message_queue" else None)
    await of(m, kind).delete(tenant, name)
    with pytest.raises(ConflictError, match="is being deleted"):
        await of(m, kind).create(tenant, name, replicas=NAMED if kind == "message_queue" else None)


@pytest.mark.parametrize(
    ("kind", "given", "complaint"),
    [
        ("connector", {"replication": 2}, "replication: of a connector 1, not 2"),
        ("connector", {"partitions": 0}, r"partitions \(tasks\): of a connector 1 to 10000, not 0"),
        ("connector", {"election": "isr"}, "election: of a connector owner, not isr"),
        ("connector", {"settings": Topic("t", "r")}, "settings: a connector has a Connector, not Topic"),
        ("connector", {"settings": Connector("t", "other", "s3")}, "settings: those of t/other, not of connector t/r"),
        ("topic", {"replication": 1}, "replication: of a topic 2 to 8, not 1"),
        ("topic", {"min_isr": 1}, "min_isr: of a topic 2 to 8, not 1"),
        ("topic", {"copies": 2}, "copies: of a topic 1, not 2"),
        ("topic", {"min_isr": 3, "replication": 2}, "min_isr: 3, with 2 replicas"),
        ("share_group", {"partitions": 2}, r"partitions \(groups\): of a share_group 1, not 2"),
        ("share_group", {"settings": Topic("t", "r")}, "settings: a share_group has no settings, not Topic"),
        ("master", {"election": "isr"}, "election: of a master position or external, not isr"),
        ("message_queue", {}, "replicas: name the brokers that have each queue of a message_queue"),
        ("quorum_queue", {}, "is named VHOST/QUEUE, as in %2F/orders, and not 'r'"),
    ],
)
async def test_what_does_not_fit_a_kind_is_refused(m: Client, kind: str, given: Any, complaint: str) -> None:
    with pytest.raises(InvalidItemError, match=complaint):
        await of(m, kind).create("t", "r", **given)
    assert await m.assignments.resources.get("t", "r", kind) is None


async def test_settings_and_resource_are_made_by_one_call_that_may_be_repeated(m: Client, tenant: str) -> None:
    settings, connectors = (
        Connector(tenant, "sink", "s3", tasks_max=3, config={"bucket": "b"}),
        m.assignments.connectors,
    )
    with pytest.raises(NoPlaceError):
        await connectors.create(tenant, "sink", settings=settings, labels={"tier": "none"})
    assert await m.table(CONNECTORS).count(tenant) == 1, "it is half-done"
    await connectors.create(tenant, "sink", settings=settings)
    assert (await made(m, tenant, "sink", "connector")).partitions == 3
    await connectors.create(tenant, "sink", settings=settings)
    await connectors.create(tenant, "sink")
    written = await m.table(CONNECTORS).get(tenant, "sink")
    assert written is not None
    assert (written.version, written.record) == (1, settings)
    with pytest.raises(ConflictError, match="settings already, with another plugin"):
        await connectors.create(tenant, "sink", settings=Connector(tenant, "sink", "hdfs", tasks_max=3))
    with pytest.raises(ConflictError, match="partitions 3, not 4"):
        await connectors.create(tenant, "sink", 4, settings=settings)

    # Its number of tasks changes in both.
    for tasks in (5, 2):
        await connectors.resize(tenant, "sink", tasks)
        written = await m.table(CONNECTORS).get(tenant, "sink")
        assert written is not None
        assert written.record.tasks_max == (await made(m, tenant, "sink", "connector")).partitions == tasks
    await connectors.delete(tenant, "sink")
    assert await m.table(CONNECTORS).count(tenant) == 0
    with pytest.raises(NotFoundError):
        await connectors.resize(tenant, "nobody", 2)
    with pytest.raises(NotFoundError):
        await connectors.delete(tenant, "nobody")


async def test_settings_that_are_there_say_the_numbers(m: Client, tenant: str) -> None:
    await m.table(TOPICS).put(Topic(tenant, "orders", partitions=4, retention_ms=1_000))
    await m.assignments.topics.create(tenant, "orders")
    assert (await made(m, tenant, "orders", "topic")).partitions == 4
    written = await m.table(TOPICS).get(tenant, "orders")
    assert written is not None
    assert written.record == Topic(tenant, "orders", partitions=4, replication=3, retention_ms=1_000)
    with pytest.raises(ShrinkError):
        await m.assignments.topics.resize(tenant, "orders", 3)
    await m.assignments.topics.resize(tenant, "orders", 6)
    await m.assignments.topics.create(tenant, "orders")
    with pytest.raises(ConflictError, match="partitions 6, not 4"):
        await m.assignments.topics.create(tenant, "orders", 4)
    written = await m.table(TOPICS).get(tenant, "orders")
    assert written is not None
    assert written.record.partitions == 6, "what was refused has changed nothing"

    await m.assignments.shards.create(tenant, "log", settings=Shard(tenant, "log", segment_bytes=1_000), min_isr=1)
    shard = await m.table(SHARDS).get(tenant, "log")
    assert shard is not None
    assert (shard.record.replication, shard.record.in_sync_least, shard.record.segment_bytes) == (3, 1, 1_000)
    await m.assignments.alter(tenant, "log", "shard", min_isr=3)
    await m.assignments.shards.create(tenant, "log")
    shard = await m.table(SHARDS).get(tenant, "log")
    assert shard is not None
    assert shard.record.in_sync_least == 3, "as it was altered"

    with pytest.raises(InvalidItemError, match="type: of a quorum_queue 'quorum', not 'classic'"):
        await m.assignments.quorum_queues.create(tenant, "a%2Fb/q", settings=Queue(tenant, "a/b", "q"))
    await m.assignments.classic_queues.create(tenant, "a%2Fb/q", settings=Queue(tenant, "a/b", "q"))
    await m.assignments.quorum_queues.create(tenant, "a/q", settings=Queue(tenant, "a", "q", "quorum"))
    with pytest.raises(NotFoundError):  # another kind has the name
        await m.assignments.classic_queues.resize(tenant, "a/q", 2)
    await m.assignments.classic_queues.delete(tenant, "a%2Fb/q")
    assert await m.table(QUEUES).get(tenant, "a/b", "q") is None
    assert await m.table(QUEUES).get(tenant, "a", "q") is not None


async def test_queues_are_at_the_groups_that_are_named_and_shrink_in_two_steps(m: Client, tenant: str) -> None:
    queues = m.assignments.message_queues
    await queues.create(tenant, "t", 4, replicas=NAMED)

    async def places() -> list[list[str]]:
        return [found.record.replicas async for found in m.assignments.partitions.list(tenant, "t")]

    assert await places() == NAMED * 2
    with pytest.raises(InvalidItemError, match="name the brokers that have each new queue"):
        await queues.resize(tenant, "t", 7)
    await queues.resize(tenant, "t", 7, replicas=NAMED)
    assert await places() == [*NAMED, *NAMED, *NAMED, NAMED[0]]
    with pytest.raises(InvalidItemError, match="say how many"):
        await queues.resize(tenant, "t")
    with pytest.raises(ShrinkError, match="Lower write_partitions to 6 first"):
        await queues.resize(tenant, "t", 6)
    await queues.resize(tenant, "t", write_partitions=6)
    found = await made(m, tenant, "t", "message_queue")
    assert (found.partitions, found.write_partitions) == (7, 6)
    await queues.resize(tenant, "t", 6)
    assert (await made(m, tenant, "t", "message_queue")).partitions == 6
    await queues.create(tenant, "async", replicas=NAMED, copies=1)
    assert (await made(m, tenant, "async", "message_queue")).copies == 1


async def test_only_a_shard_is_sealed_and_trimmed(m: Client, server: embedded.Server, tenant: str) -> None:
    shards = m.assignments.shards
    await shards.create(tenant, "log", replication=1)
    for segment in range(3):
        (*_, active) = [found.record async for found in m.assignments.partitions.list(tenant, "log")]
        assert active.leader is not None
        life = (active.leader.broker, active.leader.broker_epoch, active.leader_epoch)
        await m.assignments.seal(tenant, "log", "shard", segment, *life, 100)
    await shards.create(tenant, "log", replication=1)
    with pytest.raises(InvalidItemError, match="gets another segment when its leader seals the last one"):
        await shards.resize(tenant, "log", 9)
    await shards.trim(tenant, "log", 2)
    await shards.trim(tenant, "log", 1)

    async def trimmed() -> bool:
        states = [found.record.state async for found in m.assignments.partitions.list(tenant, "log")]
        return states == ["deleting", "deleting", "sealed", "online"]

    await until(trimmed, "the old segments go")
    with pytest.raises(InvalidItemError, match="has segments up to 3, and that one is written"):
        await shards.trim(tenant, "log", 4)
    await m.assignments.connectors.create(tenant, "sink")
    with pytest.raises(InvalidItemError, match="the tasks of a connector are not trimmed"):
        await m.assignments.connectors.trim(tenant, "sink", 1)


async def test_what_was_trimmed_does_not_count_for_how_many_there_may_be(m: Client, tenant: str) -> None:
    """A shard could not be read any more once its last segment had the number 10,000."""
    a, most = m.assignments, 10_000
    await a.create(tenant, "log", "long", partitions=2_500)
    for count in range(5_000, most + 1, 2_500):
        await a.resize(tenant, "log", "long", count)
    with pytest.raises(InvalidItemError, match="without those that were trimmed"):
        await a.resize(tenant, "log", "long", most + 1)
    await a.resize(tenant, "log", "long", most, first_partition=most - 2)
    await a.resize(tenant, "log", "long", most + 3)
    found = await made(m, tenant, "log", "long")
    assert (found.first_partition, found.partitions) == (most - 2, most + 3)
    assert await a.partitions.get(tenant, "log", "long", most + 2) is not None


def test_a_blocking_client_has_them_too(server: embedded.Server, tenant: str) -> None:
    with blocking.connect(server.url) as m:
        m.assignments.share_groups.create(tenant, "jobs")
        with pytest.raises(InvalidItemError, match="a share_group always has one"):
            m.assignments.share_groups.resize(tenant, "jobs", 2)
        for kind in KINDS.values():
            assert getattr(m.assignments, kind.plural).kind is kind


async def test_who_make_the_same_at_once_all_succeed(m: Client, tenant: str) -> None:
    settings = Topic(tenant, "orders", partitions=4)
    await asyncio.gather(*(m.assignments.topics.create(tenant, "orders", settings=settings) for _ in range(5)))
    written = await m.table(TOPICS).get(tenant, "orders")
    assert written is not None
    assert (written.version, written.record.replication) == (1, 3)


async def test_what_is_refused_leaves_no_settings(m: Client, tenant: str) -> None:
    for given in ({"min_isr": 3, "replication": 2}, {"election": "owner"}, {"spread": "planet"}):
        with pytest.raises(InvalidItemError):
            await m.assignments.topics.create(tenant, "orders", settings=Topic(tenant, "orders"), **given)  # type: ignore[arg-type]
    with pytest.raises(InvalidItemError):
        await m.assignments.topics.create(tenant, "orders", settings=Topic(tenant, "bills"))
    assert await m.table(TOPICS).count(tenant) == 0


async def test_no_two_resources_have_one_id_and_a_partition_that_comes_again_is_another(m: Client, tenant: str) -> None:
    """Brokers name what they store by it: two topics shared a file, and what was deleted came back."""
    a = m.assignments
    made_ids: list[int] = []
    for batch in range(2):
        items = [ResourceCreate(tenant, f"{batch}-{at}", "topic") for at in range(20)]
        (await a.create_many(items)).raise_for_error()
    made_ids = [row.record.resource_id async for row in a.resources.list(tenant)]
    assert len({*made_ids}) == len(made_ids) == 40

    async def ids() -> list[int]:
        return [row.record.resource_id async for row in a.partitions.list(tenant, "0-0", "topic")]

    first = await ids()
    await a.resize(tenant, "0-0", "topic", 2)
    (_, old) = await ids()
    assert first[0] != old not in made_ids
    await a.resize(tenant, "0-0", "topic", 2, write_partitions=1)
    await a.resize(tenant, "0-0", "topic", 1)
    row = await a.partitions.get(tenant, "0-0", "topic", 1)
    assert row is not None
    (holder,) = row.record.replicas
    life = await m.brokers.get(holder)
    assert life is not None
    await a.release(tenant, "0-0", "topic", 1, holder, life.broker_epoch, row.record.leader_epoch)
    await a.resize(tenant, "0-0", "topic", 2)
    assert (await ids())[1] not in {old, *made_ids}


async def test_absurd_numbers_are_refused_before_they_are_stored(m: Client, tenant: str) -> None:
    """They were taken, and the records could not be read or deleted any more."""
    a = m.assignments
    wrong: list[dict[str, Any]] = [{"force_after_ms": 2**63 - 1}, {"repair_after_ms": 2**63 - 1}]
    wrong += [{"election": "owner", "replication": 2, "min_isr": 2}, {"replication": 2, "copies": 2}]
    for named in wrong:
        with pytest.raises(InvalidItemError):
            await a.create(tenant, "r", "topic", **named)
    await a.create(tenant, "r", "queue", election="external", replicas=[["b1"]])
    life = await m.brokers.get("b1")
    assert life is not None
    with pytest.raises(ConflictError, match="by 4294967296 at most"):
        await a.claim(tenant, "r", "queue", 0, "b1", life.broker_epoch, 2**63 - 1)
    await a.claim(tenant, "r", "queue", 0, "b1", life.broker_epoch, 2**32)
    with pytest.raises(InvalidItemError, match="8 brokers at most"):
        await a.move(tenant, "r", "queue", 0, [f"b{at}" for at in range(9)])
