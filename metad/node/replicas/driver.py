"""One group at work: requests wait here, become entries, are committed, applied and answered.

Coalescing: what waits when the node's turn comes shares an entry, up to the window's size. The node gives a turn when
nothing is on its way to the disk or enough waits (:mod:`..node`), so a lone request pays one fsync, and many share one.

Only a leader that is ready evaluates. When it leads no longer, what it had in flight may or may not survive, and says
so; what it had not begun goes to the next leader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

from metad_wire.errors import (
    CancelledError,
    DeadlineExceededError,
    InternalError,
    MetadError,
    NoRoomError,
    NotLeaderError,
    UnknownOutcomeError,
)
from metad_wire.messages import Identity
from metad_wire.methods import Lane
from metad_wire.policy import BatchWindow, QueueRate
from metad_wire.policy.fair_queue import SHARE_ITEMS, FairQueue, LaneQueue, Precedence, is_small, weight_of
from metad_wire.policy.rates import FULL_ITEMS
from metad_wire.policy.slices import Slices

from ...control.host import Done
from ...errors import StorageError
from ...raft.replica import RaftGroup
from ...state.core.entry import Entry, decode_record
from ...state.core.part import Writes
from ...state.core.verb import Command
from ...state.machine import Known, Machine, Proposal
from ..meters import Meters

Listener = Callable[[Entry], None]

_PIPELINE_BYTES_MAX = 3 * 1024 * 1024
"""Once entries of so many bytes are on their way, no further one is begun: each is in memory several times over."""
_PIPELINE_ITEMS_MAX = 1_500
"""The same for items of batches: whatever comes next waits until all of them are applied, some microseconds each. A
batch that does not fit lets what is small, and others' smaller batches, pass."""
ENTRY_ITEMS = 16
"""What an entry takes beside its items, counted as items: wherever items bound a piece of work, entries of one item are
bounded by it, too."""
_LOOK_FOR_SMALL = 8  # sources that are asked for something small
_COMPANY_S = 0.001  # how long few requests wait behind an entry in flight
_CROWD_S = 0.01  # the same while others have come that are yet to be begun, and may be for this group
_CROWD_ITEMS = 8  # fewer are not of a batch, and wait for nobody who is yet to be begun
_COMPANY_ITEMS = 256  # more of them do not wait: an entry's fixed cost is small beside theirs
_EXPIRE_AGAIN_S = 10e-6
"""For each request that waits: how long nobody looks again whose deadline has passed. A look takes a tenth of it."""
_APPLY_BYTES = 1024 * 1024  # of entries read from the log to apply them
_RECALLS = 64
"""So many retries are answered in one go: about a millisecond, if they read nothing again."""
_RECALLS_SPENT = 256
"""The same in rows looked at. A retry may read megabytes, some milliseconds of work, and is then the last of its go."""
_TOLD = 256  # who waits for a revision and is told in one go that it is there: less than a millisecond
_STALE_MIN = 64  # so many who wait no more may be left in the order of those who wait


class Work:
    """A request to write, waiting or in flight. ``source`` is the connection that it came by."""

    __slots__ = (
        "answer",
        "cancelled",
        "command",
        "deadline_s",
        "entry",
        "identity",
        "items",
        "lane",
        "small",
        "source",
        "tenant",
        "weight",
    )

    def __init__(
        self,
        command: Command[Any],
        identity: Identity | None,
        deadline_s: float,
        answer: Done,
        source: object = None,
    ) -> None:
        self.command = command
        self.identity = identity
        self.deadline_s = deadline_s
        self.answer = answer
        self.source = source
        self.lane = command.method.lane
        self.tenant = command.tenant
        self.items = command.items
        self.weight = weight_of(command.items, command.size)
        self.small = not command.background and is_small(command.items, command.size)
        self.cancelled = False
        self.entry: InFlight | None = None
        """That it shares; None while it waits."""


class InFlight:
    """An entry on its way, and whose requests it answers."""

    __slots__ = (
        "applying_s",
        "begun_s",
        "entry",
        "group",
        "index",
        "items",
        "outcomes",
        "repeats",
        "size",
        "small",
        "works",
    )

    def __init__(self, group: str, index: int, proposal: Proposal, works: list[Work], begun_s: float) -> None:
        self.group = group
        self.index = index
        self.begun_s = self.applying_s = begun_s
        """When it was made; when it was begun to be applied."""
        self.entry = proposal.entry
        self.works = works
        self.outcomes = proposal.outcomes
        self.size = proposal.size
        self.items = ENTRY_ITEMS + sum([work.items for work in works])
        self.small = sum([work.small for work in works])
        self.repeats: list[Work] = []  # retries of what this entry does; answered with it


class _Recall:
    """A retry that is answered with what entry ``index`` did, which is applied."""

    __slots__ = ("index", "items", "source", "tenant", "weight", "work")

    def __init__(self, work: Work, index: int) -> None:
        self.work = work
        self.index = index
        self.source = work.source
        self.tenant = work.tenant
        self.items = self.weight = SHARE_ITEMS  # each is a turn: its items do not say how much it reads


@dataclass(eq=False, slots=True)
class Checkpoint:
    """An entry, and what to call once it is applied. The call must not last: nothing is applied meanwhile."""

    index: int
    reached: Callable[[], None]


class GroupDriver:
    """Drives one group's machine over its replica. Everything runs on the event loop."""

    def __init__(
        self,
        machine: Machine,
        group: RaftGroup,
        precedence: Precedence,
        slices: Slices,
        *,
        window: BatchWindow,
        pipeline_max: int,
        meters: Meters,
    ) -> None:
        self.machine = machine
        self.group = group
        self._precedence = precedence
        self._slices = slices
        self._window = window
        self._pipeline_max = pipeline_max
        self._meters = meters
        self._queue: LaneQueue[Work] = LaneQueue()
        self._in_flight: deque[InFlight] = deque()
        self._in_flight_bytes = 0
        self._in_flight_items = 0
        self._staged: list[InFlight] = []  # those whose writes are in the batch being written
        self._first_queued_s = 0.0
        self._first_deadline_s = inf  # no request that waits has an earlier deadline
        self._expired_s = 0.0  # before this time it is not looked again whose deadline has passed
        self._listeners: list[Listener] = []
        self._recalls: FairQueue[_Recall] = FairQueue()
        self._awaited: dict[int, Callable[[bool], None]] = {}
        self._awaited_order: list[tuple[int, int]] = []  # a heap: (revision, number), also of some who wait no more
        self._take_max = window.items_max  # requests for the next entry
        self._put_off = False  # the last entry had no place for what writes a row of it again
        self._alone_max = min(window.items_max, _COMPANY_ITEMS)  # items that wait for company
        self.rate = QueueRate()
        """How fast the queue is served."""
        self.installing = False
        """A snapshot is being put in place of the state, or the state is dropped: it may be neither read nor applied
        to. Whoever comes back to it in a later turn looks at this first."""
        self.rebuilding = False
        """The state is wrong. It is :attr:`installing`, although the snapshot has yet to come."""
        self.checkpoint: Checkpoint | None = None
        """Somebody wants to see the state as it is with an entry applied and none after it."""
        self.doubted: tuple[str, ...] = ()
        """Nodes whose state differed when states were compared last: they should not be made the leader."""
        self.unlike: list[str] = []
        """Nodes whose state differs from that of the majority, as this leader has found; see ``GroupStatus``."""
        self.undecided = False
        """Whether there is no such majority."""

    @property
    def waiting_items(self) -> int:
        """Of what has not been begun."""
        return self._queue.items

    def before(self, lane: Lane, tenant: bytes, source: object) -> int:
        """How many items would be begun before the next request of this connection."""
        return self._queue.before(lane, tenant, source)

    def wait_s(self, now_s: float) -> float:
        """How long all that waits takes, by the rate at which the queue is served."""
        return self._queue.items / max(self.rate.estimate(now_s), 1.0)

    @property
    def urgent(self) -> bool:
        """Whether something waits that keeps the cluster right."""
        return self._queue.urgent

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is in flight."""
        return not self._queue and not self._in_flight and not self._recalls

    def not_leader(self) -> NotLeaderError:
        """Where to go instead; the leader is a node's id."""
        leader = self.group.leader
        return NotLeaderError(f"this node does not lead {self.group.name}", leader="" if leader is None else leader)

    def no_room(self) -> str:
        """Why the group takes nothing that needs more room; empty if it does."""
        if self.group.may_grow:
            return ""
        short = " and ".join(self.group.short_of_room())
        return (
            f"{self.group.name} takes nothing that needs more room: the disk of {short} is nearly full. Delete "
            "something, or make room there"
        )

    @property
    def stalled(self) -> bool:
        """Something waits until the leader may work."""
        return bool(self._queue) and not self.group.accepting

    def expire(self, now_s: float) -> bool:
        """Answer what has waited past its deadline; whether nothing waits any more. All that waits is taken out and
        put back for that, so it is done once a deadline has passed, and then not for a while."""
        if self.stalled and now_s >= max(self._first_deadline_s, self._expired_s):
            works = self._queue.drain()
            self._first_deadline_s, self._expired_s = inf, now_s + len(works) * _EXPIRE_AGAIN_S
            for work in works:
                if work.deadline_s >= now_s:
                    self._queue.add(work)
                    self._first_deadline_s = min(self._first_deadline_s, work.deadline_s)
            if self._queue.items < FULL_ITEMS:
                self.rate.calm(now_s)
            for work in works:
                if work.deadline_s < now_s:
                    self.not_keeping_up(now_s)
                    self._refuse(work, _late())
        return not self.stalled

    def not_keeping_up(self, now_s: float) -> None:
        """The node did not do in time what it was asked for, or did not run: who keeps a session alive may have tried
        in vain."""
        self.machine.time.amnesty(now_s)

    def submit(self, work: Work, now_s: float) -> None:
        """Queue a request; :meth:`pump` takes it from there."""
        if not self.group.is_leader:
            work.answer(self.not_leader())
            return
        if not self._queue:
            self._first_queued_s = now_s
        self._queue.add(work)
        if work.deadline_s < self._first_deadline_s:
            self._first_deadline_s = work.deadline_s
        if self._queue.items >= FULL_ITEMS:
            self.rate.full(now_s)
        self._precedence.small += work.small

    def pump(self, now_s: float, calendar_ms: int) -> float | None:
        """Make one entry of what waits, as far as the rules above allow, and do a slice of what the entries before left
        to do. Returns the time to be called again: now where more could be done at once, None where the next commit or
        submit will do."""
        due_s = self._make_entry(now_s, calendar_ms)
        return now_s if self._work_off() else due_s

    def _make_entry(self, now_s: float, calendar_ms: int) -> float | None:
        if not self._queue or not self.group.accepting:
            return None
        if self._in_flight_bytes >= _PIPELINE_BYTES_MAX:
            return None
        # What was put off because it writes a row again has waited already. Its entries, of a command or two, are on
        # their way together, as if they were one: or many writes of one key would take a commit for every few of them.
        put_off = self._put_off and self._in_flight_items < self._window.items_max
        if len(self._in_flight) >= self._pipeline_max and not put_off:
            return None
        if not self._queue.first().small and not self._may_begin():
            # It is the turn of what is small, or the next commit makes room. The wait may have ended just now.
            wait_s = self._precedence.heavy_wait_s
            return now_s + wait_s if wait_s or not self._in_flight else None
        # Few requests wait for company where some is likely, or for the commit of an entry in flight: a small entry
        # costs every replica as much work as a large one, beside its items.
        if self._queue.items < self._alone_max and not put_off:
            behind = self._queue.items >= _CROWD_ITEMS and self._precedence.is_behind() and not self._queue.urgent
            linger_s = _CROWD_S if behind else _COMPANY_S if self._in_flight else self._window.linger_s
            due_s = self._first_queued_s + linger_s
            if now_s < due_s:
                return min(due_s, now_s + _COMPANY_S) if behind else due_s
        waiting = self._queue.items
        no_room = self.no_room()
        self._propose(self._take(now_s, no_room), calendar_ms, no_room, now_s)
        if waiting >= FULL_ITEMS:
            self.rate.left(waiting - self._queue.items, now_s)
            if self._queue.items < FULL_ITEMS:
                self.rate.calm(now_s)
        self._first_queued_s = now_s
        return now_s if self._queue else None

    def _may_begin(self) -> bool:
        """Whether what is next may begin; where it may not, that of another source is next."""
        for _ in range(_LOOK_FOR_SMALL):
            work = self._queue.first()
            if work.small:
                return True
            if not self._precedence.heavy_wait_s and (
                not self._in_flight or self._in_flight_items + work.items <= _PIPELINE_ITEMS_MAX
            ):
                return True
            if not self._queue.skip():
                break
        self._queue.skip_no_lane()
        return False

    def _take(self, now_s: float, no_room: str) -> list[Work]:
        works: list[Work] = []
        items = size = 0
        queue = self._queue
        while queue.count and len(works) < self._take_max:
            work = queue.first()
            command = work.command
            if works and self._window.is_full(items + command.items, size + command.size):
                break
            queue.pop()
            if work.cancelled:
                self._refuse(work, CancelledError("the request was cancelled before it was begun; nothing was done"))
            elif work.deadline_s < now_s:
                self.not_keeping_up(now_s)
                self._refuse(work, _late())
            elif no_room and self.machine.grows(command, work.identity):
                self._refuse(work, NoRoomError(no_room))
            else:
                works.append(work)
                items += command.items
                size += command.size
        return works

    def _propose(self, works: list[Work], calendar_ms: int, no_room: str, now_s: float) -> None:
        self._put_off = False
        if not works:
            return
        index = self.group.log.last_index + 1
        commands = [(work.command, work.identity) for work in works]
        proposal = self.machine.evaluate(commands, index, calendar_ms, no_room)
        taken = len(proposal.outcomes)
        self._take_max = self._window.items_max
        if taken < len(works):  # they have grown more than their sizes said, or one writes a row again
            self._queue.put_back(works[taken:], works[taken - 1])
            self._put_off = not proposal.heavy
            works = works[:taken]
            self._take_max = 2 * taken  # the next entry likely has no room for many more
        entry = InFlight(self.group.name, index, proposal, works, now_s)
        self._meters.entry_begun(entry.items - ENTRY_ITEMS, works[0].command.arrived_s, now_s)
        self._in_flight.append(entry)
        self._in_flight_bytes += entry.size
        self._in_flight_items += entry.items
        for work, outcome in zip(works, proposal.outcomes, strict=True):
            work.entry = entry
            if isinstance(outcome, Known):
                self._repeat(work, outcome.index)
        if self.group.propose(proposal.payload) != index:
            raise AssertionError(f"{self.group.name}: evaluated as entry {index}, appended as another")

    def _repeat(self, work: Work, index: int) -> None:
        """Answer a retry with what its first attempt did, soon or once that is committed."""
        for entry in self._in_flight:
            if entry.index == index:
                entry.repeats.append(work)
                return
        self._recalls.add(_Recall(work, index))

    # --- in slices ---------------------------------------------------------------------------------------

    def _work_off(self) -> bool:
        """Tell some of those who wait for a revision that is there, and answer some retries; whether there is more to
        do at once. One entry may have brought what thousands wait for."""
        return self._tell_some() | self._recall_some()

    def _recall_some(self) -> bool:
        begun_at = self.machine.reader.spent
        for _ in range(_RECALLS):
            if not self._recalls or self.machine.reader.spent - begun_at >= _RECALLS_SPENT:
                break
            recall = self._recalls.pop()
            self._recall(recall.work, recall.index)
        return bool(self._recalls)

    def _recall(self, work: Work, index: int) -> None:
        assert work.identity is not None
        try:
            answer: bytes | MetadError = self.machine.recall(index, work.command, work.identity)
        except MetadError as error:
            answer = error
        except StorageError as error:
            self.machine.unexpected = error
            answer = UnknownOutcomeError("the node's storage failed; its log says more")
        except Exception as error:  # noqa: BLE001 - whatever a retry makes of a remembered reply, it must not end the node
            self.machine.unexpected = self.machine.unexpected or error
            answer = InternalError(f"{work.command.method.name} failed; the server's log says why")
        work.answer(answer)

    # --- waiting for a revision --------------------------------------------------------------------------

    def await_revision(self, number: int, revision: int, done: Callable[[bool], None]) -> None:
        """Call ``done(True)`` once the state has come so far, ``done(False)`` if this replica leads no longer."""
        self._awaited[number] = done
        heappush(self._awaited_order, (revision, number))

    def await_no_more(self, number: int) -> None:
        """Nobody waits under this number."""
        awaited = self._awaited
        awaited.pop(number, None)
        if len(self._awaited_order) > 2 * len(awaited) + _STALE_MIN:  # a revision may never come
            self._awaited_order = [entry for entry in self._awaited_order if entry[1] in awaited]
            heapify(self._awaited_order)

    def _tell_some(self) -> bool:
        for _ in range(_TOLD):
            if not self._awaited_is_there():
                return False
            _, number = heappop(self._awaited_order)
            done = self._awaited.pop(number, None)
            if done is not None:
                done(True)
        return self._awaited_is_there()

    def _awaited_is_there(self) -> bool:
        return bool(self._awaited_order) and self._awaited_order[0][0] <= self.machine.revision

    # --- applying ----------------------------------------------------------------------------------------

    def stage(self, batches: list[Writes], items_max: int) -> tuple[int, int]:
        """Add committed entries to the write that applies them: (items of work, bytes of entries evaluated
        elsewhere or in an earlier life). :meth:`finish` follows once the write is done."""
        machine, group, in_flight = self.machine, self.group, self._in_flight
        if self.installing:
            return 0, 0
        if in_flight and in_flight[0].index <= machine.applied:
            raise AssertionError(f"{group.name}: entry {in_flight[0].index} would be applied after {machine.applied}")
        end, items, size = group.applicable, 0, 0
        if self.checkpoint is not None and machine.applied < self.checkpoint.index:
            end = min(end, self.checkpoint.index)
        while machine.applied < end and items < items_max:
            index = machine.applied + 1
            if in_flight and in_flight[0].index == index:
                entry = in_flight.popleft()
                self._in_flight_bytes -= entry.size
                self._in_flight_items -= entry.items
                self._precedence.small -= entry.small
                self._staged.append(entry)
                items += ENTRY_ITEMS + len(entry.entry)
                self._stage(index, entry.entry, batches)
                continue
            # Evaluated elsewhere, or in an earlier life of this node.
            last = min(in_flight[0].index, end + 1) if in_flight else end + 1
            for data in group.log.records(index, _APPLY_BYTES, last):
                decoded = decode_record(group.name, index, data)
                items += ENTRY_ITEMS + len(decoded)
                size += len(data)
                self._stage(index, decoded, batches)
                index += 1
                if items >= items_max:
                    break
        return items, size

    def _stage(self, index: int, entry: Entry, batches: list[Writes]) -> None:
        self.machine.stage(index, entry, batches)
        for listener in tuple(self._listeners):  # one may end meanwhile
            listener(entry)

    def listen(self, listener: Listener) -> None:
        """Call the listener with every entry that is applied from now on, whatever its origin. :attr:`machine` counts
        the entry as applied already."""
        self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        """Call it no more."""
        self._listeners.remove(listener)

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """:meth:`listen` meanwhile."""
        self.listen(listener)
        try:
            yield
        finally:
            self.unlisten(listener)

    def finish(self, begun_s: float) -> None:
        """What was staged, from this time on, is applied: answer. :meth:`pump` goes on with what is more than a
        slice."""
        self.machine.staged()
        staged, self._staged = self._staged, []
        self.group.applied_to(self.machine.applied)
        if self.checkpoint is not None and self.machine.applied == self.checkpoint.index:
            checkpoint, self.checkpoint = self.checkpoint, None
            checkpoint.reached()
        for entry in staged:
            entry.applying_s = begun_s
            for work, outcome in zip(entry.works, entry.outcomes, strict=True):
                if not isinstance(outcome, Known):
                    work.answer(outcome)
            for work in entry.repeats:
                self._recalls.add(_Recall(work, entry.index))
        self._work_off()  # what is left comes with the turn that follows

    def install(self) -> None:
        """Neither read nor apply to the state: a snapshot is being put in its place."""
        self.installing = True

    def installed(self, machine: Machine) -> None:
        """Go on with the state of the snapshot."""
        self.machine = machine
        self.installing = False

    # --- the end of a leadership, or of the node ---------------------------------------------------------

    def demoted(self) -> None:
        """This replica leads no longer."""
        self._answer_in_flight(UnknownOutcomeError(f"the leader of {self.group.name} changed before the answer"))
        if not self.installing:
            self.machine.forget()
        self._answer_queue(self.not_leader())
        awaited, self._awaited, self._awaited_order = self._awaited, {}, []
        for done in awaited.values():
            done(False)

    def close(self, reason: str) -> None:
        """The replica is let go. What has begun to read the state must not take what is dropped for absent."""
        self.install()
        self.abandon(reason)

    def abandon(self, reason: str) -> None:
        """The node cannot go on: what is in flight may or may not have happened, what waits has not."""
        self._answer_in_flight(UnknownOutcomeError(reason))
        self._answer_queue(UnknownOutcomeError(reason))

    def _answer_in_flight(self, error: MetadError) -> None:
        self._precedence.small -= sum(entry.small for entry in self._in_flight)
        in_flight, self._in_flight = [*self._staged, *self._in_flight], deque()
        self._staged, self._in_flight_bytes, self._in_flight_items = [], 0, 0
        recalls = self._recalls.drain()
        for entry in in_flight:
            for work, outcome in zip(entry.works, entry.outcomes, strict=True):
                if not isinstance(outcome, Known):
                    self._tell(work, error)
            for work in entry.repeats:
                self._tell(work, error)
        for recall in recalls:
            self._tell(recall.work, error)

    def _answer_queue(self, error: MetadError) -> None:
        for work in self._queue.drain():
            self._refuse(work, error)

    def _refuse(self, work: Work, error: MetadError) -> None:
        """Answer what was taken from the queue and is not begun."""
        self._meters.missed += isinstance(error, DeadlineExceededError)
        self._precedence.small -= work.small
        self._tell(work, error)

    def _tell(self, work: Work, error: MetadError) -> None:
        """Answer one of many that end together."""
        self._slices.now(partial(work.answer, error))


def _late() -> DeadlineExceededError:
    return DeadlineExceededError("the deadline passed before the request was begun; nothing was done")
