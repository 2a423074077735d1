"""Linearizable reads without writing: by lease, or by ReadIndex (dissertation §6.4).

A leader whose state machine has applied its own no-op holds everything that was ever acknowledged. It must also know
that it still leads *now*:

- **Lease.** A quorum echoed a round, and each said with the echo for how long it votes for nobody else. That counts
  from when it heard the round, hence from when the round *began*; shortened by how far clocks may drift apart, it is
  how long no other leader can be. The clock counts the time during which a machine was suspended. Where it and the
  calendar have come apart (:mod:`.clocks`), there is no lease until a new round is echoed. Handing leadership over ends
  the lease for the rest of the term: the successor's campaign does not respect it, and the order to campaign may be
  delayed.
- **ReadIndex.** Begin a round after the read arrived; once a quorum has echoed it, nobody else led when the read came.

Those who read from followers are told how old a replica's state may be: since when it may lack what was acknowledged,
and for how long its leader's word has been overdue.

A follower is level with its leader's word once it has applied the commit index that the leader named, if the leader had
committed an entry of its own term by then: before that it does not know itself what is committed. The time counts from
when the word arrived; how long it was under way is not known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ..base import LEADER, BoundHost
from ..state import ReplicaState
from .elections import Activity
from .leadership import Leadership


@dataclass(eq=False, slots=True)
class Reads:
    """Decides when a leader may answer from its state."""

    _state: ReplicaState
    _host: BoundHost
    _leadership: Leadership
    _activity: Activity
    _waiting: deque[tuple[int, Callable[[bool], None]]] = field(default_factory=deque)  # (round to be echoed, done)
    _lease_given_up: bool = False

    @property
    def waiting(self) -> bool:
        """Whether any read waits for its round."""
        return bool(self._waiting)

    @property
    def ready(self) -> bool:
        """Whether this is a leader that has applied everything committed before it: it may evaluate commands, and
        answer reads that it can prove."""
        return self._state.role == LEADER and self._state.applied >= self._leadership.first_index

    def may_read(self) -> bool:
        """Whether the state may be read now: a lease is valid."""
        # A leader that is being removed has no lease: the remaining voters may elect without having heard of it.
        return (
            self.ready
            and self._state.is_voter
            and not self._lease_given_up
            and self._host.now() < self._leadership.lease_until_s()
        )

    def led_until_s(self) -> float:
        """The time until which nobody else can have led since; minus infinity if that is not known."""
        if not self.ready or not self._state.is_voter or self._lease_given_up:
            return float("-inf")
        return self._leadership.lease_until_s()

    def read(self, done: Callable[[bool], None]) -> None:
        """Call ``done(True)`` once a client that asks now may read the state, ``done(False)`` if it may not."""
        if self._state.role != LEADER:
            done(False)
            return
        if self.may_read() and not self._waiting:
            done(True)
            return
        # A round begun before this read may already be under way: it proves nothing about now. All reads of a turn
        # share the next one.
        self._waiting.append((self._leadership.round + 1, done))
        self._leadership.hasten(self._host.now())
        self._activity.worked()

    def release(self) -> None:
        """Answer the reads whose round a quorum has echoed."""
        if not self._waiting or not self.ready:
            return
        echoed = self._leadership.quorum_echoed()
        while self._waiting:
            number, done = self._waiting[0]
            if number > echoed:
                return
            self._waiting.popleft()
            done(True)

    def applied_to(self, index: int) -> None:
        """The state machine has applied everything up to ``index``."""
        was_ready = self.ready
        self._state.set_applied(index)
        self.release()
        if self.ready and not was_ready:
            self._host.role_changed()

    def give_up_lease(self) -> None:
        """Allow no more reads by lease in this term."""
        self._lease_given_up = True

    def begin_leadership(self) -> None:
        """The replica has been elected."""
        self._lease_given_up = False

    def end_leadership(self) -> None:
        """The replica leads no longer: refuse the reads that wait."""
        waiting, self._waiting = self._waiting, deque()
        for _, done in waiting:
            done(False)


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
