"""The judge of the crash run: it must see every lost and every repeated write, and accuse nobody else."""

from __future__ import annotations

import pytest

from metad_judge.acknowledged import Counted, Stated, Verdict


@pytest.fixture
def verdict() -> Verdict:
    return Verdict()


@pytest.fixture
def counted(verdict: Verdict) -> Counted:
    return Counted("key", verdict)


@pytest.fixture
def stated(verdict: Verdict) -> Stated[int]:
    return Stated("session", verdict)


def _faults(verdict: Verdict) -> tuple[int, int]:
    assert len(verdict.examples) == (verdict.lost > 0) + (verdict.duplicated > 0)
    return verdict.lost, verdict.duplicated


# --- Counted -------------------------------------------------------------------------------------------------


def test_counted_is_content_with_what_it_should_find(counted: Counted, verdict: Verdict) -> None:
    counted.read(None, 0)
    counted.acknowledged(b"a", 1)
    counted.acknowledged(b"b", 2)
    counted.read(b"b", 2)
    counted.acknowledged(b"c", 3)
    counted.read(b"c", 3)
    assert verdict.acknowledged == 3
    assert _faults(verdict) == (0, 0)


def test_counted_sees_a_lost_write(counted: Counted, verdict: Verdict) -> None:
    counted.acknowledged(b"a", 1)
    counted.acknowledged(b"b", 2)
    counted.read(b"a", 1)
    assert _faults(verdict) == (1, 0)


def test_counted_sees_all_writes_lost(counted: Counted, verdict: Verdict) -> None:
    counted.acknowledged(b"a", 1)
    counted.acknowledged(b"b", 2)
    counted.read(None, 0)
    assert _faults(verdict) == (2, 0)


def test_counted_sees_a_write_applied_twice(counted: Counted, verdict: Verdict) -> None:
    counted.acknowledged(b"a", 1)
    counted.read(b"a", 2)
    assert _faults(verdict) == (0, 1)


def test_counted_sees_a_repeated_write_in_the_next_answer(counted: Counted, verdict: Verdict) -> None:
    counted.acknowledged(b"a", 1)
    counted.acknowledged(b"b", 3)
    assert _faults(verdict) == (0, 1)


def test_counted_sees_a_lost_write_behind_a_later_one(counted: Counted, verdict: Verdict) -> None:
    counted.acknowledged(b"a", 1)
    counted.acknowledged(b"b", 1)
    counted.read(b"b", 1)
    assert _faults(verdict) == (1, 0)


def test_counted_sees_a_write_replaced_by_an_older_one(counted: Counted, verdict: Verdict) -> None:
    """Lost and repeated cancel out in the version; the value tells."""
    counted.acknowledged(b"a", 1)
    counted.acknowledged(b"b", 2)
    counted.read(b"a", 2)
    assert _faults(verdict) == (1, 0)


@pytest.mark.parametrize(("value", "version"), [(b"a", 1), (b"b", 2)])
def test_an_unknown_write_is_there_once_or_not_at_all(
    counted: Counted, verdict: Verdict, value: bytes, version: int
) -> None:
    counted.acknowledged(b"a", 1)
    counted.unknown(b"b")
    counted.read(value, version)
    assert (verdict.acknowledged, verdict.unknown) == (1, 1)
    assert _faults(verdict) == (0, 0)


def test_an_unknown_write_is_never_there_twice(counted: Counted, verdict: Verdict) -> None:
    counted.acknowledged(b"a", 1)
    counted.unknown(b"b")
    counted.read(b"b", 3)
    assert _faults(verdict) == (0, 1)


def test_an_unknown_write_shows_in_the_next_answer_and_not_again(counted: Counted, verdict: Verdict) -> None:
    counted.unknown(b"a")
    counted.acknowledged(b"b", 2)
    assert _faults(verdict) == (0, 0)
    counted.read(b"b", 3)
    assert _faults(verdict) == (0, 1)


def test_an_unknown_write_may_come_after_a_later_acknowledged_one(counted: Counted, verdict: Verdict) -> None:
    counted.unknown(b"a")
    counted.acknowledged(b"b", 1)
    counted.read(b"a", 2)
    assert _faults(verdict) == (0, 0)


def test_a_reading_settles_what_was_unknown(counted: Counted, verdict: Verdict) -> None:
    counted.unknown(b"a")
    counted.read(None, 0)
    counted.read(b"a", 1)
    assert _faults(verdict) == (0, 1)


def test_a_conflict_after_an_unknown_write_is_right(counted: Counted, verdict: Verdict) -> None:
    counted.acknowledged(b"a", 1)
    counted.unknown(b"b")
    counted.conflict(2)
    counted.acknowledged(b"c", 3)
    counted.read(b"c", 3)
    assert _faults(verdict) == (0, 0)


def test_a_compare_and_set_that_was_applied_and_then_refused_is_a_repeated_write(
    counted: Counted, verdict: Verdict
) -> None:
    """What a retry looks like that the server did not recognise."""
    counted.acknowledged(b"a", 1)
    counted.conflict(2)
    assert _faults(verdict) == (0, 1)


def test_a_compare_and_set_refused_because_the_record_went_back(counted: Counted, verdict: Verdict) -> None:
    counted.acknowledged(b"a", 1)
    counted.conflict(0)
    assert _faults(verdict) == (1, 0)


def test_a_compare_and_set_refused_without_reason(counted: Counted, verdict: Verdict) -> None:
    counted.acknowledged(b"a", 1)
    counted.conflict(1)
    assert _faults(verdict) == (1, 0)


# --- Stated --------------------------------------------------------------------------------------------------


def _same(state: int | None) -> int | None:
    return state


def test_stated_is_content_with_what_it_should_find(stated: Stated[int], verdict: Verdict) -> None:
    stated.read(None)
    stated.replaced(None, 1, _same)
    stated.acknowledged(1)
    stated.read(1)
    stated.replaced(1, 2, _same)
    stated.acknowledged(2)
    stated.read(2)
    assert _faults(verdict) == (0, 0)


@pytest.mark.parametrize("found", [None, 1])
def test_stated_sees_a_lost_write(stated: Stated[int], verdict: Verdict, found: int | None) -> None:
    stated.acknowledged(1)
    stated.acknowledged(2)
    stated.read(found)
    assert _faults(verdict) == (1, 0)


def test_stated_sees_a_write_that_replaced_itself(stated: Stated[int], verdict: Verdict) -> None:
    """A takeover applied twice finds its own broker as the previous owner."""
    stated.acknowledged(1)
    stated.replaced(2, 2, _same)
    stated.acknowledged(2)
    assert _faults(verdict) == (0, 1)


def test_stated_sees_a_write_that_replaced_an_older_state(stated: Stated[int], verdict: Verdict) -> None:
    stated.acknowledged(1)
    stated.acknowledged(2)
    stated.replaced(1, 3, _same)
    assert _faults(verdict) == (1, 0)


@pytest.mark.parametrize("found", [1, 2, 3])
def test_unknown_states_may_or_may_not_be_there(stated: Stated[int], verdict: Verdict, found: int) -> None:
    stated.acknowledged(1)
    stated.unknown(2)
    stated.unknown(3)
    assert stated.unsettled
    stated.read(found)
    assert not stated.unsettled
    assert _faults(verdict) == (0, 0)


def test_a_refusal_is_right_where_an_unknown_write_came_between(stated: Stated[int], verdict: Verdict) -> None:
    stated.acknowledged(1)
    stated.unknown(2)
    stated.refused(3, 2)
    assert verdict.refused == 1
    assert _faults(verdict) == (0, 0)


def test_a_refusal_of_what_was_applied_is_a_repeated_write(stated: Stated[int], verdict: Verdict) -> None:
    stated.acknowledged(1)
    stated.refused(2, 2)
    assert _faults(verdict) == (0, 1)


@pytest.mark.parametrize("found", [None, 0, 1])
def test_any_other_refusal_is_a_lost_write(stated: Stated[int], verdict: Verdict, found: int | None) -> None:
    stated.acknowledged(0)
    stated.acknowledged(1)
    stated.refused(2, found)
    assert _faults(verdict) == (1, 0)


def test_only_the_first_faults_are_told_in_words(verdict: Verdict) -> None:
    for number in range(100):
        verdict.fault("lost", str(number))
    assert verdict.lost == 100
    assert len(verdict.examples) == 20
