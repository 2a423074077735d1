"""NameServer: brokers register, and clients look up which of them serve a topic.

A broker registers once; its heartbeats say nothing of topics. A route is a record of a table that the brokers declare.
Clients keep an image of brokers and routes, and are told each change alone instead of all that a broker has. A route
that was read before somebody changed it is refused by its version. A broker that dies is out of the routes, and what
it had is found by an index.

Not yet: a service that tells clients of a broker what they ask over HTTP; they read metad, or ask their broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from e2e_nodes import Nodes

from metad_client import (
    U32,
    Client,
    ConflictError,
    Image,
    LifeState,
    NotFoundError,
    PlainTable,
    Record,
    TablePutItem,
    connect,
)
from waiting import until

SHOWS = """
broker.register broker.heartbeat broker.get broker.list broker.drain broker.deregister
declaration.declare declaration.get declaration.list declaration.drop table.put table.get table.list table.delete
watch.open
"""
SERVES = ("registered", "active")


class Route(Record, frozen=True):
    cluster: str
    topic: str
    broker: str
    read_queues: U32 = 4
    write_queues: U32 = 4


def lookup(image: Image[Any], routes: Any, topic: str) -> dict[str, str]:
    """The brokers that serve a topic, and their addresses, as a client of them knows it without asking anybody."""
    return {
        key.broker: broker.address
        for key in image[routes]
        if key.topic == topic
        and (broker := next((b for b in image["broker"].values() if b.broker == key.broker), None)) is not None
        and broker.state in SERVES
    }


async def declared(m: Client) -> PlainTable[Route]:
    """The table of routes, made by whoever comes first."""
    indexes = {"by_broker": ("cluster", "broker")}
    key = ("cluster", "topic", "broker")
    return await m.tables.declare("nameserver_route", Route, key=key, routing=("cluster",), indexes=indexes)


async def test_a_client_finds_the_brokers_of_a_topic(m: Client, cluster: Nodes) -> None:
    routes = await declared(m)
    records = m.table(routes)
    async with connect(cluster.url) as a, connect(cluster.url) as client:
        b = connect(cluster.url)
        await b.open()
        life_a = await a.brokers.register("ns-a", address="10.0.0.1:10911", lease_s=20, attributes={"name": "a"})
        life_b = await b.brokers.register("ns-b", address="10.0.0.2:10911", lease_s=2)
        (
            await records.put_many(
                [TablePutItem(Route("c1", f"t{i}", broker)) for i in range(100) for broker in ("ns-a", "ns-b")]
            )
        ).raise_for_error()
        async with await client.image([routes, "broker"]).caught_up() as image:
            told: list[str] = []
            image.on_change(lambda event: told.append(event.key.topic) if event.table == routes.name else None)
            assert lookup(image, routes, "t5") == {"ns-a": "10.0.0.1:10911", "ns-b": "10.0.0.2:10911"}

            # One topic changes: that is all a client is told, whatever the broker has.
            assert await records.put(Route("c1", "t5", "ns-a", write_queues=2), expected_version=1) == 2
            await records.put(Route("c1", "new", "ns-b"), expected_version=0)
            await until(lambda: lookup(image, routes, "new"), "the new topic")
            assert told == ["t5", "new"]
            with pytest.raises(ConflictError) as stale:
                await records.put(Route("c1", "t5", "ns-a", write_queues=8), expected_version=1)
            assert stale.value.current == 2

            # A broker dies without a word.
            await b.close()
            assert life_b.state is LifeState.LOST
            await until(lambda: lookup(image, routes, "t5") == {"ns-a": "10.0.0.1:10911"}, "the death of ns-b")
            dead = await m.brokers.get("ns-b")
            assert dead is not None
            assert dead.state not in SERVES
            had = [route.record.topic async for route in records.list_by("by_broker", "c1", "ns-b")]
            assert len(had) == 101
            (await records.delete_many([("c1", topic, "ns-b") for topic in had])).raise_for_error()
            assert [route async for route in records.list_by("by_broker", "c1", "ns-b")] == []

            # Another one says that it goes, before it goes.
            assert (await life_a.drain()).state == "draining"
            assert [broker.broker async for broker in m.brokers.list("ns-", state="draining")] == ["ns-a"]
            assert await life_a.end() == []
            await until(lambda: lookup(image, routes, "t5") == {}, "the end of ns-a")


async def test_whoever_has_no_class_of_the_table_reads_it_and_an_administrator_drops_it(
    m: Client, metadctl: Callable[..., Awaitable[Any]]
) -> None:
    await m.table(await declared(m)).put(Route("c2", "t5", "ns-a", write_queues=2))
    assert [table["name"] for table in (await metadctl("tables", "--prefix", "nameserver"))["tables"]] == [
        "nameserver_route"
    ]
    found = await m.table(await m.tables.open("nameserver_route")).get("c2", "t5", "ns-a")
    assert found is not None
    assert found.record.write_queues == 2
    await m.tables.drop("nameserver_route")
    with pytest.raises(NotFoundError):
        await m.tables.open("nameserver_route")
