"""A fair share of the event loop: long work is done in slices, one in each turn of the loop.

A loop serves everything that is ready, one after the other, each for as long as its work takes. A megabyte of one
connection would delay all others for as long as it takes to decrypt, decode and execute. So a connection with more than
a slice of work leaves the rest here, and all such connections take turns: however many they are, a connection with
little work waits for one slice at each stage. Each return costs the loop some 20 µs.

One :class:`FairShare` serves a whole loop with all its transports, because they share its time. It has no clock, so
that a simulation repeats itself.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable

Slice = Callable[[], bool]
"""Does a part of the work, some hundred microseconds; returns whether there is more. One that raises is dropped."""

_of_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, FairShare] = weakref.WeakKeyDictionary()


class FairShare:
    """A queue of workers that take turns. Holds each worker once; each worker bounds its own remaining work."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Slice] = deque()
        self._scheduled = False

    @classmethod
    def here(cls) -> FairShare:
        """The turns of the running loop."""
        loop = asyncio.get_running_loop()
        turns = _of_loop.get(loop)
        if turns is None:
            # The entry must not keep alive the loop that is its key.
            turns = _of_loop[loop] = cls(weakref.proxy(loop))
        return turns

    def take(self, work: Slice) -> None:
        """Call ``work`` in the coming turns until it returns false."""
        self._waiting.append(work)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        waiting = self._waiting
        work = waiting.popleft()
        try:
            if work():
                waiting.append(work)
        finally:
            self._scheduled = bool(waiting)
            if waiting:
                self._loop.call_soon(self._run)
