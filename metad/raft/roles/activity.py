"""Sleep: a group without work stops its heartbeats, and any event wakes it up. A leader whose group sleeps asks now and
then whether the others still follow it."""

from __future__ import annotations

from dataclasses import dataclass

from ..base import LEADER, NEVER, BoundHost
from ..state import ReplicaState
from .election_timer import ElectionTimer
from .leadership import Leadership


@dataclass(eq=False, slots=True)
class Activity:
    """Knows whether a replica sleeps and whether a leader may let its group sleep, and wakes the replica up."""

    _state: ReplicaState
    _host: BoundHost
    _timer: ElectionTimer
    _leadership: Leadership
    _worked_s: float  # when there was last something to do
    asleep: bool = False
    look_due_s: float = NEVER
    """The time at which a leader that sleeps asks again whether it is followed."""
    _looked_s: float = NEVER
    _awake_round: int = 0  # the first since the group woke up: it sleeps again once a quorum has echoed it

    def begin_leadership(self, now: float) -> None:
        """The replica has been elected."""
        self._awake_round = 0
        self._worked_s = now

    def worked(self) -> None:
        """There is something to do."""
        self._worked_s = self._host.now()
        if self.asleep:
            self.wake_up()
        self._host.wake()

    def idle(self, now: float) -> bool:
        """Whether nothing has happened for long and nothing is missing anywhere."""
        state, last_index = self._state, self._state.log.last_index
        return (
            now - self._worked_s >= state.timing.sleep_after_s
            and state.applied == state.commit == last_index
            and self._leadership.quorum_echoed() >= self._awake_round
            and all(
                peer in state.connected
                and progress.match == last_index
                and not progress.unapplied
                and not progress.shortage
                for peer, progress in self._leadership.peers.items()
            )
        )

    def fall_asleep(self) -> None:
        """No heartbeats follow until something happens."""
        self.asleep = True

    def say_good_night(self, now: float) -> None:
        """A leader lets its group sleep, or lets it sleep on."""
        self.asleep = True
        self._looked_s = now
        self.look_due_s = now + self._state.timing.look_after_s

    def followed(self) -> bool:
        """Whether a quorum has answered since the leader last said good night."""
        answered = {peer for peer, progress in self._leadership.peers.items() if progress.heard_s >= self._looked_s}
        return self._state.has_quorum(answered | {self._state.node_id})

    def rouse(self) -> None:
        """A message of the leader ends a follower's sleep; it has set the election timer already."""
        self.asleep = False

    def wake_up(self) -> None:
        """Something happened: heartbeats and election timeouts begin again."""
        if not self.asleep:
            return
        self.asleep = False
        now = self._host.now()
        if self._state.role == LEADER:
            self._leadership.hasten(now)
            self._worked_s = now
            self._awake_round = self._leadership.round + 1
            for progress in self._leadership.peers.values():
                progress.heard_s = now
        else:
            self._timer.postpone(now)
        self._host.wake()
