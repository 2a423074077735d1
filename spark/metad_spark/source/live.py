"""A share of a table, read from a replica of its group into columns. Needs no Spark.

Freshness: each task begins a snapshot when it runs, which has everything that was acknowledged before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from itertools import compress
from typing import Final

import pyarrow as pa

from metad_client import Client, GroupId, Snapshot, WatchRows
from metad_wire.method import MALFORMED
from metad_wire.tables import ROWS
from metad_wire.tables.table import PlainTable

from .columns import RowColumns, joined, listed_table, row_table
from .errors import ClusterError
from .groups import Share, moved, opened, shares, slots_of
from .options import Settings
from .shapes import LISTED, REVISION, SLOT, Row, Shape

_ROWS: Final = 16_384
"""Rows that are made columns at once: many, because each column costs something by itself."""
_BATCH_ROWS: Final = 65_536
"""Records in one batch."""


def plan(settings: Settings, shape: Shape) -> list[Share]:
    """The shares of a table. Raises ClusterError."""

    async def planned() -> list[Share]:
        async with opened(settings) as client:
            return await shares(client, settings, shape)

    return asyncio.run(planned())


def read(settings: Settings, shape: Shape, share: Share, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The records of a share, in batches. Raises ClusterError."""

    async def taken() -> list[pa.Table]:
        async with opened(settings) as client:
            if shape.table.name in LISTED:
                return [listed_table(shape, [broker async for broker in client.brokers.list()], schema)]
            return [table async for table in _tables(client, settings, shape, share, schema)]

    try:
        tables = asyncio.run(taken())
    except (*MALFORMED, TimeoutError) as error:
        raise ClusterError(f"{settings.source}: {type(error).__name__}: {error}") from None
    for table in tables:
        yield from batches(table, schema)


def batches(table: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A table in batches that are exactly of this schema."""
    for batch in table.select(schema.names).combine_chunks().to_batches(max_chunksize=_BATCH_ROWS):
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


class Collector:
    """The rows of one snapshot of one table, as columns."""

    def __init__(self, shape: Shape, schema: pa.Schema) -> None:
        self.rows = wanted_rows(shape, schema)
        self._shape = shape
        self._schema = schema
        self._columns = {row.number: RowColumns(row, schema) for row in self.rows}
        self.clear()

    def clear(self) -> None:
        """What has come is void."""
        self._keys: dict[int, list[bytes]] = {row.number: [] for row in self.rows}
        self._values: dict[int, list[bytes | None]] = {row.number: [] for row in self.rows}
        self._tables: dict[int, list[pa.Table]] = {row.number: [] for row in self.rows}

    def add(self, rows: WatchRows, slots: frozenset[int] | None) -> None:
        """Rows of one table that have come; only those of these slots, if any are named."""
        table = self._shape.table
        if rows.row not in self._keys or not rows.keys:
            return
        if isinstance(table, PlainTable) and not rows.keys[0].startswith(table.header):
            return  # of another one that is declared: they share a row
        if slots is not None:
            rows = rows_in(rows, slots)
        self._keys[rows.row] += rows.keys
        self._values[rows.row] += rows.values
        if len(self._keys[rows.row]) >= _ROWS:
            self._convert(rows.row)

    def table(self, revision: int) -> pa.Table:
        """All of it."""
        for row in self.rows:
            self._convert(row.number)
        found = joined(self._shape, [pa.concat_tables(self._tables[row.number]) for row in self.rows], self._schema)
        if REVISION in self._schema.names and REVISION not in found.column_names:
            found = found.append_column(REVISION, pa.repeat(pa.scalar(revision, pa.int64()), found.num_rows))
        return found

    def _convert(self, row: int) -> None:
        first = row == self.rows[0].number
        slots = first and SLOT in self._schema.names
        table = row_table(self._shape, self._columns[row], self._keys[row], self._values[row], slots=slots)
        self._tables[row].append(table)
        self._keys[row], self._values[row] = [], []


def rows_in(rows: WatchRows, slots: Collection[int]) -> WatchRows:
    """The rows of these slots, and those of no slot."""
    found = ROWS[rows.row].slots_of(rows.keys)
    if found is None:
        return rows
    wanted = [slot in slots for slot in found]
    return WatchRows(rows.row, list(compress(rows.keys, wanted)), list(compress(rows.values, wanted)))


def wanted_rows(shape: Shape, schema: pa.Schema) -> list[Row]:
    """The kinds of rows that have wanted columns, and the first: it says which records there are."""
    first, *others = shape.rows
    return [first, *(row for row in others if any(column.name in schema.names for column in row.columns))]


async def _tables(
    client: Client, settings: Settings, shape: Shape, share: Share, schema: pa.Schema
) -> AsyncIterator[pa.Table]:
    """One for each group that had to be asked: slots may have moved since the shares were made."""
    collector = Collector(shape, schema)
    watched = settings.watched(row.name for row in collector.rows)
    left = slots_of(share)
    asked: dict[GroupId, list[int]] = {share.group: sorted(left)}
    while left:
        for group, slots in asked.items():
            snapshot = client.snapshot(group, watched, slots=slots, idle_timeout_s=settings.timeout_s)
            async with snapshot:
                left -= await collect(snapshot, [collector], frozenset(slots), slotted=shape.slotted)
            yield collector.table(snapshot.revision)
            collector.clear()
        if left:
            asked = await moved(client, settings, share, left)


async def collect(
    snapshot: Snapshot, collectors: Sequence[Collector], slots: frozenset[int], *, slotted: bool
) -> frozenset[int]:
    """Read a snapshot to its end. Returns those of the slots that the group held."""
    only: frozenset[int] | None = None
    async for part in snapshot:
        if part.first:
            for collector in collectors:
                collector.clear()
            only = slots & snapshot.slots if slotted and not slots <= snapshot.slots else None
        for rows in part.rows:
            for collector in collectors:
                collector.add(rows, only)
    return slots if only is None else only
