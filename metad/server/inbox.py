"""What clients have sent and the server has not begun: whole requests, still encoded, each with the time when it came.

A server that reads a connection only when it can begin what comes leaves a crowd's requests in the sockets. There they
have no time of arrival, so work is done whose sender has given up, and a broker's heartbeat waits behind them until the
broker is taken for dead. So :mod:`.connection` reads always, and what may not begin yet waits here.

All inboxes of a server share one :class:`metad_wire.policy.fair_room.FairRoom` of bytes: a crowd of brokers that send
alike fills it, and one that sends all it can leaves room for those that send little. What finds no room, or is taken
back for others, is turned away. This module knows frames and bytes: no clock and no stream.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from metad_wire.connection.frame import Frame
from metad_wire.methods import METHODS, Lane
from metad_wire.policy.fair_room import FairRoom, Place

FRAME_BYTES = 768
"""What a frame takes beside its bytes. The shortest have 16, so counting those alone would let a peer hold forty times
as much."""


class Inbox:
    """The requests of one connection that are not begun, in the order in which they came."""

    __slots__ = ("_frames", "_room", "held_bytes", "holder")

    def __init__(self, room: FairRoom) -> None:
        self._room = room
        self.holder = ""
        """Of the connection, once it is known."""
        self._frames: OrderedDict[int, tuple[Frame, float, Place]] = OrderedDict()  # by request id
        self.held_bytes = 0

    def __bool__(self) -> bool:
        return self.held_bytes > 0

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def scans(self) -> bool:
        """Whether the first request may look at many records, however short it is."""
        first = next(iter(self._frames.values()), None)
        method = None if first is None else METHODS.get(first[0].method)
        return method is not None and method.lane is Lane.SCANS

    def add(self, frame: Frame, arrived_s: float, turn_away: Callable[[Frame], None]) -> bool:
        """Keep a request until its turn. False if there is no room for it. ``turn_away`` is called with it where others
        need its room; the inbox keeps nothing of its connection for longer, or one that has ended would stay in
        memory."""
        size = frame.length + FRAME_BYTES
        place = self._room.take(self.holder, size, partial(self._take_back, frame, turn_away), line=self)
        if place is None:
            return False
        self.held_bytes += size
        self._frames[frame.request_id] = frame, arrived_s, place
        return True

    def pop(self) -> tuple[Frame, float]:
        """Take the first request, and when it came. The inbox must not be empty."""
        _, (frame, arrived_s, place) = self._frames.popitem(last=False)
        self._give(place)
        return frame, arrived_s

    def discard(self, request_id: int) -> bool:
        """Drop a request; returns whether it was here."""
        taken = self._frames.pop(request_id, None)
        if taken is None:
            return False
        self._give(taken[2])
        return True

    def clear(self) -> None:
        """Drop all."""
        for _, _, place in self._frames.values():
            self._give(place)
        self._frames.clear()

    def _take_back(self, frame: Frame, turn_away: Callable[[Frame], None]) -> None:
        if self.discard(frame.request_id):
            turn_away(frame)

    def _give(self, place: Place) -> None:
        self.held_bytes -= place.size
        self._room.give(place)
