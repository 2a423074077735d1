"""The batch reader: tasks, and what each of them yields.

Records as they are stand among changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from metad_client import InvalidRequestError
from metad_client.watch.filters import filters_of
from metad_wire.cluster import SLOTS
from metad_wire.method import MALFORMED, encode
from metad_wire.watch import WatchFilter

from . import directory, live
from .directory import FilePart
from .errors import OptionError
from .groups import Share
from .options import Settings
from .schema import arrow_of, changes_schema_of
from .shapes import CHANGE, CHANGE_TIME, LISTED, ROW, SLOT, SNAPSHOT, TIME_MS, Shape

_TENANTS_MAX: Final = 32
"""So many of a query's ``IN`` are read each by itself; of more only what they begin with is read."""
_FILTERS_BYTES_MAX: Final = 16_384
"""Longer filters are left to Spark: a request holds more, but other things as well."""


def records_of(schema: pa.Schema) -> pa.Schema:
    """The columns that records have."""
    return pa.schema([field for field in schema if field.name not in (CHANGE, ROW, TIME_MS, CHANGE_TIME)])


def as_changes(found: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches of records in the columns of changes."""
    for batch in found:
        said = {
            CHANGE: pa.repeat(pa.scalar(SNAPSHOT), batch.num_rows),
            ROW: pa.nulls(batch.num_rows, pa.string()),
            TIME_MS: pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows),
            CHANGE_TIME: pa.nulls(batch.num_rows, pa.timestamp("us", "UTC")),
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
        self.settings = settings
        self._schema = chosen(settings, schema)
        self.pushFilters = _Narrowing(self)  # type: ignore[method-assign]

    def partitions(self) -> list[InputPartition]:
        """What the tasks read."""
        settings = self.settings
        shape = settings.shape
        if settings.is_live:
            return [SharePartition(share) for share in live.plan(settings, shape)]
        return [SharePartition(part) for part in directory.parts(settings, shape)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one partition."""
        settings, shape, schema = self.settings, self.settings.shape, arrow_of(self._schema)
        part = partition.value
        records = records_of(schema)
        if isinstance(part, Share):
            return as_changes(live.read(settings, shape, part, records), schema)
        if isinstance(part, FilePart):
            return as_changes(directory.read(part, shape, records, settings), schema)
        return iter(())  # Spark makes a partition of nothing where there is none


class _Narrowing:
    """What :class:`MetadReader` has for ``pushFilters``. Spark calls it where the query's session gives filters to
    readers; elsewhere Spark refuses a reader whose method is another than the base's. Only the base's function shows
    here, so a reader need not know which of the two it is in, and no read fails for it."""

    def __init__(self, reader: MetadReader) -> None:
        self._reader = reader
        self.__func__ = getattr(DataSourceReader, "pushFilters", None)

    def __call__(self, filters: list[Any]) -> Iterable[Any]:
        """Take from Spark's filters what narrows the reading. Spark checks all of them again."""
        settings = self._reader.settings
        self._reader.settings = narrowed(settings, settings.shape, filters)
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


class _Bounds:
    """What filters leave of one column: one of ``values``, if there are any named, from ``low`` to ``high``, and texts
    that begin with ``start``."""

    def __init__(self) -> None:
        self.values: set[Any] | None = None
        self.low: Any = None
        self.high: Any = None
        self.start = ""

    def take(self, name: str, value: Any) -> None:
        """One filter more, by the name of its class: Spark before 4.1 has none of them."""
        if name in ("EqualTo", "EqualNullSafe", "In"):
            named = set(value) if name == "In" else {value}
            self.values = named if self.values is None else self.values & named
        elif name in ("GreaterThan", "GreaterThanOrEqual"):
            self.low = value if self.low is None else max(self.low, value)
        elif name in ("LessThan", "LessThanOrEqual"):
            self.high = value if self.high is None else min(self.high, value)
        elif name == "StringStartsWith":
            self.start = max(self.start, value, key=len)

    @property
    def prefix(self) -> str:
        """What every text within begins with. Between two texts lie only such as begin with what both begin with."""
        found = [self.start]
        if self.values:
            found.append(_common(self.values))
        if self.low is not None and self.high is not None:
            found.append(_common((self.low, self.high)))
        return max(found, key=len)

    def has(self, number: int) -> bool:
        """Whether a number is within, or at an end."""
        return (
            (self.values is None or number in self.values)
            and (self.low is None or number >= self.low)
            and (self.high is None or number <= self.high)
        )


def _common(texts: Collection[str]) -> str:
    """What all of them begin with."""
    least, most = min(texts), max(texts)
    same = (at for at, (one, other) in enumerate(zip(least, most, strict=False)) if one != other)
    return least[: next(same, len(least))]


def _bounds(filters: Iterable[Any]) -> dict[str, _Bounds]:
    """By column; of texts and whole numbers, and of columns only, not of parts of them."""
    found: dict[str, _Bounds] = {}
    kinds: dict[str, type] = {}
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        value = getattr(one, "value", None)
        values = list(value) if isinstance(value, tuple | list) else [value]
        types = {type(each) for each in values}
        if len(path) == 1 and types in ({str}, {int}) and kinds.setdefault(path[0], *types) in types:
            found.setdefault(path[0], _Bounds()).take(type(one).__name__, value)
    return found


def narrowed(settings: Settings, shape: Shape, filters: Iterable[Any]) -> Settings:
    """The settings with what filters of Spark leave of tenants, of the next field's beginnings, and of slots. What a
    group would not take as a filter is left to Spark, so that no read fails for it."""
    if not shape.keys or shape.table.name in LISTED:
        return settings
    bounds = _bounds(filters)
    own = {column.name for column in (*shape.keys, *(column for row in shape.rows for column in row.columns))}
    if shape.slotted and SLOT in bounds and SLOT not in own:
        left = frozenset(slot for slot in range(SLOTS) if bounds[SLOT].has(slot))
        settings = msgspec.structs.replace(settings, slots=left)
    first, second = (bounds.get(key.name, _Bounds()) for key in (*shape.keys, shape.keys[0])[:2])
    tenant, tenants, prefix = settings.tenant, settings.tenants, settings.prefix
    if tenant is None and not prefix and shape.table.is_text(0):
        named = sorted(first.values or ())
        if 0 < len(named) <= _TENANTS_MAX:
            tenant, tenants = (named[0], ()) if len(named) == 1 else (None, tuple(named))
        else:
            prefix = first.prefix
    if (tenant is not None or tenants) and not prefix and len(shape.keys) > 1 and shape.table.is_text(1):
        prefix = second.prefix
    found = msgspec.structs.replace(settings, tenant=tenant, tenants=tenants, prefix=prefix)
    return found if _is_taken(found) else settings


def _is_taken(settings: Settings) -> bool:
    """Whether a group takes these filters."""
    try:
        filters = encode([one for of in filters_of(settings.watched(())).values() for one in of])
        msgspec.msgpack.decode(filters, type=list[WatchFilter])
    except (InvalidRequestError, *MALFORMED):
        return False
    return len(filters) <= _FILTERS_BYTES_MAX
