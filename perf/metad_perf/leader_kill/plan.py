"""What is sent where: the mix of verbs, the groups, and the records by group. Pure.

A request has items of one group only, as the SDK sends them anyway. So the outcome of a request is the outcome of all
of its items, and each request tells whether its group is served.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import ClusterMap, GroupId, unpack_slots
from metad_wire.routing import ROUTES, SLOT_MASK

PUT, UPDATE, TAKEOVER, COMMIT, READ = "kv.put", "session.update", "session.takeover", "offset.commit", "read"
MIX: Final[Mapping[str, float]] = {PUT: 0.30, UPDATE: 0.20, TAKEOVER: 0.10, COMMIT: 0.20, READ: 0.20}
"""The share of each in the items. Half of the reads are ``kv.get``, half ``session.get``."""
VERBS: Final = tuple(MIX)
TENANT: Final = "leader-kill"
TOPIC: Final = "orders"
_KIND: Final = {PUT: "data", UPDATE: "data", TAKEOVER: "data", COMMIT: "offset", READ: "data"}
_FREE_MIN = 64
"""So many lots of a verb and group are there before one is written again."""


class Draw:
    """Which verb comes next, and of which group: verbs by their shares in a drawn order, the groups of each in turn."""

    def __init__(self, rng: random.Random, cluster: ClusterMap) -> None:
        self._rng = rng
        self._groups = {verb: groups_of(cluster, _KIND[verb]) for verb in VERBS}
        self._at = {verb: rng.randrange(len(groups)) for verb, groups in self._groups.items()}
        self._weights = list(MIX.values())

    def next(self) -> tuple[str, str]:
        """A verb and a group."""
        (verb,) = self._rng.choices(VERBS, self._weights)
        groups = self._groups[verb]
        self._at[verb] = at = (self._at[verb] + 1) % len(groups)
        return verb, groups[at]


class Namer:
    """New names of records, by verb and group. ``prefix`` keeps those of several processes apart."""

    def __init__(self, cluster: ClusterMap, prefix: str) -> None:
        self._slots = {kind: unpack_slots(cluster.slots[kind]) for kind in ("data", "offset")}
        self._prefix = prefix
        self._count = 0
        self._spare: dict[tuple[str, str], list[str]] = {}
        self._homes: dict[tuple[str, str], str] = {}

    def names(self, verb: str, group: str, count: int) -> tuple[str, list[str]]:
        """``count`` new records of a group: the place that they share (a namespace or a consumer group; of sessions the
        tenant), and the name of each in it (a key, a partition, a client id)."""
        if verb == PUT:
            self._count += 1
            return self._home(verb, group), [f"{self._count}-{n}" for n in range(count)]
        if verb == COMMIT:
            self._count += 1
            return self._fresh(verb, group), [str(n) for n in range(count)]
        return TENANT, [self._fresh(verb, group) for _ in range(count)]

    def _home(self, verb: str, group: str) -> str:
        if (verb, group) not in self._homes:
            self._homes[verb, group] = self._fresh(verb, group)
        return self._homes[verb, group]

    def _fresh(self, verb: str, group: str) -> str:
        """A name of this group that was not used before. Those drawn on the way are kept for the other groups."""
        spare = self._spare.setdefault((verb, group), [])
        while not spare:
            self._count += 1
            name = f"{self._prefix}-{self._count}"
            self._spare.setdefault((verb, self._group(verb, name)), []).append(name)
        return spare.pop()

    def _group(self, verb: str, name: str) -> str:
        item: m.Message
        if verb == COMMIT:
            item = m.OffsetKey(TENANT, name, TOPIC, 0)
            (crc,) = ROUTES[methods.OFFSET_COMMIT.code].crcs([item])
        else:
            item = m.KvKey(name, "") if verb == PUT else m.SessionKey(TENANT, name)
            (crc,) = ROUTES[(methods.KV_GET if verb == PUT else methods.SESSION_GET).code].crcs([item])
        kind = _KIND[verb]
        return GroupId(kind, self._slots[kind][crc & SLOT_MASK]).name


def groups_of(cluster: ClusterMap, kind: str) -> list[str]:
    """The groups of a kind that have slots."""
    return sorted({GroupId(kind, ordinal).name for ordinal in unpack_slots(cluster.slots[kind])})


SEQUENCE_BYTES: Final = 8


def numbered(sequence: int, filling: bytes) -> bytes:
    """A value that says its number."""
    return sequence.to_bytes(SEQUENCE_BYTES, "big") + filling


def number_of(value: bytes) -> int:
    """The number that a value says."""
    return int.from_bytes(value[:SEQUENCE_BYTES], "big")


class Lot(msgspec.Struct, kw_only=True, eq=False):
    """Records that are always written together, with one number, which counts up, by one write at a time. A lot whose
    write has an unknown outcome is never written again, so what is read in the end is the last acknowledged number or
    the one in doubt. ``home``: the broker that writes first; ``acknowledged``: the number of the last acknowledged
    write, which is also how many there were; ``in_doubt``: the number of a write that may have happened, 0: none;
    ``busy``: a write is under way."""

    verb: str
    group: str
    place: str
    names: Sequence[str]
    home: int
    acknowledged: int = 0
    in_doubt: int = 0
    busy: bool = False

    def label(self, name: str) -> str:
        """One of its records, for those who read."""
        return f"{self.verb} of {self.group}: {self.place}/{name}"

    @property
    def next(self) -> int:
        """The number of the next write."""
        return self.acknowledged + 1


class Ledger:
    """The lots of one process: what it writes, and what must therefore be there."""

    def __init__(self) -> None:
        self.lots: list[Lot] = []
        self._free: dict[tuple[str, str], deque[Lot]] = {}

    def take(self, verb: str, group: str, make: Callable[[], Lot]) -> Lot:
        """A lot that is free, which is busy now: the one that was written longest ago, or a new one."""
        free = self._free.setdefault((verb, group), deque())
        if len(free) < _FREE_MIN:
            lot = make()
            self.lots.append(lot)
        else:
            lot = free.popleft()
        lot.busy = True
        return lot

    def any(self, verb: str, group: str) -> Lot | None:
        """A lot to read: the one that was written last."""
        free = self._free.get((verb, group))
        return free[-1] if free else None

    def acknowledged(self, lot: Lot) -> None:
        """The write that was under way is there."""
        lot.acknowledged += 1
        self._release(lot)

    def failed(self, lot: Lot, *, known: bool) -> None:
        """The write was not acknowledged. ``known``: it did not happen."""
        if known:
            self._release(lot)
        else:
            lot.in_doubt = lot.next

    def _release(self, lot: Lot) -> None:
        lot.busy = False
        self._free[lot.verb, lot.group].append(lot)
