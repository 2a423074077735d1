"""Routes on a real node: who asks by an old copy is refused, and finds the right place with one call."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from serving_brokers import Broker, joined

from metad import embedded
from metad_client import (
    Choice,
    Client,
    InvalidRequestError,
    MetadError,
    NotFoundError,
    Route,
    StaleRouteError,
    blocking,
    connect,
)
from metad_client import routes as module
from metad_wire.families.core import TOPICS, Topic
from metad_wire.families.journal import SEGMENTS, Segment
from waiting import until

sys.path.append(str(Path(__file__).resolve().parents[2] / "clients" / "examples"))

from log_broker.__main__ import main as log_broker
from log_broker.client import Topic as LogTopic


@pytest.fixture(scope="module")
def server() -> Iterator[embedded.Server]:
    with embedded.serve_in_thread() as server:
        yield server


@pytest_asyncio.fixture
async def m(server: embedded.Server) -> AsyncIterator[Client]:
    async with connect(server.url) as m:
        yield m


def segment(shard: str, number: int, broker: str) -> Segment:
    return Segment("acme", shard, number, {broker: "/data"})


async def test_who_comes_by_an_old_copy_is_refused_and_finds_the_way_with_one_call(m: Client) -> None:
    table = m.table(SEGMENTS)
    for number in range(3):
        await table.put(segment("orders", number, "b1"))
    client, broker = await m.routes(SEGMENTS, "acme", "orders"), await m.routes(SEGMENTS.name, "acme", "orders")
    assert {rest: [*one.record.folders] for rest, one in client.records.items()} == {(at,): ["b1"] for at in range(3)}
    found = client[1]
    assert await broker.check(found.mod_revision, 1) == found

    await table.put(segment("orders", 1, "b2"))
    assert client[1] == found, "it is a copy"
    await broker.refresh()
    with pytest.raises(StaleRouteError, match="segment acme/orders/1: revision") as refused:
        await broker.check(found.mod_revision, 1)
    await client.refresh()
    assert [*client[1].record.folders] == ["b2"]
    assert client[1].mod_revision == refused.value.current
    assert await broker.check(client[1].mod_revision, 1) == client[1]
    assert [*(await broker.check(client[0].mod_revision, 0)).record.folders] == ["b1"], "the others are as they were"


async def test_who_is_asked_by_a_newer_copy_reads_anew(m: Client) -> None:
    table = m.table(TOPICS)
    await table.put(Topic("acme", "bills"))
    broker = await m.routes(TOPICS, "acme", "bills")
    await asyncio.sleep(module.OWN_READ_S)
    await table.put(Topic("acme", "bills", partitions=9))
    client = await m.routes(TOPICS, "acme", "bills")
    assert (await broker.check(client[()].mod_revision)).record.partitions == 9

    await table.delete("acme", "bills")
    await asyncio.sleep(module.OWN_READ_S)
    await table.put(Topic("acme", "bills", partitions=2))
    again = await m.routes(TOPICS, "acme", "bills")
    assert again[()].version == 1, "it was made again"
    assert (await broker.check(again[()].mod_revision)).record.partitions == 2
    with pytest.raises(StaleRouteError):
        await broker.check(client[()].mod_revision)


async def test_what_there_is_not_is_said(m: Client) -> None:
    nothing = await m.routes(TOPICS, "acme", "nothing")
    assert (dict(nothing.records), nothing.get()) == ({}, None)
    with pytest.raises(NotFoundError, match="there is no topic acme/nothing"):
        nothing[()]
    with pytest.raises(StaleRouteError) as refused:
        await nothing.check(7)
    assert refused.value.current == 0
    with pytest.raises(NotFoundError, match="there is no table nowhere"):
        await m.routes("nowhere", "acme", "x")
    for key in (("acme",), (), ("acme", "x", 3, 4)):
        with pytest.raises(InvalidRequestError, match="is named by tenant, shard"):
            await m.routes(SEGMENTS, *key)
    for wrong in (-1, "7", None):
        with pytest.raises(InvalidRequestError, match="revision"):
            await nothing.check(wrong)  # type: ignore[arg-type]


class Readings:
    """Counts the listings of a route, and lets them wait."""

    def __init__(self, route: Route[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.error: MetadError | None = None
        self.then: asyncio.Task[None] | None = None
        self.read, self.free = asyncio.Event(), asyncio.Event()
        self.free.set()
        real = route._source.list

        async def listed(*key: Any, **options: Any) -> AsyncIterator[Any]:
            self.count += 1
            if (error := self.error) is not None:
                if self.then is None:
                    self.error, self.then = None, asyncio.create_task(route.refresh())
                raise error
            async for one in real(*key, **options):
                yield one
            self.read.set()
            await self.free.wait()

        monkeypatch.setattr(route._source, "list", listed)


async def test_all_that_ask_meanwhile_share_a_reading_that_begins_after_they_asked(
    m: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = m.table(TOPICS)
    await table.put(Topic("acme", "many"))
    route = await m.routes(TOPICS, "acme", "many")
    readings = Readings(route, monkeypatch)
    readings.free.clear()
    first = asyncio.create_task(route.refresh())
    await readings.read.wait()
    await table.put(Topic("acme", "many", partitions=5))
    others = [asyncio.create_task(route.refresh()) for _ in range(1_000)]
    await asyncio.sleep(0)
    readings.free.set()
    await asyncio.gather(*others)
    assert route[()].record.partitions == 5, "the reading that was under way was too early for them"
    assert readings.count == 2
    await first

    readings.count, readings.error, readings.then = 0, MetadError("no"), first
    outcomes = await asyncio.gather(*(route.refresh() for _ in range(10)), return_exceptions=True)
    assert {str(one) for one in outcomes} == {"no"}, "nobody takes an old copy for a new one"
    assert readings.count == 1
    assert route[()].record.partitions == 5, "the copy stays"
    readings.error = None
    await route.refresh()


async def test_revisions_that_nobody_gave_cost_few_readings(m: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await m.table(TOPICS).put(Topic("acme", "attacked"))
    route = await m.routes(TOPICS, "acme", "attacked")
    readings = Readings(route, monkeypatch)
    begun = asyncio.get_running_loop().time()
    for number in range(2_000):
        with pytest.raises(StaleRouteError):
            await route.check(route[()].mod_revision + 1 + number)
    took = asyncio.get_running_loop().time() - begun
    assert readings.count <= 1 + took / module.OWN_READ_S


async def test_copies_of_all_ages_agree_on_who_is_right(m: Client) -> None:
    """Whatever is written: a check that passes means both have the same record, and a refused client is right after
    one refresh."""
    table, rng = m.table(SEGMENTS), random.Random(11)
    copies = [await m.routes(SEGMENTS, "acme", "random") for _ in range(4)]
    for step in range(200):
        number = rng.randrange(3)
        if rng.random() < 0.3:
            with contextlib.suppress(NotFoundError):
                await table.delete("acme", "random", number)
        else:
            await table.put(segment("random", number, f"b{step}"))
        if rng.random() < 0.5:
            await rng.choice(copies).refresh()
        client, broker = rng.sample(copies, 2)
        chosen = client.get(number)
        if chosen is None:
            continue
        try:
            served = await broker.check(chosen.mod_revision, number)
        except StaleRouteError:
            await client.refresh()
            assert client.get(number) == await table.get("acme", "random", number)
        else:
            assert served == chosen


def test_a_blocking_program_has_routes_too(server: embedded.Server) -> None:
    with blocking.connect(server.url) as m:
        m.table(TOPICS).put(Topic("acme", "blocking"))
        route = m.routes(TOPICS, "acme", "blocking")
        assert route.check(route[()].mod_revision) == route.get() == route.records[()]
        with pytest.raises(StaleRouteError):
            route.check(1 << 40)


async def test_who_asks_just_when_a_reading_has_failed_gets_the_next_one(
    m: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await m.table(TOPICS).put(Topic("acme", "failing"))
    route = await m.routes(TOPICS, "acme", "failing")
    readings = Readings(route, monkeypatch)
    readings.error = MetadError("no")
    first = asyncio.create_task(route.refresh())
    with pytest.raises(MetadError, match="no"):
        await first
    assert readings.then is not None
    await readings.then  # it began before anybody could hear of the end of the other
    assert readings.count == 2


class Brokers:
    """Brokers as a client meets them: by address."""

    def __init__(self, *brokers: Broker) -> None:
        self.at = {broker.name: broker for broker in brokers}
        self.refusals = 0

    async def connect(self, choice: Choice) -> Broker:
        if choice.broker.address not in self.at:
            raise ConnectionRefusedError(choice.broker.address)
        return self.at[choice.broker.address]

    async def append(self, broker: Broker, choice: Choice) -> tuple[int, str]:
        record = choice.found.record
        led = broker.led.get((record.tenant, record.resource, record.kind, choice.partition))
        if led is None or led.leader_epoch != choice.leader_epoch:
            self.refusals += 1
            raise StaleRouteError(f"{broker.name} does not lead under {choice.leader_epoch}")
        broker.append(led.key)
        return choice.partition, broker.name


async def test_a_client_of_a_fleet_finds_partition_and_broker_through_a_death(
    m: Client, server: embedded.Server
) -> None:
    """By key, in turn and by priority, in an async and in a blocking program."""
    async with AsyncExitStack() as stack:
        racks = {"fleet-1": "r1", "fleet-2": "r2", "fleet-3": "r1"}
        each = [
            await joined(stack, server, name, "queue", address=name, rack=rack, lease_s=30.0)
            for name, rack in racks.items()
        ]
        fleet = Brokers(*each)
        await m.assignments.create("acme", "fleet", "queue", partitions=6, replication=3)
        await until(lambda: sum(len(broker.led) for broker in each) == 6, "each partition is led")
        route = await m.assignments.route("acme", "fleet", "queue", rack="r2")
        by_key = {f"k{n}": await route.ask(fleet.connect, fleet.append, key=f"k{n}") for n in range(20)}
        assert {number for number, _ in by_key.values()} == {*range(6)}
        led_by = dict(by_key.values())
        in_turn = [await route.ask(fleet.connect, fleet.append) for _ in range(4)]
        assert {name for _, name in in_turn} == {"fleet-2"}, "it is in the client's rack"
        assert {number for number, _ in in_turn} == {n for n, name in led_by.items() if name == "fleet-2"}
        assert await route.ask(fleet.connect, fleet.append, order=[5, 0]) == (5, led_by[5])
        assert not fleet.refusals

        await each[1].life.end()  # its clients have not heard of it
        await until(lambda: sum(len(broker.led) for broker in (each[0], each[2])) == 6, "others lead")
        moved = {key: await route.ask(fleet.connect, fleet.append, key=key) for key in by_key}
        assert {key: number for key, (number, _) in moved.items()} == {
            key: number for key, (number, _) in by_key.items()
        }
        assert {name for _, name in moved.values()} == {"fleet-1", "fleet-3"}
        assert fleet.refusals == 1, "one refusal, and the route was read anew"
        del fleet.at["fleet-1"]
        assert {name for _, name in [await route.ask(fleet.connect, fleet.append) for _ in range(6)]} == {"fleet-3"}
        fleet.at["fleet-1"] = each[0]

        loop = asyncio.get_running_loop()

        def blocks() -> tuple[set[int], list[Any]]:
            with blocking.connect(server.url) as twin:
                known = twin.assignments.route("acme", "fleet", "queue")

                def run(what: Any) -> Any:
                    return asyncio.run_coroutine_threadsafe(what, loop).result(10)

                def ask(**how: Any) -> Any:
                    return known.ask(
                        lambda choice: run(fleet.connect(choice)),
                        lambda broker, choice: run(fleet.append(broker, choice)),
                        **how,
                    )

                chosen = {known.choose().partition for _ in range(6)}
                run(each[0].life.end())
                return chosen, [ask(key=key, deadline_s=20.0) for key in by_key]

        chosen, asked = await asyncio.to_thread(blocks)
        assert chosen == {*range(6)}
        assert asked == [(number, "fleet-3") for number, _ in by_key.values()]


async def test_the_log_broker_appends_by_key_and_in_turn(m: Client, server: embedded.Server, tmp_path: Path) -> None:
    serving = asyncio.create_task(log_broker(server.url, "log-1", tmp_path, "127.0.0.1", 10.0))
    await until(lambda: _lives(m, "log-1"), "the broker")
    await m.assignments.create("acme", "logs", "topic", partitions=3, replicas=[["log-1"]] * 3)
    topic = await LogTopic.open(m, "acme", "logs")
    first = await topic.append(b"customer-7", [b"one", b"two"])
    again = await topic.append(b"customer-7", [b"three"])
    assert (again.partition, again.offset) == (first.partition, 2)
    assert {(await topic.append(None, [b"any"])).partition for _ in range(3)} == {0, 1, 2}
    fetched = await topic.fetch(first.partition, 0)
    assert [record.payload for record in fetched.records] == [b"one", b"two", b"three", b"any"]
    topic.close()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def _lives(m: Client, broker: str) -> bool:
    found = await m.brokers.get(broker)
    return found is not None and found.state == "active"
