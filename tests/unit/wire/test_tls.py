"""TLS: who gets through, who does not and is told why, and what a flood of handshakes may cost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metad_perf.attack import sites as certificates
from metad_perf.attack.peer import Target, TlsPeer
from metad_perf.attack.tokens import KeyUpdater
from metad_wire.operator.authority import issue_fleet
from metad_wire.program.sparing import Sparing
from metad_wire.transport import reload as reloading
from metad_wire.transport import split_endpoint, unfinished
from metad_wire.transport import tls as tls_module
from metad_wire.transport.credentials import (
    CertificateError,
    Principal,
    Role,
    TlsError,
    TlsFiles,
    principal_of,
)
from metad_wire.transport.fair_share import TURN
from metad_wire.transport.handshakes import Handshakes, Records
from metad_wire.transport.reload import Reloaded
from metad_wire.transport.tcp import TcpTransport
from metad_wire.transport.tls import TlsTransport
from metad_wire.transport.tls_context import client_context
from sim.memory import MemoryTransport

TIMEOUT_S = 120.0


class End:
    """A handler that remembers."""

    def __init__(self) -> None:
        self.stream: Any = None
        self.received = b""
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.heard = asyncio.Event()

    def connection_made(self, stream: Any) -> None:
        self.stream = stream

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.heard.set()

    def eof_received(self) -> None:
        pass

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


class Door:
    """A listener and whom it has let in."""

    def __init__(self) -> None:
        self.accepted: list[End] = []
        self.came = asyncio.Event()
        self.host, self.port = "", 0

    def accept(self) -> End:
        end = End()
        self.accepted.append(end)
        self.came.set()
        return end


@asynccontextmanager
async def door(transport: TlsTransport | TcpTransport) -> AsyncIterator[Door]:
    made = Door()
    listener = await transport.listen("127.0.0.1", 0, made.accept)
    made.host, made.port = split_endpoint(listener.endpoint)
    try:
        yield made
    finally:
        await listener.close()


def dialling(files: TlsFiles) -> TlsTransport:
    return TlsTransport(TcpTransport(), files)


async def outcome(files: TlsFiles, to: Door) -> tuple[End | None, Exception | None]:
    """Dial, say something, wait for the answer or the end. A client may think that it is in before it is refused."""
    async with asyncio.timeout(TIMEOUT_S):
        try:
            end = await dialling(files).dial(to.host, to.port, End, TIMEOUT_S)
        except OSError as error:
            return None, error
        end.stream.write(b"hello")
        heard = asyncio.create_task(end.heard.wait())
        await asyncio.wait((heard, end.lost), return_when=asyncio.FIRST_COMPLETED)
        heard.cancel()
        return end, end.lost.result() if end.lost.done() else None


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the next that comes is the end, of either kind."""
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


class Greeter(Door):
    def accept(self) -> End:
        end = super().accept()
        made = end.connection_made

        def greet(stream: Any) -> None:
            made(stream)
            stream.write(b"welcome")

        end.connection_made = greet  # type: ignore[method-assign]
        return end


@asynccontextmanager
async def greeter(files: TlsFiles, *, required: bool = True) -> AsyncIterator[Greeter]:
    made = Greeter()
    transport = TlsTransport(TcpTransport(), files, certificate_required=required)
    listener = await transport.listen("127.0.0.1", 0, made.accept)
    made.host, made.port = split_endpoint(listener.endpoint)
    try:
        yield made
    finally:
        await listener.close()


# --- who gets in -----------------------------------------------------------------------------------------


async def test_both_ends_learn_who_the_other_is() -> None:
    async with greeter(certificates.node("n1")) as to:
        end, error = await outcome(certificates.client("app"), to)
        assert error is None
        assert end is not None
        assert end.received == b"welcome"
        assert principal_of(end.stream.get_extra_info("peercert")) == Principal(Role.NODE, "n1")
        assert principal_of(to.accepted[0].stream.get_extra_info("peercert")) == Principal(Role.CLIENT, "app")
        end.stream.abort()


@pytest.mark.parametrize("kind", ["untrusted", "expired", "not-yet-valid", "wrong-purpose"])
async def test_a_client_with_a_wrong_certificate_never_gets_a_byte_through(kind: str) -> None:
    async with greeter(certificates.node()) as to:
        _, error = await outcome(certificates.wrong(kind), to)
        assert isinstance(error, CertificateError), error
        assert to.accepted == [], "no handler was made, so nothing can have reached one"


class Cancelled:
    """What uvloop leaves of a stream whose dial was cancelled: it is closed, says that it is not, and cannot be
    written to."""

    closed = False

    def write(self, _: bytes) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    def close(self) -> None:
        self.closed = True


async def test_an_end_whose_dial_was_cancelled_is_closed() -> None:
    async with greeter(certificates.node()) as to, asyncio.timeout(TIMEOUT_S):
        end = await dialling(certificates.client("app")).dial(to.host, to.port, End, TIMEOUT_S)
        below = end.stream._below
        end.stream._below = cancelled = Cancelled()
        end.stream.close()
        assert cancelled.closed
        below.abort()


async def test_a_client_without_a_certificate_is_refused_where_one_is_required() -> None:
    async with greeter(certificates.node()) as to:
        _, error = await outcome(certificates.anonymous(), to)
        assert isinstance(error, CertificateError), error
        assert "requires a certificate" in str(error)
        assert to.accepted == []


async def test_where_none_is_required_nobody_is_taken_for_somebody() -> None:
    async with greeter(certificates.node(), required=False) as to:
        end, error = await outcome(certificates.anonymous(), to)
        assert error is None
        assert to.accepted[0].stream.get_extra_info("peercert") is None
        assert end is not None
        end.stream.abort()


@pytest.mark.parametrize("kind", ["untrusted", "expired", "not-yet-valid", "wrong-purpose"])
async def test_where_none_is_required_a_wrong_one_is_refused_all_the_same(kind: str) -> None:
    async with greeter(certificates.node(), required=False) as to:
        _, error = await outcome(certificates.wrong(kind), to)
        assert isinstance(error, CertificateError), error
        assert to.accepted == []


@pytest.mark.parametrize("kind", certificates.WRONG)
async def test_a_server_with_a_wrong_certificate_hears_nothing(kind: str) -> None:
    async with greeter(certificates.wrong(kind, Role.NODE)) as to:
        end, error = await outcome(certificates.client(), to)
        assert end is None
        assert isinstance(error, CertificateError), error


async def test_a_server_of_another_authority_is_named_so() -> None:
    """OpenSSL says "self-signed certificate in certificate chain", which tells nobody what to do."""
    async with greeter(certificates.wrong("untrusted", Role.NODE)) as to:
        _, error = await outcome(certificates.client(), to)
        assert str(error) == "the peer's certificate is refused: another authority than ours issued it"


async def test_a_client_cannot_pose_as_a_server() -> None:
    """Its certificate is of the same authority. Neither its purposes nor its role say server."""
    async with greeter(certificates.client("app")) as to:
        end, error = await outcome(certificates.client("other"), to)
        assert end is None
        assert isinstance(error, CertificateError), error


# --- what is not TLS 1.3 ---------------------------------------------------------------------------------


async def test_an_older_version_is_refused() -> None:
    async with greeter(certificates.node()) as to:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection(to.host, to.port, ssl=context)
        assert to.accepted == []


async def test_no_session_is_resumed() -> None:
    """A ticket would let somebody in whose certificate has expired since."""
    async with greeter(certificates.node()) as to:
        files = certificates.client()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(files.ca)
        context.load_cert_chain(files.certificate, files.key)
        reader, writer = await asyncio.open_connection(to.host, to.port, ssl=context)
        assert await reader.readexactly(7) == b"welcome"  # behind which tickets would have come
        session = writer.get_extra_info("ssl_object").session
        assert session is None or not session.has_ticket
        writer.transport.abort()


async def test_dialling_who_speaks_no_tls_says_so() -> None:
    async with door(TcpTransport()) as to:
        dial = asyncio.create_task(dialling(certificates.client()).dial(to.host, to.port, End, TIMEOUT_S))
        await to.came.wait()
        await to.accepted[0].heard.wait()  # the ClientHello
        to.accepted[0].stream.write(b"this is not the answer to a ClientHello" * 3)
        with pytest.raises(TlsError, match="does not speak TLS"):
            await dial


async def test_garbage_is_refused_and_leaves_nothing() -> None:
    async with greeter(certificates.node()) as to:
        reader, writer = await asyncio.open_connection(to.host, to.port)
        writer.write(os.urandom(4_096))
        writer.write_eof()
        async with asyncio.timeout(TIMEOUT_S):
            await reader.read()  # until the end
        assert to.accepted == []
        writer.close()


async def test_a_stream_says_when_its_keys_are_worn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_module, "RECORDS_MAX", 10)
    async with greeter(certificates.node()) as to:
        end, error = await outcome(certificates.client(), to)
        assert error is None
        assert end is not None
        far = to.accepted[0]
        assert not end.stream.get_extra_info("worn")
        end.stream.write(bytes(10 * 16 * 1024))
        assert end.stream.get_extra_info("worn")
        async with asyncio.timeout(TIMEOUT_S):
            while len(far.received) < 10 * 16 * 1024:
                far.heard.clear()
                await far.heard.wait()
        assert far.stream.get_extra_info("worn"), "whoever opens knows as well"
        end.stream.abort()


# --- what the log says -----------------------------------------------------------------------------------


class Held(Handshakes):
    """Does a step of a handshake only when told, in the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: asyncio.Queue[Callable[[], None]] = asyncio.Queue()

    def take(self, step: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.waiting.put_nowait(lambda: done(step()))

    async def do_one(self) -> None:
        (await self.waiting.get())()


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was logged about handshakes that were not finished."""
    monkeypatch.setattr(unfinished, "_refusals", Sparing(100, 1.0))
    caplog.set_level(logging.INFO, "metad")

    def details() -> list[str]:
        found = [record for record in caplog.records if record.getMessage() == "tls_refused"]
        return [vars(record)["fields"]["detail"] for record in found]

    return details


@pytest.fixture
def foreign(tmp_path: Path) -> TlsFiles:
    """A client of another authority."""
    return issue_fleet(tmp_path / "other", ["n1"], ["app"])["client-app"]


async def hang_up_behind_the_flight(monkeypatch: pytest.MonkeyPatch, files: TlsFiles, kept: slice) -> None:
    """A client sends ``kept`` of what it has to say to a server's certificate, and hangs up at once. The server hears
    of the end before it has looked at what came before."""
    held, lost = Held(), asyncio.Event()
    monkeypatch.setattr(tls_module, "Handshakes", lambda: held)
    connection_lost = tls_module._TlsEnd.connection_lost

    def noted(end: Any, exc: Exception | None) -> None:
        connection_lost(end, exc)
        lost.set()

    monkeypatch.setattr(tls_module._TlsEnd, "connection_lost", noted)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context(files).wrap_bio(incoming, outgoing)
    async with greeter(certificates.node()) as to, asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection(to.host, to.port)
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        writer.write(outgoing.read())
        await held.do_one()
        while not outgoing.pending:
            incoming.write(await reader.read(65_536))
            with contextlib.suppress(ssl.SSLError):
                tls.do_handshake()
        writer.write(outgoing.read()[kept])
        writer.close()
        await lost.wait()
        if not held.waiting.empty():
            await held.do_one()
        assert to.accepted == []


async def test_a_peer_that_hangs_up_behind_its_alert_is_logged_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, refused: Callable[[], list[str]], foreign: TlsFiles
) -> None:
    """Once wrong: the end of the connection was heard before the alert, and then nothing was logged."""
    await hang_up_behind_the_flight(monkeypatch, foreign, slice(None))
    (said,) = refused()
    assert "it does not trust the authority of our certificate" in said
    assert "127.0.0.1" in said


@pytest.mark.parametrize("kept", [0, 3])
async def test_a_peer_that_hangs_up_in_the_handshake_is_logged(
    monkeypatch: pytest.MonkeyPatch, refused: Callable[[], list[str]], foreign: TlsFiles, kept: int
) -> None:
    await hang_up_behind_the_flight(monkeypatch, foreign, slice(kept))
    (said,) = refused()
    assert said.startswith("the peer hung up in the TLS handshake (('127.0.0.1', ")


async def test_a_peer_that_is_in_and_hangs_up_is_not_logged(
    monkeypatch: pytest.MonkeyPatch, refused: Callable[[], list[str]]
) -> None:
    await hang_up_behind_the_flight(monkeypatch, certificates.client(), slice(None))
    assert refused() == []


async def test_a_peer_that_says_nothing_is_not_logged(refused: Callable[[], list[str]]) -> None:
    """A probe of the port."""
    async with greeter(certificates.node()) as to, asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection(to.host, to.port)
        writer.write_eof()
        assert await ended(reader)
        writer.close()
    assert refused() == []


async def test_who_dials_hangs_up_only_behind_its_alert(refused: Callable[[], list[str]], foreign: TlsFiles) -> None:
    """Once wrong: the connection was cut off, and with it what was still to be sent."""
    below = MemoryTransport()
    listener = await TlsTransport(below, certificates.node()).listen("a", 1, End)
    with pytest.raises(CertificateError):
        await TlsTransport(below, foreign).dial("a", 1, End, TIMEOUT_S)
    async with asyncio.timeout(TIMEOUT_S):
        while not refused():  # noqa: ASYNC110 - a log does not call back
            await asyncio.sleep(0.01)
    assert "it does not trust the authority of our certificate" in refused()[0]
    await listener.close()


# --- bounds ----------------------------------------------------------------------------------------------


async def test_a_handshake_that_stops_half_way_ends_at_its_timeout() -> None:
    made = Door()
    transport = TlsTransport(TcpTransport(), certificates.node(), handshake_timeout_s=0.05)
    listener = await transport.listen("127.0.0.1", 0, made.accept)
    host, port = split_endpoint(listener.endpoint)
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"\x16\x03\x01")  # as a ClientHello begins
    async with asyncio.timeout(TIMEOUT_S):
        assert await ended(reader)
    assert made.accepted == []
    writer.close()
    await listener.close()


async def test_the_oldest_of_too_many_handshakes_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_module, "HANDSHAKES_MAX", 8)
    async with greeter(certificates.node()) as to:
        silent = [await asyncio.open_connection(to.host, to.port) for _ in range(20)]
        end, error = await outcome(certificates.client(), to)
        assert error is None
        assert end is not None
        async with asyncio.timeout(TIMEOUT_S):
            for reader, _ in silent[:12]:
                assert await ended(reader)
        end.stream.abort()
        for _, writer in silent:
            writer.transport.abort()


async def test_who_accepts_does_the_steps_of_a_handshake_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many clients at once: their signatures hold up nobody who is in."""
    steps: list[int] = []
    step = tls_module._TlsEnd._step

    def noted(end: Any) -> Any:
        if end._pending is not None:
            steps.append(threading.get_ident())
        return step(end)

    monkeypatch.setattr(tls_module._TlsEnd, "_step", noted)
    async with greeter(certificates.node()) as to:
        for end, error in await asyncio.gather(*(outcome(certificates.client(), to) for _ in range(20))):
            assert error is None
            assert end is not None
            end.stream.abort()
    assert len(steps) >= 40, "two each"
    assert threading.get_ident() not in steps


@pytest.mark.parametrize("beginning", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff", b"\x17\x03\x03\x00\x10"])
async def test_what_does_not_begin_as_a_handshake_costs_none(beginning: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(end: Any) -> Any:
        raise AssertionError("a stranger's noise got a thread")

    async with greeter(certificates.node()) as to:
        monkeypatch.setattr(tls_module._TlsEnd, "_step", step)
        reader, writer = await asyncio.open_connection(to.host, to.port)
        writer.write(beginning)
        async with asyncio.timeout(TIMEOUT_S):
            assert await ended(reader)
        writer.close()


async def test_a_hello_in_pieces_is_a_hello() -> None:
    async with greeter(certificates.node()) as to:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = tls_module.client_context(certificates.client()).wrap_bio(incoming, outgoing)
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        reader, writer = await asyncio.open_connection(to.host, to.port)
        for byte in outgoing.read():
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(0)
        async with asyncio.timeout(TIMEOUT_S):
            assert (await reader.read(1)) == b"\x16", "the server's hello"
        writer.close()


async def test_megabytes_of_one_are_read_in_turns_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of the loop reads a few slices of those who have much, and who has little is read at once."""
    read, most = [0], 0
    slice_ = tls_module._TlsEnd._slice

    def counted(end: Any) -> bool:
        read[0] += 1
        return slice_(end)

    monkeypatch.setattr(tls_module._TlsEnd, "_slice", counted)
    async with greeter(certificates.node()) as to:
        ends = []
        for _ in range(4):
            end, error = await outcome(certificates.client(), to)
            assert error is None
            assert end is not None
            ends.append(end)
            end.stream.write(bytes(1024 * 1024))
        async with asyncio.timeout(TIMEOUT_S):
            while not all(len(far.received) > 1024 * 1024 for far in to.accepted):
                before = read[0]
                await asyncio.sleep(0)  # a turn
                most = max(most, read[0] - before)
        for end in ends:
            end.stream.abort()
    assert read[0] >= 4 * 4, "more than a slice each"
    assert most <= TURN


async def test_a_dial_ends_at_its_timeout_where_nobody_answers_the_handshake() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf, pytest.raises(TimeoutError):
        await dialling(certificates.client()).dial(*deaf.getsockname(), End, 0.05)


# --- files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        (lambda: TlsFiles(ca="/no/such/file"), "authorities"),
        (lambda: TlsFiles(ca=certificates.node().key), "authorities"),
        (lambda: TlsFiles(certificate=certificates.node().certificate, ca=certificates.node().ca), "its key"),
        (
            lambda: TlsFiles(
                certificate=certificates.node("n1").certificate,
                key=certificates.node("n2").key,
                ca=certificates.node().ca,
            ),
            "key is not the certificate's",
        ),
    ],
)
def test_files_that_cannot_be_used_are_named(files: Any, complaint: str) -> None:
    with pytest.raises(CertificateError, match=complaint):
        TlsTransport(MemoryTransport(), files())


def test_listening_without_a_certificate_is_a_mistake() -> None:
    transport = TlsTransport(MemoryTransport(), certificates.anonymous())
    with pytest.raises(ValueError, match="needs a certificate"):
        asyncio.run(transport.listen("127.0.0.1", 0, End))


def copied(files: TlsFiles, to: Path) -> TlsFiles:
    """The same files elsewhere, as one set, in place of what is there."""
    to.mkdir(exist_ok=True)
    for source, name in ((files.key, "key.pem"), (files.certificate, "certificate.pem"), (files.ca, "ca.pem")):
        shutil.copy(source, to / "new.tmp")
        os.replace(to / "new.tmp", to / name)
    return TlsFiles(certificate=str(to / "certificate.pem"), key=str(to / "key.pem"), ca=str(to / "ca.pem"))


async def test_new_files_are_used_by_the_next_handshake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole other fleet: authority, certificate and key. Connections that are up stay up."""
    monkeypatch.setattr(reloading, "LOOK_S", 0.0)
    other = issue_fleet(tmp_path / "other", ["n1"], ["app"])
    files = copied(certificates.node("n1"), tmp_path / "used")
    async with greeter(files) as to:
        old, error = await outcome(certificates.client("app"), to)
        assert error is None
        assert old is not None
        copied(other["node-n1"], tmp_path / "used")
        new, error = await outcome(other["client-app"], to)
        assert error is None
        assert new is not None
        _, error = await outcome(certificates.client("app"), to)
        assert isinstance(error, CertificateError)
        old.stream.write(b"still here")
        async with asyncio.timeout(TIMEOUT_S):
            while b"still here" not in to.accepted[0].received:
                to.accepted[0].heard.clear()
                await to.accepted[0].heard.wait()
        old.stream.abort()
        new.stream.abort()


async def test_broken_files_are_not_used_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reloading, "LOOK_S", 0.0)
    files = copied(certificates.node("n1"), tmp_path)
    async with greeter(files) as to:
        Path(files.certificate).write_text("half a certi")  # noqa: ASYNC240 - a few bytes
        for _ in range(3):
            end, error = await outcome(certificates.client(), to)
            assert error is None
            assert end is not None
            end.stream.abort()
    said = [record for record in caplog.records if record.getMessage() == "files_unusable"]
    assert len(said) == 1


def test_files_that_several_read_are_said_to_be_new_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reloading, "LOOK_S", 0.0)
    caplog.set_level(logging.INFO)
    files = copied(certificates.node("n1"), tmp_path)
    several = [Reloaded(files, lambda files: object()) for _ in range(3)]
    for times in (1, 2):
        before = [one.current() for one in several]
        Path(files.certificate).write_text(f"another {times}")
        assert all(one.current() is not old for one, old in zip(several, before, strict=True))
        assert [record.getMessage() for record in caplog.records] == ["files_reloaded"] * times


def test_files_are_looked_at_no_oftener_than_is_due() -> None:
    now, loads = 0.0, []
    watched = Reloaded(certificates.node(), lambda files: loads.append(files) or len(loads), clock=lambda: now)
    Path(certificates.node().certificate).touch()
    assert watched.current() == 1
    now = reloading.LOOK_S
    assert watched.current() == 2
    assert watched.current() == 2


# --- principals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uris", "principal"),
    [
        (["metad://node/n1"], Principal(Role.NODE, "n1")),
        (["metad://client/a%2Fb"], Principal(Role.CLIENT, "a/b")),
        (["metad://node/"], None),
        (["metad://king/n1"], None),
        (["https://node/n1"], None),
        (["metad://node/n1", "metad://client/n1"], None),
        (["metad://node/n1", "urn:other"], Principal(Role.NODE, "n1")),
        ([], None),
        (["metad://[/x"], None),
    ],
)
def test_a_principal_is_named_by_one_uri(uris: list[str], principal: Principal | None) -> None:
    assert principal_of({"subjectAltName": tuple(("URI", uri) for uri in uris)}) == principal
    assert principal_of({"subjectAltName": tuple(("DNS", uri) for uri in uris)}) is None


@pytest.mark.parametrize("name", ["n1", "a/b", "ünïcode", "with space", "a?b#c"])
def test_a_principal_survives_its_uri(name: str) -> None:
    principal = Principal(Role.CLIENT, name)
    assert principal_of({"subjectAltName": (("URI", principal.uri),)}) == principal


def test_a_node_may_be_its_workers_and_no_other() -> None:
    node = Principal(Role.NODE, "n1")
    assert node.may_be("n1")
    assert node.may_be("n1/3")
    assert not node.may_be("n11")
    assert not node.may_be("n2")
    assert not Principal(Role.CLIENT, "n1").may_be("n1")


# --- records without data ------------------------------------------------------------------------------------


def stranger(at: Door) -> Target:
    return Target(
        addresses=[(at.host, at.port)],
        transport="tls",
        good=certificates.client(),
        other=certificates.client("other"),
        none=certificates.anonymous(),
    )


async def meanwhile(at: Door, talk: Callable[[Callable[[], None]], None]) -> None:
    """A blocking peer in a thread. It is given what to call before it hangs up: who is gone before the server has ended
    the handshake is never let in."""
    loop = asyncio.get_running_loop()

    def let_in() -> None:
        asyncio.run_coroutine_threadsafe(at.came.wait(), loop).result(TIMEOUT_S)

    await asyncio.to_thread(talk, let_in)


async def test_new_keys_now_and_then_are_followed() -> None:
    async with door(TlsTransport(TcpTransport(), certificates.node(), certificate_required=False)) as at:

        def talk(let_in: Callable[[], None]) -> None:
            with KeyUpdater(stranger(at)) as peer:
                for word in (b"one ", b"two ", b"three"):
                    peer.send(10, 0.0)
                    peer.say(word)
                let_in()

        await meanwhile(at, talk)
        async with asyncio.timeout(TIMEOUT_S):
            await at.accepted[0].lost
        assert at.accepted[0].received == b"one two three"


async def test_a_flood_of_new_keys_ends_the_connection() -> None:
    """Thousands of them kept the loop busy for a second, in one call of OpenSSL."""
    async with door(TlsTransport(TcpTransport(), certificates.node(), certificate_required=False)) as at:

        def flood(let_in: Callable[[], None]) -> None:
            with contextlib.suppress(OSError), KeyUpdater(stranger(at)) as peer:
                peer.send(2_000, 0.0)
                let_in()

        await meanwhile(at, flood)
        async with asyncio.timeout(TIMEOUT_S):
            error = await at.accepted[0].lost
        assert isinstance(error, TlsError)
        assert "without data" in str(error)


async def test_records_without_data_are_counted_beside_those_with_data() -> None:
    """Many small records that wait to be read are no records without data."""
    async with door(TlsTransport(TcpTransport(), certificates.node(), certificate_required=False)) as at:

        def talk(let_in: Callable[[], None]) -> None:
            with TlsPeer(stranger(at), certificates.anonymous()) as peer:
                for _ in range(200):
                    peer.send(b"x" * 4_000)
                let_in()

        await meanwhile(at, talk)
        async with asyncio.timeout(TIMEOUT_S):
            await at.accepted[0].lost
        assert len(at.accepted[0].received) == 200 * 4_000


@given(
    lengths=st.lists(st.integers(0, 40), max_size=30),
    cuts=st.lists(st.integers(1, 50), min_size=1),
    count=st.integers(1, 5),
)
def test_ends_of_records_are_found_however_they_are_cut(lengths: list[int], cuts: list[int], count: int) -> None:
    stream = b"".join(b"\x17\x03\x03" + length.to_bytes(2, "big") + bytes(length) for length in lengths)
    ends = set(accumulate(5 + length for length in lengths))
    records = Records()
    offset = 0
    for size in cycle(cuts):
        chunk = stream[offset : offset + size]
        if not chunk:
            break
        at = 0
        while at < len(chunk):
            before = records.whole
            at = records.advance(chunk, at, count)
            assert records.whole - before <= count
            assert at == len(chunk) or records.whole - before == count
            assert records.whole == sum(end <= offset + at for end in ends)
        offset += len(chunk)
    assert records.whole == len(lengths)
