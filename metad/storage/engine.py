"""The storage seam: an ordered map of bytes with atomic batches. tests/contract holds both implementations to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

Writes = Mapping[bytes, bytes | None]
"""What a batch does to each key: a value puts it, None deletes it."""

NO_WRITES: Final[Writes] = MappingProxyType({})

UNBOUNDED_BYTES: Final = 1 << 62
"""For scans of rows that are known to be small."""

PART_BYTES: Final = 4 * 1024 * 1024
"""Keys and values in one part of an export, before compression: what a node holds of a snapshot it sends or receives
is a few of them."""


class Export(Iterator[bytes], Protocol):
    """The parts of a range, made as they are asked for. ``b""`` is no part but the end of a slice of work, some 2 ms:
    ask again when others have had their turn. Holds on to what has been overwritten or deleted since it was made, so
    use it up or close it. May raise what an engine may. Not for two threads at once."""

    def close(self) -> None:
        """Let go of everything. Asking for a part is an error from then on, for the end of the parts means that there
        are no more pairs. The close of an engine with files does it too."""


class Engine(Protocol):
    """An ordered map. Every method may raise :class:`metad.errors.StorageError`, or its
    :class:`~metad.errors.DamagedStoreError` where a checksum fails."""

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values by position. Lets other threads run while it reads."""

    def scan(self, begin: bytes, end: bytes, limit: int, bytes_max: int = UNBOUNDED_BYTES) -> list[tuple[bytes, bytes]]:
        """The first ``limit`` pairs with ``begin <= key < end``, in order, as of one moment. Fewer where the keys and
        values found reach ``bytes_max``; the pair that reaches it is the last."""

    def scan_backwards(self, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """The last ``limit`` pairs with ``begin <= key < end``, highest first."""

    def write(self, *batches: Writes, delete_ranges: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Delete the ranges ``[begin, end)``, then apply the batches in order; all or nothing. Seen at once, durable
        after the next :meth:`sync`."""

    def export(self, begin: bytes, end: bytes, part_bytes: int = PART_BYTES) -> Export:
        """The pairs with ``begin <= key < end`` as they are now, whatever is written while the parts are taken. A part
        is opaque, says itself whether it is whole, and goes into :meth:`replace` of an engine of the same kind."""

    def replace(self, begin: bytes, end: bytes, parts: Sequence[bytes | Path], writes: Writes = NO_WRITES) -> None:
        """Put the pairs of ``parts`` (in the order of their export; a Path is a file that holds one), and then
        ``writes``, in place of all pairs with ``begin <= key < end``. Durable when it returns. Where the process dies
        meanwhile, the range holds after the next opening either what it held before or what it was to hold.

        Blocks, for seconds per gigabyte: call it in a thread. Others may use the engine meanwhile, but not this range,
        whose pairs come and go until the call has returned. An error leaves what was there before, except one that
        says that the store must be opened again."""

    def sync(self) -> None:
        """Block until every write that returned before this call survives a power loss. Call it in a thread: it
        releases the interpreter while it waits."""

    def close(self) -> None:
        """Release the files. No call may be under way in another thread."""
