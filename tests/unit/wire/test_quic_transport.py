"""The QUIC transport on real sockets: who is let in, what a reconnection costs, and how an end that is gone is
noticed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import shutil
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from quic_rig import Handler

from metad_perf.attack import sites as certificates
from metad_wire.operator.authority import issue_fleet
from metad_wire.program.sparing import Sparing
from metad_wire.transport import Listener, split_endpoint, unfinished
from metad_wire.transport.credentials import PEERCERT, CertificateError, Role, TlsFiles, principal_of
from metad_wire.transport.quic import QuicSettings, QuicTransport
from metad_wire.transport.quic.carrier import Carrier
from waiting import until

TIMEOUT_S = 120.0


class End(Handler):
    """Keeps what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.received = bytearray()
        self.early: list[bool] = []  # whether each chunk may have been a replay
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.early.append(self.stream.get_extra_info("early"))
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)
        self._changed.set()

    async def until(self, data: bytes) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while bytes(self.received) != data:
                assert not self.lost.done(), self.lost
                self._changed.clear()
                await self._changed.wait()


class Echo(End):
    """Sends back what it gets."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.stream.write(data)


class Place:
    """A listener and those it accepted."""

    def __init__(self, listener: Listener, accepted: list[End]) -> None:
        self.listener = listener
        self.accepted = accepted
        self.host, self.port = split_endpoint(listener.endpoint)

    async def dial(self, transport: QuicTransport, factory: Callable[[], Any] = End) -> Any:
        return await transport.dial(self.host, self.port, factory, TIMEOUT_S)


@contextlib.asynccontextmanager
async def serving(
    files: TlsFiles | None = None,
    *,
    required: bool = True,
    settings: QuicSettings | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> AsyncIterator[Place]:
    transport = QuicTransport(files or certificates.node(), certificate_required=required, settings=settings)
    accepted: list[End] = []

    def accept() -> End:
        accepted.append(Echo())
        return accepted[-1]

    listener = await transport.listen(host, port, accept)
    yield Place(listener, accepted)
    await listener.close()
    for end in accepted:
        end.stream.abort()
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*(end.lost for end in accepted))


async def ended(end: End) -> Exception | None:
    async with asyncio.timeout(TIMEOUT_S):
        return await end.lost


# --- who is let in ---------------------------------------------------------------------------------------


async def test_both_ends_know_who_the_other_is() -> None:
    async with serving() as place:
        near = await place.dial(QuicTransport(certificates.client("app")))
        near.stream.write(b"hello")
        await near.until(b"hello")
        assert principal_of(near.stream.get_extra_info(PEERCERT)) == (Role.NODE, "n1")
        assert principal_of(place.accepted[0].stream.get_extra_info(PEERCERT)) == (Role.CLIENT, "app")
        near.stream.close()
        await ended(near)


# That a client's certificate names no role is for the server's rules of access to mind.
@pytest.mark.parametrize("kind", [kind for kind in certificates.WRONG if kind != "no-role"])
async def test_a_wrong_client_certificate_gets_no_frame_through(kind: str) -> None:
    async with serving(required=False) as place:
        await _refused(place, certificates.wrong(kind))


async def test_no_client_certificate_gets_no_frame_through_where_one_is_required() -> None:
    async with serving(required=True) as place:
        await _refused(place, certificates.anonymous())


async def _refused(place: Place, files: TlsFiles) -> None:
    try:
        near = await place.dial(QuicTransport(files))
    except CertificateError:
        pass
    else:
        near.stream.write(b"may I?")
        assert isinstance(await ended(near), CertificateError)
    assert not place.accepted


async def test_a_client_without_a_certificate_is_let_in_where_none_is_required() -> None:
    async with serving(required=False) as place:
        near = await place.dial(QuicTransport(certificates.anonymous()))
        near.stream.write(b"hello")
        await near.until(b"hello")
        assert place.accepted[0].stream.get_extra_info(PEERCERT) is None
        near.stream.close()
        await ended(near)


@pytest.mark.parametrize("kind", certificates.WRONG)
async def test_a_wrong_server_certificate_is_refused(kind: str) -> None:
    async with serving(certificates.wrong(kind, Role.NODE)) as place:
        with pytest.raises(CertificateError):
            await place.dial(QuicTransport(certificates.client()))


async def test_a_server_of_another_authority_is_named_so() -> None:
    async with serving(certificates.wrong("untrusted", Role.NODE)) as place:
        with pytest.raises(CertificateError, match="another authority than ours issued it"):
            await place.dial(QuicTransport(certificates.client()))


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[], Awaitable[str]]:
    """Waits for a line about a refused handshake; its text."""
    monkeypatch.setattr(unfinished, "_refusals", Sparing(100, 1.0))
    caplog.set_level(logging.INFO, "metad")

    async def detail() -> str:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                for record in caplog.records:
                    if record.getMessage() == "tls_refused":
                        return str(vars(record)["fields"]["detail"])
                await asyncio.sleep(0.01)

    return detail


async def test_a_client_that_does_not_trust_the_server_is_logged_there(
    logged: Callable[[], Awaitable[str]], tmp_path: Path
) -> None:
    """Once wrong: nothing was, and the operator of the server did not learn of it."""
    foreign = issue_fleet(tmp_path / "other", ["n1"], ["app"])["client-app"]
    async with serving() as place:
        with pytest.raises(CertificateError, match="another authority than ours issued it"):
            await place.dial(QuicTransport(foreign))
        said = await logged()
    assert said.startswith("QUIC handshake refused: the peer refuses us: it does not trust the authority of our")
    assert "127.0.0.1" in said


async def test_a_client_of_another_authority_is_logged_where_it_is_refused(
    logged: Callable[[], Awaitable[str]],
) -> None:
    async with serving() as place:
        await _refused(place, certificates.wrong("untrusted"))
        assert "the peer's certificate is refused: another authority than ours issued it" in await logged()


async def test_a_clients_certificate_is_no_servers() -> None:
    async with serving(certificates.client("posing")) as place:
        with pytest.raises(CertificateError):
            await place.dial(QuicTransport(certificates.client()))


# --- tickets and 0-RTT -----------------------------------------------------------------------------------


async def test_a_ticket_saves_the_round_trip_and_is_good_once() -> None:
    async with serving() as place:
        transport = QuicTransport(certificates.client("app"))
        first = await place.dial(transport)
        first.stream.write(b"first")
        await first.until(b"first")
        assert place.accepted[0].early == [False]
        ticket = await _ticket(transport, place)
        first.stream.close()
        await ended(first)

        second = await place.dial(transport)
        assert second.stream.get_extra_info("early")
        more = bytes(5_000)  # so that it takes datagrams behind the first
        second.stream.write(b"second" + more)
        await second.until(b"second" + more)
        assert place.accepted[1].early[0] is True
        assert not second.stream.get_extra_info("early")
        assert principal_of(place.accepted[1].stream.get_extra_info(PEERCERT)) == (Role.CLIENT, "app")
        assert principal_of(second.stream.get_extra_info(PEERCERT)) == (Role.NODE, "n1")
        second.stream.close()
        await ended(second)

        # The same ticket again: a full handshake, in which the client has to show its certificate, and what went out
        # early is sent again.
        tickets = transport._kept._servers[place.host, place.port]
        tickets.clear()
        tickets.append(ticket)
        third = await place.dial(transport)
        third.stream.write(b"third")
        await third.until(b"third")
        assert place.accepted[2].early == [False]
        third.stream.close()
        await ended(third)


async def _ticket(transport: QuicTransport, place: Place) -> Any:
    await until(lambda: transport._kept._servers.get((place.host, place.port)))
    return transport._kept._servers[place.host, place.port][-1]


async def test_a_ticket_is_not_honoured_once_the_authorities_have_changed(tmp_path: Path) -> None:
    good = certificates.node()
    ca = tmp_path / "ca.pem"
    shutil.copy(good.ca, ca)
    files = TlsFiles(certificate=good.certificate, key=good.key, ca=str(ca))
    async with serving(files) as place:
        transport = QuicTransport(certificates.client("app"))
        first = await place.dial(transport)
        await _ticket(transport, place)
        first.stream.close()
        await ended(first)
        other = certificates.wrong("untrusted", Role.NODE)
        with open(ca, "ab") as authorities, open(other.certificate, "rb") as added:  # noqa: ASYNC230
            authorities.write(added.read())
        place.listener._material._look_at = 0.0  # type: ignore[attr-defined]
        second = await place.dial(transport)
        second.stream.write(b"second")
        await second.until(b"second")
        assert place.accepted[-1].early == [False]
        second.stream.close()
        await ended(second)


# --- connections and streams -----------------------------------------------------------------------------


async def test_dials_to_one_endpoint_share_a_connection_and_no_order() -> None:
    async with serving() as place:
        transport = QuicTransport(certificates.client("app"), settings=QuicSettings(shared_streams=4))
        ends = [await place.dial(transport) for _ in range(5)]
        for end in ends:
            end.stream.write(b"here ")
            await end.until(b"here ")
        assert place.listener.connections == 2  # type: ignore[attr-defined]
        place.accepted[0].stream.pause_reading()
        ends[0].stream.write(bytes(4 << 20))
        for end in ends[1:]:
            end.stream.write(b"past it")
            await end.until(b"here past it")
        for end in ends:
            end.stream.abort()
            await ended(end)


async def test_dials_that_are_under_way_together_share_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client opens its streams at once. A stream that waited for its acceptance once counted twice, so that eight of
    them took four connections."""
    released = asyncio.Event()
    acceptance = Carrier.acceptance

    def late(carrier: Carrier, end: Any) -> asyncio.Future[None]:
        accepted = acceptance(carrier, end)

        async def wait() -> None:
            await released.wait()
            await accepted

        return asyncio.ensure_future(wait())

    monkeypatch.setattr(Carrier, "acceptance", late)
    async with serving() as place:
        transport = QuicTransport(certificates.client("app"))
        ends = [await place.dial(transport)]
        dials = []
        for _ in range(QuicSettings().shared_streams - 1):
            begun = asyncio.Event()

            def made(begun: asyncio.Event = begun) -> End:
                begun.set()
                return End()

            dials.append(asyncio.create_task(place.dial(transport, made)))
            await begun.wait()
        released.set()
        ends += await asyncio.gather(*dials)
        assert place.listener.connections == 1  # type: ignore[attr-defined]
        for end in ends:
            end.stream.abort()
            await ended(end)


async def test_connections_are_capped() -> None:
    async with serving(settings=QuicSettings(connections_max=2)) as place:
        kept = [await place.dial(QuicTransport(certificates.client("app"))) for _ in range(2)]
        with pytest.raises(ConnectionRefusedError):
            await place.dial(QuicTransport(certificates.client("app")))
        kept[0].stream.close()
        await ended(kept[0])
        kept[0] = await place.dial(QuicTransport(certificates.client("app")))
        for end in kept:
            end.stream.close()
            await ended(end)


async def test_an_address_is_proven_by_retry_first_and_by_a_token_later() -> None:
    """Loopback is spared unless there is a rush; that begins with the first handshake here."""
    async with serving(settings=QuicSettings(retry_handshakes=0)) as place:
        transport = QuicTransport(certificates.client("app"))
        near = await place.dial(transport)
        (dialled,) = transport._dialled[place.host, place.port]
        assert dialled.carrier.engine._retry_count == 1
        near.stream.write(b"x")
        await near.until(b"x")
        await until(lambda: transport._kept._tokens)
        near.stream.close()
        await ended(near)
        again = await place.dial(transport)
        again.stream.write(b"y")
        await again.until(b"y")
        (dialled,) = transport._dialled[place.host, place.port]
        assert dialled.carrier.engine._retry_count == 0
        again.stream.close()
        await ended(again)


@pytest.mark.parametrize(("bound", "dialled"), [("0.0.0.0", "127.0.0.2"), ("0.0.0.0", "127.0.0.1"), ("::", "::1")])
async def test_a_server_on_all_addresses_answers_from_the_one_that_was_asked(bound: str, dialled: str) -> None:
    """Guards machines with several: the client's socket takes datagrams from the address that it dialled only."""
    if bound == "::" and not _has_ipv6():
        pytest.skip("there is no IPv6 here")
    async with serving(host=bound) as place:
        near = await QuicTransport(certificates.client("app")).dial(dialled, place.port, End, TIMEOUT_S)
        near.stream.write(bytes(100_000))
        await near.until(bytes(100_000))
        assert place.accepted[0].stream.get_extra_info("peername") == near.stream.get_extra_info("sockname")
        near.stream.close()
        await ended(near)


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


# --- ends that are gone ----------------------------------------------------------------------------------


async def test_a_restarted_server_says_that_it_does_not_know_the_connection() -> None:
    async with serving() as place:
        near = await place.dial(QuicTransport(certificates.client("app")))
        near.stream.write(b"hello")
        await near.until(b"hello")
        server: Any = place.listener
        # As if killed: nothing is said, the socket is gone, another takes its place.
        for carrier in tuple(server._ids):
            carrier._owner = _Nobody()
            carrier.fail(ConnectionResetError("killed"))
        server._socket.close()
        server._ids.clear()
        server._ticker.cancel()
        async with serving(port=place.port) as successor:
            near.stream.write(b"are you there?")
            error = await ended(near)
            assert isinstance(error, ConnectionResetError)
            assert "restarted" in str(error)
            assert not successor.accepted


class _Nobody:
    def over(self, carrier: Any) -> None:
        pass

    def send(self, datagrams: list[bytes], address: Any) -> None:
        pass


async def test_a_silent_server_is_given_up_once_something_is_unanswered() -> None:
    settings = QuicSettings(unanswered_s=0.5)
    async with serving() as place:
        near = await place.dial(QuicTransport(certificates.client("app"), settings=settings))
        near.stream.write(b"hello")
        await near.until(b"hello")
        place.listener._socket._received = lambda datagrams, address: None  # type: ignore[attr-defined]
        near.stream.write(b"are you there?")
        assert isinstance(await ended(near), TimeoutError)


async def test_a_client_goes_on_from_another_socket_when_the_server_falls_silent() -> None:
    """As behind a NAT that has forgotten it: what it sends from its old port reaches nobody, and what is sent there
    neither."""
    settings = QuicSettings(unanswered_s=3.0)
    async with serving(settings=QuicSettings(unanswered_s=60.0)) as place:
        transport = QuicTransport(certificates.client("app"), settings=settings)
        near = await place.dial(transport)
        near.stream.write(b"hello ")
        await near.until(b"hello ")
        forgotten = near.stream.get_extra_info("sockname")
        sock = place.listener._socket  # type: ignore[attr-defined]
        received, send = sock._received, sock.send

        def filtered(datagrams: list[bytes], address: Any) -> None:
            if address != forgotten:
                received(datagrams, address)

        def lost(datagrams: list[bytes], address: Any) -> None:
            if address != forgotten:
                send(datagrams, address)

        sock._received, sock.send = filtered, lost
        near.stream.write(b"again")
        await near.until(b"hello again")
        assert near.stream.get_extra_info("sockname") != forgotten
        assert place.accepted[0].stream.get_extra_info("peername") == near.stream.get_extra_info("sockname")
        near.stream.close()
        await ended(near)


async def test_a_client_that_opens_no_stream_is_shown_out() -> None:
    settings = QuicSettings(handshake_timeout_s=1.0)
    async with serving(settings=settings) as place:
        transport = QuicTransport(certificates.client("app"))
        dialled = await transport._connect(place.host, place.port)
        await dialled.carrier.connected
        await until(lambda: not place.listener.connections and dialled.carrier.over)  # type: ignore[attr-defined]


async def test_who_holds_most_memory_is_closed_when_there_is_too_much_of_it() -> None:
    settings = QuicSettings(held_bytes_max=2 << 20, window_bytes_max=4 << 20, window_bytes=4 << 20)
    async with serving(settings=settings) as place:
        modest = await place.dial(QuicTransport(certificates.client("app")))
        modest.stream.write(b"hello ")
        await modest.until(b"hello ")
        greedy = await place.dial(QuicTransport(certificates.client("app")))
        greedy.stream.write(b"x")
        await greedy.until(b"x")
        place.accepted[1].stream.pause_reading()
        greedy.stream.write(bytes(4 << 20))
        error = await ended(greedy)
        assert "no memory" in str(error)
        modest.stream.write(b"still here")
        await modest.until(b"hello still here")
        modest.stream.close()
        await ended(modest)


async def test_a_rush_of_handshakes_gets_through_and_those_that_are_up_are_served() -> None:
    patient = QuicSettings(handshake_timeout_s=60.0, retry_handshakes=4)
    async with serving(settings=patient) as place:
        near = await place.dial(QuicTransport(certificates.client("app")))
        transports = [QuicTransport(certificates.client("app"), settings=patient) for _ in range(20)]
        rush = [asyncio.create_task(t.dial(place.host, place.port, End, 60.0)) for t in transports]
        sent = b""
        while not all(task.done() for task in rush):
            near.stream.write(b"!")
            sent += b"!"
            await near.until(sent)
        for end in (near, *(task.result() for task in rush)):
            end.stream.close()
            await ended(end)


async def test_garbage_is_dropped_and_costs_the_others_nothing() -> None:
    rng = random.Random(5)
    async with serving() as place:
        near = await place.dial(QuicTransport(certificates.client("app")))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for size in (0, 1, 8, 9, 20, 21, 43, 100, 1199, 1200, 1500, 9_000):
                for first in (0x00, 0x40, 0x7F, 0xC0, 0xC3, 0xD0, 0xE0, 0xF0, 0xFF):
                    head = bytes((first,)) + rng.choice((b"\0\0\0\1", b"\0\0\0\0", rng.randbytes(4)))
                    stranger.sendto((head + rng.randbytes(9_000))[:size], (place.host, place.port))
        near.stream.write(b"still here")
        await near.until(b"still here")
        assert len(place.accepted) == 1
        near.stream.close()
        await ended(near)
