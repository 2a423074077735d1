"""CUBIC that does not take every loss for congestion, for long paths that lose packets without being full.

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

from collections.abc import Iterable
from typing import Final

from aioquic.quic.congestion.base import register_congestion_control
from aioquic.quic.congestion.cubic import CubicCongestionControl
from aioquic.quic.packet_builder import QuicSentPacket

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
