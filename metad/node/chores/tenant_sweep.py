"""Carries out the orders to end tenants in one group (:mod:`metad.state.cluster.tenant_ends`), the first one first.

The leader reads what the tenant has behind the place to which the order has come, and names it in a step, with the
place that it has looked at last. What the step does is decided when it is evaluated. It writes the place, so the next
step begins there, by this leader or the next.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from metad_wire import cluster as c
from metad_wire.errors import MetadError, TooLargeError
from metad_wire.methods import SESSION_END_STEP
from metad_wire.table import Table
from metad_wire.tables.retained import RETAINED
from metad_wire.tables.session import SESSION
from metad_wire.tables.will import WILL

from ...state.cluster.tenant_ends import Pending, TenantEnds
from ...state.core.slot_assignment import is_held
from ...state.machine import Machine
from ...storage import keys
from ..replicas.driver import GroupDriver
from .chore import Chore, Done, Means

_TABLES: Final[tuple[tuple[Table[Any], str], ...]] = ((SESSION, "owner"), (WILL, "due"), (RETAINED, "message"))
"""What is looked at, by phase: tables, and the names of their rows."""
_PASS_ROWS: Final = 500
_PASS_BYTES: Final = 1024 * 1024
"""So much is looked at in one go, about half a millisecond."""


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
        ends = machine.parts[TenantEnds].pending()
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
        tenant = prefix + keys.text(end.tenant)
        begin = prefix + self._at + b"\0" if self._at else tenant
        rows = machine.reader.engine.scan(begin, keys.after_prefix(tenant), _PASS_ROWS, _PASS_BYTES)
        items: list[c.SessionEndItem] = []
        at, skip, size = self._at, len(prefix), 0
        for key, value in rows:
            if len(items) == count:
                return items, at, False
            at = key[skip:]
            size += len(key) + len(value)
            if is_held(pending.slots, key) and self._holds(key):
                items.append(c.SessionEndItem(*table.fields_of(at, len(table.key))))
        return items, at, len(rows) < _PASS_ROWS and size < _PASS_BYTES

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
