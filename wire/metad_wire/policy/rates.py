"""How fast a queue is served, and how many items a node answers per second when it has as much to do as it can:
measured, never assumed for long.

What was done in any stretch of time is a lower bound of what can be done. In time in which work waits all the time it
*is* what can be done. One :class:`Rate` learns from such stretches. A queue knows that work waits by counting it
(:class:`QueueRate`), and a node by the requests that it turns away (:class:`ServiceRate`).
"""

from __future__ import annotations

import math
from typing import Final

import msgspec


class Rate(msgspec.Struct, kw_only=True):
    """A rate that forgets the past with ``memory_s``: after ``memory_s`` without service it is down to a third, and as
    quickly it comes back. The first stretch counts alone. Times are those of the caller's clock, in seconds."""

    per_s: float
    """By what was learnt until the last stretch ended."""
    window_s: float
    """Service comes in bursts: less time than this says nothing."""
    memory_s: float
    measured: bool = False
    """Whether anything was learnt."""

    def with_stretch(self, items: int, lasted_s: float) -> float:
        """The rate, if work has waited all through a stretch of this length, in which so many items were done."""
        seen = items / lasted_s
        if not self.measured:
            return seen
        return seen + (self.per_s - seen) * math.exp(-lasted_s / self.memory_s)

    def learn(self, items: int, lasted_s: float) -> None:
        """Such a stretch has ended."""
        self.per_s, self.measured = self.with_stretch(items, lasted_s), True


NODE_UNMEASURED_PER_S: Final = 10_000.0
"""What a node that has not been busy yet is taken to answer at least: it has just started, and is soon measured."""
_WINDOW_MAX_S: Final = 0.5
"""A longer window says nothing of a moment, because nobody looked."""
_ONSET_S: Final = 1.0
"""After so long without a refusal the next one begins a new time of refusals. Its first so many seconds set nothing: a
crowd may be turned away at once, which takes the processor, and what is answered meanwhile says nothing of the time
after it."""


class ServiceRate(Rate, kw_only=True):
    """The items per second that a node answers. Times in which it turns requests away set the measure, and calm times
    can only raise it."""

    per_s: float = NODE_UNMEASURED_PER_S
    window_s: float = 0.25
    memory_s: float = 0.36
    """The newest window counts half."""
    answered_items: int = 0
    """Since the start."""
    items: int = 0
    """Of those when the window began."""
    since_s: float = 0.0
    """When the window began."""
    pressed: bool = False
    """A request was turned away when the window began."""
    refused_s: float = float("-inf")
    """When one was turned away last."""
    onset_s: float = 0.0
    """When that time of refusals began."""

    def answered(self, items: int) -> None:
        """So many items are answered."""
        self.answered_items += items

    def refused(self, now_s: float) -> None:
        """A request is turned away, because as much waits as may."""
        if not self.pressed:
            self._end_window(now_s)
            self.pressed = True
        if now_s - self.refused_s > _ONSET_S:
            self.onset_s = now_s
        self.refused_s = now_s

    def estimate(self, now_s: float) -> float:
        """The rate."""
        if now_s - self.since_s >= self.window_s:
            self._end_window(now_s)
        return self.per_s

    def _end_window(self, now_s: float) -> None:
        took_s, items = now_s - self.since_s, self.answered_items - self.items
        if took_s >= self.window_s:
            # Work waited from its beginning to its end, as far as anybody can tell.
            lasts = self.since_s - self.onset_s >= _ONSET_S and self.refused_s >= now_s - took_s / 2
            if self.pressed and took_s <= _WINDOW_MAX_S and lasts and items:
                self.learn(items, took_s)
            else:
                self.per_s = max(self.per_s, items / took_s)
        self.pressed = self.refused_s >= self.since_s and took_s <= _WINDOW_MAX_S
        self.items, self.since_s = self.answered_items, now_s


FULL_ITEMS: Final = 500
"""While so many items wait, what leaves the queue says how much can be done."""
UNMEASURED_PER_S: Final = 5_000.0
"""What a queue is taken to be served with that has not been full yet, or not for :data:`FORGET_S`."""
FORGET_S: Final = 10.0
"""A queue that was last full so long ago may be served faster by now. That it is slower shows soon."""


class QueueRate(Rate, kw_only=True):
    """The items per second that leave a queue, learnt while the queue is *full*: enough wait for what leaves to say how
    much can be done, and not how much has come.

    What leaves in ``window_s`` of such time, in one piece or in several, is a stretch. Standing still counts while it
    lasts.
    """

    per_s: float = UNMEASURED_PER_S
    window_s: float = 0.05
    memory_s: float = 0.5
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
        if (lasted_s := self.lasted_s + now_s - self.since_s) >= self.window_s:
            self.learn(self.items, lasted_s)
            self.since_s, self.items, self.lasted_s = now_s, 0, 0.0

    def estimate(self, now_s: float) -> float:
        """The rate, with the window that has not ended if it lasts long enough to tell."""
        if self.since_s is None or (lasted_s := self.lasted_s + now_s - self.since_s) < self.window_s:
            return self.per_s
        return self.with_stretch(self.items, lasted_s)
