"""How fast a queue is served, and how many items a node answers per second when it has as much to do as it can:
measured, never assumed for long.

What was done in any stretch of time is a lower bound of what can be done. In time in which work waits all the time it
*is* what can be done. One :class:`Rate` learns from such stretches. A queue knows that work waits by counting it
(:class:`QueueRate`), and a node by the requests that it turns away (:class:`ServiceRate`). And the bounds of what
flows: what is copied, the retries of a caller, what may wait at a server, the size of a batch.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

_US = 1_000_000


class Pace:
    """Holds what copies or brings records to so much a second, as bytes or rows; 0: as fast as it goes."""

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._free_s = 0.0

    def wait_s(self, amount: int, now_s: float) -> float:
        """Spend so much, and return how long to wait before it is done."""
        if not self._per_s:
            return 0.0
        self._free_s = max(self._free_s, now_s) + amount / self._per_s
        return self._free_s - now_s


class RetryBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token bucket of retries, as the virtual clock of the generic cell rate algorithm (ITU-T I.371): ``burst``
    retries may be made at once, and one more every ``interval_s``. A retry that finds no token waits for the next one.

    The state is one number, the *clock*: the time, in microseconds, at which the bucket would be full again; 0 at
    first. Raises ValueError where a value makes no sense.
    """

    burst: int = 10
    """Retries that need not wait. Ten outlast an election with the default backoff."""
    interval_s: float = 1.0
    """Time after which a token comes back."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.burst < 1:
            raise ValueError(f"burst must be at least 1, not {self.burst!r}")
        if not 0 < self.interval_s < float("inf"):
            raise ValueError(f"interval_s must be a number of seconds over 0, not {self.interval_s!r}")

    @property
    def interval_us(self) -> int:
        """``interval_s`` in whole microseconds, at least one."""
        return max(1, round(self.interval_s * _US))

    def reserve_us(self, wanted_us: int, clock_us: int) -> tuple[int, int]:
        """Take a token for a retry wanted at ``wanted_us``. Returns the time of the retry, and the new clock."""
        interval_us = self.interval_us
        due_us = max(wanted_us, clock_us - (self.burst - 1) * interval_us)
        return due_us, max(clock_us, due_us) + interval_us


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds the work that waits for a group. Items over the bound are refused at once, while their sender still waits:
    work done after the sender has given up is wasted, and then done again. So the bound divided by the rate of service
    must stay below the senders' timeout, less the longest round trip. A bound by time keeps to that whatever the rate.
    """

    items_max: int = 20_000
    """Items that may wait, without those being worked on; 0: no bound."""
    wait_max_s: float = 0.0
    """How long an item may wait, by the rate of service; 0: no bound."""
    items_min: int = 1_000
    """Items that may wait however low the rate: who admits nothing never learns that it could."""
    round_trip_s: float = 0.1
    """What a sender's deadline is shortened by: the answer has to be back by then."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.items_max < 0:
            raise ValueError(f"items_max must not be below 0, not {self.items_max!r}")
        if self.items_min < 1:
            raise ValueError(f"items_min must be at least 1, not {self.items_min!r}")
        for field in ("wait_max_s", "round_trip_s"):
            if not 0 <= getattr(self, field) < float("inf"):
                raise ValueError(f"{field} must be a number of seconds from 0 on, not {getattr(self, field)!r}")

    def admitted(
        self,
        waiting: int,
        arriving: int,
        per_s: float = 0.0,
        patience_s: float = float("inf"),
        waited_s: float = 0.0,
    ) -> int:
        """How many of ``arriving`` items are admitted while ``waiting`` items wait already, ``per_s`` are served, the
        sender waits for ``patience_s`` from now on, and they have waited for ``waited_s`` to be looked at. Time bounds
        nothing without ``wait_max_s``."""
        bound = self.bound(per_s, patience_s, waited_s)
        return arriving if bound is None else max(0, min(arriving, bound - waiting))

    def is_late(self, waited_s: float, deadline_s: float) -> bool:
        """Whether what has waited so long to be looked at comes too late, if its sender waits ``deadline_s`` in all:
        it would have no time left to wait for the service itself."""
        return waited_s > deadline_s / 2 or 0.0 < self.wait_max_s < waited_s

    def bound(self, per_s: float, patience_s: float = float("inf"), waited_s: float = 0.0) -> int | None:
        """How many items may wait; None: any number."""
        if not self.wait_max_s:
            return self.items_max or None
        wait_s = max(0.0, min(self.wait_max_s - waited_s, patience_s - self.round_trip_s))
        bound = max(self.items_min, int(per_s * wait_s))
        return min(bound, self.items_max) if self.items_max else bound


class BatchWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a batch: it closes at ``items_max`` or ``bytes_max``, or ``linger_s`` after its first item."""

    items_max: int = 1_000
    """At 1,000 items an fsync is 0.1 % of the batch's cost; more items only add latency."""
    bytes_max: int = 1024 * 1024
    """Bounds the memory of one batch."""
    linger_s: float = 0.0
    """0 closes a batch at the end of the current turn of the event loop."""

    def is_full(self, items: int, size_bytes: int) -> bool:
        """Whether a batch of this many items and bytes should be closed now."""
        return items >= self.items_max or size_bytes >= self.bytes_max

    @property
    def linger_us(self) -> int:
        """``linger_s`` in whole microseconds."""
        return round(self.linger_s * 1e6)


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
