"""May it be read? Bounds what all connections of clients together make a server hold: what they have sent and is not
begun, which is unfinished frames and whole requests, and replies that they have not read.

One connection may hold one unfinished frame, which the frame limit bounds; thousands of connections need a common
bound. Over the bound, connections with an unfinished frame wait and are not read from, except one: the one that has
finished most since its last turn. It keeps its turn until its frame is finished, as long as bytes arrive. If a peer
sends nothing in its turn, one that has finished more takes the turn, and the silent peer is soon closed, because others
wait. A peer is not silent while the server itself does not read from it, because it is busy with other requests. So a
peer that holds half a frame without sending the rest hardly delays those that finish theirs, and honest peers only wait
for each other. A peer that does not finish while others wait is finally closed.

An inbox is what a client has sent and the server has not begun: whole requests, still encoded, each with the time when
it came. A server that reads a connection only when it can begin what comes leaves a crowd's requests in the sockets.
There they have no time of arrival, so work is done whose sender has given up, and a broker's heartbeat waits behind
them until the broker is taken for dead. So :mod:`.connection` reads always, and what may not begin yet waits here.

All inboxes of a server share one :class:`metad_wire.policy.fair_room.FairRoom` of bytes: a crowd of brokers that send
alike fills it, and one that sends all it can leaves room for those that send little. What finds no room, or is taken
back for others, is turned away. This module knows frames and bytes: no clock and no stream.

A request of 64 bytes may ask for 8 MiB, and a stream buffers the bytes that its peer does not read. Over the bound of
replies

- a long reply goes into no stream: the request is answered with an error that says when to retry;
- a connection that holds more than a little takes no further requests until it holds less, or others do;
- a connection whose peer has read nothing for a while is cut off.

So replies that are read soon make room for a refused reader. A stream does not report when it drains, so its size is
read again before anything is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Protocol

from metad_wire.connection.frame import Frame
from metad_wire.methods import METHODS, Lane
from metad_wire.policy.fair_room import FairRoom, Place

SMALL_BYTES = 16 * 1024
"""Shorter replies are always sent, and connections that hold no more are always served: 4,096 of them may hold 64
MiB."""
_STUCK_S = 1.0  # without reading while others have no room; even over a bad path a peer reads something in that time


class Replying(Protocol):
    """A connection as the budget of replies sees it."""

    def unsent_bytes(self) -> int:
        """The bytes that its stream holds now, or is about to get."""

    def wait_unsent(self, waiting: bool) -> None:
        """Take no requests, or go on."""

    def abort(self, reason: str) -> None:
        """Cut it off."""


class _Held:
    __slots__ = ("since_s", "size")

    def __init__(self, now_s: float) -> None:
        self.size = 0
        self.since_s = now_s  # when the size last shrank, or began


class SendBudget:
    """The unread replies of a server."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._held: dict[Replying, _Held] = {}
        self._waiting: dict[Replying, None] = {}
        self._refused = False  # a reply, since the last review
        self.held_bytes = 0

    def take(self, holder: Replying, size: int, now_s: float) -> bool:
        """Whether a reply of this size may go to the holder's stream. If so, it counts as held from now on."""
        if size > SMALL_BYTES and self.held_bytes + size > self.bytes_max:
            self._measure(now_s)
            if self.held_bytes and self.held_bytes + size > self.bytes_max:
                self._refused = True
                return False
        self._count(holder, self._of(holder, now_s), size)
        return True

    def has_room(self, now_s: float) -> bool:
        """Whether anything long may go to a stream."""
        if self.held_bytes >= self.bytes_max:
            self._measure(now_s)
        return self.held_bytes < self.bytes_max

    def wait(self, holder: Replying) -> None:
        """Have a holder go on, by ``wait_unsent(False)``, once there may be room. It takes requests meanwhile."""
        self._waiting[holder] = None

    def update(self, holder: Replying, now_s: float) -> None:
        """Measure again: bytes were written to the stream, or read from it."""
        size = holder.unsent_bytes()
        if not size and holder not in self._held:
            return
        self._look(holder, size, now_s)
        if size > SMALL_BYTES and self.held_bytes >= self.bytes_max and holder not in self._waiting:
            self._waiting[holder] = None
            holder.wait_unsent(True)
        elif self._waiting and self.held_bytes < self.bytes_max:
            self._release()

    def forget(self, holder: Replying) -> None:
        """Forget a connection that has gone, with all that it held."""
        self._waiting.pop(holder, None)
        held = self._held.pop(holder, None)
        if held is not None:
            self.held_bytes -= held.size

    def review(self, now_s: float) -> None:
        """Called at intervals: resume the connections that may go on, cut off those that hold up others."""
        if not self._waiting and not self._refused:
            return
        self._refused = False
        self._measure(now_s)
        for holder, held in list(self._held.items()):
            if held.size > SMALL_BYTES and now_s - held.since_s > _STUCK_S:
                holder.abort(f"{held.size} bytes of replies are unread, and others have no room")
        self._release()

    def _of(self, holder: Replying, now_s: float) -> _Held:
        held = self._held.get(holder)
        if held is None:
            held = self._held[holder] = _Held(now_s)
        return held

    def _count(self, holder: Replying, held: _Held, added: int) -> None:
        held.size += added
        self.held_bytes += added
        if not held.size:
            del self._held[holder]

    def _look(self, holder: Replying, size: int, now_s: float) -> None:
        held = self._of(holder, now_s)
        if size < held.size or not held.size:
            held.since_s = now_s
        self._count(holder, held, size - held.size)

    def _measure(self, now_s: float) -> None:
        for holder in list(self._held):
            self._look(holder, holder.unsent_bytes(), now_s)

    def _release(self) -> None:
        for holder in list(self._waiting):
            held = self._held.get(holder)
            if self.held_bytes < self.bytes_max or held is None or held.size <= SMALL_BYTES:
                del self._waiting[holder]
                holder.wait_unsent(False)


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
        place = self._room.take(self.holder, size, partial(self._take_back, frame, turn_away), source=self)
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


_UNFINISHED_S_MAX = 5.0  # for one frame while memory is short; a whole frame then needs at least 16 MiB / 5 s
_TURN_S = 0.1  # time for the peer with the turn to send _TURN_BYTES; bytes that the kernel holds arrive at once
_TURN_BYTES = 16 * 1024
_YIELD_S = 0.02  # time to send something before a peer that has finished more takes the turn


class Receiving(Protocol):
    """A connection as the intake sees it."""

    held_bytes: int
    finished_bytes: int
    """Bytes of frames finished since its last turn; this module sets it to 0."""

    @property
    def in_turns(self) -> bool:
        """Whether the server has bytes of it to look at, and reads no more until then."""

    def wait_intake(self, waiting: bool) -> None:
        """Stop reading, or go on."""

    def refuse_intake(self) -> None:
        """Close: there is no memory for the rest of its frame."""


class ReceiveBudget:
    """The unfinished frames of a server. ``later`` calls a function after a number of seconds."""

    def __init__(self, bytes_max: int, later: Callable[[float, Callable[[], None]], object]) -> None:
        self.bytes_max = bytes_max
        self._later = later
        self._begun_s: dict[Receiving, float] = {}  # in the order in which their frames were begun
        self._waiting: dict[Receiving, None] = {}
        self._turn: Receiving | None = None  # the one that goes on over the bound
        self._turn_finished = 0  # the finished bytes that won it the turn
        self._turn_bytes = 0  # the bytes it held at the last check
        self._turns = 0
        self.held_bytes = 0

    def update(self, holder: Receiving, held_bytes: int, now_s: float, *, progress: bool) -> None:
        """``holder`` now has this many unfinished bytes; ``progress`` if it finished a frame meanwhile."""
        self.held_bytes += held_bytes - holder.held_bytes
        holder.held_bytes = held_bytes
        if progress or not held_bytes:
            self._begun_s.pop(holder, None)
            if holder is self._turn:
                self._turn = None
            if holder in self._waiting:
                del self._waiting[holder]
                holder.wait_intake(False)
        if held_bytes:
            self._begun_s.setdefault(holder, now_s)
            if self.held_bytes > self.bytes_max and holder is not self._turn and holder not in self._waiting:
                self._wait(holder)
                if self._turn is not None and holder.finished_bytes > self._turn_finished:
                    self._later(_YIELD_S, partial(self._yield, self._turns, self._turn.held_bytes))
        if self._waiting:
            self._admit()

    def stuck(self, now_s: float) -> list[Receiving]:
        """The holders that have taken too long over a frame while others wait."""
        if not self._waiting:
            return []
        return [holder for holder, begun_s in self._begun_s.items() if now_s - begun_s > _UNFINISHED_S_MAX]

    def _admit(self) -> None:
        if self.held_bytes <= self.bytes_max:
            waiting, self._waiting = self._waiting, {}
            for holder in waiting:
                holder.wait_intake(False)
        elif self._turn is None:
            holder = max(self._waiting, key=_finished)  # the first of those that have finished as much
            del self._waiting[holder]
            self._turn, self._turn_finished, self._turn_bytes = holder, holder.finished_bytes, holder.held_bytes
            holder.finished_bytes = 0
            self._turns += 1
            self._later(_TURN_S, partial(self._look, self._turns))
            holder.wait_intake(False)

    def _wait(self, holder: Receiving) -> None:
        self._waiting[holder] = None
        holder.wait_intake(True)

    def _yield(self, turn: int, held_bytes: int) -> None:
        """A holder that has finished more waits since ``held_bytes`` were held: it gets the turn if no bytes arrive."""
        holder = self._turn
        if holder is None or turn != self._turns or not self._waiting or holder.held_bytes >= held_bytes + _TURN_BYTES:
            return
        holder.finished_bytes += self._turn_finished
        self._turn = None
        self._wait(holder)
        self._admit()

    def _look(self, turn: int) -> None:
        """Check whether the holder of the turn sends bytes."""
        holder = self._turn
        if holder is None or turn != self._turns:
            return
        silent = holder.held_bytes < self._turn_bytes + _TURN_BYTES and not holder.in_turns
        if self._waiting and silent:
            self._turn = None
            holder.refuse_intake()
            if self._waiting:
                self._admit()
            return
        self._turn_bytes = holder.held_bytes
        self._later(_TURN_S, partial(self._look, turn))


def _finished(holder: Receiving) -> int:
    return holder.finished_bytes
