"""``metadctl tables``: the tables that programs declare. ``metadctl records``: the records of any of them, and of those
in the code, which have commands of their own, too."""

from __future__ import annotations

import argparse
import base64
import binascii
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec

from metad_wire.declaration import Declaration, DeclaredField, parsed_type
from metad_wire.families import FAMILIES, NAMES, PLURALS, SECRETS
from metad_wire.messages import TableRecord
from metad_wire.program.documents import read_value
from metad_wire.tables.declaration import DeclaredTable
from metad_wire.tables.table import PlainTable

from ...client import Client
from ...errors import IndexBuildingError, InvalidRequestError
from .. import people
from ..grammar import Arguments, Command, Commands, count, limit
from ..printing import Printer
from . import assignments
from .bounded import Bounded, Progress, Row, absent, first, page_size, present, say_more, show


def add(commands: Commands) -> None:
    """Add the commands."""
    listing, verbs = commands.family("tables", "the tables that programs have declared; or one of them", _list)
    listing.add_argument("--prefix", default="", metavar="P", help="only names with this prefix")
    limit(listing)
    verbs.add("get", "what a table is", _get).add_argument("table", metavar="TABLE")
    parser = verbs.add("declare", "declare a table, or let it grow by fields and indexes at its end", _declare)
    parser.add_argument("file", metavar="FILE", help="a JSON document as `tables get --json` prints it; - reads stdin")
    parser = verbs.add("drop", "drop a table, with all its records", _drop)
    parser.add_argument("table", metavar="TABLE")
    _sure(parser, "without it, this only says how many records it would delete")

    _, verbs = commands.family("records", "records of a declared table: list, get, put, delete, count", _which)
    _add_verbs(verbs)


def add_families(commands: Commands, words: Collection[str] | None) -> dict[str, Commands]:
    """Add the commands of the tables in the code: `metadctl topics list` is `metadctl records list topic`. ``words``:
    those of the command line; only the commands among them get arguments, and are returned by their tables. None: all
    are."""
    added = {}
    for name, plural in PLURALS.items():
        table = FAMILIES[name]
        more = "" if table.ruled_by else ", put, delete"
        listing, verbs = commands.unlisted(plural, f"records of the table {name}, or list, get, count{more}")
        if words is None or plural in words:
            _add_verbs(verbs, table)
            limit(listing)
            listing.set_defaults(command=_all, verify=None, complain=listing.error, table=name)
            added[name] = verbs
    return added


def families_page() -> str:
    """For ``metadctl --help``: the commands of each family."""
    lines = ["what brokers keep, each with list, get, count, and but for assignment put, delete:"]
    for family in NAMES:
        theirs = [PLURALS[name] for name, table in FAMILIES.items() if table.record.__module__.endswith(f".{family}")]
        lines += textwrap.wrap(
            f"{family}: {', '.join(theirs)}", 78, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
        )
    return "\n".join(lines)


def _add_verbs(verbs: Commands, table: PlainTable[Any] | None = None) -> None:
    """Add what is done with records: of this table, or of one that is named."""

    def verb(name: str, help: str, command: Command) -> argparse.ArgumentParser:
        parser = verbs.add(name, help, command)
        if table is None:
            parser.add_argument("table", metavar="TABLE")
        else:
            parser.set_defaults(table=table.name)
        return parser

    def key(parser: argparse.ArgumentParser) -> None:
        if table is None:
            parser.add_argument("key", nargs="+", metavar="KEY", help="the fields of the key")
            return
        for field in table.key:
            parser.add_argument("key", action="append", metavar=field.upper())

    def begins(parser: argparse.ArgumentParser, prefix: str | None = "") -> None:
        named = "" if table is None else f": {', '.join(table.key)}"
        parser.add_argument("key", nargs="*", metavar="KEY", help=f"the first fields of the key{named}")
        told = "what the next of them starts with" if prefix is not None else "of all whose next field starts with P"
        parser.add_argument("--prefix", default=prefix, metavar="P", help=told)

    parser = verb("list", "records in order of their keys", _records)
    begins(parser)
    _index(parser, "in the order of this index; KEY then begins with its fields")
    limit(parser)
    _secrets(parser, table)
    parser = verb("get", "one record", _record)
    key(parser)
    _secrets(parser, table)
    parser = verb("count", "how many records `list` would show", _count)
    begins(parser)
    _index(parser, "KEY begins with the fields of this index")
    if table is not None and table.ruled_by:
        return
    parser = verb("put", "write one record, whole", _put)
    said = "text as it is, anything else as JSON; FIELD=- reads stdin; FIELD_base64 for bytes that are no text"
    has = "" if table is None else f". FIELD: {', '.join(map(_told, msgspec.structs.fields(table.record)))}"
    parser.add_argument("fields", nargs="+", metavar="FIELD=VALUE", help=said + has)
    _expected(parser, "only if it has version N now; 0: only if it is absent")
    parser = verb("delete", "delete one record; or with --prefix or --index all that `list` shows", _delete)
    begins(parser, None)
    _index(parser, "of what `list` shows by this index; KEY then begins with its fields")
    _sure(parser, "without it, --prefix and --index only say how many they would delete")
    _expected(parser, "only if it has version N now")


def _index(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("--index", default="", metavar="INDEX", help=help)


def _sure(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("--yes", action="store_true", help=help)


def _told(field: msgspec.structs.FieldInfo) -> str:
    """A field by its name, in brackets if it may be left out."""
    return field.name if field.required else f"[{field.name}]"


def _secrets(parser: argparse.ArgumentParser, table: PlainTable[Any] | None) -> None:
    hidden = set().union(*SECRETS.values()) if table is None else SECRETS[table.name]
    parser.set_defaults(secrets=False)
    if hidden:
        parser.add_argument("--secrets", action="store_true", help=f"print these, too: {', '.join(sorted(hidden))}")


def _expected(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("--expected-version", type=count, metavar="N", help=help)


# --- tables ---


async def _list(m: Client, a: Arguments, printer: Printer) -> None:
    found = await first(m.tables.list(a.prefix, page_size=page_size(a.limit)), a.limit)
    shown = Bounded([declaration_document(table) for table in found.records], found.more)
    rows = iter(found.records)
    show(printer, "tables", shown, lambda _: _row(next(rows)), a.limit)


async def _get(m: Client, a: Arguments, printer: Printer) -> None:
    found = present(await m.tables.get(a.table), _no_table(a))
    fields, building = [_field_row(field) for field in found.declaration.fields], await _building(m, a, found)
    facts = _row(found) | {"being built": building, "about": found.declaration.about}
    printer.document(declaration_document(found) | {"building": building}, facts, [("fields", fields)])


async def _building(m: Client, a: Arguments, found: DeclaredTable) -> list[str]:
    """The indexes by which no list is to be had yet."""
    table, building = found.table(), list[str]()
    for name in [*table.indexes][table.first_indexes :]:
        try:
            await first(m.table(table).list_by(name, page_size=1, deadline_s=min(_LOOK_S, a.timeout)), 1)
        except IndexBuildingError:
            building.append(name)
    return building


_LOOK_S = 1.0
"""Less than after what an index that is being built may be asked for again."""


async def _declare(m: Client, a: Arguments, printer: Printer) -> None:
    try:
        document = msgspec.json.decode(text_of(a.file), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(f"this is no declaration: {error}") from None
    table = await m.tables.declare(read_declaration(document))
    printer.one({"table": table.name, "number": table.number})


async def _drop(m: Client, a: Arguments, printer: Printer) -> None:
    if not a.yes:
        table = present(await m.tables.get(a.table), _no_table(a)).table()
        count = await m.table(table).count(on_progress=Progress("counted"))
        raise InvalidRequestError(f"{count} records of {a.table} would be deleted with it: add --yes")
    with absent(_no_table(a)):
        await m.tables.drop(a.table)
    printer.one({"dropped": True})


def _no_table(a: Arguments) -> str:
    if a.table in FAMILIES:
        return f"nobody has declared {a.table}: metad has it itself, metadctl {PLURALS[a.table]} is for its records"
    return f"no table {a.table}"


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
        "expires by": declaration.expires or None,
        "version": table.version,
    }


def _field_row(field: DeclaredField) -> Row:
    bounds = [f"{name.replace('_', ' ')} {value}" for name in _BOUNDS if (value := getattr(field, name))]
    default = None if field.default is None else msgspec.json.encode(msgspec.msgpack.decode(field.default)).decode()
    return {"field": field.name, "type": field.type, "default": default, "bounds": bounds, "about": field.about}


_BOUNDS = ("least", "most", "length_least", "length_most", "choices")


def declaration_document(table: DeclaredTable) -> dict[str, Any]:
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


def read_declaration(document: dict[str, Any]) -> Declaration:
    """A declaration of a JSON document. Raises InvalidRequestError."""
    try:
        wanted = {name: document[name] for name in Declaration.__struct_fields__ if name in document}
        wanted["fields"] = [_read_field(field) for field in wanted.get("fields", [])]
        wanted.setdefault("routing", len(wanted.get("key", [])))
        indexes = [[name, fields] for name, fields in wanted.get("indexes", {}).items()]
        more = [wanted.get("about", ""), indexes, wanted.get("expires", "")]
        return msgspec.convert([*(wanted[name] for name in _REQUIRED), *more], Declaration)
    except KeyError as error:
        raise InvalidRequestError(f"a declaration has {', '.join(_REQUIRED)}; {error} is missing") from None
    except (msgspec.MsgspecError, TypeError, AttributeError, ValueError) as error:
        raise InvalidRequestError(f"this is no declaration: {error}") from None


_REQUIRED = ("name", "kind", "fields", "key", "routing")


def _read_field(given: dict[str, Any]) -> DeclaredField:
    if "default_base64" in given:
        given = given | {"default": {"base64": given["default_base64"]}}
        del given["default_base64"]
    unknown = given.keys() - set(DeclaredField.__struct_fields__)
    if unknown:
        raise InvalidRequestError(
            f"a field has no {min(unknown)!r}; it has {', '.join(DeclaredField.__struct_fields__)}"
        )
    default = None
    if "default" in given:
        default = msgspec.msgpack.encode(read_value(given["default"], parsed_type(str(given["type"]))))
    known: DeclaredField = msgspec.convert(
        [given["name"], given["type"], default, *(given.get(name, _EMPTY.get(name)) for name in _BOUNDS), ""],
        DeclaredField,
    )
    return msgspec.structs.replace(known, about=str(given.get("about", "")))


_EMPTY: dict[str, Any] = {"length_least": 0, "choices": []}


def text_of(file: str) -> bytes:
    """Read an argument that names a file; - is stdin. Raises InvalidRequestError."""
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"{file}: {error.strerror}") from None


# --- their records ---


async def _which(m: Client, a: Arguments, printer: Printer) -> None:
    raise InvalidRequestError("records of which table? metadctl records list TABLE; metadctl tables names them")


async def _all(m: Client, a: Arguments, printer: Printer) -> None:
    """What `list` shows without arguments."""
    vars(a).update(key=[], prefix="", index="", secrets=False)
    await _records(m, a, printer)


async def _records(m: Client, a: Arguments, printer: Printer) -> None:
    table = await m.tables.open(a.table)
    records, fields, asked = m.table(table), _first(table, a), {"prefix": a.prefix, "page_size": page_size(a.limit)}
    listing = records.list_by(a.index, *fields, **asked) if a.index else records.list(*fields, **asked)
    found = await first(listing, a.limit)
    shown = [_flat(a, record) for record in found.records]
    lines = assignments.LINES.get(table.name)
    printer.many(shown, [*map(lines, found.records)] if lines else [_for_people(a, record) for record in shown])
    if found.more:
        say_more(a.limit)


async def _record(m: Client, a: Arguments, printer: Printer) -> None:
    table = await m.tables.open(a.table)
    found = present(await m.table(table).get(*_whole(table, a.key)), _complaint(a))
    record, facts = _flat(a, found), assignments.FACTS.get(table.name)
    printer.one(record, facts(found) if facts else _for_people(a, record))


async def _put(m: Client, a: Arguments, printer: Printer) -> None:
    table = await m.tables.open(a.table)
    fields = {field.name: field for field in msgspec.structs.fields(table.record)}
    given: dict[str, Any] = {}
    for one in a.fields:
        name, equals, text = one.partition("=")
        known = name if name in fields else name.removesuffix("_base64")
        if known not in fields or not equals:
            raise InvalidRequestError(f"{one}: a field of {table.name} and its value; it has {', '.join(fields)}")
        given[known] = _read(name, text, fields[known].type, encoded=known != name)
    missing = [name for name, field in fields.items() if field.required and name not in given]
    if missing:
        raise InvalidRequestError(f"{table.name}: {', '.join(missing)} is missing")
    printer.one({"version": await m.table(table).put(table.record(**given), expected_version=a.expected_version)})


async def _delete(m: Client, a: Arguments, printer: Printer) -> None:
    table = await m.tables.open(a.table)
    records = m.table(table)
    if a.prefix is None and not a.index:
        with absent(_complaint(a)):
            await records.delete(*_whole(table, a.key), expected_version=a.expected_version)
        printer.one({"deleted": True})
        return
    if a.expected_version is not None:
        raise InvalidRequestError("--expected-version is of one record: it does not go with --prefix or --index")
    fields, asked = _first(table, a), {"prefix": a.prefix or "", "index": a.index}
    if not a.yes:
        count = await records.count(*fields, **asked, on_progress=Progress("counted"))
        raise InvalidRequestError(f"{count} records of {a.table} would be deleted: add --yes")
    printer.one({"deleted": await records.delete_prefix(*fields, **asked, on_progress=Progress("deleted"))})


async def _count(m: Client, a: Arguments, printer: Printer) -> None:
    table = await m.tables.open(a.table)
    asked = {"prefix": a.prefix, "index": a.index}
    count = await m.table(table).count(*_first(table, a), **asked, on_progress=Progress("counted"))
    printer.one({"records": count})


def _complaint(a: Arguments) -> str:
    return f"no {a.table} {'/'.join(a.key)}"


def _first(table: PlainTable[Any], a: Arguments) -> list[Any]:
    """The first fields of a key, or of what the index that is named orders by."""
    if not a.index:
        return _fields(table, f"the key of {table.name}", table.key, a.key)
    if a.index not in table.indexes:
        raise InvalidRequestError(
            f"{a.table} has no index {a.index}; its indexes: {', '.join(table.indexes) or 'none'}"
        )
    index = table.indexes[a.index]
    return _fields(table, f"index {a.index}, with the key,", index.names, a.key, elements=index.of_elements)


def _fields(
    table: PlainTable[Any],
    whose: str,
    names: Sequence[str],
    given: list[str],
    least: int = 0,
    *,
    elements: bool = False,
) -> list[Any]:
    """The values of these fields; ``elements``: an element stands for the first of them, a list of texts."""
    if not least <= len(given) <= len(names):
        raise InvalidRequestError(f"{whose} is {', '.join(names)}: it has {len(names)} fields")
    types = {field.name: field.type for field in msgspec.structs.fields(table.record)}
    if elements:
        types[names[0]] = str
    return [_read(name, text, types[name]) for name, text in zip(names, given, strict=False)]


def _whole(table: PlainTable[Any], given: list[str]) -> list[Any]:
    return _fields(table, f"the key of {table.name}", table.key, given, len(table.key))


def _read(name: str, text: str, kind: Any, *, encoded: bool = False) -> Any:
    """A field's value of an argument. What is neither text nor bytes is read as JSON. ``encoded``: base64 of bytes."""
    read: Callable[[Any], Any] = lambda value: msgspec.convert(value, kind)  # noqa: E731
    shape, optional = msgspec.inspect.type_info(kind), False
    if isinstance(shape, msgspec.inspect.UnionType):
        shape, optional = next(one for one in shape.types if not isinstance(one, msgspec.inspect.NoneType)), True
    is_text = isinstance(shape, msgspec.inspect.StrType | msgspec.inspect.LiteralType)
    try:
        said = msgspec.json.decode(text)
    except msgspec.DecodeError:
        said = _NO_JSON
    try:
        if text == "-":
            given = sys.stdin.buffer.read()
            return read(given if isinstance(shape, msgspec.inspect.BytesType) else given.decode())
        if is_text and not (optional and (said is None or isinstance(said, str))):
            return read(text)
        if isinstance(shape, msgspec.inspect.BytesType) and not (optional and said is None):
            return read(base64.b64decode(text, validate=True) if encoded else text.encode())
        if isinstance(shape, msgspec.inspect.BoolType) and text in ("yes", "no"):  # as it is shown
            return text == "yes"
        if said is _NO_JSON and type(shape) in _WORDS:
            raise InvalidRequestError(f"{name}={text}: expected {_WORDS[type(shape)]}")
        return read(msgspec.json.decode(text))
    except (msgspec.MsgspecError, UnicodeDecodeError, binascii.Error) as error:
        raise InvalidRequestError(f"{name}={text}: {error}") from None


_NO_JSON: Any = object()
_WORDS: dict[type, str] = {
    msgspec.inspect.BoolType: "true or false",
    msgspec.inspect.IntType: "a number",
    msgspec.inspect.FloatType: "a number",
}


def _flat(a: Arguments, found: TableRecord[Any]) -> dict[str, Any]:
    """A record's fields, followed by its version and revisions. Secrets are left out unless they are asked for: what is
    written back without them is refused, and never loses them."""
    numbers = msgspec.structs.asdict(found)
    fields = msgspec.structs.asdict(numbers.pop("record"))
    hidden = frozenset[str]() if a.secrets else SECRETS.get(a.table, frozenset())
    return {name: value for name, value in fields.items() if name not in hidden} | numbers


_INSTANT_MS = 10**12
"""No interval is that long: a higher number of milliseconds is a Unix time."""


def _for_people(a: Arguments, record: dict[str, Any]) -> Row:
    """The same with a map in one line; of a table that metad has itself also with units, and a word for each secret
    that is left out."""
    if a.table not in FAMILIES:
        return {name: _in_line(value) for name, value in record.items()}
    hidden = [] if a.secrets else sorted(SECRETS.get(a.table, ()))
    return dict(told_of(name, value) for name, value in record.items()) | dict.fromkeys(hidden, "hidden")


def told_of(name: str, value: Any) -> tuple[str, Any]:
    """A field as people read it: its name without a unit, and its value with one."""
    if isinstance(value, dict):
        return name, _in_line(value)
    base, _, unit = name.rpartition("_")
    if isinstance(value, list) and unit in {"ms", "s", "bytes"}:
        return base, [told_of(name, each)[1] for each in value]
    if unit == "bytes":
        return f"{base} size", value if value is None else people.size(value)
    if unit in {"ms", "s"}:
        ms = None if value is None else value * (1_000 if unit == "s" else 1)
        if ms is None or ms < _INSTANT_MS:
            return base, None if ms is None else people.duration(ms)
        return base, people.when(ms, int(time.time() * 1_000))
    return name, value


def _in_line(value: Any) -> Any:
    return [f"{key}={each}" for key, each in value.items()] if isinstance(value, dict) else value
