"""Bounds the wills that nobody publishes, in the groups that this node leads.

Wills that are due wait for brokers that claim them. If none does for days, they would fill the disk. So once a minute
the node goes through those of each group, some hundred at a time. It warns while wills wait for longer than a broker
ever needs, and it has those dropped that have waited for ``expiry.will_keep_s``, and says so in an error. The
evaluation decides which they are: nothing here has to be exact, and what is left undone is found by the next pass, of
this leader or another.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from metad_wire.errors import MetadError
from metad_wire.methods import WILL_EXPIRE
from metad_wire.tables.will import WILL, WillExpire, WillKey

from ... import log_events
from ...logs import event
from ...state.session.wills import DUE, due_ms_of
from ...storage import keys
from ..replicas.driver import GroupDriver
from .chore import Chore, Done, Means

PASS_S: Final = 60.0
_WAITING_S: Final = 60.0
"""Wills that have waited for so long are worth a warning: brokers that live claim within a second."""
_GO_ROWS: Final = 200
_GO_BYTES: Final = 1024 * 1024
"""So much is looked at in one go, and then the others have their turn."""
_BATCH: Final = 100
"""Wills in one order to drop them."""


class UnclaimedWills(Chore):
    """Bounds those of one group."""

    def __init__(self, driver: GroupDriver, keep_ms: int, means: Means) -> None:
        super().__init__(driver, _BATCH, means)
        self._keep_ms = keep_ms
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
            self._ask(WILL_EXPIRE, WillExpire(over, self._keep_ms), partial(self._answered, done))
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
            if self._holds(key):
                due_ms = due_ms_of(row)
                self._count += 1
                self._oldest_ms = max(self._oldest_ms, now_ms - due_ms)
                if due_ms + self._keep_ms <= past_ms:
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
