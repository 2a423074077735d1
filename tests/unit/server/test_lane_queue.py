"""What keeps a cluster right goes before records, and records before scans; and no lane starves."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from metad_wire.methods import Lane
from metad_wire.policy.fair_queue import PASSED_ITEMS, SHARE_ITEMS, LaneQueue


class One:
    def __init__(
        self, source: object, number: int, items: int = 1, *, lane: Lane = Lane.RECORDS, tenant: bytes = b""
    ) -> None:
        self.source, self.number, self.items, self.lane, self.tenant = source, number, items, lane, tenant
        self.weight = items


def filled(*works: One) -> LaneQueue[One]:
    queue: LaneQueue[One] = LaneQueue()
    for work in works:
        queue.add(work)
    return queue


def test_lanes_go_before_each_other_in_their_order() -> None:
    queue = filled(*(One("a", 0, lane=lane) for lane in reversed(Lane)))
    assert [queue.pop().lane for _ in Lane] == sorted(Lane)
    assert not queue


def test_a_fence_waits_for_nothing_that_waits() -> None:
    queue = filled(*(One("storm", at, 1_000) for at in range(100)))
    queue.pop()
    assert not queue.urgent
    queue.add(One("metadata-0", 0, lane=Lane.CONTROL))
    assert queue.urgent
    assert queue.before(Lane.CONTROL, b"", "metadata-0") == 1
    assert queue.before(Lane.SCANS, b"", "metadata-0") == queue.items == 99_001
    assert queue.pop().lane is Lane.CONTROL


def test_no_lane_starves() -> None:
    queue = filled(One("scan", 0, lane=Lane.SCANS), *(One("storm", at) for at in range(4 * PASSED_ITEMS)))
    order = [queue.pop().lane for _ in range(PASSED_ITEMS + 1)]
    assert order == [Lane.RECORDS] * PASSED_ITEMS + [Lane.SCANS]


def test_a_lane_that_waits_gets_one_item_for_eight_that_pass_it() -> None:
    queue = filled(
        *(One("a", at, lane=Lane.CONTROL) for at in range(20 * PASSED_ITEMS)),
        *(One("b", at) for at in range(20 * PASSED_ITEMS)),
    )
    taken = Counter(queue.pop().lane for _ in range(9 * PASSED_ITEMS))
    assert taken == {Lane.CONTROL: 8 * PASSED_ITEMS, Lane.RECORDS: 8 * SHARE_ITEMS}


def test_every_lane_that_waits_gets_on() -> None:
    queue = filled(*(One("a", at, lane=lane) for lane in Lane for at in range(10 * PASSED_ITEMS)))
    taken = Counter(queue.pop().lane for _ in range(10 * PASSED_ITEMS))
    assert all(taken[lane] >= SHARE_ITEMS for lane in Lane)
    assert taken[Lane.HEARTBEATS] > 6 * PASSED_ITEMS


def test_what_is_put_back_waits_for_a_higher_lane() -> None:
    queue = filled(One("a", 0), One("a", 1), One("b", 0))
    taken = [queue.pop() for _ in range(2)]
    queue.add(One("c", 0, lane=Lane.CONTROL))
    queue.put_back(taken[1:], taken[0])
    assert queue.urgent
    assert queue.items == 3
    assert [queue.pop().source for _ in range(3)] == ["c", "b", "a"]
    assert not queue


def test_a_heavy_request_lets_a_lower_lane_pass_while_it_may_not_begin() -> None:
    queue = filled(One("heavy", 0, 1_000, lane=Lane.CONTROL), One("a", 0))
    assert queue.skip()
    assert queue.first().source == "a"
    assert not queue.skip()
    queue.skip_no_lane()
    assert queue.first().source == "heavy"


def test_what_is_put_back_waits_for_the_others() -> None:
    queue = filled(*(One("heavy", at) for at in range(3)), One("a", 0), One("a", 1))
    taken = [queue.pop() for _ in range(4)]
    queue.put_back(taken[1:], taken[0])
    assert [(work.source, work.number) for work in (queue.pop() for _ in range(4))] == [
        ("a", 0), ("a", 1), ("heavy", 1), ("heavy", 2),
    ]  # fmt: skip


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("ab"), st.sampled_from(Lane), st.sampled_from([0, 1, 10, 1_000])),
            st.sampled_from(["pop", "put back", "skip", "drain"]),
        ),
        max_size=60,
    )
)
def test_nothing_is_lost_and_each_line_keeps_its_order(steps: list[tuple[str, Lane, int] | str]) -> None:
    queue: LaneQueue[One] = LaneQueue()
    added: Counter[object] = Counter()
    popped: Counter[object] = Counter()
    for step in steps:
        if isinstance(step, tuple):
            source, lane, items = step
            queue.add(One(source, added[source, lane], items, lane=lane))
            added[source, lane] += 1
        elif step == "drain":
            assert len(queue.drain()) == added.total() - popped.total()
            popped = Counter(added)
        elif queue:
            if step == "skip":
                queue.skip()
                continue
            first = queue.first()
            taken = queue.pop()
            assert taken is first
            assert taken.number == popped[taken.source, taken.lane]
            if step == "put back":
                queue.put_back([taken], taken)
            else:
                popped[taken.source, taken.lane] += 1
        waiting = list(queue)
        assert queue.items == sum(work.items for work in waiting)
        assert len(waiting) == added.total() - popped.total()
        assert bool(queue) == bool(waiting)
        assert queue.urgent == any(work.lane <= Lane.CONTROL for work in waiting)
