"""The leader's side of replication: one log, on every replica (Raft §5.3, §5.4.2).

- The leader knows per peer whether it probes, pipelines or waits for a snapshot (:mod:`.leadership`).
- The leader counts itself by what is durable in its own log, and commits only entries of its own term.
- A reply of another term changes nothing but may end a leadership.
- A leader that has not heard from a quorum for a time of its own steps down. Peers whose hosts refuse to be dialled are
  waited for no longer than their promise lasts, for by then others may have elected another.
- Followers hear of a commit with the entries that follow it, or with the next heartbeats. If somebody waits for what a
  follower applies (a watch), and no entry follows soon, a round of heartbeats begins early.
- A leader whose disk hangs hands over to the others if they can go on without it.
- A peer whose disk is short of room gets no snapshot, and no entries once it has next to no room: it stays a voter, and
  is brought up to date when there is room again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

import msgspec

from ... import log_events
from ...errors import JOIN_ANEW
from ...logs import event
from ..base import FULL, LEADER, NEVER, BoundHost, UnsafeStateError
from ..log.journal import NO_OP, DiskWatch, RaftLog, record
from ..messages import Append, AppendReply, Snapshot, TimeoutNow
from ..state import ReplicaState
from .elections import Activity, Elections
from .leadership import IN_FLIGHT_BYTES_MAX, Leadership, Progress, Sending
from .reads import Reads

APPEND_BYTES_MAX = 1024 * 1024
"""The bound of one message's records; a larger record travels alone."""
_APPEND_BYTES_LEAST = 64 * 1024
"""The same where other groups have used up the room to a peer: each has one message on its way all the same."""

TOLD_WITHIN_HEARTBEATS = 0.1
"""The part of the interval of heartbeats after which a watched follower hears of a commit that no entry has told of."""

_match: Callable[[Progress], int] = attrgetter("match")


@dataclass(eq=False, slots=True)
class Leader:
    """Sends entries to the peers, takes their acknowledgements, and commits. Idle while the replica does not lead."""

    _state: ReplicaState
    _log: RaftLog
    _host: BoundHost
    _disk: DiskWatch
    _leadership: Leadership
    _activity: Activity
    _elections: Elections
    _reads: Reads
    _sent_index: int = 0  # last index when records were last sent to every peer that could take them
    _told: int = 0  # the commit index that peers were told then
    _tell_due_s: float = NEVER  # when they are told of a later one

    # --- the leadership ----------------------------------------------------------------------------------

    def begin_leadership(self) -> None:
        """The replica has been elected."""
        now = self._host.now()
        self._leadership.begin(now)
        self._activity.begin_leadership(now)
        self._log.append([record(self._state.term, NO_OP)])
        self._sent_index, self._told, self._tell_due_s = 0, 0, NEVER
        self._host.role_changed()
        self._host.wake()

    def _leave(self) -> None:
        """Order the voter with the longest log to campaign, and step down."""
        state, peers = self._state, self._leadership.peers
        voters = [(peers[v].match, v) for v in state.configuration.voters if v in peers and v in state.connected]
        if voters:
            _, best = max(voters)
            self._host.send(best, TimeoutNow(state.term))
        self._elections.follow(state.term)

    # --- sending -----------------------------------------------------------------------------------------

    def turn(self, now: float) -> float:
        """Send the heartbeats and records that are due. Returns when to look again."""
        leadership, last_index = self._leadership, self._log.last_index
        if not leadership.heard_quorum(now):
            self._elections.follow(self._state.term)
            return now
        if self._disk.hangs and self._others_go_on():
            self._leave()
            return now
        if now >= min(leadership.round_due_s, self._tell_due_s):
            leadership.begin_round(now)
            for peer, progress in self._reachable():
                progress.paused = False
                if not self._send_records(peer, progress):
                    self._send_empty(peer, progress)
                if progress.snapshot is not None:
                    self._host.send(peer, progress.snapshot)  # it may not have heard of it
            self._told_all(last_index)
        elif self._sent_index < last_index:
            self._told_all(last_index)
            for peer, progress in self._reachable():
                self._send_records(peer, progress)
        self.advance_commit()
        if self._tell_due_s == NEVER and self._state.commit > self._told and self._is_watched():
            self._tell_due_s = now + TOLD_WITHIN_HEARTBEATS * self._state.timing.heartbeat_s
        return min(leadership.round_due_s, self._tell_due_s)

    def _told_all(self, last_index: int) -> None:
        """The peers that can take them have everything up to here, and know what is committed."""
        self._sent_index, self._told, self._tell_due_s = last_index, self._state.commit, NEVER

    def _is_watched(self) -> bool:
        return any(progress.watched for progress in self._leadership.peers.values())

    def _others_go_on(self) -> bool:
        """Whether a quorum of others has durably the entry for which this leader's disk is waited for."""
        wanted = self._log.durable_index + 1
        return self._state.has_quorum({peer for peer, p in self._leadership.peers.items() if p.match >= wanted})

    def _reachable(self) -> list[tuple[str, Progress]]:
        connected = self._state.connected
        return [(peer, p) for peer, p in self._leadership.peers.items() if peer in connected and not p.distrusted]

    def _send_records(self, peer: str, progress: Progress) -> bool:
        """Send the peer the records that it lacks, as far as :mod:`.leadership` allows; whether anything went out."""
        log, sent = self._log, False
        takes_more = progress.sending is Sending.REPLICATE and progress.shortage < FULL
        while takes_more and progress.next <= log.last_index and not progress.full:
            room = IN_FLIGHT_BYTES_MAX - progress.traffic.bytes
            if room <= 0 < progress.in_flight_bytes:
                break
            previous = progress.next - 1
            previous_term = log.term_at(previous)
            if previous_term is None:
                self._want_snapshot(peer, progress)
                return sent
            records = log.records(progress.next, min(max(room, _APPEND_BYTES_LEAST), APPEND_BYTES_MAX))
            self._append(peer, previous, previous_term, records)
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
        previous_term = self._log.term_at(previous)
        if previous_term is None:
            if progress.sending is not Sending.SNAPSHOT:
                self._want_snapshot(peer, progress)
            previous, previous_term = self._log.last_index, self._log.last_term
        self._append(peer, previous, previous_term, [], sleep=sleep)

    def _append(
        self, peer: str, previous: int, previous_term: int, records: list[bytes], *, sleep: bool = False
    ) -> None:
        state = self._state
        append = Append(
            state.term,
            previous,
            previous_term,
            state.commit,
            self._leadership.round,
            records,
            sleep,
            int(state.timing.lease_s * 1000),
        )
        self._host.send(peer, append)

    def say_good_night(self) -> None:
        """Tell every peer that no heartbeats will follow until something happens."""
        for peer, progress in self._leadership.peers.items():
            self._send_empty(peer, progress, sleep=True)

    def peer_connected(self, peer: str) -> None:
        """Messages reach this peer again."""
        progress = self._leadership.peers.get(peer)
        if progress is not None:
            if progress.sending is not Sending.PROBE:  # what was sent, records or a snapshot, may be lost
                progress.probe_from(self._log.last_index + 1)
            progress.paused = False
            self._leadership.hasten(self._host.now())

    # --- snapshots ---------------------------------------------------------------------------------------

    def _want_snapshot(self, peer: str, progress: Progress) -> None:
        progress.wait_for_snapshot()
        if not progress.shortage:
            self._host.snapshot_wanted(peer)

    def snapshot_streamed(self, peer: str, message: Snapshot) -> None:
        """The peer has all of a snapshot's bytes: have it install them."""
        progress = self._leadership.peers.get(peer)
        if self._state.role == LEADER and progress is not None and progress.sending is Sending.SNAPSHOT:
            progress.snapshot = Snapshot(
                self._state.term, message.index, message.index_term, message.configuration, message.stream
            )
            self._host.send(peer, progress.snapshot)

    def order_rebuilding(self, peer: str, message: Snapshot) -> None:
        """A peer that lacks nothing of the log has all of a snapshot's bytes: have it install them in place of a state
        that is wrong. If the order gets lost, a later comparison finds that the state is wrong still."""
        if self._state.role == LEADER and peer in self._leadership.peers:
            self._host.send(peer, msgspec.structs.replace(message, term=self._state.term))
            self._host.wake()

    def snapshot_failed(self, peer: str, why: str = "") -> None:
        """Streaming broke off: begin again when the peer answers."""
        progress = self._leadership.peers.get(peer)
        if progress is not None:
            progress.obstacle = why
        if progress is not None and progress.sending is Sending.SNAPSHOT:
            progress.probe_from(self._log.last_index + 1)
            progress.paused = True

    # --- replies -----------------------------------------------------------------------------------------

    def on_append_reply(self, peer: str, message: AppendReply, now: float) -> None:
        """A peer acknowledges, or rejects, an append."""
        state, log = self._state, self._log
        if message.term > state.term:
            self._elections.follow(message.term)
            return
        progress = self._leadership.peers.get(peer)
        if message.term < state.term or state.role != LEADER or progress is None or progress.distrusted:
            return
        progress.heard_s = now
        progress.refuses = False
        progress.watched = message.watched
        progress.unapplied = message.unapplied
        if 0 <= message.rejected <= progress.match and message.probe > progress.acknowledged_in:
            self._distrust(peer, progress, message.rejected)
            return
        was_short, progress.shortage = progress.shortage, message.shortage
        if message.shortage:
            self._activity.wake_up()  # in its sleep the leader would not hear that there is room again
        if self._leadership.confirm(progress, message):
            self._reads.release()
        if message.match > log.last_index or message.agreed > log.last_index:
            raise UnsafeStateError(f"{state.name}: {peer} acknowledges {message.match}, {message.agreed} of ours")
        matched = progress.matched(message.match)
        if matched:
            progress.acknowledged_in = max(progress.acknowledged_in, message.probe)
        if progress.sending is Sending.SNAPSHOT:
            if message.agreed >= log.base_index:  # it has installed one, or never needed it
                progress.replicate_from(message.agreed + 1)
            elif progress.snapshot is not None and message.agreed >= progress.snapshot.index:
                self._want_snapshot(peer, progress)  # it has, but what follows it was dropped meanwhile
            elif was_short and not progress.shortage and progress.snapshot is None:
                self._want_snapshot(peer, progress)  # it has had no room for one
        elif message.rejected >= 0:
            self._rejected(progress, message)
        elif progress.sending is Sending.PROBE:
            progress.replicate_from(message.agreed + 1)
        if matched:
            self.advance_commit()
        if progress.next <= log.last_index and peer in state.connected:
            self._send_records(peer, progress)

    def _distrust(self, peer: str, progress: Progress, rejected: int) -> None:
        """The peer lacks an entry, and has heard of a newer round since it acknowledged it. So it had the entry durably
        in this very leadership: it runs on an older copy of its data directory, or its disk lies."""
        event(
            log_events.REPLICA_LOST_DATA,
            group=self._state.name,
            peer=peer,
            acknowledged=progress.match,
            rejected=rejected,
            remedy=JOIN_ANEW,
        )
        progress.distrust()

    def _rejected(self, progress: Progress, message: AppendReply) -> None:
        if message.rejected <= progress.match:
            return  # an old reply
        if progress.sending is Sending.PROBE and message.rejected != progress.next - 1:
            return  # to an older probe
        index, _ = self._log.last_index_of_term_up_to(message.hint_index, message.hint_term)
        progress.probe_from(min(message.rejected, index + 1))

    def advance_commit(self) -> None:
        """The highest entry of this term that is durable on a quorum is committed, and all before it."""
        state, log = self._state, self._log
        if state.role != LEADER:
            return
        durable = log.durable_index if log.hard_state_durable else 0
        index = self._leadership.of_quorum(durable, _match)
        if index > state.commit and log.term_at(index) == state.term:
            state.set_commit(index)
            if state.applied < state.applicable:
                self._host.committed()
            if state.role == LEADER and not state.is_voter and log.configuration_index <= state.commit:
                # The removal of this leader is committed. Its peers learn that from the next leader.
                self._leave()
