"""RaftGroup: one replica of one group, the rules put together, without any I/O of its own.

It is driven from outside, by its host: :meth:`RaftGroup.receive` for a peer's message, ``propose``, ``read``,
``transfer`` and the like for wishes, :meth:`RaftGroup.turn` when it asked for one or its deadline has passed, and the
log's writer for what became durable. Time, randomness, disk and network all come from the host, so a simulation runs
this very code.
"""

from __future__ import annotations

from .base import LEADER, NEVER, UnsafeStateError
from .membership import Membership
from .messages import (
    AnyMessage,
    Append,
    AppendReply,
    PreVote,
    PreVoteReply,
    Snapshot,
    TimeoutNow,
    Vote,
    VoteReply,
)
from .progress import Sending


class RaftGroup(Membership):
    """One replica. See :mod:`metad.raft` for which rule is where."""

    _looked_s = NEVER
    """When a leader that sleeps last asked who follows it."""
    _look_due_s = NEVER

    def receive(self, peer: str, message: AnyMessage) -> None:
        """A message from another node of the cluster."""
        if self.failed is not None:
            return
        now = self.host.now()
        try:
            if isinstance(message, Append):
                self._on_append(peer, message, now)
            elif isinstance(message, AppendReply):
                self._on_append_reply(peer, message, now)
            elif isinstance(message, PreVote):
                self._on_pre_vote(peer, message, now)
            elif isinstance(message, PreVoteReply):
                self._on_pre_vote_reply(peer, message)
            elif isinstance(message, Vote):
                self._on_vote(peer, message, now)
            elif isinstance(message, VoteReply):
                self._on_vote_reply(peer, message)
            elif isinstance(message, Snapshot):
                self._on_snapshot(peer, message, now)
            elif isinstance(message, TimeoutNow):
                self._on_timeout_now(peer, message)
        except UnsafeStateError as error:
            self.failed = error
            raise
        self.host.wake(self)

    def turn(self) -> None:
        """Do what is due, and say when to be called although nothing happens."""
        if self.failed is not None:
            self.deadline_s = NEVER
            return
        now = self.host.now()
        self._watch_disk(now)
        due_s = NEVER if self.role == LEADER else self._election_turn(now)
        if self.role == LEADER:
            if self.asleep:
                due_s = self._look_turn(now)
            if not self.asleep:
                due_s = min(self._leader_turn(now), self._transfer_turn(now))
                self._sleep_if_idle(now)
                if self.asleep:
                    due_s = self._look_due_s
        self.deadline_s = due_s

    # --- sleeping ----------------------------------------------------------------------------------------

    def _sleep_if_idle(self, now: float) -> None:
        """Stop the heartbeats of a group where nothing happens and nothing is missing anywhere."""
        log = self.log
        if (
            now - self._worked_s < self.timing.sleep_after_s
            or self.role != LEADER
            or self._reads
            or self._transferring is not None
            or not self.applied == self.commit == log.last_index
            or self._quorum_echoed() < self._awake_round
            or any(peer not in self.connected or p.match != log.last_index for peer, p in self.peers.items())
        ):
            return
        self.asleep = True
        self._say_good_night(now)

    def _say_good_night(self, now: float) -> None:
        self._looked_s = now
        self._look_due_s = now + self.timing.look_after_s
        for peer, progress in self.peers.items():
            self._send_empty(peer, progress, sleep=True)

    def _look_turn(self, now: float) -> float:
        """A sleeping leader asks now and then whether a quorum still follows it, and wakes up where none answered the
        last time: then it steps down soon, if it stays so. Returns when to look again."""
        if now < self._look_due_s:
            return self._look_due_s
        answered = {peer for peer, progress in self.peers.items() if progress.heard_s >= self._looked_s}
        if self._has_quorum(answered | {self.node_id}):
            self._say_good_night(now)
        else:
            self.wake_up()
        return self._look_due_s

    def wake_up(self) -> None:
        """Something happened: heartbeats and election timeouts begin again."""
        if not self.asleep:
            return
        self.asleep = False
        now = self.host.now()
        if self.role == LEADER:
            self._heartbeat_due_s = now
            self._worked_s = now
            self._awake_round = self._round + 1
            for progress in self.peers.values():
                progress.heard_s = now
        else:
            self._postpone_election(now)
        self.host.wake(self)

    # --- the log's beginning -----------------------------------------------------------------------------

    def compact(self, applied: int) -> None:
        """The durable state holds everything up to ``applied``: drop the log's beginning, but keep its newest part, so
        that a replica that lags a little needs no snapshot."""
        # The last entry stays: a log that ends before the state's applied index shows that it lost its tail.
        self.log.compact(min(applied, self.log.cached_from - 1, self.log.last_index - 1))

    # --- connections -------------------------------------------------------------------------------------

    def peer_connected(self, peer: str) -> None:
        """Messages reach this node again, from now on in order."""
        self.connected.add(peer)
        progress = self.peers.get(peer)
        if progress is not None:
            if progress.sending is not Sending.PROBE:  # what was sent, records or a snapshot, may be lost
                progress.probe_from(self.log.last_index + 1)
            progress.paused = False
            self._heartbeat_due_s = self.host.now()
        self.host.wake(self)

    def peer_lost(self, peer: str) -> None:
        """What was on its way to and from this node is lost."""
        self.connected.discard(peer)
        if peer in self.configuration.members:
            self.wake_up()
