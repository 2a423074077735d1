"""Records of a DataFrame as the items of writes. Needs no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from metad_wire import messages as m
from metad_wire.faults import fault
from metad_wire.messages import Message
from metad_wire.method import Method, encode
from metad_wire.methods import KV_DELETE, KV_PUT
from metad_wire.table import TABLES, PlainTable
from metad_wire.tables.offset import OFFSET_COMMIT, OFFSET_DELETE
from metad_wire.tables.retained import (
    RETAINED_DELETE,
    RETAINED_PUT,
    RetainedDelete,
    RetainedDeleteItem,
    RetainedPut,
    RetainedPutItem,
)
from metad_wire.tables.sequence import (
    SEQUENCE_ADD,
    SEQUENCE_DELETE,
    SequenceAdd,
    SequenceAddItem,
    SequenceKey,
)

from .errors import OptionError, SinkError
from .shapes import CHANGE

GONE: Final = frozenset({"deleted", "expired"})
"""A record with such a ``change`` is deleted."""
ITEMS_MAX: Final = 1_000
BYTES_MAX: Final = 400 * 1024


class Write(NamedTuple):
    """A kind of request."""

    method: Method[Any, Any]
    item: type[Message]
    body: Callable[[list[Any]], Message]
    made: Callable[[Message], Any]
    """What the request has of an item."""


class Writes(NamedTuple):
    """How records of a table are written."""

    put: Write
    delete: Write


def _same(item: Message) -> Message:
    return item


_WRITES: Final = {
    "kv": Writes(Write(KV_PUT, m.KvPutItem, m.KvPut, _same), Write(KV_DELETE, m.KvDeleteItem, m.KvDelete, _same)),
    "offset": Writes(
        Write(OFFSET_COMMIT, m.OffsetCommitItem, m.OffsetCommit, _same),
        Write(OFFSET_DELETE, m.OffsetKey, OFFSET_DELETE.body, _same),
    ),
    "retained": Writes(
        Write(RETAINED_PUT, RetainedPutItem, RetainedPut, _same),
        Write(RETAINED_DELETE, RetainedDeleteItem, RetainedDelete, _same),
    ),
    "sequence": Writes(
        Write(SEQUENCE_ADD, SequenceAddItem, SequenceAdd, _same),
        Write(SEQUENCE_DELETE, SequenceKey, SEQUENCE_DELETE.body, _same),
    ),
}


def writes_of(table: str) -> Writes:
    """How records of a table are written. Raises OptionError if they cannot be."""
    found = _WRITES.get(table)
    if found is not None:
        return found
    declared = TABLES.get(table)
    if not isinstance(declared, PlainTable):
        plain = [name for name, each in TABLES.items() if each.plain is not None]
        raise OptionError(f"table: {table!r} cannot be written; there is {', '.join(sorted([*_WRITES, *plain]))}")
    methods = declared.plain
    put = Write(methods.put, declared.record, methods.put.body, m.TablePutItem)
    return Writes(put, Write(methods.delete, methods.key, methods.delete.body, m.TableDeleteItem))


def check_columns(table: str, names: Iterable[str]) -> None:
    """Raises OptionError if records with these columns cannot be written."""
    put = writes_of(table).put.item
    fields = msgspec.structs.fields(put)
    known = [field.name for field in fields]
    given = set(names)
    for name in sorted(given - {*known, CHANGE}):
        raise OptionError(f"columns: a write to {table} has no {name!r}; it has {', '.join(known)}, {CHANGE}")
    for field in fields:
        if field.required and field.name not in given:
            raise OptionError(f"columns: a write to {table} needs {field.name!r}")


def items_of(table: str, records: Iterable[dict[str, Any]]) -> tuple[list[Message], list[Message]]:
    """The items that put and those that delete, in an order that depends on nothing but them. Raises SinkError."""
    writes = writes_of(table)
    put: list[Message] = []
    deleted: list[Message] = []
    for record in records:
        gone = record.get(CHANGE) in GONE
        write = writes.delete if gone else writes.put
        fields = write.item.__struct_fields__
        given = {name: value for name, value in record.items() if name in fields and value is not None}
        try:
            item = write.item(**given)
        except TypeError as error:
            raise SinkError(f"{table}: a record {given!r}: {error}") from None
        wrong = fault(item, write.item)
        if wrong is not None:
            raise SinkError(f"{table}: a record {given!r}: {wrong}")
        (deleted if gone else put).append(item)
    return sorted(put, key=encode), sorted(deleted, key=encode)


def requests_of(write: Write, items: Sequence[Message]) -> list[list[Message]]:
    """The items of one group in requests, cut where nothing but the items decides."""
    found: list[list[Message]] = []
    room = 0
    for item in items:
        size = len(encode(item))
        if not found or len(found[-1]) == ITEMS_MAX or size > room:
            found.append([])
            room = BYTES_MAX
        found[-1].append(item)
        room -= size
    return found
