"""The folder with the tables: a folder for each run, which is there whole or not at all.

A run is written beside its place, synced, and moved there, so a crash leaves at most a folder whose name begins with a
dot, which no reader of Parquet looks at. Of two that write the same run, the first one's stays: both are the same.

Runs and nodes' results become rows, and are made of them again. What is zero has no row, except for a node's load.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..brokers.coupling import Pass
from ..brokers.runner import Sweep
from ..calibration import Calibration
from ..errors import TablesError
from ..models.histogram import RATIO, TIME_MIN_S
from ..models.node_input import FINE_US
from ..models.results import NodeResult, StormResult
from ..requests.costs import Costs
from ..requests.slices import slices_of
from ..scenario import Scenario
from .run import REQUESTS, Question, Run, at_full_size, compared_run, comparison, finite, infinite, storm_of, version
from .schema import FORMAT, FORMAT_KEY, METRICS, TABLES


def run_row(run: Run) -> pa.Table:
    """The row of ``runs``."""
    question, storm = run.question, run.storm
    row: dict[str, Any] = {key: getattr(storm, key) for key in METRICS}
    row |= {key: getattr(question, key) for key in ("kind", "version", "seed", "brokers_seed")}
    row |= {key: getattr(run, key) for key in ("scale", "settled", "delay_max_s", "runner")}
    row |= {
        "name": question.scenario.name,
        "made": run.made,
        "asked_model": question.model,
        "model": storm.model,
        "passes": [msgspec.to_builtins(each) for each in run.passes],
        "scenario": json.dumps(finite(question.scenario)),
        "calibration": json.dumps(finite(question.priced)),
    }
    return pa.Table.from_pylist([row], schema=TABLES["runs"])


def run_of(name: str, row: dict[str, Any]) -> Run:
    """The inverse of :func:`run_row`. Raises msgspec.ValidationError, ValueError and KeyError where a value is not one
    of a run."""
    scenario = msgspec.convert(infinite(json.loads(row["scenario"])), type=Scenario)
    costs = infinite(json.loads(row["calibration"]))
    of_requests = row["asked_model"] == REQUESTS
    question = Question(
        kind=row["kind"],
        scenario=scenario,
        calibration=None if of_requests else msgspec.convert(costs, type=Calibration),
        costs=msgspec.convert(costs, type=Costs) if of_requests else None,
        model=row["asked_model"],
        sampled=round(row["scale"] * len(slices_of(scenario))) if of_requests else 0,
        seed=row["seed"],
        brokers_seed=row["brokers_seed"],
        version=row["version"],
    )
    storm = storm_of(
        {key: row[key] for key in METRICS}, regions=[region.name for region in scenario.regions], model=row["model"]
    )
    return Run(
        run=name,
        question=question,
        storm=storm,
        passes=msgspec.convert(row["passes"], type=list[Pass]),
        made=row["made"],
        **{key: row[key] for key in ("scale", "settled", "delay_max_s", "runner")},
    )


def node_tables(nodes: Sequence[NodeResult], regions: Sequence[str]) -> dict[str, pa.Table]:
    """The other tables of a storm, from its nodes' results; ``regions``: their names."""
    made: dict[str, list[pa.Table]] = {name: [] for name in TABLES if name not in ("runs", "slices")}
    for node in nodes:
        made["nodes"].append(_node(node))
        made["load"].append(_load(node))
        by_s = {"attempts": node.attempts_by_s, "restored": node.restored_by_s, "passed": node.passed_by_s}
        made["regions"].append(_by_region("regions", node, regions, by_s, "second", 1))
        step_ms = FINE_US // 1000
        fine = {"attempts": node.attempts_fine, "restored": node.restored_fine}
        made["regions_fine"].append(_by_region("regions_fine", node, regions, fine, "at_ms", step_ms))
        at = np.flatnonzero(node.served_fine)
        made["load_fine"].append(_table("load_fine", node, {"at_ms": at * step_ms, "served": node.served_fine[at]}))
        for name in ("storm", "own"):
            counts = getattr(node, name)
            at = np.flatnonzero(counts)
            edges = {"bin": at, "from_s": TIME_MIN_S * RATIO**at, "to_s": TIME_MIN_S * RATIO ** (at + 1)}
            columns = {"name": [name] * len(at), **edges, "clients": counts[at]}
            made["histograms"].append(_table("histograms", node, columns))
    return {name: pa.concat_tables(parts) if parts else TABLES[name].empty_table() for name, parts in made.items()}


def _node(node: NodeResult) -> pa.Table:
    schema = TABLES["nodes"]
    return pa.Table.from_pylist([{name: getattr(node, name) for name in schema.names}], schema=schema)


def _load(node: NodeResult) -> pa.Table:
    columns = {
        "second": np.arange(len(node.served_by_s)),
        "served": node.served_by_s,
        "rejected": node.rejected_by_s,
        "queue_max": node.queue_by_s,
        "capacity": node.capacity_by_s,
    }
    return _table("load", node, columns)


def _by_region(
    table: str, node: NodeResult, regions: Sequence[str], values: dict[str, Any], step: str, width: int
) -> pa.Table:
    """Arrays (region, step) as rows."""
    some = np.zeros_like(next(iter(values.values())), dtype=bool)
    for array in values.values():
        some |= array != 0
    region, at = np.nonzero(some)
    names = pa.array(list(regions), pa.string()).take(pa.array(region))
    return _table(
        table, node, {"region": names, step: at * width, **{name: each[region, at] for name, each in values.items()}}
    )


def _table(table: str, node: NodeResult, columns: dict[str, Any]) -> pa.Table:
    schema = TABLES[table]
    rows = len(next(iter(columns.values())))
    columns = {"node": np.full(rows, node.node), "copies": np.full(rows, node.copies), **columns}
    return pa.Table.from_arrays([pa.array(columns[field.name]).cast(field.type) for field in schema], schema=schema)


_RUN: Final = "run="
_WRITING: Final = ".writing-"
_SLICE: Final = ".slice-"
_LEFT_S: Final = 3_600.0
"""What has been half written for so long was left by a crash: a run is written within seconds."""


class Store:
    """The tables of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        """Make the folder, and remove what crashes have left. Raises TablesError where it cannot be one."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise TablesError(f"{self.folder}: it is a file; tables need a folder") from None
        for left in self.folder.glob(f"{_WRITING}*"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > _LEFT_S:
                    shutil.rmtree(left)

    def has(self, run: str) -> bool:
        """Whether the run is there."""
        return self._home(run).is_dir()

    def ids(self) -> list[str]:
        """All runs, in the order of their identities. Raises TablesError where there is no such folder."""
        if not self.folder.is_dir():
            raise TablesError(f"{self.folder}: no such folder; metad-spark simulate --tables DIR makes one")
        return sorted(each.name.removeprefix(_RUN) for each in self.folder.glob(f"{_RUN}*") if each.is_dir())

    def find(self, beginning: str) -> str:
        """The run whose identity begins so. Raises TablesError where there is none, or more than one."""
        found = [run for run in self.ids() if run.startswith(beginning)]
        if len(found) == 1:
            return found[0]
        if found:
            raise TablesError(f"{self.folder}: {len(found)} runs begin with {beginning!r}; give more digits")
        raise TablesError(f"{self.folder}: there is no run {beginning!r}; there are {len(self.ids())} others")

    def read(self, run: str) -> Run:
        """A run, without its curves. Raises TablesError."""
        rows = self.table(run, "runs").to_pylist()
        try:
            (row,) = rows
            return run_of(run, row)
        except (msgspec.ValidationError, ValueError, KeyError, TypeError) as why:
            raise TablesError(f"{self._file(run, 'runs')}: damaged: {why}") from None

    def table(self, run: str, table: str) -> pa.Table:
        """A table of a run, without the column ``run``. Raises TablesError."""
        path = self._file(run, table)
        try:
            file = pq.ParquetFile(path, page_checksum_verification=True)
            self._check(path, file.schema_arrow, TABLES[table])
            return file.read()
        except FileNotFoundError:
            why = "this file of the run is missing" if self.has(run) else "there is no such run"
            raise TablesError(f"{path}: {why}") from None
        except (pa.ArrowException, OSError) as error:
            raise TablesError(f"{path}: damaged: {str(error).splitlines()[0]}") from None

    def write(self, run: Run, nodes: Sequence[NodeResult] = (), *, rows: pa.Table | None = None) -> bool:
        """Write a run, given its nodes' results, or the rows of its slices; a comparison has neither. False if it is
        there. Raises OSError."""
        if self.has(run.run):
            return False
        tables = {"runs": run_row(run)}
        if rows is not None:
            tables["slices"] = rows.select(TABLES["slices"].names)
        elif run.question.kind == "storm":
            regions = [region.name for region in run.question.scenario.regions]
            tables |= node_tables(at_full_size(nodes, run.scale), regions)
        writing = self.folder / f"{_WRITING}{run.run}-{uuid.uuid4().hex}"
        writing.mkdir()
        try:
            for name, table in tables.items():
                _write(writing / f"{name}.parquet", table)
            _sync(writing)
            try:
                writing.rename(self._home(run.run))
            except OSError as error:
                if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                    return False
                raise
            _sync(self.folder)
        finally:
            shutil.rmtree(writing, ignore_errors=True)
        return True

    def keep_slice(self, run: str, number: int, rows: pa.Table) -> None:
        """Keep the rows of a slice of a run that is not whole yet. Raises OSError."""
        writing = self._slice(run, number).with_suffix(f".{uuid.uuid4().hex}")
        _write(writing, rows)
        writing.replace(self._slice(run, number))

    def has_slice(self, run: str, number: int) -> bool:
        """Whether such rows are kept."""
        return self._slice(run, number).is_file()

    def slices(self, run: str, numbers: Sequence[int]) -> pa.Table | None:
        """The rows that are kept of all of these slices; None if one has none."""
        try:
            return pa.concat_tables(pq.read_table(self._slice(run, number), partitioning=None) for number in numbers)
        except FileNotFoundError:
            return None

    def forget_slices(self, run: str, numbers: Sequence[int]) -> None:
        """Those of a run that is whole."""
        for number in numbers:
            self._slice(run, number).unlink(missing_ok=True)

    def compare(self, sweep: Sweep, runner: str) -> Sweep:
        """``sweep``, but for comparisons that are here, and those that it makes are kept here."""

        def answer(scenarios: Sequence[Scenario], calibration: Calibration) -> list[StormResult]:
            asked = [comparison(scenario, calibration, version()) for scenario in scenarios]
            missing = [question for question in asked if not self.has(question.run)]
            made = sweep([question.scenario for question in missing], calibration)
            for question, storm in zip(missing, made, strict=True):
                self.write(compared_run(question, storm, runner))
            return [self.read(question.run).storm for question in asked]

        return answer

    def _slice(self, run: str, number: int) -> Path:
        return self.folder / f"{_SLICE}{run}-{number}.parquet"

    def _home(self, run: str) -> Path:
        return self.folder / f"{_RUN}{run}"

    def _file(self, run: str, table: str) -> Path:
        return self._home(run) / f"{table}.parquet"

    def _check(self, path: Path, found: pa.Schema, wanted: pa.Schema) -> None:
        text = (found.metadata or {}).get(FORMAT_KEY, b"")
        if not text.isdigit():
            raise TablesError(f"{path}: metad-spark did not write it")
        if int(text) > FORMAT:
            raise TablesError(f"{path}: it is of format {int(text)}, and this version reads up to {FORMAT}: upgrade it")
        if missing := [name for name in wanted.names if name not in found.names]:
            raise TablesError(f"{path}: damaged: it has no column {', '.join(missing)}")


def _write(path: Path, table: pa.Table) -> None:
    schema = table.schema.with_metadata({FORMAT_KEY: str(FORMAT).encode()})
    pq.write_table(table.cast(schema), path, compression="zstd", write_page_checksum=True)
    _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
