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
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import TypeAlias

import numpy as np

from metad_wire.tables.session import SESSION

from ..config import Config
from ..storage.keys import table_prefix
from .part import Origin, PartContext, StatePart, Writes
from .rows import Flags, Numbers, Rows, column, crcs_of
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
_NOTED_MAX = 2_048
"""Keys whose new owners may wait until somebody looks. More together cost no less."""
_NOT_KEPT = -1  # stands for the number of a row that is not kept


_OWNER = SESSION.rows["owner"]


Places: TypeAlias = tuple[Numbers, Numbers]
"""The slots of keys, and what they hold there xor the numbers of their rows."""


class OwnerCache:
    """(session key, its CRC-32) -> owner row, or None for "ask the engine".

    The key is without group and table. All groups of a node share the memory, and while a session moves between two of
    them they differ about its owner: so each says its CRC-32s xor a number of its own.
    """

    def __init__(self, bytes_max: int) -> None:
        self._slots_max = max(_SLOTS_MIN, 1 << (max(1, bytes_max // _SLOT_BYTES).bit_length() - 1))
        self._noted: list[Sequence[bytes]] = []  # keys that are yet to be learned, with their CRC-32s and rows
        self._noted_crcs: list[Numbers] = []
        self._noted_rows: list[bytes | None] = []
        self._noted_salts: set[int] = set()
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
        if self._noted:
            self._settle()
        return self._get(key, crc)

    def _get(self, key: bytes, crc: int) -> bytes | None:
        hashed = hash(key)
        slot = self._find(hashed, crc)
        return None if slot is None else self._rows[self._slots[slot] ^ hashed ^ crc]

    def get_many(self, keys: Sequence[bytes], crcs: Numbers, salt: int = 0) -> list[bytes | None]:
        """:meth:`get` of keys and their CRC-32s xor ``salt``, by position. Once per session of a storm: all
        first slots are read together, so that the CPU waits for many lines of memory at once, and most keys are in
        theirs."""
        return self.look(keys, crcs, salt)[0]

    def look(self, keys: Sequence[bytes], crcs: Numbers, salt: int) -> tuple[list[bytes | None], Places | None]:
        """:meth:`get_many`, and where many were found, for :meth:`replace`."""
        if salt in self._noted_salts:
            self._settle()
        if len(keys) == 1:
            return [self._get(keys[0], int(crcs[0]) ^ salt)], None
        hashes = column(map(hash, keys), len(keys))
        checks = hashes ^ crcs ^ salt
        slots, _ = self._places(hashes, checks)
        return list(map(self._rows.get, (self._column[slots] ^ checks).tolist())), (slots, checks)

    def replace(self, places: Places, salt: int, rows: Collection[bytes | None]) -> bool:
        """Learn the rows of keys that were in these places when they were looked for. Returns False, and does nothing,
        if some are not there, or not kept from now on."""
        slots, checks = places
        distinct = dict.fromkeys(rows)
        if (
            salt in self._noted_salts  # what was noted is older
            or len(self._rows) + len(distinct) > _ROWS_MAX
            or not ((self._column[slots] ^ checks).view(np.uint64) < len(self._rows)).all()
        ):
            return False
        numbers = {row: self._number_of(row) for row in distinct}
        if _NOT_KEPT in numbers.values():
            return False
        if len(numbers) == 1:
            self._column[slots] = checks ^ next(iter(numbers.values()))
        else:
            self._column[slots] = checks ^ column(map(numbers.__getitem__, rows), len(rows))
        return True

    def _places(self, hashes: Numbers, checks: Numbers) -> tuple[Numbers, Flags]:
        """The slots in which these keys are, by position, and whether they are in any: if not, it is their first
        one."""
        slots = hashes & self._mask
        count = len(self._rows)
        here = (self._column[slots] ^ checks).view(np.uint64) < count
        (missing,) = (~here).nonzero()
        if len(missing):  # not in their first slots: all slots of each are looked at together
            line = slots[missing] // len(_WAYS)
            at, way = ((self._lines[line] ^ checks[missing][:, np.newaxis]).view(np.uint64) < count).nonzero()
            found = missing[at]
            slots[found] = line[at] * len(_WAYS) + way
            here[found] = True
        return slots, here

    def learn(self, key: bytes, crc: int, row: bytes | None) -> None:
        """This is the key's owner row in the engine now; None if it has none."""
        if self._noted:
            self._settle()
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

    def note(self, keys: Sequence[bytes], crcs: Numbers, salt: int, rows: Iterable[bytes | None]) -> None:
        """:meth:`learn` of keys and their CRC-32s xor ``salt``, once somebody looks for any with this salt, or many
        wait. What is done for each column is then done for several entries, of all groups, at once."""
        self._noted.append(keys)
        self._noted_crcs.append(crcs ^ salt)
        self._noted_rows += rows
        self._noted_salts.add(salt)
        if len(self._noted_rows) >= _NOTED_MAX:
            self._settle()

    def _settle(self) -> None:
        """Learn what was noted."""
        keys, crcs, rows = list(chain.from_iterable(self._noted)), np.concatenate(self._noted_crcs), self._noted_rows
        self._forget_noted()
        self._learn_many(keys, crcs, rows)

    def _forget_noted(self) -> None:
        self._noted, self._noted_crcs, self._noted_rows = [], [], []
        self._noted_salts.clear()

    def _learn_many(self, keys: Sequence[bytes], crcs: Numbers, rows: Sequence[bytes | None]) -> None:
        """:meth:`learn` of keys and their CRC-32s, in their order. Every replica runs it once per session of a
        storm."""
        distinct = dict.fromkeys(rows)
        if len(keys) < _MANY or len(self._rows) + len(distinct) > _ROWS_MAX:
            for key, crc, row in zip(keys, crcs.tolist(), rows, strict=True):
                self.learn(key, crc, row)
            return
        numbers = {row: self._number_of(row) for row in distinct}
        learned = column(map(numbers.__getitem__, rows), len(keys))
        hashes = column(map(hash, keys), len(keys))
        checks = hashes ^ crcs
        slots, here = self._places(hashes, checks)
        entries = checks ^ learned
        some_go = _NOT_KEPT in numbers.values()
        if some_go:
            entries[learned == _NOT_KEPT] = _EMPTY
        self._column[slots[here]] = entries[here]  # of a key that comes twice the last one stays
        if some_go:
            gone = np.unique(slots[here & (learned == _NOT_KEPT)])
            self._used -= len(gone) - int(np.count_nonzero(self._column[gone]))
        (missing,) = (~here).nonzero()
        if len(missing):
            newest = dict(zip(checks[missing].tolist(), missing.tolist(), strict=True))  # the last of each key
            new = column(newest.values(), len(newest))
            for at in self._add(new[learned[new] != _NOT_KEPT], slots, entries).tolist():
                self.learn(keys[at], int(crcs[at]), rows[at])

    def _add(self, new: Numbers, first: Numbers, entries: Numbers) -> Numbers:
        """Of the keys at the positions ``new``, which are distinct and in no slot, write the entries into their first
        slots. Returns the positions of those whose slots are taken."""
        if self._used + len(new) >= self._grow_at:
            return new
        slots, added = first[new], entries[new]
        free = self._column[slots] == _EMPTY
        self._column[slots[free]] = added[free]
        taken = self._column[slots] != added  # perhaps by another of them
        self._used += len(new) - int(np.count_nonzero(taken))
        left: Numbers = new[taken]
        return left

    def _number_of(self, row: bytes | None) -> int:
        # Behind the array header, the first element of an owner row says whether it is connected.
        if row is None or row[1] != CONNECTED:
            return _NOT_KEPT
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
        self._forget_noted()
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
        self._looked: tuple[Rows, Places | None] | None = None  # the last that :meth:`before` looked for
        self._wrote: tuple[Writes, Rows, Places | None] | None = None
        self._in_flight: deque[tuple[int, Writes, Rows, Places | None]] = deque()

    def load(self) -> None:
        self.cache.clear()

    def wrote(self, writes: Writes, rows: Rows) -> None:
        """The command that is evaluated makes these writes to these rows, in their order. So their CRC-32s and places
        are at hand when the entry is applied, which is worth it for many. Nothing is noted if some rows are not
        written, or are there twice: rows and writes would be as many again once another command of the entry has added
        to them."""
        looked = self._looked
        places = looked[1] if looked is not None and looked[0] is rows else None
        self._wrote = (writes, rows, places) if len(writes) == len(rows) else None

    def evaluated(self, index: int, origin: Origin, writes: Writes) -> None:
        if self._wrote is not None and self._wrote[0] is writes:
            self._in_flight.append((index, *self._wrote))
            self._wrote = None

    def stage(self, index: int, origin: Origin, writes: Writes) -> None:
        known = self._rows_of(index, writes) if self._in_flight else None
        if known is not None:
            rows, places = known
            if places is None or not self.cache.replace(places, self._salt, writes.values()):
                self.cache.note(rows.keys, rows.crcs, self._salt, writes.values())
            return
        skip = len(self.prefix)
        sessions = [key[skip:] for key in writes]
        self.cache.note(sessions, crcs_of(sessions), self._salt, writes.values())

    def _rows_of(self, index: int, writes: Writes) -> tuple[Rows, Places | None] | None:
        """The sessions that an entry writes, and where they were found, if a command has said so."""
        found: tuple[Rows, Places | None] | None = None
        while self._in_flight and self._in_flight[0][0] <= index:
            _, known, rows, places = self._in_flight.popleft()
            if known is writes and len(rows) == len(writes):  # or another command of the entry has added to them
                found = rows, places
        return found

    def forget(self) -> None:
        self._in_flight.clear()
        self._looked = self._wrote = None

    def get_many(self, rows: Rows) -> list[bytes | None]:
        """The owner rows of sessions, by position, of the applied state; None if it takes :meth:`read` to know."""
        return self.cache.get_many(rows.keys, rows.crcs, self._salt)

    def read(self, rows: Rows, at: Sequence[int]) -> list[bytes | None]:
        """The owner rows of some of these sessions, from the engine."""
        keys = [rows.keys[i] for i in at]
        values = self._engine.get_many(list(map(self.prefix.__add__, keys)))
        self.cache.note(keys, rows.crcs[list(at)], self._salt, values)
        return values

    def before(self, view: View, rows: Rows) -> list[bytes | None]:
        """The owner rows of sessions, by position, before the command that is evaluated."""
        found, places = self.cache.look(rows.keys, rows.crcs, self._salt)
        self._looked = rows, places
        young, old = view.in_flight(_OWNER)
        keys = list(map(self.prefix.__add__, rows.keys)) if young or old else []
        for writes in (old, young):
            if not writes.keys().isdisjoint(keys):
                found = [writes.get(key, row) for key, row in zip(keys, found, strict=True)]
        if None not in found:
            return found
        missed = [at for at, row in enumerate(found) if row is None]
        if keys:  # what an entry in flight deletes is known
            missed = [at for at in missed if keys[at] not in young and keys[at] not in old]
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
