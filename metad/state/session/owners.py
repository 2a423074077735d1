"""A bounded memory of who owns which session, so that a storm's writes need no read.

Every takeover, update and disconnect must know a session's owner. Owners are few (one row per broker life, shared
by all its sessions) and sessions many, so a slot holds the number of an owner row, xor a check of the key: 8 bytes.
A key has eight slots; once they are taken, a ninth key pushes one out, whose owner is then read from the engine again.
The table starts small and grows by large steps up to its bound. The one before stays beside it, for what is in it
cannot be put into another: a key is in one of the two only, and goes to the larger once its owner is learned again.

The check has 64 bits of two independent hashes: the process-seeded SipHash of the key, whose low bits choose the slot,
xor the CRC-32 that routes it. What a slot holds, xor the check, is the number of an owner row if the slot is the key's;
if it is another key's it is as good as random, and a number of one of n rows by a chance of n in 10^19.

Only rows of *connected* sessions are kept, because those repeat. For any other the answer is "unknown".

Only leaders keep owners: for a follower to learn them would cost as much as all else that it does with a takeover. So
what a leader knew is void once it leads no longer, and the next leadership begins with nothing.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections import deque
from collections.abc import Collection, Container, Iterable, Sequence
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

import numpy as np

from metad_wire.tables.session import SESSION

from ...config import Config
from ...storage.keys import table_prefix
from ..core.part import Origin, PartContext, StatePart, Writes
from ..core.view import Flags, Numbers, Rows, View, column, crcs_of

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


class _Table:
    """Slots, a power of two of them."""

    __slots__ = ("column", "grow_at", "lines", "mask", "slots", "used")

    def __init__(self, slots: int, slots_max: int) -> None:
        self.mask = slots - 1
        self.used = 0
        # At a quarter nearly every key is in its first slot. At the bound it never grows.
        self.grow_at: float = slots // 4 if slots < slots_max else math.inf
        self.slots = _zeros(_SLOT_BYTES * slots).cast("q")
        self.column: Numbers = np.frombuffer(self.slots, np.int64)  # the same memory, for many at once
        self.lines = self.column.reshape(-1, len(_WAYS))

    def find(self, hashed: int, crc: int, rows: Container[int]) -> int | None:
        """The slot of one key, if it is in any."""
        check, first, slots = hashed ^ crc, hashed & self.mask, self.slots
        for way in _WAYS:
            if slots[first ^ way] ^ check in rows:
                return first ^ way
        return None

    def places(self, hashes: Numbers, checks: Numbers, rows: int) -> tuple[Numbers, Flags]:
        """The slots in which these keys are, by position, and whether they are in any: if not, it is their first one.
        ``rows``: how many numbers of rows there are."""
        slots = hashes & self.mask
        here = (self.column[slots] ^ checks).view(np.uint64) < rows
        (missing,) = (~here).nonzero()
        if len(missing):  # not in their first slots: all slots of each are looked at together
            line = slots[missing] // len(_WAYS)
            at, way = ((self.lines[line] ^ checks[missing][:, np.newaxis]).view(np.uint64) < rows).nonzero()
            found = missing[at]
            slots[found] = line[at] * len(_WAYS) + way
            here[found] = True
        return slots, here

    def empty(self, slot: int) -> None:
        """Forget who is in this slot."""
        self.slots[slot] = _EMPTY
        self.used -= 1

    def room(self, hashed: int) -> int:
        """A slot for a new key: an empty one of its eight, or else one of them whose key is forgotten."""
        first = hashed & self.mask
        for way in _WAYS:
            if self.slots[first ^ way] == _EMPTY:
                self.used += 1
                return first ^ way
        return first ^ (hashed >> 40 & 7)  # as good as random, and needs no memory of who was used last

    def add(self, new: Numbers, hashes: Numbers, entries: Numbers) -> Numbers:
        """Of the keys at the positions ``new``, which are distinct and in no slot, write the entries into slots, chosen
        as :meth:`room` does. Returns the positions of those that are in none: a larger table has room for them, or
        others of them have taken theirs."""
        if self.used + len(new) >= self.grow_at:
            return new
        slots, added = hashes[new] & self.mask, entries[new]
        free = self.column[slots] == _EMPTY
        self.column[slots[free]] = added[free]
        left: Numbers = new[self.column[slots] != added]
        self.used += len(new) - len(left)
        if not len(left):
            return left
        slots, added = hashes[left] & self.mask, entries[left]
        empty = self.lines[slots // len(_WAYS)] == _EMPTY
        free = empty.any(axis=1)
        drawn = slots ^ hashes[left] >> 40 & 7
        slots = np.where(free, slots // len(_WAYS) * len(_WAYS) + empty.argmax(axis=1), drawn)
        self.column[slots] = added
        there = self.column[slots] == added
        self.used += int(np.count_nonzero(there & free))
        lost: Numbers = left[~there]
        return lost


class OwnerCache:
    """(session key, its CRC-32) -> owner row, or None for "ask the engine".

    The key is without group and table. All groups of a node share the memory, and while a session moves between two of
    them they differ about its owner: so each leadership of a leader says its CRC-32s xor a number of its own, the salt.
    """

    def __init__(self, bytes_max: int) -> None:
        self._slots_max = max(_SLOTS_MIN, 1 << (max(1, bytes_max // _SLOT_BYTES).bit_length() - 1))
        self._noted: list[Sequence[bytes]] = []  # keys that are yet to be learned, with their CRC-32s and rows
        self._noted_crcs: list[Numbers] = []
        self._noted_rows: list[bytes | None] = []
        self._noted_salts: set[int] = set()
        self._salts = 0
        self._table: _Table
        self._before: _Table | None  # from which it has grown; what is in one is not in the other
        self._reset(_SLOTS_MIN)

    def new_salt(self) -> int:
        """One by which nothing is known yet."""
        self._salts += 1
        return self._salts << 32  # above the bits of a CRC-32

    @property
    def slots(self) -> int:
        """How many there are now."""
        return len(self._table.slots)

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
        for table in (self._table, self._before):
            if table is not None and (slot := table.find(hashed, crc, self._rows)) is not None:
                return self._rows[table.slots[slot] ^ hashed ^ crc]
        return None

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
        slots, here = self._table.places(hashes, checks, len(self._rows))
        numbers = self._table.column[slots] ^ checks
        if self._before is not None:
            (missing,) = (~here).nonzero()
            if len(missing):
                older, _ = self._before.places(hashes[missing], checks[missing], len(self._rows))
                numbers[missing] = self._before.column[older] ^ checks[missing]
        return list(map(self._rows.get, numbers.tolist())), (slots, checks)

    def replace(self, places: Places, salt: int, rows: Collection[bytes | None]) -> bool:
        """Learn the rows of keys that were in these places when they were looked for. Returns False, and does nothing,
        if some are not there, or not kept from now on."""
        slots, checks = places
        column_ = self._table.column
        distinct = dict.fromkeys(rows)
        if (
            salt in self._noted_salts  # what was noted is older
            or len(self._rows) + len(distinct) > _ROWS_MAX
            or not ((column_[slots] ^ checks).view(np.uint64) < len(self._rows)).all()
        ):
            return False
        numbers = {row: self._number_of(row) for row in distinct}
        if _NOT_KEPT in numbers.values():
            return False
        if len(numbers) == 1:
            column_[slots] = checks ^ next(iter(numbers.values()))
        else:
            column_[slots] = checks ^ column(map(numbers.__getitem__, rows), len(rows))
        return True

    def learn(self, key: bytes, crc: int, row: bytes | None) -> None:
        """This is the key's owner row in the engine now; None if it has none."""
        if self._noted:
            self._settle()
        hashed = hash(key)
        slot = self._table.find(hashed, crc, self._rows)
        if slot is None and self._before is not None:
            older = self._before.find(hashed, crc, self._rows)
            if older is not None:
                self._before.empty(older)
        # Behind the array header, the first element of an owner row says whether it is connected.
        if row is None or row[1] != CONNECTED:
            if slot is not None:
                self._table.empty(slot)
            return
        number = self._numbers.get(row)
        if number is None:
            if len(self._rows) >= _ROWS_MAX:
                self._reset(self.slots)
                slot = None
            number = self._number(row)
        if slot is None:
            if self._table.used >= self._table.grow_at:
                self._before = self._table
                self._table = _Table(min(self.slots * _GROWTH, self._slots_max), self._slots_max)
            slot = self._table.room(hashed)
        self._table.slots[slot] = hashed ^ crc ^ number

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
        """:meth:`learn` of keys and their CRC-32s, in their order. A leader runs it once per session of a storm."""
        distinct = dict.fromkeys(rows)
        if len(keys) < _MANY or len(self._rows) + len(distinct) > _ROWS_MAX:
            for key, crc, row in zip(keys, crcs.tolist(), rows, strict=True):
                self.learn(key, crc, row)
            return
        numbers = {row: self._number_of(row) for row in distinct}
        learned = column(map(numbers.__getitem__, rows), len(keys))
        hashes = column(map(hash, keys), len(keys))
        checks = hashes ^ crcs
        table = self._table
        slots, here = table.places(hashes, checks, len(self._rows))
        entries = checks ^ learned
        some_go = _NOT_KEPT in numbers.values()
        if some_go:
            entries[learned == _NOT_KEPT] = _EMPTY
        table.column[slots[here]] = entries[here]  # of a key that comes twice the last one stays
        if some_go:
            gone = np.unique(slots[here & (learned == _NOT_KEPT)])
            table.used -= len(gone) - int(np.count_nonzero(table.column[gone]))
        (missing,) = (~here).nonzero()
        if len(missing):
            if self._before is not None:
                older, there = self._before.places(hashes[missing], checks[missing], len(self._rows))
                self._before.column[older[there]] = _EMPTY
            newest = dict(zip(checks[missing].tolist(), missing.tolist(), strict=True))  # the last of each key
            new = column(newest.values(), len(newest))
            for at in table.add(new[learned[new] != _NOT_KEPT], hashes, entries).tolist():
                self.learn(keys[at], int(crcs[at]), rows[at])

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

    def clear(self) -> None:
        """Forget everything."""
        self._forget_noted()
        self._reset(self.slots)

    def _reset(self, slots: int) -> None:
        self._table = _Table(slots, self._slots_max)
        self._before = None
        self._rows: dict[int, bytes] = {}
        self._numbers: dict[bytes, int] = {}


class _Written(NamedTuple):
    """What is known of an entry's writes before it is applied."""

    entry: int
    """Its index."""
    writes: Writes
    """Those of its first command; the others' are added to them."""
    commands: list[tuple[Rows, Places | None]]
    """The sessions of each command, and where they were found."""


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
        self._salt: int | None = (
            None  # of this leadership; none while nothing has been evaluated in it, or another leads
        )
        self._looked: tuple[Rows, Places | None] | None = None  # the last that :meth:`before` looked for
        self._wrote: tuple[Writes, Rows, Places | None] | None = None
        self._in_flight: deque[_Written] = deque()

    def wrote(self, writes: Writes, rows: Rows) -> None:
        """The command that is evaluated makes these writes to these rows, in their order. So their CRC-32s and places
        are at hand when the entry is applied, which is worth it for many. Nothing is noted if some rows are not
        written, or are there twice."""
        looked = self._looked
        places = looked[1] if looked is not None and looked[0] is rows else None
        self._wrote = (writes, rows, places) if len(writes) == len(rows) else None

    def evaluated(self, index: int, origin: Origin, writes: Writes) -> None:
        if self._wrote is not None and self._wrote[0] is writes:
            _, rows, places = self._wrote
            self._wrote = None
            if self._in_flight and self._in_flight[-1].entry == index:
                self._in_flight[-1].commands.append((rows, places))
            else:
                self._in_flight.append(_Written(index, writes, [(rows, places)]))

    def stage(self, index: int, origin: Origin, writes: Writes) -> None:
        if self._salt is None:
            return
        commands = self._commands_of(index, writes) if self._in_flight else None
        if commands is None:
            skip = len(self.prefix)
            sessions = [key[skip:] for key in writes]
            self.cache.note(sessions, crcs_of(sessions), self._salt, writes.values())
        elif len(commands) == 1:
            self._learn(*commands[0], writes.values(), self._salt)
        else:
            values = iter(writes.values())
            for rows, places in commands:
                self._learn(rows, places, list(islice(values, len(rows))), self._salt)

    def _learn(self, rows: Rows, places: Places | None, values: Collection[bytes | None], salt: int) -> None:
        if places is None or not self.cache.replace(places, salt, values):
            self.cache.note(rows.keys, rows.crcs, salt, values)

    def _commands_of(self, index: int, writes: Writes) -> list[tuple[Rows, Places | None]] | None:
        """The sessions that the commands of an entry write, in the order of the writes, if all commands have said
        so."""
        found: list[tuple[Rows, Places | None]] | None = None
        while self._in_flight and self._in_flight[0].entry <= index:
            _, known, commands = self._in_flight.popleft()
            # Commands of one entry write different sessions. So if there are as many, no other command has added any.
            if known is writes and sum([len(rows) for rows, _ in commands]) == len(writes):
                found = commands
        return found

    def forget(self) -> None:
        self._in_flight.clear()
        self._looked = self._wrote = self._salt = None

    def get_many(self, rows: Rows) -> list[bytes | None]:
        """The owner rows of sessions, by position, of the applied state; None if it takes :meth:`read` to know."""
        return [None] * len(rows) if self._salt is None else self.cache.get_many(rows.keys, rows.crcs, self._salt)

    def read(self, rows: Rows, at: Sequence[int], *, learned: bool = True) -> list[bytes | None]:
        """The owner rows of some of these sessions, from the engine."""
        keys = [rows.keys[i] for i in at]
        values = self._engine.get_many(list(map(self.prefix.__add__, keys)))
        if learned and self._salt is not None:
            self.cache.note(keys, rows.crcs[list(at)], self._salt, values)
        return values

    def before(self, view: View, rows: Rows, *, written: bool = False) -> list[bytes | None]:
        """The owner rows of sessions, by position, before the command that is evaluated. ``written``: it writes them
        anew, so those that have to be read are not worth learning. A leader that has just begun reads all of them."""
        if self._salt is None:
            self._salt = self.cache.new_salt()
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
            for at, value in zip(missed, self.read(rows, missed, learned=not written), strict=True):
                found[at] = value
        return found


def _zeros(size: int) -> memoryview:
    """Zeroed memory that takes no page before it is touched. Looked up at random it misses the TLB at every lookup, so
    the kernel is asked for huge pages."""
    memory = mmap.mmap(-1, size)
    with contextlib.suppress(OSError, AttributeError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)
