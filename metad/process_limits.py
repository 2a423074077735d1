"""What the limits of a node promise, held against what its process may have: open files, and memory.

A node that runs out of descriptors cannot open the next file of its store, and one that runs out of memory is killed.
So descriptors are set aside for storage and for other nodes before clients get theirs, and what does not fit is lowered
and said. Memory is not lowered, because it is a matter of what clients do; it is said.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from metad_wire.program.open_files import limit_of, peer_files

from .config import Config
from .errors import ConfigError

_BASE_FILES: Final = 64
"""Listeners, logs, locks, files of a snapshot in transfer, and what the interpreter has open."""
_STORES: Final = 2
_STORE_FILES: Final = 24
"""Of a store, beside the table files that it keeps open: its logs, and those that a compaction reads and writes."""
_OPEN_FILES_MIN: Final = 24
_CONNECTIONS_MIN: Final = 8
_PER_CONNECTION: Final = 1.5
"""Beside those that are served, as many as half of them may be in a handshake or a greeting."""
_BASE_BYTES: Final = 128 * 1024 * 1024
"""The interpreter, its modules, and RocksDB without its caches."""
_CGROUPS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Lowered(NamedTuple):
    """A setting that the process cannot keep."""

    key: str
    configured: int
    possible: int
    reason: str


def fitted(config: Config, files: int) -> tuple[Config, list[Lowered]]:
    """The configuration of a node whose process may open so many files, and what had to be lowered. Raises ConfigError
    if a node cannot work with so few."""
    storage, limits = config.storage, config.limits
    peers = peer_files(files)
    open_files = 0
    if storage.engine != "memory":
        open_files = min(storage.open_files, max(_OPEN_FILES_MIN, files // 16))
    left = files - _BASE_FILES - peers - (_STORES * (open_files + _STORE_FILES) if open_files else 0)
    connections = min(limits.connections_max, int(left / _PER_CONNECTION))
    reason = f"the process may open {files} files (ulimit -n, LimitNOFILE)"
    if connections < _CONNECTIONS_MIN:
        raise ConfigError(f"{reason}, which leaves none for clients: let it open more, 16,384 for example")
    lowered: list[Lowered] = []
    if open_files and open_files < storage.open_files:
        lowered.append(Lowered("storage.open_files", storage.open_files, open_files, reason))
        storage = msgspec.structs.replace(storage, open_files=open_files)
    if connections < limits.connections_max:
        lowered.append(Lowered("limits.connections_max", limits.connections_max, connections, reason))
        limits = msgspec.structs.replace(limits, connections_max=connections)
    return msgspec.structs.replace(config, storage=storage, limits=limits), lowered


def memory_shortage(configs: Sequence[Config]) -> Lowered | None:
    """Whether nodes with these configurations, all of them on this machine, may want more memory than there is."""
    promised, (allowed, by) = sum(map(_promised, configs)), _memory()
    if promised <= allowed:
        return None
    return Lowered(
        "memory", promised, allowed, f"{by}: lower storage.block_cache_bytes and memtable_bytes, or allow more"
    )


def _promised(config: Config) -> int:
    storage, limits = config.storage, config.limits
    of_clients: Iterable[int] = (
        limits.in_flight_bytes_max,
        limits.unfinished_bytes_max,
        limits.unbegun_bytes_max,
        limits.unsent_bytes_max,
        limits.watch_held_bytes_max,
    )
    caches = storage.owner_cache_bytes + storage.row_cache_bytes
    if storage.engine != "memory":
        caches += storage.block_cache_bytes + storage.memtable_bytes
    return _BASE_BYTES + caches + sum(of_clients)


def _memory() -> tuple[int, str]:
    """The memory that the process may have, and who says so."""
    found = [(limit_of(resource.RLIMIT_AS), "the limit of the process (ulimit -v)")]
    for path in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):
            found.append((int(Path(path).read_text()), "the limit of the container (memory of its cgroup)"))
    with contextlib.suppress(OSError, ValueError, IndexError):
        kib = int(Path("/proc/meminfo").read_text().split()[1])
        found.append((kib * 1024, "the machine"))
    return min(found)
