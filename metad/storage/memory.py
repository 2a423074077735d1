"""The engine in memory: the twin of RocksEngine for tests and for embedding, crash included."""

from __future__ import annotations

from collections.abc import Sequence

from sortedcontainers import SortedDict

from .engine import UNBOUNDED_BYTES, Writes

_ABSENT = object()


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

    def sync(self) -> None:
        self._undo.clear()

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
