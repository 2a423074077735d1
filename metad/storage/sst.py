"""A range as RocksDB files, made without a disk: the parts of :meth:`metad.storage.rocks.RocksEngine.export`.

A part is a small head around the content of an SST file. The head says which keys the file holds, so that a part cannot
replace another range, and has a checksum, because RocksDB would notice damage only when it reads the block. The
binding's writer holds the interpreter while it syncs its file; therefore the file is in memory if the system has such
files.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec
import rocksdict as r

from ..errors import START_AGAIN, DamagedStoreError, StorageError

SLICE_PAIRS: Final = 1000
"""Pairs read and written between two yields: some 1.5 ms."""
SLICE_BYTES: Final = 256 * 1024
"""Bytes likewise, because large values are compressed meanwhile."""


class _Part(msgspec.Struct, frozen=True, array_like=True, tag="sst1"):
    first: bytes
    last: bytes
    crc32: int
    file: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Part).decode


class SstExport:
    """A :class:`metad.storage.engine.Export` of SST files. ``mapped`` converts the errors of RocksDB."""

    def __init__(
        self,
        db: Any,
        options: r.Options,
        begin: bytes,
        end: bytes,
        part_bytes: int,
        mapped: Callable[[Exception], StorageError],
    ) -> None:
        self._mapped = mapped
        read_options: Any = r.ReadOptions()
        read_options.fill_cache(False)  # nobody reads it again soon
        try:
            iterator = db.iter(read_options)  # sees this moment, whatever is written later
            iterator.seek(begin)
        except Exception as error:  # noqa: BLE001 - as in rocks.py
            raise mapped(error) from None
        self._parts: Generator[bytes, None, None] | None = _parts(iterator, options, end, part_bytes)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._parts is None:
            raise StorageError("this export was closed")
        try:
            return next(self._parts)
        except StopIteration:
            raise
        except Exception as error:  # noqa: BLE001 - as in rocks.py
            raise self._mapped(error) from None

    def close(self) -> None:
        if self._parts is not None:
            self._parts.close()
            self._parts = None  # a generator that never ran still has the iterator, which would keep the store's files


def _parts(iterator: Any, options: r.Options, end: bytes, part_bytes: int) -> Generator[bytes, None, None]:
    while iterator.valid() and (first := iterator.key()) < end:
        with _scratch() as (path, content):
            writer: Any = r.SstFileWriter(options)
            writer.open(path)
            key, last, size = first, first, 0
            pairs_left, bytes_left = SLICE_PAIRS, SLICE_BYTES
            while size < part_bytes:
                value = iterator.value()
                writer[key] = value
                last = key
                written = len(key) + len(value)
                size += written
                pairs_left -= 1
                bytes_left -= written
                if pairs_left <= 0 or bytes_left <= 0:
                    yield b""
                    pairs_left, bytes_left = SLICE_PAIRS, SLICE_BYTES
                iterator.next()
                if not iterator.valid() or (key := iterator.key()) >= end:
                    break
            yield b""
            writer.finish()  # writes index and filter
            yield b""
            file = content()
        yield _encode(_Part(first, last, crc32(file), file))
    iterator.status()  # an iterator ends silently at data that it cannot read


@contextlib.contextmanager
def _scratch() -> Iterator[tuple[str, Callable[[], bytes]]]:
    """A place to write a file: (its path, a function that reads it)."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("metad-part", os.MFD_CLOEXEC)
        try:
            yield f"/proc/self/fd/{descriptor}", lambda: os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        finally:
            os.close(descriptor)
    else:
        with tempfile.TemporaryDirectory(prefix="metad-part-") as directory:
            path = Path(directory) / "part.sst"
            yield str(path), path.read_bytes


def files(begin: bytes, end: bytes, parts: Sequence[bytes | Path]) -> Iterator[bytes]:
    """The SST files in parts. Raises DamagedStoreError if one is damaged, foreign, or not of this range."""
    before = None
    for position, part in enumerate(parts):
        try:
            found = _decode(part if isinstance(part, bytes) else part.read_bytes())
        except msgspec.DecodeError as error:
            raise DamagedStoreError(f"part {position} of a snapshot is unreadable: {error}", START_AGAIN) from None
        except OSError as error:
            raise StorageError(f"cannot read part {position} of a snapshot: {error}") from None
        if crc32(found.file) != found.crc32:
            raise DamagedStoreError(f"part {position} of a snapshot is damaged: its checksum differs", START_AGAIN)
        if not begin <= found.first <= found.last < end or (before is not None and found.first <= before):
            raise DamagedStoreError(f"part {position} of a snapshot holds keys that do not belong there", START_AGAIN)
        before = found.last
        yield found.file
