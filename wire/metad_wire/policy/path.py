"""TCP or QUIC, by what is measured of the path.

On a near path that loses nothing the kernel's TCP is the cheaper by far. Where packets are lost over a distance, TCP
holds everything behind the gap for a round trip or for its timer's minimum, and QUIC's streams and finer timers win. So
the choice is by loss, and asks for more of it the shorter the path. Over a far path loss takes too long to measure and
costs most when it comes, and QUIC hardly loses where there is none, so there distance is enough. BENCHMARKS.md has the
table that the numbers come from.
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
    far_s: float = 0.08
    """Round-trip time from which QUIC is taken at once, whatever is lost; given up below three quarters of it, where
    loss does not ask for it."""
    lost_min: int = 3
    """Fewer lost packets are chance."""
    sent_min: int = 300
    """Before so many packets nothing is concluded from their arriving."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not (self.rtt_s_min >= 0 and self.loss_rtt_s > 0 and self.far_s > 0 and 0 <= self.back < 1):
            raise ValueError("rtt_s_min, loss_rtt_s and far_s must be positive, back from 0 to below 1")
        if self.lost_min < 1 or self.sent_min < 1:
            raise ValueError("lost_min and sent_min must be at least 1")


class PathChoice:
    """What is known of one path, and what follows. Feed it with :meth:`note`, ask for ``way``."""

    def __init__(self, rule: PathRule, first: Way = Way.TCP) -> None:
        self.way = first
        self._rule = rule
        self._sent = self._lost = 0.0
        self._rtt_s = 0.0

    @property
    def loss(self) -> float:
        """Share of packets lost, as far as seen."""
        return self._lost / self._sent if self._sent else 0.0

    def note(self, rtt_s: float, sent: int, lost: int) -> Way:
        """Packets sent and lost since the last call, and the round-trip time (0: not known); the way to go from now
        on."""
        rule = self._rule
        self._sent += sent
        self._lost += min(lost, sent)
        self._rtt_s = rtt_s or self._rtt_s
        if self._sent > FORGET_PACKETS:
            self._sent, self._lost = self._sent / 2, self._lost / 2
        if self._rtt_s >= (rule.far_s if self.way is Way.TCP else _STILL_FAR * rule.far_s):
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

    def _enough_loss(self) -> float:
        """The loss ratio that would have kept QUIC. That none was seen says something after several times its
        inverse."""
        return max(self._rule.loss_rtt_s / max(self._rtt_s, self._rule.rtt_s_min), 1e-6)

    def _change(self, way: Way) -> None:
        self.way = way
        self._sent = self._lost = 0.0  # the two do not count alike
