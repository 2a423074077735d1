"""A group's log as Raft uses it: pysyncobj's Journal over the node's log store.

The tail is kept in memory, by bytes, so that followers, the apply loop and retransmissions rarely read the disk. The
term of any index is known without reading it: the *runs* (where each term begins) are part of the group's metadata
record, with term, vote, the log's base and the configurations. That record changes in the same atomic write as the
entries that change it, so no crash can tear them apart.

A record is ``u64 term, u8 kind, payload``; it is stored and sent as it is, never encoded again.

Whether the disk hangs is measured by what the log waits for.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from pysyncobj.journal import Journal

from metad_wire.cluster import GroupId

from ... import formats
from ...errors import DamagedStoreError, StorageError
from ...storage import keys
from ...storage.log import ENTRY_KIND, LogStore, LogWriter, log_entry, log_metadata
from ..base import Timing
from ..messages import Configuration

METADATA_FORMAT: Final = formats.LOG_METADATA.writes

# pysyncobj's command types: the byte behind the term.
REGULAR: Final = ENTRY_KIND
NO_OP: Final = 1
CONFIGURATION: Final = 2

HEADER: Final = struct.Struct(">QB")
_term_of = struct.Struct(">Q").unpack_from


class Metadata(msgspec.Struct, array_like=True, kw_only=True):
    """The group's metadata record. Indexes and terms of the base are those of the last entry that was dropped."""

    format: int = METADATA_FORMAT
    term: int = 0
    vote: str | None = None
    base_index: int = 0
    base_term: int = 0
    runs: list[tuple[int, int]] = []
    """(first index, term) of every term in the log, ascending."""
    configurations: list[tuple[int, Configuration]] = []
    """(index, configuration), ascending; the first is the one at the base."""
    removed: bool = False
    """The replica was taken out of its group and its data dropped. Term and vote stay, should it ever come back."""
    promise_ms: int = 0
    """For how long after it heard a leader this replica promised to vote for nobody else. 0: written before promises
    were."""


_decode = msgspec.msgpack.Decoder(Metadata).decode
_encode = msgspec.msgpack.Encoder().encode
_decode_configuration = msgspec.msgpack.Decoder(Configuration).decode


def record(term: int, kind: int, payload: bytes = b"") -> bytes:
    """A log record."""
    return HEADER.pack(term, kind) + payload


def was_here(store: LogStore, group: GroupId) -> bool | None:
    """Whether the node has a replica of a group. None means that it had one, which was removed."""
    stored = store.get_metadata(keys.group_prefix(group))
    if stored is None:
        return False
    try:
        return None if _decode(stored).removed else True
    except msgspec.DecodeError:
        return True  # opening it says what is wrong


class RaftLog(Journal):  # type: ignore[misc]  # pysyncobj is untyped
    """One group's log. Entries ``base_index + 1`` to ``last_index``; ``durable_index`` of them survive anything."""

    def __init__(
        self,
        group: GroupId,
        store: LogStore,
        writer: LogWriter,
        *,
        initial: Configuration,
        cache_bytes: int,
    ) -> None:
        self.group_id = group
        self.name = group.name
        self.prefix = keys.group_prefix(group)
        self._store = store
        self._writer = writer
        self._cache_bytes = cache_bytes
        self._meta = self._load(initial)
        meta = self._meta
        first, last = store.open_group(self.prefix, self.name, meta.base_index)
        last_run = meta.runs[-1][0] if meta.runs else meta.base_index
        if first != meta.base_index + 1 or last < last_run or (last > meta.base_index and not meta.runs):
            raise DamagedStoreError(
                f"the log of group {self.name} holds entries {first} to {last}, its metadata says it begins behind "
                f"{meta.base_index} and that its last term begins at {last_run}"
            )
        self.last_index: int = last
        self.durable_index: int = last
        self.bytes = 0
        """Of records appended and not dropped since, in this life; an estimate once some were dropped."""
        self._recovered = last
        self._records: dict[int, bytes] = {}  # the newest, by index, without a gap
        self._cached_from = last + 1
        self._cached = 0
        self._written: deque[tuple[int, int]] = deque()  # (number of the write, last index with it), not durable yet
        self._hard = 0  # number of the write with the newest term or vote
        self._key = log_metadata(self.prefix)
        self._on_durable: Callable[[], None] = _nothing

    def _load(self, initial: Configuration) -> Metadata:
        stored = self._store.get_metadata(self.prefix)
        if stored is None:
            return Metadata(configurations=[(0, initial)])
        try:
            meta = _decode(stored)
        except msgspec.DecodeError as error:
            raise DamagedStoreError(f"the metadata of group {self.name} in raft/ is unreadable ({error})") from None
        if meta.format != METADATA_FORMAT:
            raise StorageError(
                formats.refusal(f"the metadata of group {self.name} in raft/", formats.LOG_METADATA, meta.format)
            )
        return meta

    # --- what is where -----------------------------------------------------------------------------------

    @property
    def base_index(self) -> int:
        """The last index that is not in the log any more."""
        return self._meta.base_index

    @property
    def base_term(self) -> int:
        """Its term."""
        return self._meta.base_term

    @property
    def has_earlier(self) -> bool:
        """Whether it has entries of an earlier life of the process, which :attr:`bytes` does not count."""
        return self.base_index < self._recovered

    @property
    def last_term(self) -> int:
        """Of the last entry, or of the base."""
        runs = self._meta.runs
        return runs[-1][1] if runs else self._meta.base_term

    @property
    def term(self) -> int:
        """The newest term this replica has seen."""
        return self._meta.term

    @property
    def configuration(self) -> Configuration:
        """The newest in the log, committed or not."""
        return self._meta.configurations[-1][1]

    @property
    def configuration_index(self) -> int:
        """The entry that brought it."""
        return self._meta.configurations[-1][0]

    def configuration_at(self, index: int) -> Configuration:
        """The one in force with entry ``index``."""
        return next(c for at, c in reversed(self._meta.configurations) if at <= index)

    @property
    def hard_state_durable(self) -> bool:
        """Whether the current term and vote would survive a crash."""
        return self._writer.durable >= self._hard

    @property
    def cached_from(self) -> int:
        """The first index that is in memory."""
        return self._cached_from

    def term_at(self, index: int) -> int | None:
        """The term of entry ``index``; None where the log does not say."""
        meta = self._meta
        if index > self.last_index:
            return None
        if index <= meta.base_index:
            return meta.base_term if index == meta.base_index else None
        runs = meta.runs
        if index >= runs[-1][0]:
            return runs[-1][1]
        return runs[bisect_right(runs, index, key=_first) - 1][1]

    def last_index_of_term_up_to(self, index: int, term: int) -> tuple[int, int]:
        """The highest (index', term') with index' <= index and term' <= term: where a log that disagrees at ``index``
        may agree."""
        index = min(index, self.last_index)
        for position in range(len(self._meta.runs) - 1, -1, -1):
            first, run_term = self._meta.runs[position]
            if first > index:
                continue
            if run_term <= term:
                return index, run_term
            index = first - 1
        return self._meta.base_index, self._meta.base_term

    def records(self, begin: int, bytes_max: int, end: int | None = None) -> list[bytes]:
        """Records from ``begin`` on (below ``end``): at least one, and as many as ``bytes_max`` hold."""
        end = self.last_index + 1 if end is None else end
        found: list[bytes] = []
        if begin >= self._cached_from:
            cached = self._records
            for index in range(begin, end):
                data = cached[index]
                found.append(data)
                bytes_max -= len(data)
                if bytes_max <= 0:
                    break
            return found
        for index, data in self._store.read(self.prefix, begin, min(end, self._cached_from), self.name, bytes_max):
            if len(data) < HEADER.size or _term_of(data)[0] != self.term_at(index) or data[8] > CONFIGURATION:
                raise DamagedStoreError(
                    f"entry {index} of group {self.name} in the log is unreadable (no record of its term)"
                )
            found.append(data)
            bytes_max -= len(data)
            if bytes_max <= 0:
                break
        return found

    # --- changing it -------------------------------------------------------------------------------------

    def append(self, records: list[bytes]) -> int:
        """Add records behind the last. Returns the number of the write that holds them."""
        meta, writer, index = self._meta, self._writer, self.last_index
        term = self.last_term
        changed = False
        for data in records:
            index += 1
            record_term = _term_of(data)[0]
            if record_term != term:
                term = record_term
                meta.runs.append((index, term))
                changed = True
            elif not meta.runs:
                meta.runs.append((index, term))
                changed = True
            if data[8] == CONFIGURATION:
                meta.configurations.append((index, _decode_configuration(data[9:])))
                changed = True
            writer.writes[log_entry(self.prefix, index)] = data
            self._records[index] = data
            self._cached += len(data)
            self.bytes += len(data)
        writer.entries += len(records)
        self.last_index = index
        if changed:
            writer.writes[self._key] = _encode(meta)
        self._trim()
        number = self._staged()
        if self._written and self._written[-1][0] == number:
            self._written[-1] = (number, index)
        else:
            self._written.append((number, index))
        return number

    def truncate_from(self, index: int) -> None:
        """Drop entry ``index`` and what follows. Never what is committed: its caller sees to that."""
        meta, writer = self._meta, self._writer
        writer.shortened(self.prefix, index - 1)
        for at in range(index, self.last_index + 1):
            writer.writes[log_entry(self.prefix, at)] = None
            self._cached -= len(self._records.pop(at, b""))
        self.last_index = index - 1
        self._cached_from = min(self._cached_from, index)
        while meta.runs and meta.runs[-1][0] >= index:
            meta.runs.pop()
        while meta.configurations[-1][0] >= index:
            meta.configurations.pop()
        writer.writes[self._key] = _encode(meta)
        self.durable_index = min(self.durable_index, index - 1)
        self._written = deque((number, min(last, index - 1)) for number, last in self._written)
        self._staged()

    def compact(self, through: int) -> None:
        """Drop entries up to ``through``, which are in the durable state."""
        through = min(through, self.last_index)
        meta = self._meta
        if through <= meta.base_index:
            return
        self._writer.delete_range(log_entry(self.prefix, meta.base_index + 1), log_entry(self.prefix, through + 1))
        for at in range(max(self.durable_index, meta.base_index) + 1, through + 1):
            self._writer.writes.pop(log_entry(self.prefix, at), None)  # or it would be put behind the deletion
        kept = (self.last_index - through) / (self.last_index - meta.base_index)
        self.bytes = round(self.bytes * kept)
        for at in range(self._cached_from, through + 1):
            self._cached -= len(self._records.pop(at))
        self._cached_from = max(self._cached_from, through + 1)
        self.bytes = max(self.bytes, self._cached)
        self._rebase(through, self.term_at(through) or 0, self.configuration_at(through))

    def restart(self, index: int, term: int, configuration: Configuration) -> None:
        """A snapshot that ends with (index, term) is in the durable state: the log goes on from there, keeping what
        follows it where it agrees with it."""
        if self.term_at(index) == term and index > self.base_index:
            self.compact(index)
            return
        self._writer.shortened(self.prefix, min(index, self.last_index))
        self._drop_all()
        self.last_index = index
        self._cached_from = index + 1
        self._rebase(index, term, configuration)
        self._written.append((self._writer.number, index))

    def _drop_all(self) -> None:
        meta, writer = self._meta, self._writer
        writer.delete_range(log_entry(self.prefix, 0), log_entry(self.prefix, 2**64 - 1))
        for at in range(meta.base_index + 1, self.last_index + 1):
            writer.writes.pop(log_entry(self.prefix, at), None)
        self._records.clear()
        self._cached = self.bytes = 0
        self._written.clear()
        self.durable_index = 0  # until what takes its place is
        meta.runs.clear()
        meta.configurations.clear()

    def remove(self, term: int, vote: str | None, dropped: Callable[[], None]) -> None:
        """The replica is taken out of its group: drop every entry, but remember term and vote, without which it could
        vote twice if it ever came back, and that it was here, without which it could come back with the group's first
        configuration. ``dropped`` is called once that is durable."""
        meta = self._meta
        self._writer.shortened(self.prefix, 0)
        self._drop_all()
        meta.term, meta.vote, meta.removed = term, vote, True
        self.last_index = 0
        self._cached_from = 1
        self._rebase(0, 0, Configuration(()))
        number = self._writer.number

        def on_durable() -> None:
            if self._writer.durable >= number:
                self._on_durable = _nothing
                dropped()

        self._on_durable = on_durable

    @property
    def removed(self) -> bool:
        """Whether the replica is one that was taken out."""
        return self._meta.removed

    def come_back(self) -> None:
        """The replica is wanted again, and what was left of its state is gone. Remembered with the next change."""
        self._meta.removed = False

    def _rebase(self, index: int, term: int, configuration: Configuration) -> None:
        meta = self._meta
        meta.base_index, meta.base_term = index, term
        position = bisect_right(meta.runs, index, key=_first)
        if position and (position == len(meta.runs) or meta.runs[position][0] > index + 1):
            position -= 1
            meta.runs[position] = (index + 1, meta.runs[position][1])
        meta.runs = meta.runs[position:] if self.last_index > index else []
        later = [(at, c) for at, c in meta.configurations if at > index]
        meta.configurations = [(index, configuration), *later]
        self._writer.writes[self._key] = _encode(meta)
        self._staged()

    def save(self, term: int, vote: str | None) -> None:
        """Remember term and vote; durable once :attr:`hard_state_durable`."""
        meta = self._meta
        meta.term, meta.vote = term, vote
        self._writer.writes[self._key] = _encode(meta)
        self._hard = self._staged()

    @property
    def promise_ms(self) -> int:
        """The promise that the life before this one may have given."""
        return self._meta.promise_ms

    def promise(self, promise_ms: int) -> None:
        """Remember what is promised from now on; durable once :attr:`hard_state_durable`."""
        self._meta.promise_ms = promise_ms
        self._writer.writes[self._key] = _encode(self._meta)
        self._hard = self._staged()

    def synced(self, number: int) -> None:
        """Every write up to this number is durable."""
        written = self._written
        while written and written[0][0] <= number:
            self.durable_index = max(self.durable_index, written.popleft()[1])
        self._on_durable()

    def tell_durable(self, told: Callable[[], None]) -> None:
        """Call ``told`` after every fsync that covered something of this log."""
        self._on_durable = told

    def _staged(self) -> int:
        return self._writer.changed(self, self.prefix, self.last_index)

    def _trim(self) -> None:
        # What the engine has not been given yet is only here, but a turn of the loop stages less than the cache holds.
        while self._cached > self._cache_bytes and self._cached_from < self.last_index:
            if self._writer.writes.get(log_entry(self.prefix, self._cached_from)) is not None:
                return
            self._cached -= len(self._records.pop(self._cached_from))
            self._cached_from += 1

    # --- pysyncobj's Journal -----------------------------------------------------------------------------

    def add(self, command: bytes, idx: int, term: int) -> None:
        """A command (kind byte and payload) as entry ``idx``."""
        if idx != self.last_index + 1:
            raise AssertionError(f"{self.name}: entry {idx} appended behind {self.last_index}")
        self.append([term.to_bytes(8, "big") + command])

    def __len__(self) -> int:
        return self.last_index - self.base_index

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return [self[position] for position in range(*item.indices(len(self)))]
        index = self.last_index + 1 + item if item < 0 else self.base_index + 1 + item
        if index == self.base_index:  # [-1] of an empty log: where it begins
            return bytes((NO_OP,)), index, self.base_term
        data = self.records(index, 1)[0]
        return data[8:], index, _term_of(data)[0]

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        """Drop from this position on."""
        self.truncate_from(self.base_index + 1 + entryFrom)

    def deleteEntriesTo(self, entryTo: int) -> None:
        """Drop what is before this position."""
        self.compact(self.base_index + entryTo)

    def getCurrentTerm(self) -> int:
        """The stored term."""
        return self._meta.term

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        """Store term and vote."""
        self.save(term, votedForNodeId)

    def getVotedForNodeId(self) -> str | None:
        """The stored vote."""
        return self._meta.vote

    def getRaftCommitIndex(self) -> int:
        """Nothing below the base can be uncommitted; the rest is learned from the leader."""
        return self._meta.base_index

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Not stored: the state's applied index is a better one, and this is called often."""

    def clear(self) -> None:
        """Never: a log is shortened by :meth:`truncate_from`, :meth:`compact` or :meth:`restart`."""
        raise AssertionError("a Raft log is never cleared")

    def _destroy(self) -> None:
        """The store is closed by its owner."""


def _nothing() -> None:
    pass


def _first(run: tuple[int, int]) -> int:
    return run[0]


DISK_ELECTIONS: Final = 4
"""A disk that makes nothing durable for this many election timeouts hangs. Disks take a second now and then, and a
change of the leader would cost more than that."""


@dataclass(eq=False, slots=True)
class DiskWatch:
    """Measures for how long the disk has made nothing durable although something waits for it."""

    _log: RaftLog
    _timing: Timing
    _looked_s: float
    _durable_index: int = 0  # at the last look
    _waited_s: float = 0.0

    def look(self, now: float) -> None:
        """Look at the log again. The time since the last look counts as two heartbeats at most: a process that was
        suspended does not know what its disk did meanwhile."""
        passed_s, self._looked_s = min(now - self._looked_s, 2 * self._timing.heartbeat_s), now
        log = self._log
        durable = log.durable_index
        if durable != self._durable_index or (durable == log.last_index and log.hard_state_durable):
            self._durable_index = durable
            self._waited_s = 0.0
        else:
            self._waited_s += passed_s

    @property
    def hangs(self) -> bool:
        """Whether the disk has made nothing durable for long, although something waits for it."""
        return self._waited_s > DISK_ELECTIONS * self._timing.election_s
