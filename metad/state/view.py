"""What a command sees while it is evaluated: its own writes, over those in flight, over the applied state."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, Generic, TypeVar

from metad_wire.errors import InvalidRequestError
from metad_wire.tables.session import SESSION

from ..storage.engine import Engine
from ..storage.keys import table_prefix
from .limits import LOOKED_AT_BYTES_MAX, check_reply
from .owners import OwnerCache, salt_of
from .rows import Rows

Writes = dict[bytes, bytes | None]


class Missing:
    """Marks a key that no write in flight touches (None says that one deletes it)."""


MISSING: Final = Missing()

# Keys per call of the engine: more saves nothing. While values are long it is few, so that what is too much is noticed
# before it adds up.
_CHUNK_KEYS, _CHUNK_KEYS_LONG = 32, 4
_LONG_BYTES = 16 * 1024

_ROW_BYTES = 128  # of a row in a dictionary, beside its bytes
_HEAD_BYTES = 192  # of a head and its key


def in_chunks(engine: Engine, keys: Sequence[bytes]) -> Iterator[tuple[list[bytes | None], int]]:
    """The values of these keys, in order, some at a time, and how many bytes they are."""
    at, count = 0, _CHUNK_KEYS_LONG
    while at < len(keys):
        chunk = engine.get_many(keys[at : at + count])
        size = sum([len(value) for value in chunk if value is not None])
        yield chunk, size
        at += count
        count = _CHUNK_KEYS if size < _LONG_BYTES else _CHUNK_KEYS_LONG


class Overlay:
    """The writes of entries that are not applied yet, newest first, in two generations.

    A generation is dropped as a whole once its last entry is applied, so nothing is paid per key. Until then it
    also answers for entries that are applied already, which is right: it holds the latest write of each key.
    Writes are put together when somebody first looks: in a storm of updates nobody does.
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
            added.popleft()  # nobody has looked, and all that was put together is older, so it goes as well, below
        if index >= self._young_last:
            if self._young:
                self._young = {}
            if self._old:
                self._old = {}
        elif index >= self._old_last:
            self._old, self._old_last = self._young, self._young_last
            self._young = {}


class RowCaches:
    """The row caches of a node's groups and the memory they share: a group has as much of it as it uses, so leading
    few of many groups leaves nothing idle.

    Two generations: once the young one is full, it becomes the old one in every group; so nothing is paid per row but
    the dictionary.
    """

    def __init__(self, bytes_max: int) -> None:
        self._caches: dict[bytes, RowCache] = {}
        self._size = 0
        self._size_max = bytes_max // 2

    def open(self, group: bytes) -> RowCache:
        """An empty one, in place of any the group has had."""
        cache = self._caches[group] = RowCache(self)
        return cache

    def grew(self, rows: int, size: int) -> None:
        """Called by the caches for what they take in."""
        self._size += size + rows * _ROW_BYTES
        if self._size > self._size_max:
            self._size = 0
            for cache in self._caches.values():
                cache.age()


Value = TypeVar("Value")


class _Generations(Generic[Value]):
    """What is known of keys, None where there is no row, in the two generations of :class:`RowCaches`."""

    def __init__(self, shared: RowCaches) -> None:
        self._shared = shared
        self._young: dict[bytes, Value | None] = {}
        self._old: dict[bytes, Value | None] = {}

    def get(self, key: bytes) -> Value | Missing | None:
        """What is known of it; MISSING if nothing is."""
        value: Value | Missing | None = self._young.get(key, MISSING)
        return self._old.get(key, MISSING) if value is MISSING else value

    def age(self) -> None:
        """What is young is old now, and what was old is forgotten."""
        self._old, self._young = self._young, {}

    def clear(self) -> None:
        """Forget everything."""
        self._young, self._old = {}, {}


class RowCache(_Generations[bytes]):
    """The newest rows that commands of a group's leader have read or written, so that a command that has to know a row
    before it writes it rarely asks the engine. What is in flight is in it too: who stops leading clears it."""

    def __init__(self, shared: RowCaches) -> None:
        super().__init__(shared)
        self.heads = HeadCache(shared)
        """Of tables whose commands have to know no more of a row."""

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

    def age(self) -> None:
        super().age()
        self.heads.age()

    def clear(self) -> None:
        super().clear()
        self.heads.clear()


Head = tuple[int, int]
"""Version and create revision of a row."""
Heads = dict[bytes, Head | None]


class HeadCache(_Generations[Head]):
    """The same, of rows of which only the head is wanted: it is smaller than the row, and nothing is decoded."""

    def get_many(self, keys: Sequence[bytes]) -> list[Head | Missing | None]:
        """:meth:`get` of each."""
        if self._old:
            return list(map(self.get, keys))
        return list(map(self._young.get, keys, repeat(MISSING)))

    def add(self, heads: Heads) -> None:
        """Commands wrote, or read, these."""
        before = len(self._young)
        self._young.update(heads)
        self._shared.grew(len(self._young) - before, _HEAD_BYTES * (len(self._young) - before))

    def forget(self, keys: Iterable[bytes]) -> None:
        """These rows were written without saying what their heads are."""
        for key in keys:
            self._young.pop(key, None)
            self._old.pop(key, None)


class View:
    """Passed to ``evaluate``. Commands put their effects into ``writes``, those on session owners into
    ``owner_writes``; ``now_ms`` is the leader's clock and ``revision``
    what the group's state is called once the entry is applied."""

    __slots__ = (
        "_overlay",
        "_owner_overlay",
        "_salt",
        "engine",
        "group",
        "grown",
        "head_writes",
        "holding",
        "initial_slots",
        "looked_at",
        "name",
        "now_ms",
        "owner_prefix",
        "owner_writes",
        "owners",
        "revision",
        "row_cache",
        "rows",
        "writes",
    )

    def __init__(
        self,
        name: str,
        group: bytes,
        engine: Engine,
        owners: OwnerCache,
        overlay: Overlay,
        owner_overlay: Overlay,
        rows: RowCache,
    ) -> None:
        self.rows = rows
        self.row_cache = False
        """Whether the command's rows are in it."""
        self.name = name
        self.group = group
        self.engine = engine
        self.owners = owners
        self._salt = salt_of(group)
        self._overlay = overlay
        self._owner_overlay = owner_overlay
        self.owner_prefix = table_prefix(group, SESSION.rows["owner"])
        self.writes: Writes = {}
        self.owner_writes: Writes = {}
        self.head_writes: Heads = {}
        """Of the rows in ``writes``, where their table keeps heads."""
        self.grown = 0
        """What the command changes, in bytes, where it says so itself."""
        self.looked_at = 0
        """Bytes of rows that the command has read from the engine."""
        self.now_ms = 0
        self.revision = 0
        self.initial_slots = b""
        self.holding: Any = None
        """Set by a command that changes which slots the group holds."""

    def get(self, key: bytes) -> bytes | None:
        """The value a command must believe in; not for session owners."""
        value: bytes | Missing | None = self.writes.get(key, MISSING)
        if value is MISSING and self.row_cache:
            value = self.rows.get(key)
        if value is MISSING:
            young, old = self._overlay.generations()
            value = young.get(key, MISSING)
            if value is MISSING:
                value = old.get(key, MISSING)
        if isinstance(value, Missing):
            value = self.engine.get(key)
            self._look_at(0 if value is None else len(value))
            if self.row_cache:
                self.rows.read(key, value)
        return value

    def get_many(self, keys: list[bytes], bytes_max: int) -> list[bytes | None]:
        """The same for several, which costs less, of rows that are in no row cache. Raises InvalidRequestError where
        they take more than ``bytes_max`` together."""
        size = 0
        young, old = self._overlay.generations()
        found: list[bytes | None] = []
        missed: list[int] = []
        for at, key in enumerate(keys):
            value: bytes | Missing | None = self.writes.get(key, MISSING)
            if value is MISSING:
                value = young.get(key, MISSING)
            if value is MISSING:
                value = old.get(key, MISSING)
            if isinstance(value, Missing):
                missed.append(at)
                value = None
            found.append(value)
        positions = iter(missed)
        for chunk, chunk_bytes in in_chunks(self.engine, [keys[at] for at in missed]):
            size += chunk_bytes
            check_reply(size, bytes_max)
            self._look_at(chunk_bytes)
            for value, at in zip(chunk, positions, strict=False):
                found[at] = value
        return found

    def _look_at(self, size: int) -> None:
        self.looked_at += size
        if self.looked_at > LOOKED_AT_BYTES_MAX:
            raise InvalidRequestError(
                f"the records of this request take over {LOOKED_AT_BYTES_MAX} bytes: ask for fewer at once"
            )

    def owner_rows(self, rows: Rows) -> list[bytes | None]:
        """The owner rows of sessions, by position, before this command."""
        found = self.owners.get_many(rows.keys, rows.crcs, self._salt)
        young, old = self._owner_overlay.generations()
        if not young and not old and None not in found:
            return found
        prefix = self.owner_prefix
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
            values = self.engine.get_many([prefix + rows.keys[at] for at in missed])
            for at, value in zip(missed, values, strict=True):
                if value is not None:
                    found[at] = value
                    self.owners.learn(rows.keys[at], int(rows.crcs[at]) ^ self._salt, value)
        return found
