"""Room on the disk of a data directory: how much there is, below which mark it is too little, and the reserve.

The *reserve* is a file without use. A start that finds no room deletes it, because a store cannot be opened without
some; so does a node whose disk is full, because deletes take some room before they make any.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

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


def mark_of(use: DiskUse, low_room_bytes: int) -> int:
    """The low-water mark of a disk, where so much is configured."""
    return min(low_room_bytes, use.total_bytes // _SHARE)


def release_reserve(directory: Path, use: DiskUse, mark: int) -> int:
    """Delete the reserve if the disk has less room than it takes. Returns how many bytes that has freed. May raise
    OSError."""
    reserve = directory / "reserve"
    if use.free_bytes >= _wanted(directory, mark) or not reserve.exists():
        return 0
    size = reserve.stat().st_size
    reserve.unlink()
    return size


def lend_reserve(directory: Path, lacking_bytes: int) -> int:
    """Delete the reserve if that makes the room which is lacking to drop what was deleted. Returns how many bytes that
    has freed. May raise OSError."""
    reserve = directory / "reserve"
    if not reserve.exists() or (size := reserve.stat().st_size) < lacking_bytes:
        return 0
    reserve.unlink()
    return size


def keep_reserve(directory: Path, use: DiskUse, mark: int) -> int:
    """Make the reserve as long as it should be, once the disk has no ample room any more, and while it has enough.
    Returns how many bytes of it are missing, which nothing else may take. May raise OSError."""
    if use.free_bytes > _AMPLE_MARKS * mark:
        return 0
    reserve, wanted = directory / "reserve", _wanted(directory, mark)
    missing = max(0, wanted - (reserve.stat().st_size if reserve.exists() else 0))
    if not missing or use.free_bytes - missing <= BACK * mark:
        return missing
    with reserve.open("ab") as file:
        os.posix_fallocate(file.fileno(), 0, wanted)
    return 0


def missing_to_open(directory: Path) -> int:
    """How many bytes of room the disk lacks for the stores to be opened, if the reserve is deleted for that; 0 if there
    are enough. May raise OSError."""
    reserve = directory / "reserve"
    has = use_of(directory).free_bytes + (reserve.stat().st_size if reserve.exists() else 0)
    return max(0, _OPEN_BYTES + _unflushed(directory) - has)


def _wanted(directory: Path, mark: int) -> int:
    """How long the reserve should be."""
    return max(_OPEN_BYTES, mark // _RESERVE_PART) + _unflushed(directory)


def _unflushed(directory: Path) -> int:
    """What only the log's own log has: a start writes it to a table file."""
    return sum(file.stat().st_size for file in (directory / "raft").glob("*.log"))
