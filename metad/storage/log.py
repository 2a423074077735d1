"""The Raft log of every group, in one engine: entries by index, metadata beside them.

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
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from zlib import crc32

from ..errors import DamagedStoreError, file_error
from . import keys
from .engine import Engine
from .keys import GROUP_PREFIX_BYTES

_MAGIC = b"metadmk1"
_row = struct.Struct(f">{GROUP_PREFIX_BYTES}sQ")
_checksum = struct.Struct(">I")


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
        self._mark = mark
        self._last: dict[bytes, int] = {}  # group -> index of its last entry
        self._shortened: list[dict[bytes, int]] = []  # of each sync that runs: the last entries of logs that shrank
        self._lock = threading.Lock()  # for those two: a sync runs in a thread

    def open_group(self, group: bytes, name: str, base: int = 0) -> tuple[int, int]:
        """(first, last) index of a group's log; (base + 1, base) if it has no entry. Raises DamagedStoreError if the
        log ends before its durable mark."""
        begin, end = keys.log_entry(group, 0), keys.log_entry(group, 2**64 - 1)
        first_index, last_index = base + 1, base
        if first := self.engine.scan(begin, end, 1):
            first_index = keys.log_index(first[0][0])
            last_index = keys.log_index(self.engine.scan_backwards(begin, end, 1)[0][0])
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
        found = self.engine.scan(keys.log_entry(group, begin), keys.log_entry(group, end), end - begin, size)
        entries = [(keys.log_index(key), value) for key, value in found]
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
        return self.engine.get(keys.log_metadata(group))
