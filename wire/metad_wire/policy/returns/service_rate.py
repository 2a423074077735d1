"""How many items a node answers per second when it has as much to do as it can: measured, never assumed for long.

What was answered in any stretch of time is a lower bound of the capacity. While requests are turned away, work waits
all the time, so what is answered then *is* the capacity. So calm times can only raise the measure, and times in which
requests are turned away set it. All but the first second of them: there a crowd may be turned away at once, which
takes the processor, and what is answered meanwhile says nothing of the time after it.
"""

from __future__ import annotations

from typing import Final

UNMEASURED_PER_S: Final = 10_000.0
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
        self._per_s = UNMEASURED_PER_S
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
