"""The scalar policies and their forms for arrays give the same bits, for any seed, client and attempt."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metad_wire.policy import FAMILIES, Admission, Backoff, RetryBudget, ReturnSlots, draw, uniform
from metad_wire.policy.draw import stream
from metad_wire.policy.vector import Backoffs, draws, reserve_us, uniforms


def test_only_the_forms_for_arrays_need_numpy() -> None:
    """The base install is msgspec; a broker that uses the SDK must not have to install numpy for its backoff."""
    check = "import sys, metad_wire.policy, metad_client; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


seeds = st.integers(0, 2**64 - 1)
clients = st.lists(st.integers(0, 2**40), min_size=1, max_size=30)


@given(seed=seeds, purpose=st.integers(0, 10), names=clients, turn=st.integers(0, 2**31))
def test_draws_are_the_same_one_by_one(seed: int, purpose: int, names: list[int], turn: int) -> None:
    start = stream(seed, purpose)
    expected = [draw(start, name, turn) for name in names]
    assert draws(start, np.array(names), turn).tolist() == expected
    assert draws(start, np.array(names), np.full(len(names), turn)).tolist() == expected
    assert uniforms(start, np.array(names), turn).tolist() == [uniform(start, name, turn) for name in names]


def test_draws_are_uniform_and_differ_by_seed_purpose_client_and_turn() -> None:
    start = stream(1, 0)
    names = np.arange(100_000)
    values = uniforms(start, names, 3)
    assert abs(values.mean() - 0.5) < 0.005
    assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 0.02
    assert np.histogram(values, 20)[0].min() > 4_600
    for other in (uniforms(start, names, 4), uniforms(stream(1, 1), names, 3), uniforms(stream(2, 0), names, 3)):
        assert abs(np.corrcoef(values, other)[0, 1]) < 0.02


@given(
    seed=seeds,
    family=st.sampled_from(FAMILIES),
    base_s=st.floats(0, 10),
    more_s=st.floats(0, 200),
    jitter=st.floats(0, 1),
    attempts=st.lists(st.integers(0, 10_000), min_size=1, max_size=30),
    previous_us=st.integers(0, 2**31),
)
def test_waits_are_the_same_one_by_one(
    seed: int, family: str, base_s: float, more_s: float, jitter: float, attempts: list[int], previous_us: int
) -> None:
    policy = Backoff(base_s=base_s, cap_s=base_s + more_s, family=family, jitter=jitter)  # type: ignore[arg-type]
    other = Backoff(base_s=1.0, cap_s=2.0, family="equal")
    rng = random.Random(seed)
    u = np.array([rng.random() for _ in attempts])
    previous = np.full(len(attempts), previous_us)
    which = np.array([at % 2 for at in range(len(attempts))])
    both = (policy, other)
    expected = [
        both[at].wait_us(attempt, previous_us, draw)
        for at, attempt, draw in zip(which.tolist(), attempts, u, strict=True)
    ]
    assert Backoffs(both).waits_us(which, np.array(attempts), previous, u).tolist() == expected


@pytest.mark.parametrize("family", FAMILIES)
@given(seed=seeds, attempt=st.integers(0, 100))
def test_a_wait_keeps_to_its_bounds(family: str, seed: int, attempt: int) -> None:
    policy = Backoff(base_s=0.5, cap_s=20.0, family=family, jitter=0.2)  # type: ignore[arg-type]
    u = random.Random(seed).random()
    low, high = policy.bounds_s(attempt, 3.0)
    assert min(low, 20.0) <= policy.wait_s(attempt, 3.0, u) <= min(high, 20.0)
    assert 0.0 <= policy.delay_s(attempt, random.Random(seed)) <= 20.0


@given(
    burst=st.integers(1, 20),
    interval_s=st.floats(1e-6, 100),
    wanted=st.lists(st.integers(0, 2**40), min_size=1, max_size=50),
)
def test_a_budget_lets_a_burst_go_and_one_more_each_interval(burst: int, interval_s: float, wanted: list[int]) -> None:
    budget = RetryBudget(burst=burst, interval_s=interval_s)
    clock, granted, now = 0, [], 0
    asked: list[tuple[int, int]] = []
    for at in sorted(wanted):
        now = max(now, at)
        asked.append((now, clock))
        due, clock = budget.reserve_us(now, clock)
        assert due >= now
        granted.append(due)
        now = due
    dues, clocks = reserve_us(budget, *np.array(asked).T)
    assert (dues.tolist(), clocks.tolist()) == (granted, [*(before for _, before in asked[1:]), clock])
    # However they were wanted, no more than the burst and what came back meanwhile went in any stretch of time.
    for first in range(len(granted)):
        for last in range(first, len(granted)):
            came_back = (granted[last] - granted[first]) // budget.interval_us
            assert last - first + 1 <= burst + came_back


@given(
    per_s=st.floats(0.01, 1e7),
    wait_min_s=st.floats(0, 10),
    jitter_s=st.floats(0, 10),
    asked=st.lists(st.tuples(st.integers(0, 2**31), st.integers(1, 1_000)), max_size=40),
    begin=st.integers(0, 2**40),
    seed=seeds,
)
def test_return_slots_are_far_enough_apart_and_none_is_too_soon(
    per_s: float, wait_min_s: float, jitter_s: float, asked: list[tuple[int, int]], begin: int, seed: int
) -> None:
    slots = ReturnSlots(per_s=per_s, wait_min_s=wait_min_s, jitter_s=jitter_s)
    following, given_ns = begin, []
    rng = random.Random(seed)
    for at, count in sorted(asked):
        slot, following = slots.reserve_ns(at * 1000, following, count)
        given_ns.append(slot)
        assert slot >= max(begin, at * 1000 + slots.wait_min_ns)
        assert following == slot + count * slots.interval_ns
        wait = slots.wait_us(at, slot, rng.random())
        assert wait == 0 or abs(at + wait - slot // 1000) <= slots.jitter_us
    for (sooner, later), (_, count) in zip(itertools.pairwise(given_ns), sorted(asked), strict=False):
        assert later - sooner >= count * slots.interval_ns


@given(limit=st.integers(0, 100), waiting=st.integers(0, 200), arriving=st.integers(0, 200))
def test_admission_fills_the_queue_and_no_more(limit: int, waiting: int, arriving: int) -> None:
    admitted = Admission(items_max=limit).admitted(waiting, arriving)
    assert 0 <= admitted <= arriving
    if limit:
        assert waiting + admitted <= max(limit, waiting)
        assert admitted == arriving or waiting + admitted >= limit
    else:
        assert admitted == arriving


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Backoff(family="quadratic"), "family must be one of none, exponential"),  # type: ignore[arg-type]
        (lambda: Backoff(base_s=3.0, cap_s=2.0), "cap_s"),
        (lambda: Backoff(base_s=float("nan")), "base_s"),
        (lambda: Backoff(jitter=1.5), "jitter"),
        (lambda: RetryBudget(burst=0), "burst"),
        (lambda: RetryBudget(interval_s=0.0), "interval_s"),
        (lambda: ReturnSlots(per_s=0.0), "per_s"),
        (lambda: ReturnSlots(per_s=1.0, jitter_s=-1.0), "jitter_s"),
        (lambda: Admission(items_max=-1), "items_max"),
    ],
)
def test_policies_that_make_no_sense_are_refused(make: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()  # type: ignore[operator]
