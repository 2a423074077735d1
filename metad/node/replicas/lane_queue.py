"""The queue of writes in front of one group: its lanes.

What keeps a cluster right is little work, and must not wait behind a storm of records. So a request goes before all of
the lanes below its own. No lane starves: once :data:`PASSED_ITEMS` items of higher lanes have passed one that waits, it
is its turn, and it stays so until it has done an eighth of what has passed. Within a lane, tenants and their
connections take turns (:mod:`metad_wire.policy.fair_queue`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from metad_wire.methods import Lane
from metad_wire.policy.fair_queue import SHARE_ITEMS, FairQueue, Queued

_PASS = 8  # items of higher lanes for each of one that waits
PASSED_ITEMS = _PASS * SHARE_ITEMS
"""So many items of higher lanes go before a lane that waits has a turn."""


class Laned(Queued, Protocol):
    """A request in the queue."""

    lane: Lane
    """Where it belongs."""


WorkT = TypeVar("WorkT", bound=Laned)


class _Lane(FairQueue[WorkT]):
    def __init__(self) -> None:
        super().__init__()
        self.passed = 0
        """Items of higher lanes that have gone before this one, less what was paid back."""


class LaneQueue(Generic[WorkT]):
    """Lanes of lines that take turns. The caller that fills the queue bounds it."""

    def __init__(self) -> None:
        self.items = 0
        """The items of all waiting requests."""
        self.count = 0
        """Of the waiting requests."""
        self._lanes: tuple[_Lane[WorkT], ...] = tuple(_Lane() for _ in Lane)
        self._busy = 0  # lanes in which something waits
        self._next: _Lane[WorkT] | None = None  # whose turn it is, if that is known
        self._paid: _Lane[WorkT] | None = None  # it has a turn because it was passed for long

    def __bool__(self) -> bool:
        return self.count > 0

    def __iter__(self) -> Iterator[WorkT]:
        for lane in self._lanes:
            yield from lane

    @property
    def urgent(self) -> bool:
        """Whether something waits in one of the lanes that keep the cluster right."""
        lanes = self._lanes
        return bool(lanes[Lane.HEARTBEATS] or lanes[Lane.CONTROL])

    def before(self, lane: Lane, tenant: bytes, source: object) -> int:
        """How many items would be done before the next request of this source."""
        count = self._lanes[lane].before(tenant, source)
        for higher in self._lanes[:lane]:
            count += higher.items
        return count

    def add(self, work: WorkT) -> None:
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

    def first(self) -> WorkT:
        """The request that :meth:`pop` takes next. The queue must not be empty."""
        lane = self._next
        tenant = (self._choose() if lane is None else lane).turns[0]
        return tenant.lines[tenant.turns[0]][0]

    def pop(self) -> WorkT:
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

    def put_back(self, works: Iterable[WorkT], after: WorkT) -> None:
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

    def drain(self) -> list[WorkT]:
        """Take all requests."""
        works = list(self)
        for lane in self._lanes:
            lane.drain()
            lane.passed = 0
        self.items = self.count = self._busy = 0
        self._next = self._paid = None
        return works

    def _enters(self, lane: _Lane[WorkT]) -> None:
        """Something is about to wait in a lane that was empty."""
        self._busy += 1
        self._next = lane if self._busy == 1 else None

    def _choose(self) -> _Lane[WorkT]:
        first: _Lane[WorkT] | None = self._paid
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

    def _passed(self, lane: _Lane[WorkT], items: int) -> None:
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
