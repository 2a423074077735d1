"""Whose turn it is to claim a will: one broker tries at once, others only if it does not, and no will is left over."""

from __future__ import annotations

import random

import pytest

from metad_client.namespaces.will_turns import CHANCE_S, TURN_S, Turns
from metad_wire.tables.will import WillKey

HEARD_S = 0.02
"""From a claim until everybody has heard of it."""


def key(number: int) -> WillKey:
    return WillKey("t", f"client-{number}", f"{number:016x}")


class Brokers:
    """Brokers that hear of wills and of claims, a little later than they happen."""

    def __init__(self, *names: str) -> None:
        self.turns = {name: Turns(name, random.Random(name)) for name in names}
        self.now_s = 1_000.0
        self.tries = 0
        self.winners: list[str] = []
        self.waited_s: list[float] = []

    def will(self, number: int) -> None:
        """A will becomes due and is claimed by somebody."""
        due_s, claimed_s, winner = self.now_s, 0.0, ""
        for turns in self.turns.values():
            turns.due("data-0", key(number), due_s)
        while not winner or self.now_s < claimed_s + HEARD_S:
            for name, turns in self.turns.items():
                if turns.take(self.now_s):
                    self.tries += 1
                    if not winner:
                        winner, claimed_s = name, self.now_s
            self.now_s += 0.005
        for turns in self.turns.values():
            turns.claimed(key(number), winner, self.now_s)
        self.winners.append(winner)
        self.waited_s.append(claimed_s - due_s)
        self.now_s += 10


def names(count: int) -> list[str]:
    return [f"broker-{number}" for number in range(count)]


@pytest.mark.parametrize("count", [1, 2, 20, 40])
def test_a_will_is_claimed_about_once_and_at_once_however_many_brokers_there_are(count: int) -> None:
    brokers = Brokers(*names(count))
    for number in range(20 * count):
        brokers.will(number)
    first_tries, brokers.tries = brokers.tries, 0
    assert first_tries <= 20 * count + 5 * count * (count.bit_length() + 1), (
        "they get to know each other by their claims"
    )
    brokers.waited_s.clear()
    brokers.winners.clear()
    for number in range(20 * count, 40 * count):
        brokers.will(number)
    assert brokers.tries == 20 * count
    assert max(brokers.waited_s) <= CHANCE_S + 0.005
    assert len(set(brokers.winners)) == count, "each has its share"


def test_others_claim_for_a_broker_that_has_died_and_soon_do_not_wait_for_it() -> None:
    brokers = Brokers(*names(20))
    for number in range(1_000):
        brokers.will(number)
    for name in names(20)[:15]:
        del brokers.turns[name]
    brokers.waited_s.clear()
    before = brokers.tries
    for number in range(1_000, 1_200):
        brokers.will(number)
    assert max(brokers.waited_s[:100]) <= 12 * TURN_S
    assert max(brokers.waited_s[100:]) <= CHANCE_S + 0.005
    assert brokers.tries - before <= 200 + 5 * 15


def test_a_broker_alone_claims_at_once_what_nobody_else_does() -> None:
    turns = Turns("a", random.Random(1))
    for number in range(10):
        turns.due(f"data-{number % 2}", key(number), 5.0)
    assert turns.next_s is not None
    assert 5.0 <= turns.next_s < 5.0 + CHANCE_S
    assert turns.take(5.0 + CHANCE_S) == {"data-0", "data-1"}
    assert (turns.next_s, turns.take(9.0)) == (None, set())


def test_what_is_claimed_is_not_tried_whichever_is_heard_first() -> None:
    turns = Turns("a", random.Random(1))
    turns.due("data-0", key(1), 5.0)
    turns.claimed(key(1), "b", 5.0)
    turns.claimed(key(2), "b", 5.0)
    turns.due("data-0", key(2), 5.0)
    turns.due("data-0", key(3), 5.0)
    turns.gone(key(3))
    assert (turns.next_s, turns.take(99.0)) == (None, set())


def test_nobody_waits_where_many_wills_are_due() -> None:
    brokers = [Turns(name, random.Random(name)) for name in names(20)]
    for turns in brokers:
        for other in names(20):
            turns.claimed(key(0), other, 1.0)
        for number in range(1, 100_000):
            turns.due(f"data-{number % 3}", key(number), 2.0)
    assert [turns.take(2.0) for turns in brokers] == [{"data-0", "data-1", "data-2"}] * 20


def test_no_will_is_left_over_whatever_is_heard_late_or_never() -> None:
    rng = random.Random(7)
    for _ in range(300):
        turns, now_s = Turns("a", random.Random(1)), 0.0
        open_: set[int] = set()
        for number in range(60):
            now_s += rng.random() * 0.05
            turns.due("data-0", key(number), now_s)
            open_.add(number)
            for other in rng.sample(range(60), 3):
                turns.claimed(key(other), f"b{rng.randrange(30)}", now_s)
                open_.discard(other)
            if rng.random() < 0.3 and turns.take(now_s):
                open_.clear()  # a claim takes all that there is
        if open_ - {number for number in range(60) if key(number) in turns._claimed}:
            assert turns.next_s is not None
            assert turns.take(now_s + 12 * TURN_S) == {"data-0"}
