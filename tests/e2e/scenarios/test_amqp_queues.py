"""AMQP queues: where each queue of a RabbitMQ is, and who leads it.

A queue is declared with its properties and its place in one call; its bindings are records. A quorum queue is at
several brokers: metad elects its leader among those in sync, or the brokers elect it (Raft) and tell its term, of which
an older one is refused. A message is confirmed once enough brokers have it, and outlives the leader. A classic queue
has one broker at a time; when that dies, another one has the queue, without its messages. What does not fit a type is
refused.

Not yet: queues of type ``stream``; a classic queue is not kept for the return of its broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from e2e_nodes import Nodes
from serving_brokers import Broker, joined, parts, placed, replicate

from metad_client import Client, ConflictError, FencedError, InvalidItemError
from metad_wire.families.amqp import BINDINGS, EXCHANGES, QUEUES, Binding, Exchange, Queue
from waiting import until

SHOWS = """
assignment.create assignment.claim assignment.move assignment.release assignment.delete broker.fence
table.put table.get table.list
"""
SYSTEM = {"system": "amqp"}


def key(queue: str, kind: str) -> tuple[str, str, str, int]:
    return "amqp", f"%2F/{queue}", kind, 0


async def brokers_of(stack: AsyncExitStack, cluster: Nodes) -> dict[str, Broker]:
    kinds = ("quorum_queue", "classic_queue")
    return {
        name: await joined(stack, cluster, name, *kinds, lease_s=1, attributes=SYSTEM)
        for name in ("rabbit-1", "rabbit-2", "rabbit-3")
    }


async def test_a_quorum_queue_loses_no_confirmed_message_with_its_leader(m: Client, cluster: Nodes) -> None:
    async with AsyncExitStack() as stack:
        brokers = await brokers_of(stack, cluster)
        await m.table(EXCHANGES).put(Exchange("amqp", "/", "orders", "topic"))
        queues, queue = m.assignments.quorum_queues, Queue("amqp", "/", "bills", "quorum")
        how: dict[str, Any] = {"settings": queue, "election": "isr", "labels": SYSTEM}
        await placed(lambda: queues.create("amqp", "%2F/bills", **how))
        await m.table(BINDINGS).put(Binding("amqp", "/", "orders", "queue", "bills", "*.paid", "*.paid"))
        bound = [found.record.destination async for found in m.table(BINDINGS).list("amqp", "/", "orders")]
        assert bound == ["bills"]

        bills = key("bills", "quorum_queue")
        await until(lambda: any(bills in each.led for each in brokers.values()), "it has a leader")
        (leader,) = [each for each in brokers.values() if bills in each.led]
        led = leader.led[bills]
        leader.append(bills, 10)
        confirmed = asyncio.create_task(led.acknowledged(10))
        await asyncio.sleep(0)
        assert not confirmed.done(), "a follower must have them, too"
        await until(lambda: replicate(brokers.values()) or confirmed.done(), "the messages are confirmed")

        await m.brokers.fence(leader.name)
        others = [each for each in brokers.values() if each is not leader]
        await until(lambda: any(bills in each.led for each in others), "the next leader")
        (following,) = [each for each in others if bills in each.led]
        assert following.logs[bills] == (led.leader_epoch, 10)
        await until(lambda: led.over, "the former one hears of it")
        with pytest.raises(FencedError):
            leader.append(bills)
        following.append(bills)
        again = asyncio.create_task(following.led[bills].acknowledged(11))
        await until(lambda: replicate(others) or again.done(), "two of three are enough")

        await queues.delete("amqp", "%2F/bills")
        assert await m.table(QUEUES).get("amqp", "/", "bills") is None
        await until(lambda: not any(bills in each.logs for each in others), "its brokers delete what they have")


async def test_brokers_that_elect_by_themselves_tell_their_leader(
    m: Client, cluster: Nodes, metadctl: Callable[..., Awaitable[Any]]
) -> None:
    async with AsyncExitStack() as stack:
        brokers = await brokers_of(stack, cluster)
        queue, raft = Queue("amqp", "/", "raft", "quorum"), key("raft", "quorum_queue")
        create = m.assignments.quorum_queues.create
        await placed(lambda: create("amqp", "%2F/raft", settings=queue, labels=SYSTEM))
        (made,) = await parts(m, "amqp", "%2F/raft")
        assert (made.leader, made.state, {*made.replicas}) == (None, "readable", {*brokers})

        for term, name in ((3, "rabbit-2"), (5, "rabbit-3")):
            broker = brokers[name]
            await broker.client.assignments.claim(*raft, name, broker.life.epoch, term)
            await until(lambda broker=broker: raft in broker.led, "it is told that it leads")
        late = brokers["rabbit-2"]
        with pytest.raises(ConflictError) as refused:
            await late.client.assignments.claim(*raft, late.name, late.life.epoch, 4)
        assert refused.value.current == 5
        await until(lambda: raft not in late.led, "the former leader stops")
        (shown,) = (await metadctl("queues", "leaders", "amqp", "/", "raft"))["leaders"]
        assert (shown["leader"]["broker"], shown["leader_epoch"]) == ("rabbit-3", 5)

        # The leader dies: nobody leads until the brokers have elected another one.
        await m.brokers.fence("rabbit-3")

        async def leaderless() -> bool:
            (now,) = await parts(m, "amqp", "%2F/raft")
            return now.leader is None and now.leader_epoch == 5

        await until(leaderless, "nobody leads")
        await late.client.assignments.claim(*raft, late.name, late.life.epoch, 6)
        await until(lambda: raft in late.led, "the next term")
        await m.assignments.quorum_queues.delete("amqp", "%2F/raft")


async def test_a_classic_queue_has_one_broker_at_a_time(
    m: Client, cluster: Nodes, metadctl: Callable[..., Awaitable[Any]]
) -> None:
    async with AsyncExitStack() as stack:
        brokers = await brokers_of(stack, cluster)
        queues, classic = m.assignments.classic_queues, key("mail", "classic_queue")
        with pytest.raises(InvalidItemError, match="replication: of a classic_queue 1, not 3"):
            await queues.create("amqp", "%2F/mail", replication=3)
        with pytest.raises(InvalidItemError, match="type: of a classic_queue 'classic', not 'quorum'"):
            await queues.create("amqp", "%2F/mail", settings=Queue("amqp", "/", "mail", "quorum"))
        await placed(lambda: queues.create("amqp", "%2F/mail", settings=Queue("amqp", "/", "mail"), labels=SYSTEM))
        await until(lambda: any(classic in each.led for each in brokers.values()), "it has a broker")
        (first,) = [each for each in brokers.values() if classic in each.led]
        led = first.led[classic]

        # It is handed to another broker, in order.
        target = next(name for name in brokers if name != first.name)
        first.may_stop.clear()
        await m.assignments.move(*classic, [target])
        await until(lambda: led.over, "it is asked to stop")
        assert not brokers[target].led
        first.may_stop.set()
        await until(lambda: classic in brokers[target].led, "the next broker")

        # That one dies.
        await brokers[target].client.close()
        others = [each for name, each in brokers.items() if name != target]
        await until(lambda: any(classic in each.led for each in others), "another one, once the lease is over")
        (shown,) = (await metadctl("queues", "leaders", "amqp", "/", "mail"))["leaders"]
        assert shown["leader"]["broker"] in {each.name for each in others}
        assert shown["why"].endswith("owns it: nobody did")
        await queues.delete("amqp", "%2F/mail")
