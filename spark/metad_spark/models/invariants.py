"""What must hold in every storm, whatever the model: no work is done that cannot be done, and nobody is lost or made.

:func:`check_node` looks at each node that is simulated, :func:`check_storm` at each storm. A result that breaks one is
never shown: the run fails."""

from __future__ import annotations

import math

import numpy as np

from ..errors import SimulationError
from .node_input import NodeInput
from .results import Array, NodeResult, StormResult

_SIGMAS = 6.0
"""Turns vary at random around their mean. More luck than this is a fault."""
_ROUNDING = 1e-6
_BIN = 0.002
"""A bin of the histogram of times, of the time."""
_AT_ONCE_S = 0.05
"""Each broker lets its first client through at once."""


def check_node(node_input: NodeInput, result: NodeResult) -> None:
    """Raise SimulationError if a node's result breaks an invariant."""
    served, done = float(result.served_by_s.sum()), result.restored + result.wasted
    _require(
        abs(done - served) <= 0.5,
        f"{result.restored:,.0f} restored and {result.wasted:,.0f} wasted items are not the {served:,.0f} served",
    )
    ended = result.restored + result.timeouts + result.rejected - result.unheard
    out = result.clients - result.restored
    slack = _ROUNDING * result.attempts + 0.5
    _require(
        -slack <= result.attempts - ended <= out + slack,
        f"of {result.attempts:,.0f} attempts {ended:,.0f} ended, and {out:,.0f} clients are out",
    )
    _require(out >= -_ROUNDING * result.clients, "more clients are back than there are")
    _within_capacity(node_input, result)
    _within_doors(node_input, result)


def check_storm(storm: StormResult, handshakes_per_s: float, luck: float) -> None:
    """Raise SimulationError if a share of all clients is back sooner than the nodes, or the brokers with so many
    handshakes a second in all (infinite without a bound), can serve as many. ``luck``: of :func:`luck_of` for the whole
    storm."""
    capacity = np.concatenate(([0.0], np.cumsum(storm.capacity_by_s))) * (1 + luck)
    seconds = np.arange(len(capacity), dtype=np.float64)
    for share, reached_s in ((0.5, storm.t50_s), (0.99, storm.t99_s), (0.999, storm.t999_s)):
        if reached_s is None:
            continue
        wanted = share * storm.clients
        least_s = max(float(np.interp(wanted, capacity, seconds)), wanted / handshakes_per_s)
        _require(
            reached_s >= least_s * (1 - 2 * _BIN) - _AT_ONCE_S,
            f"{share * 100:g} % are back after {reached_s:.4g} s, and serving them takes {least_s:.4g} s",
        )


def luck_of(node_input: NodeInput, items: float) -> float:
    """The share by which so many items may be served faster than on average, because turns vary."""
    factors = np.array(node_input.factors)
    turns = max(1.0, items / (node_input.groups * node_input.batch_items))
    return _SIGMAS * float(factors.std()) / math.sqrt(turns)


def _within_capacity(node_input: NodeInput, result: NodeResult) -> None:
    served, capacity = np.cumsum(result.served_by_s), np.cumsum(result.capacity_by_s)
    for second in range(len(served)):
        most = capacity[second] * (1 + luck_of(node_input, float(served[second])) + _ROUNDING) + 0.5
        _require(
            bool(served[second] <= most),
            f"after {second + 1} s a node has served {served[second]:,.0f} items, and can serve {most:,.0f}",
        )


def _within_doors(node_input: NodeInput, result: NodeResult) -> None:
    if not node_input.doors:
        return
    rates = node_input.doors_per_s()
    for region, doors in enumerate(node_input.doors):
        can = _by_s(rates[region], node_input)
        passed = np.cumsum(result.passed_by_s[region])
        slack = doors * len(set(node_input.door_ns[region])) + 0.5
        most = np.cumsum(can) * (1 + _ROUNDING) + slack
        at = int(np.argmax(passed - most))
        _require(
            bool(passed[at] <= most[at]),
            f"after {at + 1} s brokers have let through {passed[at]:,.0f} clients, and can do {most[at]:,.0f}",
        )


def _by_s(rates: Array, node_input: NodeInput) -> Array:
    """What doors can let through in each second, given their rate at each point."""
    points = -(-node_input.seconds * 1_000_000 // node_input.wave_us)
    known = np.concatenate((rates[:points], np.full(max(0, points - len(rates)), rates[-1])))
    edges = np.arange(points + 1) * (node_input.wave_us * 1e-6)
    total = np.concatenate(([0.0], np.cumsum(known) * (node_input.wave_us * 1e-6)))
    return np.asarray(np.diff(np.interp(np.arange(node_input.seconds + 1), edges, total)))


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise SimulationError(f"an invariant of the simulation is broken, which is a fault of metad-spark: {what}")
