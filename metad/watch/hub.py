"""The streams of one replica. The hub hears of each entry when it is applied and gives it to the live streams that want
it; :mod:`.stream` has the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final, Protocol

from metad_wire.errors import MetadError, NotLeaderError, PositionAheadError

from ..state.core.entry import Entry
from .changes import Change, EntryChanges, with_previous
from .filters import LENGTHS_MAX, OWNER, SHORT_BYTES, Interest
from .index import Index
from .seams import Replica
from .stream import Stream

_PREVIOUS_BYTES: Final = 4 * 1024 * 1024
"""So many bytes of the values that an entry replaces are read before it is applied, or one value more. It is twice what
a request may write."""
_ASK_AGAIN_S: Final = 1.0
"""A leader that has not said within this time how far the group is may lead no longer: the next one is asked."""


_TOLD_MAX: Final = 4_096
"""So many streams are told of an entry while it is applied, some milliseconds; others read it in the log, in turns."""


class Keeper(Protocol):
    """What serves the streams of all hubs of a node."""

    def full(self, why: str) -> MetadError:
        """What to raise where there is no room for one more."""

    def wake(self, stream: Stream) -> None:
        """Serve a stream soon."""

    def may_hold(self, size: int) -> bool:
        """Whether live streams may hold so many bytes more."""

    def held(self, size: int) -> None:
        """So many bytes more are held, or less."""

    def pinned(self, stream: Stream, begins: bool) -> None:
        """The snapshot of a stream begins, or is over. Raises OverloadedError if it would be one too many."""

    def left(self, stream: Stream) -> None:
        """A stream has ended."""

    def later(self, piece: Callable[[], None]) -> None:
        """Call back in a slice of what many hear."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back once what is being applied is in the engine."""

    def refuse(self, stream: Stream, why: MetadError) -> None:
        """End a stream that has waited in vain. Thousands may be refused at once."""


class Hub:
    """All streams of one replica."""

    def __init__(self, replica: Replica, keeper: Keeper, now: Callable[[], float]) -> None:
        self.replica = replica
        self.now = now
        self.streams: dict[Stream, None] = {}
        """Those that have begun."""
        self.waiting: dict[Stream, float] = {}
        """Those that begin at an index that the replica has not applied, or that is not known yet; and until when they
        wait."""
        self._keeper = keeper
        self._live: dict[Stream, None] = {}
        self._index: Index[Stream] = Index(replica.prefix)
        self.kept = replica.applied
        """Live streams were told that they are this far at least, or are about to be told."""
        self._marked = replica.applied
        self._lengths: Counter[int] = Counter()  # of long prefixes, and how many streams look for each
        self._previous = 0  # live streams that want the values before
        self._unwritten: dict[bytes, bytes | None] = {}  # by entries that are staged and not in the engine yet
        self._asked_s = -_ASK_AGAIN_S  # when the leader was last asked how far the group is
        self._asks = False  # it has not answered

    # --- streams -----------------------------------------------------------------------------------------

    def open(self, stream: Stream, wait_until_s: float) -> None:
        """Begin a stream, or have it wait until the replica has come to its position. Raises MetadError; the stream is
        to be forgotten then."""
        self._lengths.update(stream.lengths)
        if len(self._lengths) > LENGTHS_MAX:
            raise self._keeper.full(
                f"the filters of all watches of {self.replica.name} on this node would have keys over {SHORT_BYTES} "
                f"bytes of {len(self._lengths)} different lengths; {LENGTHS_MAX} are allowed"
            )
        if stream.unproven or stream.awaited > self.replica.applied:
            self.waiting[stream] = wait_until_s
            if stream.unproven:
                self._ask()
            return
        self.streams[stream] = None
        try:
            stream.open()
        except BaseException:
            del self.streams[stream]
            raise

    def level(self, stream: Stream, interests: Sequence[Interest]) -> None:
        """A stream is live from now on."""
        self._live[stream] = None
        self._index.add(stream, interests)
        self._previous += stream.wants_previous

    def behind(self, stream: Stream, interests: Sequence[Interest]) -> None:
        """It is live no longer."""
        del self._live[stream]
        self._index.remove(stream, interests)
        self._previous -= stream.wants_previous

    def wake(self, stream: Stream) -> None:
        """Serve it soon."""
        self._keeper.wake(stream)

    def may_hold(self, size: int) -> bool:
        """Whether live streams may hold so many bytes more, all together."""
        return self._keeper.may_hold(size)

    def held(self, size: int) -> None:
        """So many bytes more are held, or less."""
        self._keeper.held(size)

    def pinned(self, stream: Stream, begins: bool) -> None:
        """Its snapshot begins, or is over. Raises OverloadedError if it would be one too many."""
        self._keeper.pinned(stream, begins)

    def left(self, stream: Stream) -> None:
        """It has ended."""
        self._lengths.subtract(stream.lengths)
        for length in stream.lengths:
            if not self._lengths[length]:
                del self._lengths[length]
        self.streams.pop(stream, None)
        self.waiting.pop(stream, None)
        self._keeper.left(stream)

    def end(self, why: MetadError) -> None:
        """End all streams."""
        for stream in [*self.waiting, *self.streams]:
            stream.end(why)

    def fall_back(self) -> None:
        """The entry that is being applied is not to be passed by: live streams are as far as the one before it."""
        for stream in list(self._live):
            stream.leave(self.replica.applied)

    def expire(self, now_s: float) -> bool:
        """Refuse those that have waited too long; whether others wait."""
        name = self.replica.name
        for stream in [stream for stream, until_s in self.waiting.items() if until_s <= now_s]:
            if stream.unproven:
                self._keeper.refuse(
                    stream, NotLeaderError(f"no leader of {name} has said in time how far the group is")
                )
            elif stream.awaited > (stream.wanted or 0):
                what = f"has applied {self.replica.applied}, and its leader has committed {stream.awaited}"
                self._keeper.refuse(stream, NotLeaderError(f"this replica of {name} {what}"))
            else:
                what = f"has applied {self.replica.applied}, and the position is {stream.wanted}"
                self._keeper.refuse(stream, PositionAheadError(f"this replica of {name} {what}"))
        if any(stream.unproven for stream in self.waiting):
            self._ask()
        return bool(self.waiting)

    # --- how far the group is ----------------------------------------------------------------------------

    def _ask(self) -> None:
        """Ask the group's leader how far the group is, for all that want to know. One question at a time: those that
        come while it is under way are asked for by the next one."""
        now_s = self.now()
        if self._asks and now_s < self._asked_s + _ASK_AGAIN_S:
            return
        self._asks, self._asked_s = True, now_s
        asked = [stream for stream in self.waiting if stream.unproven]
        self.replica.read_index(partial(self._told, now_s, asked))

    def _told(self, asked_s: float, asked: Sequence[Stream], answer: int | MetadError) -> None:
        """The leader has answered. An answer that is late is as good: it was asked for after these streams came."""
        for stream in asked:
            if stream not in self.waiting or not stream.unproven:
                continue
            if isinstance(answer, MetadError):
                self._keeper.refuse(stream, answer)
            else:
                stream.prove(answer)
        self._arrived()
        if asked_s == self._asked_s:
            self._asks = False
            # Those that asked are proven, or about to be let go: to ask for them again at once would never end.
            if any(stream.unproven for stream in self.waiting.keys() - {*asked}):
                self._ask()

    # --- the log that is kept for them -------------------------------------------------------------------

    def floor(self, since_s: float) -> int:
        """Entries behind this one are needed: by streams that are behind, but not since before ``since_s``, and by
        those who go on from what live streams were told last."""
        floor = self.kept
        for stream in self.streams:
            if stream.has_pending if stream.live else stream.behind_since_s >= since_s:
                floor = min(floor, stream.floor)
        return floor

    def mark(self) -> None:
        """Tell live streams that have said nothing since the last time how far they are."""
        self.kept, self._marked = self._marked, self.replica.applied
        for stream in list(self._live):
            if stream.sent < self.kept:
                self._keeper.later(stream.tell)

    # --- entries -----------------------------------------------------------------------------------------

    def stage(self, entry: Entry) -> None:
        """An entry is being applied. The engine does not have it yet."""
        index = self.replica.applied
        if self.waiting:
            self._keeper.soon(self._arrived)
        if not self._live:
            return
        changes = EntryChanges(entry)
        matched = self._index.matches(changes)
        if self._previous:
            for stream in self._find_previous(changes, matched):
                del matched[stream]
                stream.leave(index)
                self.wake(stream)
            for writes in entry:
                self._unwritten.update(writes)
            self._keeper.soon(self._written)
        if entry.marker is not None:
            for stream in self._live:
                matched.setdefault(stream, [])
        for stream in [*islice(matched, _TOLD_MAX, None)]:
            del matched[stream]
            stream.leave(index)
            self.wake(stream)
        for stream, found in matched.items():
            stream.take(index, entry, found)
            self.wake(stream)

    def _find_previous(self, changes: EntryChanges, matched: dict[Stream, list[Change]]) -> list[Stream]:
        """Read the values that the changes replace, for those who asked for them. Returns the streams for which that
        would be too much."""
        told: dict[tuple[int, bytes], Change] = {}
        size = 0
        left: list[Stream] = []
        for stream in [stream for stream in matched if stream.wants_previous]:
            for change in matched[stream]:
                at = change[0], change[2]
                if at not in told:
                    if size >= _PREVIOUS_BYTES:
                        left.append(stream)
                        break
                    told[at] = with_previous(change, self._before(changes, change))
                    size += len(told[at][4] or b"")
            else:
                matched[stream] = [told[change[0], change[2]] for change in matched[stream]]
        return left

    def _before(self, changes: EntryChanges, change: Change) -> bytes | None:
        key = self.replica.prefix + bytes((change[0],)) + change[2]
        owner = changes.owner_before(key) if change[0] == OWNER else None
        return self._value(key) if owner is None else owner or None

    def _value(self, key: bytes) -> bytes | None:
        if key in self._unwritten:
            return self._unwritten[key]
        return self.replica.get(key)

    def _written(self) -> None:
        self._unwritten.clear()

    def _arrived(self) -> None:
        """Have those that wait for nothing any more begin, each in its turn."""
        applied = self.replica.applied
        for stream in [stream for stream in self.waiting if not stream.unproven and stream.awaited <= applied]:
            del self.waiting[stream]
            self.streams[stream] = None
            stream.arrived()
