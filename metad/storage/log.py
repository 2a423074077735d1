"""The Raft log of every group, in one engine: entries by index, metadata beside them.

Entries are opaque here. Appends of many groups go into one atomic write (group commit); durability comes from
one :meth:`LogStore.sync`. Indexes of a group are contiguous; :meth:`LogStore.read` verifies it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import DamagedStoreError
from . import keys
from .engine import Engine
from .mark import DurableMark

_READ_ENTRIES = 256  # entries fetched per engine call when reading a range
_READ_BYTES = 4 * 1024 * 1024  # of them; an entry may take 16 MiB, and a restart must not need gigabytes


class LogStore:
    """Logs of all groups of a process."""

    def __init__(self, engine: Engine, mark: DurableMark | None = None) -> None:
        self.engine = engine
        self._mark = mark
        self._last: dict[bytes, int] = {}  # group -> index of its last entry

    def open_group(self, group: bytes, name: str) -> tuple[int, int]:
        """(first, last) index of a group's log, (1, 0) where it is empty. Raises DamagedStoreError where it ends before
        its durable mark."""
        begin, end = keys.log_entry(group, 0), keys.log_entry(group, 2**64 - 1)
        first_index, last_index = 1, 0
        if first := self.engine.scan(begin, end, 1):
            first_index = keys.log_index(first[0][0])
            last_index = keys.log_index(self.engine.scan_backwards(begin, end, 1)[0][0])
        marked = 0 if self._mark is None else self._mark.get(group)
        if last_index < marked:
            raise DamagedStoreError(
                f"the log of group {name} ends at entry {last_index}, but entry {marked} had been made durable: raft/ "
                "has lost its tail. Restore the data directory from a backup; starting without it would lose "
                "acknowledged writes."
            )
        self._last[group] = last_index
        return first_index, last_index

    def append(self, entries: Sequence[tuple[bytes, int, bytes]]) -> None:
        """Write (group prefix, index, entry) of any number of groups at once. Not durable before :meth:`sync`."""
        self.engine.write({keys.log_entry(group, index): entry for group, index, entry in entries})
        for group, index, _ in entries:
            self._last[group] = index

    def read(self, group: bytes, begin: int, end: int, name: str) -> list[tuple[int, bytes]]:
        """Entries from ``begin`` on, below ``end``: at least one, and as many as 4 MiB hold. Raises
        DamagedStoreError on a gap."""
        end = min(end, begin + _READ_ENTRIES)
        found = self.engine.scan(keys.log_entry(group, begin), keys.log_entry(group, end), end - begin, _READ_BYTES)
        entries = [(keys.log_index(key), value) for key, value in found]
        # Short is not yet a gap: whoever reads on asks for what is missing here, and finds nothing at its beginning.
        if not entries or entries[-1][0] != begin + len(entries) - 1:
            have = {index for index, _ in entries}
            missing = next(index for index in range(begin, end) if index not in have)
            raise DamagedStoreError(
                f"the log of group {name} lacks entry {missing} (wanted {begin} to {end - 1}). Restore the data "
                "directory from a backup; starting without it would lose acknowledged writes."
            )
        return entries

    def truncate_prefix(self, group: bytes, first: int, through: int) -> None:
        """Forget entries ``first`` to ``through``, both included."""
        self.engine.write(delete_ranges=[(keys.log_entry(group, first), keys.log_entry(group, through + 1))])

    def sync(self) -> None:
        """Make every append that returned before this call durable. Blocks; call it in a thread."""
        last = self._last.copy()
        self.engine.sync()
        if self._mark is not None:
            self._mark.advance(last)

    def close(self) -> None:
        """Release the engine."""
        if self._mark is not None:
            self._mark.close()
        self.engine.close()

    def get_metadata(self, group: bytes) -> bytes | None:
        """A group's metadata record."""
        return self.engine.get(keys.log_metadata(group))

    def put_metadata(self, group: bytes, value: bytes) -> None:
        """Replace a group's metadata record; durable after :meth:`sync`."""
        self.engine.write({keys.log_metadata(group): value})
