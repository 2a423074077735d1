"""What a holder may believe of its lease. Pure: time is an argument, of a clock that counts suspension.

The server counts from when a keep-alive reached it, the holder from when it was sent: so the holder doubts first. The
clock is compared when the lease is used, for a timer of a process that stood still comes too late.

The clock ends nothing. While the servers are away no lease ends, and one that has not ended is still the holder's. So a
holder in doubt goes on speaking, and the next answer says whether the lease is its own. Only the servers end a lease.
"""

from __future__ import annotations

import enum
from typing import Final

SPEAK: Final = 0.3
"""Of the time to live: how often a holder says that it lives."""
DOUBT: Final = 0.6
"""Of the time to live: a holder that was not answered since is in doubt."""
TICK: Final = 0.1
"""Of the time to live: how often the holder looks. One that did not look for three times as long stood still."""


class LeaseState(enum.Enum):
    """What a holder may believe."""

    CONNECTED = "connected"
    """The lease is the holder's."""
    SUSPENDED = "suspended"
    """The lease may be the holder's, and may become CONNECTED again. Begin nothing."""
    LOST = "lost"
    """The servers have ended the lease, or the holder has given it back: for good."""


class Belief:
    """Of one lease, from when it was granted."""

    def __init__(self, ttl_s: float, sent_s: float) -> None:
        self._ttl_s = ttl_s
        self._sent_s = sent_s  # of the newest keep-alive that was answered
        self._ticked_s = sent_s
        self._doubted_s = sent_s  # only what was sent since ends a doubt
        self._lost = False

    def tick(self, now_s: float) -> None:
        """The holder looks."""
        self.state(now_s)
        self._ticked_s = max(self._ticked_s, now_s)

    def answered(self, sent_s: float, ttl_s: float, now_s: float) -> None:
        """A keep-alive was answered that was sent at this time. ``ttl_s`` 0: there is no such lease."""
        if ttl_s <= 0:
            self._lost = True
        elif self.state(now_s) is not LeaseState.LOST and sent_s > self._sent_s:
            self._sent_s, self._ttl_s = sent_s, ttl_s

    def lose(self) -> None:
        """There is no such lease any more."""
        self._lost = True

    def state(self, now_s: float) -> LeaseState:
        """At this time."""
        if self._lost:
            return LeaseState.LOST
        if now_s - self._ticked_s > 3 * TICK * self._ttl_s:
            self._doubted_s = self._ticked_s = now_s
        if self._sent_s < self._doubted_s or now_s >= self._sent_s + DOUBT * self._ttl_s:
            return LeaseState.SUSPENDED
        return LeaseState.CONNECTED
