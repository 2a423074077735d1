"""What is written, and who watches it. Pure.

A *place* is a set of records that the same watches match: a namespace, a prefix in a namespace, some named keys, the
sessions of a tenant, or the offsets of a tenant. Every place has as many watches as the fan-out says, so each event
goes to that many on average.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from typing import TypeAlias

from metad_wire import messages as m
from metad_wire.tables.kv import KV
from metad_wire.tables.offset import OFFSET
from metad_wire.tables.session import SESSION

from .track import Track

Key: TypeAlias = m.KvKey | m.SessionKey | m.OffsetKey
TOPIC = "orders"


class Kind(enum.Enum):
    """How the watches of a place name it."""

    NAMESPACE = "namespace"
    PREFIX = "prefix"
    KEYS = "keys"
    SESSIONS = "sessions"
    OFFSETS = "offsets"


KV_KINDS = (Kind.NAMESPACE, Kind.PREFIX, Kind.KEYS)
KINDS = (
    Kind.NAMESPACE,
    Kind.SESSIONS,
    Kind.OFFSETS,
    Kind.PREFIX,
    Kind.KEYS,
    Kind.NAMESPACE,
    Kind.NAMESPACE,
    Kind.NAMESPACE,
    Kind.NAMESPACE,
    Kind.NAMESPACE,
)
"""Those of ten places: eight of them are of key-values."""
_TABLES = {Kind.SESSIONS: "session", Kind.OFFSETS: "offset"}


class Cell:
    """One record: its key and its rows. ``busy`` while a write of it is in flight, so that the order is known."""

    __slots__ = ("busy", "key", "life", "tracks")

    def __init__(self, key: Key, tracks: tuple[Track, ...]) -> None:
        self.key = key
        self.tracks = tracks
        self.busy = False
        self.life: tuple[str, int] | None = None
        """Of a session: the broker's life that owns it; None if it may not be there."""

    @property
    def exists(self) -> bool | None:
        """Whether it is there; None: not certain."""
        track = self.tracks[0]
        if not track.certain:
            return None
        newest = track.before(len(track))
        return newest is not None and not track.deletes[newest]


class Place:
    """One place. ``tenant`` is its namespace if it is of key-values."""

    def __init__(self, kind: Kind, name: str, records: int, number: int) -> None:
        self.kind = kind
        self.table = _TABLES.get(kind, "kv")
        self.tenant = f"shared-{name.partition('-')[0]}" if kind is Kind.PREFIX else name
        self.prefix = f"{name}/" if kind is Kind.PREFIX else ""
        self.cells = [self._cell(n, number + n * self._rows) for n in range(records)]
        self.numbers = records * self._rows
        """How many numbers of tracks it takes."""

    @property
    def _rows(self) -> int:
        return 2 if self.kind is Kind.SESSIONS else 1

    def _cell(self, n: int, number: int) -> Cell:
        if self.kind is Kind.SESSIONS:
            session = m.SessionKey(self.tenant, f"device-{n}")
            slot = SESSION.slot_of(SESSION.key_of([session.tenant, session.client_id]))
            label = f"session {session.tenant}/{session.client_id}"
            return Cell(session, tuple(_track(f"{label} {row}", number + i, slot) for i, row in enumerate(_ROWS)))
        if self.kind is Kind.OFFSETS:
            offset = m.OffsetKey(self.tenant, f"group-{n // 8}", TOPIC, n % 8)
            slot = OFFSET.slot_of(OFFSET.key_of([offset.tenant, offset.group, offset.topic, offset.partition]))
            return Cell(offset, (_track(f"offset {offset.tenant}/{offset.group}/{n % 8}", number, slot),))
        key = m.KvKey(self.tenant, f"{self.prefix}key-{n}")
        slot = KV.slot_of(KV.key_of([key.namespace, key.key]))
        return Cell(key, (_track(f"kv {key.namespace}/{key.key}", number, slot),))

    def tracks(self) -> dict[tuple[str, Key], Track]:
        """The rows of all records, by the row's name and the key."""
        rows = {Kind.SESSIONS: _ROWS, Kind.OFFSETS: ("offset",)}.get(self.kind, ("record",))
        return {(row, cell.key): track for cell in self.cells for row, track in zip(rows, cell.tracks, strict=True)}

    def free(self, rng: random.Random, count: int) -> list[Cell]:
        """Some records without a write in flight, each once."""
        free = [cell for cell in self.cells if not cell.busy]
        return free if len(free) <= count else rng.sample(free, count)


_ROWS = ("owner", "properties")


def _track(label: str, number: int, slot: int | None) -> Track:
    assert slot is not None  # all these tables are routed
    return Track(label, number, slot)


def lay_out(share: str, places: int, records: int) -> list[Place]:
    """The places of one process. ``share`` is its own part of all names."""
    made: list[Place] = []
    number = 0
    for n in range(places):
        place = Place(KINDS[n % len(KINDS)], f"{share}-{n}", records, number)
        number += place.numbers
        made.append(place)
    return made


def by_kind(places: Sequence[Place]) -> dict[str, list[Place]]:
    """The places whose records one request can write, by the name of their table."""
    found: dict[str, list[Place]] = {}
    for place in places:
        found.setdefault(place.table, []).append(place)
    return found
