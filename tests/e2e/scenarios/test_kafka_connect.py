"""Kafka Connect: connectors, whose tasks are each done by one worker, through the death of a worker and its return.

A connector is its configuration and its tasks: one call makes both, and completes what was left half-done. Each task
has one owner. A worker that dies has its tasks done by others, once its lease is over. When it is back it gets its
share again, and no task begins there before its owner has stopped. How a task fares is a record that names its owner's
epoch: what the dead one wrote is known to be old. More tasks begin, and fewer end.

Not yet: tasks are shared out by their number, not by how much each has to do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from e2e_nodes import Nodes
from serving_brokers import Broker, joined, parts, placed

from metad_client import Client
from metad_wire.families.core import CONNECTOR_TASKS, CONNECTORS, Connector, ConnectorTask
from waiting import until

SHOWS = """
assignment.create assignment.resize assignment.release assignment.delete plan.create plan.get plan.delete
broker.register table.put table.get table.list table.delete
"""
SYSTEM = {"system": "connect"}
TASKS = 6


def owners(workers: dict[str, Broker]) -> dict[int, list[str]]:
    """By task: who does it now."""
    found: dict[int, list[str]] = {}
    for worker in workers.values():
        for key, led in worker.led.items():
            if led.serves:
                found.setdefault(key[3], []).append(worker.name)
    return found


async def test_tasks_are_done_once_over_the_death_of_a_worker_and_its_return(
    m: Client, cluster: Nodes, metadctl: Callable[..., Awaitable[Any]]
) -> None:
    async with AsyncExitStack() as stack:

        async def worker(name: str) -> Broker:
            return await joined(stack, cluster, name, "connector", lease_s=1, attributes=SYSTEM)

        workers = {name: await worker(name) for name in ("connect-a", "connect-b", "connect-c")}
        lake = Connector("connect", "lake", "s3", topic="orders", tasks_max=TASKS, config={"bucket": "lake"})
        for _ in range(2):
            await placed(lambda: m.assignments.connectors.create("connect", "lake", settings=lake, labels=SYSTEM))
        await until(lambda: [len(each) for each in owners(workers).values()] == [1] * TASKS, "each has one owner")

        # Each owner says how its tasks fare.
        tasks = m.table(CONNECTOR_TASKS)
        for each in workers.values():
            for led in [*each.led.values()]:
                await tasks.put(ConnectorTask("connect", "lake", led.key[3], leader_epoch=led.leader_epoch))

        # A worker dies, which has some tasks.
        dead = workers.pop(next(name for name, each in workers.items() if each.led))
        lost = {key[3] for key in dead.led}
        await dead.client.close()
        await until(lambda: {*owners(workers)} == {*range(TASKS)}, "the others do its tasks")
        shown = (await metadctl("connectors", "tasks", "connect", "lake"))["tasks"]
        assert {one["leader"]["broker"] for one in shown if one["partition"] in lost} <= {*workers}

        # What the dead one would still write is of an older epoch than the task has now.
        for one in await parts(m, "connect", "lake"):
            status = await tasks.get("connect", "lake", one.partition)
            assert status is not None
            assert (status.record.leader_epoch < one.leader_epoch) == (one.partition in lost)

        await returns(m, workers, await worker(dead.name))
        await scaled(m, workers, metadctl)


async def returns(m: Client, workers: dict[str, Broker], back: Broker) -> None:
    """The worker is back, and gets its share. A task's owner stops first."""
    others = [*workers.values()]
    workers[back.name] = back
    for each in others:
        each.may_stop.clear()
    await m.plans.create("connect-back", "add", [back.name])

    async def asked() -> bool:
        return any(one.state == "releasing" and one.target == back.name for one in await parts(m, "connect", "lake"))

    await until(asked, "an owner is asked to stop")
    assert not back.led
    for each in others:
        each.may_stop.set()

    async def done() -> bool:
        plan = await m.plans.get("connect-back")
        return plan is not None and plan.state == "done"

    await until(done, "the plan")
    await until(lambda: [len(each) for each in owners(workers).values()] == [1] * TASKS, "each has one owner again")
    assert back.led
    await m.plans.delete("connect-back")


async def scaled(m: Client, workers: dict[str, Broker], metadctl: Callable[..., Awaitable[Any]]) -> None:
    """There are more tasks, fewer, and none."""
    for count in (9, 4):
        await metadctl("connectors", "resize", "connect", "lake", "--tasks", str(count))
        await until(lambda count=count: {*owners(workers)} == {*range(count)}, "as many tasks")
        settings = await m.table(CONNECTORS).get("connect", "lake")
        assert settings is not None
        assert settings.record.tasks_max == count
    await m.assignments.connectors.delete("connect", "lake")
    await until(lambda: not owners(workers), "no task is done")
    assert [found async for found in m.table(CONNECTORS).list("connect")] == []

    async def gone() -> bool:
        return await m.assignments.resources.get("connect", "lake", "connector") is None

    await until(gone, "the connector is gone")
