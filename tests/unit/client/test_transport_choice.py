"""Which transport is taken to an endpoint, what happens where one does not get through, and when it is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metad_client import InvalidRequestError, Options, connect
from metad_client.connections import dialer as dialer_module
from metad_client.connections.dialer import Dialer
from metad_client.connections.transport_choice import BLOCKED_S, TransportChoice, credentials_of, transports_of
from metad_client.endpoint import as_url, parse_url, scheme_of
from metad_client.errors import ConnectionLostError, HandshakeError, MetadError, UnauthenticatedError
from metad_perf.attack import sites as certificates
from metad_wire.connection.frame import FrameType, encode_frame
from metad_wire.methods import encode
from metad_wire.policy import PathRule
from metad_wire.transport import Transport
from metad_wire.transport.credentials import CertificateError, PathSample, TlsError
from sim.memory import MemoryTransport

AT = ("10.0.0.1", 7420)
RULE = PathRule()
LOSSY = PathSample(rtt_s=0.1, sent=1_000, lost=30)
CLEAN = PathSample(rtt_s=0.1, sent=1_000, lost=0)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def both(clock: Clock | None = None) -> TransportChoice:
    return TransportChoice({"tls": MemoryTransport(), "quic": MemoryTransport()}, RULE, clock=clock or Clock())


# --- what a scheme means ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "names"), [("metads", ["tls"]), ("metadq", ["quic"]), ("metad+auto", ["tls", "quic"])]
)
def test_a_scheme_names_its_transports(scheme: str, names: list[str]) -> None:
    transports = transports_of(scheme, Options(tls=certificates.client()))
    assert list(transports.by_name) == names
    assert transports.chooses == (len(names) == 2)
    with pytest.raises(ValueError, match="an authority to trust"):
        transports_of(scheme, Options())


def test_clear_text_needs_nothing() -> None:
    assert list(transports_of("metad", Options()).by_name) == ["tcp"]


def test_a_token_is_not_sent_in_clear_text() -> None:
    with pytest.raises(ValueError, match="clear text"):
        transports_of("metad", Options(credentials=b"app.secret"))


def test_the_token_in_a_file_is_that_of_the_next_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metad_wire.transport.reload.LOOK_S", 0.0)
    file = tmp_path / "token"
    file.write_text("  first \nno token\n")
    options = Options(credentials_file=str(file))
    with pytest.raises(ValueError, match="clear text"):
        transports_of("metad", options)
    current = credentials_of(options)
    assert current() == b"first"
    file.write_text("the second\n")
    assert current() == b"the second"
    for broken in (b"", b"\xff\xfe\n"):
        file.write_bytes(broken)
        assert current() == b"the second", "what is half written replaces nothing"
        with pytest.raises(ValueError, match="cannot read the token"):
            credentials_of(options)
    file.unlink()
    assert current() == b"the second"
    with pytest.raises(InvalidRequestError, match="cannot read the token"):
        connect("metads://h", msgspec.structs.replace(options, tls=certificates.client()))
    with pytest.raises(ValueError, match="not both"):
        Options(credentials=b"x", credentials_file="f")


def test_files_of_no_use_are_a_mistake_of_the_caller() -> None:
    files = certificates.client()
    broken = type(files)(certificate=files.certificate, key=certificates.client("other").key, ca=files.ca)
    with pytest.raises(ValueError, match="key is not the certificate's"):
        transports_of("metads", Options(tls=broken))


@pytest.mark.parametrize("scheme", ["metad", "metads", "metadq", "metad+auto"])
def test_urls_of_every_scheme(scheme: str) -> None:
    assert scheme_of(f"{scheme}://a:1") == scheme
    assert parse_url(f"{scheme}://a:1,b") == [("a", 1), ("b", 7420)]


def test_an_endpoint_without_a_scheme_is_clear_text() -> None:
    assert as_url("a:1,b:2") == "metad://a:1,b:2"
    assert as_url("metadq://a:1") == "metadq://a:1"


# --- the plan --------------------------------------------------------------------------------------------


def test_tcp_is_tried_first_where_nothing_is_known() -> None:
    assert both().plan(AT) == ["tls", "quic"]


def test_a_lossy_path_is_for_quic_and_each_endpoint_has_its_own() -> None:
    transports = both()
    assert transports.note(AT, "tls", LOSSY) == "quic"
    assert transports.plan(AT) == ["quic", "tls"]
    assert transports.plan(("10.0.0.2", 7420)) == ["tls", "quic"]


def test_what_did_not_get_through_is_not_preferred_for_a_while() -> None:
    clock = Clock()
    transports = both(clock)
    assert transports.note(AT, "tls", LOSSY) == "quic"
    transports.failed(AT, "quic")
    assert transports.note(AT, "tls", LOSSY) == "tls", "it would not get through"
    assert transports.plan(AT) == ["tls", "quic"]
    clock.now += BLOCKED_S
    assert transports.note(AT, "tls", LOSSY) == "quic"


def test_a_path_of_which_nothing_is_known_changes_nothing() -> None:
    transports = both()
    assert transports.note(AT, "quic", None) == "quic"
    assert transports.note(AT, "tls", None) == "tls"


def test_one_transport_alone_is_never_left() -> None:
    transports = TransportChoice({"quic": MemoryTransport()}, RULE)
    assert transports.by_quic
    assert transports.note(AT, "quic", CLEAN) == "quic"
    assert transports.plan(AT) == ["quic"]


def test_quic_may_be_elsewhere() -> None:
    transports = both()
    transports.failed(AT, "quic")
    transports.learn({AT: ("10.0.0.1", 9_000)})
    assert not transports.is_blocked(AT, "quic"), "that was elsewhere"
    assert transports.place(AT, "quic") == ("10.0.0.1", 9_000)
    assert transports.place(AT, "tls") == AT
    assert transports.place(("10.0.0.2", 7420), "quic") == ("10.0.0.2", 7420)


# --- the race --------------------------------------------------------------------------------------------


class Link:
    def __init__(self, via: str) -> None:
        self.via = via
        self.closed = False

    def close(self) -> None:
        self.closed = True


Attempt = Callable[[], Any]


def racing(
    monkeypatch: pytest.MonkeyPatch, transports: TransportChoice | None = None, **attempts: Attempt
) -> tuple[Dialer, list[str]]:
    """A dialer whose transports do as told, and the order in which they are asked."""
    dialer = Dialer(transports or both(), None, Options())  # type: ignore[arg-type]
    asked: list[str] = []

    async def dial_by(endpoint: Any, name: str) -> Link:
        asked.append(name)
        await attempts[name]()
        return Link(name)

    monkeypatch.setattr(dialer, "dial_by", dial_by)
    monkeypatch.setattr(dialer_module, "HEAD_START_S", 0.02)
    return dialer, asked


async def at_once() -> None:
    pass


async def never() -> None:
    await asyncio.Event().wait()


def failing(error: MetadError) -> Attempt:
    async def fail() -> None:
        raise error

    return fail


async def test_the_preferred_way_alone_is_dialled_where_it_gets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    dialer, asked = racing(monkeypatch, tls=at_once, quic=never)
    assert (await dialer.dial(AT)).via == "tls"
    assert asked == ["tls"]


async def test_the_other_way_is_taken_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    transports = both()
    dialer, asked = racing(monkeypatch, transports, tls=never, quic=at_once)
    assert (await dialer.dial(AT)).via == "quic"
    assert asked == ["tls", "quic"]
    assert transports.is_blocked(AT, "tls")
    assert transports.plan(AT) == ["quic", "tls"]


async def test_a_refusal_of_the_network_does_not_cost_the_head_start(monkeypatch: pytest.MonkeyPatch) -> None:
    dialer, _ = racing(monkeypatch, tls=failing(ConnectionLostError("refused")), quic=at_once)
    monkeypatch.setattr(dialer_module, "HEAD_START_S", 60.0)
    async with asyncio.timeout(10):
        assert (await dialer.dial(AT)).via == "quic"


async def test_who_is_not_let_in_is_not_tried_by_another_door(monkeypatch: pytest.MonkeyPatch) -> None:
    dialer, asked = racing(monkeypatch, tls=failing(UnauthenticatedError("no")), quic=at_once)
    with pytest.raises(UnauthenticatedError):
        await dialer.dial(AT)
    assert asked == ["tls"]


async def test_where_neither_gets_through_the_preferred_ones_obstacle_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    dialer, _ = racing(
        monkeypatch, tls=failing(ConnectionLostError("of tls")), quic=failing(ConnectionLostError("of quic"))
    )
    with pytest.raises(ConnectionLostError, match="of tls"):
        await dialer.dial(AT)


async def test_a_race_given_up_leaves_no_dial_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    dialer, asked = racing(monkeypatch, tls=never, quic=never)
    dial = asyncio.create_task(dialer.dial(AT))
    await asyncio.sleep(2 * dialer_module.HEAD_START_S)  # of the loop's own clock
    assert asked == ["tls", "quic"]
    dial.cancel()
    await asyncio.gather(dial, return_exceptions=True)
    for _ in range(3):
        await asyncio.sleep(0)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


class Refusing(Transport):
    """Its peer does not want us. The stream ends when it is told to, as one of QUIC whose peer has not answered yet."""

    def __init__(self) -> None:
        self.aborted = False

    async def dial(self, host: str, port: int, factory: Callable[[], Any], timeout_s: float) -> Any:
        handler = factory()
        handler.connection_made(self)
        refusal = encode(UnauthenticatedError("who are you?").body())
        handler.data_received(encode_frame(FrameType.ERROR, refusal))
        return handler

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None: ...

    def write(self, data: bytes) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    listen = get_extra_info  # type: ignore[assignment]


async def test_a_connection_that_is_refused_leaves_nothing_open() -> None:
    """Nobody waits for its polite end: a loop that ended first left the socket of QUIC open."""
    transport = Refusing()
    dialer = Dialer(TransportChoice({"quic": transport}, RULE), None, Options())  # type: ignore[arg-type]
    with pytest.raises(UnauthenticatedError, match="who are you"):
        await dialer.dial_by(AT, "quic")
    assert transport.aborted


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CertificateError("x"), UnauthenticatedError),
        (TlsError("x"), HandshakeError),
        (ConnectionRefusedError("x"), ConnectionLostError),
        (TimeoutError(), ConnectionLostError),
    ],
)
def test_what_the_network_says_has_a_type(error: OSError, kind: type[MetadError]) -> None:
    assert type(dialer_module.typed(error, "h:1", 3.0)) is kind
