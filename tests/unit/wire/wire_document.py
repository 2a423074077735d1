"""Renders what the code says the way wire/PROTOCOL.md says it, so that a test can compare them. Run by hand, it writes
the rows of tables, and of methods that have a shape."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import inspect

from metad_wire.tables import TABLES

_ANY_NAMES = {
    "Request": "the method's body",
    "Get": "the key",
    "GetReply": "what is found",
    "ListReply": "what is found",
    "Items": "the item",
    "TableDeleteItem": "the table's key",
}
PROTOCOL = Path(__file__).resolve().parents[3] / "wire" / "PROTOCOL.md"


def type_name(type_: inspect.Type) -> str:
    """``u63``, ``str or nil``, ``array of KvKey (at most 10000)``…"""
    match type_:
        case inspect.IntType(ge=0, le=None):
            return "u64"
        case inspect.IntType(ge=0, le=0xFFFF_FFFF):
            return "u32"
        case inspect.IntType(ge=0, le=0x1F_FFFF_FFFF_FFFF):
            return "u53"
        case inspect.IntType(ge=0, le=0x7FFF_FFFF_FFFF_FFFF):
            return "u63"
        case inspect.IntType(ge=None):
            return "i64"
        case inspect.IntType(ge=low, le=high):
            return f"int {low} to {high}"
        case inspect.StrType():
            return "str"
        case inspect.BytesType():
            return "bin"
        case inspect.BoolType():
            return "bool"
        case inspect.NoneType():
            return "nil"
        case inspect.UnionType(types=types):
            return " or ".join(type_name(each) for each in types)
        case inspect.ListType(item_type=item, max_length=most):
            return f"array of {type_name(item)}" + ("" if most is None else f" (at most {most})")
        case inspect.DictType(key_type=key, value_type=value):
            return f"map of {type_name(key)} to {type_name(value)}"
        case inspect.VarTupleType(item_type=item):
            return f"array of {type_name(item)}"
        case inspect.StructType(cls=cls):
            return cls.__name__
        case inspect.AnyType():
            return "ANY"
    raise NotImplementedError(type_)


def default_name(field: inspect.Field) -> str:
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


def fields_of(class_: type) -> list[tuple[str, str, str]]:
    """(name, type, default) of a message, in wire order."""
    struct = inspect.type_info(class_)
    assert isinstance(struct, inspect.StructType)
    any_name = _ANY_NAMES.get(class_.__name__, "the table's record")
    return [(f.name, type_name(f.type).replace("ANY", any_name), default_name(f)) for f in struct.fields]


def table_rows() -> list[str]:
    """The rows of the table of tables."""
    rows = []
    for _, table in sorted(TABLES.items()):
        if table.routing:
            record = table.record.__name__
            if table.plain is not None:
                described = [f"{name} {type_} {default}".strip() for name, type_, default in fields_of(table.record)]
                record += f": {', '.join(described)}"
            methods = [f"{method.name.partition('.')[2]} {method.code:#06x}" for method in table.methods]
            cells = (table.name, table.kind, ", ".join(table.key), ", ".join(table.routing), record, ", ".join(methods))
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def read_rows() -> list[str]:
    """The rows of the methods that read keys."""
    rows = {}
    for table in TABLES.values():
        for method, got in table.got.items():
            kind = get_args(got.found)
            found = f"array of {kind[0].__name__}" if kind else type_name(inspect.type_info(got.found))
            cells = (f"{method.code:#06x}", f"`{method.name}`", got.key.__name__, found, got.about)
            rows[method.code] = f"| {' | '.join(cells)} |"
    return [row for _, row in sorted(rows.items())]


def batch_rows() -> list[str]:
    """The rows of the methods that write what items say."""
    rows = {}
    for table in TABLES.values():
        for method, batched in table.batched.items():
            cells = (f"{method.code:#06x}", f"`{method.name}`", method.item.__name__, batched.about)
            rows[method.code] = f"| {' | '.join(cells)} |"
    return [row for _, row in sorted(rows.items())]


def list_rows() -> list[str]:
    """The rows of the methods that list."""
    rows = {}
    for table in TABLES.values():
        for method, listed in table.listed.items() if table.plain is None else ():
            found = type_name(inspect.type_info(listed.found))
            about = listed.about.partition(". ")[0].removesuffix(".").replace("``", "`")
            cells = (f"{method.code:#06x}", f"`{method.name}`", f"`{method.reply.__name__}`", found, about)
            rows[method.code] = f"| {' | '.join(cells)} |"
    return [row for _, row in sorted(rows.items())]


def fill(heading: str, rows: list[str]) -> None:
    """Write the rows of the table behind a heading anew."""
    before, mark, rest = PROTOCOL.read_text(encoding="utf-8").partition(f"\n### {heading}\n")
    table = re.compile(r"(^\|[-|]+\|\n)(?:\|.*\n)*", re.MULTILINE)
    rest = table.sub(lambda found: found[1] + "".join(f"{row}\n" for row in rows), rest, count=1)
    PROTOCOL.write_text(before + mark + rest, encoding="utf-8")


def tables(text: str) -> dict[str, list[list[str]]]:
    """The rows of each table of a Markdown page, by the nearest heading above it; header rows are left out."""
    found: dict[str, list[list[str]]] = {}
    heading = ""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("#"):
            heading = line.lstrip("#").strip().strip("`")
        elif line.startswith("|") and not set(line) <= set("|-: "):
            if number + 1 < len(lines) and set(lines[number + 1]) <= set("|-: ") and lines[number + 1]:
                continue
            cells = [cell.strip().strip("`") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            found.setdefault(heading, []).append(cells)
    return found


def hex_blocks(text: str) -> dict[str, bytes]:
    """The ``hex`` blocks of a Markdown page by their first line's comment, other comments left out."""
    blocks = {}
    for block in re.findall(r"```hex\n(.*?)```", text, re.DOTALL):
        first, *lines = block.splitlines()
        data = "".join(line.partition("#")[0] for line in lines)
        blocks[first.removeprefix("#").strip()] = bytes.fromhex(data)
    return blocks


if __name__ == "__main__":
    fill("Tables", table_rows())
    fill("Reads of keys", read_rows())
    fill("Writes of items", batch_rows())
    fill("What is listed", list_rows())
