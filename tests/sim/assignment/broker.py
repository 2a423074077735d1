"""What a broker does that leads a partition by in-sync replicas: six rules, of the high watermark and of who is in
sync. All of them are pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .judging import Member, Row

Members = frozenset[Member]


class Asked(NamedTuple):
    """What a leader has proposed, and does not know the outcome of."""

    partition_epoch: int
    isr: Members


class Leading(NamedTuple):
    """What a leader knows."""

    leader_epoch: int
    begin: int
    """How many records it had as this leader_epoch began."""
    high: int
    """So many records are acknowledged."""
    fetched: tuple[Member | None, ...]
    """By the follower's number: the life that fetched last, and up to where."""
    asked: Asked | None
    partition_epoch: int
    isr: Members
    replicas: tuple[int, ...]
    min_isr: int
    """The last four of the newest record that it knows."""


def begun(row: Row, length: int, brokers: int) -> Leading:
    """Once a broker learns that it leads."""
    nobody = (None,) * brokers
    return Leading(row.leader_epoch, length, 0, nobody, None, row.partition_epoch, row.isr, row.replicas, row.min_isr)


def leads(me: Member, row: Row) -> bool:
    """Whether a life leads: the record names this one, and no other one of the same broker."""
    return row.leader == me


def learnt(leading: Leading | None, me: Member, row: Row, length: int, brokers: int) -> Leading | None:
    """What a leader knows once it has learnt a record; None if it does not lead. A newer record is the outcome of what
    it has proposed before."""
    if not leads(me, row):
        return None
    if leading is None or leading.leader_epoch != row.leader_epoch:
        return begun(row, length, brokers)
    asked = leading.asked
    if asked is not None and row.partition_epoch > asked.partition_epoch:
        asked = None
    return Leading(*leading[:4], asked, row.partition_epoch, row.isr, row.replicas, row.min_isr)


def may_fetch(leading: Leading, leader: int, follower: int, view: tuple[Member | None, int]) -> bool:
    """Whether a leader serves a follower, which knows this leader and leader_epoch."""
    named, leader_epoch = view
    same = named is not None and named[0] == leader and leader_epoch == leading.leader_epoch
    return same and follower in leading.replicas


def high(leading: Leading, leader: int, length: int) -> int:
    """Up to where records are acknowledged: all who are in sync have them, or would be by what was proposed; and by the
    record alone these are enough."""
    counted = leading.isr if leading.asked is None else leading.isr | leading.asked.isr
    if len(leading.isr) < leading.min_isr:
        return leading.high
    positions = [length]
    for broker, _ in counted:
        if broker != leader:
            fetched = leading.fetched[broker]
            positions.append(0 if fetched is None else fetched[1])
    return max(leading.high, min(positions))


def may_join(leading: Leading, fetched: Member | None) -> bool:
    """Whether a follower has all that is acknowledged, and all from before this leader_epoch."""
    return fetched is not None and fetched[1] >= max(leading.high, leading.begin)


def joined(leading: Leading, follower: int, registered: Sequence[int]) -> Members:
    """What is proposed so that a follower is in sync: with the life with which it fetches."""
    fetched = leading.fetched[follower]
    assert fetched is not None
    return leading.isr | {(follower, fetched[0])}


def joining(leading: Leading) -> Iterator[int]:
    """Who may be proposed."""
    inside = {broker for broker, _ in leading.isr}
    for follower in leading.replicas:
        if follower not in inside and may_join(leading, leading.fetched[follower]):
            yield follower


def refused(leading: Leading, code: str) -> Leading:
    """Once the proposal was refused. What is known of one who is not eligible is forgotten, until that fetches
    again."""
    asked, fetched = leading.asked, leading.fetched
    assert asked is not None
    if code == "ineligible":
        new = asked.isr - leading.isr
        fetched = tuple(None if one is not None and (at, one[0]) in new else one for at, one in enumerate(fetched))
    return leading._replace(fetched=fetched, asked=None)


def given_up(leading: Leading, now: int) -> Leading | None:
    """Once no answer has come, and the partition_epoch is still ``now``: it waits on."""
    return None
