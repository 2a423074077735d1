"""One QUIC connection, without a socket or a loop: aioquic's state machine with metad's rules.

Where aioquic lacks a rule or has a harmful one, this subclass has its own:

- **credit** follows the *consumed* bytes, in a window that widens to what the path needs and no further; aioquic
  doubles it with the highest offset that a peer claims (receiving.py holds what arrives);
- **certificates** are verified on both ends (handshake.py), and a ticket is good once (tickets.py);
- **keys** are replaced long before the limit of the cipher;
- **connection ids** of a server carry a reset token that it can compute again after a restart (tokens.py);
- **streams** are few: a peer may open ``streams_max`` at a time, two-way ones only.

It uses private names of aioquic; a test compares the installed aioquic with the source that was reviewed.
"""

from __future__ import annotations

import hmac
import logging
import os
import ssl
from typing import Any, Final, cast

from aioquic import tls
from aioquic._buffer import Buffer
from aioquic.buffer import size_uint_var
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import (
    CONNECTION_LIMIT_FRAME_CAPACITY,
    END_STATES,
    MAX_STREAM_DATA_FRAME_CAPACITY,
    Limit,
    QuicConnection,
    QuicConnectionError,
    QuicConnectionId,
    QuicReceiveContext,
)
from aioquic.quic.crypto import NoCallback
from aioquic.quic.packet import (
    QuicErrorCode,
    QuicFrameType,
    QuicPacketType,
    pull_quic_transport_parameters,
    push_quic_transport_parameters,
)
from aioquic.quic.packet_builder import QuicDeliveryState, QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream
from cryptography import x509

from .certificates import Material
from .flow.receiving import Receiver
from .flow.recovery import ALGORITHM, Recovery
from .flow.sending import Sender
from .handshake import MESSAGES_BYTES_MAX, VerifyingContext
from .settings import ALPN, CONNECTION_ID_BYTES, QuicSettings
from .tickets import GrantedTickets, Kept
from .tokens import ResetTokens

AUDITED_VERSION: Final = "1.7.2"
AUDITED_FILES: Final = (
    "tls.py",
    "_crypto.py",
    "quic/connection.py",
    "quic/crypto.py",
    "quic/packet_builder.py",
    "quic/rangeset.py",
    "quic/recovery.py",
    "quic/stream.py",
    "quic/congestion/cubic.py",
)
AUDITED_SHA256: Final = "b316296c8945cb502761cc2abdc2c796e87ebb2f0cedf4fe2d96747f9186205a"
"""Hash of these files of aioquic, joined: the reviewed source, on whose private names and behaviour we rely."""

ACK_DELAY_MAX_MS: Final = 10
"""The longest delay of an acknowledgement: a millisecond by rule, the rest for a busy loop. aioquic declares 25; a peer
waits so much longer before it sends its last packets again."""

HELLO_BYTES_MAX: Final = 16 * 1024
"""Capacity for a first message, which strangers send. A large one takes 2 KiB."""
_log = logging.getLogger("metad.quic")
# aioquic warns of input that any stranger may send; lower the level to see a connection's life
_log.setLevel(logging.ERROR)

_CONNECTION_IDS: Final = 4
"""Connection ids that each end may use at a time: one, and some to change to."""
_LATE_CRYPTO_BYTES: Final = 64
"""Capacity for TLS messages that this end writes after the handshake: there are none."""

_CIPHERS: Final = [
    tls.CipherSuite.AES_128_GCM_SHA256,
    tls.CipherSuite.AES_256_GCM_SHA384,
    tls.CipherSuite.CHACHA20_POLY1305_SHA256,
]


def configuration(
    settings: QuicSettings, material: Material, *, is_client: bool, kept: Kept | None = None, token: bytes = b""
) -> QuicConfiguration:
    """The aioquic configuration of one connection."""
    return QuicConfiguration(
        alpn_protocols=[ALPN],
        congestion_control_algorithm=ALGORITHM,
        connection_id_length=CONNECTION_ID_BYTES,
        idle_timeout=settings.idle_timeout_s,
        is_client=is_client,
        max_data=int(settings.window_bytes * settings.connection_window_factor),
        max_datagram_size=settings.datagram_bytes,
        max_stream_data=settings.window_bytes,
        session_ticket=kept.ticket if kept is not None else None,
        token=token,
        certificate=material.certificate,
        certificate_chain=material.chain,
        private_key=material.key,
        cipher_suites=_CIPHERS,
        verify_mode=ssl.CERT_NONE,  # turns off aioquic's check, which is by host name; see handshake.py
    )


class Engine(QuicConnection):
    """One connection. The carrier reads ``opened`` (streams that the peer opened) and ``touched`` (streams with
    news)."""

    def __init__(
        self,
        settings: QuicSettings,
        material: Material,
        *,
        certificate_required: bool = False,
        kept: Kept | None = None,
        token: bytes = b"",
        ticket_handler: Any = None,
        token_handler: Any = None,
        granted: GrantedTickets | None = None,
        resets: ResetTokens | None = None,
        original_connection_id: bytes | None = None,
        retry_connection_id: bytes | None = None,
    ) -> None:
        is_client = original_connection_id is None
        super().__init__(
            configuration=configuration(settings, material, is_client=is_client, kept=kept, token=token),
            original_destination_connection_id=original_connection_id,
            retry_source_connection_id=retry_connection_id,
            session_ticket_fetcher=self._redeem if granted is not None else None,
            session_ticket_handler=self._ticket_made if granted is not None or ticket_handler is not None else None,
            token_handler=token_handler,
        )
        self._logger = _log  # type: ignore[assignment]
        self.settings = settings
        self.opened: list[int] = []
        self.accepted: set[int] = set()
        self.touched: set[int] = set()
        self.peer_certificate: x509.Certificate | None = kept.server if kept is not None else None
        self.address_token = b""  # to be sent once
        self.may_widen = True
        self.closed_by_peer = False
        self._material = material
        self._certificate_required = certificate_required
        self._ticket_handler = ticket_handler
        self._granted = granted
        self._resets = resets
        self._key_updated_at = 0  # packet number
        self._now = 0.0
        self._loss = Recovery(
            congestion_control_algorithm=ALGORITHM,
            initial_rtt=self._configuration.initial_rtt,
            max_datagram_size=self._max_datagram_size,
            peer_completed_address_validation=not is_client,
            quic_logger=None,
            send_probe=self._send_probe,
            logger=self._logger,
        )
        self._local_active_connection_id_limit = _CONNECTION_IDS
        streams = 0 if is_client else settings.streams_max
        self._local_max_streams_bidi = Limit(QuicFrameType.MAX_STREAMS_BIDI, "max_streams_bidi", streams)
        self._local_max_streams_uni = Limit(QuicFrameType.MAX_STREAMS_UNI, "max_streams_uni", 0)
        if resets is not None:
            first = self._host_cids[0]
            first.stateless_reset_token = resets.of(first.cid)

    # --- what the carrier asks ---------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the connection is closing or closed, by either end."""
        return self._state in END_STATES

    @property
    def handshaken(self) -> bool:
        """Whether both ends have proven their identity; until then a server's data may be a replay (0-RTT)."""
        return self._handshake_complete

    @property
    def can_send_early(self) -> bool:
        """Whether a client's first frames may go with its first datagram."""
        return self._cryptos[tls.Epoch.ZERO_RTT].send.is_valid()

    @property
    def heard_s(self) -> float:
        """When the last authentic packet of the peer arrived; 0.0: never."""
        return self._spaces[tls.Epoch.ONE_RTT].largest_received_time or 0.0 if self._spaces else 0.0

    @property
    def in_flight(self) -> bool:
        """Whether something is unacknowledged."""
        return any(space.ack_eliciting_in_flight for space in self._loss.spaces)

    @property
    def rtt_s(self) -> float:
        """The smoothed round-trip time; 0.0 before the first sample."""
        return self._loss._rtt_smoothed

    def end_reason(self) -> tuple[int, str]:
        """(error code, words) of the end; :attr:`closed_by_peer` tells whether the peer closed."""
        event = self._close_event
        return (event.error_code, event.reason_phrase) if event is not None else (0, "")

    def path_sample(self) -> tuple[float, int, int] | None:
        """(smoothed round trip, packets with data sent, of these lost); None before the first acknowledgement."""
        loss = cast("Recovery", self._loss)
        return (loss.rtt_s, loss.sent, loss.lost) if loss.rtt_s else None

    def send_again_what_was_early(self, now: float) -> None:
        """Send early data again: the server has not accepted the ticket, so it has not read what was sent under the
        ticket's key. RFC 9001 section 4.6.2."""
        space = self._spaces[tls.Epoch.ONE_RTT]
        early = [packet for packet in space.sent_packets.values() if packet.packet_type == QuicPacketType.ZERO_RTT]
        if early:
            cast("Recovery", self._loss).forget(early, now, space)

    def is_client_reset(self, datagram: bytes) -> bool:
        """Whether the datagram is a stateless reset: the server does not know this connection any more."""
        if not self._is_client or datagram[0] & 0x80:
            return False
        token = datagram[-16:]
        known = [self._peer_cid, *self._peer_cid_available]
        return not self.over and any(hmac.compare_digest(entry.stateless_reset_token, token) for entry in known)

    def open_stream(self) -> QuicStream:
        """Open a stream and announce it to the peer at once."""
        stream = self._get_or_create_stream_for_send(self.get_next_available_stream_id())
        self._adopt(stream)
        return stream

    def let_go(self) -> None:
        """Cut the references of an ended connection to itself, of which aioquic has a hundred; only its final state may
        still be read. The memory that a flood leaves behind is then freed at once, without a collector's pause."""
        self._QuicConnection__frame_handlers: dict[int, Any] = {}
        self._session_ticket_fetcher = self._session_ticket_handler = self._token_handler = None
        cast("Any", self._loss)._send_probe = None
        for pair in (*self._cryptos.values(), *self._cryptos_initial.values()):
            for keys in (pair.recv, pair.send):
                keys._setup_cb = keys._teardown_cb = NoCallback
        for space in self._spaces.values():
            space.sent_packets.clear()
        if self._cryptos:  # without keys there is no TLS yet
            context = cast("Any", self.tls)
            context.alpn_cb = context.get_session_ticket_cb = context.new_session_ticket_cb = None
            context.update_traffic_key_cb = None

    def _handle_connection_close_frame(self, context: QuicReceiveContext, frame_type: int, buf: Any) -> None:
        self.closed_by_peer = self._close_event is None
        super()._handle_connection_close_frame(context, frame_type, buf)

    # --- streams and credit ------------------------------------------------------------------------------

    def _adopt(self, stream: QuicStream) -> None:
        stream.sender = Sender(stream.stream_id, writable=True)
        stream.receiver = Receiver(stream.stream_id or 0, self.settings.window_bytes, self.touched)
        # Sent although the peer knows it: it opens the stream at the peer, or tells the opener that it was accepted.
        stream.max_stream_data_local_sent = 0

    def _get_or_create_stream(self, frame_type: int, stream_id: int) -> QuicStream:
        stream = self._streams.get(stream_id)
        if stream is not None:
            return stream
        known = set(self._streams)
        stream = super()._get_or_create_stream(frame_type, stream_id)
        for opened in sorted(self._streams.keys() - known):
            self._adopt(self._streams[opened])
            self.opened.append(opened)
        return stream

    def _handle_max_stream_data_frame(self, context: QuicReceiveContext, frame_type: int, buf: Any) -> None:
        start = buf.tell()
        stream_id = buf.pull_uint_var()
        buf.seek(start)
        super()._handle_max_stream_data_frame(context, frame_type, buf)
        self.accepted.add(stream_id)
        self.touched.add(stream_id)

    def unconsumed_bytes(self) -> int:
        """Bytes claimed by the peer and not consumed, over all streams."""
        return sum(
            stream.receiver.highest_offset - stream.receiver.consumed
            for stream in self._streams.values()
            if type(stream.receiver) is Receiver
        )

    def held_bytes(self) -> int:
        """Bytes received and not consumed, over all streams."""
        return sum(s.receiver.held_bytes for s in self._streams.values() if type(s.receiver) is Receiver)

    def _write_stream_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream) -> None:
        if not self.stream_wants_credit(stream):
            return
        receiver = cast("Receiver", stream.receiver)
        if stream.max_stream_data_local_sent:
            # A quarter of the window was consumed in less than half a round trip: the window slows the peer down.
            if (
                self._now - receiver.widened_s < self._loss._rtt_smoothed / 2
                and self.may_widen
                and receiver.window_bytes < self.settings.window_bytes_max
            ):
                receiver.window_bytes = min(2 * receiver.window_bytes, self.settings.window_bytes_max)
            receiver.widened_s = self._now
        limit = max(stream.max_stream_data_local, receiver.consumed + receiver.window_bytes)
        buf = builder.start_frame(
            QuicFrameType.MAX_STREAM_DATA,
            capacity=MAX_STREAM_DATA_FRAME_CAPACITY,
            handler=self._on_max_stream_data_delivery,
            handler_args=(stream,),
        )
        buf.push_uint_var(stream.stream_id or 0)
        buf.push_uint_var(limit)
        stream.max_stream_data_local = stream.max_stream_data_local_sent = limit

    def stream_wants_credit(self, stream: QuicStream) -> bool:
        """Whether a stream's peer should be granted a larger window."""
        receiver = cast("Receiver", stream.receiver)
        sent = stream.max_stream_data_local_sent
        if not sent:
            return True
        window = receiver.window_bytes
        return receiver.consumed + window - sent >= window // 4 and receiver._final_size is None

    def connection_wants_credit(self) -> bool:
        """Whether the peer should be granted a larger window for the whole connection."""
        data = self._local_max_data
        window = self._connection_window()
        return data.used - self.unconsumed_bytes() + window - data.sent >= window // 4

    def _connection_window(self) -> int:
        widest = max(
            (s.receiver.window_bytes for s in self._streams.values() if type(s.receiver) is Receiver),
            default=self.settings.window_bytes,
        )
        return int(widest * self.settings.connection_window_factor)

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        if self.address_token:
            self._write_new_token(builder)
        data = self._local_max_data
        if self.connection_wants_credit():
            data.value = max(data.value, data.used - self.unconsumed_bytes() + self._connection_window())
            self._write_limit(builder, data)
        streams = self._local_max_streams_bidi
        if streams.value != streams.sent:
            self._write_limit(builder, streams)

    def _write_limit(self, builder: QuicPacketBuilder, limit: Limit) -> None:
        buf = builder.start_frame(
            limit.frame_type,
            capacity=CONNECTION_LIMIT_FRAME_CAPACITY,
            handler=self._on_connection_limit_delivery,
            handler_args=(limit,),
        )
        buf.push_uint_var(limit.value)
        limit.sent = limit.value

    # --- addresses, ids, keys ----------------------------------------------------------------------------

    def _write_new_token(self, builder: QuicPacketBuilder) -> None:
        token, self.address_token = self.address_token, b""
        buf = builder.start_frame(
            QuicFrameType.NEW_TOKEN,
            capacity=1 + size_uint_var(len(token)) + len(token),
            handler=self._on_new_token_delivery,
            handler_args=(token,),
        )
        buf.push_uint_var(len(token))
        buf.push_bytes(token)

    def _on_new_token_delivery(self, delivery: QuicDeliveryState, token: bytes) -> None:
        if delivery != QuicDeliveryState.ACKED:
            self.address_token = token

    def _replenish_connection_ids(self) -> None:
        resets = self._resets
        while len(self._host_cids) < min(8, self._remote_active_connection_id_limit):
            connection_id = os.urandom(CONNECTION_ID_BYTES)
            token = resets.of(connection_id) if resets is not None else os.urandom(16)
            self._host_cids.append(QuicConnectionId(connection_id, self._host_cid_seq, token))
            self._host_cid_seq += 1

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Any]]:
        self._now = now
        if self._handshake_confirmed and self._packet_number - self._key_updated_at >= self.settings.key_update_packets:
            self._key_updated_at = self._packet_number
            self.request_key_update()
        return super().datagrams_to_send(now)

    def _serialize_transport_parameters(self) -> bytes:
        parameters = pull_quic_transport_parameters(Buffer(data=super()._serialize_transport_parameters()))
        parameters.max_ack_delay = ACK_DELAY_MAX_MS
        buf = Buffer(capacity=3 * self._max_datagram_size)
        push_quic_transport_parameters(buf, parameters)
        return buf.data

    # --- handshake ---------------------------------------------------------------------------------------

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        self.tls = VerifyingContext(self.tls, self._material, certificate_required=self._certificate_required)

    def _handle_crypto_frame(self, context: QuicReceiveContext, frame_type: int, buf: Any) -> None:
        """Limits what aioquic does not: it fills gaps with zeros, up to 512 KiB."""
        start = buf.tell()
        end = buf.pull_uint_var() + buf.pull_uint_var()
        buf.seek(start)
        limit = HELLO_BYTES_MAX if context.epoch == tls.Epoch.INITIAL else MESSAGES_BYTES_MAX
        if end - self._crypto_streams[context.epoch].receiver.starting_offset() > limit:
            raise QuicConnectionError(
                error_code=QuicErrorCode.CRYPTO_BUFFER_EXCEEDED,
                frame_type=frame_type,
                reason_phrase="too much of the handshake is out of order",
            )
        super()._handle_crypto_frame(context, frame_type, buf)

    def _confirm_handshake(self) -> None:
        super()._confirm_handshake()
        # Frees 48 KiB for messages that will not be written any more: a third of a connection's memory.
        self._push_crypto_data()
        self._crypto_buffers = {epoch: Buffer(capacity=_LATE_CRYPTO_BYTES) for epoch in self._crypto_buffers}

    def _redeem(self, identity: bytes) -> tls.SessionTicket | None:
        assert self._granted is not None
        granted = self._granted.redeem(
            identity, self._material.generation, certificate_required=self._certificate_required
        )
        if granted is None:
            return None
        self.peer_certificate = granted.holder
        return granted.ticket

    def _ticket_made(self, ticket: tls.SessionTicket) -> None:
        holder = self.verified_certificate
        if self._granted is not None:
            self._granted.grant(ticket, holder, self._material.generation)
        else:
            self._ticket_handler(Kept(ticket, holder, self._material.generation))

    @property
    def verified_certificate(self) -> x509.Certificate | None:
        """The peer's certificate, verified in this handshake or in the one that the resumed session began with."""
        context = self.tls
        assert isinstance(context, VerifyingContext)
        return self.peer_certificate if context.session_resumed else context.peer_certificate
