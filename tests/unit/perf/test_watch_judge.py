"""The judge of the watch run: it must see every missed, repeated, misplaced and invented event, and accuse no other."""

from __future__ import annotations

import pytest

from metad_perf.watch.judge import Judge, Verdict
from metad_perf.watch.track import Outcome, Stamp, Track, stamp_of, stamped

SLOT = 7


class Scene:
    """One row, its writer and one watch of it. Versions are those of the log: they grow with every delivery."""

    def __init__(self) -> None:
        self.verdict = Verdict()
        self.track = Track("key", 3, SLOT)
        self.judge = Judge("watch", [self.track], self.verdict)
        self.version = 100

    def put(self, outcome: Outcome = Outcome.ACKNOWLEDGED, *, deletes: bool = False) -> int:
        """A write that ended in some way."""
        index = self.track.write(0, deletes=deletes)
        self.track.settle(index, outcome, 1)
        return index

    def delete(self, outcome: Outcome = Outcome.ACKNOWLEDGED) -> int:
        return self.put(outcome, deletes=True)

    def get(self, *indexes: int) -> None:
        """The watch delivers puts."""
        for index in indexes:
            self.version += 1
            self.judge.delivered(self.track, index, self.version)

    def get_deletion(self, version: int | None = None) -> int | None:
        self.version += 1
        return self.judge.deleted(self.track, self.version if version is None else version)

    def snapshot(self, index: int | None) -> None:
        self.judge.gap()
        self.judge.snapshot(frozenset([SLOT]), {} if index is None else {self.track: index})

    def found(self) -> dict[str, int]:
        """The faults, once the watch is over."""
        self.judge.close()
        kinds = ("missed", "repeated", "out_of_order", "phantom", "wrong", "split")
        counts = {kind: getattr(self.verdict, kind) for kind in kinds}
        assert len(self.verdict.examples) == sum(counts.values()) == self.verdict.faults
        return {kind: count for kind, count in counts.items() if count}


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_all_in_order_is_well(scene: Scene) -> None:
    scene.get(scene.put(), scene.put())
    gone = scene.delete()
    assert scene.get_deletion() == gone
    scene.get(scene.put())
    assert scene.judge.complete()
    assert scene.found() == {}
    assert scene.verdict.delivered == 4


def test_an_event_may_come_before_its_acknowledgement(scene: Scene) -> None:
    index = scene.track.write(0)
    scene.get(index)
    scene.track.settle(index, Outcome.ACKNOWLEDGED, 1)
    assert scene.found() == {}


def test_a_missed_event_in_the_middle(scene: Scene) -> None:
    first, _, last = scene.put(), scene.put(), scene.put()
    scene.get(first, last)
    assert scene.judge.complete()  # nothing more will come
    assert scene.found() == {"missed": 1}


def test_a_missed_event_at_the_end(scene: Scene) -> None:
    scene.get(scene.put())
    scene.put()
    assert not scene.judge.complete()
    assert scene.found() == {"missed": 1}


def test_a_missed_deletion(scene: Scene) -> None:
    scene.get(scene.put())
    scene.delete()
    scene.get(scene.put())
    assert scene.found() == {"missed": 1}


def test_a_missed_creation_between_deletions(scene: Scene) -> None:
    scene.get(scene.put())
    first = scene.delete()
    assert scene.get_deletion() == first
    scene.put()
    second = scene.delete()
    assert scene.get_deletion() == second
    assert scene.found() == {"missed": 1}


def test_a_repeated_event(scene: Scene) -> None:
    first, second = scene.put(), scene.put()
    scene.get(first, second, second)
    assert scene.found() == {"repeated": 1}


def test_a_repeated_event_of_long_ago(scene: Scene) -> None:
    first, second = scene.put(), scene.put()
    scene.get(first, second, first)
    assert scene.found() == {"repeated": 1}


def test_a_repeated_deletion(scene: Scene) -> None:
    scene.get(scene.put())
    scene.delete()
    scene.get_deletion()
    scene.get_deletion(scene.version)
    assert scene.found() == {"repeated": 1}


def test_events_out_of_order(scene: Scene) -> None:
    first, second, third = scene.put(), scene.put(), scene.put()
    scene.get(first, third, second)
    assert scene.found() == {"out_of_order": 1}


def test_a_version_that_goes_back_is_out_of_order(scene: Scene) -> None:
    scene.get(scene.put())
    scene.version -= 10
    scene.get(scene.put())
    assert scene.found() == {"out_of_order": 1}


def test_what_nobody_wrote_is_a_phantom(scene: Scene) -> None:
    scene.get(scene.put())
    scene.get(1)
    assert scene.found() == {"phantom": 1}


def test_a_deletion_that_nobody_made_is_a_phantom(scene: Scene) -> None:
    scene.get(scene.put())
    assert scene.get_deletion() is None
    assert scene.found() == {"phantom": 1}


def test_a_refused_write_that_comes_is_a_phantom(scene: Scene) -> None:
    scene.get(scene.put(), scene.put(Outcome.REFUSED))
    assert scene.found() == {"phantom": 1}


def test_a_row_that_is_not_watched_is_a_phantom(scene: Scene) -> None:
    other = Track("other", 4, SLOT)
    other.settle(other.write(0), Outcome.ACKNOWLEDGED, 1)
    scene.judge.delivered(other, 0, 1)
    assert scene.found() == {"phantom": 1}


def test_an_unknown_write_may_come_or_not(scene: Scene) -> None:
    scene.get(scene.put())
    scene.get(scene.put(Outcome.UNKNOWN))
    scene.put(Outcome.UNKNOWN)
    scene.get(scene.put())
    assert scene.found() == {}


def test_an_unknown_write_may_come_late_but_once(scene: Scene) -> None:
    scene.get(scene.put())
    late = scene.put(Outcome.UNKNOWN)
    scene.get(scene.put())
    scene.get(late)
    scene.get(late)
    assert scene.found() == {"repeated": 1}


def test_an_unknown_deletion_may_come_late(scene: Scene) -> None:
    scene.get(scene.put())
    late = scene.delete(Outcome.UNKNOWN)
    scene.get(scene.put())
    scene.put()
    scene.delete()
    assert scene.get_deletion() == late
    assert scene.found() == {"missed": 2}


def test_a_watch_that_begins_now_has_no_past(scene: Scene) -> None:
    scene.put()
    scene.judge.begin()
    scene.get(scene.put())
    assert scene.found() == {}


# --- gaps ----------------------------------------------------------------------------------------------------


def test_a_gap_excuses_what_its_snapshot_stands_for(scene: Scene) -> None:
    scene.get(scene.put())
    scene.put(), scene.delete()
    scene.snapshot(scene.put())
    scene.get(scene.put())
    assert scene.judge.complete()
    assert scene.found() == {}
    assert (scene.verdict.gaps, scene.verdict.excused) == (1, 2)


def test_what_follows_a_snapshot_must_come(scene: Scene) -> None:
    scene.get(scene.put())
    scene.put()
    scene.snapshot(scene.put())
    scene.put()
    scene.get(scene.put())
    assert scene.found() == {"missed": 1}


def test_a_gap_that_lost_state(scene: Scene) -> None:
    """The snapshot is older than what was delivered."""
    first, second = scene.put(), scene.put()
    scene.get(first, second)
    scene.snapshot(first)
    assert scene.found() == {"missed": 1}


def test_a_gap_that_lost_a_record(scene: Scene) -> None:
    scene.get(scene.put())
    scene.snapshot(None)
    assert scene.found() == {"missed": 1}


def test_a_gap_without_a_snapshot_excuses_nothing(scene: Scene) -> None:
    scene.get(scene.put())
    scene.judge.gap()
    scene.put()
    assert scene.found() == {"missed": 1}


def test_a_snapshot_of_other_slots_excuses_nothing(scene: Scene) -> None:
    scene.get(scene.put())
    scene.put()
    scene.judge.snapshot(frozenset([SLOT + 1]), {})
    assert scene.found() == {"missed": 1}


def test_a_snapshot_without_the_row_stands_for_its_deletion(scene: Scene) -> None:
    scene.get(scene.put())
    scene.put(), scene.delete()
    scene.snapshot(None)
    assert scene.judge.complete()
    assert scene.found() == {}


def test_behind_a_deletion_in_a_gap_everything_must_come(scene: Scene) -> None:
    scene.get(scene.put())
    scene.delete()
    scene.put()  # created again and deleted again, all within the gap
    scene.delete()
    scene.snapshot(None)
    scene.put()
    scene.get(scene.put())
    assert scene.found() == {"missed": 1}


def test_a_row_that_was_created_behind_the_snapshot_must_come(scene: Scene) -> None:
    scene.snapshot(None)
    scene.put()
    assert not scene.judge.complete()
    assert scene.found() == {"missed": 1}


def test_an_event_from_before_the_snapshot_is_out_of_order(scene: Scene) -> None:
    scene.get(scene.put())
    hidden = scene.put()
    scene.snapshot(scene.put())
    scene.get(hidden)
    assert scene.found() == {"out_of_order": 1}


def test_a_snapshot_with_what_nobody_wrote(scene: Scene) -> None:
    scene.put()
    scene.snapshot(5)
    assert scene.found() == {"phantom": 1, "missed": 1}


# --- tracks --------------------------------------------------------------------------------------------------


def test_versions_count_the_writes_since_the_creation(scene: Scene) -> None:
    scene.put(), scene.put(Outcome.REFUSED), scene.put(), scene.delete(), scene.put()
    assert list(scene.track.versions) == [1, 2, 2, 0, 1]
    scene.put(Outcome.UNKNOWN)
    scene.put()
    assert list(scene.track.versions[5:]) == [2, -1]
    assert scene.track.last_acknowledged() == 6


def test_a_stamp_is_of_one_run_and_of_nobody_elses_value() -> None:
    stamp = Stamp(3, 9, 2, 1)
    value = stamped(77, stamp, 100)
    assert len(value) == 100
    assert stamp_of(77, value) == stamp
    assert stamp_of(78, value) is None
    assert stamp_of(77, value[:-1] + b"x") is None
    assert stamp_of(77, b"short") is None


def test_verdicts_add_up() -> None:
    total, one = Verdict(missed=1), Verdict(missed=2, gaps=3)
    one.fault("phantom", "x")
    total.add(one)
    assert (total.missed, total.gaps, total.phantom, total.examples) == (3, 3, 1, ["phantom: x"])
