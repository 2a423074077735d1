"""Membership, one replica at a time, and handing leadership over (dissertation §4.1-4.2, §3.10).

A configuration takes effect when it is in the log. It changes only when the one before is committed, and only once the
leader has committed an entry of its own term; so any two majorities that decide anything overlap. A replica comes in as
a learner, which has no vote, and is promoted when it has caught up. A leader that is removed leads until its removal is
committed, without counting itself. A removed replica does no harm: its pre-votes meet a living leader.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ..base import LEADER, NEVER, BoundHost
from ..log.journal import CONFIGURATION, record
from ..messages import Configuration, TimeoutNow
from ..state import ReplicaState
from .elections import Activity, ElectionTimer
from .leadership import Leadership, Sending
from .reads import Reads

_encode = msgspec.msgpack.Encoder().encode
CAUGHT_UP_ENTRIES = 64
"""A learner that lacks no more than this may be promoted."""
REST_ELECTIONS = 10
"""Election timeouts from a hand-over that was given up for lack of time to the next. A successor that fell behind under
load is behind a second later, too, and each attempt stops the group."""


class ChangeRefusedError(Exception):
    """The change cannot be begun now, and nothing was done. The text says why."""


@dataclass(eq=False, slots=True)
class Transfer:
    """Hands leadership over at the leader's wish."""

    _state: ReplicaState
    _host: BoundHost
    _leadership: Leadership
    _activity: Activity
    _reads: Reads
    _target: str | None = None
    _until_s: float = NEVER
    _ordered: bool = False
    _rests_until_s: float = float("-inf")

    @property
    def under_way(self) -> bool:
        """Whether leadership is being handed over."""
        return self._target is not None

    def begin(self, target: str) -> None:
        """Hand leadership to a voter: take no more entries, bring it up to date, have it campaign. If it is not up to
        date within the time of a lease, does not lead within another election timeout, or cannot be reached any more,
        go on leading. Raises ChangeRefusedError."""
        state = self._state
        if state.role != LEADER:
            raise ChangeRefusedError(f"this replica does not lead {state.name}")
        if target == state.node_id:
            return
        if target not in state.configuration.voters:
            raise ChangeRefusedError(f"{target} is not a voter of {state.name}")
        if self._target is not None:
            raise ChangeRefusedError(f"{state.name} is being handed over to {self._target} already")
        if state.log.configuration_index > state.commit:
            raise ChangeRefusedError(f"the membership of {state.name} is changing")
        now = self._host.now()
        if now < self._rests_until_s:
            raise ChangeRefusedError(f"{state.name} could not be handed over a moment ago")
        self._target = target
        self._ordered = False
        self._until_s = now + state.timing.lease_s
        self._activity.worked()

    def turn(self, now: float) -> float:
        """Order the successor to campaign once it has everything, or give up. Returns when to look again."""
        target, peers, state = self._target, self._leadership.peers, self._state
        if target is None:
            return NEVER
        if now >= self._until_s or target not in peers or target not in state.connected:
            if now >= self._until_s:
                self._rests_until_s = now + REST_ELECTIONS * state.timing.election_s
            self._target = None
            self._host.role_changed()
            return NEVER
        if not self._ordered and peers[target].match == state.log.last_index:
            self._ordered = True
            self._until_s = now + state.timing.election_s
            self._reads.give_up_lease()  # before the order is sent: it may arrive at any later time
            self._host.send(target, TimeoutNow(state.term))
        return self._until_s

    def end_leadership(self) -> None:
        """The replica leads no longer."""
        self._target = None


@dataclass(eq=False, slots=True)
class Membership:
    """Changes the configuration of the group, and adapts the replica to it."""

    _state: ReplicaState
    _host: BoundHost
    _timer: ElectionTimer
    _leadership: Leadership
    _activity: Activity
    _transfer: Transfer

    def add_learner(self, member: str) -> int:
        """Have a node receive the log. Returns the index that must commit. Raises ChangeRefusedError."""
        now = self._may_change()
        if member in now.members:
            raise ChangeRefusedError(f"{member} is a member of {self._state.name} already")
        return self._change(Configuration(now.voters, tuple(sorted((*now.learners, member)))))

    def promote(self, member: str) -> int:
        """Give a learner that has caught up a vote. Returns the index that must commit. Raises ChangeRefusedError."""
        now, state = self._may_change(), self._state
        if member not in now.learners:
            raise ChangeRefusedError(f"{member} is not a learner of {state.name}")
        progress = self._leadership.peers[member]
        behind = state.log.last_index - progress.match
        if progress.sending is not Sending.REPLICATE or behind > CAUGHT_UP_ENTRIES:
            raise ChangeRefusedError(f"{member} still lacks {behind} entries of {state.name}")
        learners = tuple(learner for learner in now.learners if learner != member)
        return self._change(Configuration(tuple(sorted((*now.voters, member))), learners))

    def remove(self, member: str) -> int:
        """Take a replica out, be it this one. Returns the index that must commit. Raises ChangeRefusedError."""
        now = self._may_change()
        if member not in now.members:
            raise ChangeRefusedError(f"{member} is not a member of {self._state.name}")
        if now.voters == (member,):
            raise ChangeRefusedError(f"{member} is the only voter of {self._state.name}")
        return self._change(
            Configuration(
                tuple(voter for voter in now.voters if voter != member),
                tuple(learner for learner in now.learners if learner != member),
            )
        )

    def _may_change(self) -> Configuration:
        state = self._state
        if state.role != LEADER:
            raise ChangeRefusedError(f"this replica does not lead {state.name}")
        if state.commit < self._leadership.first_index:
            raise ChangeRefusedError(f"the new leader of {state.name} has not committed anything yet")
        if state.log.configuration_index > state.commit:
            raise ChangeRefusedError(f"another change of {state.name} is under way")
        if self._transfer.under_way:
            raise ChangeRefusedError(f"{state.name} is being handed over")
        return state.configuration

    def _change(self, configuration: Configuration) -> int:
        state = self._state
        state.log.append([record(state.term, CONFIGURATION, _encode(configuration))])
        self.changed()
        self._activity.worked()
        return state.log.last_index

    def changed(self) -> None:
        """A new configuration is in the log, or an old one again."""
        state = self._state
        state.set_members(state.configuration.members)
        if state.role == LEADER:
            self._leadership.fit(self._host.now())
        elif not self._activity.asleep:
            self._timer.postpone(self._host.now())
        self._host.configured()
        self._host.wake()
