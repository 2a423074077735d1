"""What a node does for a group, from what it has seen of the others."""

import msgspec
import pytest
from test_controller import leads, status_of

from metad.control.map.seen import CROWD_S, GONE_S, SETTLE_S, Seen
from metad.control.map.upkeep import Change, certain, due_changes, is_let_go, successors
from metad.raft.messages import Configuration
from metad.raft.roles.membership import CAUGHT_UP_ENTRIES
from metad_wire.cluster import ClusterMap, GroupId, GroupRecord, NodeRecord

GROUP = GroupId("data", 0)
NODES = ["n1", "n2", "n3"]
NOW = Configuration(tuple(NODES))


def record(replicas: list[str] = NODES, preferred: str = "n2") -> GroupRecord:
    return GroupRecord(*GROUP, NODES, replicas, preferred)


REGIONS = {"n1": "us", "n2": "us", "n3": "eu", "n4": "eu", "n5": "eu"}


def successor(
    record: GroupRecord, now: Configuration, lags: int | dict[str, int] | None, found: Seen, now_s: float, **states: str
) -> str | None:
    """The first node that n1 would hand the group to. ``states``: ``drained`` or ``leaving``, by node."""
    nodes = [NodeRecord(name, "", f"{name}:1", region) for name, region in REGIONS.items()]
    nodes = [
        msgspec.structs.replace(one, **{states[one.node_id]: True}) if one.node_id in states else one for one in nodes
    ]
    known = ClusterMap(7, nodes, [record], {})
    lag = lags.get if isinstance(lags, dict) else lambda _: lags
    return next(successors(record, known, now, lag, found, now_s), None)


def seen(connected: set[str], *, for_s: float) -> Seen:
    """What n1 has seen when it has led the group for so long."""
    found = Seen("n1")
    for now_s in (0.0, for_s):
        found.look(NODES, connected, now_s)
        found.leads(GROUP, now_s)
    return found


def test_a_member_that_was_lost_for_long_is_gone_and_one_that_the_map_forgot_is_gone_at_once() -> None:
    found = seen({"n2"}, for_s=GONE_S)
    assert set(found.lost) == {"n3"}
    assert not found.is_gone("n3", GONE_S - 0.1)
    assert found.is_gone("n3", GONE_S)
    assert found.is_gone("stranger", 0.0)
    found.look(NODES, {"n2"}, GONE_S, map_is_current=False)
    assert not found.is_gone("stranger", 9 * GONE_S), "it may have come since"
    found.look(NODES, {"n2"}, 0.0)
    assert not found.is_gone("n1", GONE_S)
    found.look(NODES, {"n2", "n3"}, GONE_S)
    assert not found.lost
    found.look(NODES, {"n2"}, GONE_S)
    assert not found.is_gone("n3", GONE_S + 1.0), "it counts from the last time"


def test_the_preferred_leader_takes_over_when_both_have_been_there_for_a_while() -> None:
    assert successor(record(), NOW, 0, seen({"n2"}, for_s=SETTLE_S), SETTLE_S) == "n2"
    found = seen({"n2"}, for_s=SETTLE_S)
    found.leads_no_longer(GROUP)
    found.leads(GROUP, 0.5)
    assert successor(record(), NOW, 0, found, SETTLE_S) is None
    found = seen(set(), for_s=0.5)
    found.look(NODES, {"n2"}, 0.5)
    assert successor(record(), NOW, 0, found, SETTLE_S) is None


def test_a_preferred_leader_that_came_back_waits_while_a_crowd_does() -> None:
    def led(crowd_until_s: float, *, away_until_s: float) -> float:
        """When n2 takes over from n1, which has led since 0 s."""
        found, now_s = Seen("n1"), 0.0
        while now_s < 2 * CROWD_S:
            found.look(NODES, {"n2"} if now_s >= away_until_s else set(), now_s)
            found.leads(GROUP, now_s)
            if now_s <= crowd_until_s:
                found.crowded(now_s)
            if successor(record(), NOW, 0, found, now_s) is not None:
                return now_s
            now_s += 0.5
        raise AssertionError("never")

    assert led(-1.0, away_until_s=3.0) == 3.0 + SETTLE_S
    assert led(20.0, away_until_s=3.0) == 20.0 + SETTLE_S, "once the crowd is served"
    assert led(2 * CROWD_S, away_until_s=3.0) == 3.0 + CROWD_S, "a crowd without end delays it for a minute"
    assert led(20.0, away_until_s=0.0) == SETTLE_S, "somebody who was here all the time is wanted by an operator"


@pytest.mark.parametrize(
    ("preferred", "lag_entries"), [("n1", 0), ("n4", 0), ("", 0), ("n2", None), ("n2", CAUGHT_UP_ENTRIES + 1)]
)
def test_a_leader_goes_on_while_the_preferred_one_cannot_take_over(preferred: str, lag_entries: int | None) -> None:
    found = seen({"n2", "n4"}, for_s=SETTLE_S)
    assert successor(record(preferred=preferred), NOW, lag_entries, found, SETTLE_S) is None


FIVE = Configuration(tuple(REGIONS))
EU = GroupRecord(*GROUP, [*REGIONS], [*REGIONS], "n4", region="eu")


def test_a_group_that_prefers_a_region_goes_to_its_preferred_leader_there_or_else_to_another_voter_there() -> None:
    found = seen({"n2", "n3", "n4", "n5"}, for_s=SETTLE_S)
    assert successor(EU, FIVE, 0, found, SETTLE_S) == "n4"
    assert successor(EU, FIVE, {"n3": 0, "n5": 0}, found, SETTLE_S) == "n3", "n4 has answered nothing yet"
    assert successor(EU, FIVE, {"n4": CAUGHT_UP_ENTRIES + 1, "n5": 9}, found, SETTLE_S) == "n5"
    assert successor(EU, FIVE, {"n2": 0}, found, SETTLE_S) is None, "n2 is no better than n1"
    assert successor(EU, Configuration(("n1", "n2", "n5")), 0, found, SETTLE_S) == "n5", "learners lead nothing"
    assert successor(EU, FIVE, 0, seen({"n2", "n5"}, for_s=SETTLE_S), SETTLE_S) == "n5", "it is the one within reach"
    assert successor(EU, FIVE, 0, found, SETTLE_S, n4="drained", n3="leaving") == "n5"
    second = msgspec.structs.replace(EU, ordinal=4)
    found.leads(second.group_id, 0.0)
    assert successor(second, FIVE, {"n3": 0, "n5": 0}, found, SETTLE_S) == "n5", "groups differ in who comes first"


def test_a_leader_in_its_region_hands_over_to_the_preferred_leader_there_only() -> None:
    def after(preferred: str) -> str | None:
        there = msgspec.structs.replace(EU, preferred=preferred, region="us")
        return successor(there, FIVE, 0, seen({"n2", "n3", "n4", "n5"}, for_s=SETTLE_S), SETTLE_S)

    assert (after("n2"), after("n4"), after("n1")) == ("n2", None, None)


def test_where_no_voter_is_in_the_region_the_preferred_leader_leads() -> None:
    away = msgspec.structs.replace(EU, preferred="n2", region="ap")
    assert successor(away, FIVE, 0, seen({"n2", "n3"}, for_s=SETTLE_S), SETTLE_S) == "n2"
    assert successor(away, FIVE, 0, seen({"n3"}, for_s=SETTLE_S), SETTLE_S) is None


def test_no_group_goes_round_in_circles() -> None:
    """Whoever gets it is better than who had it, by the same order on all nodes."""
    for region in ("eu", "us", "ap"):
        for preferred in REGIONS:
            wanted = msgspec.structs.replace(EU, preferred=preferred, region=region)
            at, held = "n1", []
            while at not in held:
                held.append(at)
                found = Seen(at)
                for now_s in (0.0, SETTLE_S):
                    found.look(REGIONS, {*REGIONS} - {at}, now_s)
                    found.leads(GROUP, now_s)
                at = successor(wanted, FIVE, 0, found, SETTLE_S) or at
            assert at == held[-1], f"{region} {preferred}: {held}"
            assert REGIONS[at] == region or (region == "ap" and at == preferred)


def test_a_replica_is_replaced_early_only_if_its_node_is_gone() -> None:
    wanted = record(["n1", "n2"])
    assert list(due_changes(wanted, NOW, seen({"n2"}, for_s=1.0), 1.0)) == [Change("remove", "n3")]
    lonely = Configuration(("n1", "n2"))
    replaced = record(["n1", "n3"])
    assert not list(due_changes(replaced, lonely, seen(set(), for_s=1.0), 1.0))
    assert Change("add", "n3") in list(due_changes(replaced, lonely, seen({"n3"}, for_s=1.0), 1.0))


def test_a_replica_is_let_go_when_map_and_leader_agree() -> None:
    away = record(["n2", "n3"])
    assert is_let_go("n1", away, 5, [leads("data", ["n2", "n3"])])
    assert not is_let_go("n1", record(), 5, [leads("data", ["n2", "n3"])])
    assert not is_let_go("n1", away, 6, [leads("data", ["n2", "n3"])])
    assert not is_let_go("n1", away, 5, [leads("offset", ["n2", "n3"])])


def test_only_committed_configurations_of_leaders_are_certain() -> None:
    sure = leads("data", NODES)
    assert certain(status_of([sure, leads("data", NODES, configured=10)])) == [sure]
