"""How a group comes to have the replicas and the leader that the map wants. Pure.

A group's leader takes one step at a time (:func:`.changes`), and hands over to the preferred leader at the end. A node
drops a replica once the group's leader says that the node is out of the group.

A replica that works is worth more than a wish: nobody is taken out before the others are as many as the group should
have, and reachable. So a group that loses nobody else never has fewer copies than before, wherever its new replicas
are, and however many nodes leave at once.

**Repair.** A group may have fewer replicas than the cluster wants: a node was lost and left, or the cluster began with
fewer nodes. As soon as other machines are there, the leader of ``metadata-0`` gives such groups replicas on them, a few
groups at a time, for a new replica costs a snapshot. Nothing else changes: no replica moves, no slot, no leader. A
replica on a node that is down still counts, because the node may come back; an operator decides when it is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from metad_wire import messages as m
from metad_wire.cluster import METADATA, ClusterMap, GroupRecord, machine_count
from metad_wire.messages import GroupStatus, StatusReply

from ...raft.messages import Configuration
from ...raft.roles.membership import CAUGHT_UP_ENTRIES
from .decisions import Decision, changed, leading, regions_of, replicas_text, staying
from .placement import completed, in_region
from .seen import Seen

AT_ONCE: Final = 2
"""Groups whose new replicas are not voters yet. More at once would hold up each other and the clients."""


def lacking(current: ClusterMap) -> Sequence[GroupRecord]:
    """The groups with fewer replicas than the cluster wants and its machines allow, the neediest first. Who votes in
    ``metadata-0`` is decided with every node that joins or leaves."""
    most = min(current.replicas, machine_count(staying(current.nodes)))
    found = [group for group in current.groups if group.group_id != METADATA and len(group.replicas) < most]
    return sorted(found, key=lambda group: (len(group.replicas), group.group_id))


def repaired(current: ClusterMap, reachable: Collection[str], reports: Iterable[m.GroupStatus]) -> Decision:
    """Give a few groups the replicas that they lack, on nodes within reach. ``reports`` are what the leaders say of
    their groups: one without a leader could take no replica in, and one whose new replicas are on their way counts."""
    voters = {status.name: status.voters for status in reports}
    room = AT_ONCE - sum(_is_under_way(group, voters, reachable) for group in current.groups)
    nodes, regions = [node for node in staying(current.nodes) if node in reachable], regions_of(current.nodes)
    after = {group.group_id: group for group in current.groups}
    for group in lacking(current):
        if room <= 0:
            break
        if group.group_id.name not in voters or _is_under_way(group, voters, reachable):
            continue
        replicas = completed(group.replicas, nodes, current.replicas, [*after.values()], regions)
        if len(replicas) > len(group.replicas):
            after[group.group_id] = msgspec.structs.replace(group, replicas=replicas)
            room -= 1
    groups = list(after.values())
    if groups == current.groups:
        return Decision(None, "nothing can be added")
    return changed(current, "; ".join(replicas_text(current.groups, groups)), groups=groups)


def _is_under_way(group: GroupRecord, voters: dict[str, list[str]], reachable: Collection[str]) -> bool:
    """Whether a replica that the map wants is not a voter yet, and could be."""
    now = voters.get(group.group_id.name, group.replicas)
    return any(node in reachable and node not in now for node in group.replicas)


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


def successors(
    record: GroupRecord,
    known: ClusterMap,
    now: Configuration,
    lag: Callable[[str], int | None],
    seen: Seen,
    now_s: float,
) -> Iterator[str]:
    """The nodes that should lead a group rather than this one and can by now, the best first. ``lag`` says how many
    entries a node has yet to store or to apply; None means that it has answered nothing yet.

    That is the preferred leader. If the group prefers a region, any voter there is better than one elsewhere, and the
    preferred leader is the best of them. Each step leads to a better one, so a group does not go round in circles.
    """
    for node in _better(record, known, seen.me):
        lag_entries = lag(node) if node in now.voters else None
        if lag_entries is None or lag_entries > CAUGHT_UP_ENTRIES:
            continue
        if seen.is_settled(record.group_id, node, now_s):
            yield node


def _better(record: GroupRecord, known: ClusterMap, me: str) -> Sequence[str]:
    """The nodes that should lead a group rather than node ``me``, the best first. Groups differ in which of equal ones
    comes first, so that not all go to the same."""
    if not record.region:
        return [record.preferred] if record.preferred != me else []
    able, regions = {*leading(known.nodes)}.intersection(record.replicas), regions_of(known.nodes)

    def rank(node: str) -> tuple[bool, bool]:
        return node in able and in_region(record, node, regions), node == record.preferred

    first = record.ordinal % max(len(record.replicas), 1)
    others = [*record.replicas[first:], *record.replicas[:first]]
    return sorted((node for node in others if rank(node) > rank(me)), key=rank, reverse=True)


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
