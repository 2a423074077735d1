"""What happened between two tokens of a watch, as columns. Needs no Spark."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Iterator
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from metad_client import Client, GroupId, Snapshot, Watch, WatchBatch, WatchRows
from metad_client.watch.position import ALL, NOBODY, Position, among, bits_of
from metad_client.watch.streams import CREDIT_BYTES_MIN
from metad_client.watch.token import from_text, packed_slots, to_text
from metad_client.watch.token import read as read_token
from metad_client.watch.watch import BUFFER_BYTES
from metad_wire.cluster import SLOTS, slot_bits, slots_in
from metad_wire.method import MALFORMED
from metad_wire.watch import ChangeKind

from .columns import KEY, RowColumns, key_columns, row_table
from .errors import ClusterError, LostChangesError
from .groups import Share, moved, opened, ranges_of, slots_of
from .live import batches, rows_in
from .options import Settings
from .shapes import CHANGE, CHANGE_TIME, REVISION, ROW, SLOT, SNAPSHOT, TIME_MS, Row, Shape

_ROWS: Final = 16_384
PROGRESS_S: Final = 0.1
FEW_BYTES: Final = CREDIT_BYTES_MIN
"""A watch that is only to say that something has happened holds so much of it."""
_KINDS: Final = pa.array([SNAPSHOT, *(kind.name.lower() for kind in ChangeKind)])
"""By number: those of changes count from 1. A kind that this version does not know is the last one, ``written``."""
_Taken = tuple[list[bytes], list[bytes | None], list[int], list[int], list[int]]
"""Of one kind of row: keys, values, kinds, revisions and times, a place in each for every change."""


def watch_of(
    client: Client,
    settings: Settings,
    shape: Shape,
    *,
    token: str | None,
    until: str | None,
    keys_only: bool = False,
    buffer_bytes: int = BUFFER_BYTES,
) -> Watch:
    """A watch of the rows of a shape."""
    return client.watch(
        settings.watched(row.name for row in shape.rows),
        token=token,
        until=until,
        keys_only=keys_only,
        progress_s=PROGRESS_S,
        idle_timeout_s=settings.timeout_s,
        buffer_bytes=buffer_bytes,
    )


async def here(client: Client, settings: Settings, shape: Shape) -> str:
    """A token of now. Freshness: everything that was acknowledged before is behind it, for a watch that begins now
    begins behind that. It is taken once every slot is read."""
    async with watch_of(client, settings, shape, token=None, until=None, keys_only=True) as watch:
        return await settled(watch, settings)


async def settled(watch: Watch, settings: Settings) -> str:
    """The token of a watch that begins now, once every slot is read. The watch goes on behind it."""
    async for batch in watch:
        if batch.kind == "progress" and watch.is_settled:
            return batch.token
    raise ClusterError(f"{settings.source}: the client was closed")


def is_level(batch: WatchBatch, since: float) -> bool:
    """Whether a batch says that everything up to this moment of the monotonic clock was delivered."""
    return batch.age_ms is not None and time.monotonic() - batch.age_ms / 1000 >= since


async def next_token(watch: Watch, settings: Settings, rows_max: int, since: float | None) -> tuple[str, int]:
    """Go on until so many changes have come (0: any number), or all up to a moment; None: to the end of the watch, and
    never less. Returns where that is, and how many came. Raises LostChangesError."""
    count = 0
    async for batch in watch:
        check(batch, settings)
        count += sum(len(changes) for _, changes in batch.entries)
        if (rows_max and count >= rows_max) or (since is not None and is_level(batch, since)):
            break
    return watch.token, count


class Piece(msgspec.Struct, frozen=True):
    """What one task reads: the changes between two tokens, of these slots (a bit map; empty: of all)."""

    begin: str
    end: str
    slots: bytes = b""


def pieces(begin: str, end: str, shape: Shape, slot_ranges: int) -> list[Piece]:
    """What the tasks of a batch read: each a group, or a range of its slots. Where no slot has moved between the two
    tokens, each group has all changes of its slots in its own log: a task reads it from the one token to the other,
    and is already at the end of all other groups. Where one has moved, what counts depends on the order of several
    logs, and one task reads all of them."""
    cluster_id, before, declared = read_token(begin)
    _, after, _ = read_token(end)
    if any(not _same(before[kind], after[kind]) for kind in before):
        return [Piece(begin, end)]
    found: list[Piece] = []
    for kind, position in after.items():
        readers = packed_slots(position)
        for ordinal, index in position.indexes.items():
            counts = position.counts(ordinal) & wanted_slots(shape)
            if index <= before[kind].index(ordinal) or not counts:
                continue
            own = {**position.indexes, ordinal: before[kind].index(ordinal)}
            token = to_text(cluster_id, {kind: (own, readers)}, declared)
            slots = slots_in(counts.to_bytes(SLOTS // 8, "big"))
            parts = [slot_bits(part) for part in ranges_of(slots, slot_ranges)]
            found += [Piece(token, end, part if len(parts) > 1 else b"") for part in parts]
    return found


def _same(before: Position, after: Position) -> bool:
    """Whether each slot is read as before, and none is missing or on its way to another group."""
    return before.readers == after.readers and not after.missing and not after.sealed


def wanted_slots(shape: Shape) -> int:
    """The slots that a table's records are in, as a bit map. What is in no slot is read where slot 0 is, once."""
    return ALL if shape.slotted else 1 << (SLOTS - 1)


def read(settings: Settings, shape: Shape, piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The changes of a piece, in batches of exactly this schema: nothing is read before what came has been taken.
    Raises ClusterError, LostChangesError."""

    async def taken() -> AsyncGenerator[pa.Table]:
        collector = _Collector(shape, schema, bits_of(piece.slots) if piece.slots else ALL)
        async with (
            opened(settings) as client,
            watch_of(
                client, settings, shape, token=piece.begin, until=piece.end, keys_only=collector.keys_only
            ) as watch,
        ):
            async for batch in watch:
                check(batch, settings)
                collector.add(batch)
                if collector.count >= _ROWS:
                    for table in collector.tables():
                        yield table
            for table in collector.tables():
                yield table

    try:
        for table in _stepped(taken()):
            yield from batches(table, schema)
    except MALFORMED as error:
        raise ClusterError(f"{settings.source}: {type(error).__name__}: {error}") from None


def _stepped(found: AsyncGenerator[pa.Table]) -> Iterator[pa.Table]:
    """What an asynchronous generator yields, which stands still until the next is wanted."""

    async def step() -> pa.Table | None:
        return await anext(found, None)

    with asyncio.Runner() as runner:
        try:
            while (table := runner.run(step())) is not None:
                yield table
        finally:
            runner.run(found.aclose())


def shares(begin: str, shape: Shape) -> list[Share]:
    """What the tasks of a first batch read: the slots of each group as they are read at a token."""
    wanted = wanted_slots(shape)
    _, positions = from_text(begin)
    least = indexes_of(begin)
    found: list[Share] = []
    for kind, position in positions.items():
        for reader, slots in position.readers.items():
            if reader.group != NOBODY and slots & wanted:
                found.append(Share(kind, reader.group, (slots & wanted).to_bytes(SLOTS // 8, "big"), least))
    return found


def read_rows(settings: Settings, shape: Shape, share: Share, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a share, as they were when the stream began: those that have changed since are left out, because
    their changes follow in the stream. Raises ClusterError, LostChangesError."""
    collector = _Collector(shape, schema)
    watched = settings.watched(row.name for row in shape.rows)
    changed: set[tuple[int, bytes]] = set()
    tables: list[pa.Table] = []

    async def taken() -> None:
        async with opened(settings) as client:
            left = slots_of(share)
            asked: dict[GroupId, list[int]] = {share.group: sorted(left)}
            while left:
                for group, slots in asked.items():
                    position = share.least.get(group.name, 0)
                    async with client.snapshot(
                        group, watched, slots=slots, position=position, idle_timeout_s=settings.timeout_s
                    ) as snapshot:
                        rows, since = await _rows_of(snapshot, settings, frozenset(slots))
                        changed.update(since)
                        left -= snapshot.slots if shape.slotted else left
                    for each in rows:
                        collector.add_rows(each, changed, snapshot.revision)
                    tables.extend(collector.tables())
                if left:
                    asked = await moved(client, settings, share, left)

    try:
        asyncio.run(taken())
    except MALFORMED as error:
        raise ClusterError(f"{settings.source}: {type(error).__name__}: {error}") from None
    for table in tables:
        yield from batches(table, schema)


async def _rows_of(
    snapshot: Snapshot, settings: Settings, slots: frozenset[int]
) -> tuple[list[WatchRows], set[tuple[int, bytes]]]:
    """The rows of a snapshot, and what has changed between its position and its moment."""
    found: list[WatchRows] = []
    changed: set[tuple[int, bytes]] = set()
    async for part in snapshot:
        if part.first:
            found, changed = [], set()
        found += part.rows
        changed.update((change.row, change.key) for change in part.changes)
    if snapshot.is_cut:
        raise LostChangesError(f"{settings.source}: the first batch came too late: begin again with a new checkpoint")
    held = slots & snapshot.slots
    if held != slots:
        found = [rows_in(each, held) for each in found]
    return found, changed


def check(batch: WatchBatch, settings: Settings) -> None:
    """Raises LostChangesError where the logs no longer have what follows."""
    if batch.kind == "gap":
        lost = f"changes of {len(batch.slots)} slots of {batch.group} are in no log any more"
        raise LostChangesError(f"{settings.source}: {lost}: begin again with a new checkpoint and start=snapshot")


class _Collector:
    """Changes as columns. Those of each kind of row are together, in order."""

    def __init__(self, shape: Shape, schema: pa.Schema, slots: int = ALL) -> None:
        """``slots``: a bit map of those whose changes are taken."""
        self.count = 0
        self._slots = slots
        self._shape = shape
        self._schema = schema
        self._columns = {row.number: (row, RowColumns(row, schema)) for row in shape.rows}
        self._begin()

    def _begin(self) -> None:
        self.count = 0
        self._rows: dict[int, _Taken] = {number: ([], [], [], [], []) for number in self._columns}

    @property
    def keys_only(self) -> bool:
        """Whether no value is wanted."""
        return not any(columns.names for _, columns in self._columns.values())

    def add(self, batch: WatchBatch) -> None:
        """What a batch has."""
        for entry, changes in batch.entries:
            if self._slots != ALL:
                changes = among(self._slots, changes)
            for number, (keys, values, kinds, revisions, times) in self._rows.items():
                mine = [change for change in changes if change.row == number]
                keys += [change.key for change in mine]
                values += [change.value for change in mine]
                kinds += [change.kind for change in mine]
                revisions += [entry.revision] * len(mine)
                times += [entry.time_ms] * len(mine)
                self.count += len(mine)

    def add_rows(self, rows: WatchRows, changed: Collection[tuple[int, bytes]], revision: int) -> None:
        """Rows as they are, but for those that have changed."""
        found = self._rows.get(rows.row)
        if found is None:
            return
        keys, values, kinds, revisions, times = found
        number = rows.row
        kept = [
            (key, value)
            for key, value in zip(rows.keys, rows.values, strict=True)
            if not changed or (number, key) not in changed
        ]
        keys += [key for key, _ in kept]
        values += [value for _, value in kept]
        kinds += [0] * len(kept)
        revisions += [revision] * len(kept)
        times += [0] * len(kept)
        self.count += len(kept)

    def tables(self) -> Iterator[pa.Table]:
        """What has come since this was asked last."""
        rows = self._rows
        self._begin()
        for number, taken in rows.items():
            if taken[0]:
                yield self._table(*self._columns[number], taken)

    def _table(self, row: Row, columns: RowColumns, taken: _Taken) -> pa.Table:
        keys, values, kinds, revisions, times = taken
        table = row_table(self._shape, columns, keys, values, slots=SLOT in self._schema.names and self._shape.slotted)
        said: dict[str, object] = {name: table[name] for name in table.column_names}
        said |= key_columns(self._shape, table[KEY].combine_chunks(), self._schema)
        said[CHANGE] = _KINDS.take(pc.min_element_wise(pa.array(kinds, pa.int64()), len(_KINDS) - 1))
        said[ROW] = pa.repeat(row.name, len(keys))
        said[TIME_MS] = pa.array(times, pa.int64())
        if CHANGE_TIME in self._schema.names:
            times_us = pc.multiply(pc.if_else(pc.equal(said[TIME_MS], 0), None, said[TIME_MS]), 1_000)
            said[CHANGE_TIME] = times_us.cast(pa.timestamp("us", "UTC"))
        said[REVISION] = pa.array(revisions, pa.int64())
        return pa.table(
            {
                field.name: said[field.name] if field.name in said else pa.nulls(len(keys), field.type)
                for field in self._schema
            }
        )


def indexes_of(token: str) -> dict[str, int]:
    """How far each group was read at a token, by the name of the group."""
    _, positions = from_text(token)
    return {
        f"{kind}-{ordinal}": index
        for kind, position in positions.items()
        for ordinal, index in position.indexes.items()
    }
