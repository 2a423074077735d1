"""The batch reader: tasks, and what each of them yields.

Records as they are stand among changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from . import directory, live
from .directory import FilePart
from .errors import OptionError
from .groups import Share
from .options import Settings
from .schema import arrow_of, changes_schema_of
from .shapes import CHANGE, LISTED, ROW, SNAPSHOT, TIME_MS, Shape


def records_of(schema: pa.Schema) -> pa.Schema:
    """The columns that records have."""
    return pa.schema([field for field in schema if field.name not in (CHANGE, ROW, TIME_MS)])


def as_changes(found: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches of records in the columns of changes."""
    for batch in found:
        said = {
            CHANGE: pa.repeat(pa.scalar(SNAPSHOT), batch.num_rows),
            ROW: pa.nulls(batch.num_rows, pa.string()),
            TIME_MS: pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows),
        }
        arrays = [said[name] if name in said else batch[name] for name in schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class SharePartition(InputPartition):
    """A share of a table, as it travels to a task."""

    def __init__(self, value: Share | FilePart) -> None:
        super().__init__(value)


class MetadReader(DataSourceReader):
    """Reads one table at one moment of each group."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        if settings.table in LISTED and (settings.tenant is not None or settings.prefix):
            raise OptionError(f"tenant, prefix: {settings.table} has none")
        self._settings = settings
        self._schema = chosen(settings, schema)

    def partitions(self) -> list[InputPartition]:
        """What the tasks read."""
        settings = self._settings
        shape = settings.shape
        if settings.is_live:
            return [SharePartition(share) for share in live.plan(settings, shape)]
        return [SharePartition(part) for part in directory.parts(settings.directory, shape, settings.tenant)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one partition."""
        settings, shape, schema = self._settings, self._settings.shape, arrow_of(self._schema)
        part = partition.value
        records = records_of(schema)
        if isinstance(part, Share):
            return as_changes(live.read(settings, shape, part, records), schema)
        if isinstance(part, FilePart):
            return as_changes(directory.read(part, shape, records, settings.tenant, settings.prefix), schema)
        return iter(())  # Spark makes a partition of nothing where there is none


class PushingReader(MetadReader):
    """The same where Spark gives its filters to readers. Elsewhere it refuses a reader that has the method."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Take from Spark's filters what narrows the reading. Spark checks all of them again."""
        self._settings = narrowed(self._settings, self._settings.shape, filters)
        return filters


def chosen(settings: Settings, given: StructType) -> StructType:
    """The columns to read: those of the DataFrame's schema, which may be some of the table's. Raises OptionError."""
    whole = changes_schema_of(settings.table, settings.declared)
    for field in given.fields:
        if field.name not in whole.names:
            raise OptionError(f"columns: {settings.table} has no {field.name!r}; it has {', '.join(whole.names)}")
        if field.dataType != whole[field.name].dataType:
            wanted = whole[field.name].dataType.simpleString()
            raise OptionError(f"columns: {field.name} is {wanted}, not {field.dataType.simpleString()}")
    return given


def narrowed(settings: Settings, shape: Shape, filters: Iterable[Any]) -> Settings:
    """The settings with a tenant and a prefix from filters of Spark: classes that Spark before 4.1 does not have, so
    they are known by name."""
    equal: dict[str, str] = {}
    starts: dict[str, str] = {}
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        value = getattr(one, "value", None)
        if len(path) == 1 and isinstance(value, str):
            if type(one).__name__ in ("EqualTo", "EqualNullSafe"):
                equal[path[0]] = value
            elif type(one).__name__ == "StringStartsWith":
                starts[path[0]] = value
    if not shape.keys or shape.table.name in LISTED:
        return settings
    first, second = shape.keys[0].name, shape.keys[1].name if len(shape.keys) > 1 else ""
    tenant, prefix = settings.tenant, settings.prefix
    if tenant is None and not prefix:
        tenant, prefix = equal.get(first), starts.get(first, "") if first not in equal else ""
    if tenant is not None and not prefix and shape.table.is_text(1):
        prefix = equal.get(second, starts.get(second, ""))
    return msgspec.structs.replace(settings, tenant=tenant, prefix=prefix)
