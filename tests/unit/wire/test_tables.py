"""Declarations of tables: what makes no sense is refused; what is spelled out for speed says what the general does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_strategies import values_of

from metad_wire import messages as m
from metad_wire.errors import InvalidRequestError
from metad_wire.messages import KEY_BYTES_MAX
from metad_wire.method import METHODS
from metad_wire.routing import KINDS, ROUTES
from metad_wire.table import Table
from metad_wire.tables import ROWS, TABLES, moving_rows

KEYED = [table for table in TABLES.values() if table.key]
NAMES = st.text(max_size=4) | st.text("a\0\x01\xff/", max_size=4) | st.text("ab", min_size=120, max_size=160)
each_keyed = pytest.mark.parametrize("table", KEYED, ids=lambda table: table.name)


def items_of(table: Table) -> st.SearchStrategy[list[Any]]:
    """Lists of things that have the fields of the table's key."""
    types = {field.name: field.type for field in msgspec.structs.fields(table.record)}
    fields = {name: NAMES if types[name] is str else values_of(types[name]) for name in table.key}
    return st.lists(st.builds(SimpleNamespace, **fields), max_size=5)


@each_keyed
@given(data=st.data())
def test_what_is_spelled_out_is_what_the_declaration_says(table: Table, data: st.DataObject) -> None:
    items = data.draw(items_of(table))
    keys, crcs = table.keys(items)
    general_keys, general_crcs = table.general_keys(items)
    assert keys == general_keys
    assert list(crcs) == list(general_crcs) == list(table.crcs(items))


@each_keyed
def test_a_key_that_is_too_long_is_refused_by_position(table: Table) -> None:
    short: dict[str, Any] = {name: 0 if name == "partition" else "a" for name in table.key}
    long = {**short, table.key[0]: "a" * (KEY_BYTES_MAX + 1)}
    for keys in (table.keys, table.general_keys):
        with pytest.raises(InvalidRequestError, match="item 1: its key fields take"):
            keys([SimpleNamespace(**short), SimpleNamespace(**long)])


def test_routes_and_kinds_are_those_of_the_tables() -> None:
    assert {METHODS[code].name for code in KINDS} - {METHODS[code].name for code in ROUTES} == {"session.list"}
    assert {code: table.kind for code, table in ROUTES.items()}.items() <= KINDS.items()


def test_every_row_of_a_routed_table_moves() -> None:
    assert {byte for kind in ("metadata", "offset", "data") for byte in moving_rows(kind)} == {
        byte for table in TABLES.values() if table.routing for byte in table.rows.values()
    }


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("kv", {}, "there is a table kv already"),
        ("other", {"rows": {"record": 0x30}}, "kv has row 0x30 already"),
        ("other", {"routing": ("key",)}, "not the first of the key"),
        ("other", {"routing": ()}, "not the first of the key"),
        ("other", {"key": ("namespace", "value")}, "field value of the key is neither"),
        ("other", {"key": ("namespace", "nothing")}, "field nothing of the key is neither"),
        ("other", {"record": m.OffsetKey, "key": ("partition",), "routing": ("partition",)}, "field partition"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, change: dict[str, Any], complaint: str) -> None:
    before = (dict(TABLES), dict(ROWS))
    declaration: dict[str, Any] = {
        "kind": "data",
        "rows": {"record": 0xEE},
        "record": m.Kv,
        "key": ("namespace", "key"),
        "routing": ("namespace",),
    }
    with pytest.raises(TypeError, match=complaint):
        Table(name, **{**declaration, **change})
    assert before == (TABLES, ROWS)
