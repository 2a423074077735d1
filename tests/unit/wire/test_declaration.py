"""Tables as data: what a Struct says, what may be declared, and how a declaration grows."""

from __future__ import annotations

import struct
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import Meta
from wire_strategies import values_of

from metad_wire.declaration import (
    DECLARATION_BYTES_MAX,
    Declaration,
    DeclaredField,
    Record,
    declaration_of,
    difference,
    fault_of,
    record_type,
)
from metad_wire.method import encode
from metad_wire.tables.table import PlainTable
from metad_wire.text.fields import U32, U63


class Everything(Record, frozen=True):
    """All that a field can be."""

    tenant: str
    number: U32
    name: Annotated[str, Meta(min_length=1, max_length=5)]
    few: Annotated[int, Meta(ge=1, lt=10)]
    wide: int
    at_ms: U63
    value: bytes = b"\x00"
    share: float = 0.5
    on: bool = True
    mode: Literal["fast", "safe"] = "safe"
    notes: Annotated[list[str], Meta(max_length=3)] = []  # noqa: RUF012
    counts: dict[str, list[U32]] = {}  # noqa: RUF012
    last: U63 | None = None


DECLARED = declaration_of(
    "everything", Everything, kind="data", key=("tenant", "number"), routing=("tenant",), about="All of it."
)
MADE = record_type(DECLARED)


def test_a_struct_says_its_declaration() -> None:
    assert DECLARED.about == "All of it."
    assert (DECLARED.key, DECLARED.routing, DECLARED.kind) == (["tenant", "number"], 1, "data")
    assert [(field.name, field.type) for field in DECLARED.fields] == [
        ("tenant", "str"),
        ("number", "u32"),
        ("name", "str"),
        ("few", "int"),
        ("wide", "int"),
        ("at_ms", "u63"),
        ("value", "bytes"),
        ("share", "float"),
        ("on", "bool"),
        ("mode", "str"),
        ("notes", "list[str]"),
        ("counts", "dict[str, list[u32]]"),
        ("last", "u63 | None"),
    ]
    few = DECLARED.fields[3]
    assert (few.least, few.most) == (1, 9)
    assert DECLARED.fields[9].choices == ["fast", "safe"]
    assert fault_of(DECLARED) is None
    assert msgspec.msgpack.decode(encode(DECLARED), type=Declaration) == DECLARED


@given(values_of(Everything))
def test_a_record_of_the_struct_is_one_of_the_declaration(record: Everything) -> None:
    """What a program encodes, a node that has the declaration alone decodes, and encodes alike."""
    assume(record.wide < 2**63)  # an int of a declaration is signed
    try:
        fits = msgspec.msgpack.decode(encode(record), type=Everything)
    except msgspec.ValidationError:
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(encode(record), type=MADE)
        return
    found = msgspec.msgpack.decode(encode(record), type=MADE)
    assert encode(found) == encode(fits)


def test_defaults_are_those_of_the_struct_and_no_two_records_share_one() -> None:
    made: Any = MADE("t", 1, "n", 5, -1, 0)
    assert encode(made) == encode(Everything("t", 1, "n", 5, -1, 0))
    other: Any = MADE("t", 1, "n", 5, -1, 0)
    assert made.notes is not other.notes
    assert made.counts is not other.counts


def test_the_bounds_of_a_field_hold_for_whoever_has_the_declaration_only() -> None:
    good = ["t", 1, "n", 5, -1, 0]
    for position, wrong in ((2, ""), (2, "toolong"), (3, 0), (3, 10), (4, 2**63), (5, -1), (0, 5), (0, b"t")):
        bad: list[Any] = [*good]
        bad[position] = wrong
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(encode(bad), type=MADE)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(encode([*good, b"", 0.5, True, "slow"]), type=MADE)


class Inner(Record, frozen=True):
    a: str


@pytest.mark.parametrize(
    "kind",
    [
        *(Inner, list[Inner], dict[int, str], set[str], Literal[1, 2], str | int, Annotated[str, Meta(pattern="a")]),
        *(list[Annotated[int, Meta(ge=1, le=2)]], list[Annotated[str, Meta(max_length=2)]], list[Literal["a"]]),
    ],
    ids=str,
)
def test_a_field_that_is_nothing_of_these_is_refused(kind: Any) -> None:
    record = msgspec.defstruct("Odd", [("key", str), ("odd", kind)], array_like=True)
    with pytest.raises(TypeError, match=r"Odd\.odd"):
        declaration_of("odd", record, kind="data", key=("key",))


def test_a_struct_that_is_a_map_is_refused() -> None:
    with pytest.raises(TypeError, match=r"subclass of metad_client\.Record"):
        declaration_of("odd", msgspec.defstruct("Odd", [("key", str)]), kind="data", key=("key",))


KEY = DeclaredField("k", "str")


def declared(**changes: Any) -> Declaration:
    return msgspec.structs.replace(Declaration("t", "data", [KEY, DeclaredField("v", "str")], ["k"], 1), **changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": ""}, "cannot be called"),
        ({"name": "Topic"}, "cannot be called"),
        ({"name": "t" * 65}, "cannot be called"),
        ({"kind": "cluster"}, "kind metadata, data, offset, not 'cluster'"),
        ({"fields": []}, "'k' stands in the key and is no field"),
        ({"fields": [KEY, KEY]}, "two fields have one name"),
        ({"fields": [KEY, DeclaredField("class", "str")]}, "no word of Python"),
        ({"fields": [KEY, DeclaredField("_v", "str")]}, "is called by a small letter"),
        ({"fields": [KEY, DeclaredField("v", "text")]}, "there is no type 'text'"),
        ({"fields": [KEY, DeclaredField("v", "list[list[list[list[str]]]]")]}, "nested more than 4 deep"),
        ({"fields": [KEY, DeclaredField("v", "dict[int, str]")]}, "there is no type"),
        ({"fields": [KEY, DeclaredField("v", "u32", most=2**32)]}, "no part of those of u32"),
        ({"fields": [KEY, DeclaredField("v", "u32", least=5, most=4)]}, "no part of those of u32"),
        ({"fields": [KEY, DeclaredField("v", "str", least=1)]}, "only a number"),
        ({"fields": [KEY, DeclaredField("v", "u32", length_most=1)]}, "have no length"),
        ({"fields": [KEY, DeclaredField("v", "str", length_least=2, length_most=1)]}, "least length is over"),
        ({"fields": [KEY, DeclaredField("v", "bytes", choices=["a"])]}, "only a text has choices"),
        ({"fields": [KEY, DeclaredField("v", "str", b"\x01")]}, "its default: expected str, got int"),
        ({"fields": [KEY, DeclaredField("v", "str", b"\xd9")]}, "its default"),
        ({"fields": [KEY, DeclaredField("v", "str", b"\xa0"), DeclaredField("w", "str")]}, "it has no default"),
        ({"fields": [DeclaredField("k", "str", b"\xa0")]}, "a field of the key has no default"),
        ({"fields": [DeclaredField("k", "int")]}, "is a str or"),
        ({"fields": [DeclaredField("k", "u32")]}, "does not route, and by default all fields of the key do"),
        ({"key": []}, "a table has a key"),
        ({"routing": 0}, "a table has a key"),
        ({"routing": 2}, "a table has a key"),
        ({"key": ["k", "k"], "routing": 1}, "stands there twice"),
        ({"fields": [KEY, *(DeclaredField(f"f{n}", "str", about="x" * 400) for n in range(60))]}, "bytes, 16384"),
    ],
)
def test_what_can_be_no_table(changes: dict[str, Any], why: str) -> None:
    assert why in (fault_of(declared(**changes)) or "")


def test_a_table_is_refused_for_its_size_before_anything_of_it_is_made() -> None:
    assert len(encode(declared(about="x" * DECLARATION_BYTES_MAX))) > DECLARATION_BYTES_MAX
    assert "bytes" in (fault_of(declared(about="x" * DECLARATION_BYTES_MAX)) or "")


def test_a_declaration_grows_at_its_end_only() -> None:
    old = declared()
    more = declared(fields=[*old.fields, DeclaredField("w", "u32", b"\x05")])
    assert difference(old, more) is None
    assert difference(more, old) is None
    assert difference(old, declared(about="Other words.")) is None
    assert difference(old, declared(fields=[KEY, DeclaredField("v", "str", about="Words.")])) is None
    for changed, why in (
        (declared(kind="offset"), "kind is data, and the declaration says offset"),
        (declared(fields=[KEY, DeclaredField("v", "bytes")]), "field 2 is v with type str"),
        (declared(fields=[KEY, DeclaredField("v", "str", length_most=4)]), "length_most None, and the declaration"),
        (declared(fields=[KEY, DeclaredField("v", "str", b"\xa1a")]), "with default None"),
        (declared(fields=[DeclaredField("v", "str"), KEY]), "field 1 is k"),
        (declared(fields=[KEY, DeclaredField("v", "str")], key=["k", "v"]), "key is k, and the declaration says k, v"),
    ):
        assert why in (difference(old, changed) or ""), changed


@given(st.integers(0, 2**32 - 1), st.lists(st.text(max_size=5), min_size=2, max_size=2))
def test_a_key_says_its_table_and_how_much_of_it_routes(number: int, texts: list[str]) -> None:
    made = record_type(DECLARED)
    one = PlainTable("one", number=number, kind="data", record=made, key=("tenant", "name"), routing=("tenant",))
    key = one.key_of(texts)
    assert key[:5] == struct.pack(">IB", number, 1)
    assert one.fields_of(key, 2) == texts
    both = PlainTable("both", number=number, kind="data", record=made, key=("tenant", "name"))
    assert both.key_of(texts)[5:] == key[5:]
    tenants = PlainTable("tenants", number=1, kind="data", record=made, key=("tenant",))
    assert [*one.crcs([_Item(*texts)])] == [*tenants.crcs([_Item(*texts)])]


class _Item:
    def __init__(self, tenant: str, name: str) -> None:
        self.tenant, self.name = tenant, name
