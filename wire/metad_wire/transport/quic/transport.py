"""Dial and listen over QUIC: implements :class:`metad_wire.transport.Transport`.

One dial is one ordered stream, as everywhere. Dials of one transport to one endpoint share a connection, up to
``shared_streams``: its handshake, its congestion control and its keys, but no order; what is lost of one stream holds
up no other. So whoever wants control frames, data and bulk not to wait for each other dials once for each.

A dialled connection has a socket of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Final

from .. import Handler, Listener, StreamHandler
from ..credentials import TlsFiles
from ..pace import Pace
from ..reload import Reloaded
from . import certificates
from .carrier import TICK_S, Carrier
from .packets import PacketEngine
from .server import Server
from .settings import QuicSettings
from .sockets import Address, DatagramSocket, connected, connected_to, listening
from .tickets import KeptTickets

_UNREACHABLE_MAX: Final = 3
"""So many datagrams in a row without a route make the connection try another socket."""
_REFUSALS_MAX: Final = 3
"""So many refusals in a row are needed before the connection believes that nobody listens…"""
_PROBE_S: Final = 0.05
"""…with this interval between them, longer each time."""


class Dialled:
    """A :class:`carrier.Owner` with one connection. If the peer falls silent or there is no route any more, it
    continues from another socket, because the network may have changed or a NAT may have forgotten us."""

    def __init__(self, sock: socket.socket, engine: PacketEngine, gone: Callable[[Dialled], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._family = sock.family
        self._peer: Address = sock.getpeername()
        self._gone = gone
        self._refusals = 0
        self._settings = engine.settings
        self._moved_s = 0.0
        self._socket = self._wrap(sock)
        self.carrier = Carrier(engine, self, is_client=True, accept=lambda: None)
        self._ticker = self._loop.call_later(TICK_S, self._tick)

    def _wrap(self, sock: socket.socket) -> DatagramSocket:
        return DatagramSocket(
            sock,
            buffer_bytes=self._settings.socket_buffer_bytes,
            received=self.received,
            swept=self.swept,
            refused=self.refused,
        )

    def move(self) -> None:
        """Continue from another address or port; the server learns it from our packets (RFC 9000 section 9)."""
        try:
            sock = connected_to(self._family, self._peer)
        except OSError:
            return  # no route at all: the next silence tries again
        self._moved_s = self._loop.time()
        self._socket.close()
        self._socket = self._wrap(sock)
        engine = self.carrier.engine
        engine.change_connection_id()  # so that an observer cannot tell that it is the same client
        engine.send_ping(0)
        self.carrier.schedule()

    def connect(self) -> None:
        """Send the first datagram."""
        self.carrier.engine.connect(self._peer, self._loop.time())
        self.carrier.schedule()

    def send(self, datagrams: list[bytes], address: Address) -> None:
        self._socket.send(datagrams, self._peer)

    def issued(self, carrier: Carrier, connection_id: bytes) -> None:
        """Does nothing: the socket has one connection."""

    def retired(self, carrier: Carrier, connection_id: bytes) -> None:
        """Does nothing: the socket has one connection."""

    def expects(self, carrier: Carrier) -> bool:
        """False: the code that dials holds a reservation meanwhile."""
        return False

    def over(self, carrier: Carrier) -> None:
        self._ticker.cancel()
        self._socket.close()
        self._gone(self)

    def local_address(self) -> Address:
        return self._socket.address

    def received(self, datagrams: list[bytes], address: Address) -> None:
        """Take datagrams from the socket."""
        self._refusals = 0
        self.carrier.receive(datagrams, self._peer)

    def swept(self) -> None:
        """Have the connection's turn after a wake-up's datagrams."""
        self.carrier.turn()

    def refused(self) -> None:
        """The kernel was told that nobody listens. Anyone on the path can say so: before the handshake the connection
        believes it, afterwards only if the peer does not answer a ping."""
        if not self.carrier.engine.handshaken:
            self.carrier.fail(ConnectionRefusedError("nobody listens there"))
            return
        self._refusals += 1
        if self._refusals >= _REFUSALS_MAX:
            self.carrier.fail(ConnectionResetError("nobody listens there any more"))
        else:
            self._loop.call_later(_PROBE_S * self._refusals, self._probe)

    def _probe(self) -> None:
        if not self.carrier.over:
            self.carrier.engine.send_ping(0)
            self.carrier.schedule()

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        carrier, now = self.carrier, self._loop.time()
        carrier.tick(now)
        if carrier.over or not carrier.engine.handshaken:
            return
        lost_way = self._socket.unreachable >= _UNREACHABLE_MAX
        silent_s = carrier.silence_s(now)
        patience_s = max(self._settings.unanswered_s / 2, 4 * carrier.engine.rtt_s)
        if (lost_way or silent_s > patience_s) and now - self._moved_s > patience_s:
            self.move()


_STALE_S = 1.0  # a connection not heard of for as long is asked for a sign of life before a new dial relies on it


class QuicTransport:
    """See the module. Raises CertificateError where the files cannot be used. Files that change are read anew by the
    handshakes that follow.

    ``certificate_required``: a client without one is refused in the handshake; otherwise whoever accepts it looks at
    ``get_extra_info("peercert")`` and decides by something else. ``pace``: of the handshakes that are begun.
    """

    def __init__(
        self,
        files: TlsFiles,
        *,
        certificate_required: bool = True,
        settings: QuicSettings | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._files = files
        self._certificate_required = certificate_required
        self._settings = settings or QuicSettings()
        self._pace = pace or Pace()
        self._material = Reloaded(files, certificates.load)
        self._dialled: dict[tuple[str, int], list[Dialled]] = {}
        self._kept = KeptTickets()

    async def listen(self, host: str, port: int, factory: Callable[[], StreamHandler]) -> Listener:
        """Accept streams; ``factory`` makes the handler of each, once its connection's peer is verified."""
        if not self._files.certificate:
            raise ValueError("listening needs a certificate")
        sock = await listening(host, port)
        return Server(
            sock,
            self._settings,
            self._material,
            factory,
            certificate_required=self._certificate_required,
            pace=self._pace,
        )

    async def dial(self, host: str, port: int, factory: Callable[[], Handler], timeout_s: float) -> Handler:
        """Open a stream to a node. Raises TlsError, of which CertificateError is one, or another OSError."""
        async with asyncio.timeout(timeout_s):
            existing = await self._existing(host, port)
            if existing is not None:
                return await self._open(existing.carrier, factory, accepted=True)
            dialled = await self._connect(host, port)
            return await self._open(dialled.carrier, factory, accepted=False)

    async def _existing(self, host: str, port: int) -> Dialled | None:
        """A connection that has room and a living peer."""
        loop = asyncio.get_running_loop()
        for dialled in tuple(self._dialled.get((host, port), ())):
            carrier = dialled.carrier
            if carrier.over or len(carrier.ends) + carrier.reserved >= self._settings.shared_streams:
                continue
            with _reserved(carrier), contextlib.suppress(OSError):
                await asyncio.shield(carrier.connected)
                if loop.time() - carrier.engine.heard_s > _STALE_S:
                    async with asyncio.timeout(max(_STALE_S, 4 * carrier.engine.rtt_s)):
                        await carrier.ping()
            if not carrier.over:
                return dialled
        return None

    async def _connect(self, host: str, port: int) -> Dialled:
        sock = await connected(host, port)
        endpoint = host, port
        material = self._material.current()
        engine = PacketEngine(
            self._settings,
            material,
            kept=self._kept.take(endpoint, material.generation),
            token=self._kept.take_token(endpoint),
            ticket_handler=lambda kept: self._kept.keep(endpoint, kept),
            token_handler=lambda token: self._kept.keep_token(endpoint, token),
        )
        dialled = Dialled(sock, engine, lambda gone: self._forget(endpoint, gone))
        self._dialled.setdefault(endpoint, []).append(dialled)
        dialled.connect()
        return dialled

    async def _open(self, carrier: Carrier, factory: Callable[[], Handler], *, accepted: bool) -> Handler:
        with _reserved(carrier):
            if not carrier.engine.can_send_early:
                await asyncio.shield(carrier.connected)
            if carrier.over:  # perhaps refused: a client's handshake is over before its certificate was looked at
                raise carrier.failure or ConnectionResetError("the connection was closed")
            handler = factory()
            end = carrier.dial(handler)  # from here on it counts among the ends
        if accepted:
            try:
                await carrier.acceptance(end)
            except BaseException:
                end.abort()
                raise
        return handler

    def _forget(self, endpoint: tuple[str, int], dialled: Dialled) -> None:
        others = self._dialled.get(endpoint, [])
        if dialled in others:
            others.remove(dialled)
        if not others:
            self._dialled.pop(endpoint, None)


@contextlib.contextmanager
def _reserved(carrier: Carrier):  # type: ignore[no-untyped-def]
    carrier.reserved += 1
    try:
        yield
    finally:
        carrier.reserved -= 1
        carrier.close_if_unused()
