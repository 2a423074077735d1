"""Group commit: what all groups write to the log in one turn of the loop becomes one atomic write, and one fsync makes
it durable.

The write goes to RocksDB unsynced, on the loop (it is a memory copy and one ``write`` system call). The fsync runs in a
thread of its own, which needs the interpreter only to be woken and to report, so the loop evaluates the next entries
meanwhile. An fsync covers every write made before it started; while one runs, the next writes wait for the one after.

Writes are numbered. A group stages what it wants to be durable, remembers the number, and is told when that number is
on the disk; what must not leave the node before (votes, acknowledgements) waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from ...errors import StorageError
from ...storage.log import LogStore


class Syncer(Protocol):
    """Makes the log durable without blocking the loop."""

    def sync(self, done: Callable[[StorageError | None], None]) -> None:
        """Make durable what was written before this call, then call ``done`` on the loop. Not called again before."""

    def close(self) -> None:
        """No more calls; blocks until a running sync is over."""


class Listener(Protocol):
    """Who staged something."""

    def synced(self, number: int) -> None:
        """Every write up to this number is durable."""


class LogWriter:
    """Owned by the event loop. ``failed`` is called once, with the error that makes the log unusable."""

    def __init__(self, store: LogStore, syncer: Syncer, *, failed: Callable[[StorageError], None]) -> None:
        self._store = store
        self._syncer = syncer
        self._failed = failed
        self.writes: dict[bytes, bytes | None] = {}
        """What the next :meth:`flush` writes; the last value of a key counts."""
        self.number = 1
        """Of the write that :attr:`writes` will be."""
        self.durable = 0
        """Every write up to this number is durable."""
        self._ranges: list[tuple[bytes, bytes]] = []
        self._listeners: dict[Listener, None] = {}
        self._last: dict[bytes, int] = {}
        self._written: deque[tuple[int, list[Listener]]] = deque()  # not durable yet
        self._syncing = 0  # how many of those the running fsync covers
        self._broken = False
        self._after_durable: Callable[[], None] = _nothing
        self.entries = 0
        self.syncs = 0

    def after_durable(self, callback: Callable[[], None]) -> None:
        """Call back after every fsync, behind those whose writes it covered."""
        self._after_durable = callback

    @property
    def busy(self) -> bool:
        """Whether something is on its way to the disk."""
        return self._syncing > 0

    def changed(self, listener: Listener, group: bytes, last_index: int) -> int:
        """``listener`` put into :attr:`writes`, and its log now ends at ``last_index``. Returns the write's number."""
        self._listeners[listener] = None
        self._last[group] = last_index
        return self.number

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Have the next write delete a range first."""
        self._ranges.append((begin, end))

    def shortened(self, group: bytes, last_index: int) -> None:
        """Entries behind ``last_index`` are about to be dropped."""
        self._store.shorten(group, last_index)

    def flush(self) -> None:
        """Write what was staged and see to it that an fsync follows."""
        if self._broken or not (self._listeners or self._ranges):
            return
        writes, self.writes = self.writes, {}
        ranges, self._ranges = self._ranges, []
        listeners, self._listeners = self._listeners, {}
        last, self._last = self._last, {}
        try:
            self._store.write(writes, ranges, last)
        except StorageError as error:
            self._break(error)
            return
        self._written.append((self.number, list(listeners)))
        self.number += 1
        if not self._syncing:
            self._order()

    def close(self) -> None:
        """Forget what is staged; blocks until a running fsync is over."""
        self._broken = True
        self._syncer.close()

    def _order(self) -> None:
        self._syncing = len(self._written)
        self._syncer.sync(self._synced)

    def _synced(self, error: StorageError | None) -> None:
        if self._broken:
            return
        if error is not None:
            self._break(error)
            return
        self.syncs += 1
        covered = [self._written.popleft() for _ in range(self._syncing)]
        self._syncing = 0
        self.durable = covered[-1][0]
        # The next fsync starts before anybody is told: the disk works while the loop applies and replies.
        if self._written:
            self._order()
        for listener in {listener: None for _, listeners in covered for listener in listeners}:
            listener.synced(self.durable)
        self._after_durable()

    def _break(self, error: StorageError) -> None:
        self._broken = True
        self._written.clear()
        self._failed(error)


class ThreadSyncer:
    """Fsyncs in a thread. ``fsync=False`` only reports, for measuring what durability costs."""

    def __init__(self, store: LogStore, *, fsync: bool) -> None:
        self._store = store
        self._fsync = fsync
        self._loop = asyncio.get_running_loop()
        self._orders: SimpleQueue[Callable[[StorageError | None], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="metad-fsync", daemon=True)
        self._thread.start()

    def sync(self, done: Callable[[StorageError | None], None]) -> None:
        """See :class:`Syncer`."""
        self._orders.put(done)

    def close(self) -> None:
        """See :class:`Syncer`."""
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (done := self._orders.get()) is not None:
            error: StorageError | None = None
            try:
                if self._fsync:
                    self._store.sync()
            except StorageError as caught:
                error = caught
            try:
                self._loop.call_soon_threadsafe(done, error)
            except RuntimeError:  # the loop was closed without us
                return


def _nothing() -> None:
    """Nobody wants to be called back."""
