"""Requests of a lane wait in one line per tenant and connection. Tenants take turns, and within a tenant its lines."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from metad_wire.policy.fair_queue import SHARE_BYTES, SHARE_ITEMS, FairQueue, weight_of


class One:
    def __init__(self, source: object, number: int, items: int = 1, tenant: bytes = b"", size: int = 0) -> None:
        self.source, self.number, self.items, self.tenant = source, number, items, tenant
        self.weight = weight_of(items, size)


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


def test_a_source_whose_request_was_heavy_has_had_its_turn() -> None:
    queue = filled(*(One("heavy", n) for n in range(5)), One("a", 0), One("b", 0), One("a", 1))
    taken = [queue.pop() for _ in range(6)]
    assert [(work.source, work.number) for work in taken[4:]] == [("heavy", 4), ("a", 0)]
    for work in reversed(taken[2:]):
        queue.add_first(work)
    queue.skip_line_of(taken[1])
    assert queue.items == 6
    found = [queue.pop() for _ in range(6)]
    assert [(work.source, work.number) for work in found] == [
        ("a", 0), ("a", 1), ("b", 0), ("heavy", 2), ("heavy", 3), ("heavy", 4),
    ]  # fmt: skip
    assert not queue


def test_a_source_that_was_heavy_and_waits_no_more_gets_no_turn() -> None:
    queue = filled(One("heavy", 0), One("a", 0))
    taken = [queue.pop(), queue.pop()]
    queue.add_first(taken[1])
    queue.skip_line_of(taken[0])
    assert queue.pop() is taken[1]
    assert not queue


def test_a_tenant_gets_no_more_by_having_more_connections() -> None:
    many = [One(("many", at), at, tenant=b"many") for at in range(1_000)]
    one = [One("one", at, tenant=b"one") for at in range(1_000)]
    queue = filled(*many, *one)
    first = Counter(queue.pop().tenant for _ in range(8 * SHARE_ITEMS))
    assert first == {b"many": 4 * SHARE_ITEMS, b"one": 4 * SHARE_ITEMS}


def test_connections_of_a_tenant_take_turns_within_its_own() -> None:
    queue = filled(
        *(One(source, at, SHARE_ITEMS, b"two") for source in "ab" for at in range(4)),
        *(One("c", at, SHARE_ITEMS, b"one") for at in range(4)),
    )
    assert [str(queue.pop().source) for _ in range(8)] == ["a", "c", "b", "c", "a", "c", "b", "c"]


def test_turns_are_worth_bytes_as_they_are_worth_items() -> None:
    """Batches of large items pushed another tenant's batches from 147 to 16 in the same time."""
    large = [One("large", at, 1_000, b"large", 64 * SHARE_BYTES) for at in range(20)]
    small = [One("small", at, SHARE_ITEMS, b"small", SHARE_BYTES) for at in range(2_000)]
    queue = filled(*large, *small)
    taken = [queue.pop() for _ in range(650)]
    sizes = Counter[bytes]()
    for work in taken:
        sizes[work.tenant] += work.weight
    assert abs(sizes[b"large"] - sizes[b"small"]) <= 65 * SHARE_ITEMS


def test_connections_of_a_tenant_share_bytes_too() -> None:
    queue = filled(
        *(One("large", at, 1, b"", 64 * SHARE_BYTES) for at in range(4)),
        *(One("small", at) for at in range(SHARE_ITEMS * 70)),
    )
    taken = Counter(queue.pop().source for _ in range(SHARE_ITEMS * 60))
    assert taken["large"] == 1


def test_who_waits_for_one_answer_at_a_time_owes_what_it_had() -> None:
    queue = filled(*(One("small", at, SHARE_ITEMS, b"small") for at in range(200)))
    done = Counter[object]()
    for number in range(100):
        if not any(work.source == "large" for work in queue):
            queue.add(One("large", number, 1, b"large", 16 * SHARE_BYTES))
        done[queue.pop().source] += 1
    assert done["large"] in (5, 6, 7)


def test_who_is_alone_owes_nothing() -> None:
    queue = filled(*(One("large", at, 1, b"large", 64 * SHARE_BYTES) for at in range(5)))
    for _ in range(4):
        queue.pop()
    queue.add(One("small", 0, 1, b"small"))
    assert [queue.pop().source, queue.pop().source] == ["large", "small"]
    assert not queue.owed


def test_a_turn_is_found_at_once_however_much_all_of_them_owe() -> None:
    queue = filled(*(One(at, n, 1, b"%d" % at, 2_000 * SHARE_BYTES) for at in range(50) for n in range(3)))
    assert [queue.pop().source for _ in range(150)] == [*range(50)] * 3


def test_a_connection_has_a_line_for_each_tenant() -> None:
    queue = filled(*(One("proxy", at, SHARE_ITEMS, b"loud") for at in range(4)), One("proxy", 0, tenant=b"quiet"))
    assert [queue.pop().tenant for _ in range(2)] == [b"loud", b"quiet"]


def test_what_comes_before_a_request_is_what_its_tenant_and_connection_have_in_it() -> None:
    queue = filled(
        *(One(("many", at), 0, 100, b"many") for at in range(100)),
        One("one", 0, 1_000, b"one"),
    )
    assert queue.items == 11_000
    assert queue.before(b"one", "one") == 2 * (1_000 + SHARE_ITEMS)
    assert queue.before(b"new", "new") == 2 * SHARE_ITEMS, "a turn of each who waits"
    assert queue.before(b"many", "new") == 11_000
    assert queue.before(b"many", ("many", 0)) == 11_000
    assert filled().before(b"any", "any") == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abc"), st.sampled_from([b"x", b"y"]), st.sampled_from([1, 10, 1_000])),
            st.sampled_from(["pop", "put first", "skip", "skip line", "drain"]),
        ),
        max_size=60,
    )
)
def test_nothing_is_lost_and_each_line_keeps_its_order(steps: list[tuple[str, bytes, int] | str]) -> None:
    queue: FairQueue[One] = FairQueue()
    added: Counter[object] = Counter()
    popped: Counter[object] = Counter()
    for step in steps:
        if isinstance(step, tuple):
            source, tenant, items = step
            queue.add(One(source, added[source, tenant], items, tenant))
            added[source, tenant] += 1
        elif step == "drain":
            assert len(queue.drain()) == added.total() - popped.total()
            popped = Counter(added)
        elif step == "skip":
            assert queue.skip() == (len({(work.source, work.tenant) for work in queue}) > 1)
        elif queue:
            first = queue.first()
            taken = queue.pop()
            assert taken is first
            assert taken.number == popped[taken.source, taken.tenant]
            if step == "put first":
                queue.add_first(taken)
                assert queue.first() is taken
            else:
                popped[taken.source, taken.tenant] += 1
                if step == "skip line":
                    queue.skip_line_of(taken)
        waiting = list(queue)
        assert queue.items == sum(work.items for work in waiting)
        assert len(waiting) == added.total() - popped.total()
        assert bool(queue) == bool(waiting)
        assert 0 <= queue.before(b"x", "a") <= queue.items
