"""The brokers that a group may choose from: who lives, by its own fences, and what a node's copy of ``metadata-0`` says
of them. That copy may be old, and gives preferences only: racks, weights, attributes, and who drains.

What each broker has of a group's partitions is counted in memory, by whoever leads. A new leader begins with nothing
and counts by the index, some thousand rows at a time (:meth:`Placing.count_on`); until it is done brokers count as
equally full.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from metad_wire.cluster import METADATA
from metad_wire.errors import NoPlaceError, TooLargeError
from metad_wire.families.assignment import BY_REPLICA
from metad_wire.key import text
from metad_wire.policy.seats import Candidate, Placer, SeatTable, Spread
from metad_wire.tables.assignment import Resource
from metad_wire.tables.broker import BROKER, DRAINING, Broker
from metad_wire.tables.table import INDEXES

from ...config import Config
from ...storage import keys
from ...storage.engine import Engine
from ..cluster.fences import Fences
from ..core.part import PartContext, Parts, StatePart
from .decide import Hints
from .plans import Plans

_RECORD: Final = BROKER.rows["record"]
_PREFIX: Final = keys.table_prefix(keys.group_prefix(METADATA), _RECORD)
_INDEX: Final = INDEXES.rows["index"]
WEIGHT: Final = "weight"
"""The attribute of a broker that says how much of the load it should have, as a decimal number; by default 1."""
_TABLES_MAX: Final = 64
_RETURNS_MS: Final = 3_600_000
"""A dead broker has its seats for so long, and others take them meanwhile: its return changes nothing."""
_decode = msgspec.msgpack.Decoder(Broker).decode


class Known(NamedTuple):
    """What is known of a broker beside its fence."""

    broker_epoch: int
    """Of the life that it is known of."""
    weight: float = 1.0
    rack: str = ""
    region: str = ""
    draining: bool = False
    attributes: Mapping[str, str] = {}


_UNKNOWN: Final = Known(0)


class Fleet:
    """What a node's copy of ``metadata-0`` says of brokers."""

    def __init__(self, config: Config | None = None) -> None:
        self._engine: Engine | None = None
        self._known: dict[str, Known] = {}

    def read_from(self, engine: Engine) -> None:
        """Where the copy is, from now on."""
        self._engine = engine
        self._known = {}

    def of(self, broker: str, life: int | None) -> Known:
        """What is known of a broker whose newest life is this; None: it is dead."""
        known = self._known.get(broker)
        if known is None or (life is not None and known.broker_epoch != life):
            known = self.look(broker)
        return known or _UNKNOWN

    def look(self, broker: str) -> Known | None:
        """Read what the copy says now; None if it does not know the broker."""
        value = None if self._engine is None else self._engine.get(_PREFIX + keys.text(broker))
        found = None if value is None else _known(_decode(value))
        if found is None:
            self._known.pop(broker, None)
        else:
            self._known[broker] = found
        return found


def _known(record: Broker) -> Known:
    try:
        weight = min(1e6, max(1e-3, float(record.attributes.get(WEIGHT, 1))))
    except ValueError:
        weight = 1.0
    draining = record.state == DRAINING
    return Known(record.broker_epoch, weight, record.rack, record.region, draining, record.attributes)


_ORDINAL_BITS: Final = 10
"""Groups of a kind are no more than slots."""
_COUNT_BITS: Final = 13


class Placing(StatePart):
    """Where the replicas of a group's partitions are, and where new ones go."""

    def __init__(self, context: PartContext) -> None:
        self.fleet: Fleet = context.memory.shared(Fleet)
        self._engine = context.engine
        self._prefix = keys.table_prefix(context.group, _INDEX) + BY_REPLICA.header
        self._is_metadata = context.group == keys.group_prefix(METADATA)

        self._ordinal = int.from_bytes(context.group[1:3], "big")
        self._ids = 0, 0

    def load(self) -> None:
        if self._is_metadata:
            self.fleet.read_from(self._engine)
        self.forget()

    def new_id(self, revision: int) -> int:
        """Return a number that no other resource of the cluster is given, of any group. ``revision``: of the entry.
        Raises TooLargeError where an entry takes too many."""
        entry, count = self._ids
        count = count + 1 if entry == revision else 0
        if count >= 1 << _COUNT_BITS:
            raise TooLargeError(f"one entry makes {count} resources at most: send them in parts")
        self._ids = revision, count
        return (revision << _COUNT_BITS | count) << _ORDINAL_BITS | self._ordinal

    def forget(self) -> None:
        self.counts: Counter[str] = Counter()
        """Replicas by broker, as far as they are counted."""
        self._at: bytes | None = self._prefix
        self._tables: dict[Any, tuple[Any, SeatTable]] = {}

    # --- counts ---

    @property
    def counted(self) -> bool:
        """Whether all replicas are."""
        return self._at is None

    def has_counted(self, broker: str) -> bool:
        """Whether the replicas of a broker are counted: what comes to them now will not be found any more."""
        return self._at is None or self._prefix + text(broker) < self._at

    def count_on(self, limit: int) -> None:
        """Count the next replicas of the applied state."""
        if self._at is None:
            return
        rows = self._engine.scan(self._at, keys.after_prefix(self._prefix), limit)
        at = 0
        while at < len(rows):  # the rows of a broker are beside each other
            first = rows[at][0]
            broker, end = keys.split_text(first, len(self._prefix))
            behind = bisect_left(rows, keys.after_prefix(first[:end]), at, key=itemgetter(0))
            self.counts[broker] += behind - at
            at = behind
        self._at = rows[-1][0] + b"\0" if len(rows) == limit else None

    def seats(self, candidates: Sequence[Candidate], replication: int, spread: Spread) -> SeatTable:
        """The seats of these brokers, made when they are not known yet."""
        known, table = self._tables.get((replication, spread), (None, None))
        if table is None or known != candidates:
            table = SeatTable(candidates, replication, spread)
            if len(self._tables) >= _TABLES_MAX:
                self._tables.clear()
            self._tables[replication, spread] = (candidates, table)
        return table


class Choices:
    """The choices of one command, or for one answer."""

    def __init__(self, parts: Parts, now_ms: int) -> None:
        self._placing = parts[Placing]
        self._fences = parts[Fences]
        self._plans = parts[Plans].shared
        self._now_ms = now_ms
        self._placers: dict[Any, Placer] = {}
        self._delta: Counter[str] = Counter()
        self._draining: dict[str, bool] = {}

    @cached_property
    def _counts(self) -> Counter[str]:
        """Replicas by broker, also those that the command places. Most commands place none."""
        return self._placing.counts.copy() if self._placing.counted else Counter[str]()

    @cached_property
    def _shares(self) -> dict[str, float]:
        """What each broker that lives should have of all replicas, by weight."""
        live = {
            broker: self._placing.fleet.of(broker, fence.least_epoch).weight
            for broker, fence in self._fences.of_all().items()
            if fence.live
        }
        total = sum(live.values())
        return {broker: weight / total for broker, weight in live.items()}

    @property
    def hints(self) -> Hints:
        """What decisions are given of them."""
        return Hints(self.draining, self.replacement, self._plans.cancelled)

    def accepted(self) -> None:
        """The command is a part of an entry."""
        placing = self._placing
        placing.counts.update({broker: by for broker, by in self._delta.items() if placing.has_counted(broker)})

    def changed(self, before: Sequence[str], after: Sequence[str]) -> None:
        """The command changes who has a partition."""
        if not before:
            self._delta.update(after)
            return
        gone, come = {*before} - {*after}, {*after} - {*before}
        self._delta.update(come)
        self._delta.subtract(gone)

    def placer(self, resource: Resource) -> Placer:
        """What chooses brokers for the replicas of a resource: those that live, have its labels, and do not drain.
        Those that drain get a replica only where nobody else can have it, and only if it would else be missing: of a
        partition that is created or repaired, or that nobody else could own. Raises NoPlaceError."""
        key = (resource.replication, resource.spread, frozenset(resource.labels.items()))
        if (known := self._placers.get(key)) is not None:
            return known
        found: list[Candidate] = []
        dead: set[str] = set()
        drained: set[str] = set()
        for broker, fence in self._fences.of_all().items():
            if not fence.live and fence.at_ms + _RETURNS_MS < self._now_ms:
                continue
            about = self._placing.fleet.of(broker, fence.least_epoch if fence.live else None)
            if any(about.attributes.get(name) != value for name, value in resource.labels.items()):
                continue
            found.append(Candidate(broker, about.weight, about.rack, about.region))
            if not fence.live:
                dead.add(broker)
            elif about.draining or self._plans.drains(broker):
                drained.add(broker)
        left = len(found) - len(dead)
        if left < resource.replication:
            raise NoPlaceError(f"{left} brokers live that may have a replica, {resource.replication} are needed")
        table = self._placing.seats(sorted(found), resource.replication, resource.spread)
        placer = self._placers[key] = Placer(table, self._counts, dead, drained)
        return placer

    def _surplus(self, broker: str) -> float:
        """How many replicas a broker has beyond its share by weight."""
        total = sum(self._counts[broker] for broker in self._shares)
        return self._counts[broker] - self._shares.get(broker, 0.0) * total

    def givers(self) -> list[str]:
        """The brokers that have more than their share, the fullest first."""
        over = [(self._surplus(broker), broker) for broker in self._shares]
        return [broker for surplus, broker in sorted(over, reverse=True) if surplus >= 1]

    def gives(self, broker: str) -> bool:
        """Whether it still has more than its share."""
        return self._surplus(broker) >= 1

    def place(self, resource: Resource, first: int, number: int) -> list[list[str]]:
        """Where so many partitions go, the preferred leader first. Raises NoPlaceError."""
        number_of = crc32(f"{resource.tenant}\0{resource.resource}\0{resource.kind}".encode())
        return [[*found] for found in self.placer(resource).place(number_of, first, number)]

    def replacement(self, resource: Resource, replicas: Sequence[str], gone: str) -> str | None:
        """A broker for a replica that is missing, in place of this one; None if there is none."""
        try:
            found = self.placer(resource).replacement(replicas, gone)
        except NoPlaceError:
            return None
        if found is not None:
            self._counts[found] += 1
        return found

    def draining(self, broker: str) -> bool:
        """Whether a broker wants to lead nothing."""
        known = self._draining.get(broker)
        if known is None:
            life = self._fences.life(broker)
            known = self._plans.drains(broker) or (life is not None and self._placing.fleet.of(broker, life).draining)
            self._draining[broker] = known
        return known
