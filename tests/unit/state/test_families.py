"""Every table of a family: its declaration, its records in a group, and its bounds, by what the declaration says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from golden_rows import MESSAGES, message_value, rows
from state_rig import Group, item_errors

from metad.config import DedupeConfig
from metad.state.cluster.declarations import KnownTables
from metad_wire import described
from metad_wire import messages as m
from metad_wire.declaration import Declaration, DeclaredField, declaration_of, fault_of, record_type
from metad_wire.errors import InvalidRequestError, MetadError
from metad_wire.families import FAMILIES, PLURALS, SECRETS, family
from metad_wire.families.core import Tenant
from metad_wire.method import Method
from metad_wire.methods import TABLE_DELETE, TABLE_GET, TABLE_PUT, encode
from metad_wire.tables import TABLES
from metad_wire.tables.table import PlainTable
from metad_wire.text.fields import check_of

GOLDEN = {row.name: message_value(row) for row in rows(MESSAGES)}
KNOWN = KnownTables()
COUNTED = {*m.TableRecord.__struct_fields__, "slot", "revision"} - {"record"}
NUMBERS = {"u32": 2**32, "u63": 2**63, "int": 2**63}
RULED = sorted(name for name, table in FAMILIES.items() if table.ruled_by)
each_table = pytest.mark.parametrize("name", sorted(FAMILIES.keys() - {*RULED}))
each_ruled = pytest.mark.parametrize("name", RULED)


def declared(table: PlainTable[Any]) -> Declaration:
    return declaration_of(table.name, table.record, kind=table.kind, key=table.key, routing=table.routing)


@each_table
def test_its_declaration_is_one_that_a_program_could_make(name: str) -> None:
    table = FAMILIES[name]
    assert fault_of(declared(table)) is None
    assert [field.name for field in declared(table).fields][: len(table.key)] == [*table.key], "TABLES.md relies on it"
    assert not {*table.record.__struct_fields__} & COUNTED, "metadctl and Spark show both beside each other"
    assert SECRETS[name] <= {*table.plain.values}
    made = record_type(declared(table))
    PlainTable(name, number=1, kind=table.kind, record=made, key=table.key, routing=table.routing)
    golden = GOLDEN[table.record.__name__]
    assert encode(msgspec.msgpack.decode(encode(golden), type=made)) == encode(golden)
    assert described.meaning(table.record)
    assert silent(table.record) <= {"tenant"}


def silent(message: type[Any]) -> set[str]:
    """The fields whose meaning is not said there."""
    return {field for field in message.__struct_fields__ if not described.field_meaning(message, field)}


@each_ruled
def test_a_table_with_rules_says_its_fields_in_its_record_or_in_what_writes_it(name: str) -> None:
    table = FAMILIES[name]
    assert not {*table.record.__struct_fields__} & COUNTED, "metadctl and Spark show both beside each other"
    assert described.meaning(table.record)
    items = [method.item for method in TABLES[table.ruled_by].batched]
    said = {field for item in items for field in {*item.__struct_fields__} - silent(item)}
    assert silent(table.record) - said <= {"tenant"}


def test_each_family_has_a_hundred_numbers() -> None:
    hundreds: dict[int, set[str]] = {}
    for table in FAMILIES.values():
        hundreds.setdefault(table.number // 100, set()).add(table.record.__module__)
    assert all(len(modules) == 1 for modules in hundreds.values())
    assert len(hundreds) == len({table.record.__module__ for table in FAMILIES.values()})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"name": "kv"}, "there is a table kv"),
        ({"name": "topic"}, "there is a table topic"),
        ({"plural": "topics"}, "whose records are called topics"),
        ({"number": 203}, "number 203 is taken"),
        ({"number": 1_024}, "none of a table in the code"),
        ({"key": ("about",), "routing": ("tenant",)}, "not the first of the key"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], complaint: str) -> None:
    before = (dict(FAMILIES), dict(PLURALS), dict(SECRETS))
    with pytest.raises(TypeError, match=complaint):
        family(**{"number": 299, "name": "other", "record": Tenant, "key": ("tenant",), **changes})
    assert before == (FAMILIES, PLURALS, SECRETS)


# --- in a group ---


def asked(group: Group, table: PlainTable[Any], general: Method[Any, Any], *items: Any) -> Any:
    """The answer of a node to a request as a client sends it."""
    method = table.method(general)
    known = [len(table.record.__struct_fields__)] if general is TABLE_PUT else []
    payload = method.encode_request(method.body(table.number, *known, [*items]))
    verb, _ = KNOWN.verb(general, payload)
    request, refused = method.decode_what_fits(payload)
    command = verb.command(request.body, len(payload), refused)
    if verb.read is not None:
        return method.decode_reply(encode(verb.read(group.machine.reader, command)))
    (outcome,) = group.propose([(command, None)], group.now_ms)
    if isinstance(outcome, MetadError):
        raise outcome
    group.apply(len(group.in_flight))
    return method.decode_reply(outcome)


def put(group: Group, table: PlainTable[Any], *records: Any, expected: int | None = None) -> Any:
    return asked(group, table, TABLE_PUT, *(m.TablePutItem(record, expected) for record in records))


def extremes(field: DeclaredField) -> Iterator[tuple[Any, bool]]:
    """Values of a field at its bounds and behind them, and whether it may have them. Of a list, one of each."""
    if field.type.startswith("list["):
        inner = DeclaredField(field.name, field.type.removeprefix("list[").removesuffix("]"))
        yield [], True
        yield from (([value], fits) for value, fits in extremes(inner))
        return
    kind = field.type.removesuffix(" | None")
    if kind != field.type:
        yield None, True
    if kind in NUMBERS:
        low = -(2**63) if kind == "int" else 0
        least, most = (low if field.least is None else field.least), field.most or NUMBERS[kind] - 1
        yield from ((least, True), (most, True), ("1", False))
        yield from ((value, False) for value in (least - 1, most + 1) if -(2**63) <= value < 2**64)
    elif field.choices:
        yield from ((choice, True) for choice in field.choices)
        yield from (("no such", False), ("", False))
    elif kind in {"str", "bytes"}:
        one: Any = "é" if kind == "str" else b"x"
        most_length = field.length_most if field.length_most is not None else 300
        yield from ((one * field.length_least, True), (one * most_length, True), (5, False))
        if field.length_least:
            yield one * (field.length_least - 1), False
        if field.length_most is not None:
            yield one * (field.length_most + 1), False
    elif kind == "bool":
        yield from ((True, True), (False, True), (1, False))
    elif kind == "float":
        yield from ((0.5, True), ("0.5", False))
    else:
        yield from (({"a": "b"}, True), ({"a": 5}, False))


@each_table
def test_a_record_is_put_and_read_and_what_breaks_a_bound_is_refused_alone(name: str) -> None:
    table, group = FAMILIES[name], Group("metadata", 0, DedupeConfig())
    golden = GOLDEN[table.record.__name__]
    key = table.plain.key(*(getattr(golden, field) for field in table.key))
    assert put(group, table, golden).versions == [1]
    assert item_errors(put(group, table, golden, expected=0)) == {0: "conflict"}
    (found,) = asked(group, table, TABLE_GET, key).found
    assert (found.record, found.version) == (golden, 1)
    types = {field.name: field.type for field in msgspec.structs.fields(table.record)}
    for field in declared(table).fields:
        if check_of(types[field.name]) is not None:
            continue  # a grammar, as that of topics, is no bound: tests/unit/wire/test_grammar.py
        tried = [*extremes(field)]
        reply = put(group, table, *(msgspec.structs.replace(golden, **{field.name: value}) for value, _ in tried))
        assert item_errors(reply) == {at: "invalid_item" for at, (_, fits) in enumerate(tried) if not fits}, field.name
        assert all(field.name in error.message for error in reply.errors), "it says which field"


@each_ruled
def test_a_record_with_rules_is_put_and_deleted_by_nobody(name: str) -> None:
    table, group = FAMILIES[name], Group("metadata", 0, DedupeConfig())
    golden = GOLDEN[table.record.__name__]
    key = table.plain.key(*(getattr(golden, field) for field in table.key))
    for method, item in ((TABLE_PUT, m.TablePutItem(golden)), (TABLE_DELETE, m.TableDeleteItem(key))):
        with pytest.raises(InvalidRequestError, match=f"written by the methods of {table.ruled_by} only"):
            asked(group, table, method, item)
    assert asked(group, table, TABLE_GET, key).found == [None]
