"""Ends leases whose holders have gone silent, and sends silent members of consumer groups away, in the groups that
this node leads.

A holder must not lose its lease because the service was slow. So a lease ends only if it was over at one look and still
is at the next, with proof in between that this node leads: what had arrived, or waited for that proof, is heard of
meanwhile. When the node begins to lead a group, when it stood still, or when the proof took long, everybody gets a full
lease from then on.

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

from ...state.live.live import SLOW_S, LiveRows
from ...state.live.live_consumers import LiveConsumers
from ...state.live.live_leases import LiveLeases
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


class _Reign:
    """What is known of a group while this node leads it in one term."""

    __slots__ = ("batch", "ordered", "proof_begun_s", "proven", "silent", "suspects", "term")

    def __init__(self, term: int) -> None:
        self.term = term
        self.batch = Batch(_BATCH)
        """How many are ended by the next order."""
        self.suspects: frozenset[bytes] = frozenset()
        """The leases that were over when the proof was begun."""
        self.proof_begun_s: float | None = None
        self.proven = False
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
        self._reigns: dict[GroupId, _Reign] = {}
        self._timer: Timer | None = None
        standstills.listeners.append(self._reigns.clear)

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
                    again_s = min(again_s, self._look_at(group_id, driver, now_s))
        finally:
            self._timer = self._environment.call_at(now_s + again_s, self.start)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, group_id: GroupId, driver: GroupDriver, now_s: float) -> float:
        """Look at one group; how soon to look again."""
        group, lasting = driver.group, _LASTING[group_id.kind]
        if not group.ready or driver.installing:
            self._reigns.pop(group_id, None)
            return _IDLE_S
        live = driver.machine.parts[lasting.part]
        reign = self._reigns.get(group_id)
        if reign is None or reign.term != group.term:
            self._reigns[group_id] = _Reign(group.term)
            live.amnesty()
        elif not reign.ordered:
            self._end(driver, lasting, reign, live, now_s)
        if live.lags:
            return _LAGGING_S
        return LOOK_S if len(live) else _IDLE_S

    def _end(self, driver: GroupDriver, lasting: _Lasting, reign: _Reign, live: LiveRows, now_s: float) -> None:
        over = live.over(driver.machine.holding.slots)
        if reign.proven:
            reign.proven = False
            reign.silent = [lease for lease in over if lease in reign.suspects]
            if reign.silent:
                self._order(driver.group.name, lasting, reign, live)
                return
        if over and reign.proof_begun_s is None:
            reign.suspects, reign.proof_begun_s = frozenset(over), now_s
            driver.group.read(partial(self._proved, reign, live))

    def _proved(self, reign: _Reign, live: LiveRows, ok: bool) -> None:
        begun_s, reign.proof_begun_s = reign.proof_begun_s, None
        if begun_s is not None and (not ok or self._environment.now() - begun_s > SLOW_S):
            live.amnesty()  # keep-alives have waited as long, and their holders may have turned elsewhere
        else:
            reign.proven = ok

    def _order(self, group: str, lasting: _Lasting, reign: _Reign, live: LiveRows) -> None:
        """Order the end of some. The state looks once more whether each is over."""
        reign.ordered = True
        table = lasting.table
        ordered = reign.silent[: reign.batch.size]
        del reign.silent[: reign.batch.size]
        body = lasting.order([table.fields_of(key, len(table.key)) for key in ordered])
        done = partial(self._ended, group, lasting, reign, live, ordered)
        self._requests.request(lasting.method, body, done, group=group)

    def _ended(
        self,
        group: str,
        lasting: _Lasting,
        reign: _Reign,
        live: LiveRows,
        ordered: list[bytes],
        answer: bytes | MetadError,
    ) -> None:
        reign.ordered = False  # whatever was not done is over at the next look, too
        reign.batch.learn(len(ordered), answer)
        refused: list[bytes] = []
        if isinstance(answer, bytes):
            refused = [ordered[error.index] for error in lasting.method.decode_reply(answer).errors]
        elif not isinstance(answer, TooLargeError):
            return
        elif len(ordered) > 1:
            reign.silent[:0] = ordered
        else:
            refused = ordered
        for key in refused:
            live.renew(key, None)
        if reign.silent:
            self._environment.call_soon(partial(self._order, group, lasting, reign, live))
            reign.ordered = True
