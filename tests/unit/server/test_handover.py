"""Whom a node that ends gives its groups to, and when it does not wait."""

from __future__ import annotations

from typing import Any

from metad.node.replicas.handover import AGAIN_S, LAG_ENTRIES_MAX, Handover
from metad.raft.base import CANDIDATE, FOLLOWER, LEADER, LOW, ROOM
from metad.raft.messages import Configuration
from metad.raft.replica import RaftGroup
from metad.raft.roles.membership import ChangeRefusedError


class Peer:
    def __init__(self, match: int) -> None:
        self.match = match
        self.unapplied = 0
        self.shortage = ROOM


class Log:
    last_index = 5_000


class Group:
    """A group led by n1, of which nothing but its hand-over happens."""

    def __init__(self, name: str, voters: str = "n1 n2 n3", learners: str = "", **match: int) -> None:
        self.name = name
        self.configuration = Configuration(tuple(voters.split()), tuple(learners.split()))
        self.peers = {peer: Peer(match.get(peer, 5_000)) for peer in self.configuration.members if peer != "n1"}
        self.connected = set(self.peers)
        self.log = Log()
        self.leader: str | None = "n1"
        self.is_leader = self.ready = self.accepting = True
        self.role = LEADER
        self.asked: list[str] = []
        self.refusal: ChangeRefusedError | None = None

    lag = RaftGroup.lag

    def short_of_room(self) -> list[str]:
        return [peer for peer, progress in self.peers.items() if progress.shortage]

    def transfer(self, target: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.asked.append(target)
        self.accepting = False

    def over(self, leader: str | None) -> None:
        self.is_leader, self.ready, self.accepting, self.leader = False, False, False, leader
        self.role = FOLLOWER


class Rig:
    def __init__(self, *groups: Group, drained: str = "", at_all_costs: bool = True) -> None:
        self.now_s = 0.0
        made: Any = lambda: groups  # noqa: E731
        self.handover = Handover(made, lambda: self.now_s, drained.split, at_all_costs=at_all_costs)

    def step(self) -> bool:
        return self.handover.step()


def test_a_group_is_waited_for_until_its_next_leader_is_known() -> None:
    group = Group("data-0")
    rig = Rig(group)
    assert rig.step()
    assert rig.step()
    assert group.asked == ["n2"]
    group.over(None)
    assert rig.step(), "clients could not be told where to go"
    group.over("n2")
    assert not rig.step()


def test_groups_are_given_to_all_alike() -> None:
    groups = [Group(f"data-{number}") for number in range(4)]
    Rig(*groups).step()
    assert sorted(target for group in groups for target in group.asked) == ["n2", "n2", "n3", "n3"]


def test_who_has_most_is_given_it_and_who_lacks_much_is_not() -> None:
    group = Group("data-0", n2=4_990)
    Rig(group).step()
    assert group.asked == ["n3"]
    others = [Group(f"data-{number}", n2=4_500) for number in range(2)]
    Rig(*others).step()
    assert [other.asked for other in others] == [["n3"], ["n3"]], "n2 has not caught up"
    busy = Group("data-0")
    busy.peers["n2"].unapplied = busy.peers["n3"].unapplied = 50_000
    busy.peers["n3"].unapplied -= 1
    Rig(busy).step()
    assert busy.asked == ["n3"], "whoever leads next applies first what it has to"
    late = Group("data-0", n2=5_000 - LAG_ENTRIES_MAX - 1, n3=0)
    assert not Rig(late).step()
    assert late.asked == []


def test_learners_and_voters_that_are_gone_are_given_nothing_and_nobody_waits() -> None:
    group = Group("data-0", "n1 n2", "n3")
    group.connected = {"n3"}
    assert not Rig(group).step()
    assert not Rig(Group("data-0", "n1")).step()
    assert group.asked == []


def test_a_transfer_to_who_is_lost_meanwhile_is_not_waited_for() -> None:
    group = Group("data-0")
    rig = Rig(group)
    rig.step()
    group.connected.discard("n2")
    assert not rig.step()


def test_a_change_that_is_being_committed_is_waited_for() -> None:
    group = Group("data-0")
    group.refusal = ChangeRefusedError("the membership is changing")
    rig = Rig(group)
    assert rig.step()
    group.refusal = None
    assert rig.step()
    assert group.asked == ["n2"]


def test_one_that_comes_back_is_handed_over_again_but_not_at_once() -> None:
    group = Group("data-0")
    rig = Rig(group)
    rig.step()
    group.accepting = True  # given up, or given back by one that ends as well
    assert not rig.step()
    rig.now_s = AGAIN_S
    assert rig.step()
    assert len(group.asked) == 2


def test_a_group_that_is_being_given_to_this_node_is_waited_for_and_given_on() -> None:
    group = Group("data-0")
    group.over(None)
    rig = Rig(group)
    assert not rig.step()
    group.role = CANDIDATE
    assert rig.step()
    group.role, group.leader = LEADER, "n1"
    group.is_leader = group.ready = group.accepting = True
    assert rig.step()
    assert group.asked == ["n2"]


def test_what_the_map_hands_over_is_waited_for() -> None:
    group = Group("data-0")
    group.accepting = False
    assert Rig(group).step()
    assert group.asked == []


def test_who_has_room_on_its_disk_goes_before_who_has_caught_up() -> None:
    group = Group("data-0", n2=5_000, n3=4_200)
    group.peers["n2"].shortage = LOW
    Rig(group).step()
    assert group.asked == ["n3"]
    both = Group("data-1")
    both.peers["n2"].shortage = both.peers["n3"].shortage = LOW
    Rig(both).step()
    assert both.asked, "a node that ends has no choice"


def test_a_drained_node_is_given_what_nobody_else_can_take_and_that_only_by_one_that_ends() -> None:
    group = Group("data-0", n2=5_000, n3=4_500)
    Rig(group, drained="n2").step()
    assert group.asked == ["n3"], "one that lacks some entries is better than one that is to lead nothing"
    alone = Group("data-0", n3=0)
    Rig(alone, drained="n2").step()
    assert alone.asked == ["n2"], "a group without a leader is worse"
    here = Group("data-0")
    assert not Rig(here, drained="n1 n2 n3", at_all_costs=False).step()
    assert here.asked == [], "drained nodes would hand it round in a circle"
