"""Clients in order of when they are due, in arrays: a heap of a million objects would cost too much. Pure."""

from __future__ import annotations

import heapq

import numpy as np

from .population import Ints

_NONE: Ints = np.empty(0, dtype=np.int64)


class Wheel:
    """Positions of clients, by the tick in which they are due."""

    def __init__(self, tick_ns: int) -> None:
        self._tick_ns = tick_ns
        self._spokes: dict[int, list[Ints]] = {}
        self._ticks: list[int] = []
        self.waiting = 0

    def push(self, where: Ints, due_ns: Ints) -> None:
        """Clients that are due at these times; none comes out before its time."""
        if not len(where):
            return
        ticks = -(-due_ns // self._tick_ns)
        order = np.argsort(ticks, kind="stable")
        where, ticks = where[order], ticks[order]
        cuts = np.flatnonzero(np.diff(ticks)) + 1
        for tick, part in zip(ticks[np.concatenate(([0], cuts))].tolist(), np.split(where, cuts), strict=True):
            spoke = self._spokes.get(tick)
            if spoke is None:
                self._spokes[tick] = [part]
                heapq.heappush(self._ticks, tick)
            else:
                spoke.append(part)
        self.waiting += len(where)

    def pop(self, now_ns: int) -> Ints:
        """All that are due by now."""
        now = now_ns // self._tick_ns
        found: list[Ints] = []
        while self._ticks and self._ticks[0] <= now:
            found += self._spokes.pop(heapq.heappop(self._ticks))
        if not found:
            return _NONE
        popped = np.concatenate(found)
        self.waiting -= len(popped)
        return popped

    @property
    def next_ns(self) -> int | None:
        """When the next client is due; None if none waits."""
        return self._ticks[0] * self._tick_ns if self._ticks else None
