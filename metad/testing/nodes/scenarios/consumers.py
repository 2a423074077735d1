"""Consumer groups: a member is sent away when it is silent, and never because the service was."""

from __future__ import annotations

from typing import Any

from metad_wire import messages as m
from metad_wire.cluster import SLOTS
from metad_wire.group import GroupId
from metad_wire.methods import (
    CONSUMER_ASSIGN,
    CONSUMER_DESCRIBE,
    CONSUMER_HEARTBEAT,
    CONSUMER_JOIN,
    CONSUMER_MEMBERS,
    OFFSET_COMMIT,
    Method,
)
from metad_wire.tables import consumer as w
from metad_wire.tables.consumer import CONSUMER, GroupState, MemberKey

from ....config import RaftConfig
from ..cluster import OFFSET, SimNode
from .scene import Scene, scenario

_SESSION_S = 1.0
_GONE_S = 0.6
"""A silent member is gone so long after its time, with two looks, an order and its entry."""
_PATIENT = RaftConfig(election_timeout_ms=3_000, heartbeat_ms=100, sleep_after_ms=10_000)
"""A leader that is away for a second or two stays the leader."""


def _ask(scene: Scene, method: Method[Any, Any], body: Any, group: GroupId = OFFSET) -> Any:
    leader = scene.lead(group)
    assert leader.node is not None
    assert leader.process is not None
    task = leader.process.start(leader.node.requests.call(method, body, group=group.name))
    assert scene.run_until(task.done, 5.0), "there is no answer"
    return task.result()


def _join(scene: Scene, *names: str, group: GroupId = OFFSET, rebalance: bool = False) -> list[int]:
    items = [
        w.JoinItem("t", "g", int(_SESSION_S * 1000), int(2 * _SESSION_S * 1000), name, rebalance=rebalance)
        for name in names
    ]
    reply = _ask(scene, CONSUMER_JOIN, w.ConsumerJoin(items), group)
    assert reply.errors == []
    joined: list[int] = reply.joined
    return joined


def _speak(scene: Scene, *names: str, group: GroupId = OFFSET) -> list[str]:
    """Heartbeats; who is a member."""
    body = w.ConsumerHeartbeat([MemberKey("t", "g", name) for name in names])
    beats = _ask(scene, CONSUMER_HEARTBEAT, body, group).beats
    return [name for name, beat in zip(names, beats, strict=True) if beat is not None]


def _group(scene: Scene, group: GroupId = OFFSET) -> w.ConsumerGroupInfo:
    (found,) = _ask(scene, CONSUMER_DESCRIBE, w.ConsumerDescribe([m.ConsumerGroup("t", "g")]), group).groups
    assert isinstance(found, w.ConsumerGroupInfo)
    return found


def _members(scene: Scene) -> list[str]:
    return [member.member for member in _ask(scene, CONSUMER_MEMBERS, w.ConsumerMembers("t", "g")).members]


def _assign(scene: Scene, leader: str, generation: int) -> int:
    """The code of the error; 0: there is none."""
    reply = _ask(scene, CONSUMER_ASSIGN, w.ConsumerAssign([w.AssignItem("t", "g", leader, generation, [])]))
    return reply.errors[0].code if reply.errors else 0


def _commit(scene: Scene, generation: int, member: str = "") -> bool:
    body = m.OffsetCommit([m.OffsetCommitItem("t", "g", "topic", 0, 1, generation)], False, member)
    return not _ask(scene, OFFSET_COMMIT, body).errors


def _settled(scene: Scene) -> SimNode:
    """The leader of the metad group, which stays it, and has looked for the first time."""
    scene.transfer(min(scene.nodes), OFFSET)
    scene.run(_GONE_S)
    return scene.lead(OFFSET)


def _stable(scene: Scene, *names: str) -> SimNode:
    """A group of these members; the leader of the metad group."""
    leader = _settled(scene)
    assert _join(scene, *names) == [1] * len(names)
    assert _assign(scene, min(names), 1) == 0
    return leader


@scenario
def a_silent_member_is_sent_away_and_the_others_go_on() -> None:
    with Scene() as scene:
        _stable(scene, "a", "b")
        joined_s = scene.loop.now
        while scene.loop.now < joined_s + _SESSION_S - 0.2:
            assert _speak(scene, "a") == ["a"]
            assert _members(scene) == ["a", "b"], "it is sent away before its time"
            scene.run(0.1)
        while scene.loop.now < joined_s + _SESSION_S + _GONE_S:
            assert _speak(scene, "a") == ["a"], "it speaks, and is sent away"
            scene.run(0.1)
        assert _speak(scene, "a", "b") == ["a"]
        assert _group(scene).state == GroupState.JOINING, "nobody is told that a member is gone"
        assert _commit(scene, 1, "a")
        assert not _commit(scene, 1, "b"), "it is no member, and commits"
        assert _join(scene, "a") == [2]
        assert not _commit(scene, 1), "a generation that is over commits"
        assert _assign(scene, "a", 2) == 0
        assert _assign(scene, "a", 2) != 0, "a generation is assigned twice"
        scene.require_settled(20.0)


@scenario
def a_member_that_does_not_join_is_waited_for_no_longer_than_it_takes() -> None:
    with Scene() as scene:
        _stable(scene, "a", "b")
        assert _join(scene, "a", rebalance=True) == [2]
        begun_s = scene.loop.now
        while scene.loop.now < begun_s + 2 * _SESSION_S - 0.2:
            assert _speak(scene, "a", "b") == ["a", "b"], "it is sent away before its time"
            scene.run(0.2)
        while scene.loop.now < begun_s + 2 * _SESSION_S + _GONE_S:
            _speak(scene, "a", "b")
            scene.run(0.2)
        assert (_members(scene), _group(scene).generation) == (["a"], 2), "the others wait for ever"


@scenario
def a_leader_that_does_not_assign_is_sent_away() -> None:
    with Scene() as scene:
        _settled(scene)
        _join(scene, "a", "b")
        begun_s = scene.loop.now
        while scene.loop.now < begun_s + 2 * _SESSION_S + _GONE_S:
            _speak(scene, "a", "b")
            scene.run(0.2)
        assert _members(scene) == ["b"], "the others wait for ever"


@scenario
def a_new_leader_gives_members_the_whole_time() -> None:
    """The leader dies just before the members' time is over. They have not heard of the next one yet."""
    with Scene() as scene:
        leader = _stable(scene, "a", "b")
        scene.run(_SESSION_S - 0.1)
        leader.crash(power=False)
        assert scene.run_until(lambda: scene.leader(OFFSET) not in (None, leader), 5.0)
        scene.lead(OFFSET)
        scene.run(_SESSION_S - 0.2)
        assert _speak(scene, "a", "b") == ["a", "b"], "they are sent away because a leader has died"
        scene.run(_SESSION_S + _GONE_S)
        assert _members(scene) == []


@scenario
def a_leader_that_stood_still_gives_members_the_whole_time() -> None:
    with Scene(raft=_PATIENT) as scene:
        leader = _stable(scene, "a", "b")
        scene.run(0.5)
        leader.pause(1.5)
        scene.run(1.5 + 0.5)
        assert scene.lead(OFFSET) is leader
        assert _speak(scene, "a", "b") == ["a", "b"], "they are sent away because the leader stood still"


@scenario
def members_that_move_have_the_whole_time() -> None:
    """Their slot moves to another group. They were copied early, and their time runs out before the other has them."""
    with Scene(offset=2, raft=_PATIENT) as scene:
        slot = next(iter(CONSUMER.crcs([MemberKey("t", "g", "a")]))) % SLOTS
        source = next(ordinal for ordinal in (0, 1) if slot in scene.slots_of(ordinal, "offset"))
        here, there = GroupId("offset", source), GroupId("offset", 1 - source)
        assert _join(scene, "a", "b", group=here) == [1, 1]
        one, other = sorted(scene.nodes)[:2]
        scene.transfer(one, here)
        scene.transfer(other, there)
        assert _speak(scene, "a", "b", group=here) == ["a", "b"]
        scene.once_sealed(here, lambda: scene.nodes[one].pause(1.5 * _SESSION_S))
        begun_s = scene.loop.now
        scene.move(source, 1 - source, kind="offset")
        assert scene.loop.now > begun_s + _SESSION_S, "the move was too quick"
        scene.run(_SESSION_S / 2)
        assert _speak(scene, "a", "b", group=there) == ["a", "b"], "they are sent away because they moved"
        assert (_group(scene, there).state, _group(scene, there).generation) == (GroupState.ASSIGNING, 1)
        body = m.OffsetCommit([m.OffsetCommitItem("t", "g", "topic", 0, 1, 0)])
        assert _ask(scene, OFFSET_COMMIT, body, there).errors, "the generation stayed behind"
        scene.run(_SESSION_S + _GONE_S)
        assert _group(scene, there).members == 0
        scene.require_settled(20.0)
