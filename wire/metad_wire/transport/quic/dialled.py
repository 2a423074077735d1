"""A dialled connection and the socket that is its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from .carrier import TICK_S, Carrier
from .packets import PacketEngine
from .sockets import Address, DatagramSocket, connected_to

_UNREACHABLE_MAX: Final = 3
"""Datagrams in a row that had no way out, after which it looks for another."""
_REFUSALS_MAX: Final = 3
"""Times in a row that the kernel is told that nobody listens there, after which it is believed…"""
_PROBE_S: Final = 0.05
"""…with so long between them, and longer each time."""


class Dialled:
    """Implements ``carrier.Owner``. Where the peer falls silent, or there is no
    way out any more, it goes on from another socket, as a changed network or a NAT that has forgotten us asks for."""

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
        """Go on from another address or port; the server finds out by our packets (RFC 9000 section 9)."""
        try:
            sock = connected_to(self._family, self._peer)
        except OSError:
            return  # no way out at all: the next silence tries again
        self._moved_s = self._loop.time()
        self._socket.close()
        self._socket = self._wrap(sock)
        engine = self.carrier.engine
        engine.change_connection_id()  # so that who watches cannot tell that it is the same client
        engine.send_ping(0)
        self.carrier.schedule()

    def connect(self) -> None:
        """Send the first datagram."""
        self.carrier.engine.connect(self._peer, self._loop.time())
        self.carrier.schedule()

    def send(self, datagrams: list[bytes], address: Address) -> None:
        """Of ``carrier.Owner``."""
        self._socket.send(datagrams, self._peer)

    def issued(self, carrier: Carrier, connection_id: bytes) -> None:
        """Of ``carrier.Owner``: the socket has one connection."""

    def retired(self, carrier: Carrier, connection_id: bytes) -> None:
        """Of ``carrier.Owner``."""

    def expects(self, carrier: Carrier) -> bool:
        """Of ``carrier.Owner``: who dials says so while it does."""
        return False

    def over(self, carrier: Carrier) -> None:
        """Of ``carrier.Owner``."""
        self._ticker.cancel()
        self._socket.close()
        self._gone(self)

    def local_address(self) -> Address:
        """Of ``carrier.Owner``."""
        return self._socket.address

    def received(self, datagrams: list[bytes], address: Address) -> None:
        """From the socket."""
        self._refusals = 0
        self.carrier.receive(datagrams, self._peer)

    def swept(self) -> None:
        """From the socket."""
        self.carrier.turn()

    def refused(self) -> None:
        """The kernel was told that nobody listens there. Anyone on the path can say so: before the handshake it is
        believed, behind it only where the peer is silent when it is asked."""
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
