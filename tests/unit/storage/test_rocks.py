"""The options with which RocksDB works are those of :mod:`metad.storage.rocks`, also in a store that exists."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import rocksdict as r

from metad.config import StorageConfig
from metad.storage.rocks import RocksEngine, Shared, log_options, state_options

MIB = 1024 * 1024


@pytest.mark.parametrize("make_options", [state_options, log_options])
def test_a_store_that_exists_is_opened_with_the_options_of_today(
    make_options: Callable[[Shared], r.Options], tmp_path: Path
) -> None:
    first = opened_with(make_options, tmp_path, cache_mib=24)
    again = opened_with(make_options, tmp_path, cache_mib=24)
    larger = opened_with(make_options, tmp_path, cache_mib=40)

    assert (first[0], again[0], larger[0]) == (24 * MIB, 24 * MIB, 40 * MIB)  # the shared block cache
    assert first[1] == again[1] == larger[1]
    assert "filter_policy=bloomfilter" in first[1]


def test_a_flush_of_the_log_leaves_room_in_memory(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path, log_options(Shared(StorageConfig())), wal=True)
    memory_bytes = "rocksdb.cur-size-all-mem-tables"
    empty = engine._db.property_int_value(memory_bytes)
    engine.write({b"%d" % number: bytes(100_000) for number in range(100)})
    assert engine._db.property_int_value(memory_bytes) > 100 * 100_000
    engine.flush()
    assert engine._db.property_int_value(memory_bytes) <= empty
    assert engine.get(b"0") == bytes(100_000)
    engine.close()


def test_filters_are_written_in_parts_once_the_cache_has_no_room_for_them(tmp_path: Path) -> None:
    shared = Shared(StorageConfig(block_cache_bytes=MIB))
    engine = RocksEngine(tmp_path, state_options(shared), wal=False)

    def filled(begin: int, count: int) -> list[str]:
        """The table options that RocksDB has written down, after so many more keys."""
        for at in range(begin, begin + count, 10_000):
            engine.write({b"%09d" % number: b"v" for number in range(at, at + 10_000)})
        engine.flush()
        engine.heed_room(1, 1)
        newest = max(tmp_path.glob("OPTIONS-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        return sorted(line.strip() for line in newest.read_text().splitlines())

    few = filled(0, 500_000)
    many = filled(500_000, 200_000)
    assert [line for line in few if line not in many] == ["partition_filters=false"]
    assert [line for line in many if line not in few] == ["partition_filters=true"]
    assert engine._db.property_int_value("rocksdb.block-cache-capacity") == MIB, "the cache is still the shared one"
    filled(700_000, 200_000)
    engine.compact(b"", b"~")
    keys = [b"%09d" % number for number in range(0, 1_000_000, 997)]
    assert engine.get_many(keys) == [b"v" if int(key) < 900_000 else None for key in keys]
    engine.close()


def test_threads_of_rocksdb_come_after_the_loop(tmp_path: Path) -> None:
    for name in ("one", "another"):  # its threads serve all stores, and are not made nicer with each
        RocksEngine(tmp_path / name, log_options(Shared(StorageConfig())), wal=True).close()
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    names = {task: (task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
    nicer = {
        name: os.getpriority(os.PRIO_PROCESS, int(task.name)) - own
        for task, name in names.items()
        if name.startswith("rocksdb:")
    }
    assert nicer == {"rocksdb:high": min(10, 19 - own), "rocksdb:low": min(10, 19 - own)}


def opened_with(
    make_options: Callable[[Shared], r.Options], directory: Path, *, cache_mib: int
) -> tuple[int, list[str]]:
    """The capacity of the block cache, and the options that RocksDB has written down, of a store opened like this."""
    shared = Shared(StorageConfig(block_cache_bytes=cache_mib * MIB))
    engine = RocksEngine(directory, make_options(shared), wal=True)
    engine.write({b"key": b"value"})
    capacity = engine._db.property_int_value("rocksdb.block-cache-capacity")
    engine.close()
    newest = max(directory.glob("OPTIONS-*"))
    return capacity, [line.strip() for line in newest.read_text().splitlines() if "=" in line]


@pytest.mark.parametrize("budget_mib", [16, 32, 100, StorageConfig().memtable_bytes // MIB, 1_000])
def test_what_log_and_state_may_fill_before_a_flush_is_the_budget(budget_mib: int, tmp_path: Path) -> None:
    """Guards the memory of a small node: memtables of the state that wait for each other are not flushed when the
    budget is used up, and 176 MiB of them waited whatever it was."""
    bounds = []
    for number, make_options in enumerate((state_options, log_options)):
        shared = Shared(StorageConfig(memtable_bytes=budget_mib * MIB))
        engine = RocksEngine(tmp_path / str(number), make_options(shared), wal=True)
        engine.close()
        lines = max((tmp_path / str(number)).glob("OPTIONS-*")).read_text().splitlines()
        said = dict(line.strip().split("=", 1) for line in lines if "=" in line)
        bounds.append(int(said["write_buffer_size"]) * int(said["min_write_buffer_number_to_merge"]))
    assert min(bounds) > 0
    assert sum(bounds) <= 1.15 * budget_mib * MIB
