"""The storage seam: an ordered map of bytes with atomic batches. tests/contract holds both implementations to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

Writes = Mapping[bytes, bytes | None]
"""Changes by key: a value puts the key, None deletes it."""

NO_WRITES: Final[Writes] = MappingProxyType({})

UNBOUNDED_BYTES: Final = 1 << 62
"""For scans of rows that are known to be small."""

PART_BYTES: Final = 4 * 1024 * 1024
"""Keys and values in one part of an export, before compression. A node holds a few parts of a snapshot in transfer."""


class Export(Iterator[bytes], Protocol):
    """The parts of a range, made on demand. ``b""`` is not a part: it ends a slice of some 2 ms of work, so that the
    caller can let others run and then ask again. An export keeps data that has been overwritten or deleted since it was
    made, so use it up or close it. May raise the errors of an engine. Not for two threads at once."""

    def close(self) -> None:
        """Release everything. Asking for a part afterwards is an error, because the end of the parts means that there
        are no more pairs. Closing an engine with files also closes its exports."""


class Pin(Protocol):
    """A range as it was when the pin was made, whatever is written later. It keeps data that has been overwritten or
    deleted since, so close it. May raise the errors of an engine. Not for two threads at once."""

    def scan(self, begin: bytes, end: bytes, limit: int, bytes_max: int = UNBOUNDED_BYTES) -> list[tuple[bytes, bytes]]:
        """:meth:`Engine.scan` of that moment, within the range of the pin. Scans that follow each other are cheap."""

    def close(self) -> None:
        """Release everything. A scan afterwards is an error. Closing an engine with files also closes its pins."""


class Figures(NamedTuple):
    """Says how a store is; what an engine has not is 0."""

    files_bytes: int = 0
    """Of its files with pairs."""
    memtables_bytes: int = 0
    """In memory, and in no file yet."""
    cache_bytes: int = 0
    """Of the block cache, which all stores of a process share."""
    level0_files: int = 0
    """Not compacted yet."""
    pending_bytes: int = 0
    """To be compacted, about."""
    compactions: int = 0
    """That run now."""
    flushes: int = 0
    """The same."""
    stopped: int = 0
    """1: no write goes on until a flush or a compaction is done."""
    slowed_bytes_per_s: int = 0
    """To how much writes are held back; 0: they are not."""
    pairs: int = 0
    """About, deleted ones left out."""


class Engine(Protocol):
    """An ordered map. Every method may raise :class:`metad.errors.StorageError`, or its subclass
    :class:`~metad.errors.DamagedStoreError` if a checksum fails."""

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values by position. Lets other threads run while it reads."""

    def scan(self, begin: bytes, end: bytes, limit: int, bytes_max: int = UNBOUNDED_BYTES) -> list[tuple[bytes, bytes]]:
        """The first ``limit`` pairs with ``begin <= key < end``, in order, as of one moment. Fewer if the keys and
        values found reach ``bytes_max``; the pair that reaches it is the last."""

    def scan_backwards(self, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """The last ``limit`` pairs with ``begin <= key < end``, highest first."""

    def write(self, *batches: Writes, delete_ranges: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Delete the ranges ``[begin, end)``, then apply the batches in order; all or nothing. Visible at once, durable
        after the next :meth:`sync`."""

    def export(self, begin: bytes, end: bytes, part_bytes: int = PART_BYTES) -> Export:
        """The pairs with ``begin <= key < end`` as they are now, whatever is written while the parts are taken. A part
        is opaque, carries its own checksum, and goes into :meth:`replace` of an engine of the same kind."""

    def pin(self, begin: bytes, end: bytes, *, brief: bool = False) -> Pin:
        """The pairs with ``begin <= key < end`` as they are now. ``brief``: it is closed before anything is written, so
        making it costs little, and what it reads is kept in the cache."""

    def replace(self, begin: bytes, end: bytes, parts: Sequence[bytes | Path], writes: Writes = NO_WRITES) -> None:
        """Replace all pairs with ``begin <= key < end`` by the pairs of ``parts`` (in the order of their export; a Path
        is a file that holds one), and then ``writes``. Durable when it returns. If the process dies meanwhile, the
        range holds either its old or its new content after the next opening.

        Blocks, for seconds per gigabyte: call it in a thread. Others may use the engine meanwhile, but not this range,
        whose pairs come and go until the call has returned. After an error the old content is unchanged, unless the
        error says that the store must be opened again."""

    def sync(self) -> None:
        """Block until every write that returned before this call survives a power loss. Call it in a thread: it
        releases the interpreter while it waits."""

    def flush(self) -> None:
        """Write to files what is in memory, so that later writes find room there. Call it in a thread, as :meth:`sync`;
        it says nothing of what survives a power loss."""

    def take_worn(self) -> tuple[bytes, bytes] | None:
        """A range in which a scan has passed very many deleted pairs since this was asked last. Each such scan costs
        the same again, however few pairs it finds."""

    def compact(self, begin: bytes, end: bytes) -> None:
        """Drop deleted pairs with ``begin <= key < end`` from the files. Call it in a thread: it releases the
        interpreter, and takes seconds for each gigabyte of the store."""

    def figures(self) -> Figures:
        """How the store is, for whoever watches it. Takes microseconds."""

    @property
    def files_bytes(self) -> int:
        """How long its files with pairs are together; 0 without files."""

    def heed_room(self, mark_bytes: int, files_bytes: int) -> None:
        """Write no files anew but by :meth:`compact` and :meth:`reclaim` while there is so little room that this may
        leave less than the low-water mark: all engines of the disk, whose files have ``files_bytes`` together, may
        begin with it at once. To be called in a thread, now and then."""

    @property
    def reclaiming_bytes(self) -> int:
        """How much room :meth:`reclaim` takes now, or is about to take."""

    def reclaim(self, left_bytes: int | None = None, spare_bytes: int = 0) -> int:
        """Drop all deleted pairs from the files, if they are many and there is room to write down what is left, about
        ``left_bytes`` if the caller knows, with ``spare_bytes`` to spare. Returns how many bytes of room it lacks for
        that; 0 if it has done it, or if it is not worth it. Raises StorageError. Call it in a thread, as
        :meth:`compact`."""

    def close(self) -> None:
        """Release the files. No call may be under way in another thread."""
