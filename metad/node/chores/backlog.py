"""What is late or waits in the groups that a node leads: told in its status, so that an operator sees it grow."""

from __future__ import annotations

from metad_wire import messages as m

from ...state.cluster.fences import Fences
from ...state.cluster.tenant_ends import TenantEnds
from ...state.session.wills import waiting
from ..replicas.groups import Groups
from .sweeps import Sweeps


def backlog(groups: Groups, sweeps: Sweeps) -> m.Backlog:
    """Look, at a bounded number of rows. Deadlines pass, and wills wait, by the time of each group's log."""
    deadlines = fences = wills = unclaimed = unclaimed_ms = tenants = 0
    more = False
    for group, driver in groups.drivers.items():
        if group.kind != "data" or not driver.group.accepting or driver.installing:
            continue
        machine = driver.machine
        now_ms = machine.reader.now_ms()
        late = sweeps.overdue(driver, m.BACKLOG_MAX + 1)
        found = waiting(machine.reader, now_ms, m.BACKLOG_MAX)
        deadlines += min(late, m.BACKLOG_MAX)
        fences += len(machine.parts[Fences].unswept())
        tenants += len(machine.parts[TenantEnds].pending())
        wills += found.wills
        unclaimed += found.unclaimed
        unclaimed_ms = max(unclaimed_ms, now_ms - found.since_ms if found.since_ms else 0)
        more = more or found.more or late > m.BACKLOG_MAX
    return m.Backlog(deadlines, fences, wills, unclaimed, unclaimed_ms, more, tenants)
