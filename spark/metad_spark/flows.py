"""The fluid model's clients: how much of each *cell* fails when, and what that brings back later.

A cell is a kind of client and how often it has failed, or, for decorrelated jitter, how long it waited last. What fails
in a cell moves on by *blocks*: a share of it goes to another cell, spread evenly over a range of waits. Every policy is
a few blocks: none, one point; full jitter, one range; a retry budget cuts a range in two.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from metad_wire.policy import Backoff, RetryBudget

from .cases import NodeCase

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

STATES_MAX = 64
"""Failures that are told apart; bounds a cell for budgets of thousands of retries."""
_SLEEP_BINS = 48
"""Of decorrelated jitter's last wait, evenly spaced on a logarithmic scale."""


class Block(NamedTuple):
    """A share of what fails in a state goes to another, after a wait evenly between two, in seconds."""

    state: int
    following: int
    low_s: float
    high_s: float
    share: float


def blocks_of(policy: Backoff, budget: RetryBudget | None, elapsed_s: float) -> tuple[int, list[Block]]:
    """How many states a policy has, and their blocks. ``elapsed_s``: from the begin of an attempt to the news of its
    failure, by which the wait for a budget's token is shorter."""
    if policy.family == "decorrelated":
        return _decorrelated(policy, budget, elapsed_s)
    states = 2  # who never failed is a state of its own
    while states < STATES_MAX and policy.scale_s(states) > policy.scale_s(states - 1):
        states += 1
    if budget is not None:
        states = min(STATES_MAX, max(states, budget.burst + 2))
    blocks: list[Block] = []
    used_s = 0.0  # since the first retry began, on average
    for state in range(states):
        low, high = policy.bounds_s(state, 0.0)
        following = min(state + 1, states - 1)
        least = _least_wait_s(budget, state, used_s, elapsed_s)
        blocks += _cut(state, following, low, high, 1.0, least)
        if state:
            used_s += elapsed_s + max((low + high) / 2, least)
    return states, blocks


def _least_wait_s(budget: RetryBudget | None, retry: int, used_s: float, elapsed_s: float) -> float:
    """How long a budget makes retry number ``retry`` wait at least: the first one past the burst until one interval
    after the first retry, each later one an interval after the one before."""
    if budget is None or retry < budget.burst:
        return 0.0
    since_s = used_s if retry == budget.burst else 0.0
    return max(0.0, budget.interval_s - since_s - elapsed_s)


def _cut(state: int, following: int, low: float, high: float, share: float, least: float) -> list[Block]:
    """A range, with what is below ``least`` moved up to it."""
    if least <= low:
        return [Block(state, following, low, high, share)]
    if least >= high:
        return [Block(state, following, least, least, share)]
    below = (least - low) / (high - low)
    return [
        Block(state, following, least, least, share * below),
        Block(state, following, least, high, share * (1 - below)),
    ]


def _decorrelated(policy: Backoff, budget: RetryBudget | None, elapsed_s: float) -> tuple[int, list[Block]]:
    """States are bins of the last wait, from the base to the cap; the first state is of those that never waited. The
    cap is a bin of its own, for many waits are cut off there."""
    edges = np.geomspace(max(policy.base_s, 1e-6), max(policy.cap_s, policy.base_s, 1e-6), _SLEEP_BINS + 1).tolist()
    least = max(0.0, budget.interval_s - elapsed_s) if budget is not None else 0.0
    at_cap = _SLEEP_BINS + 1
    blocks: list[Block] = []
    for state in range(_SLEEP_BINS + 2):
        if state == 0:
            previous = [0.0]
        elif state == at_cap:
            previous = [policy.cap_s]
        else:
            low_s, high_s = edges[state - 1], edges[state]
            previous = [low_s + (high_s - low_s) * part for part in (0.125, 0.375, 0.625, 0.875)]
        for before in previous:
            low, high = policy.bounds_s(0, before)
            share = 1.0 / len(previous)
            width = max(high - low, 1e-12)
            for at in range(_SLEEP_BINS):
                begin, end = max(low, edges[at]), min(high, edges[at + 1])
                if begin < end:
                    blocks += _cut(state, at + 1, begin, end, share * (end - begin) / width, least)
            if high > policy.cap_s:
                over = share * (high - max(low, policy.cap_s)) / width
                blocks += _cut(state, at_cap, policy.cap_s, policy.cap_s, over, least)
    return _SLEEP_BINS + 2, blocks


class Cells:
    """All cells of a case, in arrays: one row per cell, one per block."""

    def __init__(self, case: NodeCase, elapsed_s: list[float]) -> None:
        kinds, first, states_of = [], [0], []
        source: list[int] = []
        following: list[int] = []
        low: list[float] = []
        high: list[float] = []
        share: list[float] = []
        made = {
            (kind.region, kind.transport, kind.sdk): blocks_of(case.backoffs[kind.sdk], case.budget, elapsed)
            for kind, elapsed in zip(case.kinds, elapsed_s, strict=True)
        }
        for number, kind in enumerate(case.kinds):
            states, blocks = made[kind.region, kind.transport, kind.sdk]
            base = first[-1]
            for block in blocks:
                source.append(base + block.state)
                following.append(base + block.following)
                low.append(block.low_s)
                high.append(block.high_s)
                share.append(block.share)
            kinds += [number] * states
            states_of.append(states)
            first.append(base + states)
        self.count = first[-1]
        self.first: Ints = np.array(first[:-1])
        """Of each kind, the cell of those that have not failed yet."""
        self.kind: Ints = np.array(kinds)
        self.region: Ints = np.array([case.kinds[kind].region for kind in kinds])
        self.source: Ints = np.array(source)
        self.following: Ints = np.array(following)
        self.low_us: Array = np.array(low) * 1e6
        self.high_us: Array = np.array(high) * 1e6
        self.share: Array = np.array(share)


class Flow:
    """Mass per cell that is due in future steps, as a ring of changes of the rate at which it comes: a range costs four
    entries however long it is."""

    def __init__(self, cells: int, step_us: float, span_us: float) -> None:
        self._cells = cells
        self._step_us = step_us
        self._steps = int(span_us / step_us) + 4
        self._change = np.zeros(self._steps * cells)
        self._rate = np.zeros(cells)
        self._at = 0

    def add(self, cell: Ints, mass: Array, low_us: Array, high_us: Array) -> None:
        """Mass that comes evenly between two times from the begin of the current step on; at least a step wide."""
        low, high = low_us / self._step_us, high_us / self._step_us
        narrow = high - low < 1.0
        if narrow.any():
            middle = (low + high) / 2
            low, high = np.where(narrow, middle - 0.5, low), np.where(narrow, middle + 0.5, high)
        np.maximum(low, 1.0, out=low)  # nothing is due before the next step
        np.maximum(high, low + 1.0, out=high)
        rate = mass / (high - low)
        parts: list[tuple[Ints, Array]] = []
        for edge, change in ((low, rate), (high, -rate)):
            whole = edge.astype(np.int64)
            part = change * (edge - whole)
            np.minimum(whole, self._steps - 2, out=whole)
            parts += [(whole, change - part), (whole + 1, part)]
        steps = np.concatenate([step for step, _ in parts])
        place = (self._at + steps) % self._steps * self._cells + np.tile(cell, 4)
        np.add.at(self._change, place, np.concatenate([change for _, change in parts]))

    def coming(self) -> Array:
        """What comes in the current step; to be called once in each."""
        row = self._change[self._at * self._cells : (self._at + 1) * self._cells]
        self._rate += row
        row[:] = 0.0
        coming: Array = np.maximum(self._rate, 0.0)
        return coming

    def advance(self) -> None:
        """The next step begins."""
        self._at = (self._at + 1) % self._steps


class Line:
    """Mass per cell, moved later by a time that is the same for whole rows of it or differs by cell."""

    def __init__(self, cells: int, step_us: float, span_us: float) -> None:
        self._step_us = step_us
        self._rows = np.zeros((int(span_us / step_us) + 3, cells))
        self._cells = np.arange(cells)
        self._at = 0

    def add(self, mass: Array, delay_us: Array | float) -> None:
        """Mass that is to come that much later."""
        steps = np.clip(np.asarray(delay_us) / self._step_us, 0.0, len(self._rows) - 2)
        whole = steps.astype(np.int64)
        part = mass * (steps - whole)
        row = (self._at + whole) % len(self._rows)
        self._rows[row, self._cells] += mass - part
        self._rows[(row + 1) % len(self._rows), self._cells] += part

    def coming(self) -> Array:
        """What comes in the current step; the next one begins. What is added now comes a step later at least."""
        row: Array = self._rows[self._at].copy()
        self._rows[self._at] = 0.0
        self._at = (self._at + 1) % len(self._rows)
        return row


class Fixed:
    """:meth:`Flow.add` for blocks whose ranges never change: the places are computed once."""

    def __init__(self, flow: Flow, cells: Cells, offset_us: Array) -> None:
        """``offset_us``: per cell, from the begin of a step to where its waits count from."""
        self._flow = flow
        self._source = cells.source
        low = (cells.low_us + offset_us[cells.source]) / flow._step_us
        high = (cells.high_us + offset_us[cells.source]) / flow._step_us
        narrow = high - low < 1.0
        middle = (low + high) / 2
        low, high = np.where(narrow, middle - 0.5, low), np.where(narrow, middle + 0.5, high)
        np.maximum(low, 1.0, out=low)
        np.maximum(high, low + 1.0, out=high)
        rate = cells.share / (high - low)
        steps, changes = [], []
        for edge, change in ((low, rate), (high, -rate)):
            whole = np.minimum(edge.astype(np.int64), flow._steps - 2)
            part = change * (edge - edge.astype(np.int64))
            steps += [whole, whole + 1]
            changes += [change - part, part]
        self._place = np.concatenate(steps) * flow._cells + np.tile(cells.following, 4)
        self._change = np.concatenate(changes)
        self._four = np.tile(cells.source, 4)

    def add(self, failed: Array) -> None:
        """What failed in each cell in the current step."""
        flow = self._flow
        place = self._place + flow._at * flow._cells
        place[place >= len(flow._change)] -= len(flow._change)
        np.add.at(flow._change, place, failed[self._four] * self._change)
