"""When a replica acts by itself: the time at which a follower asks for votes, the time until which it votes for nobody
else, and sleep.

The first two are apart. The *promise* is short: the leader says with each append which one it counts on. It alone makes
leases safe. The *wait* is long, because a leader that is silent may only be busy. It ends early where there is evidence
that the leader is dead: the connection to it is lost, and its host refuses a new one. That is no proof, for a firewall
that rejects looks the same. So evidence shortens the wait to the end of the promise and a random part of one's own, and
any word of the leader cancels it.

A group without work *sleeps*: it stops its heartbeats, and any event wakes it up. A leader whose group sleeps asks now
and then whether the others still follow it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ..base import LEADER, NEVER, BoundHost
from ..state import ReplicaState
from .leadership import Leadership

OWN_PART = 0.1
"""The random part of one's own that follows the end of the promise, as a part of the leader's lease. It is short, for
of those that ask at the same time one goes before the others."""
BUSY_PART = 0.25
"""For so much longer a follower waits that is busy: the others are to be elected before it asks."""
_AGAIN_PART = 0.25
"""A follower with evidence that was refused asks again after once or twice this part."""


class ElectionTimer:
    """A voter's promise to its leader and its own election timeout. Both begin again when the replica hears its
    leader."""

    def __init__(self, state: ReplicaState, rng: random.Random, now: float) -> None:
        log = state.log
        self._log = log
        self._timing = state.timing
        self._rng = rng
        self._longest_ms = int(state.timing.election_s * 1000)
        self._promise_ms = self._longest_ms
        self._promised_until_s = float("-inf")
        # As if a leader had been heard just now: a lease may rest on a promise from before the restart.
        self.heard_leader(now, 0)
        self._promised_until_s = max(self._promised_until_s, now + log.promise_ms / 1000)
        self.wait_until(self._promised_until_s)
        if log.promise_ms != self._longest_ms:
            log.promise(self._longest_ms)
        if log.configuration.voters == (state.node_id,):  # nobody to wait for, and nobody who could hold a lease
            self._promised_until_s = self._heard_until_s = self.deadline_s = now

    def postpone(self, now: float) -> None:
        """Wait for one to two election timeouts before asking for votes."""
        self.deadline_s = now + self._timing.election_s * (1 + self._rng.random())

    def heard_leader(self, now: float, lease_ms: int) -> None:
        """There is a leader: vote for nobody else for as long as it counts on. 0: it does not say for how long."""
        # A promise is never longer than the one that is stored. Within a leadership a leader always says the same.
        self._promise_ms = min(lease_ms, self._longest_ms) if lease_ms else self._longest_ms
        self._promised_until_s = max(self._promised_until_s, now + self._promise_ms / 1000)
        self._heard_until_s = now + self._timing.election_s
        self._evidence = False
        self.postpone(now)

    def refused(self, now: float, *, busy: bool) -> None:
        """Take a refusal by the leader's host as evidence that the leader is dead. ``busy``: this node lets others ask
        first. Many requests wait on it, and it might have two crowds and another node none; or it has much to apply
        before it could serve."""
        if not self._evidence:
            self._evidence = True
            part_s = self._timing.lease_s * (OWN_PART * self._rng.random() + BUSY_PART * busy)
            self.deadline_s = min(self.deadline_s, max(now, self._promised_until_s) + part_s)

    def asked(self, now: float) -> None:
        """Wait before asking again whether one would be elected. With evidence that is soon: a voter that has refused
        because of its promise is free a moment later."""
        wait_s = _AGAIN_PART * self._timing.lease_s if self._evidence else self._timing.election_s
        self.deadline_s = now + wait_s * (1 + self._rng.random())

    def campaigns(self, now: float) -> None:
        """Wait for the votes, which have to be durable, before beginning again. That is sooner where there is
        evidence."""
        wait_s = self._timing.lease_s if self._evidence else self._timing.election_s
        self.deadline_s = now + wait_s * (1 + self._rng.random())

    def excuse(self, now: float) -> None:
        """Give the leader one more heartbeat: this node, not the leader, was late."""
        self.wait_until(now + 2 * self._timing.heartbeat_s)

    def wait_until(self, at_s: float) -> None:
        """Ask for votes no sooner than this."""
        self.deadline_s = max(self.deadline_s, at_s)

    def promises(self, now: float) -> bool:
        """Whether this voter has promised a leader to vote for nobody else now."""
        return now < self._promised_until_s

    def believes(self, now: float) -> bool:
        """Whether this voter takes its leader for alive: it was heard within the election timeout, and there is no
        evidence against it."""
        return now < self._heard_until_s and not self._evidence

    def promise_ms(self) -> int:
        """The promise that a reply to the leader may give: none before the longest one is stored, because a restart
        must keep it."""
        return self._promise_ms if self._log.hard_state_durable else 0


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
