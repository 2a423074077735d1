"""Reads a group's log for one stream that is behind, in pieces that are over soon whatever the entries are like: many
small ones, or one with a thousand writes, which is looked at in parts. A piece ends within an entry only if that is
larger than a piece. It has no more entries in its hands than are fetched at once.

For those who ask for the value before, it keeps the values that the stream has seen: what is behind it is overwritten
in the state already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import length_hint
from typing import Final, NamedTuple

from ..state.core.entry import Entry
from ..state.core.part import Origin
from .changes import Change, EntryChanges, with_previous
from .filters import OWNER, Interest
from .index import Index
from .seams import Replica

_BYTES_MAX: Final = 1024 * 1024
"""Of keys and values; the oldest are forgotten."""
_KEY_BYTES: Final = 100  # of a key that is remembered, beside itself and its value


class Seen:
    """The newest values of keys, as the log has them up to some entry."""

    def __init__(self, group: bytes) -> None:
        self._group = group
        self._values: dict[tuple[int, bytes], bytes | None] = {}
        self._bytes = 0

    def passed_by(self, changes: EntryChanges, found: list[Change]) -> list[Change]:
        """The stream comes to an entry, and these are the changes that it wants. Returns them with the values before,
        where they are known, and remembers those that they bring."""
        if changes.entry.origin == Origin.MIGRATION and len(changes.entry):
            # It may bring newer values of the same keys, which were written in another group.
            self._values.clear()
            self._bytes = 0
        told = [self._told(changes, change) for change in found]
        self.shrink(_BYTES_MAX)
        return told

    def shrink(self, bytes_max: int) -> None:
        """Forget the oldest values, until no more bytes are left."""
        while self._bytes > bytes_max:
            at = next(iter(self._values))
            self._bytes -= _size(at[1], self._values.pop(at))

    def _told(self, changes: EntryChanges, change: Change) -> Change:
        row, _, key, value, _, _ = change
        at = row, key
        known = at in self._values
        before = self._values.pop(at, None)
        if known:
            self._bytes -= _size(key, before)
        self._values[at] = value
        self._bytes += _size(key, value)
        if row == OWNER:
            owner = changes.owner_before(self._group + bytes((row,)) + key)
            if owner is not None:
                return with_previous(change, owner or None)
        return with_previous(change, before) if known else change


def _size(key: bytes, value: bytes | None) -> int:
    return _KEY_BYTES + len(key) + (0 if value is None else len(value))


_PIECE_WORK: Final = 256
"""Work of one piece, in writes looked at: some 0.2 ms."""
_ENTRY_WORK: Final = 8  # of an entry, beside its writes
_FETCH_BYTES: Final = 64 * 1024  # of the log, fetched at once; one entry may take more
_LOOK_BACK_ENTRIES: Final = 256
"""Entries before its position that are read for the values before."""


class Found(NamedTuple):
    """An entry that has been read, and the changes that the stream wants of it."""

    at: int
    """Its index."""
    entry: Entry
    changes: list[Change]

    @property
    def wanted(self) -> bool:
        """Whether it is to be reported."""
        return bool(self.changes) or self.entry.marker is not None


class LogReader:
    """Reads on behind ``position``."""

    def __init__(self, replica: Replica, interests: Sequence[Interest], position: int, *, previous: bool) -> None:
        self.work = 0
        """Done so far, in writes looked at."""
        self._replica = replica
        self._index: Index[None] = Index(replica.prefix)
        self._index.add(None, interests)
        self._seen = Seen(replica.prefix) if previous else None
        self._after = position
        self._read = max(replica.base, position - _LOOK_BACK_ENTRIES) if previous else position
        self._fetched: Iterator[Entry] = iter(())
        self._ahead: Entry | None = None  # fetched, and the next to be looked at
        self._part: _Part | None = None

    @property
    def within(self) -> bool:
        """Whether it is within an entry, which it would have to begin again."""
        return self._part is not None

    @property
    def looks_back(self) -> bool:
        """Whether it is not yet where it is to go on from."""
        return self._read < self._after

    def piece(self, end: int) -> list[Found]:
        """Do a piece of work towards entry ``end``. Returns the entries that were finished with it, in order."""
        found: list[Found] = []
        begun, until = self.work, self.work + _PIECE_WORK
        while self._read < end and self.work < until:
            part = self._part
            if part is None:
                if self._ahead is None:
                    self._ahead = next(self._fetched, None)
                entry = self._ahead
                if self.work > begun and (entry is None or self.work + _ENTRY_WORK + len(entry) > until):
                    break
                part = self._part = _Part(self._fetch(end) if entry is None else entry)
                self._ahead = None
                self.work += _ENTRY_WORK
            self.work += part.look(self._index, until - self.work)
            if part.done:
                self._part = None
                self._read += 1
                changes = part.found if self._seen is None else self._seen.passed_by(part.changes, part.found)
                if self._read > self._after:
                    found.append(Found(self._read, part.changes.entry, changes))
        return found

    def rest(self, seen_bytes: int) -> None:
        """Others are served before it goes on: keep nothing of the log, and so many bytes of the values before. It is
        not within an entry."""
        self._fetched, self._ahead = iter(()), None
        if self._seen is not None:
            self._seen.shrink(seen_bytes)

    def _fetch(self, end: int) -> Entry:
        """Fetch some entries. Returns the first."""
        if self._seen is not None and self._read < self._replica.base and self.looks_back:
            # What it looks back to was cut meanwhile. What it has seen may be overwritten by what it will not see.
            self._read = self._replica.base
            self._seen = Seen(self._replica.prefix)
        self._fetched = self._replica.entries(self._read + 1, end + 1, _FETCH_BYTES)
        return next(self._fetched)


class _Part:
    """An entry that is looked at in parts."""

    __slots__ = ("_left", "changes", "done", "found")

    def __init__(self, entry: Entry) -> None:
        self.changes = EntryChanges(entry)
        self.found: list[Change] = []
        self.done = False
        self._left = [(iter(writes), writes) for writes in entry if writes]

    def look(self, index: Index[None], work: int) -> int:
        """Look at some of the writes; returns at how many."""
        looked_at = 0
        while self._left and looked_at < work:
            keys, writes = self._left[0]
            some = list(islice(keys, work - looked_at))
            if not length_hint(keys):
                self._left.pop(0)  # at once: an entry is over with its last write
            looked_at += len(some)
            self.found += index.matches(self.changes, [(some, writes)]).get(None, ())
        self.done = not self._left
        return looked_at
