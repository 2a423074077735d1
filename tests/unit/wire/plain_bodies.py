"""Requests that follow from declarations, of plain tables and of methods that have a shape: so a test of all methods
needs no change for a new one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any, get_args

import msgspec
from msgspec import inspect

from metad_wire import messages as m
from metad_wire.families import FAMILIES
from metad_wire.method import METHODS_BY_NAME, By, Method
from metad_wire.table import Table
from metad_wire.tables import TABLES
from metad_wire.tables.table import DECLARED, TABLE_TRANSACT, PlainTable

PLAIN: dict[str, Table[Any]] = {
    method.name: table
    for table in TABLES.values()
    for method in (table.methods if table is DECLARED else [*table.got, *table.batched, *table.listed])
    if method.by is By.GROUP
}
"""By the name of each of their methods."""
_GOT = {method.body: (method, got) for table in TABLES.values() for method, got in table.got.items()}
_EMPTY = {inspect.StrType: "", inspect.BytesType: b"", inspect.BoolType: False}


def filled(kind: Any, texts: Sequence[str], names: Sequence[str] | None = None) -> Any:
    """A message with these texts in its fields of these names, by default in all, the last of them again and again;
    everything else is empty."""
    wanted = chain(texts, repeat(texts[-1]))
    types = inspect.type_info(kind)
    assert isinstance(types, inspect.StructType)
    values = []
    for field in types.fields:
        if not field.required and names is None:
            break
        text = (names is None or field.name in names) and isinstance(field.type, inspect.StrType)
        if isinstance(field.type, inspect.StructType):
            values.append(filled(field.type.cls, texts))
        elif isinstance(field.type, inspect.ListType):
            values.append([])
        elif isinstance(field.type, inspect.LiteralType):
            values.append(field.type.values[0])
        elif isinstance(field.type, inspect.IntType):
            values.append(max(0, field.type.ge or 0))
        else:
            values.append(next(wanted) if text else _EMPTY.get(type(field.type)))
    return kind(*values)


def found(body: m.Get[Any]) -> Any:
    """A reply to a read of keys that finds something of each."""
    if (declared := _GOT.get(type(body))) is None:  # of a plain table
        return m.GetReply([None] * len(body.items))
    method, got = declared
    if got.may_miss:
        return method.reply(
            [filled(got.found, msgspec.structs.astuple(key), got.key.__struct_fields__) for key in body.items]
        )
    return method.reply([[filled(kind, ["n"]) for kind in get_args(got.found)] or 5 for _ in body.items])


def plain_body(name: str, many: Sequence[Sequence[str]]) -> Any:
    """A request of one item for each of these texts; a listing about the first."""
    table, method = PLAIN[name], METHODS_BY_NAME[name]
    if method in table.got:
        return method.body([filled(table.got[method].key, texts) for texts in many])
    if method in table.batched:
        return method.body([filled(method.item, texts) for texts in many])
    if table is not DECLARED:
        many = [many[0] if all(many[0]) else ["t"]]  # no filter is empty
        return method.body(**dict(zip(table.listed[method].asked, chain(many[0], repeat(many[0][-1])), strict=False)))
    return declared_body(FAMILIES["topic_settings"], method, many)


def declared_body(table: PlainTable[Any], method: Method[Any, Any], many: Sequence[Sequence[str]]) -> Any:
    """The same of a method of declared tables, about this one."""
    plain, own, number = table.plain, table.method(method), table.number
    records = [table.record(**dict(zip(table.key, chain(texts, repeat(texts[-1])), strict=False))) for texts in many]
    keys = [plain.key(*(getattr(record, field) for field in table.key)) for record in records]
    if method is TABLE_TRANSACT:
        parts = [(list(msgspec.structs.astuple(key)), len(table.routing)) for key in keys]
        return method.body(
            [m.TableTransaction(table.kind, key[:n], [], [m.TableOperation(number, key=key)]) for key, n in parts]
        )
    if own is plain.put:
        known = len(table.record.__struct_fields__)
        return own.body(number, known, [m.TablePutItem(record) for record in records])
    if own is plain.delete:
        return own.body(number, [m.TableDeleteItem(key) for key in keys])
    if own in (plain.list, plain.counts):
        return m.TableList(number, list(msgspec.structs.astuple(keys[0]))[: len(table.routing)])
    return own.body(number, keys)
