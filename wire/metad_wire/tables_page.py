"""TABLES.md: what :mod:`metad_wire.described` says of the protocol, for people. ``metad protocol`` prints it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, get_args

from . import described as d
from .methods import METHODS, For, Method
from .table import TABLES, Batched, Got, Listed, Table

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
    limits = ([name, f"{limit['value']}", limit["meaning"]] for name, limit in d.limits().items())
    text = "What is over a limit is refused with the error that is named."
    yield from _section("Limits", text, "limit | value | what it limits", limits)
    head = "code | name | body | reply | writes | answered by | for | lane | early"
    yield from _section("Methods", _METHODS, head, method_rows())
    yield from _section("Reads of keys", _READS, "code | name | key | found | what that is", read_rows())
    yield from _section("Writes of items", _BATCHES, "code | name | item | what it does", batch_rows())
    yield from _section("What is listed", _LISTS, "code | name | found | what that is", list_rows())
    yield from _section("Tables", _TABLES, "table | groups | key | routed by | record | methods", table_rows())
    head = "table | row | number | key | value | kinds"
    yield from _section("Rows that can be watched", _WATCHED, head, watch_rows())
    yield from ["", "## Messages of a connection"]
    yield from _messages(d.CONNECTION[:-2], seen)
    yield from ["", "## Messages of many methods"]
    yield from _messages([*d.COMMON, *d.GENERAL[:4]], seen)
    yield from ["", "## Plain tables", "", _PLAIN]
    yield from _messages(d.GENERAL[4:], seen)
    for name in ("system", "cluster", "watch"):
        yield from _methods_section(name, seen)
    for table in d.shown_tables():
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
    if table is not None and (text := d.table_row(table)["meaning"]):
        yield from ["", text]
    for method in (m for _, m in sorted(METHODS.items()) if m.name.startswith(f"{name}.") and m.whose is not For.NODES):
        shaped = table is not None and (method in table.got or method in table.batched)
        if not shaped:
            yield from ["", f"### `{method.name}`"]
            if text := d.about(method):
                yield from ["", text]
        classes = [one for one in (method.body, method.reply) if not _is_shaped(one)]
        yield from _messages(classes, seen, about=method.body.__name__)
        yield from _messages([c for one in (method.body, method.reply) for c in d.nested(one)], seen)
    if name == "watch":
        yield from _messages(d.CONNECTION[-2:], seen)
    for shown in () if table is None else table.shows.values():
        yield from _messages(d.messages_of(shown), seen)


def _is_shaped(class_: type) -> bool:
    return any(general in class_.__mro__[1:] for general in d.GENERAL)


def _messages(classes: Iterable[type], seen: set[str], about: str = "") -> Iterator[str]:
    """Tables of these messages and of those in them. ``about``: one whose text was said already."""
    for class_ in classes:
        if class_.__name__ in seen or _is_shaped(class_):
            continue
        seen.add(class_.__name__)
        yield from ["", f"#### `{class_.__name__}`", ""]
        if class_.__name__ != about and (text := d.meaning(class_)):
            yield from [text, ""]
        rows = d.field_rows(class_)
        if not rows:
            yield "An empty array."
            continue
        yield from _field_lines(class_)
        yield from _messages(d.nested(class_), seen)


def _field_lines(class_: type) -> Iterator[str]:
    """A line for each field; fields of one type that need no words share one."""
    lines: list[tuple[list[str], str, str]] = []
    for name, type_, default in d.field_rows(class_):
        text = d.field_meaning(class_, name)
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
        for e in d.error_rows()
    ]


def method_rows() -> list[list[str]]:
    """The rows of the methods that have messages of their own."""
    named = (m for _, m in sorted(METHODS.items()) if m.whose is not For.NODES and not _of_a_shape(m))
    return [
        [f"{m.code:#06x}", *(f"`{each}`" for each in (m.name, m.body.__name__, m.reply.__name__)), *_how(m)]
        for m in named
    ]


def _how(method: Method[Any, Any]) -> list[str]:
    row = d.method_row(method)
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
        about = d.plain(listed.about.partition(". ")[0].removesuffix("."))
        rows.append([f"{method.code:#06x}", f"`{method.name}`", _found(listed), about])
    return rows


def _shaped(kind: str) -> list[tuple[Method[Any, Any], Any]]:
    found: list[tuple[Method[Any, Any], Got | Batched | Listed]] = []
    for table in TABLES.values():
        found += getattr(table, kind).items() if table.plain is None else ()
    return sorted(found, key=lambda each: each[0].code)


def _found(shaped: Got | Listed) -> str:
    kind = get_args(shaped.found)
    return f"array of {kind[0].__name__}" if kind else d.type_text(d.type_of(shaped.found), "")


def table_rows() -> list[list[str]]:
    """The rows of the table of tables."""
    rows = []
    for table in d.shown_tables():
        methods = [f"{m.name.partition('.')[2]} {m.code:#06x}" for m in d.methods_of(table)]
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
    fields = [f"{field} {type_} {default}".strip() for field, type_, default in d.field_rows(table.record)]
    return f"{name}: {', '.join(fields)}"


def watch_rows() -> list[list[str]]:
    """The rows that can be watched. The row of a plain table is a `TableRecord`."""
    rows = []
    for table in d.shown_tables():
        for byte, shown in sorted(table.shows.items()):
            if table.plain is None:
                name = next(name for name, number in table.rows.items() if number == byte)
                value = d.type_text(d.type_of(shown.record), "")
                kinds = "2" if not table.key else "1 to 4" if shown.counted or table.name == "session" else "3 to 5"
                rows.append([table.name, name, str(byte), ", ".join(d.key_of(table, shown.key)), value, kinds])
    return [*rows, ["a plain table", "its only one", "by `metad protocol --json`", "its key", "TableRecord", "1 to 4"]]


def _yes(value: bool) -> str:
    return "yes" if value else "no"
