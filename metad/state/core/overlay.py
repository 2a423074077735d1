"""The writes of entries in flight: evaluated on this leader, not applied yet."""

from __future__ import annotations

from collections import deque
from typing import Final

from .part import Writes


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
