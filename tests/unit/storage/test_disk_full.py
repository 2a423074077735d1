"""A disk without space is a state of the node: wherever it is met, the error says that it was this."""

from __future__ import annotations

import ast
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rocksdict import Options

from metad.config import StorageConfig
from metad.errors import DiskFullError, StorageError, file_error
from metad.raft.snapshots.staging import FileStaging
from metad.storage.ingest import IngestDirectory
from metad.storage.log import DurableMark
from metad.storage.rocks import RocksEngine, Shared, log_options, state_options
from metad.storage.room import DiskUse

ROOT = Path(__file__).resolve().parents[3] / "metad"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_file_without_space_is_told_from_a_broken_one(number: int) -> None:
    assert isinstance(file_error("cannot write x", OSError(number, "No space left on device")), DiskFullError)
    assert not isinstance(file_error("cannot write x", OSError(errno.EIO, "Input/output error")), DiskFullError)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system of 1 MiB, of which 200 KB are left."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    (disk / "filler").write_bytes(bytes(800_000))
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=False)


def opened(disk: Path) -> RocksEngine:
    shared = Shared(StorageConfig(block_cache_bytes=8 << 20, memtable_bytes=32 << 20))
    return RocksEngine(disk / "raft", log_options(shared, 1 << 20), wal=True)


def fill(engine: RocksEngine) -> None:
    for number in range(100):
        engine.write({b"%d" % number: bytes(20_000)})


def test_rocksdb_without_space(full: Path) -> None:
    engine = opened(full)
    engine.write({b"kept": b"1"})
    engine.sync()
    with pytest.raises(DiskFullError):
        fill(engine)
    for call in (engine.sync, engine.flush, lambda: engine.write({b"k": b"v"})):
        with pytest.raises(DiskFullError):  # RocksDB names the cause only once
            call()
    with pytest.raises(DiskFullError):
        engine.close()
    del engine
    with pytest.raises(DiskFullError):
        opened(full)
    (full / "filler").unlink()
    engine = opened(full)
    assert engine.get(b"kept") == b"1"
    engine.close()


def test_files_without_space(full: Path) -> None:
    told: list[StorageError | None] = []

    def beside(work: object, done: object) -> None:
        try:
            work()  # type: ignore[operator]
        except OSError as error:
            done(error)  # type: ignore[operator]
        else:
            done(None)  # type: ignore[operator]

    FileStaging(full / "staged", beside).put(1, 1, bytes(900_000), told.append)
    assert isinstance(told[0], DiskFullError)
    with pytest.raises(DiskFullError):
        IngestDirectory(full / "ingest").prepare(b"a", b"b", [bytes(900_000)], {})
    mark = DurableMark(full / "durable")
    with pytest.raises(DiskFullError):
        mark.advance({b"%016d" % row: 1 for row in range(50_000)})


def test_no_error_of_a_file_hides_that_the_disk_is_full() -> None:
    """An OSError becomes a StorageError only by way of ``file_error``."""
    reads = {"memory.py", "sst.py"}  # to read a part of a snapshot takes no space
    found: list[str] = []
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text()
        if "testing" in path.parts or path.name in reads or "OSError" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ExceptHandler) and node.type is not None and "OSError" in ast.unparse(node.type):
                calls = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
                found += [f"{path.name}:{call.lineno}" for call in calls if ast.unparse(call.func) == "StorageError"]
    assert not found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksEngine]:
    shared = Shared(StorageConfig(block_cache_bytes=8 << 20, memtable_bytes=32 << 20))
    engine = RocksEngine(tmp_path / "store", state_options(shared), wal=False)
    yield engine
    engine.close()


LARGE = 400_000


def test_what_is_left_is_counted_where_a_few_are_large(store: RocksEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards a disk that stayed full of deleted values: a mean of all pairs said that there was much left."""
    store.write({b"small %d" % number: b"v" for number in range(1_000)})
    store.write({b"large %d" % number: os.urandom(LARGE) for number in range(20)})
    store.flush()
    store.write({b"large %d" % number: None for number in range(20)})
    store.flush()
    assert store.files_bytes > 20 * LARGE
    monkeypatch.setattr("metad.storage.rocks.use_of", lambda _: DiskUse(LARGE, 1 << 40))
    assert store.reclaim() == 0
    assert store.files_bytes < LARGE


def test_no_files_are_written_anew_for_which_there_is_no_room(
    store: RocksEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many small ones are deleted, and what is left is large."""
    store.write({b"small %d" % number: os.urandom(500) for number in range(4_000)})
    store.write({b"large %d" % number: os.urandom(LARGE) for number in range(10)})
    store.flush()
    store.write({b"small %d" % number: None for number in range(4_000)})
    store.flush()
    use = DiskUse(9 * LARGE, 1 << 40)
    monkeypatch.setattr("metad.storage.rocks.use_of", lambda _: use)
    lacking = store.reclaim()
    assert lacking == pytest.approx(10 * LARGE * 4 / 3 - use.free_bytes, rel=0.02)
    assert store.reclaim(spare_bytes=1_000) == lacking + 1_000
    use = DiskUse(use.free_bytes + lacking, 1 << 40)
    assert store.reclaim() == 0
    assert store.files_bytes < 11 * LARGE
    assert store.reclaim(0) == 0


def test_values_that_were_overwritten_are_not_left(store: RocksEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(6):
        store.write({b"large": os.urandom(LARGE)})
        store.flush()
    monkeypatch.setattr("metad.storage.rocks.use_of", lambda _: DiskUse(2 * LARGE, 1 << 40))
    assert store.reclaim() == 0
    assert store.files_bytes < 2 * LARGE


def test_many_pairs_are_told_by_their_mean(store: RocksEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metad.storage.rocks._COUNT_ROWS", 100)
    store.write({b"%06d" % number: os.urandom(1_000) for number in range(2_000)})
    store.flush()
    store.write({b"%06d" % number: None for number in range(1_500)})
    store.flush()
    monkeypatch.setattr("metad.storage.rocks.use_of", lambda _: DiskUse(0, 1 << 40))
    assert store.reclaim() == pytest.approx(500_000 * 4 / 3, rel=0.1)


def test_nothing_is_compacted_that_could_leave_less_than_the_mark(
    store: RocksEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stores may begin at once: the files of both count."""
    use = DiskUse(0, 1 << 40)
    monkeypatch.setattr("metad.storage.rocks.use_of", lambda _: use)
    for free_mib, held in ((39, True), (41, False), (129, False)):
        use = DiskUse(free_mib << 20, 1 << 40)
        store.heed_room(16 << 20, 24 << 20)
        assert store._held == held
    store.heed_room(16 << 20, 1 << 40)
    assert not store._held, "there is ample room"


@pytest.mark.parametrize("options", [log_options, state_options])
def test_writes_go_on_while_nothing_is_compacted(
    options: Callable[[Shared], Options], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a cluster that stood for seconds below eight times the mark: a write that RocksDB stops holds the
    interpreter. Afterwards it is not stopped either, before it was compacted."""
    use = DiskUse(0, 1 << 40)
    monkeypatch.setattr("metad.storage.rocks.use_of", lambda _: use)
    shared = Shared(StorageConfig(block_cache_bytes=8 << 20, memtable_bytes=32 << 20))
    engine = RocksEngine(tmp_path / "store", options(shared), wal=True)
    engine.write({b"k": b"v"})
    engine.flush()
    engine.heed_room(1 << 30, 1 << 30)
    for number in range(70):
        engine.write({b"%d" % number: b"v", b"k": b"w"})
        engine.flush()
    assert engine.figures().level0_files == 71, "nothing was compacted"
    for _ in range(2):
        assert engine._db.property_int_value("rocksdb.is-write-stopped") == 0
        assert engine._db.property_int_value("rocksdb.actual-delayed-write-rate") == 0
        use = DiskUse(1 << 40, 1 << 40)
        engine.heed_room(1 << 30, 1 << 30)
    engine.compact(b"", b"\xff")
    engine.heed_room(1 << 30, 1 << 30)
    assert not engine._endures
    engine.close()
