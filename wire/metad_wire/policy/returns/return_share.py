"""This node's part of the cluster's budget of returns, and what it does without one.

A part counts for some seconds from when it was asked for, which a node does at once when it becomes busy. A node that
gets none, because ``metadata-0`` has no leader, lets come back what it can answer divided by the number of nodes: too
little, so that clients return later than they could, and not too much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...cluster import ReturnGrant, ReturnReport
from ..rates import ServiceRate
from .return_budget import alone
from .return_slots import HORIZON_S, Capacity, Returns

_FIRST_S: Final = 1.0
"""For so long a node that has just become busy goes by its own measure, because it hears in a moment how much it may
promise: slots that it has given out too densely by then put off those behind them."""
_BUSY_S: Final = 10.0
"""A node that has turned nobody away for so long asks for no part."""
_UNMEASURED_S: Final = 1.0
"""For so long a capacity is believed that is not measured: it is a moment later."""
_BELIEVED: Final = 4
"""A measured one is believed for so many times as long as the node has been busy. It is too low at first: a crowd that
is turned away takes a good part of the machine. Slots that are too sparse cannot be taken back, and the node would be
idle until they come."""


class ReturnShare:
    """``members`` says how many nodes the cluster has; ``became_busy`` is called when it is time to ask. Times are of
    the node's monotonic clock, in seconds."""

    def __init__(
        self,
        node_id: str,
        rate: ServiceRate,
        per_s_max: int,
        members: Callable[[], int],
        became_busy: Callable[[], None],
    ) -> None:
        self.returns = Returns(self.capacity)
        """The slots that are given out of it."""
        self._node_id = node_id
        self._rate = rate
        self._per_s_max = per_s_max
        self._members = members
        self._became_busy = became_busy
        self._busy_s = float("-inf")  # since when it has been busy
        self._granted = 0.0
        self._until_s = float("-inf")
        self._refused_s = float("-inf")
        self._answered = 0, 0.0  # items, when it was reported last

    def granted_at(self, now: float) -> bool:
        """Whether a part counts now."""
        return now < self._until_s

    def capacity(self, now: float) -> Capacity:
        """What may come back: no more than this node can answer, in any case."""
        own, members = self._own(now), self._members()
        if members < 2:
            return own
        if self.granted_at(now):
            return Capacity(min(own.per_s, self._granted), own.for_s)
        return own if now - self._busy_s < _FIRST_S else Capacity(alone(own.per_s, members), own.for_s)

    def refused(self, now: float) -> None:
        """Somebody is turned away."""
        self._rate.refused(now)
        if now - self._refused_s > _BUSY_S and not self.returns.ahead_s(now):
            self._busy_s = now
            self._became_busy()
        self._refused_s = now

    def answered(self, items: int) -> None:
        """So many items are answered."""
        self._rate.answered(items)

    # --- metad.control.host.Sharing ---

    def report(self, now_s: float) -> ReturnReport | None:
        """What to ask for a part with; None for a node that is alone, or not busy."""
        before, since_s = self._answered
        answered = self._rate.answered_items
        self._answered = answered, now_s
        ahead_s = self.returns.ahead_s(now_s)
        if self._members() < 2 or not (ahead_s or now_s - self._refused_s <= _BUSY_S):
            return None
        per_s = (answered - before) / max(1.0, now_s - since_s)
        return ReturnReport(self._node_id, int(self._own(now_s).per_s), int(per_s), int(ahead_s * 1000))

    def granted(self, grant: ReturnGrant, asked_s: float) -> None:
        """A part was granted, which was asked for at that time."""
        self._granted, self._until_s = float(grant.per_s), asked_s + grant.for_ms / 1000

    def _own(self, now: float) -> Capacity:
        per_s = self._rate.per_s(now)
        if self._per_s_max and self._per_s_max <= per_s:
            return Capacity(self._per_s_max, HORIZON_S)
        if not self._rate.measured:
            return Capacity(per_s, _UNMEASURED_S)
        return Capacity(per_s, min(HORIZON_S, max(_UNMEASURED_S, _BELIEVED * (now - self._busy_s))))
