"""What a node counts of its own work, in plain numbers that cost next to nothing; :mod:`metad.server.lamps` shows them.

Everything here is bounded: by the number of methods, of buckets, and of the places in a sketch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable
from heapq import nlargest
from itertools import accumulate, islice
from math import inf
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from metad_wire import messages as m
from metad_wire.errors import MetadError
from metad_wire.methods import METHODS
from metad_wire.refused import Refused
from metad_wire.table import Table

from ..control.host import Done, Source
from ..state.core.verb import Command

REQUEST_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SYNC_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""For what takes a fraction of a request."""
ITEMS: Final = (1.0, 4.0, 16.0, 64.0, 256.0, 1_024.0, 4_096.0)
UNKNOWN: Final = "unknown"
"""The name of all methods that there are not."""

Name = TypeVar("Name", bound=Hashable)


class Histogram:
    """Counts values by bucket. One thread adds to it."""

    __slots__ = ("bounds", "buckets", "examples", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        """Upper bounds of the buckets but the last."""
        self.buckets = [0] * (1 + len(bounds))
        self.total = 0.0
        """Of all values."""
        self.examples: dict[int, tuple[str, float]] = {}
        """By bucket, the id of the last trace that had such a value, and the value."""

    def add(self, value: float) -> None:
        """Count one."""
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.total += value


class Meter:
    """Counts the requests of one method, since the node's start."""

    __slots__ = ("bytes", "items", "outcomes", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram(REQUEST_S)
        """From when a request has come until it is answered."""
        self.bytes = 0
        """Of the requests."""
        self.items = 0
        """That were begun; a request without items is one."""
        self.outcomes: dict[str, int] = {}
        """``done``, or the name of the error. Items of a batch may have failed in what is done."""


class Weight(NamedTuple, Generic[Name]):
    """Says how much somebody asked for of late, about."""

    name: Name
    at_least: int
    at_most: int


class Loudest(Generic[Name]):
    """Finds those with the most weight, of however many, in bounded room: counters of Misra and Gries (*Finding
    Repeated Elements*, 1982), many of which are let go at once. What it says of each is too little by less than the
    whole weight by :data:`KEPT`. Each minute halves weights."""

    KEPT: Final = 128

    def __init__(self) -> None:
        self._counts: dict[Name, float] = {}
        self._missed = 0.0
        self._faded_s = -inf

    def add(self, name: Name, weight: int) -> None:
        """Count a weight for somebody."""
        counts = self._counts
        counts[name] = counts.get(name, 0.0) + weight
        if len(counts) > 2 * self.KEPT:
            kept = nlargest(self.KEPT + 1, counts.items(), key=lambda one: one[1])
            least = kept.pop()[1]
            self._missed += least
            self._counts = {name: count - least for name, count in kept if count > least}

    def fade(self, now_s: float) -> None:
        """Let half of it be forgotten for each minute that has passed. Call it now and then."""
        while now_s - self._faded_s >= FADES_S:
            if now_s - self._faded_s > 64 * FADES_S:
                self._counts, self._missed, self._faded_s = {}, 0.0, now_s
                return
            self._faded_s += FADES_S
            self._missed /= 2
            self._counts = {name: count / 2 for name, count in self._counts.items() if count > 1}

    def top(self, most: int) -> list[Weight[Name]]:
        """The heaviest, the first first."""
        found = nlargest(most, self._counts.items(), key=lambda one: one[1])
        return [Weight(name, round(count), round(count + self._missed)) for name, count in found]


def _most_us(histogram: Histogram, before: list[int]) -> int:
    """What nine of ten values took at most that were added since; 0 if they are few."""
    added = [now - then for now, then in zip(histogram.buckets, before, strict=True)]
    if sum(added) < _FEW:
        return 0
    counted = zip((*histogram.bounds, 2 * histogram.bounds[-1]), accumulate(added), strict=True)
    return round(1e6 * next(bound for bound, count in counted if count >= 0.9 * sum(added)))


_FEW: Final = 20
"""Values of which a part says nothing."""
_LOOK_S: Final = 10.0
_LOOKS: Final = 6
"""A minute."""
FADES_S: Final = 60.0
"""After so long a weight counts half."""


class Meters:
    """What one node counts."""

    SLOW_KEPT: Final = 256
    """Slow requests; older ones go."""
    SAMPLE: Final = 7
    """Of so many requests, the loudest hear of one. A prime, so that it follows no rhythm of clients."""

    def __init__(self) -> None:
        self._requests: dict[int, Meter] = {}
        self.refused: dict[str, int] = {}
        """Items that were refused before they were begun, one by one or with their request, by the name of the
        error."""
        self.sync_s = Histogram(SYNC_S)
        """How long an fsync of the log took; of a thread of its own."""
        self.entry_items = Histogram(ITEMS)
        self.entry_wait_s = Histogram(REQUEST_S)
        """How long the first request of an entry waited since it had come."""
        self.apply_s = Histogram(SYNC_S)
        """How long it took to apply what was committed, and to answer; as much as goes into a turn of the loop."""
        self.loop_late_s = Histogram(SYNC_S)
        """How late the event loop was for a timer, ten times a second."""
        self.trace_id = ""
        """Of the request that is being answered, if it is traced."""
        self.missed = 0
        """Requests whose deadline passed before they were begun."""
        self.slow: deque[m.SlowRequest] = deque(maxlen=self.SLOW_KEPT)
        self.slow_count = 0
        self.tenants: Loudest[str] = Loudest()
        self.clients: Loudest[str] = Loudest()
        self.brokers: Loudest[str] = Loudest()
        self.keys: Loudest[tuple[Table[Any], bytes]] = Loudest()
        """Of records."""
        self._until_sample = self.SAMPLE
        self._nth = 0
        self._timed = (self.sync_s, self.apply_s, self.loop_late_s)
        self._looks: deque[list[list[int]]] = deque([[[*one.buckets] for one in self._timed]], maxlen=_LOOKS + 1)
        self._looked_s = -inf

    @staticmethod
    def name_of(method: int) -> str:
        """The name of a method, by its code."""
        return METHODS[method].name if method in METHODS else UNKNOWN

    def of(self, method: int) -> Meter:
        """The meter of a method."""
        meter = self._requests.get(method)
        if meter is None:
            known = method if method in METHODS else 0
            meter = self._requests.setdefault(known, Meter())
        return meter

    def begun(
        self,
        command: Command[Any],
        refused: Refused | None,
        source: Source | None,
        life: m.Owner | None,
        now_s: float,
    ) -> None:
        """Count what a request asks for. Runs once for each."""
        if source is None:  # the node itself, or another
            return
        items = command.items
        self.of(command.method.code).items += items
        if refused is not None:
            for name in refused.names():
                self.refused[name] = self.refused.get(name, 0) + 1
        self._until_sample -= 1
        if self._until_sample:
            return
        self._until_sample = self.SAMPLE
        weight = self.SAMPLE * max(1, items)
        for one in (self.tenants, self.clients, self.brokers, self.keys):
            one.fade(now_s)
        self.clients.add(source.holder, weight)
        if tenant := command.tenant:
            self.tenants.add(tenant.decode(errors="replace"), weight)
        if life is not None:
            self.brokers.add(life.broker, weight)
        if keys := command.rows.keys:
            self._nth += 1  # of a batch one, and not always the same: others of the batch may never come again
            self.keys.add((command.method.table, keys[self._nth % len(keys)]), self.SAMPLE)

    def turned_away(self, error: str, items: int) -> None:
        """Count the items of a client's request that was refused as a whole, before it was begun."""
        self.refused[error] = self.refused.get(error, 0) + items

    def of_trace(self, trace_id: str, done: Done) -> Done:
        """Have a traced request answered: what is counted meanwhile is an example for its trace."""

        def answer(result: bytes | MetadError) -> None:
            self.trace_id = trace_id
            try:
                done(result)
            finally:
                self.trace_id = ""

        return answer

    def entry_begun(self, items: int, arrived_s: float | None, now_s: float) -> None:
        """Count an entry of so many items, whose first request came at this time. Runs once for each."""
        self.entry_items.add(items)
        if arrived_s is not None:
            self.entry_wait_s.add(now_s - arrived_s)

    def answered(self, method: int, size: int, took_s: float, result: bytes | MetadError) -> None:
        """Count one request of a client, of so many bytes. Runs once for each request."""
        meter = self.of(method)
        meter.seconds.add(took_s)
        if self.trace_id:
            meter.seconds.examples[bisect_left(REQUEST_S, took_s)] = self.trace_id, took_s
        meter.bytes += size
        outcome = "done" if type(result) is bytes else result.name  # type: ignore[union-attr]
        meter.outcomes[outcome] = meter.outcomes.get(outcome, 0) + 1

    def look(self, now_s: float) -> None:
        """Keep what there is, for :meth:`tail`. Call it now and then."""
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self._looks.append([[*one.buckets] for one in self._timed])

    def tail(self) -> m.Tail:
        """How slow the node is at what."""
        return m.Tail(*(_most_us(one, before) for one, before in zip(self._timed, self._looks[0], strict=True)))

    def activity(self, body: m.Activity, *, shows_names: bool) -> m.ActivityReply:
        """What was slow and who is loud. ``shows_names``: of clients and brokers, and keys of records, too."""
        most = min(body.most, m.ACTIVITY_MAX)
        keys = []
        for weight in self.keys.top(most) if shows_names else ():
            table, key = weight.name
            keys.append(m.Loud(f"{table.name} {_shown(table, key)}", weight.at_least, weight.at_most))
        tenants, clients, brokers = (
            [m.Loud(*weight) for weight in one.top(most if shows_names or one is self.tenants else 0)]
            for one in (self.tenants, self.clients, self.brokers)
        )
        slow = [*islice(reversed(self.slow), most)]
        if not shows_names:
            slow = [msgspec.structs.replace(one, client="", identity="") for one in slow]
        return m.ActivityReply(slow, self.slow_count, tenants, clients, brokers, keys)

    def by_name(self) -> dict[str, Meter]:
        """Those that there was a request of, by the name of the method."""
        return {self.name_of(code): meter for code, meter in self._requests.items()}


def trace_id_of(request: m.Request[Any]) -> str:
    """The id of the trace of a request, in hex, if it is recorded; else empty."""
    context = request.trace if isinstance(request, m.Traced) else b""
    return context[:16].hex() if len(context) == 25 and context[24] & 1 else ""


def _shown(table: Table[Any], key: bytes) -> str:
    """A key in words: its fields."""
    try:
        return "/".join(str(field) for field in table.fields_of(key[table.ordered_by :], len(table.key)))
    except ValueError:
        return repr(key)
