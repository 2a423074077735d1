"""An attacker with an MQTT client: whatever it sends, other clients are served, no stack trace is logged, and nothing
is left behind. The brokers run in the test's own loop, so that it can count their tasks."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import websockets
from websockets import Subprotocol

from metad import embedded
from metad_amqtt import MetadBroker
from metad_amqtt import broker as broker_module
from metad_amqtt.handler import ARRIVING_MAX, UNSENT_MAX
from metad_amqtt.packets import UNFINISHED_BYTES_MAX
from metad_client import MetadError, connect
from metad_wire.tables.subscription import SUBSCRIPTIONS_MAX
from waiting import until

ANONYMOUS = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
WAIT_S = 120.0
FLAPS = 1_000


def text(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


def packet(first: int, body: bytes = b"") -> bytes:
    length, rest = b"", len(body)
    while True:
        rest, byte = rest // 128, rest % 128
        length += bytes([byte | (0x80 if rest else 0)])
        if not rest:
            return bytes([first]) + length + body


class Raw:
    """A connection whose packets the test writes itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, broker: MetadBroker) -> Raw:
        host, _, port = broker.bound().rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    @classmethod
    async def connected(cls, broker: MetadBroker, client_id: bytes, *, clean: bool = True) -> Raw:
        raw = await cls.open(broker)
        raw.send(0x10, b"\x00\x04MQTT\x04" + (b"\x02" if clean else b"\x00") + b"\x00\x00" + text(client_id))
        first, body = await raw.next()
        assert (first, body[1]) == (0x20, 0)
        return raw

    def send(self, first: int, body: bytes = b"") -> None:
        self.writer.write(packet(first, body))

    async def next(self) -> tuple[int, bytes]:
        """The next packet: its first byte, and what follows the length."""
        async with asyncio.timeout(WAIT_S):
            first = (await self.reader.readexactly(1))[0]
            length, shift = 0, 0
            while True:
                byte = (await self.reader.readexactly(1))[0]
                length |= (byte & 0x7F) << shift
                shift += 7
                if not byte & 0x80:
                    return first, await self.reader.readexactly(length)

    async def asked(self, first: int, body: bytes = b"") -> tuple[int, bytes]:
        self.send(first, body)
        return await self.next()

    async def is_closed(self) -> bool:
        """Wait for the end of the connection."""
        async with asyncio.timeout(WAIT_S):
            with contextlib.suppress(ConnectionError):
                await self.reader.read()
        self.writer.close()
        return True


@asynccontextmanager
async def running(count: int, **settings: Any) -> AsyncIterator[list[MetadBroker]]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(embedded.serve())
        brokers = []
        for number in range(count):
            metad = await stack.enter_async_context(connect(server.url))
            config = {"listeners": {"default": {"type": "tcp", "bind": "127.0.0.1:0"}}, "plugins": ANONYMOUS}
            broker = MetadBroker(metad, f"broker-{number}", config, **settings)
            await broker.start()
            stack.push_async_callback(broker.shutdown)
            brokers.append(broker)
        yield brokers


@asynccontextmanager
async def nothing_is_left(brokers: list[MetadBroker]) -> AsyncIterator[None]:
    """Around an attack: as many tasks afterwards as before, and an honest client is served."""
    one = await Raw.connected(brokers[0], b"honest")
    assert await one.asked(0x82, b"\x00\x01" + text(b"honest") + b"\x01") == (0x90, b"\x00\x01\x01")
    await asyncio.sleep(0)
    before = len(asyncio.all_tasks())
    yield
    one.send(0x32, text(b"honest") + b"\x00\x09hello")
    first, body = await one.next()
    assert (first, body[8:8]) == (0x32, b"")
    assert body.endswith(b"hello")
    one.send(0x40, body[8:10])
    assert await one.next() == (0x40, b"\x00\x09")
    await until(lambda: len(asyncio.all_tasks()) <= before)
    one.writer.close()


@pytest.fixture(autouse=True)
def no_stack_trace(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [one for one in caplog.records if one.exc_info or "Traceback" in one.getMessage()]
    assert not [one.getMessage() for one in caplog.records if one.name == "asyncio" and one.levelname != "DEBUG"]


WRONG = [
    packet(0x00),
    packet(0xF0),
    packet(0x20, b"\x00\x00"),
    packet(0x36, text(b"a") + b"\x00\x01"),
    packet(0x30, text(b"a\0b")),
    packet(0x30, text(b"a/#")),
    packet(0x30, text(b"\xff\xfe")),
    packet(0x30, text(b"$SYS/broker/uptime") + b"0"),
    packet(0x30, b"\xff\xffa"),
    packet(0x32, text(b"a") + b"\x00\x00x"),
    packet(0x82, b"\x00\x01"),
    packet(0x82, b"\x00\x01" + text(b"a") + b"\x07"),
    packet(0x82, b"\x00\x01\xff\xffa\x00"),
    packet(0xA2, b"\x00\x00" + text(b"a")),
    packet(0x10, b"\x00\x04MQTT\x04\x02\x00\x00" + text(b"twice")),
    b"\x30\xff\xff\xff\x7f" + bytes(1_000),
    b"\x30\xff\xff\xff\xff\xff",
    b"\x82\x01",
    b"\xc0\x00" * 10 + b"\xe1\x00",
]
WRONG_FIRST = [
    b"GET / HTTP/1.1\r\n\r\n",
    packet(0xC0),
    packet(0x10, b""),
    packet(0x10, b"\x00\x04MQTT\x04\x02\x00\x00"),
    packet(0x10, b"\x00\x04MQTT\x04\x03\x00\x00" + text(b"reserved")),
    packet(0x10, b"\x00\x04MQTT\x04\x06\x00\x00" + text(b"c") + text(b"wills/+") + text(b"m")),
    packet(0x10, b"\x00\x04MQTT\x04\x06\x00\x00" + text(b"c") + text(b"$SYS/x") + text(b"m")),
    packet(0x10, b"\x00\x04MQTT\x04\x02\x00\x00" + text(b"a\0b")),
    packet(0x10, b"\x00\x04MQTT\x04\x00\x00\x00" + text(b"")),
    packet(0x10, b"\x00\x04MQTT\x05\x02\x00\x00\x00" + text(b"five")),
    packet(0x10, b"\x00\x06MQIsdp\x03\x02\x00\x00" + text(b"three")),
    b"\x10\xff\xff\xff\x7f",
]


async def test_packets_that_are_wrong_end_their_connection_only() -> None:
    async with running(1) as brokers, nothing_is_left(brokers):
        for wrong in WRONG:
            raw = await Raw.connected(brokers[0], b"attacker", clean=False)
            raw.writer.write(wrong)
            if wrong == b"\x82\x01":
                raw.writer.close()
            assert await raw.is_closed(), wrong
        for wrong in WRONG_FIRST:
            raw = await Raw.open(brokers[0])
            raw.writer.write(wrong)
            assert await raw.is_closed(), wrong


async def test_clients_that_hang_up_at_once_are_forgotten() -> None:
    async with running(1) as brokers, nothing_is_left(brokers):
        for number in range(50):
            raw = await Raw.open(brokers[0])
            raw.send(0x10, b"\x00\x04MQTT\x04\x00\x00\x00" + text(b"hasty-%d" % number))
            if number % 2:
                raw.writer.write_eof()
            raw.writer.close()
        await until(lambda: set(brokers[0]._connections) == {"honest"})


async def test_a_client_id_that_is_too_long_is_rejected() -> None:
    async with running(1) as brokers, nothing_is_left(brokers):
        for length, code in ((65_535, 2), (1_025, 2), (1_024, 0)):
            raw = await Raw.open(brokers[0])
            raw.send(0x10, b"\x00\x04MQTT\x04\x02\x00\x00" + text(b"c" * length))
            assert await raw.next() == (0x20, bytes([0, code]))
            raw.writer.close()


async def test_ten_thousand_filters(caplog: pytest.LogCaptureFixture) -> None:
    async with running(2) as brokers, nothing_is_left(brokers):
        raw = await Raw.connected(brokers[1], b"greedy")
        filters = b"".join(text(b"f/%d/#" % number) + b"\x01" for number in range(10_000))
        first, body = await raw.asked(0x82, b"\x00\x01" + filters)
        assert first == 0x90
        assert (body.count(1, 2), body.count(0x80, 2)) == (SUBSCRIPTIONS_MAX, 10_000 - SUBSCRIPTIONS_MAX)
        assert len([one for one in caplog.records if "cannot subscribe" in one.getMessage()]) < 60
        first, _ = await raw.asked(0xA2, b"\x00\x02" + b"".join(text(b"f/%d/#" % number) for number in range(10_000)))
        assert first == 0xB0
        assert await raw.asked(0x82, b"\x00\x03" + text(b"again") + b"\x00") == (0x90, b"\x00\x03\x00")
        raw.writer.close()


@pytest.mark.parametrize("what", ["pings", "messages", "more messages", "filters", "unreleased"])
async def test_a_flood_of_a_client_that_reads_nothing_is_not_read_on(what: str) -> None:
    """Its packets wait in its own sockets, or its connection ends."""
    each = {
        "pings": packet(0xC0) * 10_000,
        "messages": packet(0x30, text(b"flood") + bytes(1_000)) * 100,
        "more messages": b"".join(packet(0x32, text(b"flood") + n.to_bytes(2, "big")) for n in range(1, 60_000)),
        "filters": b"".join(packet(0x82, b"\x00\x01" + text(b"f/%d" % n) + b"\x00") for n in range(10_000)),
        "unreleased": b"".join(packet(0x34, text(b"f") + n.to_bytes(2, "big") + bytes(900)) for n in range(1, 60_000)),
    }[what]
    async with running(1) as brokers, nothing_is_left(brokers):
        slow = await Raw.connected(brokers[0], b"slow")
        assert (await slow.asked(0x82, b"\x00\x01" + text(b"flood") + b"\x01"))[0] == 0x90
        before = len(asyncio.all_tasks())
        raw = await Raw.connected(brokers[0], b"flood")
        raw.writer.transport.set_write_buffer_limits(high=0)
        raw.reader._transport.pause_reading()  # type: ignore[attr-defined]

        async def flood() -> None:
            for _ in range(200):
                raw.writer.write(each)
                await raw.writer.drain()

        flooding = asyncio.create_task(flood())
        most, unsent, same = 0, -1, 0
        for _ in range(300):
            await asyncio.sleep(0.01)
            most = max(most, len(asyncio.all_tasks()) - before)
            was, unsent = unsent, raw.writer.transport.get_write_buffer_size()
            same = same + 1 if unsent == was or flooding.done() else 0
            if same > 50:  # nothing more is taken
                break
        # "unreleased" has a task for each message of QoS 2 that waits for its PUBREL
        assert most < 3 * ARRIVING_MAX + 2 * UNSENT_MAX + (8_400 if what == "unreleased" else 0)
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        raw.writer.transport.abort()
        slow.writer.transport.abort()


async def flap(brokers: list[MetadBroker], times: int, got: set[int], ended: asyncio.Event) -> None:
    """Connect to one broker after the other, and mostly leave the older connection open."""
    older: list[Raw] = []
    number = 0
    while number < times or not ended.is_set():
        raw = await Raw.connected(brokers[number % len(brokers)], b"flapping", clean=False)
        number += 1
        older.append(raw)
        if len(older) > 3:
            older.pop(0).writer.close()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            async with asyncio.timeout(0.001 * (number % 7)):
                while True:
                    first, body = await raw.next()
                    if first == 0x32:
                        got.add(int(body[8:]))
                        raw.send(0x40, body[6:8])
    for raw in older:
        raw.writer.close()


@pytest.mark.slow
async def test_a_client_that_flaps_between_brokers_loses_no_acknowledged_message() -> None:
    async with running(2) as brokers:
        sender = await Raw.connected(brokers[0], b"sender")
        first = await Raw.connected(brokers[1], b"flapping", clean=False)
        assert await first.asked(0x82, b"\x00\x01" + text(b"news") + b"\x01") == (0x90, b"\x00\x01\x01")

        async def probes() -> bool:
            sender.send(0x30, text(b"news") + b"0")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    return (await first.next())[0] == 0x30
            return False

        async with asyncio.timeout(WAIT_S):
            while not await probes():
                pass
        got: set[int] = set()
        ended = asyncio.Event()
        async with nothing_is_left(brokers):
            flapping = asyncio.create_task(flap(brokers, FLAPS, got, ended))
            sent = 0
            while sent < 300:
                sent += 1
                assert await sender.asked(0x32, text(b"news") + b"\x00\x01%d" % sent) == (0x40, b"\x00\x01")
            ended.set()
            await flapping
            last = await Raw.connected(brokers[0], b"flapping", clean=False)
            while not got >= set(range(1, sent + 1)):
                kind, body = await last.next()
                assert kind == 0x32
                got.add(int(body[8:]))
                last.send(0x40, body[6:8])
            last.writer.close()
            first.writer.close()
            sender.writer.close()
            await until(lambda: not any("flapping" in broker._connections for broker in brokers))


@pytest.mark.parametrize("step", ["owe", "settle"])
async def test_a_message_of_qos_2_comes_once_if_its_client_moves_while_metad_is_told(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first broker is telling metad of PUBREC, or of PUBCOMP, when the client connects to another one. It took the
    message for one that the client does not have, and so the other broker sent it again."""
    async with running(2) as brokers:
        sender = await Raw.connected(brokers[1], b"sender")
        client = await Raw.connected(brokers[0], b"client", clean=False)
        assert await client.asked(0x82, b"\x00\x01" + text(b"paid") + b"\x02") == (0x90, b"\x00\x01\x02")
        await until(lambda: brokers[1]._targets("paid"))
        store = brokers[0]._store
        begun, go_on, told = asyncio.Event(), asyncio.Event(), getattr(store, step)

        async def slow(client_id: str, packet_id: int, waited: Sequence[str]) -> None:
            if step == "owe":
                await told(client_id, packet_id, waited)
            begun.set()
            await go_on.wait()

        monkeypatch.setattr(store, step, slow)
        sender.send(0x34, text(b"paid") + b"\x00\x07once")
        assert await sender.next() == (0x50, b"\x00\x07")
        sender.send(0x62, b"\x00\x07")
        first, body = await client.next()
        assert (first, body[-4:]) == (0x34, b"once")
        identifier = body[6:8]
        client.send(0x50, identifier)
        if step == "settle":
            assert await client.next() == (0x62, identifier)
            client.send(0x70, identifier)
        async with asyncio.timeout(WAIT_S):
            await begun.wait()
        connection = brokers[0]._connections["client"]
        moved = await Raw.connected(brokers[1], b"client", clean=False)
        assert await moved.next() == (0x62, identifier), "the handshake goes on"
        moved.send(0x70, identifier)
        if step == "owe":
            await until(lambda: not connection.handler._pubrec_waiters)  # the end of the connection has ended the wait
            go_on.set()
        assert await client.is_closed()
        go_on.set()
        assert await sender.next() == (0x70, b"\x00\x07")
        sender.send(0x30, text(b"paid") + b"next")
        assert await moved.next() == (0x30, text(b"paid") + b"next"), "and the message does not come again"
        sender.writer.close()
        moved.writer.close()


async def test_a_session_in_the_name_of_a_later_life_costs_a_broker_that_client_only() -> None:
    """Somebody took it over with an epoch that the broker never had. The broker ended, and so did each later life."""
    async with running(2) as brokers:
        metad = brokers[1]._metad
        await metad.sessions.takeover("broker-0", 1 << 40, "mqtt", "poisoned")
        honest = await Raw.connected(brokers[0], b"honest")
        for _ in range(2):
            raw = await Raw.open(brokers[0])
            raw.send(0x10, b"\x00\x04MQTT\x04\x00\x00\x00" + text(b"poisoned"))
            assert await raw.next() == (0x20, b"\x00\x03"), "server unavailable"
            assert await raw.is_closed()
        assert await honest.asked(0x82, b"\x00\x01" + text(b"news") + b"\x01") == (0x90, b"\x00\x01\x01")
        assert not brokers[0].fenced.is_set()
        elsewhere = await Raw.connected(brokers[1], b"poisoned", clean=False)
        again = await Raw.connected(brokers[0], b"poisoned", clean=False)
        assert await elsewhere.is_closed()
        later = await brokers[0]._metad.brokers.fence("broker-0")
        assert later.broker.state == "fenced"
        async with asyncio.timeout(WAIT_S):
            await brokers[0].fenced.wait()
        for one in (honest, again):
            assert await one.is_closed()


CONNECT = b"\x00\x04MQTT\x04\x00\x00\x00"


async def is_open(raw: Raw) -> bool:
    """Whether a connection answers."""
    raw.send(0xC0)
    try:
        while (await raw.next())[0] != 0xD0:
            pass
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    return True


async def accepted(broker: MetadBroker, client_id: bytes) -> Raw | None:
    """A connection that has CONNACK, if it gets one."""
    raw = await Raw.open(broker)
    raw.send(0x10, CONNECT + text(client_id))
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        if await raw.next() in ((0x20, b"\x00\x00"), (0x20, b"\x01\x00")):
            return raw
    raw.writer.close()
    return None


def holders(brokers: list[MetadBroker], client_id: bytes) -> list[MetadBroker]:
    """The brokers that have a connection of this client."""
    return [one for one in brokers if client_id.decode() in one._connections]


@pytest.mark.parametrize("brokers_used", [(0, 1), (0, 0)], ids=["two brokers", "one broker"])
async def test_one_client_id_at_the_same_instant_has_one_connection(brokers_used: tuple[int, int]) -> None:
    """Both stayed at two brokers, in a quarter of all trials. At one broker it took five seconds."""
    async with running(2) as brokers, nothing_is_left(brokers):
        for trial in range(40):
            client_id = b"twin-%d" % trial
            begun = asyncio.get_running_loop().time()
            pair = await asyncio.gather(*(accepted(brokers[at], client_id) for at in brokers_used))
            opened = [raw for raw in pair if raw is not None]
            await until(lambda: len(holders(brokers, client_id)) == 1)  # noqa: B023
            (holder,) = holders(brokers, client_id)
            session = await holder._store.find(client_id.decode())
            assert session is not None
            assert holder._store.is_mine(session)
            states = [await is_open(raw) for raw in opened]
            assert states.count(True) == 1
            assert asyncio.get_running_loop().time() - begun < 4.0
            for raw in opened:
                raw.writer.close()


async def test_a_takeover_that_is_lost_before_its_answer_connects_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The news of the loss comes before the answer: a broker that began to listen then kept both connections."""
    async with running(2) as brokers, nothing_is_left(brokers):
        sessions = brokers[0]._metad.sessions
        witness = await Raw.connected(brokers[0], b"witness", clean=False)
        takeover = sessions.takeover
        opened: list[Raw] = []

        async def late(*arguments: Any, **settings: Any) -> Any:
            taken = await takeover(*arguments, **settings)
            for client_id in (b"twin", b"witness"):
                opened.append(await Raw.connected(brokers[1], client_id, clean=False))
            assert await witness.is_closed(), "the news of the later takeover, so that of the earlier is there"
            return taken

        monkeypatch.setattr(sessions, "takeover", late)
        raw = await Raw.open(brokers[0])
        raw.send(0x10, CONNECT + text(b"twin"))
        assert await raw.next() == (0x20, b"\x00\x03"), "server unavailable"
        assert await raw.is_closed()
        assert "twin" not in brokers[0]._connections
        assert await is_open(opened[0])
        for one in opened:
            one.writer.close()


async def test_a_client_that_takes_nothing_is_replaced_at_once() -> None:
    async with running(1) as brokers, nothing_is_left(brokers):
        slow = await Raw.connected(brokers[0], b"slow", clean=False)
        assert (await slow.asked(0x82, b"\x00\x01" + text(b"flood") + b"\x00"))[0] == 0x90
        slow.reader._transport.pause_reading()  # type: ignore[attr-defined]
        sender = await Raw.connected(brokers[0], b"sender")
        connection = brokers[0]._connections["slow"]
        writer = connection.handler.writer
        while not writer._writer.transport.get_write_buffer_size():
            sender.send(0x30, text(b"flood") + bytes(100_000))
            await asyncio.sleep(0)
        begun = asyncio.get_running_loop().time()
        again = await Raw.connected(brokers[0], b"slow", clean=False)
        assert asyncio.get_running_loop().time() - begun < 4.0
        for raw in (slow, sender, again):
            raw.writer.close()


async def test_a_connect_that_hangs_up_before_connack_leaves_no_socket() -> None:
    """With an id that is in use, the socket stayed for good."""
    async with running(1) as brokers, nothing_is_left(brokers):
        held = await Raw.connected(brokers[0], b"held", clean=False)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            raw = await Raw.open(brokers[0])
            raw.send(0x10, CONNECT + text(b"held"))
            await raw.writer.drain()
            raw.writer.transport.abort()
        held.writer.close()
        await until(lambda: set(brokers[0]._connections) == {"honest"})
        await until(lambda: len(os.listdir("/proc/self/fd")) < before)


async def test_a_connect_that_waits_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a newer one of its client comes, or its peer hangs up. They piled up: 1,024 sockets in 14 s."""
    async with running(1) as brokers, nothing_is_left(brokers):
        (broker,) = brokers
        take, begun, go_on = broker._store.take, asyncio.Event(), asyncio.Event()

        async def slow(*arguments: Any, **settings: Any) -> Any:
            begun.set()
            await go_on.wait()
            return await take(*arguments, **settings)

        monkeypatch.setattr(broker._store, "take", slow)
        before, files = broker._open.open, len(os.listdir("/proc/self/fd"))
        first, *others = [await Raw.open(broker) for _ in range(20)]
        for raw in (first, *others):
            raw.send(0x10, CONNECT + text(b"hasty"))
            async with asyncio.timeout(WAIT_S):
                await begun.wait()
        for raw in others[:-1]:
            assert await raw.is_closed(), "a newer one waits"
        await until(lambda: broker._open.open == before + 2)
        others[-1].writer.close()
        await until(lambda: broker._open.open == before + 1)
        assert not broker._arrivals._waiting
        first.writer.close()
        await until(lambda: len(os.listdir("/proc/self/fd")) == files)
        assert broker._open.open == before + 1, "its takeover goes on"
        go_on.set()
        await until(lambda: set(broker._connections) == {"honest"})
        await until(lambda: broker._open.open == before)


async def test_connections_over_websockets_are_bounded_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async with embedded.serve() as server, connect(server.url) as metad:
        listeners = {"default": {"type": "tcp", "bind": "127.0.0.1:0"}, "web": {"type": "ws", "bind": "127.0.0.1:0"}}
        broker = MetadBroker(metad, "broker-0", {"listeners": listeners, "plugins": ANONYMOUS})
        await broker.start()
        async with nothing_is_left([broker]):
            before = broker._open.open
            stranger_host, _, stranger_port = broker.bound("web").rpartition(":")
            _, stranger = await asyncio.open_connection(stranger_host, int(stranger_port))
            stranger.write(b"no HTTP\r\n\r\n")
            broker._open.open_max = before + 3
            url, subprotocols = f"ws://{broker.bound('web')}", [Subprotocol("mqtt")]
            async with websockets.connect(url, subprotocols=subprotocols) as one, asyncio.timeout(WAIT_S):
                await one.send(packet(0x10, CONNECT + text(b"web")))
                assert await one.recv() == b"\x20\x02\x00\x00"
                async with broker._turn("waits"):
                    async with websockets.connect(url, subprotocols=subprotocols) as two:
                        await two.send(packet(0x10, CONNECT + text(b"waits")))
                        await until(lambda: broker._arrivals._waiting)
                    await until(lambda: not broker._arrivals._waiting)
            stranger.close()
            await until(lambda: broker._open.open == before)
        await broker.shutdown()


async def test_half_packets_of_hundreds_of_connections_hold_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """They held 270 MB, for as long as the attacker liked."""
    async with running(1) as brokers, nothing_is_left(brokers):
        large = await Raw.connected(brokers[0], b"large")
        assert (await large.asked(0x82, b"\x00\x01" + text(b"large") + b"\x00"))[0] == 0x90
        unfinished = brokers[0]._unfinished
        half = packet(0x30, text(b"a") + bytes(1_000_000))[:900_000]
        attackers = await asyncio.gather(*(Raw.connected(brokers[0], b"half-%d" % n) for n in range(100)))
        most = 0
        for raw in attackers:
            raw.writer.write(half)
            for _ in range(20):
                await asyncio.sleep(0)
                most = max(most, unfinished.bytes)
        assert most > UNFINISHED_BYTES_MAX // 2
        assert most <= UNFINISHED_BYTES_MAX
        await until(lambda: len(brokers[0]._connections) < 45)
        large.send(0x30, text(b"large") + bytes(900_000))
        assert len((await large.next())[1]) == 900_007
        for raw in (*attackers, large):
            raw.writer.transport.abort()
        await until(lambda: unfinished.bytes == 0)


async def test_a_stranger_who_does_not_finish_connect_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "CONNECT_S", 0.2)
    async with running(1) as brokers, nothing_is_left(brokers):
        for sent in (b"", b"\x10", packet(0x10, CONNECT + text(b"slow"))[:-1]):
            raw = await Raw.open(brokers[0])
            raw.writer.write(sent)
            assert await raw.is_closed(), sent


async def test_a_filter_that_the_next_broker_dropped_before_the_answer_stays_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client subscribes here, moves on and unsubscribes there, before this broker has its answer."""
    async with running(2) as brokers, nothing_is_left(brokers):
        store, routes = brokers[0]._store, brokers[0]._routes
        subscribe = store.subscribe
        done, go_on = asyncio.Event(), asyncio.Event()

        async def late(client_id: str, filters: Mapping[str, int]) -> dict[str, MetadError]:
            refused = await subscribe(client_id, filters)
            done.set()
            await go_on.wait()
            return refused

        monkeypatch.setattr(store, "subscribe", late)
        client = await Raw.connected(brokers[0], b"client", clean=False)
        client.send(0x82, b"\x00\x01" + text(b"news") + b"\x00")
        async with asyncio.timeout(WAIT_S):
            await done.wait()
        moved = await Raw.connected(brokers[1], b"client", clean=False)
        assert await moved.asked(0xA2, b"\x00\x01" + text(b"news")) == (0xB0, b"\x00\x01")
        assert (await moved.asked(0x82, b"\x00\x02" + text(b"later") + b"\x00"))[0] == 0x90
        await until(lambda: routes.targets("later"))  # so the image has heard of the end of the other filter
        go_on.set()
        assert await client.is_closed()
        await until(lambda: "client" not in brokers[0]._connections)
        assert not routes.targets("news")
        moved.writer.close()
