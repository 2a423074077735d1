"""How old a replica's state may be, for those who read from followers: since when it may lack what was acknowledged,
and for how long its leader's word has been overdue.

A follower is level with its leader's word once it has applied the commit index that the leader named, if the leader had
committed an entry of its own term by then: before that it does not know itself what is committed. The time counts from
when the word arrived; how long it was under way is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base import LEADER
from ..state import ReplicaState
from .activity import Activity
from .reads import Reads


@dataclass(eq=False, slots=True)
class Freshness:
    """Hears of every word of the leader. ``_heard_s``: of the last one, or when the replica last led."""

    _state: ReplicaState
    _activity: Activity
    _reads: Reads
    _heard_s: float
    _level_s: float = float("-inf")
    """Everything that was acknowledged until then is in the state."""
    _word: tuple[float, int, int] | None = None
    """A word that the replica is not level with yet: (when it came, term, commit index). Further words wait until it
    is, or a replica that is always a little behind would never be level."""

    def heard(self, now: float, commit: int) -> None:
        """The leader of the current term says that everything up to ``commit`` is committed."""
        self._heard_s = now
        if self._word is not None:
            self._look()
        if self._word is None:
            self._word = now, self._state.term, commit

    def behind_s(self, now: float) -> float:
        """For how long the replica may have lacked something; infinite if it was never level in this life."""
        if self._state.role == LEADER:
            self._heard_s = now
            self._level_s = max(self._level_s, min(now, self._reads.led_until_s()))
        else:
            self._look()
        return now - self._level_s

    def silent_s(self, now: float) -> float:
        """For how long a word of the leader has been overdue; 0 for the leader itself."""
        if self._state.role == LEADER:
            self._heard_s = now
            return 0.0
        rest_s = self._state.timing.look_after_s if self._activity.asleep else 0.0
        return max(0.0, now - self._heard_s - rest_s)

    def _look(self) -> None:
        word, state = self._word, self._state
        if word is None:
            return
        when_s, term, commit = word
        if term != state.term:
            self._word = None  # of a leader that is no more
        elif state.applied >= commit:
            self._word = None
            if state.log.term_at(commit) == term:
                self._level_s = max(self._level_s, when_s)
