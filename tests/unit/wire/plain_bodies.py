"""Requests about plain tables, made of their declarations: so a test of all methods needs no change for a new table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

import msgspec
from msgspec import inspect

from metad_wire import messages as m
from metad_wire.method import METHODS_BY_NAME
from metad_wire.table import Table
from metad_wire.tables import TABLES

PLAIN: dict[str, Table[Any]] = {
    method.name: table for table in TABLES.values() if table.plain is not None for method in table.methods
}
"""By the name of each of their methods."""
_EMPTY = {inspect.StrType: "", inspect.BytesType: b"", inspect.BoolType: False, inspect.IntType: 0}


def plain_record(table: Table[Any], texts: Sequence[str]) -> Any:
    """A record with these texts in its key, the last of them again and again; everything else is empty."""
    wanted = chain(texts, repeat(texts[-1]))
    types = inspect.type_info(table.record)
    assert isinstance(types, inspect.StructType)
    values = []
    for field in types.fields:
        text = field.name in table.key and isinstance(field.type, inspect.StrType)
        values.append(next(wanted) if text else _EMPTY.get(type(field.type)))
    return table.record(*values)


def plain_body(name: str, many: Sequence[Sequence[str]]) -> Any:
    """A request of one item for each of these texts; a listing about the first."""
    table, method = PLAIN[name], METHODS_BY_NAME[name]
    plain = table.plain
    records = [plain_record(table, texts) for texts in many]
    keys = [plain.key(*(getattr(record, field) for field in table.key)) for record in records]
    if method is plain.put:
        return method.body([m.TablePutItem(record) for record in records])
    if method is plain.delete:
        return method.body([m.TableDeleteItem(key) for key in keys])
    if method is plain.list:
        return m.TableList(list(msgspec.structs.astuple(keys[0]))[: len(table.routing)])
    return method.body(keys)
