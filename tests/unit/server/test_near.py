"""What a replica that does not lead may answer: the rules of its proof, on clocks that the test moves. The scenarios of
the simulation have the same with leaders, links and slots."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metad.node.requests.near import AGAIN_S, UNANSWERED_S, WANTED_S, NearReads
from metad_wire.cluster import METADATA, GroupId, ReadIndexReply
from metad_wire.errors import NotFreshError, NotLeaderError
from metad_wire.methods import READ_INDEX, encode


class Some(SimpleNamespace):
    """Stands for what has these attributes, and is itself."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class World:
    """A node with two replicas that follow, whose leaders the test plays."""

    def __init__(self, *, enforced: bool = False, drift: float = 0.0) -> None:
        self.now_s, self.calendar_s = 100.0, 5_000.0
        self.due: list[Callable[[], None]] = []
        self.asked: dict[str, list[Callable[[Any], None]]] = {}
        self.drivers = {group: self._driver(group) for group in (METADATA, GroupId("data", 0))}
        groups = Some(drivers=self.drivers, here=self._here)
        environment = Some(
            now=lambda: self.now_s,
            wall_ms=lambda: int(1000 * self.calendar_s),
            call_at=lambda _, callback: self.due.append(callback) or Some(cancel=list),
        )
        self.near = NearReads(cast("Any", groups), self._call, cast("Any", environment), drift=drift, enforced=enforced)
        self.data = self.drivers[GroupId("data", 0)]

    def _driver(self, group: GroupId) -> Any:
        replica = Some(name=group.name, group_id=group, leader="n2", is_leader=False, may_read=lambda: False)
        return Some(group=replica, machine=Some(applied=10), installing=False)

    def _here(self, name: str) -> Any:
        return next((driver for driver in self.drivers.values() if driver.group.name == name), None)

    def _call(self, peer: str, method: int, payload: bytes, done: Callable[[Any], None]) -> None:
        assert (peer, method) == ("n2", READ_INDEX.code)
        self.asked.setdefault(READ_INDEX.decode_request(payload).group, []).append(done)

    def answer(self, group: str, index: int) -> None:
        """To the oldest question about a group."""
        self.asked[group].pop(0)(encode(ReadIndexReply(index)))

    def passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.calendar_s += seconds
        due, self.due = self.due, []
        for callback in due:
            callback()

    def may(self, freshness_ms: int = 1_000) -> bool:
        try:
            self.near.check(self.data, freshness_ms)
        except NotFreshError:
            return False
        return True


def test_a_proof_counts_from_its_question_and_once_it_is_applied() -> None:
    world = World()
    assert not world.may()
    world.passes(0.3)
    world.answer("data-0", 12)
    assert not world.may(60_000), "it has applied 10 entries"
    world.data.machine.applied = 12
    assert world.may(301)
    assert not world.may(299)


def test_permissions_have_to_be_as_new() -> None:
    """A right that was taken away long ago is not used at a node that has not heard of it."""
    world = World(enforced=True)
    assert not world.may()
    world.answer("data-0", 10)
    assert not world.may(), "metadata-0 has said nothing"
    world.answer("metadata-0", 11)
    assert not world.may(), "and the node has not applied what it says"
    world.drivers[METADATA].machine.applied = 11
    assert world.may()


def test_drift_is_allowed_for() -> None:
    world = World(drift=0.1)
    assert not world.may()
    world.answer("data-0", 10)
    world.passes(0.95)
    assert world.may(1_100)
    assert not world.may(1_000)


@pytest.mark.parametrize("jump_s", [-1.0, 1.0])
def test_a_proof_is_given_up_when_the_clocks_come_apart(jump_s: float) -> None:
    world = World()
    assert not world.may()
    world.answer("data-0", 10)
    assert world.may()
    world.calendar_s += jump_s
    assert not world.may(60_000)
    world.passes(AGAIN_S[0])
    world.answer("data-0", 10)
    assert world.may()


def test_a_question_is_asked_once_and_again_if_nobody_answers() -> None:
    world = World()
    for _ in range(5):
        assert not world.may()
        world.passes(0.1)
    assert len(world.asked["data-0"]) == 1
    world.passes(UNANSWERED_S)
    assert len(world.asked["data-0"]) == 2
    world.answer("data-0", 10)
    assert not world.may(), "that was the answer to what was given up"
    world.answer("data-0", 10)
    assert world.may()


def test_a_refusal_proves_nothing() -> None:
    world = World()
    assert not world.may()
    world.asked["data-0"].pop()(NotLeaderError("it leads no more"))
    assert not world.may(60_000)


def test_it_asks_while_reads_come_and_then_no_more() -> None:
    world = World()
    assert not world.may()
    rounds = 0
    for _ in range(int(2 * WANTED_S / 0.1)):
        while world.asked["data-0"]:
            world.answer("data-0", 10)
            rounds += 1
        world.passes(0.1)
    assert WANTED_S / 0.5 < rounds < WANTED_S / 0.1
    assert not world.due
    assert not world.may(), "the proof is forgotten"


def test_a_replica_that_left_the_node_is_forgotten() -> None:
    world = World()
    assert not world.may()
    del world.drivers[GroupId("data", 0)]
    world.passes(0.1)
    assert not world.due


def test_a_state_that_is_being_replaced_answers_nothing() -> None:
    world = World()
    assert not world.may()
    world.answer("data-0", 10)
    world.data.installing = True
    assert not world.may()
