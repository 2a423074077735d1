"""The stream of one group: at one replica at a time, and at another one when that fails. It keeps what has come and was
not taken yet; the watch's :class:`~.streams.Streams` takes it, and says from where to go on."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from metad_wire.cluster import GroupId
from metad_wire.errors import ErrorBody, error_of
from metad_wire.method import MALFORMED, encode
from metad_wire.watch import (
    BEHIND_UNKNOWN_MS,
    MarkerStep,
    SlotMarker,
    WatchEntry,
    WatchOpen,
    WatchOpened,
    WatchProgress,
    WatchRows,
)

from ..causes import stays
from ..dispatch.calls.call import Call, EventStream
from ..dispatch.dispatcher import Dispatcher
from ..errors import (
    DrainingError,
    InternalError,
    LogCutError,
    MetadError,
    NotReplicaError,
    PositionAheadError,
    TooLargeError,
    UnknownMethodError,
    UnsupportedError,
)
from .position import Pin, bits_of


def choose(
    replicas: Sequence[str],
    *,
    leader: str,
    regions: dict[str, str],
    region: str,
    avoid: Collection[str],
    spare_leader: bool,
    rng: random.Random,
) -> str | None:
    """One of the replicas that can be reached, but none to avoid: at best of the client's region; and, of a snapshot,
    one that does not lead, since leaders have the most to do. Watches spread over the others. None if none is left."""
    left = [node for node in replicas if node not in avoid]
    near = [node for node in left if region and regions.get(node) == region] or left
    free = [node for node in near if node != leader] if spare_leader else near
    return rng.choice(free or near) if near else None


OPEN_DEADLINE_S = 10.0
"""A replica that has not begun a stream by then is given up."""
GOOD_S = 1.0
"""A stream that has lasted so long was no failure, even if it had nothing to report."""


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A :class:`WatchEvents` whose contents are decoded when they are taken."""

    index: int
    entries: msgspec.Raw = msgspec.Raw(b"\x90")
    rows: msgspec.Raw = msgspec.Raw(b"\x90")
    snapshot_done: bool = False
    progress: WatchProgress | None = None
    ended: ErrorBody | None = None


_decode = msgspec.msgpack.Decoder(_Envelope).decode
_decode_entries = msgspec.msgpack.Decoder(list[WatchEntry]).decode
_decode_rows = msgspec.msgpack.Decoder(list[WatchRows]).decode
_EMPTY = msgspec.Raw(b"\x90")


class Frame:
    """An event that has come."""

    __slots__ = ("_entries", "_envelope", "came", "index", "progress", "size", "snapshot_done", "taken")

    def __init__(self, envelope: _Envelope, size: int, came: float) -> None:
        self._envelope = envelope
        self._entries: list[WatchEntry] | None = None
        self.index = envelope.index
        self.progress = envelope.progress
        self.snapshot_done = envelope.snapshot_done
        self.size = size
        self.came = came
        self.taken = 0  # of its entries

    @property
    def has_rows(self) -> bool:
        """Whether it is about the snapshot."""
        return self.snapshot_done or self._envelope.rows != _EMPTY

    @property
    def is_mark(self) -> bool:
        """Whether it says only how far the stream is."""
        return not self.has_rows and self._envelope.entries == _EMPTY

    @property
    def entries(self) -> list[WatchEntry]:
        """Raises one of MALFORMED."""
        if self._entries is None:
            self._entries = _decode_entries(self._envelope.entries)
        return self._entries

    def rows(self) -> list[WatchRows]:
        """Raises one of MALFORMED."""
        return _decode_rows(self._envelope.rows)


@dataclass(frozen=True, slots=True)
class Cut:
    """What came before is all that is left of the old log; the group goes on at this pin."""

    pin: Pin
    index: int


class Owner(Protocol):
    """The watch that a stream belongs to."""

    credit_bytes: int

    def opening(self, stream: GroupStream) -> WatchOpen:
        """What to ask for."""

    def opened(self, stream: GroupStream, pin: Pin) -> None:
        """A replica has begun the stream, in this state."""

    def came(self, stream: GroupStream) -> None:
        """There is something to take."""

    def lost(self, stream: GroupStream, error: MetadError) -> bool:
        """The stream is interrupted. Says whether to open it again."""

    def fail(self, error: MetadError) -> None:
        """The watch cannot go on."""


class _Sink:
    """Takes the events of one attempt, as long as it is the stream's last one."""

    __slots__ = ("_stream",)

    def __init__(self, stream: GroupStream) -> None:
        self._stream = stream

    def opened(self, stream: EventStream, reply: Any) -> None:
        self._stream.opened(self, stream, reply)

    def received(self, payload: bytes) -> None:
        self._stream.received(self, payload)

    def lost(self, error: MetadError) -> None:
        self._stream.lost(self, error)


class GroupStream:
    """``items``: what has come, in order. ``assigned``: the missing slots whose rows this stream is to bring. ``pin``:
    of a snapshot whose rows are still to be taken."""

    def __init__(self, owner: Owner, dispatcher: Dispatcher, loop: asyncio.AbstractEventLoop, group: GroupId) -> None:
        self.kind, self.ordinal = group
        self.name = group.name
        self.items: deque[Frame | Cut] = deque()
        self.assigned = 0
        self.asked = 0
        """The slots of the snapshot that was asked for."""
        self.pin: Pin | None = None
        self.first_pin: Pin | None = None
        """Where the stream begins, while the watch has no position."""
        self.wanted = 0
        """Of the snapshot whose rows are coming: the slots that are read from it."""
        self.rows_begun = False
        self._held = 0
        """The slots that the group holds, from the index ``_held_from`` on."""
        self._held_from = 0
        self.cut = False
        """No replica has the log from the position on: begin at a pin."""
        self.live = False
        self.has_lived = False
        self.proved_at: float | None = None
        """The picture of this group lacks nothing that was acknowledged before this time."""
        self.asked_at: float | None = None
        """When the proof was asked for that the pin of this attempt rests on; None if it rests on none."""
        self.has_spoken = False
        """Whether it has made progress, and has said for how long its replica may have lacked something."""
        self.node = ""
        self.obstacle: MetadError | None = None
        """Why the last attempt has failed; None while there is a stream."""
        self._owner = owner
        self._dispatcher = dispatcher
        self._loop = loop
        self._sink: _Sink | None = None
        self._call: Call | None = None
        self._events: EventStream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._attempts = 0
        self._since = 0.0
        self._owed = 0  # credit of what was taken
        self._avoid: set[str] = set()  # replicas that have failed lately
        self._cut_at: set[str] = set()  # replicas whose log begins too late
        self._unable: set[str] = set()  # replicas that cannot serve
        self._ahead_of: set[str] = set()  # replicas that have not come to the position
        self._stranded = False  # no replica could be reached
        self._wants_proof = False  # of the attempt

    def __repr__(self) -> str:
        return f"<GroupStream {self.name} {'live at ' + self.node if self.live else 'down'}>"

    # --- attempts ---

    def start(self) -> None:
        """Open the stream now, if it can be."""
        if self._sink is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        opening = self._owner.opening(self)
        up = self._up()
        self._stranded = not up
        node = self._next_node(up, bool(opening.snapshot))
        queue = self._dispatcher.nodes.queues.get(node) if node else None
        if queue is None:
            if self._dispatcher.routes.record(self.name) is None:
                self._dispatcher.seek()  # the map is an old one
            self._later()
            return
        body = encode(opening)
        if len(body) > (bytes_max := self._dispatcher.body_bytes_max):
            self._owner.fail(
                TooLargeError(f"the watch's filters take {len(body)} bytes in a request, {bytes_max} are allowed")
            )
            return
        sink = _Sink(self)
        self._sink, self.node = sink, queue.node
        self._wants_proof = opening.proven
        self.asked_at = self._loop.time() if opening.proven else None
        self.asked = int.from_bytes(opening.snapshot, "big")
        call = self._dispatcher.open_stream(queue, body, self.name, sink, self._loop.time() + OPEN_DEADLINE_S)
        if call is None:
            self._sink = None
            self._avoid.add(queue.node)
            self._later()
            return
        self._call = call
        call.future.add_done_callback(lambda answer: self._answered(sink, answer))

    def hurry(self) -> None:
        """Something has changed that an attempt may have waited for."""
        if self._sink is None and (self._timer is None or (self._stranded and self._up())):
            self.start()

    def restart(self) -> None:
        """Open the stream anew from the watch's position: what has come is dropped."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """Take no more events, and drop what was not taken."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._sink = None
        self.live = False
        if self._events is not None:
            self._events.end()
        elif self._call is not None:
            self._dispatcher.abandon(self._call)
        self._events = self._call = None
        self.items.clear()
        self._drop_snapshot()

    def _up(self) -> list[str]:
        queues = self._dispatcher.nodes.queues
        nodes = self._replicas()
        return [node for node in nodes if (queue := queues.get(node)) is not None and queue.connection is not None]

    def _replicas(self) -> list[str]:
        record = self._dispatcher.routes.record(self.name)
        return [] if record is None else [*record.replicas, *record.learners]

    def _next_node(self, up: list[str], snapshot: bool) -> str | None:
        leader = self._dispatcher.leader(self.name)
        if self._ahead_of and leader in up and leader not in self._avoid:
            return leader
        return choose(
            up,
            leader=leader,
            regions=self._dispatcher.routes.regions,
            region=self._dispatcher.options.region,
            avoid=self._avoid,
            spare_leader=snapshot,
            rng=self._dispatcher.rng,
        )

    def _later(self, error: MetadError | None = None) -> None:
        """The next attempt, after a wait."""
        if self._timer is not None:
            return
        backoff, rng = self._dispatcher.options.backoff, self._dispatcher.rng
        if error is not None and error.retry_after_ms:
            delay_s = backoff.returning_s(error.retry_after_ms, error.retry_jitter_ms, rng)
        else:
            delay_s = backoff.delay_s(self._attempts, rng)
        self._attempts += 1
        self._avoid.clear()
        self._timer = self._loop.call_later(delay_s, self._retry)

    def _retry(self) -> None:
        self._timer = None
        self._unable.clear()
        obstacle = self._refused_everywhere()
        if obstacle is not None:
            self._owner.fail(obstacle)
            return
        self.start()

    def _refused_everywhere(self) -> MetadError | None:
        """No replica's node accepts this client: to wait would not help."""
        return self._dispatcher.refused(self._replicas())

    # --- answers ---

    def opened(self, sink: object, events: EventStream, reply: WatchOpened) -> None:
        """The replica has begun the stream."""
        if sink is not self._sink:
            events.end()
            return
        if self._wants_proof and not reply.proven:  # as a node of an older version answers
            events.end()
            self.lost(sink, UnsupportedError(f"{self.node} cannot prove how far {self.name} is"))
            return
        self._events, self._call = events, None
        self._since = self._loop.time()
        if self.has_lived:
            self._dispatcher.resumes += 1
        self.live = self.has_lived = True
        self.obstacle = None
        self._owed = 0
        pin = Pin.of(reply)
        self._held, self._held_from = pin.held, pin.index
        if self.cut:
            self.cut = False
            self.items.append(Cut(pin, pin.index))
        self._owner.opened(self, pin)

    def _answered(self, sink: object, answer: asyncio.Future[Any]) -> None:
        error = None if answer.cancelled() else answer.exception()
        if sink is self._sink and isinstance(error, MetadError):
            self.lost(sink, error)

    def received(self, sink: object, payload: bytes) -> None:
        """An event has come."""
        if sink is not self._sink:
            return
        try:
            envelope = _decode(payload)
        except MALFORMED as error:
            self._owner.fail(InternalError(f"{self.node} has sent an event that makes no sense: {error}"))
            return
        frame = Frame(envelope, len(payload), self._loop.time())
        last = self.items[-1] if self.items else None
        if isinstance(last, Frame) and last.is_mark and frame.is_mark:
            frame.size += last.size
            frame.progress = frame.progress or last.progress
            self.items[-1] = frame  # a program that takes nothing does not collect them
        else:
            self.items.append(frame)
        if envelope.ended is None:
            self._good()
            self._owner.came(self)
            return
        self._owner.came(self)
        if self._events is not None:
            self._events.end(ended=True)
        self.lost(sink, error_of(envelope.ended))

    def lost(self, sink: object, error: MetadError) -> None:
        """The stream has ended, or could not be opened."""
        if sink is not self._sink:
            return
        node, lived = self.node, self.live
        if lived and self._loop.time() - self._since >= GOOD_S:
            self._good()
        self._sink = self._call = self._events = None
        self.live = False
        self.obstacle = error
        self._drop_unfinished()
        if self._owner.lost(self, error):
            self._after(node, error)

    def _after(self, node: str, error: MetadError) -> None:
        """The next replica, or the end."""
        dispatcher = self._dispatcher
        self._avoid.add(node)
        if isinstance(error, LogCutError):
            self._cut_at.add(node)
        elif isinstance(error, PositionAheadError):
            self._ahead_of.add(node)
        elif isinstance(error, NotReplicaError | DrainingError):
            self._unable.add(node)
            dispatcher.seek()
        elif isinstance(error, UnknownMethodError | UnsupportedError) and not set(self._up()) <= self._avoid:
            self._unable.add(node)  # a node of an older version
        elif stays(error):
            self._owner.fail(error)
            return
        if not self.cut and self._log_is_lost():
            self.cut = True
            self._forgive()
        if error.retry_after_ms or not set(self._up()) - self._avoid:
            self._later(error)
        else:
            self.start()

    def _log_is_lost(self) -> bool:
        """Whether no replica that can be asked has the log behind the position."""
        up = set(self._up())
        without = self._cut_at | self._ahead_of
        if not without & up or not up <= without | self._unable:
            return False
        return bool(self._cut_at) or self._dispatcher.leader(self.name) in self._ahead_of

    def _good(self) -> None:
        if self._attempts or self._avoid:
            self._attempts = 0
            self._forgive()

    def _forgive(self) -> None:
        self._avoid.clear()
        self._cut_at.clear()
        self._ahead_of.clear()
        self._unable.clear()

    def _drop_unfinished(self) -> None:
        """What has come of a snapshot is void, and so is what came behind it; the rest goes on from where it is."""
        if self.pin is not None or self.first_pin is not None or self.held_bytes * 2 > self._owner.credit_bytes:
            self.items.clear()
        for number, item in enumerate(self.items):
            if isinstance(item, Cut):
                while len(self.items) > number:
                    self.items.pop()
                break
        self._drop_snapshot()

    def _drop_snapshot(self) -> None:
        self.pin = self.first_pin = None
        self.rows_begun = False
        self.wanted = 0

    # --- what is taken ---

    def resume_index(self, position: int) -> int:
        """Behind which index to ask for more, if the watch is at ``position``."""
        return self.items[-1].index if self.items else position

    def finished(self, frame: Frame) -> None:
        """A frame was taken: the server may send as much again."""
        self.items.popleft()
        self._owed += frame.size
        if self._events is not None and self._owed * 4 >= self._owner.credit_bytes:
            self._events.grant(self._owed)
            self._owed = 0

    def writes_only(self, slots: int, index: int) -> bool:
        """Whether an entry at this index changes rows of these slots only, as far as it is known without a look."""
        return index > self._held_from and not self._held & ~slots

    def moved(self, marker: SlotMarker, index: int) -> None:
        """The entry at this index was taken, which gives the group slots or takes them."""
        if index > self._held_from:
            slots = bits_of(marker.slots)
            self._held = self._held & ~slots if marker.step == MarkerStep.SEALED else self._held | slots

    @property
    def held_bytes(self) -> int:
        """What has come and was not taken."""
        return sum([item.size for item in self.items if isinstance(item, Frame)])

    def begin_rows(self, pin: Pin) -> None:
        """Rows of this pin follow."""
        self.pin, self.assigned = pin, pin.held | pin.sealed

    def rows_taken(self) -> None:
        """The snapshot is complete."""
        self._drop_snapshot()
        self.asked = self.assigned = 0

    def pin_reached(self) -> None:
        """The picture has all that the pin of this attempt has."""
        if self.asked_at is not None:
            self.proved(self.asked_at)

    def progressed(self, frame: Frame) -> None:
        """A mark of progress was taken. One that knows nothing proves nothing."""
        if frame.progress is not None and frame.progress.behind_ms < BEHIND_UNKNOWN_MS:
            self.has_spoken = True
            self.proved(frame.came - frame.progress.behind_ms / 1000)

    def proved(self, at: float) -> None:
        """Nothing that was acknowledged before this time is lacking."""
        self.proved_at = at if self.proved_at is None else max(self.proved_at, at)

    @property
    def reads_rows(self) -> bool:
        """Whether a snapshot was asked for and is not complete."""
        return self._sink is not None and self.asked != 0

    @property
    def has(self) -> int:
        """The slots that the group has at the pin of the snapshot."""
        return 0 if self.pin is None else self.pin.held | self.pin.sealed
