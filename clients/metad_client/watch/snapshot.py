"""The rows of one group as one replica of it has them at one moment. For programs that read whole tables: in parallel,
group by group, without the leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import NamedTuple

from metad_wire.cluster import SLOTS, GroupId, slot_bits, slots_in
from metad_wire.method import MALFORMED
from metad_wire.watch import WatchChange, WatchFilter, WatchOpen, WatchRows

from ..dispatch.dispatcher import Dispatcher
from ..errors import ClosedError, DeadlineExceededError, InternalError, InvalidRequestError, MetadError, another
from ..iterating import AsyncParts
from .event import Several
from .filters import AnyWanted, filters_of
from .position import Pin
from .stream import Cut, GroupStream

BUFFER_BYTES: int = 4 * 1024 * 1024
IDLE_TIMEOUT_S: float = 30.0


class SnapshotPart(NamedTuple):
    """Some rows, as they came."""

    rows: list[WatchRows]
    """Of each kind: keys and values, encoded, in order of the keys."""
    first: bool
    """Whatever came before is void: another replica begins anew, at another moment."""
    last: bool
    """The snapshot is complete."""
    changes: Sequence[WatchChange] = ()
    """What has happened between the position that was asked for and the moment, in order; it comes before the rows."""


class Reading:
    """The stream of a snapshot, and what has come of it: the owner of its :class:`GroupStream`, and the client's
    :class:`Follower`."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        group: GroupId,
        filters: list[WatchFilter],
        slots: bytes,
        position: int | None,
        idle_timeout_s: float,
        buffer_bytes: int,
    ) -> None:
        self.credit_bytes = buffer_bytes
        self.progress_ms = 0
        self.level_at: float | None = None
        """These are a watch's: a snapshot is of one moment."""
        self.pin: Pin | None = None
        self.done = False
        self.is_cut = False
        self._dispatcher = dispatcher
        self._filters = filters
        self._slots = slots
        self._position = position
        self._idle_timeout_s = idle_timeout_s
        self.stream = GroupStream(self, dispatcher, asyncio.get_running_loop(), group)
        self._first = True
        self._error: MetadError | None = None
        self._news = asyncio.Event()
        dispatcher.follow(self)
        self.stream.start()

    async def next(self) -> SnapshotPart | None:
        """The next part; None behind the last one."""
        self._dispatcher.home.check()
        while not self.done:
            if self._error is not None:
                raise another(self._error, outcome_known=True)
            part = self._take()
            if part is not None:
                if part.last:
                    self.close()
                return part
            self._news.clear()
            try:
                async with asyncio.timeout(self._idle_timeout_s):
                    await self._news.wait()
            except TimeoutError:
                silent = f"no replica of {self.stream.name} has sent anything of a snapshot"
                why = f": {self.stream.obstacle}" if self.stream.obstacle is not None else ""
                self.fail(DeadlineExceededError(f"{silent} for {self._idle_timeout_s:.3g} s{why}"))
        return None

    def close(self) -> None:
        """The program wants no more."""
        self.done = True
        self._end()

    def _end(self) -> None:
        self._dispatcher.forget(self)
        self.stream.stop()
        self._news.set()

    def _take(self) -> SnapshotPart | None:
        items = self.stream.items
        while items:
            frame = items[0]
            if isinstance(frame, Cut):
                items.popleft()
                continue
            try:
                rows = frame.rows()
                changes = [change for entry in frame.entries for change in entry.changes]
            except MALFORMED as error:
                self.fail(InternalError(f"a node has sent rows that make no sense: {error}"))
                return None
            last = frame.snapshot_done
            self.stream.finished(frame)
            if rows or changes or last:
                first, self._first = self._first, False
                return SnapshotPart(rows, first, last, changes)
        return None

    # --- the client: Follower ---

    def changed(self) -> None:
        """Nodes came or went, or the map is another one."""
        if self._error is None and not self.done:
            self.stream.hurry()

    def closed(self) -> None:
        """The client is closed."""
        self.fail(ClosedError("the client is closed", outcome_known=True))

    # --- the stream: its Owner ---

    def opening(self, stream: GroupStream) -> WatchOpen:
        """What to ask a replica for."""
        if stream.cut:
            self.is_cut = True
        position = None if stream.cut else self._position
        return WatchOpen(self._filters, position, self._slots, self.credit_bytes, proven=True)

    def opened(self, stream: GroupStream, pin: Pin) -> None:
        """A replica has begun."""
        self.pin = pin
        stream.begin_rows(pin)
        self._first = True

    def came(self, stream: GroupStream) -> None:
        """There is something to take."""
        self._news.set()

    def lost(self, stream: GroupStream, error: MetadError) -> bool:
        """The replica was lost; the stream asks another one."""
        return True

    def fail(self, error: MetadError) -> None:
        """End with an error."""
        if self._error is None:
            self._error = error
        self._end()


class Snapshot(AsyncParts[SnapshotPart]):
    """``async for part in snapshot``. It ends behind the part that is ``last``, or by an error. One task reads it."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def __repr__(self) -> str:
        return f"<Snapshot {self._reading.stream.name} {'over' if self._reading.done else 'open'}>"

    @property
    def index(self) -> int:
        """The index of the group's log at the moment of the snapshot; 0 before the first part."""
        pin = self._reading.pin
        return 0 if pin is None else pin.index

    @property
    def revision(self) -> int:
        """The number of the group's revision at that moment; 0 if the server is too old to say."""
        pin = self._reading.pin
        return 0 if pin is None else pin.revision

    @property
    def slots(self) -> frozenset[int]:
        """The slots that the group held at that moment. The rows of others are not all there, or not the newest."""
        pin = self._reading.pin
        return frozenset(slots_in((0 if pin is None else pin.held).to_bytes(SLOTS // 8, "big")))

    @property
    def is_cut(self) -> bool:
        """Whether no replica has the log from the position on: changes before the moment were not told."""
        return self._reading.is_cut

    async def next(self) -> SnapshotPart | None:
        """The next part; None behind the last one."""
        return await self._reading.next()

    async def close(self) -> None:
        """End it: the server sends nothing more. Safe to call again."""
        self._reading.close()


def open_snapshot(
    dispatcher: Dispatcher,
    group: GroupId,
    tables: AnyWanted | Several[AnyWanted],
    *,
    slots: Collection[int],
    position: int | None,
    idle_timeout_s: float,
    buffer_bytes: int,
) -> Snapshot:
    """A snapshot that begins at once. Raises InvalidRequestError."""
    dispatcher.check()
    filters = filters_of(tables)
    if not isinstance(group, GroupId) or filters.keys() != {group.kind}:
        raise InvalidRequestError(f"group: the tables are in {' and '.join(filters)} groups, and this is {group!r}")
    if not slots or not all(isinstance(slot, int) and 0 <= slot < SLOTS for slot in slots):
        raise InvalidRequestError(f"slots: expected some of 0 to {SLOTS - 1}")
    if position is not None and (not isinstance(position, int) or position < 0):
        raise InvalidRequestError(f"position: expected an index of a log, got {position!r}")
    return Snapshot(
        Reading(dispatcher, group, filters[group.kind], slot_bits(slots), position, idle_timeout_s, buffer_bytes)
    )
