"""Writes wait in one line per connection, and the lines take turns."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from metad.node.fair_queue import SHARE_ITEMS, FairQueue


class One:
    def __init__(self, source: object, number: int, items: int = 1) -> None:
        self.source, self.number, self.items = source, number, items


def filled(*works: One) -> FairQueue[One]:
    queue: FairQueue[One] = FairQueue()
    for work in works:
        queue.add(work)
    return queue


def test_a_small_request_waits_for_one_turn_of_a_connection_that_has_filled_the_queue() -> None:
    queue = filled(*(One("greedy", n, 1_000) for n in range(50)))
    assert queue.pop().source == "greedy"
    queue.add(One("modest", 0))
    assert [queue.pop().source for _ in range(2)] == ["greedy", "modest"]


def test_a_turn_of_small_requests_is_worth_its_share() -> None:
    queue = filled(*(One("greedy", n) for n in range(10 * SHARE_ITEMS)), One("modest", 0))
    assert [queue.pop().source for _ in range(SHARE_ITEMS + 1)] == ["greedy"] * SHARE_ITEMS + ["modest"]


def test_who_comes_back_begins_a_new_turn() -> None:
    queue = filled(One("a", 0, SHARE_ITEMS - 1))
    queue.pop()
    for source in "ab":
        for number in range(2):
            queue.add(One(source, number, SHARE_ITEMS // 2))
    assert [queue.pop().source for _ in range(4)] == ["a", "a", "b", "b"]


def test_what_is_given_back_is_next() -> None:
    queue = filled(One("a", 0), One("a", 1), One("b", 0))
    taken = [queue.pop() for _ in range(2)]
    queue.give_back(taken)
    assert queue.items == 3
    assert queue.first() is taken[0]
    assert [queue.pop() for _ in range(2)] == taken
    assert queue.pop().source == "b"
    assert not queue


def test_a_source_whose_request_was_heavy_has_had_its_turn() -> None:
    queue = filled(*(One("heavy", n) for n in range(5)), One("a", 0), One("b", 0), One("a", 1))
    taken = [queue.pop() for _ in range(6)]
    assert [(work.source, work.number) for work in taken[4:]] == [("heavy", 4), ("a", 0)]
    queue.put_back(taken[2:], "heavy")
    assert queue.items == 6
    assert not queue.given_back
    found = [queue.pop() for _ in range(6)]
    assert [(work.source, work.number) for work in found] == [
        ("a", 0), ("a", 1), ("b", 0), ("heavy", 2), ("heavy", 3), ("heavy", 4),
    ]  # fmt: skip
    assert not queue


def test_a_source_that_was_heavy_and_waits_no_more_gets_no_turn() -> None:
    queue = filled(One("heavy", 0), One("a", 0))
    taken = [queue.pop(), queue.pop()]
    queue.put_back(taken[1:], "heavy")
    assert queue.pop() is taken[1]
    assert not queue


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abc"), st.sampled_from([1, 10, SHARE_ITEMS, 1_000])),
            st.sampled_from(["pop", "give back", "put back", "drain"]),
        ),
        max_size=60,
    )
)
def test_nothing_is_lost_and_each_source_keeps_its_order(steps: list[tuple[str, int] | str]) -> None:
    queue: FairQueue[One] = FairQueue()
    added: Counter[str] = Counter()
    popped: Counter[str] = Counter()
    for step in steps:
        if isinstance(step, tuple):
            source, items = step
            queue.add(One(source, added[source], items))
            added[source] += 1
        elif step == "drain":
            assert len(queue.drain()) == added.total() - popped.total()
            popped = Counter(added)
        elif queue:
            first = queue.first()
            taken = [queue.pop()]
            assert taken[0] is first
            if step == "give back":
                queue.give_back(taken)
            elif step == "put back":
                queue.put_back(taken, taken[0].source)
            else:
                assert first.number == popped[str(first.source)]
                popped[str(first.source)] += 1
        waiting = list(queue)
        assert queue.items == sum(work.items for work in waiting)
        assert len(waiting) == added.total() - popped.total()
        assert bool(queue) == bool(waiting)
