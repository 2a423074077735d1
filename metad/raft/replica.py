"""RaftGroup: one replica of one group, the rules put together, without any I/O of its own.

The host drives it from outside: :meth:`RaftGroup.receive` takes a peer's message; ``propose``, ``read``, ``transfer``
and the like take wishes; :meth:`RaftGroup.turn` is called when the replica asked for it or its deadline has passed; the
log's writer tells what became durable. Time, randomness, disk and network all come from the host, so a simulation runs
this very code.

Each rule is an object of its own, which is given the objects it needs, all of them above it in
:meth:`RaftGroup.__init__`. This module holds the order of things: which rule looks at a message, what a turn does, and
what begins and ends with a leadership.
"""

from __future__ import annotations

import random

from .base import FOLLOWER, FULL, LEADER, NEVER, BoundHost, Host, Timing, UnsafeStateError
from .log.journal import REGULAR, DiskWatch, RaftLog, record
from .messages import (
    AnyMessage,
    Append,
    AppendReply,
    Configuration,
    PreVote,
    PreVoteReply,
    Snapshot,
    TimeoutNow,
    Vote,
    VoteReply,
)
from .roles.clocks import Clocks
from .roles.elections import Activity, Elections, ElectionTimer
from .roles.follower import Follower
from .roles.leader import Leader
from .roles.leadership import Leadership
from .roles.membership import CAUGHT_UP_ENTRIES, Membership, Transfer
from .roles.reads import Freshness, Reads
from .state import ReplicaState


class RaftGroup:
    """One replica. See :mod:`metad.raft` for which rule is where."""

    def __init__(
        self,
        node_id: str,
        log: RaftLog,
        host: Host[RaftGroup],
        *,
        timing: Timing,
        rng: random.Random,
        applied: int,
    ) -> None:
        self.group_id = log.group_id
        self.name = log.name
        self.prefix = log.prefix
        self.log = log
        self.deadline_s = NEVER
        """When :meth:`turn` has something to do although nothing happened."""
        self._failed = False
        now = host.now()
        self._host = bound = BoundHost(host, self)
        self._state = state = ReplicaState(log.name, node_id, log, timing=timing, applied=applied)
        self._timer = timer = ElectionTimer(state, rng, now)
        self._disk = disk = DiskWatch(log, timing, now)
        clocks = Clocks(bound, timing.lease_s * timing.drift / 2)
        self._leadership = leadership = Leadership(state, clocks, bound.traffic)
        self._activity = activity = Activity(state, bound, timer, leadership, now)
        self._elections = elections = Elections(
            state, bound, timer, disk, leadership, activity, self._elected, self._deposed
        )
        self._reads = reads = Reads(state, bound, leadership, activity)
        self._transfer = transfer = Transfer(state, bound, leadership, activity, reads)
        self._leader = leader = Leader(state, log, bound, disk, leadership, activity, elections, reads)
        membership = Membership(state, bound, timer, leadership, activity, transfer)
        self._freshness = freshness = Freshness(state, activity, reads, now)
        self._follower = follower = Follower(state, log, bound, timer, activity, elections, membership, freshness)

        # What other layers see, besides the methods of this class. The rules document it.
        self.connected = state.connected
        self.peers = leadership.peers
        self.wake = bound.wake
        self.named_leader = leadership.named_leader
        self.read = reads.read
        self.may_read = reads.may_read
        self.applied_to = reads.applied_to
        self.behind_s = freshness.behind_s
        self.silent_s = freshness.silent_s
        self.transfer = transfer.begin
        self.add_learner = membership.add_learner
        self.promote = membership.promote
        self.remove = membership.remove
        self.snapshot_streamed = leader.snapshot_streamed
        self.snapshot_failed = leader.snapshot_failed
        self.snapshot_installed = follower.snapshot_installed
        self.order_rebuilding = leader.order_rebuilding
        self.rebuild = follower.rebuild
        log.tell_durable(self._log_durable)

    # --- what others see; the rules document it ----------------------------------------------------------

    @property
    def term(self) -> int:
        return self._state.term

    @property
    def vote(self) -> str | None:
        return self._state.vote

    @property
    def role(self) -> int:
        return self._state.role

    @property
    def is_leader(self) -> bool:
        return self._state.role == LEADER

    @property
    def leader(self) -> str | None:
        return self._state.leader

    @property
    def configuration(self) -> Configuration:
        return self._state.configuration

    @property
    def commit(self) -> int:
        return self._state.commit

    @property
    def applicable(self) -> int:
        return self._state.applicable

    @property
    def applied(self) -> int:
        return self._state.applied

    @property
    def asleep(self) -> bool:
        return self._activity.asleep

    @property
    def disk_hangs(self) -> bool:
        return self._disk.hangs

    @property
    def ready(self) -> bool:
        return self._reads.ready

    @property
    def accepting(self) -> bool:
        return self._reads.ready and not self._transfer.under_way

    def lag(self, peer: str) -> int | None:
        """How many entries of this leader's log a peer has yet to store, or to apply: it serves as a leader once it has
        done both. None: it has answered nothing yet, so nobody knows what it has."""
        progress = self.peers.get(peer)
        if progress is None or not progress.match:
            return None
        return max(self.log.last_index - progress.match, progress.unapplied)

    @property
    def may_grow(self) -> bool:
        """Whether this leader may take what needs more room: it has some left, and a quorum of the voters has more than
        the low-water mark. A voter that has not said how its disk is counts as one that has room."""
        short = self.short_of_room()
        return not short or (self._host.shortage() < FULL and self._has_quorum_without(short))

    @property
    def should_leave(self) -> bool:
        """Whether others should lead, because this leader is short of room on its disk and a quorum is not."""
        return bool(self._host.shortage()) and self._has_quorum_without(self.short_of_room())

    def short_of_room(self) -> list[str]:
        """The replicas whose disks are short of room, this leader's too."""
        here = [self._state.node_id] if self._host.shortage() else []
        return here + [peer for peer, progress in self.peers.items() if progress.shortage]

    def _has_quorum_without(self, members: list[str]) -> bool:
        return self._state.has_quorum({*self.configuration.voters} - {*members})

    def watch(self, watched: bool) -> None:
        """Somebody waits for what is applied here, or nobody does."""
        self._state.watch(watched)

    # --- being driven ------------------------------------------------------------------------------------

    def propose(self, payload: bytes) -> int:
        """Append an entry; returns its index. The leader's alone, and nothing is promised before it is applied."""
        if self._state.role != LEADER:
            raise UnsafeStateError(f"{self.name}: proposed to a {self._state.role}")
        self.log.append([record(self._state.term, REGULAR, payload)])
        self._activity.worked()
        return self.log.last_index

    def receive(self, peer: str, message: AnyMessage) -> None:
        """A message from another node of the cluster."""
        if self._failed:
            return
        now = self._host.now()
        try:
            if isinstance(message, Append):
                self._follower.on_append(peer, message, now)
            elif isinstance(message, AppendReply):
                self._leader.on_append_reply(peer, message, now)
            elif isinstance(message, PreVote):
                self._elections.on_pre_vote(peer, message, now)
            elif isinstance(message, PreVoteReply):
                self._elections.on_pre_vote_reply(peer, message)
            elif isinstance(message, Vote):
                self._elections.on_vote(peer, message, now)
            elif isinstance(message, VoteReply):
                self._elections.on_vote_reply(peer, message)
            elif isinstance(message, Snapshot):
                self._follower.on_snapshot(peer, message, now)
            elif isinstance(message, TimeoutNow):
                self._elections.on_timeout_now(peer, message)
        except UnsafeStateError:
            self._failed = True
            raise
        self._host.wake()

    def turn(self) -> None:
        """Do what is due, and say when to be called although nothing happens."""
        if self._failed:
            self.deadline_s = NEVER
            return
        state, activity = self._state, self._activity
        now = self._host.now()
        self._disk.look(now)
        due_s = NEVER if state.role == LEADER else self._elections.turn(now)
        if state.role == LEADER:
            if activity.asleep:
                self._look_for_followers(now)
            if not activity.asleep:
                due_s = min(self._leader.turn(now), self._transfer.turn(now))
                self._sleep_if_idle(now)
            if activity.asleep:
                due_s = activity.look_due_s
        self.deadline_s = due_s

    def _sleep_if_idle(self, now: float) -> None:
        busy = self._state.role != LEADER or self._reads.waiting or self._transfer.under_way
        if not busy and self._activity.idle(now):
            self._say_good_night(now)

    def _look_for_followers(self, now: float) -> None:
        """A leader without followers wakes up, and soon steps down if it stays so."""
        if now < self._activity.look_due_s:
            return
        if self._activity.followed():
            self._say_good_night(now)
        else:
            self._activity.wake_up()

    def _say_good_night(self, now: float) -> None:
        self._activity.say_good_night(now)
        self._leader.say_good_night()

    def compact(self, applied: int) -> None:
        """The durable state holds everything up to ``applied``: drop the log's beginning, but keep its newest part, so
        that a replica that lags a little needs no snapshot."""
        # The last entry stays: a log that ends before the state's applied index shows that it lost its tail.
        self.log.compact(min(applied, self.log.cached_from - 1, self.log.last_index - 1))

    def peer_connected(self, peer: str) -> None:
        """Messages reach this node again, from now on in order."""
        self.connected.add(peer)
        self._leader.peer_connected(peer)
        self._host.wake()

    def peer_lost(self, peer: str) -> None:
        """What was on its way to and from this node is lost."""
        self.connected.discard(peer)
        if peer in self._state.configuration.members:
            self._activity.wake_up()

    def peer_refused(self, peer: str) -> None:
        """The connection to a peer is lost, and its host has refused a new one: evidence that the peer is dead."""
        if self._state.role == LEADER:
            self._leadership.refused(peer)
        elif self._state.leader == peer:
            busy = self._host.crowded() or self._state.unapplied > CAUGHT_UP_ENTRIES
            self._timer.refused(self._host.now(), busy=busy)
        self._host.wake()

    def excuse(self, now: float) -> None:
        """This node was late: what its peers have sent meanwhile is yet to be read."""
        if self._state.role == LEADER:
            self._activity.wake_up()
            self._leadership.excuse(now)
            self._host.wake()
        elif self._state.role == FOLLOWER:
            self._timer.excuse(now)

    # --- the order of things -----------------------------------------------------------------------------

    def _elected(self) -> None:
        self._reads.begin_leadership()
        self._leader.begin_leadership()

    def _deposed(self) -> None:
        self._transfer.end_leadership()
        self._leadership.end()
        self._host.role_changed()
        self._reads.end_leadership()

    def _log_durable(self) -> None:
        """An fsync covered something of the log."""
        state = self._state
        if self.log.hard_state_durable:
            self._elections.hard_state_durable()
        if state.role == LEADER:
            self._leader.advance_commit()
        elif state.role == FOLLOWER:
            self._follower.log_durable()
        if state.applied < state.applicable:
            self._host.committed()
