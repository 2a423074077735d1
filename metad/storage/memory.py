"""The engine in memory: RocksEngine's twin for tests and for embedding; it simulates crashes too."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from sortedcontainers import SortedDict

from ..errors import START_AGAIN, DamagedStoreError, StorageError
from .engine import NO_WRITES, PART_BYTES, UNBOUNDED_BYTES, Engine, Figures, Writes

_ABSENT = object()

Pairs = list[tuple[bytes, bytes]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Pairs).decode


class MemoryEngine:
    """An ordered map that forgets unsynced writes when told to :meth:`crash`."""

    def __init__(self) -> None:
        self._map: SortedDict = SortedDict()
        self._undo: list[tuple[bytes, object]] = []  # (key, value before) of every unsynced change, oldest first

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._map.get(key)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._map.get(key) for key in keys]

    def scan(self, begin: bytes, end: bytes, limit: int, bytes_max: int = UNBOUNDED_BYTES) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        for key in self._map.irange(begin, end, inclusive=(True, False)):
            if len(found) >= limit or bytes_max <= 0:
                break
            value = self._map[key]
            found.append((key, value))
            bytes_max -= len(key) + len(value)
        return found

    def scan_backwards(self, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        for key in self._map.irange(begin, end, inclusive=(True, False), reverse=True):
            if len(found) >= limit:
                break
            found.append((key, self._map[key]))
        return found

    def write(self, *batches: Writes, delete_ranges: Sequence[tuple[bytes, bytes]] = ()) -> None:
        for begin, end in delete_ranges:
            for key in list(self._map.irange(begin, end, inclusive=(True, False))):
                self._set(key, None)
        for writes in batches:
            for key, value in writes.items():
                self._set(key, value)

    def export(self, begin: bytes, end: bytes, part_bytes: int = PART_BYTES) -> PackedExport:
        return PackedExport(self.scan(begin, end, len(self._map)), part_bytes)

    def pin(self, begin: bytes, end: bytes, *, brief: bool = False) -> CopiedPin | BriefPin:
        return BriefPin(self, begin, end) if brief else CopiedPin(self.scan(begin, end, len(self._map)))

    def replace(self, begin: bytes, end: bytes, parts: Sequence[bytes | Path], writes: Writes = NO_WRITES) -> None:
        self.write(unpack(begin, end, parts), writes, delete_ranges=[(begin, end)])
        self.sync()

    def sync(self) -> None:
        self._undo.clear()

    def flush(self) -> None:
        pass

    def take_worn(self) -> None:
        """Deleted pairs are gone at once."""

    def compact(self, begin: bytes, end: bytes) -> None:
        pass

    def figures(self) -> Figures:
        return Figures(pairs=len(self._map))

    @property
    def files_bytes(self) -> int:
        return 0

    def heed_room(self, mark_bytes: int, files_bytes: int) -> None:
        pass

    @property
    def reclaiming_bytes(self) -> int:
        return 0

    def reclaim(self, left_bytes: int | None = None, spare_bytes: int = 0) -> int:
        return 0

    def crash(self) -> None:
        """Lose every unsynced write, as a power loss would."""
        while self._undo:
            key, before = self._undo.pop()
            if before is _ABSENT:
                self._map.pop(key, None)
            else:
                self._map[key] = before

    def close(self) -> None:
        pass

    def _set(self, key: bytes, value: bytes | None) -> None:
        self._undo.append((key, self._map.get(key, _ABSENT)))
        if value is None:
            self._map.pop(key, None)
        else:
            self._map[key] = value


class CopiedPin:
    """An :class:`.engine.Pin` of a copy."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs: Pairs | None = pairs

    def scan(self, begin: bytes, end: bytes, limit: int, bytes_max: int = UNBOUNDED_BYTES) -> Pairs:
        pairs = self._pairs
        if pairs is None:
            raise StorageError("this pin was closed")
        found: Pairs = []
        for position in range(bisect_left(pairs, (begin, b"")), len(pairs)):
            key, value = pairs[position]
            if key >= end or len(found) >= limit or bytes_max <= 0:
                break
            found.append((key, value))
            bytes_max -= len(key) + len(value)
        return found

    def close(self) -> None:
        self._pairs = None


class BriefPin:
    """An :class:`.engine.Pin` of an engine to which nothing is written."""

    def __init__(self, engine: Engine, begin: bytes, end: bytes) -> None:
        self._engine: Engine | None = engine
        self._begin, self._end = begin, end

    def scan(self, begin: bytes, end: bytes, limit: int, bytes_max: int = UNBOUNDED_BYTES) -> Pairs:
        if self._engine is None:
            raise StorageError("this pin was closed")
        begin, end = max(begin, self._begin), min(end, self._end)
        return self._engine.scan(begin, end, limit, bytes_max) if begin < end else []

    def close(self) -> None:
        self._engine = None


class PackedExport:
    """An :class:`.engine.Export` in msgpack, one slice per part."""

    def __init__(self, pairs: Pairs, part_bytes: int) -> None:
        self._pairs: Pairs | None = pairs
        self._position = 0
        self._part_bytes = part_bytes

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._pairs is None:
            raise StorageError("this export was closed")
        begin = end = self._position
        size = 0
        while end < len(self._pairs) and size < self._part_bytes:
            size += sum(map(len, self._pairs[end]))
            end += 1
        if begin == end:
            raise StopIteration
        self._position = end
        return _encode(self._pairs[begin:end])

    def close(self) -> None:
        self._pairs = None


def unpack(begin: bytes, end: bytes, parts: Sequence[bytes | Path]) -> dict[bytes, bytes]:
    """The pairs of parts of a :class:`PackedExport`. Raises DamagedStoreError if they are not of this range."""
    found: dict[bytes, bytes] = {}
    try:
        for part in parts:
            found.update(_decode(part if isinstance(part, bytes) else part.read_bytes()))
    except msgspec.DecodeError as error:
        raise DamagedStoreError(f"a part of a snapshot is unreadable: {error}", START_AGAIN) from None
    except OSError as error:
        raise StorageError(f"cannot read a part of a snapshot: {error}") from None
    if not all(begin <= key < end for key in found):
        raise DamagedStoreError("a part of a snapshot holds keys of another range", START_AGAIN)
    return found
