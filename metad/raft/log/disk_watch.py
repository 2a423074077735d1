"""Detection of a disk that hangs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..base import Timing
from .journal import RaftLog

DISK_ELECTIONS: Final = 4
"""A disk that makes nothing durable for this many election timeouts hangs. Disks take a second now and then, and a
change of the leader would cost more than that."""


@dataclass(eq=False, slots=True)
class DiskWatch:
    """Measures for how long the disk has made nothing durable although something waits for it."""

    _log: RaftLog
    _timing: Timing
    _looked_s: float
    _durable_index: int = 0  # at the last look
    _waited_s: float = 0.0

    def look(self, now: float) -> None:
        """Look at the log again. The time since the last look counts as two heartbeats at most: a process that was
        suspended does not know what its disk did meanwhile."""
        passed_s, self._looked_s = min(now - self._looked_s, 2 * self._timing.heartbeat_s), now
        log = self._log
        durable = log.durable_index
        if durable != self._durable_index or (durable == log.last_index and log.hard_state_durable):
            self._durable_index = durable
            self._waited_s = 0.0
        else:
            self._waited_s += passed_s

    @property
    def hangs(self) -> bool:
        """Whether the disk has made nothing durable for long, although something waits for it."""
        return self._waited_s > DISK_ELECTIONS * self._timing.election_s
