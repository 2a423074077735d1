"""Ends the sessions of one group whose deadlines have passed, and the delay of their wills.

The leader reads the index of deadlines (:mod:`metad.state.core.due`), and asks the group for what it has found. The
evaluation decides what of that is really due (:mod:`metad.state.ends.expiry`), so nothing here has to be exact. What is
left undone is still in the index, for this leader or the next.

Each read begins behind the rows that are done with. The engine keeps the deleted rows for a while, and would pass all
of them again: after a hundred thousand sessions that takes 20 ms.

Sessions whose brokers' lives are over are given deadlines first (:class:`LostSweep`). They look connected, and so have
none. As long as the group has a fence that is not swept, the leader goes through all owner rows, some at a time, and
names those sessions. A fence is swept once one pass has found none left; a leader that comes in between begins a pass
of its own.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

import msgspec

from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.cluster import FenceItem
from metad_wire.errors import MetadError, TooLargeError
from metad_wire.methods import SESSION_LOSE, SESSION_SWEEP
from metad_wire.tables.session import SESSION

from ...state.cluster.fences import Fences
from ...state.cluster.tenant_moves import TenantMoves
from ...state.core.due import DUE, due_key, split_due
from ...state.machine import Machine
from ...state.session.owners import CONNECTED
from ...storage import keys
from ..replicas.driver import GroupDriver
from .chore import Chore, Done, Means

_OWNER: Final = SESSION.rows["owner"]
_decode_owner = msgspec.msgpack.Decoder(m.SessionOwner).decode
_PASS_ROWS: Final = 500
"""So many owner rows are looked at in one go, about half a millisecond."""


class LostSweep(Chore):
    """Looks through the sessions of one group."""

    def __init__(self, driver: GroupDriver, batch: int, means: Means) -> None:
        super().__init__(driver, batch, means)
        self._passing: dict[str, FenceItem] = {}
        """The fences for which all owner rows are looked at now."""
        self._rows: deque[tuple[bytes, bytes]] = deque()
        """Owner rows that were read and not looked at yet. What has become of them meanwhile the group knows."""
        self._read = b""
        """Behind the owner row that was read last."""
        self._slots = b""
        self._adopted_move = self._tenant_moves = 0
        """The slots that the group held when the pass began, and the last move that it had adopted. Rows of no other
        slots are looked at, so it is what is evaluated that counts: a seal that is in flight may never be applied. Nor
        are those of tenants that are on their way: so also how often these had changed."""

    def begin(self, room: int, done: Done) -> bool:
        driver = self._driver
        if self._asking:
            return False
        if not self._leads():
            self._passing = {}
            return False
        machine = driver.machine
        seen = (self._slots, self._adopted_move, self._tenant_moves)
        if self._passing and _seen(machine) != seen:
            self._passing = {}
        if not self._passing and not self._begin_pass():
            return False
        if not self._rows:
            end = keys.after_prefix(keys.table_prefix(driver.group.prefix, _OWNER))
            self._rows.extend(machine.reader.engine.scan(self._read, end, _PASS_ROWS))
        is_over = not self._rows
        lost = self._lost(min(room, self._batch.size))
        if not lost and not is_over:
            self._environment.call_soon(partial(done, 0))
            return True
        swept = [*self._passing.values()] if is_over else []
        body = c.SessionLose(lost, swept, self._adopted_move, self._slots, self._tenant_moves)
        self._ask(SESSION_LOSE, body, partial(self._answered, done, len(lost), is_over))
        return True

    def _begin_pass(self) -> bool:
        """Look at all rows anew, if a fence is not swept; whether there is one."""
        driver = self._driver
        self._passing = {item.broker: item for item in driver.machine.parts[Fences].unswept()}
        self._rows.clear()
        self._read = keys.table_prefix(driver.group.prefix, _OWNER)
        self._slots, self._adopted_move, self._tenant_moves = _seen(driver.machine)
        return bool(self._passing)

    def _lost(self, count: int) -> list[m.SessionKey]:
        """The next sessions of lives that are over, so many at most, in the rows that were read."""
        rows, skip = self._rows, len(keys.table_prefix(self._driver.group.prefix, _OWNER))
        lost: list[m.SessionKey] = []
        while rows and len(lost) < count:
            key, row = rows.popleft()
            self._read = key + b"\0"
            if row[1] == CONNECTED and self._serves(key):
                owner = _decode_owner(row)
                fence = self._passing.get(owner.broker)
                if fence is not None and owner.broker_epoch < fence.least_epoch:
                    tenant, at = keys.split_text(key, skip)
                    lost.append(m.SessionKey(tenant, keys.split_text(key, at)[0]))
        return lost

    def _answered(self, done: Done, asked: int, is_over: bool, outcome: bytes | MetadError) -> None:
        if is_over or not isinstance(outcome, bytes):
            self._passing = {}  # after an error, a new pass begins
        done(asked if isinstance(outcome, bytes | TooLargeError) else None)


def _seen(machine: Machine) -> tuple[bytes, int, int]:
    """By what a pass knows that rows have come since it began."""
    return machine.holding.slots, machine.holding.adopted_move, machine.parts[TenantMoves].changes


_FOREIGN_MAX: Final = 1_000
"""Rows of slots that the group does not hold, looked at in one go: they came early, or are yet to be dropped."""


class DueSweep(Chore):
    """Ends what is due in one group."""

    def __init__(self, driver: GroupDriver, batch: int, means: Means) -> None:
        super().__init__(driver, batch, means)
        self._state: tuple[Machine, bytes, int, int] | None = None
        """That in which ``_first`` is the first row that may be there. Rows of other slots than are held by what is
        evaluated were passed, and a seal that is in flight may never be applied."""
        self._first = b""

    @property
    def overdue_ms(self) -> int:
        """For how long the oldest deadline in the index has passed; 0 if none has, or another node leads."""
        now_ms = self._driver.machine.time.newest_ms
        return max((now_ms - item.at_ms for item in self._overdue(1)), default=0)

    def overdue(self, limit: int) -> int:
        """How many deadlines in the index have passed, up to a limit; 0 if another node leads."""
        return len(self._overdue(limit))

    def begin(self, room: int, done: Done) -> bool:
        if not (past_ms := self._ends_until_ms()):
            return False
        safe = self._safe()
        items, behind, is_more = self._find(past_ms, min(self._batch.size, room))
        self._keeps_up(not is_more)
        behind = min(behind, safe)
        if not items:
            self._first = max(self._first, behind)
            if is_more:
                self._environment.call_soon(partial(done, 0))
            return is_more
        self._ask(SESSION_SWEEP, c.SessionSweep(items), partial(self._answered, done, items, self._state, behind))
        return True

    def _overdue(self, limit: int) -> list[c.SessionDue]:
        return self._find(self._driver.machine.time.newest_ms, limit)[0] if self._leads() else []

    def _begin(self) -> bytes:
        """The first row that may be there."""
        machine = self._driver.machine
        moves = machine.parts[TenantMoves]
        state = (machine, machine.holding.slots, machine.holding.adopted_move, moves.changes)
        if state != self._state:  # rows have come, with deadlines of any time
            self._state, self._first = state, due_key(self._driver.group.prefix, 0, 0, b"")
        return self._first

    def _safe(self) -> bytes:
        """No row comes in front of this any more: an entry writes no deadline that is before its own time, and the time
        of a log does not go back."""
        return due_key(self._driver.group.prefix, self._driver.machine.applied_ms, 0, b"")

    def _find(self, past_ms: int, count: int) -> tuple[list[c.SessionDue], bytes, bool]:
        """The next rows whose deadline has passed, of slots that the group holds; the place behind all that were looked
        at; and whether there may be more behind that."""
        driver = self._driver
        engine = driver.machine.reader.engine
        behind, end = self._begin(), _end(driver, past_ms)
        items: list[c.SessionDue] = []
        foreign = 0
        while behind < end:
            wanted = count - len(items)
            rows = engine.scan(behind, end, wanted)
            for key, _ in rows:
                if not self._serves(key):
                    foreign += 1
                    continue
                due = split_due(key)
                tenant, at = keys.split_text(due.session, 0)
                items.append(c.SessionDue(tenant, keys.split_text(due.session, at)[0], due.at_ms, due.kind))
            if len(rows) < wanted:
                return items, end, False
            behind = rows[-1][0] + b"\0"
            if len(items) == count or foreign >= _FOREIGN_MAX:
                return items, behind, True
        return items, behind, False

    def _answered(
        self,
        done: Done,
        items: list[c.SessionDue],
        state: tuple[Machine, bytes, int, int] | None,
        behind: bytes,
        outcome: bytes | MetadError,
    ) -> None:
        if isinstance(outcome, bytes):
            reply = SESSION_SWEEP.decode_reply(outcome)
            self._counts["ended"] += reply.ended
            self._counts["wills"] += reply.wills
            if reply.waiting:  # nothing is over for a while
                done(None)
                return
            self._pass(state, behind)
            done(len(items))
        elif isinstance(outcome, TooLargeError):
            if self._passes_over(items):
                self._pass(state, behind)
            done(len(items))
        else:
            done(None)

    def _pass(self, state: tuple[Machine, bytes, int, int] | None, behind: bytes) -> None:
        """Look behind this place from now on, if it was found in the state that is still there."""
        if state == self._state:
            self._first = max(self._first, behind)


def _end(driver: GroupDriver, past_ms: int) -> bytes:
    """Behind the rows whose deadline is this or earlier."""
    return keys.table_prefix(driver.group.prefix, DUE) + keys.u64(past_ms + 1)
