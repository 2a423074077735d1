"""What a table is as columns, derived from its declaration: the fields of the key, then those of each of its rows."""

from __future__ import annotations

import functools
from typing import Any, Final, NamedTuple

import msgspec

from metad_wire.families import KNOWN
from metad_wire.messages import Message
from metad_wire.table import ANY_KIND, Table
from metad_wire.tables.declaration import DeclaredTable
from metad_wire.tables.table import PlainTable

from .errors import OptionError

SLOT: Final = "slot"
"""The column that says which hash bucket a record is in."""
REVISION: Final = "revision"
"""The column that says how far the log of the record's group had come."""
CHANGE: Final = "change"
"""What has happened: ``created``, ``changed``, ``deleted``, ``expired``, ``written``; ``snapshot``: it is so."""
SNAPSHOT: Final = "snapshot"
ROW: Final = "row"
"""Which row of the record has changed; null for a record as a whole."""
TIME_MS: Final = "time_ms"
"""When, by the clock of the group's leader; 0 for a record as it is."""
CHANGE_TIME: Final = "change_time"
"""The same as a timestamp, for watermarks; null for a record as it is."""
LISTED: Final = frozenset({"broker"})
"""Tables that are listed as a whole, for a list says more of a record than a watch shows."""


class Column(NamedTuple):
    """One column: its name, and the type that the declaration has."""

    name: str
    type: Any


class Row(NamedTuple):
    """One kind of row of a table."""

    number: int
    """The byte that it has on disk and in a watch."""
    name: str
    record: Any
    """What its value decodes to."""
    columns: tuple[Column, ...]
    """Those that the value has beyond the key."""
    paths: tuple[str, ...]
    """Of each column: where it is in the decoded value, as names with dots between them; empty: the value itself."""


class Shape(NamedTuple):
    """A table, or one row of it, as columns."""

    name: str
    """As the program wrote it: ``session``, or ``session.owner``."""
    table: Table[Any]
    keys: tuple[Column, ...]
    rows: tuple[Row, ...]
    """Those that make up one record, all with the same key."""
    slotted: bool
    """Whether its records are in slots."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """All of them, in order."""
        found = self.keys
        for row in self.rows:
            found += row.columns
        names = {column.name for column in found}
        last = ((SLOT, int), (REVISION, int)) if self.slotted else ((REVISION, int),)
        return found + tuple(Column(name, kind) for name, kind in last if name not in names)


def names() -> list[str]:
    """Every name that :func:`shape_of` knows."""
    found: list[str] = []
    for table in KNOWN.values():
        shown = [name for name, byte in table.rows.items() if byte in table.shows]
        if shown and table.kind != ANY_KIND:
            found.append(table.name)
        if len(shown) > 1:
            found += [f"{table.name}.{name}" for name in shown]
    return sorted(found)


@functools.lru_cache(maxsize=64)
def declared_table(declared: bytes) -> PlainTable[Any]:
    """A table as its declaration says, which comes from the service (``declaration.get``)."""
    return msgspec.msgpack.decode(declared, type=DeclaredTable).table()


@functools.lru_cache(maxsize=64)
def shape_of(name: str, declared: bytes = b"") -> Shape:
    """The shape of ``TABLE`` or ``TABLE.ROW``. A table alone stands for those of its rows that have its whole key, put
    together as one record. ``declared``: the declaration of a table that a program has declared. Raises OptionError if
    there is no such table or row."""
    table_name, _, row_name = name.partition(".")
    table = declared_table(declared) if declared else KNOWN.get(table_name)
    if table is None or (not declared and name not in names()):
        raise OptionError(f"table: there is no table {name!r} to read; there is {', '.join(names())}")
    shown = {row: byte for row, byte in table.rows.items() if byte in table.shows}
    if row_name:
        wanted = {row_name: shown[row_name]}
    else:
        wanted = {row: byte for row, byte in shown.items() if len(_key_of(table, byte)) == len(table.key)}
    keys_of = _key_of(table, next(iter(wanted.values())))
    taken = {column.name for column in keys_of}
    rows = tuple(_row(table, row, byte, taken) for row, byte in wanted.items())
    return Shape(name, table, keys_of, rows, slotted=bool(table.routing))


def _key_of(table: Table[Any], byte: int) -> tuple[Column, ...]:
    key = table.shows[byte].key
    return () if key is None else _columns(key)


def _row(table: Table[Any], name: str, byte: int, taken: set[str]) -> Row:
    record = table.shows[byte].record
    declared = () if table.record is None else tuple(c for c in _columns(table.record) if c.name not in taken)
    if isinstance(table, PlainTable):
        counts = tuple(column for column in _columns(record) if column.name != "record")
        paths = (*(f"record.{column.name}" for column in declared), *(column.name for column in counts))
        return Row(byte, name, record, declared + counts, paths)
    if isinstance(record, type) and issubclass(record, Message):
        columns = tuple(column for column in _columns(record) if column.name not in taken)
        return Row(byte, name, record, columns, tuple(column.name for column in columns))
    # A value that is no message has one column. The record that reads return may have a name for it.
    named = [column.name for column in declared if column.type is record]
    return Row(byte, name, record, (Column(named[0] if named else name, record),), ("",))


def _columns(record: type[Any]) -> tuple[Column, ...]:
    return tuple(Column(field.name, field.type) for field in msgspec.structs.fields(record))
