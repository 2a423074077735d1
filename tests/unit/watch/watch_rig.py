"""A replica of one group with its hub, and clients that note what their streams tell them; no node, no loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from metad.state.cluster.declarations import KnownTables
from metad.state.core.entry import ENTRY_FORMAT, Entry, Previous
from metad.state.core.part import Origin, Writes
from metad.storage.engine import Pin
from metad.storage.keys import after_prefix, group_prefix, table_prefix
from metad.storage.memory import MemoryEngine
from metad.watch.filters import compiled
from metad.watch.hub import Hub
from metad.watch.stream import Stream
from metad_wire import messages as m
from metad_wire.cluster import GroupId
from metad_wire.errors import MetadError, OverloadedError
from metad_wire.methods import WATCH_OPEN, encode
from metad_wire.tables import TABLES
from metad_wire.watch import (
    Brought,
    ChangeKind,
    SlotMarker,
    WatchChange,
    WatchEntry,
    WatchEvents,
    WatchFilter,
    WatchOpen,
    WatchOpened,
)

ALL = b"\xff" * 128
DATA = GroupId("data", 0)
PREFIX = group_prefix(DATA)


def key(table: str, row: str, *fields: Any) -> bytes:
    """As on disk."""
    return table_prefix(PREFIX, TABLES[table].rows[row]) + TABLES[table].key_of(fields)


def kv(
    namespace: str, name: str, value: bytes | None = b"v", *, version: int = 1, created: int = 1, mod: int = 1
) -> Writes:
    """A write of a key."""
    record = None if value is None else encode(m.Kv(namespace, name, value, version, created, mod))
    return {key("kv", "record", namespace, name): record}


def owner(tenant: str, client: str, broker: str | None) -> Writes:
    """A write of a session's owner."""
    record = None if broker is None else encode(m.SessionOwner(True, broker, 1, 0))
    return {key("session", "owner", tenant, client): record}


OWNER = TABLES["session"].rows["owner"]


def entry(
    writes: Writes | None = None,
    *,
    origin: Origin = Origin.CLIENT,
    owners: Writes | None = None,
    previous: Previous | None = None,
    marker: SlotMarker | None = None,
    revision: int = 0,
) -> Entry:
    heard = {OWNER: owners} if owners else {}
    return Entry(ENTRY_FORMAT, origin, 7, writes or {}, heard, revision, marker, previous or {})


class Replica:
    """Holds the log and the state in memory."""

    def __init__(self) -> None:
        self.name, self.kind, self.prefix = DATA.name, DATA.kind, PREFIX
        self.log: list[Entry] = []
        self.base = 0
        self.state = MemoryEngine()
        self.held, self.sealed = ALL, b""
        self.reads: list[tuple[int, int]] = []
        self.pins = 0
        self.pins_closed = 0
        self.behind = 0
        self.questions: list[Callable[[int | MetadError], None]] = []
        """For the read index, not answered."""
        self.record_bytes = 1_000

    @property
    def applied(self) -> int:
        return len(self.log)

    def entries(self, begin: int, end: int, bytes_max: int) -> Iterator[Entry]:
        assert self.base < begin < end <= self.applied + 1
        self.reads.append((begin, end))
        return iter(self.log[begin - 1 : end - 1][: max(1, bytes_max // self.record_bytes)])

    def get(self, key: bytes) -> bytes | None:
        return self.state.get(key)

    def pin(self) -> Pin:
        self.pins += 1
        return _Pin(self, self.state.pin(PREFIX, after_prefix(PREFIX)))

    def opened(self, *, pinned: bool, proven: bool) -> WatchOpened:
        brought = [Brought(0, self.held)]
        return WatchOpened(self.applied, pinned, self.held, self.sealed, 0, brought, leader=True, proven=proven)

    def read_index(self, done: Callable[[int | MetadError], None]) -> None:
        self.questions.append(done)

    def prove(self, done: Callable[[], None]) -> None:
        done()

    def behind_ms(self) -> int:
        return self.behind

    def silent_ms(self) -> int:
        return 0


class _Pin:
    def __init__(self, replica: Replica, pin: Pin) -> None:
        self._replica = replica
        self.scan = pin.scan
        self._pin = pin

    def close(self) -> None:
        self._replica.pins_closed += 1
        self._pin.close()


class Client:
    """One stream's other end."""

    def __init__(self) -> None:
        self.ready = True
        self.bytes = 1 << 20
        self.waits = 0
        self.opens: list[WatchOpened] = []
        self.refusals: list[MetadError] = []
        self.frames: list[WatchEvents] = []
        self.sizes: list[int] = []
        self.over = False
        self.stream: Stream | None = None

    def room(self) -> int:
        return self.bytes if self.ready else 0

    def wait(self) -> None:
        self.waits += 1

    def opened(self, payload: bytes) -> None:
        self.opens.append(WATCH_OPEN.decode_reply(payload))

    def refused(self, error: MetadError) -> None:
        self.refusals.append(error)

    def event(self, payload: bytes, *, last: bool = False) -> None:
        assert not self.over, "an event behind the last"
        assert self.opens, "an event before the answer"
        self.over = last
        self.sizes.append(len(payload))
        frame = msgspec.msgpack.decode(payload, type=WatchEvents)
        before = self.frames[-1].index if self.frames else 0
        indexes = [one.index for one in frame.entries]
        assert all(before < index <= frame.index for index in indexes), "sent behind what was said to be sent"
        assert indexes == sorted(set(indexes))
        assert frame.index >= before
        self.frames.append(frame)

    @property
    def entries(self) -> list[WatchEntry]:
        return [one for frame in self.frames for one in frame.entries]

    @property
    def changes(self) -> list[WatchChange]:
        return [change for one in self.entries for change in one.changes]

    @property
    def kinds(self) -> list[tuple[int, ChangeKind]]:
        """(index, kind) of each change."""
        return [(one.index, ChangeKind(change.kind)) for one in self.entries for change in one.changes]

    @property
    def rows(self) -> list[bytes]:
        return [key for frame in self.frames for rows in frame.rows for key in rows.keys]

    @property
    def index(self) -> int:
        return self.frames[-1].index


class World:
    """The replica, its hub, and what a node does for them."""

    def __init__(self) -> None:
        self.replica = Replica()
        self.now_s = 100.0
        self.held_max = 1 << 20
        self.held_bytes = 0
        self.lefts: list[Stream] = []
        self.hub = Hub(self.replica, self, lambda: self.now_s)
        self.pieces = 0
        self.pinned_streams = 0
        self._queue: deque[Stream] = deque()
        self._soon: list[Callable[[], None]] = []

    # --- the keeper of the hub

    def wake(self, stream: Stream) -> None:
        if not stream.queued:
            stream.queued = True
            self._queue.append(stream)

    def full(self, why: str) -> OverloadedError:
        return OverloadedError(why)

    def may_hold(self, size: int) -> bool:
        return self.held_bytes + size <= self.held_max

    def held(self, size: int) -> None:
        self.held_bytes += size

    def pinned(self, stream: Stream, begins: bool) -> None:
        self.pinned_streams += 1 if begins else -1

    def left(self, stream: Stream) -> None:
        self.lefts.append(stream)

    def later(self, piece: Callable[[], None]) -> None:
        piece()

    def refuse(self, stream: Stream, why: MetadError) -> None:
        stream.end(why)

    def soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    # --- what happens

    def open(self, *filters: WatchFilter, client: Client | None = None, **opening: Any) -> Client:
        """A stream; raises MetadError."""
        client = client or Client()
        asked = WatchOpen([*filters] or [WatchFilter("kv")], **opening)
        client.stream = Stream(self.hub, client, compiled(asked.filters, self.replica.kind, KnownTables()), asked)
        self.hub.open(client.stream, self.now_s + 5)
        return client

    def stage(self, *entries: Entry) -> None:
        """Entries that are applied by one write."""
        for one in entries:
            self.replica.log.append(one)
            self.hub.stage(one)
        for one in entries:
            self.replica.state.write(*one)
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()

    def apply(self, *entries: Entry) -> None:
        for one in entries:
            self.stage(one)
            self.settle()

    def serve_one(self) -> bool:
        if not self._queue:
            return False
        stream = self._queue.popleft()
        stream.queued = False
        self.pieces += 1
        try:
            if stream.serve():
                self.wake(stream)
        except MetadError as error:
            stream.end(error)
        return True

    def settle(self) -> None:
        while self.serve_one():
            assert self.pieces < 100_000, "a stream is served for ever"
