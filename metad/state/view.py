"""What a command sees while it is evaluated: its own writes, over those in flight, over the applied state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..storage.engine import Engine
from .owners import OwnerCache

Writes = dict[bytes, bytes | None]


class _Missing:
    """Marks a key that no write in flight touches (None says that one deletes it)."""


MISSING: Final = _Missing()


class Overlay:
    """The writes of entries that are not applied yet, newest first, in two generations.

    A generation is dropped as a whole once its last entry is applied, so nothing is paid per key. Until then it
    also answers for entries that are applied already, which is right: it holds the latest write of each key.
    """

    def __init__(self) -> None:
        self.young: Writes = {}
        self.old: Writes = {}
        self._young_last = 0
        self._old_last = 0

    def add(self, index: int, writes: Mapping[bytes, bytes | None]) -> None:
        """The writes of a command in entry ``index``."""
        self.young.update(writes)
        self._young_last = index

    def applied(self, index: int) -> None:
        """Every entry up to ``index`` is in the engine."""
        if index >= self._young_last:
            if self.young:
                self.young = {}
            if self.old:
                self.old = {}
        elif index >= self._old_last:
            self.old, self._old_last = self.young, self._young_last
            self.young = {}

    def clear(self) -> None:
        """Nothing in flight will ever be applied."""
        self.young, self.old = {}, {}
        self._young_last = self._old_last = 0


class View:
    """Passed to ``evaluate``. Commands put their effects into ``writes``; ``now_ms`` is the leader's clock and
    ``index`` the entry's."""

    __slots__ = ("_overlay", "engine", "group", "index", "name", "now_ms", "owners", "writes")

    def __init__(self, name: str, group: bytes, engine: Engine, owners: OwnerCache, overlay: Overlay) -> None:
        self.name = name
        self.group = group
        self.engine = engine
        self.owners = owners
        self._overlay = overlay
        self.writes: Writes = {}
        self.now_ms = 0
        self.index = 0

    def get(self, key: bytes) -> bytes | None:
        """The value a command must believe in."""
        value = self.pending(key)
        return self.engine.get(key) if isinstance(value, _Missing) else value

    def owner(self, key: bytes, crc: int) -> bytes | None:
        """A session's owner row."""
        value = self.pending(key)
        if not isinstance(value, _Missing):
            return value
        return self.owners.get(key, crc) or self.engine.get(key)

    def pending(self, key: bytes) -> bytes | _Missing | None:
        """The latest write in flight, or MISSING."""
        value: bytes | _Missing | None = self.writes.get(key, MISSING)
        if value is MISSING:
            value = self._overlay.young.get(key, MISSING)
            if value is MISSING:
                value = self._overlay.old.get(key, MISSING)
        return value
