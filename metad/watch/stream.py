"""One watch of one group: from where it is to where the log is, then live.

A stream is *live* when it has sent, or holds, everything that is applied: then the hub gives it each entry that it
wants. Otherwise it is *behind*: it reads the log, a piece at a time, until it is level. A stream whose client gives no
credit, or whose connection does not read, does nothing, and falls behind with the first change that it cannot send. So
it keeps a position and no data. What it reads of the log it holds only while it is in turn. It neither rests nor waits
within an entry, which it would have to begin again: however large an entry is, a stream comes to its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from metad_wire.cluster import SLOTS
from metad_wire.errors import LogCutError, MetadError
from metad_wire.methods import encode
from metad_wire.watch import StreamFlag, WatchOpen

from ..state.core.entry import Entry
from . import frames
from .changes import Change, keys_only
from .filters import Interest, long_lengths
from .frames import FRAME_BYTES, Pending, PinnedRows, size_of
from .log_reader import LogReader
from .seams import Outlet, Replica

_KEYS_ONLY: Final = int(StreamFlag.KEYS_ONLY)
_CREDIT_MAX: Final = 1 << 40  # a sum that a client cannot make grow for ever
_EVENT_BYTES: Final = 64 * 1024
"""A stream that catches up sends an event once it has found so much."""
PENDING_BYTES: Final = FRAME_BYTES
"""A live stream holds so many bytes of changes at most until it is served, or one entry."""
_INTEREST_BYTES: Final = 1_700  # of an interest, with its places in the indexes of the hub and of a reader of the log
_PREFIX_COPIES: Final = 7  # itself, and in both indexes: whole, and the beginnings in sieves
_PROGRESS_MS_MIN: Final = 100
_SILENT_WORK: Final = 65_536
"""While a stream that catches up finds nothing, it says how far it is after so many writes of the log."""


class Home(Protocol):
    """The hub, as a stream sees it."""

    replica: Replica
    now: Callable[[], float]

    def wake(self, stream: Stream) -> None:
        """Serve it soon."""

    def may_hold(self, size: int) -> bool:
        """Whether live streams may hold so many bytes more, all together."""

    def held(self, size: int) -> None:
        """So many bytes more are held, or less."""

    def level(self, stream: Stream, interests: Sequence[Interest]) -> None:
        """It is live from now on."""

    def behind(self, stream: Stream, interests: Sequence[Interest]) -> None:
        """It is live no longer."""

    def pinned(self, stream: Stream, begins: bool) -> None:
        """Its snapshot begins, or is over. Raises OverloadedError if it would be one too many."""

    def left(self, stream: Stream) -> None:
        """It has ended."""


class Stream:
    """The stream of one request. The owner calls :meth:`serve` after each ``wake`` of the hub."""

    __slots__ = (
        "_hub",
        "_interests",
        "_pending",
        "_pinned_at",
        "_reader",
        "_rows",
        "_told_at",
        "awaited",
        "behind_since_s",
        "cost",
        "credit",
        "ended",
        "flags",
        "lengths",
        "live",
        "mark_due",
        "opened",
        "outlet",
        "pending_bytes",
        "position",
        "progress_ms",
        "proven",
        "queued",
        "sent",
        "snapshot",
        "stalled_since_s",
        "unproven",
        "wanted",
    )

    def __init__(self, hub: Home, outlet: Outlet, interests: Sequence[Interest], opening: WatchOpen) -> None:
        self._hub = hub
        self._interests = interests
        self.outlet = outlet
        self.cost = sum([_INTEREST_BYTES + _PREFIX_COPIES * len(interest.prefix) for interest in interests])
        """Bytes of memory that its interests take at most, about."""
        self.lengths = long_lengths(interests)
        """Of the prefixes that it looks for."""
        self.wanted = opening.position
        """Where the client wants it to begin; None: at a pin."""
        self.snapshot = opening.snapshot
        """The slots whose rows are wanted and not sent yet."""
        self.proven = opening.proven and (self.wanted is None or bool(self.snapshot))
        """Whether its pin is to have everything that was acknowledged before."""
        self.unproven = self.proven
        """Whether it is not known yet which index has that."""
        self.awaited = self.wanted or 0
        """The index that the replica must have applied before the stream can begin."""
        self.progress_ms = max(opening.progress_ms, _PROGRESS_MS_MIN) if opening.progress_ms else 0
        self.flags = opening.flags
        self.credit = opening.credit_bytes
        self.opened = False
        self.ended = False
        self.live = False
        self.queued = False
        """Whether it waits to be served."""
        self.position = 0
        """Everything up to here was looked at. Of a live stream it is that of the hub."""
        self.sent = 0
        """The index of the last event."""
        self.pending_bytes = 0
        self.behind_since_s = 0.0
        """Since when it reads the log, or is to read it."""
        self.mark_due = False
        """Whether to say how far it is although nothing happens."""
        self.stalled_since_s = 0.0
        """Since when a snapshot could not be sent; 0 if it can."""
        self._pending: deque[tuple[int, Pending]] = deque()  # with its size
        self._rows: PinnedRows | None = None
        self._pinned_at = 0
        self._reader: LogReader | None = None
        self._told_at = 0  # the work of the reader when it was last said how far the stream is

    @property
    def replica(self) -> Replica:
        """The one that it follows."""
        return self._hub.replica

    @property
    def wants_previous(self) -> bool:
        """Whether changes have the value before, too."""
        return bool(self.flags & StreamFlag.PREVIOUS)

    @property
    def floor(self) -> int:
        """Entries behind this one are still to be sent."""
        if self._pending:
            return self._pending[0][1].at - 1
        return self._hub.replica.applied if self.live else self.position

    @property
    def has_pending(self) -> bool:
        """Whether it holds entries that are not sent yet."""
        return bool(self._pending)

    @property
    def within_entry(self) -> bool:
        """Whether it is reading an entry, and so cannot rest."""
        return self._reader is not None and self._reader.within

    @property
    def in_snapshot(self) -> bool:
        """Whether its snapshot is still to be sent, or the rest of it."""
        return self._rows is not None or bool(self.snapshot)

    # --- its beginning -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin: the replica has come to the position. Raises MetadError."""
        replica, wanted = self._hub.replica, self.wanted
        if wanted is not None and wanted < replica.base:
            raise LogCutError(f"the log of {replica.name} here begins behind {replica.base}")
        said = replica.opened(pinned=wanted is None or bool(self.snapshot), proven=self.proven)
        self.position = said.index if wanted is None else wanted
        self.sent = self.position
        if self.snapshot:
            here = int.from_bytes(said.held, "big") | int.from_bytes(said.sealed, "big")
            slots = (int.from_bytes(self.snapshot, "big") & here).to_bytes(SLOTS // 8, "big")
            self._hub.pinned(self, True)
            self._rows = PinnedRows(replica.pin(), replica.prefix, self._interests, slots, self.flags)
            self._pinned_at = said.index
            self.snapshot = b""
        self.opened = True
        self.outlet.opened(encode(said))
        if self._rows is None and self.position == replica.applied:
            self._go_live()
        else:
            self.behind_since_s = self._hub.now()
            self._hub.wake(self)

    def prove(self, index: int) -> None:
        """This index of the log has everything that was acknowledged before the stream was asked for."""
        self.unproven = False
        self.awaited = max(self.awaited, index)

    def arrived(self) -> None:
        """The replica has come to the index that the stream has waited for: it begins when it is served."""
        self.position = self.wanted or 0
        self.behind_since_s = self._hub.now()
        self._hub.wake(self)

    def grant(self, size: int) -> None:
        """The client takes so many bytes more."""
        self.credit = min(self.credit + size, _CREDIT_MAX)
        if self.credit > 0:
            self.wake()

    def wake(self) -> None:
        """Something has changed: look whether there is something to do."""
        if not self.ended and self.opened and (self._pending or self.mark_due or not self.live):
            self._hub.wake(self)

    # --- its work ----------------------------------------------------------------------------------------

    def take(self, index: int, entry: Entry, found: list[Change]) -> None:
        """An entry is applied, and a live stream wants these changes of it, or its marker."""
        pending = self._pending_of(index, entry, found)
        size = size_of(pending)
        full = bool(self._pending) and self.pending_bytes + size > PENDING_BYTES
        if full or not self._hub.may_hold(size):
            self.leave(index)
            return
        self._hold(pending, size)

    def leave(self, index: int) -> None:
        """An entry is applied that a live stream cannot hold: it reads the log from there on."""
        self._fall_behind(self._pending[0][1].at if self._pending else index)

    def rest(self, seen_bytes: int) -> None:
        """Others are served before it is again: send what it has found, and hold nothing meanwhile but its position and
        so many bytes of the values before. It is not within an entry."""
        while self._pending and (room := self._room()) >= self._wanted_room():
            self._send_entries(room)
        self._drop_pending()
        if self._reader is not None:
            self._reader.rest(seen_bytes)

    def serve(self) -> bool:
        """Do a piece of what there is to do, and send a frame at most; whether there is more that can be done now.
        Raises MetadError if the stream is to begin and cannot."""
        if self.ended:
            return False
        if not self.opened:
            self.open()
            return False
        room = self._room()
        if room < self._wanted_room():
            if self._reader is None or not (self._reader.within or self._reader.looks_back):
                self._stall()
                return False
            self._read_log(self._end)
            return not self.ended
        self.stalled_since_s = 0.0
        if self.mark_due and not self._pending:
            self.mark()
        elif not self.live:
            self._advance(room)
        elif self._pending:
            self._send_entries(room)
        return not self.ended and (bool(self._pending) or not self.live)

    def _room(self) -> int:
        """How many bytes can be sent now, about."""
        return self.outlet.room() if self.credit > 0 else 0

    def _wanted_room(self) -> int:
        """Without so much room nothing is done: what is behind waits until there is plenty."""
        if not self.live:
            return FRAME_BYTES
        return min(self._pending[0][0], FRAME_BYTES) if self._pending else 1

    def _stall(self) -> None:
        if self.credit > 0:
            self.outlet.wait()
        if self._rows is not None:
            self.stalled_since_s = self.stalled_since_s or self._hub.now()
        if self._pending and self.live:
            self._fall_behind(self._pending[0][1].at)  # many that wait would leave the others no room
        self._drop_pending()
        self._reader = None  # it may wait for ever, and the reader holds what it has fetched

    @property
    def _end(self) -> int:
        """Up to where it reads the log."""
        return self._hub.replica.applied if self._rows is None else self._pinned_at

    def _advance(self, room: int) -> None:
        """Read on in the log, or in the snapshot, until there is something to send."""
        replica, rows, end = self._hub.replica, self._rows, self._end
        if self.pending_bytes >= _EVENT_BYTES or (self._pending and self.position == end):
            self._send_entries(room)
        elif self.position < end:
            self._read_log(end)
            self._tell_silent()
        elif rows is not None:
            found, done = rows.next()
            if done:
                self._unpin()
            if found or done:
                self._send(frames.rows(self.position, found, done=done), self.position)
        if self._rows is None and self.position == replica.applied and not self._pending:
            self._go_live()

    def _read_log(self, end: int) -> None:
        replica, reader = self._hub.replica, self._reader
        if self.position < replica.base:
            self.end(LogCutError(f"the log of {replica.name} here begins behind {replica.base}"))
            return
        if reader is None:
            reader = self._reader = LogReader(replica, self._interests, self.position, previous=self.wants_previous)
            self._told_at = 0
        for found in reader.piece(end):
            self.position = found.at
            if found.wanted:
                pending = self._pending_of(found.at, found.entry, found.changes)
                self._hold(pending, size_of(pending))

    def _tell_silent(self) -> None:
        """Say how far it is if it has found nothing for long. Within a large entry it is no further."""
        reader = self._reader
        if (
            reader is not None
            and reader.work - self._told_at >= _SILENT_WORK
            and self.position > self.sent
            and not self._pending
        ):
            self._send(frames.mark(self.position), self.position)

    def _go_live(self) -> None:
        """Everything that is applied was looked at. Without credit it stays behind: an entry costs nothing then for
        those who do not take it."""
        if self.credit <= 0:
            self.behind_since_s = self._hub.now()
            return
        if self.sent < self.position:
            self._send(frames.mark(self.position), self.position)
        self.live = True
        self._reader = None
        self._hub.level(self, self._interests)

    def _fall_behind(self, index: int) -> None:
        """From this entry on, read from the log what cannot be held."""
        self._hub.behind(self, self._interests)
        self.live = False
        self._drop_pending()
        self.position = index - 1
        self.behind_since_s = self._hub.now()

    def mark(self) -> None:
        """Say how far the stream is, and its replica if the client asked for that."""
        self.mark_due = False
        index = self.floor
        behind_ms = self._hub.replica.behind_ms() if self.progress_ms else None
        self._send(frames.mark(index, behind_ms=behind_ms), index)

    def tell(self) -> None:
        """Say soon how far the stream is, if that can be said."""
        self.mark_due = True
        self.wake()

    # --- what it holds and sends -------------------------------------------------------------------------

    def _pending_of(self, index: int, entry: Entry, found: list[Change]) -> Pending:
        """An entry as this stream reports it. Entries of older versions do not say their revision."""
        if self.flags & _KEYS_ONLY:
            found = [keys_only(change) for change in found]
        return Pending(index, entry.revision or index, entry.now_ms, found, entry.marker)

    def _hold(self, pending: Pending, size: int) -> None:
        self._pending.append((size, pending))
        self.pending_bytes += size
        self._hub.held(size)

    def _drop_pending(self) -> None:
        if self._pending:
            self.position = self.floor
            self._reader = None  # it has read what is to be read again
            self._pending.clear()
            self._hub.held(-self.pending_bytes)
            self.pending_bytes = 0

    def _send_entries(self, room: int) -> None:
        """One frame of what is pending."""
        pending = self._pending
        room = min(FRAME_BYTES, self.credit, room)
        size, first = pending.popleft()
        taken = [first]
        while pending and size + pending[0][0] <= room:
            more, one = pending.popleft()
            size += more
            taken.append(one)
        self.pending_bytes -= size
        self._hub.held(-size)
        index = taken[-1].at if pending else self.floor
        self._send(frames.entries(index, taken, self.flags), index)

    def _send(self, payload: bytes, index: int) -> None:
        self.sent = index
        if self._reader is not None:
            self._told_at = self._reader.work
        self.credit -= len(payload)
        self.outlet.event(payload)

    # --- its end -----------------------------------------------------------------------------------------

    def end(self, why: MetadError) -> None:
        """Tell the client why nothing follows."""
        if self.ended:
            return
        if not self.opened:
            self.forget()
            self.outlet.refused(why)
            return
        while self._pending and self.credit > 0 and (room := self.outlet.room()):
            self._send_entries(room)
        index = self.floor
        self.forget()
        self.outlet.event(frames.end(index, why), last=True)

    def forget(self) -> None:
        """Nobody wants to hear of it any more."""
        if self.ended:
            return
        self.ended = True
        if self.live:
            self._hub.behind(self, self._interests)
            self.live = False
        self._drop_pending()
        self._reader = None
        self._unpin()
        self._hub.left(self)

    def _unpin(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None
            self._hub.pinned(self, False)
