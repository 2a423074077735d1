"""Pacing for event loops: bursts of what a millisecond carries, at a little more than the window's rate.

Loops wake up to the millisecond; a pacer that releases one packet at a time sends one per millisecond. So credit builds
up over the time that a wake-up takes, as Linux's own pacing sizes its bursts to a millisecond (tcp_tso_autosize), and
the burst is never less than the ten packets that RFC 9002 section 7.7 lets anyone send at once.
"""

from __future__ import annotations

from typing import Final

from aioquic.quic.recovery import QuicPacketPacer

BURST_S: Final = 0.002
BURST_PACKETS: Final = 10
GAIN: Final = 1.25
"""Factor over window per round trip: packets delayed by a late wake-up catch up (RFC 9002, 7.7)."""
_RTT_MIN_S: Final = 0.0005  # shorter round trips stay on this machine, and are not worth a division


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
        self._rate = GAIN * congestion_window / max(smoothed_rtt, _RTT_MIN_S)
        self._burst = max(BURST_PACKETS * self._max_datagram_size, self._rate * BURST_S)
