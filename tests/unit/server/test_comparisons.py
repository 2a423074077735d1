"""What is compared of the states of replicas, and who of them is right."""

from __future__ import annotations

import pytest

from metad.node.chores.comparisons import judge, sum_up
from metad.raft.messages import Configuration
from metad.storage.keys import after_prefix, group_prefix, snapshot_mark
from metad.storage.memory import MemoryEngine
from metad_wire.cluster import GroupId, GroupSum

PREFIX = group_prefix(GroupId("data", 7))
ONE, OTHER = GroupSum(b"one", 3), GroupSum(b"other", 3)
THREE = Configuration(("a", "b", "c"))


def summed(rows: dict[bytes, bytes], begin: bytes = b"", rows_max: int = 1_000) -> GroupSum:
    engine = MemoryEngine()
    engine.write({PREFIX + key: value for key, value in rows.items()})
    engine.write({b"\x01": b"another group", after_prefix(PREFIX): b"another group"})
    return sum_up(engine.pin(PREFIX + begin, after_prefix(PREFIX)), PREFIX, begin, rows_max)


@pytest.mark.parametrize(
    ("sums", "configuration", "right", "unlike"),
    [
        ({"a": ONE, "b": ONE, "c": ONE}, THREE, ONE, ()),
        ({"a": ONE, "b": OTHER, "c": ONE}, THREE, ONE, ("b",)),
        ({"a": OTHER, "b": ONE, "c": ONE}, THREE, ONE, ("a",)),
        ({"a": ONE, "b": ONE}, THREE, ONE, ()),
        ({"a": ONE, "b": OTHER}, THREE, None, ("a", "b")),
        ({"a": ONE, "b": OTHER, "c": GroupSum(b"third", 3)}, THREE, None, ("a", "b", "c")),
        ({"a": ONE}, THREE, None, ()),
        ({"a": ONE, "b": OTHER}, Configuration(("a", "b")), None, ("a", "b")),
        ({"a": ONE, "d": OTHER, "e": OTHER}, Configuration(("a",), ("d", "e")), ONE, ("d", "e")),
        ({"a": ONE, "b": ONE, "d": OTHER}, Configuration(("a", "b", "c"), ("d",)), ONE, ("d",)),
    ],
)
def test_a_quorum_of_voters_is_right(
    sums: dict[str, GroupSum], configuration: Configuration, right: GroupSum | None, unlike: tuple[str, ...]
) -> None:
    assert judge(sums, configuration) == (right, unlike)


def test_any_changed_byte_changes_the_sum() -> None:
    rows = {b"\x10%04d" % number: b"value %d" % number for number in range(300)}
    whole = summed(rows)
    assert whole.rows == 300
    assert not whole.end
    for changed in ({b"\x100007": b"value 6"}, {b"\x10": b""}, {b"\x100299": b"value 298"}):
        assert summed(rows | changed).digest != whole.digest
    assert summed({b"ab": b"c"}).digest != summed({b"a": b"bc"}).digest


def test_parts_go_through_the_whole_state() -> None:
    rows = {b"\x10%04d" % number: b"v" for number in range(300)}
    begin, counted = b"", 0
    while True:
        part = summed(rows, begin, 100)
        counted += part.rows
        if not part.end:
            break
        assert part.end > begin
        begin = part.end
    assert counted == 300


def test_a_part_of_long_rows_is_bounded() -> None:
    part = summed({b"\x10%d" % number: b"x" * 1_000_000 for number in range(5)})
    assert part.rows == 3
    assert part.end == b"\x102\0"


def test_the_mark_of_a_snapshot_belongs_to_one_replica() -> None:
    """Wherever a part begins and ends, and however the scans are cut."""
    rows = {b"\x00%04d" % number: b"v" for number in range(300)}
    mark = snapshot_mark(PREFIX)[len(PREFIX) :]
    for rows_max in (1, 127, 128, 129, 300, 1_000):
        assert summed(rows | {mark: b"of this one"}, b"", rows_max) == summed(rows, b"", rows_max)
    last = {key: value for key, value in rows.items() if key < mark}
    assert summed(last | {mark: b"at the end"}).digest == summed(last).digest
