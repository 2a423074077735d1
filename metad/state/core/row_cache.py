"""The newest rows, or their heads, that commands of a group's leader have read or written: a command that has to know a
row before it writes it rarely asks the engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Generic, TypeVar

from ...config import Config
from .overlay import MISSING, Missing
from .part import PartContext, StatePart, Writes

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
