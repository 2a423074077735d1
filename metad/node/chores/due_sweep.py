"""Ends the sessions of one group whose deadlines have passed, and the delay of their wills.

The leader reads the index of deadlines (:mod:`metad.state.core.due`), and asks the group for what it has found. The
evaluation decides what of that is really due (:mod:`metad.state.ends.expiry`), so nothing here has to be exact. What is
left undone is still in the index, for this leader or the next.

Each read begins behind the rows that are done with. The engine keeps the deleted rows for a while, and would pass all
of them again: after a hundred thousand sessions that takes 20 ms.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from metad_wire import cluster as c
from metad_wire.errors import MetadError, TooLargeError
from metad_wire.methods import SESSION_SWEEP

from ...state.core.due import DUE, due_key, split_due
from ...state.machine import Machine
from ...storage import keys
from ..replicas.driver import GroupDriver
from .chore import Chore, Done, Means

_FOREIGN_MAX: Final = 1_000
"""Rows of slots that the group does not hold, looked at in one go: they came early, or are yet to be dropped."""


class DueSweep(Chore):
    """Ends what is due in one group."""

    def __init__(self, driver: GroupDriver, batch: int, means: Means) -> None:
        super().__init__(driver, batch, means)
        self._state: tuple[Machine, bytes, int] | None = None
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
        if self._asking or not self._leads() or not (past_ms := self._past_ms()):
            return False
        safe = self._safe()
        items, behind, is_more = self._find(past_ms, min(self._batch.size, room))
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
        state = (machine, machine.holding.slots, machine.holding.adopted_move)
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
                if not self._holds(key):
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
        state: tuple[Machine, bytes, int] | None,
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

    def _pass(self, state: tuple[Machine, bytes, int] | None, behind: bytes) -> None:
        """Look behind this place from now on, if it was found in the state that is still there."""
        if state == self._state:
            self._first = max(self._first, behind)


def _end(driver: GroupDriver, past_ms: int) -> bytes:
    """Behind the rows whose deadline is this or earlier."""
    return keys.table_prefix(driver.group.prefix, DUE) + keys.u64(past_ms + 1)
