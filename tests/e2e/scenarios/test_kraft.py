"""KRaft: the quorum of the metadata is the controller, and every broker follows its log to a whole local image.

Brokers register, send heartbeats, and have epochs: who registers under a name ends the life before, and an
administrator ends any. One that is new says that it loads, until it has its image. A topic that is made through any
broker and any node is in the image of every broker. A new broker begins with a snapshot and goes on with the changes;
one that comes back goes on behind its token, through another leader of the quorum. The quorum places the partitions of
a topic over racks, and elects their leaders among the replicas in sync. With nobody in sync, one that has all that was
acknowledged leads once it is back (ELR, KIP-966).

Not yet: the replicas are brokers of the test, whose logs are only counted. A broker that really stores them is an
example, and has tests of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from e2e_nodes import NAMES, Nodes
from serving_brokers import Broker, ended, joined, parts, placed, replicate

from metad_client import Client, FencedError, LifeState, TablePutItem, connect
from metad_client.assignment.serving import Key
from metad_wire.families.assignment import PARTITIONS
from metad_wire.families.core import TOPICS, Topic
from metad_wire.tables.assignment import Partition
from waiting import until

SHOWS = """
assignment.create assignment.in_sync assignment.explain
broker.register broker.heartbeat broker.serve broker.deregister broker.fence broker.get broker.list
cluster.map cluster.transfer watch.open table.put table.list
"""


async def test_a_broker_has_one_life_at_a_time(
    m: Client, cluster: Nodes, metadctl: Callable[..., Awaitable[Any]]
) -> None:
    async with connect(cluster.url) as old, connect(cluster.url) as new:
        first = await old.brokers.register("kraft-1", lease_s=20)
        await old.table(TOPICS).put(Topic("kraft", "by-the-first"))
        second = await new.brokers.register("kraft-1", lease_s=20)
        assert second.epoch > first.epoch
        with pytest.raises(FencedError):  # whether it has heard of its end or not
            await old.table(TOPICS).put(Topic("kraft", "by-the-first"))
        await new.table(TOPICS).put(Topic("kraft", "by-the-second"))
        fenced = await metadctl("brokers", "fence", "kraft-1")
        assert (fenced["epoch"], fenced["unfenced_groups"]) == (second.epoch, [])
        with pytest.raises(FencedError):
            await new.table(TOPICS).put(Topic("kraft", "by-the-second"))
        await second.lost()
        assert second.state is LifeState.LOST
        found = await m.brokers.get("kraft-1")
        assert found is not None
        assert (found.state, found.broker_epoch) == ("fenced", second.epoch)


async def test_a_broker_serves_once_it_has_read_its_image(m: Client, cluster: Nodes) -> None:
    await m.table(TOPICS).put_many([TablePutItem(Topic("kraft3", f"t{number:03}")) for number in range(500)])
    async with connect(cluster.url) as client, client.image(TOPICS, tenant="kraft3") as image:
        life = await client.brokers.register("kraft-2", lease_s=1, loading_s=60)
        assert [broker.broker async for broker in m.brokers.list("kraft-", state="loading")] == ["kraft-2"]
        await image.caught_up()
        assert len(image[TOPICS]) == 500
        assert (await life.serve()).state in ("registered", "active")
        assert [broker.broker async for broker in m.brokers.list("kraft-", state="loading")] == []
        await life.end()
        again = await client.brokers.register("kraft-2", clean_epoch=life.epoch, sole=True)
        found = await m.brokers.get("kraft-2")
        assert found is not None
        assert (found.unclean_epoch, found.quiet_epoch, found.told) == (0, again.epoch, True)
        await again.end()


async def test_every_broker_follows_the_log_to_a_whole_image(
    m: Client, cluster: Nodes, metadctl: Callable[..., Awaitable[Any]]
) -> None:
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(connect(f"metad://{cluster.endpoints[name]}")) for name in NAMES]
        lives = [await client.brokers.register(f"kraft-{name}") for name, client in zip(NAMES, brokers, strict=True)]
        for life in lives:
            stack.push_async_callback(ended, life)
        images = [
            await stack.enter_async_context(client.image([TOPICS, PARTITIONS], tenant="kraft2")) for client in brokers
        ]
        for number, client in enumerate(brokers * 10):  # any broker may create a topic
            await client.table(TOPICS).put(Topic("kraft2", f"t{number:02}", partitions=1), expected_version=0)
            await client.assignments.create("kraft2", f"t{number:02}", "topic", replicas=[[lives[number % 3].broker]])
        for image in images:
            await image.caught_up()
            await until(lambda image=image: len(image[PARTITIONS]) == 30, "all topics")
        wanted = [found.record async for found in m.table(TOPICS).list("kraft2")]
        assert len(wanted) == 30
        for image in images:
            assert sorted((found.record for found in image[TOPICS].values()), key=lambda topic: topic.topic) == wanted

        # A new broker: a snapshot, and behind it what is new, each once.
        async with m.watch(TOPICS, tenant="kraft2", start="snapshot") as watch:
            snapshot: list[str] = []
            while len(snapshot) < 30:
                batch = await watch.next()
                assert batch is not None
                assert batch.kind == "snapshot"
                snapshot += [event.key.topic for event in batch.events]
            assert sorted(snapshot) == [topic.topic for topic in wanted]
            await brokers[0].table(TOPICS).put(Topic("kraft2", "tail"))
            batch = await watch.next()
            while batch is not None and batch.kind != "changes":
                batch = await watch.next()
            assert batch is not None
            assert [event.key.topic for event in batch.events] == ["tail"]
            token = batch.token

        # While it is away, another node becomes the leader of the quorum.
        leader = (await m.cluster.map()).leaders["metadata-0"]
        other = next(name for name in NAMES if name != leader)
        await metadctl("transfer", "metadata-0", other)

        async def leads() -> bool:
            return (await m.cluster.map()).leaders.get("metadata-0") == other

        await until(leads, "the new leader")
        for number in range(3):
            await brokers[number].table(TOPICS).put(Topic("kraft2", "late", partitions=number + 1))
        async with asyncio.timeout(100), m.watch(TOPICS, tenant="kraft2", token=token) as watch:
            missed: list[tuple[str, int]] = []
            while len(missed) < 3:
                batch = await watch.next()
                assert batch is not None
                assert batch.kind == "changes"
                missed += [(event.key.topic, event.record.record.partitions) for event in batch.events if event.record]
        assert missed == [("late", 1), ("late", 2), ("late", 3)], "in order, none twice"
        for image in images:
            await until(lambda image=image: len(image[TOPICS]) == 32, "the images go on")


async def test_the_quorum_places_partitions_and_elects_their_leaders(m: Client, cluster: Nodes) -> None:
    racks = {"kraft-a": "r1", "kraft-b": "r2", "kraft-c": "r3", "kraft-d": "r3"}
    system = {"system": "kraft"}
    async with AsyncExitStack() as stack:
        brokers = {
            name: await joined(stack, cluster, name, "topic", rack=rack, attributes=system)
            for name, rack in racks.items()
        }
        through = brokers["kraft-d"].client.assignments  # any of them
        await placed(lambda: through.topics.create("kraft4", "orders", 4, labels=system))
        made = await parts(m, "kraft4", "orders")
        assert [{racks[name] for name in part.replicas} for part in made] == [{"r1", "r2", "r3"}] * 4

        # A leader is fenced. Of each partition that it led another replica in sync leads, and no client may ask it.
        part = made[0]
        assert part.leader is not None
        key = ("kraft4", "orders", "topic", part.partition)
        dead = brokers[part.leader.broker]
        await until(lambda: key in dead.led, "it leads")
        old = dead.led[key]
        dead.append(key, 10)

        async def acknowledged() -> bool:
            replicate(brokers.values())
            return old.in_sync is not None and old.in_sync.high_watermark == 10

        await until(acknowledged, "all replicas have the records")
        await m.brokers.fence(dead.name)
        await until(lambda: old.over, "it hears that it is over")
        with pytest.raises(FencedError):
            dead.append(key)

        async def elected() -> bool:
            now = await parts(m, "kraft4", "orders")
            return all(one.leader and one.leader.broker != dead.name for one in now)

        await until(elected, "leaders among those in sync")
        now = (await parts(m, "kraft4", "orders"))[part.partition]
        assert now.leader is not None
        assert now.leader_epoch == part.leader_epoch + 1
        assert {one.broker for one in now.isr} == {*part.replicas} - {dead.name}
        second = now.leader.broker
        third = next(name for name in part.replicas if name not in (dead.name, second))
        await until(lambda: key in brokers[second].led, "the next one serves")
        assert brokers[second].logs[key] == (1, 10)
        await the_eligible_lead(m, cluster, stack, key, [dead.name], [brokers[second], brokers[third]])


async def the_eligible_lead(
    m: Client, cluster: Nodes, stack: AsyncExitStack, key: Key, dead: Collection[str], others: Sequence[Broker]
) -> None:
    """The others die, too. Whoever has all that was acknowledged may lead once it is back; nobody else."""
    second, third = others
    await m.brokers.fence(third.name)
    await m.brokers.fence(second.name)

    async def leaderless() -> Partition | None:
        now = (await parts(m, "kraft4", "orders"))[key[3]]
        return now if now.leader is None and not now.isr else None

    none = await until(leaderless, "nobody leads")
    assert {one.broker for one in none.elr} == {second.name, third.name}
    why = await m.assignments.explain(*key)
    assert why is not None
    assert {each.broker for each in why.candidates if each.lacks} == {*dead, second.name, third.name}
    lost, system = third.life.epoch, {"system": "kraft"}
    await third.client.close()
    back = await joined(stack, cluster, third.name, "topic", attributes=system, clean_epoch=lost)
    back.logs[key] = (1, 10)
    await until(lambda: key in back.led, "it leads")
    assert back.led[key].leader_epoch == none.leader_epoch + 1
    back.append(key)
    acknowledging = asyncio.create_task(back.led[key].acknowledged(11))
    await second.client.close()
    follower = await joined(stack, cluster, second.name, "topic", attributes=system)
    await until(lambda: replicate([back, follower]) or acknowledging.done(), "two are in sync again")
    assert follower.logs[key] == (none.leader_epoch + 1, 11)
