"""The estimator of a queue's service: it finds the rate, notices a stall, and always finds out of one again."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from house import name_of, product
from metad_wire.policy import Admission, QueueRate
from metad_wire.policy.rates import FORGET_S, UNMEASURED_PER_S

FULL = 500


class Queue:
    """Served in bursts at ``per_s``; tells the estimator what a group's queue would tell it."""

    def __init__(self, per_s: float, every_s: float = 0.004) -> None:
        self.rate = QueueRate()
        self.per_s, self.every_s = per_s, every_s
        self.now_s, self.waiting, self.owed = 100.0, 0, 0.0

    def arrive(self, items: int) -> None:
        self.waiting += items
        if self.waiting >= FULL:
            self.rate.full(self.now_s)

    def serve(self) -> None:
        self.now_s += self.every_s
        before = self.waiting
        self.owed = self.owed + self.per_s * self.every_s if before else 0.0
        taken = min(before, int(self.owed))
        self.owed -= taken
        self.waiting -= taken
        if before >= FULL and taken:
            self.rate.left(taken, self.now_s)
            if self.waiting < FULL:
                self.rate.calm(self.now_s)

    def storm(self, admission: Admission, per_s: float, seconds: float) -> int:
        """Arrivals at a rate, of which what admission refuses goes away. Returns how many items were let in."""
        let_in, due, until_s = 0, 0.0, self.now_s + seconds
        while self.now_s < until_s:
            due += per_s * self.every_s
            admitted = admission.admitted(self.waiting, int(due), self.rate.estimate(self.now_s))
            due -= int(due)
            let_in += admitted
            self.arrive(admitted)
            self.serve()
        return let_in


ADMISSION = Admission(items_max=0, wait_max_s=1.0)
rates = st.floats(300.0, 300_000.0)


@settings(max_examples=40, deadline=None)
@given(per_s=rates)
def test_the_rate_of_a_full_queue_is_found(per_s: float) -> None:
    queue = Queue(per_s)
    queue.storm(ADMISSION, 3 * per_s, 4.0)
    assert queue.rate.estimate(queue.now_s) == pytest.approx(per_s, rel=0.2)


@settings(max_examples=40, deadline=None)
@given(per_s=rates)
def test_what_waits_is_worth_the_time_that_it_may_wait_and_the_queue_is_never_empty(per_s: float) -> None:
    queue = Queue(per_s)
    queue.storm(ADMISSION, 3 * per_s, 30.0)
    let_in = queue.storm(ADMISSION, 3 * per_s, 5.0)
    assert queue.waiting <= max(ADMISSION.items_min, 1.25 * per_s)
    assert let_in >= 0.9 * 5.0 * per_s, "nobody is refused whom it could serve"


@settings(max_examples=60, deadline=None)
@given(per_s=rates, stall_s=st.floats(0.01, 60.0), burst_s=st.floats(0.001, 0.2))
def test_no_stall_locks_anybody_out_for_long(per_s: float, stall_s: float, burst_s: float) -> None:
    queue = Queue(per_s)
    queue.storm(ADMISSION, 3 * per_s, 2.0)
    queue.now_s += stall_s
    queue.per_s, queue.every_s = per_s, max(0.004, burst_s)
    queue.storm(ADMISSION, 3 * per_s, 4.0)
    let_in = queue.storm(ADMISSION, 3 * per_s, 5.0)
    assert let_in >= 0.5 * min(5.0 * per_s, ADMISSION.items_min * 5.0 / queue.every_s)
    assert queue.rate.estimate(queue.now_s) >= 0.3 * per_s or queue.waiting < ADMISSION.items_min + 1


def test_standing_still_lowers_the_rate_while_it_lasts() -> None:
    queue = Queue(50_000.0)
    queue.storm(ADMISSION, 150_000.0, 3.0)
    seen = [queue.rate.estimate(queue.now_s + s) for s in (0.0, 0.1, 0.5, 1.0, 5.0)]
    assert seen == sorted(seen, reverse=True)
    assert seen[2] < 0.45 * seen[0]
    assert seen[4] < 0.02 * seen[0]
    assert queue.rate.estimate(queue.now_s) == seen[0], "looking changes nothing"


def test_what_comes_slowly_says_nothing_of_the_rate() -> None:
    queue = Queue(50_000.0)
    for _ in range(2_000):
        queue.arrive(10)
        queue.serve()
    assert queue.rate.estimate(queue.now_s) == UNMEASURED_PER_S


def test_short_storms_one_after_the_other_are_learnt_from() -> None:
    """A burst that fits the floor is over before a window is: its pieces count together."""
    queue = Queue(100_000.0, every_s=0.001)
    queue.rate.per_s, queue.rate.measured = 1.0, True
    for _ in range(200):
        queue.arrive(ADMISSION.admitted(queue.waiting, 5_000, queue.rate.estimate(queue.now_s)))
        for _ in range(40):
            queue.serve()
    assert queue.rate.estimate(queue.now_s) > 10_000


def test_a_stall_long_ago_is_forgotten() -> None:
    rate = QueueRate()
    rate.full(0.0)
    rate.per_s, rate.measured = 2.0, True
    rate.calm(0.0)
    rate.full(FORGET_S)
    assert rate.estimate(FORGET_S) == 2.0
    rate.calm(FORGET_S)
    rate.full(2 * FORGET_S + 1)
    assert rate.estimate(2 * FORGET_S + 1) == UNMEASURED_PER_S


@given(
    steps=st.lists(
        st.one_of(st.sampled_from(["full", "calm"]), st.integers(0, 5_000), st.floats(0.0, 100.0, allow_nan=False))
    )
)
def test_it_is_a_number_whatever_happens(steps: list[str | int | float]) -> None:
    rate, now_s = QueueRate(), 0.0
    for step in steps:
        match step:
            case "full":
                rate.full(now_s)
            case "calm":
                rate.calm(now_s)
            case int():
                rate.left(step, now_s)
            case float():
                now_s += step
        assert 0.0 <= rate.estimate(now_s) < float("inf")
        bound = ADMISSION.bound(rate.estimate(now_s))
        assert bound is not None
        assert bound >= ADMISSION.items_min


@given(
    waiting=st.integers(0, 10**6),
    arriving=st.integers(0, 2_000),
    per_s=st.floats(0.0, 1e6),
    patience_s=st.floats(0.0, 100.0),
)
def test_nobody_is_let_in_who_would_wait_too_long(waiting: int, arriving: int, per_s: float, patience_s: float) -> None:
    admitted = ADMISSION.admitted(waiting, arriving, per_s, patience_s)
    wait_s = min(ADMISSION.wait_max_s, max(patience_s - ADMISSION.round_trip_s, 0.0))
    assert 0 <= admitted <= arriving
    if waiting + admitted > ADMISSION.items_min and admitted:
        assert waiting + admitted <= per_s * wait_s
    if admitted < arriving:
        assert waiting + admitted >= ADMISSION.items_min or not admitted
        assert waiting + admitted + 1 > per_s * wait_s


def test_time_and_items_bound_together_as_far_as_they_are_given() -> None:
    assert Admission(items_max=0).bound(1e6) is None
    assert Admission(items_max=70).bound(1e6) == 70
    assert Admission(items_max=0, wait_max_s=2.0).bound(1_000.0) == 2_000
    assert Admission(items_max=1_500, wait_max_s=2.0).bound(1_000.0) == 1_500
    assert Admission(items_max=0, wait_max_s=2.0).bound(10_000.0, 1.1) == 10_000
    assert Admission(items_max=0, wait_max_s=2.0, items_min=7).bound(0.0) == 7


def test_rates_are_estimated_in_one_way() -> None:
    """What else weighs by age: the best of all nodes together, which fades; and QUIC, as its RFC says."""
    ages = re.compile(r"math\.exp\(|\bexp\(-|0\.5 \*\*|[Hh]alf_life|ewma|EWMA")
    found = {name_of(file) for file in product() if ages.search(file.read_text(encoding="utf-8"))}
    assert found == {"wire/metad_wire/policy/rates.py", "wire/metad_wire/policy/returns.py"}
