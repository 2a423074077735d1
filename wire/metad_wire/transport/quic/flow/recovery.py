"""Loss recovery as in aioquic (RFC 9002), with fewer steps per acknowledged packet and with counters of the path.

aioquic lists all packets in flight for each acknowledgement and visits each space for each timer; here the work is in
proportion to the packets acknowledged.

Pacing for event loops: bursts of what a millisecond carries, at a little more than the window's rate.

Loops wake up to the millisecond; a pacer that releases one packet at a time sends one per millisecond. So credit builds
up over the time that a wake-up takes, as Linux's own pacing sizes its bursts to a millisecond (tcp_tso_autosize), and
the burst is never less than the ten packets that RFC 9002 section 7.7 lets anyone send at once.

The congestion control is CUBIC that does not take every loss for congestion, for long paths that lose packets without
being full.

A loss-based control halves its window for a packet lost to noise: at 100 ms and 1 % loss CUBIC reaches a dozen packets
per round trip, whatever the path could carry. Here a loss counts as congestion only with other evidence:

- a queue has built up: the round trip is longer than the path's own by more than :data:`QUEUE_S` and a quarter; or
- the loss is too high for noise: over :data:`NOISE_SHARE` of the last packets, as an overfull shallow buffer or a
  policer causes it.

Then the window shrinks as CUBIC's does; otherwise lost packets are sent again at the old pace. Telling the two apart by
the backlog is TCP Veno's idea (Fu and Liew, 2003); tolerating a share of loss is BBR's (Cardwell and others, 2016). The
window grows only while it is in use (RFC 9002, 7.8): an application that sends little earns no window that it could
later fill in one burst.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from aioquic.quic.congestion.base import register_congestion_control
from aioquic.quic.congestion.cubic import CubicCongestionControl
from aioquic.quic.packet_builder import QuicDeliveryState, QuicSentPacket
from aioquic.quic.rangeset import RangeSet
from aioquic.quic.recovery import (
    K_PACKET_THRESHOLD,
    K_TIME_THRESHOLD,
    QuicPacketPacer,
    QuicPacketRecovery,
    QuicPacketSpace,
)
from aioquic.tls import Epoch

ALGORITHM: Final = "metad"
"""Its name among aioquic's congestion controls."""
NOISE_SHARE: Final = 0.05
"""Share of packets that a noisy path may lose. BBR tolerates 0.2; radio links rarely lose more than this."""
NOISE_PACKETS: Final = 4
"""So many lost packets prove nothing yet, however few were sent."""
QUEUE_S: Final = 0.010
"""A queueing delay that does not count as congestion: a busy peer causes the same delay."""
_COUNTED_PACKETS: Final = 512  # the share is taken over so many, in two halves of which the older is forgotten
_PATH_S: Final = 20.0  # the shortest round trip stands for the path for at least this long; routes change
_SAMPLES: Final = 8  # the shortest of so many round trips measures the current queue


class NoiseTolerantCubic(CubicCongestionControl):
    """See the module for the algorithm."""

    def __init__(self, max_datagram_size: int) -> None:
        super().__init__(max_datagram_size=max_datagram_size)
        self._acked = [0, 0]  # packets: in the current half, and in the half before
        self._lost = [0, 0]
        self._rtt_path_s = [float("inf"), float("inf")]  # shortest: in the current interval, and in the one before
        self._rtt_path_since_s = 0.0
        self._rtt_recent_s: list[float] = []
        self._at = 0

    def on_packet_acked(self, *, now: float, packet: QuicSentPacket) -> None:
        """Count a packet that has arrived."""
        self._acked[0] += 1
        self._count()
        used = 2 * self.bytes_in_flight >= self.congestion_window
        window = self.congestion_window
        super().on_packet_acked(now=now, packet=packet)
        if not used and self.congestion_window > window:
            self.congestion_window = window

    def on_packets_lost(self, *, now: float, packets: Iterable[QuicSentPacket]) -> None:
        """Treat lost packets as congestion or as noise."""
        listed = list(packets)
        self._lost[0] += len(listed)
        if self.congested:
            super().on_packets_lost(now=now, packets=listed)
        else:
            for packet in listed:
                self.bytes_in_flight -= packet.sent_bytes
        self._count()

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:
        """Take a measured round trip."""
        if now - self._rtt_path_since_s >= _PATH_S:
            self._rtt_path_s = [rtt, self._rtt_path_s[0]]
            self._rtt_path_since_s = now
        elif rtt < self._rtt_path_s[0]:
            self._rtt_path_s[0] = rtt
        recent = self._rtt_recent_s
        if len(recent) < _SAMPLES:
            recent.append(rtt)
        else:
            recent[self._at] = rtt
            self._at = (self._at + 1) % _SAMPLES
        super().on_rtt_measurement(now=now, rtt=rtt)

    @property
    def congested(self) -> bool:
        """Whether a loss now means that the path is full."""
        lost, acked = sum(self._lost), sum(self._acked)
        return self.queue_s > 0 or lost > NOISE_PACKETS + NOISE_SHARE * (lost + acked)

    @property
    def queue_s(self) -> float:
        """How much longer packets queue than is tolerated; not over 0 if they do not."""
        if not self._rtt_recent_s:
            return 0.0
        path_s = min(self._rtt_path_s)
        return min(self._rtt_recent_s) - path_s - max(QUEUE_S, path_s / 4)

    def _count(self) -> None:
        if self._acked[0] + self._lost[0] >= _COUNTED_PACKETS // 2:
            self._acked = [0, self._acked[0]]
            self._lost = [0, self._lost[0]]


register_congestion_control(ALGORITHM, NoiseTolerantCubic)


BURST_S: Final = 0.002
BURST_PACKETS: Final = 10
GAIN: Final = 1.25
"""Factor over window per round trip: packets delayed by a late wake-up catch up (RFC 9002, 7.7)."""
_PACED_RTT_MIN_S: Final = 0.0005  # shorter round trips stay on this machine, and are not worth a division


class Pacer(QuicPacketPacer):
    """A bucket of bytes, which may be overdrawn by one packet."""

    def __init__(self, *, max_datagram_size: int) -> None:
        super().__init__(max_datagram_size=max_datagram_size)
        self._rate = 0.0  # bytes/s; 0: not known yet, nothing is delayed
        self._burst = float(BURST_PACKETS * max_datagram_size)
        self._credit = self._burst
        self._at_s = 0.0

    def next_send_time(self, now: float) -> float | None:  # type: ignore[override]
        """When the next packet may be sent; None: now."""
        if not self._rate:
            return None
        if now > self._at_s:
            self._credit = min(self._burst, self._credit + (now - self._at_s) * self._rate)
            self._at_s = now
        if self._credit > 0:
            return None
        # Worth a wake-up: half a burst, so that packets leave in runs.
        return now + (self._burst / 2 - self._credit) / self._rate

    def update_after_send(self, now: float) -> None:
        """Account for a packet that was sent."""
        self._credit -= self._max_datagram_size

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        """Adapt to a changed window or round trip."""
        self._rate = GAIN * congestion_window / max(smoothed_rtt, _PACED_RTT_MIN_S)
        self._burst = max(BURST_PACKETS * self._max_datagram_size, self._rate * BURST_S)


UNASKING_MAX: Final = 64
"""Packets that ask for no acknowledgement, remembered because one of them would measure the round trip."""
PACKETS_AT_ONCE: Final = 32
"""Packets sealed at once: they take up to a millisecond, and a window may hold a thousand."""
_ACKED: Final = QuicDeliveryState.ACKED
_RTT_MIN_S: Final = 0.001  # lower bound of the estimate, as in aioquic


class SentPacket:
    """A 1-RTT packet in flight: the fields that aioquic keeps, in slots."""

    __slots__ = (
        "delivery_handlers",
        "epoch",
        "in_flight",
        "is_ack_eliciting",
        "is_crypto_packet",
        "packet_number",
        "packet_type",
        "quic_logger_frames",
        "sent_bytes",
        "sent_time",
    )

    def __init__(
        self,
        packet_number: int,
        packet_type: Any,
        sent_time: float,
        sent_bytes: int,
        is_ack_eliciting: bool,
        delivery_handlers: list[tuple[Any, Any]],
    ) -> None:
        self.epoch = Epoch.ONE_RTT
        self.in_flight = is_ack_eliciting
        self.is_ack_eliciting = is_ack_eliciting
        self.is_crypto_packet = False
        self.packet_number = packet_number
        self.packet_type = packet_type
        self.sent_time = sent_time
        self.sent_bytes = sent_bytes
        self.delivery_handlers = delivery_handlers


class Recovery(QuicPacketRecovery):
    """Loss recovery of one connection. ``sent`` and ``lost`` count packets that asked for an acknowledgement."""

    def __init__(self, *, max_datagram_size: int, **others: Any) -> None:
        super().__init__(max_datagram_size=max_datagram_size, **others)
        self._pacer = Pacer(max_datagram_size=max_datagram_size)
        self._burst_bytes = PACKETS_AT_ONCE * max_datagram_size
        self._unasking: deque[int] = deque()  # packet numbers
        self.sent = 0
        self.lost = 0

    @property
    def congestion_window(self) -> int:
        """The window for aioquic's own sending, which fills it at once: at most a burst over the bytes in flight."""
        window: int = self._cc.congestion_window
        return min(window, self._cc.bytes_in_flight + self._burst_bytes)

    @property
    def rtt_s(self) -> float:
        """The smoothed round-trip time; 0.0 before the first sample."""
        return self._rtt_smoothed

    def on_packet_sent(self, *, packet: Any, space: QuicPacketSpace) -> None:
        if packet.is_ack_eliciting:
            self.sent += 1
        super().on_packet_sent(packet=packet, space=space)
        if not packet.is_ack_eliciting and space.is_application_data:
            self._keep_few(packet.packet_number, space)

    def sent_now(self, packet: SentPacket, space: QuicPacketSpace) -> None:
        """Record a sent packet that asks for an acknowledgement, after the handshake."""
        self.sent += 1
        space.sent_packets[packet.packet_number] = packet  # type: ignore[assignment]
        space.ack_eliciting_in_flight += 1
        self._time_of_last_sent_ack_eliciting_packet = packet.sent_time
        self._cc.on_packet_sent(packet=packet)  # type: ignore[arg-type]

    def sent_unasking(self, packet: SentPacket, space: QuicPacketSpace) -> None:
        """Record a sent packet that asks for no acknowledgement."""
        space.sent_packets[packet.packet_number] = packet  # type: ignore[assignment]
        self._keep_few(packet.packet_number, space)

    def _keep_few(self, packet_number: int, space: QuicPacketSpace) -> None:
        """Forget the oldest: if a peer only asks, it acknowledges nothing, and the memory of our answers would grow."""
        self._unasking.append(packet_number)
        if len(self._unasking) > UNASKING_MAX:
            space.sent_packets.pop(self._unasking.popleft(), None)

    def on_ack_received(self, *, ack_rangeset: RangeSet, ack_delay: float, now: float, space: QuicPacketSpace) -> None:
        self.acknowledged([(r.start, r.stop) for r in ack_rangeset], ack_delay, now, space)

    def acknowledged(
        self, ranges: Sequence[tuple[int, int]], ack_delay: float, now: float, space: QuicPacketSpace
    ) -> None:
        """Process an acknowledgement of the packets in ``ranges``: (first, behind the last) of each, ascending."""
        sent = space.sent_packets
        largest = ranges[-1][1] - 1
        if largest > space.largest_acked_packet:
            space.largest_acked_packet = largest
        if not sent:
            return
        oldest, behind = next(iter(sent)), next(reversed(sent)) + 1
        on_packet_acked = self._cc.on_packet_acked
        newest: Any = None
        eliciting = 0
        for first, stop in ranges:
            # A peer may claim any range, and many; the loop is bounded by the packets in flight.
            first, stop = max(first, oldest), min(stop, behind)
            numbers: Iterable[int] = range(first, stop)
            if stop - first > 2 * len(sent):
                numbers = [number for number in sent if first <= number < stop]
            for number in numbers:
                packet = sent.pop(number, None)
                if packet is None:
                    continue
                if packet.is_ack_eliciting:
                    eliciting += 1
                if packet.in_flight:
                    on_packet_acked(packet=packet, now=now)
                newest = packet
                for handler, args in packet.delivery_handlers:
                    handler(_ACKED, *args)
        if newest is None:
            return
        space.ack_eliciting_in_flight -= eliciting
        if eliciting and newest.packet_number == largest:
            self._time_round_trip(now - newest.sent_time, ack_delay, now)
        self._detect_loss(now=now, space=space)
        if self.peer_completed_address_validation:
            self._pto_count = 0

    def _time_round_trip(self, latest_s: float, ack_delay_s: float, now: float) -> None:
        """Update the estimates of the round trip (RFC 9002 section 5.3)."""
        adjusted_s = max(latest_s, _RTT_MIN_S)
        if adjusted_s < self._rtt_min:
            self._rtt_min = adjusted_s
        ack_delay_s = min(ack_delay_s, self.max_ack_delay)
        if adjusted_s > self._rtt_min + ack_delay_s:
            adjusted_s -= ack_delay_s
        self._rtt_latest = adjusted_s
        if not self._rtt_initialized:
            self._rtt_initialized = True
            self._rtt_first_sample_time = now
            self._rtt_smoothed = latest_s
            self._rtt_variance = latest_s / 2
        else:
            self._rtt_variance += (abs(self._rtt_smoothed - adjusted_s) - self._rtt_variance) / 4
            self._rtt_smoothed += (adjusted_s - self._rtt_smoothed) / 8
        self._cc.on_rtt_measurement(now=now, rtt=latest_s)
        self._pacer.update_rate(self._cc.congestion_window, self._rtt_smoothed)

    def _detect_loss(self, *, now: float, space: QuicPacketSpace) -> None:
        space.loss_time = None
        sent = space.sent_packets
        largest = space.largest_acked_packet
        if not sent or next(iter(sent)) > largest:
            return
        if self._rtt_initialized:
            delay_s = K_TIME_THRESHOLD * max(self._rtt_latest, self._rtt_smoothed)
        else:
            delay_s = K_TIME_THRESHOLD * self._rtt_initial
        lost = []
        for number, packet in sent.items():
            if number > largest:
                break
            sent_s = packet.sent_time or 0.0
            if number <= largest - K_PACKET_THRESHOLD or sent_s + delay_s <= now:
                lost.append(packet)
            elif space.loss_time is None:
                space.loss_time = sent_s + delay_s  # the first packet is the oldest
        if lost:
            self._on_packets_lost(
                now=now,
                packets=lost,
                persistent_congestion=self._in_persistent_congestion(packets=lost),
                space=space,
            )

    def _on_packets_lost(self, *, packets: Iterable[Any], **others: Any) -> None:
        listed = list(packets)
        self.lost += sum(packet.is_ack_eliciting for packet in listed)
        super()._on_packets_lost(packets=listed, **others)

    def forget(self, packets: list[Any], now: float, space: QuicPacketSpace) -> None:
        """Send the content of these packets again, because the peer will not read them. Not a sign of congestion."""
        super()._on_packets_lost(congestion_event=False, now=now, packets=packets, space=space)
