"""``metadctl tables``: the tables that programs declare. ``metadctl records``: the records of any of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from metad_wire.declaration import Declaration, DeclaredField
from metad_wire.messages import TableRecord
from metad_wire.tables.declaration import DeclaredTable
from metad_wire.tables.table import PlainTable

from ...client import Client
from ...errors import InvalidRequestError
from ..grammar import Arguments, Commands, count, limit
from ..printing import Printer
from .bounded import Bounded, Row, absent, first, page_size, present, show, show_raw


def add(commands: Commands) -> None:
    """Add the commands."""
    listing, verbs = commands.family("tables", "the tables that programs have declared; or one of them", _list)
    listing.add_argument("--prefix", default="", metavar="P", help="only names with this prefix")
    limit(listing)
    verbs.add("get", "what a table is", _get).add_argument("table", metavar="TABLE")
    parser = verbs.add("declare", "declare a table, or let it grow by fields at its end", _declare)
    parser.add_argument("file", metavar="FILE", help="a JSON document as `tables get --json` prints it; - reads stdin")
    verbs.add("drop", "drop a table, with all its records", _drop).add_argument("table", metavar="TABLE")

    _, verbs = commands.family("records", "records of a declared table: list, get, put, delete", _which)
    parser = verbs.add("list", "records in order of their keys", _records)
    parser.add_argument("table", metavar="TABLE")
    parser.add_argument("key", nargs="*", metavar="KEY", help="the first fields of the key")
    parser.add_argument("--prefix", default="", metavar="P", help="what the next of them starts with")
    parser.add_argument(
        "--index", default="", metavar="INDEX", help="in the order of this index; KEY then begins with its fields"
    )
    limit(parser)
    parser = verbs.add("get", "one record", _record)
    parser.add_argument("table", metavar="TABLE")
    parser.add_argument("key", nargs="+", metavar="KEY", help="the fields of the key")
    parser = verbs.add("put", "write one record", _put)
    parser.add_argument("table", metavar="TABLE")
    parser.add_argument(
        "fields", nargs="+", metavar="FIELD=VALUE", help="text as it is, anything else as JSON; FIELD=- reads stdin"
    )
    _expected(parser, "only if it has version N now; 0: only if it is absent")
    parser = verbs.add("delete", "delete one record", _delete)
    parser.add_argument("table", metavar="TABLE")
    parser.add_argument("key", nargs="+", metavar="KEY", help="the fields of the key")
    _expected(parser, "only if it has version N now")


def _expected(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("--expected-version", type=count, metavar="N", help=help)


# --- tables ---


async def _list(m: Client, a: Arguments, printer: Printer) -> None:
    found = await first(m.tables.list(a.prefix, page_size=page_size(a.limit)), a.limit)
    shown = Bounded([_document(table) for table in found.records], found.more)
    rows = iter(found.records)
    show(printer, "tables", shown, lambda _: _row(next(rows)), a.limit)


async def _get(m: Client, a: Arguments, printer: Printer) -> None:
    found = present(await m.tables.get(a.table), f"no table {a.table}")
    fields = [_field_row(field) for field in found.declaration.fields]
    printer.document(_document(found), _row(found) | {"about": found.declaration.about}, [("fields", fields)])


async def _declare(m: Client, a: Arguments, printer: Printer) -> None:
    table = await m.tables.declare(read_declaration(_text_of(a.file)))
    printer.one({"table": table.name, "number": table.number})


async def _drop(m: Client, a: Arguments, printer: Printer) -> None:
    with absent(f"no table {a.table}"):
        await m.tables.drop(a.table)
    printer.one({"dropped": True})


def _row(table: DeclaredTable) -> Row:
    declaration = table.declaration
    return {
        "table": table.name,
        "number": table.number,
        "kind": declaration.kind,
        "key": declaration.key,
        "routed by": declaration.key[: declaration.routing],
        "fields": len(declaration.fields),
        "indexes": [*declaration.indexed()],
        "version": table.version,
    }


def _field_row(field: DeclaredField) -> Row:
    bounds = [f"{name.replace('_', ' ')} {value}" for name in _BOUNDS if (value := getattr(field, name))]
    default = None if field.default is None else msgspec.json.encode(msgspec.msgpack.decode(field.default)).decode()
    return {"field": field.name, "type": field.type, "default": default, "bounds": bounds, "about": field.about}


_BOUNDS = ("least", "most", "length_least", "length_most", "choices")


def _document(table: DeclaredTable) -> dict[str, Any]:
    """A table as JSON says it."""
    facts = msgspec.structs.asdict(table)
    facts |= msgspec.structs.asdict(facts.pop("declaration"))
    facts["fields"] = [_field(field) for field in table.declaration.fields]
    facts["indexes"] = table.declaration.indexed()
    return facts


def _field(field: DeclaredField) -> dict[str, Any]:
    given = {name: value for name, value in msgspec.structs.asdict(field).items() if value not in (None, 0, "", [])}
    if field.default is not None:
        given["default"] = msgspec.msgpack.decode(field.default)
    return given


def read_declaration(text: str | bytes) -> Declaration:
    """A declaration of a JSON document. Raises InvalidRequestError."""
    try:
        document: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
        wanted = {name: document[name] for name in Declaration.__struct_fields__ if name in document}
        wanted["fields"] = [_read_field(field) for field in wanted.get("fields", [])]
        wanted.setdefault("routing", len(wanted.get("key", [])))
        indexes = [[name, fields] for name, fields in wanted.get("indexes", {}).items()]
        return msgspec.convert([wanted[name] for name in _REQUIRED] + [wanted.get("about", ""), indexes], Declaration)
    except KeyError as error:
        raise InvalidRequestError(f"a declaration has {', '.join(_REQUIRED)}; {error} is missing") from None
    except (msgspec.MsgspecError, TypeError, AttributeError) as error:
        raise InvalidRequestError(f"this is no declaration: {error}") from None


_REQUIRED = ("name", "kind", "fields", "key", "routing")


def _read_field(given: dict[str, Any]) -> DeclaredField:
    unknown = given.keys() - set(DeclaredField.__struct_fields__)
    if unknown:
        raise InvalidRequestError(
            f"a field has no {min(unknown)!r}; it has {', '.join(DeclaredField.__struct_fields__)}"
        )
    default = msgspec.msgpack.encode(given["default"]) if "default" in given else None
    known: DeclaredField = msgspec.convert(
        [given["name"], given["type"], default, *(given.get(name, _EMPTY.get(name)) for name in _BOUNDS), ""],
        DeclaredField,
    )
    return msgspec.structs.replace(known, about=str(given.get("about", "")))


_EMPTY: dict[str, Any] = {"length_least": 0, "choices": []}


def _text_of(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"{file}: {error.strerror}") from None


# --- their records ---


async def _which(m: Client, a: Arguments, printer: Printer) -> None:
    raise InvalidRequestError("records of which table? metadctl records list TABLE; metadctl tables names them")


async def _records(m: Client, a: Arguments, printer: Printer) -> None:
    table = await m.tables.open(a.table)
    records, size = m.table(table), page_size(a.limit)
    if not a.index:
        listing = records.list(*_key(table, a.key), prefix=a.prefix, page_size=size)
    elif a.index in table.indexes:
        fields = _fields(table, table.indexes[a.index].names, a.key)
        listing = records.list_by(a.index, *fields, prefix=a.prefix, page_size=size)
    else:
        raise InvalidRequestError(
            f"{a.table} has no index {a.index}; its indexes: {', '.join(table.indexes) or 'none'}"
        )
    found = await first(listing, a.limit)
    show_raw(printer, Bounded([_flat(record) for record in found.records], found.more), a.limit)


async def _record(m: Client, a: Arguments, printer: Printer) -> None:
    table = await m.tables.open(a.table)
    printer.one(_flat(present(await m.table(table).get(*_whole(table, a.key)), _complaint(a))))


async def _put(m: Client, a: Arguments, printer: Printer) -> None:
    table = await m.tables.open(a.table)
    fields = {field.name: field for field in msgspec.structs.fields(table.record)}
    given: dict[str, Any] = {}
    for one in a.fields:
        name, equals, text = one.partition("=")
        if name not in fields or not equals:
            raise InvalidRequestError(f"{one}: a field of {table.name} and its value; it has {', '.join(fields)}")
        given[name] = _read(name, text, fields[name].type)
    missing = [name for name, field in fields.items() if field.required and name not in given]
    if missing:
        raise InvalidRequestError(f"{table.name}: {', '.join(missing)} is missing")
    printer.one({"version": await m.table(table).put(table.record(**given), expected_version=a.expected_version)})


async def _delete(m: Client, a: Arguments, printer: Printer) -> None:
    table = await m.tables.open(a.table)
    with absent(_complaint(a)):
        await m.table(table).delete(*_whole(table, a.key), expected_version=a.expected_version)
    printer.one({"deleted": True})


def _complaint(a: Arguments) -> str:
    return f"no {a.table} {'/'.join(a.key)}"


def _key(table: PlainTable[Any], given: list[str]) -> list[Any]:
    """The first fields of a key."""
    if len(given) > len(table.key):
        raise InvalidRequestError(f"the key of {table.name} is {', '.join(table.key)}: it has {len(table.key)} fields")
    return _fields(table, table.key, given)


def _fields(table: PlainTable[Any], names: Sequence[str], given: list[str]) -> list[Any]:
    types = {field.name: field.type for field in msgspec.structs.fields(table.record)}
    return [_read(name, text, types[name]) for name, text in zip(names, given, strict=False)]


def _whole(table: PlainTable[Any], given: list[str]) -> list[Any]:
    if len(given) < len(table.key):
        raise InvalidRequestError(f"the key of {table.name} is {', '.join(table.key)}: it has {len(table.key)} fields")
    return _key(table, given)


def _read(name: str, text: str, kind: Any) -> Any:
    """A field's value of an argument. What is neither text nor bytes is read as JSON."""
    read: Callable[[Any], Any] = lambda value: msgspec.convert(value, kind)  # noqa: E731
    shape = msgspec.inspect.type_info(kind)
    try:
        if text == "-":
            given = sys.stdin.buffer.read()
            return read(given if isinstance(shape, msgspec.inspect.BytesType) else given.decode())
        if isinstance(shape, msgspec.inspect.StrType | msgspec.inspect.LiteralType):
            return read(text)
        if isinstance(shape, msgspec.inspect.BytesType):
            return read(text.encode())
        return read(msgspec.json.decode(text))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{name}={text}: {error}") from None


def _flat(found: TableRecord[Any]) -> dict[str, Any]:
    """A record's fields, followed by its version and revisions."""
    numbers = msgspec.structs.asdict(found)
    return msgspec.structs.asdict(numbers.pop("record")) | numbers
