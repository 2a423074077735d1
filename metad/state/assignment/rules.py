"""What brokers and administrators may say of a partition, and what its record is then. Pure, as
:mod:`metad.state.assignment.decide` is: the newest record and what is said in, the next record out.

What they say is checked against the record and the fences as they are in the entry that writes it. What is decided
after it is not in the record yet, see :func:`.decide.settle`. Raised is what the methods of
:mod:`metad_wire.tables.assignment` name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from metad_wire.errors import (
    ConflictError,
    FencedError,
    IneligibleError,
    InvalidItemError,
    NoCandidateError,
    NoPlaceError,
    NoReplicaError,
)
from metad_wire.messages import Owner
from metad_wire.tables import assignment as a
from metad_wire.tables.assignment import Partition, Report, Resource

from . import decide
from .decide import Hints, Lives, Now, change, is_alive, names


def _member(lives: Lives, item: Any) -> Owner:
    """The life that says it. Raises FencedError if it is over, or not the one that the group knows."""
    if lives.life(item.broker) != item.broker_epoch:
        life = lives.life(item.broker)
        raise FencedError(
            f"epoch {item.broker_epoch} of broker {item.broker!r} is over, or this group has not heard of it yet"
            + ("" if life is None else f": epoch {life} lives"),
            current=life,
        )
    return Owner(item.broker, item.broker_epoch)


def _same_epoch(p: Partition, said: int) -> None:
    if said != p.leader_epoch:
        raise ConflictError(f"leader_epoch is {p.leader_epoch}, not {said}", current=p.leader_epoch)


def _leads(p: Partition, member: Owner, said: int) -> None:
    if p.leader != member:
        raise ConflictError(f"{member.broker} does not lead in this life", current=p.leader_epoch)
    _same_epoch(p, said)


def _is_replica(p: Partition, brokers: Sequence[str]) -> None:
    if strange := [broker for broker in brokers if broker not in p.replicas]:
        raise NoReplicaError(f"{', '.join(strange)}: not among the replicas {', '.join(p.replicas)}")


def first(
    r: Resource, resource_id: int, number: int, replicas: Sequence[str], lives: Lives, hints: Hints, now: Now
) -> Partition:
    """A new partition, of which nobody has anything yet: so all replicas that live are in sync. Raises NoPlaceError if
    none does, or fewer than ``min_isr``."""
    alive = [Owner(broker, life) for broker in replicas if (life := lives.life(broker)) is not None]
    if len(alive) < min(r.min_isr, len(replicas)):
        raise NoPlaceError(f"{len(alive)} of the brokers {', '.join(replicas)} live, {r.min_isr} are needed")
    leader = None
    if r.election != "external":
        leader = next((member for member in alive if not hints.draining(member.broker)), alive[0])
    return Partition(
        r.tenant,
        r.resource,
        r.kind,
        number,
        resource_id,
        [*replicas],
        leader,
        1,
        1,
        [] if leader is None else [leader] if r.election == "owner" else alive,
        alive if r.election == "position" else [],
        r.min_isr,
        a.READABLE if leader is None else a.ONLINE,
        why="it is new",
        changed_ms=now.ms,
        election=r.election,
    )


def in_sync(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now, item: a.InSync) -> Partition:
    """The leader says who is in sync."""
    member = _member(lives, item)
    _leads(p, member, item.leader_epoch)
    if item.partition_epoch != p.partition_epoch:
        why = f"partition_epoch is {p.partition_epoch}, not {item.partition_epoch}"
        raise ConflictError(why, current=p.partition_epoch)
    if r.election == "owner":
        raise InvalidItemError("a partition with one owner has nobody in sync")
    if member not in item.isr or len(names(item.isr)) != len(item.isr):
        raise InvalidItemError("isr: the leader is one of them, and no broker is there twice")
    _is_replica(p, [other.broker for other in item.isr])
    if over := [other for other in item.isr if not is_alive(other, lives)]:
        raise IneligibleError(
            f"epoch {over[0].broker_epoch} of broker {over[0].broker!r} is over, or this group has not heard of it yet",
            current=lives.life(over[0].broker),
        )
    if r.election == "isr":
        elr = decide.eligible(p, lives, p.isr, item.isr, p.elr, p.min_isr)
    else:  # who has everything counts, in the life in which it is known to
        elr = [*({one.broker: one for one in p.elr} | {one.broker: one for one in item.isr}).values()]
    new = change(p, now, "the leader says who is in sync", isr=[*item.isr], elr=elr)
    if p.state == a.RELEASING and (to := next((one for one in item.isr if one.broker == p.target), None)) is not None:
        why = f"{to.broker} leads: {member.broker} handed over"
        new = change(p, now, why, leader=to, isr=[*item.isr], elr=elr, state=decide.led_state(p), target="")
    if r.election != "isr" and new.move is not None:
        new = decide.end_move(new, new.move, lives, hints, now, whole=True) or new
    return new


def release(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now, item: a.Release) -> Partition:
    """A broker has stopped, or has deleted what it had."""
    if p.state == a.DELETING:  # in whatever life: it has nothing of the partition any more
        _member(lives, item)
        _is_replica(p, [item.broker])
        replicas = [broker for broker in p.replicas if broker != item.broker]
        return change(p, now, f"{item.broker} has deleted it", replicas=replicas)
    _leads(p, Owner(item.broker, item.broker_epoch), item.leader_epoch)
    if r.election == "owner":
        return decide.released(p, r, lives, hints, now)
    _member(lives, item)
    others = {member.broker: member for member in p.isr if member != p.leader and is_alive(member, lives)}
    if r.election != "isr" or not others:
        raise NoCandidateError("nobody else in sync lives who could lead")
    leader = others[decide.in_order(p, others, hints)[0]]
    return change(p, now, f"{item.broker} handed over", leader=leader)


def report(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now, item: a.ReportPosition) -> Partition:
    """A replica has promised, and says its position."""
    member = _member(lives, item)
    _is_replica(p, [item.broker])
    _same_epoch(p, item.leader_epoch)
    if p.state != a.ELECTING:
        raise ConflictError(f"the partition is {p.state}, and elects nobody", current=p.leader_epoch)
    others = [report for report in p.reports if report.member.broker != item.broker]
    reports = [*others, Report(member, item.last_epoch, item.length)]
    return change(p, now, f"{item.broker} has reported", reports=reports)


def claim(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now, item: a.Claim) -> Partition:
    """The replicas have elected a leader."""
    member = _member(lives, item)
    if r.election != "external" or p.state == a.DELETING:
        raise ConflictError("metad elects the leader of this partition, or it is being deleted")
    _is_replica(p, [item.broker])
    if not p.leader_epoch < item.term <= p.leader_epoch + a.TERM_STEP_MAX:
        why = f"a term is over {p.leader_epoch}, by {a.TERM_STEP_MAX} at most"
        raise ConflictError(why, current=p.leader_epoch)
    isr = [*[other for other in p.isr if other.broker != item.broker], member]
    why = f"{item.broker} was elected by the replicas"
    return change(p, now, why, leader=member, leader_epoch=item.term, isr=isr, state=decide.led_state(p))


def seal(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now, item: a.Seal) -> Partition:
    """The leader ends a partition. Its successor is made elsewhere, in the same entry."""
    _leads(p, _member(lives, item), item.leader_epoch)
    if p.end is not None:
        raise ConflictError(f"it is sealed at {p.end}", current=p.end)
    return change(p, now, f"sealed at {item.end}", end=item.end, state=a.SEALED)


def elect(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now, item: a.Elect) -> Partition:
    """An administrator wants another leader."""
    if p.state == a.DELETING or r.election == "external":
        raise ConflictError(f"nobody is elected by metad: it is {p.state}, and its election is {r.election}")
    if item.broker:
        _is_replica(p, [item.broker])
    if item.force and p.leader is None:
        order = [item.broker, *[one for one in p.replicas if one != item.broker]] if item.broker else p.replicas
        wanted = msgspec.structs.replace(p, replicas=[*order])
        new = decide.forced(wanted, r, lives, hints, now, "an administrator forced it")
        if new is None or (item.broker and new.leader is not None and new.leader.broker != item.broker):
            raise NoCandidateError("no replica lives, or none has reported its position")
        return msgspec.structs.replace(new, replicas=p.replicas)
    if r.election == "owner" or (r.election == "position" and p.leader is not None):
        return _hand_over(p, lives, now, item.broker)
    able = {member.broker: member for member in p.isr if is_alive(member, lives) and member != p.leader}
    if item.broker:
        able = {name: member for name, member in able.items() if name == item.broker}
    if not able:
        raise NoCandidateError("nobody in sync lives who does not lead already")
    leader = able[decide.in_order(p, able, hints)[0]]
    return change(p, now, "an administrator chose the leader", leader=leader)


def _hand_over(p: Partition, lives: Lives, now: Now, broker: str) -> Partition:
    others = [one for one in decide.remaining(p) if p.leader is None or one != p.leader.broker]
    target = broker or next((one for one in others if lives.life(one) is not None), "")
    if not target or lives.life(target) is None or (p.leader is not None and p.leader.broker == target):
        raise NoCandidateError("no other replica lives")
    if p.leader is None:
        return decide.owned_by(p, lives, now, target, "an administrator chose the owner")
    return decide.handed_to(p, now, target)


def move(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now, item: a.MovePartition) -> Partition:
    """An administrator moves a partition, or cancels what moves it."""
    if p.state == a.DELETING:
        raise ConflictError("it is being deleted")
    if not item.wanted:
        if p.move is None or p.move.cancelling:
            raise ConflictError("no move is under way")
        back = msgspec.structs.replace(p.move, cancelling=True)
        return change(p, now, "an administrator cancelled the move", move=back)
    return begin(p, r, lives, now, item.wanted, "an administrator moves it", None, None)


def begin(
    p: Partition,
    r: Resource,
    lives: Lives,
    now: Now,
    wanted: Sequence[str],
    why: str,
    plan: str | None,
    throttle: int | None,
) -> Partition:
    """The record once a partition begins to be moved. Raises InvalidItemError, ConflictError, NoReplicaError."""
    if len({*wanted}) != len(wanted) or len(wanted) > a.REPLICAS_MAX // 2:
        raise InvalidItemError(f"wanted: {a.REPLICAS_MAX // 2} brokers at most, none of them twice")
    if len({*wanted, *p.replicas}) > a.REPLICAS_MAX:
        raise InvalidItemError(f"wanted: with the present ones, {a.REPLICAS_MAX} at most")
    if r.election == "isr" and len(wanted) < p.min_isr:
        raise InvalidItemError(f"wanted: {len(wanted)} brokers, and min_isr is {p.min_isr}")
    if p.move is not None or p.leader is None:
        raise ConflictError("it is being moved already" if p.move is not None else "it has no leader")
    if away := [one for one in wanted if one not in p.replicas and lives.life(one) is None]:
        raise NoReplicaError(f"{', '.join(away)}: no such broker lives")
    return decide.begin_move(p, wanted, now, why, plan, throttle)
