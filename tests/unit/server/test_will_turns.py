"""Whose turn it is to claim wills: one broker hears of a will, and none waits because that one is dead or busy. On a
group whose state a test makes, with a clock that it moves."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from metad.node.replicas.driver import Work
from metad.node.watches.will_turns import LOOK_S, PAUSE_S, TURN_S, WillTurns
from metad.state.cluster.fences import Fences
from metad.state.core.verb import Command
from metad.state.core.view import NO_ROWS
from metad.state.session.will_news import Hears, WillNews
from metad_wire.errors import (
    CancelledError,
    DrainingError,
    FencedError,
    MetadError,
    NotLeaderError,
    StaleRouteError,
    UnknownOutcomeError,
)
from metad_wire.messages import Owner
from metad_wire.methods import WILL_WAIT, encode
from metad_wire.tables.will import WillWait, WillWaitReply

WAIT_MS = 30_000
STEP_S = 0.01


class Timer:
    def __init__(self, when_s: float, callback: Callable[[], None]) -> None:
        self.when_s = when_s
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Asked:
    """A broker that waits, and what it was told."""

    def __init__(self, broker: str, work: Work) -> None:
        self.broker = broker
        self.work = work
        self.answers: list[Any] = []

    @property
    def turn(self) -> WillWaitReply | None:
        """The turn that it was given."""
        replies = [WILL_WAIT.decode_reply(one) for one in self.answers if isinstance(one, bytes)]
        return next((reply for reply in replies if reply.claimable), None)

    @property
    def error(self) -> type[MetadError] | None:
        return next((type(one) for one in self.answers if isinstance(one, MetadError)), None)


class Driver(SimpleNamespace):
    """Of a group; a key of dictionaries, as a driver is."""

    __hash__ = object.__hash__


class World:
    """A group, its wills by tenant and key, and who waits for them."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[Timer] = []
        self.claimable: dict[bytes, str] = {}
        self.claimed: set[bytes] = set()
        """By brokers that have died, as far as anybody knows."""
        self.fenced: set[str] = set()
        self.revision = 5
        self.looks: list[WillWait] = []
        self.held: list[Callable[[], None]] | None = None
        """Looks that wait, if they do."""
        self.group = SimpleNamespace(is_leader=True, name="data-0")
        self.news = SimpleNamespace(hears=[])
        fences = SimpleNamespace(refusal=self.refusal, allows=lambda broker, epoch: broker not in self.fenced)
        parts = {WillNews: self.news, Fences: fences}
        self.driver: Any = Driver(
            group=self.group,
            machine=SimpleNamespace(parts=parts, name="data-0", slots=SimpleNamespace(mask=None)),
            installing=False,
            not_leader=lambda: NotLeaderError("another leads"),
        )
        as_any: Any = self
        self.turns = WillTurns(as_any, as_any)

    # --- what the node gives ---

    def now(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when_s, callback))
        return self.timers[-1]

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.call_at(self.now_s, callback)

    def refusal(self, registered: bool, life: Owner) -> FencedError | None:
        return FencedError("over") if life.broker in self.fenced else None

    def request(self, method: Any, body: WillWait, done: Callable[[Any], None], group: str) -> None:
        self.looks.append(body)

        def look() -> None:
            assert all(one.index <= self.revision for one in body.min_revisions), "it looks before it is applied"
            found = sorted(
                key for key, of in self.claimable.items() if body.tenant in (None, of) and key >= body.cursor + b"\0"
            )
            done(encode(WillWaitReply(bool(found), found[0][:-1] if found else b"", bool(self.claimed))))

        if self.held is None:
            self.call_soon(look)
        else:
            self.held.append(look)

    # --- what a test does ---

    def wait(self, broker: str, tenant: str | None = None, wait_ms: int = WAIT_MS) -> Asked:
        body = WillWait(broker, 1, wait_ms, tenant)
        answers: list[Any] = []
        work = Work(Command(WILL_WAIT, body, NO_ROWS), None, self.now_s + wait_ms / 1000, answers.append)
        asked = Asked(broker, work)
        asked.answers = answers
        self.turns.wait(self.driver, work)
        return asked

    @property
    def ears(self) -> list[Hears]:
        return [*self.news.hears]

    def due(self, key: bytes, tenant: str = "t") -> None:
        """A will is due in an entry that is evaluated, and applied at once."""
        for ear in self.ears:
            ear.claimable(self.revision + 1, tenant, key)
        self.appears(key, tenant)

    def appears(self, key: bytes, tenant: str = "t") -> None:
        """Without news: its claim is over, or its slot was adopted."""
        self.revision += 1
        self.claimable[key] = tenant

    def claim(self, asked: Asked, limit: int = 100) -> list[bytes]:
        turn = asked.turn
        assert turn is not None
        found = [key for key in sorted(self.claimable) if key >= turn.cursor + b"\0"][:limit]
        for key in found:
            del self.claimable[key]
        for ear in self.ears:
            ear.claimed(self.revision + 1, asked.broker, len(found), more=len(found) == limit)
        self.revision += 1
        return found

    def pass_s(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while due := [timer for timer in self.timers if timer.when_s <= end_s]:
            first = min(due, key=lambda timer: timer.when_s)
            self.timers.remove(first)
            self.now_s = max(self.now_s, first.when_s)
            if not first.cancelled:
                first.callback()
        self.now_s = end_s


def turns(*asked: Asked) -> str:
    """Whose turn it is, or was."""
    return "".join(one.broker for one in asked if one.turn is not None)


def test_one_broker_hears_of_a_will_however_many_wait() -> None:
    world = World()
    asked = [world.wait(f"b{n}") for n in range(50)]
    world.pass_s(0.5)
    looks = len(world.looks)
    world.due(b"k1")
    world.pass_s(STEP_S)
    assert turns(*asked) == "b0", "who has waited the longest"
    assert len(world.looks) == looks + 1
    assert world.claim(asked[0]) == [b"k1"]
    world.pass_s(TURN_S)
    world.due(b"k2")
    world.due(b"k3")
    world.pass_s(STEP_S)
    assert turns(*asked) == "b0b1"
    assert world.claim(asked[1]) == [b"k2", b"k3"]


def test_what_was_due_before_anybody_waited_is_found() -> None:
    world = World()
    world.appears(b"k1")
    asked = world.wait("b")
    world.pass_s(STEP_S)
    assert asked.turn is not None


def test_who_does_not_use_its_turn_delays_wills_by_that_turn() -> None:
    world = World()
    asked = [world.wait(name) for name in "abc"]
    world.due(b"k1")
    world.pass_s(TURN_S - STEP_S)
    assert turns(*asked) == "a"
    world.pass_s(2 * STEP_S)
    assert turns(*asked) == "ab", "a has died"
    world.pass_s(TURN_S)
    assert turns(*asked) == "abc"
    assert world.claim(asked[2]) == [b"k1"]


def test_who_lets_a_turn_pass_is_behind_all_others_until_it_uses_one() -> None:
    world = World()
    hogs = [world.wait("hog") for _ in range(1_000)]
    brokers = [world.wait(name) for name in "ab"]
    world.due(b"k1")
    world.pass_s(STEP_S)
    assert turns(*hogs) == "hog"
    world.pass_s(TURN_S)
    assert turns(*hogs, *brokers) == "hoga", "the other waits of the same broker are behind all others"
    assert world.claim(brokers[0]) == [b"k1"]
    hogs.append(world.wait("hog"))
    brokers.append(world.wait("c"))
    world.pass_s(TURN_S)
    for name, key in (("b", b"k2"), ("c", b"k3")):
        world.due(key)
        world.pass_s(2 * PAUSE_S)
        (asked,) = [one for one in brokers if one.broker == name]
        assert asked.turn is not None
        assert world.claim(asked) == [key]
    world.due(b"k4")
    world.pass_s(2 * PAUSE_S)
    assert [one.turn is not None for one in hogs[:3]] == [True, True, False], "nobody else waits"
    assert world.claim(hogs[1]) == [b"k4"]
    hogs[2:] = []
    hogs += [world.wait("hog")]
    world.wait("d")
    world.due(b"k5")
    world.pass_s(TURN_S)
    assert len(world.turns._lines) == 1


def test_after_a_claim_there_is_a_pause_unless_there_is_enough_for_another() -> None:
    world = World()
    for number in range(5):
        world.appears(b"k%d" % number)
    asked = [world.wait(name) for name in "abcd"]
    world.pass_s(STEP_S)
    assert world.claim(asked[0], limit=2) == [b"k0", b"k1"]
    world.pass_s(0.001)
    assert turns(*asked) == "ab", "more was there than it wanted"
    assert world.claim(asked[1]) == [b"k2", b"k3", b"k4"]
    world.due(b"k5")
    world.pass_s(PAUSE_S / 2)
    assert turns(*asked) == "ab"
    world.due(b"k6")
    world.pass_s(PAUSE_S / 2)
    assert turns(*asked) == "abc"
    assert world.claim(asked[2]) == [b"k5", b"k6"]


def test_those_who_wait_no_longer_and_lives_that_are_over_get_no_turn() -> None:
    world = World()
    asked = [world.wait(name) for name in "abc"]
    world.pass_s(STEP_S)
    asked[0].work.cancelled = True  # its connection has ended
    world.fenced.add("b")
    world.due(b"k1")
    world.pass_s(STEP_S)
    assert turns(*asked) == "c"
    assert (asked[0].error, asked[1].error) == (CancelledError, FencedError)


def test_a_wait_ends_when_its_time_is_over() -> None:
    world = World()
    asked = world.wait("a", wait_ms=300)
    longer = world.wait("b")
    world.pass_s(0.45)
    assert asked.answers == [encode(WillWaitReply(False, b""))]
    assert longer.answers == []


def test_nobody_waits_at_a_node_that_does_not_lead_or_drains_or_ends() -> None:
    world = World()
    asked = world.wait("a")
    world.group.is_leader = False
    world.pass_s(0.2)
    assert asked.error is NotLeaderError
    with pytest.raises(NotLeaderError):
        world.wait("a")
    world.group.is_leader = True
    asked = world.wait("a")
    world.turns.abandon("the disk is full")
    assert asked.error is UnknownOutcomeError
    asked = world.wait("a")
    world.turns.drain()
    assert asked.error is DrainingError
    with pytest.raises(DrainingError):
        world.wait("a")


def test_news_that_come_during_a_look_are_not_lost() -> None:
    world = World()
    asked = world.wait("a")
    world.held = []
    world.pass_s(STEP_S)
    (look,) = world.held
    world.held = None
    look()  # finds nothing, and that is told after
    for ear in world.ears:
        ear.claimable(world.revision + 1, "t", b"k1")
    world.appears(b"k1")
    world.pass_s(STEP_S)
    assert asked.turn is not None

    world = World()
    asked = world.wait("a")
    world.held = []
    world.pass_s(STEP_S)
    (look,) = world.held
    for ear in world.ears:
        ear.claimable(world.revision + 1, "t", b"k1")
    world.held = None
    look()
    world.appears(b"k1")
    world.pass_s(STEP_S)
    assert asked.turn is not None
    assert [one.index for one in world.looks[-1].min_revisions] == [world.revision]


def test_a_claim_that_finds_nothing_is_not_asked_for_again_before_all_is_looked_at() -> None:
    """By the group's time, which stands still for a while after a new leader, an old claim is not over yet."""
    world = World()
    asked = [world.wait(f"b{n}") for n in range(20)]
    world.pass_s(STEP_S)
    world.due(b"k1")
    told = 0
    for _ in range(round(5 * LOOK_S / STEP_S)):
        world.pass_s(STEP_S)
        for one in asked[told:]:
            if one.turn is not None:
                told += 1
                for ear in world.ears:
                    ear.claimed(world.revision, one.broker, 0, more=False)
    assert 4 <= told <= 6
    world.due(b"k0")
    world.pass_s(STEP_S)
    assert asked[told].turn is not None, "what is due meanwhile is claimed at once"


def test_claims_that_are_over_are_found_by_and_by_and_where_there_are_none_nobody_looks() -> None:
    world = World()
    world.claimed = {b"k1"}
    asked = world.wait("a")
    world.pass_s(3 * LOOK_S)
    assert len(world.looks) in range(3, 6)
    world.claimed.clear()
    world.appears(b"k1")
    world.pass_s(LOOK_S + 0.2)
    assert asked.turn is not None
    world.claim(asked)
    world.wait("b")
    world.pass_s(3 * LOOK_S)
    looks = len(world.looks)
    world.pass_s(10 * LOOK_S)
    assert len(world.looks) == looks


def test_who_waits_is_told_when_slots_move_and_wills_that_come_with_them_are_found() -> None:
    world = World()
    asked = world.wait("a")
    world.pass_s(3 * LOOK_S)
    world.appears(b"k1")
    world.driver.machine.slots.mask = object()
    world.pass_s(0.2)
    assert asked.error is StaleRouteError
    asked = world.wait("a")
    world.pass_s(LOOK_S + 0.2)
    assert asked.turn is not None


def test_tenants_have_turns_of_their_own() -> None:
    world = World()
    mine, others, any_ = world.wait("a", "t"), world.wait("b", "u"), world.wait("c")
    world.pass_s(STEP_S)
    world.due(b"k1", "u")
    world.pass_s(STEP_S)
    assert (mine.turn, others.turn is not None, any_.turn is not None) == (None, True, True)
    assert {look.tenant for look in world.looks} == {"t", "u", None}


def test_a_look_begins_where_something_is_due_and_not_with_all_that_is_claimed() -> None:
    world = World()
    asked = [world.wait(name) for name in "ab"]
    world.pass_s(STEP_S)
    world.due(b"k7")
    world.due(b"k5")
    world.pass_s(STEP_S)
    assert (world.looks[-1].cursor, asked[0].turn) == (b"k", WillWaitReply(True, b"k"))
    world.claim(asked[0])
    world.due(b"m1")
    world.pass_s(PAUSE_S)
    assert world.looks[-1].cursor == b"k"
    world.due(b"n1")
    assert world.claim(asked[1]) == [b"m1", b"n1"]


@pytest.mark.parametrize("seed", range(20))
def test_no_will_waits_for_longer_than_the_turns_of_those_who_are_gone(seed: int) -> None:
    """Brokers wait, claim, are late, or vanish, and wills become due with news or without."""
    rng = random.Random(seed)
    world = World()
    waiting: dict[str, Asked] = {}
    since_s: dict[bytes, float] = {}
    dead = answered = 0
    bound_s = LOOK_S + 0.2
    for step in range(3_000):
        for name in (f"b{n}" for n in range(8)):
            if name not in waiting or waiting[name].answers:
                waiting[name] = world.wait(name, wait_ms=rng.choice([200, 2_000, WAIT_MS]))
        if rng.random() < 0.2:
            key = b"k%03d" % rng.randrange(1_000)
            since_s.setdefault(key, world.now_s)
            world.claimed = {b"of the dead"}
            (world.due if rng.random() < 0.7 else world.appears)(key)
        world.pass_s(STEP_S * rng.random())
        for name, one in [*waiting.items()]:
            if one.turn is None:
                continue
            answered += 1
            del waiting[name]
            if rng.random() < 0.1:
                dead += 1
                continue
            for key in world.claim(one, rng.choice([1, 3, 100])):
                del since_s[key]
        late = {key: world.now_s - at for key, at in since_s.items() if world.now_s - at > bound_s + 5 * TURN_S}
        assert not late, (step, late)
    assert dead > 10
    assert answered > 200
