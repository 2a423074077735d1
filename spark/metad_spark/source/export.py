"""``metad-spark export``: a cluster's tables as a directory of Parquet files. Needs no Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from metad_client import Client, GroupId, Watched
from metad_wire.methods import encode

from .columns import listed_table
from .directory import Listing, Writer, check_names, stored_names
from .errors import ClusterError
from .groups import Share, moved, opened, shares, slots_of
from .live import Collector, batches, collect
from .options import Settings
from .schema import arrow_of, schema_of_shape
from .shapes import LISTED, Shape, shape_of

_AT_ONCE: Final = 500
"""Tables of one snapshot of a group."""


def export(source: Settings, out: Path, tables: Sequence[str], progress: Callable[[str], None]) -> Listing:
    """Write the tables of a cluster (none named: all) as they are. All tables of a group are of one moment. Raises
    ClusterError, DirectoryError, OptionError."""

    async def exported() -> Listing:
        async with opened(source) as client:
            reply = await client.cluster.map()
            if reply.map is None:
                raise ClusterError(f"{source.source}: the cluster is being formed")
            declared = {one.declaration.name: encode(one) async for one in client.tables.list()}
            wanted = list(tables) or [*stored_names(), *declared]
            check_names(wanted, declared)
            writer = Writer(out, reply.map.cluster_id)
            await _export(
                client, source, writer, [shape_of(name, declared.get(name, b"")) for name in wanted], progress
            )
            return writer.finish(wanted, declared)

    return asyncio.run(exported())


async def _export(
    client: Client, source: Settings, writer: Writer, wanted: Sequence[Shape], progress: Callable[[str], None]
) -> None:
    together: dict[tuple[str, bool], list[Shape]] = {}  # one snapshot of a group has the tables of its slots
    for shape in wanted:
        if shape.name not in LISTED:
            together.setdefault((shape.table.kind, shape.slotted), []).append(shape)
        else:
            records = [record async for record in client.brokers.list()]
            writer.write(shape.name, "metadata-0", 0, listed_table(shape, records, arrow_of(schema_of_shape(shape))))
    for shapes in together.values():
        for share in await shares(client, source, shapes[0]):
            for begin in range(0, len(shapes), _AT_ONCE):
                await _export_share(client, source, writer, share, shapes[begin : begin + _AT_ONCE], progress)


async def _export_share(
    client: Client,
    source: Settings,
    writer: Writer,
    share: Share,
    shapes: Sequence[Shape],
    progress: Callable[[str], None],
) -> None:
    """Every table of the share's slots, from one snapshot of each group that has them."""
    schemas = {shape.name: arrow_of(schema_of_shape(shape)) for shape in shapes}
    collectors = {shape.name: Collector(shape, schemas[shape.name]) for shape in shapes}
    watched = [
        Watched(shape.table, source.tenant, source.prefix, rows=tuple(row.name for row in shape.rows))
        for shape in shapes
    ]
    slotted = shapes[0].slotted
    left = slots_of(share)
    asked: dict[GroupId, list[int]] = {share.group: sorted(left)}
    while left:
        for group, slots in asked.items():
            async with client.snapshot(group, watched, slots=slots, idle_timeout_s=source.timeout_s) as snapshot:
                left -= await collect(snapshot, list(collectors.values()), frozenset(slots), slotted=slotted)
            for name, collector in collectors.items():
                records = collector.table(snapshot.revision)
                collector.clear()
                if records.num_rows:
                    whole = pa.Table.from_batches(batches(records, schemas[name]))
                    writer.write(name, group.name, snapshot.revision, whole)
            progress(group.name)
        if left:
            asked = await moved(client, source, share, left)
