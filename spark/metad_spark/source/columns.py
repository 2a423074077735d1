"""Rows as metad sends them become columns of Arrow. What is done for each record is done by C: keys are parted by one
split of all of them, equal values are decoded once, and a value becomes an object only where it has to be decoded."""

from __future__ import annotations

import functools
import operator
import typing
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from metad_client.watch.events import array_of
from metad_wire.key import ESCAPED, TEXT_END

from .shapes import REVISION, SLOT, Row, Shape

KEY: Final = "\0key"
"""The column with the encoded keys, which are parted at the end. No field has such a name."""
_FEW: Final = 4
"""Values are decoded once each where there are so many times fewer of them than rows: to take them costs something,
too."""


class RowColumns:
    """The values of one kind of row as the wanted columns."""

    def __init__(self, row: Row, schema: pa.Schema) -> None:
        self.names = [column.name for column in row.columns if column.name in schema.names]
        self._decode = msgspec.msgpack.Decoder(list[row.record]).decode  # type: ignore[name-defined]
        paths = dict(zip([column.name for column in row.columns], row.paths, strict=True))
        self._getters = [operator.attrgetter(paths[name]) if paths[name] else None for name in self.names]
        self._types = [schema.field(name).type for name in self.names]

    def of(self, values: Sequence[bytes | None]) -> list[pa.Array]:
        """One array for each of :attr:`names`. Raises one of MALFORMED."""
        if not self.names:
            return []
        if None in values:
            present = [value for value in values if value is not None]
            places_of = iter(range(len(present)))
            among = pa.array([None if value is None else next(places_of) for value in values], pa.int32())
            return [array.take(among) for array in self.of(present)]
        places: dict[bytes | None, int] = dict.fromkeys(values, 0)
        if len(places) * _FEW > len(values):
            return self._decoded(values)
        for place, value in enumerate(places):
            places[value] = place
        indices = pa.array([places[value] for value in values], pa.int32())
        return [array.take(indices) for array in self._decoded(list(places))]

    def _decoded(self, values: Sequence[bytes | None]) -> list[pa.Array]:
        records = self._decode(array_of(typing.cast("Sequence[bytes]", values)))
        return [
            _array(records if get is None else [get(record) for record in records], kind)
            for get, kind in zip(self._getters, self._types, strict=True)
        ]


def key_columns(shape: Shape, keys: pa.BinaryArray, schema: pa.Schema) -> dict[str, pa.Array]:
    """The wanted columns of encoded keys. Raises ValueError if one is no such key."""
    names = [column.name for column in shape.keys]
    wanted = [name for name in names if name in schema.names]
    if not wanted:
        return {}
    texts = [shape.table.is_text(number) for number in range(len(names))]
    header = len(shape.table.header)
    data = b"".join([key[header:] for key in keys.to_pylist()])
    if all(texts) and ESCAPED not in data:
        parts = data.decode().split(TEXT_END.decode())
        if len(parts) != len(keys) * len(names) + 1:
            raise ValueError(f"keys that are none of {shape.table.name}")
        del parts[-1]
        found = {name: parts[number :: len(names)] for number, name in enumerate(names)}
    else:
        fields_of = shape.table.fields_of
        rows = [fields_of(key, len(names)) for key in keys.to_pylist()]
        found = {name: [row[number] for row in rows] for number, name in enumerate(names)}
    return {name: pa.array(found[name], schema.field(name).type) for name in wanted}


def slot_column(shape: Shape, keys: Sequence[bytes]) -> pa.Array:
    """The slots of encoded keys."""
    return pa.array(shape.table.slots_of(keys), pa.int64())


def joined(shape: Shape, tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """One table of records from one for each kind of row, each with :data:`KEY`. The first says which records there
    are."""
    first = tables[0]
    keys = first[KEY]
    arrays: dict[str, Any] = {name: first[name] for name in first.column_names if name != KEY}
    for table in tables[1:]:
        if not keys.equals(table[KEY]):
            table = table.take(pc.index_in(keys, value_set=table[KEY].combine_chunks()))
        arrays |= {name: table[name] for name in table.column_names if name != KEY}
    chunks = [key_columns(shape, chunk, schema) for chunk in keys.chunks]
    for name in chunks[0] if chunks else ():
        arrays[name] = pa.chunked_array([chunk[name] for chunk in chunks], schema.field(name).type)
    names = [name for name in schema.names if name in arrays]
    return pa.table({name: arrays[name] for name in names})


def row_table(
    shape: Shape, columns: RowColumns, keys: list[bytes], values: list[bytes | None], slots: bool
) -> pa.Table:
    """Rows of one kind with their keys, and with their slots if they are wanted."""
    arrays = dict(zip(columns.names, columns.of(values), strict=True))
    if slots:
        arrays[SLOT] = slot_column(shape, keys)
    return pa.table({KEY: pa.array(keys, pa.binary()), **arrays})


def listed_table(shape: Shape, records: Sequence[msgspec.Struct], schema: pa.Schema) -> pa.Table:
    """Records that were listed as a whole, at no revision of a group."""
    arrays = {
        column.name: _array([getattr(record, column.name) for record in records], schema.field(column.name).type)
        for column in shape.columns
        if column.name in schema.names and column.name != REVISION
    }
    if REVISION in schema.names:
        arrays[REVISION] = pa.array([0] * len(records), pa.int64())
    return pa.table(arrays)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    convert = _converter(kind)
    if convert is not None:
        if values.count(None) == len(values):
            return pa.nulls(len(values), kind)
        values = [None if value is None else convert(value) for value in values]
    return pa.array(values, kind)


@functools.cache
def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What makes a value of a message; None where the value is good as it is."""
    if pa.types.is_struct(kind):
        fields = [(field.name, _converter(field.type)) for field in kind]

        def struct(value: Any) -> dict[str, Any]:
            return {
                name: inner if convert is None or inner is None else convert(inner)
                for name, convert in fields
                if (inner := getattr(value, name)) is not None
            }

        return struct
    if pa.types.is_list(kind):
        item = _converter(kind.value_type)
        return None if item is None else lambda values: [item(value) for value in values]
    if pa.types.is_map(kind):
        return lambda mapping: list(mapping.items())
    return None
