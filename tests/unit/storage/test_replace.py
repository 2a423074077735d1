"""RocksEngine.replace and export where only RocksDB can go wrong: crashes at every step, a crowded level 0, two
threads, systems without hard links or files in memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import replace_crash
from replace_crash import BEGIN, END, ON_TOP, open_engine

from metad.errors import DamagedStoreError, StorageError
from metad.storage import ingest, rocks, sst
from metad.storage.ingest import IngestDirectory
from metad.storage.rocks import RocksEngine

Pairs = list[tuple[bytes, bytes]]


def pairs_of(engine: RocksEngine, begin: bytes = b"", end: bytes = b"\xff") -> Pairs:
    return engine.scan(begin, end, 1_000_000)


def parts_of(engine: RocksEngine, begin: bytes = BEGIN, end: bytes = END, part_bytes: int = 20_000) -> list[bytes]:
    return [part for part in engine.export(begin, end, part_bytes) if part]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[RocksEngine]:
    engine = open_engine("rocks_no_wal", tmp_path / "db")
    yield engine
    engine.close()


@pytest.mark.parametrize(("kind", "old"), [("rocks_wal", 300), ("rocks_no_wal", 300), ("rocks_no_wal", 0)])
def test_a_process_that_dies_at_any_step_leaves_the_old_or_the_new_pairs(kind: str, old: int, tmp_path: Path) -> None:
    source = open_engine(kind, tmp_path / "source")
    source.write({b"b%05d" % i: b"new" * 9 for i in range(900)})
    (tmp_path / "parts").mkdir()
    for position, part in enumerate(parts_of(source, part_bytes=20_000)):
        (tmp_path / "parts" / f"{position:03}").write_bytes(part)
    new = sorted({**dict(pairs_of(source)), **ON_TOP}.items())
    source.close()
    seed = open_engine(kind, tmp_path / "seed")
    around = [(b"a", b"before"), (b"c", b"behind")]
    seed.write({**dict(around), **{b"b%05d" % i: b"old" for i in range(0, 3 * old, 3)}})
    seed.sync()
    before = pairs_of(seed, BEGIN, END)
    seed.close()

    program = subprocess.run(
        [sys.executable, replace_crash.__file__, kind, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert program.returncode == 0, program.stderr
    lives = int(program.stdout)
    assert lives > 40  # so many steps it has at least; fewer would mean that some are not watched any more
    outcomes = []
    for life in range(lives):
        left = open_engine(kind, tmp_path / str(life))
        found = pairs_of(left, BEGIN, END)
        assert found in (before, new), life
        outcomes.append(found == new)
        assert [pair for pair in pairs_of(left) if not BEGIN <= pair[0] < END] == around
        assert not (left.path / "ingest").exists()
        left.close()
    # Up to the manifest the old ones, and from then on the new.
    assert outcomes == sorted(outcomes)
    assert not outcomes[0]
    assert outcomes[-1]


def test_a_manifest_whose_files_are_damaged_keeps_the_store_from_opening(tmp_path: Path) -> None:
    # The range may be deleted already: serving it would invent an empty one.
    engine = open_engine("rocks_no_wal", tmp_path / "db")
    engine.write({b"b%05d" % i: b"v" for i in range(100)})
    files = list(sst.files(BEGIN, END, parts_of(engine)))
    engine.close()
    directory = IngestDirectory(tmp_path / "db" / "ingest")
    for name in ("000000.sst", "manifest"):
        directory.prepare(BEGIN, END, files, ON_TOP)
        file = directory.path / name
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        with pytest.raises(DamagedStoreError, match=f"{name} is not as it was written"):
            open_engine("rocks_no_wal", tmp_path / "db")
        directory.discard()
        open_engine("rocks_no_wal", tmp_path / "db").close()  # and no lock was left behind


def test_an_error_behind_the_manifest_says_that_the_store_must_be_opened_again(
    engine: RocksEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.write({b"b%05d" % i: b"v" for i in range(100)})
    parts, expected = parts_of(engine), pairs_of(engine)
    engine.write({b"b00007": b"other"})

    def full(*_: object) -> None:
        raise StorageError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(engine, "flush", full)
        with pytest.raises(StorageError, match=r"no space .*finished when the store is opened again"):
            engine.replace(BEGIN, END, parts)
    with pytest.raises(StorageError, match="restart the node"):  # the unfinished one must not be forgotten
        engine.replace(b"d", b"e", [])
    files = engine.path
    engine.close()
    engine.__init__(files, engine._options, wal=False)  # type: ignore[misc]  # the fixture closes it again
    assert pairs_of(engine) == expected


def test_a_full_disk_before_the_manifest_changes_nothing(engine: RocksEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.write({b"b%05d" % i: b"v" for i in range(100)})
    parts = parts_of(engine)
    engine.write({b"b00007": b"other"})
    before = pairs_of(engine)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(ingest, "_write_durably", full)
        with pytest.raises(StorageError, match="No space left on device"):
            engine.replace(BEGIN, END, parts)
    assert pairs_of(engine) == before
    engine.replace(BEGIN, END, parts)
    assert engine.get(b"b00007") == b"v"


class SlowCompaction:
    """An Rdict on whose level 0 there are too many files at first; notes what it is asked for."""

    def __init__(self, db: Any, files: list[int]) -> None:
        self._db = db
        self._files = files
        self.asked: list[object] = []

    def property_int_value(self, name: str) -> int:
        if name != "rocksdb.num-files-at-level0":
            return int(self._db.property_int_value(name))
        self.asked.append(self._files.pop(0) if len(self._files) > 1 else self._files[0])
        return self.asked[-1]  # type: ignore[return-value]

    def ingest_external_file(self, files: list[str], options: Any) -> None:
        self.asked.append("ingest")
        self._db.ingest_external_file(files, options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


def test_files_are_taken_in_only_while_level_0_has_room(engine: RocksEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    # Once measured: 31 files at once made the next write wait for 330 ms, with the interpreter locked.
    engine.write({b"b%05d" % i: os.urandom(20) for i in range(400)})
    parts, expected = parts_of(engine, part_bytes=3_000), pairs_of(engine)
    assert len(parts) == 4
    db = engine._db
    assert db.property_int_value("rocksdb.num-files-at-level0") == 0  # the name is one that RocksDB knows
    engine._db = slow = SlowCompaction(db, [3, 29, 27, 24])
    engine.replace(BEGIN, END, parts)
    assert slow.asked == [3, "ingest", 29, 27, 24, "ingest"]
    monkeypatch.setattr(rocks, "_ROOM_TIMEOUT_S", 0.05)
    engine._db = slow = SlowCompaction(db, [30])
    engine.replace(BEGIN, END, parts)  # slow, but not for ever
    assert slow.asked.count("ingest") == 2
    engine._db = db
    assert pairs_of(engine) == expected


def test_a_flipped_bit_in_a_part_is_noticed_before_anything_is_replaced(engine: RocksEngine) -> None:
    # RocksDB would notice when it reads the block, long after the old pairs are gone.
    engine.write({b"b%05d" % i: os.urandom(20) for i in range(400)})
    [part], before = parts_of(engine), pairs_of(engine)
    damaged = bytearray(part)
    damaged[len(part) // 2] ^= 1
    with pytest.raises(DamagedStoreError, match="part 0 of a snapshot is damaged"):
        engine.replace(BEGIN, END, [bytes(damaged)])
    assert pairs_of(engine) == before


def test_two_threads_replace_two_ranges_while_a_third_writes(engine: RocksEngine) -> None:
    engine.write({b"%c%05d" % (table, i): b"v" * 50 for table in b"bd" for i in range(2000)})
    expected = pairs_of(engine)
    parts = {table: parts_of(engine, table, bytes((table[0] + 1,))) for table in (b"b", b"d")}
    engine.write(delete_ranges=[(b"b", b"e")])
    threads = [
        threading.Thread(target=engine.replace, args=(table, bytes((table[0] + 1,)), parts[table])) for table in parts
    ]
    for thread in threads:
        thread.start()
    written = 0
    while any(thread.is_alive() for thread in threads):
        engine.write({b"f%07d" % written: b"v"})
        written += 1
    assert pairs_of(engine, b"", b"f") == expected
    assert len(pairs_of(engine, b"f", b"g")) == written


def test_a_system_without_hard_links_or_files_in_memory(engine: RocksEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", unsupported)
    monkeypatch.delattr(os, "memfd_create")
    engine.write({b"b%05d" % i: b"v" * 50 for i in range(2000)})
    expected = pairs_of(engine)
    engine.replace(BEGIN, END, parts_of(engine))
    assert pairs_of(engine) == expected


def test_a_step_of_an_export_is_a_bounded_piece_of_work(engine: RocksEngine) -> None:
    # The loop serves others between two steps, so none may be long however many or large the pairs are.
    engine.write({b"b%05d" % i: b"v" for i in range(5000)})
    assert sum(part == b"" for part in engine.export(BEGIN, END)) == 5000 // sst.SLICE_PAIRS + 2
    engine.write({b"d%05d" % i: bytes(100_000) for i in range(30)})
    assert sum(part == b"" for part in engine.export(b"d", b"e")) == 30 // 3 + 2
