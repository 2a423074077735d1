"""Elections: pre-vote, votes that count only once durable, stickiness, check-quorum, hand-over (Raft §5.2, §5.4.1,
dissertation §3.10, §4.2.3, §9.6).

- A replica asks first whether it *would* be elected (pre-vote), so one that was cut off does not raise the term.
- Nobody votes, or says it would, while its leader is alive: heard within the voter's own election timeout. Each reply
  to the leader says how long that is, and leases rest on it; so it is stored, and after a start nobody votes for as
  long as the life before may have promised. A hand-over at the leader's wish is the exception.
- A vote leaves the node, and a candidate's own vote counts, once term and vote are durable.
- Votes are a set of voters of the current configuration, so a duplicate counts once and a stranger not at all.
- A leader that has not heard from a quorum within the longest election timeout steps down.
- A leader whose disk hangs hands over to the others, who go on without it, and campaigns no more while it does.
"""

from __future__ import annotations

from typing import Final

from .base import CANDIDATE, FOLLOWER, LEADER, NEVER, RaftState
from .messages import AnyMessage, PreVote, PreVoteReply, TimeoutNow, Vote, VoteReply

DISK_ELECTIONS: Final = 4
"""Election timeouts after which a disk that has made nothing durable hangs. Disks do take a second now and then, and to
change the leader for that would cost more."""


class Elections(RaftState):
    """Who leads."""

    def _prepare(self) -> None:
        super()._prepare()
        self._would_vote: set[str] | None = None  # while asking; None: not asking
        self._votes: set[str] = set()
        self._waiting_for_disk: list[tuple[int, str, AnyMessage]] = []  # (term, peer, message)
        self._campaign_at_peers_wish = False
        self._own_vote_due = False
        self._promised_until_s = float("-inf")
        self._disk_waited_s = 0.0  # since when the disk owes something and has done nothing
        self._disk_seen = 0  # the durable index then
        self._turned_s = self.host.now()

    def _started(self) -> None:
        super()._started()
        now = self.host.now()
        # As if a leader had been heard just now: a lease may rest on what this replica promised before it restarted.
        self._heard_leader(now)
        self._promised_until_s = max(self._promised_until_s, now + self.log.promise_ms / 1000)
        self._set_election_deadline(max(self.election_deadline_s, self._promised_until_s))
        if self.log.promise_ms != self._own_promise_ms:
            self.log.promise(self._own_promise_ms)
        if self.log.configuration.voters == (self.node_id,):  # nobody to wait for, and nobody who could hold a lease
            self._promised_until_s = now
            self._set_election_deadline(now)

    # --- time --------------------------------------------------------------------------------------------

    def _postpone_election(self, now: float) -> None:
        election_s = self.timing.election_s
        self._set_election_deadline(now + election_s * (1 + self.rng.random()))

    def _heard_leader(self, now: float) -> None:
        """There is a leader: vote for nobody else for as long as promised."""
        self._promised_until_s = max(self._promised_until_s, now + self._own_promise_ms / 1000)
        self._postpone_election(now)

    @property
    def _own_promise_ms(self) -> int:
        return int(self.timing.election_s * 1000)

    def _promise_ms(self) -> int:
        """What a reply may promise: nothing before it is stored, for a restart must keep it."""
        return self._own_promise_ms if self.log.hard_state_durable else 0

    def _election_turn(self, now: float) -> float:
        """What a follower or candidate does when its time has come. Returns when to look again."""
        if not self.may_campaign:
            return NEVER
        if now >= self.election_deadline_s:
            self._postpone_election(now)
            # A candidate is a voter too: it keeps what it has promised its leader, and its vote has to be durable.
            if now >= self._promised_until_s and not self.disk_hangs:
                self._ask()
        return self.election_deadline_s

    def excuse(self, now: float) -> None:
        """Give the leader one more heartbeat: this node, not the leader, was late."""
        self._set_election_deadline(max(self.election_deadline_s, now + 2 * self.timing.heartbeat_s))

    # --- the disk ----------------------------------------------------------------------------------------

    def _watch_disk(self, now: float) -> None:
        """Count for how long the disk has done nothing of what it owes. A turn counts for no more than two heartbeats:
        who was suspended cannot tell what the disk has done meanwhile."""
        passed_s, self._turned_s = min(now - self._turned_s, 2 * self.timing.heartbeat_s), now
        log = self.log
        if log.durable_index != self._disk_seen or (log.durable_index == log.last_index and log.hard_state_durable):
            self._disk_seen = log.durable_index
            self._disk_waited_s = 0.0
        else:
            self._disk_waited_s += passed_s

    @property
    def disk_hangs(self) -> bool:
        """Whether this replica's disk has made nothing durable for long, although something waits for it."""
        return self._disk_waited_s > DISK_ELECTIONS * self.timing.election_s

    # --- asking ------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Would the others elect this replica?"""
        self._set_leader(None)
        if self.role == CANDIDATE:
            self._set_role(FOLLOWER)
        self._would_vote = {self.node_id}
        if self._has_quorum(self._would_vote):
            self._campaign(transfer=False)
            return
        question = PreVote(self.term + 1, self.log.last_index, self.log.last_term)
        for peer in self.configuration.voters:
            if peer != self.node_id:
                self.host.send(peer, self, question)

    def _campaign(self, *, transfer: bool) -> None:
        self._would_vote = None
        self._set_leader(None)
        self._enter_term(self.term + 1, self.node_id)
        self._set_role(CANDIDATE)
        self._votes = set()
        self._campaign_at_peers_wish = transfer
        self._own_vote_due = True
        self.host.wake(self)

    def _own_vote_durable(self) -> None:
        """The vote for oneself is on the disk: it counts, and the others may be asked."""
        self._own_vote_due = False
        if self.role != CANDIDATE:
            return
        self._votes.add(self.node_id)
        question = Vote(self.term, self.log.last_index, self.log.last_term, self._campaign_at_peers_wish)
        for peer in self.configuration.voters:
            if peer != self.node_id:
                self.host.send(peer, self, question)
        self._count_votes()

    def _count_votes(self) -> None:
        if self._has_quorum(self._votes):
            self._set_role(LEADER)
            self._set_leader(self.node_id)
            self._lead()

    def _has_quorum(self, members: set[str]) -> bool:
        configuration = self.configuration
        return len(members.intersection(configuration.voters)) >= configuration.quorum()

    # --- being asked -------------------------------------------------------------------------------------

    def _leader_alive(self, now: float) -> bool:
        """Whether there is a leader that must not be voted against."""
        if self.role == LEADER:
            return self.asleep or self._heard_quorum(now)
        return self.asleep or now < self._promised_until_s

    def _may_vote(self) -> bool:
        """Not before it has heard from its group: one that was removed and comes back has forgotten entries that it may
        have helped to commit, and must not elect somebody who lacks them."""
        return bool(self.configuration.members)

    def _up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends so holds everything this one does that may be committed."""
        return (last_term, last_index) >= (self.log.last_term, self.log.last_index)

    def _on_pre_vote(self, peer: str, message: PreVote, now: float) -> None:
        granted = (
            message.term > self.term
            and self._may_vote()
            and not self._leader_alive(now)
            and self._up_to_date(message.last_index, message.last_term)
        )
        self.host.send(peer, self, PreVoteReply(message.term if granted else self.term, granted))
        if self.asleep:  # somebody misses its leader
            self.wake_up()

    def _on_pre_vote_reply(self, peer: str, message: PreVoteReply) -> None:
        if not message.granted:
            if message.term > self.term:
                self._follow(message.term, None)
            return
        if self._would_vote is None or message.term != self.term + 1:
            return
        self._would_vote.add(peer)
        if self._has_quorum(self._would_vote):
            self._campaign(transfer=False)

    def _on_vote(self, peer: str, message: Vote, now: float) -> None:
        if message.term < self.term:
            self.host.send(peer, self, VoteReply(self.term, granted=False))
            return
        if not message.transfer and self._leader_alive(now):
            return
        if message.term > self.term:
            self._follow(message.term, None)
        if (
            self.role == FOLLOWER
            and self._may_vote()
            and self.vote in (None, peer)
            and self.leader is None
            and self._up_to_date(message.last_index, message.last_term)
        ):
            if self.vote is None:
                self._enter_term(self.term, peer)
            self._postpone_election(now)
            self._would_vote = None
            self._send_when_durable(peer, VoteReply(self.term, granted=True))
        else:
            self.host.send(peer, self, VoteReply(self.term, granted=False))

    def _on_vote_reply(self, peer: str, message: VoteReply) -> None:
        if message.term > self.term:
            self._follow(message.term, None)
        elif message.granted and message.term == self.term and self.role == CANDIDATE:
            self._votes.add(peer)
            self._count_votes()

    def _on_timeout_now(self, peer: str, message: TimeoutNow) -> None:
        if message.term == self.term and self.leader == peer and self.role == FOLLOWER and self.is_voter:
            self._postpone_election(self.host.now())
            self._campaign(transfer=True)

    # --- what waits for the disk -------------------------------------------------------------------------

    def _send_when_durable(self, peer: str, message: AnyMessage) -> None:
        """Send once the current term and vote are durable; never, if the term has changed by then."""
        if self.log.hard_state_durable:
            self.host.send(peer, self, message)
        else:
            self._waiting_for_disk.append((self.term, peer, message))

    def _hard_state_durable(self) -> None:
        """Term and vote are on the disk."""
        waiting, self._waiting_for_disk = self._waiting_for_disk, []
        for term, peer, message in waiting:
            if term == self.term:
                self.host.send(peer, self, message)
        if self._own_vote_due:
            self._own_vote_durable()

    # --- changing role -----------------------------------------------------------------------------------

    def _follow(self, term: int, leader: str | None) -> None:
        """Become a follower in this term, or stay one."""
        if term > self.term:
            self._enter_term(term, None)
        was = self.role
        self._would_vote = None
        self._own_vote_due = False
        self._set_role(FOLLOWER)
        self._set_leader(leader)
        if was == LEADER:
            self._postpone_election(self.host.now())
            self._abdicated()
        self.host.wake(self)

    def wake_up(self) -> None:
        """Something happened to a sleeping group."""
        raise NotImplementedError

    def _lead(self) -> None:
        """This replica has been elected."""
        raise NotImplementedError

    def _abdicated(self) -> None:
        """It leads no longer."""
        raise NotImplementedError

    def _heard_quorum(self, now: float) -> bool:
        """Whether a quorum answered within the longest election timeout."""
        raise NotImplementedError
