"""The two ends of UDP: a server's socket with all its connections, and a dialled connection's own.

What a stranger can make the server do is bounded here, cheapest refusals first: a datagram of no connection that is no
Initial of full size costs a look-up (and, few a second, a stateless reset); an Initial without a proof of its sender's
address a Retry, which is stateless too; only then comes a handshake, of which so many may be under way; and then a
connection, of which there is a cap. A connection that does not finish its handshake, or opens no stream, is closed.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Final

from aioquic._buffer import Buffer
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE
from aioquic.quic.connection import TRANSPORT_CLOSE_FRAME_CAPACITY
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import (
    QuicErrorCode,
    QuicFrameType,
    QuicHeader,
    QuicPacketType,
    QuicProtocolVersion,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.packet_builder import QuicPacketBuilder

from .. import StreamHandler, join_endpoint
from ..reload import Reloaded
from .carrier import TICK_S, Carrier
from .certificates import Material
from .packets import PacketEngine
from .settings import CONNECTION_ID_BYTES, QuicSettings
from .sockets import Address, DatagramSocket, connected_to
from .tickets import GrantedTickets
from .tokens import AddressTokens, ResetTokens

VERSIONS: Final = [int(QuicProtocolVersion.VERSION_1), int(QuicProtocolVersion.VERSION_2)]
_UNREACHABLE_MAX: Final = 3
"""Datagrams in a row that had no way out, after which a dialled connection looks for another."""
_ANSWERS_PER_TICK: Final = 256
"""Stateless answers to what is nobody's (resets, refusals), each tick: they must not become a load of their own."""


class Server:
    """A listening socket: implements :class:`metad_wire.transport.Listener`, and ``carrier.Owner``."""

    def __init__(
        self,
        sock: socket.socket,
        settings: QuicSettings,
        material: Reloaded[Material],
        factory: Callable[[], StreamHandler],
        *,
        certificate_required: bool,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._material = material
        self._factory = factory
        self._certificate_required = certificate_required
        self._listening = True
        self._carriers: dict[bytes, Carrier] = {}  # by every id that peers may use
        self._ids: dict[Carrier, set[bytes]] = {}
        self._handshakes: set[Carrier] = set()
        self._touched: dict[Carrier, None] = {}
        self._answers = 0
        self._granted = GrantedTickets(settings.tickets_max, settings.ticket_life_s)
        self._secret = b""
        self._socket = DatagramSocket(
            sock,
            buffer_bytes=settings.socket_buffer_bytes,
            received=self.received,
            swept=self.swept,
            refused=lambda: None,
        )
        address = self._socket.address
        self._endpoint = join_endpoint(address[0], address[1])
        self._renew_secret(material.current())
        self._ticker = self._loop.call_later(TICK_S, self._tick)

    # --- Listener ----------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """host:port actually bound."""
        return self._endpoint

    async def close(self) -> None:
        """Accept no more. Connections that are up stay up, and the socket with them."""
        self._listening = False
        for carrier in tuple(self._ids):
            carrier.close_if_unused()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if not self._listening and not self._ids:
            self._ticker.cancel()
            self._socket.close()

    @property
    def connections(self) -> int:
        """That are up, handshakes included."""
        return len(self._ids)

    # --- carrier.Owner -----------------------------------------------------------------------------------

    def send(self, datagrams: list[bytes], address: Address) -> None:
        """To a peer."""
        self._socket.send(datagrams, address)

    def issued(self, carrier: Carrier, connection_id: bytes) -> None:
        """The peer may use this id."""
        self._carriers[connection_id] = carrier
        self._ids[carrier].add(connection_id)

    def retired(self, carrier: Carrier, connection_id: bytes) -> None:
        """No longer."""
        self._carriers.pop(connection_id, None)
        self._ids[carrier].discard(connection_id)

    def expects(self, carrier: Carrier) -> bool:
        """Clients may open streams until the listener is closed."""
        return self._listening

    def over(self, carrier: Carrier) -> None:
        """Forget it."""
        for connection_id in self._ids.pop(carrier, ()):
            self._carriers.pop(connection_id, None)
        self._handshakes.discard(carrier)
        self._close_if_done()

    def local_address(self) -> Address:
        """The socket's."""
        return self._socket.address

    # --- datagrams ---------------------------------------------------------------------------------------

    def received(self, datagrams: list[bytes], address: Address) -> None:
        """One peer's, in order."""
        carriers = self._carriers
        run: list[bytes] = []
        of: Carrier | None = None
        for datagram in datagrams:
            if len(datagram) < 1 + CONNECTION_ID_BYTES:
                continue
            if datagram[0] & 0x80:
                carrier = self._by_long_header(datagram, address)
            else:
                carrier = carriers.get(datagram[1 : 1 + CONNECTION_ID_BYTES])
                if carrier is None:
                    self._reset(datagram, address)
            if carrier is None:
                continue
            if carrier is not of:
                if of is not None:
                    of.receive(run, address)
                of, run = carrier, []
                self._touched[carrier] = None
            run.append(datagram)
        if of is not None:
            of.receive(run, address)

    def swept(self) -> None:
        """A wake-up's datagrams are taken in."""
        touched, self._touched = self._touched, {}
        for carrier in touched:
            carrier.turn()

    def _by_long_header(self, datagram: bytes, address: Address) -> Carrier | None:
        try:
            header = pull_quic_header(Buffer(data=datagram), host_cid_length=CONNECTION_ID_BYTES)
        except ValueError:
            return None
        if header.packet_type == QuicPacketType.VERSION_NEGOTIATION:
            return None
        if header.version not in VERSIONS:
            if len(datagram) >= SMALLEST_MAX_DATAGRAM_SIZE and self._may_answer():
                self._socket.send(
                    [
                        encode_quic_version_negotiation(
                            source_cid=header.destination_cid,
                            destination_cid=header.source_cid,
                            supported_versions=VERSIONS,
                        )
                    ],
                    address,
                )
            return None
        carrier = self._carriers.get(header.destination_cid)
        if carrier is not None or header.packet_type != QuicPacketType.INITIAL:
            return carrier
        return self._welcome(header, address) if len(datagram) >= SMALLEST_MAX_DATAGRAM_SIZE else None

    def _welcome(self, header: QuicHeader, address: Address) -> Carrier | None:
        """The first datagram of a connection: refuse it, ask for a proof, or begin."""
        if not self._listening or len(self._ids) >= self._settings.connections_max:
            self._refuse(header, address, QuicErrorCode.CONNECTION_REFUSED)
            return None
        material = self._material.current()
        self._renew_secret(material)
        proof = self._tokens.check(header.token, address, header.destination_cid) if header.token else None
        original, retried = header.destination_cid, None
        if proof is not None:
            original, retried = proof.original_connection_id, proof.retry_connection_id
        elif self._wants_proof(address):
            connection_id = os.urandom(CONNECTION_ID_BYTES)
            token = self._tokens.retry(address, header.destination_cid, connection_id)
            retry = encode_quic_retry(
                version=header.version or 0,
                source_cid=connection_id,
                destination_cid=header.source_cid,
                original_destination_cid=header.destination_cid,
                retry_token=token,
            )
            self._socket.send([retry], address)
            return None
        if len(self._handshakes) >= self._settings.handshakes_max:
            return None  # it will try again; by then there may be room
        engine = PacketEngine(
            self._settings,
            material,
            certificate_required=self._certificate_required,
            granted=self._granted,
            resets=self._resets,
            original_connection_id=original,
            retry_connection_id=retried,
        )
        engine.address_token = self._tokens.address(address)
        carrier = Carrier(engine, self, is_client=False, accept=self._accept)
        self._ids[carrier] = set()
        self.issued(carrier, header.destination_cid)
        self.issued(carrier, engine.host_cid)
        self._handshakes.add(carrier)
        carrier.connected.add_done_callback(lambda _: self._handshakes.discard(carrier))
        return carrier

    def _accept(self) -> StreamHandler | None:
        return self._factory() if self._listening else None

    def _wants_proof(self, address: Address) -> bool:
        host = str(address[0])
        local = host.startswith("127.") or host in ("::1", "::ffff:127.0.0.1")
        return not local or len(self._handshakes) >= self._settings.retry_handshakes

    def _renew_secret(self, material: Material) -> None:
        if material.secret != self._secret:
            self._secret = material.secret
            self._tokens = AddressTokens(material.secret)
            self._resets = ResetTokens(material.secret)

    # --- stateless answers -------------------------------------------------------------------------------

    def _may_answer(self) -> bool:
        self._answers += 1
        return self._answers <= _ANSWERS_PER_TICK

    def _reset(self, datagram: bytes, address: Address) -> None:
        packet = self._resets.packet(datagram[1 : 1 + CONNECTION_ID_BYTES], len(datagram))
        if packet is not None and self._may_answer():
            self._socket.send([packet], address)

    def _refuse(self, header: QuicHeader, address: Address, code: QuicErrorCode) -> None:
        """Close a connection that does not exist, in an Initial of our own."""
        if not self._may_answer():
            return
        crypto = CryptoPair()
        crypto.setup_initial(cid=header.destination_cid, is_client=False, version=header.version or 0)
        builder = QuicPacketBuilder(
            host_cid=header.destination_cid,
            is_client=False,
            max_datagram_size=SMALLEST_MAX_DATAGRAM_SIZE,
            peer_cid=header.source_cid,
            version=header.version or 0,
        )
        builder.start_packet(QuicPacketType.INITIAL, crypto)
        buf = builder.start_frame(QuicFrameType.TRANSPORT_CLOSE, capacity=TRANSPORT_CLOSE_FRAME_CAPACITY)
        buf.push_uint_var(code)
        buf.push_uint_var(QuicFrameType.PADDING)
        buf.push_uint_var(0)
        self._socket.send(builder.flush()[0], address)

    # --- time --------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        self._answers = 0
        now = self._loop.time()
        held = 0
        for carrier in tuple(self._ids):
            carrier.tick(now)
            held += 0 if carrier.over else carrier.engine.held_bytes()
        most = self._settings.held_bytes_max
        for carrier in self._ids:
            carrier.engine.may_widen = held < most // 2
        if held > most and self._ids:
            greediest = max(self._ids, key=lambda carrier: carrier.engine.held_bytes())
            greediest.close(QuicErrorCode.INTERNAL_ERROR, "no memory for what is out of order or unread")


class Dialled:
    """A dialled connection and its socket: implements ``carrier.Owner``. Where the peer falls silent, or there is no
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
        if self._refusals >= 3:
            self.carrier.fail(ConnectionResetError("nobody listens there any more"))
        else:
            self._loop.call_later(0.05 * self._refusals, self._probe)

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
