"""The seam between the state machine and consensus: a log that takes entries and says when they are committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Group(Protocol):
    """One Raft group as the layers above see it."""

    name: str
    """Kind and ordinal, as in ``data-0``."""
    kind: str
    prefix: bytes
    """In front of the group's keys, in log and state."""
    first_index: int
    last_index: int
    """Of the log; (1, 0) when nothing was ever written."""
    log_bytes: int
    """Of the entries a restart may have to read."""

    def propose(self, entry: bytes, committed: Callable[[], None]) -> int:
        """Append an entry; returns its index, always ``last_index + 1``. ``committed`` is called on the event loop, in
        index order, once the entry can never be lost; it is not called at all where that cannot be told any more."""

    def read(self, begin: int, end: int) -> list[tuple[int, bytes]]:
        """Entries ``begin`` to ``end - 1``, or the first of them. Raises DamagedStoreError on a gap."""

    def truncate(self, through: int) -> None:
        """Entries up to ``through`` are in the durable state and need not be kept."""
