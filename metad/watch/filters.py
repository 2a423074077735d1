"""The filters of a watch, checked and compiled: which rows, and which beginnings of their keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from metad_wire import messages as m
from metad_wire.errors import InvalidRequestError
from metad_wire.key import text_prefix
from metad_wire.table import Shown, Table
from metad_wire.tables import TABLES
from metad_wire.tables.session import SESSION
from metad_wire.watch import WatchFilter

OWNER = SESSION.rows["owner"]
SHORT_BYTES: Final = 256
"""Of a prefix that there is always room for, whatever others watch. Nearly all are shorter."""
LENGTHS_MAX: Final = 64
"""Of different lengths of longer prefixes that are watched in one group, and so in one watch too. A key may be looked
up once for each length, before an entry is applied."""


class Interest(NamedTuple):
    """Rows whose keys, encoded, begin so. ``broker``: only owners that are this broker, or were, and
    partitions of which it has a replica, or had; empty: all."""

    row: int
    prefix: bytes
    broker: str = ""


class Tables(Protocol):
    """The declared tables that a node knows."""

    def watched(self, name: str, number: int) -> Table[Any] | None:
        """The table of this name and number; None if there is none of the name. Raises UnknownTableError if it may have
        been declared a moment ago, NotFoundError if it was dropped."""


def compiled(filters: Sequence[WatchFilter], kind: str, tables: Tables) -> list[Interest]:
    """What the filters of a watch of a group of this kind ask for, without what another of them covers. Raises
    InvalidRequestError, and what ``tables`` raises."""
    if not filters:
        raise InvalidRequestError("a watch needs a filter: name a table at least")
    interests = _without_covered(interest for filter in filters for interest in _interests(filter, kind, tables))
    lengths = len(long_lengths(interests))
    if lengths > LENGTHS_MAX:
        raise InvalidRequestError(
            f"the filters of a watch have keys over {SHORT_BYTES} bytes of {lengths} different lengths; "
            f"{LENGTHS_MAX} are allowed"
        )
    return interests


def long_lengths(interests: Iterable[Interest]) -> set[int]:
    """The different lengths of prefixes that are not short."""
    return {length for interest in interests if (length := len(interest.prefix)) > SHORT_BYTES}


def _interests(filter: WatchFilter, kind: str, tables: Tables) -> list[Interest]:
    table = TABLES.get(filter.table) or tables.watched(filter.table, filter.number)
    if table is None or not table.shows:
        shown = ", ".join(sorted(name for name, table in TABLES.items() if table.shows))
        raise InvalidRequestError(f"there is no table {filter.table!r} to watch; there are {shown}")
    if table.kind != kind:
        raise InvalidRequestError(f"table {table.name} is kept by {table.kind} groups; this is a {kind} group")
    rows = _rows(filter, table)
    found: list[Interest] = []
    why = ""
    for row in rows:
        fault = _fault(filter, table, table.shows[row])
        if fault and filter.rows:
            raise InvalidRequestError(fault)
        if fault:
            why = why or fault
            continue
        prefix = table.key_of(filter.fields) + text_prefix(filter.prefix)
        if len(prefix) > m.KEY_BYTES_MAX:
            raise InvalidRequestError(
                f"a filter of table {table.name} takes {len(prefix)} bytes, but a key takes {m.KEY_BYTES_MAX} at most"
            )
        found.append(Interest(row, prefix, filter.broker))
    if not found:
        raise InvalidRequestError(why)
    return found


def _rows(filter: WatchFilter, table: Table[Any]) -> list[int]:
    """The rows that a filter names, or all that the table shows."""
    named = [*filter.rows]
    if filter.broker:
        if table is not SESSION and not table.hears:
            raise InvalidRequestError(f"only sessions and partitions have brokers; table {table.name} has none")
        named = named or (["owner"] if table is SESSION else [])
        if table is SESSION and named != ["owner"]:
            raise InvalidRequestError("a filter by broker is about the row owner, and no other")
    for name in named:
        if table.rows.get(name) not in table.shows:
            shown = ", ".join(name for name, row in table.rows.items() if row in table.shows)
            raise InvalidRequestError(f"table {table.name} has no row {name!r} to watch; it has {shown}")
    return [table.rows[name] for name in named] or list(table.shows)


def _fault(filter: WatchFilter, table: Table[Any], shown: Shown) -> str:
    """Why no key of a row can be what the filter says; empty if one can."""
    names = () if shown.key is None else shown.key.__struct_fields__
    if len(filter.fields) > len(names):
        return f"a filter of table {table.name} has {len(filter.fields)} fields; the key has {len(names)}"
    for number, value in enumerate(filter.fields):
        if table.is_text(number) is not isinstance(value, str):
            wanted = "text" if table.is_text(number) else "a number"
            return f"the key of table {table.name} has {wanted} in field {names[number]}, the filter has {value!r}"
    if filter.prefix and not (len(filter.fields) < len(names) and table.is_text(len(filter.fields))):
        return f"a filter of table {table.name} has a prefix where the key has no further field of text"
    return ""


def _without_covered(interests: Iterable[Interest]) -> list[Interest]:
    """One stream reports a change once, so an interest that a wider one includes is dropped."""
    kept: list[Interest] = []
    widest: dict[tuple[int, str], bytes] = {}  # the last that was kept; in order, what it covers follows it
    for interest in sorted(set(interests)):
        row, prefix, broker = interest
        for known in {"", broker}:
            last = widest.get((row, known))
            if last is not None and prefix.startswith(last):
                break
        else:
            widest[row, broker] = prefix
            kept.append(interest)
    return kept
