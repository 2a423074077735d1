"""What a command sees while it is evaluated: its own writes, over those in flight, over the applied state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

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
    """Passed to ``evaluate``. Commands put their effects into ``writes``, those on session owners into
    ``owner_writes``; ``now_ms`` is the leader's clock and ``index`` the entry's."""

    __slots__ = (
        "_overlay",
        "_owner_overlay",
        "engine",
        "group",
        "index",
        "name",
        "now_ms",
        "owner_writes",
        "owners",
        "writes",
    )

    def __init__(
        self, name: str, group: bytes, engine: Engine, owners: OwnerCache, overlay: Overlay, owner_overlay: Overlay
    ) -> None:
        self.name = name
        self.group = group
        self.engine = engine
        self.owners = owners
        self._overlay = overlay
        self._owner_overlay = owner_overlay
        self.writes: Writes = {}
        self.owner_writes: Writes = {}
        self.now_ms = 0
        self.index = 0

    def get(self, key: bytes) -> bytes | None:
        """The value a command must believe in; not for session owners."""
        value: bytes | _Missing | None = self.writes.get(key, MISSING)
        if value is MISSING:
            value = self._overlay.young.get(key, MISSING)
            if value is MISSING:
                value = self._overlay.old.get(key, MISSING)
        return self.engine.get(key) if isinstance(value, _Missing) else value

    def owner_rows(
        self, prefix: bytes, rows: Sequence[tuple[Any, Any, bytes, int]]
    ) -> list[tuple[bytes, bytes | None]]:
        """(key, owner row) of sessions, as before this command. ``rows`` hold (_, _, key behind the prefix, CRC-32).

        Once per session of a storm: what the overlay and the owner cache do is spelled out in one loop.
        """
        young, old = self._owner_overlay.young, self._owner_overlay.old
        in_flight = bool(young or old)
        checks, numbers, mask, known = self.owners.columns()
        found: list[tuple[bytes, bytes | None]] = []
        missed: list[int] = []
        for _, _, suffix, crc in rows:
            key = prefix + suffix
            if in_flight:
                if key in young:
                    found.append((key, young[key]))
                    continue
                if key in old:
                    found.append((key, old[key]))
                    continue
            hashed = hash(key)
            slot = hashed & mask
            if checks[slot] == hashed ^ crc:
                found.append((key, known[numbers[slot]]))
            elif checks[slot ^ 1] == hashed ^ crc:
                found.append((key, known[numbers[slot ^ 1]]))
            else:
                missed.append(len(found))
                found.append((key, None))
        if missed:
            values = self.engine.get_many([found[at][0] for at in missed])
            for at, value in zip(missed, values, strict=True):
                if value is not None:
                    key = found[at][0]
                    found[at] = (key, value)
                    self.owners.learn(key, rows[at][3], value)
        return found
