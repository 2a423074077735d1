"""Ends what is over, in the groups that this node leads: sessions whose clients have been away for too long, and the
delay of their wills.

The node looks into the index of deadlines now and then, and asks the group for a batch at a time. The evaluation of a
batch decides what of it is really due (:mod:`metad.state.expiry`), so nothing here has to be exact. A limit on sessions
per second, for all groups of the node together, keeps the rest of the work going, and so does a group whose queue is
long: its sweep waits. What is left undone is still in the index, for this leader or the next.

The sessions of a broker whose life is over look connected, and so have no deadline. As long as the group has a fence
that is not swept, the node also goes through all owner rows, and names those sessions. A fence is swept once one pass
has found none left; a leader that comes in between begins a pass of its own.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.cluster import FenceItem
from metad_wire.errors import MetadError, TooLargeError
from metad_wire.methods import SESSION_LOSE, SESSION_SWEEP
from metad_wire.tables.session import SESSION

from ..config import ExpiryConfig
from ..state.due import DUE, Due, due_key, split_due
from ..state.fences import Fences
from ..state.owners import CONNECTED
from ..state.slot_assignment import HeldSlots
from ..storage import keys
from .driver import GroupDriver
from .environment import Environment, Timer
from .groups import Groups
from .health import Health
from .requests import Requests

_OWNER: Final = SESSION.rows["owner"]
_decode_owner = msgspec.msgpack.Decoder(m.SessionOwner).decode
_LOOK_S: Final = 0.25
_QUEUE_ITEMS_MAX: Final = 128
"""A group with more items waiting is busy with its clients."""
_PASS_ROWS: Final = 500
_PASS_S: Final = 0.005
"""So many owner rows are looked at in one go, about half a millisecond, and then the others have their turn."""
_SKIPPED_MAX: Final = 1_000
"""Rows of slots that the group does not hold, looked at in one go: they came early, or are yet to be dropped."""


class _Group:
    """The sweep of one group."""

    def __init__(self, driver: GroupDriver, batch: int) -> None:
        self.driver = driver
        self.batch = batch
        """Items asked for at once: fewer after too much belonged to them."""
        self.cursor = b""
        """Behind rows that were left where they are; empty: from the first on."""
        self.asking = False
        self.passing: dict[str, FenceItem] = {}
        """The fences for which all owner rows are looked at now."""
        self.passed = b""
        """Behind the owner row that was looked at last."""
        self.slots = b""
        self.adopted_move = 0
        """The slots that the group held when the pass began, and the last move that it had adopted."""


class Sweeps:
    """Those of a node. ``ended`` and ``wills`` count what was done since the start."""

    def __init__(
        self, config: ExpiryConfig, groups: Groups, requests: Requests, environment: Environment, health: Health
    ) -> None:
        self._batch = config.batch_sessions
        self._rate = config.sessions_per_s
        self._groups = groups
        self._requests = requests
        self._environment = environment
        self._health = health
        self._sweeps: dict[GroupDriver, _Group] = {}
        self._room = 0.0  # sessions that may be asked for now
        self._room_s = environment.now()
        self._timer: Timer | None = None
        self.ended = 0
        """Sessions."""
        self.wills = 0
        """That have become due."""

    def start(self) -> None:
        """Begin to look."""
        if self._health.failure is not None:
            return
        drivers = [driver for group, driver in self._groups.drivers.items() if group.kind == "data"]
        self._sweeps = {driver: self._sweeps.get(driver) or _Group(driver, self._batch) for driver in drivers}
        for sweep in self._sweeps.values():
            self._go_on(sweep)
            if not sweep.passing:
                self._pass(sweep)
        self._timer = self._environment.call_at(self._environment.now() + _LOOK_S, self.start)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def overdue_ms(self) -> int:
        """For how long a deadline has passed, by the log's time, that is still in the index of a group that this node
        leads; 0 if there is none."""
        longest_ms = 0
        for driver in self._sweeps:
            if driver.group.accepting and not driver.installing:
                machine = driver.machine
                now_ms = machine.time.newest_ms
                found = machine.reader.engine.scan(due_key(driver.group.prefix, 0, 0, b""), _end(driver, now_ms), 1)
                longest_ms = max([longest_ms, *(now_ms - split_due(key).at_ms for key, _ in found)])
        return longest_ms

    def _leads(self, driver: GroupDriver) -> bool:
        return driver.group.accepting and not driver.installing and self._health.failure is None

    def _take_room(self) -> int:
        """How many sessions may be asked for now."""
        now_s = self._environment.now()
        self._room = min(self._room + self._rate * (now_s - self._room_s), max(self._batch, self._rate * _LOOK_S))
        self._room_s = now_s
        return int(self._room)

    # --- deadlines ---------------------------------------------------------------------------------------

    def _go_on(self, sweep: _Group) -> None:
        """Ask for the next batch, if there is one and it may be asked for."""
        driver = sweep.driver
        if sweep.asking or not self._leads(driver) or driver.waiting_items > _QUEUE_ITEMS_MAX:
            return
        now_s = self._environment.now()
        time = driver.machine.time
        time.next(self._environment.wall_ms(), now_s)
        if not (past_ms := time.past_ms(now_s)):
            return
        if not (room := self._take_room()):
            return
        found = self._find(sweep, past_ms, min(sweep.batch, room))
        if not found:
            return
        self._room -= len(found)
        sweep.asking = True
        items = []
        for due in found:
            tenant, at = keys.split_text(due.session, 0)
            items.append(c.SessionDue(tenant, keys.split_text(due.session, at)[0], due.at_ms, due.kind))
        body = c.SessionSweep(items)
        self._requests.request(SESSION_SWEEP, body, partial(self._answered, sweep), group=driver.group.name)

    def _find(self, sweep: _Group, past_ms: int, count: int) -> list[Due]:
        """The next rows whose deadline has passed, of slots that the group holds."""
        machine = sweep.driver.machine
        held = machine.slots.mask
        first = due_key(sweep.driver.group.prefix, 0, 0, b"")
        begin, end = max(first, sweep.cursor), _end(sweep.driver, past_ms)
        rows = machine.reader.engine.scan(begin, end, count if held is None else _SKIPPED_MAX) if begin < end else []
        found: list[Due] = []
        sweep.cursor = b""
        for key, _ in rows:
            if held is None or held[keys.slot_of_key(key[keys.GROUP_PREFIX_BYTES :])]:
                found.append(split_due(key))
                if len(found) == count:
                    break
            elif len(rows) == _SKIPPED_MAX:
                sweep.cursor = key + b"\0"
        return found

    def _answered(self, sweep: _Group, outcome: bytes | MetadError) -> None:
        sweep.asking = False
        if isinstance(outcome, TooLargeError):
            sweep.batch = max(1, sweep.batch // 2)
        elif isinstance(outcome, bytes):
            reply = SESSION_SWEEP.decode_reply(outcome)
            self.ended += reply.ended
            self.wills += reply.wills
            sweep.batch = min(self._batch, 2 * sweep.batch)
            if not reply.waiting:
                self._environment.call_soon(partial(self._go_on, sweep))
        # After any other error the next look finds out what has become of the group.

    # --- lives that are over -----------------------------------------------------------------------------

    def _pass(self, sweep: _Group) -> None:
        """Look at the next owner rows, if a fence is not swept, and name the sessions that it is about."""
        driver = sweep.driver
        machine = driver.machine
        if not self._leads(driver) or (sweep.passing and machine.holding.slots != sweep.slots):
            sweep.passing = {}  # the next look begins anew
            return
        prefix = keys.table_prefix(driver.group.prefix, _OWNER)
        if not sweep.passing:
            sweep.passing = {item.broker: item for item in machine.parts[Fences].unswept()}
            sweep.passed = prefix
            applied = machine.parts[HeldSlots]
            sweep.slots, sweep.adopted_move = applied.held, applied.adopted_move
            if not sweep.passing:
                return
        rows: list[tuple[bytes, bytes]] = []
        busy = driver.waiting_items > _QUEUE_ITEMS_MAX
        if room := 0 if busy else min(self._take_room(), sweep.batch):
            rows = machine.reader.engine.scan(sweep.passed, keys.after_prefix(prefix), _PASS_ROWS)
        held = machine.slots.mask
        lost: list[m.SessionKey] = []
        for key, row in rows:
            if row[1] == CONNECTED and (held is None or held[keys.slot_of_key(key[keys.GROUP_PREFIX_BYTES :])]):
                owner = _decode_owner(row)
                fence = sweep.passing.get(owner.broker)
                if fence is not None and owner.broker_epoch < fence.least_epoch:
                    tenant, at = keys.split_text(key, len(prefix))
                    lost.append(m.SessionKey(tenant, keys.split_text(key, at)[0]))
            sweep.passed = key + b"\0"
            if len(lost) == room:
                break
        swept = [*sweep.passing.values()] if room and not lost and len(rows) < _PASS_ROWS else []
        if not lost and not swept:
            self._environment.call_at(self._environment.now() + _PASS_S, partial(self._pass, sweep))
            return
        self._room -= len(lost)
        body = c.SessionLose(lost, swept, sweep.adopted_move)
        self._requests.request(SESSION_LOSE, body, partial(self._passed, sweep, bool(swept)), group=driver.group.name)

    def _passed(self, sweep: _Group, is_over: bool, outcome: bytes | MetadError) -> None:
        if isinstance(outcome, TooLargeError):
            sweep.batch = max(1, sweep.batch // 2)
        if is_over or not isinstance(outcome, bytes):
            sweep.passing = {}  # after an error, the next look begins anew
        else:
            self._environment.call_at(self._environment.now() + _PASS_S, partial(self._pass, sweep))


def _end(driver: GroupDriver, past_ms: int) -> bytes:
    """Behind the rows whose deadline is this or earlier."""
    return keys.table_prefix(driver.group.prefix, DUE) + keys.u64(past_ms + 1)
