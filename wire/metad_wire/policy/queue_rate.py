"""How fast a queue is served."""

from __future__ import annotations

import math
from typing import Final

import msgspec

FULL_ITEMS: Final = 500
"""While so many items wait, what leaves the queue says how much can be done."""
UNMEASURED_PER_S: Final = 5_000.0
"""What a queue is taken to be served with that has not been full yet, or not for :data:`FORGET_S`."""
FORGET_S: Final = 10.0
"""A queue that was last full so long ago may be served faster by now. That it is slower shows soon."""


class QueueRate(msgspec.Struct, kw_only=True):
    """The items per second that leave a queue, learnt while the queue is *full*: enough wait for what leaves to say how
    much can be done, and not how much has come.

    What leaves in ``window_s`` of such time, in one piece or in several, counts by its length. So the rate forgets the
    past with ``memory_s``: after ``memory_s`` without service it is down to a third, and as quickly it comes back. The
    first window counts alone. Standing still counts while it lasts. Times are those of the caller's clock, in seconds.
    """

    per_s: float = UNMEASURED_PER_S
    """By what was learnt until the last window ended."""
    window_s: float = 0.05
    """Service comes in bursts: less time than this says nothing."""
    memory_s: float = 0.5
    measured: bool = False
    """Whether anything was learnt."""
    items: int = 0
    """That have left in this window."""
    lasted_s: float = 0.0
    """The time of this window, up to the piece that goes on."""
    since_s: float | None = None
    """When the piece that goes on began; None while the queue is not full."""
    begun: bool = False
    """Whether something has left in this piece."""
    calm_s: float = float("-inf")
    """Since when the queue is not full."""

    def full(self, now_s: float) -> None:
        """Enough waits."""
        if self.since_s is None:
            if now_s - self.calm_s > FORGET_S:
                self.per_s = max(self.per_s, UNMEASURED_PER_S)
                self.measured = self.per_s > UNMEASURED_PER_S
                self.items, self.lasted_s = 0, 0.0
            self.since_s, self.begun = now_s, False

    def calm(self, now_s: float) -> None:
        """Too little waits from now on."""
        if self.since_s is not None:
            self.lasted_s += now_s - self.since_s
            self.since_s, self.calm_s = None, now_s

    def left(self, items: int, now_s: float) -> None:
        """So many items have left the queue."""
        if self.since_s is None:
            return
        if not self.begun:
            self.begun = True
            if now_s - self.since_s < self.window_s:
                # What leaves first was done in no time: the time of a piece is that between what leaves.
                self.since_s = now_s
                return
        self.items += items
        if self.lasted_s + now_s - self.since_s >= self.window_s:
            self.per_s, self.measured = self.estimate(now_s), True
            self.since_s, self.items, self.lasted_s = now_s, 0, 0.0

    def estimate(self, now_s: float) -> float:
        """The rate, with the window that has not ended if it lasts long enough to tell."""
        if self.since_s is None or (lasted_s := self.lasted_s + now_s - self.since_s) < self.window_s:
            return self.per_s
        seen = self.items / lasted_s
        if not self.measured:
            return seen
        return seen + (self.per_s - seen) * math.exp(-lasted_s / self.memory_s)
