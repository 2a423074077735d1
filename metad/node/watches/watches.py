"""The watches of a node: streams of its replicas begin here and are served in turns.

Live streams are served first: a frame of what has just been applied. Those that read the log take turns with each other
in small pieces, and so do those that read a snapshot; both wait like other heavy work while small writes are unanswered
(:mod:`metad_wire.policy.fair_queue`).
A stream for which there is nothing to do costs memory and nothing else: what has to be looked at now and then, the
node's status looks at anyway.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from metad_wire import messages as m
from metad_wire.cluster import SLOTS
from metad_wire.connection.session import FEATURES
from metad_wire.errors import (
    DrainingError,
    InvalidRequestError,
    LogCutError,
    MetadError,
    NotReplicaError,
    OverloadedError,
    SlowReaderError,
    TooLargeError,
    UnsupportedError,
)
from metad_wire.methods import WATCH_OPEN
from metad_wire.policy.fair_queue import Precedence
from metad_wire.policy.fair_room import FairRoom, Place, holder_of
from metad_wire.policy.slices import Slices
from metad_wire.transport.fair_share import FairShare
from metad_wire.watch import BEHIND_UNKNOWN_MS, Brought, WatchFilter, WatchOpened

from ... import log_events
from ...config import Config
from ...control.host import Source
from ...errors import StorageError
from ...logs import event
from ...state.cluster.tenant_moves import TenantMoves, moved_away, said_by
from ...state.core.entry import Entry, decode_record
from ...state.core.part import Origin
from ...state.core.slot_assignment import HeldSlots
from ...storage.engine import Engine, Pin
from ...storage.keys import after_prefix
from ...watch.filters import compiled
from ...watch.hub import Hub
from ...watch.seams import Outlet, Replica
from ...watch.stream import Stream
from ..calls.peer_sender import PeerSender
from ..environment import Deadlines, Environment, Timer
from ..health import Health
from ..replicas.driver import GroupDriver, Listener
from ..replicas.groups import Groups
from ..requests.near import ask_read_index
from ..requests.permissions import Permissions
from ..requests.reads import failed

_WAIT_S = 5.0  # for a position that the replica has not come to
# What has just been applied is sent in slices of a turn of the loop each. In a simulation no time passes, and the count
# ends them.
_LIVE_S = 0.001
_LIVE_FRAMES = 128
# In durations of a piece of catching up: what others have of the loop after it, while there are others. Where many
# streams are behind, as after the death of a node, each piece leaves less, or most of them would fall off the log.
_REST, _REST_MIN = 24, 4
# The same after a piece of a snapshot. It is short: somebody waits for the whole, and until it is over the store keeps
# what is overwritten. Small writes go before each piece all the same.
_REST_SNAPSHOT = 0.25
_BUSY_S = 0.05  # there are others for so long after their last work: writes come one after the other
_PIECES = 16
"""A stream that is behind gets so many pieces before the next one does. Each reads the log for itself: if all went on
at the same time, none would be level before the log has grown by what all of them need."""
_SEEN_BYTES = 32 * 1024 * 1024
"""Of values before, that streams which wait for their turn keep together, about."""
_PINS_MAX = 256  # snapshots under way: each keeps what is overwritten meanwhile
_PIN_S = 600.0  # and for so long at most
_INTEREST_BYTES_MAX = 128 * 1024 * 1024  # memory of all filters, every copy counted
_CHECKED_AT_ONCE = 10_000  # filters that one look compares with roles that have changed
_SLOW_S = 60.0  # a snapshot that cannot be sent for so long ends
_SILENT_S = 5.0  # and after so long if another needs its room
_PROGRESS_S = 0.25  # how exact the intervals of progress events are
_AGAIN_MS = 500  # when to come again, if there is no room, or to a group that is being restored


class Watches:
    """Serves all streams of this node."""

    def __init__(
        self,
        config: Config,
        state: Engine,
        groups: Groups,
        peers: PeerSender,
        precedence: Precedence,
        slices: Slices,
        environment: Environment,
        health: Health,
        permissions: Permissions,
    ) -> None:
        self.draining = False
        self.held_bytes = 0
        """Of changes that live streams wait to send."""
        self.limits = config.limits
        self.streams = FairRoom("streams of watches", config.limits.watch_streams_max, ends="its connection")
        self._interests = FairRoom("bytes of filters of watches", _INTEREST_BYTES_MAX, ends="its stream")
        self._pins = FairRoom("snapshots of watches", _PINS_MAX, ends=f"{_SLOW_S:.0f} s in which nothing is taken")
        self._places: dict[Stream, tuple[Source | None, Place, Place, list[WatchFilter]]] = {}
        """The connection of each stream, the room of the stream and of its filters, and these."""
        self._permissions = permissions
        permissions.quotas.watches = self.streams.held_by
        self._allowed_at = permissions.known.changes
        self._unchecked: list[Stream] = []  # which may show what may not be read any more
        self.retained_bytes = config.storage.watch_retained_bytes
        self.retained_s = config.storage.watch_retained_ms / 1000
        self.mark_bytes = config.storage.log_retained_bytes // 4
        self._grown_bytes = 0  # of the logs, since live streams were told how far they are
        self._state = state
        self._groups = groups
        self._peers = peers
        self._precedence = precedence
        self._slices = slices
        self._environment = environment
        self._health = health
        self._tables = permissions.tables
        self._hubs: dict[GroupDriver, Hub] = {}
        self._listeners: dict[GroupDriver, Listener] = {}
        self._pinned: dict[Stream, tuple[float, Place]] = {}  # since when
        self._ending: set[Stream] = set()  # they are not served any more, and are about to hear why
        self._progress: dict[Stream, float] = {}  # when each says next how far it is
        self._progress_timer: Timer | None = None
        self._live: deque[Stream] = deque()
        self._in_log = _Turns(lambda others: max(_REST_MIN, _REST // (others + 1)))
        self._in_snapshot = _Turns(lambda _: _REST_SNAPSHOT)
        self._at_live = self._at_behind = False
        self._busy_until_s = 0.0
        self._pause: Timer | None = None  # until one of those that are behind is served again
        self._expiry = Deadlines(environment, self._expire)

    # --- their beginnings and ends -----------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Of streams."""
        return self.streams.held

    def open(self, payload: bytes, outlet: Outlet, source: Source | None = None) -> Stream | None:
        """Begin the stream of a request on a connection. Never raises: what is wrong with it goes to the
        outlet."""
        try:
            if len(payload) > m.CHANGE_BYTES_MAX:
                raise TooLargeError(
                    f"a request to watch is at most {m.CHANGE_BYTES_MAX} bytes: watch prefixes, not keys"
                )
            return self._open(WATCH_OPEN.decode_request(payload), outlet, source)
        except Exception as error:  # noqa: BLE001 - told to whoever asked, and logged
            outlet.refused(failed(WATCH_OPEN.name, error, self._health))
            return None

    def _open(self, request: m.Request[Any], outlet: Outlet, source: Source | None) -> Stream:
        if request.requires & ~FEATURES:
            raise UnsupportedError(
                f"the request requires features {request.requires & ~FEATURES:#x}, which this node lacks"
            )
        if self.draining:
            raise DrainingError
        if self._health.failure is not None:
            raise NotReplicaError("the node has stopped; its log says why")
        driver = self._groups.replica(request.group)
        if driver.installing:
            raise NotReplicaError(f"a snapshot is being put in place of {request.group} on this node")
        body = request.body
        self._permissions.check_watch(body.filters, source)
        if (moves := driver.machine.parts[TenantMoves].all()) and (
            why := moved_away(moves, self._tables, body.filters)
        ) is not None:
            raise why
        nodes = 1 if self._groups.map is None else len(self._groups.map.nodes)
        self._permissions.quotas.may_watch(source, body.streams, nodes)
        interests = compiled(body.filters, driver.group.group_id.kind, self._tables)
        if len(body.snapshot) not in (0, SLOTS // 8):
            raise InvalidRequestError(f"a bit map of slots takes {SLOTS // 8} bytes, this one has {len(body.snapshot)}")
        hub = self._hub(driver)
        stream = Stream(hub, outlet, interests, body)
        try:
            self._take(stream, source, body.filters)
        except OverloadedError:
            self._left_hubs()
            raise
        wait_s = min(_WAIT_S, request.deadline_ms / 1000 or _WAIT_S)
        try:
            hub.open(stream, self._environment.now() + wait_s)
        except BaseException:
            stream.forget()
            raise
        if hub.waiting:
            self._expiry.arm()
        if stream.progress_ms and not stream.ended:
            self._progress[stream] = self._environment.now() + stream.progress_ms / 1000
            self._arm_progress()
        return stream

    def _take(self, stream: Stream, source: Source | None, wanted: list[WatchFilter]) -> None:
        """Take room for a stream. Where others need it, the stream ends. Raises OverloadedError."""

        def take_back() -> None:
            stream.end(self.full("others need the room of this stream of a watch"))

        holder = holder_of(source)
        taken = self.streams.take(holder, 1, take_back, source=source)
        if taken is None:
            raise self.full(f"this node has {self.count} streams of watches already (limits.watch_streams_max)")
        filters = self._interests.take(holder, stream.cost, take_back, source=source)
        if filters is None:
            self.streams.give(taken)
            raise self.full("the filters of all watches on this node take too much memory")
        self._places[stream] = source, taken, filters, wanted

    def _hub(self, driver: GroupDriver) -> Hub:
        hub = self._hubs.get(driver)
        if hub is None:
            replica = WatchedReplica(driver, self._state, self._peers, self._environment.now)
            hub = self._hubs[driver] = Hub(replica, self, self._environment.now)
            listener = self._listeners[driver] = partial(self._stage, hub)
            driver.listen(listener)
            driver.group.watch(True)
        return hub

    def _stage(self, hub: Hub, entry: Entry) -> None:
        """Tell a hub of an entry. The entry is applied, whatever becomes of the streams. Raises StorageError."""
        if entry.origin is Origin.MIGRATION and hub.replica.base >= hub.replica.applied:
            # What a backup had is there now, and no entry says so. Who goes on must not go on behind this one.
            hub.fall_back()
            self._end_all(hub, LogCutError(f"{hub.replica.name} was restored from a backup"))
            return
        if moves := said_by(entry):
            for stream in [*hub.waiting, *hub.streams]:
                if (why := moved_away(moves, self._tables, self._places[stream][3])) is not None:
                    self._ending.add(stream)
                    self._slices.now(partial(stream.end, why))
        try:
            hub.stage(entry)
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001 - told to the clients, and logged
            hub.end(failed(WATCH_OPEN.name, error, self._health))

    def left(self, stream: Stream) -> None:
        """A stream has ended."""
        _, taken, filters, _ = self._places.pop(stream)
        self.streams.give(taken)
        self._interests.give(filters)
        self.pinned(stream, False)
        self._ending.discard(stream)
        self._progress.pop(stream, None)
        for turns in (self._in_log, self._in_snapshot):
            turns.forget(stream)
        self._left_hubs()

    def _left_hubs(self) -> None:
        """Let hubs go that have no stream."""
        for driver, hub in list(self._hubs.items()):
            if not hub.streams and not hub.waiting:
                driver.unlisten(self._listeners.pop(driver))
                driver.group.watch(False)
                del self._hubs[driver]

    def end(self, driver: GroupDriver, why: MetadError) -> None:
        """End the streams of a replica."""
        hub = self._hubs.get(driver)
        if hub is not None:
            self._end_all(hub, why)

    def _end_all(self, hub: Hub, why: MetadError) -> None:
        """End the streams of a hub. None of them is served from now on; they hear of it in slices."""
        for stream in [*hub.waiting, *hub.streams]:
            self._ending.add(stream)
            self._slices.now(partial(stream.end, why))

    def drain(self) -> None:
        """The node is about to end: others serve from now on."""
        self.draining = True
        self.abandon(DrainingError("the node is shutting down"))

    def abandon(self, why: MetadError) -> None:
        """End all streams."""
        for hub in list(self._hubs.values()):
            self._end_all(hub, why)

    def stop(self) -> None:
        """Stop the timers."""
        self._expiry.stop()
        for timer in (self._progress_timer, self._pause):
            if timer is not None:
                timer.cancel()

    def _expire(self, now_s: float) -> bool:
        waiting = [hub.expire(now_s) for hub in list(self._hubs.values())]
        return any(waiting)

    # --- what is looked at now and then ------------------------------------------------------------------

    def look(self) -> None:
        """End the streams of replicas that do not hear their leader, snapshots that are not taken in time, and streams
        that show what may not be read any more."""
        silent_ms = self.limits.watch_silence_ms
        for hub in list(self._hubs.values()):
            replica = hub.replica
            if replica.silent_ms() > silent_ms:
                event(log_events.WATCHES_SENT_AWAY, group=replica.name, streams=len(hub.streams))
                why = NotReplicaError(f"this replica of {replica.name} has not heard its leader for {silent_ms} ms")
                self._end_all(hub, why)
        if self._allowed_at != self._permissions.known.changes:
            self._allowed_at = self._permissions.known.changes
            self._unchecked = list(self._places)
        left = _CHECKED_AT_ONCE
        while self._unchecked and left > 0:
            if (place := self._places.get(stream := self._unchecked.pop())) is not None:
                source, _, _, filters = place
                left -= len(filters)
                try:
                    self._permissions.check_watch(filters, source)
                except MetadError as error:
                    self._ending.add(stream)
                    self._slices.now(partial(stream.end, error))
        now_s = self._environment.now()
        for stream, (since_s, _) in list(self._pinned.items()):
            if 0 < stream.stalled_since_s <= now_s - _SLOW_S:
                stream.end(SlowReaderError(f"nothing of the snapshot was taken for {_SLOW_S:.0f} s"))
            elif since_s <= now_s - _PIN_S:
                stream.end(SlowReaderError(f"the snapshot was not over after {_PIN_S:.0f} s"))

    def log_grown(self, size: int) -> None:
        """The logs are longer by so much. Now and then live streams that have had nothing to report say how far they
        are, or their clients would hold positions that the log no longer has."""
        self._busy_until_s = self._environment.now() + _BUSY_S
        self._grown_bytes += size
        if self._grown_bytes >= self.mark_bytes:
            self._grown_bytes = 0
            for hub in self._hubs.values():
                hub.mark()

    def held_index(self, driver: GroupDriver, through: int) -> int:
        """Up to where the log may be cut, ``through`` at most, as far as streams have a say in it."""
        hub = self._hubs.get(driver)
        if hub is None:
            return through
        log = driver.group.log
        entries = log.last_index - log.base_index
        least = log.last_index - int(entries * self.retained_bytes / max(1, log.bytes))
        floor = hub.floor(self._environment.now() - self.retained_s)
        if floor < min(least, through):
            event(log_events.WATCHES_CUT, group=hub.replica.name, bytes=log.bytes)
        return min(through, max(floor, least))

    def _tell(self, streams: list[Stream]) -> None:
        for stream in streams:
            self._slices.now(stream.tell)

    def _arm_progress(self) -> None:
        if self._progress_timer is None and self._progress:
            self._progress_timer = self._environment.call_at(self._environment.now() + _PROGRESS_S, self._tell_progress)

    def _tell_progress(self) -> None:
        self._progress_timer = None
        now_s = self._environment.now()
        due: dict[Replica, list[Stream]] = {}
        for stream in [stream for stream, due_s in self._progress.items() if due_s <= now_s]:
            self._progress[stream] = now_s + stream.progress_ms / 1000
            due.setdefault(stream.replica, []).append(stream)
        for replica, streams in due.items():
            replica.prove(partial(self._tell, streams))
        self._arm_progress()

    # --- what the hubs ask for ---------------------------------------------------------------------------

    def full(self, why: str) -> OverloadedError:
        """What to raise where there is no room for one more stream. It is logged."""
        event(log_events.WATCHES_FULL, reason=why)
        return OverloadedError(why, retry_after_ms=_AGAIN_MS, retry_jitter_ms=_AGAIN_MS)

    def wake(self, stream: Stream) -> None:
        """Serve a stream soon."""
        if stream.queued:
            return
        stream.queued = True
        if stream.live:
            self._live.append(stream)
            if not self._at_live:
                self._at_live = True
                self._environment.call_soon(self._serve_live)
        else:
            (self._in_snapshot if stream.in_snapshot else self._in_log).add(stream)
            if not self._at_behind:
                self._at_behind = True
                self._take_turns()
            elif self._pause is not None:  # for others, perhaps
                self._pause.cancel()
                self._take_turns()

    def may_hold(self, size: int) -> bool:
        """Whether live streams may hold so many bytes more."""
        return self.held_bytes + size <= self.limits.watch_held_bytes_max

    def held(self, size: int) -> None:
        """So many bytes more are held, or less."""
        self.held_bytes += size

    def pinned(self, stream: Stream, begins: bool) -> None:
        """The snapshot of a stream begins, or is over. Raises OverloadedError if it would be one too many."""
        if not begins:
            if (pinned := self._pinned.pop(stream, None)) is not None:
                self._pins.give(pinned[1])
            return

        def take_back() -> None:
            stream.end(self.full("others need the room of this snapshot of a watch"))

        source = self._places[stream][0]
        place = self._pins.take(holder_of(source), 1, take_back, source=source)
        if place is None and self._end_silent():
            place = self._pins.take(holder_of(source), 1, take_back, source=source)
        if place is None:
            raise self.full(f"{_PINS_MAX} snapshots of watches are under way on this node")
        self._pinned[stream] = self._environment.now(), place

    def _end_silent(self) -> bool:
        """End the snapshot of which nothing was taken for longest; whether that is long enough to be ended for others,
        of whomever they are."""
        stalled = [stream for stream in self._pinned if stream.stalled_since_s]
        if not stalled:
            return False
        longest = min(stalled, key=lambda stream: stream.stalled_since_s)
        silent_s = self._environment.now() - longest.stalled_since_s
        if silent_s < _SILENT_S:
            return False
        longest.end(
            SlowReaderError(f"nothing of the snapshot was taken for {silent_s:.0f} s, and another needs its room")
        )
        return True

    def now(self, piece: Callable[[], None]) -> None:
        """Call back at once, or in a slice where there are many."""
        self._slices.now(piece)

    def later(self, piece: Callable[[], None]) -> None:
        """Call back in a slice of what many hear."""
        self._slices.later(piece)

    def refuse(self, stream: Stream, why: MetadError) -> None:
        """End a stream that has waited in vain, in slices."""
        self._slices.now(partial(stream.end, why))

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back once what is being applied is in the engine."""
        self._environment.call_soon(callback)

    # --- their turns -------------------------------------------------------------------------------------

    def _serve_live(self) -> None:
        live, now = self._live, self._environment.now
        until_s = now() + _LIVE_S
        for _ in range(min(len(live), _LIVE_FRAMES)):
            self._serve(live.popleft())
            if now() >= until_s:
                break
        self._at_live = bool(live)
        if live:
            self._environment.call_soon(self._serve_live)

    def _take_turns(self) -> None:
        self._pause = None
        FairShare.here().take(self._serve_behind)

    def _serve_behind(self) -> bool:
        """A piece of one stream's work; whether there is more that can be done at once."""
        now = self._environment.now
        due = [turns for turns in (self._in_log, self._in_snapshot) if turns.streams]
        if due:
            turns = min(due, key=lambda turns: turns.from_s)
            wait_s = max(turns.from_s - now(), self._precedence.heavy_wait_s)
            if wait_s > 0:
                self._pause = self._environment.call_at(now() + wait_s, self._take_turns)
                return False
            begun_s = now()
            self._serve(turns.next())
            self._precedence.heavy_done(begun_s)
            done_s = now()
            if self._is_busy():
                self._busy_until_s = done_s + _BUSY_S
            turns.served(begun_s, done_s, busy=done_s < self._busy_until_s)
        self._at_behind = bool(self._in_log.streams or self._in_snapshot.streams)
        return self._at_behind

    def _is_busy(self) -> bool:
        """Whether the loop has other things to do."""
        return not all(driver.idle for driver in self._groups.drivers.values())

    def _serve(self, stream: Stream) -> None:
        stream.queued = False
        if stream in self._ending:
            return
        try:
            if stream.serve():
                self.wake(stream)
        except Exception as error:  # noqa: BLE001 - told to the client, and logged
            stream.end(failed(WATCH_OPEN.name, error, self._health))


def behind(watches: Watches) -> int:
    """How many streams read the log or a snapshot for what others were sent."""
    return len(watches._in_log.streams) + len(watches._in_snapshot.streams)


class _Turns:
    """Streams that are behind in the same way, and from when on the next of them is served. ``rest``: how long after a
    piece, in durations of the piece, while so many others wait."""

    __slots__ = ("_in_turn", "_pieces", "_rest", "from_s", "streams")

    def __init__(self, rest: Callable[[int], float]) -> None:
        self.streams: deque[Stream] = deque()
        self.from_s = 0.0
        self._rest = rest
        self._in_turn: Stream | None = None
        self._pieces = 0  # of the one in turn, so far

    def add(self, stream: Stream) -> None:
        """It goes on if it is in turn, or waits for the others, and holds nothing meanwhile."""
        if stream is self._in_turn and (self._pieces < _PIECES or stream.within_entry):
            self.streams.appendleft(stream)
            return
        if self.streams:
            stream.rest(_SEEN_BYTES // len(self.streams))
        self.streams.append(stream)

    def next(self) -> Stream:
        """The one whose turn it is."""
        stream = self.streams.popleft()
        self._pieces = self._pieces + 1 if stream is self._in_turn else 1
        self._in_turn = stream
        return stream

    def served(self, begun_s: float, done_s: float, *, busy: bool) -> None:
        """A piece is done. If the loop has other things to do, the next begins later."""
        self.from_s = done_s + (self._rest(len(self.streams)) * (done_s - begun_s) if busy else 0.0)

    def forget(self, stream: Stream) -> None:
        """It has ended."""
        if stream is self._in_turn:
            self._in_turn = None


class WatchedReplica:
    """A :class:`metad.watch.seams.Replica`."""

    def __init__(self, driver: GroupDriver, state: Engine, peers: PeerSender, now: Callable[[], float]) -> None:
        self.name = driver.group.name
        self.kind = driver.group.group_id.kind
        self.prefix = driver.group.prefix
        self._driver = driver
        self._log = driver.group.log
        self._state = state
        self._peers = peers
        self._now = now

    @property
    def applied(self) -> int:
        return self._driver.machine.applied

    @property
    def base(self) -> int:
        return max(self._log.base_index, self._driver.machine.parts[HeldSlots].restored_at)

    def entries(self, begin: int, end: int, bytes_max: int) -> Iterator[Entry]:
        return (
            decode_record(self.name, index, data)
            for index, data in enumerate(self._log.records(begin, bytes_max, end), begin)
        )

    def get(self, key: bytes) -> bytes | None:
        return self._state.get(key)

    def pin(self) -> Pin:
        return self._state.pin(self.prefix, after_prefix(self.prefix))

    def opened(self, *, pinned: bool, proven: bool) -> WatchOpened:
        machine = self._driver.machine
        slots = machine.parts[HeldSlots]
        if slots.restore is not None and not slots.restore.done_at:
            # Nobody is shown a part; and no move that a watch could wait for brings these slots back.
            text = f"{self.name} is being restored from a backup"
            raise OverloadedError(text, retry_after_ms=_AGAIN_MS, retry_jitter_ms=_AGAIN_MS)
        brought = [Brought(move, of_move) for move, of_move in sorted(slots.brought.items())]
        return WatchOpened(
            machine.applied,
            pinned,
            slots.held,
            slots.sealed,
            slots.sealed_move,
            brought,
            self._driver.group.ready,
            machine.revision,
            proven,
        )

    def read_index(self, done: Callable[[int | MetadError], None]) -> None:
        ask_read_index(self._driver, self._peers.call, done)

    def prove(self, done: Callable[[], None]) -> None:
        group = self._driver.group
        if group.is_leader and not group.may_read():
            group.read(lambda _: done())
        else:
            done()

    def behind_ms(self) -> int:
        return _milliseconds(self._driver.group.behind_s(self._now()))

    def silent_ms(self) -> int:
        return _milliseconds(self._driver.group.silent_s(self._now()))


def _milliseconds(seconds: float) -> int:
    """Rounded up: 0 is nothing at all."""
    return math.ceil(min(seconds * 1000, BEHIND_UNKNOWN_MS))
