"""The time of a group's log, by which deadlines are judged.

The time of an entry never goes back. A leader whose calendar is ahead of the log does not jump either: a calendar
that was set wrong and an outage look the same, and a jump would end all that has a deadline. Nor does a leader stand
still whose calendar is behind, because it was set back or another's was ahead: nothing that has a deadline would end.
So the log's time follows this node's monotonic clock from the moment at which the node learned of the newest entry,
and gains or loses only a little on it until it agrees with the calendar. A node that has just started learns of the
newest entry when it starts, because nobody tells it how old that entry is.

During an *amnesty* nothing has passed, whatever the log's time says: those who keep things alive may not have reached
this leader. An amnesty begins when the replica begins to lead, when it adopts slots, when its calendar is set, and
whenever the node could not keep up.
"""

from __future__ import annotations

from typing import Final

CATCH_UP: Final = 0.01
"""How much faster or slower than this node's monotonic clock the log's time may go. It must be above the drift of a
good clock. While a log catches up, what lasts ten minutes is over six seconds early: more would be noticed."""
_STEP_MS: Final = 1_000
"""A calendar that moves this much more or less than the monotonic clock has been set."""


class LogTime:
    """The log's time of one replica. ``newest_ms`` is the time of the newest entry that is known; 0: there is none.
    ``now_s`` is everywhere the node's monotonic clock."""

    __slots__ = (
        "_amnesty_s",
        "_amnesty_until_s",
        "_anchor_ms",
        "_anchor_s",
        "_applied",
        "_calendar_ms",
        "_leads",
        "_looked_s",
        "newest_ms",
    )

    def __init__(self, newest_ms: int, now_s: float, amnesty_s: float) -> None:
        self._amnesty_s = amnesty_s
        self._amnesty_until_s = now_s
        self._leads = False
        self._calendar_ms = 0.0  # the calendar less the monotonic clock, when they were compared last ...
        self._looked_s = now_s  # ... at this moment
        self.newest_ms = newest_ms
        self._anchor_ms = float(newest_ms)  # the log's time was this, with its fraction ...
        self._anchor_s = now_s  # ... at this moment
        self._applied = newest_ms, now_s  # the newest time of an applied entry, and when it was learned

    def learn(self, time_ms: int, now_s: float) -> None:
        """An entry of this time is applied."""
        if time_ms > self._applied[0]:
            self._applied = time_ms, now_s
        self.reach(time_ms, now_s)

    def reach(self, time_ms: int, now_s: float) -> None:
        """There is an entry of this time."""
        if time_ms > self.newest_ms:
            self.newest_ms, self._anchor_ms, self._anchor_s = time_ms, float(time_ms), now_s

    def next(self, calendar_ms: int, now_s: float) -> int:
        """The time of the entry that this leader makes now."""
        offset_ms = calendar_ms - now_s * 1000
        if not self._leads:
            self._leads = True
            self.amnesty(now_s)
        elif abs(offset_ms - self._calendar_ms) > _STEP_MS + CATCH_UP * 1000 * (now_s - self._looked_s):
            self.amnesty(now_s)
        self._calendar_ms, self._looked_s = offset_ms, now_s
        self._anchor_ms, self._anchor_s = self._time_ms(calendar_ms, now_s), now_s
        self.newest_ms = max(self.newest_ms, int(self._anchor_ms))
        return self.newest_ms

    def now_ms(self, calendar_ms: int, now_s: float) -> int:
        """The time that an entry would have now, for those who only read."""
        return max(self.newest_ms, int(self._time_ms(calendar_ms, now_s)))

    def _time_ms(self, calendar_ms: int, now_s: float) -> float:
        if not self.newest_ms:
            return float(calendar_ms)
        passed_ms = 1000 * (now_s - self._anchor_s)
        least_ms, most_ms = ((1 + rate) * passed_ms for rate in (-CATCH_UP, CATCH_UP))
        return max(self._anchor_ms + least_ms, min(float(calendar_ms), self._anchor_ms + most_ms))

    def past_ms(self, now_s: float) -> int:
        """What had its deadline at this time or before has passed; 0 during an amnesty. To be asked behind
        :meth:`next`."""
        return 0 if now_s < self._amnesty_until_s else self.newest_ms

    def amnesty(self, now_s: float) -> None:
        """Nothing has passed for a while."""
        self._amnesty_until_s = now_s + self._amnesty_s

    def forget(self) -> None:
        """This replica leads no longer. What it made and has not applied may never come to be: another leader goes on
        with the log, and its time, from before."""
        self._leads = False
        self.newest_ms, self._anchor_s = self._applied
        self._anchor_ms = float(self.newest_ms)
