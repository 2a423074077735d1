"""The folder with the tables: a folder for each run, which is there whole or not at all.

A run is written beside its place, synced, and moved there, so a crash leaves at most a folder whose name begins with a
dot, which no reader of Parquet looks at. Of two that write the same run, the first one's stays: both are the same.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ..brokers.runner import Sweep
from ..calibration import Calibration
from ..errors import TablesError
from ..models.results import NodeResult, StormResult
from ..scenario import Scenario
from .rows import node_tables, run_of, run_row
from .run import Run, at_full_size, compared_run, comparison, version
from .schema import FORMAT, FORMAT_KEY, TABLES

_RUN: Final = "run="
_WRITING: Final = ".writing-"
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

    def write(self, run: Run, nodes: Sequence[NodeResult]) -> bool:
        """Write a run, given its nodes' results, which a comparison has not; False if it is there. Raises OSError."""
        if self.has(run.run):
            return False
        tables = {"runs": run_row(run)}
        if run.question.kind == "storm":
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

    def compare(self, sweep: Sweep, runner: str) -> Sweep:
        """``sweep``, but for comparisons that are here, and those that it makes are kept here."""

        def answer(scenarios: Sequence[Scenario], calibration: Calibration) -> list[StormResult]:
            asked = [comparison(scenario, calibration, version()) for scenario in scenarios]
            missing = [question for question in asked if not self.has(question.run)]
            made = sweep([question.scenario for question in missing], calibration)
            for question, storm in zip(missing, made, strict=True):
                self.write(compared_run(question, storm, runner), [])
            return [self.read(question.run).storm for question in asked]

        return answer

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
