"""Leases that whoever leads keeps in memory: who is silent for long enough is over, and nobody else is."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from metad.state.live.liveness import LOOKS, RESUME_S, Liveness


def test_a_lease_is_over_when_its_time_is_until_it_is_removed() -> None:
    live: Liveness[str] = Liveness()
    live.add("a", 10.0, at_s=0.0)
    live.add("b", 5.0, at_s=0.0)
    assert live.over(4.9) == []
    assert live.over(10.0) == ["b", "a"]
    assert live.over(99.0) == ["b", "a"]
    live.remove("b")
    assert live.over(99.0) == ["a"]
    assert len(live) == 1


def test_who_is_heard_of_goes_on_from_then_whatever_the_order_of_the_times() -> None:
    live: Liveness[str] = Liveness()
    live.add("a", 10.0, at_s=0.0)
    assert live.heard("a", 7.0)
    assert live.heard("a", 3.0)
    assert live.ends_s("a") == 17.0
    assert live.over(16.9) == []
    assert live.over(17.0) == ["a"]
    assert not live.heard("nobody", 1.0)
    assert live.ends_s("nobody") is None


def test_an_answer_that_took_a_part_of_the_lease_counts_from_itself() -> None:
    live: Liveness[str] = Liveness()
    live.add("a", 0.5, at_s=0.0)
    live.answered("a", 0.1, now_s=0.2)
    assert live.ends_s("a") == 0.6
    live.answered("a", 0.3, now_s=0.5)
    assert live.ends_s("a") == 1.0
    live.answered("nobody", 0.3, now_s=0.5)


def test_who_is_heard_of_after_it_was_over_is_over_again_later() -> None:
    live: Liveness[str] = Liveness()
    live.add("a", 10.0, at_s=0.0)
    assert live.over(10.0) == ["a"]
    assert live.heard("a", 9.0)
    assert live.over(18.9) == []
    assert live.over(19.0) == ["a"]


def test_what_is_put_aside_is_over_once_it_was_heard_of() -> None:
    live: Liveness[str] = Liveness()
    live.add("a", 10.0, at_s=0.0)
    assert live.over(10.0) == ["a"]
    live.put_aside("a")
    assert live.over(99.0) == []
    assert live.heard("a", 99.0)
    assert live.over(109.0) == ["a"]


def test_what_could_not_be_ended_is_added_again() -> None:
    live: Liveness[str] = Liveness()
    live.add("a", 10.0, at_s=0.0)
    assert live.over(10.0) == ["a"]
    live.add("a", 10.0, at_s=10.0)
    assert live.over(19.9) == []
    assert live.over(20.0) == ["a"]


def test_an_amnesty_gives_everybody_a_whole_lease() -> None:
    live: Liveness[str] = Liveness()
    live.add("a", 10.0, at_s=0.0)
    live.add("b", 20.0, at_s=0.0)
    live.amnesty(9.0)
    assert live.over(18.9) == []
    assert live.ends_s("a") == 19.0
    assert live.over(19.0) == ["a"]
    assert live.over(28.9) == ["a"]
    assert live.over(29.0) == ["a", "b"]
    live.amnesty(29.0)
    assert live.over(29.0) == [], "also what is over already"
    assert live.over(39.0) == ["a"]


def test_a_shorter_lease_begins_only_once_the_longer_one_is_over() -> None:
    live: Liveness[str] = Liveness()
    live.add("a", 10.0, at_s=0.0)
    live.add("a", 2.0, at_s=1.0)
    assert live.ends_s("a") == 10.0
    assert live.over(9.9) == []
    assert live.heard("a", 9.0)
    assert live.over(10.9) == []
    assert live.over(11.0) == ["a"]


def test_one_that_is_removed_and_comes_back_has_no_past() -> None:
    live: Liveness[str] = Liveness()
    live.add("a", 10.0, at_s=0.0)
    live.remove("a")
    live.remove("a")
    assert live.over(99.0) == []
    live.add("a", 3.0, at_s=0.0)
    assert live.over(3.0) == ["a"]
    live.remove("a")
    live.add("b", 10.0, at_s=0.0)
    live.remove("b")
    live.add("b", 3.0, at_s=0.0)
    assert live.over(50.0) == ["b"]


def test_many_end_in_parts() -> None:
    live: Liveness[int] = Liveness()
    for number in range(10):
        live.add(number, 1.0, at_s=number / 10)
    assert live.over(5.0, limit=4) == [0, 1, 2, 3]
    assert not live.lags, "the others wait for these"
    live.remove(1)
    assert live.over(5.0, limit=4) == [0, 2, 3, 4]
    assert live.over(5.0, limit=99) == [0, 2, 3, 4, 5, 6, 7, 8, 9]


def test_one_call_looks_at_a_bounded_number() -> None:
    """Guards the loop of a new leader: an amnesty moves the end of each lease, and the first call moved all of them."""
    live: Liveness[int] = Liveness()
    count = 3 * LOOKS
    for number in range(count):
        live.add(number, 10.0, at_s=0.0)
    live.amnesty(100.0)
    for calls in (1, 2, 3):
        assert live.over(100.0) == []
        assert sum(at_s == 110.0 for at_s, _, _ in live._queue) == calls * LOOKS
        assert live.lags == (calls < 3)
    found = []
    while over := live.over(110.0):
        found += over
        for key in over:
            live.remove(key)
    assert sorted(found) == [*range(count)]


def test_an_amnesty_gives_a_short_lease_as_long_as_its_holder_may_need_to_come_back() -> None:
    live: Liveness[str] = Liveness()
    live.add("short", 0.5, at_s=0.0)
    live.add("long", 60.0, at_s=0.0)
    live.amnesty(100.0)
    assert live.ends_s("short") == 100.0 + RESUME_S
    assert live.ends_s("long") == 160.0
    assert live.over(100.6) == []
    live.heard("short", 101.0)
    assert live.ends_s("short") == 101.5, "it is there again"
    assert live.over(101.5) == ["short"]


def test_memory_is_bounded_by_the_keys() -> None:
    live: Liveness[int] = Liveness()
    for number in range(10_000):
        live.add(number % 10, 1_000.0, at_s=float(number))
        live.heard(number % 10, number + 0.5)
        if number % 2:
            live.remove(number % 10)
    assert len(live._queue) < 100


STEP = st.tuples(
    st.sampled_from(["add", "heard", "remove", "amnesty", "over", "aside", "later"]),
    st.integers(0, 4),
    st.integers(1, 9),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_it_does_what_a_plain_table_of_deadlines_does(steps: list[tuple[str, int, int]]) -> None:
    live: Liveness[int] = Liveness()
    ends: dict[int, tuple[int, int, int]] = {}  # ttl, end, heard of
    out: set[int] = set()
    now, amnesty = 0, -99

    def over(ttl: int, end: int, heard: int) -> float:
        return end if heard > amnesty else max(end, amnesty + max(ttl, RESUME_S))

    for what, key, number in steps:
        ttl, end, heard = ends.get(key, (0, 0, -99))
        if what == "add":
            live.add(key, number, now)
            before = over(ttl, end, heard) if key in ends else 0
            ends[key] = number, max(before, now + number), now
            out.discard(key)
        elif what == "heard":
            assert live.heard(key, now) == (key in ends)
            if key in ends:
                if now + ttl > end:
                    out.discard(key)
                ends[key] = ttl, max(end, now + ttl), now
        elif what == "remove":
            live.remove(key)
            ends.pop(key, None)
            out.discard(key)
        elif what == "amnesty":
            live.amnesty(now)
            amnesty = now
        elif what == "later":
            now += number
        else:
            wanted = {one for one, lease in ends.items() if one not in out and over(*lease) <= now}
            assert set(live.over(now)) == wanted
            if what == "aside" and key in wanted:
                live.put_aside(key)
                out.add(key)
