"""The parts of the amqtt adapter by themselves: what goes to a client, what waits for it, who gets a message, and the
links between brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from metad import embedded
from metad_amqtt.envelope import Envelope
from metad_amqtt.kept import Store
from metad_amqtt.links.link_proof import LinkKey
from metad_amqtt.links.link_proof import Peer as Called
from metad_amqtt.links.links import Delivery, Link, Listener, Unreachable
from metad_amqtt.links.routes import Owner, Routes, Target
from metad_amqtt.outbox import HELD_MAX, IN_FLIGHT_MAX, Outbox
from metad_amqtt.waiting import Found, WaitingMessages, found_in
from metad_client import Client, DeadlineExceededError, InflightState, connect
from waiting import until


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with embedded.serve() as server:
        yield server.url


@pytest.fixture
async def metad(url: str) -> AsyncIterator[Client]:
    async with connect(url) as client:
        yield client


@pytest.fixture
async def metad_of_another(url: str) -> AsyncIterator[Client]:
    async with connect(url) as client:
        yield client


class Peer:
    """A client that acknowledges when the test says so."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.acknowledged: list[asyncio.Future[None]] = []
        self.is_quick = True
        self.failures = 0

    async def take(self, message: Envelope, _waited: Sequence[str]) -> None:
        self.sent.append(message.payload)
        if not self.is_quick:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.acknowledged.append(future)
            await future

    def fail(self) -> None:
        self.failures += 1


async def queues(metad: Client, *clients: str) -> WaitingMessages:
    """As a broker has them. The clients are away."""
    store = Store(metad, "b1", "t", 100)
    await store.begin("127.0.0.1:1", "key", 100.0, 0)
    for client in clients:
        taken = await store.take(client, clean=False, will=None)
        await taken.owned.disconnect(will_discard=True)
    return WaitingMessages(metad, store)


async def payloads(waiting: WaitingMessages, client: str) -> list[bytes]:
    return [one.message.payload for one in (await waiting.read(client)).messages]


@asynccontextmanager
async def sending(peer: Peer, waiting: WaitingMessages, restored: Found | None = None) -> AsyncIterator[Outbox]:
    outbox = Outbox("client", peer.take, waiting, peer.fail, restored)
    running = asyncio.create_task(outbox.run())
    try:
        yield outbox
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        outbox.end()


async def test_what_is_said_late_of_a_connection_does_not_end_the_next(metad: Client, metad_of_another: Client) -> None:
    one, two = Store(metad, "b1", "t", 100), Store(metad_of_another, "b2", "t", 100)
    for store in (one, two):
        await store.begin("127.0.0.1:1", "key", 100.0, 0)
    taken = [await store.take("client", clean=False, will=None) for store in (one, two, one)]
    assert not await taken[0].owned.disconnect()
    session = await one.find("client")
    assert session is not None
    assert session.connected
    assert await taken[2].owned.disconnect(will_discard=True)
    session = await one.find("client")
    assert session is not None
    assert not session.connected


def message(number: int) -> Envelope:
    return Envelope("topic", b"%d" % number, 1)


async def test_an_outbox_sends_in_order_and_says_what_was_acknowledged(metad: Client) -> None:
    peer = Peer()
    peer.is_quick = False
    async with sending(peer, await queues(metad, "client")) as outbox:
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
    outbox = Outbox("client", peer.take, await queues(metad, "client"), peer.fail)
    results = [outbox.put(message(number)) for number in range(HELD_MAX + 1)]
    assert [result.done() for result in results] == [False] * HELD_MAX + [True]
    assert not await results[-1]


async def test_what_waits_stays_until_it_is_acknowledged(metad: Client) -> None:
    waiting = await queues(metad, "client", "other")
    for number in range(60):
        assert await waiting.append("client", message(number))
    assert await waiting.append("other", message(7))
    peer = Peer()
    peer.is_quick = False
    async with sending(peer, waiting) as outbox:
        outbox.look()
        await until(lambda: len(peer.sent) == IN_FLIGHT_MAX)
        for number, future in enumerate(peer.acknowledged):
            future.set_exception(TimeoutError()) if number == 2 else future.set_result(None)
        await until(lambda: peer.failures == 1)
        async with asyncio.timeout(120):
            while len(await payloads(waiting, "client")) > 60 - IN_FLIGHT_MAX + 1:  # those that it has are removed
                pass
    left = await payloads(waiting, "client")
    assert left == [b"2", *(b"%d" % number for number in range(IN_FLIGHT_MAX, 60))]
    peer = Peer()
    restored = await waiting.read("client")
    assert await waiting.append("client", message(60)), "behind what the takeover has restored"
    async with sending(peer, waiting, restored) as outbox:
        later = outbox.put(message(999))
        assert await later
        assert peer.sent == [*left, b"60", b"999"], "what waited is older"
    assert not await metad.inflight.get("t", "client")
    assert await payloads(waiting, "other") == [b"7"]


async def test_a_client_whose_messages_cannot_be_read_is_closed_and_served_on(metad: Client) -> None:
    class Unreadable(WaitingMessages):
        async def read(self, client_id: str) -> Found:
            raise DeadlineExceededError("metad is away", outcome_known=True)

    peer = Peer()
    async with sending(peer, Unreadable(metad, Store(metad, "b1", "t", 100))) as outbox:
        outbox.look()
        await until(lambda: peer.failures == 1)
        assert await outbox.put(message(1)), "until it is closed"


async def test_any_broker_appends_until_the_session_is_full(
    metad: Client, metad_of_another: Client, caplog: pytest.LogCaptureFixture
) -> None:
    one = await queues(metad, "client")
    other = Store(metad_of_another, "b2", "t", 100)
    await other.begin("127.0.0.1:2", "key", 100.0, 0)
    two = WaitingMessages(metad_of_another, other)
    large = Envelope("topic", bytes(200_000), 1)
    assert await two.append("client", large), "several rows, of a session that another broker has"
    assert await one.append("client", large)
    before = await metad.sessions.get("t", "client")
    assert not await two.append("client", large), "the newest is dropped"
    assert not await two.append("client", Envelope("topic", bytes(2_000_000), 1)), "no session holds so much"
    assert (one.dropped, two.dropped) == (0, 2)
    assert "a message for client is dropped: no more may wait for one client" in caplog.text
    assert await metad.sessions.get("t", "client") == before
    found = await one.read("client")
    assert [(one.message, len(one.names)) for one in found.messages] == [(large, 4), (large, 4)]
    await one.remove("client", [name for one in found.messages for name in one.names] + found.rubbish)
    assert not await metad.inflight.get("t", "client")
    assert await two.append("client", large), "there is room again"
    assert not await two.append("nobody", message(1))
    assert two.dropped == 2


async def test_a_message_of_which_a_part_is_missing_is_none(metad: Client) -> None:
    waiting = await queues(metad, "client")
    assert await waiting.append("client", Envelope("topic", bytes(100_000), 1))
    states = await metad.inflight.get("t", "client")
    assert found_in(states[:1]) == Found([], []), "the other part is on its way"
    old = [InflightState("w/" + "0" * 16 + states[0].name[18:], states[0].value)]
    assert found_in(old) == Found([], [old[0].name]), "its broker has died"
    dropped = [states[0], InflightState(states[1].name, b"")]
    assert found_in(dropped) == Found([], [one.name for one in states])
    assert found_in([InflightState("in/1", b"x")]) == Found([], []), "a message of QoS 2 that the client publishes"


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

    keys = {name: LinkKey((name, 1)) for name in ("b1", "b2", "b3")}

    async def find(broker: str, epoch: int) -> str | None:
        return keys["b2"].public

    listener = Listener(handle, find, keys["b1"])
    address = await listener.listen("127.0.0.1", 0)
    called = Called(("b1", 1), keys["b1"].public)
    link, stranger = Link(address, called, keys["b2"]), Link(address, called, keys["b3"])
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
