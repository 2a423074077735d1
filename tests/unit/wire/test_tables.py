"""Declarations of tables: what makes no sense is refused; what is spelled out for speed says what the general does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_strategies import values_of

from metad_wire import messages as m
from metad_wire.cluster import SLOTS
from metad_wire.errors import InvalidRequestError
from metad_wire.families import KNOWN
from metad_wire.key import text
from metad_wire.messages import KEY_BYTES_MAX
from metad_wire.method import METHODS, For, encode
from metad_wire.methods import BETWEEN_NODES
from metad_wire.routing import KINDS, ROUTES
from metad_wire.table import Table
from metad_wire.tables import ROWS, TABLES, moving_rows
from metad_wire.tables.assignment import ASSIGNMENT_DUES
from metad_wire.tables.table import DECLARED, DUES, INDEX_STATES, INDEXES, TABLE_GET, TABLE_TRANSACT, PlainTable
from metad_wire.text.fields import U32

KEYED = [table for table in KNOWN.values() if table.key]
NAMES = st.text(max_size=4) | st.text("a\0\x01\xff/", max_size=4) | st.text("ab", min_size=120, max_size=160)
each_keyed = pytest.mark.parametrize("table", KEYED, ids=lambda table: table.name)


def items_of(table: Table) -> st.SearchStrategy[list[Any]]:
    """Lists of things that have the fields of the table's key."""
    types = {field.name: field.type for field in msgspec.structs.fields(table.record)}
    fields = {name: NAMES if types[name] is str else values_of(types[name]) for name in table.key}
    return st.lists(st.builds(SimpleNamespace, **fields), max_size=5)


class Placed(m.Message, frozen=True):
    """A record of tables that only the next test declares."""

    space: str
    name: str
    number: U32


SHAPES = [("space",), ("space", "name"), ("space", "name", "number")]
DECLARED_KEYS = [
    PlainTable(
        f"by_{len(key)}_{routing}", number=routing << 8, kind="data", record=Placed, key=key, routing=key[:routing]
    )
    for key in SHAPES
    for routing in range(1, min(len(key), 2) + 1)
]


@pytest.mark.parametrize("table", KEYED + DECLARED_KEYS, ids=lambda table: table.name)
@settings(deadline=None)
@given(data=st.data())
def test_what_is_spelled_out_is_what_the_declaration_says(table: Table, data: st.DataObject) -> None:
    items = data.draw(items_of(table))
    keys, crcs = table.keys(items)
    general_keys, general_crcs = table.general_keys(items)
    assert keys == general_keys
    assert list(crcs) == list(general_crcs) == list(table.crcs(items))


@each_keyed
def test_an_item_with_a_key_that_is_too_long_has_a_fault(table: Table) -> None:
    for position, name in enumerate(table.key):
        short: dict[str, Any] = {name: "a" if table.is_text(at) else 0 for at, name in enumerate(table.key)}
        assert table.fault(SimpleNamespace(**short)) is None
        room = KEY_BYTES_MAX - len(table.key_of(list(short.values()))) + 1
        if table.is_text(position):
            assert table.fault(SimpleNamespace(**{**short, name: "a" * room})) is None
            why = table.fault(SimpleNamespace(**{**short, name: "a" * (room + 1)}))
            assert why == f"its key fields take {KEY_BYTES_MAX + 1} bytes, {KEY_BYTES_MAX} are allowed"


def test_routes_and_kinds_are_those_of_the_tables() -> None:
    assert {METHODS[code].name for code in KINDS} - {METHODS[code].name for code in ROUTES} == {
        "session.end_tenant",
        "session.endings",
        "session.list",
        "subscription.list",
        "will.claim",
        "will.list",
        "will.wait",
        "retained.match",
        "offset.groups",
    }
    kinds = {code: table.kind for code, table in ROUTES.items() if code not in BETWEEN_NODES}
    assert kinds.items() <= KINDS.items()


SPREAD = (DECLARED, INDEXES, INDEX_STATES, DUES)
"""Their rows are of many tables, and say themselves how they route."""
SAY_THEIR_SLOT = (*SPREAD, ASSIGNMENT_DUES)
"""They have no fields of a key."""


def test_every_row_of_a_routed_table_moves() -> None:
    assert {byte for kind in ("metadata", "offset", "data") for byte in moving_rows(kind)} == {
        byte for table in TABLES.values() if table.routing or table in SAY_THEIR_SLOT for byte in table.rows.values()
    }
    assert {byte for table in SPREAD for byte in table.rows.values()} <= {*moving_rows("metadata")} & {
        *moving_rows("offset")
    } & {*moving_rows("data")}


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
    before = (dict(TABLES), dict(ROWS), dict(METHODS))
    declaration: dict[str, Any] = {
        "kind": "data",
        "rows": {"record": 0xEE},
        "record": m.Kv,
        "key": ("namespace", "key"),
        "routing": ("namespace",),
    }
    with pytest.raises(TypeError, match=complaint):
        Table(name, **{**declaration, **change})
    assert before == (TABLES, ROWS, METHODS)


class Note(m.Message, frozen=True):
    """A record of a table that only a test declares."""

    space: str
    number: U32
    text: str
    value: bytes = b""


@pytest.fixture
def notes() -> PlainTable[Note]:
    return PlainTable("note", number=1_024, kind="data", record=Note, key=("space", "number"), routing=("space",))


def test_a_declared_table_has_its_methods_from_its_declaration(notes: PlainTable[Note]) -> None:
    plain = notes.plain
    assert [(e.code, e.name, e.mutates) for e in plain[:5]] == [
        (0x0601, "note.get", False),
        (0x0602, "note.put", True),
        (0x0603, "note.delete", True),
        (0x0604, "note.list", False),
        (0x0607, "note.count", False),
    ]
    shared = [each for each in DECLARED.methods if each.whose is For.CLIENTS and each is not TABLE_TRANSACT]
    assert [notes.method(general) for general in shared] == [*plain[:5]]
    assert METHODS[TABLE_GET.code] is TABLE_GET
    assert plain.values == ("text", "value")
    note, key = Note("s", 7, "t"), plain.key("s", 7)
    for method, beside, items in (
        (plain.get, (1_024,), [key]),
        (plain.put, (1_024, 4), [m.TablePutItem(note, 3), m.TablePutItem(note)]),
        (plain.delete, (1_024,), [m.TableDeleteItem(key, 3)]),
    ):
        body = method.decode_request(method.encode_request(method.body(*beside, items))).body
        assert body.items == items
        keyed = notes.routed[method]
        keys, crcs = notes.keys(body.items if keyed is None else keyed(body.items))
        assert set(keys) == {b"\0\0\x04\0\x01" + text("s") + b"\0\0\0\x07"}
        assert set(crcs) == {crc32(text("s"))}
        assert [DECLARED.slot_of(each) for each in keys] == [notes.slot_of(each) for each in keys]
        assert DECLARED.slots_of(keys) == notes.slots_of(keys) == [crc32(text("s")) & 1023] * len(keys)
        assert [notes.fields_of(each, 2) for each in keys] == [["s", 7]] * len(keys)
    reply = plain.get.reply([m.TableRecord(note, 1, 2, 3), None])
    assert plain.get.decode_reply(encode(reply)) == reply
    with pytest.raises(InvalidRequestError, match="expected int"):
        plain.get.decode_request(encode([0, None, [1_024, [["s", -1]]]]))


def test_what_a_declared_table_is_listed_by_says_the_group(notes: PlainTable[Note]) -> None:
    listed = notes.routed[notes.plain.list]
    assert listed is not None
    lists = [m.TableList(1_024, ["s", 7]), m.TableList(1_024, ["s"])]
    assert list(notes.crcs(listed(lists))) == [crc32(text("s"))] * 2
    assert [notes.is_text(number) for number in (0, 1)] == [True, False]
    assert notes.key_of(["s"]) == b"\0\0\x04\0\x01" + text("s")


def test_how_long_a_value_is(notes: PlainTable[Note]) -> None:
    kv, session, offset = TABLES["kv"], TABLES["session"], TABLES["offset"]
    assert notes.value_bytes(m.TablePutItem(Note("s", 7, "t", b"12345"))) == len(encode(Note("s", 7, "t", b"12345")))
    assert kv.value_bytes(m.KvPutItem("n", "k", b"123")) == 3
    operations = [m.KvOperation("k", b"1"), m.KvOperation("k", b"12345"), m.KvOperation("k")]
    assert kv.value_bytes(m.KvTransaction("n", [], operations[:1], operations[1:])) == 5
    assert session.value_bytes(m.SessionUpdateItem("t", "c", m.SessionProperties(0, b"1234"))) == 4
    assert session.value_bytes(m.SessionTakeoverItem("t", "c")) == 0
    assert offset.value_bytes(m.OffsetCommitItem("t", "g", "o", 0, 1, metadata="\u00e9")) == 2
    keys = (
        m.KvKey("n", "k"),
        m.SessionKey("t", "c"),
        m.OffsetKey("t", "g", "o", 0),
        m.TableDeleteItem(m.KvKey("n", "k")),
    )
    for table, item in zip((kv, session, offset, notes), keys, strict=True):
        assert table.value_bytes(item) == 0


@given(st.lists(st.text(max_size=8), min_size=3, max_size=3), st.integers(0, 2**32 - 1))
def test_a_key_is_read_back_as_its_fields(texts: list[str], partition: int) -> None:
    table = TABLES["offset"]
    key = table.key_of([*texts, partition])
    assert table.fields_of(key, 4) == [*texts, partition]
    assert table.fields_of(key, 2) == texts[:2]
    assert table.slot_of(key) == crc32(table.key_of(texts[:2])) % SLOTS


@pytest.mark.parametrize("name", sorted(KNOWN.keys() - {table.name for table in SAY_THEIR_SLOT}))
@given(texts=st.lists(st.lists(st.text("ab\0\x01\xffé", max_size=4), min_size=8, max_size=8), max_size=3))
def test_slots_of_many_keys_are_those_of_each(name: str, texts: list[list[str]]) -> None:
    table = KNOWN[name]
    rows = [list(enumerate(row[: len(table.key)])) for row in texts]
    fields = [[text if table.is_text(at) else len(text) for at, text in row] for row in rows]
    front = b"" if isinstance(table, PlainTable) else bytes(table.ordered_by)
    keys = [front + table.key_of(row) for row in fields]
    slots = [table.slot_of(key) for key in keys]
    assert (table.slots_of(keys) or [None] * len(keys)) == slots


@given(st.text(alphabet="ab\0\x01\xffé", max_size=6), st.text(alphabet="ab\0\x01\xffé", max_size=6))
def test_a_key_of_texts_is_read_back_as_its_fields(first: str, second: str) -> None:
    key = TABLES["kv"].key_of([first, second])
    for count in range(3):
        assert TABLES["kv"].fields_of(key, count) == [first, second][:count]


@pytest.mark.parametrize("key", [b"", b"a", b"a\0\x01", b"a\0\x01b", b"a\0\xff\0\x01", b"\xc3\0\x01b\0\x01"])
def test_what_is_no_key_of_texts_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match=r"no key|decode"):
        TABLES["kv"].fields_of(key, 2)


@pytest.mark.parametrize("key", [b"", b"a", b"a\0\x01", b"a\0\x01b\0\x01c\0\x01\0\0"])
def test_what_is_no_key_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match=r"no key|not found"):
        TABLES["offset"].fields_of(key, 4)


def test_what_a_watch_shows_has_fields_of_the_key() -> None:
    for table in TABLES.values():
        seen = table.shows or table.ordered_by or not table.rows
        assert not table.routing or seen, f"{table.name}: nobody can watch it"
        for row, shown in table.shows.items():
            assert row in table.rows.values()
            fields = () if shown.key is None else shown.key.__struct_fields__
            assert fields == table.key[: len(fields)]
            assert len(fields) >= len(table.routing)
            if shown.counted:
                assert {"version", "create_revision", "mod_revision"} <= {
                    field.name for field in msgspec.structs.fields(shown.record)
                }
