"""Rows become the same columns whichever way they are decoded, and what is no row is refused."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from metad_spark.source import shapes
from metad_spark.source.columns import RowColumns, joined, key_columns, row_table, slot_column
from metad_spark.source.live import Collector, batches
from metad_spark.source.schema import arrow_of, schema_of
from metad_wire.messages import Offset, SessionOwner, SessionProperties, Will
from metad_wire.method import encode
from metad_wire.table import TABLES
from metad_wire.watch import WatchRows

SESSION = shapes.shape_of("session")
OWNER, PROPERTIES = SESSION.rows
SCHEMA = arrow_of(schema_of("session"))
WILL = Will("last/words", b"gone", 1, True, 5)


def key(tenant: str, client: str) -> bytes:
    return TABLES["session"].key_of([tenant, client])


def table_of(
    shape: shapes.Shape, rows: dict[int, list[tuple[bytes, bytes]]], columns: list[str] | None = None
) -> list[dict[str, Any]]:
    """What a snapshot with these rows is read as."""
    whole = arrow_of(schema_of(shape.name))
    schema = whole if columns is None else pa.schema([whole.field(name) for name in columns])
    collector = Collector(shape, schema)
    for row, pairs in rows.items():
        collector.add(WatchRows(row, [key for key, _ in pairs], [value for _, value in pairs]), None)
    found = list(batches(collector.table(77), schema))
    assert all(batch.schema.equals(schema) for batch in found)
    return [record for batch in found for record in batch.to_pylist()]


def test_a_session_is_its_owner_and_its_properties() -> None:
    owner, properties = SessionOwner(False, "b-1", 7, 1_000, 0, 2_000, 1_500), SessionProperties(60, b"\0\xff", WILL)
    (found,) = table_of(
        SESSION, {16: [(key("acme", "c-1"), encode(owner))], 17: [(key("acme", "c-1"), encode(properties))]}
    )
    expected = {
        "tenant": "acme",
        "client_id": "c-1",
        **msgspec.structs.asdict(owner),
        "expiry_interval_s": 60,
        "payload": b"\0\xff",
        "will": msgspec.structs.asdict(WILL),
        "slot": TABLES["session"].slot_of(key("acme", "c-1")),
        "revision": 77,
    }
    assert found == expected


def test_values_that_repeat_are_the_same_as_values_that_do_not() -> None:
    rng = random.Random(3)
    few = [encode(SessionOwner(True, f"b-{number % 3}", number % 2, 0)) for number in range(1000)]
    many = [encode(SessionOwner(False, f"b-{number}", number, number)) for number in range(1000)]
    for values in (few, many, [*few, *many[:100]]):
        rng.shuffle(values)
        columns = RowColumns(OWNER, SCHEMA)
        records = [msgspec.msgpack.decode(value, type=SessionOwner) for value in values]
        found = dict(zip(columns.names, columns.of(values), strict=True))
        assert set(found) == {column.name for column in OWNER.columns}
        for name, array in found.items():
            assert array.to_pylist() == [getattr(record, name) for record in records], name


def test_a_record_without_a_row_has_nulls_and_a_row_without_a_record_is_none() -> None:
    owner, properties = encode(SessionOwner(True, "b", 1, 0)), encode(SessionProperties(9))
    owners = [(key("t", name), owner) for name in ("a", "b", "c")]
    others = [(key("t", name), properties) for name in ("b", "d")]
    found = table_of(SESSION, {16: owners, 17: others}, ["client_id", "expiry_interval_s"])
    assert found == [
        {"client_id": "a", "expiry_interval_s": None},
        {"client_id": "b", "expiry_interval_s": 9},
        {"client_id": "c", "expiry_interval_s": None},
    ]


@pytest.mark.parametrize("texts", [("acme", "c"), ("a\0b", "c"), ("", ""), ("Ünïcode", "日本"), ("a\0", "\0\x01\xff")])
def test_keys_come_back_whatever_they_are_made_of(texts: tuple[str, str]) -> None:
    keys = [key(*texts), key("plain", "one")]
    found = key_columns(SESSION, pa.array(keys, pa.binary()), SCHEMA)
    assert list(zip(found["tenant"].to_pylist(), found["client_id"].to_pylist(), strict=True)) == [
        texts,
        ("plain", "one"),
    ]
    slot_of = TABLES["session"].slot_of
    assert slot_column(SESSION, keys).to_pylist() == [slot_of(each) for each in keys]


@pytest.mark.parametrize("name", [name for name in shapes.names() if shapes.shape_of(name).keys])
@pytest.mark.parametrize("odd", ["plain", "a\0b", "\0\x01\xff", "日本"])
def test_keys_of_every_table_come_back(name: str, odd: str) -> None:
    """Those of declared tables have a header, which was taken for a part of the first field."""
    shape = shapes.shape_of(name)
    columns = [column.name for column in shape.keys]
    records = [
        [f"{odd}{number}{column}" if shape.table.is_text(at) else number for at, column in enumerate(columns)]
        for number in range(3)
    ]
    keys = pa.array([shape.table.key_of(fields) for fields in records], pa.binary())
    found = key_columns(shape, keys, arrow_of(schema_of(name)))
    assert [list(row) for row in zip(*(found[column].to_pylist() for column in columns), strict=True)] == records


def test_a_number_in_a_key_comes_back_and_does_not_choose_the_slot() -> None:
    shape = shapes.shape_of("offset")
    offset = Offset("acme", "billing", "orders", 0x0001_0001, 99, 4, 5, "note")
    encoded = TABLES["offset"].key_of([offset.tenant, offset.group, offset.topic, offset.partition])
    (found,) = table_of(shape, {32: [(encoded, encode(offset))]})
    assert found == {**msgspec.structs.asdict(offset), "slot": TABLES["offset"].slot_of(encoded), "revision": 77}


def test_only_rows_of_wanted_columns_are_read() -> None:
    owner_only = pa.schema([SCHEMA.field("client_id"), SCHEMA.field("broker")])
    assert [row.name for row in Collector(SESSION, owner_only).rows] == ["owner"]
    assert [row.name for row in Collector(SESSION, SCHEMA).rows] == ["owner", "properties"]
    assert [row.name for row in Collector(SESSION, pa.schema([SCHEMA.field("payload")])).rows] == [
        "owner",
        "properties",
    ]


def test_rows_of_other_slots_are_left_out() -> None:
    collector = Collector(SESSION, SCHEMA)
    keys = [key("t", str(number)) for number in range(100)]
    slots = frozenset(slot for each in keys[:40] if (slot := TABLES["session"].slot_of(each)) is not None)
    collector.add(WatchRows(16, keys, [encode(SessionOwner(True, "b", 1, 0))] * 100), slots)
    kept = collector.table(1)["slot"].to_pylist()
    assert set(kept) == slots
    assert len(kept) == sum(TABLES["session"].slot_of(each) in slots for each in keys)


def test_what_is_no_key_and_what_is_no_value_is_refused() -> None:
    with pytest.raises(ValueError, match="keys that are none of session"):
        key_columns(SESSION, pa.array([b"one\0\x01"], pa.binary()), SCHEMA)
    with pytest.raises(msgspec.ValidationError):
        RowColumns(OWNER, SCHEMA).of([encode(["no owner"])])


def test_several_chunks_are_one_table() -> None:
    columns = [RowColumns(row, SCHEMA) for row in SESSION.rows]
    values: list[list[bytes | None]] = [[encode(SessionOwner(True, "b", 1, number))] for number in range(3)]
    owners = [row_table(SESSION, columns[0], [key("t", str(n))], values[n], slots=True) for n in range(3)]
    others = [
        row_table(SESSION, columns[1], [key("t", str(n))], [encode(SessionProperties(n))], slots=False)
        for n in (2, 0, 1)
    ]
    found = joined(SESSION, [pa.concat_tables(owners), pa.concat_tables(others)], SCHEMA)
    assert found["expiry_interval_s"].to_pylist() == [0, 1, 2]
    assert found["disconnected_ms"].to_pylist() == [0, 1, 2]
