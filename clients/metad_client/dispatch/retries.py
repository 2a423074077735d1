"""The calls that wait for their next attempt, and the timer that ends the wait."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from ..errors import MetadError
from ..options import Options
from .alarm import Alarm
from .call import Call
from .retry import RetryQueue, SharedBudget, verdict


class Retries:
    """``due`` is called with the calls whose time has come."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: Options,
        rng: random.Random,
        due: Callable[[list[Call]], None],
    ) -> None:
        self._loop = loop
        self._backoff = options.backoff
        self._budget = SharedBudget(options.retry_budget) if options.retry_budget is not None else None
        self._rng = rng
        self._due = due
        self._queue = RetryQueue()
        self._alarm = Alarm(loop, self._ring)

    def __len__(self) -> int:
        return len(self._queue)

    def schedule(self, call: Call, error: MetadError) -> MetadError | None:
        """Have the call retried, or return the error that ends it."""
        decision = verdict(call, error, self._loop.time(), self._backoff, self._rng, self._budget)
        if isinstance(decision, MetadError):
            return decision
        self._queue.push(decision, call)
        self._alarm.set(decision)
        return None

    def hurry(self, group: str, node: str) -> None:
        """A node leads the group. End the wait of calls that others refused: only their target was wrong."""
        now = self._loop.time()
        for call in self._queue.calls():
            if call.group == group and call.astray and call.refused_by != node:
                self._queue.push(now, call)
                self._alarm.set(now)

    def calls(self) -> list[Call]:
        """Those that have not ended."""
        return self._queue.calls()

    def close(self) -> None:
        """End nobody's wait any more."""
        self._alarm.cancel()

    def _ring(self, now: float) -> None:
        calls = self._queue.pop_due(now)
        if (next_due := self._queue.next_due()) is not None:
            self._alarm.set(next_due)
        for call in calls:
            call.retried()
        self._due(calls)
