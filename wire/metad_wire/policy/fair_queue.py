"""Who is next: the requests of one lane, shared fairly between tenants and between the connections of each; and the
lanes of the queue of writes in front of a group.

A connection may have a window full of requests here, a thousand items each, and a tenant may have a thousand
connections. In one common line, another client's request would wait until all of them are done. So every connection has
a line of its own for each tenant that it asks for. Tenants take turns, and within a tenant its lines do: a tenant gets
no more by having more connections. The requests of one line keep their order.

Each turn is worth :data:`SHARE_ITEMS` items, or as many bytes as those are worth, so that batches of large items get no
more of the node than those of small ones. A turn ends with the request that reaches it. What that is worth beyond the
turn is *owed*: as many of its next turns are left out, and it is owed also by one that comes back while others wait.

Small requests go before large ones, as far as that leaves large ones half of the time.

The loop does one thing at a time, and a small write passes through it several times on its way to the disk and back. If
it waited each time for a batch of a thousand items, or for a piece of a long read, one client's batches would make
everybody's small requests ten times slower. So after a heavy piece of work no other begins while small requests are in
progress, for as long as that piece took. If none is in progress, nothing waits.

Twice as long was measured to help small requests no more than that. In a storm, in which some small request is nearly
always in progress, it left the cores without work for a fifth of the time.

What keeps a cluster right is little work, and must not wait behind a storm of records. So a request goes before all of
the lanes below its own. No lane starves: once :data:`PASSED_ITEMS` items of higher lanes have passed one that waits, it
is its turn, and it stays so until it has done an eighth of what has passed. Within a lane, tenants and their
connections take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from metad_wire.method import Lane

SHARE_ITEMS = 128
"""Items of one turn."""
SHARE_BYTES = 16 * 1024
"""Bytes of one turn: half a millisecond's work, as that of the items."""
_OWING_MAX = 1_024  # who owes and waits no more is remembered, among so many
_SPARE_MAX = 64  # tenants without requests that are kept, because one with a request at a time comes and goes


class Queued(Protocol):
    """A request in the queue."""

    @property
    def source(self) -> object:
        """The sender: hashable, and the same object for each of its requests."""

    @property
    def tenant(self) -> Hashable:
        """The tenant on whose behalf it is made."""

    @property
    def items(self) -> int:
        """How many things there are to do."""

    @property
    def weight(self) -> int:
        """What it takes of a turn: see :func:`weight_of`."""


def weight_of(items: int, size: int) -> int:
    """What a request of so many items and bytes takes of a turn."""
    return max(items, size * SHARE_ITEMS // SHARE_BYTES)


WorkT = TypeVar("WorkT", bound=Queued)
TurnT = TypeVar("TurnT")
OwingT = TypeVar("OwingT")


class _Line(deque[WorkT]):
    __slots__ = ("items",)
    items: int


class _Tenant(Generic[WorkT]):
    __slots__ = ("items", "left", "lines", "name", "owed", "turns")

    def __init__(self) -> None:
        self.name: Hashable = b""
        self.items = 0
        self.lines: dict[object, _Line[WorkT]] = {}
        self.turns: deque[object] = deque()  # the sources, each once
        self.owed: dict[object, int] = {}  # by sources
        self.left = SHARE_ITEMS  # of the first source's turn


class FairQueue(Generic[WorkT]):
    """Lines that take turns. The caller that fills the queue bounds it."""

    def __init__(self) -> None:
        self.items = 0
        """The items of all waiting requests."""
        self.turns: deque[_Tenant[WorkT]] = deque()
        """The tenants that wait, each once; the next one first."""
        self.tenants: dict[Hashable, _Tenant[WorkT]] = {}
        """The same by name."""
        self.left = SHARE_ITEMS
        """Of the first tenant's turn."""
        self.owed: dict[Hashable, int] = {}
        """By tenants that had more than their turns, also those that wait for nothing now."""
        self._spare: list[_Tenant[WorkT]] = []

    def __bool__(self) -> bool:
        return bool(self.turns)

    def __iter__(self) -> Iterator[WorkT]:
        for tenant in self.turns:
            for source in tenant.turns:
                yield from tenant.lines[source]

    def before(self, tenant: Hashable, source: object) -> int:
        """How many items would be done before the next request of this source for this tenant: all, or fewer if its
        line, or its tenant's lines, are shorter than the others'."""
        waiting = self.tenants.get(tenant)
        if waiting is None:
            return min(self.items, SHARE_ITEMS * len(self.turns))
        line = waiting.lines.get(source)
        if line is None:
            own = min(waiting.items, SHARE_ITEMS * len(waiting.turns))
        else:
            own = min(waiting.items, (line.items + SHARE_ITEMS) * len(waiting.turns))
        return min(self.items, (own + SHARE_ITEMS) * len(self.turns))

    def add(self, work: WorkT) -> None:
        """Append a request to its line."""
        self._line(work).append(work)

    def add_first(self, work: WorkT) -> None:
        """Put a request that was taken back in front of its line, whose turn is next."""
        self._line(work).appendleft(work)
        tenant = self.tenants[work.tenant]
        if tenant.turns[0] is not work.source:
            tenant.turns.remove(work.source)
            tenant.turns.appendleft(work.source)
        if self.turns[0] is not tenant:
            self.turns.remove(tenant)
            self.turns.appendleft(tenant)
        self.left = tenant.left = SHARE_ITEMS

    def _line(self, work: WorkT) -> _Line[WorkT]:
        tenant, items = self.tenants.get(work.tenant), work.items
        if tenant is None:
            tenant = self.tenants[work.tenant] = self._spare.pop() if self._spare else _Tenant()
            tenant.name = work.tenant
            self.turns.append(tenant)
        line = tenant.lines.get(work.source)
        if line is None:
            line = tenant.lines[work.source] = _Line()
            line.items = items
            tenant.turns.append(work.source)
        else:
            line.items += items
        tenant.items += items
        self.items += items
        return line

    def first(self) -> WorkT:
        """The request that :meth:`pop` takes next. The queue must not be empty."""
        tenant = self.turns[0]
        return tenant.lines[tenant.turns[0]][0]

    def pop(self) -> WorkT:
        """Take the first request."""
        tenant = self.turns[0]
        source = tenant.turns[0]
        line = tenant.lines[source]
        work = line.popleft()
        items = work.items
        line.items -= items
        tenant.items -= items
        self.items -= items
        weight = work.weight
        tenant.left -= weight
        self.left -= weight
        if not line or tenant.left <= 0:
            _owe(tenant.owed, source, tenant.left)
            if line:
                tenant.turns.rotate(-1)
            else:
                del tenant.lines[source]
                tenant.turns.popleft()
            tenant.left = _begin_turn(tenant.turns, tenant.owed, _itself)
        if not tenant.lines or self.left <= 0:
            _owe(self.owed, tenant.name, self.left)
            if tenant.lines:
                self.turns.rotate(-1)
            else:
                self.turns.popleft()
                del self.tenants[tenant.name]
                if len(self._spare) < _SPARE_MAX:
                    self._spare.append(tenant)
            self.left = _begin_turn(self.turns, self.owed, _name)
        return work

    def skip(self) -> bool:
        """End the turn of the first line; returns whether another one is first now."""
        if not self.turns:
            return False
        tenant = self.turns[0]
        if len(self.turns) < 2 and len(tenant.turns) < 2:
            return False
        self._end_turn(tenant)
        return True

    def skip_line_of(self, work: WorkT) -> None:
        """End the turn of the line that a request came from, because it was as much work as a turn is worth, whatever
        its items said: the others are next."""
        tenant = self.tenants.get(work.tenant)
        if tenant is None:
            return
        if work.source in tenant.lines:
            tenant.turns.remove(work.source)
            tenant.turns.append(work.source)
        self.turns.remove(tenant)
        self.turns.append(tenant)
        self.left = tenant.left = SHARE_ITEMS

    def _end_turn(self, tenant: _Tenant[WorkT]) -> None:
        tenant.turns.rotate(-1)
        self.turns.rotate(-1)
        self.left = tenant.left = SHARE_ITEMS

    def drain(self) -> list[WorkT]:
        """Take all requests."""
        works = list(self)
        self.tenants.clear()
        self.turns.clear()
        self.owed.clear()
        self.items, self.left = 0, SHARE_ITEMS
        return works


def _itself(source: object) -> object:
    return source


def _name(tenant: _Tenant[Any]) -> Hashable:
    return tenant.name


def _owe(owed: dict[OwingT, int], who: OwingT, left: int) -> None:
    """Note what somebody had beyond the turn that ends."""
    if left < 0:
        if len(owed) >= _OWING_MAX:
            owed.clear()
        owed[who] = -left


def _begin_turn(turns: deque[TurnT], owed: dict[OwingT, int], name: Callable[[TurnT], OwingT]) -> int:
    """Let those pass that owe a turn or more, which pays it; what the turn of the first is worth then. Who is alone, or
    comes when nobody waits, owes nothing."""
    if len(turns) < 2:
        if not turns or not owed.keys() - {name(turns[0])}:
            owed.clear()
        elif turns:
            owed.pop(name(turns[0]), None)
        return SHARE_ITEMS
    passed = 0
    while owed and (debt := owed.get(name(turns[0]), 0)) >= SHARE_ITEMS:
        if passed == len(turns):  # all of them owe turns: leave out as many at once
            paid = min([owed.get(name(each), 0) for each in turns]) // SHARE_ITEMS * SHARE_ITEMS
            for each in turns if paid else ():
                owed[name(each)] -= paid
            passed = 0
            continue
        owed[name(turns[0])] = debt - SHARE_ITEMS
        turns.rotate(-1)
        passed += 1
    return SHARE_ITEMS - owed.pop(name(turns[0]), 0)


SMALL_ITEMS = SHARE_ITEMS  # half a millisecond's work
_SMALL_BYTES = SHARE_BYTES  # also half a millisecond's work
_BYTES_PER_S = 2_000 * SHARE_BYTES
"""As fast as bytes of an entry are worked on at least, with what the log and the engine do with them later."""
_REST = 1  # in durations of a heavy piece of work: time for a small write to reach the disk and come back


def is_small(items: int, size: int) -> bool:
    """Whether a request of so many items (or rows that it looks at) and bytes goes before others."""
    return items <= SMALL_ITEMS and size <= _SMALL_BYTES


def _never() -> bool:
    """Nothing waits to be begun."""
    return False


class Precedence:
    """The precedence of one node. ``now`` is its monotonic clock, in seconds; ``is_behind`` says whether requests have
    come that it has yet to begin, those that rest apart."""

    def __init__(self, now: Callable[[], float], is_behind: Callable[[], bool] = _never) -> None:
        self.now = now
        self.is_behind = is_behind
        self.small = 0
        """Small writes that are not answered yet."""
        self._heavy_from_s = 0.0

    @property
    def heavy_wait_s(self) -> float:
        """How long heavy work still has to wait; 0 if it may begin."""
        return max(0.0, self._heavy_from_s - self.now()) if self.small else 0.0

    def heavy_done(self, begun_s: float, size: int = 0) -> None:
        """A piece of heavy work that began at ``begun_s`` is done; ``size``: bytes of the entries that it has made."""
        now_s = self.now()
        self._heavy_from_s = now_s + _REST * max(now_s - begun_s, size / _BYTES_PER_S)


_PASS = 8  # items of higher lanes for each of one that waits
PASSED_ITEMS = _PASS * SHARE_ITEMS
"""So many items of higher lanes go before a lane that waits has a turn."""


class Laned(Queued, Protocol):
    """A request in the queue."""

    lane: Lane
    """Where it belongs."""


LanedT = TypeVar("LanedT", bound=Laned)


class _OneLane(FairQueue[LanedT]):
    def __init__(self) -> None:
        super().__init__()
        self.passed = 0
        """Items of higher lanes that have gone before this one, less what was paid back."""


class LaneQueue(Generic[LanedT]):
    """Lanes of lines that take turns. The caller that fills the queue bounds it."""

    def __init__(self) -> None:
        self.items = 0
        """The items of all waiting requests."""
        self.count = 0
        """Of the waiting requests."""
        self._lanes: tuple[_OneLane[LanedT], ...] = tuple(_OneLane() for _ in Lane)
        self._busy = 0  # lanes in which something waits
        self._next: _OneLane[LanedT] | None = None  # whose turn it is, if that is known
        self._paid: _OneLane[LanedT] | None = None  # it has a turn because it was passed for long

    def __bool__(self) -> bool:
        return self.count > 0

    def __iter__(self) -> Iterator[LanedT]:
        for lane in self._lanes:
            yield from lane

    @property
    def urgent(self) -> bool:
        """Whether something waits in one of the lanes that keep the cluster right."""
        lanes = self._lanes
        return bool(lanes[Lane.HEARTBEATS] or lanes[Lane.CONTROL])

    def before(self, lane: Lane, tenant: Hashable, source: object) -> int:
        """How many items would be done before the next request of this source."""
        count = self._lanes[lane].before(tenant, source)
        for higher in self._lanes[:lane]:
            count += higher.items
        return count

    def add(self, work: LanedT) -> None:
        """Append a request to its line."""
        lane = self._lanes[work.lane]
        if not lane.turns:
            self._enters(lane)
        items = work.items
        self.items += items
        self.count += 1
        # What FairQueue.add does, once more: for one item at a time the calls would cost more than the work.
        tenant = lane.tenants.get(work.tenant)
        line = None if tenant is None else tenant.lines.get(work.source)
        if tenant is None or line is None:
            lane.add(work)
            return
        line.append(work)
        line.items += items
        tenant.items += items
        lane.items += items

    def first(self) -> LanedT:
        """The request that :meth:`pop` takes next. The queue must not be empty."""
        lane = self._next
        tenant = (self._choose() if lane is None else lane).turns[0]
        return tenant.lines[tenant.turns[0]][0]

    def pop(self) -> LanedT:
        """Take the first request."""
        self.count -= 1
        lane = self._next
        if lane is None:
            lane = self._choose()
        if self._busy == 1:  # as in add
            tenant = lane.turns[0]
            line = tenant.lines[tenant.turns[0]]
            weight = line[0].weight
            if len(line) > 1 and weight < tenant.left and weight < lane.left:
                work = line.popleft()
                items = work.items
                line.items -= items
                tenant.items -= items
                tenant.left -= weight
                lane.items -= items
                lane.left -= weight
                self.items -= items
                return work
        work = lane.pop()
        self.items -= work.items
        if self._busy > 1:
            self._passed(lane, work.items)
        if not lane.turns:
            self._busy -= 1
            lane.passed = 0
            self._next = self._paid = None
        return work

    def skip(self) -> bool:
        """End the turn of the first line; returns whether another one is first now. It may be one of a lower lane: that
        goes before until something is taken."""
        lane = self._choose() if self._next is None else self._next
        if lane.skip():
            return True
        for other in self._lanes[self._lanes.index(lane) + 1 :]:
            if other:
                self._next = other
                return True
        return False

    def skip_no_lane(self) -> None:
        """Let the lanes go before each other as before."""
        self._next = None

    def put_back(self, works: Iterable[LanedT], after: LanedT) -> None:
        """Put the requests taken last back into their lines, in their order. Request ``after`` is the last that was
        begun. It was as much work as a turn is worth, whatever its items said, so the turn of its line is over, and the
        others are next: nothing that is put back goes before another's request or a higher lane."""
        for work in reversed(list(works)):
            lane = self._lanes[work.lane]
            if not lane.turns:
                self._enters(lane)
            self.items += work.items
            self.count += 1
            lane.add_first(work)
        self._lanes[after.lane].skip_line_of(after)

    def drain(self) -> list[LanedT]:
        """Take all requests."""
        works = list(self)
        for lane in self._lanes:
            lane.drain()
            lane.passed = 0
        self.items = self.count = self._busy = 0
        self._next = self._paid = None
        return works

    def _enters(self, lane: _OneLane[LanedT]) -> None:
        """Something is about to wait in a lane that was empty."""
        self._busy += 1
        self._next = lane if self._busy == 1 else None

    def _choose(self) -> _OneLane[LanedT]:
        first: _OneLane[LanedT] | None = self._paid
        if first is None:
            for lane in self._lanes:
                if lane and (first is None or lane.passed >= PASSED_ITEMS):
                    first = lane
                    if lane.passed >= PASSED_ITEMS:
                        self._paid = lane
                        break
        assert first is not None
        self._next = first
        return first

    def _passed(self, lane: _OneLane[LanedT], items: int) -> None:
        """The lane has had so many items taken while others waited."""
        items = max(items, 1)
        for lower in self._lanes[self._lanes.index(lane) + 1 :]:
            if lower:
                lower.passed += items
        if lane is self._paid:
            lane.passed -= _PASS * items
            if lane.passed <= 0:
                lane.passed = 0
                self._paid = None
        self._next = None
