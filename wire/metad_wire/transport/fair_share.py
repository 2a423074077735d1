"""A fair share of the event loop: long work is done in slices, and all connections together do a few in a turn of it.

A loop serves everything that is ready, one after the other, each for as long as its work takes. A megabyte of one
connection would delay all others for as long as it takes to decrypt, decode and execute, and so would a little of each
of a thousand. So work is counted, in slices of some half a millisecond. What comes is done at once while a turn of the
loop has some left (:meth:`FairShare.has_left`). The rest waits here, however many connections it is of:

- each :class:`Rank` goes before the next ones, and one slice of each has its turn all the same;
- holders (see :mod:`metad_wire.policy.fair_room`) take turns, and then what each has.

One :class:`FairShare` serves a whole loop with all its transports, because they share its time. It has no clock, so
that a simulation repeats itself. Each turn costs the loop some 20 µs.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from ..policy.fair_queue import SHARE_ITEMS, FairQueue

TURN = 2.0
"""So many slices are done in a turn of the loop, and as many again of what is small. The one that exceeds it, and one
of each other rank, come on top."""
Slice = Callable[[], bool]
"""Does a part of the work, some hundred microseconds; returns whether there is more. One that raises is dropped. One
that does not say what it has done (:meth:`FairShare.spend`) has done the whole turn's work."""


class Rank(IntEnum):
    """Before what a worker goes."""

    UNCUT = 0
    """What has to be cut into frames before one knows what it is: it may keep somebody alive."""
    SMALL = 1
    """What takes a fraction of a slice."""
    PLAIN = 2
    HEAVY = 3
    """One in a turn of the loop. What rests (:meth:`FairShare.rest`) while small writes are on their way."""


_of_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, FairShare] = weakref.WeakKeyDictionary()


class _Worker(NamedTuple):
    """In a :class:`FairQueue`. A slice is worth a whole turn of its holder."""

    work: Slice
    tenant: str
    source: object = None
    items: int = 1
    weight: int = SHARE_ITEMS


class FairShare:
    """Holds each worker once; each worker bounds its own remaining work."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queues = tuple(FairQueue[_Worker]() for _ in Rank)
        self._scheduled = False
        self._resting = False
        self.left = TURN
        """Slices that may still be done in this turn of the loop; negative if small ones have done more."""

    @classmethod
    def here(cls) -> FairShare:
        """The turns of the running loop."""
        loop = asyncio.get_running_loop()
        turns = _of_loop.get(loop)
        if turns is None:
            # The entry must not keep alive the loop that is its key.
            turns = _of_loop[loop] = cls(weakref.proxy(loop))
        return turns

    def take(self, work: Slice, holder: str = "", rank: Rank = Rank.PLAIN) -> None:
        """Call ``work`` in the coming turns until it returns false."""
        self._queues[rank].add(_Worker(work, holder))
        self._run_soon()

    @property
    def is_behind(self) -> bool:
        """Whether something waits for a turn that is not heavy."""
        return any(self._queues[: Rank.HEAVY])

    def has_left(self, rank: Rank) -> bool:
        """Whether what comes may be done at once; else it waits for a turn."""
        return self.left > (-TURN if rank <= Rank.SMALL else 0.0)

    def spend(self, slices: float, rank: Rank = Rank.PLAIN) -> None:
        """So much was done, of what this turn of the loop may do."""
        left = self.left - slices
        self.left = left if rank <= Rank.SMALL else max(left, min(self.left, 0.0))
        if left <= 0.0:
            self._run_soon()

    def rest(self, seconds: float) -> None:
        """Nothing heavy has a turn for so long. A worker that says so instead of working keeps its turn."""
        if not self._resting:
            self._resting = True
            self._loop.call_later(seconds, self._rested)

    def _rested(self) -> None:
        self._resting = False
        if self._queues[Rank.HEAVY]:
            self._run_soon()

    def _run_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self.left = TURN
        try:
            for rank in Rank:
                if self._may_do(rank):
                    self._do(rank)
                while rank is not Rank.HEAVY and self._queues[rank] and self.left > 0.0:
                    self._do(rank)
        finally:
            self._scheduled = False
            if self.left <= 0.0 or any(map(self._may_do, Rank)):
                self._run_soon()

    def _may_do(self, rank: Rank) -> bool:
        return bool(self._queues[rank]) and not (self._resting and rank is Rank.HEAVY)

    def _do(self, rank: Rank) -> None:
        queue, left = self._queues[rank], self.left
        worker = queue.pop()
        if worker.work():
            (queue.add_first if rank is Rank.HEAVY and self._resting else queue.add)(worker)
        if self.left == left > 0.0:
            self.left = 0.0
