"""The follower's side of replication (Raft §5.3).

- A follower keeps matching entries and drops only conflicting ones, in one atomic write with their replacement. A
  conflict at or below its commit index cannot be: the group stops.
- ``match`` counts entries that are durable *under a durable term*; so an acknowledgement survives any crash of the
  follower.
- A follower commits no further than it has verified against this leader: ``min(leader's commit, prev + records)``.
- Every reply carries the term.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base import CANDIDATE, FOLLOWER, FULL, LEADER, NEVER, BoundHost, UnsafeStateError
from ..log.journal import RaftLog
from ..messages import Append, AppendReply, Snapshot
from ..state import ReplicaState
from .elections import Activity, Elections, ElectionTimer
from .membership import Membership
from .reads import Freshness


@dataclass(eq=False, slots=True)
class Follower:
    """Takes the leader's entries, and acknowledges them once they are durable."""

    _state: ReplicaState
    _log: RaftLog
    _host: BoundHost
    _timer: ElectionTimer
    _activity: Activity
    _elections: Elections
    _membership: Membership
    _freshness: Freshness
    _verified: int = 0  # the log agrees with the leader's up to here
    _acknowledged: int = -1  # the match last sent
    _round: int = 0  # the newest round heard of
    _rebuilds: bool = False  # the state is wrong, and a snapshot is wanted that ends no earlier than it

    def on_append(self, peer: str, message: Append, now: float) -> None:
        """Records, or a heartbeat."""
        state, log = self._state, self._log
        if message.term < state.term:
            # This tells the old leader that its term is over.
            self._host.send(peer, AppendReply(state.term, message.probe, 0, 0))
            return
        if message.term > state.term or state.role == CANDIDATE:
            self._elections.follow(message.term)
        elif state.role == LEADER:
            raise UnsafeStateError(f"{state.name}: {peer} leads term {state.term} as well")
        if state.leader != peer:
            self._follow(peer)
        self._timer.heard_leader(now, message.lease_ms)
        self._activity.rouse()
        self._freshness.heard(now, message.commit)
        self._round = max(self._round, message.probe)

        commit = state.commit
        # A full disk takes no records. They are as good as lost: the reply says why, and the leader sends them again.
        taken = message.records if self._host.shortage() < FULL else []
        previous, previous_term, records = message.prev_index, message.prev_term, taken
        end = previous + len(records)
        if previous < commit:
            # The leader has all entries that are committed here: they need not be compared, and may be compacted away.
            records = records[commit - previous :]
            previous, previous_term = commit, log.term_at(commit) or 0
            end = max(end, commit) if records else commit
        if previous > log.last_index or log.term_at(previous) != previous_term:
            hint_index, hint_term = log.last_index_of_term_up_to(previous, previous_term)
            self._reply(peer, rejected=message.prev_index, hint_index=hint_index, hint_term=hint_term)
            return
        if records:
            self._store(previous, records)
        verified = max(previous, end)
        if verified > self._verified:
            self._verified = verified
        commit = min(message.commit, verified)
        if commit > state.commit:
            state.set_commit(commit)
            if state.applied < state.applicable:
                self._host.committed()
        # Records on their way to the disk are acknowledged when they are there; heartbeats are answered at once.
        if not taken or self._verified <= log.durable_index:
            self._reply(peer)
        if message.sleep and state.commit == log.last_index == message.prev_index == message.commit:
            self._activity.fall_asleep()
            self._timer.wait_until(NEVER)

    def _follow(self, leader: str) -> None:
        """Follow a new leader. Knowledge of an older leader's log says nothing about this one's."""
        state = self._state
        if state.leader is not None:
            raise UnsafeStateError(f"{state.name}: {leader} and {state.leader} lead term {state.term}")
        self._elections.obey(leader)
        self._verified = state.commit
        self._acknowledged = -1
        self._round = 0
        self._host.role_changed()

    def _store(self, previous: int, records: list[bytes]) -> None:
        """Keep matching entries; from the first difference on, the leader's records replace ours."""
        log, position = self._log, 0
        last = log.last_index
        while position < len(records) and previous + position < last:
            index = previous + position + 1
            if log.term_at(index) != int.from_bytes(records[position][:8], "big"):
                if index <= self._state.commit:
                    raise UnsafeStateError(
                        f"{self._state.name}: entry {index} is committed, and the leader has another"
                    )
                configuration = log.configuration
                log.truncate_from(index)
                if log.configuration != configuration:
                    self._membership.changed()
                break
            position += 1
        if position < len(records):
            configuration_index = log.configuration_index
            log.append(records[position:])
            if log.configuration_index != configuration_index:
                self._membership.changed()
        self._host.wake()

    # --- replies -----------------------------------------------------------------------------------------

    def _reply(self, peer: str, *, rejected: int = -1, hint_index: int = 0, hint_term: int = 0) -> None:
        log = self._log
        verified = max(self._verified, self._state.commit)
        match = min(verified, log.durable_index) if log.hard_state_durable else 0
        self._acknowledged = match
        promise_ms = self._timer.promise_ms()
        self._host.send(
            peer,
            AppendReply(
                self._state.term,
                self._round,
                match,
                verified,
                rejected,
                hint_index,
                hint_term,
                promise_ms,
                self._state.watched,
                self._state.unapplied,
                self._host.shortage(),
            ),
        )

    def log_durable(self) -> None:
        """An fsync covered something of the log: acknowledge it."""
        log, leader = self._log, self._state.leader
        if leader is not None and log.hard_state_durable:
            match = min(max(self._verified, self._state.commit), log.durable_index)
            if match > self._acknowledged:
                self._reply(leader)

    # --- snapshots ---------------------------------------------------------------------------------------

    def on_snapshot(self, peer: str, message: Snapshot, now: float) -> None:
        """The leader has streamed a snapshot."""
        state = self._state
        if message.term < state.term:
            self._host.send(peer, AppendReply(state.term, 0, 0, 0))
            return
        if state.leader != peer or message.term != state.term:
            return  # its heartbeats introduce it first
        if message.index > state.commit or (self._rebuilds and message.index >= state.applied):
            self._host.install_snapshot(message)
        else:
            self._reply(peer)

    def rebuild(self, wanted: bool) -> None:
        """Whether to take a snapshot in place of the state although the log lacks nothing. The state is wrong, and what
        the replica has acknowledged and voted for is not, so the log stays, and so does what is known to be committed.
        """
        self._rebuilds = wanted

    def snapshot_installed(self, message: Snapshot) -> None:
        """The durable state is now the snapshot's: the log goes on behind it."""
        state, log = self._state, self._log
        rebuilds, self._rebuilds = self._rebuilds, False
        if message.index < state.applied + (not rebuilds):
            raise UnsafeStateError(f"{state.name}: snapshot {message.index} put over applied {state.applied}")
        configuration = log.configuration
        if not rebuilds or message.index > state.commit:  # otherwise the log has it, and what is acknowledged after it
            log.restart(message.index, message.index_term, message.configuration)
        # Meanwhile a leader may have sent, and committed, entries behind the snapshot.
        state.set_commit(max(state.commit, message.index))
        state.set_applied(message.index)
        self._verified = max(self._verified, message.index)
        if state.applied < state.applicable:
            self._host.committed()
        if log.configuration != configuration:
            self._membership.changed()
        self._host.wake()
        if state.leader is not None and state.role == FOLLOWER:
            self._reply(state.leader)
