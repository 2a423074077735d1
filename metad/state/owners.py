"""A bounded memory of who owns which session, so that a storm's writes need no read.

Every takeover, update and disconnect must know a session's owner. Owners are few (one row per broker life, shared
by all its sessions) and sessions many, so a slot holds the number of an owner row, xor a check of the key: 8 bytes.
A key has eight slots; once they are taken, a ninth key pushes one out, whose owner is then read from the engine again.
The table starts small and grows by large steps up to its bound; growing empties it, for it is only a cache.

The check has 64 bits of two independent hashes: the process-seeded SipHash of the key, whose low bits choose the slot,
xor the CRC-32 that routes it. What a slot holds, xor the check, is the number of an owner row if the slot is the key's;
if it is another key's it is as good as random, and a number of one of n rows by a chance of n in 10^19.

Only rows of *connected* sessions are kept, because those repeat. For any other the answer is "unknown".
"""

from __future__ import annotations

import contextlib
import mmap
from collections import deque
from collections.abc import Sequence

import numpy as np

from metad_wire.tables.session import SESSION

from ..config import Config
from ..storage.keys import table_prefix
from .part import Origin, PartContext, StatePart, Writes
from .rows import Numbers, Rows, crcs_of
from .view import View

_SLOT_BYTES = 8
_SLOTS_MIN = 1 << 16
_GROWTH = 16
_WAYS = (0, 1, 2, 3, 4, 5, 6, 7)  # a key's slots: its first one xor these, so all are in one line of the CPU's cache
CONNECTED = 0xC3
"""The second byte of an owner row: msgpack's true."""
_EMPTY = 0
_MANY = 8  # from so many keys on a call per column costs less than one per key
_ROWS_MAX = 65_535  # few enough that a wrong number stays improbable


_OWNER = SESSION.rows["owner"]


class OwnerCache:
    """(session key, its CRC-32) -> owner row, or None for "ask the engine".

    The key is without group and table. All groups of a node share the memory, and while a session moves between two of
    them they differ about its owner: so each says its CRC-32s xor a number of its own.
    """

    def __init__(self, bytes_max: int) -> None:
        self._slots_max = max(_SLOTS_MIN, 1 << (max(1, bytes_max // _SLOT_BYTES).bit_length() - 1))
        self._reset(_SLOTS_MIN)

    @property
    def slots(self) -> int:
        """How many there are now."""
        return len(self._slots)

    @property
    def rows(self) -> int:
        """Distinct owner rows kept."""
        return len(self._numbers)

    def get(self, key: bytes, crc: int) -> bytes | None:
        """The owner row last learned for the key, if it is still here."""
        hashed = hash(key)
        slot = self._find(hashed, crc)
        return None if slot is None else self._rows[self._slots[slot] ^ hashed ^ crc]

    def get_many(self, keys: Sequence[bytes], crcs: Numbers, salt: int = 0) -> list[bytes | None]:
        """:meth:`get` of keys and their CRC-32s xor ``salt``, by position. Once per session of a storm: all
        first slots are read together, so that the CPU waits for many lines of memory at once, and most keys are in
        theirs."""
        if len(keys) == 1:
            return [self.get(keys[0], int(crcs[0]) ^ salt)]
        hashes = np.fromiter(map(hash, keys), np.int64, len(keys))
        first = hashes & self._mask
        checks = hashes ^ crcs ^ salt
        numbers = self._column[first] ^ checks
        count = len(self._rows)
        missing = np.flatnonzero(numbers.view(np.uint64) >= count)
        if len(missing):  # not in their first slots: all slots of each are looked at together
            lines = self._lines[first[missing] // len(_WAYS)] ^ checks[missing][:, np.newaxis]
            held = lines.view(np.uint64) < count
            found = np.flatnonzero(held.any(axis=1))
            numbers[missing[found]] = lines[found, held[found].argmax(axis=1)]
        return list(map(self._rows.get, numbers.tolist()))

    def learn(self, key: bytes, crc: int, row: bytes | None) -> None:
        """This is the key's owner row in the engine now; None if it has none."""
        hashed = hash(key)
        slot = self._find(hashed, crc)
        # Behind the array header, the first element of an owner row says whether it is connected.
        if row is None or row[1] != CONNECTED:
            if slot is not None:
                self._slots[slot] = _EMPTY
                self._used -= 1
            return
        number = self._numbers.get(row)
        if number is None:
            if len(self._rows) >= _ROWS_MAX:
                self._reset(len(self._slots))
                slot = None
            number = self._number(row)
        if slot is None:
            if self._used >= self._grow_at:
                self._reset(min(len(self._slots) * _GROWTH, self._slots_max))
                number = self._number(row)
            slot = self._room(hashed)
        self._slots[slot] = hashed ^ crc ^ number

    def learn_many(self, keys: Sequence[bytes], crcs: Numbers, salt: int, rows: Sequence[bytes | None]) -> None:
        """:meth:`learn` of distinct keys and their CRC-32s xor ``salt``. Every replica runs it once per session of a
        storm: keys that are in their first slot, as most are, are written there together."""
        distinct = dict.fromkeys(rows)
        connected = all(row is not None and row[1] == CONNECTED for row in distinct)
        if len(keys) < _MANY or not connected or len(self._rows) + len(distinct) > _ROWS_MAX:
            for key, crc, row in zip(keys, (crcs ^ salt).tolist(), rows, strict=True):
                self.learn(key, crc, row)
            return
        numbers = {row: self._number_of(row) for row in distinct if row is not None}
        hashes = np.fromiter(map(hash, keys), np.int64, len(keys))
        first = hashes & self._mask
        checks = hashes ^ crcs ^ salt
        held = (self._column[first] ^ checks).view(np.uint64) < len(self._rows)
        entries = checks ^ np.fromiter([numbers[row] for row in rows if row is not None], np.int64, len(keys))
        self._column[first[held]] = entries[held]
        for at in np.flatnonzero(~held).tolist():
            self.learn(keys[at], int(crcs[at]) ^ salt, rows[at])

    def _number_of(self, row: bytes) -> int:
        number = self._numbers.get(row)
        return self._number(row) if number is None else number

    def _number(self, row: bytes) -> int:
        number = self._numbers[row] = len(self._rows)
        self._rows[number] = row
        return number

    def _find(self, hashed: int, crc: int) -> int | None:
        check = hashed ^ crc
        slots, rows = self._slots, self._rows
        first = hashed & self._mask
        for way in _WAYS:
            if slots[first ^ way] ^ check in rows:
                return first ^ way
        return None

    def _room(self, hashed: int) -> int:
        """A slot for a new key: an empty one of its eight, or else one of them whose key is forgotten."""
        first = hashed & self._mask
        for way in _WAYS:
            if self._slots[first ^ way] == _EMPTY:
                self._used += 1
                return first ^ way
        return first ^ (hashed >> 40 & 7)  # as good as random, and needs no memory of who was used last

    def clear(self) -> None:
        """Forget everything."""
        self._reset(len(self._slots))

    def _reset(self, slots: int) -> None:
        self._mask = slots - 1
        self._used = 0
        # At a quarter nearly every key is in its first slot. At the bound it never grows.
        self._grow_at = slots // 4 if slots < self._slots_max else slots + 1
        self._slots = _zeros(_SLOT_BYTES * slots).cast("q")
        self._column: Numbers = np.frombuffer(self._slots, np.int64)  # the same memory, for many at once
        self._lines = self._column.reshape(-1, len(_WAYS))
        self._rows: dict[int, bytes] = {}
        self._numbers: dict[bytes, int] = {}


def _owner_cache(config: Config) -> OwnerCache:
    return OwnerCache(config.storage.owner_cache_bytes)


class SessionOwners(StatePart):
    """The owners of one group's sessions."""

    rows = (_OWNER,)

    def __init__(self, context: PartContext) -> None:
        self.prefix = table_prefix(context.group, _OWNER)
        """Of the owner rows' keys."""
        self.cache = context.memory.shared(_owner_cache)
        self._engine = context.engine
        self._salt = int.from_bytes(context.group, "big") << 32  # each group has another one
        self._wrote: tuple[Writes, Rows] | None = None
        self._in_flight: deque[tuple[int, Writes, Rows]] = deque()

    def load(self) -> None:
        self.cache.clear()

    def wrote(self, writes: Writes, rows: Rows) -> None:
        """The command that is evaluated makes these writes to these rows, in their order. So their CRC-32s are at hand
        when the entry is applied, which is worth it for many. Nothing is noted if some rows are not written, or are
        there twice: rows and writes would be as many again once another command of the entry has added to them."""
        self._wrote = (writes, rows) if len(writes) == len(rows) else None

    def evaluated(self, index: int, origin: Origin, writes: Writes) -> None:
        if self._wrote is not None and self._wrote[0] is writes:
            self._in_flight.append((index, *self._wrote))
            self._wrote = None

    def stage(self, index: int, origin: Origin, writes: Writes) -> None:
        rows = self._rows_of(index, writes) if self._in_flight else None
        if rows is not None:
            self.cache.learn_many(rows.keys, rows.crcs, self._salt, list(writes.values()))
            return
        skip = len(self.prefix)
        sessions = [key[skip:] for key in writes]
        self.cache.learn_many(sessions, crcs_of(sessions), self._salt, list(writes.values()))

    def _rows_of(self, index: int, writes: Writes) -> Rows | None:
        """The sessions that an entry writes, if a command has said so."""
        found: Rows | None = None
        while self._in_flight and self._in_flight[0][0] <= index:
            _, known, rows = self._in_flight.popleft()
            if known is writes and len(rows) == len(writes):  # or another command of the entry has added to them
                found = rows
        return found

    def forget(self) -> None:
        self._in_flight.clear()

    def get_many(self, rows: Rows) -> list[bytes | None]:
        """The owner rows of sessions, by position, of the applied state; None if it takes :meth:`read` to know."""
        return self.cache.get_many(rows.keys, rows.crcs, self._salt)

    def read(self, rows: Rows, at: Sequence[int]) -> list[bytes | None]:
        """The owner rows of some of these sessions, from the engine."""
        values = self._engine.get_many([self.prefix + rows.keys[i] for i in at])
        for i, value in zip(at, values, strict=True):
            if value is not None:
                self.cache.learn(rows.keys[i], int(rows.crcs[i]) ^ self._salt, value)
        return values

    def before(self, view: View, rows: Rows) -> list[bytes | None]:
        """The owner rows of sessions, by position, before the command that is evaluated."""
        found = self.get_many(rows)
        young, old = view.in_flight(_OWNER)
        if not young and not old and None not in found:
            return found
        prefix = self.prefix
        missed: list[int] = []
        for at, key in enumerate(rows.keys):
            key = prefix + key
            if key in young:
                found[at] = young[key]
            elif key in old:
                found[at] = old[key]
            elif found[at] is None:
                missed.append(at)
        if missed:
            for at, value in zip(missed, self.read(rows, missed), strict=True):
                found[at] = value
        return found


def _zeros(size: int) -> memoryview:
    """Zeroed memory that takes no page before it is touched. Looked up at random it misses the TLB at every lookup, so
    the kernel is asked for huge pages."""
    memory = mmap.mmap(-1, size)
    with contextlib.suppress(OSError, AttributeError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)
