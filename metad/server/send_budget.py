"""Bounds the replies that all connections together hold and their peers have not read.

A request of 64 bytes may ask for 8 MiB, and a stream buffers the bytes that its peer does not read. Over the bound

- a long reply goes into no stream: the request is answered with an error that says when to retry;
- a connection that holds more than a little takes no further requests until it holds less, or others do;
- a connection whose peer has read nothing for a while is cut off.

So replies that are read soon make room for a refused reader. A stream does not report when it drains, so its size is
read again before anything is refused.
"""

from __future__ import annotations

from typing import Protocol

SMALL_BYTES = 16 * 1024
"""Shorter replies are always sent, and connections that hold no more are always served: 4,096 of them may hold 64
MiB."""
_STUCK_S = 1.0  # without reading while others have no room; even over a bad path a peer reads something in that time


class Holder(Protocol):
    """A connection as this module sees it."""

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
        self._bytes_max = bytes_max
        self._held: dict[Holder, _Held] = {}
        self._waiting: dict[Holder, None] = {}
        self._refused = False  # a reply, since the last review
        self.held_bytes = 0

    def take(self, holder: Holder, size: int, now_s: float) -> bool:
        """Whether a reply of this size may go to the holder's stream. If so, it counts as held from now on."""
        if size > SMALL_BYTES and self.held_bytes + size > self._bytes_max:
            self._measure(now_s)
            if self.held_bytes and self.held_bytes + size > self._bytes_max:
                self._refused = True
                return False
        self._count(holder, self._of(holder, now_s), size)
        return True

    def has_room(self, now_s: float) -> bool:
        """Whether anything long may go to a stream."""
        if self.held_bytes >= self._bytes_max:
            self._measure(now_s)
        return self.held_bytes < self._bytes_max

    def wait(self, holder: Holder) -> None:
        """Have a holder go on, by ``wait_unsent(False)``, once there may be room. It takes requests meanwhile."""
        self._waiting[holder] = None

    def update(self, holder: Holder, now_s: float) -> None:
        """Measure again: bytes were written to the stream, or read from it."""
        size = holder.unsent_bytes()
        if not size and holder not in self._held:
            return
        self._look(holder, size, now_s)
        if size > SMALL_BYTES and self.held_bytes >= self._bytes_max and holder not in self._waiting:
            self._waiting[holder] = None
            holder.wait_unsent(True)
        elif self._waiting and self.held_bytes < self._bytes_max:
            self._release()

    def forget(self, holder: Holder) -> None:
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

    def _of(self, holder: Holder, now_s: float) -> _Held:
        held = self._held.get(holder)
        if held is None:
            held = self._held[holder] = _Held(now_s)
        return held

    def _count(self, holder: Holder, held: _Held, added: int) -> None:
        held.size += added
        self.held_bytes += added
        if not held.size:
            del self._held[holder]

    def _look(self, holder: Holder, size: int, now_s: float) -> None:
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
            if self.held_bytes < self._bytes_max or held is None or held.size <= SMALL_BYTES:
                del self._waiting[holder]
                holder.wait_unsent(False)
