"""Packets of an established connection, sealed and opened in runs: the hot path of :class:`engine.Engine`.

aioquic handles any packet in any state. Its cost is per packet, and most of it is for states that an established
connection is not in. Here a run of 1-RTT packets with STREAM and ACK frames, on the one validated path, takes a few
steps per packet, with one call of the cipher for the header protection of the whole run. Everything else (handshakes,
0-RTT, migration, new connection ids, credit, resets, closing, key updates, other ciphers, malformed packets) is left to
aioquic's own code, packet by packet: this module does not touch a packet that it is not sure of.

It differs from aioquic in two ways, both within RFC 9000 and 9002: an acknowledgement goes with any packet that is
sent, and by itself after :data:`ACK_PACKETS`; the spin bit stays as it is.
"""

from __future__ import annotations

from typing import Any, Final, cast

from aioquic import tls
from aioquic._crypto import HeaderProtection
from aioquic.quic.connection import QuicConnectionError, QuicConnectionState, QuicReceiveContext
from aioquic.quic.packet import QuicErrorCode, QuicFrameType, QuicPacketType
from aioquic.quic.recovery import MAX_ACK_RANGES
from aioquic.quic.stream import FinalSizeError, QuicStream
from cryptography.exceptions import InvalidTag

from .engine import Engine
from .flow.receiving import Receiver
from .flow.recovery import PACKETS_AT_ONCE, Recovery, SentPacket
from .flow.sending import Sender
from .settings import CONNECTION_ID_BYTES
from .sockets import Address

ACK_PACKETS: Final = 8
"""After so many packets an acknowledgement is due at once. Fewer wait for aioquic's millisecond."""

_ONE_RTT: Final = tls.Epoch.ONE_RTT
_ZERO_RTT: Final = tls.Epoch.ZERO_RTT
_CONNECTED: Final = QuicConnectionState.CONNECTED
_NUMBER_AT: Final = 1 + CONNECTION_ID_BYTES
_SAMPLE_AT: Final = _NUMBER_AT + 4
_SAMPLE_END: Final = _SAMPLE_AT + 16
_HEADER_BYTES: Final = _NUMBER_AT + 2  # with a packet number of two bytes, as both ends send it
_TAG_BYTES: Final = 16
_OVERHEAD: Final = _HEADER_BYTES + _TAG_BYTES
_STREAM_HEAD_BYTES: Final = 1 + 1 + 8 + 2  # type, id, offset and length at their longest
_MOMENT_S: Final = 1e-6
_ACK: Final = int(QuicFrameType.ACK)
_RANGES_SENT: Final = 16  # in one acknowledgement of a run
_VAR_MASKS: Final = (0x3F, 0x3FFF, 0x3FFFFFFF, 0x3FFFFFFFFFFFFFFF)


def _var(data: bytes, at: int) -> tuple[int, int]:
    """A variable-length integer -> (value, offset behind it). Raises IndexError if it is cut short."""
    first = data[at]
    kind = first >> 6
    if not kind:
        return first, at + 1
    end = at + (1 << kind)
    if end > len(data):
        raise IndexError
    return int.from_bytes(data[at:end], "big") & _VAR_MASKS[kind], end


def _encoded(value: int) -> bytes:
    if value < 0x40:
        return value.to_bytes(1, "big")
    if value < 0x4000:
        return (value | 0x4000).to_bytes(2, "big")
    if value < 0x4000_0000:
        return (value | 0x8000_0000).to_bytes(4, "big")
    return (value | 0xC000_0000_0000_0000).to_bytes(8, "big")


class PacketEngine(Engine):
    """An engine with the hot path. ``was_reset``: the server has said that it does not know this connection."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.was_reset = False
        self._unacknowledged = 0  # packets received that ask for an acknowledgement

    # --- receiving ---------------------------------------------------------------------------------------

    def receive_run(self, datagrams: list[bytes], address: Address, now: float) -> None:
        """Take in datagrams from one address."""
        if len(datagrams) > 0 and self._is_established(address):
            rest = self._open_run(datagrams, address, now)
        else:
            rest = datagrams
        while rest:
            datagram = rest[0]
            if self.is_client_reset(datagram):
                self.was_reset = True
                return
            self.receive_datagram(datagram, address, now)
            rest = rest[1:]
            if rest and self._is_established(address):
                rest = self._open_run(rest, address, now)

    def _is_established(self, address: Address) -> bool:
        paths = self._network_paths
        if not (self._handshake_confirmed and self._state is _CONNECTED and paths[0].addr == address):
            return False
        receiving = self._cryptos[_ONE_RTT].recv
        return (
            paths[0].is_validated
            and not self._close_pending
            and receiving.aead is not None
            and not cast("HeaderProtection", receiving.hp)._is_chacha20
            and self._cryptos[_ZERO_RTT].recv.aead is None
        )

    def _open_run(self, datagrams: list[bytes], address: Address, now: float) -> list[bytes]:
        """Take in packets as long as they are plain; the rest, which is returned, begins with one that is not."""
        samples = b"".join([datagram[_SAMPLE_AT:_SAMPLE_END] for datagram in datagrams])
        if len(samples) != 16 * len(datagrams):
            return datagrams  # one is too short; aioquic knows how to handle each
        receiving = self._cryptos[_ONE_RTT].recv
        aead = receiving.aead
        assert aead is not None
        assert receiving.hp is not None
        masks = receiving.hp._encryptor.update(samples)
        decrypt, iv = aead._aead.decrypt, aead._iv
        phase = receiving.key_phase << 2
        host_cid = self.host_cid
        space = self._spaces[_ONE_RTT]
        received = space.received_packets
        run_start = run_stop = -1  # consecutive packet numbers that are not in the acknowledgement queue yet
        eliciting = 0
        heard = False
        left: list[bytes] = []
        for index, datagram in enumerate(datagrams):
            mask = 16 * index
            first = datagram[0] ^ (masks[mask] & 0x1F)
            # Short header, reserved bits zero, this key phase, a packet number of two bytes, our current id.
            if first & 0xDF != 0x41 | phase or datagram[1:_NUMBER_AT] != host_cid:
                left = datagrams[index:]
                break
            number_bytes = bytes((datagram[9] ^ masks[mask + 1], datagram[10] ^ masks[mask + 2]))
            expected = space.expected_packet_number
            number = (expected & ~0xFFFF) | int.from_bytes(number_bytes, "big")
            if number + 0x8000 <= expected:
                number += 0x10000
            elif number > expected + 0x8000 and number >= 0x10000:
                number -= 0x10000
            if number <= space.largest_received_packet and number in received:
                continue
            header = bytes((first,)) + host_cid + number_bytes
            try:
                plain = decrypt((iv ^ number).to_bytes(12, "big"), datagram[_HEADER_BYTES:], header)
            except InvalidTag:
                left = datagrams[index:]
                break
            if number >= expected:
                space.expected_packet_number = number + 1
            heard = True
            try:
                is_eliciting = self._frames(plain, address, now)
            except QuicConnectionError as error:
                self.close(error_code=error.error_code, frame_type=error.frame_type, reason_phrase=error.reason_phrase)
                return []
            if self._state is not _CONNECTED or self._close_pending:
                return []
            if number > space.largest_received_packet:
                space.largest_received_packet = number
                space.largest_received_time = now
            received.add(number)
            if number != run_stop:
                if run_stop >= 0:
                    space.ack_queue.add(run_start, run_stop)
                run_start = number
            run_stop = number + 1
            eliciting += is_eliciting
        if heard:
            space.ack_queue.add(run_start, run_stop)
            while len(space.ack_queue) > MAX_ACK_RANGES:
                space.ack_queue.shift()
            self._close_at = now + self._idle_timeout()
            self._ack_eliciting_sent_since_receipt = False
            if eliciting:
                self._unacknowledged += eliciting
                if self._unacknowledged >= ACK_PACKETS:
                    space.ack_at = now
                elif space.ack_at is None:
                    space.ack_at = now + self._ack_delay
        return left

    def _frames(self, plain: bytes, address: Address, now: float) -> bool:
        """Act on a packet's frames; returns whether it asks for an acknowledgement. Raises QuicConnectionError."""
        at, end, eliciting = 0, len(plain), False
        streams = self._streams
        data_limit = self._local_max_data
        try:
            while at < end:
                start = at
                kind = plain[at]
                if 0x08 <= kind <= 0x0F:
                    stream_id, at = _var(plain, at + 1)
                    offset = 0
                    if kind & 4:
                        offset, at = _var(plain, at)
                    if kind & 2:
                        length, at = _var(plain, at)
                        stop = at + length
                    else:
                        stop = end
                        length = stop - at
                    stream = streams.get(stream_id)
                    if stream is None or stop > end or offset + length > stream.max_stream_data_local:
                        return self._other_frames(plain, start, address, now) or eliciting
                    receiver = cast("Receiver", stream.receiver)
                    fresh = offset + length - receiver.highest_offset
                    if fresh > 0:
                        if data_limit.used + fresh > data_limit.value:
                            return self._other_frames(plain, start, address, now) or eliciting
                        data_limit.used += fresh
                    try:
                        receiver.insert(offset, plain[at:stop], bool(kind & 1))
                    except FinalSizeError:
                        return self._other_frames(plain, start, address, now) or eliciting
                    eliciting = True
                    at = stop
                elif kind == _ACK:
                    at = self._acknowledged(plain, at + 1, now)
                    if at < 0:
                        return self._other_frames(plain, start, address, now) or eliciting
                elif not kind:
                    at = end - len(plain[at:].lstrip(b"\0"))
                else:
                    return self._other_frames(plain, at, address, now) or eliciting
        except IndexError:
            return self._other_frames(plain, start, address, now) or eliciting
        if not end:
            return self._other_frames(plain, 0, address, now)
        return eliciting

    def _other_frames(self, plain: bytes, at: int, address: Address, now: float) -> bool:
        """Pass the rest of a packet to aioquic, which knows all frames and all errors."""
        context = QuicReceiveContext(
            epoch=_ONE_RTT,
            host_cid=self.host_cid,
            network_path=self._network_paths[0],
            quic_logger_frames=None,
            time=now,
            version=None,
        )
        return self._payload_received(context, plain[at:])[0]

    def _acknowledged(self, plain: bytes, at: int, now: float) -> int:
        """Act on an ACK frame; returns the offset behind it, or -1 if the frame is invalid."""
        largest, at = _var(plain, at)
        delay, at = _var(plain, at)
        count, at = _var(plain, at)
        length, at = _var(plain, at)
        ranges = [(largest - length, largest + 1)]
        lowest = largest - length
        for _ in range(count):
            gap, at = _var(plain, at)
            length, at = _var(plain, at)
            top = lowest - gap - 2
            lowest = top - length
            ranges.append((lowest, top + 1))
        if lowest < 0:
            return -1
        if largest >= self._packet_number:
            raise QuicConnectionError(
                error_code=QuicErrorCode.PROTOCOL_VIOLATION,
                frame_type=_ACK,
                reason_phrase="a packet is acknowledged that was not sent",
            )
        if count:
            ranges.reverse()
        delay_s = (delay << self._remote_ack_delay_exponent) / 1_000_000
        cast("Recovery", self._loss).acknowledged(ranges, delay_s, now, self._spaces[_ONE_RTT])
        return at

    # --- sending -----------------------------------------------------------------------------------------

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Any]]:
        if not self._sends_plainly():
            space = self._spaces.get(_ONE_RTT)
            if space is not None and space.ack_at is not None and (self._handshake_confirmed or space.ack_at <= now):
                # A packet is about to be sent, so the acknowledgement goes with it. A moment early, or aioquic's pacing
                # would delay it.
                space.ack_at = min(space.ack_at, now - _MOMENT_S)
            made = super().datagrams_to_send(now)
            if space is not None and space.ack_at is None:
                self._unacknowledged = 0
            return made
        self._now = now
        self._pacing_at = None
        packets = self._seal_run(now)
        if not packets:
            return []
        address = self._network_paths[0].addr
        return [(packet, address) for packet in packets]

    def _sends_plainly(self) -> bool:
        """Whether there is nothing to send but stream data and acknowledgements."""
        if not self._handshake_confirmed or self._state is not _CONNECTED:
            return False
        pair = self._cryptos[_ONE_RTT]
        sending = pair.send
        path = self._network_paths[0]
        if (
            self._close_pending
            or self._probe_pending
            or self._ping_pending
            or self._handshake_done_pending
            or self._retire_connection_ids
            or self._datagrams_pending
            or self._streams_blocked_pending
            or self.address_token
            or pair._update_key_requested
            or not path.is_validated
            or path.remote_challenges
            or not self._crypto_streams[_ONE_RTT].sender.buffer_is_empty
            or sending.aead is None
            or cast("HeaderProtection", sending.hp)._is_chacha20
            or self._packet_number - self._key_updated_at >= self.settings.key_update_packets
            or self._local_max_streams_bidi.value != self._local_max_streams_bidi.sent
        ):
            return False
        for other in self._network_paths[1:]:
            if other.remote_challenges or not (other.is_validated or other.local_challenge_sent):
                return False
        for connection_id in self._host_cids:
            if not connection_id.was_sent:
                return False
        for stream in self._streams.values():
            if (
                stream.receiver.stop_pending
                or stream.sender.reset_pending
                or stream.is_blocked
                or stream.is_finished
                or (stream.stream_id or 0) >= 0x40
                or self.stream_wants_credit(stream)
            ):
                return False
        return not self.connection_wants_credit()

    def _seal_run(self, now: float) -> list[bytes]:
        """The packets that may be sent now."""
        space = self._spaces[_ONE_RTT]
        streams = [stream for stream in self._streams_queue if not stream.sender.buffer_is_empty]
        ack_at = space.ack_at
        if not streams and (ack_at is None or ack_at > now):
            return []
        loss = cast("Recovery", self._loss)
        congestion, pacer = loss._cc, loss._pacer
        pair = self._cryptos[_ONE_RTT]
        aead, protection = pair.send.aead, pair.send.hp
        assert aead is not None
        assert protection is not None
        encrypt, iv = aead._aead.encrypt, aead._iv
        head = bytes((0x41 | self._spin_bit << 5 | pair.recv.key_phase << 2,)) + self._peer_cid.cid
        number = self._packet_number
        full = self._max_datagram_size - _OVERHEAD
        headers: list[bytes] = []
        sealed: list[bytes] = []
        while True:
            parts: list[bytes | bytearray] = []
            room = full
            handlers: list[tuple[Any, Any]] = []
            if ack_at is not None:
                ack = self._ack_frame(now)
                parts.append(ack)
                room -= len(ack)
                handlers.append((self._on_ack_delivery, (space, space.largest_received_packet)))
                ack_at = space.ack_at = None
                self._unacknowledged = 0
            eliciting = False
            if streams:
                budget = congestion.congestion_window - congestion.bytes_in_flight
                self._pacing_at = pacer.next_send_time(now)
                if self._pacing_at is None and (budget >= self._max_datagram_size or not congestion.bytes_in_flight):
                    eliciting = self._stream_frames(streams, room, parts, handlers)
            if not parts:
                break
            plain = b"".join(parts)
            header = head + (number & 0xFFFF).to_bytes(2, "big")
            headers.append(header)
            sealed.append(encrypt((iv ^ number).to_bytes(12, "big"), plain, header))
            packet = SentPacket(number, QuicPacketType.ONE_RTT, now, len(plain) + _OVERHEAD, eliciting, handlers)
            number += 1
            if not eliciting:
                loss.sent_unasking(packet, space)
                break
            loss.sent_now(packet, space)
            pacer.update_after_send(now)
            if not streams or len(sealed) >= PACKETS_AT_ONCE:
                break
        if not sealed:
            return []
        self._packet_number = number
        if not self._ack_eliciting_sent_since_receipt:
            self._close_at = now + self._idle_timeout()
            self._ack_eliciting_sent_since_receipt = True
        masks = protection._encryptor.update(b"".join([payload[2:18] for payload in sealed]))
        made = []
        for index, payload in enumerate(sealed):
            header, mask = headers[index], 16 * index
            made.append(
                bytes((header[0] ^ (masks[mask] & 0x1F),))
                + header[1:_NUMBER_AT]
                + bytes((header[9] ^ masks[mask + 1], header[10] ^ masks[mask + 2]))
                + payload
            )
        return made

    def _stream_frames(
        self,
        streams: list[QuicStream],
        room: int,
        parts: list[bytes | bytearray],
        handlers: list[tuple[Any, Any]],
    ) -> bool:
        """Fill a packet's room with the data of ``streams``, in turns, and remove streams that have no more to send or
        may send no more. Returns whether there was any data."""
        found = False
        while streams and room > _STREAM_HEAD_BYTES:
            stream = streams[0]
            sender = cast("Sender", stream.sender)
            before = sender.highest_offset
            limit = min(before + self._remote_max_data - self._remote_max_data_used, stream.max_stream_data_remote)
            offset_bytes = _encoded(sender.next_offset)
            piece = sender.piece(room - 4 - len(offset_bytes), limit)
            if piece is None:
                streams.pop(0)
                continue
            offset, data, fin = piece
            size = len(data)
            self._remote_max_data_used += sender.highest_offset - before
            parts.append(
                bytes((0x0F if fin else 0x0E, stream.stream_id or 0))
                + offset_bytes
                + (size | 0x4000).to_bytes(2, "big")
            )
            parts.append(data)
            handlers.append((sender.on_data_delivery, (offset, offset + size, fin)))
            room -= 4 + len(offset_bytes) + size
            found = True
            if len(streams) > 1:
                streams.append(streams.pop(0))
        return found

    def _ack_frame(self, now: float) -> bytes:
        """An ACK frame of the newest ranges received."""
        space = self._spaces[_ONE_RTT]
        queue = space.ack_queue
        count = min(len(queue), _RANGES_SENT)
        newest = queue[-1]
        delay = int((now - (space.largest_received_time or now)) * 1_000_000) >> self._local_ack_delay_exponent
        parts = [
            b"\x02",
            _encoded(newest.stop - 1),
            _encoded(max(delay, 0)),
            _encoded(count - 1),
            _encoded(newest.stop - 1 - newest.start),
        ]
        start = newest.start
        for back in range(2, count + 1):
            older = queue[-back]
            parts.append(_encoded(start - older.stop - 1))
            parts.append(_encoded(older.stop - older.start - 1))
            start = older.start
        return b"".join(parts)

    # --- time --------------------------------------------------------------------------------------------

    def get_timer(self) -> float | None:
        if not self._handshake_confirmed or self._state is not _CONNECTED or not self._network_paths[0].is_validated:
            return super().get_timer()
        space = self._spaces[_ONE_RTT]
        at = cast("float", self._close_at)
        if space.ack_at is not None and space.ack_at < at:
            at = space.ack_at
        loss_at = space.loss_time
        if loss_at is None and space.ack_eliciting_in_flight:
            loss = self._loss
            loss_at = loss._time_of_last_sent_ack_eliciting_packet + loss.get_probe_timeout() * 2**loss._pto_count
        self._loss_at = loss_at
        if loss_at is not None and loss_at < at:
            at = loss_at
        if self._pacing_at is not None and self._pacing_at < at:
            at = self._pacing_at
        return at
