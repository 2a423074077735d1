"""What a broker does that leads a partition by in-sync replicas. What it knows of its followers, what it acknowledges
and whom it proposes is up to the SDK's helper, which is made anew from a state for each step, and read after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from metad_client.assignment import in_sync
from metad_client.errors import NoReplicaError
from metad_wire.messages import Owner

from .judging import Member, Row, owners, partition

Members = frozenset[Member]
View = tuple[Member | None, int]
_NOW_S = 100.0
_LONG_AGO_S = 0.0
_BASE = 1_000


class Leading(NamedTuple):
    """What a leader knows."""

    leader_epoch: int
    begin: int
    """How many records it had as this leader_epoch began."""
    high: int
    """So many records are acknowledged."""
    fetched: tuple[Member | None, ...]
    """By the follower's number: the life that fetched last, and up to where."""
    asked: Members | None
    """Whom it has proposed with the partition_epoch that it knows."""
    doubted: frozenset[int]
    """Whom it has proposed before with that, and does not know what came of it."""
    partition_epoch: int
    isr: Members
    replicas: tuple[int, ...]
    min_isr: int
    """The last four of the newest record that it knows."""


def leads(me: Member, row: Row) -> bool:
    """Whether a life leads: the record names this one, and no other one of the same broker."""
    return row.leader == me


def may_fetch(leading: Leading, leader: int, view: View) -> bool:
    """Whether a leader serves a follower, which knows this leader and leader_epoch."""
    named, leader_epoch = view
    return named is not None and named[0] == leader and leader_epoch == leading.leader_epoch


def life_of(life: int, registered: int) -> int:
    """The life with which a follower fetches: its own, not the one that is registered by now."""
    return life


class Brokers:
    """All leaders' helpers, with all answers that were asked for."""

    def __init__(self, brokers: int) -> None:
        self._brokers = brokers
        self._answers: dict[Any, Any] = {}

    # --- what happens to a leader ---

    def learnt(self, leading: Leading | None, me: Member, row: Row, length: int) -> Leading | None:
        """What a leader knows once it has learnt a record; None if it does not lead."""
        if not leads(me, row):
            return None
        own = row._replace(leader=me)  # it says so itself
        if leading is None or leading.leader_epoch != row.leader_epoch:
            nothing = (None,) * self._brokers
            begun = Leading(
                row.leader_epoch,
                length,
                0,
                nothing,
                None,
                frozenset(),
                row.partition_epoch,
                row.isr,
                row.replicas,
                row.min_isr,
            )
            return self._after(begun, me, length, ("begin",), lambda replicas: replicas.appended(length))
        by = row.partition_epoch - leading.partition_epoch
        newer = own._replace(partition_epoch=_BASE + by, leader_epoch=_BASE)
        key = "learn", by, newer[3:]
        return self._after(leading, me, length, key, lambda replicas: replicas.learned(partition(newer)))

    def appended(self, leading: Leading, me: Member, length: int) -> Leading:
        """Once its log has so many records."""
        return self._after(leading, me, length - 1, ("append",), lambda replicas: replicas.appended(length))

    def fetched(self, leading: Leading, me: Member, length: int, follower: Member, position: int) -> Leading | None:
        """Once a follower has fetched; None: it is refused."""
        owner = Owner(str(follower[0]), follower[1])

        def fetch(replicas: in_sync.InSyncReplicas) -> None:
            replicas.fetched(owner, position, _NOW_S)

        try:
            return self._after(leading, me, length, ("fetch", follower, position), fetch)
        except NoReplicaError:
            return None

    def proposal(self, leading: Leading, me: Member, length: int, lagging: Members) -> Leading:
        """Once it has looked whom to propose. ``lagging``: the members in sync that have not been at the end for long;
        if one of them has not fetched at all, those that have not either lag, too."""

        def propose(replicas: in_sync.InSyncReplicas) -> None:
            known = replicas._followers
            for broker, _ in lagging:
                if str(broker) in known:
                    known[str(broker)] = known[str(broker)]._replace(level_s=_LONG_AGO_S)
                else:
                    replicas._started_s = _LONG_AGO_S
            replicas.proposal(_NOW_S)

        return self._after(leading, me, length, ("propose", lagging), propose)

    def doubted(self, leading: Leading, me: Member, length: int) -> Leading:
        """Once its proposal was accepted, or met a newer record, or an answer has been waited for in vain."""
        return self._after(leading, me, length, ("doubt",), lambda replicas: replicas.doubted())

    def refused(self, leading: Leading, me: Member, length: int, ineligible: bool) -> Leading:
        """Once its proposal was refused."""
        return self._after(leading, me, length, ("refuse", ineligible), lambda replicas: replicas.refused(ineligible))

    # --- the helper ---

    def _after(
        self,
        leading: Leading,
        me: Member,
        length: int,
        key: tuple[Any, ...],
        do: Callable[[in_sync.InSyncReplicas], object],
    ) -> Leading:
        epoch = leading.partition_epoch
        relative = leading._replace(leader_epoch=_BASE, partition_epoch=_BASE)
        whole = relative, me, length, key
        found = self._answers.get(whole)
        if found is None:
            replicas = _made(relative, me, length)
            do(replicas)
            found = self._answers[whole] = self._read(relative, replicas)
        now = found.partition_epoch + epoch - _BASE
        return found._replace(leader_epoch=leading.leader_epoch, partition_epoch=now)

    def _read(self, before: Leading, replicas: in_sync.InSyncReplicas) -> Leading:
        known = [replicas._followers.get(str(broker)) for broker in range(self._brokers)]
        fetched = tuple(None if one is None else (one.life.broker_epoch, one.position) for one in known)
        pending, record = replicas._pending, replicas.record
        return Leading(
            before.leader_epoch,
            replicas.start,
            replicas.high_watermark,
            fetched,
            _members(pending) if pending else None,
            frozenset(int(broker) for broker in replicas._doubted),
            record.partition_epoch,
            _members(record.isr),
            tuple(int(broker) for broker in record.replicas),
            record.min_isr,
        )


def _members(found: list[Owner]) -> Members:
    return frozenset((int(owner.broker), owner.broker_epoch) for owner in found)


def _made(leading: Leading, me: Member, length: int) -> in_sync.InSyncReplicas:
    row = Row(
        leading.partition_epoch, leading.leader_epoch, me, leading.isr, frozenset(), leading.replicas, leading.min_isr
    )
    owner = Owner(str(me[0]), me[1])
    replicas = in_sync.InSyncReplicas(partition(row), owner, leading.begin, _NOW_S)
    replicas.end, replicas.high_watermark = length, leading.high
    for broker, one in enumerate(leading.fetched):
        if one is not None:
            life, position = one
            replicas._followers[str(broker)] = in_sync._Follower(
                Owner(str(broker), life), position, _NOW_S, length, _NOW_S
            )
    if leading.asked is not None:
        replicas._pending = owners(leading.asked)
    replicas._doubted = {str(broker) for broker in leading.doubted}
    return replicas
