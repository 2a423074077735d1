"""When whoever is turned away may come back, so that all come as fast as they can be served, and no faster.

Each request that is turned away gets the next free slot ``t ± j`` of this node, for as many items as it has. The rule
is :class:`metad_wire.policy.ReturnSlots`. Pure: the clock is an argument.

Whoever comes before its slot hears the same again. So nobody gains by coming early, not over a new connection either: a
write is known by its identity, which all its attempts carry. The memory is bounded. What falls out of it is a write
that may come early, nothing worse.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, NamedTuple

from ...errors import OverloadedError
from ...messages import Identity, TurnedAway
from .returning import ReturnSlots

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
_NS: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000


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
