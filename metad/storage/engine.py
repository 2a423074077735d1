"""The storage seam: an ordered map of bytes with atomic batches. tests/contract holds both implementations to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

Writes = Mapping[bytes, bytes | None]
"""What a batch does to each key: a value puts it, None deletes it."""

UNBOUNDED_BYTES: Final = 1 << 62
"""For scans of rows that are known to be small."""


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

    def sync(self) -> None:
        """Block until every write that returned before this call survives a power loss. Call it in a thread: it
        releases the interpreter while it waits."""

    def close(self) -> None:
        """Release the files. No call may be under way in another thread."""
