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
from ...config import ExpiryConfig
from ...logs import event
from ...state.session.wills import DUE, due_ms_of
from ...storage import keys
from ..environment import Environment, Timer
from ..health import Health
from ..replicas.driver import GroupDriver
from ..replicas.groups import Groups
from ..requests.requests import Requests

PASS_S: Final = 60.0
_WAITING_S: Final = 60.0
"""Wills that have waited for so long are worth a warning: brokers that live claim within a second."""
_GO_ROWS: Final = 200
_GO_BYTES: Final = 1024 * 1024
_GO_S: Final = 0.01
"""So much is looked at in one go, and then the others have their turn."""
_BATCH: Final = 100
"""Wills in one order to drop them."""


class _Pass:
    """One look at all wills of a group."""

    __slots__ = ("at", "count", "driver", "oldest_ms")

    def __init__(self, driver: GroupDriver, at: bytes) -> None:
        self.driver = driver
        self.at = at
        """The key to go on with."""
        self.count = 0
        self.oldest_ms = 0
        """For how long the oldest will waits."""


class UnclaimedWills:
    """Those of a node."""

    def __init__(
        self, config: ExpiryConfig, groups: Groups, requests: Requests, environment: Environment, health: Health
    ) -> None:
        self._keep_ms = 1000 * config.will_keep_s
        self._groups = groups
        self._requests = requests
        self._environment = environment
        self._health = health
        self._timer: Timer | None = None
        self._passes: dict[str, _Pass] = {}
        self.dropped = 0
        """Since the start."""

    def start(self) -> None:
        """Begin a pass of each group now, and so on."""
        if self._health.failure is not None:
            return
        self._timer = self._environment.call_at(self._environment.now() + PASS_S, self.start)
        leading = {driver.group.name: driver for driver in self._groups.drivers.values() if self._leads(driver)}
        for group, driver in leading.items():
            if group not in self._passes:
                self._passes[group] = _Pass(driver, keys.table_prefix(driver.group.prefix, DUE))
                self._go_on(group)

    def stop(self) -> None:
        """Look no more."""
        self._passes.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _leads(self, driver: GroupDriver) -> bool:
        group = driver.group
        return group.name.startswith("data") and group.accepting and not driver.installing

    def _go_on(self, group: str) -> None:
        """Look at the next wills of a pass."""
        one = self._passes.get(group)
        if one is None or self._health.failure is not None:
            return
        if not self._leads(one.driver):
            del self._passes[group]
            return
        try:
            self._look_at(group, one)
        except BaseException:
            self._passes.pop(group, None)  # the next pass tries again
            raise

    def _look_at(self, group: str, one: _Pass) -> None:
        driver = one.driver
        machine, now_s = driver.machine, self._environment.now()
        machine.time.next(self._environment.wall_ms(), now_s)
        past_ms, held = machine.time.past_ms(now_s), machine.slots.mask
        prefix = keys.table_prefix(driver.group.prefix, DUE)
        rows = machine.reader.engine.scan(one.at, keys.after_prefix(prefix), _GO_ROWS, _GO_BYTES)
        over: list[WillKey] = []
        for key, row in rows:
            one.at = key + b"\0"
            if held is None or held[keys.slot_of_key(key[keys.GROUP_PREFIX_BYTES :])]:
                due_ms = due_ms_of(row)
                one.count += 1
                one.oldest_ms = max(one.oldest_ms, machine.time.newest_ms - due_ms)
                if due_ms + self._keep_ms <= past_ms:
                    over.append(WillKey(*WILL.fields_of(key[len(prefix) :], 3)))
                    if len(over) == _BATCH:
                        break
        if over:
            body = WillExpire(over, self._keep_ms)
            self._requests.request(WILL_EXPIRE, body, partial(self._answered, group), group=group)
        elif rows:
            self._environment.call_at(now_s + _GO_S, partial(self._go_on, group))
        else:
            self._end(group, one)

    def _end(self, group: str, one: _Pass) -> None:
        del self._passes[group]
        if one.oldest_ms > 1000 * _WAITING_S:
            event(log_events.WILLS_WAIT, group=group, count=one.count, oldest_s=one.oldest_ms // 1000)

    def _answered(self, group: str, outcome: bytes | MetadError) -> None:
        if isinstance(outcome, MetadError):
            self._passes.pop(group, None)  # the next pass finds out what has become of the group
            return
        dropped = WILL_EXPIRE.decode_reply(outcome).dropped
        if dropped:
            self.dropped += dropped
            event(log_events.WILLS_DROPPED, group=group, count=dropped, dropped=self.dropped)
            if one := self._passes.get(group):
                one.count -= dropped
        self._go_on(group)
