"""Members of consumer groups: generations only grow, each is assigned once, and whoever is gone commits nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_rig import Rig, command_of, item_errors

from metad.state.consumer import consumer_groups
from metad.state.core import view
from metad.state.core.limits import LOOKED_AT_BYTES_MAX, SCANNED_ROW_BYTES
from metad.state.core.part import Origin
from metad.state.core.slot_assignment import ALL_SLOTS
from metad.state.core.view import View
from metad.state.live.live_consumers import LiveConsumers
from metad.state.registry import VERBS
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import TooLargeError
from metad_wire.tables import consumer as w
from metad_wire.tables.consumer import GroupState, MemberKey
from metad_wire.tables.offset import OffsetDeleteGroups, OffsetExpireGroups

SESSION_MS, REBALANCE_MS = 10_000, 30_000


@pytest.fixture(params=(0, 3), ids=lambda lag: f"lag{lag}")
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig("offset", lag=request.param)


def item(member: str = "", group: str = "g", **fields: Any) -> w.JoinItem:
    return w.JoinItem("t", group, **{"session_ms": SESSION_MS, "rebalance_ms": REBALANCE_MS, "member": member} | fields)


def join(rig: Rig, *members: str, group: str = "g", **fields: Any) -> list[int]:
    """The generations that they wait for or are in."""
    reply = rig.write(methods.CONSUMER_JOIN, w.ConsumerJoin([item(name, group, **fields) for name in members]))
    assert reply.errors == []
    joined: list[int] = reply.joined
    return joined


def join_errors(rig: Rig, *items: w.JoinItem) -> dict[int, str]:
    return item_errors(rig.write(methods.CONSUMER_JOIN, w.ConsumerJoin(list(items))))


def leave(rig: Rig, *members: str, group: str = "g") -> dict[int, str]:
    keys = [MemberKey("t", group, name) for name in members]
    return item_errors(rig.write(methods.CONSUMER_LEAVE, m.Items(keys)))


def assign(rig: Rig, leader: str, generation: int, **assignments: bytes) -> str:
    """The error, if there is one."""
    what = [w.MemberAssignment(name, value) for name, value in assignments.items()]
    body = w.ConsumerAssign([w.AssignItem("t", "g", leader, generation, what)])
    return item_errors(rig.write(methods.CONSUMER_ASSIGN, body)).get(0, "")


def info(rig: Rig, group: str = "g") -> w.ConsumerGroupInfo:
    rig.settle()
    (found,) = rig.read(methods.CONSUMER_DESCRIBE, w.ConsumerDescribe([m.ConsumerGroup("t", group)])).groups
    assert isinstance(found, w.ConsumerGroupInfo)
    check(rig, found)
    return found


def check(rig: Rig, group: w.ConsumerGroupInfo) -> None:
    """What the group's row counts is what its members' rows say, and its offsets have its generation."""
    members = members_of(rig, group.group)
    assert group.members == len(members)
    assert group.waiting == (0 if group.state != 1 else sum(member.joined <= group.generation for member in members))
    assert (group.state == GroupState.JOINING) == bool(group.waiting), "all have joined, and nothing happens"
    assert (group.state == GroupState.EMPTY) == (not members)
    assert bool(group.member_bytes) == bool(members)
    if members:
        assert group.state == 1 or group.leader in {member.member for member in members}
    assert generation(rig, group.group) == group.generation


def members_of(rig: Rig, group: str = "g") -> list[w.Member]:
    rig.settle()
    found: list[w.Member] = []
    cursor = b""
    while True:
        reply = rig.read(methods.CONSUMER_MEMBERS, w.ConsumerMembers("t", group, m.Page(1_000, cursor)))
        found += reply.found
        cursor = reply.cursor
        if not cursor:
            break
    keys = [MemberKey("t", group, member.member) for member in found]
    assert rig.read(methods.CONSUMER_GET, methods.CONSUMER_GET.body(keys)).found == found
    return found


def generation(rig: Rig, group: str = "g") -> int:
    body = m.OffsetGenerations([m.ConsumerGroup("t", group)])
    (found,) = rig.read(methods.OFFSET_GENERATIONS, body).generations
    assert isinstance(found, int)
    return found


def commit(rig: Rig, generation: int, member: str = "", group: str = "g") -> str:
    body = m.OffsetCommit([m.OffsetCommitItem("t", group, "topic", 0, 1, generation)], False, member)
    return item_errors(rig.write(methods.OFFSET_COMMIT, body)).get(0, "")


def beat(rig: Rig, *members: str, arrived_s: float | None = None) -> list[w.Beat | None]:
    command = command_of(methods.CONSUMER_HEARTBEAT, w.ConsumerHeartbeat([MemberKey("t", "g", one) for one in members]))
    command.arrived_s = arrived_s
    read = VERBS[methods.CONSUMER_HEARTBEAT.code].read
    assert read is not None
    beats: list[w.Beat | None] = read(rig.group.machine.reader, command).beats
    return beats


def expire(rig: Rig, *members: str) -> None:
    rig.settle()
    rig.write(methods.CONSUMER_EXPIRE, w.ConsumerExpire([MemberKey("t", "g", name) for name in members]))


def stable(rig: Rig, *members: str) -> int:
    """A group of these members that has its assignment; its generation."""
    joined = join(rig, *members)
    leader = info(rig).leader
    assert assign(rig, leader, joined[0], **{name: name.encode() for name in members}) == ""
    assert info(rig).state == GroupState.STABLE
    return joined[0]


# --- generations -----------------------------------------------------------------------------------------


def test_members_that_join_together_begin_one_generation(rig: Rig) -> None:
    assert join(rig, "a", "b", "c") == [1, 1, 1]
    assert (info(rig).state, info(rig).generation, info(rig).leader) == (GroupState.ASSIGNING, 1, "a")


def test_a_new_member_waits_for_the_others(rig: Rig) -> None:
    stable(rig, "a", "b")
    assert join(rig, "c") == [2]
    assert (info(rig).state, info(rig).generation, info(rig).waiting) == (GroupState.JOINING, 1, 2)
    assert join(rig, "b") == [2]
    assert join(rig, "b") == [2], "the second time changes nothing"
    assert info(rig).waiting == 1
    assert join(rig, "a") == [2]
    assert (info(rig).state, info(rig).generation, info(rig).leader) == (GroupState.ASSIGNING, 2, "a")


def test_who_joins_again_as_it_was_disturbs_nobody(rig: Rig) -> None:
    stable(rig, "a", "b")
    assert join(rig, "a") == [1]
    assert info(rig).state == GroupState.STABLE


@pytest.mark.parametrize("change", [{"metadata": b"more"}, {"protocols": ["p"]}, {"rebalance": True}])
def test_who_joins_again_with_something_new_begins_a_rebalance(rig: Rig, change: dict[str, Any]) -> None:
    stable(rig, "a")
    assert join(rig, "a", **change) == [2]
    assert (info(rig).state, info(rig).generation) == (GroupState.ASSIGNING, 2)


def test_who_leaves_is_waited_for_no_longer(rig: Rig) -> None:
    stable(rig, "a", "b", "c")
    assert leave(rig, "a", "absent") == {1: "not_found"}
    assert (info(rig).waiting, info(rig).leader) == (2, "")
    join(rig, "b")
    assert leave(rig, "c") == {}
    assert (info(rig).state, info(rig).generation, info(rig).leader) == (GroupState.ASSIGNING, 2, "b")


def test_an_empty_group_goes_on_where_it_was(rig: Rig) -> None:
    stable(rig, "a")
    assert leave(rig, "a") == {}
    assert (info(rig).state, info(rig).generation) == (GroupState.EMPTY, 1)
    assert join(rig, "b") == [2]


def test_an_empty_group_goes_on_behind_what_others_have_committed(rig: Rig) -> None:
    stable(rig, "a")
    leave(rig, "a")
    assert commit(rig, 7) == ""
    assert info(rig).generation == 7
    assert join(rig, "b") == [8]
    assert info(rig).generation == 8


@pytest.mark.parametrize("lower", [0, 3])
def test_a_group_that_was_reset_shows_the_generation_that_it_was_reset_to(rig: Rig, lower: int) -> None:
    join(rig, "x", group="h")
    stable(rig, "a")
    leave(rig, "a")
    body = m.OffsetResetGenerations([m.GenerationReset("t", "g", 1, lower)])
    assert rig.write(methods.OFFSET_RESET_GENERATIONS, body).errors == []
    assert info(rig).generation == lower
    several = [m.ConsumerGroup("t", name) for name in ("h", "g", "none", "g")]
    found = rig.read(methods.CONSUMER_DESCRIBE, w.ConsumerDescribe(several)).groups
    assert [each and each.generation for each in found] == [1, lower, None, lower]


def test_a_group_of_a_generation_that_nobody_can_follow_must_be_reset(rig: Rig) -> None:
    assert commit(rig, m.GENERATION_MAX) == ""
    assert join_errors(rig, item("a")) == {0: "conflict"}
    body = m.OffsetResetGenerations([m.GenerationReset("t", "g", m.GENERATION_MAX, 5)])
    assert rig.write(methods.OFFSET_RESET_GENERATIONS, body).errors == []
    assert join(rig, "a") == [6]


def test_names_that_the_server_makes_differ(rig: Rig) -> None:
    names: list[str] = []
    for _ in range(3):
        names += rig.write(methods.CONSUMER_JOIN, w.ConsumerJoin([item(), item(), item(instance="i")])).members
    assert len(set(names)) == 9
    assert len(members_of(rig)) == 7, "whoever has the instance is one"


# --- what is agreed upon ---------------------------------------------------------------------------------


def test_the_protocol_is_the_leaders_best_that_all_know(rig: Rig) -> None:
    join(rig, "a", protocols=["new", "mid", "old"])
    assert info(rig).protocol == "new"
    join(rig, "b", protocols=["old", "mid"])
    join(rig, "a", protocols=["new", "mid", "old"])
    assert info(rig).protocol == "mid"
    assert join_errors(rig, item("c", protocols=["other"])) == {0: "conflict"}
    assert join_errors(rig, item("c")) == {0: "conflict"}, "one that knows none has none in common"
    assert leave(rig, "b") == {}
    assert join_errors(rig, item("c", protocols=["new"])) == {}, "who kept the others from it is gone"


def test_only_the_leader_of_the_generation_assigns_and_once(rig: Rig) -> None:
    join(rig, "a", "b")
    assert assign(rig, "b", 1, a=b"x") == "not_owner"
    assert assign(rig, "a", 2, a=b"x") == "fenced"
    assert assign(rig, "a", 1, a=b"x", absent=b"y") == "not_found"
    assert assign(rig, "a", 1, a=b"x", b=b"y") == ""
    assert assign(rig, "a", 1, a=b"z", b=b"z") == "conflict"
    assert [(member.assigned, member.assignment) for member in members_of(rig)] == [(1, b"x"), (1, b"y")]
    join(rig, "c")
    assert assign(rig, "a", 1, a=b"z") == "conflict"
    join(rig, "a", "b")
    assert assign(rig, "a", 1, a=b"z") == "fenced"
    assert assign(rig, "a", 2, c=b"all") == ""
    assert [member.assignment for member in members_of(rig) if member.assigned == 2] == [b"all"]


def test_a_group_without_members_has_no_assignment(rig: Rig) -> None:
    assert assign(rig, "a", 0) == "not_found"


# --- commits ---------------------------------------------------------------------------------------------


def test_a_generation_may_commit_until_the_next_begins(rig: Rig) -> None:
    stable(rig, "a", "b")
    assert commit(rig, 1, "a") == ""
    join(rig, "c")
    join(rig, "b")
    assert commit(rig, 1, "b") == "", "it lets go of what it has"
    join(rig, "a")
    assert commit(rig, 1, "a") == "fenced"
    assert commit(rig, 1) == "fenced"
    assert commit(rig, 2, "a") == ""


def test_nobody_raises_the_generation_of_a_group_with_members(rig: Rig) -> None:
    stable(rig, "a")
    assert commit(rig, 2) == "fenced"
    assert commit(rig, 2, "a") == "fenced"
    body = m.OffsetResetGenerations([m.GenerationReset("t", "g", 1, 0), m.GenerationReset("t", "g", 1, 9)])
    assert item_errors(rig.write(methods.OFFSET_RESET_GENERATIONS, body)) == {0: "conflict", 1: "conflict"}
    assert commit(rig, 1, "a") == ""
    assert info(rig).generation == 1


def test_only_a_member_commits_in_the_name_of_one(rig: Rig) -> None:
    stable(rig, "a", "b")
    assert commit(rig, 1, "c") == "fenced"
    leave(rig, "a")
    assert commit(rig, 1, "a") == "fenced"
    assert commit(rig, 1, "b") == ""
    assert commit(rig, 0, "b", group="other") == "fenced"
    two = [m.OffsetCommitItem("t", group, "topic", 0, 1, 1) for group in ("g", "other", "g")]
    assert item_errors(rig.write(methods.OFFSET_COMMIT, m.OffsetCommit(two, False, "b"))) == {1: "fenced"}


# --- places ----------------------------------------------------------------------------------------------


def placed(rig: Rig, instance: str, **fields: Any) -> str:
    (name,) = rig.write(methods.CONSUMER_JOIN, w.ConsumerJoin([item("", instance=instance, **fields)])).members
    assert isinstance(name, str)
    return name


def test_who_comes_back_has_its_place_and_its_assignment(rig: Rig) -> None:
    first = placed(rig, "i")
    assert assign(rig, first, 1, **{first: b"mine"}) == ""
    second = placed(rig, "i")
    assert second != first
    (member,) = members_of(rig)
    assert (member.member, member.joined, member.assigned, member.assignment) == (second, 1, 1, b"mine")
    assert (info(rig).state, info(rig).leader) == (GroupState.STABLE, second)
    assert beat(rig, first, second) == [None, w.Beat(SESSION_MS, 3, 1)]
    assert commit(rig, 1, first) == "fenced"
    assert commit(rig, 1, second) == ""
    assert join_errors(rig, item(first, instance="i")) == {0: "fenced"}
    assert join_errors(rig, item("i/none", instance="j")) == {0: "not_found"}
    assert join_errors(rig, item(second)) == {0: "invalid_item"}


def test_who_comes_back_with_something_new_begins_a_rebalance(rig: Rig) -> None:
    first = placed(rig, "i")
    assert assign(rig, first, 1, **{first: b"mine"}) == ""
    placed(rig, "i", metadata=b"new")
    assert (info(rig).state, info(rig).generation, info(rig).members) == (GroupState.ASSIGNING, 2, 1)


def test_who_comes_back_while_the_leader_assigns_is_assigned_something(rig: Rig) -> None:
    join(rig, "a")
    first = placed(rig, "i")
    join(rig, "a")
    assert info(rig).state == GroupState.ASSIGNING
    second = placed(rig, "i")
    assert assign(rig, "a", 2, a=b"", **{first: b"half"}) == "conflict"
    join(rig, "a")
    assert assign(rig, "a", 3, a=b"", **{second: b"half"}) == ""


def test_a_place_whose_name_begins_like_another_is_another(rig: Rig) -> None:
    names = [placed(rig, instance) for instance in ("a", "a/b", "b", "a/")]
    assert len({member.member for member in members_of(rig)}) == 4
    again = [placed(rig, instance) for instance in ("a", "a/b", "b", "a/")]
    assert {member.member for member in members_of(rig)} == set(again)
    assert not set(names) & set(again)


# --- time ------------------------------------------------------------------------------------------------


def test_a_silent_member_is_sent_away_and_one_that_speaks_is_not(rig: Rig) -> None:
    stable(rig, "a", "b")
    rig.advance(SESSION_MS - 1)
    assert beat(rig, "a") == [w.Beat(SESSION_MS, 3, 1)]
    expire(rig, "a", "b")
    assert info(rig).members == 2, "it is too early"
    rig.advance(1)
    live = rig.group.machine.parts[LiveConsumers]
    assert live.over(ALL_SLOTS) == [methods_key("b")]
    expire(rig, "a", "b")
    assert beat(rig, "b") == [None] or rig.lag, "its end is on its way"
    assert [member.member for member in members_of(rig)] == ["a"]
    assert (info(rig).state, info(rig).waiting) == (GroupState.JOINING, 1)
    assert live.over(ALL_SLOTS) == []


def methods_key(member: str) -> bytes:
    (key,) = w.CONSUMER.keys([MemberKey("t", "g", member)])[0]
    return key


def test_a_heartbeat_counts_from_when_it_arrived(rig: Rig) -> None:
    stable(rig, "a", "b")
    rig.advance(400)
    beat(rig, "a", arrived_s=rig.group.now_s - 0.4)
    rig.advance(SESSION_MS - 400)
    expire(rig, "a")
    assert [member.member for member in members_of(rig)] == ["b"]


def test_who_joins_again_is_heard_of(rig: Rig) -> None:
    """Also before the entry is applied."""
    stable(rig, "a", "b")
    rig.advance(SESSION_MS)
    join(rig, "a")
    rig.write(methods.CONSUMER_EXPIRE, w.ConsumerExpire([MemberKey("t", "g", name) for name in "ab"]))
    assert [member.member for member in members_of(rig)] == ["a"]


def test_a_rebalance_does_not_wait_for_ever(rig: Rig) -> None:
    stable(rig, "a", "b", "c")
    join(rig, "c", rebalance=True)
    for _ in range(REBALANCE_MS // 1_000):
        assert info(rig).members == 3
        rig.advance(1_000)
        beat(rig, "a", "b", "c")
        join(rig, "a")
    expire(rig, "")
    assert [member.member for member in members_of(rig)] == ["a", "c"], "it speaks, and does not join"
    assert (info(rig).state, info(rig).generation) == (GroupState.ASSIGNING, 2)


@pytest.mark.parametrize("how", ["at first", "later", "in its place"])
def test_a_rebalance_waits_for_who_may_not_know_of_it(rig: Rig, how: str) -> None:
    """A member believes for its session in what it heard last: so long nobody else may be given what it works on."""
    at_first = SESSION_MS if how == "at first" else 500
    join(rig, "a", "b", session_ms=at_first, rebalance_ms=500)
    assert join_errors(rig, item(instance="i", session_ms=500, rebalance_ms=500)) == {}
    join(rig, "a", "b", session_ms=at_first, rebalance_ms=500)
    assert info(rig).state == GroupState.ASSIGNING
    assert assign(rig, "a", 2, a=b"all") == ""
    if how == "later":
        join(rig, "a", session_ms=SESSION_MS, rebalance_ms=500)
    elif how == "in its place":
        assert join_errors(rig, item(instance="i", session_ms=SESSION_MS, rebalance_ms=500)) == {}
    assert (info(rig).state, info(rig).generation) == (GroupState.STABLE, 2)
    join(rig, "b", rebalance=True, session_ms=at_first, rebalance_ms=500)
    rig.settle()
    rig.advance(SESSION_MS - 1)
    expire(rig, "")
    assert (info(rig).members, info(rig).generation) == (3, 2)
    rig.advance(1)
    expire(rig, "")
    assert (info(rig).members, info(rig).generation) == (1, 3)


def test_a_leader_that_assigns_nothing_is_sent_away(rig: Rig) -> None:
    join(rig, "a", "b")
    rig.settle()
    rig.advance(REBALANCE_MS)
    beat(rig, "a", "b")
    expire(rig, "")
    assert [member.member for member in members_of(rig)] == ["b"]
    join(rig, "b")
    assert (info(rig).leader, info(rig).generation) == ("b", 2)


def test_the_time_of_one_rebalance_is_not_that_of_the_next(rig: Rig) -> None:
    """The order to end a rebalance comes when it has just ended by itself, in an entry that is not applied yet."""
    stable(rig, "a", "b")
    join(rig, "a", rebalance=True)
    rig.settle()
    rig.advance(REBALANCE_MS)
    beat(rig, "a", "b")
    join(rig, "b")
    rig.write(methods.CONSUMER_EXPIRE, w.ConsumerExpire([MemberKey("t", "g", "")]))
    assert info(rig).members == 2
    assert (info(rig).state, info(rig).leader) == (GroupState.ASSIGNING, "a")


def test_a_new_leader_and_a_restart_give_everybody_the_whole_time(rig: Rig) -> None:
    stable(rig, "a", "b")
    join(rig, "a", rebalance=True)
    rig.settle()
    rig.advance(REBALANCE_MS)
    rig.group.machine.parts[LiveConsumers].amnesty()
    expire(rig, "a", "b", "")
    assert info(rig).members == 2
    rig.group.restart()
    rig.advance(SESSION_MS - 1)
    expire(rig, "a", "b", "")
    assert info(rig).members == 2
    rig.advance(1)
    expire(rig, "a", "b")
    assert info(rig).members == 0


def test_an_end_by_time_says_so(rig: Rig) -> None:
    assert VERBS[methods.CONSUMER_EXPIRE.code].origin is Origin.EXPIRY


# --- bounds ----------------------------------------------------------------------------------------------


def test_a_group_has_a_bounded_number_of_members() -> None:
    rig = Rig("offset")
    names = [f"m{number}" for number in range(w.CONSUMER_MEMBERS_MAX)]
    assert join(rig, *names)[0] == 1
    assert join_errors(rig, item("one more"), item("m0", metadata=b"x")) == {0: "quota_exceeded"}
    assert leave(rig, "m5") == {}
    assert join_errors(rig, item("one more")) == {}
    assert info(rig).members == w.CONSUMER_MEMBERS_MAX


def test_members_take_a_bounded_number_of_bytes() -> None:
    rig = Rig("offset")
    count = w.CONSUMER_BYTES_MAX // 4_000
    errors = join_errors(rig, *[item(f"m{number}", metadata=b"x" * 4_000) for number in range(count + 5)])
    assert set(errors.values()) == {"quota_exceeded"}
    assert len(errors) + info(rig).members == count + 5
    while room := w.CONSUMER_BYTES_MAX - info(rig).member_bytes:
        name = f"filler {info(rig).members}"
        if join_errors(rig, item(name)):  # there is no room even for this
            break
        left = w.CONSUMER_BYTES_MAX - info(rig).member_bytes
        assert left < room
        join(rig, name, metadata=b"x" * min(left, w.MEMBER_VALUE_BYTES_MAX))
    assert join_errors(rig, item("m0", metadata=b"x" * 4_090), item("m1", metadata=b"x")) == {0: "quota_exceeded"}
    assert join_errors(rig, item("m0", metadata=b"x" * 4_090)) == {}, "the other has less now"


def test_the_longest_members_can_all_be_assigned_something() -> None:
    rig = Rig("offset")
    names = [f"m{number}" for number in range(w.CONSUMER_BYTES_MAX // 4_200)]
    join(rig, *names, metadata=b"x" * 4_000)
    each = w.ASSIGNMENT_BYTES_MAX // len(names)
    assert assign(rig, "m0", 1, **dict.fromkeys(names, b"y" * each)) == ""
    assert [len(member.assignment) for member in members_of(rig)] == [each] * len(names)
    rig.advance(SESSION_MS)
    for _ in range(len(names)):
        if not info(rig).members:
            break
        expire(rig, *names)
    assert info(rig).members == 0


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (item("x" * (w.MEMBER_NAME_BYTES_MAX + 1)), "invalid_item"),
        (item(instance="x" * (w.INSTANCE_BYTES_MAX + 1)), "invalid_item"),
        (item("a", session_ms=w.MEMBER_TIMEOUT_MS_MIN - 1), "invalid_item"),
        (item("a", session_ms=w.MEMBER_PATIENCE_MS_MAX + 1), "invalid_item"),
        (item("a", rebalance_ms=w.MEMBER_TIMEOUT_MS_MAX), "invalid_item"),
        (item("a", protocols=["p"] * (w.MEMBER_PROTOCOLS_MAX + 1)), "invalid_item"),
    ],
)
def test_an_item_out_of_bounds_is_refused_alone(rig: Rig, refused: w.JoinItem, error: str) -> None:
    assert join_errors(rig, refused, item("good")) == {0: error}
    assert [member.member for member in members_of(rig)] == ["good"]


def test_what_a_member_says_is_bounded() -> None:
    for fields in ({"metadata": b"x" * 4_000}, {"holder": "x" * 4_000}, {"protocols": ["x" * 2_000, "x" * 2_000]}):
        assert w.CONSUMER.fault(item("a", **fields)) is None
        assert w.CONSUMER.fault(item("a", **fields | {"metadata": b"x" * 4_097})) is not None


def test_assignments_take_a_bounded_number_of_bytes(rig: Rig) -> None:
    join(rig, "a")
    assert assign(rig, "a", 1, a=b"x" * (w.ASSIGNMENT_BYTES_MAX + 1)) == "invalid_item"
    assert assign(rig, "a", 1, a=b"x" * w.ASSIGNMENT_BYTES_MAX) == ""


def test_assignments_of_many_groups_do_not_make_an_entry_too_long(rig: Rig) -> None:
    items = []
    for group in ("g1", "g2", "g3", "g4", "g5"):
        join(rig, "a", group=group)
        one = w.MemberAssignment("a", b"x" * w.ASSIGNMENT_BYTES_MAX)
        items.append(w.AssignItem("t", group, "a", 1, [one]))
    with pytest.raises(TooLargeError):
        rig.write(methods.CONSUMER_ASSIGN, w.ConsumerAssign(items))
    assert info(rig, "g1").state == GroupState.ASSIGNING


def forget_rows(rig: Rig) -> None:
    """As a new leader, or where the memory for rows went to others."""
    rig.settle()
    rig.group.machine.forget()


def silent(rig: Rig) -> list[MemberKey]:
    """What the node orders to end, in its order."""
    over = rig.group.machine.parts[LiveConsumers].over(ALL_SLOTS)
    return [MemberKey(*w.CONSUMER.fields_of(key, 3)) for key in over]


def test_what_is_assigned_does_not_add_up_over_generations(rig: Rig) -> None:
    """Once wrong: each generation gave another member as much as all may have, until the members were too much to be
    read, and their group kept all others from losing their silent members."""
    names = [f"m{number}" for number in range(6)]
    for generation in range(1, 7):
        join(rig, *names, rebalance=True)
        assert assign(rig, "m0", generation, **{names[generation - 1]: b"x" * w.ASSIGNMENT_BYTES_MAX}) == ""
        held = [member for member in members_of(rig) if member.assignment]
        assert {member.assigned for member in held} <= {generation, generation - 1}
        assert sum([len(member.assignment) for member in held]) <= 2 * w.ASSIGNMENT_BYTES_MAX


def test_a_member_has_what_it_was_assigned_until_the_next_generation_has_its_assignment(rig: Rig) -> None:
    stable(rig, "a", "b")
    assert join(rig, "a") == [1]
    assert [member.assignment for member in members_of(rig)] == [b"a", b"b"], "it joined as it was"
    join(rig, "a", "b", rebalance=True)
    assert info(rig).state == GroupState.ASSIGNING
    assert [(member.assigned, member.assignment) for member in members_of(rig)] == [(1, b"a"), (1, b"b")]
    assert assign(rig, "a", 2, a=b"all") == ""
    join(rig, "a", "b", rebalance=True)
    assert [(member.assigned, member.assignment) for member in members_of(rig)] == [(2, b"all"), (0, b"")]


def test_silent_members_of_many_groups_with_long_assignments_are_sent_away(rig: Rig) -> None:
    """Once wrong: only what is not assigned was counted, so an order that read too much failed, each time."""
    groups = [f"g{number:02}" for number in range(40)]
    for group in groups:
        join(rig, "a", group=group)
        one = w.MemberAssignment("a", b"x" * w.ASSIGNMENT_BYTES_MAX)
        body = w.ConsumerAssign([w.AssignItem("t", group, "a", 1, [one])])
        assert rig.write(methods.CONSUMER_ASSIGN, body).errors == []
    forget_rows(rig)
    rig.advance(SESSION_MS)
    orders = 0
    while keys := silent(rig):
        forget_rows(rig)
        assert rig.write(methods.CONSUMER_EXPIRE, w.ConsumerExpire(keys)).errors == []
        rig.settle()
        orders += 1
        assert orders <= 5
    assert {info(rig, group).state for group in groups} == {GroupState.EMPTY}


def test_rebalances_of_many_large_groups_end(rig: Rig) -> None:
    """Once wrong: an order counted the members that were left, so it looked at all of any number of groups."""
    groups = [f"g{number:02}" for number in range(40)]
    names = [f"m{number}" for number in range(w.CONSUMER_BYTES_MAX // 4_200)]
    for group in groups:
        join(rig, *names, group=group, metadata=b"x" * 4_000, session_ms=2 * REBALANCE_MS, rebalance_ms=500)
        join(rig, "m0", group=group, metadata=b"y", session_ms=2 * REBALANCE_MS, rebalance_ms=500)
    forget_rows(rig)
    rig.advance(2 * REBALANCE_MS)
    keys = [MemberKey("t", group, "") for group in groups]
    for _ in groups:
        forget_rows(rig)
        assert rig.write(methods.CONSUMER_EXPIRE, w.ConsumerExpire(keys)).errors == []
        view = rig.group.machine._view
        assert view.looked_at < LOOKED_AT_BYTES_MAX // 2 + 2 * 1024 * 1024
    assert {info(rig, group).members for group in groups} == {1}


@pytest.mark.parametrize("how", ["its rebalance ends", "its last member that waits is sent away"])
def test_a_group_that_cannot_be_changed_keeps_no_other_waiting(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Once wrong: one that raised an error failed the order for all."""
    for group in ("first", "poison", "last"):
        join(rig, "a", "b", group=group)
        join(rig, "a", group=group, rebalance=True)
    rig.settle()
    before = members_of(rig, "poison"), info(rig, "poison")
    real = consumer_groups.ChangedGroup.members

    def members(group: consumer_groups.ChangedGroup) -> list[w.Member]:
        if group.group == "poison":
            raise TooLargeError("the members are too much")
        return real(group)

    monkeypatch.setattr(consumer_groups.ChangedGroup, "members", members)
    rig.advance(REBALANCE_MS)
    name = "" if how == "its rebalance ends" else "b"
    keys = [MemberKey("t", group, name) for group in ("first", "poison", "last")]
    reply = rig.write(methods.CONSUMER_EXPIRE, w.ConsumerExpire(keys))
    assert item_errors(reply) == {1: "too_large"}
    for group in ("first", "last"):
        assert [member.member for member in members_of(rig, group)] == ["a"]
        assert (info(rig, group).state, info(rig, group).generation) == (GroupState.ASSIGNING, 2)
    assert (members_of(rig, "poison"), info(rig, "poison")) == before


def test_nobody_gets_a_name_that_is_too_long_for_a_key() -> None:
    """Such a member could neither say that it lives nor be sent away."""
    rig = Rig("offset")
    key_bytes = len(w.CONSUMER.key_of(["t", "", ""]))
    for spare in (10, 0):
        group = "g" * (m.KEY_BYTES_MAX - key_bytes - spare)
        errors = join_errors(rig, item(group=group), item("", "other"))
        assert errors == ({} if spare else {0: "invalid_item"})


# --- whole groups ----------------------------------------------------------------------------------------


def test_everything_of_a_group_is_deleted_and_nothing_of_others(rig: Rig) -> None:
    stable(rig, "a")
    for group in ("g", "g2", "h"):
        offsets = [m.OffsetCommitItem("t", group, f"t{number}", 0, 1, 0) for number in range(30)]
        rig.write(methods.OFFSET_COMMIT, m.OffsetCommit(offsets, False) if group != "g" else m.OffsetCommit([]))
    many = [m.OffsetCommitItem("t", "g", f"t{number}", 0, 1, 1) for number in range(1_000)]
    assert rig.write(methods.OFFSET_COMMIT, m.OffsetCommit(many, False, "a")).errors == []
    more = [m.OffsetCommitItem("t", "g", f"u{number}", 0, 1, 1) for number in range(500)]
    assert rig.write(methods.OFFSET_COMMIT, m.OffsetCommit(more, False, "a")).errors == []
    body = OffsetDeleteGroups([m.ConsumerGroup("t", "g"), m.ConsumerGroup("t", "h")])
    assert item_errors(rig.write(methods.OFFSET_DELETE_GROUPS, body)) == {0: "conflict"}
    leave(rig, "a")
    deleted, calls = 0, 0
    while True:
        reply = rig.write(methods.OFFSET_DELETE_GROUPS, OffsetDeleteGroups([m.ConsumerGroup("t", "g")]))
        deleted, calls = deleted + reply.deleted[0], calls + 1
        if not reply.left[0]:
            break
        assert calls < 10
    assert deleted == 1_500
    rig.settle()
    assert rig.read(methods.OFFSET_LIST, m.OffsetList("t", "g")).found == []
    assert len(rig.read(methods.OFFSET_LIST, m.OffsetList("t", "g2")).found) == 30
    assert rig.read(methods.OFFSET_LIST, m.OffsetList("t", "h")).found == []
    assert generation(rig) == 0
    assert rig.read(methods.CONSUMER_DESCRIBE, w.ConsumerDescribe([m.ConsumerGroup("t", "g")])).groups == [None]


def test_many_groups_are_deleted_a_bounded_number_at_a_time(rig: Rig) -> None:
    groups = [m.ConsumerGroup("t", f"g{number}") for number in range(200)]
    for group in groups:
        rig.write(methods.OFFSET_COMMIT, m.OffsetCommit([m.OffsetCommitItem("t", group.group, "t", 0, 1, 3)]))
    calls = 0
    while groups:
        reply = rig.write(methods.OFFSET_DELETE_GROUPS, OffsetDeleteGroups(groups))
        groups = [group for group, left in zip(groups, reply.left, strict=True) if left]
        calls += 1
        assert calls <= 6
    rig.settle()
    assert calls > 1
    assert rig.read(methods.OFFSET_LIST, m.OffsetList("t", "g0")).found == []


def unused(rig: Rig, before_ms: int, *groups: str) -> tuple[dict[int, str], list[int], list[bool]]:
    body = OffsetExpireGroups([m.ConsumerGroup("t", group) for group in groups], before_ms)
    reply = rig.write(methods.OFFSET_EXPIRE_GROUPS, body)
    return item_errors(reply), reply.deleted, reply.left


def test_a_group_that_nobody_uses_is_deleted_and_one_that_is_used_is_not(rig: Rig) -> None:
    day_ms = 24 * 3600 * 1000
    for group in ("old", "mixed", "left", "has", "never"):
        for topic in ("a", "b"):
            rig.write(methods.OFFSET_COMMIT, m.OffsetCommit([m.OffsetCommitItem("t", group, topic, 0, 1, 0)]))
    join(rig, "m", group="left")
    join(rig, "m", group="has")
    rig.advance(day_ms)
    rig.write(methods.OFFSET_COMMIT, m.OffsetCommit([m.OffsetCommitItem("t", "mixed", "b", 0, 2, 0)]))
    leave(rig, "m", group="left")
    before_ms = rig.now_ms - day_ms // 2
    groups = ("old", "mixed", "left", "has", "absent")
    errors, deleted, left = unused(rig, before_ms, *groups)
    assert (errors, deleted, left) == ({1: "conflict", 2: "conflict", 3: "conflict"}, [2, 0, 0, 0, 0], [False] * 5)
    rig.settle()
    for group, offsets in zip(groups, (0, 2, 2, 2, 0), strict=True):
        assert len(rig.read(methods.OFFSET_LIST, m.OffsetList("t", group)).found) == offsets, group
    rig.advance(day_ms)
    assert unused(rig, rig.now_ms - day_ms // 2, "mixed", "left", "has")[1] == [2, 2, 0]
    assert generation(rig, "has") == 1
    rig.settle()
    assert generation(rig, "left") == 0


def test_no_group_is_unused_within_an_amnesty(rig: Rig) -> None:
    rig.write(methods.OFFSET_COMMIT, m.OffsetCommit([m.OffsetCommitItem("t", "g", "a", 0, 1, 0)]))
    rig.advance(1_000)  # the leader has only begun to lead
    assert unused(rig, rig.now_ms, "g")[0] == {0: "conflict"}
    rig.advance(3_600_000)
    assert unused(rig, rig.now_ms, "g") == ({}, [1], [False])


# --- everything at random --------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c", "d"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), NAMES, st.sampled_from([b"", b"x"])),
        st.tuples(st.just("place"), st.sampled_from(["i", "j"]), st.sampled_from([b"", b"x"])),
        st.tuples(st.just("leave"), NAMES, st.just(b"")),
        st.tuples(st.just("assign"), st.just(""), st.just(b"")),
        st.tuples(st.just("silent"), NAMES, st.just(b"")),
        st.tuples(st.just("late"), st.just(""), st.just(b"")),
        st.tuples(st.just("restart"), st.just(""), st.just(b"")),
    ),
    max_size=25,
)


@settings(max_examples=100, deadline=None)
@given(STEPS, st.integers(0, 2))
def test_whatever_happens_generations_grow_and_rows_agree(steps: list[tuple[str, str, bytes]], lag: int) -> None:
    rig = Rig("offset", lag=lag)
    seen, assigned = 0, set[int]()
    for step, name, metadata in steps:
        if step == "join":
            join(rig, name, metadata=metadata)
        elif step == "place":
            placed(rig, name, metadata=metadata)
        elif step == "leave":
            leave(rig, name)
        elif step == "restart":
            rig.settle()
            rig.group.restart()
        elif step in ("silent", "late"):
            rig.settle()
            rig.advance(SESSION_MS if step == "silent" else REBALANCE_MS)
            others = [member.member for member in members_of(rig) if member.member != name]
            beat(rig, *others)
            expire(rig, name if step == "silent" else "", *others)
        rig.settle()
        (found,) = rig.read(methods.CONSUMER_DESCRIBE, w.ConsumerDescribe([m.ConsumerGroup("t", "g")])).groups
        if found is None:
            continue
        check(rig, found)
        assert found.generation >= seen, "a generation went back"
        if step == "assign" and found.members:
            error = assign(rig, found.leader, found.generation)
            assert (error == "") == (found.state == GroupState.ASSIGNING)
            if not error:
                assert found.generation not in assigned, "assigned twice"
                assigned.add(found.generation)
        if found.members and seen < found.generation:
            assert commit(rig, seen) == "fenced"
        seen = found.generation


def test_a_join_stops_where_it_has_read_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each further item read all members again before it was refused: a second for one request."""
    monkeypatch.setattr(view, "LOOKED_AT_BYTES_MAX", 5 * 20 * SCANNED_ROW_BYTES)
    rig = Rig("offset")
    join(rig, *(f"m{n}" for n in range(20)), protocols=["range"])
    rig.settle()
    looks: list[bytes] = []
    keys_with = View.keys_with

    def noted(self: View, prefix: bytes, limit: int) -> list[bytes]:
        looks.append(prefix)
        return keys_with(self, prefix, limit)

    monkeypatch.setattr(View, "keys_with", noted)
    with pytest.raises(TooLargeError):
        rig.write(methods.CONSUMER_JOIN, w.ConsumerJoin([item(f"x{n}", protocols=["x"]) for n in range(40)]))
    assert len(looks) <= 6
