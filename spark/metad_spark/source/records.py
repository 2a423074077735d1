"""Records as they are, among changes. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from .shapes import CHANGE, ROW, SNAPSHOT, TIME_MS


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
