"""The policies for arrays of clients: the same arithmetic as the scalar forms, hence the same bits. Needs numpy.

``tests/unit/spark/test_policies.py`` compares both for every family, any seed, client and attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .backoff import Backoff
from .budget import RetryBudget
from .draw import CLIENT_STEP, MASK, MIX_1, MIX_2, TURN_STEP, UNIT
from .returning import ReturnSlots
from .window import BatchWindow

Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

_ATTEMPTS = 33  # scales double 32 times at most
_US = 1_000_000
_30, _27, _31, _11 = (np.uint64(shift) for shift in (30, 27, 31, 11))
_MIX_1, _MIX_2 = np.uint64(MIX_1), np.uint64(MIX_2)
_CLIENT, _TURN = np.uint64(CLIENT_STEP), np.uint64(TURN_STEP)


def draws(start: int, client: Ints, turn: Ints | int) -> Bits:
    """:func:`metad_wire.policy.draw` for arrays of clients and turns."""
    value = client.astype(np.uint64)
    value *= _CLIENT
    if isinstance(turn, int):
        value += np.uint64((start + CLIENT_STEP + TURN_STEP * turn) & MASK)
    else:
        value += turn.astype(np.uint64) * _TURN
        value += np.uint64((start + CLIENT_STEP) & MASK)
    value ^= value >> _30
    value *= _MIX_1
    value ^= value >> _27
    value *= _MIX_2
    value ^= value >> _31
    return value


def uniforms(start: int, client: Ints, turn: Ints | int) -> Floats:
    """:func:`metad_wire.policy.uniform` for arrays of clients and turns."""
    bits = draws(start, client, turn)
    bits >>= _11
    return bits.astype(np.float64) * UNIT


class Backoffs:
    """Several backoff policies side by side; ``which`` names the one that draws each wait."""

    def __init__(self, policies: Sequence[Backoff]) -> None:
        self.remembers = any(policy.family == "decorrelated" for policy in policies)
        """Whether a wait depends on the wait before it."""
        rows = [[policy.bounds_s(attempt, 0.0) for attempt in range(_ATTEMPTS)] for policy in policies]
        self._low = np.array([low for row in rows for low, _ in row])
        self._span = np.array([high - low for row in rows for low, high in row])
        self._cap = np.array([policy.cap_s for policy in policies])
        self._base = np.array([policy.base_s for policy in policies])
        self._decorrelated = np.array([policy.family == "decorrelated" for policy in policies])

    def waits_us(self, which: Ints, attempt: Ints, previous_us: Ints | None, u: Floats) -> Ints:
        """:meth:`Backoff.wait_us` elementwise. ``previous_us`` may be None if no policy needs it."""
        row = which * _ATTEMPTS
        row += np.minimum(attempt, _ATTEMPTS - 1)
        low, span = self._low.take(row), self._span.take(row)
        if self.remembers:
            assert previous_us is not None
            base = self._base.take(which)
            wide = np.maximum(previous_us / _US, base) * 3.0 - base
            span = np.where(self._decorrelated.take(which), wide, span)
        u = u * span
        u += low
        np.minimum(u, self._cap.take(which), out=u)
        u *= _US
        return u.astype(np.int64)


def reserve_us(budget: RetryBudget, wanted_us: Ints, clock_us: Ints) -> tuple[Ints, Ints]:
    """:meth:`RetryBudget.reserve_us` for clients with a bucket each."""
    due = np.maximum(wanted_us, clock_us - (budget.burst - 1) * budget.interval_us)
    return due, np.maximum(clock_us, due) + budget.interval_us


def reserve_slots_ns(slots: ReturnSlots, now_ns: Ints, next_ns: int, items: Ints | None = None) -> tuple[Ints, int]:
    """:meth:`ReturnSlots.reserve_ns` for clients that are refused one after the other (``now_ns`` ascending), each with
    so many items or with one. Returns the slots of all, and the next free one. A running maximum in whole numbers:
    nothing is rounded."""
    if not len(now_ns):
        return now_ns, next_ns
    if items is None:
        steps = np.arange(len(now_ns), dtype=np.int64) * slots.interval_ns
        last = slots.interval_ns
    else:
        ends = np.cumsum(items, dtype=np.int64) * slots.interval_ns
        steps = ends - items * slots.interval_ns
        last = int(items[-1]) * slots.interval_ns
    slack = np.maximum.accumulate(now_ns + slots.wait_min_ns - steps)
    reserved = np.maximum(slack, next_ns) + steps
    return reserved, int(reserved[-1]) + last


def slot_waits_us(slots: ReturnSlots, now_us: Ints, slot_ns: Ints, u: Floats) -> Ints:
    """:meth:`ReturnSlots.wait_us` elementwise."""
    jitter = (u * (2 * slots.jitter_us + 1)).astype(np.int64)
    waits: Ints = np.maximum(slot_ns // 1000 - now_us + jitter - slots.jitter_us, 0)
    return waits


def batch_ends(window: BatchWindow, arrivals_us: Ints, lane: Ints | None = None) -> tuple[Ints, Ints]:
    """For each of ``arrivals_us`` as a first item: when its batch would close, and the index after its last item, as in
    :meth:`BatchWindow.first_batch`; following the indexes from 0 cuts the arrivals into batches. With lanes
    (ascending), arrivals ascend within each lane, and no batch spans two lanes. Times are under 2**32."""
    place = arrivals_us if lane is None else (lane << 32) + arrivals_us
    close = arrivals_us + window.linger_us
    end = np.searchsorted(place, place + window.linger_us, side="right")
    full = np.arange(len(place)) + window.items_max
    is_full = full <= end
    end[is_full] = full[is_full]
    close[is_full] = arrivals_us[full[is_full] - 1]
    return close, end
