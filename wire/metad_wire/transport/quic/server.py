"""A server's socket, and all the connections behind it.

Strangers' costs are bounded here, with the cheapest refusals first. A datagram of no connection that is no Initial of
full size costs a look-up (and, a few times a second, a stateless reset). An Initial without a proof of its sender's
address costs a Retry, which is stateless too. Only then comes a handshake, at the pace of the node's new connections;
of these a limited number may be under way. Then comes a connection, of which there is a cap. A connection that does not
finish its handshake, or opens no stream, is closed.

All connections share one socket, and the kernel's queue behind it is first come, first served. So a wake-up's datagrams
are sorted by connection before any is processed, and connections take turns with a few datagrams each: a peer that
sends many delays only itself. A step of a handshake takes one or two milliseconds of the processor. One step is done at
a time. While other connections are being served, the next step waits until these have had three times as long, or just
as long if many handshakes wait: a rush of new connections delays itself more than the established ones.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, NamedTuple

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
from ..pace import Pace
from ..reload import Reloaded
from .carrier import TICK_S, Carrier
from .certificates import Material
from .packets import PacketEngine
from .settings import CONNECTION_ID_BYTES, QuicSettings
from .sockets import Address, DatagramSocket
from .tickets import GrantedTickets
from .tokens import AddressTokens, ResetTokens

VERSIONS: Final = [int(QuicProtocolVersion.VERSION_1), int(QuicProtocolVersion.VERSION_2)]
_STRANGERS_MAX: Final = 1_024
"""First datagrams of connections that wait to be examined; later ones are dropped, and their senders repeat them."""
_STRANGERS_PER_TURN: Final = 4
"""First datagrams examined in one turn of the loop. A Retry costs 50 µs; a flood must not delay connected peers."""
_TICKED_AT_ONCE: Final = 512
_RECEIVED_AT_ONCE: Final = 64
"""Datagrams taken from the kernel's queue in one turn of the loop: this is cheap, and early sorting is good."""
_SERVED_PER_TURN: Final = 16
"""Datagrams processed in one turn. They take a third of a millisecond."""
_SERVED_AT_ONCE: Final = 8
"""Datagrams of one connection before the next one's turn…"""
_SERVED_ALONE: Final = 64
"""…and if no other was served for a while: nobody waits then, and longer runs cost less."""
_SORTED_MAX: Final = 4_096
"""Datagrams that wait for their connection's turn. Over this, a connection with more than its share loses new ones."""
_REST: Final = 3
"""Rest between steps of handshakes while others are served, in steps' durations: one request seldom meets two…"""
_RUSH: Final = 8
"""…unless so many handshakes wait, which must progress too: then they get half of the time."""
_DATAGRAMS_WAITING_MAX: Final = 12
"""Datagrams kept for a connection that has not begun: its first flight, early data included, is no longer."""
_ANSWERS_PER_TICK: Final = 256
"""Stateless answers to unknown senders (resets, refusals) in each tick: they must not become a load of their own."""


class _Newcomer(NamedTuple):
    """A connection whose handshake has not begun, and the datagrams it sent."""

    original_connection_id: bytes
    retry_connection_id: bytes | None
    address: Address
    datagrams: list[bytes]
    came_s: float


class Server:
    """A listening socket: implements :class:`metad_wire.transport.Listener` and ``carrier.Owner``."""

    def __init__(
        self,
        sock: socket.socket,
        settings: QuicSettings,
        material: Reloaded[Material],
        factory: Callable[[], StreamHandler],
        *,
        certificate_required: bool,
        pace: Pace,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._pace = pace
        self._settings = settings
        self._material = material
        self._factory = factory
        self._certificate_required = certificate_required
        self._listening = True
        self._carriers: dict[bytes, Carrier] = {}  # by every id that peers may use
        self._ids: dict[Carrier, set[bytes]] = {}
        self._handshakes: set[Carrier] = set()
        self._strangers: deque[tuple[QuicHeader, bytes, Address]] = deque()  # first datagrams, not examined yet
        self._meeting: asyncio.Handle | None = None
        self._waiting: OrderedDict[bytes, _Newcomer] = OrderedDict()  # by the id that the client chose
        self._step: asyncio.TimerHandle | None = None
        self._step_s = 0.0  # when it is; uvloop's handles do not say it if it is at once
        self._last: Carrier | None = None  # the connection served last
        self._several = True  # whether others were served lately, too
        self._served = False  # whether an established connection was served since the last step of a handshake
        self._rest_until_s = 0.0  # if so, the next step waits until then
        self._ring: list[Carrier] = []  # connections not ticked yet in this round
        self._slices = 1  # of a round
        self._held = 0  # bytes received and not consumed, over the connections ticked in this round
        self._most_held: tuple[int, Carrier | None] = 0, None
        self._may_widen = True
        self._ready: dict[Carrier, None] = {}  # connections with datagrams that wait for their turn
        self._shaking: dict[Carrier, None] = {}  # those with a handshake to finish
        self._sorted = 0  # datagrams that wait in both
        self._serving_next = False
        self._answers = 0
        self._granted = GrantedTickets(settings.tickets_max, settings.ticket_life_s)
        self._secret = b""
        self._socket = DatagramSocket(
            sock,
            buffer_bytes=settings.socket_buffer_bytes,
            received=self.received,
            swept=self.swept,
            refused=lambda: None,
            datagrams_at_once=_RECEIVED_AT_ONCE,
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
        """Accept no more connections. Established ones stay, and the socket with them."""
        self._listening = False
        self._waiting.clear()
        self._strangers.clear()
        for carrier in tuple(self._ids):
            carrier.close_if_unused()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if not self._listening and not self._ids:
            self._waiting.clear()
            self._ticker.cancel()
            self._socket.close()

    @property
    def connections(self) -> int:
        """The number of connections, handshakes included."""
        return len(self._ids)

    # --- carrier.Owner -----------------------------------------------------------------------------------

    def send(self, datagrams: list[bytes], address: Address) -> None:
        self._socket.send(datagrams, address)

    def issued(self, carrier: Carrier, connection_id: bytes) -> None:
        """Route datagrams with this connection id to the carrier."""
        self._carriers[connection_id] = carrier
        self._ids[carrier].add(connection_id)

    def retired(self, carrier: Carrier, connection_id: bytes) -> None:
        """Forget a connection id."""
        self._carriers.pop(connection_id, None)
        self._ids[carrier].discard(connection_id)

    def expects(self, carrier: Carrier) -> bool:
        """True until the listener is closed: clients may still open streams."""
        return self._listening

    def over(self, carrier: Carrier) -> None:
        """Forget a connection that has ended."""
        for connection_id in self._ids.pop(carrier, ()):
            self._carriers.pop(connection_id, None)
        self._handshakes.discard(carrier)
        self._ready.pop(carrier, None)
        if self._last is carrier:
            self._last = None
        self._shaking.pop(carrier, None)
        self._sorted -= carrier.inbox.clear()
        self._close_if_done()

    def local_address(self) -> Address:
        return self._socket.address

    # --- datagrams ---------------------------------------------------------------------------------------

    def received(self, datagrams: list[bytes], address: Address) -> None:
        """Take one peer's datagrams, in order."""
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
                    self._sort(of, run, address)
                of, run = carrier, []
            run.append(datagram)
        if of is not None:
            self._sort(of, run, address)

    def _sort(self, carrier: Carrier, datagrams: list[bytes], address: Address) -> None:
        if self._sorted >= _SORTED_MAX and len(carrier.inbox) >= _SORTED_MAX // (len(self._ready) + len(self._shaking)):
            return
        carrier.inbox.put(datagrams, address)
        self._sorted += len(datagrams)
        if carrier.engine.handshaken:
            self._ready[carrier] = None
        else:
            self._shaking[carrier] = None
            self._step_soon()

    def swept(self) -> None:
        """Process a wake-up's datagrams, now that they are sorted."""
        if not self._serving_next:
            self._serve()

    def _serve(self) -> None:
        """Serve connections in turns, for one turn of the loop."""
        self._serving_next = False
        ready = self._ready
        left = _SERVED_PER_TURN
        most = _SERVED_AT_ONCE
        if not self._several:
            left = most = _SERVED_ALONE
        while ready and left > 0:
            carrier = next(iter(ready))
            del ready[carrier]
            if carrier is not self._last:
                self._last, self._several = carrier, True
            if carrier.inbox:
                left -= self._give(carrier, most)
            if carrier.inbox:
                ready[carrier] = None
            self._served = True
        if ready:
            self._serving_next = True
            self._loop.call_soon(self._serve)

    def _give(self, carrier: Carrier, most: int) -> int:
        """Have a connection process up to ``most`` datagrams and answer them; returns how many it processed."""
        count = self._take_in(carrier, most)
        carrier.turn()
        return count

    def _take_in(self, carrier: Carrier, most: int) -> int:
        datagrams, address = carrier.inbox.take(most)
        self._sorted -= len(datagrams)
        carrier.receive(datagrams, address)
        return len(datagrams)

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
        if carrier is not None:
            return carrier
        newcomer = self._waiting.get(header.destination_cid)
        if newcomer is not None:
            if newcomer.address == address and len(newcomer.datagrams) < _DATAGRAMS_WAITING_MAX:
                newcomer.datagrams.append(datagram)
        elif len(self._strangers) < _STRANGERS_MAX and (
            # Early data may be right behind its Initial.
            (header.packet_type == QuicPacketType.ZERO_RTT and self._strangers)
            or (header.packet_type == QuicPacketType.INITIAL and len(datagram) >= SMALLEST_MAX_DATAGRAM_SIZE)
        ):
            self._strangers.append((header, datagram, address))
            if self._meeting is None:
                self._meeting = self._loop.call_soon(self._meet)
        return None

    def _meet(self) -> None:
        """Examine a few first datagrams; more wait for the loop's next turn."""
        self._meeting = None
        for _ in range(min(_STRANGERS_PER_TURN, len(self._strangers))):
            header, datagram, address = self._strangers.popleft()
            newcomer, carrier = self._waiting.get(header.destination_cid), self._carriers.get(header.destination_cid)
            if carrier is not None:
                self._sort(carrier, [datagram], address)
            elif newcomer is not None:
                if newcomer.address == address and len(newcomer.datagrams) < _DATAGRAMS_WAITING_MAX:
                    newcomer.datagrams.append(datagram)
            elif header.packet_type == QuicPacketType.INITIAL:
                self._welcome(header, datagram, address)
        if self._strangers:
            self._meeting = self._loop.call_soon(self._meet)

    def _welcome(self, header: QuicHeader, datagram: bytes, address: Address) -> None:
        """Handle the first datagram of a connection: refuse it, ask for a proof of address, or queue the connection."""
        if not self._listening or len(self._ids) >= self._settings.connections_max:
            self._refuse(header, address, QuicErrorCode.CONNECTION_REFUSED)
            return
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
            return
        if len(self._handshakes) + len(self._waiting) >= self._settings.handshakes_max:
            return  # the client will try again; there may be room by then
        self._waiting[header.destination_cid] = _Newcomer(original, retried, address, [datagram], self._loop.time())
        self._step_soon()

    def _step_soon(self) -> None:
        """Schedule the next step of a handshake: at once, or after a rest if others are being served."""
        now_s = self._loop.time()
        at_s = max(now_s, self._rest_until_s if self._served else 0.0)
        if not self._shaking:
            at_s = max(at_s, now_s + self._pace.wait_s(now_s))
        if self._step is not None:
            if at_s >= self._step_s:
                return
            self._step.cancel()  # it is that of a newcomer, whose turn has not come
        self._step, self._step_s = self._loop.call_at(at_s, self._shake), at_s

    def _shake(self) -> None:
        """Do the next step of a handshake: of one under way, or else of the newcomer that has waited longest."""
        self._step = None
        began_s = time.thread_time()  # of the processor: what a busy machine gave to others is no work of ours
        if self._shaking:
            carrier = next(iter(self._shaking))
            del self._shaking[carrier]
            if carrier.inbox:  # otherwise it is established, and was served with the others
                self._take_in(carrier, _DATAGRAMS_WAITING_MAX)
                carrier.schedule()  # its answer leaves in the loop's next turn
            if carrier.inbox:  # it may be established by now
                (self._ready if carrier.engine.handshaken else self._shaking)[carrier] = None
                self.swept()
        elif self._waiting and not self._pace.wait_s(self._loop.time()):
            connection_id, newcomer = self._waiting.popitem(last=False)
            self._pace.take(self._loop.time(), waited=self._pace.wait_s(newcomer.came_s) > 0)
            carrier = self._begin(connection_id, newcomer)
            carrier.receive(newcomer.datagrams, newcomer.address)
            carrier.schedule()
        is_rush = len(self._shaking) + len(self._waiting) >= _RUSH
        self._rest_until_s = self._loop.time() + (1 if is_rush else _REST) * (time.thread_time() - began_s)
        if self._shaking or self._waiting:
            self._step_soon()
        self._served = False

    def _begin(self, connection_id: bytes, newcomer: _Newcomer) -> Carrier:
        engine = PacketEngine(
            self._settings,
            self._material.current(),
            certificate_required=self._certificate_required,
            granted=self._granted,
            resets=self._resets,
            original_connection_id=newcomer.original_connection_id,
            retry_connection_id=newcomer.retry_connection_id,
        )
        engine.address_token = self._tokens.address(newcomer.address)
        carrier = Carrier(engine, self, is_client=False, accept=self._accept)
        self._ids[carrier] = set()
        self.issued(carrier, connection_id)
        self.issued(carrier, engine.host_cid)
        self._handshakes.add(carrier)
        carrier.connected.add_done_callback(lambda _: self._handshakes.discard(carrier))
        return carrier

    def _accept(self) -> StreamHandler | None:
        return self._factory() if self._listening else None

    def _wants_proof(self, address: Address) -> bool:
        host = str(address[0])
        local = host.startswith("127.") or host in ("::1", "::ffff:127.0.0.1")
        under_way = len(self._handshakes) + len(self._waiting)
        return not local or self._pace.wait_s(self._loop.time()) > 0 or under_way >= self._settings.retry_handshakes

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
        """Check a slice of the connections: checking thousands at once would hold up the loop."""
        if not self._ring:
            self._round_over()
        self._ticker = self._loop.call_later(TICK_S / self._slices, self._tick)
        now = self._loop.time()
        slice_, self._ring = self._ring[:_TICKED_AT_ONCE], self._ring[_TICKED_AT_ONCE:]
        for carrier in slice_:
            if not carrier.over:
                carrier.engine.may_widen = self._may_widen
                carrier.tick(now)
                held = carrier.engine.held_bytes()
                self._held += held
                if held > self._most_held[0]:
                    self._most_held = held, carrier

    def _round_over(self) -> None:
        """All connections have been checked once."""
        limit = self._settings.held_bytes_max
        self._may_widen = self._held < limit // 2
        if self._held > limit and self._most_held[1] is not None:
            self._most_held[1].close(QuicErrorCode.INTERNAL_ERROR, "no memory for what is out of order or unread")
        self._held, self._most_held = 0, (0, None)
        self._answers = 0
        self._several = False
        self._ring = list(self._ids)
        self._slices = max(1, -(-len(self._ring) // _TICKED_AT_ONCE))
