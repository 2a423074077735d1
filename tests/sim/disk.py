"""An engine and a file on a disk that loses power, fills up, is slow and rots.

The map is what a reader sees; beside it a journal holds how to undo every write that is not durable yet, oldest first.
A crash undoes a suffix of it: a disk may have written more than was synced, but never a write without those before it.
A damaged value is a mark in the map in place of the value, so undoing the write that hid it brings it back.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from sortedcontainers import SortedDict

from metad.errors import DamagedStoreError, StorageError
from metad.storage.engine import NO_WRITES, PART_BYTES, UNBOUNDED_BYTES, Figures, Writes
from metad.storage.keys import after_prefix
from metad.storage.log import LogStore
from metad.storage.memory import BriefPin, CopiedPin, PackedExport, unpack

_ABSENT = object()
_DAMAGED = object()
_VERSIONS_KEPT = 8
_NEWEST_SHARE = 0.5
_TORN_SHARE = 0.2

Undo = list[tuple[bytes, object]]
"""(key, what was there before), oldest first."""


class SimDisk:
    """Implements :class:`metad.storage.engine.Engine`."""

    def __init__(self) -> None:
        self._map: SortedDict = SortedDict()
        self._journal: deque[Undo] = deque()  # one per write that is not durable
        self._durable = 0  # writes that are, of all there ever were
        self.fail_writes = False
        """The disk is full: writes raise and change nothing."""
        self.fail_syncs = False
        """Syncs raise and make nothing durable; a crash may keep it all the same."""
        self.flushes = 0
        """Calls of :meth:`flush`."""

    @property
    def unsynced(self) -> int:
        """Writes that a crash may lose."""
        return len(self._journal)

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._map.get(key)
        if value is _DAMAGED:
            raise _damaged(key)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def scan(self, begin: bytes, end: bytes, limit: int, bytes_max: int = UNBOUNDED_BYTES) -> list[tuple[bytes, bytes]]:
        return self._scan(begin, end, limit, bytes_max, reverse=False)

    def scan_backwards(self, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return self._scan(begin, end, limit, UNBOUNDED_BYTES, reverse=True)

    def write(self, *batches: Writes, delete_ranges: Sequence[tuple[bytes, bytes]] = ()) -> None:
        if self.fail_writes:
            raise StorageError("cannot write: no space is left on the disk")
        undo: Undo = []
        entries = self._map
        for begin, end in delete_ranges:
            for key in list(entries.irange(begin, end, inclusive=(True, False))):
                undo.append((key, entries.pop(key)))
        for writes in batches:
            for key, value in writes.items():
                undo.append((key, entries.get(key, _ABSENT)))
                if value is None:
                    entries.pop(key, None)
                else:
                    entries[key] = value
        self._journal.append(undo)

    def export(self, begin: bytes, end: bytes, part_bytes: int = PART_BYTES) -> PackedExport:
        return PackedExport(self.scan(begin, end, len(self._map)), part_bytes)

    def pin(self, begin: bytes, end: bytes, *, brief: bool = False) -> CopiedPin | BriefPin:
        return BriefPin(self, begin, end) if brief else CopiedPin(self.scan(begin, end, len(self._map)))

    def replace(self, begin: bytes, end: bytes, parts: Sequence[bytes | Path], writes: Writes = NO_WRITES) -> None:
        self.write(unpack(begin, end, parts), writes, delete_ranges=[(begin, end)])
        self.sync()

    def sync(self) -> None:
        self.finish_sync(self.begin_sync())

    def flush(self) -> None:
        self.flushes += 1

    def take_worn(self) -> None:
        """Deleted pairs are gone at once."""

    def compact(self, begin: bytes, end: bytes) -> None:
        """There is nothing to drop."""

    def figures(self) -> Figures:
        return Figures(pairs=len(self._map))

    @property
    def files_bytes(self) -> int:
        """There are no files."""
        return 0

    def heed_room(self, mark_bytes: int, files_bytes: int) -> None:
        """The same."""

    @property
    def reclaiming_bytes(self) -> int:
        """The same."""
        return 0

    def reclaim(self, left_bytes: int | None = None, spare_bytes: int = 0) -> int:
        """There is nothing to drop."""
        return 0

    def begin_sync(self) -> int:
        """Start a sync that takes virtual time; the token stands for every write until now."""
        return self._durable + len(self._journal)

    def finish_sync(self, token: int) -> None:
        """What the token stands for is durable now, and nothing after it. One begun before a crash has no effect."""
        if self.fail_syncs:
            raise StorageError("cannot sync: the disk reported an error")
        while self._durable < token:
            self._journal.popleft()
            self._durable += 1

    def close(self) -> None:
        pass

    def crash(self, rng: random.Random, *, torn: bool = False) -> int:
        """Lose power and open again: of the writes that were not durable, the first few stay, at random, and from now
        on they are durable. ``torn``: the last of them was on its way and is dropped as well. Returns how many were
        lost. A full or failing disk stays so."""
        kept = rng.randint(0, len(self._journal))
        if torn:
            kept = max(0, kept - 1)
        lost = len(self._journal) - kept
        for _ in range(lost):
            for key, before in reversed(self._journal.pop()):
                if before is _ABSENT:
                    self._map.pop(key, None)
                else:
                    self._map[key] = before
        # Past every token there is, so that no sync from before the crash covers a write after it.
        self._durable += kept + lost
        self._journal.clear()
        return lost

    def flip_bit(self, rng: random.Random, prefix: bytes = b"") -> bytes | None:
        """Damage one entry whose key starts with ``prefix``: reads of it raise DamagedStoreError until it is written
        again. Returns its key, None where there is no entry."""
        end = after_prefix(prefix) if prefix.rstrip(b"\xff") else None
        keys = list(self._map.irange(prefix, end, inclusive=(True, False)))
        if not keys:
            return None
        key: bytes = rng.choice(keys)
        self._map[key] = _DAMAGED
        return key

    def _scan(
        self, begin: bytes, end: bytes, limit: int, bytes_max: int, *, reverse: bool
    ) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        for key in self._map.irange(begin, end, inclusive=(True, False), reverse=reverse):
            if len(found) >= limit or bytes_max <= 0:
                break
            value = self._map[key]
            if value is _DAMAGED:
                raise _damaged(key)
            found.append((key, value))
            bytes_max -= len(key) + len(value)
        return found


def _damaged(key: bytes) -> DamagedStoreError:
    return DamagedStoreError(f"the entry of key {key.hex()} is damaged: its checksum does not match its value")


class SimFile:
    """Implements :class:`metad.storage.log.MarkFile` on a disk that loses power."""

    def __init__(self) -> None:
        self._versions = [b""]  # what is durable, then every write since

    def read(self) -> bytes:
        return self._versions[-1]

    def write(self, data: bytes) -> None:
        self._versions = [*self._versions[-_VERSIONS_KEPT:], data + self._versions[-1][len(data) :]]

    def sync(self) -> None:
        self._versions = self._versions[-1:]

    def close(self) -> None:
        pass

    def crash(self, rng: random.Random) -> None:
        """The power fails: the newest version is left or any since the last sync, at times with the beginning of
        another."""
        left = self._versions[-1] if rng.random() < _NEWEST_SHARE else rng.choice(self._versions)
        if rng.random() < _TORN_SHARE:
            torn = rng.choice(self._versions)
            at = rng.randint(0, len(torn))
            left = torn[:at] + left[at:]
        self._versions = [left]


class LogSync:
    """One sync of a log store that takes virtual time: the store's own steps around the disk's."""

    def __init__(self, store: LogStore) -> None:
        disk = store.engine
        assert isinstance(disk, SimDisk)
        self._disk = disk
        self._steps = store.sync_steps()
        next(self._steps)
        self._token = disk.begin_sync()

    def finish(self) -> None:
        """It is over. Raises StorageError where the disk fails."""
        self._disk.finish_sync(self._token)
        for _ in self._steps:
            raise AssertionError("a sync of the log has another step that blocks")
