"""The counters of the per-client models, in whole numbers, and their conversion to a NodeResult."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .histogram import BINS, counted
from .node_input import FINE_POINTS, FINE_US, NodeInput
from .results import Array, NodeResult

Ints = npt.NDArray[np.int64]
_SECOND_US = 1_000_000
_CHUNK = 1 << 17
"""Clients whose times are looked at together: they fit the cache."""


class Tally:
    """Counters of one node. The models write to them directly; times are microseconds until :meth:`result`."""

    def __init__(self, node_input: NodeInput) -> None:
        self.input = node_input
        regions, seconds, waves = len(node_input.regions), node_input.seconds, node_input.waves
        self.attempts = np.zeros((regions, seconds), np.int64)
        self.attempts_fine = np.zeros((regions, FINE_POINTS), np.int64)
        self.served_fine = np.zeros(FINE_POINTS, np.int64)
        self.rejected = np.zeros(seconds, np.int64)
        self.served = np.zeros(seconds, np.int64)
        self.queue = np.zeros(seconds, np.int64)
        self.passed = np.zeros((regions, seconds), np.int64)
        self.held_us = np.zeros(waves, np.int64)
        self.held = np.zeros(waves, np.int64)
        self.kept_max_us = 0
        self.timeouts = 0
        self.left = 0
        self.wasted = 0
        self.unheard = 0

    def attempt(self, region: int, at_us: int) -> None:
        """An attempt begins."""
        self.attempts[region, at_us // _SECOND_US] += 1
        if at_us < FINE_US * FINE_POINTS:
            self.attempts_fine[region, at_us // FINE_US] += 1

    def serve(self, at_us: int, items: int) -> None:
        """A turn ends in which so many items were served."""
        self.served[at_us // _SECOND_US] += items
        if at_us < FINE_US * FINE_POINTS:
            self.served_fine[at_us // FINE_US] += items

    def result(self, first_us: Ints, done_us: Ints, region: npt.NDArray[np.integer]) -> NodeResult:
        """The result, with the clients' own times: of the first attempt, of CONNACK (-1: never), and their regions."""
        node_input = self.input
        regions, seconds = len(node_input.regions), node_input.seconds
        restored = np.zeros(regions * seconds, np.int64)
        fine = np.zeros(regions * FINE_POINTS, np.int64)
        storm, waited, back, own_us = np.zeros(BINS), np.zeros(BINS), 0, 0
        for at in range(0, len(done_us), _CHUNK):
            chunk = slice(at, at + _CHUNK)
            is_back = done_us[chunk] >= 0
            done, where = done_us[chunk][is_back], region[chunk][is_back].astype(np.int64)
            own = done - first_us[chunk][is_back]
            second = np.minimum(done // _SECOND_US, seconds - 1)
            restored += np.bincount(where * seconds + second, minlength=len(restored))
            early = done < FINE_US * FINE_POINTS
            fine += np.bincount(where[early] * FINE_POINTS + done[early] // FINE_US, minlength=len(fine))
            storm += counted(done)
            waited += counted(own)
            back += len(done)
            own_us += int(own.sum())
        return NodeResult(
            node=node_input.node,
            copies=node_input.copies,
            clients=float(node_input.clients),
            restored=float(back),
            attempts=float(self.attempts.sum()),
            rejected=float(self.rejected.sum()),
            unheard=float(self.unheard),
            timeouts=float(self.timeouts),
            left=float(self.left),
            wasted=float(self.wasted),
            queue_max=float(self.queue.max()),
            own_s_sum=float(own_us) * 1e-6,
            storm=storm,
            own=waited,
            restored_by_s=restored.reshape(regions, seconds).astype(np.float64),
            attempts_by_s=self.attempts.astype(np.float64),
            rejected_by_s=self.rejected.astype(np.float64),
            served_by_s=self.served.astype(np.float64),
            restored_fine=fine.reshape(regions, FINE_POINTS).astype(np.float64),
            attempts_fine=self.attempts_fine.astype(np.float64),
            served_fine=self.served_fine.astype(np.float64),
            queue_by_s=self.queue.astype(np.float64),
            capacity_by_s=capacity_by_s(node_input),
            passed_by_s=self.passed.astype(np.float64),
            kept_max_s=self.kept_max_us * 1e-6,
            held_s=self.held_us.astype(np.float64) * 1e-6,
            held=self.held.astype(np.float64),
            wave_s=node_input.wave_us * 1e-6,
        )


def capacity_by_s(node_input: NodeInput) -> Array:
    """Items that the node could serve in each second, with outages and their consequences."""
    best = node_input.items_per_s()
    seconds = np.arange(node_input.seconds, dtype=np.float64)
    capacity = np.full(node_input.seconds, best)
    for outage in node_input.outages:
        at, until = outage.at_us * 1e-6, outage.until_us * 1e-6
        down = np.clip(np.minimum(seconds + 1, until) - np.maximum(seconds, at), 0, 1)
        after = np.clip(seconds + 1 - np.maximum(until, seconds), 0, 1)
        before = 1 - down - after
        capacity = capacity * before + best / outage.slowdown * after
    return capacity
