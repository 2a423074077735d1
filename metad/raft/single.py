"""A group whose only replica is this node: an entry is committed once it is durable here."""

from __future__ import annotations

from collections.abc import Callable

from ..storage.keys import group_prefix
from ..storage.log import LogStore
from .writer import LogWriter


class SingleReplica:
    """Implements :class:`metad.raft.group.Group`."""

    def __init__(self, kind: str, ordinal: int, store: LogStore, writer: LogWriter) -> None:
        self.kind = kind
        self.name = f"{kind}-{ordinal}"
        self.prefix = group_prefix(kind, ordinal)
        self._store = store
        self._writer = writer
        self.first_index, self.last_index = store.open_group(self.prefix, self.name)
        self.log_bytes = 0

    def propose(self, entry: bytes, committed: Callable[[], None]) -> int:
        self.last_index += 1
        self.log_bytes += len(entry)
        self._writer.append(self.prefix, self.last_index, entry, committed)
        return self.last_index

    def read(self, begin: int, end: int) -> list[tuple[int, bytes]]:
        return self._store.read(self.prefix, begin, end, self.name)

    def truncate(self, through: int) -> None:
        # The last entry stays: a log that ends before the state's applied index shows that it lost its tail.
        through = min(through, self.last_index - 1)
        if through >= self.first_index:
            self._store.truncate_prefix(self.prefix, self.first_index, through)
            self.first_index = through + 1
