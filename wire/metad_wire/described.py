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
from .families import FAMILIES
from .methods import METHODS, READS, By, For, Method
from .table import TABLES, Got, Listed, Shown, Table
from .tables.assignment import ASSIGNMENT
from .tables.plan import PLAN
from .tables.table import DECLARED, PlainTable
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
    messages.TableGet,
    messages.TablePut,
    messages.TablePutReply,
    messages.TableDelete,
    messages.TableList,
    messages.TableCountReply,
)
"""Messages about any key, item or record."""
_ANY = {
    "Request": "the method's body",
    "Get": "the key",
    "GetReply": "what is found",
    "ListReply": "what is found",
    "Items": "the item",
    "TableDeleteItem": "the table's key",
    "TableGet": "the table's key",
}


class Texts(NamedTuple):
    """What is written in a module."""

    classes: dict[str, str]
    fields: dict[tuple[str, str], str]
    constants: dict[str, str]


def described() -> dict[str, Any]:
    """The protocol, as JSON can say it."""
    records = [table.record for table in FAMILIES.values()]
    known = {class_.__name__: class_ for class_ in reached([*CONNECTION, *COMMON, *_bodies(), *records])}
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
    """What a method does. Where its body is a general message, the declaration says it; of a listing both may. Where it
    is that of another method, too, the reply does."""
    texts_ = [meaning(method.reply if method.reply is messages.TableCountReply else method.body)]
    for table in TABLES.values():
        for declared in (table.got, table.batched):
            if method in declared:
                return plain(declared[method].about)
        if method in table.listed:
            texts_.append(plain(table.listed[method].about).replace("None matches", "nil matches"))
    return max(reversed(texts_), key=len)


def shown_tables() -> list[Table[Any]]:
    """The tables whose records clients reach, by name."""
    return [table for _, table in sorted({**TABLES, **FAMILIES}.items()) if table.shows or table in _ASSIGNED]


def table_row(table: Table[Any]) -> dict[str, Any]:
    """What a table is made of."""
    names = {byte: name for name, byte in table.rows.items()}
    return {
        "name": table.name,
        **({"number": table.number} if isinstance(table, PlainTable) else {}),
        "kind": table.kind,
        "key": list(table.key),
        "routing": list(table.routing),
        "record": "" if table.record is None else table.record.__name__,
        "methods": [method.name for method in methods_of(table)],
        "rows": [
            {"name": names[byte], "number": byte, "key": list(key_of(table, shown.key)), "value": type_of(shown.record)}
            for byte, shown in sorted(table.shows.items())
        ],
        "meaning": _meaning_of(table),
    }


def _meaning_of(table: Table[Any]) -> str:
    if isinstance(table, PlainTable):
        return meaning(table.record)
    return plain(texts(sys.modules[f"{tables.__name__}.{table.name}"]).classes[""])


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
    for field, said in zip(_struct(class_).fields, field_rows(class_), strict=True):
        text = field_meaning(class_, field.name) or common_meaning(*said)
        row = {"name": field.name, "type": type_of(field.type), "meaning": text}
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
        case inspect.FloatType():
            return "f64"
        case inspect.LiteralType(values=values):
            return {"one_of": [*values]}
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
    """Say a type for people: ``u63``, ``str?`` (or nil), ``[str] (at most 16)``. An array of a request that has no
    bound here has at most 1000 elements."""
    match type_:
        case "any":
            return any_name
        case str():
            return type_
        case {"int": [low, high]}:
            return f"int {low} to {high}"
        case {"one_of": values}:
            return "one of " + ", ".join(f"`{value}`" for value in values)
        case {"or": [one, "nil"]}:
            return f"{type_text(one, any_name)}?"
        case {"or": each}:
            return " or ".join(type_text(one, any_name) for one in each)
        case {"array": item, **bound}:
            most = bound.get("at_most", messages.BATCH_ITEMS_MAX)
            said = "" if most == messages.BATCH_ITEMS_MAX else f" (at most {most})"
            return f"[{type_text(item, any_name)}]{said}"
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
    """What a field itself says that it means; empty where its name, or the head of the page, does."""
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


def reached(classes: Iterable[type]) -> list[type]:
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

_COMMON = (
    ("`tenant`, `client_id`, `namespace`, `topic`, `filter`, `member`, `sequence`", "str", "of the key of a record"),
    ("`group`", "str", "a consumer group, of the key of a record"),
    ("`key`, `lease`, `name`, `id`", "str", "of the key of a record; `key` and `lease` are unique in their namespace"),
    ("`partition`", "u32", "of a topic, of the key of an offset"),
    ("`broker`", "str", "the name of a broker; in a request that writes the one that asks"),
    ("`broker_epoch`", "u63", "its life, which must own the sessions, or have claimed the wills, that a request names"),
    ("`version`", "u63", "writes of the record since it was created: 1 after the first"),
    ("`create_revision`", "u63", "revision of the write that created the record"),
    ("`mod_revision`", "u63", "revision of the last write of the record"),
    (
        "`expected_version`",
        "u63? = nil",
        "only if this is the current version; 0: only if there is no record; nil: unchecked",
    ),
    ("`versions`", "[u63]", "by position: the version written"),
    ("`client_id_prefix`", "str = empty", "what the client id starts with; needs a tenant"),
    ("`prefix`", "str = empty", "what the names start with; empty: all"),
    ("`revisions`", "[Revision]", "of a reply: one, that of the group, see *Revisions*"),
    ("`errors`", "[ItemError] = []", "the items that failed, in order of `index`"),
    ("`page`", "Page = all defaults", "see *Listings*"),
    ("`slots`", "bin = empty", "a bit map of slots, see *Listings*; empty: all that the group holds"),
    ("`min_revisions`", "[Revision] (at most 1024) = []", "see *Reading what was written*"),
)
"""Fields that mean the same in all messages and have no text of their own: names, type with default, meaning."""
_KNOWN = {name: row[1:] for row in _COMMON for name in re.findall(r"`(\w+)`", row[0])}


def common_meaning(name: str, type_: str, default: str) -> str:
    """What a field of this name and type means in all messages; empty where it has no such meaning."""
    known, meaning_ = _KNOWN.get(name, ("", ""))
    said = " = ".join(filter(None, [type_, default]))
    return meaning_ if said in (known, known.removesuffix(" = []")) else ""


_HEAD = f"""\
# Methods, messages, tables, errors and limits

`metad protocol > wire/TABLES.md` writes this page from the declarations; a test compares the two. `metad protocol
--json` says the same to programs. [PROTOCOL.md](PROTOCOL.md) says how the parts work together: what this page writes as
*Title* is a section there.

**How to read it.** A message is a MessagePack array of its fields, in the order of its list. A field has a name, a type
and, after `=`, its default: the field may be left out together with all fields after it. A field without a default is
required. `T?` is T or nil. `[X]` is an array of X; in a request it has at most 1000 elements unless another bound is
given. An array *by position* has an element for each item of the request: nil, 0, false or empty for one that failed or
has no record. A field without a type is one of these:

| field | type | meaning |
|---|---|---|
{chr(10).join(f"| {names} | {type_} | {meaning} |" for names, type_, meaning in _COMMON)}

The line under a method has the messages of the request and of the answer. Each method follows this rule, unless its
line says otherwise: the leader of the group answers it. A method that *writes* takes an identity, and waits in the lane
`records` (*Overload*). A `Get` reads keys, in the same lane; any other read is of the lane `scans`. Reads are *early*:
0-RTT data may ask for them."""
_ADMINS = """\
A broker does without these. `metad protocol --json` has their messages, and the errors of each. For a change of the
cluster all but administrators get `permission_denied`."""
_ASSIGNS = """\
What metad assigns to brokers. `metad protocol --json` has the rules, messages and errors of these methods."""
_BOUNDS = """\
What is over a limit is refused with the error that is named. What is over the bound of a type, as in `int 1 to 9` or
`(at most 9)`: `invalid_item` in an item, `invalid_request` elsewhere."""
_TABLES = """\
The fields of the key up to the `;`, or all, route: they give the slot (*Routing*), and the group of this kind that has
it has the record. Without them: `metadata-0`. `metad protocol --json` has the tables of families, whose methods are
those of *table*."""
_WATCHED = """\
What a watch reports of each row, by the key of its table unless another is given. `table`, `row` and `number` are those
of `WatchFilter` and `WatchChange`. Kinds: 1 created, 2 changed, 3 deleted, 4 expired, 5 written."""


_TYPED = {
    *("LEASE_TTL_MS_MAX", "LIST_LIMIT_MAX", "MEMBER_PROTOCOLS_MAX", "TRANSACTION_ITEMS_MAX", "WILL_WAIT_MS_MAX"),
    *("PARTITIONS_MAX", "PLAN_BROKERS_MAX", "REPLICAS_MAX"),
}
"""Limits that the types of fields say."""


def page() -> str:
    """The page."""
    return "\n".join([*_lines(), ""])


def _lines() -> Iterator[str]:
    seen: set[str] = set()
    yield _HEAD
    yield from _section("Error codes", outcomes(), "code | name | retry | meaning", error_rows())
    bounds = ([name, f"{limit['value']}", limit["meaning"]] for name, limit in limits().items() if name not in _TYPED)
    head = "limit | value | what it limits"
    yield from _section("Limits", _BOUNDS, head, bounds)
    yield from _section("Tables", _TABLES, "table | groups | key | record", table_rows())
    head = "table | row | number | value | kinds"
    yield from _section("Rows that can be watched", _WATCHED, head, watch_rows())
    yield from ["", "## Messages of a connection"]
    yield from _messages(CONNECTION[:-2], seen, texts_too=True)
    yield from ["", "## Messages of many methods"]
    yield from _messages([*COMMON, *GENERAL[:4]], seen, texts_too=True)
    for name in ("cluster", "watch", DECLARED.name):
        yield from _methods_section(name, seen)
    yield from _messages(GENERAL[4:], seen)
    for table in shown_tables():
        if not isinstance(table, PlainTable) and table.name != "cluster" and table not in _ASSIGNED:
            yield from _methods_section(table.name, seen)
    head = "code | name | what"
    yield from _section("Assignment", _ASSIGNS, head, rows_apart(assigned=True))
    yield from _section("Monitors and administrators", _ADMINS, head, rows_apart(assigned=False))


def _section(title: str, text: str, head: str, rows: Iterable[list[str]]) -> Iterator[str]:
    yield from ["", f"## {title}", "", *([text, ""] if text else [])]
    yield f"| {head} |"
    yield f"|{'---|' * (head.count('|') + 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


_OF_OPERATORS = (
    *("system.status", "system.activity", "system.events", "system.compact", "system.settings", "system.set"),
    *("session.end_tenant", "session.endings"),
    *("role.list", "principal.get", "principal.list", "access.may", "audit.list"),
    *(f"tenants.{verb}" for verb in ("end", "keep", "endings", "list", "use")),
    *("quota.list", "quota.use", "feature.list"),
    *("role.list", "principal.get", "principal.list", "access.may"),
)
_ASSIGNED = (ASSIGNMENT, PLAN)


def _is_assigned(method: Method[Any, Any]) -> bool:
    return method.whose is not For.NODES and method.name.partition(".")[0] in [table.name for table in _ASSIGNED]


def apart(method: Method[Any, Any]) -> bool:
    """Whether a client that stores and reads records does without the method."""
    return method.whose is For.ADMINS or method.name in _OF_OPERATORS or _is_assigned(method)


def _methods_section(name: str, seen: set[str]) -> Iterator[str]:
    """A table, or another group of methods: its text, its methods, and all messages that no section before has."""
    table = TABLES.get(name)
    yield from ["", f"## {name}"]
    if table is not None and (text := table_row(table)["meaning"]):
        yield from ["", text]
    for method in (m for _, m in sorted(METHODS.items()) if m.name.startswith(f"{name}.") and m.whose is not For.NODES):
        if apart(method):
            continue
        yield from ["", f"### `{method.name}` {method.code:#06x}", "", " ".join([_call(method), about(method)]).strip()]
        classes = [one for one in (method.body, method.reply) if not _is_shaped(one)]
        yield from _messages(classes, seen)
        yield from _messages([c for one in (method.body, method.reply) for c in nested(one)], seen)
    if name == "watch":
        yield from _messages(CONNECTION[-2:], seen)
    for shown in () if table is None else table.shows.values():
        yield from _messages(messages_of(shown), seen)


def _call(method: Method[Any, Any]) -> str:
    """The request, the answer, and what differs from the rule at the head of the page."""
    differs = ["writes"] if method.mutates else []
    if method.by is not By.GROUP:
        differs.append(f"answered by any {method.by.value}" if method.by is By.REPLICA else _answered(method.by))
    reads_keys = method.body.__name__ == "Get" or messages.Get in method.body.__mro__
    if method.lane.name != ("RECORDS" if method.mutates or reads_keys else "SCANS"):
        differs.append(f"lane `{method.lane.name.lower()}`")
    if not method.mutates and method.code not in READS:
        differs.append("not early")
    return f"{_exchange(method)}{''.join(f', {each}' for each in differs)}."


def _answered(by: By) -> str:
    return (
        "answered by metadata-0"
        if by is By.METADATA
        else f"answered by {by.value if by is By.ANY else f'the {by.value}'}"
    )


def _exchange(method: Method[Any, Any]) -> str:
    """``KvPut`` → ``KvPutReply``; of a general message also of what it is."""
    request, answer = f"`{method.body.__name__}`", f"`{method.reply.__name__}`"
    for table in TABLES.values():
        if (got := table.got.get(method)) is not None:
            request, answer = f"`Get` of {got.key.__name__}", f"`GetReply` of {_found(got)}"
        elif method in table.batched:
            request = f"`Items` of {method.item.__name__}"
        elif (listed := table.listed.get(method)) is not None:
            answer = f"`ListReply` of {_found(listed)}"
    return f"{request} → {answer}"


def _is_shaped(class_: type) -> bool:
    return any(general in class_.__mro__[1:] for general in GENERAL)


def _messages(classes: Iterable[type], seen: set[str], *, texts_too: bool = False) -> Iterator[str]:
    """The fields of these messages and of those in them. ``texts_too``: what each is for; else its method says it."""
    for class_ in classes:
        if class_.__name__ in seen or _is_shaped(class_):
            continue
        seen.add(class_.__name__)
        name, lines = f"**`{class_.__name__}`**", list(_field_lines(class_))
        said = [": " + meaning(class_)] if texts_too else []
        if not texts_too and len(lines) <= 1:
            yield from ["", f"{name}: {lines[0] if lines else 'an empty array.'}"]
        else:
            yield from ["", "".join([name, *said]), "", *(f"- {line}" for line in lines)]
        yield from _messages(nested(class_), seen, texts_too=texts_too)


def _field_lines(class_: type) -> Iterator[str]:
    """The fields: one that needs words has a line, those between two of them share one."""
    short: list[tuple[list[str], str]] = []
    for name, type_, default in field_rows(class_):
        text, said = field_meaning(class_, name), " = ".join(filter(None, [type_, default]))
        known = not text and common_meaning(name, type_, default) != ""
        if text:
            if short:
                yield _together(short)
            yield f"`{name}`: {said}. {text}"
            short = []
        elif short and short[-1][1] == ("" if known else said) and (known or not default):
            short[-1][0].append(name)
        else:
            short.append(([name], "" if known else said))
    if short:
        yield _together(short)


def _together(fields_: Iterable[tuple[list[str], str]]) -> str:
    """Fields without words, those of one type together."""
    said = (f"{', '.join(f'`{name}`' for name in names)}{type_ and f': {type_}'}" for names, type_ in fields_)
    return "; ".join(said)


_NOTHING_DONE = "; nothing was done"


def outcomes() -> str:
    """Which errors leave open whether a write has happened."""
    open_ = [str(e["code"]) for e in errors_by_code() if not e["outcome_known"]]
    return f"{', '.join(open_)} leave open whether a write has happened; any other says that nothing was done."


def error_rows() -> list[list[str]]:
    """The rows of the errors."""
    return [
        [str(e["code"]), f"`{e['name']}`", _yes(e["retryable"]), e["meaning"].replace(_NOTHING_DONE, "")]
        for e in errors_by_code()
    ]


def rows_apart(*, assigned: bool) -> list[list[str]]:
    """The rows of the methods that stand apart: of assignment, or for monitors and administrators."""
    every = (m for _, m in sorted(METHODS.items()) if m.whose is not For.NODES and apart(m))
    named = (method for method in every if _is_assigned(method) == assigned)
    return [
        [
            f"{m.code:#06x}",
            f"`{m.name}`",
            " ".join(about(m).partition("\n\n")[0].split()).partition(". ")[0].removesuffix("."),
        ]
        for m in named
    ]


def _found(shaped: Got | Listed) -> str:
    kind = get_args(shaped.found)
    return f"[{kind[0].__name__}]" if kind else type_text(type_of(shaped.found), "")


def table_rows() -> list[list[str]]:
    """The rows of the table of tables, but for those of families."""
    return [
        [table.name, table.kind, "; ".join([", ".join(table.routing), *_behind_routing(table)]), _record(table)]
        for table in shown_tables()
        if not isinstance(table, PlainTable)
    ]


def _behind_routing(table: Table[Any]) -> list[str]:
    behind = table.key[len(table.routing) :]
    return [", ".join(behind)] if behind else []


def _record(table: Table[Any]) -> str:
    return "" if table.record is None else table.record.__name__


def watch_rows() -> list[list[str]]:
    """The rows that can be watched. The row of a declared table is a `TableRecord`."""
    rows = []
    for table in shown_tables():
        for byte, shown in sorted(table.shows.items()):
            if not isinstance(table, PlainTable):
                name = next(name for name, number in table.rows.items() if number == byte)
                value = type_text(type_of(shown.record), "")
                kinds = "2" if not table.key else "1 to 4" if shown.counted or table.name == "session" else "3 to 5"
                if (key := key_of(table, shown.key)) != table.key:
                    value += f", by {', '.join(key)}"
                rows.append([table.name, name, str(byte), value, kinds])
    return [*rows, ["a declared table", "record", str(DECLARED.rows["record"]), "TableRecord", "1 to 4"]]


def _yes(value: bool) -> str:
    return "yes" if value else "no"
