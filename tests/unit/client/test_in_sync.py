"""What the leader of a partition by in-sync replicas acknowledges, and whom it proposes. Each rule by itself, and all
against an adversary: whoever is in sync by the record has every acknowledged record."""

from __future__ import annotations

import random

import msgspec
import pytest

from metad_client import InvalidRequestError, Owner
from metad_client.assignment.in_sync import LAG_S, InSyncReplicas
from metad_client.errors import NoReplicaError
from metad_wire.tables.assignment import Partition

A, B, C = Owner("a", 1), Owner("b", 2), Owner("c", 3)


def record(*isr: Owner, partition_epoch: int = 1, min_isr: int = 2, leader_epoch: int = 1) -> Partition:
    return Partition(
        "t", "orders", "topic", 0, 1, ["a", "b", "c"], A, leader_epoch, partition_epoch, [*isr], min_isr=min_isr
    )


def leading(*isr: Owner, end: int = 0, min_isr: int = 2) -> InSyncReplicas:
    return InSyncReplicas(record(*isr, min_isr=min_isr), A, end, 0.0)


def test_a_record_is_acknowledged_once_all_in_sync_have_it() -> None:
    replicas = leading(A, B, C)
    assert replicas.appended(5) == 0
    assert replicas.fetched(B, 5, 1.0) == 0
    assert replicas.fetched(C, 3, 1.0) == 3
    assert replicas.fetched(C, 2, 1.1) == 3, "it only grows"
    assert replicas.learned(record(A, B, partition_epoch=2)) == 5, "c is not in sync any more"


def test_nothing_is_acknowledged_while_fewer_than_min_isr_are_in_sync() -> None:
    replicas = leading(A, B)
    replicas.learned(record(A, partition_epoch=2))
    assert replicas.appended(5) == 0
    assert replicas.fetched(B, 5, 1.0) == 0, "b is not in sync, though it has all"
    assert replicas.learned(record(A, B, partition_epoch=3)) == 5
    assert leading(A, min_isr=1).appended(4) == 4


def test_who_leads_alone_begins_with_all_its_records_acknowledged() -> None:
    """Guards them from being hidden until the next one is appended."""
    assert leading(A, end=5, min_isr=1).high_watermark == 5
    assert leading(A, end=5, min_isr=2).high_watermark == 0
    assert leading(A, B, end=5, min_isr=1).high_watermark == 0


def test_the_proposed_are_waited_for_until_the_outcome_is_known() -> None:
    replicas = leading(A, B)
    replicas.appended(5)
    replicas.fetched(B, 5, 1.0)
    replicas.fetched(C, 5, 1.0)
    assert replicas.proposal(1.0) == [A, B, C]
    assert replicas.proposal(1.0) is None, "one at a time"
    replicas.appended(6)
    assert replicas.fetched(B, 6, 1.1) == 5, "c may be in sync by now"
    assert replicas.refused() == 6
    assert replicas.proposal(1.1) is None, "c lacks what is acknowledged"


def test_in_doubt_the_next_record_decides_and_the_same_is_proposed_to_get_one() -> None:
    replicas = leading(A, B)
    replicas.fetched(B, 0, 1.0)
    replicas.fetched(C, 0, 1.0)
    assert replicas.proposal(1.0) == [A, B, C]
    replicas.doubted()
    replicas.appended(1)
    assert replicas.fetched(B, 1, 1.1) == 0
    assert replicas.waited_for == {"a", "b", "c"}
    assert replicas.proposal(1.1) == [A, B, C], "the answer to the first may have been lost with it"
    assert replicas.refused() == 0, "that was the second: the first is in doubt still"
    assert replicas.in_doubt
    assert replicas.learned(record(A, B, partition_epoch=1)) == 0, "not newer"
    assert replicas.learned(record(A, B, partition_epoch=2)) == 1
    assert not replicas.in_doubt


def test_who_shrinks_the_replicas_waits_for_all_until_it_is_known() -> None:
    replicas = leading(A, B, C)
    replicas.appended(1)
    replicas.fetched(B, 1, LAG_S)
    assert replicas.proposal(LAG_S + 1) == [A, B]
    replicas.doubted()
    assert replicas.fetched(B, 1, LAG_S + 1) == 0
    assert replicas.learned(record(A, B, partition_epoch=2)) == 1


def test_it_adds_who_has_what_is_acknowledged_and_all_from_before_it_led() -> None:
    replicas = leading(A, B, end=10)
    replicas.fetched(C, 9, 1.0)
    replicas.fetched(B, 10, 1.0)
    assert replicas.high_watermark == 10
    assert replicas.proposal(1.0) is None
    replicas = leading(A, end=10)
    replicas.fetched(C, 9, 1.0)
    assert replicas.proposal(1.0) is None, "nothing is acknowledged, but c lacks a record of an earlier leader"
    replicas.fetched(C, 10, 1.0)
    assert replicas.proposal(1.0) == [A, C]


def test_it_proposes_the_life_that_fetches() -> None:
    later = Owner("b", 7)
    replicas = leading(A, B)
    replicas.fetched(B, 0, 1.0)
    replicas.fetched(later, 0, 2.0)
    with pytest.raises(NoReplicaError, match="a later life has fetched"):
        replicas.fetched(B, 0, 2.1)
    assert replicas.proposal(2.1) == [A, later]
    replicas.refused(ineligible=True)
    assert replicas.proposal(2.2) == [A, later], "b is in sync by the record in some life"
    replicas = leading(A)
    replicas.fetched(B, 0, 1.0)
    assert replicas.proposal(1.0) == [A, B]
    replicas.refused(ineligible=True)
    assert replicas.proposal(1.1) is None, "forgotten until it fetches again"
    replicas.fetched(B, 0, 1.2)
    assert replicas.proposal(1.2) == [A, B]


def test_who_lags_leaves_and_who_is_always_one_fetch_behind_stays() -> None:
    replicas = leading(A, B, C)
    end, now_s = 0, 0.0
    while now_s < 3 * LAG_S:
        now_s += 0.5
        replicas.fetched(B, end, now_s)
        end = replicas.end + 1
        replicas.appended(end)
        if now_s < LAG_S:
            assert replicas.proposal(now_s) is None
    assert replicas.proposal(now_s) == [A, B], "c has never fetched"
    replicas.refused()
    assert replicas.proposal(now_s + LAG_S) == [A]


def test_strangers_and_misuse_are_refused() -> None:
    replicas = leading(A, B)
    for stranger in (Owner("d", 1), A):
        with pytest.raises(NoReplicaError):
            replicas.fetched(stranger, 0, 0.0)
    replicas.appended(2)
    with pytest.raises(InvalidRequestError, match="only grows"):
        replicas.appended(1)
    with pytest.raises(InvalidRequestError, match="does not lead"):
        InSyncReplicas(record(B), B, 0, 0.0)


@pytest.mark.parametrize("seed", range(200))
def test_whoever_is_in_sync_has_every_acknowledged_record(seed: int) -> None:
    """Lost and late answers, late news, lives that are over: metad decides by ``partition_epoch`` alone."""
    rng = random.Random(seed)
    now = record(A, B, C)
    replicas = InSyncReplicas(now, A, 0, 0.0)
    lives, has = {"b": B, "c": C}, {"a": 0, "b": 0, "c": 0}
    history, on_way = [now], list[tuple[int, list[Owner]]]()
    at_s = 0.0

    def decide(isr: list[Owner]) -> None:
        nonlocal now
        now = msgspec.structs.replace(now, partition_epoch=now.partition_epoch + 1, isr=isr)
        history.append(now)

    for _ in range(300):
        at_s += rng.uniform(0.0, 2.0)
        name = rng.choice(["b", "c"])
        match rng.randrange(8):
            case 0:
                has["a"] += rng.randint(1, 3)
                replicas.appended(has["a"])
            case 1 | 2 | 3:
                has[name] = rng.randint(has[name], has["a"])
                replicas.fetched(lives[name], has[name], at_s)
            case 4:  # a life is over, all of whose records the next one has
                lives[name] = Owner(name, lives[name].broker_epoch + 10)
                decide([member for member in now.isr if member.broker != name])
            case 5:
                wanted = replicas.proposal(at_s)
                if wanted is not None:
                    on_way.append((replicas.record.partition_epoch, wanted))
                    if rng.random() < 0.5:
                        replicas.doubted()  # the answer is late, or never comes
            case 6 if on_way:  # it arrives, in whatever order
                epoch, wanted = on_way.pop(rng.randrange(len(on_way)))
                if epoch == now.partition_epoch and {*wanted} <= {A, *lives.values()}:
                    decide(wanted)
            case 7:
                replicas.learned(rng.choice(history[-2:]))
        for member in now.isr:
            assert has[member.broker] >= replicas.high_watermark, (seed, member)
