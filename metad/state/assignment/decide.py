"""What is decided about one partition, by the fences of the group that has it. Pure: the newest record in, the next
out.

Every decision is made while the entry that writes it is evaluated, so it cannot be stale: it sees all fences and all
changes before it. Nothing reacts to an event: a record and the fences say what is to be done, whoever looks, and a new
leader, or another group after a move of slots, comes to the same.

The rules of each kind of election are those of :mod:`metad_wire.tables.assignment`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from metad_wire.messages import Owner
from metad_wire.tables import assignment as a
from metad_wire.tables.assignment import Move, Partition, Report, Resource

PREFER_MS: Final = 30_000
"""So long a partition has had its leader before the preferred one may replace it."""
AGAIN_MS: Final = 600_000
"""A repair that finds no broker looks again after this: each look writes the record."""
OWNERLESS_MS: Final = 10_000
"""A partition that nobody owns looks again after this whether a broker has come that could: no fence of its replicas
says so."""
HAND_OVER_MS: Final = 30_000
"""So long a master by position waits for the one that is to follow it; then it goes on."""
FORGOTTEN_MS: Final = 24 * 3_600_000
"""A replica whose broker has been dead for so long need not say that it has deleted a partition."""
STEPS_MAX: Final = 8
"""Decisions that follow one from the other in one entry. No partition needs as many."""


class Now(NamedTuple):
    """The time of the group's log."""

    ms: int
    """Of the entry."""
    past_ms: int
    """By which deadlines are judged: after an outage it is 0 for a while, and nothing is over."""


class Lives(Protocol):
    """What a group knows of brokers: its own fences."""

    def life(self, broker: str) -> int | None:
        """The epoch of the life that is alive; None if none is."""

    def clean(self, broker: str, epoch: int) -> bool:
        """Whether no life since this one began without all that the one before had."""

    def quiet(self, broker: str, epoch: int) -> bool:
        """Whether this life serves no longer, for certain."""

    def ended_ms(self, broker: str) -> int | None:
        """Since when, by the group's log, its last life is over; None if the group has no fence of it."""


class Hints(NamedTuple):
    """Preferences. They decide nothing that matters for safety."""

    draining: Callable[[str], bool]
    """Whether a broker wants to lead nothing."""
    replacement: Callable[[Resource, Sequence[str], str], str | None]
    """(resource, its replicas, the one to replace) -> a broker that lives; None if there is none."""
    cancelled: Callable[[str], bool]
    """Whether a plan was cancelled."""


def names(members: Iterable[Owner]) -> set[str]:
    """The brokers of members."""
    return {member.broker for member in members}


def change(p: Partition, now: Now, why: str, **fields: Any) -> Partition:
    """The record after a change. ``leader_epoch`` grows where another life leads, or none, unless it is given."""
    leads = fields.get("leader", p.leader) != p.leader
    if leads and "leader_epoch" not in fields:
        fields["leader_epoch"] = p.leader_epoch + 1
    if leads or fields.get("state", p.state) != p.state:
        fields["changed_ms"] = now.ms
    return msgspec.structs.replace(p, partition_epoch=p.partition_epoch + 1, why=why, **fields)


def eligible(
    p: Partition, lives: Lives, left: Iterable[Owner], isr: Sequence[Owner], elr: Iterable[Owner], min_isr: int
) -> list[Owner]:
    """Who has every acknowledged record besides those in sync, once ``isr`` are in sync. ``left``: who was before."""
    if len(isr) >= min_isr:
        return []
    found = {member.broker: member for member in elr}
    found.update((member.broker, member) for member in left)
    inside = names(isr)
    return [
        member
        for member in found.values()
        if member.broker not in inside
        and member.broker in p.replicas
        and lives.clean(member.broker, member.broker_epoch)
    ]


def led_state(p: Partition) -> str:
    """The state of a partition that has a leader."""
    return a.SEALED if p.end is not None else a.ONLINE


def leaderless_state(p: Partition, lives: Lives) -> str:
    """The state of one that has none."""
    return a.READABLE if any(lives.life(broker) is not None for broker in p.replicas) else a.OFFLINE


def is_alive(member: Owner | None, lives: Lives) -> bool:
    """Whether a member is a life that has not ended."""
    return member is not None and lives.life(member.broker) == member.broker_epoch


def in_order(p: Partition, brokers: Iterable[str], hints: Hints) -> list[str]:
    """Brokers in the order in which they should lead: those that drain last, then as the replicas stand."""
    place = {broker: at for at, broker in enumerate(p.replicas)}
    return sorted(brokers, key=lambda broker: (hints.draining(broker), place.get(broker, len(place))))


# --- by in-sync replicas ----------------------------------------------------------------------------------


def _isr(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now) -> Partition | None:
    """Members that are over leave, and a leader that is over is replaced, in one change."""
    there = [member for member in p.isr if is_alive(member, lives)]
    leaves = len(there) != len(p.isr)
    if is_alive(p.leader, lives):
        if not leaves:
            return None
        elr = eligible(p, lives, p.isr, there, p.elr, p.min_isr)
        gone = ", ".join(sorted(names(p.isr) - names(there)))
        return change(p, now, f"{gone} left: the life is over", isr=there, elr=elr)
    elr = eligible(p, lives, p.isr, there, p.elr, p.min_isr)
    able = {member.broker: member for member in there} or {
        member.broker: Owner(member.broker, life) for member in elr if (life := lives.life(member.broker)) is not None
    }
    if able:
        leader = able[in_order(p, able, hints)[0]]
        isr = there or [leader]
        return change(
            p,
            now,
            f"{leader.broker} leads: {'in sync' if there else 'eligible'}, the leader's life was over",
            leader=leader,
            isr=isr,
            elr=eligible(p, lives, (), isr, elr, p.min_isr),
            state=led_state(p),
            missing=[],
        )
    state = leaderless_state(p, lives)
    if p.leader is not None or leaves or elr != p.elr or state != p.state:
        last = sorted(names(p.isr) | names(p.elr)) or p.missing
        return change(p, now, "nobody who lives may lead", leader=None, isr=there, elr=elr, state=state, missing=last)
    return None


def _isr_forced(p: Partition, lives: Lives, hints: Hints, now: Now, why: str) -> Partition | None:
    """Let a replica lead that may lack records, one that was in sync last if any such lives; None if none lives."""
    able = [broker for broker in p.replicas if lives.life(broker) is not None]
    if not able:
        return None
    last = {*p.missing, *names(p.elr)}
    broker = in_order(p, [one for one in able if one in last] or able, hints)[0]
    leader = Owner(broker, lives.life(broker) or 0)
    missing = sorted(last - {broker})
    return change(
        p, now, f"{broker} leads: {why}", leader=leader, isr=[leader], elr=[], state=led_state(p), missing=missing
    )


# --- one owner --------------------------------------------------------------------------------------------


def _owner(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now) -> Partition | None:
    """An owner that serves no longer is replaced."""
    owner = p.leader
    if owner is not None and not lives.quiet(owner.broker, owner.broker_epoch):
        return None
    able = [broker for broker in dict.fromkeys([p.target, *p.replicas]) if broker and lives.life(broker) is not None]
    if not able:
        other = hints.replacement(r, [], "")
        if other is not None:
            able = [other]
    if able:
        first = p.target if p.target in able else in_order(p, able, hints)[0]
        return owned_by(p, lives, now, first, f"{first} owns it: nobody did")
    if owner is not None or p.state != a.OFFLINE:
        return change(p, now, "nobody lives who could own it", leader=None, state=a.OFFLINE, target="", isr=[])
    return None


def owned_by(p: Partition, lives: Lives, now: Now, broker: str, why: str) -> Partition:
    """The record once this broker, which lives, owns the partition, in its present life. The epoch grows also where the
    same life owned it before: a release on its way must not free it."""
    owner = Owner(broker, lives.life(broker) or 0)
    stay = p.replicas
    if p.move is not None:  # it ends, or is given up
        stay = p.move.wanted if broker in p.move.wanted else p.move.original
    replicas = stay if broker in stay else [broker, *stay[: len(stay) - 1]]
    return change(
        p,
        now,
        why,
        leader=owner,
        leader_epoch=p.leader_epoch + 1,
        isr=[owner],
        replicas=replicas,
        state=led_state(p),
        target="",
        move=None,
        plan=None,
    )


def released(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now) -> Partition:
    """The record once its owner has stopped, and said so. If nobody has asked it to, another one owns it, if there is
    one."""
    assert p.leader is not None
    target, owner = p.target, p.leader.broker
    if p.state != a.RELEASING:
        others = [one for one in p.replicas if one != owner and lives.life(one) is not None]
        target = in_order(p, others, hints)[0] if others else hints.replacement(r, [owner], owner) or ""
    if target and lives.life(target) is not None:
        return owned_by(p, lives, now, target, f"{target} owns it: {owner} released it")
    if is_alive(p.leader, lives) and p.state == a.RELEASING:
        return owned_by(p, lives, now, p.leader.broker, f"{p.leader.broker} owns it again: {p.target} is away")
    return change(p, now, f"{p.leader.broker} released it", leader=None, state=a.OFFLINE, isr=[])


# --- by position ------------------------------------------------------------------------------------------


def _position(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now) -> Partition | None:
    """A master that is over: replicas report. Once enough have, the greatest position leads."""
    if is_alive(p.leader, lives):
        there = [member for member in p.isr if is_alive(member, lives)]
        if p.state == a.RELEASING and (over := _hand_over_ends(p, lives, now)):
            return change(p, now, f"the master stays: {over}", state=led_state(p), target="", isr=there)
        return None if there == p.isr else change(p, now, "the life of a replica is over", isr=there)
    if p.state != a.ELECTING:
        why = "the master's life is over: replicas report"
        return change(
            p,
            now,
            why,
            leader=None,
            leader_epoch=p.leader_epoch + 1,
            state=a.ELECTING,
            target="",
            reports=[],
            isr=[],
        )
    reports = [report for report in p.reports if is_alive(report.member, lives)]
    if reports and len([report for report in reports if _counts(p, report, lives)]) >= needed(p, r):
        return _positioned(p, reports, lives, hints, now, "the greatest position of enough replicas", [])
    return None


def _hand_over_ends(p: Partition, lives: Lives, now: Now) -> str:
    """Why the hand-over of a master that lives is given up; empty: it is not."""
    if lives.life(p.target) is None:
        return f"{p.target} is away"
    if p.target not in remaining(p):
        return f"{p.target} is not to have it any more"
    return f"{p.target} was too far behind" if now.past_ms >= p.changed_ms + HAND_OVER_MS else ""


def handed_to(p: Partition, now: Now, broker: str) -> Partition:
    """The record once its leader, which lives, is to stop for another broker."""
    assert p.leader is not None
    why = f"it goes to {broker} once {p.leader.broker} has stopped"
    return change(p, now, why, state=a.RELEASING, target=broker, isr=[p.leader])


def _next_master(p: Partition, lives: Lives, hints: Hints) -> str:
    """Who should follow a master that lives, because that drains or is to lose the partition; empty: nobody."""
    if not is_alive(p.leader, lives) or p.leader is None or p.state == a.RELEASING:
        return ""
    to, leader = remaining(p), p.leader.broker
    there = names(member for member in p.isr if is_alive(member, lives))
    if leader not in to:
        able = [*to] if there >= {*to} else []
    else:
        able = [one for one in to if one != leader and lives.life(one) is not None and not hints.draining(one)]
        able = able if hints.draining(leader) else []
    return next((one for one in in_order(p, able, hints) if one in there), next(iter(able), ""))


def needed(p: Partition, r: Resource) -> int:
    """How many replicas have to report, so that one of them has every acknowledged record."""
    return max(1, len(p.replicas) - r.copies + 1)


def _counts(p: Partition, report: Report, lives: Lives) -> bool:
    """Whether a replica has all that it ever acknowledged: it did not begin unclean since it was last known whole."""
    known = next((member for member in p.elr if member.broker == report.member.broker), None)
    return known is not None and lives.clean(known.broker, known.broker_epoch)


def _positioned(
    p: Partition, reports: Sequence[Report], lives: Lives, hints: Hints, now: Now, why: str, missing: list[str]
) -> Partition:
    best = max((report.last_epoch, report.length) for report in reports)
    whole = {r.member.broker: r.member for r in reports if (r.last_epoch, r.length) == best}
    leader = whole[in_order(p, whole, hints)[0]]
    kept = {member.broker: member for member in p.elr if member.broker in p.replicas} | whole
    return change(
        p,
        now,
        f"{leader.broker} leads: {why}",
        leader=leader,
        leader_epoch=p.leader_epoch,  # it was raised when the election began
        state=led_state(p),
        isr=[leader],
        elr=[*kept.values()],
        reports=[],
        missing=missing,
    )


def _position_forced(p: Partition, lives: Lives, hints: Hints, now: Now, why: str) -> Partition | None:
    there = [report for report in p.reports if is_alive(report.member, lives)]
    if p.state != a.ELECTING or not there:
        return None
    missing = sorted({*p.replicas} - {report.member.broker for report in there})
    return _positioned(p, there, lives, hints, now, why, missing)


# --- external ---------------------------------------------------------------------------------------------


def _external(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now) -> Partition | None:
    """A leader whose life is over is none. The replicas elect the next, with a term that metad must not use up."""
    there = [member for member in p.isr if is_alive(member, lives)]
    state = led_state(p) if is_alive(p.leader, lives) else leaderless_state(p, lives)
    leader = p.leader if is_alive(p.leader, lives) else None
    if (leader, state, there) == (p.leader, p.state, p.isr):
        return None
    why = "a life is over"
    return change(p, now, why, leader=leader, leader_epoch=p.leader_epoch, state=state, isr=there)


# --- moves ------------------------------------------------------------------------------------------------


def remaining(p: Partition) -> list[str]:
    """Who has a partition once what moves it is over."""
    if p.move is None:
        return p.replicas
    return p.move.original if p.move.cancelling else p.move.wanted


def begin_move(
    p: Partition, wanted: Sequence[str], now: Now, why: str, plan: str | None, throttle: int | None
) -> Partition:
    """The record once it is being moved to ``wanted``, with a leader. An owner is asked to stop."""
    move = Move([*p.replicas], [*wanted], throttle)
    replicas = [*dict.fromkeys([*p.replicas, *wanted])]
    return change(p, now, why, replicas=replicas, move=move, plan=plan)


def _move(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now) -> Partition | None:
    """A move goes on: an owner is to stop, and replicas in sync take over."""
    move = p.move
    if move is None or p.leader is None or not is_alive(p.leader, lives):
        return None
    if p.plan is not None and not move.cancelling and hints.cancelled(p.plan):
        return change(p, now, "its plan was cancelled", move=msgspec.structs.replace(move, cancelling=True))
    if r.election == "owner":
        return _owner_moves(p, move, lives, hints, now)
    if r.election != "isr":
        return None  # its master says when, see :func:`.rules.in_sync`
    return end_move(p, move, lives, hints, now)


def end_move(p: Partition, move: Move, lives: Lives, hints: Hints, now: Now, whole: bool = False) -> Partition | None:
    """The record once a move has ended, or was given up; None while that would lose something. ``whole``: the master
    has said, since it knows of the move, who has everything; all that remain must. It remains itself, or has to hand
    over first."""
    if not all(is_alive(member, lives) for member in p.isr):
        return None
    to = remaining(p)
    keep = [member for member in p.isr if member.broker in to]
    if not keep or not move_may_end(p, move, keep) or (whole and (names(keep) != {*to} or p.leader not in keep)):
        return None
    left = msgspec.structs.replace(p, replicas=[*to])
    stays = p.leader in keep
    inside = {member.broker: member for member in keep}
    leader = p.leader if stays else inside[in_order(left, inside, hints)[0]]
    if whole:
        elr = [member for member in p.elr if member.broker in to]
    else:
        elr = eligible(left, lives, p.isr, keep, p.elr, p.min_isr) if move.cancelling else []
    why = "the move was cancelled" if move.cancelling else "the move has ended"
    return change(left, now, why, leader=leader, isr=keep, elr=elr, move=None, plan=None)


def move_may_end(p: Partition, move: Move, keep: Sequence[Owner]) -> bool:
    """Whether a move may end with these in sync: all that are added are, and they are enough; or it may be
    cancelled."""
    if move.cancelling:
        return len(keep) >= min(p.min_isr, len(move.original))
    return {*move.wanted} - {*move.original} <= names(keep) and len(keep) >= p.min_isr


def _owner_moves(p: Partition, move: Move, lives: Lives, hints: Hints, now: Now) -> Partition | None:
    assert p.leader is not None
    if move.cancelling:
        owner = p.leader.broker
        back = msgspec.structs.replace(p, replicas=[*move.original], move=None, plan=None)
        return owned_by(back, lives, now, owner, "the hand-over was cancelled")
    if p.leader.broker in move.wanted:
        return change(p, now, "the move has ended", replicas=[*move.wanted], move=None, plan=None)
    target = next((broker for broker in move.wanted if lives.life(broker) is not None), None)
    if target is None or (p.state == a.RELEASING and p.target == target):
        return None
    return handed_to(p, now, target)


# --- by the clock -----------------------------------------------------------------------------------------


def _forced(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now) -> Partition | None:
    """Nobody could lead for so long that one may who lacks records."""
    at_ms = _force_at(p, r)
    if not at_ms or now.past_ms < at_ms:
        return None
    return forced(p, r, lives, hints, now, f"nobody could for {r.force_after_ms} ms, records may be lost")


def forced(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now, why: str) -> Partition | None:
    """The record once somebody leads who may lack records; None if nobody can."""
    if p.leader is not None or r.election in ("owner", "external"):
        return None
    return (_isr_forced if r.election == "isr" else _position_forced)(p, lives, hints, now, why)


def _force_at(p: Partition, r: Resource) -> int:
    if p.leader is not None or not r.force_after_ms or r.election in ("owner", "external"):
        return 0
    return p.changed_ms + r.force_after_ms


def preferred(p: Partition, r: Resource, lives: Lives, hints: Hints) -> Owner | None:
    """Who should lead in place of the leader, and could; None if nobody."""
    if r.election != "isr" or p.move is not None or not is_alive(p.leader, lives):
        return None
    assert p.leader is not None
    able = {member.broker: member for member in p.isr if is_alive(member, lives)}
    first = in_order(p, able, hints)[0]
    return able[first] if first != p.leader.broker else None


def _prefer(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now) -> Partition | None:
    if r.election == "position":  # paced, for the last hand-over may have been given up
        target = _next_master(p, lives, hints)
        return handed_to(p, now, target) if target and now.past_ms >= p.changed_ms + PREFER_MS else None
    better = preferred(p, r, lives, hints)
    if better is None or p.leader is None:
        return None
    drains = hints.draining(p.leader.broker)
    if not drains and now.past_ms < p.changed_ms + PREFER_MS:
        return None
    why = f"{better.broker} leads: " + (f"{p.leader.broker} drains" if drains else "it is preferred")
    return change(p, now, why, leader=better)


def _dead(p: Partition, lives: Lives) -> list[tuple[int, str]]:
    """Replicas whose brokers do not live, and since when, the first that died first."""
    return sorted((lives.ended_ms(broker) or 0, broker) for broker in p.replicas if lives.life(broker) is None)


def _repair(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now) -> Partition | None:
    """A broker that has been dead for long is replaced as a replica; a move to such a one is given up."""
    if not _repairs(p, r, lives):
        return None
    if (move := p.move) is not None:
        added = {*move.wanted} - {*move.original}
        over = [
            one for ended_ms, one in _dead(p, lives) if one in added and now.past_ms >= ended_ms + r.repair_after_ms
        ]
        if move.cancelling or not over:
            return None
        why = f"the move is given up: {', '.join(over)} dead for long"
        return change(p, now, why, move=msgspec.structs.replace(move, cancelling=True))
    wanted, gone = [*p.replicas], []
    for ended_ms, broker in _dead(p, lives):
        if now.past_ms >= ended_ms + r.repair_after_ms:
            other = hints.replacement(r, wanted, broker)
            if other is not None and len({*p.replicas, *wanted, other}) <= a.REPLICAS_MAX:
                wanted[wanted.index(broker)] = other
                gone.append(broker)
    if not gone:
        return None
    return begin_move(p, wanted, now, f"repairs: {', '.join(gone)} dead for long", None, None)


def _repairs(p: Partition, r: Resource, lives: Lives) -> bool:
    return bool(r.repair_after_ms) and r.election != "owner" and is_alive(p.leader, lives)


def due_ms(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now) -> int:
    """When the partition is to be looked at again, with nothing to decide now; 0: when something changes."""
    if p.state == a.DELETING:
        dead = [ended_ms for ended_ms, _ in _dead(p, lives) if ended_ms]
        return max(now.ms + AGAIN_MS, min(dead) + FORGOTTEN_MS) if dead else 0
    times = [_force_at(p, r)]
    if _repairs(p, r, lives) and (p.move is None or not p.move.cancelling):
        times += [ended_ms + r.repair_after_ms for ended_ms, _ in _dead(p, lives)]
    if preferred(p, r, lives, hints) is not None or (r.election == "position" and _next_master(p, lives, hints)):
        times.append(p.changed_ms + PREFER_MS)
    if r.election == "position" and p.state == a.RELEASING:
        times.append(p.changed_ms + HAND_OVER_MS)
    if r.election == "owner" and p.leader is None:
        times.append(now.ms + OWNERLESS_MS)
    found = [at_ms for at_ms in times if at_ms]
    if not found:
        return 0
    first = min(found)
    return first if first > now.ms else now.ms + AGAIN_MS


# --- all of it --------------------------------------------------------------------------------------------


def _deleting(p: Partition, lives: Lives, now: Now) -> Partition | None:
    """Replicas whose brokers are forgotten, or dead for a day, are not waited for."""
    there = []
    for broker in p.replicas:
        ended_ms = lives.ended_ms(broker)
        if lives.life(broker) is not None or (ended_ms is not None and now.past_ms < ended_ms + FORGOTTEN_MS):
            there.append(broker)
    return None if there == p.replicas else change(p, now, "a replica's broker is not waited for", replicas=there)


def _is_deleted(p: Partition, r: Resource) -> bool:
    return r.state == "deleting" or not r.first_partition <= p.partition < r.partitions


def _has_other_bound(p: Partition, r: Resource) -> bool:
    return r.election == "isr" and p.min_isr != r.min_isr


def is_behind(p: Partition, r: Resource) -> bool:
    """Whether a partition has not followed a change of its resource."""
    return p.state != a.DELETING if _is_deleted(p, r) else _has_other_bound(p, r)


def follow(p: Partition, r: Resource, lives: Lives, now: Now) -> Partition | None:
    """What has become of the resource: it is deleted, has fewer partitions, or another bound."""
    if _is_deleted(p, r):
        why = "it is deleted, once its replicas have deleted it"
        return change(
            p,
            now,
            why,
            leader=None,
            leader_epoch=p.leader_epoch + 1,
            isr=[],
            elr=[],
            reports=[],
            state=a.DELETING,
            target="",
            move=None,
            plan=None,
        )
    if _has_other_bound(p, r):
        elr = eligible(p, lives, (), p.isr, p.elr, r.min_isr)
        return change(p, now, f"min_isr is {r.min_isr}", min_isr=r.min_isr, elr=elr)
    return None


_Rule = Callable[[Partition, Resource, Lives, Hints, Now], Partition | None]
_ELECTIONS: Final[dict[str, _Rule]] = {"isr": _isr, "owner": _owner, "position": _position, "external": _external}


def decide(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now) -> Partition | None:
    """The next change of a partition; None if nothing is to be done. The first rule that has something to say, says it:
    the resource has changed; members that are over leave and a leader is elected; a move goes on; force; a better
    leader; a repair."""
    if p.state == a.DELETING:
        return _deleting(p, lives, now)
    if (found := follow(p, r, lives, now)) is not None:
        return found
    for rule in (_ELECTIONS[r.election], _move, _forced, _prefer, _repair):
        if (found := rule(p, r, lives, hints, now)) is not None:
            return found
    return None


def settle(p: Partition, r: Resource, lives: Lives, hints: Hints, now: Now) -> Partition:
    """The record once nothing more is to be decided now, and when it is to be looked at again."""
    for _ in range(STEPS_MAX):
        found = decide(p, r, lives, hints, now)
        if found is None:
            break
        p = found
    at_ms = due_ms(p, r, lives, hints, now)
    return p if at_ms == p.due_ms else msgspec.structs.replace(p, due_ms=at_ms)
