"""Ends what is over, in the groups that this node leads: sessions whose clients have been away for too long, and the
delay of their wills (:mod:`.due_sweep`); the connections of brokers whose lives are over (:mod:`.lost_sweep`); and
tenants that somebody has ordered to end (:mod:`.tenant_sweep`)."""

from __future__ import annotations

from ...config import ExpiryConfig
from ..environment import Environment, Timer
from ..health import Health
from ..replicas.driver import GroupDriver
from ..replicas.groups import Groups
from ..requests.requests import Requests
from .due_sweep import DueSweep
from .lost_sweep import LostSweep
from .sweep_turns import LOOK_S, SweepTurns
from .tenant_sweep import TenantSweep


class Sweeps:
    """Those of a node."""

    def __init__(
        self, config: ExpiryConfig, groups: Groups, requests: Requests, environment: Environment, health: Health
    ) -> None:
        self._batch = config.batch_sessions
        self._groups = groups
        self._requests = requests
        self._environment = environment
        self._health = health
        self._turns = SweepTurns(config.sessions_per_s, config.batch_sessions, environment)
        self._sweeps: dict[GroupDriver, tuple[DueSweep, LostSweep, TenantSweep]] = {}
        self._gone = (0, 0)  # sessions and wills that were ended in groups which are no longer here
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to look."""
        if self._health.failure is not None:
            self._turns.stop()
            return
        self._timer = self._environment.call_at(self._environment.now() + LOOK_S, self.start)
        drivers = [driver for group, driver in self._groups.drivers.items() if group.kind == "data"]
        if [*self._sweeps] != drivers:
            self._adopt(drivers)
        self._turns.look()

    def stop(self) -> None:
        """Look no more."""
        self._turns.stop()
        if self._timer is not None:
            self._timer.cancel()

    @property
    def ended(self) -> int:
        """Sessions that were ended since the start."""
        return self._gone[0] + sum(due.ended + tenants.ended for due, _, tenants in self._sweeps.values())

    @property
    def wills(self) -> int:
        """Wills that have become due since the start."""
        return self._gone[1] + sum(due.wills for due, _, _ in self._sweeps.values())

    @property
    def overdue_ms(self) -> int:
        """For how long a deadline has passed, by the log's time, that is still in the index of a group that this node
        leads; 0 if there is none."""
        return max((due.overdue_ms for due, _, _ in self._sweeps.values()), default=0)

    def overdue(self, driver: GroupDriver, limit: int) -> int:
        """How many such deadlines are in the index of a group, up to a limit."""
        sweeps = self._sweeps.get(driver)
        return 0 if sweeps is None else sweeps[0].overdue(limit)

    def _adopt(self, drivers: list[GroupDriver]) -> None:
        ended, wills = self.ended, self.wills
        self._sweeps = {driver: self._sweeps.get(driver) or self._of(driver) for driver in drivers}
        self._gone = (0, 0)
        self._gone = (ended - self.ended, wills - self.wills)
        self._turns.serve(work for works in self._sweeps.values() for work in works)

    def _of(self, driver: GroupDriver) -> tuple[DueSweep, LostSweep, TenantSweep]:
        needs = driver, self._batch, self._requests, self._environment
        return DueSweep(*needs), LostSweep(*needs), TenantSweep(*needs)
