"""Every storage engine keeps the promises of metad.storage.engine: order, bounds, atomic batches, what a sync saves.

RocksDB with its WAL (the log's), without it (the state's), the twin in memory and the simulated disk run the same
suite. Guards the binding's traps too: its iterators dangle on bounds, ignore them, and end silently at a damaged block.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metad.config import StorageConfig
from metad.errors import DamagedStoreError, StorageError
from metad.storage import rocks
from metad.storage.engine import Engine
from metad.storage.memory import MemoryEngine
from metad.storage.rocks import RocksEngine, Shared, log_options, state_options
from sim.disk import SimDisk

MIB = 1024 * 1024
SMALL = StorageConfig(block_cache_bytes=8 * MIB, memtable_bytes=16 * MIB)


class Opener:
    """Opens one kind of engine at one place, again and again; ``crash`` loses what a power loss may lose."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind = kind
        self.path = path
        self.engine: Engine | None = None

    def open(self) -> Engine:
        if self.kind == "memory":
            self.engine = self.engine or MemoryEngine()
        elif self.kind == "simulated":
            self.engine = self.engine or SimDisk()
        else:
            options = log_options if self.kind == "rocks_wal" else state_options
            self.engine = RocksEngine(self.path, options(Shared(SMALL)), wal=self.kind == "rocks_wal")
        return self.engine

    def reopen(self) -> Engine:
        assert self.engine is not None
        self.engine.close()
        return self.open()

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()


KINDS = ("memory", "simulated", "rocks_wal", "rocks_no_wal")


@pytest.fixture(params=KINDS)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(request.param, tmp_path / "db")
    yield opener
    opener.close()


@pytest.fixture
def engine(opener: Opener) -> Engine:
    return opener.open()


def left_by_a_crash(opener: Opener) -> Opener:
    """A copy of the files as they are now: what a process that dies leaves behind."""
    copy = Opener(opener.kind, opener.path.with_name("copy"))
    copy.path.mkdir()
    for file in opener.path.iterdir():
        if file.name != "LOCK":
            (copy.path / file.name).write_bytes(file.read_bytes())
    return copy


def everything(engine: Engine) -> list[tuple[bytes, bytes]]:
    return engine.scan(b"", b"\xff" * 32, 1_000_000)


def test_get_returns_what_was_put_and_none_otherwise(engine: Engine) -> None:
    engine.write({b"a": b"1", b"empty": b"", b"nul\0": b"\0\xff"})
    assert engine.get(b"a") == b"1"
    assert engine.get(b"empty") == b""  # empty is not absent
    assert engine.get(b"nul\0") == b"\0\xff"
    assert engine.get(b"nul") is None


def test_get_many_answers_by_position_duplicates_included(engine: Engine) -> None:
    engine.write({b"a": b"1", b"b": b""})
    assert engine.get_many([b"b", b"x", b"a", b"b"]) == [b"", None, b"1", b""]
    assert engine.get_many([]) == []


def test_delete_removes_and_deleting_nothing_is_no_error(engine: Engine) -> None:
    engine.write({b"a": b"1", b"b": b"2"})
    engine.write({b"a": None, b"never": None})
    assert everything(engine) == [(b"b", b"2")]


def test_batches_of_one_write_apply_in_order(engine: Engine) -> None:
    engine.write({b"a": b"1", b"b": b"1", b"c": b"1"}, {b"a": None, b"b": b"2"}, {b"a": b"3", b"c": None})
    assert everything(engine) == [(b"a", b"3"), (b"b", b"2")]


def test_ranges_are_deleted_before_the_writes_of_the_same_call(engine: Engine) -> None:
    engine.write({bytes([i]): b"old" for i in range(10)})
    engine.write({b"\x03": b"new"}, delete_ranges=[(b"\x02", b"\x05"), (b"\x08", b"\x09")])
    assert [(key[0], value) for key, value in everything(engine)] == [
        (0, b"old"), (1, b"old"), (3, b"new"), (5, b"old"), (6, b"old"), (7, b"old"), (9, b"old"),
    ]  # fmt: skip


def test_an_empty_write_is_allowed(engine: Engine) -> None:
    engine.write()
    engine.write({})
    assert everything(engine) == []


SCANS: list[tuple[bytes, bytes, int, bytes]] = [
    (b"b", b"d", 10, b"bc"),  # begin is included, end is not
    (b"a\0", b"c\0", 10, b"bc"),  # bounds that are no keys
    (b"a", b"z", 2, b"ab"),
    (b"a", b"z", 0, b""),
    (b"c", b"c", 10, b""),
    (b"d", b"b", 10, b""),  # the wrong way round: nothing, not an error
    (b"e\0", b"z", 10, b""),  # behind the last key
    (b"", b"a", 10, b""),  # before the first
]


@pytest.mark.parametrize(("begin", "end", "limit", "expected"), SCANS)
def test_scan_keeps_its_bounds_and_its_limit(
    engine: Engine, begin: bytes, end: bytes, limit: int, expected: bytes
) -> None:
    engine.write({bytes([byte]): b"v" for byte in b"ecabd"})
    assert b"".join(key for key, _ in engine.scan(begin, end, limit)) == expected


@pytest.mark.parametrize(("begin", "end", "limit", "expected"), SCANS)
def test_scan_backwards_keeps_its_bounds_and_its_limit(
    engine: Engine, begin: bytes, end: bytes, limit: int, expected: bytes
) -> None:
    engine.write({bytes([byte]): b"v" for byte in b"ecabd"})
    forwards = engine.scan(begin, end, 10)
    assert engine.scan_backwards(begin, end, limit) == forwards[::-1][:limit]


def test_scan_stops_at_the_pair_that_reaches_the_byte_bound(engine: Engine) -> None:
    # Guards memory: a thousand rows of a megabyte each must not be gathered for a page of two.
    engine.write({bytes([i]): b"v" * 99 for i in range(10)})
    assert len(engine.scan(b"", b"\xff", 10, 250)) == 3
    assert len(engine.scan(b"", b"\xff", 10, 1)) == 1
    assert len(engine.scan(b"", b"\xff", 2, 10_000)) == 2


def test_a_scan_is_of_one_moment_while_another_thread_writes(engine: Engine) -> None:
    # Each write moves all pairs to the next round; a scan that saw two rounds would mix their values.
    names = [b"%03d" % i for i in range(200)]
    engine.write(dict.fromkeys(names, b"0"))
    stop = threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            engine.write(dict.fromkeys(names, b"%d" % n))

    writer = threading.Thread(target=write)
    if isinstance(engine, MemoryEngine | SimDisk):
        # These have one thread: their scans are lists, made before the next write can begin.
        found = engine.scan(b"", b"\xff", 1000)
        engine.write(dict.fromkeys(names, b"1"))
        assert {value for _, value in found} == {b"0"}
        return
    writer.start()
    try:
        for _ in range(200):
            values = [value for _, value in engine.scan(b"", b"\xff", 1000)]
            assert len(values) == 200
            assert len(set(values)) == 1
    finally:
        stop.set()
        writer.join()


def test_what_was_synced_is_there_after_reopening(opener: Opener) -> None:
    engine = opener.open()
    engine.write({b"a": b"1", b"b": b"2"}, delete_ranges=[(b"x", b"z")])
    engine.sync()
    engine.write({b"b": None})
    engine.sync()
    assert everything(opener.reopen()) == [(b"a", b"1")]


def test_a_crash_loses_a_suffix_of_writes_and_never_half_of_one(opener: Opener) -> None:
    engine = opener.open()
    engine.write({b"kept": b"1", b"both": b"1"})
    engine.sync()
    engine.write({b"both": b"2", b"half": b"2"}, {b"kept": None})
    engine.write({b"last": b"3"})
    if isinstance(engine, MemoryEngine):
        engine.crash()
        assert everything(engine) == [(b"both", b"1"), (b"kept", b"1")]
        return
    states = [
        [(b"both", b"1"), (b"kept", b"1")],
        [(b"both", b"2"), (b"half", b"2")],
        [(b"both", b"2"), (b"half", b"2"), (b"last", b"3")],
    ]
    if isinstance(engine, SimDisk):
        engine.crash(random.Random(0))
        assert everything(engine) in states
        return
    copy = left_by_a_crash(opener)
    after = everything(copy.open())
    copy.close()
    assert after in states
    if opener.kind == "rocks_no_wal":
        assert after == states[0]  # it has nothing but flushed files


def test_a_flush_changes_nothing_that_anybody_sees(opener: Opener) -> None:
    engine = opener.open()
    engine.write({b"a": b"1", b"b": b"2", b"c": b"3"})
    engine.write({}, delete_ranges=[(b"b", b"c")])
    engine.flush()
    engine.write({b"d": b"4"})
    engine.sync()
    assert everything(engine) == [(b"a", b"1"), (b"c", b"3"), (b"d", b"4")]
    assert everything(opener.reopen()) == [(b"a", b"1"), (b"c", b"3"), (b"d", b"4")]


def test_a_compaction_changes_nothing_that_anybody_sees(opener: Opener) -> None:
    engine = opener.open()
    engine.write({b"%03d" % n: b"x" for n in range(100)})
    engine.sync()
    engine.write({b"%03d" % n: None for n in range(90)} | {b"095": b"y"})
    before = engine.scan(b"", b"~", 1_000)
    engine.compact(b"000", b"050")
    assert engine.scan(b"", b"~", 1_000) == before == [(b"%03d" % n, b"y" if n == 95 else b"x") for n in range(90, 100)]


@pytest.mark.parametrize("kind", ["rocks_wal", "rocks_no_wal"])
def test_a_range_that_scans_take_long_to_pass_is_told_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the deleted keys behind the end of a scan, which it passes to find that it is over."""
    engine = RocksEngine(tmp_path, (log_options if kind == "rocks_wal" else state_options)(Shared(SMALL)), wal=False)
    engine.write({b"a": b"1", b"n": b"1"} | {b"b%04d" % n: b"x" for n in range(5_000)})
    engine.flush()
    engine.write({b"b%04d" % n: None for n in range(5_000)})
    assert engine.scan(b"a", b"b", 10) == [(b"a", b"1")]
    assert engine.take_worn() is None, "it was over soon"
    monkeypatch.setattr(rocks, "_WORN_S", 0.0)
    assert engine.scan(b"a", b"b", 10) == [(b"a", b"1")]
    assert engine.take_worn() == (b"a", b"n")
    assert engine.take_worn() is None
    assert engine.scan(b"o", b"p", 10) == []
    assert engine.take_worn() == (b"o", b"p")
    monkeypatch.setattr(rocks, "_WORN_ROWS", 1)
    assert len(engine.scan(b"a", b"o", 10)) == 2
    assert engine.take_worn() is None, "it has found what it was looking for"
    files = [one["num_entries"] for one in engine._db.live_files()]
    assert sum(files) > 5_000
    engine.compact(b"a", b"n")
    assert sum([one["num_entries"] for one in engine._db.live_files()]) == 2
    engine.close()


def test_memory_crash_restores_what_a_range_delete_took() -> None:
    engine = MemoryEngine()
    engine.write({b"a": b"1", b"b": b"2"})
    engine.sync()
    engine.write({b"b": b"3"}, delete_ranges=[(b"a", b"c")])
    engine.crash()
    assert everything(engine) == [(b"a", b"1"), (b"b", b"2")]


def test_a_synced_write_survives_while_later_ones_run(opener: Opener) -> None:
    engine = opener.open()
    done = threading.Event()
    thread = threading.Thread(target=lambda: (engine.sync(), done.set()))
    engine.write({b"a": b"1"})
    thread.start()
    for i in range(500):
        engine.write({b"n%d" % i: b"2"})
    assert done.wait(120)
    thread.join()
    assert engine.get(b"a") == b"1"
    assert engine.get(b"n499") == b"2"


operation = st.one_of(
    st.tuples(st.just("write"), st.dictionaries(st.binary(max_size=3), st.none() | st.binary(max_size=4), max_size=6)),
    st.tuples(st.just("range"), st.tuples(st.binary(max_size=3), st.binary(max_size=3))),
    st.tuples(st.just("sync"), st.none()),
)


def test_a_pin_is_of_the_moment_of_its_call_however_slowly_it_is_read(engine: Engine) -> None:
    before = filled(engine, b"b")
    filled(engine, b"c")
    pin = engine.pin(b"b", b"c")
    engine.write({b"b!": b"too late"}, dict.fromkeys(before, b"too late"))
    found = pin.scan(b"a", b"z", 100)
    engine.write(delete_ranges=[(b"b001000", b"b002000")])
    engine.sync()
    while more := pin.scan(found[-1][0] + b"\0", b"z", 700):
        found += more
    assert found == sorted(before.items())
    engine.replace(b"b", b"c", [])
    assert pin.scan(b"b", b"c", 1_000_000) == sorted(before.items()), "a pin can be read again"
    pin.close()


@pytest.mark.parametrize("brief", [False, True], ids=["kept", "brief"])
def test_scans_of_a_pin_keep_their_bounds_wherever_the_last_one_ended(engine: Engine, brief: bool) -> None:
    pairs = sorted(filled(engine, b"b").items())
    keys = [key for key, _ in pairs]
    filled(engine, b"c")
    pin = engine.pin(b"b", b"c", brief=brief)
    if not brief:
        engine.write(delete_ranges=[(b"b", b"c")])
    rng = random.Random(5)
    assert pin.scan(b"b", b"c", 1) == pairs[:1]
    for _ in range(2):  # from where the first ended to the end of everything, and again
        assert pin.scan(keys[0] + b"\0", b"zz", 1_000_000) == pairs[1:]
    begin = behind = keys[0]
    for _ in range(600):
        begin = rng.choice([behind, behind, begin, rng.choice([*keys, b"", b"zz"])])
        end = rng.choice([b"c", b"zz", begin, rng.choice(keys)])
        limit, bytes_max = rng.choice([0, 1, 3, 5_000]), rng.choice([1, 500, 1 << 40])
        wanted, size = [], 0
        for key, value in pairs:
            if begin <= key < end and len(wanted) < limit and size < bytes_max:
                wanted.append((key, value))
                size += len(key) + len(value)
        found = pin.scan(begin, end, limit, bytes_max)
        assert found == wanted
        behind = found[-1][0] + b"\0" if found else begin
    pin.close()


def test_a_closed_pin_is_an_error_and_not_an_empty_range(opener: Opener) -> None:
    engine = opener.open()
    filled(engine, b"b")
    pins = [engine.pin(b"b", b"c", brief=brief) for brief in (False, True)]
    pins[0].scan(b"b", b"c", 10)
    for pin in pins:
        pin.close()
        pin.close()
        with pytest.raises(StorageError, match="closed"):
            pin.scan(b"b", b"c", 10)
    if opener.kind not in ROCKS:
        return
    open_pin = engine.pin(b"b", b"c")
    open_pin.scan(b"b", b"c", 10)
    opener.reopen()  # an iterator that lives on would keep the lock
    with pytest.raises(StorageError, match="closed"):
        open_pin.scan(b"b", b"c", 10)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(operation, max_size=20), bounds=st.tuples(st.binary(max_size=3), st.binary(max_size=3)))
def test_every_engine_is_the_same_map(
    kind: str,
    tmp_path_factory: pytest.TempPathFactory,
    operations: list[tuple[str, object]],
    bounds: tuple[bytes, bytes],
) -> None:
    opener = Opener(kind, tmp_path_factory.mktemp("db") / "db")
    engine = opener.open()
    model: dict[bytes, bytes] = {}
    try:
        for name, argument in operations:
            if name == "write":
                assert isinstance(argument, dict)
                engine.write(argument)
                for key, value in argument.items():
                    if value is None:
                        model.pop(key, None)
                    else:
                        model[key] = value
            elif name == "range":
                assert isinstance(argument, tuple)
                begin, end = min(argument), max(argument)
                engine.write(delete_ranges=[(begin, end)])
                model = {key: value for key, value in model.items() if not begin <= key < end}
            else:
                engine.sync()
        begin, end = bounds
        inside = sorted((key, value) for key, value in model.items() if begin <= key < end)
        assert engine.scan(begin, end, 100) == inside
        assert engine.scan_backwards(begin, end, 100) == inside[::-1]
        assert engine.get_many(sorted(model)) == [model[key] for key in sorted(model)]
        engine.sync()
        assert everything(opener.reopen()) == sorted(model.items())
    finally:
        opener.close()


# --- a range as parts ------------------------------------------------------------------------------------


def taken(export: Iterator[bytes]) -> list[bytes]:
    """The parts, without the pauses."""
    return [part for part in export if part]


def filled(engine: Engine, table: bytes, count: int = 3000) -> dict[bytes, bytes]:
    pairs = {table + b"%06d" % i: os.urandom(20) for i in range(count)}
    engine.write(pairs)
    return pairs


def test_parts_put_a_range_in_place_of_another_and_touch_nothing_else(opener: Opener, tmp_path: Path) -> None:
    engine = opener.open()
    pairs = filled(engine, b"b")
    parts = taken(engine.export(b"b", b"c", 20_000))
    assert len(parts) == 5
    engine.write({b"a9": b"before", b"c": b"behind", b"b000007": b"other", b"bnew": b"1"}, {b"b000008": None})
    as_files: list[bytes | Path] = []
    for position, part in enumerate(parts):
        as_files.append(tmp_path / f"{position}.part")
        (tmp_path / f"{position}.part").write_bytes(part)
    engine.replace(b"b", b"c", as_files)
    expected = [(b"a9", b"before"), *sorted(pairs.items()), (b"c", b"behind")]
    assert everything(engine) == expected
    engine.replace(b"b", b"c", parts, {b"b000001": b"on top", b"b000002": None, b"bmark": b"x"})
    expected = sorted({**dict(expected), b"b000001": b"on top", b"bmark": b"x"}.items())
    del expected[expected.index((b"b000002", pairs[b"b000002"]))]
    assert everything(engine) == expected
    engine.write({b"b000003": b"later"})  # what is written afterwards counts
    assert engine.get(b"b000003") == b"later"
    engine.sync()
    assert [pair for pair in everything(opener.reopen()) if pair[0] != b"b000003"] == [
        pair for pair in expected if pair[0] != b"b000003"
    ]
    # Nothing of it stays behind.
    assert not (opener.path / "ingest").exists()


def test_an_export_is_of_the_moment_of_its_call_however_slowly_it_is_taken(opener: Opener) -> None:
    engine = opener.open()
    before = filled(engine, b"b")
    export = engine.export(b"b", b"c", 20_000)
    engine.write({b"b!": b"too late"}, dict.fromkeys(before, b"too late"))
    parts = [next(part for part in export if part)]
    engine.write(delete_ranges=[(b"b001000", b"b002000")])
    engine.sync()
    parts += taken(export)
    engine.replace(b"b", b"c", parts)
    assert dict(everything(engine)) == before


def test_an_export_keeps_its_bounds(engine: Engine) -> None:
    engine.write({bytes([byte]): b"v" for byte in b"ecabd"})
    for begin, end, expected in ((b"b", b"d", b"bc"), (b"a\0", b"z", b"bcde"), (b"", b"b", b"a"), (b"d", b"b", b"")):
        parts = taken(engine.export(begin, end))
        assert len(parts) == (1 if expected else 0)  # a range without a pair has no part
        engine.write({b"bb": b"v"})
        engine.replace(begin, max(begin, end), parts)
        assert b"".join(key for key, _ in engine.scan(begin, end, 10)) == expected
        engine.write({b"bb": None})


def test_replacing_with_nothing_empties_the_range(opener: Opener) -> None:
    engine = opener.open()
    filled(engine, b"b")
    engine.write({b"a": b"1", b"c": b"2"})
    engine.replace(b"b", b"c", [])
    assert everything(engine) == [(b"a", b"1"), (b"c", b"2")]
    engine.replace(b"b", b"c", [], {b"bx": b"3"})
    assert everything(opener.reopen()) == [(b"a", b"1"), (b"bx", b"3"), (b"c", b"2")]


def test_a_replaced_range_is_durable_without_a_sync(opener: Opener) -> None:
    engine = opener.open()
    pairs = filled(engine, b"b", 500)
    parts = taken(engine.export(b"b", b"c"))
    engine.write(delete_ranges=[(b"b", b"c")])
    engine.replace(b"b", b"c", parts)
    if isinstance(engine, MemoryEngine):
        engine.crash()
        assert dict(everything(engine)) == pairs
        return
    if isinstance(engine, SimDisk):
        engine.crash(random.Random(0))
        assert dict(everything(engine)) == pairs
        return
    copy = left_by_a_crash(opener)
    assert dict(everything(copy.open())) == pairs
    copy.close()


def test_parts_that_are_none_of_the_range_are_refused_and_change_nothing(engine: Engine) -> None:
    pairs = filled(engine, b"b", 500)
    [part] = taken(engine.export(b"b", b"c"))
    engine.write({b"a": b"1"})
    cases: list[list[bytes]] = [
        [b""],
        [b"garbage"],
        [part[:-1]],
        [part[: len(part) // 2]],
        [part, part[5:]],
        taken(engine.export(b"a", b"b000100")),  # begins before the range
    ]
    for case in cases:
        with pytest.raises(DamagedStoreError, match="part"):
            engine.replace(b"b", b"c", case)
        assert dict(everything(engine)) == {b"a": b"1", **pairs}
    with pytest.raises(StorageError, match="cannot read"):
        engine.replace(b"b", b"c", [Path("not there")])
    engine.replace(b"b", b"c", [part])  # and the next one finds nothing in its way
    assert dict(everything(engine)) == {b"a": b"1", **pairs}


def test_a_closed_export_is_an_error_and_not_a_shorter_range(opener: Opener) -> None:
    # The end of the parts says that there are no more pairs: a stream must not end so because the node stops.
    engine = opener.open()
    filled(engine, b"b")
    exports = [engine.export(b"b", b"c", 20_000) for _ in range(3)]
    next(exports[1])
    for part in exports[2]:
        if part:
            break
    for export in exports:
        export.close()
        export.close()
        with pytest.raises(StorageError, match="closed"):
            next(export)
    if opener.kind not in ROCKS:
        return
    begun = engine.export(b"b", b"c", 20_000), engine.export(b"b", b"c", 20_000)
    next(begun[1])
    opener.reopen()  # an iterator that lives on would keep the lock
    for export in begun:
        with pytest.raises(StorageError, match="closed"):
            next(export)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    old=st.dictionaries(st.binary(max_size=3), st.binary(max_size=4), max_size=8),
    new=st.dictionaries(st.binary(max_size=3), st.binary(max_size=4), max_size=8),
    bounds=st.tuples(st.binary(max_size=3), st.binary(max_size=3)),
    part_bytes=st.integers(1, 12),
)
def test_every_engine_exports_and_replaces_the_same_range(
    kind: str,
    tmp_path_factory: pytest.TempPathFactory,
    old: dict[bytes, bytes],
    new: dict[bytes, bytes],
    bounds: tuple[bytes, bytes],
    part_bytes: int,
) -> None:
    begin, end = min(bounds), max(bounds)
    source, target = (Opener(kind, tmp_path_factory.mktemp("db") / "db") for _ in range(2))
    try:
        origin, engine = source.open(), target.open()
        origin.write(new)
        engine.write(old)
        engine.replace(begin, end, taken(origin.export(begin, end, part_bytes)))
        expected = {key: value for key, value in old.items() if not begin <= key < end}
        expected |= {key: value for key, value in new.items() if begin <= key < end}
        assert everything(engine) == sorted(expected.items())
        assert everything(target.reopen()) == sorted(expected.items())
    finally:
        source.close()
        target.close()


# --- what only files can do ------------------------------------------------------------------------------


ROCKS = ("rocks_wal", "rocks_no_wal")


@pytest.mark.parametrize("kind", ROCKS)
def test_a_second_opener_is_told_that_the_store_is_in_use(kind: str, tmp_path: Path) -> None:
    opener, second = Opener(kind, tmp_path / "db"), Opener(kind, tmp_path / "db")
    opener.open()
    with pytest.raises(StorageError, match="in use by another metad process") as caught:
        second.open()
    assert not isinstance(caught.value, DamagedStoreError)
    opener.reopen()  # closing released the lock
    opener.close()


def _files(path: Path, suffix: str) -> list[Path]:
    return sorted(file for file in path.iterdir() if file.suffix == suffix)


def _filled(opener: Opener) -> None:
    engine = opener.open()
    for start in range(0, 4000, 500):
        engine.write({b"k%06d" % i: os.urandom(100) for i in range(start, start + 500)})
    engine.sync()
    if opener.kind == "rocks_wal":
        opener.reopen()  # recovering the WAL writes its pairs into a table file
    opener.close()


READS: dict[str, Callable[[Engine], object]] = {
    "export": lambda engine: list(engine.export(b"k", b"l")),
    "pin": lambda engine: engine.pin(b"k", b"l").scan(b"k", b"l", 10_000),
    "get": lambda engine: [engine.get(b"k%06d" % i) for i in range(4000)],
    "get_many": lambda engine: engine.get_many([b"k%06d" % i for i in range(4000)]),
    "scan": lambda engine: engine.scan(b"k", b"l", 10_000),
    "scan_backwards": lambda engine: engine.scan_backwards(b"k", b"l", 10_000),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("kind", ROCKS)
def test_a_damaged_block_is_an_error_and_never_an_absent_record(kind: str, read: str, tmp_path: Path) -> None:
    # Once wrong: scans ended at the damaged block as if the range did.
    opener = Opener(kind, tmp_path / "db")
    _filled(opener)
    table = max(_files(opener.path, ".sst"), key=lambda file: file.stat().st_size)
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.write_bytes(data)
    engine = opener.open()
    with pytest.raises(DamagedStoreError, match=r"is damaged: .*restore the data directory from a backup"):
        READS[read](engine)
    opener.close()


@pytest.mark.parametrize("position", ["first", "last"])
def test_a_scan_that_begins_or_ends_in_the_damaged_block_fails_too(position: str, tmp_path: Path) -> None:
    opener = Opener("rocks_no_wal", tmp_path / "db")
    _filled(opener)
    table = max(_files(opener.path, ".sst"), key=lambda file: file.stat().st_size)
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.write_bytes(data)
    engine = opener.open()
    readable = []
    for i in range(4000):
        try:
            assert engine.get(b"k%06d" % i) is not None
            readable.append(i)
        except DamagedStoreError:
            pass
    lost = sorted(set(range(4000)) - set(readable))
    assert lost
    assert len(lost) < 100
    with pytest.raises(DamagedStoreError):
        engine.scan(b"k%06d" % lost[0 if position == "first" else -1], b"l", 5)
    with pytest.raises(DamagedStoreError):
        engine.scan_backwards(b"k", b"k%06d" % lost[-1], 5)
    # What does not touch the block is served.
    assert len(engine.scan(b"k000000", b"k%06d" % (lost[0] - 10), 10_000)) == lost[0] - 10
    opener.close()


def test_a_scan_to_the_very_end_of_a_sound_store_is_no_error(engine: Engine) -> None:
    engine.write({b"a": b"1"})
    engine.sync()
    assert engine.scan(b"a", b"z", 10) == [(b"a", b"1")]
    assert engine.scan(b"b", b"z", 10) == []
    assert engine.scan_backwards(b"", b"b", 10) == [(b"a", b"1")]
    assert engine.scan_backwards(b"", b"a", 10) == []
