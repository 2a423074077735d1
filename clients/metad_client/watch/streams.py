"""The streams of one watch, one for each group of the kinds that it reads, put together as batches.

It is pulled: a batch is made when the program wants one, out of what the streams hold. A program that takes nothing
grants no credit, so the servers send nothing more, and memory is bounded. Nothing here is a task; the only timers are
those of repeated attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Final, Literal

from metad_wire.cluster import SLOTS, GroupId, unpack_slots
from metad_wire.method import MALFORMED
from metad_wire.watch import WatchChange, WatchEntry, WatchOpen, WatchRows

from ..dispatch.dispatcher import Dispatcher
from ..errors import (
    ClosedError,
    DeadlineExceededError,
    InternalError,
    InvalidRequestError,
    MetadError,
    QuotaError,
    another,
)
from .events import WatchBatch, Where
from .filters import Filters
from .position import ALL, Pin, Position, among, is_among
from .stream import Cut, Frame, GroupStream
from .token import packed_slots

CREDIT_BYTES_MIN: Final = 64 * 1024
"""Of one stream: less would make it wait for every event."""
CREDIT_BYTES_MAX: Final = 0xFFFF_FFFF
"""What a request can say."""
MAP_RETRY_S: Final = 0.25
"""How often the map is asked for while the watch needs a group that the map lacks."""
TARGET_RETRY_S: Final = 2.0
"""The same while a slot is on its way to a group that neither the pin nor the token names."""
QUOTA_S: Final = 90.0
"""A watch that has not begun ends after it was told of nothing but a quota for so long. A node needs up to 60 s to
notice that an earlier life of the client, which may hold the room, is gone."""
_SEEKS_MAX: Final = 120
"""The map is asked for so often, of every node that is connected in turn, before a group counts as gone."""
_ALL_BYTES: Final = ALL.to_bytes(SLOTS // 8, "big")

Start = Literal["now", "snapshot"]


class Streams:
    """``positions``: where the watch is, per kind; empty until it has begun. ``until``: where it ends; empty: never."""

    _over_quota_s = inf
    """Since when no stream began, and a quota was the reason."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        filters: Filters,
        *,
        cluster_id: str = "",
        positions: dict[str, Position] | None = None,
        until: dict[str, Position] | None = None,
        start: Start = "now",
        flags: int = 0,
        progress_ms: int = 0,
        buffer_bytes: int,
        idle_timeout_s: float | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.home = dispatcher.home
        self.positions: dict[str, Position] = positions or {}
        self.credit_bytes = CREDIT_BYTES_MIN
        self.begun: asyncio.Future[None] = loop.create_future()
        """Ends once every group has a stream."""
        self.error: MetadError | None = None
        self.ended = False
        self._loop = loop
        self._dispatcher = dispatcher
        self._filters = filters
        self.shapes = filters.shapes
        """How what comes is decoded."""
        self._until: dict[str, Position] = until or {}
        self._over: set[GroupStream] = set()  # that have come to the end
        self._cluster_id = cluster_id
        self._start = start
        self._flags = flags
        self.progress_ms = progress_ms
        self._buffer_bytes = buffer_bytes
        self._idle_timeout_s = idle_timeout_s
        self._streams: dict[GroupId, GroupStream] = {}
        self._turn: list[GroupStream] = []
        self._ready: dict[GroupStream, None] = {}  # that have something to take, in turn
        self._waiting: dict[GroupStream, None] = {}  # that have, and must not be taken from yet
        self._packed: dict[str, bytes] = {}
        self._lost: dict[str, int] = {}  # per kind the slots that were missing when the watch began, to be told
        self._waiter: asyncio.Future[None] | None = None
        self._listener: Callable[[], None] | None = None
        self._calling = False  # the listener, soon
        self._unknown: dict[
            GroupId, int
        ] = {}  # named by tokens or markers, and not in the map; how often it was sought
        self._gone: set[GroupId] = set()  # that no map has had for long
        named = [*self.positions.items(), *self._until.items()]
        self._unfound = {GroupId(kind, ordinal) for kind, position in named for ordinal in position.groups}
        """Groups that the token names, or that of the end, and that were in no map yet: it may be an old one."""
        self._map_timer: asyncio.TimerHandle | None = None
        self._target_timer: asyncio.TimerHandle | None = None
        self._repairs: dict[str, int] = {}  # per kind: attempts to read what is missing
        self._repair_timers: dict[str, asyncio.TimerHandle] = {}
        self._idle_timer: asyncio.TimerHandle | None = None
        self._proved: set[GroupStream] = set()  # that have made progress since the last mark
        self.level_at: float | None = None  # nothing that was acknowledged before is lacking
        try:
            self._look_idle()
            self.changed()
            if not self.ended:
                dispatcher.follow(self)
        except BaseException:
            self.close()  # the program gets nothing that it could close
            raise

    # --- the program ---

    def next_batch(self) -> WatchBatch | None:
        """The next batch, if there is one now. Raises the error that the watch has ended with."""
        if self.error is not None:
            raise self.raised(self.error)
        if self.ended or not self._is_placed():
            return None
        if self._lost:
            kind, slots = self._lost.popitem()
            self._packed.pop(kind, None)
            self._look_over()
            return self._batch("gap", next(stream for stream in self._turn if stream.kind == kind), slots=slots)
        ready, waiting = self._ready, self._waiting
        try:
            while ready and not self.ended:
                stream = next(iter(ready))
                del ready[stream]
                batch = self._take(stream)
                if batch is False:
                    waiting[stream] = None  # for more of another group's log
                    continue
                if stream.items:
                    ready[stream] = None  # behind the others
                elif self._dispatcher.routes.has_removed(stream.name):
                    self._give_up(GroupId(stream.kind, stream.ordinal))
                if waiting:
                    ready.update(waiting)
                    waiting.clear()
                if batch is not True:
                    return batch
        except MALFORMED as error:
            self.fail(InternalError(f"a node has sent an event that makes no sense: {error}"))
        if self.error is not None:
            raise self.raised(self.error)
        return None

    async def wait(self) -> None:
        """Until there may be another batch, or the end."""
        self.home.check()
        if self.error is not None or self.ended:
            return
        if self._waiter is not None:
            raise RuntimeError("a watch is read by one task at a time")
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def listen(self, listener: Callable[[], None]) -> None:
        """Call this in a turn of its own whenever there may be another batch, and at the end."""
        self._listener = listener
        self.again()

    def again(self) -> None:
        """Call the listener once more."""
        if self._listener is not None and not self._calling:
            self._calling = True
            self._loop.call_soon(self._call)

    def _call(self) -> None:
        self._calling = False
        if self._listener is not None:
            self._listener()

    def check_open(self) -> None:
        """Raise ClosedError if the watch has ended."""
        if self.ended:
            raise ClosedError("the watch is closed", outcome_known=True)

    def where(self) -> Where:
        """What a token of here is made of."""
        for kind, position in self.positions.items():
            if kind not in self._packed:
                self._packed[kind] = packed_slots(position)
        return {kind: (dict(position.indexes), self._packed[kind]) for kind, position in self.positions.items()}

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def is_placed(self) -> bool:
        """Whether the watch has a position."""
        return self._is_placed()

    @property
    def is_missing(self) -> bool:
        """Whether a slot is missing."""
        return any(position.missing for position in self.positions.values())

    @property
    def is_whole(self) -> bool:
        """Whether every slot is read, and every group has a stream."""
        return self.is_settled and all(stream.live for stream in self._turn)

    @property
    def is_settled(self) -> bool:
        """Whether each slot is read from the group that holds it: none is missing, on its way to another group, or read
        from a group that has not been found."""
        if not self._is_placed() or self.is_missing or self._unfound:
            return False
        return not any(position.sealed for position in self.positions.values())

    def age_ms(self) -> float | None:
        """For how long what was delivered may have lacked something; None if that is not known yet. It grows while a
        slot is not read."""
        self._look_level()
        return None if self.level_at is None else max(0.0, (self._loop.time() - self.level_at) * 1000)

    def _look_level(self) -> None:
        """What the groups have proved counts as far as every slot is read."""
        proved = [stream.proved_at for stream in self._turn if stream.proved_at is not None]
        if proved and len(proved) == len(self._turn) and self.is_settled:
            level = min(proved)
            self.level_at = level if self.level_at is None else max(self.level_at, level)

    def close(self) -> None:
        """End: take no more events. Safe to call again."""
        if self.ended:
            return
        self.ended = True
        self._dispatcher.forget(self)
        for stream in self._turn:
            stream.stop()
        for timer in (*self._repair_timers.values(), self._map_timer, self._target_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._never_begun(ClosedError("the watch is closed", outcome_known=True))
        self._wake()

    def fail(self, error: MetadError) -> None:
        """End with an error."""
        if self.ended:
            return
        self.error = error
        self._never_begun(self.raised(error))
        self.close()

    def _never_begun(self, error: MetadError) -> None:
        if not self.begun.done():
            self.begun.set_exception(error)
            self.begun.exception()  # the program may look at the next batch only

    @staticmethod
    def raised(error: MetadError) -> MetadError:
        """The error, to be raised once more."""
        return another(error, outcome_known=True)

    # --- the client: Follower ---

    def changed(self) -> None:
        """Nodes came or went, or the map is another one."""
        known = self._dispatcher.routes.map
        if self.ended or known is None:
            return
        if known.cluster_id:
            if self._cluster_id and self._cluster_id != known.cluster_id:
                what = f"the watch is of cluster {self._cluster_id}, and this is cluster {known.cluster_id}"
                self.fail(InvalidRequestError(f"token: {what}"))
                return
            self._cluster_id = known.cluster_id
        groups = [record.group_id for record in known.groups if record.kind in self._filters]
        missing = self._filters.keys() - {group.kind for group in groups}
        if missing:
            return  # the cluster is being formed
        self.credit_bytes = min(CREDIT_BYTES_MAX, max(CREDIT_BYTES_MIN, self._buffer_bytes // len(groups)))
        begins = not self._turn
        for group in groups:
            if group not in self._streams:
                stream = self._streams[group] = GroupStream(self, self._dispatcher, self._loop, group)
                self._turn.append(stream)
                self._unknown.pop(group, None)
                self._unfound.discard(group)
                self._gone.discard(group)
        for group in list(self._unfound):
            self._seek_group(group)
        for stream in list(self._turn):
            if known.has_removed(group := GroupId(stream.kind, stream.ordinal)):
                self._give_up(group)
            elif not self.ended and not self._is_over(stream):
                stream.hurry()
        if begins and not self.ended:
            for kind in self.positions:
                self._repair(kind)
            self._seek_targets()

    def closed(self) -> None:
        """The client is closed: the iteration ends."""
        self.close()

    # --- the streams: their Owner ---

    def opening(self, stream: GroupStream) -> WatchOpen:
        """What to ask a replica for."""
        position = self.positions.get(stream.kind)
        credit = self.credit_bytes
        filters = self._filters[stream.kind]
        if stream.cut or position is None:
            whole = stream.cut or self._start == "snapshot"
            snapshot = _ALL_BYTES if whole else b""
            return WatchOpen(filters, None, snapshot, credit, self._flags, self.progress_ms, True, len(self._turn))
        wanted = stream.assigned & position.missing
        snapshot = wanted.to_bytes(SLOTS // 8, "big") if wanted else b""
        index = stream.resume_index(position.index(stream.ordinal))
        proven, streams = bool(snapshot), len(self._turn)
        return WatchOpen(filters, index, snapshot, credit, self._flags, self.progress_ms, proven, streams)

    def opened(self, stream: GroupStream, pin: Pin) -> None:
        """A replica has begun a stream."""
        self._over_quota_s = inf
        if stream.kind not in self.positions:
            stream.first_pin = pin
            if stream.asked:
                stream.assigned = pin.held | pin.sealed
            self._place(stream.kind)
        elif stream.asked and not (stream.items and isinstance(stream.items[-1], Cut)):
            stream.pin = pin
            stream.assigned &= pin.held | pin.sealed
            self._repair(stream.kind)
        self._look_begun()
        self._waiting.pop(stream, None)
        if stream.items:
            self._ready[stream] = None
        self._look_idle()
        self._wake()

    def _look_begun(self) -> None:
        have_lived = all(stream.has_lived for stream in self._turn) and not self._unfound
        if have_lived and self._is_placed() and not self.begun.done():
            self.begun.set_result(None)

    def came(self, stream: GroupStream) -> None:
        """Something has come."""
        if stream not in self._waiting:
            self._ready[stream] = None
        self._wake()

    def lost(self, stream: GroupStream, error: MetadError) -> bool:
        """A stream is interrupted."""
        self._waiting.pop(stream, None)
        now_s = self._loop.time()
        self._over_quota_s = min(self._over_quota_s, now_s) if isinstance(error, QuotaError) else inf
        if not self.begun.done() and now_s - self._over_quota_s >= QUOTA_S:
            self.fail(error)
            return False
        self._look_idle()
        self._wake()
        return True

    def _wake(self) -> None:
        self.again()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _is_placed(self) -> bool:
        return len(self.positions) == len(self._filters)

    def _place(self, kind: str) -> None:
        """The watch begins where all groups of a kind are pinned."""
        streams = [stream for stream in self._turn if stream.kind == kind]
        pins = {stream.ordinal: stream.first_pin for stream in streams if stream.first_pin is not None}
        if len(pins) < len(streams):
            return
        position = self.positions[kind] = Position.at(pins)
        if self._start == "snapshot":
            position.unread()
        elif position.missing:  # no replica that was asked knew a holder: what is written before one does is lost
            self._lost[kind] = position.missing
        for stream in streams:
            if stream.asked:
                stream.pin = stream.first_pin
            if not stream.asked & stream.assigned & position.missing:
                stream.pin_reached()  # none of its rows are read
            stream.first_pin = None
        self._repair(kind)
        self._seek_targets()

    def _look_idle(self) -> None:
        """Count the time without a stream of every group, if it is bounded."""
        if self._idle_timeout_s is None or self.ended:
            return
        down = not self._turn or bool(_down(self._turn, self._over))
        if not down and self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        elif down and self._idle_timer is None:
            self._idle_timer = self._loop.call_later(self._idle_timeout_s, self._idle)

    def _idle(self) -> None:
        down = _down(self._turn, self._over)
        groups = ", ".join(stream.name for stream in down) or "any group"
        why = next((f": {stream.obstacle}" for stream in down if stream.obstacle is not None), "")
        text = f"the watch has had no stream of {groups} for {self._idle_timeout_s:.3g} s{why}"
        self.fail(DeadlineExceededError(text))

    # --- what is missing ---

    def _repair(self, kind: str, adopted_by: GroupStream | None = None) -> None:
        """See to it that missing slots are read."""
        position = self.positions[kind]
        if not position.missing:
            self._repairs.pop(kind, None)
            return
        uncovered = self._uncovered(kind)
        if not uncovered or kind in self._repair_timers:
            return
        attempt = self._repairs.get(kind, 0)
        self._repairs[kind] = attempt + 1
        if adopted_by is not None:
            adopted_by.assigned |= uncovered
        dispatcher = self._dispatcher
        delay_s = dispatcher.options.backoff.delay_s(attempt - 1, dispatcher.rng) if attempt else 0.0
        self._repair_timers[kind] = self._loop.call_later(delay_s, self._assign, kind, attempt)

    def _uncovered(self, kind: str) -> int:
        covered = 0
        for stream in self._turn:
            if stream.kind == kind:
                covered |= stream.assigned
        return self.positions[kind].missing & ~covered

    def _assign(self, kind: str, attempt: int) -> None:
        """Have the missing slots read by the groups that the map names, and if that did not help, by all."""
        self._repair_timers.pop(kind, None)
        streams = [stream for stream in self._turn if stream.kind == kind]
        uncovered = self._uncovered(kind)
        if attempt:
            self._dispatcher.seek()
        holders = self._holders(kind) if not attempt else {}
        for stream in streams:
            stream.assigned |= uncovered & holders.get(stream.ordinal, 0) if holders else uncovered
            # a snapshot that is under way is not disturbed: when it is complete, what is still missing is assigned anew
            if stream.assigned & self.positions[kind].missing and not stream.reads_rows:
                stream.restart()

    def _holders(self, kind: str) -> dict[int, int]:
        """Per group the slots that it holds, as the map says."""
        known = self._dispatcher.routes.map
        holders: dict[int, int] = {}
        if known is not None and kind in known.slots:
            for slot, ordinal in enumerate(unpack_slots(known.slots[kind])):
                holders[ordinal] = holders.get(ordinal, 0) | 1 << (SLOTS - 1 - slot)
        return holders

    def _seek_group(self, group: GroupId) -> None:
        """The watch needs a group that the map does not know yet."""
        if group in self._streams or group in self._gone:
            return
        if self._dispatcher.routes.has_removed(group.name):
            self._give_up(group)
            return
        self._unknown.setdefault(group, 0)
        if self._map_timer is None:
            self._seek_map()

    def _seek_map(self) -> None:
        self._map_timer = None
        if self.ended:
            return
        if self._dispatcher.nodes.any_up() is not None:
            for group in list(self._unknown):
                self._unknown[group] += 1
                if self._unknown[group] > _SEEKS_MAX:
                    self._give_up(group)
        if self._unknown:
            self._dispatcher.seek(at_once=True)
            self._map_timer = self._loop.call_later(MAP_RETRY_S, self._seek_map)

    def _seek_targets(self) -> None:
        """Ask for newer maps while slots are sealed: the group that adopts them may be in none that is known."""
        if self._target_timer is None and not self.ended and any(each.sealed for each in self.positions.values()):
            self._dispatcher.seek(at_once=True)
            self._target_timer = self._loop.call_later(TARGET_RETRY_S, self._seek_targets_again)

    def _seek_targets_again(self) -> None:
        self._target_timer = None
        self._seek_targets()

    def _give_up(self, group: GroupId) -> None:
        """No node knows the group, or it was removed: what was read from it is lost, unless another group shows it.
        What has come of it counts first."""
        if (stream := self._streams.get(group)) is not None:
            if stream.items:
                return
            stream.stop()
            self._turn.remove(stream)
            del self._streams[group]
            for among in (self._ready, self._waiting):
                among.pop(stream, None)
            self._over.discard(stream)
            self._proved.discard(stream)
        self._unknown.pop(group, None)
        self._unfound.discard(group)
        self._gone.add(group)
        kind, until = group.kind, self._until.get(group.kind)
        if kind in self.positions:
            lost = self.positions[kind].gone(group.ordinal)
            if until is not None:
                lost |= until.read_from(group.ordinal)
            if lost:
                self._lost[kind] = self._lost.get(kind, 0) | lost
            self._repair(kind)
        elif any(stream.kind == kind for stream in self._turn):
            self._place(kind)
        self._ready.update(self._waiting)  # nothing more comes that they have waited for
        self._waiting.clear()
        self._look_begun()
        self._look_over()
        self._wake()

    # --- what was brought ---

    def _take(self, stream: GroupStream) -> WatchBatch | bool:
        """The next batch of a stream; else whether anything could be taken."""
        if not stream.items:
            return True
        item = stream.items[0]
        position = self.positions[stream.kind]
        if isinstance(item, Cut):
            return self._take_cut(stream, position, item)
        collected: list[tuple[WatchEntry, Sequence[WatchChange]]] = []
        counts = position.counts(stream.ordinal)
        entries, begun = item.entries, item.taken
        while item.taken < len(entries):
            entry = entries[item.taken]
            if self._until and entry.index > self._until[stream.kind].index(stream.ordinal):
                break
            if entry.marker is not None:
                if collected:
                    return self._batch("changes", stream, entries=collected)
                other = GroupId(stream.kind, entry.marker.other)
                if position.waits(entry.marker) and other not in self._gone:
                    self._seek_group(other)
                    if other not in self._gone:
                        return item.taken > begun  # the others may have waited for what was taken
                item.taken += 1
                gap = self._take_marker(stream, position, entry)
                if gap:
                    return self._batch("gap", stream, slots=gap)
                counts = position.counts(stream.ordinal)
                continue
            item.taken += 1
            position.indexes[stream.ordinal] = entry.index
            all_count = counts == ALL or stream.writes_only(counts, entry.index)
            changes = entry.changes if all_count else among(counts, entry.changes)
            if changes:
                collected.append((entry, changes))
        if collected:
            self._finish_unless_rows(stream, item, position)
            return self._batch("changes", stream, entries=collected)
        if item.taken < len(entries):  # what is left is behind the end
            self._finish(stream, item, position)
            return True
        return self._take_rows(stream, item, position)

    def _take_marker(self, stream: GroupStream, position: Position, entry: WatchEntry) -> int:
        marker = entry.marker
        assert marker is not None
        gap = position.read(stream.ordinal, entry.index, marker)
        stream.moved(marker, entry.index)
        self._packed.pop(stream.kind, None)
        if marker.other != stream.ordinal:
            self._seek_group(GroupId(stream.kind, marker.other))
        if position.missing:
            self._repair(stream.kind, stream if gap else None)
        return gap

    def _take_cut(self, stream: GroupStream, position: Position, cut: Cut) -> WatchBatch | bool:
        stream.items.popleft()
        gap = position.cut(stream.ordinal, cut.pin)
        self._packed.pop(stream.kind, None)
        stream.begin_rows(cut.pin)
        self._repair(stream.kind)
        return self._batch("gap", stream, slots=gap) if gap else True

    def _finish_unless_rows(self, stream: GroupStream, frame: Frame, position: Position) -> None:
        """Be done with a frame whose entries were taken, if it has nothing else."""
        if not frame.has_rows and frame.taken == len(frame.entries):
            self._finish(stream, frame, position)

    def _finish(self, stream: GroupStream, frame: Frame, position: Position) -> None:
        index = frame.index
        if self._until:
            index = min(index, self._until[stream.kind].index(stream.ordinal))
        if index > position.index(stream.ordinal):
            position.indexes[stream.ordinal] = index
        if frame.progress is not None:
            stream.progressed(frame)
            self._look_level()
            self._proved.add(stream)
        stream.finished(frame)
        if self._until:
            self._is_over(stream)

    def _is_over(self, stream: GroupStream) -> bool:
        """Whether the watch wants no more of a group; if so, its stream ends, and behind the last one the watch."""
        position = self.positions.get(stream.kind)
        if not self._until or position is None:
            return False
        if position.index(stream.ordinal) < self._until[stream.kind].index(stream.ordinal):
            return False
        if stream not in self._over:
            self._over.add(stream)
            stream.stop()
            self._look_over()
        return True

    def _look_over(self) -> None:
        """End the watch where it has nothing more to tell."""
        if self._until and len(self._over) == len(self._turn) and not self._unfound and not self._lost:
            self.close()

    def _take_rows(self, stream: GroupStream, frame: Frame, position: Position) -> WatchBatch | bool:
        """What a frame has beside entries."""
        pin = stream.pin
        if pin is None or not frame.has_rows:
            self._finish(stream, frame, position)
            return self._mark()
        rows = frame.rows()
        first = not stream.rows_begun
        if first:
            position.indexes[stream.ordinal] = max(pin.index, position.index(stream.ordinal))
            stream.rows_begun = True
            stream.wanted = position.offered(stream.ordinal, pin) & stream.asked
        wanted = stream.wanted
        if stream.asked & stream.has & ~wanted:
            rows = [_rows_in(each, wanted) for each in rows]
        done, mine = frame.snapshot_done, wanted != 0
        self._finish(stream, frame, position)
        if done:
            taken = position.take(stream.ordinal, pin, wanted)
            if taken != wanted:  # what has happened meanwhile leaves the others missing: their rows are too old
                wanted, rows = taken, [_rows_in(each, taken) for each in rows]
            self._packed.pop(stream.kind, None)
            stream.pin_reached()
            self._look_level()
            stream.rows_taken()
            self._repair(stream.kind)
            self._seek_targets()
        if not mine:
            return True
        return self._batch("snapshot", stream, rows=rows, slots=wanted, first=first, last=done)

    def _mark(self) -> WatchBatch | bool:
        """A mark of progress, once every group has made some."""
        age_ms = self.age_ms()
        has_spoken = all(stream.has_spoken for stream in self._turn)
        if not self.progress_ms or self.is_missing or not has_spoken or age_ms is None:
            return True
        if not self._proved.issuperset(stream for stream in self._turn if not stream.items):
            return True
        self._proved.clear()
        self._dispatcher.batches["progress"] += 1
        return WatchBatch("progress", "", self._cluster_id, self.where(), shapes=self.shapes, age_ms=age_ms)

    def _batch(
        self,
        kind: Literal["changes", "snapshot", "gap"],
        stream: GroupStream,
        *,
        entries: Sequence[tuple[WatchEntry, Sequence[WatchChange]]] = (),
        rows: Sequence[WatchRows] = (),
        slots: int = 0,
        first: bool = False,
        last: bool = False,
    ) -> WatchBatch:
        self._dispatcher.batches[kind] += 1
        return WatchBatch(
            kind,
            stream.name,
            self._cluster_id,
            self.where(),
            shapes=self.shapes,
            entries=entries,
            rows=rows,
            slots=slots,
            first=first,
            last=last,
        )


def _down(streams: Iterable[GroupStream], over: set[GroupStream]) -> list[GroupStream]:
    """The groups without a stream, but for those of which the watch wants no more."""
    return [stream for stream in streams if not stream.live and stream not in over]


def _rows_in(rows: WatchRows, slots: int) -> WatchRows:
    """The rows of these slots."""
    kept = [(key, value) for key, value in zip(rows.keys, rows.values, strict=True) if is_among(slots, rows.row, key)]
    return WatchRows(rows.row, [key for key, _ in kept], [value for _, value in kept])
