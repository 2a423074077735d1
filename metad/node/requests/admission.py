"""May it wait? By time: whoever would wait too long in front of its group is turned away at once. By memory: so is a
request for which there is no room among those that are in progress.

What a request would wait is the items that go before it (its lane's turns, its tenant's and its connection's, see
:mod:`metad_wire.policy.fair_queue`) over the rate at which its group is served. It may be neither more than the
configured time nor more than the request has left (:class:`metad_wire.policy.Admission`). So a tenant that fills a
queue is turned away, and one that asks for little is not, whatever waits.

What a request has waited on its connection before it is looked at counts, too. One that has waited too long there, or
that found no room to wait, is turned away.

Turning away is cheap, because it is what an overloaded node does most. While a group is *strained*, long requests are
looked at before their items are decoded, and a connection that asks again and again, however often it was told to come
later, is answered without a look.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from metad_wire import messages as m
from metad_wire.errors import MetadError, OverloadedError
from metad_wire.messages import Identity
from metad_wire.methods import By, Head, Lane, Method
from metad_wire.policy import Admission
from metad_wire.policy.fair_room import FairRoom, Place, holder_of
from metad_wire.policy.rates import FULL_ITEMS
from metad_wire.policy.returns import ReturnShare

from ... import log_events
from ...control.host import Source
from ...logs import event
from ..environment import Environment
from ..replicas.driver import GroupDriver
from ..replicas.groups import Groups

# What a decoded item takes beside the bytes it came in: the item, its row, its key, its part of a reply. The shortest
# take 6 bytes on the wire, so counting those alone would let a peer fill the memory forty times over.
ITEM_BYTES = 256
REQUEST_BYTES = 6 * ITEM_BYTES
"""What a request takes beside its items while it waits: requests of one item each are many objects for few bytes."""
HEADLESS_BYTES: Final = 2048
"""Shorter requests are decoded as quickly as looked at."""
WAITED_S: Final = 0.05
"""What has waited less on its connection is not late: no deadline is as short as twice this."""
_HEEDLESS: Final = 256
"""Requests of a connection that were turned away one after the other, all of them too early. From then on one is looked
at now and then."""
_CLOSED_S: Final = 0.1
_EARLY_S: Final = 1.0
_SOURCES_MAX: Final = 8_192
_CALM_S: Final = 1.0
"""A group is strained until nobody was turned away for so long."""


class _Strain:
    """Of one group."""

    __slots__ = ("refused", "refused_s", "since_s")

    def __init__(self, now_s: float) -> None:
        self.since_s = self.refused_s = now_s
        self.refused = 0


class _Told:
    """What a connection was told."""

    __slots__ = ("again", "answer", "until_s")

    def __init__(self) -> None:
        self.until_s = 0.0
        self.again = 0  # refusals in a row that came before that
        self.answer: OverloadedError | None = None


class Gate:
    """Of one node."""

    def __init__(self, admission: Admission, groups: Groups, environment: Environment, share: ReturnShare) -> None:
        self.strained: dict[GroupDriver, _Strain] = {}
        """Groups that have turned somebody away lately."""
        self.admitted = [0] * len(Lane)
        """Requests of clients that waited in front of a group, by lane."""
        self.refused = [0] * len(Lane)
        """Those that were turned away."""
        self.admission = admission
        self._groups = groups
        self._environment = environment
        self._share = share
        self._told: dict[object, _Told] = {}

    def lanes(self) -> list[m.LaneStatus]:
        """What came of requests, by lane."""
        return [m.LaneStatus(lane.name.lower(), self.admitted[lane], self.refused[lane]) for lane in Lane]

    def look(self, method: Method[Any, Any], payload: bytes, waited_s: float, source: object, default_ms: int) -> None:
        """Look at an encoded request that has waited, or while a group is strained. Raises OverloadedError where it may
        not wait."""
        now_s = self._environment.now()
        self._heed(method, source, now_s)
        if len(payload) <= HEADLESS_BYTES and waited_s < WAITED_S:
            return
        head = method.decode_head(payload)
        if head is None:
            return  # whoever decodes it says what is wrong
        driver = self._groups.here(head.group)
        if driver is None or (method.by is By.GROUP and not driver.group.is_leader):
            return  # or where to go instead
        patience_s = (head.deadline_ms or default_ms) / 1000
        if self.admission.is_late(waited_s, patience_s):
            raise self._refusal(driver, method.lane, head, source, now_s)
        if driver in self.strained and driver.waiting_items >= FULL_ITEMS and len(payload) > HEADLESS_BYTES:
            if self._share.returns.promised:
                self._share.returns.check(head.identity, now_s)
            self.check(driver, method.lane, head, source, now_s - waited_s + patience_s, now_s, waited_s)

    def turn_away(self, method: Method[Any, Any], payload: bytes, source: object) -> MetadError:
        """The error for an encoded request that found no room to wait."""
        now_s = self._environment.now()
        try:
            self._heed(method, source, now_s)
        except OverloadedError as error:
            return error
        head = method.decode_head(payload) or Head(0, None, "", 1, b"")
        driver = self._groups.here(head.group)
        if driver is not None and method.by is By.GROUP and not driver.group.is_leader:
            return driver.not_leader()
        return self._refusal(driver, method.lane, head, source, now_s)

    def _heed(self, method: Method[Any, Any], source: object, now_s: float) -> None:
        """Raise at once, and again, what a connection was told that does not keep to it."""
        told = self._told.get(source)
        if told is not None and told.again >= _HEEDLESS and now_s < told.until_s:
            self.refused[method.lane] += 1
            assert told.answer is not None
            raise told.answer.with_traceback(None)

    def check(
        self,
        driver: GroupDriver,
        lane: Lane,
        head: Head,
        source: object,
        deadline_s: float,
        now_s: float,
        waited_s: float = 0.0,
    ) -> None:
        """Raise OverloadedError where a request would wait too long, after it has waited already."""
        before = driver.before(lane, head.tenant, source)
        per_s = driver.rate.estimate(now_s)
        if not self.admission.admitted(before, 1, per_s, deadline_s - now_s, waited_s):
            raise self._refusal(driver, lane, head, source, now_s)

    def _refusal(
        self, driver: GroupDriver | None, lane: Lane, head: Head, source: object, now_s: float
    ) -> OverloadedError:
        """The error for a request that is turned away, which is counted. ``driver``: of its group, if that is here."""
        why = "too much waits on this node"
        if driver is not None:
            why = f"too much waits for {driver.group.name}"
            self._strain(driver, now_s)
        self.refused[lane] += 1
        self._share.refused(now_s)
        error = self._share.returns.refusal(why, head.items, now_s, head.identity)
        self._tell(source, error, now_s)
        return error

    def _strain(self, driver: GroupDriver, now_s: float) -> None:
        strain = self.strained.get(driver)
        if strain is None:
            strain = self.strained[driver] = _Strain(now_s)
            event(
                log_events.OVERLOADED,
                group=driver.group.name,
                waiting_items=driver.waiting_items,
                wait_ms=round(1000 * driver.wait_s(now_s)),
                served_per_s=round(driver.rate.estimate(now_s)),
            )
        driver.not_keeping_up(now_s)
        strain.refused += 1
        strain.refused_s = now_s

    def _tell(self, source: object, error: OverloadedError, now_s: float) -> None:
        told = self._told.get(source)
        if told is None:
            if len(self._told) >= _SOURCES_MAX:
                self._told.clear()
            told = self._told[source] = _Told()
        told.again = told.again + 1 if now_s < told.until_s + _EARLY_S else 0
        told.until_s = now_s + min(max(error.retry_after_ms - error.retry_jitter_ms, 1) / 1000, _CLOSED_S)
        told.answer = error

    def took(self, source: object) -> None:
        """A request of this connection was not turned away."""
        if (told := self._told.get(source)) is not None:
            told.again = 0

    def gone(self, source: object) -> None:
        """A connection has ended."""
        self._told.pop(source, None)

    def ended(self) -> None:
        """Say of which groups the strain is over. To be called now and then."""
        now_s = self._environment.now()
        for driver, strain in list(self.strained.items()):
            if now_s - strain.refused_s < _CALM_S and driver in self._groups.drivers.values():
                continue
            del self.strained[driver]
            lasted_ms = round(1000 * (strain.refused_s - strain.since_s))
            event(log_events.OVERLOAD_OVER, group=driver.group.name, refused=strain.refused, lasted_ms=lasted_ms)
        if not self.strained:
            self._told.clear()


class InFlightBudget:
    """Shared by connections as a :class:`FairRoom` is. Requests for which there is no room are told when to come
    back."""

    def __init__(self, bytes_max: int, share: ReturnShare) -> None:
        self.room = FairRoom("bytes of requests in flight", bytes_max, ends="the deadline of the request")
        self._share = share

    @property
    def held(self) -> int:
        """How many bytes are taken now."""
        return self.room.held

    def take(
        self,
        source: Source | None,
        size: int,
        items: int,
        now_s: float,
        identity: Identity | None = None,
        take_back: Callable[[], None] | None = None,
    ) -> Place:
        """Count a request of a connection. ``take_back``: ends it where others need the room, with :meth:`refusal` and
        :meth:`give`. Raises OverloadedError where there is no room. Alone, a request is always taken: however it is
        weighed, it fits."""
        place = self.room.take(holder_of(source), size, take_back, source=source)
        if place is None:
            self._share.refused(now_s)
            raise self._share.returns.refusal("too many request bytes in flight on this node", items, now_s, identity)
        return place

    def let_go(self, place: Place) -> None:
        """It is not begun yet."""
        self.room.give(place)

    def give(self, place: Place, items: int) -> None:
        """It is answered."""
        self.room.give(place)
        self._share.answered(items)
