"""When to come back: whoever is turned away gets a time, so that all come as fast as they can be served, and no faster.

Each request that is turned away gets the next free slot ``t ± j`` of this node, for as many items as it has. Pure: the
clock is an argument.

Whoever comes before its slot hears the same again. So nobody gains by coming early, not over a new connection either: a
write is known by its identity, which all its attempts carry. The memory is bounded. What falls out of it is a write
that may come early, nothing worse.

A node has a part of the cluster's budget of returns. A part counts for some seconds from when it was asked for, which a
node does at once when it becomes busy. A node that gets none, because ``metadata-0`` has no leader, lets come back what
it can answer divided by the number of nodes: too little, so that clients return later than they could, and not too
much.

The leader of ``metadata-0`` has the budget, and remembers nothing of it in the log: a new leader has heard of all busy
nodes after a second. A node's own measure is too high while other nodes were idle when it was made. What a node writes
costs the followers as much as itself, so nodes that are busy together answer less each than each alone. So the budget
is what the nodes have been seen to answer *together*, and at least what one can answer alone; each busy node gets a
part of it, in proportion to its own measure.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from ..cluster import ReturnGrant, ReturnReport
from ..errors import OverloadedError
from ..messages import Identity, TurnedAway
from .rates import ServiceRate

_NS: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000


class ReturnSlots(msgspec.Struct, frozen=True, kw_only=True):
    """The rule behind "come back at t ± j": each refused client gets the next free slot of a budget of returns, so that
    all come back as fast as they can be served and no faster. The budget is the cluster's; each server gives out its
    share.

    The state is one number, the *next* free slot, a time in nanoseconds; 0 at first. Raises ValueError for a value out
    of range.
    """

    per_s: float
    """Slots per second."""
    wait_min_s: float = 0.05
    """The shortest wait that a client is given."""
    jitter_s: float = 0.05
    """A random time that clients add or subtract, so that clocks and batches do not line them up again."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0 < self.per_s < float("inf"):
            raise ValueError(f"per_s must be over 0, not {self.per_s!r}")
        for field in ("wait_min_s", "jitter_s"):
            if not 0 <= getattr(self, field) < float("inf"):
                raise ValueError(f"{field} must be a number of seconds from 0 on, not {getattr(self, field)!r}")

    @property
    def interval_ns(self) -> int:
        """The distance between two slots in whole nanoseconds, at least one."""
        return max(1, round(_NS / self.per_s))

    @property
    def wait_min_ns(self) -> int:
        """``wait_min_s`` in whole nanoseconds."""
        return round(self.wait_min_s * _NS)

    @property
    def jitter_us(self) -> int:
        """``jitter_s`` in whole microseconds."""
        return round(self.jitter_s * 1e6)

    def reserve_ns(self, now_ns: int, next_ns: int, items: int = 1) -> tuple[int, int]:
        """Returns the slot of a client that is refused at ``now_ns`` with so many items, and the next free slot after
        all of them: a request comes back as a whole, at the first of its items' slots."""
        slot_ns = max(next_ns, now_ns + self.wait_min_ns)
        return slot_ns, slot_ns + items * self.interval_ns

    def replanned_ns(self, now_ns: int, next_ns: int, promised: int) -> int:
        """The next free slot from now on, where another rule has given slots up to ``next_ns``, and so many items that
        have a slot have not come. Fewer slots per second than before put it off, until what was promised too densely
        has been worked off. More do not bring it forward: those who were promised a time come at that time."""
        return max(next_ns, now_ns + promised * self.interval_ns)

    def wait_us(self, now_us: int, slot_ns: int, u: float) -> int:
        """Microseconds that a client waits for its slot, with its own jitter; ``u`` in [0, 1)."""
        return max(0, slot_ns // 1000 - now_us + int(u * (2 * self.jitter_us + 1)) - self.jitter_us)


_BUCKET_NS: Final = 50_000_000
"""Slots of so long a time are counted together, so that not every request takes memory."""


class Outstanding:
    """The items that have a slot from a time on. Slots are added in their order."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, int]] = deque()  # number, items
        self._items = 0

    def add(self, slot_ns: int, items: int) -> None:
        """So many items have a slot at that time."""
        bucket = slot_ns // _BUCKET_NS
        if self._buckets and self._buckets[-1][0] >= bucket:
            bucket, before = self._buckets.pop()
            self._buckets.append((bucket, before + items))
        else:
            self._buckets.append((bucket, items))
        self._items += items

    def items(self, now_ns: int) -> int:
        """How many have one from now on, or had one a moment ago."""
        first = now_ns // _BUCKET_NS
        while self._buckets and self._buckets[0][0] < first:
            self._items -= self._buckets.popleft()[1]
        return self._items


PROMISES_MAX: Final = 65_536
"""Slots that are remembered. Beyond it the first, which is the next to come, is forgotten."""


class Promises:
    """Slots are given out in their order, so the first one here is the next to come. Times are nanoseconds of the
    node's monotonic clock."""

    def __init__(self) -> None:
        self._slots: OrderedDict[tuple[int, int], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._slots)

    def slot_ns(self, identity: Identity) -> int | None:
        """The slot that this write was promised."""
        return self._slots.get((identity.client_id, identity.seq))

    def keep(self, identity: Identity, slot_ns: int) -> None:
        """Remember a slot, the last that was given out."""
        write = identity.client_id, identity.seq
        self._slots[write] = slot_ns
        self._slots.move_to_end(write)
        if len(self._slots) > PROMISES_MAX:
            self._slots.popitem(last=False)

    def forget_until(self, now_ns: int) -> None:
        """Forget all whose time has come, which costs nothing where there is none."""
        slots = self._slots
        while slots and next(iter(slots.values())) <= now_ns:
            slots.popitem(last=False)


HORIZON_S: Final = 60.0
"""No slot is farther away: nobody knows the capacity of a later time."""
_SPREAD: Final = 0.25
"""Those for whom there is no slot ask again within this share of the horizon, before it ends."""
_SAME: Final = 0.05
"""A capacity that differs by less counts as the same."""
_TOO_SOON: Final = "this request was told to come back later"


class Capacity(NamedTuple):
    """What may come back to a node."""

    per_s: float
    """Items per second."""
    for_s: float
    """For how long from now on that may be believed: no slot is farther away."""


class Returns:
    """The slots of one node. ``capacity`` says at a time, in seconds of a monotonic clock, what may come back."""

    def __init__(self, capacity: Callable[[float], Capacity]) -> None:
        self.turned_away = 0
        """Requests that were given a time to come back, since the start."""
        self.came_early = 0
        """Those of them that came before it, and were told the same again."""
        self._capacity = capacity
        self._slots = ReturnSlots(per_s=1.0)
        self._next_ns = 0
        self._outstanding = Outstanding()
        self._promises = Promises()

    def returning(self, items: int, now: float, identity: Identity | None = None) -> tuple[int, int]:
        """``(retry_after_ms, retry_jitter_ms)`` for a request of so many items that is turned away at ``now``, in
        seconds. A write that was promised a slot which has not come keeps that one."""
        if (again := self.early(identity, now)) is not None:
            return again
        self.turned_away += 1
        now_ns = round(now * _NS)
        slots, horizon_s = self._plan(now, now_ns)
        if self._next_ns - now_ns >= horizon_s * _NS:
            spread_s = horizon_s * _SPREAD
            return round((horizon_s - spread_s) * 1000), round(spread_s * 1000)
        slot_ns, self._next_ns = slots.reserve_ns(now_ns, self._next_ns, max(1, items))
        self._outstanding.add(slot_ns, max(1, items))
        if identity is not None:
            self._promises.keep(identity, slot_ns)
        return self._wait(slot_ns, now_ns)

    def early(self, identity: Identity | None, now: float) -> tuple[int, int] | None:
        """What a write hears again that comes before its slot; None where it comes in time, or was promised none."""
        if identity is None or not self._promises:
            return None
        now_ns = round(now * _NS)
        self._promises.forget_until(now_ns + self._slots.jitter_us * 1000)  # by its jitter it may come sooner
        slot_ns = self._promises.slot_ns(identity)
        if slot_ns is None:
            return None
        self.came_early += 1
        return self._wait(slot_ns, now_ns)

    @property
    def promised(self) -> bool:
        """Whether any write was promised a slot that has not come."""
        return bool(self._promises)

    def check(self, identity: Identity | None, now: float) -> None:
        """Raise OverloadedError for a write that comes before its slot."""
        if (again := self.early(identity, now)) is not None:
            raise OverloadedError(_TOO_SOON, retry_after_ms=again[0], retry_jitter_ms=again[1])

    def refusal(self, why: str, items: int, now: float, identity: Identity | None = None) -> OverloadedError:
        """The error for a request that is turned away."""
        after_ms, jitter_ms = self.returning(items, now, identity)
        return OverloadedError(why, retry_after_ms=after_ms, retry_jitter_ms=jitter_ms)

    def ahead_s(self, now: float) -> float:
        """For how long from now on all slots are taken."""
        return max(0.0, self._next_ns / _NS - now)

    def status(self, now: float, *, granted: bool, paced: int) -> TurnedAway:
        """For the node's status. ``granted``: its capacity is a part of the cluster's budget. ``paced``:
        connections that had to wait."""
        return TurnedAway(
            requests=self.turned_away,
            early=self.came_early,
            per_s=round(self._capacity(now).per_s),
            ahead_ms=round(self.ahead_s(now) * 1000),
            granted=granted,
            paced=paced,
        )

    def _plan(self, now: float, now_ns: int) -> tuple[ReturnSlots, float]:
        per_s, for_s = self._capacity(now)
        if abs(per_s - self._slots.per_s) > _SAME * self._slots.per_s:
            self._slots = ReturnSlots(per_s=per_s)
            self._next_ns = self._slots.replanned_ns(now_ns, self._next_ns, self._outstanding.items(now_ns))
        return self._slots, for_s

    def _wait(self, slot_ns: int, now_ns: int) -> tuple[int, int]:
        return -(-(slot_ns - now_ns) // _NS_PER_MS), self._slots.jitter_us // 1000


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
        self.per_s_max = per_s_max
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
        per_s = self._rate.estimate(now)
        if self.per_s_max and self.per_s_max <= per_s:
            return Capacity(self.per_s_max, HORIZON_S)
        if not self._rate.measured:
            return Capacity(per_s, _UNMEASURED_S)
        return Capacity(per_s, min(HORIZON_S, max(_UNMEASURED_S, _BELIEVED * (now - self._busy_s))))


GRANT_MS: Final = 3_000
"""For how long a part counts, from when it was asked for."""
_FORGET_S: Final = 60.0
"""What the nodes have answered together counts half after so long."""


class _Heard(NamedTuple):
    per_s: int
    answered_per_s: int
    at_s: float
    until_s: float
    """Its clients have slots until then: they come, to whoever leads their groups by then, even if the node is gone."""
    granted: float


class ReturnBudget:
    """What busy nodes have said lately, and what they were granted."""

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}
        self._together = 0.0
        self._together_s = float("-inf")

    def grant(self, report: ReturnReport, members: int, now_s: float) -> ReturnGrant:
        """The part of a busy node, which asks about once a second. ``members``: of the cluster."""
        heard = self._heard
        for gone in [node for node, one in heard.items() if node != report.node_id and one.until_s < now_s]:
            del heard[gone]
        until_s = now_s + max(GRANT_MS, report.ahead_ms) / 1000
        own = heard.get(report.node_id)
        mine = _Heard(report.per_s, report.answered_per_s, now_s, until_s, own.granted if own is not None else 0.0)
        heard[report.node_id] = mine
        budget = self._budget(now_s)
        fair = report.per_s * min(1.0, budget / max(1, sum(one.per_s for one in heard.values())))
        # What others were granted stays theirs until they ask again. Meanwhile a node has what it would have if nobody
        # could be asked.
        left = budget - sum(one.granted for node, one in heard.items() if node != report.node_id)
        granted = max(min(fair, left), alone(report.per_s, members))
        heard[report.node_id] = mine._replace(granted=granted)
        return ReturnGrant(max(1, int(granted)), GRANT_MS)

    def _budget(self, now_s: float) -> float:
        lately = [one for one in self._heard.values() if now_s - one.at_s <= GRANT_MS / 1000]
        together = float(sum(one.answered_per_s for one in lately))
        faded: float = self._together * 0.5 ** ((now_s - self._together_s) / _FORGET_S)
        if together >= faded:
            self._together, self._together_s = together, now_s
        return max(together, faded, *(float(one.per_s) for one in self._heard.values()))


def alone(per_s: float, members: int) -> float:
    """What a node that nobody grants anything may let come back: as if all nodes were as busy as it is."""
    return per_s / max(1, members)
