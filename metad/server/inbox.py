"""What clients have sent and the server has not begun: whole requests, still encoded, each with the time when it came.

A server that reads a connection only when it can begin what comes leaves a crowd's requests in the sockets. There they
have no time of arrival, so work is done whose sender has given up, and a broker's heartbeat waits behind them until the
broker is taken for dead. So :mod:`.connection` reads always, and what may not begin yet waits here.

All inboxes of a server share one bound of bytes. Any connection may fill one half of it. Up to seven eighths each
connection that has something waiting may hold as much as all others, so a crowd of brokers that send alike fills them.
Of the last eighth each has a share of its own, so one that sends all it can leaves room for those that send little.
What finds no room is turned away. This module knows frames and bytes: no clock, no stream, and no method.
"""

from __future__ import annotations

from collections import OrderedDict

from metad_wire.frame import Frame

FRAME_BYTES = 256
"""What a frame takes beside its bytes. The shortest have 16, so counting those alone would let a peer hold ten times as
much."""


class UnbegunBudget:
    """The bound of all inboxes together."""

    def __init__(self, bytes_max: int) -> None:
        self.held_bytes = 0
        self.holders = 0
        """Inboxes that hold something."""
        self._bytes_max = bytes_max
        self._half = bytes_max // 2
        self._single = bytes_max * 3 // 4
        self._even = bytes_max * 7 // 8

    def has_room(self, own_bytes: int, size: int) -> bool:
        """Whether an inbox that holds ``own_bytes`` may hold ``size`` more."""
        held = self.held_bytes + size
        if held <= self._half or not self.held_bytes:  # alone, a request fits, however long it is
            return True
        if not own_bytes and held <= self._single:  # the only request of its connection may be longer than a share
            return True
        if held > self._bytes_max:
            return False
        shared = self._even if held <= self._even else self._bytes_max - self._even
        return own_bytes + size <= shared // (self.holders + (not own_bytes))


class Inbox:
    """The requests of one connection that are not begun, in the order in which they came."""

    __slots__ = ("_budget", "_frames", "held_bytes")

    def __init__(self, budget: UnbegunBudget) -> None:
        self._budget = budget
        self._frames: OrderedDict[int, tuple[Frame, float]] = OrderedDict()  # by request id
        self.held_bytes = 0

    def __bool__(self) -> bool:
        return self.held_bytes > 0

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, frame: Frame, arrived_s: float) -> bool:
        """Keep a request until its turn. False if there is no room for it."""
        size = frame.length + FRAME_BYTES
        budget = self._budget
        if not budget.has_room(self.held_bytes, size):
            return False
        budget.holders += not self.held_bytes
        budget.held_bytes += size
        self.held_bytes += size
        self._frames[frame.request_id] = frame, arrived_s
        return True

    def pop(self) -> tuple[Frame, float]:
        """Take the first request, and when it came. The inbox must not be empty."""
        _, taken = self._frames.popitem(last=False)
        self._give(taken[0].length + FRAME_BYTES)
        return taken

    def discard(self, request_id: int) -> bool:
        """Drop a request; returns whether it was here."""
        taken = self._frames.pop(request_id, None)
        if taken is None:
            return False
        self._give(taken[0].length + FRAME_BYTES)
        return True

    def clear(self) -> None:
        """Drop all."""
        if self.held_bytes:
            self._frames.clear()
            self._give(self.held_bytes)

    def _give(self, size: int) -> None:
        self.held_bytes -= size
        self._budget.held_bytes -= size
        self._budget.holders -= not self.held_bytes
