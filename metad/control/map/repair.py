"""Which groups get another replica because they have too few. Pure.

A group may have fewer replicas than the cluster wants: a node was lost and left, or the cluster began with fewer nodes.
As soon as other machines are there, the leader of ``metadata-0`` gives such groups replicas on them, a few groups at a
time, for a new replica costs a snapshot. Nothing else changes: no replica moves, no slot, no leader. A replica on a
node that is down still counts, because the node may come back; an operator decides when it is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from metad_wire import messages as m
from metad_wire.cluster import METADATA, ClusterMap, GroupRecord, machine_count

from .decisions import Decision, changed, regions_of, replicas_text, staying
from .placement import completed

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
