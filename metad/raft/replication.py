"""Replication: one log, on every replica (Raft §5.3, §5.4.2).

- The leader knows per peer whether it probes, pipelines or waits for a snapshot (:mod:`.progress`).
- A follower keeps what matches and drops only what conflicts, in one atomic write with what takes its place. A conflict
  at or below its commit index cannot be: it stops.
- ``match`` says what is durable *under a durable term*; so an acknowledgement survives whatever the follower forgets.
- The leader counts itself by what is durable in its own log, and commits only entries of its own term.
- A follower commits no further than it has verified against this leader: ``min(leader's commit, prev + records)``.
- Every reply carries the term; one of another term changes nothing but may end a reign.
"""

from __future__ import annotations

import logging
from collections import deque

from ..errors import JOIN_ANEW
from ..logs import event
from .base import CANDIDATE, FOLLOWER, LEADER, NEVER, UnsafeStateError
from .elections import Elections
from .journal import NO_OP, REGULAR, record
from .messages import Append, AppendReply, Snapshot
from .progress import Progress, Sending

APPEND_BYTES_MAX = 1024 * 1024
"""Records of one message; a larger record travels alone."""
ROUNDS_REMEMBERED = 256
"""Rounds whose beginning is known. A peer that echoes an older one has been cut off for long, and renews no lease."""


class Replication(Elections):
    """Appends, acknowledgements, commit."""

    def _prepare(self) -> None:
        super()._prepare()
        self.peers: dict[str, Progress] = {}  # of a leader
        self.no_op_index = 0
        """The leader's first entry: once applied, its state machine holds everything committed before."""
        self._round = 0  # numbers heartbeats within a term
        self._rounds: deque[tuple[int, float]] = deque()  # (number, when it began)
        self._awake_round = 0  # the first since the group woke up: it sleeps again once a quorum has echoed it
        self._heartbeat_due_s = NEVER
        self._replicated = 0  # last index when records were last sent to everyone who could take them
        self._worked_s = self.host.now()  # when there was last something to do
        # of a follower:
        self._verified = 0  # the log agrees with the leader's up to here
        self._acknowledged = -1  # the match last sent
        self._probe = 0  # the newest round heard of

    # --- leader: sending ---------------------------------------------------------------------------------

    def propose(self, payload: bytes) -> int:
        """Append an entry; returns its index. The leader's alone, and nothing is promised before it is applied."""
        if self.role != LEADER:
            raise UnsafeStateError(f"{self.name}: proposed to a {self.role}")
        self.log.append([record(self.term, REGULAR, payload)])
        self._worked()
        return self.log.last_index

    def _worked(self) -> None:
        self._worked_s = self.host.now()
        if self.asleep:
            self.wake_up()
        self.host.wake(self)

    def _lead(self) -> None:
        now = self.host.now()
        self._round = 0
        self._rounds.clear()
        self._awake_round = 0
        self._heartbeat_due_s = now
        self._worked_s = now
        next_index = self.log.last_index + 1
        self.peers = {member: Progress(next_index, now) for member in self._others()}
        self.no_op_index = self.log.last_index + 1
        self.log.append([record(self.term, NO_OP)])
        self._replicated = 0
        self.host.role_changed(self)
        self.host.wake(self)

    def _abdicated(self) -> None:
        self.peers = {}
        self._heartbeat_due_s = NEVER
        self._rounds.clear()
        self.host.role_changed(self)

    def _others(self) -> list[str]:
        return [member for member in self.configuration.members if member != self.node_id]

    def _leader_turn(self, now: float) -> float:
        """Send what is due. Returns when the next heartbeat is."""
        if not self._heard_quorum(now):
            self._follow(self.term, None)
            return now
        if self.disk_hangs and self._others_go_on():
            self._leave_lead()
            return now
        if now >= self._heartbeat_due_s:
            self._heartbeat_due_s = now + self.timing.heartbeat_s
            self._begin_round(now)
            for peer, progress in self._reachable():
                progress.paused = False
                if not self._send_records(peer, progress):
                    self._send_empty(peer, progress)
                if progress.snapshot is not None:
                    self.host.send(peer, self, progress.snapshot)  # it may not have heard of it
            self._replicated = self.log.last_index
        elif self._replicated < self.log.last_index:
            self._replicated = self.log.last_index
            for peer, progress in self._reachable():
                self._send_records(peer, progress)
        self._advance_commit()
        return self._heartbeat_due_s

    def _others_go_on(self) -> bool:
        """Whether a quorum of others has durable what this leader's disk has not."""
        wanted = self.log.durable_index + 1
        ahead = {peer for peer, progress in self.peers.items() if progress.match >= wanted}
        return self._has_quorum(ahead)

    def _reachable(self) -> list[tuple[str, Progress]]:
        return [
            (peer, progress)
            for peer, progress in self.peers.items()
            if peer in self.connected and not progress.distrusted
        ]

    def _begin_round(self, now: float) -> int:
        self._round += 1
        self._rounds.append((self._round, now))
        if len(self._rounds) > ROUNDS_REMEMBERED:
            self._rounds.popleft()
        return self._round

    def _send_records(self, peer: str, progress: Progress) -> bool:
        """Send the peer what it lacks and may be sent; whether anything went out."""
        log, sent = self.log, False
        while progress.next <= log.last_index and progress.sending is Sending.REPLICATE and not progress.full:
            previous = progress.next - 1
            previous_term = log.term_at(previous)
            if previous_term is None:
                self._want_snapshot(peer, progress)
                return sent
            records = log.records(progress.next, APPEND_BYTES_MAX)
            self.host.send(peer, self, Append(self.term, previous, previous_term, self.commit, self._round, records))
            progress.sent(previous + len(records), sum(map(len, records)))
            sent = True
        if progress.sending is Sending.PROBE and not progress.paused and not sent:
            progress.paused = True
            self._send_empty(peer, progress)
            return True
        return sent

    def _send_empty(self, peer: str, progress: Progress, *, sleep: bool = False) -> None:
        """A heartbeat, which is also a probe of where the logs agree."""
        previous = progress.next - 1
        previous_term = self.log.term_at(previous)
        if previous_term is None:
            if progress.sending is not Sending.SNAPSHOT:
                self._want_snapshot(peer, progress)
            previous, previous_term = self.log.last_index, self.log.last_term
        self.host.send(peer, self, Append(self.term, previous, previous_term, self.commit, self._round, [], sleep))

    def _want_snapshot(self, peer: str, progress: Progress) -> None:
        progress.wait_for_snapshot()
        self.host.snapshot_wanted(self, peer)

    def snapshot_streamed(self, peer: str, message: Snapshot) -> None:
        """The peer has all of a snapshot's bytes: have it install them."""
        progress = self.peers.get(peer)
        if self.role == LEADER and progress is not None and progress.sending is Sending.SNAPSHOT:
            progress.snapshot = Snapshot(
                self.term, message.index, message.index_term, message.configuration, message.stream
            )
            self.host.send(peer, self, progress.snapshot)

    def snapshot_failed(self, peer: str) -> None:
        """Streaming broke off: begin again when the peer answers."""
        progress = self.peers.get(peer)
        if progress is not None and progress.sending is Sending.SNAPSHOT:
            progress.probe_from(self.log.last_index + 1)
            progress.paused = True

    # --- leader: replies ---------------------------------------------------------------------------------

    def _on_append_reply(self, peer: str, message: AppendReply, now: float) -> None:
        if message.term > self.term:
            self._follow(message.term, None)
            return
        progress = self.peers.get(peer)
        if message.term < self.term or self.role != LEADER or progress is None or progress.distrusted:
            return
        progress.heard_s = now
        self._confirm_round(progress, message)
        if message.match > self.log.last_index or message.agreed > self.log.last_index:
            raise UnsafeStateError(f"{self.name}: {peer} acknowledges {message.match}, {message.agreed} of ours")
        matched = progress.matched(message.match)
        if matched:
            progress.acknowledged_in = max(progress.acknowledged_in, message.probe)
        if progress.sending is Sending.SNAPSHOT:
            if message.agreed >= self.log.base_index:  # it has installed one, or never needed it
                progress.replicate_from(message.agreed + 1)
            elif progress.snapshot is not None and message.agreed >= progress.snapshot.index:
                self._want_snapshot(peer, progress)  # it has, but what follows it was dropped meanwhile
        elif message.rejected >= 0:
            self._rejected(peer, progress, message)
        elif progress.sending is Sending.PROBE:
            progress.replicate_from(message.agreed + 1)
        if matched:
            self._advance_commit()
        if progress.next <= self.log.last_index and peer in self.connected:
            self._send_records(peer, progress)

    def _rejected(self, peer: str, progress: Progress, message: AppendReply) -> None:
        if message.rejected <= progress.match:
            # An old reply, unless the peer has heard of a newer round since it acknowledged: then it had that durably,
            # in this very reign, and lacks it now. It runs on an older copy of its data directory, or its disk lies.
            if message.probe > progress.acknowledged_in:
                event(
                    "a replica has lost what it acknowledged",
                    logging.ERROR,
                    group=self.name,
                    peer=peer,
                    acknowledged=progress.match,
                    rejected=message.rejected,
                    remedy=JOIN_ANEW,
                )
                progress.distrust()
            return
        if progress.sending is Sending.PROBE and message.rejected != progress.next - 1:
            return  # to an older probe
        index, _ = self.log.last_index_of_term_up_to(message.hint_index, message.hint_term)
        progress.probe_from(min(message.rejected, index + 1))

    def _confirm_round(self, progress: Progress, message: AppendReply) -> None:
        number, rounds = message.probe, self._rounds
        if not 0 < number <= self._round:
            return
        if number >= rounds[0][0]:  # a round whose beginning is forgotten renews no lease
            began_s = rounds[number - rounds[0][0]][1]
            until_s = began_s + message.promise_ms / 1000 * (1 - self.timing.drift)
            progress.lease_until_s = max(progress.lease_until_s, until_s)
        if number > progress.echoed:
            progress.echoed = number
            self._round_confirmed()

    def _advance_commit(self) -> None:
        """The highest entry of this term that is durable on a quorum is committed, and all before it."""
        if self.role != LEADER:
            return
        log, configuration = self.log, self.configuration
        durable = log.durable_index if log.hard_state_durable else 0
        matches = sorted(
            [durable if voter == self.node_id else self.peers[voter].match for voter in configuration.voters],
            reverse=True,
        )
        index = matches[configuration.quorum() - 1]
        if index > self.commit and log.term_at(index) == self.term:
            self._set_commit(index)
            self._committed(index)

    def _committed(self, index: int) -> None:
        """The commit index has moved."""
        if self.applied < self.applicable:
            self.host.committed(self)

    def _heard_quorum(self, now: float) -> bool:
        since = now - 2 * self.timing.election_s
        heard = {peer for peer, progress in self.peers.items() if progress.heard_s >= since}
        return self._has_quorum(heard | {self.node_id})

    # --- follower ----------------------------------------------------------------------------------------

    def _on_append(self, peer: str, message: Append, now: float) -> None:
        log = self.log
        if message.term < self.term:
            # The old leader learns that it is one.
            self.host.send(peer, self, AppendReply(self.term, message.probe, 0, 0))
            return
        if message.term > self.term or self.role == CANDIDATE:
            self._follow(message.term, None)
        elif self.role == LEADER:
            raise UnsafeStateError(f"{self.name}: {peer} leads term {self.term} as well")
        if self.leader != peer:
            if self.leader is not None:
                raise UnsafeStateError(f"{self.name}: {peer} and {self.leader} lead term {self.term}")
            self._set_leader(peer)
            self._would_vote = None
            self._forget_leader()
            self.host.role_changed(self)
        self._heard_leader(now)
        self.asleep = False
        self._probe = max(self._probe, message.probe)

        previous, previous_term, records = message.prev_index, message.prev_term, message.records
        end = previous + len(records)
        if previous < self.commit:
            # What is committed here is the leader's too: no need to compare, and it may be compacted away.
            records = records[self.commit - previous :]
            previous, previous_term = self.commit, log.term_at(self.commit) or 0
            end = max(end, self.commit) if records else self.commit
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
        if commit > self.commit:
            self._set_commit(commit)
            self._committed(commit)
        # What is on its way to the disk is acknowledged when it is there; heartbeats are answered at once.
        if not message.records or self._verified <= log.durable_index:
            self._reply(peer)
        if message.sleep and self.commit == log.last_index == message.prev_index == message.commit:
            self.asleep = True
            self._set_election_deadline(NEVER)

    def _store(self, previous: int, records: list[bytes]) -> None:
        """Keep what matches; from the first difference on, the leader's records replace ours."""
        log, position = self.log, 0
        last = log.last_index
        while position < len(records) and previous + position < last:
            index = previous + position + 1
            if log.term_at(index) != int.from_bytes(records[position][:8], "big"):
                if index <= self.commit:
                    raise UnsafeStateError(f"{self.name}: entry {index} is committed, and the leader has another")
                configuration = log.configuration
                log.truncate_from(index)
                if log.configuration != configuration:
                    self._configuration_changed()
                break
            position += 1
        if position < len(records):
            configuration_index = log.configuration_index
            log.append(records[position:])
            if log.configuration_index != configuration_index:
                self._configuration_changed()
        self.host.wake(self)

    def _forget_leader(self) -> None:
        """What was known of an older leader's log says nothing about this one's."""
        self._verified = self.commit
        self._acknowledged = -1
        self._probe = 0

    def _reply(self, peer: str, *, rejected: int = -1, hint_index: int = 0, hint_term: int = 0) -> None:
        log = self.log
        verified = max(self._verified, self.commit)
        match = min(verified, log.durable_index) if log.hard_state_durable else 0
        self._acknowledged = match
        self.host.send(
            peer,
            self,
            AppendReply(self.term, self._probe, match, verified, rejected, hint_index, hint_term, self._promise_ms()),
        )

    def _log_durable(self) -> None:
        log = self.log
        if log.hard_state_durable:
            self._hard_state_durable()
        if self.role == LEADER:
            self._advance_commit()
        elif self.role == FOLLOWER and self.leader is not None and log.hard_state_durable:
            match = min(max(self._verified, self.commit), log.durable_index)
            if match > self._acknowledged:
                self._reply(self.leader)
        if self.applied < self.applicable:
            self.host.committed(self)

    @property
    def applicable(self) -> int:
        """What may be applied: committed, and durable here, so that no state gets ahead of its log."""
        return min(self.commit, self.log.durable_index)

    def _on_snapshot(self, peer: str, message: Snapshot, now: float) -> None:
        if message.term < self.term:
            self.host.send(peer, self, AppendReply(self.term, 0, 0, 0))
            return
        if self.leader != peer or message.term != self.term:
            return  # its heartbeats introduce it first
        self._heard_leader(now)
        if message.index <= self.commit:
            self._reply(peer)
        else:
            self.host.install_snapshot(self, message)

    def snapshot_installed(self, message: Snapshot) -> None:
        """The durable state is now the snapshot's: the log goes on behind it."""
        if message.index <= self.applied:
            raise UnsafeStateError(f"{self.name}: snapshot {message.index} put over applied {self.applied}")
        configuration = self.log.configuration
        self.log.restart(message.index, message.index_term, message.configuration)
        # While it was put there, a leader may have sent, and committed, what follows it.
        self._set_commit(max(self.commit, message.index))
        self._set_applied(message.index)
        self._verified = max(self._verified, message.index)
        if self.applied < self.applicable:
            self.host.committed(self)
        if self.log.configuration != configuration:
            self._configuration_changed()
        self.host.wake(self)
        if self.leader is not None and self.role == FOLLOWER:
            self._reply(self.leader)

    def _leave_lead(self) -> None:
        """Have the voter that is furthest campaign, and lead no longer."""
        raise NotImplementedError

    def _configuration_changed(self) -> None:
        """A new configuration is in the log, or an old one again."""
        raise NotImplementedError

    def _round_confirmed(self) -> None:
        """A peer has echoed a newer round."""
        raise NotImplementedError
