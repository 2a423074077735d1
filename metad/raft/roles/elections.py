"""Elections: pre-vote, votes that count only once durable, stickiness, hand-over (Raft §5.2, §5.4.1, dissertation
§3.10, §4.2.3, §9.6).

- A replica asks first whether it *would* be elected (pre-vote), so one that was cut off does not raise the term.
- A replica does not vote, or say that it would, while it has promised its leader not to. Each reply to the leader names
  that promise, and leases rest on it; so the longest promise is stored, and after a start the replica keeps that of the
  life before. A hand-over at the leader's wish is the exception. A candidate is a voter too.
- Beyond its promise it does not vote either while it takes its leader for alive: heard within the voter's own election
  timeout, and no evidence to the contrary. So one replica's evidence alone deposes nobody.
- Of replicas that ask at the same time, the one with the newest log, or the greatest name, goes on, and the others
  would vote for it: whoever has evidence has it at the same time as the others. Their promises end at different times,
  though. So who is refused while there is evidence asks again soon, which costs nobody a term; and at once, if one of
  the others asks, because that one has no promise left.
- A vote leaves the node, and a candidate's own vote counts, once term and vote are durable.
- Votes are a set of voters of the current configuration, so a duplicate counts once and a stranger not at all.
- A replica whose disk hangs (:class:`..log.journal.DiskWatch`) does not campaign. One whose node is drained waits once
  more than the others.

When a replica acts by itself: the time at which a follower asks for votes, the time until which it votes for nobody
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
from collections.abc import Callable
from dataclasses import dataclass, field

from ..base import CANDIDATE, FOLLOWER, LEADER, NEVER, BoundHost
from ..log.journal import DiskWatch
from ..messages import AnyMessage, PreVote, PreVoteReply, TimeoutNow, Vote, VoteReply
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


@dataclass(eq=False, slots=True)
class Elections:
    """Asks for votes, gives votes, and changes the role. Calls ``_elected`` when the replica has become leader, and
    ``_deposed`` when it leads no longer."""

    _state: ReplicaState
    _host: BoundHost
    _timer: ElectionTimer
    _disk: DiskWatch
    _leadership: Leadership
    _activity: Activity
    _elected: Callable[[], None]
    _deposed: Callable[[], None]
    _would_vote: set[str] | None = None  # while asking; None: not asking
    _votes: set[str] = field(default_factory=set)
    _waiting_for_disk: list[tuple[int, str, AnyMessage]] = field(default_factory=list)  # (term, peer, message)
    _campaign_at_peers_wish: bool = False
    _own_vote_due: bool = False

    # --- asking ------------------------------------------------------------------------------------------

    def turn(self, now: float) -> float:
        """Do what a follower or candidate does when its time has come. Returns when to look again."""
        if not self._state.may_campaign:
            return NEVER
        if now >= self._timer.deadline_s:
            self._timer.asked(now)
            # A candidate is a voter too: it keeps what it has promised its leader, and its vote has to be durable.
            if not self._timer.promises(now) and not self._disk.hangs:
                if self._state.leader is not None and self._host.yields():
                    self._state.set_leader(None)  # the others ask first; if none is elected, this one asks next time
                else:
                    self._ask()
        return self._timer.deadline_s

    def _ask(self) -> None:
        """Ask the others whether they would elect this replica."""
        state = self._state
        state.set_leader(None)
        if state.role == CANDIDATE:
            state.set_role(FOLLOWER)
        self._would_vote = {state.node_id}
        if state.has_quorum(self._would_vote):
            self._campaign(transfer=False)
            return
        self._send_voters(self._question())

    def _question(self) -> PreVote:
        log = self._state.log
        return PreVote(self._state.term + 1, log.last_index, log.last_term)

    def _campaign(self, *, transfer: bool) -> None:
        state = self._state
        self._would_vote = None
        state.set_leader(None)
        state.enter_term(state.term + 1, state.node_id)
        state.set_role(CANDIDATE)
        self._votes = set()
        self._timer.campaigns(self._host.now())
        self._campaign_at_peers_wish = transfer
        self._own_vote_due = True
        self._host.wake()

    def _own_vote_durable(self) -> None:
        """The vote for oneself is on the disk: it counts, and the others may be asked."""
        state = self._state
        self._own_vote_due = False
        if state.role != CANDIDATE:
            return
        self._votes.add(state.node_id)
        self._send_voters(Vote(state.term, state.log.last_index, state.log.last_term, self._campaign_at_peers_wish))
        self._count_votes()

    def _send_voters(self, question: PreVote | Vote) -> None:
        for peer in self._state.configuration.voters:
            if peer != self._state.node_id:
                self._host.send(peer, question)

    def _count_votes(self) -> None:
        if self._state.has_quorum(self._votes):
            self._state.set_role(LEADER)
            self._state.set_leader(self._state.node_id)
            self._elected()

    # --- being asked -------------------------------------------------------------------------------------

    def _leader_alive(self, now: float) -> bool:
        """Whether there is a leader that must not be voted against."""
        if self._state.role == LEADER:
            return self._activity.asleep or self._leadership.heard_quorum(now)
        return self._activity.asleep or self._timer.promises(now) or self._timer.believes(now)

    def _may_vote(self) -> bool:
        """A replica votes once it has heard from its group. A removed replica that comes back has forgotten entries
        that it may have helped to commit, and must not elect a node that lacks them."""
        return bool(self._state.configuration.members)

    def _up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log with this end holds all entries of this log that may be committed."""
        log = self._state.log
        return (last_term, last_index) >= (log.last_term, log.last_index)

    def _goes_before(self, peer: str, message: PreVote) -> bool:
        """Whether this replica asks as well, and the peer is to give way."""
        log = self._state.log
        ours = (log.last_term, log.last_index, self._state.node_id)
        return self._would_vote is not None and ours > (message.last_term, message.last_index, peer)

    def on_pre_vote(self, peer: str, message: PreVote, now: float) -> None:
        """A peer wants to campaign."""
        term = self._state.term
        goes_before = self._goes_before(peer, message)
        granted = (
            message.term > term
            and self._may_vote()
            and not self._leader_alive(now)
            and self._up_to_date(message.last_index, message.last_term)
            and not goes_before
        )
        if granted:
            self._would_vote = None
        self._host.send(peer, PreVoteReply(message.term if granted else term, granted))
        if goes_before:
            self._host.send(peer, self._question())  # it may have refused before, while its promise lasted
        if self._activity.asleep:  # the peer misses its leader
            self._activity.wake_up()

    def on_pre_vote_reply(self, peer: str, message: PreVoteReply) -> None:
        """A peer would vote for this replica, or not."""
        term = self._state.term
        if not message.granted:
            if message.term > term:
                self.follow(message.term)
            return
        if self._would_vote is None or message.term != term + 1:
            return
        self._would_vote.add(peer)
        if self._state.has_quorum(self._would_vote):
            self._campaign(transfer=False)

    def on_vote(self, peer: str, message: Vote, now: float) -> None:
        """A peer campaigns."""
        state = self._state
        if message.term < state.term:
            self._host.send(peer, VoteReply(state.term, granted=False))
            return
        if not message.transfer and self._leader_alive(now):
            return
        if message.term > state.term:
            self.follow(message.term)
        if (
            state.role == FOLLOWER
            and self._may_vote()
            and state.vote in (None, peer)
            and state.leader is None
            and self._up_to_date(message.last_index, message.last_term)
        ):
            if state.vote is None:
                state.enter_term(state.term, peer)
            self._timer.postpone(now)
            self._would_vote = None
            self._send_when_durable(peer, VoteReply(state.term, granted=True))
        else:
            self._host.send(peer, VoteReply(state.term, granted=False))

    def on_vote_reply(self, peer: str, message: VoteReply) -> None:
        """A peer voted for this replica, or not."""
        if message.term > self._state.term:
            self.follow(message.term)
        elif message.granted and message.term == self._state.term and self._state.role == CANDIDATE:
            self._votes.add(peer)
            self._count_votes()

    def on_timeout_now(self, peer: str, message: TimeoutNow) -> None:
        """The leader orders this replica to campaign."""
        state = self._state
        if message.term == state.term and state.leader == peer and state.role == FOLLOWER and state.is_voter:
            self._timer.postpone(self._host.now())
            self._campaign(transfer=True)

    # --- what waits for the disk -------------------------------------------------------------------------

    def _send_when_durable(self, peer: str, message: AnyMessage) -> None:
        """Send once the current term and vote are durable; drop the message if the term changes before."""
        if self._state.log.hard_state_durable:
            self._host.send(peer, message)
        else:
            self._waiting_for_disk.append((self._state.term, peer, message))

    def hard_state_durable(self) -> None:
        """Term and vote are on the disk."""
        waiting, self._waiting_for_disk = self._waiting_for_disk, []
        for term, peer, message in waiting:
            if term == self._state.term:
                self._host.send(peer, message)
        if self._own_vote_due:
            self._own_vote_durable()

    # --- changing role -----------------------------------------------------------------------------------

    def follow(self, term: int) -> None:
        """Become a follower in this term, or stay one; the leader is not known yet."""
        state = self._state
        if term > state.term:
            state.enter_term(term, None)
        was = state.role
        self._would_vote = None
        self._own_vote_due = False
        state.set_role(FOLLOWER)
        state.set_leader(None)
        if was == LEADER:
            self._timer.postpone(self._host.now())
            self._deposed()
        self._host.wake()

    def obey(self, leader: str) -> None:
        """This node leads the term: ask nobody for votes."""
        self._state.set_leader(leader)
        self._would_vote = None
