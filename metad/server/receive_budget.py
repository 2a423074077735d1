"""Bounds the unfinished request frames of all connections together.

One connection may hold one unfinished frame, which the frame limit bounds; thousands of connections need a common
bound. Over the bound, connections with an unfinished frame wait and are not read from, except one: the one that has
finished most since its last turn. It keeps its turn until its frame is finished, as long as bytes arrive. If a peer
sends nothing in its turn, one that has finished more takes the turn, and the silent peer is soon closed, because others
wait. A peer is not silent while the server itself does not read from it, because it is busy with other requests. So a
peer that holds half a frame without sending the rest hardly delays those that finish theirs, and honest peers only wait
for each other. A peer that does not finish while others wait is finally closed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

_UNFINISHED_S_MAX = 5.0  # for one frame while memory is short; a whole frame then needs at least 16 MiB / 5 s
_TURN_S = 0.1  # time for the peer with the turn to send _TURN_BYTES; bytes that the kernel holds arrive at once
_TURN_BYTES = 16 * 1024
_YIELD_S = 0.02  # time to send something before a peer that has finished more takes the turn


class Holder(Protocol):
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
        self._bytes_max = bytes_max
        self._later = later
        self._begun_s: dict[Holder, float] = {}  # in the order in which their frames were begun
        self._waiting: dict[Holder, None] = {}
        self._turn: Holder | None = None  # the one that goes on over the bound
        self._turn_finished = 0  # the finished bytes that won it the turn
        self._turn_bytes = 0  # the bytes it held at the last check
        self._turns = 0
        self.held_bytes = 0

    def update(self, holder: Holder, held_bytes: int, now_s: float, *, progress: bool) -> None:
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
            if self.held_bytes > self._bytes_max and holder is not self._turn and holder not in self._waiting:
                self._wait(holder)
                if self._turn is not None and holder.finished_bytes > self._turn_finished:
                    self._later(_YIELD_S, partial(self._yield, self._turns, self._turn.held_bytes))
        if self._waiting:
            self._admit()

    def stuck(self, now_s: float) -> list[Holder]:
        """The holders that have taken too long over a frame while others wait."""
        if not self._waiting:
            return []
        return [holder for holder, begun_s in self._begun_s.items() if now_s - begun_s > _UNFINISHED_S_MAX]

    def _admit(self) -> None:
        if self.held_bytes <= self._bytes_max:
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

    def _wait(self, holder: Holder) -> None:
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


def _finished(holder: Holder) -> int:
    return holder.finished_bytes
