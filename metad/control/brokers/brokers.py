"""Brokers, for the leader of metadata-0: registered, heard of, and fenced in every group when a life is over.

Every change is written first (``broker.change``); then each group is told the fences that follow from it, many brokers
at once; then it is noted that all groups have it, as of the newest map, and whoever waits is
answered. Nothing else is remembered, so the next leader goes on with the fences that are not noted. A heartbeat writes
nothing. It is acknowledged only once it is certain that nobody else led meanwhile: otherwise a deposed leader could
renew the lease of a life that its successor ends.

A life that was ended while its lease ran serves on until that is over. The leader waits for a whole lease from when it
has learned of the end, notes that the life is quiet, and tells the groups. A new leader waits for a whole lease again.

A broker that ended long ago is forgotten when names run out: first by every group, then by metadata-0. A new leader, or
a map that has changed meanwhile, begins again; a group that has forgotten already says so.

A broker may name a port that shows whether its process lives. Then the end of its connection is evidence
(:mod:`.evidence`), and its life may be over long before its lease is.

A life must not end because the service was slow or away. So a heartbeat counts from when its frame arrived, and a
silent life ends only after proof that this node leads. Where that proof takes long or fails, where the node stood
still, and where it begins to lead, everybody gets a whole lease: brokers may not have reached it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from metad_wire.cluster import METADATA, ClusterMap, FenceItem, GroupFence, GroupId
from metad_wire.errors import (
    ERRORS,
    ConflictError,
    FencedError,
    InvalidRequestError,
    MetadError,
    NoRoomError,
    NotFoundError,
    NotLeaderError,
    OverloadedError,
    QuotaExceededError,
)
from metad_wire.messages import BROKER_BYTES_MAX, ItemError, ListReply, Message, WriteReply
from metad_wire.method import METHODS, For
from metad_wire.methods import BROKER_CHANGE, BROKER_REGISTER, encode
from metad_wire.policy.fair_room import FairRoom, Place, holder_of
from metad_wire.policy.slices import SLICE_ROWS, Slices
from metad_wire.tables import broker as b
from metad_wire.tables.broker import Broker, BrokerStep

from ... import log_events
from ...logs import event
from ...state.cluster.brokers import LEASE_MS_MAX, fence_of, read_brokers
from ...state.cluster.fences import aged
from ...state.core.limits import REPLY_BYTES_MAX, check_reply
from ...state.core.slot_assignment import HeldSlots
from ...state.live.liveness import Liveness, Silence
from ..audit import line_of
from ..host import Clock, Done, Hosted, Source, Timer
from .evidence import Answer, Dial, Evidence
from .fencing import NAMES_BYTES_MAX, Fencing, Taken, bytes_of, groups_to_fence, to_forget

ABOUT_BROKERS: tuple[type[Message], ...] = tuple(
    method.body for method in METHODS.values() if method.name.startswith("broker.") and method.whose is not For.NODES
)
"""The requests that :meth:`Brokers.handle` answers."""
LEASE_MS_MIN = 500
AT_LEAST_EPOCH_MAX = 2**62
"""Above it there are as many epochs again: a name that is used up would be lost for ever."""
LOAD_S = 10.0
"""The class of a broker's load is not written more often."""
_LOADS_S, _LOADS_MAX = 1.0, 256  # so often at most, so many classes in an entry
_ASKED_MAX = 8
"""So many changes of one broker that clients have asked for are being written at a time. Each takes an entry of its
own, and what the node itself has to say of brokers waits behind them."""
_AGAIN_MS = 200  # when to come again with one more
TEXT_BYTES_MAX = 1_024  # of an address, a region or a rack
ATTRIBUTES_BYTES_MAX = 16 * 1024

_TICK_S = 0.1  # how often leases are looked at, while there are any
_AGAIN_S = 0.2  # until a group that was not reached is told again
_PAGE_BYTES_MAX = 128 * 1024
"""Of one page, and as many rows as a slice has: some 300 us of encoding."""
_RECORD_BYTES = 128  # of a record, beside what its registration names
_WAIT_MS_MAX = 60_000  # for all groups: the next request goes on waiting


class Host(Protocol):
    """The node, as the registry of brokers sees it."""

    def change(self, body: b.BrokerChange, done: Done) -> None:
        """Write to metadata-0, which this node leads."""

    def fence(self, group: GroupId, body: GroupFence) -> Awaitable[WriteReply]:
        """Have a group's leader, wherever it is, write fences. Raises MetadError."""

    def dial(self, host: str, port: int, done: Callable[[Answer], None]) -> None:
        """Connect, say nothing, and close; then say what came of it."""


def load_class(load: int, known: int) -> int:
    """The class of a load: how many binary digits it has. It stays what is ``known`` while the load is within a quarter
    of that class, or one between two classes would be written again and again."""
    within = known and 3 << known <= 8 * load < 10 << known
    return known if within else load.bit_length()


class _Loads:
    """The loads that heartbeats tell to one leader, and whose class has changed since it was written."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self._heard: dict[str, None] = {}  # since a look found nothing to write
        self._noted_s: dict[str, float] = {}
        self._loaded_s: dict[str, float] = {}  # since when, of those that are
        self._next_s = 0.0

    def of(self, name: str) -> int:
        """From the last heartbeat; 0 if there was none."""
        return self._of.get(name, 0)

    def heard(self, name: str, load: int, now_s: float) -> None:
        """A living broker says so."""
        self._of[name] = load
        self._heard[name] = None
        if load >= b.LOADED:
            self._loaded_s.setdefault(name, now_s)
        else:
            self._loaded_s.pop(name, None)

    def loaded_ms(self, name: str, now_s: float) -> int:
        """For how long the broker has been loaded; 0 if it is not."""
        return int(1000 * (now_s - self._loaded_s.get(name, now_s)))

    def forget(self, name: str) -> None:
        """There is no such broker any more."""
        for known in (self._of, self._heard, self._noted_s, self._loaded_s):
            known.pop(name, None)

    def to_note(self, records: Mapping[str, Broker], now_s: float) -> list[BrokerStep]:
        """The classes to write, each broker's at most once in :data:`LOAD_S`, and so many at once."""
        steps: list[BrokerStep] = []
        if now_s < self._next_s:
            return steps
        self._next_s = now_s + _LOADS_S
        for name in list(self._heard):
            record = records.get(name)
            found = 0 if record is None else load_class(self._of[name], record.load_class)
            if record is None or record.state not in b.LIVE or found == record.load_class:
                del self._heard[name]
            elif now_s - self._noted_s.get(name, -LOAD_S) >= LOAD_S:
                self._noted_s[name] = now_s
                steps.append(BrokerStep("load", name, record.broker_epoch, load_class=found))
                if len(steps) == _LOADS_MAX:
                    break
        return steps


class _Serving:
    """The lives that are over and may serve on, of one leader, until they are quiet."""

    def __init__(self) -> None:
        self._waits: Liveness[str] = Liveness()  # by broker
        self._below: dict[str, int] = {}  # broker -> the epoch below which it has lives that are waited for
        self._noting: set[str] = set()

    def __len__(self) -> int:
        return len(self._waits)

    def learn(self, record: Broker, now_s: float) -> None:
        """A broker is now so. Lives that end while others are waited for are waited for behind them: a broker that
        registers again and again becomes quiet, too."""
        name = record.broker
        if self._below.get(name, 0) <= record.quiet_epoch:
            self._waits.remove(name)
            self._below.pop(name, None)
            if record.quiet_epoch < record.least_epoch:
                self._waits.add(name, (record.quiet_ms or LEASE_MS_MAX) / 1000, now_s)
                self._below[name] = record.least_epoch

    def overslept(self, now_s: float) -> None:
        """This node stood still: wait as long again."""
        self._waits.amnesty(now_s)

    def to_note(self, now_s: float) -> list[BrokerStep]:
        """What has become quiet."""
        quiet = [name for name in self._waits.over(now_s) if name not in self._noting]
        self._noting.update(quiet)
        return [BrokerStep("quiet", name, self._below[name]) for name in quiet]

    def noted(self, steps: list[BrokerStep], brokers: list[Broker | None], error: MetadError | None) -> None:
        """It was written, or failed: then it is tried again."""
        self._noting.difference_update(step.broker for step in steps)


class _Waiter:
    """A request that is answered once all groups have a fence."""

    __slots__ = ("answer", "broker", "done", "least_epoch", "over", "timer")

    def __init__(self, record: Broker, answer: Callable[[list[str]], Message], done: Done) -> None:
        self.broker = record.broker
        self.least_epoch = record.least_epoch
        self.answer = answer
        self.done = done
        self.over = False
        """Whether it is answered, or about to be."""
        self.timer: Timer | None = None


class Brokers:
    """The registry, as long as this node leads metadata-0."""

    def __init__(self, clock: Clock, groups: Hosted, host: Host, look: Callable[[float], None]) -> None:
        """``look`` learns whether this node stood still, and calls :meth:`overslept`."""
        self._clock = clock
        self._groups = groups
        self._host = host
        self._look = look
        self._term: tuple[int, int] | None = None
        """The leadership: the term, and the entry with which a backup came, if one did. None while another node
        leads."""
        self._records: dict[str, Broker] = {}
        self._names: list[str] = []  # those of the records, in order
        self._room = _room()
        self._places: dict[str, Place] = {}  # of names that are not freed
        self._taken = Taken()  # by all names, and those that are being written for the first time
        self._slices = Slices(lambda piece: asyncio.get_running_loop().call_soon(piece))
        self._loads = _Loads()
        self._lives: Liveness[str] = Liveness()
        self._serving = _Serving()
        self._evidence = Evidence()
        self._silence = self._judge()
        self._ending: set[str] = set()  # whose end is being written
        self._new: dict[str, int] = {}  # names whose first registrations are being written, and how many of each
        self._asked: Counter[str] = Counter()  # by clients, and is being written
        self._fencing = Fencing()
        self._noting = False
        self._goes_on = False  # in the next turn of the loop
        self._lanes: dict[GroupId, asyncio.Task[None]] = {}  # what tells each group
        self._forgetting: asyncio.Task[None] | None = None
        self._waiters: dict[str, dict[_Waiter, None]] = {}  # by broker
        self._timer: Timer | None = None

    # --- the leadership ----------------------------------------------------------------------------------

    def follow(self, known: ClusterMap) -> None:
        """Go on with what this node has to do, if it leads metadata-0."""
        self._look_who_leads()
        if self._term is not None:
            self._go_on(known)

    def stop(self) -> None:
        """End everything: the node ends. What is written says how far it came."""
        self._end_leadership()

    def _look_who_leads(self) -> None:
        driver = self._groups.drivers[METADATA]
        group, slots = driver.group, driver.machine.parts[HeldSlots]
        term = (group.term, slots.restored_at) if group.ready else None
        if term == self._term:
            return
        self._end_leadership()
        if term is not None:
            self._begin_leadership(term)

    def _begin_leadership(self, term: tuple[int, int]) -> None:
        self._term = term
        for record in read_brokers(self._groups.drivers[METADATA].machine.reader.engine).values():
            self._learn(record)
        self._amnesty()
        self._tick_soon()

    def _end_leadership(self) -> None:
        self._term = None
        for lane in self._lanes.values():
            lane.cancel()
        if self._forgetting is not None:
            self._forgetting.cancel()
            self._forgetting = None
        if self._timer is not None:
            self._timer.cancel()
        waiters, self._waiters = self._waiters, {}
        self._records, self._names, self._loads, self._lanes = {}, [], _Loads(), {}
        self._room, self._places = _room(), {}
        self._taken = Taken()
        self._lives, self._evidence, self._fencing, self._timer = Liveness(), Evidence(), Fencing(), None
        self._serving = _Serving()
        self._silence = self._judge()
        self._noting = False
        self._ending, self._new = set(), {}
        self._asked.clear()
        for waiter in [waiter for waiting in waiters.values() for waiter in waiting]:
            self._answer(waiter, _led_by_another())

    def _learn(self, record: Broker) -> None:
        """A broker is now so."""
        self._count(record)
        if record.state == b.FORGOTTEN:
            if self._records.pop(record.broker, None) is not None:
                del self._names[bisect_left(self._names, record.broker)]
            self._loads.forget(record.broker)
            return
        before = self._records.get(record.broker)
        self._records[record.broker] = record
        if before is None:
            insort(self._names, record.broker)
        if record.state not in b.LIVE:
            self._ending.discard(record.broker)
            self._lives.remove(record.broker)
            self._evidence.remove(record.broker)
        elif before is None or before.broker_epoch != record.broker_epoch:
            self._ending.discard(record.broker)
            self._begin_lease(record)
            from_s = self._clock.now() + record.lease_ms / 1000
            self._evidence.add(record.broker, record.broker_epoch, record.probe_port, from_s)
        elif before.state == b.LOADING != record.state:
            self._lives.remove(record.broker)  # it knows: it has asked for that
            self._begin_lease(record)
        self._serving.learn(record, self._clock.now())
        if record.told:
            self._fencing.done(fence_of(record))
        else:
            self._fencing.want(fence_of(record))

    def _count(self, record: Broker) -> None:
        """Count the room that a name takes, for who registered it."""
        self._room.forget(self._places.pop(record.broker, None))
        size = 0 if record.state == b.FORGOTTEN else bytes_of(record.broker, len(encode(record)))
        self._taken.by(record.broker, size)
        if size and not record.freed:
            self._places[record.broker] = self._room.hold(record.registered_by, size)

    def _begin_lease(self, record: Broker) -> None:
        loading_s = record.loading_ms / 1000 if record.state == b.LOADING else 0.0
        self._lives.add(record.broker, record.lease_ms / 1000, self._clock.now(), loading_s)

    def overslept(self) -> None:
        """This node stood still: brokers may have lost their connections, and could not be heard."""
        self._amnesty()
        self._serving.overslept(self._clock.now())
        self._evidence.excuse()

    def _amnesty(self) -> None:
        self._lives.amnesty(self._clock.now())

    def _judge(self) -> Silence[str]:
        def read(done: Callable[[bool], None]) -> None:
            self._groups.drivers[METADATA].group.read(done)

        return Silence(self._over, self._amnesty, read, self._clock.now)

    # --- leases ------------------------------------------------------------------------------------------

    def _tick_soon(self) -> None:
        if self._timer is None and (len(self._lives) or len(self._serving)):
            self._timer = self._clock.call_at(self._clock.now() + _TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._look(self._clock.now())
        self._look_who_leads()
        if self._term is None:
            return
        self._expire(self._silence.look(), "it was silent")
        for dial in self._evidence.due(self._clock.now()):
            self._dial(dial)
        gone = [name for name in self._evidence.over(self._clock.now()) if name not in self._ending]
        self._expire(gone, "its connection has ended, and its host refuses connections")
        if quiet := self._serving.to_note(self._clock.now()):
            self._change(quiet, self._serving.noted)
        if loads := self._loads.to_note(self._records, self._clock.now()):
            self._change(loads, lambda steps, brokers, error: None)
        self._tick_soon()

    def _over(self) -> list[str]:
        """Whose leases are over. Who waits for the answer to its registration does not know yet which life to speak
        of."""
        over = self._lives.over(self._clock.now())
        return [name for name in over if name not in self._ending and name not in self._waiters]

    def _expire(self, brokers: list[str], reason: str) -> None:
        """Have lives end."""
        if brokers:
            self._ending.update(brokers)
            steps = [BrokerStep("expire", name, self._records[name].broker_epoch) for name in brokers]
            self._change(steps, partial(self._expired, reason))

    def _expired(
        self, reason: str, steps: list[BrokerStep], brokers: list[Broker | None], error: MetadError | None
    ) -> None:
        for step, record in zip(steps, brokers, strict=True):
            if record is not None:
                event(log_events.BROKER_FENCED, broker=record.broker, epoch=record.broker_epoch, reason=reason)
            elif step.broker in self._ending:  # it was not written
                self._ending.discard(step.broker)
                self._begin_lease(self._records[step.broker])

    # --- evidence ----------------------------------------------------------------------------------------

    def came(self, source: Source) -> None:
        """A client has connected."""
        self._evidence.came(source.host)

    def ended(self, source: Source, *, by_peer: bool) -> None:
        """A client's connection is down."""
        self._evidence.ended(source, by_peer=by_peer, now_s=self._clock.now())

    def excuse(self) -> None:
        """Clients may not have been able to reach this node, or to be heard."""
        self._evidence.excuse()

    def _dial(self, dial: Dial) -> None:
        evidence = self._evidence  # that of this leadership

        def answered(answer: Answer) -> None:
            evidence.answered(dial, answer, self._clock.now())

        self._host.dial(dial.host, dial.port, answered)

    # --- fences ------------------------------------------------------------------------------------------

    def _go_on(self, known: ClusterMap) -> None:
        """Tell the groups what they lack, and note what all of them have."""
        if not len(self._fencing):
            return
        groups = groups_to_fence(known)
        for group in groups:
            if group not in self._lanes and self._fencing.lacking(group):
                lane = self._lanes[group] = asyncio.get_running_loop().create_task(self._tell(group))
                lane.add_done_callback(partial(self._told, group))
        everywhere = [] if self._noting else self._fencing.everywhere(groups)
        if everywhere:
            self._noting = True
            steps = [BrokerStep("fenced", fence.broker, told=fence) for fence in everywhere]
            self._change(steps, self._noted, known.version)

    def _go_on_soon(self) -> None:
        """The same, once for all that happens in this turn of the loop: it looks at every fence."""
        if not self._goes_on:
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self._go_on_now)

    def _go_on_now(self) -> None:
        self._goes_on = False
        if self._term is not None and self._groups.map is not None:
            self._go_on(self._groups.map)

    async def _tell(self, group: GroupId) -> None:
        """Tell a group of fences until it lacks none."""
        fencing = self._fencing
        while fences := fencing.lacking(group):
            try:
                await self._host.fence(group, GroupFence(aged(fences, self._log_ms())))
            except MetadError as error:
                event(log_events.FENCES_NOT_SPREAD, group=group.name, error=error.name, detail=str(error))
                await asyncio.sleep(_AGAIN_S)
            else:
                fencing.acknowledged(group, fences)
                self._go_on_soon()

    def _log_ms(self) -> int:
        """The time of metadata-0's log."""
        return self._groups.drivers[METADATA].machine.reader.now_ms()

    def _told(self, group: GroupId, lane: asyncio.Task[None]) -> None:
        if self._lanes.get(group) is lane:
            del self._lanes[group]
        if lane.cancelled():
            return
        if (bug := lane.exception()) is not None:
            event(log_events.BUG, exc_info=bug, where=f"fences for {group.name}")
        else:  # another fence may have come just now
            self._go_on_soon()

    def _noted(self, steps: list[BrokerStep], brokers: list[Broker | None], error: MetadError | None) -> None:
        self._noting = False
        for step in steps:
            record = self._records.get(step.broker)
            for waiter in list(self._waiters.get(step.broker, ())):
                if record is not None and record.fenced and record.least_epoch >= waiter.least_epoch:
                    self._answered(waiter, [])

    # --- forgetting --------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Forget brokers that ended long ago, if there are too many names."""
        if self._forgetting is not None or self._groups.map is None:
            return
        ended = to_forget(self._records.values(), self._taken.total, self._log_ms())
        if ended:
            forgetting = self._forget(ended, self._groups.map)
            self._forgetting = asyncio.get_running_loop().create_task(forgetting)
            self._forgetting.add_done_callback(self._made_room)

    async def _forget(self, ended: list[Broker], known: ClusterMap) -> None:
        """Have all groups of a map forget these brokers, then metadata-0. One whose sessions a group has not swept yet
        stays. If anything fails, the next registration begins again."""
        fences = [FenceItem(record.broker, record.least_epoch) for record in ended]
        for group in groups_to_fence(known):
            try:
                reply = await self._host.fence(group, GroupFence([], fences))
            except MetadError as error:
                event(log_events.BROKERS_NOT_FORGOTTEN, group=group.name, error=error.name, detail=str(error))
                return
            kept = {error.index for error in reply.errors}
            fences = [fence for position, fence in enumerate(fences) if position not in kept]
        steps = [BrokerStep("forget", fence.broker, fence.least_epoch) for fence in fences]
        if steps:
            self._change(steps, self._forgotten, known.version)

    def _forgotten(self, steps: list[BrokerStep], brokers: list[Broker | None], error: MetadError | None) -> None:
        count = sum(record is not None for record in brokers)
        event(log_events.BROKERS_FORGOTTEN, count=count, kept=len(steps) - count, left=len(self._records))

    def _made_room(self, task: asyncio.Task[None]) -> None:
        if self._forgetting is task:
            self._forgetting = None
        if not task.cancelled() and (bug := task.exception()) is not None:
            event(log_events.BUG, exc_info=bug, where="forgetting brokers")

    # --- changes -----------------------------------------------------------------------------------------

    def _change(
        self,
        steps: list[BrokerStep],
        then: Callable[[list[BrokerStep], list[Broker | None], MetadError | None], None],
        map_version: int = 0,
        lost: Callable[[MetadError], None] | None = None,
    ) -> None:
        """Write steps, learn what came of them, and go on. Where a single step failed, the error is its own. If the
        leadership ends meanwhile, only ``lost`` is told."""
        term = self._term

        def changed(result: bytes | MetadError) -> None:
            if self._term != term or term is None:
                if lost is not None:
                    lost(result if isinstance(result, MetadError) else _led_by_another())
                return
            if isinstance(result, MetadError):
                then(steps, [None] * len(steps), result)
                return
            reply = BROKER_CHANGE.decode_reply(result)
            for record in reply.brokers:
                if record is not None:
                    self._learn(record)
            then(steps, reply.brokers, _error_of(reply.errors) if len(steps) == 1 else None)
            self._tick_soon()
            # What could not be noted, because the map has changed, is tried again.
            self._go_on_soon()

        self._host.change(b.BrokerChange(steps, map_version), changed)

    # --- requests ----------------------------------------------------------------------------------------

    def handle(self, body: Message, done: Done, arrived_s: float, source: Source | None = None) -> None:
        """Answer a request about brokers, to the leader of metadata-0. ``source``: whence it came. Raises MetadError
        instead of calling ``done``."""
        self._look_who_leads()
        match body:
            case b.BrokerHeartbeat(beats):
                self._beat(beats, done, arrived_s, source)
            case b.BrokerRegister():
                self._register(body, done, source)
            case b.BrokerServe(broker, epoch):
                self._end(BrokerStep("serve", broker, epoch), 0, done)
            case b.BrokerDrain(broker, epoch):
                self._end(BrokerStep("drain", broker, epoch), 0, done)
            case b.BrokerDeregister(broker, epoch, wait_ms):
                self._end(BrokerStep("deregister", broker, epoch), wait_ms, done)
            case b.BrokerFence(broker, epoch, wait_ms):
                self._end(BrokerStep("fence", broker, epoch), wait_ms, done)
            case b.BrokerGet(names):
                self._read(lambda: self._records_of(names), len(names), done)
            case b.BrokerList():
                self._read(lambda: self._page(body), SLICE_ROWS, done)
            case _:
                raise InvalidRequestError(f"{type(body).__name__} is not about brokers")

    def _change_for_client(
        self,
        step: BrokerStep,
        then: Callable[[list[BrokerStep], list[Broker | None], MetadError | None], None],
        done: Done,
    ) -> None:
        """:meth:`_change`, for a client that waits for ``done``."""

        def changed(steps: list[BrokerStep], brokers: list[Broker | None], error: MetadError | None) -> None:
            self._asked[step.broker] -= 1
            if not self._asked[step.broker]:
                del self._asked[step.broker]
            then(steps, brokers, error)

        self._asked[step.broker] += 1
        self._change([step], changed, lost=done)

    def _check_few(self, broker: str) -> None:
        if self._asked[broker] >= _ASKED_MAX:
            raise OverloadedError(
                f"{_ASKED_MAX} changes of {broker} are being written already",
                retry_after_ms=_AGAIN_MS,
                retry_jitter_ms=_AGAIN_MS,
            )

    def _check_room(self, asked: b.BrokerRegister, size: int, holder: str) -> Place | None:
        """Take room for the time in which a registration is written. ``size``: what its name takes. Raises an error
        where there is none."""
        known = self._records.get(asked.broker)
        if known is None and (no_room := self._groups.drivers[METADATA].no_room()):
            raise NoRoomError(no_room)
        total = self._taken.total - self._taken.sizes.get(asked.broker, 0) + size
        held = self._places.get(asked.broker)
        if held is not None and held.holder == holder:
            size -= held.size  # its record is replaced
            if size <= 0:
                return None
        place = self._room.take(holder, size)
        if place is None:
            raise QuotaExceededError(
                f"{holder or 'this node'} has {self._room.held_by(holder)} bytes of the {NAMES_BYTES_MAX} for names of "
                "brokers, and may have no more than is left free: end some (metadctl broker fence), which frees theirs"
            )
        if known is None and total > NAMES_BYTES_MAX:  # names that are freed have not been forgotten yet
            self._room.forget(place)
            if self._forgetting is not None:
                raise OverloadedError(
                    "names of brokers that ended are being forgotten",
                    retry_after_ms=_AGAIN_MS,
                    retry_jitter_ms=_AGAIN_MS,
                )
            raise ConflictError(
                f"the names of {len(self._taken.sizes)} brokers take the {NAMES_BYTES_MAX} bytes that there are, and "
                "those of the ones that ended cannot be forgotten yet: give new brokers the names of those gone"
            )
        return place

    def _register(self, asked: b.BrokerRegister, done: Done, source: Source | None) -> None:
        _check(asked)
        holder = holder_of(source)
        self._check_few(asked.broker)
        self._make_room()
        size = bytes_of(asked.broker, len(encode(asked)) + _RECORD_BYTES)
        room, place = self._room, self._check_room(asked, size, holder)
        is_new = asked.broker not in self._records
        if is_new:
            self._new[asked.broker] = self._new.get(asked.broker, 0) + 1
            self._taken.by(asked.broker, size)

        def written() -> None:
            room.forget(place)
            if is_new and room is self._room:  # in this leadership
                self._new[asked.broker] -= 1
                if not self._new[asked.broker]:
                    del self._new[asked.broker]
                    if asked.broker not in self._records:
                        self._taken.by(asked.broker, 0)

        def registered(_: list[BrokerStep], brokers: list[Broker | None], error: MetadError | None) -> None:
            written()
            (record,) = brokers
            if record is None:
                done(error or ConflictError("the registration was refused"))
                return
            event(log_events.BROKER_REGISTERED, broker=record.broker, epoch=record.broker_epoch, address=record.address)

            def answer(unfenced: list[str]) -> Message:
                if self._is_last(record):
                    self._lives.heard(record.broker, self._clock.now())  # it could not know its epoch until now
                return b.BrokerRegistered(record.broker_epoch, record.lease_ms, unfenced)

            self._wait(_Waiter(record, answer, done), asked.wait_ms)

        line = None
        if source is not None:
            node = self._groups.drivers[METADATA].group.leader or ""
            line = line_of("life", node, source, BROKER_REGISTER, items=1)
        self._change_for_client(BrokerStep("register", asked.broker, 0, asked, holder, line=line), registered, done)

    def _is_last(self, record: Broker) -> bool:
        known = self._records.get(record.broker)
        return known is not None and known.broker_epoch == record.broker_epoch

    def _end(self, step: BrokerStep, wait_ms: int, done: Done) -> None:
        """End a life, or let it serve or drain."""
        _check_name(step.broker)
        self._check_few(step.broker)

        def ended(_: list[BrokerStep], brokers: list[Broker | None], error: MetadError | None) -> None:
            (record,) = brokers
            if record is None:
                done(error or ConflictError("the change was refused"))
                return
            if step.step == "fence":
                event(
                    log_events.BROKER_FENCED,
                    broker=record.broker,
                    epoch=record.broker_epoch,
                    reason="an administrator has ended it",
                )
            waiter = _Waiter(
                record, lambda unfenced: b.BrokerEnded(self._records.get(record.broker, record), unfenced), done
            )
            if step.step in ("serve", "drain"):
                self._answered(waiter, [])
            else:
                self._wait(waiter, wait_ms)

        self._change_for_client(step, ended, done)

    def _wait(self, waiter: _Waiter, wait_ms: int) -> None:
        """Answer once all groups have the fence, or when it has taken too long."""
        record = self._records.get(waiter.broker)
        if record is not None and record.fenced and record.least_epoch >= waiter.least_epoch:
            self._answered(waiter, [])
            return
        self._waiters.setdefault(waiter.broker, {})[waiter] = None

        def late() -> None:
            known = self._groups.map
            unfenced = [] if known is None else self._fencing.unfenced(waiter.broker, groups_to_fence(known))
            # All groups may have it, and only the note of that is missing: then some group may be newer.
            self._answered(waiter, unfenced or [METADATA.name])

        waiter.timer = self._clock.call_at(self._clock.now() + min(wait_ms, _WAIT_MS_MAX) / 1000, late)

    def _answered(self, waiter: _Waiter, unfenced: list[str]) -> None:
        if not waiter.over:
            self._answer(waiter, encode(waiter.answer(unfenced)))

    def _answer(self, waiter: _Waiter, result: bytes | MetadError) -> None:
        if waiter.over:
            return
        waiter.over = True
        waiting = self._waiters.get(waiter.broker)
        if waiting is not None:
            waiting.pop(waiter, None)
            if not waiting:
                del self._waiters[waiter.broker]
        if waiter.timer is not None:
            waiter.timer.cancel()
        self._slices.now(partial(waiter.done, result))

    # --- heartbeats and reads ----------------------------------------------------------------------------

    def _beat(self, beats: list[b.BrokerBeat], done: Done, arrived_s: float, source: Source | None) -> None:
        # It counts even if the lead cannot be proven: who leads next gives everybody a whole lease in any case.
        for beat in beats:
            if self._refusal(beat) is None:
                self._lives.heard(beat.broker, arrived_s)
                self._loads.heard(beat.broker, beat.load, self._clock.now())
                if source is not None and (dial := self._evidence.heard(beat.broker, source, source.host)) is not None:
                    self._dial(dial)

        def reply() -> Message:
            refusals = [self._refusal(beat) for beat in beats]
            for beat, why in zip(beats, refusals, strict=True):
                if why is None:
                    self._lives.answered(beat.broker, arrived_s, self._clock.now())
            return b.BrokerHeartbeatReply(
                [
                    0 if why is not None else self._records[beat.broker].lease_ms
                    for beat, why in zip(beats, refusals, strict=True)
                ],
                [self._records[beat.broker].state if beat.broker in self._records else "" for beat in beats],
                [
                    ItemError(position, why.code, why.message, why.current)
                    for position, why in enumerate(refusals)
                    if why is not None
                ],
            )

        self._read(reply, len(beats), done)

    def _refusal(self, beat: b.BrokerBeat) -> MetadError | None:
        """Why a heartbeat is refused."""
        record = self._records.get(beat.broker)
        if record is None:
            return NotFoundError(f"there is no broker {beat.broker[:BROKER_BYTES_MAX]!r}")
        if record.broker_epoch != beat.broker_epoch or record.state not in b.LIVE:
            return FencedError(
                f"epoch {beat.broker_epoch} of broker {beat.broker!r} is over: "
                f"epoch {record.broker_epoch} is {record.state}",
                current=record.broker_epoch,
            )
        if beat.broker in self._ending:
            return ConflictError("it was silent for longer than its lease; whether it is over is being decided")
        return None

    def _read(self, reply: Callable[[], Message], rows: int, done: Done) -> None:
        """Answer once it is certain that nobody else leads, by looking at so many rows. One proof is for all that have
        waited for it, so they are answered in slices."""
        term = self._term

        def proven(ok: bool) -> None:
            self._slices.now(partial(answer, ok))

        def answer(ok: bool) -> int:
            if not ok or self._term != term or term is None:
                done(_led_by_another())
                return 0
            try:
                result: bytes | MetadError = encode(reply())
            except MetadError as error:
                result = error
            done(result)
            return rows

        self._silence.prove(proven)

    def _shown(self, name: str) -> Broker | None:
        record = self._records.get(name)
        load, now_s = self._loads.of(name), self._clock.now()
        silent_ms = int(1_000 * self._lives.silent_s(name, now_s))
        if record is None or (not load and silent_ms <= b.SILENT * record.lease_ms):
            return record
        if silent_ms <= b.SILENT * record.lease_ms:
            silent_ms = 0
        loaded_ms = self._loads.loaded_ms(name, now_s)
        return msgspec.structs.replace(record, load=load, loaded_ms=loaded_ms, silent_ms=silent_ms)

    def _records_of(self, names: list[str]) -> b.BrokerGetReply:
        """Raises TooLargeError."""
        found: list[Broker | None] = []
        size = 0
        for name in names:
            record = self._shown(name)
            size += 0 if record is None else len(encode(record))
            check_reply(size, REPLY_BYTES_MAX)
            found.append(record)
        return b.BrokerGetReply(found)

    def _page(self, body: b.BrokerList) -> ListReply[Broker]:
        after, names = body.page.cursor.decode(errors="replace"), self._names
        begin = bisect_right(names, after) if after > body.prefix else bisect_left(names, body.prefix)
        found: list[Broker] = []
        size, last = 0, b""
        for name in names[begin : begin + SLICE_ROWS]:
            if not name.startswith(body.prefix):
                return ListReply(found, b"")
            if len(found) >= body.page.limit or size >= _PAGE_BYTES_MAX:
                return ListReply(found, last)
            last = name.encode()
            record = self._shown(name)
            if record is not None and body.state in ("", record.state):
                found.append(record)
                size += len(encode(record))
        return ListReply(found, last if begin + SLICE_ROWS < len(names) else b"")


def figures(brokers: Brokers) -> tuple[dict[str, int], float]:
    """How many brokers are in each state, and for which part of its lease the most silent live one was not heard of.
    Nothing while another node knows."""
    if brokers._term is None:
        return {}, 0.0
    states = Counter(record.state for record in brokers._records.values())
    return dict.fromkeys(b.STATES, 0) | states, max(0.0, brokers._lives.silence(brokers._clock.now()))


def _room() -> FairRoom:
    return FairRoom("bytes of names of brokers", NAMES_BYTES_MAX, ends="a day after their end, or at once if freed")


def _led_by_another() -> NotLeaderError:
    return NotLeaderError("the leader of metadata-0 changed; what was asked may have been done, and may be asked again")


def _error_of(errors: Iterable[ItemError]) -> MetadError | None:
    for error in errors:
        return ERRORS[error.code](error.message, current=error.current)
    return None


def _check_name(broker: str) -> None:
    """Raise InvalidRequestError if no broker has such a name."""
    length = len(broker.encode())
    if not 0 < length <= BROKER_BYTES_MAX:
        raise InvalidRequestError(f"the broker's name takes {length} bytes: 1 to {BROKER_BYTES_MAX} are allowed")


def _check(asked: b.BrokerRegister) -> None:
    """Raise InvalidRequestError if a registration breaks a bound."""
    _check_name(asked.broker)
    if not LEASE_MS_MIN <= asked.lease_ms <= LEASE_MS_MAX:
        raise InvalidRequestError(f"lease_ms is {asked.lease_ms}: {LEASE_MS_MIN} to {LEASE_MS_MAX} are allowed")
    if asked.loading_ms > LEASE_MS_MAX:
        raise InvalidRequestError(f"loading_ms is {asked.loading_ms}: at most {LEASE_MS_MAX} is allowed")
    if asked.at_least_epoch > AT_LEAST_EPOCH_MAX:
        raise InvalidRequestError(f"at_least_epoch is {asked.at_least_epoch}: at most {AT_LEAST_EPOCH_MAX} is allowed")
    texts: dict[str, Any] = {"address": asked.address, "region": asked.region, "rack": asked.rack}
    for name, text in texts.items():
        if len(text.encode()) > TEXT_BYTES_MAX:
            raise InvalidRequestError(f"{name} takes more than {TEXT_BYTES_MAX} bytes")
    if sum(len(f"{key}{value}".encode()) for key, value in asked.attributes.items()) > ATTRIBUTES_BYTES_MAX:
        raise InvalidRequestError(f"the attributes take more than {ATTRIBUTES_BYTES_MAX} bytes")
