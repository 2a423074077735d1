"""A dialled connection with a socket of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from .carrier import TICK_S, Carrier
from .packets import PacketEngine
from .sockets import Address, DatagramSocket, connected_to

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
