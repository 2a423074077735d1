"""What a client of a broker fleet does when a broker refuses it, is not there, or does not answer: bounded, shared, and
nothing is sent twice that may have been done. metad is scripted; the clock is the test's own."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fleets import EPOCH, KEY, broker, partition, resource
from msgspec.structs import replace
from scripted import Received, Server

from metad_client import (
    Choice,
    Client,
    ClosedError,
    ConflictError,
    ConnectionLostError,
    DeadlineExceededError,
    InvalidRequestError,
    MetadError,
    NoCandidateError,
    NotFoundError,
    OverloadedError,
    Owner,
    PartitionRoute,
    PermissionDeniedError,
    StaleRouteError,
    UnknownOutcomeError,
    blocking,
)
from metad_client.assignment import route as module
from metad_wire import messages as m
from metad_wire.families.assignment import PARTITIONS, RESOURCES
from metad_wire.tables.assignment import Partition, Resource
from metad_wire.tables.broker import BrokerGet, BrokerGetReply


class Fleet:
    """What metad says of three brokers, and what they answer."""

    def __init__(self, server: Server, count: int) -> None:
        self.resource: Resource | None = resource(count)
        self.partitions = [partition(n, *("abc"[n % 3 :] + "abc"[: n % 3])) for n in range(count)]
        self.brokers = {name: broker(name) for name in "abc"}
        self.readings: list[float] = []
        self.away = False
        self.kept: list[Received] = []
        self.asked: list[tuple[int, str]] = []
        self.sent: list[tuple[int, str]] = []
        self.waits: list[float] = []
        self.refused: dict[str, Exception | float] = {}
        """By broker: what connecting raises, or how long it takes."""
        self.fails: dict[str, Exception | float] = {}
        """The same of an answer."""
        server.answer = self.answer

    def answer(self, received: Received) -> None:
        body = received.body
        if self.away:
            self.kept.append(received)
            return
        if isinstance(body, BrokerGet):
            received.reply(BrokerGetReply([self.brokers.get(name) for name in body.brokers]))
        elif isinstance(body, m.TableGet) and received.method.table is not None and body.table == RESOURCES.number:
            received.reply(m.GetReply([None if self.resource is None else m.TableRecord(self.resource, 1, 1, 1)]))
        elif isinstance(body, m.TableList) and body.table == PARTITIONS.number:
            self.readings.append(asyncio.get_running_loop().time())
            received.reply(m.ListReply([m.TableRecord(p, 1, 1, 1) for p in self.partitions], b""))
        else:
            received.reply()

    def lead(self, number: int, name: str | None) -> None:
        """Another one leads it from now on, as metad says."""
        p = self.partitions[number]
        leader = None if name is None else Owner(name, EPOCH)
        self.partitions[number] = replace(p, leader=leader, leader_epoch=p.leader_epoch + 1)

    async def connect(self, choice: Choice) -> str:
        name = choice.broker.broker
        assert choice.broker.address == f"{name}:9092"
        self.asked.append((choice.partition, name))
        self.waits.append(choice.wait_s)
        await happens(self.refused.get(name, 0.0))
        return name

    async def send(self, connection: str, choice: Choice) -> tuple[int, str]:
        self.sent.append((choice.partition, connection))
        self.waits.append(choice.wait_s)
        await happens(self.fails.get(connection, 0.0))
        p: Partition = self.partitions[choice.partition]
        if p.leader_epoch != choice.leader_epoch or (choice.leads and p.leader != Owner(connection, EPOCH)):
            raise StaleRouteError("another leads")
        return choice.partition, connection


async def happens(what: Exception | float) -> None:
    if isinstance(what, Exception):
        raise what
    await asyncio.sleep(what)


@pytest.fixture
async def now() -> Callable[[], float]:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    return lambda: loop.time() - begun


async def opened(server: Server, dial: Any, count: int = 3, **options: Any) -> tuple[Fleet, PartitionRoute, Client]:
    fleet = Fleet(server, count)
    client = await dial(**options)
    return fleet, await client.assignments.route(*KEY), client


async def test_a_refusal_as_stale_reads_once_for_all_that_are_refused(server: Server, dial: Any) -> None:
    fleet, route, _ = await opened(server, dial)
    fleet.lead(1, "c")
    answers = await asyncio.gather(*(route.ask(fleet.connect, fleet.send, partition=1) for _ in range(1_000)))
    assert answers == [(1, "c")] * 1_000
    assert len(fleet.readings) == 2, "one when it was opened"
    assert len(fleet.sent) == 2_000
    before = len(fleet.readings)
    assert await route.ask(fleet.connect, fleet.send, partition=1) == (1, "c")
    assert len(fleet.readings) == before


async def test_while_nobody_leads_the_route_is_read_at_a_bounded_rate_and_to_the_deadline(
    server: Server, dial: Any
) -> None:
    fleet, route, _ = await opened(server, dial)
    loop = asyncio.get_running_loop()
    fleet.lead(1, None)
    begun = loop.time()
    waiting = [asyncio.create_task(route.ask(fleet.connect, fleet.send, partition=1, deadline_s=20)) for _ in range(50)]
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(error) for error in outcomes} == {NoCandidateError}
    assert "partition 1 of topic acme/orders" in str(outcomes[0])
    assert loop.time() - begun == pytest.approx(20, abs=0.01)
    assert 40 <= len(fleet.readings) <= 85
    assert len(fleet.sent) == 50, "each has asked the former leader once"
    waits = [one - other for other, one in zip(fleet.readings[1:], fleet.readings[2:], strict=False)]
    assert min(waits) >= 0.1
    assert max(waits) <= 0.51

    later = asyncio.create_task(route.ask(fleet.connect, fleet.send, partition=1, deadline_s=20))
    await asyncio.sleep(5)
    fleet.lead(1, "b")
    assert await later == (1, "b")


async def test_what_may_have_been_done_is_not_sent_again(server: Server, dial: Any) -> None:
    fleet, route, _ = await opened(server, dial)
    lost: list[Exception] = [EOFError(), ConnectionResetError(), ConnectionLostError(), DeadlineExceededError()]
    for error in lost:
        fleet.sent.clear()
        fleet.fails["b"] = error
        with pytest.raises(UnknownOutcomeError, match=type(error).__name__) as raised:
            await route.ask(fleet.connect, fleet.send, partition=1)
        assert not raised.value.outcome_known
        assert raised.value.__cause__ is error
        assert fleet.sent == [(1, "b")]
    mine = UnknownOutcomeError("its leader_epoch ended")
    fleet.fails["b"] = mine
    with pytest.raises(UnknownOutcomeError, match="its leader_epoch ended"):
        await route.ask(fleet.connect, fleet.send, partition=1)


async def test_an_answer_that_does_not_come_is_waited_for_until_the_deadline(
    server: Server, dial: Any, now: Any
) -> None:
    fleet, route, _ = await opened(server, dial)
    fleet.fails["b"] = 1_000.0
    with pytest.raises(UnknownOutcomeError):
        await route.ask(fleet.connect, fleet.send, partition=1, deadline_s=7)
    assert now() == pytest.approx(7, abs=0.01)
    assert len(fleet.sent) == 1


async def test_connecting_counts_to_the_deadline(server: Server, dial: Any, now: Any) -> None:
    fleet, route, _ = await opened(server, dial)
    fleet.refused["b"], fleet.fails["b"] = 2.0, 1_000.0
    with pytest.raises(UnknownOutcomeError):
        await route.ask(fleet.connect, fleet.send, partition=1, deadline_s=5)
    assert now() == pytest.approx(5, abs=0.01)
    assert [round(one) for one in fleet.waits] == [3, 3], "for the connection, and what is left for the answer"


@pytest.mark.parametrize("how", [{"to": "read"}, {"again": True}])
async def test_what_reads_or_may_be_repeated_is_sent_again(server: Server, dial: Any, now: Any, how: Any) -> None:
    fleet, route, _ = await opened(server, dial)
    fleet.fails["b"] = 1_000.0
    asking = asyncio.create_task(route.ask(fleet.connect, fleet.send, partition=1, **how))
    await asyncio.sleep(1)
    fleet.lead(1, "c")
    assert await asking == (1, "c")
    assert now() == pytest.approx(module.ANSWER_S, abs=0.01)
    assert fleet.sent == [(1, "b"), (1, "c")]
    fleet.fails["c"] = EOFError()
    error = DeadlineExceededError if "to" in how else UnknownOutcomeError
    with pytest.raises(error) as raised:
        await route.ask(fleet.connect, fleet.send, partition=1, **how)
    assert raised.value.outcome_known == ("to" in how), "a write that was sent may have been done"


async def test_a_broker_that_is_not_there_makes_another_partition_be_asked_at_once(
    server: Server, dial: Any, now: Any
) -> None:
    fleet, route, _ = await opened(server, dial, 6)
    fleet.refused["b"] = ConnectionRefusedError()
    for _ in range(20):
        number, name = await route.ask(fleet.connect, fleet.send)
        assert name in "ac"
        assert number % 3 != 1
    assert now() < 0.2
    assert len(fleet.readings) == 2
    assert [name for _, name in fleet.asked].count("b") == 1, "it is avoided for a while"
    for _ in range(3):
        assert (await route.ask(fleet.connect, fleet.send, order=[1, 2]))[0] == 2
    assert [name for _, name in fleet.asked].count("b") == 1
    del fleet.refused["b"]
    await asyncio.sleep(module.SHUN_S + 0.1)
    assert {(await route.ask(fleet.connect, fleet.send))[1] for _ in range(6)} == {"a", "b", "c"}

    fleet.refused["b"] = 1_000.0
    assert {(await route.ask(fleet.connect, fleet.send))[1] for _ in range(6)} == {"a", "c"}
    assert now() == pytest.approx(module.SHUN_S + module.ANSWER_S, abs=0.5)


async def test_at_the_deadline_it_is_known_that_nothing_was_sent(server: Server, dial: Any) -> None:
    fleet, route, _ = await opened(server, dial)
    fleet.refused["b"] = ConnectionLostError("nobody is there")
    with pytest.raises(ConnectionLostError, match="nobody is there") as raised:
        await route.ask(fleet.connect, fleet.send, partition=1, deadline_s=1)
    assert raised.value.outcome_known
    assert not fleet.sent


async def test_what_has_a_key_waits_for_the_leader_of_its_partition(server: Server, dial: Any, now: Any) -> None:
    fleet, route, _ = await opened(server, dial)
    name = route.choose(key=b"k").broker.broker
    number = "abc".index(name)
    fleet.refused[name] = ConnectionRefusedError("nobody listens")
    with pytest.raises(DeadlineExceededError, match="ConnectionRefusedError: nobody listens") as raised:
        await route.ask(fleet.connect, fleet.send, key=b"k", deadline_s=4)
    assert raised.value.outcome_known
    assert now() == pytest.approx(4, abs=0.01)
    assert {*fleet.asked} == {(number, name)}
    assert len(fleet.asked) <= 2 + len(fleet.readings)
    del fleet.refused[name]
    assert await route.ask(fleet.connect, fleet.send, key=b"k") == (number, name), "also while others avoid it"


async def test_a_replica_answers_where_nobody_leads(server: Server, dial: Any) -> None:
    fleet, route, _ = await opened(server, dial)
    fleet.lead(1, None)
    fleet.refused["b"] = ConnectionRefusedError()
    assert await route.ask(fleet.connect, fleet.send, partition=1, to="read_any") == (1, "c")
    assert fleet.asked[0] == (1, "b")
    assert fleet.asked[-1] == (1, "c")


async def test_errors_that_are_the_programs_own_are_its_own(server: Server, dial: Any) -> None:
    fleet, route, _ = await opened(server, dial)
    for error in (ValueError("a bug"), PermissionDeniedError("no")):
        for where in (fleet.refused, fleet.fails):
            where["b"] = error
            with pytest.raises(type(error)) as raised:
                await route.ask(fleet.connect, fleet.send, partition=1)
            assert raised.value is error
            del where["b"]


async def test_a_broker_that_has_no_room_is_asked_again(server: Server, dial: Any) -> None:
    fleet, route, _ = await opened(server, dial)
    fleet.fails["b"] = OverloadedError()
    asking = asyncio.create_task(route.ask(fleet.connect, fleet.send, partition=1))
    await asyncio.sleep(1)
    del fleet.fails["b"]
    assert await asking == (1, "b")
    fleet.fails["b"] = OverloadedError("no room")
    with pytest.raises(OverloadedError, match="no room"):
        await route.ask(fleet.connect, fleet.send, partition=1, deadline_s=1)


async def test_brokers_that_all_refuse_are_not_asked_one_after_the_other(server: Server, dial: Any) -> None:
    fleet, route, _ = await opened(server, dial, 100)
    fleet.fails = dict.fromkeys("abc", OverloadedError())
    with pytest.raises(OverloadedError):
        await route.ask(fleet.connect, fleet.send, deadline_s=5)
    assert len({*fleet.sent}) > 3, "but others each time"
    assert len(fleet.sent) <= module.TRIES_MAX * len(fleet.readings)


async def test_what_there_is_not_is_said_by_a_new_copy_only(server: Server, dial: Any, now: Any) -> None:
    fleet, route, _ = await opened(server, dial)
    whole, fleet.resource = fleet.resource, None
    early = await dial.clients[0].assignments.route(*KEY)
    with pytest.raises(NotFoundError, match="there is no topic acme/orders"):
        early.choose()
    fleet.resource = whole
    assert (await early.ask(fleet.connect, fleet.send))[0] in range(3)

    fleet.resource = resource(4)
    fleet.partitions.append(partition(3, "a"))
    assert await route.ask(fleet.connect, fleet.send, partition=3) == (3, "a")
    fleet.partitions[3] = replace(fleet.partitions[3], end=8, state="sealed", leader_epoch=99)
    with pytest.raises(ConflictError, match="sealed at 8"):
        await route.ask(fleet.connect, fleet.send, partition=3)
    with pytest.raises(NotFoundError):
        await route.ask(fleet.connect, fleet.send, partition=4)
    assert now() < 1.5, "nobody waits for what a new copy says"


async def test_an_old_copy_is_read_anew_beside_a_request(server: Server, dial: Any) -> None:
    """No broker refuses a client that has not heard of new partitions: they would never be asked, and keys would go
    where others do not look for them."""
    fleet, route, _ = await opened(server, dial)
    fleet.resource = resource(5)
    fleet.partitions += [partition(n, "a") for n in (3, 4)]
    await asyncio.sleep(module.AGE_S - 1)
    await route.ask(fleet.connect, fleet.send)
    assert len(fleet.readings) == 1
    await asyncio.sleep(2)
    await route.ask(fleet.connect, fleet.send)
    await asyncio.sleep(1)
    assert len(fleet.readings) == 2
    assert len(route.records) == 5
    assert {(await route.ask(fleet.connect, fleet.send))[0] for _ in range(5)} == {*range(5)}


async def test_while_metad_is_away_brokers_are_asked_all_the_same(server: Server, dial: Any, now: Any) -> None:
    fleet, route, client = await opened(server, dial)
    fleet.away = True
    fleet.refused["b"] = ConnectionRefusedError()
    with pytest.raises(MetadError) as raised:
        await route.ask(fleet.connect, fleet.send, partition=1, deadline_s=2)
    assert raised.value.outcome_known
    assert now() == pytest.approx(2, abs=0.01)
    assert (await route.ask(fleet.connect, fleet.send, partition=0)) == (0, "a")
    asking = asyncio.create_task(route.ask(fleet.connect, fleet.send, partition=1, deadline_s=30))
    await asyncio.sleep(1)
    del fleet.refused["b"]
    assert await asking == (1, "b")
    assert now() <= 2 + 2 * module.READ_S + 1

    fleet.refused["b"] = ConnectionRefusedError()
    asking = asyncio.create_task(route.ask(fleet.connect, fleet.send, partition=1, deadline_s=30))
    await asyncio.sleep(1)
    await client.close()
    with pytest.raises(ClosedError):
        await asking


async def test_who_gives_up_takes_the_reading_from_nobody(server: Server, dial: Any) -> None:
    fleet, route, _ = await opened(server, dial)
    fleet.lead(1, "c")
    fleet.away = True
    first, second = (asyncio.create_task(route.ask(fleet.connect, fleet.send, partition=1)) for _ in range(2))
    await asyncio.sleep(0.001)  # both were refused, and wait for what no server has answered yet
    assert (len(fleet.sent), len(fleet.readings)) == (2, 1)
    first.cancel()
    fleet.away = False
    fleet.answer(fleet.kept.pop())
    assert await second == (1, "c")
    assert len(fleet.readings) == 2
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_choices_are_there_for_programs_that_send_by_themselves(server: Server, dial: Any) -> None:
    fleet, route, _ = await opened(server, dial)
    assert {route.choose().partition for _ in range(3)} == {0, 1, 2}
    assert route.choose(partition=2).broker.address == "c:9092"
    fleet.lead(2, None)
    await route.refresh()
    assert {route.choose().partition for _ in range(4)} == {0, 1}
    with pytest.raises(NoCandidateError, match="partition 2 of topic"):
        route.choose(partition=2)


async def test_the_route_is_of_the_clients_region(server: Server, dial: Any) -> None:
    fleet, _, client = await opened(server, dial, 6, region="eu")
    for name, region, rack in (("a", "us", "r1"), ("b", "eu", "r2"), ("c", "eu", "r1")):
        fleet.brokers[name] = broker(name, region=region, rack=rack)
    for where, names in (({}, "bc"), ({"rack": "r1"}, "c"), ({"region": "us"}, "a"), ({"region": ""}, "abc")):
        route = await client.assignments.route(*KEY, **where)
        assert {route.choose().broker.broker for _ in range(12)} == {*names}


@pytest.mark.parametrize("how", [{"deadline_s": -1}, {"deadline_s": "1"}, {"again": 1}, {"partition": 1, "key": b""}])
async def test_wrong_arguments_ask_nobody(server: Server, dial: Any, how: Any) -> None:
    fleet, route, _ = await opened(server, dial)
    with pytest.raises(InvalidRequestError):
        await route.ask(fleet.connect, fleet.send, **how)
    with pytest.raises(DeadlineExceededError, match="no attempt was made"):
        await route.ask(fleet.connect, fleet.send, deadline_s=0)
    assert not fleet.asked


def test_the_blocking_route_takes_the_same_arguments() -> None:
    one, twin = (inspect.signature(kind.ask).parameters for kind in (PartitionRoute, blocking.PartitionRoute))
    assert [*one] == [*twin]
    assert [at.default for at in one.values()] == [at.default for at in twin.values()]


def test_a_blocking_program_asks_in_its_own_thread(scripted_server: Server) -> None:
    fleet, threads, sent = Fleet(scripted_server, 3), set[int](), list[str]()
    answers: list[Exception | int] = []

    def connect(choice: Choice) -> str:
        threads.add(threading.get_ident())
        return choice.broker.broker

    def send(connection: str, choice: Choice) -> int:
        sent.append(connection)
        assert 0 < choice.wait_s <= 10
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    with blocking.connect("metad://a", transport=scripted_server.transport) as m:
        route = m.assignments.route(*KEY)
        assert route.choose(partition=1).broker.broker == "b"
        answers += [StaleRouteError(), 7]
        assert route.ask(connect, send, partition=1) == 7
        answers += [StaleRouteError(), 8]
        assert route.ask(connect, send) == 8
        assert sent[:2] == ["b", "b"]
        assert sent[2] != sent[3], "another partition"
        answers += [EOFError()]
        with pytest.raises(UnknownOutcomeError):
            route.ask(connect, send, partition=0)
        answers += [EOFError(), 9]
        assert route.ask(connect, send, partition=0, to="read") == 9
        fleet.lead(2, None)
        route.refresh()
        with pytest.raises(NoCandidateError):
            route.ask(connect, send, partition=2, deadline_s=0.3)
    assert not answers
    assert threads == {threading.get_ident()}
