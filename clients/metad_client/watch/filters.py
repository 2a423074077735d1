"""What a program wants to watch, as the filters that go to the groups of each kind. Pure."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from metad_wire.families import KNOWN
from metad_wire.faults import UNFIT, fault
from metad_wire.messages import Message
from metad_wire.table import ANY_KIND, Table
from metad_wire.tables.table import PlainTable
from metad_wire.watch import FILTERS_MAX, WatchFilter

from ..errors import InvalidRequestError
from .event import Several, Shapes
from .typed import AnyTable, TableName

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar  # which checkers bring with them

    Named = DefaultTypeVar("Named", bound=AnyTable, default=TableName)
    WatchedTable = DefaultTypeVar("WatchedTable", bound=AnyTable, covariant=True, default=Any)
else:
    Named, WatchedTable = map(TypeVar, ("Named", "WatchedTable"))


class Filters(dict[str, list[WatchFilter]]):
    """By the kind of the groups. ``shapes``: how what they let pass is decoded."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes = Shapes()

    def take(self, table: Table[Any], one: WatchFilter) -> None:
        """One more."""
        self.setdefault(table.kind, []).append(one)
        if isinstance(table, PlainTable):
            self.shapes.add(table)


class Watched(msgspec.Struct, Generic[WatchedTable], frozen=True):
    """Records of one table to watch: all, or those that every further field lets pass.

    ``tenant``: the first field of their key, exactly (of ``kv`` the namespace, of ``broker`` its name). ``prefix``:
    what the next field starts with; without a tenant, the first. ``broker``: of sessions, only what a broker has come
    to own or owns no more; of partitions, only those of which it has a replica, or had. ``rows``: only these rows of
    the table, by name: ``owner`` or ``properties`` of a session, ``offset`` or ``generation`` of a consumer group.
    """

    table: WatchedTable
    tenant: str | None = None
    prefix: str = ""
    broker: str = ""
    rows: tuple[str, ...] = ()


Wanted: TypeAlias = Named | Watched[Named]
"""A table, or records of one."""
AnyWanted: TypeAlias = str | Table[Any] | Watched[Any]
"""The same, as far as is known before it is looked at."""


def filters_of(
    tables: AnyWanted | Several[AnyWanted],
    *,
    tenant: str | None = None,
    prefix: str = "",
    keys: Sequence[Message | tuple[str | int, ...]] | None = None,
    broker: str = "",
) -> Filters:
    """The filters of a watch. What is given beside the tables holds for all that are named alone. ``keys`` name
    records, of declared tables also by the fields of the key; they are of the tables that have such keys. Raises
    InvalidRequestError."""
    wanted = [tables] if isinstance(tables, str | Table | Watched) else tables
    if not isinstance(wanted, Sequence | Set):
        raise InvalidRequestError(f"tables: expected names of tables, got {type(tables).__name__}")
    found = Filters()
    if keys is not None:
        if not isinstance(keys, Sequence | Set):
            raise InvalidRequestError(f"keys: expected a sequence of keys, got {type(keys).__name__}")
        among = [_table(each) for each in wanted]
        for key in keys:
            for table, one in _of_key(key, among):
                found.take(table, one)
    else:
        for each in wanted:
            table = _table(each)
            if isinstance(each, Watched):
                one = _of_table(table, msgspec.structs.replace(each, table=table.name), f"tables: {table.name}: ")
            else:
                one = _of_table(table, Watched(table.name, tenant, prefix, broker), "")
            found.take(table, one)
    if not found:
        raise InvalidRequestError("tables: a watch needs at least one, or keys")
    for kind, filters in found.items():
        if len(filters) > FILTERS_MAX:
            raise InvalidRequestError(f"keys: {len(filters)} in groups of kind {kind}, {FILTERS_MAX} are allowed")
    return found


def _table(wanted: AnyWanted) -> Table[Any]:
    named: Any = wanted.table if isinstance(wanted, Watched) else wanted
    if isinstance(named, PlainTable):
        return named
    name = named.name if isinstance(named, Table) else named
    table = KNOWN.get(name) if isinstance(name, str) else None
    if table is None or not table.shows or table.kind == ANY_KIND:
        known = ", ".join(sorted(name for name, table in KNOWN.items() if table.shows))
        raise InvalidRequestError(
            f"tables: no table {name!r} can be watched by its name; if a program has declared it, pass what "
            f"m.tables.open({name!r}) returns. By name there is {known}"
        )
    return table


def _of_table(table: Table[Any], watched: Watched[Any], place: str) -> WatchFilter:
    """``watched`` names the table. ``place``: where the program has given the fields."""
    wrong = fault(watched, Watched)
    if wrong is not None:
        raise InvalidRequestError(place + wrong)
    shown = {name: table.shows[row] for name, row in table.rows.items() if row in table.shows}
    for row in watched.rows:
        if row not in shown:
            raise InvalidRequestError(f"tables: {table.name} has no row {row!r}; it has {', '.join(shown)}")
    fields = [] if watched.tenant is None else [watched.tenant]
    if (fields or watched.prefix) and not table.key:
        raise InvalidRequestError(f"tables: {table.name} has no tenant and no prefix")
    if watched.prefix and (len(fields) >= len(table.key) or not table.is_text(len(fields))):
        raise InvalidRequestError(f"tables: the key of {table.name} has no text behind {table.key[0]}")
    if watched.broker and table.name != "session" and not table.hears:
        raise InvalidRequestError(f"tables: only sessions and partitions have brokers, {table.name} has none")
    number = table.number if isinstance(table, PlainTable) else 0
    return WatchFilter(table.name, list(fields), watched.prefix, list(watched.rows), watched.broker, number)


_FITS: Final = "keys: {key!r} is the key of no table that is watched; {known}"


def _of_key(key: Any, among: Sequence[Table[Any]]) -> list[tuple[Table[Any], WatchFilter]]:
    found: list[tuple[Table[Any], WatchFilter]] = []
    for table in among or (() if isinstance(key, tuple) else KNOWN.values()):
        if isinstance(key, tuple):
            rows = [*table.rows] if isinstance(table, PlainTable) and len(key) == len(table.key) else []
        else:
            rows = [
                name for name, row in table.rows.items() if row in table.shows and table.shows[row].key is type(key)
            ]
        if rows:
            fields = [*key] if isinstance(key, tuple) else [getattr(key, field) for field in key.__struct_fields__]
            try:
                if isinstance(table, PlainTable) and (why := table.fields_fault(fields)) is not None:
                    raise TypeError(why)
                table.key_of(fields)
            except UNFIT as error:
                raise InvalidRequestError(f"keys: {key!r}: {error}") from None
            number = table.number if isinstance(table, PlainTable) else 0
            found.append((table, WatchFilter(table.name, fields, rows=rows, number=number)))
    if not found:
        known = ", ".join(
            sorted({s.key.__name__ for t in KNOWN.values() for s in t.shows.values() if s.key is not None})
        )
        raise InvalidRequestError(_FITS.format(key=key, known=f"there is {known}"))
    return found
