"""Indexes of tables in the code whose first field is a list: a record is listed by each of its elements."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from state_rig import Group, item_errors
from test_declarations import Records

from metad.config import DedupeConfig
from metad.state.core.entry import decode_entry
from metad.storage import keys
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.declaration import Declaration, DeclaredField, DeclaredIndex
from metad_wire.errors import InvalidRequestError
from metad_wire.tables.table import INDEXES, PlainTable

PART = Declaration(
    "part",
    "data",
    [
        DeclaredField("tenant", "str"),
        DeclaredField("name", "str"),
        DeclaredField("number", "u32"),
        DeclaredField("state", "str", b"\xa0"),
        DeclaredField("replicas", "list[str]", b"\x90"),
        DeclaredField("heirs", "list[str] | None", b"\xc0"),
    ],
    ["tenant", "name", "number"],
    2,
    "",
    [DeclaredIndex("by_replica", ["replicas"]), DeclaredIndex("by_heir", ["heirs", "state"])],
)
BROKERS = ("", "a", "a\0", "ab", "b", "é")


@pytest.fixture
def group() -> Group:
    return Group("data", 0, DedupeConfig())


def rows_of(group: Group) -> set[bytes]:
    """The rows of all indexes in a group."""
    prefix = keys.table_prefix(group.prefix, INDEXES.rows["index"])
    return {key[len(prefix) :] for key, _ in group.engine.scan(prefix, keys.after_prefix(prefix), 100_000)}


def count(parts: Records, index: int, *fields: str) -> int:
    verb = parts.records.verbs[methods.TABLE_COUNT.code]
    assert verb.read is not None
    body = m.TableList(parts.number, [*fields], page=m.Page(1_000), index=index)
    found: int = verb.read(parts.group.machine.reader, verb.command(body)).count
    return found


@pytest.mark.parametrize("seed", range(10))
def test_a_record_is_listed_once_by_each_of_its_elements(group: Group, seed: int) -> None:
    random, parts = Random(seed), Records(group, PART)
    stored: dict[tuple[Any, ...], Any] = {}
    for _ in range(40):
        keyed = [("t", random.choice("xy"), random.randrange(4)) for _ in range(random.randint(1, 3))]
        if random.random() < 0.25:
            errors = item_errors(parts.delete(*keyed))
            for at, key in enumerate(keyed):
                if at not in errors:
                    del stored[key]
            continue
        records = [
            parts.made(
                *key,
                random.choice("pq"),
                random.choices(BROKERS, k=random.randrange(4)),
                random.choice([None, random.choices(BROKERS, k=2)]),
            )
            for key in keyed
        ]
        assert not item_errors(parts.put(*records))
        stored.update(zip(keyed, records, strict=True))
    in_order = [stored[key] for key in sorted(stored)]
    for broker in BROKERS:
        listed = [one for one in in_order if broker in one.replicas]
        assert parts.list("by_replica", broker) == listed
        assert count(parts, 1, broker) == len(listed)
        if listed:
            middle = listed[len(listed) // 2]
            after = [broker, middle.tenant, middle.name, middle.number]
            assert parts.list("by_replica", broker, after=after) == listed[len(listed) // 2 + 1 :]
            assert parts.list("by_replica", broker, "t", prefix="y") == [one for one in listed if one.name == "y"]
        heirs = sorted((one for one in in_order if broker in (one.heirs or [])), key=lambda one: one.state)
        assert parts.list("by_heir", broker) == heirs
    indexes = [*parts.records.table.indexes.values()]
    assert rows_of(group) == {row for one in stored.values() for index in indexes for row in index.rows_of(one)}


def test_the_rows_follow_the_elements_and_nothing_else(group: Group) -> None:
    """Guards entries: a change of the rest of a record, or of the order in its list, writes no row of the index."""
    parts = Records(group, PART)
    table = parts.records.table
    index = table.indexes["by_replica"]
    record = parts.made("t", "x", 0, "p", ["a", "b", "a"])
    assert len(index.rows_of(record)) == 2
    assert {index.record_key(row) for row in index.rows_of(record)} == {table.key_of(["t", "x", 0])}
    assert {INDEXES.slot_of(row) for row in index.rows_of(record)} == {table.slot_of(table.key_of(["t", "x", 0]))}

    def written(one: Any) -> dict[bytes, bytes | None]:
        """Which rows of indexes the entry of a put writes, with their values."""
        parts.put(one)
        prefix = keys.table_prefix(group.prefix, INDEXES.rows["index"])
        entry = decode_entry(group.name, group.last, group.log[-1])
        assert len(entry.writes)
        return {key: value for writes in entry for key, value in writes.items() if key.startswith(prefix)}

    assert [*written(record).values()] == [b"", b""]
    for same in (
        msgspec.structs.replace(record, state="q"),
        msgspec.structs.replace(record, replicas=["b", "a"]),
        msgspec.structs.replace(record, replicas=["b", "b", "a"]),
    ):
        assert written(same) == {}
    moved = written(msgspec.structs.replace(record, replicas=["b", "c"]))
    assert sorted(value is None for value in moved.values()) == [False, True]
    assert [len(parts.list("by_replica", broker)) for broker in "abc"] == [0, 1, 1]
    assert [*written(msgspec.structs.replace(record, replicas=[])).values()] == [None, None]


def test_a_listing_names_an_element(group: Group) -> None:
    parts = Records(group, PART)
    for asked in ({}, {"prefix": "a"}, {"after": ["a", "t", "x", 0]}):
        with pytest.raises(InvalidRequestError, match="names an element of replicas"):
            parts.list("by_replica", **asked)
    with pytest.raises(InvalidRequestError, match="names an element of heirs"):
        count(parts, 2)
    with pytest.raises(InvalidRequestError, match="replicas is text"):
        parts.list("by_replica", 1)


def test_the_longest_element_has_room_or_the_record_is_refused(group: Group) -> None:
    parts = Records(group, PART)
    records = [
        parts.made("t", "x", number, "", ["a", "b" * length, "c"]) for number, length in enumerate((4_096, 4_000))
    ]
    reply = parts.put(*records)
    assert item_errors(reply) == {0: "invalid_item"}
    assert "by_replica" in reply.errors[0].message
    assert [one.number for one in parts.list("by_replica", "b" * 4_000)] == [1]


def test_only_the_first_field_is_a_list(group: Group) -> None:
    record = Records(group, PART).made
    for indexes in ({"one": ["state", "replicas"]}, {"one": ["replicas", "heirs"]}):
        with pytest.raises(TypeError, match="no place in an index"):
            PlainTable("part", number=1_024, kind="data", record=record, key=("tenant", "name"), indexes=indexes)
