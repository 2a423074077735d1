"""A partition on disk: one file of records, each with its length, a checksum, ``leader_epoch`` and offset in front.

A record counts only after fsync. Who writes names the ``leader_epoch`` for which it does: a thread that still writes
for a lower one than was taken is refused, so what a broker was before cannot touch what it is now. Blocking; several
threads may call the methods.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from .protocol import Record

_HEAD = struct.Struct(">II")  # of the rest: length, checksum
_REST = struct.Struct(">QQ")  # leader_epoch, offset
READ_BYTES_MAX = 1024 * 1024


class Fenced(Exception):
    """A higher ``leader_epoch`` was taken meanwhile; nothing was written."""


class Log:
    """The records before :attr:`end`, all of them durable."""

    def __init__(self, path: Path) -> None:
        """Open or make it. What a crash has left half written is cut off."""
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        sync_folder(path.parent)
        self._writing, self._taken = threading.Lock(), 0
        self._places = [0]  # where each record begins, and where the last one ends
        self.epochs: list[tuple[int, int]] = []  # each leader_epoch of the records, with its first offset
        self._recover()

    @property
    def end(self) -> int:
        """How many records there are."""
        return len(self._places) - 1

    @property
    def last_epoch(self) -> int:
        """The ``leader_epoch`` of the last record; 0 if there is none."""
        return self.epochs[-1][0] if self.epochs else 0

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The greatest epoch up to this one that has records, and the offset behind its last; 0, 0 if none has."""
        at = bisect_right(self.epochs, (epoch, 1 << 63))
        if not at:
            return 0, 0
        return self.epochs[at - 1][0], self.epochs[at][1] if at < len(self.epochs) else self.end

    def read(self, offset: int, end: int) -> list[Record]:
        """Records from ``offset`` on, those before ``end``: about 1 MiB at most, one at least if there is one."""
        places = self._places
        last = min(end, len(places) - 1)
        if offset >= last:
            return []
        last = min(last, max(offset + 1, bisect_right(places, places[offset] + READ_BYTES_MAX) - 1))
        return _decoded(os.pread(self._file, places[last] - places[offset], places[offset]))

    def take(self, leader_epoch: int) -> int:
        """From now on, nothing is written for a lower ``leader_epoch``. Returns the end."""
        with self._writing:
            self._taken = max(self._taken, leader_epoch)
            return self.end

    def append(self, leader_epoch: int, records: Sequence[Record]) -> int:
        """Write records behind the last one. Returns the end. Raises Fenced."""
        encoded = [_encoded(record) for record in records]
        with self._writing:
            self._check(leader_epoch)
            assert [record.offset for record in records] == [*range(self.end, self.end + len(records))]
            places = [*accumulate(map(len, encoded), initial=self._places[-1])]
            os.pwrite(self._file, b"".join(encoded), places[0])
            os.fdatasync(self._file)
            for record in records:
                if record.leader_epoch > self.last_epoch:
                    self.epochs.append((record.leader_epoch, record.offset))
            self._places += places[1:]
            return self.end

    def truncate(self, leader_epoch: int, end: int) -> None:
        """Drop the records from ``end`` on. Raises Fenced."""
        with self._writing:
            self._check(leader_epoch)
            self._cut(end)

    def close(self, *, delete: bool = False) -> None:
        """Write nothing any more; ``delete``: all is deleted."""
        with self._writing:
            self._taken = 1 << 63
            os.close(self._file)
            if delete:
                self.path.unlink()
                sync_folder(self.path.parent)

    def _check(self, leader_epoch: int) -> None:
        if leader_epoch < self._taken:
            raise Fenced(f"leader_epoch {self._taken} was taken, after {leader_epoch}")

    def _cut(self, end: int) -> None:
        os.ftruncate(self._file, self._places[end])
        os.fsync(self._file)
        del self._places[end + 1 :]
        self.epochs = [(epoch, first) for epoch, first in self.epochs if first < end]

    def _recover(self) -> None:
        data = self.path.read_bytes()
        for record in _decoded(data):
            if record.offset != self.end:
                break
            if record.leader_epoch > self.last_epoch:
                self.epochs.append((record.leader_epoch, record.offset))
            self._places.append(self._places[-1] + _HEAD.size + _REST.size + len(record.payload))
        if self._places[-1] < len(data):
            self._cut(self.end)


def sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _encoded(record: Record) -> bytes:
    rest = _REST.pack(record.leader_epoch, record.offset) + record.payload
    return _HEAD.pack(len(rest), zlib.crc32(rest)) + rest


def _decoded(data: bytes) -> list[Record]:
    """The records up to the first that is not whole."""
    found, at = [], 0
    while at + _HEAD.size <= len(data):
        size, checksum = _HEAD.unpack_from(data, at)
        rest = data[at + _HEAD.size : at + _HEAD.size + size]
        if size < _REST.size or len(rest) < size or zlib.crc32(rest) != checksum:
            break
        leader_epoch, offset = _REST.unpack_from(rest)
        found.append(Record(leader_epoch, offset, rest[_REST.size :]))
        at += _HEAD.size + size
    return found
