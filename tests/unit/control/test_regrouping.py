"""What the cluster map becomes when groups are changed by hand, and when a node is drained: nothing is ordered that
cannot be carried out, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from metad.control.map import decisions
from metad.control.map.bounds import ORDINALS_MAX
from metad_wire.cluster import (
    MOVES_OF_A_MAP,
    SLOTS,
    ClusterMap,
    GroupId,
    GroupRecord,
    MoveReplica,
    MoveSlots,
    NodeRecord,
    Transfer,
    pack_slots,
    slot_bits,
    slots_in,
)
from metad_wire.errors import ConflictError, InvalidRequestError, MetadError, NotFoundError

THREE = ["n1", "n2", "n3"]
REPLICAS = 3


def known(nodes: str = "n1 n2 n3 n4", holes: tuple[int, ...] = (), **fields: Any) -> ClusterMap:
    """Groups data-0 to data-3 without those of ``holes``, of which the first three share the slots; of the other kinds
    one."""
    kept = [ordinal for ordinal in range(4) if ordinal not in holes]
    groups = [GroupRecord("metadata", 0, THREE, THREE, "n1"), GroupRecord("offset", 0, THREE, THREE, "n2")]
    groups += [GroupRecord("data", ordinal, THREE, THREE, THREE[at % 3]) for at, ordinal in enumerate(kept)]
    slots = {kind: pack_slots([0] * SLOTS) for kind in ("metadata", "offset")}
    slots["data"] = pack_slots([kept[slot * 3 // SLOTS] for slot in range(SLOTS)])
    return ClusterMap(7, [NodeRecord(name, "", f"{name}:1") for name in nodes.split()], groups, slots, **fields)


def moved(current: ClusterMap, **wish: Any) -> dict[tuple[int, int], int]:
    """(source, target) -> slots that are to move."""
    following = decisions.move_slots(current, MoveSlots(**wish), REPLICAS, ()).map
    assert following is not None
    return {(move.source, move.target): len(slots_in(move.slots)) for move in following.moves}


def test_named_slots_go_from_whoever_has_them() -> None:
    assert moved(known(), to="data-2", slots=slot_bits([0, 1, 400, 1000])) == {(0, 2): 2, (1, 2): 1}
    assert moved(known(), to="data-2", group="data-0", slots=slot_bits([0, 1])) == {(0, 2): 2}
    assert decisions.move_slots(known(), MoveSlots("data-2", slots=slot_bits([1000])), REPLICAS, ()).map is None


def test_a_merge_moves_all_and_a_split_the_upper_half_also_where_there_is_a_hole() -> None:
    current = known(holes=(1,), ordinals={"data": 4})
    assert moved(current, to="data-2", group="data-3") == {(3, 2): 341}
    assert moved(current, to="data-3", group="data-0", half=True) == {(0, 3): 171}
    following = decisions.move_slots(current, MoveSlots(group="data-0", half=True), REPLICAS, ()).map
    assert following is not None
    assert following.group(GroupId("data", 4)) is not None
    assert min(slots_in(following.moves[0].slots)) == 171, "the lower half stays, and with it slot 0 of metadata-0"


@pytest.mark.parametrize(
    ("wish", "error"),
    [
        (MoveSlots("data-9", "data-0"), NotFoundError("there is no group 'data-9'")),
        (MoveSlots("data-1", "nothing"), NotFoundError("there is no group 'nothing'")),
        (MoveSlots("offset-0", "data-0"), InvalidRequestError("data-0 and offset-0 are of different kinds")),
        (MoveSlots("data-0", "data-0"), InvalidRequestError("slots of its own")),
        (MoveSlots(), InvalidRequestError("neither a group nor slots")),
        (MoveSlots("data-0"), InvalidRequestError("neither a group nor slots")),
        (MoveSlots("data-0", slots=b"\1"), InvalidRequestError("has 128 bytes, not 1")),
        (MoveSlots("data-1", "data-0", slot_bits([5, 900])), InvalidRequestError("slot 900 is data-2's, not data-0's")),
        (MoveSlots("data-1", slots=bytes(SLOTS // 8)), InvalidRequestError("no slots to move")),
        (MoveSlots("", "data-0", slot_bits([5]), half=True), InvalidRequestError("cannot be halved")),
    ],
)
def test_slots_that_cannot_move_are_refused(wish: MoveSlots, error: MetadError) -> None:
    with pytest.raises(type(error), match=str(error).partition("(")[0]):
        decisions.move_slots(known(), wish, REPLICAS, ())


def test_slots_of_a_group_wait_for_others_on_their_way_and_those_of_other_groups_do_not() -> None:
    """Once two operators could not split two groups: one was refused, though nothing was in conflict."""
    following = decisions.move_slots(known(), MoveSlots("data-1", "data-0"), REPLICAS, ()).map
    assert following is not None
    for wish, busy in (
        (MoveSlots("data-1", "data-2"), "data-1"),
        (MoveSlots(group="data-0", half=True), "data-0"),
        (MoveSlots("data-2", slots=slot_bits([0, 1000])), "data-0"),
    ):
        with pytest.raises(ConflictError, match=f"{busy} has a part in .* under way, from data-0 to data-1"):
            decisions.move_slots(following, wish, REPLICAS, ())
    with pytest.raises(ConflictError, match="slots move from or to data-1"):
        decisions.check_removable(following, "data-1")
    decided = decisions.move_slots(following, MoveSlots(group="data-2", half=True), REPLICAS, ()).map
    assert decided is not None
    assert [(one.source, one.target) for one in decided.moves] == [(0, 1), (2, 4)]
    assert len({one.move for one in decided.moves}) == 2
    assert [one.move // MOVES_OF_A_MAP for one in decided.moves] == [following.version, decided.version]
    alike = decisions.move_slots(following, MoveSlots("offset-0", slots=slot_bits([0])), REPLICAS, ())
    assert alike.text == "offset-0 has these slots already", "data-0 is another group than offset-0"


def test_slots_stay_where_somebody_has_put_them_unless_all_are_to_be_even() -> None:
    """Once an order to spread the replicas undid each split, though it was made on purpose."""
    split = decisions.move_slots(known(), MoveSlots("data-3", "data-0", half=True), REPLICAS, ()).map
    assert split is not None
    for move in split.moves:
        split = decisions.moved(split, move.move).map
        assert split is not None
    kept = decisions.rebalance(split, REPLICAS, (), REPLICAS, keep_slots=True)
    assert kept.map is not None
    assert (kept.map.moves, kept.map.slots) == ([], split.slots)
    assert "0 slots move" in kept.text
    assert kept.text.endswith("the numbers of slots of groups of kind data are uneven, and stay so")
    added = decisions.add_group(split, "data", REPLICAS, ()).map
    assert added is not None
    kept = decisions.rebalance(added, REPLICAS, (), REPLICAS, keep_slots=True)
    assert kept.map is not None
    taken = {(one.source, one.target): len(slots_in(one.slots)) for one in kept.map.moves}
    assert sum(taken.values()) == -(-SLOTS // 5)
    assert {*taken} == {(1, 4), (2, 4)}, "only from those that have most"
    evened = decisions.rebalance(split, REPLICAS, (), REPLICAS)
    assert evened.map is not None
    assert evened.map.moves != []
    assert "uneven" not in evened.text


def test_names_end_with_the_numbers_on_disk() -> None:
    with pytest.raises(InvalidRequestError, match="no name is used twice"):
        decisions.add_group(known(ordinals={"data": ORDINALS_MAX + 1}), "data", REPLICAS, ())


def test_one_replica_moves_and_leads_where_the_old_one_did() -> None:
    current = known()
    following = decisions.move_replica(current, MoveReplica("data-0", "n1", "n4"), ()).map
    assert following is not None
    (was, now) = (one.group(GroupId("data", 0)) for one in (current, following))
    assert was is not None
    assert now is not None
    assert (now.replicas, now.initial) == (["n2", "n3", "n4"], was.initial)
    assert now.preferred == "n4"
    others = [group for group in following.groups if group.group_id != now.group_id]
    assert others == [group for group in current.groups if group.group_id != was.group_id]


@pytest.mark.parametrize(
    ("wish", "error"),
    [
        (MoveReplica("metadata-0", "n1", "n4"), InvalidRequestError("every node has a replica of metadata-0")),
        (MoveReplica("data-0", "n4", "n1"), InvalidRequestError("'n4' has no replica of data-0: n1, n2, n3 have")),
        (MoveReplica("data-0", "n1", "n9"), NotFoundError("n9 is not a member")),
        (MoveReplica("data-0", "n1", "n2"), InvalidRequestError("n2 or its machine has a replica")),
        (MoveReplica("data-0", "n1", "n2/1"), InvalidRequestError("n2/1 or its machine has a replica")),
        (MoveReplica("data-0", "n1", "n5"), ConflictError("n5 is leaving")),
        (MoveReplica("data-0", "n1", "n6"), ConflictError("n6 is out of reach")),
    ],
)
def test_a_replica_that_cannot_move_is_refused(wish: MoveReplica, error: MetadError) -> None:
    current = known("n1 n2 n3 n4 n2/1 n5 n6")
    nodes = [msgspec.structs.replace(one, leaving=one.node_id == "n5") for one in current.nodes]
    with pytest.raises(type(error), match=str(error)):
        decisions.move_replica(msgspec.structs.replace(current, nodes=nodes), wish, {"n6"})


def led(current: ClusterMap) -> Counter[str]:
    return Counter(group.preferred for group in current.groups)


def test_a_drained_node_is_preferred_by_nothing_and_has_its_share_back_afterwards() -> None:
    drained = decisions.drain(known(), "n1", ()).map
    assert drained is not None
    assert led(drained)["n1"] == 0
    assert [group.replicas for group in drained.groups] == [group.replicas for group in known().groups]
    assert decisions.drain(drained, "n1", ()).map is None
    added = decisions.add_group(drained, "data", 4, ()).map
    assert added is not None
    assert led(added)["n1"] == 0
    balanced = decisions.rebalance(drained, 3, (), 3).map
    assert balanced is not None
    assert led(balanced)["n1"] == 0
    said = decisions.join(drained, NodeRecord("n1", "n1:0", "n1:1"), decisions.Reach.ALIVE).map
    assert said is not None
    assert (said.nodes[0].endpoint, said.nodes[0].drained) == ("n1:0", True)
    with pytest.raises(ConflictError, match="n1 is drained"):
        decisions.transfer(drained, Transfer("data-0", "n1"))
    back = decisions.undrain(drained, "n1").map
    assert back is not None
    assert max(led(back)[name] for name in THREE) - led(back)["n1"] <= 1
    assert decisions.undrain(back, "n1").map is None


def test_a_node_without_which_nobody_can_lead_is_not_drained() -> None:
    with pytest.raises(ConflictError, match=r"no other voter of metadata-0 \(and 5 more groups\)"):
        decisions.drain(known(), "n1", {"n2", "n3"})
    first = decisions.drain(known(), "n1", ()).map
    assert first is not None
    second = decisions.drain(first, "n2", ()).map
    assert second is not None
    with pytest.raises(ConflictError, match="n3 cannot be drained"):
        decisions.drain(second, "n3", ())
    with pytest.raises(NotFoundError, match="n9 is not a member"):
        decisions.drain(known(), "n9", ())
    leaving = [msgspec.structs.replace(one, leaving=one.node_id == "n1") for one in known().nodes]
    with pytest.raises(ConflictError, match="n1 is leaving"):
        decisions.drain(msgspec.structs.replace(known(), nodes=leaving), "n1", ())


# --- regions that groups prefer -------------------------------------------------------------------------------


def in_regions(nodes: str = "n1 n2 n3 n4", **regions: str) -> ClusterMap:
    current = known(nodes)
    placed = [msgspec.structs.replace(one, region=regions.get(one.node_id, "us")) for one in current.nodes]
    return msgspec.structs.replace(current, nodes=placed)


def preferring(current: ClusterMap, group: str, region: str) -> ClusterMap:
    following = decisions.prefer(current, Transfer(group, "", region)).map
    assert following is not None
    return following


def named(current: ClusterMap, name: str) -> GroupRecord:
    found = current.group(GroupId.parse(name))
    assert found is not None
    return found


def test_a_group_prefers_a_region_until_that_is_taken_back() -> None:
    current = in_regions(n3="eu")
    preferred = preferring(current, "data-0", "eu")
    assert (named(preferred, "data-0").region, named(preferred, "data-0").preferred) == ("eu", "n3")
    others = [group for group in preferred.groups if group.group_id.name != "data-0"]
    assert others == [group for group in current.groups if group.group_id.name != "data-0"]
    assert decisions.prefer(preferred, Transfer("data-0", "", "eu")).map is None
    with pytest.raises(ConflictError, match="data-0 prefers leaders in eu, and n2 is not there"):
        decisions.transfer(preferred, Transfer("data-0", "n2"))
    for later in (
        decisions.rebalance(preferred, 3, (), 3).map,
        decisions.add_group(preferred, "data", 3, ()).map,
        decisions.drain(preferred, "n1", ()).map,
    ):
        assert later is not None
        assert (named(later, "data-0").region, named(later, "data-0").preferred) == ("eu", "n3")
    back = preferring(preferred, "data-0", "")
    assert (named(back, "data-0").region, named(back, "data-0").preferred) == ("", "n3")
    assert decisions.transfer(back, Transfer("data-0", "n2")).map is not None


def test_others_lead_a_group_while_its_region_has_nobody_who_may() -> None:
    preferred = preferring(in_regions(n3="eu", n4="eu"), "data-0", "eu")
    drained = decisions.drain(preferred, "n3", ()).map
    assert drained is not None
    assert named(drained, "data-0").preferred in ("n1", "n2")
    back = decisions.undrain(drained, "n3").map
    assert back is not None
    assert named(back, "data-0").preferred == "n3"
    moved = decisions.move_replica(drained, MoveReplica("data-0", "n1", "n4"), ()).map
    assert moved is not None
    assert named(moved, "data-0").preferred == "n4", "a replica that comes to the region leads"


def test_a_region_without_a_voter_is_said_and_one_without_a_node_is_refused() -> None:
    current = in_regions(n4="eu")
    decided = decisions.prefer(current, Transfer("data-0", "", "eu"))
    assert "where it has no replica: others lead it until it has" in decided.text
    assert decided.map is not None
    assert named(decided.map, "data-0").preferred == named(current, "data-0").preferred
    with pytest.raises(InvalidRequestError, match="no node is in region 'ap'; regions of nodes: eu, us"):
        decisions.prefer(current, Transfer("data-0", "", "ap"))
    with pytest.raises(InvalidRequestError, match="regions of nodes: none"):
        decisions.prefer(known(), Transfer("data-0", "", "eu"))
    with pytest.raises(InvalidRequestError, match="either a node or a region"):
        decisions.prefer(current, Transfer("data-0", "n4", "eu"))
    with pytest.raises(NotFoundError, match="there is no group 'data-9'"):
        decisions.prefer(current, Transfer("data-9", "", "eu"))


def test_a_group_that_is_split_off_prefers_the_same_region() -> None:
    preferred = preferring(in_regions(n3="eu"), "data-0", "eu")
    following = decisions.move_slots(preferred, MoveSlots(group="data-0", half=True), REPLICAS, ()).map
    assert following is not None
    assert (named(following, "data-4").region, named(following, "data-4").preferred) == ("eu", "n3")
