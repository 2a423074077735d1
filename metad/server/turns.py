"""The event loop's turn: requests queue at their groups; once per turn every group with work makes its entries, every
replica does what is due, all of it goes into one log write, and each peer gets one payload. What has been committed is
applied in one batch and answered, and what queued meanwhile is next.
"""

from __future__ import annotations

from typing import Protocol

from ..errors import StorageError
from ..logs import bug
from ..raft.replicas import Replicas
from ..raft.writer import LogWriter
from ..state.view import Writes
from ..storage.engine import Engine
from .driver import GroupDriver, Work
from .environment import Environment, Timer
from .expiry import Expiry
from .health import Health
from .precedence import SMALL_ITEMS, Precedence

# This many waiting items are begun although an fsync is under way: past it an entry's fixed cost is small beside its
# items', they are still in the CPU's cache, and the disk and the clients work on them while the next are read.
_AT_ONCE_ITEMS = 128
# Items of entries made in one turn of the loop, about a millisecond of it; an entry is made whole. Groups that are left
# over come first in the next turn.
_TURN_ITEMS = 256
# Writes applied in one turn of the loop: a millisecond of it, and as many as one RocksDB batch takes well.
_APPLY_ITEMS = 500


class Tended(Protocol):
    """The groups, as their turns see them."""

    replicas: Replicas

    def map_changed(self, driver: GroupDriver) -> None:
        """The cluster map in the state is another."""

    def log_grown(self, size: int) -> None:
        """So many bytes more are in the log, or have been applied from it."""


class Turns:
    """See the module. :meth:`begin` says whose turns they are."""

    def __init__(self, state: Engine, writer: LogWriter, environment: Environment, health: Health) -> None:
        self._state = state
        self._writer = writer
        self._environment = environment
        self._health = health
        self._dirty: dict[GroupDriver, None] = {}  # something waits there
        self._committed: dict[GroupDriver, None] = {}  # there is something to apply
        self._stalled: dict[GroupDriver, None] = {}  # writes wait there until the leader is sure of itself
        self.precedence = Precedence(environment.now)
        """What is small goes before what is not."""
        self._expiry = Expiry(environment, self._expire)
        self._scheduled = False
        self._in_turn = False
        self._pumping = False
        self._apply_scheduled = False
        self._waiting_items = 0  # submitted since the last turn
        self._timer: Timer | None = None
        self._timer_s = float("inf")

    def begin(self, groups: Tended) -> None:
        """Serve these groups."""
        self._groups = groups
        self._replicas = groups.replicas
        self._writer.after_durable = self._apply

    def stop(self) -> None:
        """No more."""
        self._expiry.stop()
        if self._timer is not None:
            self._timer.cancel()

    # --- what is to be done ------------------------------------------------------------------------------

    def submit(self, driver: GroupDriver, work: Work, now_s: float) -> None:
        """A group's part of a request; :meth:`submitted` follows the last."""
        driver.submit(work, now_s)
        self._dirty[driver] = None
        self._waiting_items += work.items

    def submitted(self) -> None:
        """Begin now or soon what was submitted."""
        if self._waiting_items >= _AT_ONCE_ITEMS and not self._in_turn:
            self.turn()
        elif not self._writer.busy:
            self.schedule()

    def schedule(self, driver: GroupDriver | None = None) -> None:
        """A turn soon, in which the group, if one is given, looks at what waits."""
        if driver is not None:
            self._dirty[driver] = None
        if not self._scheduled:
            self._scheduled = True
            self._environment.call_soon(self._scheduled_turn)

    def woken(self) -> None:
        """A replica has something to do."""
        if not self._pumping:  # or their turn comes right now
            self.schedule()

    def apply(self, driver: GroupDriver) -> None:
        """Something of the group is committed."""
        self._committed[driver] = None
        self._schedule_apply()

    def hold(self, driver: GroupDriver) -> None:
        """Apply nothing of the group until it is told again: it would hold up the others."""
        self._committed.pop(driver, None)

    def forget(self, driver: GroupDriver) -> None:
        """The group is closed."""
        for drivers in (self._dirty, self._committed, self._stalled):
            drivers.pop(driver, None)

    # --- the turn ----------------------------------------------------------------------------------------

    def _scheduled_turn(self) -> None:
        self._scheduled = False
        self.turn()

    def turn(self) -> None:
        """Make entries of what waits, and let replicas do what is due."""
        if self._health.failure is not None:
            return
        self._waiting_items = 0
        dirty, self._dirty = self._dirty, {}
        self._in_turn = self._pumping = True
        again = False
        grown = 0
        try:
            now_s = self._environment.now()
            due_s, grown = self._pump(dirty, now_s)
            self._pumping = False
            if due_s <= now_s:
                # One entry per group and turn: the disk works on it, and its answers go out, while the next is made.
                again = True
                due_s = float("inf")
            replicas_s = self._replicas.turn(now_s)
            if replicas_s <= now_s:
                again = True
            else:
                due_s = min(due_s, replicas_s)
            self._arm(due_s)
        except Exception as error:  # noqa: BLE001 - logged where it ends
            self._health.stop_for_bug(error)
        finally:
            self._in_turn = self._pumping = False
        if again:
            self.schedule()
        if grown:
            self._groups.log_grown(grown)

    def _pump(self, drivers: dict[GroupDriver, None], now_s: float) -> tuple[float, int]:
        """Have the groups make entries of what waits: (when to look again, bytes of the entries)."""
        due_s, grown = float("inf"), 0
        now_ms = self._environment.wall_ms()
        items = 0
        again: list[GroupDriver] = []
        for position, driver in enumerate(drivers):
            if items >= _TURN_ITEMS:
                again[:0] = list(drivers)[position:]  # before those that have had their turn
                due_s = now_s
                break
            before, waiting = driver.group.log.bytes, driver.waiting_items
            again_s = driver.pump(now_s, now_ms)
            grown += driver.group.log.bytes - before
            begun = waiting - driver.waiting_items
            items += begun
            if begun > SMALL_ITEMS:
                self.precedence.heavy_done(now_s)
            if again_s is not None:
                due_s = min(due_s, again_s)
                again.append(driver)
            elif driver.stalled:
                self._stalled[driver] = None
                self._expiry.arm()
            if driver.machine.unexpected is not None:
                error, driver.machine.unexpected = driver.machine.unexpected, None
                if isinstance(error, StorageError):
                    self._health.fail(error)
                    break
                bug(driver.group.name, error)
        self._dirty = dict.fromkeys([*again, *self._dirty])
        return due_s, grown

    def _expire(self, now_s: float) -> bool:
        for driver in [driver for driver in self._stalled if driver.expire(now_s)]:
            del self._stalled[driver]
        return bool(self._stalled)

    def _arm(self, due_s: float) -> None:
        if due_s == self._timer_s:
            return
        if self._timer is not None:
            if self._timer_s <= due_s and self._timer_s > self._environment.now():
                return  # it comes earlier, and looks again then
            self._timer.cancel()
            self._timer = None
        self._timer_s = due_s
        if due_s < float("inf"):
            self._timer = self._environment.call_at(due_s, self._due)

    def _due(self) -> None:
        late_s = self._environment.now() - self._timer_s
        self._timer, self._timer_s = None, float("inf")
        if late_s > self._replicas.timing.heartbeat_s:
            self._replicas.overslept()
        self.turn()

    # --- applying ----------------------------------------------------------------------------------------

    def _schedule_apply(self) -> None:
        if not self._apply_scheduled:
            self._apply_scheduled = True
            self._environment.call_soon(self._apply)

    def _apply(self) -> None:
        """Apply the oldest of what is committed and answer it; the rest in the turns that follow at once, so that
        clients work on the first answers while the next are made."""
        self._apply_scheduled = False
        if self._health.failure is not None:
            # What was committed last may be missing from the state. Nothing may be applied behind it, for the applied
            # index would then claim what is not there; the next start replays it from the log.
            return
        if not self._committed:
            if self._dirty:  # what queued while the disk was busy with something else
                self.turn()
            return
        staged: list[GroupDriver] = []
        batches: list[Writes] = []
        items = grown = 0
        try:
            while self._committed and items < _APPLY_ITEMS:
                driver = next(iter(self._committed))
                added, size = driver.stage(batches, _APPLY_ITEMS - items)
                grown += size
                items += max(added, 1)
                staged.append(driver)
                if driver.machine.applied < driver.group.applicable:
                    break
                del self._committed[driver]
            self._state.write(*batches)
            for driver in staged:
                driver.finish()
                self._dirty[driver] = None
                if driver.machine.map_changed:
                    driver.machine.map_changed = False
                    self._groups.map_changed(driver)
        except StorageError as error:
            self._health.fail(error)
            return
        except Exception as error:  # noqa: BLE001 - logged where it ends
            self._health.stop_for_bug(error)
            return
        if self._committed:
            self._schedule_apply()
        if grown:
            self._groups.log_grown(grown)
        self.turn()
