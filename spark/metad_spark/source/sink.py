"""The writers: a partition that is written again is written once."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from .errors import OptionError
from .items import check_columns
from .options import Settings
from .writing import Part, write_here

_BATCH: Final = "streaming.sql.batchId"
_QUERY: Final = "sql.streaming.queryId"
"""What Spark tells the tasks of a stream, and of what ``foreachBatch`` does with its batch."""


class Written(WriterCommitMessage):
    """How many records a task has written."""

    def __init__(self, count: int) -> None:
        self.count = count


class MetadWriter(DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, settings: Settings, schema: StructType, overwrite: bool) -> None:
        self._settings = checked(settings, schema, overwrite)
        self._job = secrets.token_hex(8)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition, in a task."""
        return _written(self._settings, self._job, iterator)


def stream_writer(settings: Settings, schema: StructType, overwrite: bool) -> Any:
    """What writes a stream, batch by batch."""
    base = getattr(datasource, "DataSourceStreamArrowWriter", None)
    if base is None:
        raise OptionError("writeStream: before Spark 4.1 write to metad in foreachBatch")
    chosen = checked(settings, schema, overwrite)

    class MetadStreamWriter(base):  # type: ignore[misc, valid-type]
        """Made here because the base is not in Spark 4.0."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
            """Write one partition of a batch, in a task."""
            return _written(chosen, "", iterator)

        def commit(self, messages: list[Any], batch_id: int) -> None:
            """All of it is written already."""

        def abort(self, messages: list[Any], batch_id: int) -> None:
            """What is written stays, and is written once when the batch is done again."""

    return MetadStreamWriter()


def checked(settings: Settings, schema: StructType, overwrite: bool) -> Settings:
    """Settings that fit. Raises OptionError."""
    if not settings.is_live:
        raise OptionError(f"source: {settings.source} is a directory; metad-spark export writes one")
    if overwrite:
        raise OptionError('mode: only "append": what is there is replaced key by key')
    if settings.batch >= 0 and not settings.query:
        raise OptionError("batch: it needs the option query")
    check_columns(settings.table, schema.names)
    return settings


def _written(settings: Settings, job: str, iterator: Iterator[pa.RecordBatch]) -> Written:
    records: list[dict[str, Any]] = []
    for batch in iterator:
        records += batch.to_pylist()
    return Written(write_here(settings, _part(settings, job), records))


def _part(settings: Settings, job: str) -> Part:
    """Which part of which batch of which query a task is to write."""
    task = TaskContext.get()
    partition = task.partitionId() if task is not None else 0
    if settings.batch >= 0:
        return Part(settings.query, settings.batch, partition)
    told: dict[str, str] = {}
    for name in (_BATCH, _QUERY):
        with contextlib.suppress(Exception):  # what Spark raises where there is none depends on its version
            told[name] = (task.getLocalProperty(name) if task is not None else None) or ""
    if told.get(_BATCH):
        query = settings.query or told.get(_QUERY, "")
        return Part(query, int(told[_BATCH]), partition)
    if not job:
        raise OptionError("query: Spark does not say which batch this is: write in foreachBatch, with query and batch")
    return Part(f"{settings.query}/{job}" if settings.query else job, 0, partition)
