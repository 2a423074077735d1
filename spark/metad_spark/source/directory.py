"""A snapshot of a cluster as a directory: Parquet files of whole groups, each at one revision, and a list of them. It
needs no Spark.

The list is written last, so a directory without one is no snapshot. Everything else that reads Parquet can read the
files, too.
"""

from __future__ import annotations

import functools
import time
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from metad_wire.tables.table import PlainTable

from .errors import DirectoryError, OptionError
from .options import Settings
from .shapes import Row, Shape, names, shape_of

LIST: Final = "metad-snapshot.json"
FORMAT: Final = 1
ROW_GROUP_ROWS: Final = 131_072
PART_ROW_GROUPS: Final = 4
"""Row groups that one task reads."""
_BATCH_ROWS: Final = 65_536


class File(msgspec.Struct, frozen=True):
    """The records of one table that one group has."""

    path: str
    group: str
    revision: int
    rows: int
    bytes: int


class Listing(msgspec.Struct, frozen=True):
    """What a directory has."""

    format: int
    cluster_id: str
    made_ms: int
    tables: dict[str, list[File]]
    declared: dict[str, bytes] = {}
    """The declarations of those that programs have declared, as ``declaration.get`` tells them."""


class FilePart(msgspec.Struct, frozen=True):
    """What one task reads: some row groups of a file."""

    path: str
    row_groups: list[int]


def stored_names() -> list[str]:
    """The tables that a directory has: all, and the single rows that are in none of them."""
    whole = {row.number for name in names() if "." not in name for row in shape_of(name).rows}
    return [name for name in names() if "." not in name or not {row.number for row in shape_of(name).rows} <= whole]


def home_of(shape: Shape) -> tuple[str, Row | None]:
    """The stored table that has a shape's records; and the row that a record of it must have to be one."""
    if isinstance(shape.table, PlainTable) or shape.name in stored_names():
        return shape.name, None
    (row,) = shape.rows
    first = shape_of(shape.table.name).rows[0]
    return shape.table.name, None if row.number == first.number else row


def listing_of(directory: Path) -> Listing:
    """What a directory says it has. Raises DirectoryError."""
    try:
        found = msgspec.json.decode((directory / LIST).read_bytes(), type=Listing)
    except FileNotFoundError:
        raise DirectoryError(f"{directory}: it has no {LIST}: metad-spark export makes such a directory") from None
    except (OSError, msgspec.DecodeError) as error:
        raise DirectoryError(f"{directory / LIST}: {error}") from None
    if found.format != FORMAT:
        raise DirectoryError(f"{directory / LIST}: it is of format {found.format}, and this version knows {FORMAT}")
    return found


def parts(settings: Settings, shape: Shape) -> list[FilePart]:
    """What tasks are to read. Raises DirectoryError, also where the list names a file outside of its directory: it may
    come from someone else."""
    home, _ = home_of(shape)
    directory = settings.directory
    listing = listing_of(directory)
    if home not in listing.tables:
        raise DirectoryError(f"{directory}: it has no table {home}; it has {', '.join(sorted(listing.tables))}")
    found: list[FilePart] = []
    for file in listing.tables[home]:
        path = directory / file.path
        if not path.resolve().is_relative_to(directory.resolve()):
            raise DirectoryError(f"{directory / LIST}: it names {file.path}, which is not in {directory}")
        metadata = _opened(path).metadata
        if metadata.num_rows != file.rows:
            raise DirectoryError(f"{path}: it has {metadata.num_rows} records, and {LIST} says {file.rows}")
        wanted = [
            number
            for number in range(metadata.num_row_groups)
            if not shape.keys or _may_have(metadata.row_group(number), shape.keys[0].name, settings)
        ]
        for begin in range(0, len(wanted), PART_ROW_GROUPS):
            found.append(FilePart(str(path), wanted[begin : begin + PART_ROW_GROUPS]))
    return found


def read(part: FilePart, shape: Shape, schema: pa.Schema, settings: Settings) -> Iterator[pa.RecordBatch]:
    """The records of a part, in batches of exactly this schema. Raises DirectoryError."""
    file = _opened(Path(part.path))
    _, row = home_of(shape)
    keys = [key.name for key in shape.keys]
    tenants = settings.tenants or (() if settings.tenant is None else (settings.tenant,))
    by = keys[:1] if tenants else []
    starts = keys[len(by)] if settings.prefix else ""
    must = row.columns[0].name if row is not None else ""
    stored = set(file.schema_arrow.names)
    wanted = [name for name in {*schema.names, *by, starts, must} if name in stored]
    try:
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=part.row_groups, columns=wanted, use_threads=False):
            masks = [pc.is_in(batch[name], value_set=pa.array(tenants)) for name in by]
            if starts:
                masks.append(pc.starts_with(batch[starts], settings.prefix))
            if must:
                masks.append(pc.is_valid(batch[must]))
            mask = functools.reduce(pc.and_, masks) if masks else None
            yield _exactly(batch if mask is None else batch.filter(mask), schema)
    except (pa.ArrowException, OSError) as error:
        raise DirectoryError(f"{part.path}: {error}") from None


class Writer:
    """Makes a directory. It must not be there, or be empty. Raises DirectoryError."""

    def __init__(self, directory: Path, cluster_id: str) -> None:
        self._directory = directory
        self._cluster_id = cluster_id
        self._files: dict[str, list[File]] = {}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if any(directory.iterdir()):
                raise DirectoryError(f"{directory}: it is not empty")
        except OSError as error:
            raise DirectoryError(f"{directory}: {error}") from None

    def write(self, table: str, group: str, revision: int, records: pa.Table) -> None:
        """Add the records of one table that one group has."""
        files = self._files.setdefault(table, [])
        path = Path(table, f"{group}-{len(files)}.parquet")
        whole = self._directory / path
        try:
            whole.parent.mkdir(exist_ok=True)
            pq.write_table(records, whole, row_group_size=ROW_GROUP_ROWS, compression="zstd", compression_level=1)
            files.append(File(str(path), group, revision, records.num_rows, whole.stat().st_size))
        except (pa.ArrowException, OSError) as error:
            raise DirectoryError(f"{whole}: {error}") from None

    def finish(self, tables: Sequence[str], declared: Mapping[str, bytes] = types.MappingProxyType({})) -> Listing:
        """Write the list: the directory is a snapshot of these tables from now on. ``declared``: the declarations of
        those that programs have declared."""
        files = {name: self._files.get(name, []) for name in tables}
        known = {name: declaration for name, declaration in declared.items() if name in files}
        made = Listing(FORMAT, self._cluster_id, int(time.time() * 1000), files, known)
        (self._directory / LIST).write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
        return made


def check_names(wanted: Sequence[str], declared: Collection[str] = ()) -> None:
    """Raises OptionError if a directory cannot have such a table. ``declared``: those of programs."""
    there = [*stored_names(), *sorted(declared)]
    for name in wanted:
        if name not in there:
            raise OptionError(f"tables: no table {name!r} can be exported; there is {', '.join(there)}")


def _opened(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise DirectoryError(f"{path}: {error}") from None


def _may_have(group: pq.RowGroupMetaData, name: str, settings: Settings) -> bool:
    """Whether a row group may have wanted records, by the least and the greatest value of the key's first column."""
    tenants, prefix = settings.tenants or (settings.tenant,), settings.prefix
    for number in range(group.num_columns):
        column = group.column(number)
        statistics = column.statistics
        if column.path_in_schema == name and statistics is not None and statistics.has_min_max:
            least, most = statistics.min, statistics.max
            if tenants == (None,):
                return bool(least[: len(prefix)] <= prefix <= most[: len(prefix)]) if prefix else True
            return any(least <= tenant <= most for tenant in tenants)
    return True


def _exactly(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in this schema. A column that the directory does not have, because it is older, is null."""
    arrays = [
        batch[field.name] if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
