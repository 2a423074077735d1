"""The one runner of what a node does in the groups that it leads, and nobody waits for.

Each group has chores: sessions whose clients have been away for too long end, and the delay of their wills
(:class:`.DueSweep`); so do the connections of brokers whose lives are over (:class:`.LostSweep`), and tenants that
somebody has ordered to end (:class:`.TenantSweep`); wills that nobody publishes are dropped (:class:`.UnclaimedWills`),
consumer groups that nobody uses are deleted (:mod:`.group_expiry`), and so are the records of dropped tables;
indexes that were added to tables are built (:mod:`.tables`); and what an older format lacks is written
(:mod:`.conversion`).

All chores of a node take turns, in what is left of the node and of its disk. Behind each turn all of them rest for
several times as long as it took until its batch was answered: so they are slow where the processor or the disk is busy,
with whatever it is, and need not know with what. What ends things at their time rests for less the longer it has not
kept up (:attr:`.Chore.hurry`), or it would never do so again. Two limits hold on top of that: a number of sessions per
second, however idle the node is, and a turn about every second, however busy it is.

**Orders to end tenants** (:mod:`metad.state.cluster.tenant_ends`) are carried out one by one, the first one first. The
leader reads what the tenant has behind the place to which the order has come, and names it in a step, with the
place that it has looked at last. What the step does is decided when it is evaluated. It writes the place, so the next
step begins there, by this leader or the next. What else a tenant has goes in passes (:mod:`.tenants`).

**Wills that nobody publishes** are bounded. Wills that are due wait for brokers that claim them. If none does for days,
they would fill the disk. So once a minute the node goes through those of each group, some hundred at a time. It warns
while wills wait for longer than a broker ever needs, and it has those dropped that have waited for
``expiry.will_keep_s``, and says so in an error. The evaluation decides which they are: nothing here has to be exact,
and what is left undone is found by the next pass, of this leader or another.

The node's status tells what is late or waits (:meth:`Sweeps.backlog`), so that an operator sees it grow.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.cluster import METADATA
from metad_wire.errors import MetadError, TooLargeError
from metad_wire.methods import SESSION_END_STEP, WILL_EXPIRE
from metad_wire.table import Table
from metad_wire.tables.offset import OFFSET
from metad_wire.tables.retained import RETAINED
from metad_wire.tables.session import SESSION
from metad_wire.tables.will import WILL, WillExpire, WillKey

from ... import log_events
from ...config import ExpiryConfig
from ...logs import event
from ...state.cluster.fences import Fences
from ...state.cluster.tenancy import PAGE_BYTES, rows_of
from ...state.cluster.tenant_ends import Pending, TenantEnds
from ...state.core.slot_assignment import is_held
from ...state.machine import Machine
from ...state.session.wills import DUE, due_ms_of, waiting
from ...storage import keys
from ..disk.stores import Stores
from ..environment import Environment, Timer
from ..health import Health
from ..replicas.driver import GroupDriver
from ..replicas.groups import Groups
from ..requests.requests import Requests
from .chore import Chore, Done, Means
from .conversion import Conversion
from .group_expiry import GroupExpiry
from .session_sweeps import DueSweep, LostSweep
from .tables import DroppedRecords, IndexBuild, RecordExpiry
from .tenants import TenantCount, TenantRest

PASS_S: Final = 60.0
_WAITING_S: Final = 60.0
"""Wills that have waited for so long are worth a warning: brokers that live claim within a second."""
_GO_ROWS: Final = 200
_GO_BYTES: Final = 1024 * 1024
"""So much is looked at in one go, and then the others have their turn."""
_BATCH: Final = 100
"""Wills, or records of dropped tables, in one order to delete them."""
_RECORDS: Final = 500
"""In one order to build an index: they are read, which takes some two milliseconds."""


class UnclaimedWills(Chore):
    """Bounds those of one group."""

    def __init__(self, driver: GroupDriver, keep_ms: int, means: Means) -> None:
        super().__init__(driver, _BATCH, means)
        self.keep_ms = keep_ms
        self._begin_s = 0.0
        """No pass begins before."""
        self._at: bytes | None = None
        """The key to go on with; None between two passes."""
        self._count = self._oldest_ms = 0
        """The wills that the pass has found, and for how long the oldest waits."""

    def begin(self, room: int, done: Done) -> bool:
        if self._asking:
            return False
        if not self._leads():
            self._at = None
            return False
        prefix, now_s = keys.table_prefix(self._driver.group.prefix, DUE), self._environment.now()
        if self._at is None:
            if now_s < self._begin_s:
                return False
            self._at, self._count, self._oldest_ms, self._begin_s = prefix, 0, 0, now_s + PASS_S
        rows = self._driver.machine.reader.engine.scan(self._at, keys.after_prefix(prefix), _GO_ROWS, _GO_BYTES)
        if over := self._over(rows, len(prefix)):
            self._ask(WILL_EXPIRE, WillExpire(over, self.keep_ms), partial(self._answered, done))
        else:
            self._environment.call_soon(partial(done, 0))
        if not rows:
            self._at = None
            if self._oldest_ms > 1000 * _WAITING_S:
                oldest_s = self._oldest_ms // 1000
                event(log_events.WILLS_WAIT, group=self._driver.group.name, count=self._count, oldest_s=oldest_s)
        return True

    def _over(self, rows: list[tuple[bytes, bytes]], skip: int) -> list[WillKey]:
        """Go on behind those of these wills that are looked at. Returns the ones that have waited for too long."""
        past_ms, now_ms = self._past_ms(), self._driver.machine.time.newest_ms
        over: list[WillKey] = []
        for key, row in rows:
            if len(over) == self._batch.size:
                break
            self._at = key + b"\0"
            if self._serves(key):
                due_ms = due_ms_of(row)
                self._count += 1
                self._oldest_ms = max(self._oldest_ms, now_ms - due_ms)
                if due_ms + self.keep_ms <= past_ms:
                    over.append(WillKey(*WILL.fields_of(key[skip:], 3)))
        return over

    def _answered(self, done: Done, outcome: bytes | MetadError) -> None:
        if isinstance(outcome, bytes):
            if dropped := WILL_EXPIRE.decode_reply(outcome).dropped:
                group, counts = self._driver.group.name, self._counts
                counts["dropped"] += dropped
                self._count -= dropped
                event(log_events.WILLS_DROPPED, group=group, count=dropped, dropped=counts["dropped"])
        else:
            self._at = None  # the next pass finds out what has become of the group
        done(0)


_TABLES: Final[tuple[tuple[Table[Any], str], ...]] = ((SESSION, "owner"), (WILL, "due"), (RETAINED, "message"))
"""What is looked at, by phase: tables, and the names of their rows."""
_PASS_ROWS: Final = 500
"""Looked at in one go, about half a millisecond."""


class TenantSweep(Chore):
    """Carries out the orders of one group."""

    def __init__(self, driver: GroupDriver, batch: int, means: Means) -> None:
        super().__init__(driver, batch, means)
        self._state: tuple[Machine, bytes, int, bytes] | None = None
        """The order's row, phase and place in which ``_at`` was looked at last, and nothing was to be named."""
        self._at = b""

    def begin(self, room: int, done: Done) -> bool:
        if self._asking or not self._leads():
            return False
        machine = self._driver.machine
        ends = [one for one in machine.parts[TenantEnds].pending() if one.end.phase < len(_TABLES)]
        if not ends or machine.holding.sealed_move:
            return False
        pending = ends[0]
        end = pending.end
        state = (machine, pending.row, end.phase, end.cursor)
        if state != self._state:
            self._state, self._at = state, end.cursor
        items, at, last = self._find(pending, min(room, self._batch.size))
        if not items and not last:
            self._at = at
            self._environment.call_soon(partial(done, 0))
            return True
        body = c.SessionEndStep(items, pending.row, end.phase, end.cursor, at, last)
        self._ask(SESSION_END_STEP, body, partial(self._answered, done, items, at))
        return True

    def _find(self, pending: Pending, count: int) -> tuple[list[c.SessionEndItem], bytes, bool]:
        """What the order is about in the next rows, so much at most, in slots that the group holds; the last key that
        was looked at; and whether that is all of the phase."""
        machine, end = self._driver.machine, pending.end
        table, row = _TABLES[end.phase]
        prefix = keys.table_prefix(self._driver.group.prefix, table.rows[row])
        begin = prefix + self._at + b"\0" if self._at else b""
        rows = rows_of(machine.reader.engine, prefix, end.tenant, begin, _PASS_ROWS)
        items: list[c.SessionEndItem] = []
        at, skip, size = self._at, len(prefix), 0
        for key, value in rows:
            if len(items) == count:
                return items, at, False
            at = key[skip:]
            size += len(key) + len(value)
            if is_held(pending.slots, key) and self._holds(key):
                items.append(c.SessionEndItem(*table.fields_of(at, len(table.key))))
        return items, at, len(rows) < _PASS_ROWS and size < PAGE_BYTES

    def _answered(self, done: Done, items: list[c.SessionEndItem], at: bytes, outcome: bytes | MetadError) -> None:
        if isinstance(outcome, TooLargeError):
            if self._passes_over(items):
                self._at = at
            done(len(items))
        elif isinstance(outcome, bytes):
            reply = SESSION_END_STEP.decode_reply(outcome)
            self._counts["ended"] += reply.sessions
            done(len(items) if reply.done else None)
        else:
            done(None)


LOOK_S: Final = 0.25
"""How often :meth:`SweepTurns.look` is called."""
REST: Final = 4
"""In durations of a turn: what the others have of the node behind it."""
_REST_MIN_S: Final = 0.002
_GO_S: Final = 0.001
"""Chores that have nothing to do are asked for so long in one go: a node with a thousand groups has thousands."""
TURN_S: Final = 1.0
"""A look begins the next turn after this time, whatever the last one took, or still takes."""


class SweepTurns:
    """Those of a node: ``rate`` is in sessions per second, ``batch`` the sessions of a turn."""

    def __init__(self, rate: float, batch: int, environment: Environment) -> None:
        self._batch = batch
        self._environment = environment
        self.pace(rate)
        self._works: deque[Chore] = deque()
        self._passed = 0  # chores in a row that had nothing to do
        self._turn = 0  # the number of the one that is under way, or rests
        self._begun_s: float | None = None  # when that began; None: nobody had anything to do
        self._room = self._room_max  # sessions that may be asked for now
        self._room_s = environment.now()
        self._timer: Timer | None = None

    def pace(self, rate: float) -> None:
        """Go on at so many sessions per second."""
        self._rate = rate
        self._room_max = max(self._batch, rate * LOOK_S)
        self._room_least = max(1.0, min(self._batch, rate * LOOK_S))
        """So much room is worth a turn."""

    def serve(self, works: Iterable[Chore]) -> None:
        """Let these take turns from now on."""
        self._works = deque(works)

    def look(self) -> None:
        """Begin a turn, unless one has begun not long ago."""
        if self._begun_s is None or self._environment.now() - self._begun_s >= TURN_S:
            self._take()

    def stop(self) -> None:
        """Let nobody have another turn before the next look."""
        self._turn += 1
        self._begun_s = None
        if self._timer is not None:
            self._timer.cancel()

    def _take(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._turn += 1
        now_s = self._environment.now()
        self._room = min(self._room + self._rate * (now_s - self._room_s), self._room_max)
        self._room_s = self._begun_s = now_s
        if (missing := self._room_least - self._room) > 0:
            self._timer = self._environment.call_at(now_s + max(_REST_MIN_S, missing / self._rate), self._take)
            return
        while self._passed < len(self._works):
            work = self._works[0]
            self._works.rotate(-1)
            self._passed += 1
            if work.begin(int(self._room), partial(self._done, self._turn, work)):
                self._passed = 0
                return
            if self._environment.now() - now_s >= _GO_S:
                self._done(self._turn, work, 0)
                return
        self._passed = 0
        self._begun_s = None

    def _done(self, turn: int, work: Chore, asked: int | None) -> None:
        self._room -= asked or 0
        if turn != self._turn or self._begun_s is None:
            return  # it took so long that the next one did not wait for it
        if asked is None:
            self._begun_s = None
            return
        now_s = self._environment.now()
        rest_s = REST * (now_s - self._begun_s) / work.hurry
        self._timer = self._environment.call_at(now_s + max(_REST_MIN_S, rest_s), self._take)


class Sweeps:
    """Runs the chores of a node."""

    def __init__(
        self,
        config: ExpiryConfig,
        groups: Groups,
        requests: Requests,
        stores: Stores,
        environment: Environment,
        health: Health,
    ) -> None:
        self._groups = groups
        self._stores = stores
        self._environment = environment
        self._health = health
        self._turns = SweepTurns(config.sessions_per_s, config.batch_sessions, environment)
        self._chores: dict[GroupDriver, list[Chore]] = {}
        self._timer: Timer | None = None
        self._config = config
        self._means = Means(requests, environment, Counter())
        self.counts = self._means.counts

    def start(self) -> None:
        """Begin to look."""
        if self._health.failure is not None:
            self._turns.stop()
            return
        self._timer = self._environment.call_at(self._environment.now() + LOOK_S, self.start)
        kinds = {driver: group.kind for group, driver in self._groups.drivers.items()}
        if [*self._chores] != [*kinds]:
            self._chores = {
                driver: self._chores.get(driver) or self._of(driver, kind) for driver, kind in kinds.items()
            }
            self._turns.serve(chore for chores in self._chores.values() for chore in chores)
        self._turns.look()
        if self._stores.identity.converts and self._groups.map is not None:
            conversions = [one for chores in self._chores.values() for one in chores if isinstance(one, Conversion)]
            if all(one.done for one in conversions):
                self._stores.converted()

    def stop(self) -> None:
        """Look no more."""
        self._turns.stop()
        if self._timer is not None:
            self._timer.cancel()

    def _of(self, driver: GroupDriver, kind: str) -> list[Chore]:
        return [make(driver, how, self._means) for make, how in self._made_with(kind)]

    def _made_with(self, kind: str) -> Iterable[tuple[Callable[..., Chore], int]]:
        """The chores of a group of a kind, and what each is made with."""
        sessions = self._config.batch_sessions
        everywhere: list[tuple[Callable[..., Chore], int]] = [
            (DroppedRecords, _BATCH),
            (IndexBuild, _RECORDS),
            (RecordExpiry, sessions),
            (TenantRest, sessions),
            (TenantCount, sessions),
        ]
        if kind == SESSION.kind:
            return [
                (DueSweep, sessions),
                (LostSweep, sessions),
                (TenantSweep, sessions),
                (UnclaimedWills, 1_000 * self._config.will_keep_s),
                (partial(Conversion, stores=self._stores), _BATCH),
                *everywhere,
            ]
        if kind == OFFSET.kind:
            return [(GroupExpiry, self._config.consumer_group_ms), *everywhere]
        return everywhere if kind == METADATA.kind else []

    def heed(self, config: ExpiryConfig) -> None:
        """Go on with other settings."""
        self._config = config
        self._turns.pace(config.sessions_per_s)
        for chore in (one for chores in self._chores.values() for one in chores):
            if isinstance(chore, UnclaimedWills):
                chore.keep_ms = 1_000 * config.will_keep_s
            elif isinstance(chore, GroupExpiry):
                chore.unused_ms = config.consumer_group_ms

    @property
    def overdue_ms(self) -> int:
        """For how long a deadline has passed, by the log's time, that is still in the index of a group that this node
        leads; 0 if there is none."""
        chores = (one for chores in self._chores.values() for one in chores)
        return max((one.overdue_ms for one in chores if isinstance(one, DueSweep | RecordExpiry)), default=0)

    def backlog(self) -> m.Backlog:
        """Look at what is late or waits in the groups that this node leads, at a bounded number of rows. Deadlines
        pass, and wills wait, by the time of each group's log."""
        deadlines = fences = wills = unclaimed = unclaimed_ms = tenants = 0
        more = False
        for group, driver in self._groups.drivers.items():
            if group.kind != "data" or not driver.group.accepting or driver.installing:
                continue
            machine = driver.machine
            now_ms = machine.reader.now_ms()
            late = sum(due.overdue(m.BACKLOG_MAX + 1) for due in self._due(driver))
            found = waiting(machine.reader, now_ms, m.BACKLOG_MAX)
            deadlines += min(late, m.BACKLOG_MAX)
            fences += len(machine.parts[Fences].unswept())
            tenants += len(machine.parts[TenantEnds].pending())
            wills += found.wills
            unclaimed += found.unclaimed
            unclaimed_ms = max(unclaimed_ms, now_ms - found.since_ms if found.since_ms else 0)
            more = more or found.more or late > m.BACKLOG_MAX
        return m.Backlog(deadlines, fences, wills, unclaimed, unclaimed_ms, more, tenants)

    def _due(self, driver: GroupDriver) -> list[DueSweep]:
        return [chore for chore in self._chores.get(driver, ()) if isinstance(chore, DueSweep)]
