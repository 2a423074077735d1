"""The newest rows, or their heads, that commands of a group's leader have read or written: a command that has to know a
row before it writes it rarely asks the engine.

Over them stand the writes of entries in flight: evaluated on this leader, not applied yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final, Generic, TypeVar

from ...config import Config
from .part import PartContext, StatePart, Writes


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
        if self._old:
            return list(map(self.get, keys))
        return list(map(self._young.get, keys, repeat(MISSING)))

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
