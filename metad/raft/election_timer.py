"""The time at which a follower asks for votes, and the time until which it votes for nobody else."""

from __future__ import annotations

import random

from .state import ReplicaState


class ElectionTimer:
    """A voter's promise to its leader and its own election timeout. Both begin again when the replica hears its
    leader."""

    def __init__(self, state: ReplicaState, rng: random.Random, now: float) -> None:
        log = state.log
        self._log = log
        self._timing = state.timing
        self._rng = rng
        self._own_promise_ms = int(state.timing.election_s * 1000)
        self._promised_until_s = float("-inf")
        # As if a leader had been heard just now: a lease may rest on a promise from before the restart.
        self.heard_leader(now)
        self._promised_until_s = max(self._promised_until_s, now + log.promise_ms / 1000)
        self.wait_until(self._promised_until_s)
        if log.promise_ms != self._own_promise_ms:
            log.promise(self._own_promise_ms)
        if log.configuration.voters == (state.node_id,):  # nobody to wait for, and nobody who could hold a lease
            self._promised_until_s = self.deadline_s = now

    def postpone(self, now: float) -> None:
        """Wait for one to two election timeouts before asking for votes."""
        self.deadline_s = now + self._timing.election_s * (1 + self._rng.random())

    def heard_leader(self, now: float) -> None:
        """There is a leader: vote for nobody else for as long as promised."""
        self._promised_until_s = max(self._promised_until_s, now + self._own_promise_ms / 1000)
        self.postpone(now)

    def excuse(self, now: float) -> None:
        """Give the leader one more heartbeat: this node, not the leader, was late."""
        self.wait_until(now + 2 * self._timing.heartbeat_s)

    def wait_until(self, at_s: float) -> None:
        """Ask for votes no sooner than this."""
        self.deadline_s = max(self.deadline_s, at_s)

    def promises(self, now: float) -> bool:
        """Whether this voter has promised a leader to vote for nobody else now."""
        return now < self._promised_until_s

    def promise_ms(self) -> int:
        """The promise that a reply to the leader may give: none before it is stored, because a restart must keep it."""
        return self._own_promise_ms if self._log.hard_state_durable else 0
