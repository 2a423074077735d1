"""metad-perf assignment: the log of its brokers, and what its judge sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from metad_perf.assignment.brokers import LOG, TASK, Log, Use, double_served, name_of, read_uses
from metad_perf.assignment.command import Observer
from metad_wire.messages import Owner, TableRecord
from metad_wire.tables.assignment import Partition

A, B, C = (Owner(name_of(number), 7) for number in range(3))
KEY = ("perf", "orders", "topic", 0)


def log_of(*epochs: int) -> Log:
    log = Log()
    log.take(0, epochs, range(len(epochs)))
    return log


@pytest.mark.parametrize(
    ("leader", "follower"),
    [
        ((), ()),
        ((1, 1), (1,)),
        ((1, 1), (1, 1, 1)),
        ((1, 1, 3, 3), (1, 1, 2, 2, 2)),
        ((1, 3), (1, 1, 1, 2)),
        ((2, 2), (1, 1, 1)),
        ((), (1,)),
        ((1, 1, 2, 5, 5, 6), (1, 1, 2, 3, 4, 4)),
    ],
)
def test_a_follower_comes_to_have_the_log_of_its_leader_and_keeps_what_they_have_in_common(
    leader: tuple[int, ...], follower: tuple[int, ...]
) -> None:
    theirs, ours = log_of(*leader), log_of(*follower)
    common = next((at for at, both in enumerate(zip(leader, follower, strict=False)) if both[0] != both[1]), None)
    common = min(len(leader), len(follower)) if common is None else common
    least = len(follower)
    while ours.epochs != theirs.epochs:
        end = len(ours.epochs)
        agreed = theirs.agrees_to(end, ours.epoch_before(end))
        assert agreed <= end
        if agreed == end:
            ours.take(agreed, theirs.epochs[agreed:], theirs.numbers[agreed:])
        else:
            ours.take(agreed, (), ())
        least = min(least, agreed)
    assert least == common


def use(member: Owner, begin_ns: int, end_ns: int, partition: int = 0) -> Use:
    return Use(("perf", "task", TASK, partition), 1, member, begin_ns, end_ns)


def test_two_that_serve_at_the_same_time_are_found() -> None:
    one_after_the_other = [use(A, 1, 5), use(A, 5, 9), use(B, 9, 12), use(A, 13, 15), use(B, 2, 8, partition=1)]
    assert double_served(one_after_the_other) == set()
    assert double_served([*one_after_the_other, use(C, 8, 10)]) == {("perf", "task", TASK, 0)}
    assert double_served([use(A, 1, 20), use(A, 2, 3), use(B, 19, 21)]) == {("perf", "task", TASK, 0)}


def test_the_end_of_a_file_may_be_torn(tmp_path: Path) -> None:
    noted = [[use(A, 1, 2), use(A, 2, 3)], [use(B, 4, 5)]]
    lines = [msgspec.json.encode(uses) + b"\n" for uses in noted]
    (tmp_path / "0.uses").write_bytes(b"".join(lines) + lines[0][:20])
    (tmp_path / "1.uses").write_bytes(lines[1])
    assert sorted(read_uses(tmp_path), key=lambda one: one.begin_ns) == [*noted[0], *noted[1], *noted[1]]


def row(leader: Owner | None, epoch: int = 1, key: tuple[str, str, str, int] = KEY, **fields: Any) -> Any:
    tenant, resource, kind, number = key
    replicas = [member.broker for member in (A, B, C)]
    p = Partition(tenant, resource, kind, number, 3, replicas, leader, epoch, epoch, [A, B, C], **fields)
    return TableRecord(p, epoch, 1, epoch)


def test_a_partition_is_without_a_leader_until_a_living_broker_leads_it(tmp_path: Path) -> None:
    observer = Observer(frozenset({A.broker, B.broker}), tmp_path)
    task = ("perf", "task", TASK, 0)
    for now_ns, key in enumerate((KEY, task)):
        observer.saw(row(A, key=key), now_ns)
    before = dict(observer.rows)
    assert observer.without_leader(before) == 1, "an owner waits for the lease, and does not count"
    observer.fenced_ns = {A.broker: 1_000_000, B.broker: 5_000_000}
    observer.saw(row(B, 2), 2_000_000)
    assert (observer.without_leader(before), observer.again_ms(owned=False)) == (1, [])
    observer.saw(row(None, 3), 6_000_000)
    observer.saw(row(C, 4), 7_500_000)
    assert (observer.without_leader(before), observer.again_ms(owned=False)) == (0, [2.5]), "B died last"
    observer.saw(row(C, 2, key=task), 4_000_000)
    assert observer.again_ms(owned=True) == [3]


def test_two_leaders_of_one_epoch_are_seen_and_moves_are_counted(tmp_path: Path) -> None:
    observer = Observer(frozenset(), tmp_path)
    other = ("perf", "log", LOG, 1)
    observer.saw(row(A, 4), 1)
    observer.saw(row(A, 4, plan="drain"), 2)
    observer.saw(row(B, 4, key=other, plan="drain"), 3)
    observer.saw(row(A, 4), 4)
    observer.saw(row(A, 4, plan="drain"), 5)
    assert (observer.begun, observer.moving_max, len(observer.moving)) == (3, 2, 2)
    assert max(map(len, observer.leaders.values())) == 1
    observer.saw(row(C, 4), 6)
    assert observer.leaders[KEY, 4] == {A, C}
