"""Checkpoints: the state is flushed now and then, and the logs are cut behind it."""

from __future__ import annotations

import time
from collections.abc import Callable

from .. import log_events
from ..config import Config
from ..logs import event
from ..storage.engine import Engine
from .agenda import Agenda
from .environment import Environment
from .groups import Groups
from .health import Health
from .node_snapshots import NodeSnapshots
from .watches import Watches


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
        self._running = False

    def log_grown(self, size: int) -> None:
        """Note that so many bytes more are in the log, or have been applied from it."""
        self._log_bytes += size
        self._watches.log_grown(size)
        if self._log_bytes >= self._log_retained_bytes and not self._running:
            self.make()

    def make(self, then: Callable[[], None] | None = None) -> None:
        """Flush the state, then drop the entries that are in it from the logs."""
        self._running = True
        applied = {driver: driver.machine.applied for driver in self._groups.drivers.values()}
        grown, self._log_bytes = self._log_bytes, 0
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
