"""What a command sees while it is evaluated: its own writes, over those in flight, over the applied state.

The applied state is the engine's. Over it stands a cache (:class:`RowCache`) of the newest rows, or their heads, that
commands of a group's leader have read or written: a command that has to know a row before it writes it rarely asks the
engine. Over that stand the writes of entries in flight (:class:`Overlay`): evaluated on this leader, not applied yet.

The items of a request are columns (:class:`Rows`): what is done to all of them is a call per column, not one per item.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, Generic, TypeAlias, TypeVar
from zlib import crc32

import numpy as np

from metad_wire.errors import TooLargeError
from metad_wire.watch import SlotMarker

from ...config import Config
from ...storage.engine import Engine
from ...storage.keys import GROUP_PREFIX_BYTES, after_prefix
from .entry import Replaced
from .limits import LOOKED_AT_BYTES_MAX, SCANNED_ROW_BYTES, check_reply
from .part import Origin, PartContext, Parts, StatePart, Writes


class Missing:
    """Marks a key of which nothing is known (None says that it has no row)."""


MISSING: Final = Missing()


class Overlay:
    """The writes of entries that are not applied yet, newest first, in two generations.

    A generation is dropped as a whole once its last entry is applied, so nothing is paid per key. Until then it
    also answers for entries that are applied already, which is right: it holds the latest write of each key.
    Writes are put together when a command first looks: in a storm of updates none does.
    """

    def __init__(self) -> None:
        self._added: deque[tuple[int, Writes]] = deque()
        self._young: Writes = {}
        self._old: Writes = {}
        self._young_last = 0
        self._old_last = 0

    def add(self, index: int, writes: Writes) -> None:
        """The writes of a command in entry ``index``; later commands of the entry may still add theirs to them."""
        self._added.append((index, writes))

    def get(self, key: bytes) -> bytes | Missing | None:
        """The newest write in flight to this key; MISSING if there is none."""
        young, old = self.generations()
        value: bytes | Missing | None = young.get(key, MISSING)
        return old.get(key, MISSING) if value is MISSING else value

    def generations(self) -> tuple[Writes, Writes]:
        """To look in: the young one first."""
        added = self._added
        while added:
            self._young_last, writes = added.popleft()
            self._young.update(writes)
        return self._young, self._old

    def clear(self) -> None:
        """Nothing is in flight any more."""
        self._added.clear()
        self._young, self._old = {}, {}

    def applied(self, index: int) -> None:
        """Every entry up to ``index`` is in the engine."""
        added = self._added
        while added and added[0][0] <= index:
            added.popleft()  # no command has looked, and all that was put together is older, so it goes as well, below
        if index >= self._young_last:
            if self._young:
                self._young = {}
            if self._old:
                self._old = {}
        elif index >= self._old_last:
            self._old, self._old_last = self._young, self._young_last
            self._young = {}


_ROW_BYTES = 128  # of a row in a dictionary, beside its bytes
_HEAD_BYTES = 160  # of a head, beside its key

Value = TypeVar("Value")


class RowMemory:
    """The memory that the caches of a node's groups share: a group has as much of it as it uses, so leading few of many
    groups leaves nothing idle.

    Two generations: once the young one is full, it becomes the old one in every cache; so nothing is paid per row but
    the dictionary.
    """

    def __init__(self, bytes_max: int) -> None:
        self._caches: dict[tuple[bytes, type[StatePart]], _Generations[bytes] | _Generations[Head]] = {}
        self._size = 0
        self._size_max = bytes_max // 2

    def open(self, group: bytes, cache: RowCache | HeadCache) -> None:
        """Let a cache of a group use the memory, in place of the one of its class that the group has had."""
        self._caches[group, type(cache)] = cache

    def grew(self, rows: int, size: int) -> None:
        """Called by the caches for what they take in."""
        self._size += size + rows * _ROW_BYTES
        if self._size > self._size_max:
            self._size = 0
            for cache in self._caches.values():
                cache.age()


def _row_memory(config: Config) -> RowMemory:
    return RowMemory(config.storage.row_cache_bytes)


class _Generations(StatePart, Generic[Value]):
    """What is known of keys, in the two generations of :class:`RowMemory`. None says that there is no row. What is in
    flight is known, too."""

    def __init__(self, context: PartContext) -> None:
        self._shared = context.memory.shared(_row_memory)
        self._young: dict[bytes, Value | None] = {}
        self._old: dict[bytes, Value | None] = {}

    def get(self, key: bytes) -> Value | Missing | None:
        """What is known of it; MISSING if nothing is."""
        value: Value | Missing | None = self._young.get(key, MISSING)
        return self._old.get(key, MISSING) if value is MISSING else value

    def age(self) -> None:
        """What is young is old now, and what was old is forgotten."""
        self._old, self._young = self._young, {}

    def forget(self) -> None:
        self._young, self._old = {}, {}


class RowCache(_Generations[bytes]):
    """Of tables that are declared with ``row_cache``."""

    def __init__(self, context: PartContext) -> None:
        super().__init__(context)
        self._shared.open(context.group, self)

    def read(self, key: bytes, value: bytes | None) -> None:
        """The engine has this."""
        self._young[key] = value
        self._shared.grew(1, len(key) + len(value or b""))

    def add(self, writes: Writes) -> None:
        """A command wrote this."""
        young = self._young
        size = sum(map(len, filter(None, writes.values()))) - sum(map(len, filter(None, map(young.get, writes))))
        before = len(young)
        young.update(writes)
        if added := len(young) - before:
            size += sum(map(len, writes))
        self._shared.grew(added, size)


Head = tuple[int, int] | tuple[int, int, str]
"""Version and create revision of a row; and the lease that it is attached to, if there is one."""
Heads = dict[bytes, Head | None]


class HeadCache(_Generations[Head]):
    """Of plain tables, whose commands have to know no more of a row than its head: that is smaller than the row, and
    nothing is decoded."""

    def __init__(self, context: PartContext) -> None:
        super().__init__(context)
        self._shared.open(context.group, self)

    def get_many(self, keys: Sequence[bytes]) -> list[Head | Missing | None]:
        """:meth:`get` of each."""
        found = list(map(self._young.get, keys, repeat(MISSING)))
        if self._old and MISSING in found:
            old = self._old
            return [old.get(key, MISSING) if head is MISSING else head for key, head in zip(keys, found, strict=True)]
        return found

    def add(self, heads: Heads) -> None:
        """Commands wrote, or read, these."""
        before = len(self._young)
        self._young.update(heads)
        if added := len(self._young) - before:
            self._shared.grew(added, _HEAD_BYTES * added + sum(map(len, heads)))

    def overwritten(self, writes: Iterable[bytes]) -> None:
        for key in writes:
            self._young.pop(key, None)
            self._old.pop(key, None)


Numbers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]


class Rows:
    """Items with their keys. All columns are of one length; iterating gives (position, item, key) for each item."""

    __slots__ = ("crcs", "items", "keys")

    def __init__(self, items: Sequence[Any], keys: Sequence[bytes], crcs: Numbers) -> None:
        self.items = items
        self.keys = keys
        """Behind the table prefix."""
        self.crcs = crcs
        """CRC-32 of the routing fields."""

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[int, Any, bytes]]:
        return zip(range(len(self.keys)), self.items, self.keys, strict=True)

    def at(self, positions: Sequence[int]) -> Rows:
        """Take those at these positions."""
        return Rows([self.items[i] for i in positions], [self.keys[i] for i in positions], self.crcs[list(positions)])

    def cut(self, count: int) -> Iterator[Rows]:
        """Pieces of at most so many rows, in order."""
        for at in range(0, len(self), count):
            end = at + count
            yield Rows(self.items[at:end], self.keys[at:end], self.crcs[at:end])


NO_ROWS = Rows((), (), np.empty(0, np.int64))
"""Of a request about no single slot."""


def crcs_of(routing_fields: Sequence[bytes]) -> Numbers:
    """The CRC-32 of each."""
    return column(map(crc32, routing_fields), len(routing_fields))


def column(values: Iterable[int], count: int) -> Numbers:
    """A column of so many integers."""
    return np.fromiter(values, np.int64, count)


# Keys per call of the engine: more saves nothing. While values are long it is few, so that what is too much is noticed
# before it adds up.
_CHUNK_KEYS, _CHUNK_KEYS_LONG = 32, 4
_LONG_BYTES = 16 * 1024


def in_chunks(engine: Engine, keys: Sequence[bytes]) -> Iterator[tuple[list[bytes | None], int]]:
    """The values of these keys, in order, some at a time, and how many bytes they are."""
    at, count = 0, _CHUNK_KEYS_LONG
    while at < len(keys):
        chunk = engine.get_many(keys[at : at + count])
        size = sum([len(value) for value in chunk if value is not None])
        yield chunk, size
        at += count
        count = _CHUNK_KEYS if size < _LONG_BYTES else _CHUNK_KEYS_LONG


class View:
    """Passed to ``evaluate``. A command gets the writes it has made to a row, to add to them, from :meth:`writes_of`.
    ``now_ms`` is the log's time, ``past_ms`` that by which deadlines are judged: it is 0 while nothing has passed, see
    :class:`..machine.LogTime`. ``index`` is the entry's, and ``revision`` the group's once the entry is applied."""

    __slots__ = (
        "_engine",
        "_hearing",
        "_overlay",
        "_overlays",
        "_rows",
        "adopts",
        "beside",
        "calendar_ms",
        "ended",
        "group",
        "grown",
        "heard",
        "index",
        "looked_at",
        "marker",
        "name",
        "no_room",
        "now_ms",
        "on_accept",
        "overlays",
        "parts",
        "past_ms",
        "replaced",
        "revision",
        "row_cache",
        "writes",
    )

    def __init__(self, name: str, group: bytes, engine: Engine, parts: Parts) -> None:
        self.name = name
        self.group = group
        self.parts = parts
        self._engine = engine
        self._rows = parts[RowCache]
        self._overlay = Overlay()
        self.overlays = [self._overlay]
        """All that there are."""
        self._hearing = parts.hearing
        self._overlays: dict[int, Overlay] = {}  # of rows that a part hears of, once a command has written one
        self.no_room = ""
        """Why nothing may be written that takes more room than what was there; empty if there is room."""
        self.calendar_ms = 0
        """That of the node which evaluates: for what people read, and for no deadline."""
        self.now_ms = 0
        self.past_ms = 0
        self.index = 0
        self.revision = 0
        self.looked_at = 0
        """Bytes of rows that the command has read from the engine."""
        self.adopts = False
        """Set by a step with which records come that were elsewhere before: an amnesty begins."""
        self.marker: SlotMarker | None = None
        """Set by a step of a slot move after which the group holds other slots."""
        self.begin(False)

    def begin(self, row_cache: bool) -> None:
        """A command is evaluated next. ``row_cache``: the rows it reads and writes are in the row cache."""
        self.row_cache = row_cache
        self.writes: Writes = {}
        """To rows that no part hears of."""
        self.heard: dict[int, Writes] = {}
        """The other writes, by row."""
        self.on_accept: list[Callable[[], None]] = []
        """Called once the command is a part of the entry: until then it may be refused."""
        self.grown = 0
        """What the command changes, in bytes, if it says so itself."""
        self.beside = 0
        """What it changes in rows that the machine does not expect of a request of that size."""
        self.ended = 0
        """Bytes of its deletions of what belongs to sessions that end."""
        self.replaced: dict[int, Replaced] | None = None
        """What the writes to some rows replace: see :meth:`replaces`."""

    # --- what a command does -----------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """The value a command must believe in."""
        value = self._known(key)
        if isinstance(value, Missing):
            value = self._engine.get(key)
            self._look_at(0 if value is None else len(value))
            if self.row_cache:
                self._rows.read(key, value)
        return value

    def get_many(self, keys: list[bytes], bytes_max: int) -> list[bytes | None]:
        """:meth:`get` of several, which costs less. Raises TooLargeError if the rows that are read take more than
        ``bytes_max`` together."""
        size = 0
        found, missed = self._known_of(keys)
        read: list[bytes | None] = []
        for chunk, chunk_bytes in in_chunks(self._engine, keys if found is None else [keys[at] for at in missed]):
            size += chunk_bytes
            check_reply(size, bytes_max)
            self._look_at(chunk_bytes)
            read += chunk
        if found is None:
            return read
        for value, at in zip(read, missed, strict=True):
            found[at] = value
        return found

    def _known_of(self, keys: list[bytes]) -> tuple[list[bytes | None] | None, list[int]]:
        """:meth:`_known` of several: their values, and the positions of those that need a look at the engine. No values
        if all need one, as nearly always in a storm."""
        rows = {key[GROUP_PREFIX_BYTES] for key in keys}
        writes = [self.writes] if self.heard.keys().isdisjoint(rows) else []
        if self.row_cache or not writes or not self._overlays.keys().isdisjoint(rows):
            known = list(map(self._known, keys))
        else:
            writes = [one for one in (self.writes, *self._overlay.generations()) if not one.keys().isdisjoint(keys)]
            if not writes:
                return None, []
            known = [MISSING] * len(keys)
            for one in writes:
                known = [
                    one.get(key, MISSING) if value is MISSING else value for key, value in zip(keys, known, strict=True)
                ]
        missed = [at for at, value in enumerate(known) if value is MISSING]
        return [None if isinstance(value, Missing) else value for value in known], missed

    def _known(self, key: bytes) -> bytes | Missing | None:
        """What needs no look at the engine."""
        value: bytes | Missing | None = self.writes.get(key, MISSING)
        if value is MISSING and self.heard:
            value = self.heard.get(key[GROUP_PREFIX_BYTES], self.writes).get(key, MISSING)
        if value is MISSING and self.row_cache:
            value = self._rows.get(key)
        if value is MISSING:
            value = self._overlays.get(key[GROUP_PREFIX_BYTES], self._overlay).get(key)
        return value

    def _look_at(self, size: int) -> None:
        self.looked_at += size
        if self.looked_at > LOOKED_AT_BYTES_MAX:
            raise TooLargeError(
                f"the records of this request take over {LOOKED_AT_BYTES_MAX} bytes: ask for fewer at once"
            )

    def scan(
        self, begin: bytes, end: bytes, limit: int, bytes_max: int
    ) -> tuple[list[tuple[bytes, bytes | None]], bool]:
        """The next applied rows of a table's row, with the values a command must believe in, None where an entry in
        flight deletes one; and whether there are no more. What only an entry in flight adds is not found yet."""
        found = self._engine.scan(begin, end, limit, bytes_max)
        size = sum([len(key) + len(value) for key, value in found])
        self._look_at(size + len(found) * SCANNED_ROW_BYTES)
        is_last = len(found) < limit and size < bytes_max
        young, old = self.in_flight(begin[GROUP_PREFIX_BYTES])
        if not young and not old:
            return [*found], is_last
        return [(key, young.get(key, old.get(key, value))) for key, value in found], is_last

    def keys_under(self, row: int, prefix: bytes, limit: int) -> list[bytes]:
        """The keys of a row that begin so and have a value, before the command; ``limit`` of them at most."""
        young, old = self.in_flight(row)
        scanned = self._engine.scan(prefix, after_prefix(prefix), limit)
        self._look_at(sum([SCANNED_ROW_BYTES + len(key) + len(value) for key, value in scanned]))
        found = dict.fromkeys([key for key, _ in scanned], True)
        for writes in (old, young):
            for key, value in writes.items():
                if key.startswith(prefix):
                    found[key] = value is not None
        return [key for key, there in found.items() if there][:limit]

    def keys_with(self, prefix: bytes, limit: int) -> list[bytes]:
        """The keys of one row that start with ``prefix``, in order. The caller knows that the engine has at most
        ``limit``."""
        found = {key for key, _ in self._engine.scan(prefix, after_prefix(prefix), limit, LOOKED_AT_BYTES_MAX)}
        self._look_at(len(found) * SCANNED_ROW_BYTES)
        row = prefix[GROUP_PREFIX_BYTES]
        young, old = self.in_flight(row)
        for writes in (old, young, self.heard.get(row, self.writes)):
            for key, value in writes.items():
                if key.startswith(prefix):
                    (found.discard if value is None else found.add)(key)
        return sorted(found)

    def in_flight(self, row: int) -> tuple[Writes, Writes]:
        """The writes of earlier commands to a row, and perhaps to others: look in the first, then in the second."""
        return self._overlays.get(row, self._overlay).generations()

    def writes_of(self, row: int) -> Writes:
        """The command's writes to a row, and perhaps to others; the command adds to them."""
        return self.heard.setdefault(row, {}) if row in self._hearing else self.writes

    def write(self, row: int, writes: Writes) -> None:
        """Make writes to a row to which the command has made none; the dictionary is the view's from now on."""
        if row in self._hearing:
            self.heard[row] = writes
        elif self.writes:
            self.writes.update(writes)
        else:
            self.writes = writes

    def replaces(self, row: int, values: list[bytes | None], found: dict[bytes | None, None] | None = None) -> None:
        """Say what the command's writes to a row replace: see :class:`Replaced`. Either every verb that writes the row
        says it or none does. Both are the entry's from now on."""
        self.replaced = {row: Replaced(values, dict.fromkeys(values) if found is None else found)}

    def overwrite(self, rows: Writes) -> None:
        """Write rows of any table as they are; their keys are without the group's prefix."""
        group = self.group
        for key, value in rows.items():
            self.writes_of(key[0])[group + key] = value
        for part in self.parts.values():
            for writes in (self.writes, *self.heard.values()):
                part.overwritten(writes)

    # --- what becomes of it ------------------------------------------------------------------------------

    def accept(self, index: int, origin: Origin) -> None:
        """The command is a part of entry ``index``."""
        if self.writes:
            self._overlay.add(index, self.writes)
            if self.row_cache:
                self._rows.add(self.writes)
        for row, writes in self.heard.items():
            if not writes:
                continue
            if row not in self._overlays:
                self._overlays[row] = Overlay()
                self.overlays.append(self._overlays[row])
            self._overlays[row].add(index, writes)
            if self.row_cache:
                self._rows.add(writes)
            for part in self._hearing[row]:
                part.evaluated(index, origin, writes)
        for accepted in self.on_accept:
            accepted()

    def forget(self) -> None:
        """What is in flight may never be applied."""
        for overlay in self.overlays:
            overlay.clear()
