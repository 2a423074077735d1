"""How a group comes to have the replicas and the leader that the map wants. Pure.

A group's leader takes one step at a time (:func:`.changes`), and hands over to the preferred leader at the end. A node
drops a replica once the group's leader says that the node is out of the group.

A replica that works is worth more than a wish: nobody is taken out before the others are as many as the group should
have, and reachable. So a group that loses nobody else never has fewer copies than before, wherever its new replicas
are, and however many nodes leave at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from metad_wire.cluster import GroupRecord
from metad_wire.messages import GroupStatus, StatusReply

from ...raft.messages import Configuration
from ...raft.roles.membership import CAUGHT_UP_ENTRIES
from .seen import Seen


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


def due_changes(record: GroupRecord, now: Configuration, seen: Seen, now_s: float) -> Iterator[Change]:
    """The changes of its replicas that a group's leader may make next, the most urgent first."""
    gone = {member for member in now.voters if seen.is_gone(member, now_s)}
    return changes(now, record.replicas, record.learners, reachable=seen.reachable, gone=gone)


def successor(record: GroupRecord, now: Configuration, lag_entries: int | None, seen: Seen, now_s: float) -> str | None:
    """The node that should lead a group instead of this one, if it can by now. ``lag_entries`` is what the preferred
    leader has yet to store or to apply; None means that it has answered nothing yet."""
    preferred = record.preferred
    if preferred == seen.me or preferred not in now.voters or lag_entries is None or lag_entries > CAUGHT_UP_ENTRIES:
        return None
    return preferred if seen.is_settled(record.group_id, preferred, now_s) else None


def certain(status: StatusReply) -> list[GroupStatus]:
    """What a node says of the groups that it leads and whose configuration is committed."""
    return [group for group in status.groups if group.role == "leader" and group.commit >= group.configured]


def is_let_go(me: str, record: GroupRecord, configured: int, reports: Iterable[GroupStatus]) -> bool:
    """Whether this node's replica of a group may be dropped: the map does not want it here, and a leader reports a
    configuration without this node. ``configured`` is the entry with the newest configuration that the replica has. A
    replica that was taken in again has a newer one in its log before it promises anything."""
    if me in (*record.replicas, *record.learners):
        return False
    return any(
        report.name == record.group_id.name
        and me not in (*report.voters, *report.learners)
        and report.configured >= configured
        for report in reports
    )
