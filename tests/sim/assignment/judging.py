"""A partition's record as a state of a world has it, and the product's rules about it.

The rules are pure, so each answer is kept. Epochs count from ``_BASE`` there: a rule may compare them, and raise them,
and no more. What must hold of every record that is written is checked here, once for each answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from metad.state.assignment import rules
from metad.state.assignment.decide import Hints, Now, decide, settle
from metad.state.cluster.fences import Fence, Fences
from metad_judge.invariants import Violation
from metad_wire.cluster import FenceItem
from metad_wire.errors import MetadError
from metad_wire.messages import Owner
from metad_wire.tables import assignment as a
from metad_wire.tables.assignment import Move, Partition, Report, Resource

Member = tuple[int, int]
"""A broker's number, and the epoch of a life."""
Said = tuple[int, bool, int, int]
"""Of a fence: least_epoch, live, unclean_epoch, quiet_epoch."""
_BASE = 1_000
LATE_MS = 10**9
"""By then whatever waits for a time has waited long enough."""
NEVER = Now(LATE_MS, 0)
LATE = Now(LATE_MS, LATE_MS)


class Row(NamedTuple):
    """Of a record: all but what is for people, and times."""

    partition_epoch: int
    leader_epoch: int
    leader: Member | None
    isr: frozenset[Member]
    elr: frozenset[Member]
    replicas: tuple[int, ...]
    min_isr: int
    state: str = a.ONLINE
    target: int | None = None
    move: tuple[tuple[int, ...], tuple[int, ...], bool] | None = None
    plan: str | None = None
    reports: frozenset[tuple[Member, int, int]] = frozenset()
    """(member, last_epoch, length)."""
    end: int | None = None


def fences_of(said: tuple[Said, ...]) -> Fences:
    """The fences of a group, by the broker's number. Whatever has ended has ended long ago. No subclass: the parts of a
    group are those classes that have none."""
    fences = Fences.__new__(Fences)
    fences._newest = {
        str(broker): Fence(least, 1, 0, bool(live), unclean, quiet)
        for broker, (least, live, unclean, quiet) in enumerate(said)
        if least
    }
    return fences


def merged(old: Said, new: Said) -> Said:
    """The fence that a group has once it is told another one."""
    return _item(old).merged(_item(new)).values


def _item(said: Said) -> FenceItem:
    least, live, unclean, quiet = said
    return FenceItem("", least, live=bool(live), unclean_epoch=unclean, quiet_epoch=quiet)


def resource(election: str, replicas: int, **fields: Any) -> Resource:
    """A resource whose partitions have so many replicas."""
    named: dict[str, Any] = dict.fromkeys(Resource.__struct_fields__)
    named |= {"tenant": "t", "resource": "r", "kind": "k", "resource_id": 1, "partitions": 1, "first_partition": 0}
    named |= {"write_partitions": 1, "replication": replicas, "min_isr": 1, "election": election, "copies": 1}
    named |= {"repair_after_ms": 0, "spread": "none", "labels": {}, "attributes": {}, "state": "active"}
    return Resource(**(named | fields))


def owners(members: Iterable[Member]) -> list[Owner]:
    """As messages have them."""
    return [Owner(str(broker), life) for broker, life in sorted(members)]


def _members(owners: Iterable[Owner]) -> frozenset[Member]:
    return frozenset((int(owner.broker), owner.broker_epoch) for owner in owners)


def _names(brokers: Iterable[int]) -> list[str]:
    return [str(broker) for broker in brokers]


def partition(row: Row, number: int = 0) -> Partition:
    """The record."""
    move = None if row.move is None else Move(_names(row.move[0]), _names(row.move[1]), None, row.move[2])
    reports = [Report(Owner(str(m[0]), m[1]), last, length) for m, last, length in sorted(row.reports)]
    return Partition(
        "t",
        "r",
        "k",
        number,
        1,
        _names(row.replicas),
        None if row.leader is None else Owner(str(row.leader[0]), row.leader[1]),
        row.leader_epoch,
        row.partition_epoch,
        owners(row.isr),
        owners(row.elr),
        row.min_isr,
        row.state,  # type: ignore[arg-type]
        "" if row.target is None else str(row.target),
        move,
        row.plan,
        reports,
        row.end,
    )


def row_of(p: Partition) -> Row:
    """What a state has of it."""

    def numbers(found: Iterable[str]) -> tuple[int, ...]:
        return tuple(int(broker) for broker in found)

    return Row(
        p.partition_epoch,
        p.leader_epoch,
        None if p.leader is None else (int(p.leader.broker), p.leader.broker_epoch),
        _members(p.isr),
        _members(p.elr),
        numbers(p.replicas),
        p.min_isr,
        p.state,
        int(p.target) if p.target else None,
        None if p.move is None else (numbers(p.move.original), numbers(p.move.wanted), p.move.cancelling),
        p.plan,
        frozenset(((int(r.member.broker), r.member.broker_epoch), r.last_epoch, r.length) for r in p.reports),
        p.end,
    )


class Preference(NamedTuple):
    """What decides nothing that matters for safety, so that it may be anything."""

    draining: frozenset[int] = frozenset()
    replacing: bool = False
    """Whether there is a broker to give a replica to: the first one that lives and is not named."""
    cancelled: bool = False
    """Whether the plan was cancelled."""


PLAIN = Preference()


def hints(preference: Preference, fences: Fences, brokers: int) -> Hints:
    """As the product has them."""
    draining, replacing, cancelled = preference

    def replacement(r: Resource, taken: Any, broker: str) -> str | None:
        free = (one for one in _names(range(brokers)) if one not in taken and fences.life(one) is not None)
        return next(free, None) if replacing else None

    return Hints(lambda broker: int(broker) in draining, replacement, lambda _: cancelled)


class Refused(NamedTuple):
    """A rule's answer that is no record."""

    error: str
    """Its name."""


class Rules:
    """The product's, with all answers that were asked for."""

    def __init__(self, brokers: int) -> None:
        self._brokers = brokers
        self._answers: dict[Any, Any] = {}
        self._fences: dict[tuple[Said, ...], Fences] = {}

    def fences(self, said: tuple[Said, ...]) -> Fences:
        """As a group has them."""
        found = self._fences.get(said)
        if found is None:
            found = self._fences[said] = fences_of(said)
        return found

    def looked(
        self, row: Row, fences: tuple[Said, ...], r: Resource, preference: Preference = PLAIN, now: Now = NEVER
    ) -> Row:
        """The record once its group has looked at it."""
        key = "look", row[2:], fences, id(r), preference, now.past_ms
        found = self._answers.get(key)
        if found is None:
            lives = self.fences(fences)
            before = partition(row._replace(partition_epoch=_BASE, leader_epoch=_BASE))
            found = self._answers[key] = self._settled(before, r, lives, preference, now)
        return _from(row, found)

    def said(
        self,
        rule: str,
        row: Row,
        fences: tuple[Said, ...],
        r: Resource,
        item: Mapping[str, Any],
        preference: Preference = PLAIN,
    ) -> tuple[Row, Row] | Refused:
        """The record once a broker or an administrator has said this, and once all that follows is decided, too. Epochs
        in the item are those of the world."""
        fields = {**item}
        if "partition_epoch" in fields:
            fields["partition_epoch"] += _BASE - row.partition_epoch
        for name in ("leader_epoch", "term"):
            if name in fields:
                fields[name] += _BASE - row.leader_epoch
        key = rule, row[2:], fences, id(r), tuple(fields.values()), preference
        found = self._answers.get(key)
        if found is None:
            lives = self.fences(fences)
            before = partition(row._replace(partition_epoch=_BASE, leader_epoch=_BASE))
            try:
                p = self._apply(rule, before, r, lives, preference, fields)
            except MetadError as error:
                found = Refused(error.name)
            else:
                found = row_of(p), self._settled(p, r, lives, preference, NEVER)
            self._answers[key] = found
        return found if isinstance(found, Refused) else (_from(row, found[0]), _from(row, found[1]))

    def _apply(
        self, rule: str, p: Partition, r: Resource, lives: Fences, preference: Preference, fields: dict[str, Any]
    ) -> Partition:
        if rule == "begin":
            return rules.begin(p, r, lives, NEVER, _names(fields["wanted"]), "", "plan", None)
        named = {**fields, "tenant": "t", "resource": "r", "kind": "k", "partition": 0}
        if "broker" in named:
            named["broker"] = "" if named["broker"] is None else str(named["broker"])
        if "isr" in named:
            named["isr"] = owners(named["isr"])
        if "wanted" in named:
            named["wanted"] = _names(named["wanted"])
        apply, message = _MESSAGES[rule]
        return apply(p, r, lives, hints(preference, lives, self._brokers), NEVER, message(**named))

    def _settled(self, p: Partition, r: Resource, lives: Fences, preference: Preference, now: Now) -> Row:
        hinted = hints(preference, lives, self._brokers)
        p = settle(p, r, lives, hinted, now)
        more = decide(p, r, lives, hinted, now)
        if more is not None and not now.past_ms:
            raise Violation("settled", f"one entry does not decide all: {more.why}")
        check_record(p, r, lives)
        return row_of(p)


_MESSAGES: dict[str, tuple[Callable[..., Partition], Any]] = {
    "in_sync": (rules.in_sync, a.InSync),
    "release": (rules.release, a.Release),
    "report": (rules.report, a.ReportPosition),
    "claim": (rules.claim, a.Claim),
    "seal": (rules.seal, a.Seal),
    "elect": (rules.elect, a.Elect),
    "move": (rules.move, a.MovePartition),
}


def _from(row: Row, found: Row) -> Row:
    return found._replace(
        partition_epoch=row.partition_epoch + found.partition_epoch - _BASE,
        leader_epoch=row.leader_epoch + found.leader_epoch - _BASE,
    )


def check_record(p: Partition, r: Resource, lives: Fences) -> None:
    """What must hold of a record once all is decided."""
    members, eligible = [member.broker for member in p.isr], [member.broker for member in p.elr]
    whole = {*p.replicas}
    wrong = ""
    if len(whole) != len(p.replicas) or len({*members}) != len(members) or len({*eligible}) != len(eligible):
        wrong = "a broker is named twice"
    elif not whole >= {*members}:
        wrong = "a member is no replica"
    elif p.move is None and p.state != a.DELETING and len(p.replicas) > r.replication:
        wrong = "it has too many replicas, and is not being moved"
    elif p.leader is not None and p.leader not in p.isr:
        wrong = "its leader is not in sync"
    elif (p.leader is None) != (p.state in (a.OFFLINE, a.READABLE, a.ELECTING, a.DELETING)):
        wrong = f"it is {p.state}, with the leader {p.leader}"
    elif r.election == "isr" and (not whole >= {*eligible} or {*members} & {*eligible}):
        wrong = "an eligible one is no replica, or in sync"
    elif r.election == "isr" and len(members) >= p.min_isr and eligible:
        wrong = "enough are in sync, so nobody else is eligible for certain"
    elif r.election != "owner" and not all(lives.life(member.broker) == member.broker_epoch for member in p.isr):
        wrong = "a member's life is over"
    elif p.state == a.RELEASING and not p.target:
        wrong = "its owner is to stop, for nobody"
    if wrong:
        raise Violation("record", f"{wrong}: {msgspec.to_builtins(p)}")
