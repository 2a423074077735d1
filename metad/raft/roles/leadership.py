"""What a leader knows: of each peer's log, what it may send it, its rounds of heartbeats,
and its first entry."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeVar

from ..base import NEVER, ROOM, Traffic
from ..messages import AppendReply, Snapshot
from ..state import ReplicaState
from .clocks import Clocks

IN_FLIGHT_MESSAGES_MAX = 64
IN_FLIGHT_BYTES_MAX = 4 * 1024 * 1024
"""To a peer, of all groups together. A slow path takes most of a second for it, in which no answer to a ping comes
back, and a follower that catches up writes it in one turn of its loop."""


class Sending(Enum):
    """The three ways to bring a peer's log up to date."""

    PROBE = "probe"
    """Where the logs agree is not known: one empty append at a time."""
    REPLICATE = "replicate"
    """They agree: records are pipelined."""
    SNAPSHOT = "snapshot"
    """What the peer needs is no longer in the log: nothing but heartbeats until it has a snapshot."""


class Progress:
    """One peer, as its leader sees it."""

    __slots__ = (
        "_in_flight",
        "acknowledged_in",
        "distrusted",
        "echoed",
        "heard_s",
        "in_flight_bytes",
        "lease_until_s",
        "match",
        "next",
        "obstacle",
        "paused",
        "refuses",
        "sending",
        "shortage",
        "snapshot",
        "traffic",
        "unapplied",
        "watched",
    )

    def __init__(self, next_index: int, now_s: float, traffic: Traffic) -> None:
        self.traffic = traffic
        self.sending = Sending.PROBE
        self.next = next_index
        self.match = 0
        """Durable there, and equal to ours."""
        self.acknowledged_in = 0
        """The number of the newest round that the peer had heard of when it acknowledged :attr:`match`."""
        self.distrusted = False
        """It has lost what it acknowledged: nothing it says is counted, and nothing is sent to it."""
        self.paused = False
        """A probe is under way."""
        self.heard_s = now_s
        self.refuses = False
        """Its host has refused to be dialled since it was last heard."""
        self.lease_until_s = float("-inf")
        """Until when the peer votes for nobody else: the promise it gave, counted from the beginning of the round that
        it echoed with it."""
        self.watched = False
        """It wants to hear of a commit soon."""
        self.unapplied = 0
        """Entries that it had yet to apply when it was last heard."""
        self.shortage = ROOM
        """How its disk was when it was last heard."""
        self.obstacle = ""
        """Why it could not get the snapshot that it needs, when that was tried last."""
        self.echoed = 0
        """The number of the newest round that the peer has echoed. Reads wait for it."""
        self.in_flight_bytes = 0
        self.snapshot: Snapshot | None = None
        """The streamed one that it is to install."""
        self._in_flight: deque[tuple[int, int]] = deque()  # (last index, bytes) of appends without a reply

    @property
    def full(self) -> bool:
        """No more messages may be sent before a reply."""
        return len(self._in_flight) >= IN_FLIGHT_MESSAGES_MAX

    def sent(self, last_index: int, size: int) -> None:
        """Records up to ``last_index`` went out."""
        self._in_flight.append((last_index, size))
        self.in_flight_bytes += size
        self.traffic.bytes += size
        self.next = last_index + 1

    def matched(self, match: int) -> bool:
        """The peer has everything up to ``match``. True if that is news."""
        in_flight = self._in_flight
        while in_flight and in_flight[0][0] <= match:
            _, size = in_flight.popleft()
            self.in_flight_bytes -= size
            self.traffic.bytes -= size
        if match <= self.match:
            return False
        self.match = match
        self.next = max(self.next, match + 1)
        return True

    def distrust(self) -> None:
        """What the peer acknowledged it does not have any more. It may have forgotten what it has promised, too."""
        self.distrusted = True
        self.match = 0
        self.lease_until_s = float("-inf")

    def probe_from(self, next_index: int) -> None:
        """Find out again where the logs agree, beginning before ``next_index``."""
        self.sending = Sending.PROBE
        self.next = max(next_index, self.match + 1)
        self.forget()

    def replicate_from(self, next_index: int) -> None:
        """The logs agree before ``next_index``."""
        self.obstacle = ""
        self.sending = Sending.REPLICATE
        self.next = max(next_index, self.match + 1)
        self.forget()

    def wait_for_snapshot(self) -> None:
        """Only a snapshot can help."""
        self.sending = Sending.SNAPSHOT
        self.forget()

    def forget(self) -> None:
        """Wait for no reply to what was sent."""
        self.paused = False
        self.snapshot = None
        self._in_flight.clear()
        self.traffic.bytes -= self.in_flight_bytes
        self.in_flight_bytes = 0


ROUNDS_REMEMBERED: Final = 256
"""Rounds whose beginning is known. A peer that echoes an older one has been cut off for long, and renews no lease."""

Number = TypeVar("Number", int, float)


@dataclass(eq=False, slots=True)
class Leadership:
    """The rules of a leader share this. It has no peers while the replica does not lead."""

    _state: ReplicaState
    _clocks: Clocks
    _traffic: Callable[[str], Traffic]
    peers: dict[str, Progress] = field(default_factory=dict)
    first_index: int = 0
    """The index of the leader's first entry. Once it is applied, the state machine holds everything that was committed
    before."""
    round: int = 0
    """The number of the newest round of heartbeats; numbers begin anew with each leadership."""
    round_due_s: float = NEVER
    """When the next round begins."""
    _rounds: deque[tuple[int, float]] = field(default_factory=deque)  # (number, when it began)
    _timed_from: int = 0  # rounds before this one began at a time that says nothing any more
    _excused_until_s: float = float("-inf")
    _sure_from: int = 0  # a round: once a quorum has echoed it, the replica is known to lead still; 0: it is known

    def begin(self, now: float) -> None:
        """The replica has been elected."""
        self.round = self._timed_from = self._sure_from = 0
        self.round_due_s = now
        self.first_index = self._state.log.last_index + 1
        self.fit(now)

    def end(self) -> None:
        """The replica leads no longer."""
        for progress in self.peers.values():
            progress.forget()
        self.peers.clear()
        self.round_due_s = NEVER
        self._rounds.clear()

    def fit(self, now: float) -> None:
        """Add and remove peers, so that they are the other members of the configuration."""
        state, peers = self._state, self.peers
        others = [member for member in state.configuration.members if member != state.node_id]
        for peer in [peer for peer in peers if peer not in others]:
            peers.pop(peer).forget()
        for peer in others:
            if peer not in peers:
                peers[peer] = Progress(state.log.last_index + 1, now, self._traffic(peer))

    # --- quorums -----------------------------------------------------------------------------------------

    def heard_quorum(self, now: float) -> bool:
        """Whether a quorum has answered lately. Silence is no failure for long; a peer whose host refuses to be dialled
        is waited for no longer than its promise lasts."""
        if now < self._excused_until_s:
            return True
        timing = self._state.timing
        heard = {
            peer
            for peer, progress in self.peers.items()
            if now - progress.heard_s <= (timing.lease_s if progress.refuses else timing.step_down_s)
        }
        return self._state.has_quorum(heard | {self._state.node_id})

    def refused(self, peer: str) -> None:
        """The host of a peer refuses to be dialled: the peer may be dead."""
        progress = self.peers.get(peer)
        if progress is not None:
            progress.refuses = True

    def excuse(self, now: float) -> None:
        """Give the peers two more heartbeats: this node was late, and what they have sent is yet to be read. Others may
        lead by now, so the replica does not name itself until a round is echoed that begins at once."""
        self._excused_until_s = now + 2 * self._state.timing.heartbeat_s
        self._sure_from = self.round + 1
        self.hasten(now)

    def named_leader(self) -> str | None:
        """Whom to name to those who ask who leads. A leader that stood still names nobody before it knows that it leads
        still."""
        return None if self._sure_from and self.peers else self._state.leader

    def of_quorum(self, own: Number, of: Callable[[Progress], Number]) -> Number:
        """The highest value that a quorum of voters has reached; ``own`` is this leader's."""
        node_id, peers, configuration = self._state.node_id, self.peers, self._state.configuration
        reached = sorted(
            [own if voter == node_id else of(peers[voter]) for voter in configuration.voters], reverse=True
        )
        return reached[configuration.quorum() - 1]

    # --- rounds ------------------------------------------------------------------------------------------

    def hasten(self, now: float) -> None:
        """Begin the next round in the next turn."""
        self.round_due_s = now

    def begin_round(self, now: float) -> None:
        """Give the heartbeats that are about to be sent the next number."""
        self.compare_clocks()
        self.round_due_s = now + self._state.timing.heartbeat_s
        self.round += 1
        self._rounds.append((self.round, now))
        if len(self._rounds) > ROUNDS_REMEMBERED:
            self._rounds.popleft()

    def confirm(self, progress: Progress, message: AppendReply) -> bool:
        """Note the round that a peer echoes, and the promise that comes with it. Returns whether the echo is news."""
        number, rounds = message.probe, self._rounds
        if not 0 < number <= self.round:
            return False
        if number >= max(rounds[0][0], self._timed_from):  # one whose beginning is not known renews no lease
            began_s = rounds[number - rounds[0][0]][1]
            until_s = began_s + message.promise_ms / 1000 * (1 - self._state.timing.drift)
            progress.lease_until_s = max(progress.lease_until_s, until_s)
        if number <= progress.echoed:
            return False
        progress.echoed = number
        if self._sure_from and self.quorum_echoed() >= self._sure_from:
            self._sure_from = 0
        return True

    def quorum_echoed(self) -> int:
        """The newest round that a quorum has echoed. The proof are numbers and not times: the beginnings of only the
        newest rounds are remembered, and a forgotten round must prove nothing."""
        return self.of_quorum(self.round, lambda progress: progress.echoed)

    def compare_clocks(self) -> None:
        """Give up all leases if time has passed unnoticed, until a round that begins from now on is answered."""
        if self._clocks.have_come_apart():
            self._timed_from = self.round + 1
            for progress in self.peers.values():
                progress.lease_until_s = float("-inf")

    def lease_until_s(self) -> float:
        """The time until which nobody else can lead: a quorum, this leader included, votes for nobody else before."""
        self.compare_clocks()
        return self.of_quorum(NEVER, lambda progress: progress.lease_until_s)
