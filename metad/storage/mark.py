"""Records how far the log of every group is durable, outside of the log.

RocksDB has to accept a torn last record of its WAL, because a crash leaves one. So a WAL that was cut off, or whose
damage looks like a torn record, opens without complaint although acknowledged entries are missing. The mark tells the
two apart: it is written after every fsync of the log, and a log that ends before its mark has lost something.

The mark itself is not synced, so it costs a copy into the page cache. After the death of the process it is exact; after
a power loss it may be older than the log, or torn and then ignored; it is never ahead. If a log shrinks at its end (a
follower drops entries that were never committed), the mark is lowered first, and that is synced: otherwise a power loss
could bring back the higher mark and leave the shorter log.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol
from zlib import crc32

from ..errors import file_error
from .keys import GROUP_PREFIX_BYTES

_MAGIC = b"metadmk1"
_row = struct.Struct(f">{GROUP_PREFIX_BYTES}sQ")
_checksum = struct.Struct(">I")


class MarkFile(Protocol):
    """The file of a mark. Its methods may raise OSError."""

    def read(self) -> bytes:
        """Everything."""

    def write(self, data: bytes) -> None:
        """Overwrite the beginning. Visible at once; a power loss may bring the old bytes back, or mix both."""

    def sync(self) -> None:
        """Make durable what was written."""

    def close(self) -> None:
        """Release it."""


class SystemFile:
    """A file of the operating system."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def read(self) -> bytes:
        return self._path.read_bytes()

    def write(self, data: bytes) -> None:
        os.pwrite(self._file, data, 0)

    def sync(self) -> None:
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)


class DurableMark:
    """Last durable index by group prefix, in a small file. Not for two threads at once."""

    def __init__(self, path: Path, open_file: Callable[[Path], MarkFile] = SystemFile) -> None:
        self.path = path
        try:
            self._file = open_file(path)
            self._indexes = _parse(self._file.read())
        except OSError as error:
            raise file_error(f"cannot open {path}", error) from None

    def get(self, group: bytes) -> int:
        """The index that the group's log must at least reach; 0 if unknown."""
        return self._indexes.get(group, 0)

    def advance(self, indexes: Mapping[bytes, int]) -> None:
        """Record that the logs are durable through these indexes."""
        self._indexes.update(indexes)
        self._write()

    def lower(self, group: bytes, index: int) -> None:
        """Record that the group's log is about to end at ``index``."""
        if self._indexes.get(group, 0) > index:
            self._indexes[group] = index
            self._write()
            self._sync()

    def _write(self) -> None:
        body = _MAGIC + b"".join([_row.pack(group, index) for group, index in self._indexes.items()])
        try:
            self._file.write(body + _checksum.pack(crc32(body)))
        except OSError as error:
            raise file_error(f"cannot write {self.path}", error) from None

    def _sync(self) -> None:
        try:
            self._file.sync()
        except OSError as error:
            raise file_error(f"cannot sync {self.path}", error) from None

    def close(self) -> None:
        """Release the file."""
        self._file.close()


def _parse(data: bytes) -> dict[bytes, int]:
    """The indexes, or nothing if the file is torn."""
    body = data[: -_checksum.size]
    if not body.startswith(_MAGIC) or data[len(body) :] != _checksum.pack(crc32(body)):
        return {}
    rows = body[len(_MAGIC) :]
    return dict(_row.iter_unpack(rows)) if len(rows) % _row.size == 0 else {}
