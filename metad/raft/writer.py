"""Group commit: what all groups append in one turn of the loop becomes one write, and one fsync makes it durable.

The write goes to RocksDB unsynced, on the loop (it is a memory copy and one ``write`` system call). The fsync runs in a
thread of its own, which needs the interpreter only to be woken and to report, so the loop evaluates the next entries
meanwhile. An fsync covers every write made before it started; while one runs, the next writes wait for the one after.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from ..errors import StorageError
from ..storage.log import LogStore


class LogWriter:
    """Owned by the event loop. ``failed`` is called once, with the error that makes the log unusable."""

    def __init__(self, store: LogStore, *, fsync: bool, failed: Callable[[StorageError], None]) -> None:
        self._store = store
        self._fsync = fsync
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._pending: list[tuple[bytes, int, bytes]] = []
        self._pending_callbacks: list[Callable[[], None]] = []
        self._written: deque[list[Callable[[], None]]] = deque()  # one list per write that is not durable yet
        self._syncing = 0  # how many of those the running fsync covers
        self._broken = False
        self._orders: SimpleQueue[int | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._sync_forever, name="metad-fsync", daemon=True)
        self.after_durable: Callable[[], None] = _nothing
        self.entries = 0
        self.syncs = 0

    def start(self) -> None:
        """Start the fsync thread."""
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether something is on its way to the disk; ``after_durable`` is called when it is there."""
        return self._syncing > 0

    def append(self, group: bytes, index: int, entry: bytes, durable: Callable[[], None]) -> None:
        """Queue an entry for the next :meth:`flush`."""
        self._pending.append((group, index, entry))
        self._pending_callbacks.append(durable)

    def flush(self) -> None:
        """Write what was queued and see to it that an fsync follows."""
        if not self._pending or self._broken:
            return
        entries, self._pending = self._pending, []
        callbacks, self._pending_callbacks = self._pending_callbacks, []
        try:
            self._store.append(entries)
        except StorageError as error:
            self._break(error)
            return
        self.entries += len(entries)
        self._written.append(callbacks)
        if not self._syncing:
            self._order()

    def close(self) -> None:
        """Stop the thread; blocks until a running fsync is over."""
        self._broken = True
        self._orders.put(None)
        self._thread.join()

    def _order(self) -> None:
        self._syncing = len(self._written)
        self._orders.put(self._syncing)

    def _sync_forever(self) -> None:
        while (count := self._orders.get()) is not None:
            error: StorageError | None = None
            try:
                if self._fsync:
                    self._store.sync()
            except StorageError as caught:
                error = caught
            try:
                self._loop.call_soon_threadsafe(self._synced, count, error)
            except RuntimeError:  # the loop was closed without us
                return

    def _synced(self, count: int, error: StorageError | None) -> None:
        if self._broken:
            return
        if error is not None:
            self._break(error)
            return
        self.syncs += 1
        durable = [self._written.popleft() for _ in range(count)]
        self._syncing = 0
        # The next fsync starts before the callbacks run: the disk works while the loop applies and replies.
        if self._written:
            self._order()
        for callbacks in durable:
            for callback in callbacks:
                callback()
        self.after_durable()

    def _break(self, error: StorageError) -> None:
        self._broken = True
        self._written.clear()
        self._failed(error)


def _nothing() -> None:
    """What happens after callbacks until the owner says otherwise."""
