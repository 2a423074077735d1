"""Draws and backoff for arrays of clients: the same arithmetic as the scalar forms, hence the same bits. Needs numpy.

``tests/unit/spark/test_policies.py`` compares both for every family, any seed, client and attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .backoff import Backoff
from .draw import CLIENT_STEP, MASK, MIX_1, MIX_2, TURN_STEP, UNIT
from .rates import RetryBudget

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


def reserve_us(budget: RetryBudget, wanted_us: Ints, clock_us: Ints) -> tuple[Ints, Ints]:
    """Take a token for each client, as :meth:`RetryBudget.reserve_us` does for one."""
    interval_us = budget.interval_us
    due_us = np.maximum(wanted_us, clock_us - (budget.burst - 1) * interval_us)
    return due_us, np.maximum(clock_us, due_us) + interval_us


class Backoffs:
    """Several backoff policies side by side; ``which`` names the one that draws each wait."""

    def __init__(self, policies: Sequence[Backoff]) -> None:
        self.remembers = any(policy.family == "decorrelated" for policy in policies)
        """Whether a wait depends on the wait before it."""
        rows = [[policy.bounds_s(attempt, 0.0) for attempt in range(_ATTEMPTS)] for policy in policies]
        self.low = np.array([[low for low, _ in row] for row in rows], np.float64)
        """(policy, attempt): the shortest wait, in seconds. Later attempts have the last one's."""
        self.span = np.array([[high - low for low, high in row] for row in rows], np.float64)
        """(policy, attempt): how much longer it may be."""
        self.cap = np.array([policy.cap_s for policy in policies], np.float64)
        self.base = np.array([policy.base_s for policy in policies], np.float64)
        self.decorrelated = np.array([policy.family == "decorrelated" for policy in policies])
        """(policy): those whose span is that of the wait before."""

    def waits_us(self, which: Ints, attempt: Ints, previous_us: Ints | None, u: Floats) -> Ints:
        """:meth:`Backoff.wait_us` elementwise. ``previous_us`` may be None if no policy needs it."""
        row = which * _ATTEMPTS
        row += np.minimum(attempt, _ATTEMPTS - 1)
        low, span = self.low.take(row), self.span.take(row)
        if self.remembers:
            assert previous_us is not None
            base = self.base.take(which)
            wide = np.maximum(previous_us / _US, base) * 3.0 - base
            span = np.where(self.decorrelated.take(which), wide, span)
        u = u * span
        u += low
        np.minimum(u, self.cap.take(which), out=u)
        u *= _US
        return u.astype(np.int64)
