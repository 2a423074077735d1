"""Costs from the runs of a grid: CPU time is a sum of counts times costs, and no cost is below 0.

Non-negative least squares (Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23), of errors relative
to the measured time. The intervals are those of a bootstrap over runs: all processes of a run are drawn together,
because what disturbs one disturbs all of them. Pure.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import CalibrationError
from .costs import MEMTABLE_S, REFUSAL_S, REFUSED_ITEM_S, Costs, Interval
from .grid import SENT, Grid, Row

Floats = npt.NDArray[np.float64]
NODE_COLUMNS: Final = {
    "request_s": "requests",
    "item_s": "items",
    "restore_s": "restored",
    "part_s": "parts",
    "refusal_s": "refusals",
    "refused_item_s": "refused_items",
    "entry_s": "entries",
    "follower_entry_s": "follower_entries",
    "follower_item_s": "follower_items",
    "grown_item_s": "grown_items",
    "idle_cores": "seconds",
}
"""Cost of a node: the count that it is multiplied with."""
BROKER_COLUMNS: Final = {
    "call_s": "calls",
    "vain_s": "refusals",
    "back_s": "handled",
    "back_part_s": "parts",
    "grown_back_s": "grown_items",
}
STORM_WEIGHT: Final = 3.0
"""What a relative error of a storm weighs, where that of a load weighs 1: storms are to be predicted, and loads tell
the costs apart. With 3 the storms that are left out of a fit are predicted best, in two grids."""
_WHOLE_CORE: Final = 0.8
"""A process that used so much of a core while its storm lasted had no more."""
_REFUSED_MAX: Final = 0.1
"""Of the clients that came back: with more that were turned away, a storm is as long as they wait."""
_BACKGROUND: Final = "beside"
_BOOTSTRAP: Final = 400
_LOW, _HIGH = 2.5, 97.5
_QUANTILES: Final = 200
_ROUNDS: Final = 10


def nnls(design: Floats, target: Floats) -> Floats:
    """The vector x >= 0 that makes ``|design @ x - target|`` smallest."""
    count = design.shape[1]
    found = np.zeros(count)
    free = np.zeros(count, dtype=np.bool_)
    scale = float(np.abs(design.T @ target).max(initial=0.0))
    for _ in range(_ROUNDS * count):
        gradient = design.T @ (target - design @ found)
        if free.all() or gradient[~free].max() <= 1e-10 * scale:
            break
        free[np.argmax(np.where(free, -np.inf, gradient))] = True
        while True:
            tried = np.zeros(count)
            tried[free] = np.linalg.lstsq(design[:, free], target, rcond=None)[0]
            below = free & (tried <= 0)
            if not below.any():
                found = tried
                break
            step = float((found[below] / (found[below] - tried[below])).min())
            found = found + step * (tried - found)
            free &= found > 1e-15
            found[~free] = 0.0
    return found


def fit(grid: Grid, name: str = "measured", seed: int = 0) -> Costs:
    """The costs that explain the seen runs of a grid best. Raises CalibrationError where they are not sufficient."""
    rows = [row for row in grid.rows if row.seen]
    nodes = [row for row in rows if row.part == "node"]
    brokers = [row for row in rows if row.part == "brokers"]
    if len({row.run for row in nodes if row.kind == "load"}) < 4 or len({row.run for row in brokers}) < 2:
        raise CalibrationError("needs at least four loads and two storms that may be used for a fit")
    if not grid.fsync_s:
        raise CalibrationError("the runs have no measure of fsync: run metad-perf calibration-grid --only fsync")
    core_us = _core_us(rows)
    nodes, measured = _without_memtables(_at_speed(nodes, core_us)), _refusals(grid, core_us)
    node_costs, node_intervals, node_r2 = _fitted(nodes, NODE_COLUMNS, seed)
    if (request := _of_a_request(nodes, node_costs)) is not None:
        measured["request_s"] = request
        others = {key: column for key, column in NODE_COLUMNS.items() if key != "request_s"}
        left = [msgspec.structs.replace(row, cpu_s=row.cpu_s - request[0] * row.requests) for row in nodes]
        node_costs, node_intervals, node_r2 = _fitted(left, others, seed)
    for key, (value, interval) in measured.items():
        node_costs[key], node_intervals[key] = value, interval
    broker_costs, broker_intervals, broker_r2 = _fitted(_at_speed(brokers, core_us), BROKER_COLUMNS, seed)
    back = broker_intervals["back_s"]
    broker_costs["attempt_s"] = SENT * broker_costs["back_s"]
    broker_intervals["attempt_s"] = Interval(_short(SENT * back.low), _short(SENT * back.high))
    # A node that does nothing, and beside a storm the other work as well.
    node_costs["idle_cores"] += node_costs.pop(_BACKGROUND)
    extra = node_intervals.pop(_BACKGROUND)
    idle = node_intervals["idle_cores"]
    node_intervals["idle_cores"] = Interval(idle.low + extra.low, idle.high + extra.high)
    unused_cores, unled_cores = _unused(rows, grid.cpus, node_costs["idle_cores"])
    places = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    fsync_s = np.quantile(np.array(grid.fsync_s), places)
    return Costs(
        name=name,
        setting=grid.setting,
        cores=grid.cpus,
        unused_cores=_short(unused_cores),
        unled_cores=_short(unled_cores),
        core_us=_short(core_us),
        fsync_s=tuple(_short(float(time_s)) for time_s in fsync_s),
        intervals=node_intervals | broker_intervals,
        r2={"nodes": round(node_r2, 3), "brokers": round(broker_r2, 3)},
        **{key: _short(value) for key, value in (node_costs | broker_costs).items()},
    )


def _core_us(rows: Sequence[Row]) -> float:
    """The speed of cores that costs are of: the mean of the storms. 0 if it was not measured in every run."""
    if not all(row.core_us for row in rows):
        return 0.0
    return statistics.fmean({row.run: row.core_us for row in rows if row.storm_s}.values())


def _at_speed(rows: Sequence[Row], core_us: float) -> list[Row]:
    """What the processes would have used on cores of that speed; 0: they had it."""
    if not core_us:
        return list(rows)
    return [msgspec.structs.replace(row, cpu_s=row.cpu_s * core_us / row.core_us) for row in rows]


def _refusals(grid: Grid, core_us: float) -> dict[str, tuple[float, Interval]]:
    """What it costs to turn a request away, and each of its items, as measured by itself. What the fit says of it is
    not taken: in storms refusals come with all other work, so it told the two apart by ten times."""
    measured: dict[int, list[float]] = {}
    for one in grid.refused:
        factor = core_us / one.core_us if core_us and one.core_us else 1.0
        measured.setdefault(one.items, []).append(one.cpu_s * factor)
    if not measured:
        known = {"refusal_s": REFUSAL_S, "refused_item_s": REFUSED_ITEM_S}
        return {key: (value, Interval(0.0, 2 * value)) for key, value in known.items()}
    few, many = min(measured), max(measured)
    apart = max(1, many - few)

    def of_item(low: float, high: float) -> float:
        return max(0.0, (high - low) / apart)

    middle = of_item(statistics.median(measured[few]), statistics.median(measured[many]))
    least, most = of_item(max(measured[few]), min(measured[many])), of_item(min(measured[few]), max(measured[many]))
    requests = [_short(max(0.0, one - few * middle)) for one in sorted(measured[few])]
    return {
        "refusal_s": (statistics.median(requests), Interval(requests[0], requests[-1])),
        "refused_item_s": (middle, Interval(_short(least), _short(most))),
    }


def _of_a_request(nodes: Sequence[Row], costs: Mapping[str, float]) -> tuple[float, Interval] | None:
    """What a request costs beside its entry and its items, by loads of requests of one item: of one after the other
    each has an entry of its own, and of several at once some share one. None without such loads. In storms requests
    come with their items, so a fit of all runs, from which ``costs`` are, gave anything from 0 to 170 µs for it."""
    rest = ("item_s", "restore_s", "idle_cores")
    led = [row for row in nodes if row.kind == "load" and 0 < row.requests == row.items]
    found = []
    for alone in (row for row in led if row.entries == row.requests):
        for shared in (row for row in led if row.entries < row.requests and bool(row.restored) is bool(alone.restored)):
            design = np.array([[row.requests, row.entries] for row in (alone, shared)])
            left_s = [
                row.cpu_s - sum(costs[key] * getattr(row, NODE_COLUMNS[key]) for key in rest) for row in (alone, shared)
            ]
            found.append(max(0.0, float(np.linalg.solve(design, np.array(left_s))[0])))
    if not found:
        return None
    return statistics.fmean(found), Interval(_short(min(found)), _short(max(found)))


def _without_memtables(rows: Sequence[Row]) -> list[Row]:
    """Without what look-ups take for what the storm itself has written. In sums it cannot be told from what they take
    for what is stored; only in their course."""
    return [msgspec.structs.replace(row, cpu_s=row.cpu_s - MEMTABLE_S * row.memtable_items) for row in rows]


def _unused(rows: Sequence[Row], cores: int, idle_cores: float) -> tuple[float, float]:
    """Cores that nobody used in the storms in which each node led something, and how many more for each node that led
    nothing. Storms that did not end say neither: they last beyond their clients."""
    waiting = _waiting(rows)
    ended = [row for row in rows if row.storm_s and row.run not in waiting]
    leaderless = Counter(row.run for row in ended if row.part == "node" and not row.items)
    everywhere = _unused_in([row for row in ended if row.run not in leaderless], cores, idle_cores)
    others = [row for row in ended if row.run in leaderless]
    if everywhere is None or not others:
        return everywhere or _unused_in(others, cores, idle_cores) or 0.0, 0.0
    elsewhere = _unused_in(others, cores, idle_cores) or 0.0
    return everywhere, max(0.0, elsewhere - everywhere) / statistics.fmean(leaderless.values())


def _waiting(rows: Sequence[Row]) -> set[str]:
    """Storms that wait for something else than the machine: for a process that has a core to itself, or for clients
    that were turned away."""
    alone = {row.run for row in rows if row.cpu_s > _WHOLE_CORE * row.storm_s}
    refused, items = Counter[str](), Counter[str]()
    for row in rows:
        refused[row.run] += round(row.refused_items)
        items[row.run] += round(row.items)
    return alone | {run for run, count in refused.items() if count > _REFUSED_MAX * items[run]}


def _unused_in(rows: Sequence[Row], cores: int, idle_cores: float) -> float | None:
    """Cores that nobody used in these storms, longer ones counting more; None without any."""
    storms = {row.run: row for row in rows}
    if not storms:
        return None
    used_s = sum(row.cpu_s for row in rows)
    # Before its begin and after its end, nodes do the other work.
    used_s -= sum(idle_cores * (row.seconds - row.storm_s) for row in rows if row.part == "node")
    lasted_s = sum(row.storm_s for row in storms.values())
    others_s = sum(row.others_cores * row.storm_s for row in storms.values())
    return max(0.0, cores - (used_s + others_s) / lasted_s)


def _fitted(
    rows: Sequence[Row], columns: dict[str, str], seed: int
) -> tuple[dict[str, float], dict[str, Interval], float]:
    names = list(columns)
    design = np.array([[float(getattr(row, column)) for column in columns.values()] for row in rows])
    if "seconds" in columns.values():  # beside a storm nodes do other work
        names.append(_BACKGROUND)
        design = np.column_stack([design, [row.seconds * (row.kind == "storm") for row in rows]])
    cpu_s = np.array([row.cpu_s for row in rows])
    if cpu_s.min() <= 0:
        raise CalibrationError("a process used no CPU time in a run: the run was too short")
    # Columns of like size, and errors relative to what was measured.
    size = np.maximum(np.abs(design).max(axis=0), 1e-300)
    weights = np.array([STORM_WEIGHT if row.kind == "storm" else 1.0 for row in rows])
    weighted = design / size * (weights / cpu_s)[:, None]
    found = nnls(weighted, weights) / size
    runs = sorted({row.run for row in rows})
    members = [np.flatnonzero([row.run == run for row in rows]) for run in runs]
    rng = np.random.default_rng(seed)
    draws = np.empty((_BOOTSTRAP, len(names)))
    for at in range(_BOOTSTRAP):
        chosen = np.concatenate([members[one] for one in rng.integers(0, len(members), len(members))])
        draws[at] = nnls(weighted[chosen], weights[chosen]) / size
    low, high = np.percentile(draws, [_LOW, _HIGH], axis=0)
    r2 = 1.0 - float(((cpu_s - design @ found) ** 2).sum() / ((cpu_s - cpu_s.mean()) ** 2).sum())
    costs = dict(zip(names, found.tolist(), strict=True))
    # The estimate itself is one of those that the runs allow.
    intervals = {
        name: Interval(_short(min(one, costs[name])), _short(max(two, costs[name])))
        for name, one, two in zip(names, low.tolist(), high.tolist(), strict=True)
    }
    return costs, intervals, r2


def _short(value: float) -> float:
    return float(f"{value:.4g}")
