"""A log on an engine in memory, an fsync that ends when the test says so, and what must be true of them."""

from __future__ import annotations

from collections.abc import Callable

from metad.errors import StorageError
from metad.raft.log.journal import NO_OP, REGULAR, RaftLog, record
from metad.raft.messages import Configuration
from metad.storage import keys
from metad.storage.log import DurableMark, LogStore, LogWriter
from metad.storage.memory import MemoryEngine
from metad_wire.cluster import GroupId

GROUP = keys.group_prefix(GroupId("data", 0))
THREE = Configuration(("a", "b", "c"))
CACHE_BYTES = 200


class HeldSyncer:
    """An fsync that is over when :meth:`finish` is called."""

    def __init__(self) -> None:
        self.done: Callable[[StorageError | None], None] | None = None
        self.closed = False

    def sync(self, done: Callable[[StorageError | None], None]) -> None:
        assert self.done is None, "ordered an fsync while one runs"
        self.done = done

    def finish(self, error: StorageError | None = None) -> None:
        assert self.done is not None
        done, self.done = self.done, None
        done(error)

    def close(self) -> None:
        self.closed = True


class Rig:
    """A log and what is below it."""

    def __init__(
        self, engine: MemoryEngine | None = None, cache_bytes: int = CACHE_BYTES, mark: DurableMark | None = None
    ) -> None:
        self.engine = MemoryEngine() if engine is None else engine
        self.store = LogStore(self.engine, mark)
        self.syncer = HeldSyncer()
        self.errors: list[StorageError] = []
        self.writer = LogWriter(self.store, self.syncer, failed=self.errors.append)
        self.cache_bytes = cache_bytes
        self.log = RaftLog(GroupId("data", 0), self.store, self.writer, initial=THREE, cache_bytes=cache_bytes)

    def sync(self) -> None:
        """Everything staged becomes durable."""
        self.writer.flush()
        while self.syncer.done is not None:
            self.store.sync()
            self.syncer.finish()

    def reopened(self) -> Rig:
        """What a new process finds."""
        return Rig(self.engine, self.cache_bytes)

    def crashed(self) -> Rig:
        """What a new process finds after a power loss."""
        self.engine.crash()
        return self.reopened()

    def fill(self, count: int, term: int = 1, size: int = 20) -> list[bytes]:
        """Append entries whose payload names their index."""
        first = self.log.last_index + 1
        records = [record(term, REGULAR, b"%d" % index + b"." * size) for index in range(first, first + count)]
        self.log.append(records)
        return records


def contents(log: RaftLog) -> list[bytes]:
    """Every record, read in pieces as its users do."""
    found: list[bytes] = []
    while len(found) < len(log):
        part = log.records(log.base_index + 1 + len(found), 100)
        assert part
        found += part
    assert len(found) == len(log)
    return found


def no_op(term: int) -> bytes:
    """A leader's first record."""
    return record(term, NO_OP)
