"""Membership, one replica at a time, and handing leadership over (dissertation §4.1-4.2, §3.10).

A configuration takes effect when it is in the log. One changes only when the one before is committed, and only once the
leader has committed an entry of its own term; so any two majorities that decide anything overlap. A replica comes in as
a learner, which has no vote, and is promoted when it has caught up. A leader that is removed leads until that is
committed, without counting itself, then goes. A removed replica is harmless: its pre-votes meet a living leader.
"""

from __future__ import annotations

import msgspec

from .base import LEADER, NEVER
from .journal import CONFIGURATION, record
from .messages import Configuration, TimeoutNow
from .progress import Progress, Sending
from .reads import Reads

_encode = msgspec.msgpack.Encoder().encode
CAUGHT_UP_ENTRIES = 64
"""A learner that lacks no more than this may be promoted."""


class ChangeRefusedError(Exception):
    """The change cannot be begun now; nothing was done. Says why."""


class Membership(Reads):
    """Who the replicas are, and who of them leads."""

    _transferring: str | None = None
    _transfer_until_s = NEVER
    _transfer_ordered = False

    def add_learner(self, member: str) -> int:
        """Have a node receive the log. Returns the index that must commit."""
        now = self._may_change()
        if member in now.members:
            raise ChangeRefusedError(f"{member} is a member of {self.name} already")
        return self._change(Configuration(now.voters, tuple(sorted((*now.learners, member)))))

    def promote(self, member: str) -> int:
        """Give a learner that has caught up a vote. Returns the index that must commit."""
        now = self._may_change()
        if member not in now.learners:
            raise ChangeRefusedError(f"{member} is not a learner of {self.name}")
        progress = self.peers[member]
        behind = self.log.last_index - progress.match
        if progress.sending is not Sending.REPLICATE or behind > CAUGHT_UP_ENTRIES:
            raise ChangeRefusedError(f"{member} still lacks {behind} entries of {self.name}")
        learners = tuple(learner for learner in now.learners if learner != member)
        return self._change(Configuration(tuple(sorted((*now.voters, member))), learners))

    def remove(self, member: str) -> int:
        """Take a replica out, be it this one. Returns the index that must commit."""
        now = self._may_change()
        if member not in now.members:
            raise ChangeRefusedError(f"{member} is not a member of {self.name}")
        if now.voters == (member,):
            raise ChangeRefusedError(f"{member} is the only voter of {self.name}")
        return self._change(
            Configuration(
                tuple(voter for voter in now.voters if voter != member),
                tuple(learner for learner in now.learners if learner != member),
            )
        )

    def _may_change(self) -> Configuration:
        if self.role != LEADER:
            raise ChangeRefusedError(f"this replica does not lead {self.name}")
        if self.commit < self.no_op_index:
            raise ChangeRefusedError(f"the new leader of {self.name} has not committed anything yet")
        if self.log.configuration_index > self.commit:
            raise ChangeRefusedError(f"another change of {self.name} is under way")
        if self._transferring is not None:
            raise ChangeRefusedError(f"{self.name} is being handed over")
        return self.configuration

    def _change(self, configuration: Configuration) -> int:
        self.log.append([record(self.term, CONFIGURATION, _encode(configuration))])
        self._configuration_changed()
        self._worked()
        return self.log.last_index

    def _configuration_changed(self) -> None:
        self._set_members(self.configuration.members)
        if self.role == LEADER:
            others, now = self._others(), self.host.now()
            for peer in [peer for peer in self.peers if peer not in others]:
                del self.peers[peer]
            for peer in others:
                if peer not in self.peers:
                    self.peers[peer] = Progress(self.log.last_index + 1, now)
        elif not self.asleep:
            self._postpone_election(self.host.now())
        self.host.configured(self)
        self.host.wake(self)

    def _committed(self, index: int) -> None:
        super()._committed(index)
        if self.role == LEADER and not self.is_voter and self.log.configuration_index <= self.commit:
            # The removal of this leader is committed. Its peers learn that from the next leader.
            self._leave_lead()

    def _leave_lead(self) -> None:
        voters = [
            (self.peers[v].match, v) for v in self.configuration.voters if v in self.peers and v in self.connected
        ]
        if voters:
            _, best = max(voters)
            self.host.send(best, self, TimeoutNow(self.term))
        self._follow(self.term, None)

    # --- handing over ------------------------------------------------------------------------------------

    @property
    def accepting(self) -> bool:
        """Whether entries may be proposed: ready, and not about to hand over."""
        return self.ready and self._transferring is None

    def transfer(self, target: str) -> None:
        """Hand leadership to a voter: take no more entries, bring it up to date, have it campaign. If it does not lead
        within two election timeouts, or cannot be reached any more, go on leading. Raises ChangeRefusedError."""
        if self.role != LEADER:
            raise ChangeRefusedError(f"this replica does not lead {self.name}")
        if target == self.node_id:
            return
        if target not in self.configuration.voters:
            raise ChangeRefusedError(f"{target} is not a voter of {self.name}")
        if self._transferring is not None:
            raise ChangeRefusedError(f"{self.name} is being handed over to {self._transferring} already")
        if self.log.configuration_index > self.commit:
            raise ChangeRefusedError(f"the membership of {self.name} is changing")
        self._transferring = target
        self._transfer_ordered = False
        self._transfer_until_s = self.host.now() + 2 * self.timing.election_s
        self._worked()

    def _transfer_turn(self, now: float) -> float:
        target = self._transferring
        if target is None:
            return NEVER
        if now >= self._transfer_until_s or target not in self.peers or target not in self.connected:
            self._transferring = None
            self.host.role_changed(self)
            return NEVER
        if not self._transfer_ordered and self.peers[target].match == self.log.last_index:
            self._transfer_ordered = True
            self._lease_given_up = True  # before the order goes out, which may arrive at any later time
            self.host.send(target, self, TimeoutNow(self.term))
        return self._transfer_until_s

    def _abdicated(self) -> None:
        self._transferring = None
        super()._abdicated()
