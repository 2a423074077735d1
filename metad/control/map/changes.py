"""Which changes bring a group from the replicas it has to those it should have. Pure.

A replica that works is worth more than a wish: nobody is taken out before the others are as many as the group should
have, and reachable. So a group that loses nobody else never has fewer copies than before, wherever its new replicas
are, and however many nodes leave at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal, NamedTuple

from ...raft.messages import Configuration


class Change(NamedTuple):
    """One entry in a group's log."""

    kind: Literal["add", "promote", "remove"]
    member: str


def changes(
    now: Configuration,
    voters: Sequence[str],
    learners: Sequence[str],
    *,
    reachable: Collection[str],
    gone: Collection[str],
) -> Iterator[Change]:
    """The changes that may be made next, the most urgent first; each is safe on its own, and one is made at a time.

    ``now`` is the group's configuration, ``voters`` and ``learners`` are those it should have. ``reachable`` are the
    nodes that the leader is connected to, and its own; ``gone`` those that have been out of reach for long.
    """
    for member in (*voters, *learners):
        if member not in now.members and member in reachable:
            yield Change("add", member)
    for member in voters:
        # One that cannot be reached would only make the quorum larger.
        if member in now.learners and member in reachable:
            yield Change("promote", member)
    for member in now.learners:
        if member not in voters and member not in learners:
            yield Change("remove", member)
    for member in now.voters:
        if member in voters:
            continue
        rest = [voter for voter in now.voters if voter != member]
        alive = sum(voter in reachable for voter in rest)
        quorum = len(rest) // 2 + 1
        awaited = any(voter not in now.voters and voter in reachable for voter in voters)
        if alive >= max(quorum, len(voters)) or (member in gone and not awaited and alive >= quorum):
            yield Change("remove", member)
