"""Consumer groups: a member is sent away when it is silent, and never because the service was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

from metad.config import ExpiryConfig, RaftConfig
from metad_client import Client, FencedError, Generation, LeaseState, Membership, MetadError
from metad_wire import messages as m
from metad_wire.cluster import SLOTS, GroupId
from metad_wire.methods import (
    CONSUMER_ASSIGN,
    CONSUMER_DESCRIBE,
    CONSUMER_HEARTBEAT,
    CONSUMER_JOIN,
    CONSUMER_MEMBERS,
    OFFSET_COMMIT,
    OFFSET_LIST,
    Method,
)
from metad_wire.tables import consumer as w
from metad_wire.tables.consumer import CONSUMER, GroupState, MemberKey

from ..cluster import OFFSET, SimClient, SimNode
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
    return [member.member for member in _ask(scene, CONSUMER_MEMBERS, w.ConsumerMembers("t", "g")).found]


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


@scenario
def a_group_that_nobody_uses_is_deleted() -> None:
    """Its offsets and its generation; not those of groups that have members, or have committed something."""
    with Scene(expiry=ExpiryConfig(amnesty_ms=500, consumer_group_ms=20_000)) as scene:
        _settled(scene)

        def commit(group: str, count: int) -> None:
            items = [m.OffsetCommitItem("t", group, "topic", number, 1) for number in range(count)]
            assert not _ask(scene, OFFSET_COMMIT, m.OffsetCommit(items)).errors

        def there(group: str) -> bool:
            return bool(_ask(scene, OFFSET_LIST, m.OffsetList("t", group)).found)

        commit("unused", 900)
        commit("used", 100)
        commit("g", 5)
        _stable(scene, "a")
        begun_s = scene.loop.now
        while scene.loop.now < begun_s + 18.0:
            assert there("unused"), "it is deleted before its time"
            _speak(scene, "a")
            scene.run(_SESSION_S / 2)
        commit("used", 1)
        while scene.loop.now < begun_s + 30.0:
            _speak(scene, "a")
            scene.run(_SESSION_S / 2)
        assert not there("unused"), "nobody has used it, and it stays"
        assert there("used"), "one of its offsets is new"
        assert there("g"), "it has a member"
        assert _group(scene).members == 1
        assert scene.run_until(lambda: not there("g") and not there("used"), 60.0), "they are unused now"
        scene.require_settled(20.0)


_PARTS = 12


def _share_out(_: str, members: Sequence[w.Member]) -> dict[str, bytes]:
    """Parts in turn."""
    return {member.member: bytes(range(at, _PARTS, len(members))) for at, member in enumerate(members)}


class _Judge:
    """What no group may do, whatever happens to its members and to metad."""

    def __init__(self) -> None:
        self.owners: dict[str, Generation] = {}
        """What programs work on, as far as they believe in it."""
        self.newest = 0
        self.given: dict[tuple[int, str], bytes] = {}
        self.leaders: dict[int, str] = {}
        self.commits = 0
        self.refused = 0

    def begins(self, name: str, generation: Generation) -> None:
        """A member has something to work on."""
        key = generation.number, generation.member
        assert self.given.setdefault(key, generation.assignment) == generation.assignment, "assigned twice"
        if generation.is_leader:
            assert self.leaders.setdefault(generation.number, name) == name, "a generation of two leaders"
        self.newest = max(self.newest, generation.number)
        self.owners[name] = generation
        self.look()

    def look(self) -> None:
        """Nobody works on what another works on."""
        parts = [part for owner in self.owners.values() if owner.is_current for part in owner.assignment]
        assert len(parts) == len(set(parts)), f"two of {sorted(self.owners)} work on the same"

    def ends(self, name: str) -> None:
        """A member has let go of everything."""
        self.owners.pop(name, None)

    async def commit(self, generation: Generation, part: int) -> None:
        """A commit is refused if a later generation has begun before it was asked for."""
        newest = self.newest
        self.look()
        try:
            await generation.commit("topic", part, 1, deadline_s=1.0)
        except FencedError:
            self.refused += 1
        except MetadError:
            return
        else:
            assert generation.number >= newest, f"generation {generation.number} commits after {newest} has begun"
            self.commits += 1


@scenario
def members_never_work_on_the_same() -> None:
    """Three programs share twelve parts, while leaders die, programs are cut off, and one leaves and comes back."""
    with Scene() as scene:
        clients = [scene.one, scene.two, scene.client()]
        judge = _Judge()
        working = True
        leaving = set[str]()

        async def work(client: SimClient) -> None:
            opened = client.client or await client.open()
            while working:
                with suppress(MetadError):
                    async with _member(scene, opened) as member:
                        states = [member.state]
                        member.on_state(states.append)
                        async for generation in member:
                            judge.begins(client.name, generation)
                            while generation.is_current and working and client.name not in leaving:
                                for part in generation.assignment:
                                    await judge.commit(generation, part)
                                await asyncio.sleep(0.05)
                            judge.ends(client.name)
                            await judge.commit(generation, 0)
                            if not working or client.name in leaving:
                                leaving.discard(client.name)
                                break
                        away = (LeaseState.CONNECTED, LeaseState.LOST)
                        assert away not in pairwise(states), "it was answered, and sent away"
                judge.ends(client.name)
                await asyncio.sleep(0.05)

        tasks = [client.process.start(work(client)) for client in clients]
        for number in range(4):
            scene.run(3.0)
            if number == 0:
                leader = scene.lead(OFFSET)
                leader.crash(power=False)
                scene.run(0.5)
                leader.start()
            elif number == 1:
                leaving.add(clients[number].name)
            elif number == 2:
                _comes_too_late(scene, judge, clients[number])
            for task in tasks:
                if task.done():
                    task.result()
        working = False
        assert scene.run_until(lambda: all(task.done() for task in tasks), 30.0), "a program waits for ever"
        for task in tasks:
            task.result()
        assert judge.newest > 3, f"there were only {judge.newest} generations"
        assert judge.commits > 100
        assert judge.refused > 0, "nobody came too late, so nothing was proven"


def _comes_too_late(scene: Scene, judge: _Judge, client: SimClient) -> None:
    """A program is cut off until the others go on without it, and commits then what it did before."""
    assert scene.run_until(lambda: client.name in judge.owners, 30.0), "it is given nothing"
    late = judge.owners[client.name]
    scene.isolate(client.name)
    assert scene.run_until(lambda: judge.newest > late.number, 30.0), "the others wait for one that is gone"
    scene.network.heal()
    client.process.start(judge.commit(late, 0))


def _member(scene: Scene, client: Client) -> Membership:
    """A member by the clock of the simulation."""
    return Membership(
        client.consumers,
        client.offsets,
        "t",
        "g",
        assign=_share_out,
        session_s=_SESSION_S,
        rebalance_s=2 * _SESSION_S,
        protocols=["turns"],
        metadata=b"",
        instance="",
        holder="",
        now=scene.loop.time,
    )


@scenario
def a_member_that_is_cut_off_stops_before_others_get_what_it_had() -> None:
    _one_of_two_is_away(lambda scene, one: scene.isolate(one.name))


@scenario
def a_member_that_stands_still_stops_before_others_get_what_it_had() -> None:
    """By its clock: nothing in it runs that could notice."""
    _one_of_two_is_away(lambda _, one: one.process.pause(4 * _SESSION_S))


def _one_of_two_is_away(away: Callable[[Scene, SimClient], None]) -> None:
    with Scene() as scene:
        _settled(scene)
        tasks = []
        had: dict[str, Generation] = {}

        async def follow(client: Client, name: str) -> None:
            async with _member(scene, client) as member:
                async for generation in member:
                    had[name] = generation
                    await generation.ended()

        for number, client in enumerate((scene.one, scene.two)):
            tasks.append(scene.begin(client, lambda c, name=client.name: follow(c, name)))  # type: ignore[misc]
            assert scene.run_until(lambda: len(had) > number, 10.0)  # noqa: B023 - called at once
        one, two = scene.one.name, scene.two.name
        assert scene.run_until(lambda: had[one].number == had[two].number and had[one].is_current, 10.0)
        assert len(had[one].assignment) == len(had[two].assignment) == _PARTS // 2
        before = had[one]
        away(scene, scene.one)
        while len(had[two].assignment) < _PARTS:
            scene.run(0.01)
            assert not (len(had[two].assignment) == _PARTS and before.is_current), "two work on the same"
        assert not before.is_current
        scene.network.heal()
        assert scene.run_until(lambda: had[one].number > before.number and had[one].is_current, 10.0)
        for task in tasks:
            assert not task.done() or task.result()
