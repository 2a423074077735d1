"""What a node needs of the world: time, a queue of callbacks, a disk that syncs beside it, chance.

:class:`AsyncEnvironment` is the real one. A simulation has its own, and runs the same node.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from ..raft.writer import Syncer, ThreadSyncer
from ..storage.log import LogStore


class Timer(Protocol):
    """A call to come."""

    def cancel(self) -> None:
        """It will not."""


class Environment(Protocol):
    """The world as a node sees it. Callbacks run one at a time, never inside the call that asks for them."""

    rng: random.Random

    def now(self) -> float:
        """Monotonic, seconds. It counts the time during which the machine is suspended: leases rest on it."""

    def wall_ms(self) -> int:
        """Of the calendar."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Behind what is queued already."""

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        """At a time of :meth:`now`."""

    def syncer(self, store: LogStore, *, fsync: bool) -> Syncer:
        """For the log."""

    def beside(
        self, work: Callable[[], None], done: Callable[[BaseException | None], None], *, long: bool = False
    ) -> None:
        """Do blocking work beside the loop, then call ``done`` on it. One work after the other, and one ``long`` one,
        of seconds, after the other."""

    def close(self) -> None:
        """Wait for the work that runs beside."""


class AsyncEnvironment:
    """The running event loop, threads, and the clocks of the system."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = {
            long: ThreadPoolExecutor(1, "metad-long" if long else "metad-beside") for long in (False, True)
        }
        self.rng = random.Random()

    def now(self) -> float:
        """See :class:`Environment`."""
        # The loop's own clock, CLOCK_MONOTONIC, stands still while the machine is suspended.
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_ms(self) -> int:
        """See :class:`Environment`."""
        return time.time_ns() // 1_000_000

    def call_soon(self, callback: Callable[[], None]) -> None:
        """See :class:`Environment`."""
        self._loop.call_soon(callback)

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        """See :class:`Environment`."""
        return self._loop.call_later(max(0.0, when_s - self.now()), callback)

    def syncer(self, store: LogStore, *, fsync: bool) -> Syncer:
        """See :class:`Environment`."""
        return ThreadSyncer(store, fsync=fsync)

    def beside(
        self, work: Callable[[], None], done: Callable[[BaseException | None], None], *, long: bool = False
    ) -> None:
        """See :class:`Environment`."""

        def report(future: asyncio.Future[Any]) -> None:
            done(future.exception())

        self._loop.run_in_executor(self._threads[long], work).add_done_callback(report)

    def close(self) -> None:
        """See :class:`Environment`."""
        for threads in self._threads.values():
            threads.shutdown()
