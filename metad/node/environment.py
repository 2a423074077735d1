"""The world that a node needs: time, a queue of callbacks, disk syncs beside the loop, blocking work; and how deadlines
are looked at while something waits.

:class:`AsyncEnvironment` is the real one. A simulation has its own, and runs the same node.
"""

from __future__ import annotations

import asyncio
import enum
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from metad_wire.transport.fair_share import FairShare

from ..control.brokers.evidence import Answer
from ..storage.log import LogStore, Syncer, ThreadSyncer
from ..storage.room import DiskUse, use_of


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""


class Dial(Protocol):
    """A way to learn whether anybody listens. It may be called only on the loop, as ``done`` is."""

    def __call__(self, host: str, port: int, done: Callable[[Answer], None], /) -> None:
        """Connect, say nothing, and close; then say what came of it."""


def nobody_is_dialled(host: str, port: int, done: Callable[[Answer], None], /) -> None:
    """For nodes without sockets."""
    done(Answer.UNKNOWN)


class Queue(enum.Enum):
    """Of works beside the loop: what takes long holds up nobody who waits for little."""

    SYNCS = "syncs"
    """Milliseconds, and a peer waits for it."""
    FLUSHES = "flushes"
    """Of the state's memtables: a second and more."""
    LONG = "long"
    """Many seconds."""
    BACKUPS = "backups"
    """Many seconds; nobody but a backup waits for it."""
    COMPARISONS = "comparisons"
    """Milliseconds of work with rests in between, for which nobody waits."""
    LOOKS = "looks"
    """Microseconds; if the disk hangs, for ever, and nobody else waits for it."""


class Environment(Protocol):
    """The world as a node sees it. Callbacks run one at a time, never inside the call that requests them."""

    rng: random.Random

    def catch(self, caught: Callable[[Exception], None]) -> None:
        """Give this, from now on, what a callback raises: it would end whatever the callback belongs to for ever."""

    def now(self) -> float:
        """Monotonic time in seconds, including the time in which the machine is suspended: leases depend on that."""

    def is_behind(self) -> bool:
        """Whether requests have come that are yet to be begun."""

    def wall_ms(self) -> int:
        """The calendar time in milliseconds."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call after everything that is already queued."""

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        """Call at a time of :meth:`now`."""

    def syncer(self, store: LogStore, *, fsync: bool) -> Syncer:
        """The syncer of the log."""

    def beside(
        self, work: Callable[[], None], done: Callable[[BaseException | None], None], queue: Queue = Queue.FLUSHES
    ) -> None:
        """Do blocking work beside the loop, then call ``done`` on the loop. The works of a queue run one after the
        other."""

    def disk_use(self, directory: Path | None) -> DiskUse | None:
        """The room on the disk of the data directory; None for a node that keeps everything in memory. May raise
        OSError, and may hang as the disk does."""

    def close(self) -> None:
        """Wait for the work that runs beside the loop. Nobody is told of it any more, and no other begins."""


class AsyncEnvironment:
    """The running event loop, threads, and the clocks of the system."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = {queue: ThreadPoolExecutor(1, f"metad-{queue.value}") for queue in Queue}
        self._turns = FairShare.here()
        self.rng = random.Random()
        self._caught: Callable[[Exception], None] | None = None
        self._closed = False

    def catch(self, caught: Callable[[Exception], None]) -> None:
        self._caught = caught

    def _run(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:
            if self._caught is None:
                raise
            self._caught(error)

    def now(self) -> float:
        # The loop's own clock, CLOCK_MONOTONIC, stands still while the machine is suspended.
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def is_behind(self) -> bool:
        return self._turns.is_behind

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(self._run, callback)

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(max(0.0, when_s - self.now()), self._run, callback)

    def syncer(self, store: LogStore, *, fsync: bool) -> Syncer:
        return ThreadSyncer(store, fsync=fsync)

    def beside(
        self, work: Callable[[], None], done: Callable[[BaseException | None], None], queue: Queue = Queue.FLUSHES
    ) -> None:

        def report(future: asyncio.Future[Any]) -> None:
            if not self._closed:  # what it would go on with is closed, too
                self._run(partial(done, future.exception()))

        if self._closed:
            return
        self._loop.run_in_executor(self._threads[queue], work).add_done_callback(report)

    def disk_use(self, directory: Path | None) -> DiskUse | None:
        return None if directory is None else use_of(directory)

    def close(self) -> None:
        self._closed = True
        for threads in self._threads.values():
            threads.shutdown()


_EVERY_S = 0.1


class Deadlines:
    """Calls ``look`` with the time until it reports that nothing waits any more."""

    def __init__(self, environment: Environment, look: Callable[[float], bool]) -> None:
        self._environment = environment
        self._look = look
        self._timer: Timer | None = None

    def arm(self) -> None:
        """Start checking: something waits."""
        if self._timer is None:
            self._timer = self._environment.call_at(self._environment.now() + _EVERY_S, self._due)

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self._timer = None
        if self._look(self._environment.now()):
            self.arm()
