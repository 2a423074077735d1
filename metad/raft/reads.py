"""Linearizable reads without writing: by lease, or by ReadIndex (dissertation §6.4).

A leader whose state machine has applied its own no-op holds everything that was ever acknowledged. What is left to know
is that it still leads *now*:

- **Lease.** A quorum echoed a round, and each said with the echo for how long it votes for nobody else. That counts
  from when it heard the round, hence from when the round *began*; shortened by how far clocks may drift apart, it is
  how long no other leader can be. The clock counts the time during which a machine was suspended. Handing leadership
  over ends the lease for the rest of the term: the successor's campaign does not respect it, and the order to campaign
  may be delayed.
- **ReadIndex.** Begin a round after the read arrived; once a quorum has echoed it, nobody else led when the read came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

from .base import LEADER, NEVER
from .progress import Progress
from .replication import Replication

Number = TypeVar("Number", int, float)


class Reads(Replication):
    """When a leader may answer from its state."""

    def _prepare(self) -> None:
        super()._prepare()
        self._reads: deque[tuple[int, Callable[[bool], None]]] = deque()  # (round that must be echoed, whom to tell)
        self._lease_given_up = False

    @property
    def ready(self) -> bool:
        """A leader that has applied everything committed before it: it may evaluate, and answer reads it can prove."""
        return self.role == LEADER and self.applied >= self.no_op_index

    def may_read(self) -> bool:
        """Whether the state may be read now: a lease is valid."""
        # One that is being removed has no lease: the voters that are left may elect without having heard of it.
        return self.ready and self.is_voter and not self._lease_given_up and self.host.now() < self.lease_until_s()

    def lease_until_s(self) -> float:
        """Until when nobody else can lead: a quorum, this leader included, votes for nobody else until then."""
        return self._of_quorum(NEVER, lambda progress: progress.lease_until_s)

    def read(self, done: Callable[[bool], None]) -> None:
        """Call ``done(True)`` once the state may be read for whoever asks now, ``done(False)`` if that cannot be."""
        if self.role != LEADER:
            done(False)
            return
        if self.may_read() and not self._reads:
            done(True)
            return
        # A round begun before this read may already be under way: it proves nothing about now. All reads of a turn
        # share the next one.
        self._reads.append((self._round + 1, done))
        self._heartbeat_due_s = self.host.now()
        self._worked()

    def _round_confirmed(self) -> None:
        if self._reads:
            self._release_reads()

    def _release_reads(self) -> None:
        if not self.ready:
            return
        echoed = self._quorum_echoed()
        while self._reads:
            number, done = self._reads[0]
            if number > echoed:
                return
            self._reads.popleft()
            done(True)

    def _quorum_echoed(self) -> int:
        """The newest round that a quorum has echoed. Numbers prove it and not times: when a round began is remembered
        for the newest rounds only, and a round that is forgotten proves nothing."""
        return self._of_quorum(self._round, lambda progress: progress.echoed)

    def _of_quorum(self, own: Number, of: Callable[[Progress], Number]) -> Number:
        """The highest that a quorum of voters has come to, this leader's ``own`` counted."""
        configuration = self.configuration
        reached = sorted(
            [own if voter == self.node_id else of(self.peers[voter]) for voter in configuration.voters], reverse=True
        )
        return reached[configuration.quorum() - 1]

    def _lead(self) -> None:
        self._lease_given_up = False
        super()._lead()

    def _abdicated(self) -> None:
        reads, self._reads = self._reads, deque()
        super()._abdicated()
        for _, done in reads:
            done(False)

    def applied_to(self, index: int) -> None:
        """The state machine has applied everything up to ``index``."""
        was_ready = self.ready
        self._set_applied(index)
        if self._reads:
            self._release_reads()
        if self.ready and not was_ready:
            self.host.role_changed(self)
