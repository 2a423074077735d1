"""How fast a queue is served, and how many items a node answers per second when it has as much to do as it can:
measured, never assumed for long.

What was answered in any stretch of time is a lower bound of the capacity. While requests are turned away, work waits
all the time, so what is answered then *is* the capacity. So calm times can only raise the measure, and times in which
requests are turned away set it. All but the first second of them: there a crowd may be turned away at once, which takes
the processor, and what is answered meanwhile says nothing of the time after it.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

NODE_UNMEASURED_PER_S: Final = 10_000.0
"""What a node that has not been busy yet is taken to answer at least: it has just started, and is soon measured."""
_WINDOW_S: Final = 0.25
"""Windows are at least this long: shorter ones would count answers that come in bursts."""
_WINDOW_MAX_S: Final = 0.5
"""A longer one says nothing of a moment, because nobody looked."""
_ONSET_S: Final = 1.0
"""After so long without a refusal the next one begins a new time of refusals. Its first so many seconds set nothing."""
_BLEND: Final = 0.5
"""The weight of the newest window among those with refusals."""


class ServiceRate:
    """The measure of one node. Times are of its monotonic clock, in seconds."""

    def __init__(self, now_s: float) -> None:
        self.measured = False
        """Whether it was ever measured while requests were turned away."""
        self.answered_items = 0
        """Since the start."""
        self._per_s = NODE_UNMEASURED_PER_S
        self._items = 0  # of those when the window began
        self._since_s = now_s
        self._pressed = False  # a request was turned away when the window began
        self._refused_s = float("-inf")  # when one was turned away last
        self._onset_s = now_s  # when that time of refusals began

    def answered(self, items: int) -> None:
        """So many items are answered."""
        self.answered_items += items

    def refused(self, now_s: float) -> None:
        """A request is turned away, because as much waits as may."""
        if not self._pressed:
            self._end_window(now_s)
            self._pressed = True
        if now_s - self._refused_s > _ONSET_S:
            self._onset_s = now_s
        self._refused_s = now_s

    def per_s(self, now_s: float) -> float:
        """The items that the node can answer per second."""
        if now_s - self._since_s >= _WINDOW_S:
            self._end_window(now_s)
        return self._per_s

    def _end_window(self, now_s: float) -> None:
        took_s = now_s - self._since_s
        if took_s >= _WINDOW_S:
            seen = (self.answered_items - self._items) / took_s
            # Work waited from its beginning to its end, as far as anybody can tell.
            lasts = self._since_s - self._onset_s >= _ONSET_S and self._refused_s >= now_s - took_s / 2
            if self._pressed and took_s <= _WINDOW_MAX_S and lasts and seen:
                self._per_s = self._per_s + _BLEND * (seen - self._per_s) if self.measured else seen
                self.measured = True
            else:
                self._per_s = max(self._per_s, seen)
        self._pressed = self._refused_s >= self._since_s and took_s <= _WINDOW_MAX_S
        self._items, self._since_s = self.answered_items, now_s


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
