"""Keys on disk sort as their fields do, run into no other key, and can be read back; the log's sort by index."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metad.storage import keys
from metad.storage.log import log_entry, log_index, log_metadata
from metad_wire.cluster import GROUP_KINDS, GroupId
from metad_wire.table import ANY_KIND
from metad_wire.tables import TABLES

# Characters at which an escape could go wrong, mixed into any text.
texts = st.text(
    alphabet=st.one_of(st.sampled_from("\0\x01\x02ab\x7f\x80\xff\u0100\uffff\U0001f600"), st.characters(codec="utf-8"))
)


def utf8(fields: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(field.encode() for field in fields)


@given(st.tuples(texts, texts), st.tuples(texts, texts))
def test_two_fields_sort_as_the_tuple_does(left: tuple[str, str], right: tuple[str, str]) -> None:
    assert (keys.text2(*left) < keys.text2(*right)) == (utf8(left) < utf8(right))
    assert (keys.text2(*left) == keys.text2(*right)) == (left == right)


@given(texts, texts)
def test_no_key_is_the_beginning_of_another(left: str, right: str) -> None:
    # Otherwise a deletion or a scan of one record's range would reach into another's.
    assert keys.text(left).startswith(keys.text(right)) == (left == right)


@given(texts, texts, texts)
def test_fields_are_read_back(first: str, second: str, third: str) -> None:
    key = b"pre" + keys.text2(first, second) + keys.text(third) + b"rest"
    one, offset = keys.split_text(key, 3)
    two, offset = keys.split_text(key, offset)
    three, offset = keys.split_text(key, offset)
    assert (one, two, three, key[offset:]) == (first, second, third, b"rest")


@given(texts, texts)
def test_the_shortcut_for_two_fields_builds_what_the_general_way_does(first: str, second: str) -> None:
    assert keys.text2(first, second) == keys.text(first) + keys.text(second)


@pytest.mark.parametrize(
    ("one", "other"),
    [(("a", "b"), ("a\0\x01b", "")), (("", ""), ("\0", "")), (("a\0", "b"), ("a", "\0b")), (("", "a"), ("a", ""))],
)
def test_text_cannot_forge_the_end_of_a_field(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert keys.text2(*one) != keys.text2(*other)


@given(texts, texts)
def test_a_text_prefix_covers_exactly_the_texts_that_start_with_it(prefix: str, value: str) -> None:
    for candidate in (value, prefix + value):
        assert keys.text(candidate).startswith(keys.text_prefix(prefix)) == candidate.startswith(prefix)


@given(st.binary(min_size=1, max_size=6).filter(lambda prefix: prefix.strip(b"\xff") != b""), st.binary(max_size=6))
def test_after_prefix_ends_the_range_of_a_prefix(prefix: bytes, key: bytes) -> None:
    end = keys.after_prefix(prefix)
    assert prefix + key < end
    assert (prefix <= key < end) == key.startswith(prefix)


@pytest.mark.parametrize("prefix", [b"", b"\xff", b"\xff\xff"])
def test_nothing_is_behind_the_last_prefix(prefix: bytes) -> None:
    with pytest.raises(ValueError, match="no key is greater"):
        keys.after_prefix(prefix)


def test_after_prefix_of_trailing_ones_is_the_smallest_end() -> None:
    assert keys.after_prefix(b"a\xff\xff") == b"b"


@given(st.integers(0, 2**64 - 2), st.integers(0, 2**64 - 2))
def test_log_entries_sort_by_index_and_give_it_back(left: int, right: int) -> None:
    group = keys.group_prefix(GroupId("data", 3))
    assert (log_entry(group, left) < log_entry(group, right)) == (left < right)
    assert log_index(log_entry(group, left)) == left
    assert log_metadata(group) < log_entry(group, left)


def test_groups_share_an_engine_without_touching() -> None:
    prefixes = [
        keys.group_prefix(GroupId(kind, ordinal)) for kind in GROUP_KINDS for ordinal in (0, 1, 255, 256, 65_535)
    ]
    assert len({*prefixes, keys.STORE_PREFIX}) == len(prefixes) + 1
    assert all(len(prefix) == keys.GROUP_PREFIX_BYTES for prefix in prefixes)
    assert prefixes == sorted(prefixes)


def test_what_is_on_disk_keeps_its_bytes() -> None:
    """A change here loses data. That no two rows have one byte, the declarations see to."""
    released = {
        "group.state": 0x00,
        "group.dedupe": 0x01,
        "cluster.map": 0x02,
        "session.owner": 0x10,
        "session.properties": 0x11,
        "offset.offset": 0x20,
        "offset.generation": 0x21,
        "kv.record": 0x30,
    }
    declared = {f"{table.name}.{row}": byte for table in TABLES.values() for row, byte in table.rows.items()}
    assert released.items() <= declared.items()
    assert {table.kind for table in TABLES.values()} <= {*GROUP_KINDS, ANY_KIND}


def test_a_row_that_no_table_declares_has_no_key() -> None:
    """Guards slot moves, which carry the rows that are declared: rows of an undeclared byte used to stay behind."""
    with pytest.raises(ValueError, match="no table declares row 0xee"):
        keys.table_prefix(keys.group_prefix(GroupId("data", 0)), 0xEE)
    assert keys.slot_of_key(b"\xee" + keys.text("a")) is None
