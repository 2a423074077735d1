"""TCP or QUIC, by what is measured of the path.

On a path that loses nothing the kernel's TCP is the cheaper by far, and the faster for bulk. Where packets are lost
over a distance, TCP holds everything behind the gap for a round trip or for its timer's minimum, and QUIC's streams and
finer timers win. So the choice is by loss, and asks for more of it the shorter the path. A thin flow, of few packets a
round trip, is another matter: TCP has too few packets behind a gap to see it soon, a bandwidth-estimating control paces
what it has over the round trip, and loss would take long to measure; QUIC is better there over any distance worth the
name. BENCHMARKS.md has the table that the numbers come from.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

_STILL_FAR: Final = 0.75
FORGET_PACKETS: Final = 20_000
"""Past so many, the older half counts less: a path changes."""


class Way(enum.Enum):
    """How to go."""

    TCP = "tcp"
    QUIC = "quic"

    @property
    def other(self) -> Way:
        """The one that is not this."""
        return Way.QUIC if self is Way.TCP else Way.TCP


class PathRule(msgspec.Struct, frozen=True, kw_only=True):
    """When QUIC is worth its CPU. Raises ValueError where a value makes no sense."""

    rtt_s_min: float = 0.015
    """Below it TCP repeats a lost packet so soon that nothing is gained."""
    loss_rtt_s: float = 0.0001
    """Loss ratio times round-trip time from which QUIC is taken: 0.1 % at 100 ms, 0.33 % at 30 ms…"""
    back: float = 0.25
    """…and given up again below this share of it. Changing over costs a handshake, so it must not go to and fro."""
    far_s: float = 0.02
    """Round-trip time from which thin flows go by QUIC, whatever is lost."""
    thin_packets: float = 100.0
    """Sent in a round trip: a flow of fewer is thin, and one of twice as many no more."""
    lost_min: int = 3
    """Fewer lost packets are chance."""
    sent_min: int = 300
    """Before so many packets nothing is concluded from their arriving."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not (self.rtt_s_min >= 0 and self.loss_rtt_s > 0 and self.far_s > 0 and 0 <= self.back < 1):
            raise ValueError("rtt_s_min, loss_rtt_s and far_s must be positive, back from 0 to below 1")
        if self.lost_min < 1 or self.sent_min < 1 or self.thin_packets < 1:
            raise ValueError("lost_min, sent_min and thin_packets must be at least 1")


class PathChoice:
    """What is known of one path, and what follows. Feed it with :meth:`note`, ask for ``way``."""

    def __init__(self, rule: PathRule, first: Way = Way.TCP) -> None:
        self.way = first
        self._rule = rule
        self._sent = self._lost = 0.0
        self._rtt_s = 0.0
        self._packets: float | None = None  # sent in a round trip, lately

    @property
    def loss(self) -> float:
        """Share of packets lost, as far as seen."""
        return self._lost / self._sent if self._sent else 0.0

    def note(self, rtt_s: float, sent: int, lost: int, seconds: float = 0.0) -> Way:
        """Packets sent and lost since the last call, so many seconds ago, and the round-trip time (0: not known); the
        way to go from now on."""
        rule = self._rule
        self._sent += sent
        self._lost += min(lost, sent)
        self._rtt_s = rtt_s or self._rtt_s
        if self._sent > FORGET_PACKETS:
            self._sent, self._lost = self._sent / 2, self._lost / 2
        if sent and seconds > 0:  # who sends nothing is not thin but idle
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
        """Easier to stay than to become, so that a flow about as thin as that does not go to and fro."""
        rule, there = self._rule, self.way is Way.QUIC
        thin = self._packets is not None and self._packets < rule.thin_packets * (2 if there else 1)
        return thin and self._rtt_s >= rule.far_s * (_STILL_FAR if there else 1)

    def _enough_loss(self) -> float:
        """The loss ratio that would have kept QUIC. That none was seen says something after several times its
        inverse."""
        return max(self._rule.loss_rtt_s / max(self._rtt_s, self._rule.rtt_s_min), 1e-6)

    def _change(self, way: Way) -> None:
        self.way = way
        self._sent = self._lost = 0.0  # the two do not count alike
