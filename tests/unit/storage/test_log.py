"""The log of every group: contiguous, read in bounded pieces, a gap or a lost tail refused, never bridged."""

from __future__ import annotations

from pathlib import Path

import pytest

from metad.errors import DamagedStoreError, StorageError
from metad.storage import keys
from metad.storage.log import DurableMark, LogStore, log_entry, log_metadata
from metad.storage.memory import MemoryEngine
from metad_wire.cluster import GroupId

A, B = keys.group_prefix(GroupId("data", 0)), keys.group_prefix(GroupId("offset", 7))


@pytest.fixture
def log() -> LogStore:
    return LogStore(MemoryEngine())


def put(log: LogStore, entries: list[tuple[bytes, int, bytes]]) -> None:
    """Write (group, index, entry) at the ends of their logs."""
    writes = {log_entry(group, index): entry for group, index, entry in entries}
    log.write(writes, [], {group: index for group, index, _ in entries})


def cut(log: LogStore, group: bytes, through: int, last: int) -> None:
    """Drop a log's beginning."""
    log.write({}, [(log_entry(group, 0), log_entry(group, through + 1))], {group: last})


def fill(log: LogStore, group: bytes, first: int, last: int, size: int = 3) -> None:
    put(log, [(group, index, b"%d" % index + b"x" * size) for index in range(first, last + 1)])


def read_all(log: LogStore, group: bytes, begin: int, end: int) -> list[int]:
    found: list[int] = []
    while begin < end:
        part = log.read(group, begin, end, "data-0")
        assert part
        found += [index for index, _ in part]
        begin = found[-1] + 1
    return found


def test_an_empty_log_begins_at_one(log: LogStore) -> None:
    assert log.open_group(A, "data-0") == (1, 0)


def test_groups_are_apart(log: LogStore) -> None:
    put(log, [(A, 1, b"a1"), (B, 1, b"b1"), (A, 2, b"a2")])
    assert log.open_group(A, "data-0") == (1, 2)
    assert log.open_group(B, "offset-7") == (1, 1)
    assert log.read(A, 1, 3, "data-0") == [(1, b"a1"), (2, b"a2")]
    assert log.read(B, 1, 2, "offset-7") == [(1, b"b1")]


def test_metadata_is_no_entry(log: LogStore) -> None:
    assert log.get_metadata(A) is None
    log.write({log_metadata(A): b"term 7"}, [], {})
    assert log.get_metadata(A) == b"term 7"
    assert log.open_group(A, "data-0") == (1, 0)


def test_long_ranges_are_read_in_pieces(log: LogStore) -> None:
    fill(log, A, 1, 1000)
    fill(log, B, 1, 10)
    assert len(log.read(A, 1, 1001, "data-0")) == 256
    assert read_all(log, A, 1, 1001) == list(range(1, 1001))
    assert log.read(A, 300, 303, "data-0")[0] == (300, b"300xxx")


def test_large_entries_are_read_few_at_a_time(log: LogStore) -> None:
    # 256 entries of the largest size would be 4 GiB at a restart.
    fill(log, A, 1, 20, size=1024 * 1024)
    assert len(log.read(A, 1, 21, "data-0")) == 4
    assert read_all(log, A, 1, 21) == list(range(1, 21))


@pytest.mark.parametrize("missing", [1, 2, 255, 256, 257, 400, 600])
def test_a_missing_entry_is_refused_wherever_it_is(log: LogStore, missing: int) -> None:
    fill(log, A, 1, 600)
    log.engine.write({log_entry(A, missing): None})
    with pytest.raises(DamagedStoreError, match=rf"data-0 lacks entry {missing} .*restore"):
        read_all(log, A, 1, 601)


def test_a_missing_entry_behind_a_short_read_is_refused(log: LogStore) -> None:
    fill(log, A, 1, 9, size=1024 * 1024)
    log.engine.write({log_entry(A, 5): None})
    assert [index for index, _ in log.read(A, 1, 10, "data-0")] == [1, 2, 3, 4]
    with pytest.raises(DamagedStoreError, match="lacks entry 5"):
        log.read(A, 5, 10, "data-0")


def test_a_log_that_was_cut_to_nothing_goes_on_behind_its_base(log: LogStore) -> None:
    fill(log, A, 1, 10)
    cut(log, A, 10, 10)
    assert log.open_group(A, "data-0", 10) == (11, 10)


def test_truncation_forgets_a_prefix_of_one_group(log: LogStore) -> None:
    fill(log, A, 1, 10)
    fill(log, B, 1, 10)
    cut(log, A, 7, 10)
    assert log.open_group(A, "data-0", 7) == (8, 10)
    assert log.open_group(B, "offset-7") == (1, 10)
    with pytest.raises(DamagedStoreError, match="lacks entry 7"):
        log.read(A, 7, 11, "data-0")


def test_what_is_not_synced_can_be_lost_and_what_is_cannot() -> None:
    engine = MemoryEngine()
    log = LogStore(engine)
    fill(log, A, 1, 3)
    log.sync()
    fill(log, A, 4, 5)
    engine.crash()
    assert LogStore(engine).open_group(A, "data-0") == (1, 3)


# --- the durable mark ------------------------------------------------------------------------------------


def marked(engine: MemoryEngine, path: Path) -> LogStore:
    return LogStore(engine, DurableMark(path / "durable"))


def test_a_log_that_ends_before_its_mark_is_refused(tmp_path: Path) -> None:
    engine = MemoryEngine()
    log = marked(engine, tmp_path)
    fill(log, A, 1, 3)
    fill(log, B, 1, 9)
    log.sync()
    log.close()
    engine.write({log_entry(A, 3): None})
    log = marked(engine, tmp_path)
    assert log.open_group(B, "offset-7") == (1, 9)
    with pytest.raises(DamagedStoreError, match=r"data-0 ends at entry 2, but entry 3 .*lost its tail.*restore"):
        log.open_group(A, "data-0")


def test_a_log_that_is_gone_altogether_is_refused(tmp_path: Path) -> None:
    log = marked(MemoryEngine(), tmp_path)
    fill(log, A, 1, 3)
    log.sync()
    with pytest.raises(DamagedStoreError, match="ends at entry 0, but entry 3"):
        marked(MemoryEngine(), tmp_path).open_group(A, "data-0")


def test_what_was_never_synced_is_not_marked(tmp_path: Path) -> None:
    engine = MemoryEngine()
    log = marked(engine, tmp_path)
    fill(log, A, 1, 3)
    log.sync()
    fill(log, A, 4, 6)
    engine.crash()
    assert marked(engine, tmp_path).open_group(A, "data-0") == (1, 3)


def test_a_mark_survives_truncation_and_many_lives(tmp_path: Path) -> None:
    engine = MemoryEngine()
    for life in range(3):
        log = marked(engine, tmp_path)
        first, last = log.open_group(A, "data-0", max(0, life * 2 - 1))
        assert (first, last) == (max(1, life * 2), life * 2)
        fill(log, A, last + 1, last + 2)
        cut(log, A, last + 1, last + 2)
        log.sync()
        log.close()


def shrink(log: LogStore, group: bytes, last: int, to: int) -> None:
    """Drop a log's end."""
    log.shorten(group, to)
    log.write({log_entry(group, index): None for index in range(to + 1, last + 1)}, [], {group: to})


def test_a_log_that_shrinks_is_not_missed_at_any_moment(tmp_path: Path) -> None:
    engine = MemoryEngine()
    log = marked(engine, tmp_path)
    fill(log, A, 1, 9)
    fill(log, B, 1, 9)
    log.sync()
    shrink(log, A, 9, 4)
    log.close()  # a kill: what was written is there, though it was never synced
    log = marked(engine, tmp_path)
    assert log.open_group(A, "data-0") == (1, 4)
    assert log.open_group(B, "offset-7") == (1, 9)
    fill(log, A, 5, 6)
    log.sync()
    log.close()
    engine.write({log_entry(A, 6): None})
    with pytest.raises(DamagedStoreError, match="ends at entry 5, but entry 6"):
        marked(engine, tmp_path).open_group(A, "data-0")


def test_a_sync_that_runs_while_a_log_shrinks_marks_nothing_that_goes(tmp_path: Path) -> None:
    class Meanwhile(MemoryEngine):
        def sync(self) -> None:
            super().sync()
            shrink(log, A, 9, 4)

    engine = Meanwhile()
    log = marked(engine, tmp_path)
    fill(log, A, 1, 9)
    log.sync()
    log.close()
    assert marked(engine, tmp_path).open_group(A, "data-0") == (1, 4)


def test_a_sync_that_begins_meanwhile_does_not_forget_for_another_that_a_log_shrinks(tmp_path: Path) -> None:
    """Guards the next start, which took a log that was dropped between two syncs for one that had lost its tail."""
    path, engine = tmp_path / "durable", MemoryEngine()
    log = LogStore(engine, DurableMark(path))
    fill(log, A, 1, 100)
    log.sync()
    steps = log.sync_steps()
    first = next(steps)
    log.shorten(A, 0)
    cut(log, A, 100, 0)
    log.sync()
    first()
    assert list(steps) == []
    assert LogStore(engine, DurableMark(path)).open_group(A, "data-0") == (1, 0)


@pytest.mark.parametrize("damage", [b"", b"metadmk1", b"garbage" * 9, None])
def test_a_torn_mark_is_ignored(tmp_path: Path, damage: bytes | None) -> None:
    # A power loss may tear it. It only adds to what the log itself proves.
    engine = MemoryEngine()
    log = marked(engine, tmp_path)
    fill(log, A, 1, 3)
    log.sync()
    log.close()
    path = tmp_path / "durable"
    path.write_bytes(path.read_bytes()[:-1] + b"\xee" if damage is None else damage)
    assert marked(engine, tmp_path).open_group(A, "data-0") == (1, 3)


def test_a_mark_that_cannot_be_opened_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot open"):
        DurableMark(tmp_path / "missing" / "durable")


def test_a_mark_is_not_advanced_by_a_sync_that_fails(tmp_path: Path) -> None:
    class Failing(MemoryEngine):
        def sync(self) -> None:
            raise StorageError("disk")

    log = marked(Failing(), tmp_path)
    fill(log, A, 1, 3)
    with pytest.raises(StorageError):
        log.sync()
    assert DurableMark(tmp_path / "durable").get(A) == 0
