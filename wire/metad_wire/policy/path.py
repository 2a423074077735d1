"""Chooses TCP or QUIC by measurements of the path.

On a path without loss the kernel's TCP is by far cheaper, and faster for bulk. If packets are lost over a distance, TCP
holds everything behind the gap for a round trip or for its timer's minimum, and QUIC wins with its streams and finer
timers. So the choice follows the loss, and a shorter path needs more of it. A thin flow (few packets per round trip)
differs: TCP has too few packets behind a gap to notice it soon, a bandwidth-estimating congestion control spreads them
over the round trip, and loss would take long to measure. For thin flows QUIC is better over any considerable distance.
The numbers come from the table in perf/results/wan-cells.csv.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

_STILL_FAR: Final = 0.75
FORGET_PACKETS: Final = 20_000
"""After so many packets the older half counts less, because a path changes."""


class Way(enum.Enum):
    """The transport to use."""

    TCP = "tcp"
    QUIC = "quic"

    @property
    def other(self) -> Way:
        """The opposite choice."""
        return Way.QUIC if self is Way.TCP else Way.TCP


class PathRule(msgspec.Struct, frozen=True, kw_only=True):
    """When QUIC is worth its CPU. Raises ValueError where a value makes no sense."""

    rtt_s_min: float = 0.015
    """Below this round-trip time TCP repeats a lost packet so soon that QUIC gains nothing."""
    loss_rtt_s: float = 0.0001
    """QUIC is used from this product of loss ratio and round-trip time: 0.1 % at 100 ms, 0.33 % at 30 ms…"""
    back: float = 0.25
    """…and given up below this share of it. A change costs a handshake, so the choice must not alternate."""
    far_s: float = 0.02
    """Thin flows use QUIC from this round-trip time on, whatever the loss."""
    thin_packets: float = 100.0
    """A flow that sends fewer packets per round trip is thin; one that sends twice as many is thin no longer."""
    lost_min: int = 3
    """Fewer lost packets than this may be chance."""
    sent_min: int = 300
    """Fewer sent packets than this prove nothing by arriving."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not (self.rtt_s_min >= 0 and self.loss_rtt_s > 0 and self.far_s > 0 and 0 <= self.back < 1):
            raise ValueError("rtt_s_min, loss_rtt_s and far_s must be positive, back from 0 to below 1")
        if self.lost_min < 1 or self.sent_min < 1 or self.thin_packets < 1:
            raise ValueError("lost_min, sent_min and thin_packets must be at least 1")


class PathChoice:
    """The measurements of one path and the resulting choice. Call :meth:`note` with measurements, read ``way``."""

    def __init__(self, rule: PathRule, first: Way = Way.TCP) -> None:
        self.way = first
        self._rule = rule
        self._sent = self._lost = 0.0
        self._rtt_s = 0.0
        self._packets: float | None = None  # sent per round trip, lately

    @property
    def loss(self) -> float:
        """Share of packets lost, as far as measured."""
        return self._lost / self._sent if self._sent else 0.0

    def note(self, rtt_s: float, sent: int, lost: int, seconds: float = 0.0) -> Way:
        """Add the packets sent and lost since the last call, ``seconds`` ago, and the round-trip time (0: unknown).
        Returns the transport to use from now on."""
        rule = self._rule
        self._sent += sent
        self._lost += min(lost, sent)
        self._rtt_s = rtt_s or self._rtt_s
        if self._sent > FORGET_PACKETS:
            self._sent, self._lost = self._sent / 2, self._lost / 2
        if sent and seconds > 0:  # a flow that sends nothing is idle, not thin
            packets = sent * self._rtt_s / seconds
            self._packets = packets if self._packets is None else (self._packets + packets) / 2
        if self._thin_and_far():
            if self.way is Way.TCP:
                self._change(Way.QUIC)
            return self.way
        if self._sent < rule.sent_min:
            return self.way
        weight = self.loss * self._rtt_s
        if self.way is Way.TCP:
            if self._lost >= rule.lost_min and self._rtt_s >= rule.rtt_s_min and weight >= rule.loss_rtt_s:
                self._change(Way.QUIC)
        elif weight < rule.back * rule.loss_rtt_s and self._sent >= 3 / self._enough_loss():
            self._change(Way.TCP)
        return self.way

    def _thin_and_far(self) -> bool:
        """A thin flow stays thin more easily than it becomes thin, so that a flow near the limit does not alternate."""
        rule, there = self._rule, self.way is Way.QUIC
        thin = self._packets is not None and self._packets < rule.thin_packets * (2 if there else 1)
        return thin and self._rtt_s >= rule.far_s * (_STILL_FAR if there else 1)

    def _enough_loss(self) -> float:
        """The loss ratio that would have kept QUIC. Seeing no loss proves something after several times its inverse."""
        return max(self._rule.loss_rtt_s / max(self._rtt_s, self._rule.rtt_s_min), 1e-6)

    def _change(self, way: Way) -> None:
        self.way = way
        self._sent = self._lost = 0.0  # TCP and QUIC count differently
