"""What brokers and administrators say of partitions, and what the leader of the group has decided.

What they say is checked against the record and the fences as they are in the entry that writes it. What follows from it
is decided in the same entry.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import (
    ConflictError,
    FencedError,
    IneligibleError,
    InvalidItemError,
    NoCandidateError,
    NoReplicaError,
    NotFoundError,
)
from metad_wire.families.assignment import PARTITIONS
from metad_wire.messages import Owner
from metad_wire.tables import assignment as a
from metad_wire.tables.assignment import ASSIGNMENT, Candidate, Explanation, Partition, Report, Resource

from ...storage import keys
from ..cluster.fences import Fences
from ..core.part import Origin
from ..core.verb import Command, Reader, Verb, written
from ..core.view import Rows, View, column
from . import decide
from .decide import Hints, Lives, Now, change, is_alive, names, needed
from .fleet import Choices
from .plans import Plans
from .records import (
    Records,
    Stored,
    decode_partition,
    decode_resource,
    each,
    grow,
    partition_key,
    resource_key,
    the_resource,
)


def _found(records: Records, item: Any) -> tuple[Stored[Partition], Resource]:
    """The partition that an item names, with its resource. Raises NotFoundError."""
    found, resource = records.partition(item, item.partition), records.resource(item)
    if found is None or resource is None:
        raise NotFoundError(f"there is no partition {item.partition} of {item.kind} {item.resource!r}")
    return found, resource.record


def _member(records: Records, item: Any) -> Owner:
    """The life that says it. Raises FencedError if it is over, or not the one that the group knows."""
    life = records.lives.life(item.broker)
    if life != item.broker_epoch:
        raise FencedError(
            f"epoch {item.broker_epoch} of broker {item.broker!r} is over, or this group has not heard of it yet"
            + ("" if life is None else f": epoch {life} lives"),
            current=life,
        )
    return Owner(item.broker, item.broker_epoch)


def _same_epoch(p: Partition, said: int) -> None:
    if said != p.leader_epoch:
        raise ConflictError(f"leader_epoch is {p.leader_epoch}, not {said}", current=p.leader_epoch)


def _is_replica(p: Partition, brokers: Sequence[str]) -> None:
    if strange := [broker for broker in brokers if broker not in p.replicas]:
        raise NoReplicaError(f"{', '.join(strange)}: not among the replicas {', '.join(p.replicas)}")


def _in_sync(records: Records, item: a.InSync) -> None:
    found, resource = _found(records, item)
    p, lives = found.record, records.lives
    member = _member(records, item)
    if p.leader != member:
        raise ConflictError(f"{member.broker} does not lead in this life", current=p.leader_epoch)
    _same_epoch(p, item.leader_epoch)
    if item.partition_epoch != p.partition_epoch:
        why = f"partition_epoch is {p.partition_epoch}, not {item.partition_epoch}"
        raise ConflictError(why, current=p.partition_epoch)
    if resource.election == "owner":
        raise InvalidItemError("a partition with one owner has nobody in sync")
    if member not in item.isr or len(names(item.isr)) != len(item.isr):
        raise InvalidItemError("isr: the leader is one of them, and no broker is there twice")
    _is_replica(p, [other.broker for other in item.isr])
    if over := [other for other in item.isr if not is_alive(other, lives)]:
        raise IneligibleError(
            f"epoch {over[0].broker_epoch} of broker {over[0].broker!r} is over, or this group has not heard of it yet",
            current=lives.life(over[0].broker),
        )
    if resource.election == "isr":
        elr = decide.eligible(p, lives, p.isr, item.isr, p.elr, p.min_isr)
    else:  # who has everything counts, in the life in which it is known to
        elr = [*({one.broker: one for one in p.elr} | {one.broker: one for one in item.isr}).values()]
    new = change(p, records.now, "the leader says who is in sync", isr=[*item.isr], elr=elr)
    if resource.election != "isr" and new.move is not None:
        new = decide.end_move(new, new.move, lives, records.hints, records.now, whole=True) or new
    records.put(found, new, resource)


def _release(records: Records, item: a.Release) -> None:
    found, resource = _found(records, item)
    p = found.record
    if p.state == a.DELETING:  # in whatever life: it has nothing of the partition any more
        _member(records, item)
        _is_replica(p, [item.broker])
        replicas = [broker for broker in p.replicas if broker != item.broker]
        records.put(found, change(p, records.now, f"{item.broker} has deleted it", replicas=replicas), resource)
        return
    _same_epoch(p, item.leader_epoch)
    if p.leader != Owner(item.broker, item.broker_epoch):
        raise ConflictError(f"{item.broker} does not lead in this life", current=p.leader_epoch)
    if resource.election == "owner":
        records.put(found, decide.released(p, records.lives, records.now), resource)
        return
    _member(records, item)
    others = {member.broker: member for member in p.isr if member != p.leader and is_alive(member, records.lives)}
    if resource.election != "isr" or not others:
        raise NoCandidateError("nobody else in sync lives who could lead")
    leader = others[decide.in_order(p, others, records.hints)[0]]
    records.put(found, change(p, records.now, f"{item.broker} handed over", leader=leader), resource)


def _report(records: Records, item: a.ReportPosition) -> None:
    found, resource = _found(records, item)
    p = found.record
    member = _member(records, item)
    _is_replica(p, [item.broker])
    _same_epoch(p, item.leader_epoch)
    if p.state != a.ELECTING:
        raise ConflictError(f"the partition is {p.state}, and elects nobody", current=p.leader_epoch)
    others = [report for report in p.reports if report.member.broker != item.broker]
    reports = [*others, Report(member, item.last_epoch, item.length)]
    records.put(found, change(p, records.now, f"{item.broker} has reported", reports=reports), resource)


def _claim(records: Records, item: a.Claim) -> None:
    found, resource = _found(records, item)
    p = found.record
    member = _member(records, item)
    if resource.election != "external" or p.state == a.DELETING:
        raise ConflictError("metad elects the leader of this partition, or it is being deleted")
    _is_replica(p, [item.broker])
    if item.term <= p.leader_epoch:
        raise ConflictError(f"term {p.leader_epoch} has a leader", current=p.leader_epoch)
    isr = [*[other for other in p.isr if other.broker != item.broker], member]
    why = f"{item.broker} was elected by the replicas"
    new = change(p, records.now, why, leader=member, leader_epoch=item.term, isr=isr, state=decide.led_state(p))
    records.put(found, new, resource)


def _seal(records: Records, item: a.Seal) -> None:
    found, resource = _found(records, item)
    p = found.record
    member = _member(records, item)
    if p.leader != member:
        raise ConflictError(f"{member.broker} does not lead in this life", current=p.leader_epoch)
    _same_epoch(p, item.leader_epoch)
    if p.end is not None:
        raise ConflictError(f"it is sealed at {p.end}", current=p.end)
    following = p.partition + 1
    if item.successor:
        old = the_resource(records, item)
        if following != old.record.partitions:
            raise ConflictError("only the last partition has a successor", current=old.record.partitions)
        if following >= a.PARTITIONS_MAX + old.record.first_partition:
            raise InvalidItemError(f"{a.PARTITIONS_MAX} partitions: trim the first ones")
        writes = following + 1 if old.record.write_partitions == following else old.record.write_partitions
        resource = msgspec.structs.replace(old.record, partitions=following + 1, write_partitions=writes)
        grow(records, resource, following, None)
        records.put_resource(old, resource)
    records.put(found, change(p, records.now, f"sealed at {item.end}", end=item.end, state=a.SEALED), resource)


def _elect(records: Records, item: a.Elect) -> None:
    found, resource = _found(records, item)
    p, lives = found.record, records.lives
    if p.state == a.DELETING or resource.election == "external":
        raise ConflictError(f"nobody is elected by metad: it is {p.state}, and its election is {resource.election}")
    if item.broker:
        _is_replica(p, [item.broker])
    if item.force and p.leader is None:
        order = [item.broker, *[one for one in p.replicas if one != item.broker]] if item.broker else p.replicas
        wanted = msgspec.structs.replace(p, replicas=[*order])
        new = decide.forced(wanted, resource, lives, records.hints, records.now, "an administrator forced it")
        if new is None or (item.broker and new.leader is not None and new.leader.broker != item.broker):
            raise NoCandidateError("no replica lives, or none has reported its position")
        records.put(found, msgspec.structs.replace(new, replicas=p.replicas), resource)
        return
    if resource.election == "owner":
        _hand_over(records, found, resource, item.broker)
        return
    able = {member.broker: member for member in p.isr if is_alive(member, lives) and member != p.leader}
    if item.broker:
        able = {name: member for name, member in able.items() if name == item.broker}
    if not able:
        raise NoCandidateError("nobody in sync lives who does not lead already")
    leader = able[decide.in_order(p, able, records.hints)[0]]
    if resource.election == "position":
        raise ConflictError("the master of replicas by position is replaced when it stops", current=p.leader_epoch)
    records.put(found, change(p, records.now, "an administrator chose the leader", leader=leader), resource)


def _hand_over(records: Records, found: Stored[Partition], resource: Resource, broker: str) -> None:
    p = found.record
    others = [one for one in p.replicas if p.leader is None or one != p.leader.broker]
    target = broker or next((one for one in others if records.lives.life(one) is not None), "")
    if not target or records.lives.life(target) is None or (p.leader is not None and p.leader.broker == target):
        raise NoCandidateError("no other replica lives")
    if p.leader is None:
        new = decide.owned_by(p, records.lives, records.now, target, "an administrator chose the owner")
    else:
        why = f"it goes to {target} once {p.leader.broker} has stopped"
        new = change(p, records.now, why, state=a.RELEASING, target=target)
    records.put(found, new, resource)


def _move(records: Records, item: a.MovePartition) -> None:
    found, resource = _found(records, item)
    p = found.record
    if p.state == a.DELETING:
        raise ConflictError("it is being deleted")
    if not item.wanted:
        if p.move is None or p.move.cancelling:
            raise ConflictError("no move is under way")
        move = msgspec.structs.replace(p.move, cancelling=True)
        records.put(found, change(p, records.now, "an administrator cancelled the move", move=move), resource)
        return
    begin(records, found, resource, item.wanted, "an administrator moves it", None, None)


def begin(
    records: Records,
    found: Stored[Partition],
    resource: Resource,
    wanted: Sequence[str],
    why: str,
    plan: str | None,
    throttle: int | None,
) -> None:
    """Begin to move a partition. Raises InvalidItemError, ConflictError, NoReplicaError."""
    p = found.record
    if len({*wanted}) != len(wanted) or len({*wanted, *p.replicas}) > a.REPLICAS_MAX:
        raise InvalidItemError(f"wanted: different brokers, with the present ones {a.REPLICAS_MAX} at most")
    if resource.election == "isr" and len(wanted) < p.min_isr:
        raise InvalidItemError(f"wanted: {len(wanted)} brokers, and min_isr is {p.min_isr}")
    if p.move is not None or p.leader is None:
        raise ConflictError("it is being moved already" if p.move is not None else "it has no leader")
    if away := [one for one in wanted if one not in p.replicas and records.lives.life(one) is None]:
        raise NoReplicaError(f"{', '.join(away)}: no such broker lives")
    new = decide.begin_move(p, wanted, records.now, why, plan, throttle)
    records.put(found, new, resource)


def _named(body: a.AssignmentStep) -> list[Any]:
    return [*body.items, *body.done, *body.moves]


def _rows_of_step(body: a.AssignmentStep) -> Rows:
    named = _named(body)
    return Rows(named, [b""] * len(named), column(ASSIGNMENT.crcs(named), len(named)))


def _evaluate_step(view: View, command: Command[a.AssignmentStep]) -> m.WriteReply:
    """Decide about partitions; nothing is an error, for the leader looks again at what is left."""
    body, records = command.body, Records(view)
    for due in body.due:
        records.clear_due(due.at_ms, due.key)
    wanted = [partition_key(item, item.partition) for item in body.items]
    for item, found in zip(body.items, records.partitions(wanted), strict=True):
        resource = records.resource(item)
        if found is None or resource is None:
            continue
        p = found.record
        if p.due_ms and p.due_ms <= view.now_ms:
            p = msgspec.structs.replace(p, due_ms=0)
        records.put(found, p, resource.record)
    for move in body.moves:
        with contextlib.suppress(ConflictError, InvalidItemError, NoReplicaError, NotFoundError):
            found, owner = _found(records, move)
            begin(records, found, owner, move.wanted, f"plan {move.plan}", move.plan, move.throttle_bytes)
    for done in body.done:
        known = records.resource(done)
        if known is not None and known.version == done.version:
            records.clear_due(done.at_ms, resource_key(done))
            if done.empty and known.record.state == "deleting":
                records.delete_resource(done)
    view.parts[Fences].stepped(view, body.stepped)
    return written(view, [])


def _lacks(p: Partition, r: Resource, lives: Lives, broker: str) -> str:
    life = lives.life(broker)
    if life is None:
        return "it is dead, or this group has not heard of it" if lives.ended_ms(broker) is None else "it is dead"
    if p.leader == Owner(broker, life):
        return ""
    if r.election == "owner":
        return "" if p.leader is None else f"{p.leader.broker} owns it"
    if r.election == "external":
        return "" if broker in names(p.isr) else "the replicas have not elected it"
    if Owner(broker, life) in p.isr:
        return ""
    if r.election == "position":
        if p.state != a.ELECTING:
            return "a master leads" if p.leader is not None else "nobody is elected"
        return "" if any(report.member.broker == broker for report in p.reports) else "it has not reported its position"
    if broker in names(p.isr):
        return "it was in sync in another life"
    known = next((member for member in p.elr if member.broker == broker), None)
    if known is not None:
        return "" if lives.clean(broker, known.broker_epoch) else "it began without all that it had"
    return "it is not in sync"


def _waits(p: Partition, r: Resource, lives: Lives) -> str:
    if p.state == a.DELETING:
        return f"waits until {', '.join(p.replicas)} have deleted it"
    if p.state == a.RELEASING and p.leader is not None:
        return f"waits until {p.leader.broker} has stopped, or its lease is over; then {p.target} owns it"
    if p.state == a.ELECTING:
        count = len([report for report in p.reports if is_alive(report.member, lives)])
        return f"waits for positions: {count} of {needed(p, r)} replicas that count have reported"
    if p.leader is not None and not is_alive(p.leader, lives):
        return f"waits until the lease of {p.leader.broker} is over"
    if p.leader is None:
        waits = [member.broker for member in (*p.isr, *p.elr)] or p.replicas
        return f"waits for one of {', '.join(waits)} to live"
    if p.move is not None:
        lacking = sorted({*(p.move.original if p.move.cancelling else p.move.wanted)} - names(p.isr))
        what = "to cancel the move" if p.move.cancelling else "to end the move"
        return f"waits {what}" + (f" until {', '.join(lacking)} are in sync" if lacking else "")
    return "nothing is to be done"


def explained(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now) -> Explanation:
    """What a group knows of a partition, in words: what is decided next, and what each broker lacks to lead."""
    following = decide.decide(p, r, lives, hints, now)
    return Explanation(
        p.tenant,
        p.resource,
        p.kind,
        p.partition,
        p.state,
        p.why,
        _waits(p, r, lives) if following is None else following.why,
        [Candidate(broker, lives.life(broker) or 0, _lacks(p, r, lives, broker)) for broker in p.replicas],
        p.due_ms,
    )


def _read_explain(reader: Reader, command: Command[m.Get[a.PartitionKey]]) -> m.GetReply[a.Explanation]:
    prefix = keys.table_prefix(reader.group, PARTITIONS.rows["record"])
    items = command.body.items
    rows = reader.get_many([prefix + partition_key(item, item.partition) for item in items], command.reply_bytes_max)
    owners = reader.get_many([prefix + resource_key(item) for item in items], command.reply_bytes_max)
    now_ms = reader.now_ms()
    choices, cancelled = Choices(reader.parts, now_ms), reader.parts[Plans].shared.cancelled
    hints = Hints(choices.draining, choices.replacement, cancelled)
    found: list[a.Explanation | None] = []
    for row, owner in zip(rows, owners, strict=True):
        if row is None or owner is None:
            found.append(None)
        else:
            p, r = decode_partition(row).record, decode_resource(owner).record
            found.append(explained(p, r, reader.parts[Fences], hints, Now(now_ms, now_ms)))
    reply: m.GetReply[a.Explanation] = command.method.reply(found)
    return reply


def _each(do: Callable[[Records, Any], None]) -> Callable[[View, Command[m.Items[Any]]], m.WriteReply]:
    return lambda view, command: each(view, command.body.items, do)


VERBS: tuple[Verb[Any, Any], ...] = (
    *(
        Verb(method, ASSIGNMENT, evaluate=_each(do), grows=grows)
        for method, do, grows in (
            (methods.ASSIGNMENT_IN_SYNC, _in_sync, False),
            (methods.ASSIGNMENT_RELEASE, _release, False),
            (methods.ASSIGNMENT_REPORT, _report, False),
            (methods.ASSIGNMENT_CLAIM, _claim, False),
            (methods.ASSIGNMENT_SEAL, _seal, True),
            (methods.ASSIGNMENT_ELECT, _elect, False),
            (methods.ASSIGNMENT_MOVE, _move, True),
        )
    ),
    Verb(
        methods.ASSIGNMENT_STEP,
        ASSIGNMENT,
        rows=_rows_of_step,
        operations=None,
        evaluate=_evaluate_step,
        origin=Origin.CONTROLLER,
        grows=False,
    ),
    Verb(methods.ASSIGNMENT_EXPLAIN, ASSIGNMENT, read=_read_explain),
)
