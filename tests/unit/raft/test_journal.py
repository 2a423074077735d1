"""A replica's log across memory, disk and crashes: what it says it holds, and holds durably, is what it holds."""

from __future__ import annotations

import os
import random
from pathlib import Path

import msgspec
import pytest
from journal_rig import CACHE_BYTES, GROUP, THREE, Rig, contents, no_op

from metad.errors import DamagedStoreError, StorageError
from metad.raft.log.journal import CONFIGURATION, NO_OP, REGULAR, Metadata, record
from metad.raft.messages import Configuration
from metad.storage.log import DurableMark, log_entry, log_metadata

FOUR = Configuration(("a", "b", "c"), ("d",))


def configured(term: int, configuration: Configuration) -> bytes:
    return record(term, CONFIGURATION, msgspec.msgpack.encode(configuration))


def test_a_new_log_is_empty_and_has_the_initial_configuration() -> None:
    log = Rig().log
    assert (log.base_index, log.base_term, log.last_index, log.last_term, log.durable_index) == (0, 0, 0, 0, 0)
    assert (log.configuration, log.configuration_index) == (THREE, 0)
    assert (log.term, log.getVotedForNodeId(), log.hard_state_durable) == (0, None, True)
    assert log.term_at(0) == 0
    assert log.term_at(1) is None


def test_entries_are_durable_when_their_fsync_is_over_and_not_before() -> None:
    rig = Rig()
    rig.fill(3)
    assert rig.log.durable_index == 0
    rig.writer.flush()
    rig.fill(2)
    rig.writer.flush()
    rig.syncer.finish()
    assert (rig.log.last_index, rig.log.durable_index) == (5, 3)
    rig.syncer.finish()
    assert rig.log.durable_index == 5


def test_records_are_found_across_the_border_of_cache_and_disk() -> None:
    rig = Rig()
    records = rig.fill(60)
    rig.sync()
    records += rig.fill(1)  # trims what is on the disk now
    assert contents(rig.log) == records
    assert rig.log.records(1, 1) == records[:1]
    assert rig.log.records(61, 1) == records[60:]
    for begin in range(1, 62):
        found = rig.log.records(begin, 1 << 20)
        assert found
        assert found == records[begin - 1 : begin - 1 + len(found)]
        assert rig.log.records(begin, 1 << 20, begin + 1) == records[begin - 1 : begin]


def test_what_was_not_written_yet_is_never_trimmed() -> None:
    rig = Rig()
    records = rig.fill(100)
    assert contents(rig.log) == records
    assert sum(map(len, records)) > CACHE_BYTES


def test_bytes_bound_what_is_read_but_one_record_always_comes() -> None:
    rig = Rig(cache_bytes=1 << 20)
    records = rig.fill(4, size=100)
    assert rig.log.records(1, 1) == records[:1]
    assert rig.log.records(1, len(records[0]) + 1) == records[:2]


def test_term_at_knows_every_index_without_reading() -> None:
    rig = Rig()
    rig.fill(3, term=1)
    rig.fill(2, term=4)
    rig.fill(1, term=5)
    log = rig.log
    assert [log.term_at(index) for index in range(8)] == [0, 1, 1, 1, 4, 4, 5, None]
    rig.sync()
    log.compact(4)
    assert [log.term_at(index) for index in range(8)] == [None, None, None, None, 4, 4, 5, None]
    rig.sync()
    again = rig.reopened().log
    assert [again.term_at(index) for index in range(8)] == [None, None, None, None, 4, 4, 5, None]


@pytest.mark.parametrize(
    ("index", "term", "found"),
    [
        (6, 5, (6, 5)),
        (9, 9, (6, 5)),
        (6, 4, (5, 4)),
        (6, 3, (3, 1)),
        (4, 4, (4, 4)),
        (5, 2, (3, 1)),
        (2, 7, (2, 1)),
        (6, 0, (0, 0)),
        (0, 3, (0, 0)),
    ],
)
def test_where_logs_may_agree(index: int, term: int, found: tuple[int, int]) -> None:
    rig = Rig()
    rig.fill(3, term=1)
    rig.fill(2, term=4)
    rig.fill(1, term=5)
    assert rig.log.last_index_of_term_up_to(index, term) == found


def test_truncation_and_what_takes_its_place_are_one_write() -> None:
    rig = Rig()
    rig.fill(5, term=1)
    rig.sync()
    before = contents(rig.log)
    rig.log.truncate_from(3)
    assert rig.log.durable_index == 2
    rig.fill(4, term=2)
    rig.writer.flush()
    lost = rig.crashed()
    assert contents(lost.log) == before
    lost.log.truncate_from(3)
    lost.fill(4, term=2)
    lost.sync()
    after = contents(lost.log)
    kept = lost.crashed()
    assert contents(kept.log) == after
    assert [kept.log.term_at(index) for index in range(1, 7)] == [1, 1, 2, 2, 2, 2]


def test_an_fsync_of_what_was_truncated_makes_nothing_else_durable() -> None:
    rig = Rig()
    rig.fill(5, term=1)
    rig.writer.flush()
    rig.log.truncate_from(3)
    rig.fill(3, term=2)
    rig.syncer.finish()  # the write of the five
    assert rig.log.durable_index == 2
    rig.sync()
    assert rig.log.durable_index == 5


def test_truncation_of_what_was_never_written_leaves_no_trace() -> None:
    rig = Rig()
    rig.fill(2, term=1)
    rig.sync()
    rig.fill(5, term=2)
    rig.log.truncate_from(4)
    rig.sync()
    again = rig.reopened()
    assert again.log.last_index == 3
    assert contents(again.log) == contents(rig.log)


def test_configurations_follow_the_log() -> None:
    rig = Rig()
    rig.fill(2)
    rig.log.append([configured(1, FOUR)])
    rig.fill(1)
    assert (rig.log.configuration, rig.log.configuration_index) == (FOUR, 3)
    assert [rig.log.configuration_at(index) for index in range(5)] == [THREE, THREE, THREE, FOUR, FOUR]
    rig.sync()
    assert rig.reopened().log.configuration == FOUR
    rig.log.truncate_from(3)
    assert (rig.log.configuration, rig.log.configuration_index) == (THREE, 0)
    rig.sync()
    assert rig.reopened().log.configuration == THREE


def test_compaction_keeps_the_configuration_at_the_base() -> None:
    rig = Rig()
    rig.log.append([configured(1, FOUR)])
    rig.fill(3)
    rig.sync()
    rig.log.compact(3)
    rig.sync()
    log = rig.reopened().log
    assert (log.base_index, log.configuration, log.configuration_at(3)) == (3, FOUR, FOUR)
    log.truncate_from(4)
    assert log.configuration == FOUR


def test_compaction_to_the_end_and_appending_after_it() -> None:
    rig = Rig()
    rig.fill(4, term=2)
    rig.sync()
    rig.log.compact(9)
    assert (rig.log.base_index, rig.log.last_index, rig.log.last_term, len(rig.log)) == (4, 4, 2, 0)
    rig.sync()
    again = rig.reopened()
    assert (again.log.base_index, again.log.last_index, again.log.last_term) == (4, 4, 2)
    again.fill(1, term=2)
    assert again.log.term_at(5) == 2
    again.sync()
    assert contents(again.reopened().log) == contents(again.log)


def test_compaction_twice_or_backwards_changes_nothing() -> None:
    rig = Rig()
    rig.fill(5)
    rig.sync()
    rig.log.compact(3)
    rig.log.compact(2)
    rig.log.compact(3)
    assert rig.log.base_index == 3
    rig.sync()
    assert rig.reopened().log.base_index == 3


def test_a_crash_before_the_fsync_of_a_compaction_undoes_it_whole() -> None:
    rig = Rig()
    rig.fill(5)
    rig.sync()
    before = contents(rig.log)
    rig.log.compact(3)
    rig.writer.flush()
    log = rig.crashed().log
    assert log.base_index == 0
    assert contents(log) == before


def test_a_compaction_of_what_is_not_written_yet() -> None:
    # A snapshot may end at an entry that came in the same turn.
    rig = Rig()
    rig.fill(5)
    rig.log.restart(3, 1, THREE)
    assert len(contents(rig.log)) == 2
    rig.sync()
    log = rig.reopened().log
    assert (log.base_index, log.last_index) == (3, 5)


def test_a_snapshot_keeps_what_follows_it_where_the_logs_agree() -> None:
    rig = Rig()
    records = rig.fill(5, term=1)
    rig.sync()
    rig.log.restart(3, 1, THREE)
    assert contents(rig.log) == records[3:]
    rig.sync()
    assert contents(rig.crashed().log) == records[3:]


@pytest.mark.parametrize("length", [2, 5, 9])
def test_a_snapshot_replaces_a_log_that_disagrees(length: int) -> None:
    rig = Rig()
    rig.fill(length, term=1)
    rig.sync()
    rig.fill(1, term=1)  # staged only: must not survive behind the snapshot
    rig.log.restart(5, 2, FOUR)
    log = rig.log
    assert (log.base_index, log.base_term, log.last_index, log.last_term) == (5, 2, 5, 2)
    assert (log.configuration, log.configuration_index) == (FOUR, 5)
    assert log.durable_index < 5
    rig.writer.flush()
    rig.sync()
    assert log.durable_index == 5
    again = rig.crashed()
    assert (again.log.base_index, again.log.last_index, again.log.configuration) == (5, 5, FOUR)
    again.fill(1, term=2)
    again.sync()
    assert again.reopened().log.last_index == 6


def test_a_crash_before_the_fsync_of_a_snapshot_leaves_the_old_log() -> None:
    rig = Rig()
    records = rig.fill(4, term=1)
    rig.sync()
    rig.log.restart(9, 2, FOUR)
    rig.writer.flush()
    log = rig.crashed().log
    assert (log.base_index, log.configuration) == (0, THREE)
    assert contents(log) == records


def test_entries_behind_a_snapshot_are_durable_with_it_only() -> None:
    rig = Rig()
    rig.fill(4, term=1)
    rig.writer.flush()
    rig.log.restart(9, 2, FOUR)
    rig.fill(1, term=2)
    rig.syncer.finish()  # the write of the four
    assert rig.log.durable_index == 0
    rig.sync()
    assert rig.log.durable_index == 10


def test_term_and_vote_are_durable_with_their_fsync() -> None:
    rig = Rig()
    rig.log.setCurrentTerm(3, "b")
    assert not rig.log.hard_state_durable
    assert (rig.log.getCurrentTerm(), rig.log.getVotedForNodeId()) == (3, "b")
    rig.writer.flush()
    assert not rig.log.hard_state_durable
    lost = Rig()
    assert lost.crashed().log.term == 0
    rig.syncer.finish()
    assert rig.log.hard_state_durable
    rig.store.sync()
    again = rig.crashed().log
    assert (again.term, again.getVotedForNodeId()) == (3, "b")


def test_term_vote_and_entries_of_a_turn_are_one_write() -> None:
    rig = Rig()
    rig.log.setCurrentTerm(2, None)
    rig.log.append([no_op(2)])
    rig.writer.flush()
    log = rig.crashed().log
    assert (log.term, log.last_index) == (0, 0)


def test_as_pysyncobj_sees_it() -> None:
    rig = Rig()
    log = rig.log
    assert log[-1] == (bytes((NO_OP,)), 0, 0)
    log.add(bytes((REGULAR,)) + b"x", 1, 1)
    log.add(bytes((REGULAR,)) + b"y", 2, 1)
    log.add(bytes((REGULAR,)) + b"z", 3, 2)
    assert len(log) == 3
    assert log[0] == (b"\0x", 1, 1)
    assert log[-1] == (b"\0z", 3, 2)
    assert log[1:] == [(b"\0y", 2, 1), (b"\0z", 3, 2)]
    rig.sync()
    log.deleteEntriesTo(1)
    assert log[0] == (b"\0y", 2, 1)
    log.deleteEntriesFrom(1)
    assert log[-1] == (b"\0y", 2, 1)
    with pytest.raises(AssertionError):
        log.add(bytes((REGULAR,)) + b"gap", 9, 2)
    with pytest.raises(AssertionError):
        log.clear()
    log.setRaftCommitIndex(2)
    assert log.getRaftCommitIndex() == log.base_index == 1


@pytest.mark.parametrize(
    "damaged",
    [b"", b"\xc1", b"metadata", msgspec.msgpack.encode([1, "term"]), msgspec.msgpack.encode({"term": 1})],
    ids=["empty", "no msgpack", "a text", "a wrong field", "a map"],
)
def test_damaged_metadata_is_refused(damaged: bytes) -> None:
    rig = Rig()
    rig.fill(1)
    rig.sync()
    rig.engine.write({log_metadata(GROUP): damaged})
    with pytest.raises(DamagedStoreError, match="metadata of group data-0"):
        rig.reopened()


def test_metadata_of_a_newer_format_is_refused() -> None:
    rig = Rig()
    rig.engine.write({log_metadata(GROUP): msgspec.msgpack.encode(Metadata(format=2))})
    with pytest.raises(StorageError, match="format 2, this version reads 1: start a newer"):
        rig.reopened()


def test_lost_metadata_is_refused_where_entries_were_compacted() -> None:
    rig = Rig()
    rig.fill(5)
    rig.sync()
    rig.log.compact(3)
    rig.sync()
    rig.engine.write({log_metadata(GROUP): None})
    with pytest.raises(DamagedStoreError, match="data-0"):
        rig.reopened()


def test_lost_metadata_is_refused_where_entries_are() -> None:
    rig = Rig()
    rig.fill(5)
    rig.sync()
    rig.engine.write({log_metadata(GROUP): None})
    with pytest.raises(DamagedStoreError, match="data-0"):
        rig.reopened()


def test_a_lost_beginning_is_refused() -> None:
    rig = Rig()
    rig.fill(5)
    rig.sync()
    rig.engine.write({log_entry(GROUP, 1): None})
    with pytest.raises(DamagedStoreError, match="data-0"):
        rig.reopened()


def test_a_log_that_ends_before_its_last_term_began_is_refused() -> None:
    rig = Rig()
    rig.fill(3, term=1)
    rig.fill(3, term=2)
    rig.sync()
    rig.engine.write({log_entry(GROUP, index): None for index in (4, 5, 6)})
    with pytest.raises(DamagedStoreError, match="data-0"):
        rig.reopened()


def test_the_durable_mark_is_never_ahead_of_a_log_that_a_snapshot_moves(tmp_path: Path) -> None:
    mark = DurableMark(tmp_path / "mark")
    rig = Rig(mark=mark)
    rig.fill(2, term=1)
    rig.sync()
    rig.log.restart(9, 2, FOUR)  # staged, not written
    rig.store.sync()  # another group's
    mark.close()
    rig.engine.crash()
    again = Rig(rig.engine, mark=DurableMark(tmp_path / "mark"))
    assert again.log.last_index == 2
    again.store.close()


def test_a_mark_that_the_power_brings_back_is_not_ahead_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by simulation: the mark was lowered in the page cache only, the log was cut on the disk."""
    path = tmp_path / "mark"
    synced: list[bytes] = []
    monkeypatch.setattr("os.fdatasync", lambda _: synced.append(path.read_bytes()))
    rig = Rig(mark=DurableMark(path))
    rig.fill(5, term=1)
    rig.sync()
    assert not synced, "it costs no sync where the log grows"
    rig.log.truncate_from(3)
    rig.fill(1, term=2)
    rig.sync()
    rig.store.close()
    (brought_back,) = synced
    path.write_bytes(brought_back)
    again = Rig(rig.engine, mark=DurableMark(path))
    assert again.log.last_index == 3
    again.store.close()


# --- everything, in any order ----------------------------------------------------------------------------


class Model:
    """What the log should be, the slow way."""

    def __init__(self) -> None:
        self.base = (0, 0, THREE)
        self.records: list[bytes] = []
        self.hard: tuple[int, str | None] = (0, None)

    def copy(self) -> Model:
        other = Model()
        other.base, other.records, other.hard = self.base, list(self.records), self.hard
        return other

    @property
    def last(self) -> int:
        return self.base[0] + len(self.records)

    def term_at(self, index: int) -> int | None:
        if index == self.base[0]:
            return self.base[1]
        if not self.base[0] < index <= self.last:
            return None
        return int.from_bytes(self.records[index - self.base[0] - 1][:8], "big")

    def configuration_at(self, index: int) -> Configuration:
        found = self.base[2]
        for data in self.records[: index - self.base[0]]:
            if data[8] == CONFIGURATION:
                found = msgspec.msgpack.decode(data[9:], type=Configuration)
        return found

    def compact(self, through: int) -> None:
        self.base, self.records = (
            (through, self.term_at(through) or 0, self.configuration_at(through)),
            self.records[through - self.base[0] :],
        )


class Check:
    """A log and its model, driven by one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = Rig(cache_bytes=self.rng.choice([0, 60, 300, 1 << 20]))
        self.model = Model()
        self.durable = self.model.copy()  # what a power loss leaves
        self.unsynced: list[Model] = []  # after each write
        self.covered = 0  # how many of those the running fsync covers
        self.term = 1
        self.counter = 0

    def append(self) -> None:
        records = []
        for _ in range(self.rng.randint(1, 5)):
            if self.rng.random() < 0.1:
                self.term += 1
            self.counter += 1
            if self.rng.random() < 0.1:
                member = f"n{self.counter}"
                records.append(configured(self.term, Configuration(("a", member))))
            else:
                records.append(record(self.term, REGULAR, b"%d" % self.counter + b"." * self.rng.randint(0, 60)))
        self.rig.log.append(records)
        self.model.records += records

    def truncate(self) -> None:
        if self.model.records:
            keep = self.rng.randrange(len(self.model.records))
            self.rig.log.truncate_from(self.model.base[0] + keep + 1)
            del self.model.records[keep:]
            self.term += 1
            self.append()

    def compact(self) -> None:
        # Only what is applied is compacted, and only what is durable is applied.
        high = min(self.rig.log.durable_index, self.model.last)
        if high > self.model.base[0]:
            through = self.rng.randint(self.model.base[0] + 1, high)
            self.rig.log.compact(through)
            self.model.compact(through)

    def snapshot(self) -> None:
        index = self.model.base[0] + self.rng.randint(1, 12)
        agrees = index <= self.model.last and self.rng.random() < 0.5
        if agrees:
            term = self.model.term_at(index)
            assert term is not None
            self.rig.log.restart(index, term, self.model.configuration_at(index))
            self.model.compact(index)
            return
        self.term += 1
        configuration = Configuration(("a", f"s{self.counter}"))
        self.rig.log.restart(index, self.term, configuration)
        self.model.base, self.model.records = (index, self.term, configuration), []

    def vote(self) -> None:
        self.term += 1
        self.model.hard = (self.term, self.rng.choice([None, "a", "b"]))
        self.rig.log.save(*self.model.hard)

    def flush(self) -> None:
        number, idle = self.rig.writer.number, self.rig.syncer.done is None
        self.rig.writer.flush()
        if self.rig.writer.number != number:
            self.unsynced.append(self.model.copy())
            if idle:
                self.covered = len(self.unsynced)

    def sync(self) -> None:
        if self.rig.syncer.done is None:
            return
        # The engine makes all or nothing durable, so what was written since waits: like a disk that took its time.
        self.durable = self.unsynced[self.covered - 1]
        del self.unsynced[: self.covered]
        if not self.unsynced:
            self.rig.store.sync()
        else:
            self.durable_only_in_name = True
        self.covered = len(self.unsynced)
        self.rig.syncer.finish()
        if not self.unsynced:
            self.durable_only_in_name = False

    durable_only_in_name = False

    def crash(self) -> None:
        if self.durable_only_in_name:
            return
        self.rig = self.rig.crashed()
        self.model = self.durable.copy()
        self.unsynced, self.covered = [], 0
        self.compare()

    def restart(self) -> None:
        """The process dies, the machine does not: what was written is there, what was staged is not."""
        written = self.unsynced[-1] if self.unsynced else self.durable
        self.rig.store.sync()  # opening a store makes what it finds durable
        self.rig = self.rig.reopened()
        self.model, self.durable = written.copy(), written.copy()
        self.unsynced, self.covered, self.durable_only_in_name = [], 0, False
        self.compare()

    def compare(self) -> None:
        log, model = self.rig.log, self.model
        assert (log.base_index, log.base_term) == model.base[:2]
        assert log.last_index == model.last
        assert log.last_term == model.term_at(model.last)
        assert (log.term, log.getVotedForNodeId()) == model.hard
        assert [log.term_at(i) for i in range(model.last + 3)] == [model.term_at(i) for i in range(model.last + 3)]
        for index in range(model.base[0], model.last + 1):
            assert log.configuration_at(index) == model.configuration_at(index)
        assert log.configuration == model.configuration_at(model.last)
        assert contents(log) == model.records
        # What it says is durable is.
        if log.hard_state_durable:
            assert self.durable.hard == model.hard
        for index in range(model.base[0], log.durable_index + 1):
            assert index <= self.durable.base[0] or self.durable.term_at(index) == model.term_at(index)

    def run(self, steps: int) -> None:
        does = [self.append] * 6 + [self.truncate, self.compact, self.snapshot, self.vote]
        does += [self.flush] * 4 + [self.sync] * 4 + [self.crash, self.restart]
        for _ in range(steps):
            self.rng.choice(does)()
            self.compare()
        self.flush()
        while self.rig.syncer.done is not None:
            self.sync()
        assert self.rig.log.durable_index == self.rig.log.last_index
        assert self.rig.log.hard_state_durable


SEED = int(os.environ.get("METAD_TEST_SEED", "1"))


@pytest.mark.parametrize("seed", range(SEED, SEED + 60))
def test_any_order_of_everything(seed: int) -> None:
    print(f"seed {seed}")
    Check(seed).run(120)


def test_a_removed_log_is_dropped_once_that_is_durable_and_not_what_was_before() -> None:
    """An fsync runs already when the replica is removed: it covers what was written before."""
    rig = Rig()
    rig.fill(3)
    rig.writer.flush()
    dropped: list[bool] = []
    rig.log.remove(7, "b", lambda: dropped.append(True))
    rig.writer.flush()
    rig.store.sync()
    rig.syncer.finish()
    assert dropped == []
    rig.store.sync()
    rig.syncer.finish()
    assert dropped == [True]
    found = rig.crashed().log
    assert (found.removed, found.getCurrentTerm(), found.getVotedForNodeId(), found.last_index) == (True, 7, "b", 0)


def test_a_log_knows_its_bytes_once_the_entries_of_an_earlier_life_are_dropped() -> None:
    """Guards a compaction that took such a log for empty, and filled the disk with what it kept."""
    rig = Rig()
    assert not rig.log.has_earlier
    rig.fill(5)
    rig.sync()
    assert not rig.log.has_earlier
    log = rig.reopened().log
    assert log.has_earlier
    log.compact(4)
    assert log.has_earlier
    log.compact(5)
    assert not log.has_earlier
