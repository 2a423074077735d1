"""The whole protocol as one value: methods, messages, tables, errors and limits, with their meanings.

``metad protocol --json`` prints it, and ``metad protocol`` the page TABLES.md, which is made of it. All of it is from
the declarations: the meaning of a message or a table is the docstring of its class or module, and that of a field or a
limit is the text behind it.
"""

from __future__ import annotations

import ast
import inspect as sources
import re
import sys
import types
import typing
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec import inspect

from . import cluster, errors, messages, tables, watch
from .connection import frame
from .methods import METHODS, READS, By, For, Method
from .table import TABLES, Batched, Got, Listed, Shown, Table
from .text import fields

_LIMITS = (frame, messages, fields, errors, watch)
"""Modules of the protocol that have limits, beside those of tables."""
CONNECTION = (
    messages.Hello,
    messages.Welcome,
    messages.Credit,
    messages.Ping,
    messages.Goaway,
    errors.ErrorBody,
    watch.WatchEvents,
    watch.WatchCredit,
)
"""Payloads of frames that are neither requests nor answers."""
COMMON = (messages.Request, messages.ItemError, messages.Revision, messages.WriteReply, messages.Page)
"""What many methods have in common."""
GENERAL = (
    messages.Get,
    messages.GetReply,
    messages.Items,
    messages.ListReply,
    messages.TableRecord,
    messages.TablePut,
    messages.TablePutReply,
    messages.TableDelete,
    messages.TableList,
)
"""Messages about any key, item or record."""
_ANY = {
    "Request": "the method's body",
    "Get": "the key",
    "GetReply": "what is found",
    "ListReply": "what is found",
    "Items": "the item",
    "TableDeleteItem": "the table's key",
}


class Texts(NamedTuple):
    """What is written in a module."""

    classes: dict[str, str]
    fields: dict[tuple[str, str], str]
    constants: dict[str, str]


def described() -> dict[str, Any]:
    """The protocol, as JSON can say it."""
    known = {class_.__name__: class_ for class_ in _reached([*CONNECTION, *COMMON, *_bodies()])}
    return {
        "protocol": "metad",
        "version": messages.PROTOCOL_VERSION,
        "magic": messages.MAGIC,
        "slots": cluster.SLOTS,
        "frames": {type_.name: int(type_) for type_ in frame.FrameType},
        "features": {str(feature.name): feature.value for feature in messages.Feature},
        "limits": limits(),
        "errors": errors_by_code(),
        "methods": [method_row(method) for _, method in sorted(METHODS.items()) if method.whose is not For.NODES],
        "tables": [table_row(table) for table in shown_tables()],
        "messages": {name: message(class_) for name, class_ in sorted(known.items())},
    }


def limits() -> dict[str, dict[str, Any]]:
    """Name -> value and meaning."""
    found = {}
    for module in (*_LIMITS, *(sys.modules[f"{tables.__name__}.{name}"] for name in tables.NAMES)):
        for name, text in texts(module).constants.items():
            if name.endswith("_MAX") and not name.startswith("_"):
                found[name] = {"value": getattr(module, name), "meaning": plain(text)}
    return found


def errors_by_code() -> list[dict[str, Any]]:
    """The errors, by code."""
    written = texts(errors).classes
    return [
        {
            "code": error.code,
            "name": error.name,
            "retryable": error.retryable,
            "outcome_known": error.outcome_known,
            "meaning": plain(written[error.__name__].partition("\n")[0]),
        }
        for _, error in sorted(errors.ERRORS.items())
    ]


def method_row(method: Method[Any, Any]) -> dict[str, Any]:
    """How a method is called, and what it does."""
    return {
        "code": method.code,
        "name": method.name,
        "body": method.body.__name__,
        "reply": method.reply.__name__,
        "mutates": method.mutates,
        "answered_by": method.by.value,
        "names_group": method.by in {By.GROUP, By.REPLICA},
        "for": method.whose.value,
        "lane": method.lane.name.lower(),
        "early": method.code in READS,
        "meaning": about(method),
    }


def about(method: Method[Any, Any]) -> str:
    """What a method does. Of a listing the declaration says it, and the body if it says more."""
    texts_ = [meaning(method.body)]
    for table in TABLES.values():
        texts_ += [plain(declared[method].about) for declared in _shapes(table) if method in declared]
    return max(reversed(texts_), key=len)


def _shapes(table: Table[Any]) -> tuple[dict[Method[Any, Any], Any], ...]:
    return table.got, table.batched, table.listed


def shown_tables() -> list[Table[Any]]:
    """The tables whose records clients reach, by name."""
    return [table for _, table in sorted(TABLES.items()) if table.shows]


def table_row(table: Table[Any]) -> dict[str, Any]:
    """What a table is made of."""
    names = {byte: name for name, byte in table.rows.items()}
    return {
        "name": table.name,
        "kind": table.kind,
        "key": list(table.key),
        "routing": list(table.routing),
        "record": "" if table.record is None else table.record.__name__,
        "methods": [method.name for method in methods_of(table)],
        "rows": [
            {"name": names[byte], "number": byte, "key": list(key_of(table, shown.key)), "value": type_of(shown.record)}
            for byte, shown in sorted(table.shows.items())
        ],
        "meaning": "" if table.plain else plain(texts(sys.modules[f"{tables.__name__}.{table.name}"]).classes[""]),
    }


def messages_of(shown: Shown) -> list[type]:
    """The key and the value of a row, if they are messages."""
    both = (shown.key, shown.record)
    return [one for one in both if isinstance(one, type) and issubclass(one, messages.Message)]


def key_of(table: Table[Any], key: type[messages.Message] | None) -> tuple[str, ...]:
    """The fields of the key of a row."""
    return () if key is None else tuple(name for name in table.key if name in key.__struct_fields__)


def methods_of(table: Table[Any]) -> list[Method[Any, Any]]:
    """Return the methods that clients may use."""
    named = [m for m in METHODS.values() if m.name.partition(".")[0] == table.name and m.whose is not For.NODES]
    return sorted(named, key=lambda method: method.code)


def message(class_: type) -> dict[str, Any]:
    """A message: its fields in wire order. A field without a default is required."""
    rows = []
    for field in _struct(class_).fields:
        row = {"name": field.name, "type": type_of(field.type), "meaning": field_meaning(class_, field.name)}
        if not field.required:
            row["default"] = default_of(field)
        rows.append(row)
    return {"meaning": meaning(class_), "fields": rows}


def default_of(field: inspect.Field) -> Any:
    """As in JSON: bytes are only ever empty, a message is the list of its own defaults."""
    default = _default(field)
    if default == b"":
        return ""
    return [] if isinstance(default, msgspec.Struct) else default


def _default(field: inspect.Field) -> Any:
    return field.default_factory() if field.default is msgspec.NODEFAULT else field.default


def type_of(type_: Any) -> Any:
    """A type as JSON says it: a name, or a dictionary that says what it is made of."""
    if not isinstance(type_, inspect.Type):
        type_ = inspect.type_info(type_)
    match type_:
        case inspect.IntType(ge=None):
            return "i64"
        case inspect.IntType(ge=0, le=None):
            return "u64"
        case inspect.IntType(ge=0, le=most) if most in _UNSIGNED:
            return _UNSIGNED[most]
        case inspect.IntType(ge=low, le=high):
            return {"int": [low, high]}
        case inspect.StrType() | inspect.BytesType() | inspect.BoolType() | inspect.NoneType() | inspect.AnyType():
            return _NAMES[type(type_)]
        case inspect.UnionType(types=each):
            return {"or": [type_of(one) for one in each]}
        case inspect.ListType(item_type=item, max_length=most):
            return {"array": type_of(item)} | ({} if most is None else {"at_most": most})
        case inspect.VarTupleType(item_type=item):
            return {"array": type_of(item)}
        case inspect.DictType(key_type=key, value_type=value):
            return {"map": [type_of(key), type_of(value)]}
        case inspect.StructType(cls=class_):
            return {"message": class_.__name__}
    raise NotImplementedError(type_)


_UNSIGNED = {0xFFFF_FFFF: "u32", 0x1F_FFFF_FFFF_FFFF: "u53", 0x7FFF_FFFF_FFFF_FFFF: "u63"}
_NAMES: dict[type, str] = {
    inspect.StrType: "str",
    inspect.BytesType: "bin",
    inspect.BoolType: "bool",
    inspect.NoneType: "nil",
    inspect.AnyType: "any",
}


def type_text(type_: Any, any_name: str) -> str:
    """Say a type for people: ``u63``, ``str or nil``, ``array of KvKey (at most 1000)``."""
    match type_:
        case "any":
            return any_name
        case str():
            return type_
        case {"int": [low, high]}:
            return f"int {low} to {high}"
        case {"or": each}:
            return " or ".join(type_text(one, any_name) for one in each)
        case {"array": item, **bound}:
            most = f" (at most {bound['at_most']})" if bound else ""
            return f"array of {type_text(item, any_name)}{most}"
        case {"map": [key, value]}:
            return f"map of {type_text(key, any_name)} to {type_text(value, any_name)}"
    return str(type_["message"])


def default_text(field: inspect.Field) -> str:
    """The default as msgpack would show it; empty where the field is required."""
    if field.required:
        return ""
    match default := _default(field):
        case None:
            return "nil"
        case bool():
            return str(default).lower()
        case b"" | "":
            return "empty"
        case ():
            return "[]"
        case msgspec.Struct():
            return "all defaults"
        case _:
            return str(default)


def field_rows(class_: type) -> list[tuple[str, str, str]]:
    """(name, type, default) of a message, in wire order."""
    any_name = _ANY.get(class_.__name__, "the table's record")
    return [(f.name, type_text(type_of(f.type), any_name), default_text(f)) for f in _struct(class_).fields]


def field_meaning(class_: type, name: str) -> str:
    """What a field means; empty where its name says it."""
    for owner in _declared(class_):
        if said := texts(sys.modules[owner.__module__]).fields.get((owner.__name__, name)):
            return plain(said)
    return ""


def meaning(class_: type) -> str:
    """What a message is for."""
    for owner in _declared(class_):
        if said := texts(sys.modules[owner.__module__]).classes.get(owner.__name__):
            return plain(said)
    return ""


def _declared(class_: type) -> Iterable[type]:
    """A message, and the general one that it is made of."""
    own = (one for one in class_.__mro__ if one.__module__.startswith("metad_wire.") and one is not messages.Message)
    return (one for one in own if one.__name__ in texts(sys.modules[one.__module__]).classes)


def nested(class_: type) -> list[type]:
    """The messages in the fields of a message, in order."""
    found: list[type] = []

    def look(type_: Any) -> None:
        match type_:
            case inspect.StructType(cls=inner):
                found.append(typing.get_origin(inner) or inner)
            case inspect.UnionType(types=each):
                for one in each:
                    look(one)
            case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
                look(item)
            case inspect.DictType(value_type=value):
                look(value)

    for field in _struct(class_).fields:
        look(field.type)
    return found


def _reached(classes: Iterable[type]) -> list[type]:
    """These messages and all that are in them."""
    found: list[type] = []
    left = list(classes)
    while left:
        class_ = left.pop(0)
        if class_ not in found:
            found.append(class_)
            left += nested(class_)
    return found


def _bodies() -> Iterable[type]:
    for method in METHODS.values():
        if method.whose is not For.NODES:
            yield from (method.body, method.reply)
    for table in shown_tables():
        for shown in table.shows.values():
            yield from messages_of(shown)


def _struct(class_: type) -> inspect.StructType:
    struct = inspect.type_info(class_)
    if not isinstance(struct, inspect.StructType):
        raise TypeError(f"{class_.__name__} is no message")
    return struct


@cache
def texts(module: types.ModuleType) -> Texts:
    """What is written in a module beside its code: ``python -OO`` has no docstrings, but the source has."""
    source = sources.getsource(module)
    tree = ast.parse(source)
    lines = source.splitlines()
    classes = {"": ast.get_docstring(tree) or ""}
    fields_: dict[tuple[str, str], str] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            classes[node.name] = ast.get_docstring(node) or ""
            for name, text in _behind(node.body, lines):
                fields_[node.name, name] = text
    return Texts(classes, fields_, dict(_behind(tree.body, lines)))


def _behind(body: list[ast.stmt], lines: list[str]) -> Iterable[tuple[str, str]]:
    """Each assignment to a name, and the text behind it: a literal, or the comment of its line."""
    for node, following in zip(body, [*body[1:], None], strict=True):
        match node:
            case ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]):
                match following:
                    case ast.Expr(ast.Constant(str(text))):
                        yield name, " ".join(text.split())
                    case _:
                        comment = lines[node.lineno - 1].partition("  # ")[2]
                        yield name, comment.partition("noqa:")[0].strip()


_ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")


def plain(text: str) -> str:
    """Write a docstring as Markdown."""
    return _ROLE.sub(r"`\1`", text).replace("``", "`").strip()


# --- the page -------------------------------------------------------------------------------------------------

_HEAD = """\
# Methods, messages, tables, errors and limits

`metad protocol > wire/TABLES.md` writes this page from the declarations; a test compares the two. `metad protocol
--json` says the same to programs. [PROTOCOL.md](PROTOCOL.md) says how the parts work together: what it writes as
*Title* is a section there.

A message is a MessagePack array of its fields, in the order of its list. Behind the name of a field stands its type,
and `= default` if the field may be left out together with all fields after it. A field without a default is required.
`nil` stands for nothing. These fields mean the same everywhere, unless a message says otherwise:

- `revisions` of a reply: one, that of the group, see *Revisions*
- `errors`: the items that failed, in order of `index`
- `page`, `slots` and `after`: see *Listings*
- `min_revisions`: see *Reading what was written*"""
_METHODS = """\
The lane says what goes first where requests wait (*Overload*). A method that writes takes an identity. *Early*:
0-RTT data may ask for it. `session.get` and `lease.revoke`, for example, are among the reads and batches below."""
_READS = """\
The body is a `Get` of the key and the reply a `GetReply` of what is found. A message may be missing; of an array
there always is one, which may be empty. The lane is `records`, the leader of the group answers, and 0-RTT data may
ask. `too_large` if the reply would be."""
_BATCHES = """\
The body is `Items` of the item and the reply a `WriteReply`. The lane is `records`, and the leader of the group
answers."""
_LISTS = "The reply is a `ListReply` of what is found, in order: see *Listings*."
_TABLES = """\
Where a record lives: the routing fields of its key give the slot (*Routing*), and the group of this kind that holds
the slot has the record. A table without routing is in `metadata-0`. A *plain table* has no section of its own: its
record is an array of the fields that its row lists, and its methods are those of *Plain tables*."""
_PLAIN = """\
A plain table stores records by key. The key is an array of the fields that the table's row names. `get` is a `Get`
of keys and finds a `TableRecord` of each. `put` answers with a `TablePutReply`; item error `conflict` if
`expected_version` is not that of the record. `delete` answers with a `WriteReply`; item errors `not_found` if there
is no record, whatever version was expected, and `conflict`. `list` answers with a `ListReply` of `TableRecord`, in
the order of the key. If `fields` has all routing fields, one group holds what is listed; otherwise ask every group
of the kind (*Listings*). `invalid_request` if there are more fields than the key has, if one has another type than
the key's, if there is a prefix for a field that is not text, or if `after` lacks fields of the key."""
_WATCHED = """\
What a watch reports of each row. `table`, `row` and `number` are those of `WatchFilter` and `WatchChange`. Kinds: 1
created, 2 changed, 3 deleted, 4 expired, 5 written."""


def page() -> str:
    """The page."""
    return "\n".join([*_lines(), ""])


def _lines() -> Iterator[str]:
    seen: set[str] = set()
    yield _HEAD
    yield from _section("Error codes", "", "code | name | retry | outcome known | meaning", error_rows())
    bounds = ([name, f"{limit['value']}", limit["meaning"]] for name, limit in limits().items())
    text = "What is over a limit is refused with the error that is named."
    yield from _section("Limits", text, "limit | value | what it limits", bounds)
    head = "code | name | body | reply | writes | answered by | for | lane | early"
    yield from _section("Methods", _METHODS, head, method_rows())
    yield from _section("Reads of keys", _READS, "code | name | key | found | what that is", read_rows())
    yield from _section("Writes of items", _BATCHES, "code | name | item | what it does", batch_rows())
    yield from _section("What is listed", _LISTS, "code | name | found | what that is", list_rows())
    yield from _section("Tables", _TABLES, "table | groups | key | routed by | record | methods", table_rows())
    head = "table | row | number | key | value | kinds"
    yield from _section("Rows that can be watched", _WATCHED, head, watch_rows())
    yield from ["", "## Messages of a connection"]
    yield from _messages(CONNECTION[:-2], seen)
    yield from ["", "## Messages of many methods"]
    yield from _messages([*COMMON, *GENERAL[:4]], seen)
    yield from ["", "## Plain tables", "", _PLAIN]
    yield from _messages(GENERAL[4:], seen)
    for name in ("system", "cluster", "watch"):
        yield from _methods_section(name, seen)
    for table in shown_tables():
        if table.plain is None and table.name != "cluster":
            yield from _methods_section(table.name, seen)


def _section(title: str, text: str, head: str, rows: Iterable[list[str]]) -> Iterator[str]:
    yield from ["", f"## {title}", "", *([text, ""] if text else [])]
    yield f"| {head} |"
    yield f"|{'---|' * (head.count('|') + 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _methods_section(name: str, seen: set[str]) -> Iterator[str]:
    """A table, or another group of methods: its text, its methods, and all messages that no section before has."""
    table = TABLES.get(name)
    yield from ["", f"## {name}"]
    if table is not None and (text := table_row(table)["meaning"]):
        yield from ["", text]
    for method in (m for _, m in sorted(METHODS.items()) if m.name.startswith(f"{name}.") and m.whose is not For.NODES):
        shaped = table is not None and (method in table.got or method in table.batched)
        if not shaped:
            yield from ["", f"### `{method.name}`"]
            if text := about(method):
                yield from ["", text]
        classes = [one for one in (method.body, method.reply) if not _is_shaped(one)]
        yield from _messages(classes, seen, about=method.body.__name__)
        yield from _messages([c for one in (method.body, method.reply) for c in nested(one)], seen)
    if name == "watch":
        yield from _messages(CONNECTION[-2:], seen)
    for shown in () if table is None else table.shows.values():
        yield from _messages(messages_of(shown), seen)


def _is_shaped(class_: type) -> bool:
    return any(general in class_.__mro__[1:] for general in GENERAL)


def _messages(classes: Iterable[type], seen: set[str], about: str = "") -> Iterator[str]:
    """Tables of these messages and of those in them. ``about``: one whose text was said already."""
    for class_ in classes:
        if class_.__name__ in seen or _is_shaped(class_):
            continue
        seen.add(class_.__name__)
        yield from ["", f"#### `{class_.__name__}`", ""]
        if class_.__name__ != about and (text := meaning(class_)):
            yield from [text, ""]
        rows = field_rows(class_)
        if not rows:
            yield "An empty array."
            continue
        yield from _field_lines(class_)
        yield from _messages(nested(class_), seen)


def _field_lines(class_: type) -> Iterator[str]:
    """A line for each field; fields of one type that need no words share one."""
    lines: list[tuple[list[str], str, str]] = []
    for name, type_, default in field_rows(class_):
        text = field_meaning(class_, name)
        if lines and not text and lines[-1][1:] == (type_, "") and not default:
            lines[-1][0].append(name)
        else:
            lines.append(([name], f"{type_} = {default}" if default else type_, text))
    for names, type_, text in lines:
        yield f"- {', '.join(f'`{name}`' for name in names)}: {type_}{f'. {text}' if text else ''}"


def error_rows() -> list[list[str]]:
    """The rows of the errors."""
    return [
        [str(e["code"]), f"`{e['name']}`", _yes(e["retryable"]), _yes(e["outcome_known"]), e["meaning"]]
        for e in errors_by_code()
    ]


def method_rows() -> list[list[str]]:
    """The rows of the methods that have messages of their own."""
    named = (m for _, m in sorted(METHODS.items()) if m.whose is not For.NODES and not _of_a_shape(m))
    return [
        [f"{m.code:#06x}", *(f"`{each}`" for each in (m.name, m.body.__name__, m.reply.__name__)), *_how(m)]
        for m in named
    ]


def _how(method: Method[Any, Any]) -> list[str]:
    row = method_row(method)
    return [_yes(row["mutates"]), row["answered_by"], row["for"], row["lane"], _yes(row["early"])]


def _of_a_shape(method: Method[Any, Any]) -> bool:
    table = TABLES.get(method.name.partition(".")[0])
    return table is not None and (table.plain is not None or method in table.got or method in table.batched)


def read_rows() -> list[list[str]]:
    """The rows of the methods that read keys."""
    return [
        [f"{method.code:#06x}", f"`{method.name}`", got.key.__name__, _found(got), got.about]
        for method, got in _shaped("got")
    ]


def batch_rows() -> list[list[str]]:
    """The rows of the methods that write what items say."""
    return [
        [f"{method.code:#06x}", f"`{method.name}`", method.item.__name__, batched.about]
        for method, batched in _shaped("batched")
    ]


def list_rows() -> list[list[str]]:
    """The rows of the methods that list."""
    rows = []
    for method, listed in _shaped("listed"):
        about = plain(listed.about.partition(". ")[0].removesuffix("."))
        rows.append([f"{method.code:#06x}", f"`{method.name}`", _found(listed), about])
    return rows


def _shaped(kind: str) -> list[tuple[Method[Any, Any], Any]]:
    found: list[tuple[Method[Any, Any], Got | Batched | Listed]] = []
    for table in TABLES.values():
        found += getattr(table, kind).items() if table.plain is None else ()
    return sorted(found, key=lambda each: each[0].code)


def _found(shaped: Got | Listed) -> str:
    kind = get_args(shaped.found)
    return f"array of {kind[0].__name__}" if kind else type_text(type_of(shaped.found), "")


def table_rows() -> list[list[str]]:
    """The rows of the table of tables."""
    rows = []
    for table in shown_tables():
        methods = [f"{m.name.partition('.')[2]} {m.code:#06x}" for m in methods_of(table)]
        record = _record(table)
        rows.append(
            [table.name, table.kind, ", ".join(table.key), ", ".join(table.routing), record, ", ".join(methods)]
        )
    return rows


def _record(table: Table[Any]) -> str:
    if table.record is None:
        return ""
    name = table.record.__name__
    if table.plain is None:
        return name
    fields = [f"{field} {type_} {default}".strip() for field, type_, default in field_rows(table.record)]
    return f"{name}: {', '.join(fields)}"


def watch_rows() -> list[list[str]]:
    """The rows that can be watched. The row of a plain table is a `TableRecord`."""
    rows = []
    for table in shown_tables():
        for byte, shown in sorted(table.shows.items()):
            if table.plain is None:
                name = next(name for name, number in table.rows.items() if number == byte)
                value = type_text(type_of(shown.record), "")
                kinds = "2" if not table.key else "1 to 4" if shown.counted or table.name == "session" else "3 to 5"
                rows.append([table.name, name, str(byte), ", ".join(key_of(table, shown.key)), value, kinds])
    return [*rows, ["a plain table", "its only one", "by `metad protocol --json`", "its key", "TableRecord", "1 to 4"]]


def _yes(value: bool) -> str:
    return "yes" if value else "no"
