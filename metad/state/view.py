"""What a command sees while it is evaluated: its own writes, over those in flight, over the applied state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..storage.engine import Engine
from ..storage.keys import TABLE_SESSION_OWNER, table_prefix
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
        "owner_prefix",
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
        self.owner_prefix = table_prefix(group, TABLE_SESSION_OWNER)
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

    def owner_rows(self, rows: Sequence[tuple[Any, Any, bytes, int]]) -> list[bytes | None]:
        """The owner rows of sessions, by position, as before this command. ``rows`` hold (_, _, session key, CRC-32).

        Once per session of a storm: what the overlay and the owner cache do is spelled out in one loop.
        """
        young, old = self._owner_overlay.young, self._owner_overlay.old
        in_flight = bool(young or old)
        prefix = self.owner_prefix
        checks, numbers, mask, known = self.owners.columns()
        owner_of = self.owners.get
        found: list[bytes | None] = []
        missed: list[int] = []
        for _, _, session, crc in rows:
            if in_flight:
                key = prefix + session
                if key in young:
                    found.append(young[key])
                    continue
                if key in old:
                    found.append(old[key])
                    continue
            hashed = hash(session)
            slot = hashed & mask
            if checks[slot] == hashed ^ crc:
                found.append(known[numbers[slot]])
            else:
                row = owner_of(session, crc)
                if row is None:
                    missed.append(len(found))
                found.append(row)
        if missed:
            values = self.engine.get_many([prefix + rows[at][2] for at in missed])
            for at, value in zip(missed, values, strict=True):
                if value is not None:
                    found[at] = value
                    self.owners.learn(rows[at][2], rows[at][3], value)
        return found
