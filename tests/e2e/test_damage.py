"""A damaged data directory is refused with what is damaged and what to do; damage found later stops the node.

Whatever is broken, metad never serves as if data were absent: each case either refuses to start with one clear line
and exit status 1, or (a block that is only read by a request) fails that request and stops the same way.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from e2e_server import Server

from metad.config import StorageConfig
from metad.storage import keys
from metad.storage.log import log_entry
from metad.storage.rocks import RocksEngine, Shared, log_options, state_options
from metad_client import KvKey, KvPutItem, MetadError, blocking
from metad_client.options import Options
from metad_wire.cluster import GroupId

MIB = 1024 * 1024
VALUES = 300
CONFIG = "[groups]\ndata = 2\noffset = 1\n"
CUTTING = CONFIG + "[storage]\nlog_retained_bytes = 100000\nblock_cache_bytes = 8388608\nmemtable_bytes = 33554432\n"
CUTTING += "[raft]\nlog_cache_bytes = 1\n"


def value(i: int) -> bytes:
    return b"%06d" % i * 50


def fill(server: Server, begin: int, end: int) -> None:
    with blocking.connect(server.url) as client:
        for start in range(begin, end, 10):
            items = [KvPutItem(f"n{i % 4}", f"k{i}", value(i)) for i in range(start, min(start + 10, end))]
            client.kv.put_many(items).raise_for_error()


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """young: killed soon after it was made; all is in the log's WAL, nothing in the state.
    old: its state was flushed and its log cut, then it was killed with some more in the WAL.
    clean: as old, but stopped in good order. other: a different directory."""
    root = tmp_path_factory.mktemp("templates")
    for name in ("young", "other"):
        with Server(root / name, config=CONFIG) as server:
            fill(server.ready(), 0, VALUES)
            server.kill()
    with Server(root / "old", config=CUTTING) as server:
        fill(server.ready(), 0, VALUES - 20)
        server.terminate()
    with Server(root / "old", config=CONFIG) as server:
        fill(server.ready(), VALUES - 20, VALUES)
        server.kill()
    with Server(root / "clean", config=CUTTING) as server:
        fill(server.ready(), 0, VALUES)
        server.terminate()
    return {name: root / name for name in ("young", "old", "clean", "other")}


@pytest.fixture
def copy(templates: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(templates[name], tmp_path / name))

    return copy


def files(directory: Path, suffix: str) -> list[Path]:
    """Largest first."""
    found = [file for file in directory.iterdir() if file.suffix == suffix]
    return sorted(found, key=lambda file: file.stat().st_size, reverse=True)


def flip(path: Path, at: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def refused(directory: Path, config: str = CONFIG) -> str:
    with Server(directory, config=config) as server:
        return server.refused()


def read_all(client: Any) -> None:
    """Every value is right, or an error is raised: nothing is missing."""
    for start in range(0, VALUES, 50):
        found = client.kv.get_many([KvKey(f"n{i % 4}", f"k{i}") for i in range(start, start + 50)])
        found.raise_for_error()  # a key that could not be read has the value of an absent one
        for i, record in enumerate(found, start):
            assert record is not None, f"k{i} was served as absent"
            assert record.value == value(i)
    for namespace in range(4):
        listed = [record.key for record in client.kv.scan(f"n{namespace}")]
        assert sorted(listed) == sorted(f"k{i}" for i in range(namespace, VALUES, 4))


def serves_everything(directory: Path) -> None:
    with Server(directory, config=CONFIG) as server, blocking.connect(server.ready().url) as client:
        read_all(client)


def engine(directory: Path, name: str) -> RocksEngine:
    shared = Shared(StorageConfig(block_cache_bytes=8 * MIB, memtable_bytes=16 * MIB))
    options = log_options(shared) if name == "raft" else state_options(shared)
    return RocksEngine(directory / name, options, wal=name == "raft")


def records(wal: Path) -> Iterator[tuple[int, int]]:
    """(offset, length) of each record in a RocksDB WAL: crc u32, length u16, type u8, then the payload, in blocks."""
    data = wal.read_bytes()
    at = 0
    while at + 7 <= len(data):
        if (left := 32_768 - at % 32_768) < 7:
            at += left
            continue
        (length,) = struct.unpack_from("<H", data, at + 4)
        yield at, length
        at += 7 + length


@pytest.mark.parametrize("name", ["young", "old", "clean"])
def test_the_templates_are_sound(copy: Callable[[str], Path], name: str) -> None:
    serves_everything(copy(name))


# --- the log ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["young", "old"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_flipped_bit_in_the_log_is_refused(copy: Callable[[str], Path], name: str, share: float) -> None:
    directory = copy(name)
    (wal, *_) = files(directory / "raft", ".log")
    flip(wal, int(wal.stat().st_size * share))
    words = refused(directory)
    assert "raft is damaged and was not opened" in words
    assert "restore the data directory from a backup" in words


@pytest.mark.parametrize("name", ["young", "old"])
def test_a_flipped_bit_that_looks_like_a_torn_tail_is_refused(copy: Callable[[str], Path], name: str) -> None:
    # A record's length that points behind the end of the file is what a crash leaves too; RocksDB takes it for that.
    directory = copy(name)
    (wal, *_) = files(directory / "raft", ".log")
    *_, (at, _) = records(wal)
    flip(wal, at + 5, 0x80)
    assert "raft/ has lost its tail. If other nodes have replicas" in refused(directory)


@pytest.mark.parametrize("name", ["young", "old"])
@pytest.mark.parametrize("cut", [1, 50, 5_000])
def test_a_log_that_was_cut_is_refused(copy: Callable[[str], Path], name: str, cut: int) -> None:
    # Acknowledged entries were in the part that is gone, though a cut log is a valid log.
    directory = copy(name)
    (wal, *_) = files(directory / "raft", ".log")
    with wal.open("r+b") as file:
        file.truncate(wal.stat().st_size - cut)
    assert "raft/ has lost its tail. If other nodes have replicas" in refused(directory)


@pytest.mark.parametrize("torn", [b"\x01\x02\x03", b"\x01\x02\x03\x04\xff\x7f\x01" + b"x" * 100, bytes(4096)])
def test_a_torn_record_that_nobody_was_answered_for_is_dropped(copy: Callable[[str], Path], torn: bytes) -> None:
    directory = copy("young")
    (wal, *_) = files(directory / "raft", ".log")
    with wal.open("ab") as file:
        file.write(torn)
    serves_everything(directory)


def test_a_blank_page_in_the_log_is_refused(copy: Callable[[str], Path]) -> None:
    # RocksDB skips zeros up to the end of the block, and goes on behind them.
    directory = copy("young")
    (wal, *_) = files(directory / "raft", ".log")
    data = bytearray(wal.read_bytes())
    assert len(data) > 40_000
    data[20_000:24_096] = bytes(4096)
    wal.write_bytes(data)
    assert "restore the data directory from a backup" in refused(directory)


@pytest.mark.parametrize("name", ["young", "old"])
def test_a_log_file_that_is_gone_is_refused(copy: Callable[[str], Path], name: str) -> None:
    directory = copy(name)
    for wal in files(directory / "raft", ".log"):
        wal.unlink()
    assert "backup" in refused(directory)


@pytest.mark.parametrize(("kind", "missing"), [("data", 1), ("data", 20), ("metadata", 1), ("metadata", 2)])
def test_a_log_entry_that_is_gone_is_refused(copy: Callable[[str], Path], kind: str, missing: int) -> None:
    directory = copy("young")
    log = engine(directory, "raft")
    log.write({log_entry(keys.group_prefix(GroupId(kind, int(kind == "data"))), missing): None})
    log.sync()
    log.close()
    words = refused(directory)
    assert ("data-1" if kind == "data" else "metadata-0") in words
    assert "restore the data directory from a backup" in words


def test_a_flipped_bit_in_a_log_table_is_refused(copy: Callable[[str], Path]) -> None:
    directory = copy("young")
    engine(directory, "raft").close()  # opening it once turned its WAL into a table
    (table, *_) = files(directory / "raft", ".sst")
    flip(table, table.stat().st_size // 2)
    assert "raft is damaged: " in refused(directory)


# --- the state -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.9, 0.999])
def test_a_flipped_bit_in_the_state_is_never_served(copy: Callable[[str], Path], share: float) -> None:
    directory = copy("clean")
    (table, *_) = files(directory / "state", ".sst")
    flip(table, int(table.stat().st_size * share))
    with Server(directory, config=CONFIG) as server:
        try:
            server.ready()
        except AssertionError:
            assert "state is damaged" in server.refused()
            return
        try:
            with blocking.connect(server.url, Options(deadline_s=1.0)) as client:
                read_all(client)
            damage_seen = False
        except MetadError:
            damage_seen = True
        if damage_seen:
            assert "state is damaged: Corruption" in server.refused()
            assert "restore the data directory from a backup" in server.last_words()
        else:
            # A byte that no read needs (a table's properties, say): then nothing was wrong in what was read either.
            assert server.terminate() == 0


def test_most_flipped_bits_in_the_state_are_found(copy: Callable[[str], Path]) -> None:
    # So that the test above cannot pass by never meeting the damage.
    directory = copy("clean")
    (table, *_) = files(directory / "state", ".sst")
    for at in range(4_000, table.stat().st_size - 8_000, 3_000):
        flip(table, at)
    with Server(directory, config=CONFIG) as server:
        try:
            server.ready()
        except AssertionError:
            assert "state is damaged" in server.refused()
            return
        with (
            blocking.connect(server.url, Options(deadline_s=1.0)) as client,
            pytest.raises(MetadError),
        ):
            read_all(client)
        assert "state is damaged: Corruption" in server.refused()


@pytest.mark.parametrize("name", ["clean", "old"])
def test_a_state_table_that_is_gone_is_refused(copy: Callable[[str], Path], name: str) -> None:
    directory = copy(name)
    (table, *_) = files(directory / "state", ".sst")
    table.unlink()
    words = refused(directory)
    assert "state is damaged and was not opened" in words
    assert table.name in words


def test_a_state_table_that_was_cut_is_refused(copy: Callable[[str], Path]) -> None:
    directory = copy("clean")
    (table, *_) = files(directory / "state", ".sst")
    with table.open("r+b") as file:
        file.truncate(table.stat().st_size // 2)
    assert "state is damaged and was not opened" in refused(directory)


# --- either ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["raft", "state"])
@pytest.mark.parametrize("name", ["young", "old", "clean"])
@pytest.mark.parametrize("lost", ["CURRENT", "MANIFEST"])
def test_a_store_without_its_head_is_refused_and_left_as_it_is(
    copy: Callable[[str], Path], store: str, name: str, lost: str
) -> None:
    # Without CURRENT RocksDB would make an empty store, and delete the tables it then finds unreferenced.
    directory = copy(name)
    for file in list((directory / store).iterdir()):
        if file.name.startswith(lost):
            file.unlink()
    before = {file.name for file in (directory / store).iterdir() if file.suffix in (".sst", ".log")}
    words = refused(directory)
    assert f"{store} is damaged and was not opened" in words
    assert "restore the data directory from a backup" in words
    assert before <= {file.name for file in (directory / store).iterdir()}


def test_a_state_without_head_and_log_keeps_its_tables(copy: Callable[[str], Path]) -> None:
    # Here RocksDB itself has nothing to object to.
    directory = copy("clean")
    (directory / "state" / "CURRENT").unlink()
    for wal in files(directory / "state", ".log"):
        wal.unlink()
    tables = files(directory / "state", ".sst")
    assert "state is damaged and was not opened: CURRENT is missing" in refused(directory)
    assert files(directory / "state", ".sst") == tables


@pytest.mark.parametrize("store", ["raft", "state"])
def test_a_damaged_manifest_is_refused(copy: Callable[[str], Path], store: str) -> None:
    directory = copy("clean")
    manifest = next(file for file in (directory / store).iterdir() if file.name.startswith("MANIFEST"))
    flip(manifest, manifest.stat().st_size // 2)
    assert f"{store} is damaged and was not opened" in refused(directory)


@pytest.mark.parametrize("name", ["young", "old", "clean"])
def test_a_directory_without_its_log_is_refused_again_and_again(copy: Callable[[str], Path], name: str) -> None:
    directory = copy(name)
    shutil.rmtree(directory / "raft")
    for _ in range(2):
        assert "has a state but no log (raft/)" in refused(directory)


def test_a_state_that_is_gone_is_made_again_from_a_log_that_reaches_back(copy: Callable[[str], Path]) -> None:
    directory = copy("young")
    shutil.rmtree(directory / "state")
    with Server(directory, config=CONFIG) as server:
        server.ready()
        assert server.events("recovered")[0]["state_rebuilt"] is True
        with blocking.connect(server.url) as client:
            read_all(client)
        assert server.terminate() == 0
    serves_everything(directory)


@pytest.mark.parametrize("name", ["old", "clean"])
def test_a_state_that_is_gone_is_refused_where_the_log_was_cut(copy: Callable[[str], Path], name: str) -> None:
    directory = copy(name)
    shutil.rmtree(directory / "state")
    for _ in range(2):
        words = refused(directory)
        assert "the state ends at entry 0 but the log begins at" in words
        assert "restore the data directory from a backup" in words


@pytest.mark.parametrize("store", ["raft", "state"])
def test_stores_of_two_directories_are_refused(
    copy: Callable[[str], Path], templates: dict[str, Path], store: str
) -> None:
    directory = copy("clean")
    shutil.rmtree(directory / store)
    shutil.copytree(templates["other"] / store, directory / store)
    assert "raft/ and state/ belong to two different data directories" in refused(directory)


@pytest.mark.parametrize("older", ["raft", "state"])
def test_stores_of_one_directory_from_different_times_are_refused(
    templates: dict[str, Path], tmp_path: Path, older: str
) -> None:
    directory = tmp_path / "d"
    shutil.copytree(templates["young"], tmp_path / "early")
    shutil.copytree(templates["young"], directory)
    with Server(directory, config=CUTTING) as server:
        fill(server.ready(), 0, VALUES)
        server.terminate()
    shutil.rmtree(directory / older)
    shutil.copytree(tmp_path / "early" / older, directory / older)
    words = refused(directory)
    assert ("the log has lost its tail" if older == "raft" else "entries between them are lost") in words


@pytest.mark.parametrize("store", ["raft", "state"])
def test_a_store_of_a_newer_format_is_refused(copy: Callable[[str], Path], store: str) -> None:
    directory = copy("clean")
    db = engine(directory, store)
    identity = db.get(b"\0\0\0identity")
    assert identity is not None
    newer: dict[str, Any] = msgspec.msgpack.decode(identity) | {"format": 6, "build": "0.9.0", "later": "field"}
    db.write({b"\0\0\0identity": msgspec.msgpack.encode(newer)})
    db.sync()
    db.close()
    words = refused(directory)
    told = f"{store}/ has format 6, this version reads 3 to 5: metad 0.9.0 wrote it: start that or a newer one"
    assert told in words


@pytest.mark.parametrize("store", ["raft", "state"])
def test_an_identity_that_is_unreadable_is_refused(copy: Callable[[str], Path], store: str) -> None:
    directory = copy("clean")
    db = engine(directory, store)
    db.write({b"\0\0\0identity": b"\x01"})
    db.sync()
    db.close()
    assert f"{store}/: its identity is unreadable" in refused(directory)
