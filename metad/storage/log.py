"""The Raft log of every group, in one engine: entries by index, metadata beside them.

Entries are opaque here. What many groups append goes into one atomic write (group commit); durability comes from
one :meth:`LogStore.sync`. Indexes of a group are contiguous; :meth:`LogStore.read` verifies it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..errors import DamagedStoreError
from . import keys
from .engine import Engine
from .mark import DurableMark

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
