"""What the commands ask of the tables: a storm with its curves, runs that differ only by chance, and what differs.

Any other engine can ask the same: a query is a sum over the nodes of a run, each times its ``copies``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from ..models.histogram import BINS
from ..models.node_input import FINE_POINTS, FINE_US
from ..models.results import Array, StormResult
from ..requests.slices import SCHEMA, weights
from .run import Run, finite
from .store import Store

SPREAD = ("t50_s", "t99_s", "t999_s", "attempts_per_client", "rejected", "queue_max", "restored")
"""The metrics of which groups of runs tell the spread."""


def storm(store: Store, run: Run) -> StormResult:
    """A run's storm with its curves, summed over its nodes. Raises TablesError."""
    regions = [region.name for region in run.question.scenario.regions]
    seconds = math.ceil(run.question.scenario.horizon_s)
    load, by_region = store.table(run.run, "load"), store.table(run.run, "regions")
    fine, region_fine = store.table(run.run, "load_fine"), store.table(run.run, "regions_fine")
    step_ms = FINE_US // 1000

    def of_regions(table: pa.Table, column: str, step: str, width: int, steps: int) -> list[list[float]]:
        found = np.zeros((len(regions), steps))
        names = {name: at for at, name in enumerate(regions)}
        places = np.array([names[name] for name in table["region"].to_pylist()], np.int64)
        np.add.at(found, (places, _ints(table, step) // width), _floats(table, column) * _floats(table, "copies"))
        return found.tolist()

    def of_nodes(table: pa.Table, column: str, step: str, width: int, steps: int) -> Array:
        found = np.zeros(steps)
        np.add.at(found, _ints(table, step) // width, _floats(table, column) * _floats(table, "copies"))
        return found

    queue = np.zeros(seconds)
    np.maximum.at(queue, _ints(load, "second"), _floats(load, "queue_max"))
    return replace(
        run.storm,
        restored_by_s=of_regions(by_region, "restored", "second", 1, seconds),
        attempts_by_s=of_regions(by_region, "attempts", "second", 1, seconds),
        rejected_by_s=of_nodes(load, "rejected", "second", 1, seconds).tolist(),
        served_by_s=of_nodes(load, "served", "second", 1, seconds).tolist(),
        capacity_by_s=of_nodes(load, "capacity", "second", 1, seconds).tolist(),
        queue_by_s=queue.tolist(),
        restored_fine=of_regions(region_fine, "restored", "at_ms", step_ms, FINE_POINTS),
        attempts_fine=of_regions(region_fine, "attempts", "at_ms", step_ms, FINE_POINTS),
        served_fine=of_nodes(fine, "served", "at_ms", step_ms, FINE_POINTS).tolist(),
    )


def slice_rows(store: Store, run: Run) -> pa.Table:
    """The rows of a run's slices (:data:`metad_spark.requests.slices.SCHEMA`). Raises TablesError."""
    rows = store.table(run.run, "slices")
    return rows.add_column(0, "run", pa.array([run.run] * rows.num_rows, pa.string())).select(SCHEMA.names).cast(SCHEMA)


@dataclass(frozen=True, kw_only=True)
class Curves:
    """What became of the clients of the slices that were simulated."""

    regions: list[str]
    clients: list[float]
    """Of each region."""
    by_s: dict[str, Array]
    """(region, second): restored, attempts, refused."""
    waits: Array
    """(region, bin of :mod:`metad_spark.models.histogram`): how long clients that are back waited."""
    storm: Array
    """(region, bin): how long after the trigger they were back."""
    sizes: list[float]
    """The clients of each slice."""
    slices: Array
    """(slice, bin): as ``storm``."""


def curves(store: Store, run: Run) -> Curves:
    """A run's curves, from the rows of its slices. Raises TablesError."""
    rows = slice_rows(store, run)
    regions = [region.name for region in run.question.scenario.regions]
    numbers = sorted(set(rows["slice"].to_pylist()))
    seconds = math.ceil(run.question.scenario.horizon_s) + 1
    sizes = dict.fromkeys(numbers, 0.0)
    for number, count in zip(rows["slice"].to_pylist(), rows["clients"].to_pylist(), strict=True):
        sizes[number] += count
    by_number = weights(run.question.scenario, sizes)
    weight = np.array([by_number[number] for number in rows["slice"].to_pylist()])
    region = np.array([regions.index(name) for name in rows["kind"].to_pylist()], np.int64)
    place = np.searchsorted(numbers, _ints(rows, "slice"))
    by_s = {}
    for name in ("restored", "attempts", "refused"):
        flat = np.bincount(
            region * seconds + _ints(rows, "second"), _floats(rows, name) * weight, len(regions) * seconds
        )
        by_s[name] = flat.astype(np.float64).reshape(len(regions), seconds)
    return Curves(
        regions=regions,
        clients=np.bincount(region, _floats(rows, "clients") * weight, len(regions)).tolist(),
        by_s=by_s,
        waits=_bins(rows, "histogram", region, len(regions), weight),
        storm=_bins(rows, "storm_histogram", region, len(regions), weight),
        sizes=[sizes[number] * by_number[number] for number in numbers],
        slices=_bins(rows, "storm_histogram", place, len(numbers), weight),
    )


def _bins(rows: pa.Table, column: str, of: np.ndarray[Any, np.dtype[np.int64]], count: int, weight: Array) -> Array:
    """The sum of the histograms of a column, for each value of ``of``, which has one for each row, as ``weight``."""
    pairs = rows[column].combine_chunks()
    lengths = np.diff(pairs.offsets.to_numpy())
    places = np.repeat(of, lengths) * BINS + pairs.keys.to_numpy()
    found = np.bincount(places, pairs.items.to_numpy() * np.repeat(weight, lengths), count * BINS)
    return found.astype(np.float64).reshape(count, BINS)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A metric over the seeds. A time is infinite where that share was not back."""

    median: float
    """Of an even number the later of the two in the middle."""
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that differ only by their seeds."""

    runs: list[Run]
    settings: dict[str, Any]
    """Those in which the groups differ."""

    @property
    def collapsed(self) -> int:
        """How many collapse."""
        return sum(run.storm.collapsed for run in self.runs)

    @property
    def faulty(self) -> int:
        """How many must not be relied on."""
        return sum(bool(run.faults) for run in self.runs)

    def spread(self, metric: str) -> Spread:
        """A metric of :data:`SPREAD` over the seeds."""
        values = sorted(math.inf if (value := getattr(run.storm, metric)) is None else value for run in self.runs)
        return Spread(median=statistics.median_high(values), low=values[0], high=values[-1])


def middle(runs: Sequence[Run]) -> Run:
    """The run with the median t99.9; of an even number the later of the two in the middle."""
    return sorted(runs, key=lambda run: math.inf if run.storm.t999_s is None else run.storm.t999_s)[len(runs) // 2]


def groups(runs: Sequence[Run]) -> list[Group]:
    """The runs, those together that differ only by their seeds, in the order of the first of each."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(replace(run.question, seed=0, brokers_seed=0).run, []).append(run)
    flat = [_flat(each[0]) for each in found.values()]
    keys = [key for key in dict.fromkeys(key for each in flat for key in each) if _differs(key, flat)]
    return [
        Group(runs=each, settings={key: settings.get(key) for key in keys})
        for each, settings in zip(found.values(), flat, strict=True)
    ]


def _flat(run: Run) -> dict[str, Any]:
    """A run's settings by their keys, as in ``cluster.nodes`` and ``sdks.0.cap_s``."""
    found: dict[str, Any] = {}

    def walk(key: str, value: Any) -> None:
        parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
        if parts is None:
            found[key] = value
            return
        for name, part in parts:
            walk(f"{key}.{name}" if key else str(name), part)

    walk("", finite(run.question.scenario))
    found["calibration"] = run.question.priced.name
    found["model"] = run.question.model
    found["version"] = run.question.version
    del found["description"]
    return found


def _differs(key: str, flat: Sequence[dict[str, Any]]) -> bool:
    return len({repr(each.get(key)) for each in flat}) > 1


def _ints(table: pa.Table, column: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(table[column].to_numpy(), np.int64)


def _floats(table: pa.Table, column: str) -> Array:
    return np.asarray(table[column].to_numpy(), np.float64)
