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

    def clear(self) -> None:
        """Nothing is in flight any more."""
        self.young, self.old = {}, {}

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
        """The owner rows of sessions, by position, before this command. ``rows`` hold (_, _, session key, CRC-32)."""
        found = self.owners.get_many(rows)
        prefix, owners = self.owner_prefix, self._owner_overlay
        young, old = owners.young, owners.old
        deleted: set[int] = set()
        if young or old:
            for at, row in enumerate(rows):
                key = prefix + row[2]
                if key in young:
                    owner = young[key]
                elif key in old:
                    owner = old[key]
                else:
                    continue
                found[at] = owner
                if owner is None:
                    deleted.add(at)
        missed = [at for at, owner in enumerate(found) if owner is None and at not in deleted] if None in found else []
        if missed:
            values = self.engine.get_many([prefix + rows[at][2] for at in missed])
            for at, value in zip(missed, values, strict=True):
                if value is not None:
                    found[at] = value
                    self.owners.learn(rows[at][2], rows[at][3], value)
        return found
