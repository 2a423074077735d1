"""Ends leases whose holders have gone silent, and sends silent members of consumer groups away, in the groups that
this node leads.

A holder must not lose its lease because the service was slow: :class:`Silence` judges it, and when the node begins to
lead a group, or stood still, everybody gets a full lease from then on.

An order that is too much for one entry is given in smaller ones. What is refused even alone gets a full lease, too: the
same few would otherwise be ordered again at each look, before all others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from metad_wire.cluster import GroupId
from metad_wire.errors import MetadError, TooLargeError
from metad_wire.method import Method
from metad_wire.methods import CONSUMER_EXPIRE, LEASE_EXPIRE
from metad_wire.table import Table
from metad_wire.tables.consumer import CONSUMER, ConsumerExpire, MemberKey
from metad_wire.tables.lease import LEASE, LeaseExpire, LeaseKey

from ...state.live.live import LiveRows
from ...state.live.live_consumers import LiveConsumers
from ...state.live.live_leases import LiveLeases
from ...state.live.liveness import Silence
from ..environment import Environment, Timer
from ..health import Health
from ..replicas.driver import GroupDriver
from ..replicas.groups import Groups
from ..requests.requests import Requests
from ..requests.scheduler import Standstills
from .chore import Batch

LOOK_S = 0.1
"""How often the node looks while groups that it leads have leases."""
_IDLE_S = 0.5  # the same while they have none
_LAGGING_S = 0.01  # the same while a look was not enough for all of them
_BATCH = 100  # leases in one order; an order ends as many as fit an entry


class _Lasting(NamedTuple):
    """Rows that last for as long as somebody speaks for them."""

    table: Table[Any]
    part: type[LiveRows]
    method: Method[Any, Any]
    order: Callable[[list[list[Any]]], Any]
    """The order to end those with these keys."""


def _order_leases(found: list[list[Any]]) -> LeaseExpire:
    return LeaseExpire([LeaseKey(*fields) for fields in found])


def _order_members(found: list[list[Any]]) -> ConsumerExpire:
    return ConsumerExpire([MemberKey(*fields) for fields in found])


_LASTING = {
    lasting.table.kind: lasting
    for lasting in (
        _Lasting(LEASE, LiveLeases, LEASE_EXPIRE, _order_leases),
        _Lasting(CONSUMER, LiveConsumers, CONSUMER_EXPIRE, _order_members),
    )
}
"""By the kind of the groups that have them."""


class _Leadership:
    """What is known of a group while this node leads it in one term."""

    __slots__ = ("batch", "group", "lasting", "live", "ordered", "silence", "silent", "term")

    def __init__(self, driver: GroupDriver, lasting: _Lasting, clock: Callable[[], float]) -> None:
        group, machine = driver.group, driver.machine
        self.group = group.name
        self.term = group.term
        self.lasting = lasting
        self.live = live = machine.parts[lasting.part]
        self.batch = Batch(_BATCH)
        """How many are ended by the next order."""
        self.silence: Silence[bytes] = Silence(
            lambda: live.over(machine.holding.slots), live.amnesty, group.read, clock
        )
        self.silent: list[bytes] = []
        """The leases whose end is still to be ordered."""
        self.ordered = False


class LeaseEnds:
    """Looks from time to time."""

    def __init__(
        self,
        groups: Groups,
        requests: Requests,
        environment: Environment,
        health: Health,
        standstills: Standstills,
    ) -> None:
        self._groups = groups
        self._requests = requests
        self._environment = environment
        self._health = health
        self._standstills = standstills
        self._leaderships: dict[GroupId, _Leadership] = {}
        self._timer: Timer | None = None
        standstills.listeners.append(self._leaderships.clear)

    def start(self) -> None:
        """Begin to look."""
        if self._health.failure is not None:
            return
        now_s = self._environment.now()
        again_s = _IDLE_S
        try:
            self._standstills.look(now_s)
            for group_id, driver in list(self._groups.drivers.items()):
                if group_id.kind in _LASTING:
                    again_s = min(again_s, self._look_at(group_id, driver))
        finally:
            self._timer = self._environment.call_at(now_s + again_s, self.start)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, group_id: GroupId, driver: GroupDriver) -> float:
        """Look at one group; how soon to look again."""
        group = driver.group
        if not group.ready or driver.installing:
            self._leaderships.pop(group_id, None)
            return _IDLE_S
        leadership = self._leaderships.get(group_id)
        if leadership is None or leadership.term != group.term:
            leadership = self._leaderships[group_id] = _Leadership(
                driver, _LASTING[group_id.kind], self._environment.now
            )
            leadership.live.amnesty()
        elif not leadership.ordered and (silent := leadership.silence.look()):
            leadership.silent = silent
            self._order(leadership)
        if leadership.live.lags:
            return _LAGGING_S
        return LOOK_S if len(leadership.live) else _IDLE_S

    def _order(self, leadership: _Leadership) -> None:
        """Order the end of some. The state looks once more whether each is over."""
        leadership.ordered = True
        lasting = leadership.lasting
        ordered = leadership.silent[: leadership.batch.size]
        del leadership.silent[: leadership.batch.size]
        body = lasting.order([lasting.table.fields_of(key, len(lasting.table.key)) for key in ordered])
        self._requests.request(lasting.method, body, partial(self._ended, leadership, ordered), group=leadership.group)

    def _ended(self, leadership: _Leadership, ordered: list[bytes], answer: bytes | MetadError) -> None:
        leadership.ordered = False  # whatever was not done is over at the next look, too
        leadership.batch.learn(len(ordered), answer)
        refused: list[bytes] = []
        if isinstance(answer, bytes):
            refused = [ordered[error.index] for error in leadership.lasting.method.decode_reply(answer).errors]
        elif not isinstance(answer, TooLargeError):
            return
        elif len(ordered) > 1:
            leadership.silent[:0] = ordered
        else:
            refused = ordered
        for key in refused:
            leadership.live.renew(key, None)
        if leadership.silent:
            self._environment.call_soon(partial(self._order, leadership))
            leadership.ordered = True
