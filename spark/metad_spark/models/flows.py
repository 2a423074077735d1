"""The fluid model's clients: how much of each *cell* fails when, and when that comes back.

A cell is a kind of client and its number of failures or, for decorrelated jitter, its last wait. Failures in a cell
move on by *blocks*: a share of them goes to another cell, spread evenly over a range of waits. Every policy is a few
blocks: none, one point; full jitter, one range; a retry budget cuts a range in two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from metad_wire.policy import Backoff, RetryBudget

from .node_input import Kind, NodeInput

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

STATES_MAX = 64
"""Failures that are told apart; bounds the cells for budgets of thousands of retries."""
_SLEEP_BINS = 48
"""Bins of decorrelated jitter's last wait, evenly spaced on a logarithmic scale."""


class Block(NamedTuple):
    """A share of the failures in a state goes to another state, after a wait spread evenly between two, in seconds."""

    state: int
    following: int
    low_s: float
    high_s: float
    share: float


def blocks_of(policy: Backoff, budget: RetryBudget | None, elapsed_s: float) -> tuple[int, list[Block]]:
    """The number of states of a policy, and their blocks. ``elapsed_s``: time from the begin of an attempt to the news
    of its failure, which shortens the wait for a budget's token."""
    if policy.family == "decorrelated":
        return _decorrelated(policy, budget, elapsed_s)
    states = 2  # clients that never failed are a state of their own
    while states < STATES_MAX and policy.scale_s(states) > policy.scale_s(states - 1):
        states += 1
    if budget is not None:
        states = min(STATES_MAX, max(states, budget.burst + 2))
    blocks: list[Block] = []
    used_s = 0.0  # mean time since the first retry began
    for state in range(states):
        low, high = policy.bounds_s(state, 0.0)
        following = min(state + 1, states - 1)
        least = _least_wait_s(budget, state, used_s, elapsed_s)
        blocks += _cut(state, following, low, high, 1.0, least)
        if state:
            used_s += elapsed_s + max((low + high) / 2, least)
    return states, blocks


def _least_wait_s(budget: RetryBudget | None, retry: int, used_s: float, elapsed_s: float) -> float:
    """The least time that a budget makes retry number ``retry`` wait: the first one past the burst until one interval
    after the first retry, each later one an interval after the one before."""
    if budget is None or retry < budget.burst:
        return 0.0
    since_s = used_s if retry == budget.burst else 0.0
    return max(0.0, budget.interval_s - since_s - elapsed_s)


def _cut(state: int, following: int, low: float, high: float, share: float, least: float) -> list[Block]:
    """A range, with the part below ``least`` moved up to it."""
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
    """States are bins of the last wait, from the base to the cap; the first state is for clients that never waited. The
    cap is a bin of its own, because many waits are cut off there."""
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
    """All cells of a node in arrays: one entry per cell, region by region, and one per block, cell by cell."""

    def __init__(self, node_input: NodeInput, kinds: Sequence[Kind], elapsed_s: Sequence[float]) -> None:
        """``kinds``: the node's, in the order of their regions. ``elapsed_s``: for each kind, as in
        :func:`blocks_of`."""
        of_cell, first = [], [0]
        told: list[int] = []
        source: list[int] = []
        following: list[int] = []
        low: list[float] = []
        high: list[float] = []
        share: list[float] = []
        for number, (kind, elapsed) in enumerate(zip(kinds, elapsed_s, strict=True)):
            states, blocks = blocks_of(node_input.backoffs[kind.sdk], node_input.budget, elapsed)
            base = first[-1]
            if node_input.backoffs[kind.sdk].family == "decorrelated":
                # Who was told when to come back has not waited by its policy yet, but it has failed.
                blocks += [block._replace(state=states) for block in blocks if block.state == 0]
                after = [states, *range(1, states), states]
                states += 1
            else:
                after = [min(state + 1, states - 1) for state in range(states)]
            told += [base + state for state in after]
            for block in blocks:
                source.append(base + block.state)
                following.append(base + block.following)
                low.append(block.low_s)
                high.append(block.high_s)
                share.append(block.share)
            of_cell += [number] * states
            first.append(base + states)
        self.count = first[-1]
        self.first: Ints = np.array(first[:-1])
        """Of each kind, the cell of those that have not failed yet."""
        self.told: Ints = np.array(told)
        """For each cell, the one of those that are refused there and told when to come back."""
        self.kind: Ints = np.array(of_cell)
        regions = np.array([kinds[kind].region for kind in of_cell])
        self.begin: Ints = np.searchsorted(regions, np.arange(len(node_input.regions) + 1))
        """Each region's first cell, and the number of cells."""
        self.source: Ints = np.array(source)
        self.block: Ints = np.searchsorted(self.source, np.arange(self.count + 1))
        """Each cell's first block, and the number of blocks."""
        self.following: Ints = np.array(following)
        self.low_us: Array = np.array(low) * 1e6
        self.high_us: Array = np.array(high) * 1e6
        self.share: Array = np.array(share)

    def places(self, offset_us: Array, step_us: float, steps: int) -> tuple[Ints, Array]:
        """The places in a ring of ``steps`` where a unit of mass goes that fails now, by each block. ``offset_us``: per
        cell, from the begin of a step to the time from which its waits count.

        The mass comes evenly between two times, at least a step apart. So its rate rises at the one and falls at the
        other, and each of the two changes falls on two steps. Returns (block, 2), how many steps ahead the first of
        these two is, and (block, 4), the changes in each."""
        low = (self.low_us + offset_us[self.source]) / step_us
        high = (self.high_us + offset_us[self.source]) / step_us
        narrow = high - low < 1.0
        middle = (low + high) / 2
        low, high = np.where(narrow, middle - 0.5, low), np.where(narrow, middle + 0.5, high)
        np.maximum(low, 1.0, out=low)  # nothing is due before the next step
        np.maximum(high, low + 1.0, out=high)
        rate = self.share / (high - low)
        at, changes = [], []
        for edge, change in ((low, rate), (high, -rate)):
            whole = edge.astype(np.int64)
            part = change * (edge - whole)
            at.append(np.minimum(whole, steps - 2))
            changes += [change - part, part]
        return np.stack(at, axis=1), np.stack(changes, axis=1)
