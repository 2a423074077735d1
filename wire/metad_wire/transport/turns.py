"""Turns at the event loop: what takes long is done in slices, one in each of the loop's turns.

A loop serves whoever is ready, one after the other, each for as long as its work takes. A megabyte of one connection
would make all others wait for as long as it takes to decrypt, decode and execute. So whoever has more than a slice of
work at a time leaves the rest here, and all who do take turns: however many they are, who has little waits for one
slice wherever its way leads through the loop. Coming back for each costs the loop some 20 µs.

One :class:`Turns` serves a whole loop, whatever transports it has: what they share is its time. Knows no clock, so
that a simulation repeats itself.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable

Slice = Callable[[], bool]
"""Does some of the work, some hundred microseconds of it; whether there is more. One that raises has no more turns."""

_of_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = weakref.WeakKeyDictionary()


class Turns:
    """See the module. Holds each worker once; what a worker has left to do is its own to bound."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Slice] = deque()
        self._scheduled = False

    @classmethod
    def here(cls) -> Turns:
        """Those of the running loop."""
        loop = asyncio.get_running_loop()
        turns = _of_loop.get(loop)
        if turns is None:
            # The loop must not be kept by the entry that it keys.
            turns = _of_loop[loop] = cls(weakref.proxy(loop))
        return turns

    def take(self, work: Slice) -> None:
        """Call it in the turns to come until it returns false."""
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
