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
from ..environment import Environment
from ..replicas.driver import GroupDriver
from ..requests.requests import Requests
from .sweep_turns import Done

_OWNER: Final = SESSION.rows["owner"]
_decode_owner = msgspec.msgpack.Decoder(m.SessionOwner).decode
_PASS_ROWS: Final = 500
"""So many owner rows are looked at in one go, about half a millisecond."""


class LostSweep:
    """Of one group."""

    def __init__(self, driver: GroupDriver, batch: int, requests: Requests, environment: Environment) -> None:
        self._driver = driver
        self._batch_max = self._batch = batch
        self._requests = requests
        self._environment = environment
        self._asking = False
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
        """See :class:`.sweep_turns.SweepWork`."""
        driver = self._driver
        if self._asking:
            return False
        if not driver.group.accepting or driver.installing:
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
        lost = self._lost(min(room, self._batch))
        if not lost and not is_over:
            self._environment.call_soon(partial(done, 0))
            return True
        self._asking = True
        swept = [*self._passing.values()] if is_over else []
        body = c.SessionLose(lost, swept, self._adopted_move, self._slots)
        answered = partial(self._answered, done, len(lost), is_over)
        self._requests.request(SESSION_LOSE, body, answered, group=driver.group.name)
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
        held = self._driver.machine.slots.mask
        rows, skip = self._rows, len(keys.table_prefix(self._driver.group.prefix, _OWNER))
        lost: list[m.SessionKey] = []
        while rows and len(lost) < count:
            key, row = rows.popleft()
            self._read = key + b"\0"
            if row[1] == CONNECTED and (held is None or held[keys.slot_of_key(key[keys.GROUP_PREFIX_BYTES :])]):
                owner = _decode_owner(row)
                fence = self._passing.get(owner.broker)
                if fence is not None and owner.broker_epoch < fence.least_epoch:
                    tenant, at = keys.split_text(key, skip)
                    lost.append(m.SessionKey(tenant, keys.split_text(key, at)[0]))
        return lost

    def _answered(self, done: Done, asked: int, is_over: bool, outcome: bytes | MetadError) -> None:
        self._asking = False
        if is_over or not isinstance(outcome, bytes):
            self._passing = {}  # after an error, a new pass begins
        if isinstance(outcome, TooLargeError):
            self._batch = max(1, self._batch // 2)
        elif isinstance(outcome, bytes):
            self._batch = min(self._batch_max, 2 * self._batch)
        done(asked if isinstance(outcome, bytes | TooLargeError) else None)
