"""The Raft log of every group, in one engine: entries by index, metadata beside them.

::

    raft/   <group: u8 kind, u16 ordinal> <u8 0 = metadata, 1 = entry> [<index: u64>]

Entries are opaque here. What many groups append goes into one atomic write (group commit); durability comes from one
:meth:`LogStore.sync`. Indexes of a group are contiguous; :meth:`LogStore.read` verifies it.

A mark records how far the log of every group is durable, outside of the log. RocksDB has to accept a torn last record
of its WAL, because a crash leaves one. So a WAL that was cut off, or whose damage looks like a torn record, opens
without complaint although acknowledged entries are missing. The mark tells the two apart: it is written after every
fsync of the log, and a log that ends before its mark has lost something.

The mark itself is not synced, so it costs a copy into the page cache. After the death of the process it is exact; after
a power loss it may be older than the log, or torn and then ignored; it is never ahead. If a log shrinks at its end (a
follower drops entries that were never committed), the mark is lowered first, and that is synced: otherwise a power loss
could bring back the higher mark and leave the shorter log.

The :class:`LogWriter` does the group commit: what all groups write in one turn of the loop becomes one atomic write,
and one fsync makes it durable. The write goes to RocksDB unsynced, on the loop (it is a memory copy and one ``write``
system call). The fsync runs in a thread of its own, which needs the interpreter only to be woken and to report, so the
loop evaluates the next entries meanwhile. An fsync covers every write made before it started; while one runs, the next
writes wait for the one after.

Writes are numbered. A group stages what it wants to be durable, remembers the number, and is told when that number is
on the disk; what must not leave the node before (votes, acknowledgements) waits for it.
"""

from __future__ import annotations

import asyncio
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol
from zlib import crc32

from ..errors import DamagedStoreError, StorageError, file_error
from .engine import Engine
from .keys import GROUP_PREFIX_BYTES, u64

_MAGIC = b"metadmk1"
_row = struct.Struct(f">{GROUP_PREFIX_BYTES}sQ")
_checksum = struct.Struct(">I")
_index = struct.Struct(">Q")


HEADER_BYTES = 9
"""Of a record of the log: its term, and its kind."""
ENTRY_KIND = 0
"""The kind of a record that has an entry. Those of other kinds are Raft's own."""


def log_metadata(group: bytes) -> bytes:
    """raft/: a group's term, vote and configuration."""
    return group + b"\x00"


def log_entry(group: bytes, index: int) -> bytes:
    """raft/: one log entry."""
    return group + b"\x01" + u64(index)


def log_index(key: bytes) -> int:
    """raft/: the index in an entry's key."""
    return int(_index.unpack_from(key, GROUP_PREFIX_BYTES + 1)[0])


class MarkFile(Protocol):
    """The file of a mark. Its methods may raise OSError."""

    def read(self) -> bytes:
        """Everything."""

    def write(self, data: bytes) -> None:
        """Overwrite the beginning. Visible at once; a power loss may bring the old bytes back, or mix both."""

    def sync(self) -> None:
        """Make durable what was written."""

    def close(self) -> None:
        """Release it."""


class SystemFile:
    """A file of the operating system."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def read(self) -> bytes:
        return self._path.read_bytes()

    def write(self, data: bytes) -> None:
        os.pwrite(self._file, data, 0)

    def sync(self) -> None:
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)


class DurableMark:
    """Last durable index by group prefix, in a small file. Not for two threads at once."""

    def __init__(self, path: Path, open_file: Callable[[Path], MarkFile] = SystemFile) -> None:
        self.path = path
        try:
            self._file = open_file(path)
            self._indexes = _parse(self._file.read())
        except OSError as error:
            raise file_error(f"cannot open {path}", error) from None

    def get(self, group: bytes) -> int:
        """The index that the group's log must at least reach; 0 if unknown."""
        return self._indexes.get(group, 0)

    def advance(self, indexes: Mapping[bytes, int]) -> None:
        """Record that the logs are durable through these indexes."""
        self._indexes.update(indexes)
        self._write()

    def lower(self, group: bytes, index: int) -> None:
        """Record that the group's log is about to end at ``index``."""
        if self._indexes.get(group, 0) > index:
            self._indexes[group] = index
            self._write()
            self._sync()

    def _write(self) -> None:
        body = _MAGIC + b"".join([_row.pack(group, index) for group, index in self._indexes.items()])
        try:
            self._file.write(body + _checksum.pack(crc32(body)))
        except OSError as error:
            raise file_error(f"cannot write {self.path}", error) from None

    def _sync(self) -> None:
        try:
            self._file.sync()
        except OSError as error:
            raise file_error(f"cannot sync {self.path}", error) from None

    def close(self) -> None:
        """Release the file."""
        self._file.close()


def _parse(data: bytes) -> dict[bytes, int]:
    """The indexes, or nothing if the file is torn."""
    body = data[: -_checksum.size]
    if not body.startswith(_MAGIC) or data[len(body) :] != _checksum.pack(crc32(body)):
        return {}
    rows = body[len(_MAGIC) :]
    return dict(_row.iter_unpack(rows)) if len(rows) % _row.size == 0 else {}


_READ_ENTRIES = 256  # entries fetched per engine call when reading a range
_READ_BYTES = 4 * 1024 * 1024  # bytes fetched likewise; an entry may take 16 MiB, and a restart must not need gigabytes


class LogStore:
    """Logs of all groups of a process."""

    def __init__(self, engine: Engine, mark: DurableMark | None = None) -> None:
        self.engine = engine
        self.synced: Callable[[float], None] = _nobody_asks
        """Told how long each sync of :class:`ThreadSyncer` took, in its thread."""
        self._mark = mark
        self._last: dict[bytes, int] = {}  # group -> index of its last entry
        self._shortened: list[dict[bytes, int]] = []  # of each sync that runs: the last entries of logs that shrank
        self._lock = threading.Lock()  # for those two: a sync runs in a thread

    def open_group(self, group: bytes, name: str, base: int = 0) -> tuple[int, int]:
        """(first, last) index of a group's log; (base + 1, base) if it has no entry. Raises DamagedStoreError if the
        log ends before its durable mark."""
        begin, end = log_entry(group, 0), log_entry(group, 2**64 - 1)
        first_index, last_index = base + 1, base
        if first := self.engine.scan(begin, end, 1):
            first_index = log_index(first[0][0])
            last_index = log_index(self.engine.scan_backwards(begin, end, 1)[0][0])
        marked = 0 if self._mark is None else self._mark.get(group)
        if last_index < marked:
            raise DamagedStoreError(
                f"the log of group {name} ends at entry {last_index}, but entry {marked} was durable: raft/ "
                "has lost its tail"
            )
        self._last[group] = last_index
        return first_index, last_index

    def write(
        self,
        writes: Mapping[bytes, bytes | None],
        delete_ranges: Sequence[tuple[bytes, bytes]],
        last: Mapping[bytes, int],
    ) -> None:
        """Delete ranges, then put and delete keys, all at once; ``last`` holds the new ends of logs by group prefix.
        Not durable before :meth:`sync`."""
        self.engine.write(writes, delete_ranges=delete_ranges)
        with self._lock:
            self._last.update(last)

    def shorten(self, group: bytes, last_index: int) -> None:
        """The next write drops entries behind ``last_index``: from now on the durable mark does not require them."""
        with self._lock:
            self._last[group] = last_index
            for shortened in self._shortened:
                shortened[group] = last_index
            if self._mark is not None:
                self._mark.lower(group, last_index)

    def read(
        self, group: bytes, begin: int, end: int, name: str, bytes_max: int = _READ_BYTES
    ) -> list[tuple[int, bytes]]:
        """Entries from ``begin`` on, below ``end``: at least one, and as many as fit into ``bytes_max`` and 4 MiB.
        Raises DamagedStoreError on a gap."""
        end = min(end, begin + _READ_ENTRIES)
        size = min(bytes_max, _READ_BYTES)
        found = self.engine.scan(log_entry(group, begin), log_entry(group, end), end - begin, size)
        entries = [(log_index(key), value) for key, value in found]
        # A short result is not yet a gap: the next read begins at the missing entry and finds nothing there.
        if not entries or entries[-1][0] != begin + len(entries) - 1:
            have = {index for index, _ in entries}
            missing = next(index for index in range(begin, end) if index not in have)
            raise DamagedStoreError(f"the log of group {name} lacks entry {missing} (wanted {begin} to {end - 1})")
        return entries

    def sync(self) -> None:
        """Make every write that returned before this call durable. Blocks; call it in a thread. Several may run at
        once."""
        for blocks in self.sync_steps():
            blocks()

    def sync_steps(self) -> Iterator[Callable[[], None]]:
        """The blocking steps of a sync, for a simulation that lets other things happen meanwhile. Use it up, and call
        each step before asking for the next."""
        shortened: dict[bytes, int] = {}
        with self._lock:
            last = self._last.copy()
            self._shortened.append(shortened)
        try:
            yield self.engine.sync
            if self._mark is not None:
                with self._lock:
                    for group, index in shortened.items():
                        last[group] = min(last.get(group, index), index)
                    self._mark.advance(last)
        finally:
            with self._lock:
                self._shortened = [other for other in self._shortened if other is not shortened]

    def close(self) -> None:
        """Release the engine."""
        if self._mark is not None:
            self._mark.close()
        self.engine.close()

    def get_metadata(self, group: bytes) -> bytes | None:
        """A group's metadata record."""
        return self.engine.get(log_metadata(group))


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
                    begun_s = time.perf_counter()
                    self._store.sync()
                    self._store.synced(time.perf_counter() - begun_s)
            except StorageError as caught:
                error = caught
            try:
                self._loop.call_soon_threadsafe(done, error)
            except RuntimeError:  # the loop was closed without us
                return


def _nobody_asks(_: float) -> None:
    """It is not counted."""


def _nothing() -> None:
    """Nobody wants to be called back."""
