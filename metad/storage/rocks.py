"""The engine on RocksDB (rocksdict). Every option is set here, each with its reason.

The binding requires: raw mode with ``bytes`` keys everywhere; our own check of a scan's bounds, because the binding's
iterator bounds dangle; an explicit column family for ``delete_range``. ``write`` holds the interpreter lock, while
``flush_wal``, ``flush`` and multi-get release it, so a write is never synced by itself but by :meth:`RocksEngine.sync`
in a thread. Ingesting files also holds the lock, some milliseconds per call, because RocksDB syncs its manifest
meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

import rocksdict as r

from ..config import StorageConfig
from ..errors import DamagedStoreError, DiskFullError, StorageError
from . import sst
from .engine import NO_WRITES, PART_BYTES, UNBOUNDED_BYTES, Figures, Writes
from .ingest import IngestDirectory, Manifest
from .room import use_of

_FIGURES: Final = (
    "total-sst-files-size",
    "cur-size-all-mem-tables",
    "block-cache-usage",
    "num-files-at-level0",
    "estimate-pending-compaction-bytes",
    "num-running-compactions",
    "num-running-flushes",
    "is-write-stopped",
    "actual-delayed-write-rate",
    "estimate-num-keys",
)
"""RocksDB's names of the :class:`.engine.Figures`, in their order."""
_INGEST_FILES: Final = 2
"""Files ingested by one call, which holds the interpreter for a millisecond of work and some waiting for the disk."""
_CROWDED_FILES: Final = 24
"""With more files than this on level 0, ingestion waits until a compaction has made room: from 48 on RocksDB delays
writes, at 64 it stops them, and a waiting write holds the interpreter, so the node would stand still. Every style of
compaction begins at this number."""
_SLOW_FILES, _STOP_FILES = 48, 64
_UNLIMITED_FILES: Final = 1 << 30
_ROOM_TIMEOUT_S: Final = 30.0
"""After this time ingestion continues anyway: slow is better than never."""
_WORN_S: Final = 0.03
"""Of processor time of a scan: some 100,000 deleted pairs, if it finds few others."""
_WORN_ROWS: Final = 1_000


_BLOCK_BYTES: Final = 4096
_COUNT: Final = re.compile(r"# (entries|deletions)=(\d+)")
_RAW_BYTES: Final = re.compile(r"raw (?:key|value) size=(\d+)")
_COUNT_ROWS, _COUNT_S = 20_000, 0.5
"""So many pairs are counted one by one, for so long: a few large ones are most of what a small disk has."""
_AMPLE_MARKS: Final = 8
"""With more room than so many low-water marks compactions go on in any case: few take that much."""
_WORTH_PART: Final = 8
"""All files are written anew to drop deleted pairs if at least one byte in so many is saved."""
_FILTER_BITS: Final = 10  # of a key
_FILTERS_PART: Final = 0.75
"""With filters of more than this part of the cache, new ones are written in parts: the cache does not keep them all,
and a whole one is 125 KiB and more to read again. Where filters are 1.3 times the cache, a look-up of a key takes 8 us
instead of 25, and of one that is not there 3 instead of 40; where they are 0.65 of it, whole ones are the quicker, 9 us
and 1.6 instead of 10 and 4.4."""
LOG_MEMTABLE_BYTES: Final = 128 * 1024 * 1024
"""A calm node flushes it, so that a crowd finds room for what it writes: a million takeovers are 90 MiB. RocksDB takes
as much of the disk in advance for the WAL of each."""
_STATE_MEMTABLE_BYTES: Final = 4 * 1024 * 1024
"""It fits the core's own cache: a write into a memtable of 2 or 4 MiB costs 0.6 us, of 8 MiB 0.8, of 64 MiB 1.1. A look
into the order goes to each memtable, and halving their number halves what it costs."""
_STATE_MEMTABLES, _STATE_PART = 44, 0.65
"""So many full memtables of the state wait for each other, 176 MiB, or as many as take this part of the budget. Those
that wait are not what RocksDB flushes where the budget is used up."""
_STATE_MEMTABLES_MORE: Final = 16  # so many are filled while those are flushed
_NICER: Final = 10
"""RocksDB's threads are nicer than the event loop: a tenth of its share if both want the same processor. A flush of the
log takes 0.3 s of processor time, on all replicas at about the same time, and requests waited for it."""
_LAST: Final = b"\xff" * 16
"""Behind every key."""


class Shared:
    """Resources that all engines of one process share, to bound memory once: block cache and memtable budget."""

    def __init__(self, config: StorageConfig) -> None:
        self.cache = r.Cache.new_hyper_clock_cache(config.block_cache_bytes, _BLOCK_BYTES)
        self.memtable_bytes = config.memtable_bytes
        self.write_buffers = r.WriteBufferManager(config.memtable_bytes, False)
        self.open_files = config.open_files


def _options(shared: Shared, *, memtable_bytes: int, memtables: int) -> r.Options:
    options = r.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_manager(shared.write_buffers)
    # Only one thread writes: without the concurrent memtable each insert saves its atomics.
    options.set_allow_concurrent_memtable_write(False)
    options.set_write_buffer_size(memtable_bytes)
    options.set_max_write_buffer_number(memtables)
    # One flush and one compaction beside the event loop; more would take processor time from it.
    options.set_max_background_jobs(2)
    options.set_max_open_files(shared.open_files)
    # Records are small and often random to a compressor; only the last level, which holds nearly all bytes, is
    # compressed.
    options.set_compression_type(r.DBCompressionType.none())
    options.set_bottommost_compression_type(r.DBCompressionType.lz4())
    # Info logs are for RocksDB's developers; keep two.
    options.set_keep_log_file_num(2)
    table = r.BlockBasedOptions()
    table.set_block_cache(shared.cache)
    table.set_block_size(_BLOCK_BYTES)  # point reads dominate, and a small block is the least to read
    table.set_bloom_filter(_FILTER_BITS, False)
    table.set_format_version(5)
    # A hash in each data block replaces the binary search: a point read costs a fifth less.
    table.set_data_block_index_type(r.DataBlockIndexType.binary_and_hash())
    table.set_data_block_hash_ratio(0.75)
    # What it finds is four keys, read one after the other. With 16 a look-up costs a tenth more.
    table.set_block_restart_interval(4)
    # Index and filters live in the cache, so that tens of millions of records cannot exceed the memory bound.
    table.set_cache_index_and_filter_blocks(True)
    # They are split into parts, found by a small root that stays cached. Whole ones take a megabyte per file, and a
    # shard of the cache holds three: reads at ten million sessions spent most of their time on loading them again.
    # Parts of 64 KiB cost a read of a key in one of many files a fifth less than parts of 4 KiB, whose root takes as
    # long to search.
    table.set_index_type(r.BlockBasedIndexType.two_level_index_search())
    # Of eight keys in the index only the first is whole. So an index takes a third: that of a hundred million sessions
    # was larger than the cache. With a cache of a third of index and filters a look-up costs a fifth less, and the same
    # where all is in the cache.
    table.set_index_block_restart_interval(8)
    table.set_partition_filters(False)  # until there are many (:data:`_FILTERS_PART`)
    table.set_metadata_block_size(64 * 1024)
    table.set_pin_top_level_index_and_filter(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options.set_block_based_table_factory(table)
    return options


def state_options(shared: Shared) -> r.Options:
    """For ``state/``: no WAL (the Raft log serves as one), many small writes, few compactions."""
    part = int(shared.memtable_bytes * _STATE_PART) // _STATE_MEMTABLE_BYTES
    waiting = min(max(part, 1), _STATE_MEMTABLES)
    options = _options(shared, memtable_bytes=_STATE_MEMTABLE_BYTES, memtables=waiting + _STATE_MEMTABLES_MORE)
    # Each key is rewritten once per tier instead of up to ten times per level.
    options.set_compaction_style(r.DBCompactionStyle.universal())
    # A checkpoint flushes the writes since the last one as one file: every further file means more compaction, and one
    # filter more for a look-up to ask. They are some 140 MiB. With fewer memtables the store would flush these by
    # itself a moment before each checkpoint, and there would be twice as many files. Blooms of some 30 bits per record
    # keep reads from searching memtables that do not hold the key.
    options.set_min_write_buffer_number_to_merge(waiting)
    options.set_memtable_prefix_bloom_ratio(0.02)
    options.set_memtable_whole_key_filtering(True)
    # Files that may wait for each other: ten million records take about as many, so few passes bring a record to the
    # last tier. The blooms spare a read most of them; writes are slowed down if compaction lags far behind.
    options.set_level_zero_file_num_compaction_trigger(_CROWDED_FILES)
    # A compaction has eight bytes of memory for each record of the file that it writes, until its filter is made.
    options.set_target_file_size_base(32 * 1024 * 1024)
    options.set_level_zero_slowdown_writes_trigger(_SLOW_FILES)
    options.set_level_zero_stop_writes_trigger(_STOP_FILES)
    return options


def log_options(shared: Shared, memtable_bytes: int = LOG_MEMTABLE_BYTES) -> r.Options:
    """For ``raft/``: large values, written once, deleted in order by range, read at restart and by lagging peers."""
    options = _options(shared, memtable_bytes=min(memtable_bytes, shared.memtable_bytes // 2), memtables=3)
    # What is written here is dropped before long: to compress it is not worth its time.
    options.set_bottommost_compression_type(r.DBCompressionType.none())
    # A crash may leave a torn last record, which may be dropped (it was never acknowledged); damage anywhere before it
    # must be refused. RocksDB's default mode would silently drop everything behind the damage.
    options.set_wal_recovery_mode(r.DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_max_total_wal_size(512 * 1024 * 1024)
    return options


def _yield_to_loops() -> None:
    """Lower the priority of RocksDB's threads, which the first store that is opened has started."""
    nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICER)
    for task in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # only Linux has priorities per thread; another thread may have ended
            if (task / "comm").read_text().startswith("rocksdb:"):
                os.setpriority(os.PRIO_PROCESS, int(task.name), nice)


def _filters_crowd(db: Any) -> bool:
    """Whether the cache has no room for all filters (:data:`_FILTERS_PART`)."""
    keys = db.property_int_value("rocksdb.estimate-num-keys")
    return bool(keys * _FILTER_BITS / 8 > _FILTERS_PART * db.property_int_value("rocksdb.block-cache-capacity"))


class RocksEngine:
    """One RocksDB instance. ``wal`` False leaves durability to :meth:`sync`, which then flushes the memtables.
    ``little_room``: on the disk, so that no compaction is to begin before :meth:`heed_room` is called."""

    def __init__(self, path: Path, options: r.Options, *, wal: bool, little_room: bool = False) -> None:
        self.path = path
        self._wal = wal
        # The binding's stubs declare its properties as methods and know no raw mode, hence Any.
        write_options: Any = r.WriteOptions()
        write_options.disable_wal = not wal
        self._write_options = write_options
        options.set_disable_auto_compactions(little_room)
        self._options = options
        self._exports: WeakSet[sst.SstExport] = WeakSet()
        self._pins: WeakSet[IteratorPin] = WeakSet()
        self._ingest = IngestDirectory(path / "ingest")
        self._replacing = threading.Lock()  # several threads may replace groups
        self._held = little_room  # no compaction begins by itself
        self._compacts_not, self._endures = little_room, False  # as RocksDB was told
        self._many_filters = False  # the same
        self.reclaiming_bytes = 0
        self._full = False  # the disk had no space for a write
        self._worn: tuple[bytes, bytes] | None = None
        _refuse_headless(path)
        try:
            # The binding opens a store that exists with the options in its files, unless the column family is given
            # its own: without our block cache and bloom filters, and deaf to the configuration.
            self._db: Any = r.Rdict(str(path), options, column_families={"default": options})
        except Exception as error:  # the binding raises plain Exception
            raise _open_error(path, error) from None
        _yield_to_loops()
        self._family = self._db.get_column_family_handle("default")
        try:
            unfinished = self._ingest.pending()
            if unfinished is not None:
                self._replace(unfinished)
        except BaseException:
            self.close()
            raise

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise self._mapped(error) from None
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            values: list[bytes | None] = self._db.get(list(keys))
        except Exception as error:
            raise self._mapped(error) from None
        return values

    def scan(self, begin: bytes, end: bytes, limit: int, bytes_max: int = UNBOUNDED_BYTES) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        begun_s = time.thread_time()
        key = end
        try:
            for key, value in self._db.items(from_key=begin):
                if key >= end or len(found) >= limit:
                    break
                found.append((key, value))
                bytes_max -= len(key) + len(value)
                if bytes_max <= 0:
                    break
            else:
                key = end
                self._verify_end(found[-1][0] if found else begin)
        except Exception as error:
            raise self._mapped(error) from None
        if time.thread_time() - begun_s > _WORN_S and len(found) < _WORN_ROWS:
            self._worn = begin, max(end, key)
        return found

    def scan_backwards(self, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        try:
            for key, value in self._db.items(backwards=True, from_key=end):
                if key >= end:
                    continue
                if key < begin or len(found) >= limit:
                    return found
                found.append((key, value))
            self._verify_start(found[-1][0] if found else end)
        except Exception as error:
            raise self._mapped(error) from None
        return found

    def _verify_end(self, last: bytes) -> None:
        """Raise if a scan ended behind ``last`` because of a damaged block and not because nothing follows: the
        binding's iterators end silently at data that RocksDB cannot read."""
        iterator = self._db.iter()
        iterator.seek(last)
        if iterator.valid() and iterator.key() == last:
            iterator.next()
        iterator.status()

    def _verify_start(self, first: bytes) -> None:
        iterator = self._db.iter()
        iterator.seek_for_prev(first)
        if iterator.valid():
            iterator.prev()
        iterator.status()

    def write(self, *batches: Writes, delete_ranges: Sequence[tuple[bytes, bytes]] = ()) -> None:
        batch = r.WriteBatch(raw_mode=True)
        for begin, end in delete_ranges:
            batch.delete_range(begin, end, self._family)
        put, delete = batch.put, batch.delete  # item assignment costs nearly twice as much
        for writes in batches:
            for key, value in writes.items():
                if value is None:
                    delete(key)
                else:
                    put(key, value)
        try:
            self._db.write(batch, self._write_options)
        except Exception as error:
            raise self._mapped(error) from None

    def export(self, begin: bytes, end: bytes, part_bytes: int = PART_BYTES) -> sst.SstExport:
        export = sst.SstExport(self._db, self._options, begin, end, part_bytes, self._mapped)
        self._exports.add(export)
        return export

    def pin(self, begin: bytes, end: bytes, *, brief: bool = False) -> IteratorPin:
        pin = IteratorPin(self._db, begin, end, self._mapped, fill_cache=brief)
        self._pins.add(pin)
        return pin

    def replace(self, begin: bytes, end: bytes, parts: Sequence[bytes | Path], writes: Writes = NO_WRITES) -> None:
        with self._replacing:
            manifest = self._ingest.prepare(begin, end, sst.files(begin, end, parts), writes)
            try:
                self._replace(manifest)
            except StorageError as error:
                raise type(error)(
                    f"{error} (while a range of the store was being replaced; its content is mixed, and will be "
                    "finished when the store is opened again)"
                ) from None

    def _replace(self, manifest: Manifest) -> None:
        """Idempotent, as long as nobody has written to the range in between."""
        if self.scan(manifest.begin, manifest.end, 1):
            # Only if the range is not empty: above a deleted range every file stays on level 0 and is compacted from
            # there; in an empty range a file goes directly to its final level.
            self.write(delete_ranges=[(manifest.begin, manifest.end)])
        self.flush()  # ingestion holds the interpreter, so it must not find a memtable to flush
        names = [name for name, _, _ in manifest.files]
        options = r.IngestExternalFileOptions()
        options.set_move_files(True)
        for position in range(0, len(names), _INGEST_FILES):
            links = [self._ingest.link(name) for name in names[position : position + _INGEST_FILES]]
            self._wait_for_room()
            try:
                self._db.ingest_external_file(links, options)
            except Exception as error:
                raise self._mapped(error) from None
        if manifest.writes:
            self.write(manifest.writes)
        self.flush()
        self._ingest.finish()

    def _wait_for_room(self) -> None:
        until = time.monotonic() + _ROOM_TIMEOUT_S
        while self.figures().level0_files > _CROWDED_FILES and time.monotonic() < until:
            time.sleep(0.01)

    def flush(self) -> None:
        try:
            self._db.flush(True)
        except Exception as error:
            raise self._mapped(error) from None

    def take_worn(self) -> tuple[bytes, bytes] | None:
        if self._held:  # to drop what is deleted takes room first, and :meth:`reclaim` knows how much
            return None
        worn, self._worn = self._worn, None
        return worn

    def compact(self, begin: bytes, end: bytes) -> None:
        try:
            self._db.compact_range(begin, end)
        except Exception as error:
            raise self._mapped(error) from None

    def figures(self) -> Figures:
        try:
            return Figures(*(self._db.property_int_value(f"rocksdb.{name}") or 0 for name in _FIGURES))
        except Exception as error:
            raise self._mapped(error) from None

    @property
    def files_bytes(self) -> int:
        size: int = self._db.property_int_value("rocksdb.total-sst-files-size")
        return size

    def heed_room(self, mark_bytes: int, files_bytes: int) -> None:
        self._held = use_of(self.path).free_bytes < min(files_bytes + mark_bytes, _AMPLE_MARKS * mark_bytes)
        # Level 0 may grow meanwhile, and afterwards until it was compacted: a write that is stopped holds the node up.
        endures = self._held or (self._endures and self.figures().level0_files > _CROWDED_FILES)
        slow, stop = (_UNLIMITED_FILES, _UNLIMITED_FILES) if endures else (_SLOW_FILES, _STOP_FILES)
        changed = {}
        if (self._held, endures) != (self._compacts_not, self._endures):
            changed = {
                "disable_auto_compactions": "true" if self._held else "false",
                "level0_slowdown_writes_trigger": str(slow),
                "level0_stop_writes_trigger": str(stop),
            }
        if not self._many_filters and _filters_crowd(self._db):
            self._many_filters = True
            changed["block_based_table_factory"] = "{partition_filters=true}"
        if not changed:
            return
        try:
            self._db.set_options(changed)
        except Exception as error:
            raise self._mapped(error) from None
        self._compacts_not, self._endures = self._held, endures

    def reclaim(self, left_bytes: int | None = None, spare_bytes: int = 0) -> int:
        files = self.files_bytes
        left = self._left(files) if left_bytes is None else left_bytes
        if left >= files - files // _WORTH_PART:
            return 0
        if lacks := max(0, left * 4 // 3 + 1 + spare_bytes - use_of(self.path).free_bytes):
            return lacks
        self.reclaiming_bytes = left
        try:
            self.compact(b"", _LAST)
        finally:
            self.reclaiming_bytes = 0
        return 0

    def _left(self, files: int) -> int:
        """About how many bytes of these are pairs that are neither deleted nor overwritten."""
        properties = self._db.property_value("rocksdb.aggregated-table-properties")
        if (counted := self._count_left()) is not None:
            raw = sum(int(size) for size in _RAW_BYTES.findall(properties))
            return counted * files // max(raw, counted, 1)
        # There are many, so their mean says enough: a deletion and what it deletes are entries.
        counts = dict(_COUNT.findall(properties))
        entries, deleted = int(counts.get("entries", 0)), int(counts.get("deletions", 0))
        return files * max(0, entries - 2 * deleted) // max(entries - deleted, 1)

    def _count_left(self) -> int | None:
        """How many bytes the pairs have that are there, before any compression. None if to count them takes long."""
        options: Any = r.ReadOptions()
        options.fill_cache(False)
        options.set_max_skippable_internal_keys(_COUNT_ROWS)
        found, until_s = 0, time.monotonic() + _COUNT_S
        try:
            iterator = self._db.iter(options)
            iterator.seek(b"")
            for _ in range(_COUNT_ROWS):
                if (key := iterator.key()) is None:
                    iterator.status()
                    return found
                found += len(key) + len(iterator.value())
                if time.monotonic() > until_s:
                    break
                iterator.next()
        except Exception:  # too many deleted ones in a row; what is damaged shows where it is wanted
            return None
        return None

    def sync(self) -> None:
        if not self._wal:
            self.flush()
            return
        try:
            self._db.flush_wal(True)
        except Exception as error:
            raise self._mapped(error) from None

    def close(self) -> None:
        for export in self._exports:
            export.close()  # its iterator would keep the files and their lock
        for pin in self._pins:
            pin.close()
        with contextlib.suppress(AttributeError):
            del self._family  # a live handle would keep the files and their lock
        try:
            self._db.close()
        except Exception as error:
            raise self._mapped(error) from None

    def _mapped(self, error: Exception) -> StorageError:
        text = _one_line(error)
        if "orruption" in text:
            return DamagedStoreError(
                f"{self.path} is damaged: {text}. Stop this node, and keep the directory for analysis"
            )
        # After the first error RocksDB refuses all writes, and does not name the cause again.
        self._full = self._full or _is_full(text)
        return (DiskFullError if self._full else StorageError)(f"{self.path}: {text}")


def checkpoint(engine: RocksEngine, path: Path) -> None:
    """Make a directory with the files of this moment, which stay as they are. It takes no room of its own but for what
    the store drops later, and opens as a store. Call it in a thread: it waits for a flush, and holds the interpreter
    for some milliseconds behind that. May raise StorageError."""
    with engine._replacing:  # or it would have half of what is being replaced
        engine.flush()  # the checkpoint flushes, too, but holds the interpreter meanwhile
        try:
            r.Checkpoint(engine._db).create_checkpoint(str(path))
        except Exception as error:
            raise engine._mapped(error) from None


class IteratorPin:
    """A :class:`.engine.Pin`: an iterator sees the moment at which it was made. ``mapped`` converts the errors of
    RocksDB."""

    def __init__(
        self, db: Any, begin: bytes, end: bytes, mapped: Callable[[Exception], StorageError], *, fill_cache: bool
    ) -> None:
        self._begin, self._end = begin, end
        self._mapped = mapped
        options: Any = r.ReadOptions()
        options.fill_cache(fill_cache)
        try:
            self._iterator: Any = db.iter(options)
        except Exception as error:
            raise mapped(error) from None
        self._at: bytes | None = None  # the iterator is at the first pair from here on ...
        self._is_read = False  # ... or, if so, at the one before

    def scan(self, begin: bytes, end: bytes, limit: int, bytes_max: int = UNBOUNDED_BYTES) -> list[tuple[bytes, bytes]]:
        iterator = self._iterator
        if iterator is None:
            raise StorageError("this pin was closed")
        begin, end = max(begin, self._begin), min(end, self._end)
        found: list[tuple[bytes, bytes]] = []
        if begin >= end or limit <= 0 or bytes_max <= 0:
            return found
        try:
            at, self._at = self._at, None
            if begin != at:
                iterator.seek(begin)
            elif self._is_read:
                iterator.next()
            append, of_key, of_value, go_on = found.append, iterator.key, iterator.value, iterator.next
            while (key := of_key()) is not None:  # without one it is at its end
                if key >= end:
                    self._at, self._is_read = found[-1][0] + b"\0" if found else begin, False
                    return found
                value = of_value()
                append((key, value))
                bytes_max -= len(key) + len(value)
                if len(found) == limit or bytes_max <= 0:
                    self._at, self._is_read = key + b"\0", True  # the next pair may never be wanted
                    return found
                go_on()
            iterator.status()  # an iterator ends silently at data that it cannot read
        except Exception as error:
            raise self._mapped(error) from None
        return found

    def close(self) -> None:
        self._iterator = None


def _one_line(error: Exception) -> str:
    """A message of RocksDB as one line."""
    return " ".join(str(error).split()).rstrip(".")


# Causes as strerror words them.
_NO_SPACE = ("No space left", "Disk quota exceeded")
# Full or read-only disks, missing rights, limits of the process.
_NOT_DAMAGE = (
    *_NO_SPACE,
    "Read-only file system",
    "Permission denied",
    "Operation not permitted",
    "Too many open files",
    "Cannot allocate memory",
)


def _refuse_headless(path: Path) -> None:
    """RocksDB creates an empty store if CURRENT is missing, and deletes the tables that nothing refers to then."""
    if (path / "CURRENT").exists() or not path.is_dir():
        return
    rest = sorted(file.name for file in path.iterdir() if file.suffix in (".sst", ".log") or "MANIFEST" in file.name)
    if rest:
        raise DamagedStoreError(
            f"{path} is damaged and was not opened: CURRENT is missing beside {rest[0]}. Nothing was changed"
        )


def _open_error(path: Path, error: Exception) -> StorageError:
    text = _one_line(error)
    if "lock" in text.lower() and ("No locks available" in text or "temporarily unavailable" in text):
        return StorageError(f"{path} is in use by another metad process; stop it, or give this one its own --data-dir.")
    # Any other error on an existing store is damage, missing or truncated files included, unless the system names
    # another cause.
    if "orruption" in text or ((path / "CURRENT").exists() and not any(cause in text for cause in _NOT_DAMAGE)):
        return DamagedStoreError(f"{path} is damaged and was not opened: {text}. Nothing was changed")
    return (DiskFullError if _is_full(text) else StorageError)(f"cannot open {path}: {text}")


def _is_full(text: str) -> bool:
    return any(cause in text for cause in _NO_SPACE)
