"""When those who are turned away may come back: no slot is promised twice, and coming early gains nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metad.node.requests.admission import InFlightBudget
from metad_wire.cluster import ReturnGrant, ReturnReport
from metad_wire.errors import OverloadedError
from metad_wire.messages import Identity
from metad_wire.policy import returns as return_slots
from metad_wire.policy.rates import NODE_UNMEASURED_PER_S, ServiceRate
from metad_wire.policy.returns import HORIZON_S, Capacity, Returns, ReturnShare

NOW = 1_000.0


def returns(per_s: float = 1_000.0, for_s: float = HORIZON_S) -> Returns:
    return Returns(lambda _: Capacity(per_s, for_s))


@given(
    capacities=st.lists(st.floats(10, 1e6), min_size=1, max_size=8),
    asked=st.lists(st.tuples(st.integers(1, 2_000), st.floats(0, 0.5), st.booleans()), min_size=1, max_size=60),
)
def test_no_more_come_back_in_any_time_than_can_be_served(
    capacities: list[float], asked: list[tuple[int, float, bool]]
) -> None:
    """The items that have a slot before the next free one fit between now and then, at the capacity of now."""
    now, per_s = NOW, itertools.cycle(capacities)
    capacity = next(per_s)
    slots = Returns(lambda _: Capacity(capacity, HORIZON_S))
    promised: list[tuple[float, int]] = []
    for items, passes_s, changes in asked:
        now += passes_s
        if changes:
            capacity = next(per_s)
        ahead_s = slots.ahead_s(now)
        after_ms, jitter_ms = slots.returning(items, now)
        assert after_ms - jitter_ms >= 0, "a slot in the past"
        if ahead_s < HORIZON_S * 0.95:  # otherwise, or nearly so, there may be no slot: ask again
            promised.append((now + after_ms / 1000, items))
        waiting = sum(count for at, count in promised[:-1] if at > now)
        # What was promised at a greater capacity is denser than that, and is made up for by those behind it. A capacity
        # that differs by 5 % counts as the same; and what lies at the seam may have begun.
        begun = max((count for _, count in promised), default=0)
        assert waiting <= capacity * 1.06 * slots.ahead_s(now) + begun


@given(per_s=st.floats(10, 1e6), counts=st.lists(st.integers(1, 3_000), min_size=2, max_size=50))
def test_slots_do_not_overlap(per_s: float, counts: list[int]) -> None:
    slots = returns(per_s)
    taken: list[int] = []
    for items in counts:
        if slots.ahead_s(NOW) >= HORIZON_S:
            break
        taken.append(slots.returning(items, NOW)[0])
    for (sooner, later), items in zip(itertools.pairwise(taken), counts, strict=False):
        assert later - sooner >= items / per_s * 1000 - 1.5 - items * 1e-6  # of rounding to milliseconds, and to ns


def test_the_first_comes_back_soon_and_the_next_behind_all_its_items() -> None:
    slots = returns(1_000.0)
    assert slots.returning(500, NOW) == (50, 50)
    assert slots.returning(1, NOW) == (550, 50)
    assert slots.returning(1, NOW) == (551, 50)
    # Slots that nobody took are gone: nothing is saved up for later.
    assert slots.returning(1, NOW + 10) == (50, 50)
    assert slots.turned_away == 4


def test_a_smaller_capacity_puts_off_who_comes_next() -> None:
    capacity = 1_000.0
    slots = Returns(lambda _: Capacity(capacity, HORIZON_S))
    slots.returning(1_000, NOW)  # taken until 1.05 s from now
    capacity = 100.0
    assert slots.returning(1, NOW)[0] == 10_000  # a thousand items at a hundred a second
    capacity = 100_000.0
    assert slots.returning(1, NOW)[0] == pytest.approx(10_010, abs=1)  # those before it come when they were told


def test_a_measure_that_goes_up_and_down_puts_nobody_off_twice() -> None:
    """Guards a storm that stood still: each time that the measure fell, all that was promised was put off anew, by as
    many times as it fell. So slots were far apart, and the nodes idle until they came."""
    now, capacity = NOW, 1_000.0
    slots = Returns(lambda _: Capacity(capacity, HORIZON_S))
    slots.returning(5_000, now)
    for _ in range(10):
        capacity = 500.0
        slots.returning(1, now)
        capacity = 1_000.0
        slots.returning(1, now)
    assert slots.ahead_s(now) == pytest.approx(10.0, abs=0.1)  # five thousand at five hundred a second
    now += 8.0
    capacity = 400.0
    slots.returning(1, now)
    assert slots.ahead_s(now) == pytest.approx(2.0, abs=0.1)  # what was to come since has come


def test_behind_the_horizon_there_is_no_slot_but_a_time_to_ask_again() -> None:
    slots = returns(100.0)
    slots.returning(7_000, NOW)
    assert slots.returning(1, NOW) == (45_000, 15_000)
    assert slots.ahead_s(NOW) == pytest.approx(70.05)
    unsure = returns(100.0, 1.0)
    unsure.returning(200, NOW)
    assert unsure.returning(1, NOW) == (750, 250)


def test_two_brokers_that_are_turned_away_in_turns_come_back_in_turns() -> None:
    slots = returns(1_000.0)
    waits: dict[int, list[int]] = {1: [], 2: []}
    for seq in range(200):
        for broker in (1, 2):
            waits[broker].append(slots.returning(10, NOW, Identity(broker, seq, 0))[0])
            if broker == 2:  # the impatient one asks again and again, which moves nobody
                for _ in range(5):
                    slots.returning(10, NOW, Identity(2, seq, 0, 1))
    assert [second - first for first, second in zip(waits[1], waits[2], strict=True)] == [10] * 200
    assert waits[1][-1] == 50 + 199 * 20
    assert slots.came_early == 1_000


def test_who_comes_early_is_told_the_same_slot_again() -> None:
    slots = returns(1_000.0)
    write, other = Identity(7, 1, 0), Identity(7, 2, 0)
    slots.returning(500, NOW)
    assert slots.returning(1, NOW, write) == (550, 50)
    assert slots.returning(1, NOW, other) == (551, 50)
    with pytest.raises(OverloadedError, match="come back later") as told:
        slots.check(Identity(7, 1, 1, 200), NOW + 0.2)
    assert told.value.retry_after_ms == 350
    assert slots.returning(1, NOW + 0.2, write) == (350, 50)  # nor where there is no room again
    slots.check(None, NOW + 0.2)
    slots.check(Identity(8, 1, 0), NOW + 0.2)  # another client's write of this number
    slots.check(write, NOW + 0.5)  # within its jitter
    assert slots.promised  # the other one's has not come
    slots.check(other, NOW + 0.502)
    assert not slots.promised
    # In time, and there is no room all the same: a new slot, behind everybody's.
    slots.returning(1_000, NOW + 0.5)
    assert slots.returning(1, NOW + 0.5, write)[0] > 1_000


def test_what_is_remembered_of_slots_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(return_slots, "PROMISES_MAX", 100)
    slots = returns(1_000.0)
    for seq in range(150):
        slots.returning(1, NOW, Identity(1, seq, 0))
    slots.check(Identity(1, 49, 0, 1), NOW)  # forgotten
    with pytest.raises(OverloadedError):
        slots.check(Identity(1, 50, 0, 1), NOW)


# --- the measure ---


def busy(rate: ServiceRate, since: float, seconds: float, per_s: float, *, refusing: bool) -> float:
    """Answer at a rate for a while, in steps of ten milliseconds."""
    now = since
    while now < since + seconds - 1e-9:
        now += 0.01
        rate.answered(round(per_s / 100))
        if refusing:
            rate.refused(now)
            rate.estimate(now)
    return now


def test_calm_times_can_only_raise_the_measure() -> None:
    rate = ServiceRate(since_s=NOW)
    assert rate.estimate(NOW) == NODE_UNMEASURED_PER_S
    now = busy(rate, NOW, 1.0, 50_000, refusing=False)
    assert rate.estimate(now) == pytest.approx(50_000, rel=0.02)
    now = busy(rate, now, 5.0, 100, refusing=False)
    assert rate.estimate(now) == pytest.approx(50_000, rel=0.02)
    assert not rate.measured


def test_times_with_refusals_set_the_measure() -> None:
    rate = ServiceRate(since_s=NOW)
    now = busy(rate, NOW, 1.0, 50_000, refusing=False)
    now = busy(rate, now, 4.0, 2_000, refusing=True)
    assert rate.measured
    assert rate.estimate(now) == pytest.approx(2_000, rel=0.1)
    now = busy(rate, now, 4.0, 20_000, refusing=True)
    assert rate.estimate(now) == pytest.approx(20_000, rel=0.1)


def test_the_moment_in_which_a_crowd_is_turned_away_says_nothing_of_the_time_after_it() -> None:
    """Guards the end of a storm: by what a node answered in the half second in which it turned 200,000 clients away,
    they were told to come back in eight seconds, and the node was idle until then."""
    rate = ServiceRate(since_s=NOW)
    now = busy(rate, NOW, 3.0, 25_000, refusing=False)
    now = busy(rate, now, 0.9, 3_000, refusing=True)
    assert rate.estimate(now) == pytest.approx(25_000, rel=0.02)
    now = busy(rate, now, 3.0, 8_000, refusing=True)
    assert rate.estimate(now) == pytest.approx(8_000, rel=0.1)
    now = busy(rate, now, 1.5, 20_000, refusing=False)  # calm
    now = busy(rate, now, 0.9, 1_000, refusing=True)
    assert rate.estimate(now) == pytest.approx(20_000, rel=0.15)


def test_one_refusal_in_a_calm_time_says_little() -> None:
    rate = ServiceRate(since_s=NOW)
    now = busy(rate, NOW, 1.0, 50_000, refusing=False)
    now = busy(rate, now, 3.0, 1_000, refusing=True)
    assert rate.estimate(now) < 1_500
    now = busy(rate, now, 1.0, 80_000, refusing=False)
    assert rate.estimate(now) > 70_000
    rate.refused(now)
    now = busy(rate, now, 0.9, 100, refusing=False)
    rate.refused(now)
    assert rate.estimate(now) > 70_000


def a_share(per_s_max: int = 0, members: int = 1) -> ReturnShare:
    return ReturnShare("n1", ServiceRate(since_s=NOW), per_s_max, lambda: members, lambda: None)


def test_an_operator_may_set_a_lower_limit() -> None:
    assert a_share().capacity(NOW) == (NODE_UNMEASURED_PER_S, 1.0)
    assert a_share(50).capacity(NOW) == (50, HORIZON_S)
    assert a_share(10**6).capacity(NOW) == (NODE_UNMEASURED_PER_S, 1.0)
    assert a_share(60, members=3).capacity(NOW) == (20, HORIZON_S)


def test_a_measure_is_believed_for_four_times_as_long_as_the_node_has_been_busy() -> None:
    """Guards a storm that stood still: what the first seconds measured, in which a crowd was turned away, was believed
    for a minute."""
    rate = ServiceRate(since_s=NOW)
    share = ReturnShare("n1", rate, 0, lambda: 1, lambda: None)
    believed: list[float] = []
    for tick in range(2_501):
        now = NOW + tick / 100
        share.answered(20)
        share.refused(now)
        for_s = share.capacity(now).for_s  # as each refusal asks
        if tick in (30, 50, 200, 1_000, 2_500):
            believed.append(for_s)
    assert believed == pytest.approx([1.0, 1.0, 8.0, 40.0, HORIZON_S])
    share.refused(now + 20.0)  # and, after a calm time, anew
    assert share.capacity(now + 20.0).for_s == 1.0


def test_a_node_that_has_just_become_busy_asks_at_once_and_goes_by_its_own_measure() -> None:
    asked: list[None] = []
    share = ReturnShare("n1", ServiceRate(since_s=NOW), 60, lambda: 3, lambda: asked.append(None))
    share.refused(NOW)
    share.refused(NOW + 0.1)
    assert len(asked) == 1
    assert share.capacity(NOW + 0.1) == (60, HORIZON_S)
    assert share.capacity(NOW + 1.1) == (20, HORIZON_S)  # nobody answers
    share.refused(NOW + 9)
    share.refused(NOW + 18)
    assert len(asked) == 1
    share.refused(NOW + 28.1)
    assert len(asked) == 2


def test_a_node_without_a_part_takes_as_much_as_if_all_were_as_busy() -> None:
    share = a_share(3_000, members=3)
    assert share.report(NOW) is None  # it is not busy
    share.answered(500)
    share.refused(NOW)
    assert share.report(NOW + 1) == ReturnReport("n1", 3_000, 500, 0)
    assert share.capacity(NOW + 1) == (1_000, HORIZON_S)
    share.granted(ReturnGrant(2_400, 3_000), NOW + 1)
    assert share.capacity(NOW + 3.9) == (2_400, HORIZON_S)
    assert share.granted_at(NOW + 3.9)
    assert share.capacity(NOW + 4.1) == (1_000, HORIZON_S)  # it was not renewed
    share.granted(ReturnGrant(50_000, 3_000), NOW + 5)
    assert share.capacity(NOW + 5) == (3_000, HORIZON_S)  # never more than it can answer
    assert share.report(NOW + 10) is not None
    assert share.report(NOW + 10.1) is None
    share.returns.returning(30_000, NOW + 10.1)  # slots for ten seconds: those clients will come
    assert share.report(NOW + 15) is not None
    assert a_share(3_000).report(NOW) is None


# --- where requests are turned away ---


class Line:
    """The connection of a client."""

    principal = None

    def __init__(self, host: str) -> None:
        self.host = self.holder = host


def test_requests_without_room_get_a_slot_for_their_items() -> None:
    budget = InFlightBudget(1_000, a_share(1_000))
    a, b = (Line(name) for name in "ab")
    alone = budget.take(a, 5_000, 1, NOW)
    with pytest.raises(OverloadedError) as first:
        budget.take(b, 10, 300, NOW, Identity(1, 1, 0))
    with pytest.raises(OverloadedError) as second:
        budget.take(b, 10, 1, NOW, Identity(1, 2, 0))
    assert (first.value.retry_after_ms, second.value.retry_after_ms) == (50, 350)
    assert (first.value.retry_jitter_ms, budget.held) == (50, 5_000)
    budget.give(alone, 1)
    budget.take(b, 10, 1, NOW + 1)
