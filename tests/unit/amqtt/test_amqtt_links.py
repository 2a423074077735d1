"""The links between brokers: who may call, and what a caller or a called one can do to the other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from metad_amqtt.envelope import Envelope
from metad_amqtt.links import links
from metad_amqtt.links.link_proof import LinkKey, Peer
from metad_amqtt.links.link_tls import LinkTls
from metad_amqtt.links.links import (
    FRAME_BYTES_MAX,
    STRANGERS_MAX,
    Budget,
    Delivery,
    Link,
    Listener,
    Unreachable,
)
from metad_amqtt.links.routes import Target
from metad_client import TlsFiles
from metad_wire.operator.authority import issue_fleet
from waiting import until

MESSAGE = Envelope("topic", b"payload", 1)
TARGETS = [Target("client", 1)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsFiles]:
    made = issue_fleet(tmp_path_factory.mktemp("certs"), ["n1"], ["app"], brokers=["b1", "b2"])
    others = issue_fleet(tmp_path_factory.mktemp("others"), [], [], brokers=["b1", "b2"])
    return {**made, "other-b1": others["broker-b1"], "other-b2": others["broker-b2"]}


CALLER = LinkKey(("b2", 1))


class Called:
    """A broker that is called, and what it got."""

    def __init__(self, tls: LinkTls | None = None) -> None:
        self.got: list[Delivery] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.key = LinkKey(("b1", 1))
        self.known = {("b2", 1): CALLER.public}
        self.listener = Listener(self._handle, self._find, self.key, tls)
        self.host = "127.0.0.1"
        self.port = 0

    async def _handle(self, delivery: Delivery) -> None:
        self.got.append(delivery)
        await self.answers.wait()

    async def _find(self, broker: str, epoch: int) -> str | None:
        return self.known.get((broker, epoch))

    @property
    def peer(self) -> Peer:
        """As metad has it."""
        return Peer(self.key.life, self.key.public)

    def link(self, tls: LinkTls | None = None, key: LinkKey | None = None) -> Link:
        """To it."""
        return Link(f"{self.host}:{self.port}", self.peer, key or CALLER, tls)

    async def greeted(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of a caller that it knows, whose frames the test writes itself."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        await links.introduce(reader, writer, CALLER, self.peer)
        return reader, writer


@asynccontextmanager
async def called(tls: LinkTls | None = None) -> AsyncIterator[Called]:
    one = Called(tls)
    one.port = int((await one.listener.listen(one.host, 0)).rpartition(":")[2])
    try:
        yield one
    finally:
        await one.listener.close()


async def test_brokers_with_certificates_talk(fleet: dict[str, TlsFiles]) -> None:
    async with called(LinkTls(fleet["broker-b1"])) as one:
        link = one.link(LinkTls(fleet["broker-b2"]))
        large = Envelope("topic", bytes(3_000_000), 1)
        await asyncio.gather(link.send(MESSAGE, TARGETS), link.send(large, TARGETS))
        assert sorted(len(got.message.payload) for got in one.got if got.message) == [7, 3_000_000]
        await link.close()


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ("client-app", "the certificate is not a broker's but client 'app'"),
        ("node-n1", "the certificate is not a broker's but node 'n1'"),
        ("other-b2", "another authority than ours issued it"),
        (None, "the peer does not speak TLS"),
    ],
)
async def test_a_caller_that_is_no_broker_is_refused_in_one_line(
    fleet: dict[str, TlsFiles], shown: str | None, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with called(LinkTls(fleet["broker-b1"])) as one:
        host, port = one.host, one.port
        if shown is None:
            _, writer = await asyncio.open_connection(host, port)
            writer.write(links._frame(CALLER.hello()) + bytes(5))
        else:  # it accepts any certificate
            context = LinkTls(fleet[shown])._dialling.current()
            context.verify_mode = links.ssl.CERT_NONE
            _, writer = await asyncio.open_connection(host, port, ssl=context)
            writer.write(links._frame(CALLER.hello()) + links._frame(Delivery(1, MESSAGE, TARGETS)))
        await until(lambda: "a caller of the link, 127.0.0.1:" in caplog.text)
        assert why in caplog.text
        assert one.got == []
        writer.close()
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.name == "asyncio"]


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ("broker-b2", "the certificate is that of broker 'b2', not of 'b1'"),
        ("client-app", "unsuitable certificate purpose"),
        ("node-n1", "the certificate is not a broker's but node 'n1'"),
        ("other-b1", "another authority than ours issued it"),
        (None, "no link to broker b1"),
    ],
)
async def test_a_broker_sends_to_nobody_else(
    fleet: dict[str, TlsFiles], shown: str | None, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever listens at the address of a broker must be that broker."""
    async with called(LinkTls(fleet[shown]) if shown is not None else None) as one:
        link = one.link(LinkTls(fleet["broker-b2"]))
        with pytest.raises(Unreachable):
            await link.send(MESSAGE, TARGETS)
        assert "no link to broker b1" in caplog.text
        assert why in caplog.text
        assert one.got == []
        await link.close()


async def test_changed_files_are_used(fleet: dict[str, TlsFiles], tmp_path: Path) -> None:
    made = issue_fleet(tmp_path, [], [], brokers=["b1", "b2"])
    one_tls, two_tls = (LinkTls(made[f"broker-{name}"]) for name in ("b1", "b2"))
    async with called(one_tls) as one:
        for name in ("ca.pem", "ca-key.pem"):
            (tmp_path / name).unlink()
        issue_fleet(tmp_path, [], [], brokers=["b1", "b2"])  # of another authority
        fresh = LinkTls(made["broker-b2"])  # knows no other

        async def works(tls: LinkTls) -> bool:
            link = one.link(tls)
            with contextlib.suppress(Unreachable):
                await link.send(MESSAGE, TARGETS)
                await link.close()
                return True
            await link.close()
            return False

        async with asyncio.timeout(120):
            for tls in (fresh, two_tls):  # each end looks for changed files now and then
                while not await works(tls):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        stale = one.link(LinkTls(fleet["broker-b2"]))
        with pytest.raises(Unreachable):
            await stale.send(MESSAGE, TARGETS)


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 64,
        b"\xff" * 64,
        (5).to_bytes(4, "big") + b"\x91\xa3abc",
        (4).to_bytes(4, "big") + b"\xc1\xc1\xc1\xc1",
        (1_025).to_bytes(4, "big"),
    ],
)
async def test_a_stranger_is_refused_in_one_line(first: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with called() as one:
        reader, writer = await asyncio.open_connection(one.host, one.port)
        writer.write(first)
        async with asyncio.timeout(120):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        await until(lambda: "a caller of the link, 127.0.0.1:" in caplog.text)
        assert "is refused" in caplog.text
        assert one.got == []
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("secret", [False, True])
async def test_who_only_looks_whether_the_broker_lives_is_no_stranger(
    fleet: dict[str, TlsFiles], secret: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "metad_client")
    async with called(LinkTls(fleet["broker-b1"]) if secret else None) as one:
        _, writer = await asyncio.open_connection(one.host, one.port)
        writer.close()
        await until(lambda: "connected and gone" in caplog.text)
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


async def test_strangers_that_say_nothing_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "HELLO_S", 3600.0)  # none of them ends for its own sake
    async with called() as one:
        silent = [await asyncio.open_connection(one.host, one.port) for _ in range(STRANGERS_MAX + 5)]
        async with asyncio.timeout(120):
            for reader, _ in silent[:5]:
                assert await reader.read() == b"", "the oldest are ended"
        link = one.link()
        await link.send(MESSAGE, TARGETS)
        await link.close()
        for _, writer in silent:
            writer.close()


async def test_a_broker_that_calls_cannot_fill_the_memory(caplog: pytest.LogCaptureFixture) -> None:
    """It sends frames and frames, and the clients take none; then a frame that is too long; then garbage."""
    async with called() as one:
        one.answers.clear()
        frame = links._frame(Delivery(1, Envelope("t", bytes(FRAME_BYTES_MAX - 1_000)), TARGETS))
        _, writer = await one.greeted()

        async def flood() -> None:
            for _ in range(12):
                writer.write(frame)
                await writer.drain()

        tracemalloc.start()
        try:
            flooding = asyncio.create_task(flood())
            await until(lambda: len(one.got) == 3)
            for _ in range(500):
                await asyncio.sleep(0.001)
            assert len(one.got) <= 4
            assert not flooding.done(), "the rest waits on its side"
            assert tracemalloc.get_traced_memory()[0] < 8 * FRAME_BYTES_MAX
        finally:
            tracemalloc.stop()
        one.answers.set()
        await flooding
        await until(lambda: len(one.got) == 12)
        writer.close()
        for wrong in ((FRAME_BYTES_MAX + 1).to_bytes(4, "big"), (3).to_bytes(4, "big") + b"\xc1\xc1\xc1"):
            reader, bad = await one.greeted()
            bad.write(wrong)
            async with asyncio.timeout(120):
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            bad.close()
        assert f"is refused: it sends a frame of {FRAME_BYTES_MAX + 1} bytes" in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_broker_that_reads_nothing_costs_no_more_than_the_bound() -> None:
    held: list[asyncio.StreamWriter] = []
    key = LinkKey(("b1", 1))

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = links._decode_hello(await links._said(reader))
        writer.write(links._frame(key.welcome(hello, Peer(CALLER.life, CALLER.public))[0]))
        await links._said(reader)
        held.append(writer)
        writer.transport.pause_reading()  # type: ignore[attr-defined]

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    link = Link(f"{host}:{port}", Peer(key.life, key.public), CALLER)
    message = Envelope("t", bytes(1_000_000))
    tries = [asyncio.create_task(link.send(message, TARGETS)) for _ in range(100)]

    def unsent() -> int:
        return link._writer.transport.get_write_buffer_size() if link._writer is not None else 0

    await until(
        lambda: held and unsent() and len(link._waiting) == links.IN_HAND_BYTES_MAX // len(links._frame(message))
    )
    for _ in range(100):
        await asyncio.sleep(0)
    assert 0 < unsent() <= links.IN_HAND_BYTES_MAX
    server.close()
    for writer in held:
        writer.transport.abort()
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert {type(result) for result in results} == {Unreachable}
    assert link._budget.left == links.IN_HAND_BYTES_MAX
    await link.close()
    await server.wait_closed()


async def test_whatever_a_called_one_answers_is_a_number(caplog: pytest.LogCaptureFixture) -> None:
    async def babble(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\xff" * 1_000)
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    link = Link(f"{host}:{port}", Peer(("b1", 1), LinkKey().public), CALLER)
    with pytest.raises(Unreachable):
        await link.send(MESSAGE, TARGETS)
    assert "no link to broker b1" in caplog.text
    await link.close()
    server.close()


async def test_bytes_are_taken_in_order_and_given_back() -> None:
    budget = Budget(10)
    assert await budget.take(100) == 10, "more than all is all"
    turns = [asyncio.create_task(budget.take(size)) for size in (6, 5, 4)]
    await asyncio.sleep(0)
    budget.give(10)
    await asyncio.gather(turns[0])
    assert not turns[1].done()
    assert not turns[2].done(), "nobody is passed"
    turns[1].cancel()
    await asyncio.gather(*turns[1:], return_exceptions=True)
    assert turns[2].result() == 4
    assert budget.left == 0
    budget.give(10)
    assert await budget.take(10) == 10
    late = asyncio.create_task(budget.take(10))
    await asyncio.sleep(0)
    budget.give(10)
    late.cancel()  # it has been granted, and does not know it yet
    await asyncio.gather(late, return_exceptions=True)
    assert late.cancelled()
    assert budget.left == 10


def test_a_frame_holds_the_largest_message() -> None:
    message = Envelope("t" * 65_535, bytes(links.MESSAGE_BYTES_MAX - 65_535), 2)
    targets = [Target("c" * 1_024, 2)] * links.TARGETS_MAX
    assert len(msgspec.msgpack.encode(Delivery(2**63, message, targets, 3))) < FRAME_BYTES_MAX


async def test_what_metad_shows_to_everybody_opens_no_link(caplog: pytest.LogCaptureFixture) -> None:
    """A stranger that has read all records, and one that records what others say."""
    async with called() as one:
        for stranger in (LinkKey(("b2", 1)), LinkKey(("b3", 1)), LinkKey(("b2", 2)), LinkKey(("", 0))):
            link = one.link(key=stranger)
            with pytest.raises(Unreachable):
                await link.send(MESSAGE, TARGETS)
            await link.close()
        assert one.got == []
        said: list[bytes] = []
        reader, writer = await asyncio.open_connection(one.host, one.port)
        hello = CALLER.hello()
        welcome = links._decode_welcome(await _asked(reader, writer, links._frame(hello)))
        proof = links._frame(CALLER.proof(hello, welcome, one.peer))
        said += [links._frame(hello), proof]
        writer.close()
        reader, writer = await asyncio.open_connection(one.host, one.port)
        await _asked(reader, writer, said[0])
        writer.write(said[1] + links._frame(Delivery(1, MESSAGE, TARGETS)))
        async with asyncio.timeout(120):
            assert await reader.read() == b"", "what was right once is not right again"
        writer.close()
        assert one.got == []
    assert "is refused: metad knows no life 1 of broker 'b3', or it is over" in caplog.text
    assert one.listener._refused.count >= 4


async def _asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame: bytes) -> bytes:
    writer.write(frame)
    async with asyncio.timeout(120):
        return await links._said(reader)


async def test_a_broker_gives_no_message_to_whoever_has_the_address_now(caplog: pytest.LogCaptureFixture) -> None:
    async with called() as one:
        right = one.peer
        one.key = LinkKey(("b1", 1))
        other = Link(f"{one.host}:{one.port}", Peer(right.life, one.key.public), CALLER)
        with pytest.raises(Unreachable, match="it cannot prove that it is life 1 of broker 'b1'"):
            await other.send(MESSAGE, TARGETS)
        await other.close()
        nobody = Link(f"{one.host}:{one.port}", Peer(right.life, ""), CALLER)
        with pytest.raises(Unreachable, match="metad has no key of broker 'b1'"):
            await nobody.send(MESSAGE, TARGETS)
        await nobody.close()
        assert one.got == []


async def test_a_certificate_is_that_of_the_broker_that_calls(
    fleet: dict[str, TlsFiles], caplog: pytest.LogCaptureFixture
) -> None:
    async with called(LinkTls(fleet["broker-b1"])) as one:
        one.known[("b3", 1)] = (key := LinkKey(("b3", 1))).public
        link = one.link(LinkTls(fleet["broker-b2"]), key)
        with pytest.raises(Unreachable):
            await link.send(MESSAGE, TARGETS)
        await link.close()
        assert one.got == []
    assert "it calls itself broker 'b3', and its certificate is that of 'b2'" in caplog.text
