"""At what pace a node takes new connections, over all its listeners for clients.

A connection costs the node milliseconds before its first request: the accept, a TLS or QUIC handshake, the greeting. A
crowd that comes at once would hold up everybody who is connected already. So a listener takes connections as a token
bucket allows; the others wait outside, where they cost nothing: over TCP in the kernel's queue of the socket, over QUIC
with a Retry, whose answer waits for its turn.
"""

from __future__ import annotations

from math import inf

GREETING_MIN = 8


def greeting_max(connections: int) -> int:
    """How many connections may be in their handshake, and how many in their greeting, beside so many that are served:
    descriptors are set aside for them."""
    return max(GREETING_MIN, connections // 4)


class Pace:
    """``burst`` connections at once, and ``per_s`` more each second; ``open_max`` that are open at a time, those that
    have not greeted and those that are being closed among them. What comes then is closed, or ``waits`` outside. Times
    are of the event loop's clock."""

    def __init__(self, per_s: float = inf, burst: int = 1, open_max: float = inf, *, waits: bool = False) -> None:
        self.open = 0
        """Connections that are open."""
        self.open_max = open_max
        self.waits = waits
        self.delayed = 0
        """Connections that had to wait, since the start."""
        self._interval_s = 1.0 / per_s
        self._slack_s = (burst - 1) * self._interval_s
        self._clock_s = 0.0  # when the bucket would be full again

    def wait_s(self, now_s: float) -> float:
        """How long the next connection has to wait; 0 if it may be taken."""
        return max(0.0, self._clock_s - self._slack_s - now_s)

    def take(self, now_s: float, *, waited: bool) -> None:
        """A connection is taken."""
        self._clock_s = max(self._clock_s, now_s) + self._interval_s
        self.delayed += waited
