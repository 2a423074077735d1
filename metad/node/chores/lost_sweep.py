"""Gives deadlines to the sessions of one group whose brokers' lives are over.

Such sessions look connected, and so have none. As long as the group has a fence that is not swept, the leader goes
through all owner rows, some at a time, and names those sessions. A fence is swept once one pass has found none left; a
leader that comes in between begins a pass of its own.
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
from metad_wire.methods import SESSION_LOSE
from metad_wire.tables.session import SESSION

from ...state.cluster.fences import Fences
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
        self._adopted_move = 0
        """The slots that the group held when the pass began, and the last move that it had adopted. Rows of no other
        slots are looked at, so it is what is evaluated that counts: a seal that is in flight may never be applied."""

    def begin(self, room: int, done: Done) -> bool:
        driver = self._driver
        if self._asking:
            return False
        if not self._leads():
            self._passing = {}
            return False
        machine = driver.machine
        if self._passing and (machine.holding.slots, machine.holding.adopted_move) != (self._slots, self._adopted_move):
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
        body = c.SessionLose(lost, swept, self._adopted_move, self._slots)
        self._ask(SESSION_LOSE, body, partial(self._answered, done, len(lost), is_over))
        return True

    def _begin_pass(self) -> bool:
        """Look at all rows anew, if a fence is not swept; whether there is one."""
        driver = self._driver
        self._passing = {item.broker: item for item in driver.machine.parts[Fences].unswept()}
        self._rows.clear()
        self._read = keys.table_prefix(driver.group.prefix, _OWNER)
        holding = driver.machine.holding
        self._slots, self._adopted_move = holding.slots, holding.adopted_move
        return bool(self._passing)

    def _lost(self, count: int) -> list[m.SessionKey]:
        """The next sessions of lives that are over, so many at most, in the rows that were read."""
        rows, skip = self._rows, len(keys.table_prefix(self._driver.group.prefix, _OWNER))
        lost: list[m.SessionKey] = []
        while rows and len(lost) < count:
            key, row = rows.popleft()
            self._read = key + b"\0"
            if row[1] == CONNECTED and self._holds(key):
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
