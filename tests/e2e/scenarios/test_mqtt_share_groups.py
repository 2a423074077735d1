"""MQTT share groups: consumers of ``$share/GROUP/FILTER``, of which one broker gives each message to one of them.

Each broker whose client subscribes makes the group, and it is there once. Its owner alone gives messages away; other
brokers read who that is, and hand messages to it. An owner that stops says so, and the next one begins after it; one
that dies is replaced once its lease is over, and goes on behind what was acknowledged. A commit of the former owner is
refused. With the last subscriber the group goes.

Not yet: the owner is not chosen by where the consumers are connected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest
from e2e_nodes import Nodes
from serving_brokers import Broker, joined, placed

from metad_client import Client, FencedError, InvalidItemError, Owner, SubscriptionOptions
from metad_wire.tables.assignment import Partition
from waiting import until

SHOWS = """
assignment.create assignment.release assignment.delete broker.register table.get
session.takeover subscription.add subscription.list offset.commit offset.fetch
"""
SYSTEM = {"system": "share"}
FILTER = "$share/workers/jobs/#"
KEY = ("share", "workers/jobs/#", "share_group", 0)


async def owner(m: Client) -> Partition | None:
    """What any broker reads before it hands a message on."""
    found = await m.assignments.partitions.get(*KEY)
    return None if found is None else found.record


async def given(broker: Broker, offset: int) -> None:
    """The owner gives the messages before ``offset`` to consumers, who acknowledge them."""
    led = broker.led[KEY]
    led.check()
    await broker.client.offsets.commit("share", KEY[1], "jobs", 0, offset, generation=led.leader_epoch)


async def test_one_broker_gives_messages_away_and_the_next_one_goes_on(m: Client, cluster: Nodes) -> None:
    async with AsyncExitStack() as stack:
        brokers = [
            await joined(stack, cluster, f"share-{name}", "share_group", lease_s=1, attributes=SYSTEM) for name in "abc"
        ]

        async def subscribed(broker: Broker) -> None:
            me = (broker.name, broker.life.epoch)
            await broker.client.sessions.takeover(*me, "share", f"worker-{broker.name}")
            await broker.client.subscriptions.add(
                *me, "share", f"worker-{broker.name}", FILTER, options=SubscriptionOptions(1)
            )
            await placed(lambda: broker.client.assignments.share_groups.create("share", KEY[1], labels=SYSTEM))

        await asyncio.gather(*map(subscribed, brokers))
        assert len([found async for found in m.subscriptions.list("share") if found.filter == FILTER]) == 3
        await until(lambda: sum(KEY in broker.led for broker in brokers) == 1, "one of them owns it")
        with pytest.raises(InvalidItemError):
            await m.assignments.share_groups.resize("share", KEY[1], 2)

        # Everybody knows who gives the messages away.
        (first,) = [broker for broker in brokers if KEY in broker.led]
        found = await owner(m)
        assert found is not None
        assert found.leader == Owner(first.name, first.life.epoch)
        await given(first, 10)
        await the_next_one_goes_on(m, first, [broker for broker in brokers if broker is not first])


async def the_next_one_goes_on(m: Client, first: Broker, others: Sequence[Broker]) -> None:
    old = first.led[KEY]

    # It stops in order. Nobody else begins before it has said so.
    first.may_stop.clear()
    stopping = asyncio.create_task(first.serving.__aexit__(None, None, None))
    await until(lambda: old.over, "it stops")
    assert not any(KEY in broker.led for broker in others)
    first.may_stop.set()
    await stopping
    await until(lambda: any(KEY in broker.led for broker in others), "the next owner")
    (second,) = [broker for broker in others if KEY in broker.led]
    written = await second.client.offsets.fetch("share", KEY[1], "jobs", 0)
    assert written is not None
    await given(second, written.offset + 5)
    with pytest.raises(FencedError):
        old.check()
    with pytest.raises(FencedError):
        await first.client.offsets.commit("share", KEY[1], "jobs", 0, 11, generation=old.leader_epoch)

    # It dies without a word.
    await first.life.end()
    died = second.led[KEY]
    await second.client.close()
    (third,) = [broker for broker in others if broker is not second]
    await until(lambda: KEY in third.led, "the last one, once the lease is over")
    assert third.led[KEY].leader_epoch > died.leader_epoch > old.leader_epoch
    await given(third, 16)
    written = await m.offsets.fetch("share", KEY[1], "jobs", 0)
    assert written is not None
    assert (written.offset, written.generation) == (16, third.led[KEY].leader_epoch)

    await third.client.assignments.share_groups.delete("share", KEY[1])
    await until(lambda: KEY not in third.led, "it is told")

    async def gone() -> bool:
        return await owner(m) is None

    await until(gone, "the group is gone")
