"""The one runner of what a node does in the groups that it leads, and nobody waits for.

Each group has chores: sessions whose clients have been away for too long end, and the delay of their wills
(:mod:`.due_sweep`); so do the connections of brokers whose lives are over (:mod:`.lost_sweep`), and tenants that
somebody has ordered to end (:mod:`.tenant_sweep`); wills that nobody publishes are dropped (:mod:`.unclaimed_wills`),
and consumer groups that nobody uses are deleted (:mod:`.group_expiry`).

All chores of a node take turns, in what is left of the node and of its disk. Behind each turn all of them rest for
several times as long as it took until its batch was answered: so they are slow where the processor or the disk is busy,
with whatever it is, and need not know with what. Two limits hold on top of that: a number of sessions per second,
however idle the node is, and a turn about every second, however busy it is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from metad_wire.tables.offset import OFFSET
from metad_wire.tables.session import SESSION

from ...config import ExpiryConfig
from ..environment import Environment, Timer
from ..health import Health
from ..replicas.driver import GroupDriver
from ..replicas.groups import Groups
from ..requests.requests import Requests
from .chore import Chore, Means
from .due_sweep import DueSweep
from .group_expiry import GroupExpiry
from .lost_sweep import LostSweep
from .tenant_sweep import TenantSweep
from .unclaimed_wills import UnclaimedWills

LOOK_S: Final = 0.25
"""How often :meth:`SweepTurns.look` is called."""
REST: Final = 4
"""In durations of a turn: what the others have of the node behind it."""
_REST_MIN_S: Final = 0.002
TURN_S: Final = 1.0
"""A look begins the next turn after this time, whatever the last one took, or still takes."""


class SweepTurns:
    """Those of a node: ``rate`` is in sessions per second, ``batch`` the sessions of a turn."""

    def __init__(self, rate: float, batch: int, environment: Environment) -> None:
        self._rate = rate
        self._room_max = max(batch, rate * LOOK_S)
        self._room_least = max(1.0, min(batch, rate * LOOK_S))
        """So much room is worth a turn."""
        self._environment = environment
        self._works: deque[Chore] = deque()
        self._turn = 0  # the number of the one that is under way, or rests
        self._begun_s: float | None = None  # when that began; None: nobody had anything to do
        self._room = self._room_max  # sessions that may be asked for now
        self._room_s = environment.now()
        self._timer: Timer | None = None

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
        done = partial(self._done, self._turn)
        for _ in range(len(self._works)):
            work = self._works[0]
            self._works.rotate(-1)
            if work.begin(int(self._room), done):
                return
        self._begun_s = None

    def _done(self, turn: int, asked: int | None) -> None:
        self._room -= asked or 0
        if turn != self._turn or self._begun_s is None:
            return  # it took so long that the next one did not wait for it
        if asked is None:
            self._begun_s = None
            return
        now_s = self._environment.now()
        self._timer = self._environment.call_at(now_s + max(_REST_MIN_S, REST * (now_s - self._begun_s)), self._take)


class Sweeps:
    """Runs the chores of a node."""

    def __init__(
        self, config: ExpiryConfig, groups: Groups, requests: Requests, environment: Environment, health: Health
    ) -> None:
        self._groups = groups
        self._environment = environment
        self._health = health
        self._turns = SweepTurns(config.sessions_per_s, config.batch_sessions, environment)
        self._chores: dict[GroupDriver, list[Chore]] = {}
        self._timer: Timer | None = None
        sessions = config.batch_sessions
        self._kinds: dict[str, tuple[tuple[Callable[..., Chore], int], ...]] = {
            SESSION.kind: (
                (DueSweep, sessions),
                (LostSweep, sessions),
                (TenantSweep, sessions),
                (UnclaimedWills, 1_000 * config.will_keep_s),
            ),
            OFFSET.kind: ((GroupExpiry, config.consumer_group_ms),),
        }
        """The chores of a group, by its kind, and what each is made with."""
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

    def stop(self) -> None:
        """Look no more."""
        self._turns.stop()
        if self._timer is not None:
            self._timer.cancel()

    def _of(self, driver: GroupDriver, kind: str) -> list[Chore]:
        return [make(driver, how, self._means) for make, how in self._kinds.get(kind, ())]

    @property
    def overdue_ms(self) -> int:
        """For how long a deadline has passed, by the log's time, that is still in the index of a group that this node
        leads; 0 if there is none."""
        return max((due.overdue_ms for driver in self._chores for due in self._due(driver)), default=0)

    def overdue(self, driver: GroupDriver, limit: int) -> int:
        """How many such deadlines are in the index of a group, up to a limit."""
        return sum(due.overdue(limit) for due in self._due(driver))

    def _due(self, driver: GroupDriver) -> list[DueSweep]:
        return [chore for chore in self._chores.get(driver, ()) if isinstance(chore, DueSweep)]
