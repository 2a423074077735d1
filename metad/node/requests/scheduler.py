"""The event loop's turn: requests queue at their groups; once per turn every group with work makes its entries, every
replica does what is due, all of it goes into one log write, and each peer gets one payload. What has been committed is
applied in one batch and answered, and what queued meanwhile is next.
"""

from __future__ import annotations

from collections.abc import Callable

from metad_wire.policy.fair_queue import Precedence, is_small

from ... import log_events
from ...errors import StorageError
from ...logs import bug, event
from ...raft.base import Timing
from ...raft.replicas import Replicas
from ...state.core.part import Writes
from ...state.machine import STEP_MS
from ...storage.engine import Engine
from ...storage.log import LogWriter
from ..environment import Deadlines, Environment, Timer
from ..health import Health
from ..meters import Meters
from ..replicas.driver import ENTRY_ITEMS, GroupDriver, Work
from ..replicas.groups import Agenda

# This many items that have come for a group are begun although an fsync is under way: past it an entry's fixed cost is
# small beside its items', they are still in the CPU's cache, and the disk and the clients work on them while the next
# are read.
_AT_ONCE_ITEMS = 128
# Items of entries made in one turn of the loop, a few milliseconds of it; an entry is made whole. Groups that are left
# over come first in the next turn.
_TURN_ITEMS = 1_000
# Writes applied in one turn of the loop: two milliseconds of it. A turn has costs of its own, so fewer are dearer.
_APPLY_ITEMS = 1_000
_SHOW_S = 0.1  # how often the loop shows that it runs
_STOOD_S = 0.25  # after so long clients may have turned elsewhere


class Standstills:
    """Calls ``listeners`` when this process has stood still: somebody stopped it, its machine slept, or something held
    up the event loop. Whoever could not be heard meanwhile is not late. Shorter stops keep no peer unheard for longer
    than the patience of Raft, and no client for longer than those wait who judge its silence."""

    def __init__(self, environment: Environment, timing: Timing, meters: Meters) -> None:
        self.listeners: list[Callable[[], None]] = []
        self._environment = environment
        self._show_s = min(_SHOW_S, timing.heartbeat_s)
        patience_s = min(timing.election_s, timing.step_down_s)
        self._most_s = self._show_s + min(_STOOD_S, (patience_s - timing.heartbeat_s) / 2)
        self._shown_s = 0.0  # when the loop was seen to run
        self._over_s = environment.now()  # when the last standstill was over
        self._meters = meters
        self._due_s = self._over_s
        self._calendar_ms = 0.0  # the calendar less the clock here, when the timer ran last
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to watch whether the loop runs."""
        now_s = self._environment.now()
        calendar_ms = self._environment.wall_ms() - 1_000 * now_s
        if self._timer is not None:
            self._meters.loop_late_s.add(max(0.0, now_s - self._due_s))
            if abs(moved_ms := calendar_ms - self._calendar_ms) > STEP_MS:
                event(log_events.CLOCK_SET, by_ms=round(moved_ms))
        self._calendar_ms = calendar_ms
        self._due_s = now_s + self._show_s
        self._meters.look(now_s)
        try:
            self.look(now_s)
        finally:
            self._timer = self._environment.call_at(self._due_s, self.start)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def look(self, now_s: float) -> None:
        """Call the listeners if it has stood still. What is about to judge by the time calls this first: after a
        standstill, requests and other timers may come before the timer here."""
        stood_s, self._shown_s = now_s - self._shown_s, now_s
        if stood_s > self._most_s and self._timer is not None:
            self._over_s = now_s
            event(log_events.STOOD_STILL, stood_ms=round(1_000 * stood_s))
            for listener in list(self.listeners):
                listener()

    def running_s(self) -> float:
        """For how long the node has run since it stood still, or was started."""
        now_s = self._environment.now()
        self.look(now_s)
        return now_s - self._over_s


class Scheduler:
    """Works off the agenda."""

    def __init__(
        self,
        state: Engine,
        writer: LogWriter,
        replicas: Replicas,
        agenda: Agenda,
        precedence: Precedence,
        environment: Environment,
        health: Health,
        *,
        meters: Meters,
    ) -> None:
        self._state = state
        self._writer = writer
        self._replicas = replicas
        self._agenda = agenda
        self._environment = environment
        self._health = health
        self.log_grown: Callable[[int], None] = _ignore
        """Told how many bytes were appended to the log or applied from it."""
        self._meters = meters
        self.standstills = Standstills(environment, replicas.timing, meters)
        self.precedence = precedence
        """What is small goes before what is not."""
        self._expiry = Deadlines(environment, self._expire)
        self._in_turn = False
        self._arrived: dict[GroupDriver, int] = {}  # items submitted since the last turn
        self._timer: Timer | None = None
        self._timer_s = float("inf")
        agenda.serve(self.turn, self._apply)
        writer.after_durable(self._apply)

    def stop(self) -> None:
        """Cancel the timers."""
        self.standstills.stop()
        self._expiry.stop()
        if self._timer is not None:
            self._timer.cancel()

    # --- requests ----------------------------------------------------------------------------------------

    def submit(self, driver: GroupDriver, work: Work, now_s: float) -> None:
        """A request to a group: begun now or soon."""
        driver.submit(work, now_s)
        self._agenda.dirty[driver] = None
        self._arrived[driver] = arrived = self._arrived.get(driver, 0) + work.items
        if arrived >= _AT_ONCE_ITEMS and not self._in_turn:
            self.turn()
        elif not self._writer.busy:
            self._agenda.schedule()

    # --- the turn ----------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Make entries of what waits, and let replicas do what is due."""
        if self._health.failure is not None:
            return
        self._arrived.clear()
        dirty = self._agenda.begin()
        self._in_turn = True
        again = False
        grown = 0
        try:
            now_s = self._environment.now()
            self.standstills.look(now_s)
            due_s, grown = self._pump(dirty, now_s)
            self._agenda.end()
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
            self._agenda.end()
            self._in_turn = False
        if again:
            self._agenda.schedule()
        if grown:
            self.log_grown(grown)

    def _pump(self, drivers: list[GroupDriver], now_s: float) -> tuple[float, int]:
        """Have the groups make entries of what waits: (when to look again, bytes of the entries)."""
        due_s, grown = float("inf"), 0
        calendar_ms = self._environment.wall_ms()
        items = 0
        again: list[GroupDriver] = []
        if len(drivers) > 1 and any(driver.urgent for driver in drivers):
            drivers = sorted(drivers, key=lambda driver: not driver.urgent)
        for position, driver in enumerate(drivers):
            if items >= _TURN_ITEMS:
                again[:0] = drivers[position:]  # before those that have had their turn
                due_s = now_s
                break
            before, waiting = driver.group.log.bytes, driver.waiting_items
            again_s = driver.pump(now_s, calendar_ms)
            size = driver.group.log.bytes - before
            grown += size
            begun = waiting - driver.waiting_items
            items += ENTRY_ITEMS + begun
            if not is_small(begun, size):
                self.precedence.heavy_done(now_s, size)
            if again_s is not None:
                due_s = min(due_s, again_s)
                again.append(driver)
            elif driver.stalled:
                self._agenda.stalled[driver] = None
                self._expiry.arm()
            if driver.machine.unexpected is not None:
                error, driver.machine.unexpected = driver.machine.unexpected, None
                if isinstance(error, StorageError):
                    self._health.fail(error)
                    break
                bug(driver.group.name, error)
        if again:
            self._agenda.put_first(again)
        return due_s, grown

    def _expire(self, now_s: float) -> bool:
        stalled = self._agenda.stalled
        for driver in [driver for driver in stalled if driver.expire(now_s)]:
            del stalled[driver]
        return bool(stalled)

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
        self._timer, self._timer_s = None, float("inf")
        self.turn()

    # --- applying ----------------------------------------------------------------------------------------

    def _apply(self) -> None:
        """Apply the oldest of what is committed and answer it; the rest in the turns that follow at once, so that
        clients work on the first answers while the next are made."""
        if self._health.failure is not None:
            # What was committed last may be missing from the state. Nothing may be applied behind it, for the applied
            # index would then claim what is not there; the next start replays it from the log.
            return
        committed, dirty = self._agenda.committed, self._agenda.dirty
        if not committed:
            if dirty:  # what queued while the disk was busy with something else
                self.turn()
            return
        staged: list[GroupDriver] = []
        batches: list[Writes] = []
        items = grown = 0
        begun_s = self._environment.now()
        try:
            while committed and items < _APPLY_ITEMS:
                driver = next(iter(committed))
                added, size = driver.stage(batches, _APPLY_ITEMS - items)
                grown += size
                items += added
                staged.append(driver)
                del committed[driver]
                if driver.machine.applied < driver.group.applicable:
                    committed[driver] = None  # behind the others
                    break
            self._state.write(*batches)
            for driver in staged:
                driver.finish(begun_s)
                dirty[driver] = None
        except StorageError as error:
            self._health.fail(error)
            return
        except Exception as error:  # noqa: BLE001 - logged where it ends
            self._health.stop_for_bug(error)
            return
        self._meters.apply_s.add(self._environment.now() - begun_s)
        if committed:
            self._agenda.schedule_apply()
        if grown:
            self.log_grown(grown)
        self.turn()


def _ignore(_: int) -> None:
    """Nobody wants to know."""
