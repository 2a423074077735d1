"""The whole protocol as one value: methods, messages, tables, errors and limits, with their meanings.

``metad protocol --json`` prints it, and :mod:`metad_wire.tables_page` makes TABLES.md of it. All of it comes from the
declarations: the meaning of a message or a table is the docstring of its class or module, and that of a field or a
limit is the text behind it.
"""

from __future__ import annotations

import ast
import inspect as sources
import re
import sys
import types
import typing
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from . import cluster, errors, messages, tables, watch
from .connection import frame
from .methods import METHODS, READS, By, For, Method
from .table import TABLES, Shown, Table
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
        "errors": error_rows(),
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
                found[name] = {"value": getattr(module, name), "meaning": text}
    return found


def error_rows() -> list[dict[str, Any]]:
    """The errors, by code."""
    written = texts(errors).classes
    return [
        {
            "code": error.code,
            "name": error.name,
            "retryable": error.retryable,
            "outcome_known": error.outcome_known,
            "meaning": written[error.__name__].partition("\n")[0],
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
        "meaning": texts(sys.modules[f"{tables.__name__}.{table.name}"]).classes[""] if table.plain is None else "",
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
    default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if default == b"":
        return ""
    return [] if isinstance(default, msgspec.Struct) else default


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
    default: Any = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    match default:
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
            return said
    return ""


def meaning(class_: type) -> str:
    """What a message is for."""
    for owner in _declared(class_):
        if said := texts(sys.modules[owner.__module__]).classes.get(owner.__name__):
            return said
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
    classes = {"": plain(ast.get_docstring(tree) or "")}
    fields_: dict[tuple[str, str], str] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            classes[node.name] = plain(ast.get_docstring(node) or "")
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
                        yield name, plain(" ".join(text.split()))
                    case _:
                        comment = lines[node.lineno - 1].partition("  # ")[2]
                        yield name, plain(comment.partition("noqa:")[0].strip())


_ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")


def plain(text: str) -> str:
    """Write a docstring as Markdown."""
    return _ROLE.sub(r"`\1`", text).replace("``", "`").strip()
