"""The parts of the amqtt adapter by themselves: what goes to a client, what waits for it, who gets a message, and the
links between brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from metad import embedded
from metad_client import Client, DeadlineExceededError, connect
from metad_client.contrib.amqtt.envelope import Envelope
from metad_client.contrib.amqtt.links import Delivery, Link, Listener, Unreachable
from metad_client.contrib.amqtt.outbox import HELD_MAX, IN_FLIGHT_MAX, Outbox
from metad_client.contrib.amqtt.routes import Owner, Routes, Target
from metad_client.contrib.amqtt.waiting import WAITING_MAX, Waiting, WaitingMessages


@pytest.fixture
async def metad() -> AsyncIterator[Client]:
    async with embedded.serve() as server, connect(server.url) as client:
        yield client


class Peer:
    """A client that acknowledges when the test says so."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.acknowledged: list[asyncio.Future[None]] = []
        self.is_quick = True
        self.failures = 0

    async def take(self, message: Envelope) -> None:
        self.sent.append(message.payload)
        if not self.is_quick:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.acknowledged.append(future)
            await future

    def fail(self) -> None:
        self.failures += 1


@asynccontextmanager
async def sending(peer: Peer, waiting: WaitingMessages) -> AsyncIterator[Outbox]:
    outbox = Outbox("client", peer.take, waiting, peer.fail)
    running = asyncio.create_task(outbox.run())
    try:
        yield outbox
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        outbox.end()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def message(number: int) -> Envelope:
    return Envelope("topic", b"%d" % number, 1)


async def test_an_outbox_sends_in_order_and_says_what_was_acknowledged(metad: Client) -> None:
    peer = Peer()
    peer.is_quick = False
    async with sending(peer, WaitingMessages(metad, "t")) as outbox:
        results = [outbox.put(message(number)) for number in range(IN_FLIGHT_MAX + 5)]
        await until(lambda: len(peer.sent) == IN_FLIGHT_MAX)
        assert not any(result.done() for result in results)
        peer.acknowledged[3].set_result(None)
        assert await results[3]
        peer.acknowledged[4].set_exception(TimeoutError())
        assert not await results[4]
        assert peer.failures == 1
        await until(lambda: len(peer.sent) == IN_FLIGHT_MAX + 2)
        assert peer.sent == [b"%d" % number for number in range(IN_FLIGHT_MAX + 2)]
        outbox.end()
        assert [number for number, result in enumerate(results) if await result] == [3]
        assert not await outbox.put(message(0)), "it has ended"


async def test_an_outbox_holds_so_many_and_no_more(metad: Client) -> None:
    peer = Peer()
    outbox = Outbox("client", peer.take, WaitingMessages(metad, "t"), peer.fail)
    results = [outbox.put(message(number)) for number in range(HELD_MAX + 1)]
    assert [result.done() for result in results] == [False] * HELD_MAX + [True]
    assert not await results[-1]


async def test_what_waits_stays_until_it_is_acknowledged(metad: Client) -> None:
    waiting = WaitingMessages(metad, "t")
    assert await waiting.append("client", [message(number) for number in range(150)]) == 0
    assert await waiting.append("other", [message(7)]) == 0
    peer = Peer()
    peer.is_quick = False
    async with sending(peer, waiting) as outbox:
        outbox.look()
        await until(lambda: len(peer.sent) == IN_FLIGHT_MAX)
        for number, future in enumerate(peer.acknowledged):
            future.set_exception(TimeoutError()) if number == 2 else future.set_result(None)
        await until(lambda: peer.failures == 1)
        async with asyncio.timeout(30):
            while len((await waiting.read("client"))[0]) > 150 - IN_FLIGHT_MAX + 1:  # those that it has are removed
                pass
    left = [one.message.payload for one in (await waiting.read("client"))[0]]
    assert left == [b"2", *(b"%d" % number for number in range(IN_FLIGHT_MAX, 150))]
    peer = Peer()
    async with sending(peer, waiting) as outbox:
        outbox.look()
        later = outbox.put(message(999))
        assert await later
        assert peer.sent == [*left, b"999"], "what waited is older"
    assert await waiting.read("client") == ([], 0)
    assert len((await waiting.read("other"))[0]) == 1


async def test_a_client_whose_messages_cannot_be_read_is_closed_and_served_on(metad: Client) -> None:
    class Unreadable(WaitingMessages):
        async def read(self, client_id: str) -> tuple[list[Waiting], int]:
            raise DeadlineExceededError("metad is away", outcome_known=True)

    peer = Peer()
    async with sending(peer, Unreadable(metad, "t")) as outbox:
        outbox.look()
        await until(lambda: peer.failures == 1)
        assert await outbox.put(message(1)), "until it is closed"


async def test_as_many_wait_as_the_bound_says_whoever_appends(metad: Client) -> None:
    waiting = WaitingMessages(metad, "t")
    many = [message(number) for number in range(WAITING_MAX // 2 + 10)]
    dropped = await asyncio.gather(waiting.append("client", many), waiting.append("client", many))
    assert sum(dropped) == 20
    found, version = await waiting.read("client")
    assert len(found) == WAITING_MAX
    await waiting.remove("client", [one.key for one in found])
    assert await waiting.append("client", [message(1)]) == 1, "it counts until the client is up to date"
    assert await waiting.finish("client", version)
    assert await waiting.append("client", [message(1)]) == 0
    assert not await waiting.finish("client", version)
    await waiting.clear("client")
    assert await waiting.read("client") == ([], 0)


def test_a_client_gets_a_message_once_at_its_highest_qos() -> None:
    routes = Routes()
    here, away = Owner(("b1", 1), connected=True), Owner(("b1", 1), connected=False)
    for client, owner in (("one", here), ("two", here), ("three", away)):
        routes.show_owner(client, owner)
    for client, filter_, qos in (("one", "a/#", 0), ("one", "a/+", 2), ("one", "b", 1), ("two", "$share/g/a/#", 1)):
        routes.show_filter(client, filter_, qos)
    routes.show_filter("three", "$share/g/a/#", 1)
    assert {tuple(routes.targets("a/b")) for _ in range(20)} == {(Target("one", 2), Target("two", 1))}
    routes.show_owner("two", away)
    shared = {target.client_id for _ in range(200) for target in routes.targets("a/b")}
    assert shared == {"one", "two", "three"}, "any of them, where none is connected"
    assert routes.targets("b") == [Target("one", 1)]
    routes.show_owner("one", None)
    assert routes.owner("one") is None
    routes.show_filter("one", "b", None)
    assert routes.targets("b") == []


async def test_a_link_says_when_a_message_has_arrived_and_when_it_cannot(caplog: pytest.LogCaptureFixture) -> None:
    got: list[Delivery] = []
    release = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        got.append(delivery)
        if delivery.message == message(2):
            raise ValueError("this one fails")
        await release.wait()

    listener = Listener(handle)
    address = await listener.listen("127.0.0.1", 0)
    link, stranger = Link(address, listener.word), Link(address, "guessed")
    sending = asyncio.create_task(link.send(message(1), [Target("client", 1)], 2))
    await until(lambda: got)
    assert (got[0].message, got[0].targets, got[0].hops) == (message(1), [Target("client", 1)], 2)
    assert not sending.done()
    release.set()
    await sending
    with pytest.raises(Unreachable):
        await stranger.send(message(1), [Target("client", 1)])
    assert len(got) == 1
    lost = asyncio.create_task(link.send(message(2), [Target("client", 1)]))
    await until(lambda: len(got) == 2)
    await listener.close()
    with pytest.raises(Unreachable):
        await lost
    with pytest.raises(Unreachable):
        await link.send(message(1), [])
    for one in (link, stranger):
        await one.close()
    assert not [record for record in caplog.records if record.name == "asyncio"], "no exception that nobody has caught"
