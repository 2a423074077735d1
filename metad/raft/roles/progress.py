"""What a leader knows of one peer's log, and what it may send it."""

from __future__ import annotations

from collections import deque
from enum import Enum

from ..base import ROOM
from ..messages import Snapshot

IN_FLIGHT_MESSAGES_MAX = 64
IN_FLIGHT_BYTES_MAX = 4 * 1024 * 1024
"""To a peer, of all groups together. A slow path takes most of a second for it, in which no answer to a ping comes
back, and a follower that catches up writes it in one turn of its loop."""


class Sending(Enum):
    """The three ways to bring a peer's log up to date."""

    PROBE = "probe"
    """Where the logs agree is not known: one empty append at a time."""
    REPLICATE = "replicate"
    """They agree: records are pipelined."""
    SNAPSHOT = "snapshot"
    """What the peer needs is no longer in the log: nothing but heartbeats until it has a snapshot."""


class Progress:
    """One peer, as its leader sees it."""

    __slots__ = (
        "_in_flight",
        "acknowledged_in",
        "distrusted",
        "echoed",
        "heard_s",
        "in_flight_bytes",
        "lease_until_s",
        "match",
        "next",
        "obstacle",
        "paused",
        "refuses",
        "sending",
        "shortage",
        "snapshot",
        "unapplied",
        "watched",
    )

    def __init__(self, next_index: int, now_s: float) -> None:
        self.sending = Sending.PROBE
        self.next = next_index
        self.match = 0
        """Durable there, and equal to ours."""
        self.acknowledged_in = 0
        """The number of the newest round that the peer had heard of when it acknowledged :attr:`match`."""
        self.distrusted = False
        """It has lost what it acknowledged: nothing it says is counted, and nothing is sent to it."""
        self.paused = False
        """A probe is under way."""
        self.heard_s = now_s
        self.refuses = False
        """Its host has refused to be dialled since it was last heard."""
        self.lease_until_s = float("-inf")
        """Until when the peer votes for nobody else: the promise it gave, counted from the beginning of the round that
        it echoed with it."""
        self.watched = False
        """It wants to hear of a commit soon."""
        self.unapplied = 0
        """Entries that it had yet to apply when it was last heard."""
        self.shortage = ROOM
        """How its disk was when it was last heard."""
        self.obstacle = ""
        """Why it could not get the snapshot that it needs, when that was tried last."""
        self.echoed = 0
        """The number of the newest round that the peer has echoed. Reads wait for it."""
        self.in_flight_bytes = 0
        self.snapshot: Snapshot | None = None
        """The streamed one that it is to install."""
        self._in_flight: deque[tuple[int, int]] = deque()  # (last index, bytes) of appends without a reply

    @property
    def full(self) -> bool:
        """No more messages may be sent before a reply."""
        return len(self._in_flight) >= IN_FLIGHT_MESSAGES_MAX

    def sent(self, last_index: int, size: int) -> None:
        """Records up to ``last_index`` went out."""
        self._in_flight.append((last_index, size))
        self.in_flight_bytes += size
        self.next = last_index + 1

    def matched(self, match: int) -> bool:
        """The peer has everything up to ``match``. True if that is news."""
        in_flight = self._in_flight
        while in_flight and in_flight[0][0] <= match:
            self.in_flight_bytes -= in_flight.popleft()[1]
        if match <= self.match:
            return False
        self.match = match
        self.next = max(self.next, match + 1)
        return True

    def distrust(self) -> None:
        """What the peer acknowledged it does not have any more. It may have forgotten what it has promised, too."""
        self.distrusted = True
        self.match = 0
        self.lease_until_s = float("-inf")

    def probe_from(self, next_index: int) -> None:
        """Find out again where the logs agree, beginning before ``next_index``."""
        self.sending = Sending.PROBE
        self.next = max(next_index, self.match + 1)
        self._forget()

    def replicate_from(self, next_index: int) -> None:
        """The logs agree before ``next_index``."""
        self.obstacle = ""
        self.sending = Sending.REPLICATE
        self.next = max(next_index, self.match + 1)
        self._forget()

    def wait_for_snapshot(self) -> None:
        """Only a snapshot can help."""
        self.sending = Sending.SNAPSHOT
        self._forget()

    def _forget(self) -> None:
        self.paused = False
        self.snapshot = None
        self._in_flight.clear()
        self.in_flight_bytes = 0
