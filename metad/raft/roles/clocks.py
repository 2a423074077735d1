"""Detection of time that passed unnoticed.

The monotonic clock counts the time during which a machine was suspended, but not the time during which whatever the
machine runs on has stopped it: a virtual machine that is moved or resumed may not know. The calendar is set right soon
after. So where the two clocks have come apart, nobody knows how old a promise is.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base import BoundHost


@dataclass(eq=False, slots=True)
class Clocks:
    """The monotonic clock and the calendar, compared at each look with the look before. A calendar that somebody sets
    looks the same; that costs a round of heartbeats."""

    _host: BoundHost
    _tolerance_s: float
    """Leases allow for this much and for drift."""
    _apart_s: float | None = None

    def have_come_apart(self) -> bool:
        """Whether one of the clocks has stood still, or jumped, since the last look."""
        now = self._host.now()
        apart_s = self._host.calendar() - now
        before_s, self._apart_s = self._apart_s, apart_s
        return before_s is not None and abs(apart_s - before_s) > self._tolerance_s
