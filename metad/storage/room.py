"""Room on the disk of a data directory: how much there is, below which mark it is too little, and the reserve.

The *reserve* is a file without use. A start that finds no room deletes it, because a store cannot be opened without
some; so does a node whose disk is full, because deletes take some room before they make any.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from ..config import StorageConfig

_SHARE: Final = 10
"""Of a small disk, one in so many parts is the low-water mark."""
_AMPLE_MARKS: Final = 16
"""With so many times the mark there is no need for a reserve yet."""
_RESERVE_PART: Final = 4
"""Of the mark: so much the reserve takes, beside what a start writes again of the log."""

BACK: Final = 1.25
"""With so many times the mark there is room again: the node's own files come and go."""
_OPEN_BYTES: Final = 512 * 1024
"""The small files that RocksDB makes anew whenever two stores are opened take less than half of this."""


class DiskUse(NamedTuple):
    """What the system says of a file system."""

    free_bytes: int
    total_bytes: int


def use_of(directory: Path) -> DiskUse:
    """Ask the system. May raise OSError, and may hang as the disk does."""
    found = os.statvfs(directory)
    return DiskUse(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def mark_of(use: DiskUse, config: StorageConfig) -> int:
    """The low-water mark of a disk, in bytes: ``low_room_bytes``, but no more than a tenth of the disk, or
    ``low_room_share`` of it if that is more."""
    return max(min(config.low_room_bytes, use.total_bytes // _SHARE), int(use.total_bytes * config.low_room_share))


_SPANS_S: Final = (60.0, 1_800.0, 86_400.0)
"""A crowd that fills a disk shows within a minute, and a slow growth within a day."""
_SAMPLES, _ENOUGH = 30, 6
"""Of each span so many are kept, and with so many there is a trend."""
_BELIEVED: Final = 30
"""A trend is believed for so many times as long as it was seen."""


class Trend:
    """How fast the room on a disk shrinks. Of three spans it takes the median of the changes between any two samples,
    so that a file that comes and goes counts for nothing. 90 samples are kept."""

    def __init__(self) -> None:
        self._spans = [_Span(span_s / _SAMPLES) for span_s in _SPANS_S]

    def see(self, now_s: float, free_bytes: int) -> None:
        """So much is free now. It may be called as often as one likes."""
        for span in self._spans:
            span.see(now_s, free_bytes)

    def lasts_s(self, free_bytes: int) -> float | None:
        """For how many seconds so much lasts. None if the room does not shrink, or lasts for longer than 30 times as
        long as that was seen, which is never more than 30 days."""
        return min((lasts for span in self._spans if (lasts := span.lasts_s(free_bytes)) is not None), default=None)


class _Span:
    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._seen: deque[tuple[float, int]] = deque(maxlen=_SAMPLES + 1)
        self._per_s = 0.0

    def see(self, now_s: float, free_bytes: int) -> None:
        seen = self._seen
        if seen and now_s < seen[-1][0] + self._step_s:
            return
        seen.append((now_s, free_bytes))
        if len(seen) >= _ENOUGH:
            self._per_s = median((free - before) / (at - then) for (then, before), (at, free) in combinations(seen, 2))

    def lasts_s(self, free_bytes: int) -> float | None:
        if self._per_s >= 0:
            return None
        lasts = max(0, free_bytes) / -self._per_s
        return lasts if lasts <= _BELIEVED * (self._seen[-1][0] - self._seen[0][0]) else None


def release_reserve(directory: Path, use: DiskUse, mark: int) -> int:
    """Delete the reserve if the disk has less room than it takes. Returns how many bytes that has freed. May raise
    OSError."""
    reserve = directory / "reserve"
    if use.free_bytes >= _wanted(directory, mark) or not (size := _size(reserve)):
        return 0
    reserve.unlink(missing_ok=True)
    return size


def lend_reserve(directory: Path, lacking_bytes: int) -> int:
    """Delete the reserve if that makes the room which is lacking to drop what was deleted. Returns how many bytes that
    has freed. May raise OSError."""
    reserve = directory / "reserve"
    if (size := _size(reserve)) < lacking_bytes:
        return 0
    reserve.unlink(missing_ok=True)
    return size


def keep_reserve(directory: Path, use: DiskUse, mark: int) -> int:
    """Make the reserve as long as it should be, once the disk has no ample room any more, and while it has enough.
    Returns how many bytes of it are missing, which nothing else may take. May raise OSError."""
    if use.free_bytes > _AMPLE_MARKS * mark:
        return 0
    reserve, wanted = directory / "reserve", _wanted(directory, mark)
    missing = max(0, wanted - _size(reserve))
    if not missing or use.free_bytes - missing <= BACK * mark:
        return missing
    with reserve.open("ab") as file:
        os.posix_fallocate(file.fileno(), 0, wanted)
    return 0


def missing_to_open(directory: Path) -> int:
    """How many bytes of room the disk lacks for the stores to be opened, if the reserve is deleted for that; 0 if there
    are enough. May raise OSError."""
    has = use_of(directory).free_bytes + _size(directory / "reserve")
    return max(0, _OPEN_BYTES + _unflushed(directory) - has)


def _wanted(directory: Path, mark: int) -> int:
    """How long the reserve should be."""
    return max(_OPEN_BYTES, mark // _RESERVE_PART) + _unflushed(directory)


def _unflushed(directory: Path) -> int:
    """What only the log's own log has: a start writes it to a table file."""
    return sum(_size(file) for file in (directory / "raft").glob("*.log"))


def _size(file: Path) -> int:
    """0 if it is gone: the store deletes its files, and a thread beside this one the reserve."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
