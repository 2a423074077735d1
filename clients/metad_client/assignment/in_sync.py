"""What the leader of a partition by in-sync replicas knows: who follows how far, which records are acknowledged, and
whom it proposes to be in sync. Pure: no request is sent here, and time is an argument.

The rules are those of *By in-sync replicas* in :mod:`metad_wire.tables.assignment`, and each is needed: without one of
them an acknowledged record can be lost.
"""

from __future__ import annotations

from typing import NamedTuple

from metad_wire.messages import Owner
from metad_wire.tables.assignment import Partition

from ..errors import InvalidRequestError, NoReplicaError

LAG_S = 10.0
"""A follower that has not been at the end for so long is no longer in sync."""


class _Follower(NamedTuple):
    """As it fetched last."""

    life: Owner
    position: int
    level_s: float
    """When it had everything last that the log had at that moment."""
    end: int
    """Of the log, at this fetch."""
    at_s: float


class InSyncReplicas:
    """The replicas of one partition, for the broker that leads it in one ``leader_epoch``.

    The broker says what happens: :meth:`appended`, :meth:`fetched`. It acknowledges the records before
    :attr:`high_watermark`. :meth:`proposal` says whom to propose; :class:`.serving.Led` sends that.
    """

    def __init__(self, record: Partition, me: Owner, end: int, now_s: float, lag_s: float = LAG_S) -> None:
        """``end``: how many records the log has as the leadership begins."""
        if record.leader != me:
            raise InvalidRequestError(f"{me.broker} does not lead partition {record.partition} in this life")
        self._me = me
        self._lag_s = lag_s
        self._followers: dict[str, _Follower] = {}
        self._pending: list[Owner] = []
        self._doubted: set[str] = set()
        self._started_s = now_s
        self.record = record
        """The newest record that is known."""
        self.start = end
        """Where the records of this ``leader_epoch`` begin."""
        self.end = end
        self.high_watermark = 0
        """The records before it are acknowledged. It only grows."""
        self._advance()  # who is in sync alone has all that was acknowledged

    def __repr__(self) -> str:
        return f"<in sync: {', '.join(sorted(self.isr))}; {self.high_watermark} of {self.end} acknowledged>"

    @property
    def isr(self) -> set[str]:
        """The brokers in sync, by the record."""
        return {member.broker for member in self.record.isr}

    @property
    def is_enough(self) -> bool:
        """Whether ``min_isr`` are in sync. While they are not, nothing is acknowledged: refuse what is to be appended,
        before it is."""
        return len(self.record.isr) >= self.record.min_isr

    @property
    def waited_for(self) -> set[str]:
        """The brokers that must have a record before it is acknowledged: those in sync, and those proposed."""
        return self.isr | self._doubted | {member.broker for member in self._pending}

    # --- what happens -----------------------------------------------------------------------------------------

    def appended(self, end: int) -> int:
        """The log has so many records now. Returns the high watermark."""
        if end < self.end:
            raise InvalidRequestError(f"the log of a leader only grows: it has {self.end} records, not {end}")
        self.end = end
        return self._advance()

    def fetched(self, follower: Owner, position: int, now_s: float) -> int:
        """A follower, in the life that its fetch names, has the records before ``position``, by its fetch under this
        ``leader_epoch``. Returns the high watermark. Raises NoReplicaError."""
        if follower.broker not in self.record.replicas or follower.broker == self._me.broker:
            raise NoReplicaError(
                f"{follower.broker} has no replica of partition {self.record.partition} to follow with"
            )
        known = self._followers.get(follower.broker)
        if known is not None and follower.broker_epoch < known.life.broker_epoch:
            raise NoReplicaError(
                f"epoch {follower.broker_epoch} of {follower.broker} is over: a later life has fetched"
            )
        level_s = now_s
        if position < self.end and known is not None and known.life == follower:
            level_s = known.at_s if position >= known.end else known.level_s
        self._followers[follower.broker] = _Follower(follower, position, level_s, self.end, now_s)
        return self._advance()

    def learned(self, record: Partition) -> int:
        """The record is so now, as a watch or a read shows it. Returns the high watermark."""
        if record.partition_epoch > self.record.partition_epoch and record.leader_epoch == self.record.leader_epoch:
            self.record = record
            self._pending, self._doubted = [], set()  # proposed with a lower partition_epoch: void, or in this record
            for gone in self._followers.keys() - {*record.replicas}:
                del self._followers[gone]
        return self._advance()

    # --- proposals --------------------------------------------------------------------------------------------

    def proposal(self, now_s: float) -> list[Owner] | None:
        """Who should be in sync, and is not by the record; None if nothing is to be proposed now. It counts as sent
        until :meth:`refused` or :meth:`doubted`, or until :meth:`learned` brings a newer record."""
        if self._pending:
            return None
        wanted = [self._me]
        for member in self.record.isr:
            if member.broker != self._me.broker and self._stays(member, now_s):
                wanted.append(member)
        inside = {member.broker for member in wanted}
        for name, follower in self._followers.items():
            came = name not in self.isr or follower.life not in self.record.isr
            if came and name not in inside and follower.position >= max(self.high_watermark, self.start):
                wanted.append(follower.life)
        if {*wanted} == {*self.record.isr} and not self._doubted:
            return None  # in doubt, the same is proposed: any newer record says what came of the others
        self._pending = wanted
        return wanted

    def _stays(self, member: Owner, now_s: float) -> bool:
        follower = self._followers.get(member.broker)
        if follower is None:
            return now_s - self._started_s < self._lag_s
        return follower.life == member and (follower.position >= self.end or now_s - follower.level_s < self._lag_s)

    def refused(self, ineligible: bool = False) -> int:
        """The proposal was refused, for certain, and not for a newer record. ``ineligible``: somebody whom it added is
        over: what is known of those is forgotten until they fetch again. Returns the high watermark."""
        if ineligible:
            for added in {member.broker for member in self._pending} - self.isr:
                self._followers.pop(added, None)
        self._pending = []
        return self._advance()

    def doubted(self) -> None:
        """The proposal was accepted, or its answer is lost, or there is a newer record: only that says who is in sync.
        An answer that it was accepted is no reason to believe anything: metad may have decided more in the same entry.
        Until a newer record is learned all that were proposed are waited for, and the next look proposes again."""
        self._doubted |= {member.broker for member in self._pending}
        self._pending = []

    @property
    def in_doubt(self) -> bool:
        """Whether only a newer record says who is in sync."""
        return bool(self._doubted)

    def _advance(self) -> int:
        """Acknowledge what everybody has who is waited for, if enough are in sync."""
        if self.is_enough:
            reached = self.end
            for name in self.waited_for - {self._me.broker}:
                follower = self._followers.get(name)
                reached = min(reached, 0 if follower is None else follower.position)
            self.high_watermark = max(self.high_watermark, reached)
        return self.high_watermark
