"""Checkpoints: the state is flushed now and then, and the logs are cut behind it.

Where few writes follow many, the state is flushed as well, and the logs stay: reads of several records look into each
memtable, and dozens of them take four times as long as the one file that they become.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from .. import log_events
from ..config import Config
from ..logs import event
from ..storage.engine import Engine
from .agenda import Agenda
from .environment import Environment, Timer
from .groups import Groups
from .health import Health
from .node_snapshots import NodeSnapshots
from .watches import Watches

_QUIET_S: Final = 5.0
_QUIET_BYTES: Final = 256 * 1024
"""The node is quiet while the logs grow by less than this in that time."""
_WORTH_BYTES: Final = 4 * 1024 * 1024
"""Of log, that are worth a file of the state."""


class Checkpoints:
    """Makes a checkpoint whenever the logs have grown by ``storage.log_retained_bytes``."""

    def __init__(
        self,
        config: Config,
        state: Engine,
        groups: Groups,
        snapshots: NodeSnapshots,
        watches: Watches,
        agenda: Agenda,
        environment: Environment,
        health: Health,
    ) -> None:
        self._state = state
        self._groups = groups
        self._snapshots = snapshots
        self._watches = watches
        self._agenda = agenda
        self._environment = environment
        self._health = health
        self._log_retained_bytes = config.storage.log_retained_bytes
        self._log_bytes = 0  # appended since the last checkpoint
        self._unflushed_bytes = 0  # the same, since the state was flushed last
        self._running = False
        self._timer: Timer | None = None

    def stop(self) -> None:
        """Wait no longer for the node to be quiet."""
        if self._timer is not None:
            self._timer.cancel()

    def log_grown(self, size: int) -> None:
        """Note that so many bytes more are in the log, or have been applied from it."""
        self._log_bytes += size
        self._unflushed_bytes += size
        self._watches.log_grown(size)
        if self._log_bytes >= self._log_retained_bytes and not self._running:
            self.make()
        elif self._unflushed_bytes >= _WORTH_BYTES and self._timer is None:
            self._wait_for_quiet()

    def _wait_for_quiet(self) -> None:
        look = partial(self._look, self._unflushed_bytes)
        self._timer = self._environment.call_at(self._environment.now() + _QUIET_S, look)

    def _look(self, before_bytes: int) -> None:
        """Flush the state if the node is quiet now."""
        self._timer = None
        if self._health.failure is not None or self._unflushed_bytes < _WORTH_BYTES:
            return
        if self._running or self._unflushed_bytes - before_bytes >= _QUIET_BYTES:
            self._wait_for_quiet()
            return
        self._running, self._unflushed_bytes = True, 0

        def done(error: BaseException | None) -> None:
            self._running = False
            if error is not None:
                self._health.stop_for(error)

        self._environment.beside(self._state.sync, done)

    def make(self, then: Callable[[], None] | None = None) -> None:
        """Flush the state, then drop the entries that are in it from the logs."""
        self._running = True
        applied = {driver: driver.machine.applied for driver in self._groups.drivers.values()}
        grown, self._log_bytes, self._unflushed_bytes = self._log_bytes, 0, 0
        started_s = time.monotonic()

        def done(error: BaseException | None) -> None:
            self._running = False
            if error is not None:
                self._health.stop_for(error)
            elif self._health.failure is None:
                for driver, through in applied.items():
                    held = self._snapshots.streams.held_index(driver.group)
                    driver.group.compact(
                        self._watches.held_index(driver, through if held is None else min(through, held))
                    )
                self._agenda.schedule()
                event(log_events.CHECKPOINT, log_bytes=grown, seconds=round(time.monotonic() - started_s, 3))
            if then is not None:
                then()

        self._environment.beside(self._state.sync, done)
