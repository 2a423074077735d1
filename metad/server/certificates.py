"""Says when the certificates of this node end: long before, at the moment itself, and as long as they are over."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from metad_wire.operator.authority import ends_at
from metad_wire.transport.reload import signature

from .. import log_events
from ..logs import event

LOOK_S: Final = 5.0
"""How often the files and the clock are looked at: soon after a file was replaced, and soon after an end."""
SAY_S: Final = 3_600.0
"""How often the same is said again."""
_SOON_DAYS: Final = 30
_DAY_S: Final = 86_400


class Certificates:
    """The files of one node. Those of a fleet often end together, and then no peer is admitted any more."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = [path for path in paths if path]
        self._seen: list[tuple[int, int, int] | None] = []
        self._ends: dict[str, datetime] = {}
        self._over: set[str] = set()
        self._said_s = float("-inf")

    def look(self, now_s: float) -> None:
        """Look at this time of the calendar. What is new is said at once."""
        seen = signature(self._paths)
        changed = seen != self._seen
        if changed:
            self._seen = seen
            found = {path: ends_at(path) for path in self._paths}
            self._ends = {path: ends for path, ends in found.items() if ends is not None}
        over = {path for path, ends in self._ends.items() if ends.timestamp() <= now_s}
        if not changed and over == self._over and 0 <= now_s - self._said_s < SAY_S:
            return
        self._over, self._said_s = over, now_s
        for path, ends in self._ends.items():
            days = (ends.timestamp() - now_s) / _DAY_S
            if path in over:
                event(log_events.CERTIFICATES_ENDED, path=path, ended=ends.isoformat())
            elif days < _SOON_DAYS:
                event(log_events.CERTIFICATES_END_SOON, path=path, days=round(days, 1), ends=ends.isoformat())
