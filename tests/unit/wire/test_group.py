"""Names of groups."""

import pytest

from metad_wire.cluster import METADATA, ClusterMap, GroupId, GroupRecord, NodeRecord, SlotMove

DATA_1 = GroupId("data", 1)


@pytest.mark.parametrize("group", [METADATA, DATA_1, GroupId("offset", 65_535)])
def test_a_name_is_read_back(group: GroupId) -> None:
    assert GroupId.parse(group.name) == group


@pytest.mark.parametrize(
    "name", ["", "data", "data-", "-1", "data-01", "data-0x", "data--1", "data-\u00b2", "DATA-1", " data-1", "data-1\n"]
)
def test_what_is_no_name_names_no_group(name: str) -> None:
    assert GroupId.parse(name) is None
    assert GroupId.parse("data-" + "1" * 5_000) is None


def test_records_say_which_group_they_mean() -> None:
    assert GroupRecord("data", 1, [], []).group_id == DATA_1
    move = SlotMove(7, "data", 1, 2, b"")
    assert (move.source_id, move.target_id) == (DATA_1, GroupId("data", 2))


def test_a_map_finds_its_records() -> None:
    node, group = NodeRecord("n1", "", ""), GroupRecord("data", 1, [], [])
    known = ClusterMap(1, [node], [group], {})
    assert (known.node("n1"), known.node("n2")) == (node, None)
    assert (known.group(DATA_1), known.group(METADATA), known.group(None)) == (group, None, None)
