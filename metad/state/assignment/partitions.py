"""What brokers and administrators say of partitions, and what the leader of the group has decided.

Each rule is in :mod:`.rules`. What follows from it is decided in the same entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import ConflictError, InvalidItemError, NoReplicaError, NotFoundError
from metad_wire.families.assignment import PARTITIONS
from metad_wire.messages import Owner
from metad_wire.tables import assignment as a
from metad_wire.tables.assignment import ASSIGNMENT, Candidate, Explanation, Partition, Resource

from ...storage import keys
from ..cluster.fences import Fences
from ..core.part import Origin
from ..core.slot_assignment import SlotAssignment
from ..core.verb import Command, Reader, Verb, written
from ..core.view import Rows, View, column
from . import rules
from .decide import Hints, Lives, Now, decide, is_alive, names, needed
from .fleet import Choices
from .records import (
    Records,
    decode_partition,
    decode_resource,
    each,
    grow,
    partition_key,
    resource_key,
    the_resource,
)

Rule = Callable[[Partition, Resource, Lives, Hints, Now, Any], Partition]


def _found(records: Records, item: Any) -> tuple[m.TableRecord[Partition], Resource]:
    """The partition that an item names, with its resource. Raises NotFoundError."""
    found, resource = records.partition(item, item.partition), records.resource(item)
    if found is None or resource is None:
        raise NotFoundError(f"there is no partition {item.partition} of {item.kind} {item.resource!r}")
    return found, resource.record


def _by(rule: Rule) -> Callable[[Records, Any], None]:
    def do(records: Records, item: Any) -> None:
        found, resource = _found(records, item)
        records.put(found, rule(found.record, resource, records.lives, records.hints, records.now, item), resource)

    return do


def _seal(records: Records, item: a.Seal) -> None:
    found, resource = _found(records, item)
    new = rules.seal(found.record, resource, records.lives, records.hints, records.now, item)
    following = item.partition + 1
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
    records.put(found, new, resource)


def _rows_of_step(body: a.AssignmentStep) -> Rows:
    named: list[Any] = [*body.items, *body.done, *body.moves]
    return Rows(named, [b""] * len(named), column(ASSIGNMENT.crcs(named), len(named)))


def _evaluate_step(view: View, command: Command[a.AssignmentStep]) -> m.WriteReply:
    """Decide about partitions; the leader looks again at what is left. ``errors`` of the reply has the moves that were
    refused, by their positions among the moves."""
    body, records, errors = command.body, Records(view), list[m.ItemError]()
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
    for position, move in enumerate(body.moves):
        try:
            found, owner = _found(records, move)
            p, plan = found.record, f"plan {move.plan}"
            p = rules.begin(p, owner, records.lives, records.now, move.wanted, plan, move.plan, move.throttle_bytes)
            records.put(found, p, owner)
        except (ConflictError, InvalidItemError, NoReplicaError, NotFoundError) as error:
            errors.append(m.ItemError(position, error.code, error.message))
    for done in body.done:
        known = records.resource(done)
        if known is not None and known.version == done.version:
            records.clear_due(done.at_ms, resource_key(done))
            if done.empty and known.record.state == "deleting":
                records.delete_resource(done)
    holding = view.parts[SlotAssignment].holding
    looked_at = holding.slots == body.slots and holding.adopted_move == body.adopted_move
    if body.stepped and looked_at and not holding.sealed_move:
        view.parts[Fences].stepped(view, body.stepped)
    return written(view, errors)


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
        if not any(report.member == Owner(broker, life) for report in p.reports):
            return "it has not reported its position"
        return "" if broker in _whole(p, lives) else "it began without all that it had: its position does not count"
    if broker in names(p.isr):
        return "it was in sync in another life"
    known = next((member for member in p.elr if member.broker == broker), None)
    if known is not None:
        return "" if lives.clean(broker, known.broker_epoch) else "it began without all that it had"
    return "it is not in sync"


_FORCE: Final = "only force helps, and records may be lost: partitions elect --force, or force_after_ms of the resource"


def _waits(p: Partition, r: Resource, lives: Lives, now: Now) -> str:
    """What nothing is decided before."""
    if p.state == a.DELETING:
        return f"waits until {_listed(p.replicas, lives)} have deleted it"
    if p.state == a.RELEASING and p.leader is not None:
        if r.election == "position":
            return f"waits until {p.target} has all that {p.leader.broker} has, for 30 s; then {p.target} leads"
        return f"waits until {p.leader.broker} has stopped, or its lease is over; then {p.target} owns it"
    if p.state == a.ELECTING:
        return _waits_for_positions(p, r, lives)
    if p.leader is None:
        return _waits_for_leader(p, r, lives)
    if not is_alive(p.leader, lives):
        return f"waits until the lease of {p.leader.broker} is over"
    found = [_unacknowledged(p, r, lives), _waits_to_move(p, lives) or _waits_for_dead(p, r, lives, now)]
    return "; ".join(filter(None, found)) or "nothing is to be done"


def _listed(brokers: Iterable[str], lives: Lives) -> str:
    return ", ".join(broker if lives.life(broker) is not None else f"{broker} (dead)" for broker in brokers)


def _one_of(brokers: Sequence[str]) -> str:
    return brokers[0] if len(brokers) == 1 else f"one of {', '.join(brokers)}"


def _whole(p: Partition, lives: Lives) -> list[str]:
    """The replicas that have every acknowledged record for certain, though none of them is known to be in sync."""
    clean = {one.broker for one in (*p.isr, *p.elr) if lives.clean(one.broker, one.broker_epoch)}
    return [broker for broker in p.replicas if broker in clean]


def _waits_for_positions(p: Partition, r: Resource, lives: Lives) -> str:
    whole, least = _whole(p, lives), needed(p, r)
    there = {report.member.broker for report in p.reports if is_alive(report.member, lives)}
    if len(whole) < least:
        rest = _listed([broker for broker in p.replicas if broker not in whole], lives)
        return f"the positions of {least} replicas are needed, and {rest} may lack what they acknowledged: {_FORCE}"
    count = len(there.intersection(whole))
    left = _listed([broker for broker in whole if broker not in there], lives)
    return f"waits for positions: {count} of {least} replicas that count have reported; {left} have not"


def _waits_for_leader(p: Partition, r: Resource, lives: Lives) -> str:
    lives_one = any(lives.life(broker) is not None for broker in p.replicas)
    if r.election == "owner":
        return "waits for a broker to live that may own it"
    if not lives_one:
        return f"waits for {_one_of(_whole(p, lives) or p.replicas)} to live"
    if r.election == "external":
        return f"waits until the replicas ({_listed(p.replicas, lives)}) have elected one, and that says so by a claim"
    if whole := _whole(p, lives):  # dead, or one would lead
        return f"waits for {_one_of(whole)} to live: nobody else has every acknowledged record for certain"
    last = ", ".join(p.missing or p.replicas)
    return f"nobody has every acknowledged record for certain; in sync last: {last}; {_FORCE}"


def _unacknowledged(p: Partition, r: Resource, lives: Lives) -> str:
    if r.election != "isr" or len(p.isr) >= p.min_isr:
        return ""
    out = [broker for broker in p.replicas if broker not in names(p.isr)]
    missing = f"{_listed(out, lives)} {'are' if len(out) > 1 else 'is'} not" if out else "there are no other replicas"
    return f"nothing is acknowledged until {p.min_isr} are in sync: {missing}"


def _waits_to_move(p: Partition, lives: Lives) -> str:
    if p.move is None:
        return ""
    lacking = sorted({*(p.move.original if p.move.cancelling else p.move.wanted)} - names(p.isr))
    what = "to cancel the move" if p.move.cancelling else "to end the move"
    return f"waits {what}" + (f" until {_listed(lacking, lives)} are in sync" if lacking else "")


def _waits_for_dead(p: Partition, r: Resource, lives: Lives, now: Now) -> str:
    dead = [broker for broker in p.replicas if lives.life(broker) is None]
    if not dead or not p.due_ms:
        return ""
    over = [broker for broker in dead if now.past_ms >= (lives.ended_ms(broker) or 0) + r.repair_after_ms]
    if over and r.repair_after_ms:
        return f"no broker that lives may get the replica of {', '.join(over)}, dead for long: it is looked for again"
    return f"another broker gets the replica of {', '.join(dead)} if that does not return in time"


def explained(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now) -> Explanation:
    """What a group knows of a partition, in words: what is decided next, and what each broker lacks to lead."""
    following = decide(p, r, lives, hints, now)
    return Explanation(
        p.tenant,
        p.resource,
        p.kind,
        p.partition,
        p.state,
        p.why,
        _waits(p, r, lives, now) if following is None else following.why,
        [Candidate(broker, lives.life(broker) or 0, _lacks(p, r, lives, broker)) for broker in p.replicas],
        p.due_ms,
    )


def _read_explain(reader: Reader, command: Command[m.Get[a.PartitionKey]]) -> m.GetReply[a.Explanation]:
    prefix = keys.table_prefix(reader.group, PARTITIONS.rows["record"])
    items = command.body.items
    rows = reader.get_many([prefix + partition_key(item, item.partition) for item in items], command.reply_bytes_max)
    owners = reader.get_many([prefix + resource_key(item) for item in items], command.reply_bytes_max)
    now_ms = reader.now_ms()
    hints = Choices(reader.parts, now_ms).hints
    found: list[a.Explanation | None] = []
    for row, owner in zip(rows, owners, strict=True):
        if row is None or owner is None:
            found.append(None)
        else:
            p, r = decode_partition(row).record, decode_resource(owner).record
            found.append(explained(p, r, reader.parts[Fences], hints, Now(now_ms, now_ms)))
    reply: m.GetReply[a.Explanation] = command.method.reply(found)
    return reply


VERBS: tuple[Verb[Any, Any], ...] = (
    *(
        Verb(method, ASSIGNMENT, evaluate=each(do), grows=grows)
        for method, do, grows in (
            (methods.ASSIGNMENT_IN_SYNC, _by(rules.in_sync), False),
            (methods.ASSIGNMENT_RELEASE, _by(rules.release), False),
            (methods.ASSIGNMENT_REPORT, _by(rules.report), False),
            (methods.ASSIGNMENT_CLAIM, _by(rules.claim), False),
            (methods.ASSIGNMENT_SEAL, _seal, True),
            (methods.ASSIGNMENT_ELECT, _by(rules.elect), False),
            (methods.ASSIGNMENT_MOVE, _by(rules.move), True),
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
