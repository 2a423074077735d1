"""Where the records of a tenant are in a group, and what a tenant has there.

They are in every table whose key begins with a tenant or a namespace: in its rows in the code, and in those of declared
tables behind the header that their keys have. So a new table is known here by its declaration.
"""

from __future__ import annotations

from collections.abc import Container
from functools import cache
from typing import Final, NamedTuple

from metad_wire import methods
from metad_wire.cluster import GROUP_KINDS
from metad_wire.key import TEXT_END, split_text, text, text_prefix, u32
from metad_wire.table import ROWS, TABLES
from metad_wire.tables import tenants as t
from metad_wire.tables.table import DECLARED, DUES, HEADER_BYTES, INDEXES, SharedRows
from metad_wire.tables.tenants import TENANTS, has_tenants

from ...storage.engine import Engine
from ...storage.keys import GROUP_PREFIX_BYTES, after_prefix, table_prefix
from ..core.distinct import distinct
from ..core.slot_assignment import is_held
from ..core.verb import Command, Reader, Verb, wanted_slots
from ..core.view import Numbers
from .declarations import Declarations, KnownTables

_RECORD: Final = DECLARED.rows["record"]
_INDEX: Final = INDEXES.rows["index"]
_DUE: Final = DUES.rows["due"]
PAGE_ROWS: Final = 2_000
PAGE_BYTES: Final = 1024 * 1024


class Place(NamedTuple):
    """Rows that begin with a tenant."""

    table: str
    row: int
    header: bytes
    """What their keys have behind the byte of the row, in front of the tenant."""
    is_record: bool
    """Whether each is a record; otherwise they belong to records."""
    number: int = 0
    """Of the declared table; 0: it is none."""

    def prefix(self, group: bytes) -> bytes:
        """What the keys begin with in a group."""
        return table_prefix(group, self.row) + self.header


@cache
def _built_in(kind: str) -> tuple[Place, ...]:
    return tuple(
        Place(table.name, row, b"", number == 0)
        for table in TABLES.values()
        if table.kind == kind and has_tenants(table)
        for number, row in enumerate(table.rows.values())
    )


def places(group: bytes, known: KnownTables) -> list[Place]:
    """All that a group of this prefix has, in the order of their rows. ``known``: the declared tables."""
    kind = GROUP_KINDS[group[0] - 1]
    declared = [Place(table.name, _RECORD, table.header, True, table.number) for table in known.of_tenants(kind)]
    return sorted([*_built_in(kind), *declared], key=lambda place: (place.row, place.header))


class Range(NamedTuple):
    """Keys of a group among which are rows of a tenant."""

    begin: bytes
    end: bytes
    mixed: bool
    """Whether rows of others are there, too."""


def ranges(group: bytes, known: KnownTables, tenant: str) -> list[Range]:
    """Where all rows of a tenant are, in the order of their keys: those of :func:`places`, and those that are derived
    from them and ordered by something else, as deadlines and indexes are."""
    kind = GROUP_KINDS[group[0] - 1]
    mixed = [
        table_prefix(group, row)
        for table in TABLES.values()
        if table.kind == kind and table.moves and table.ordered_by and t.is_scoped(table)
        for row in table.rows.values()
    ]
    declared = known.of_tenants(kind)
    mixed += [table_prefix(group, _INDEX) + u32(table.number) for table in declared if table.indexes]
    if any(table.expires for table in declared):
        mixed.append(table_prefix(group, _DUE))
    own = [place.prefix(group) + text(tenant) for place in places(group, known)]
    return sorted(
        [Range(prefix, after_prefix(prefix), prefix in mixed) for prefix in {*own, *mixed}], key=lambda one: one.begin
    )


def tenant_at(key: bytes, numbers: Container[int]) -> bytes:
    """The tenant to which a row belongs, encoded with its end; empty: to none. ``key``: without the group's prefix;
    ``numbers``: :attr:`KnownTables.numbers_of_tenants`."""
    table = ROWS.get(row := key[0])
    if table is None or not table.moves:
        return b""
    if isinstance(table, SharedRows):
        at = {_RECORD: 1, _DUE: 9, _INDEX: 1}.get(row)
        if at is None or int.from_bytes(key[at : at + 4], "big") not in numbers:
            return b""
        begin = 1 + int.from_bytes(key[-3:-1], "big") if row == _INDEX else at + HEADER_BYTES
    elif table.key[0] not in t.SCOPES:
        return b""
    else:
        begin = 1 + table.ordered_by
    return key[begin : key.index(TEXT_END, begin) + len(TEXT_END)]


def rows_of(
    engine: Engine, prefix: bytes, tenant: str, begin: bytes = b"", rows_max: int = PAGE_ROWS
) -> list[tuple[bytes, bytes]]:
    """The next rows of a tenant whose keys begin with a prefix and its name, from the key ``begin`` on; fewer than
    ``rows_max`` if they reach :data:`PAGE_BYTES`."""
    prefix += text(tenant)
    return engine.scan(max(prefix, begin), after_prefix(prefix), rows_max, PAGE_BYTES)


def _read_names(reader: Reader, command: Command[t.TenantsList]) -> t.TenantsListReply:
    body = command.body
    start = text_prefix(body.prefix)
    begin = max(start, after_prefix(text(body.after)) if body.after else b"")
    prefixes = [place.prefix(reader.group) for place in places(reader.group, reader.parts[Declarations].known)]
    found, cursor = distinct(reader, prefixes, start, begin, body.limit, _first_of)
    return t.TenantsListReply([split_text(tenant, 0)[0] for tenant in found], bool(cursor))


def _first_of(key: bytes) -> bytes:
    return key[: key.index(TEXT_END) + len(TEXT_END)]


class Counted(NamedTuple):
    """What some rows of a tenant are, by table: how many records, and how many bytes."""

    found: dict[str, tuple[int, int]]
    begin: bytes
    """Where to go on; empty if these were all."""
    rows: int


def count_rows(
    engine: Engine, group: bytes, known: KnownTables, tenant: str, held: Numbers | None, begin: bytes = b""
) -> Counted:
    """Count a page of a tenant's rows, from the key ``begin`` on, in these slots."""
    found: dict[str, tuple[int, int]] = {}
    count = read = 0
    for place in places(group, known):
        prefix = place.prefix(group)
        if after_prefix(prefix) <= begin:
            continue
        rows = rows_of(engine, prefix, tenant, begin, PAGE_ROWS - count)
        for key, value in rows:
            row_bytes = len(key) - GROUP_PREFIX_BYTES + len(value)
            read += len(key) + len(value)
            if held is None or is_held(held, key):
                records, taken = found.get(place.table, (0, 0))
                found[place.table] = records + place.is_record, taken + row_bytes
        count += len(rows)
        if count >= PAGE_ROWS or read >= PAGE_BYTES:
            return Counted(found, rows[-1][0] + b"\0", count)
    return Counted(found, b"", count)


def _read_use(reader: Reader, command: Command[t.TenantsUse]) -> t.TenantsUseReply:
    body = command.body
    held, begin = wanted_slots(reader, body.slots), reader.group + body.cursor
    known = reader.parts[Declarations].known
    counted = count_rows(reader.engine, reader.group, known, body.tenant, held, begin)
    reader.spent += counted.rows
    found = [t.TableUse(table, *numbers) for table, numbers in counted.found.items()]
    return t.TenantsUseReply(found, counted.begin[GROUP_PREFIX_BYTES:])


VERBS = (
    Verb(methods.TENANTS_LIST, TENANTS, read=_read_names),
    Verb(methods.TENANTS_USE, TENANTS, read=_read_use),
)
