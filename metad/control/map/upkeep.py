"""How a group comes to have the replicas and the leader that the map wants. Pure.

A group's leader takes one step at a time (:mod:`.changes`), and hands over to the preferred leader at the end. A node
drops a replica once the group's leader says that the node is out of the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from metad_wire.cluster import GroupRecord
from metad_wire.messages import GroupStatus, StatusReply

from ...raft.messages import Configuration
from ...raft.roles.membership import CAUGHT_UP_ENTRIES
from .changes import Change, changes
from .seen import Seen


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
