"""How much of unfinished request frames all connections may hold together.

One connection may hold one unfinished frame, which the frame limit bounds; thousands of them need a bound of their
own. Past it a connection is not read from until others have finished theirs, all but the one whose frame was begun
first: somebody always goes on, so honest peers only wait. A peer that does not finish while others wait is closed.
"""

from __future__ import annotations

from typing import Protocol

_UNFINISHED_S_MAX = 5.0  # of a frame while memory is short; a whole frame takes 16 MiB / 5 s at the slowest


class Holder(Protocol):
    """A connection as seen from here."""

    held_bytes: int

    def wait_intake(self, waiting: bool) -> None:
        """Stop reading, or go on."""


class Intake:
    """The unfinished frames of a server."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._begun_s: dict[Holder, float] = {}  # in the order in which their frames were begun
        self._waiting: dict[Holder, None] = {}
        self.held_bytes = 0

    def update(self, holder: Holder, held_bytes: int, now_s: float, *, progress: bool) -> None:
        """``holder`` now has this much unfinished; ``progress`` if it finished a frame meanwhile."""
        self.held_bytes += held_bytes - holder.held_bytes
        holder.held_bytes = held_bytes
        if progress or not held_bytes:
            self._begun_s.pop(holder, None)
            if holder in self._waiting:
                del self._waiting[holder]
                holder.wait_intake(False)
        if held_bytes:
            self._begun_s.setdefault(holder, now_s)
            if self.held_bytes > self._bytes_max and next(iter(self._begun_s)) is not holder:
                self._waiting[holder] = None
                holder.wait_intake(True)
        if self._waiting:
            self._admit()

    def stuck(self, now_s: float) -> list[Holder]:
        """Who has taken too long over a frame while others wait."""
        if not self._waiting:
            return []
        return [holder for holder, begun_s in self._begun_s.items() if now_s - begun_s > _UNFINISHED_S_MAX]

    def _admit(self) -> None:
        first = next(iter(self._begun_s))  # whoever waits has begun
        for holder in list(self._waiting) if self.held_bytes <= self._bytes_max else [first]:
            if holder in self._waiting:
                del self._waiting[holder]
                holder.wait_intake(False)
