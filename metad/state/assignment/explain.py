"""What a group knows of a partition, in words: what is decided next, and what each broker lacks to lead."""

from __future__ import annotations

from metad_wire.messages import Owner
from metad_wire.tables import assignment as a
from metad_wire.tables.assignment import Candidate, Explanation, Partition, Resource

from .decide import Hints, Lives, Now, decide, is_alive, names, needed


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
    """All of it."""
    following = decide(p, r, lives, hints, now)
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
