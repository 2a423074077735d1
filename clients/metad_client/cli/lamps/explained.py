"""Why a group is as it is, and what comes next: from the cluster map and what the nodes say, as in ``metadctl status``.
Pure.

Nothing is decided here. The leader of a group takes the steps (a learner, a vote, a removal, the hand-over) and the
map says where they lead; this only puts the two beside each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from metad_wire.cluster import METADATA, ClusterMap, SlotMove, slots_count

from .. import people
from ..view import ClusterView, GroupView, NodeView

Row = dict[str, Any]


class Explained(msgspec.Struct, frozen=True):
    """Says why a group is as it is. ``--json`` prints the fields."""

    group: str
    kind: str
    slots: int
    slot_ranges: list[tuple[int, int]]
    """The first and the last slot of each run."""
    leader: str | None
    preferred: str | None
    """The node that should lead it."""
    region: str | None
    """The region in which it should be led; None: any."""
    wanted_replicas: int
    why: str
    """Why there are so many replicas, and who leads."""
    next: str
    """What happens next, and what that waits for."""
    replicas: list[Row]
    moves: list[Row]

    def facts(self) -> Row:
        """What a person is told, besides the tables of replicas and moves."""
        runs = ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in self.slot_ranges[:8])
        more = f" and {len(self.slot_ranges) - 8} more runs" if self.slot_ranges[8:] else ""
        return {
            "group": self.group,
            "slots": f"{self.slots}: {runs}{more}" if self.slots else "none",
            "leader": self.leader,
            "preferred leader": self.preferred,
            "preferred region": self.region,
            "replicas wanted": self.wanted_replicas,
            "why": self.why,
            "next": self.next,
        }


def explained(known: ClusterMap, cluster: ClusterView) -> list[Explained]:
    """Say of each group of the map why it is as it is."""
    nodes = {node.node: node for node in cluster.nodes}
    views = {group.name: group for group in cluster.groups}
    owned = {group: slots for kind in known.slots for group, slots in known.holders(kind).items()}
    moves = [_move(known, views, move) for move in sorted(known.moves, key=lambda one: one.move)]
    found: list[Explained] = []
    for record in known.groups:
        group, slots = views[record.group_id.name], owned.get(record.group_id, [])
        mine = [move for move in moves if group.name in (move["source"], move["target"])]
        found.append(
            Explained(
                group.name,
                record.kind,
                len(slots),
                list(_runs(slots)),
                group.leader or None,
                record.preferred or None,
                record.region or None,
                len(record.replicas),
                _why(known, group, nodes),
                "; ".join(_next(group, nodes, mine)) or "nothing: the group is as the map wants it",
                list(_replicas(known, group, nodes)),
                mine,
            )
        )
    return found


def _runs(slots: list[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of each run of slots, which are in order."""
    first = last = -2
    for slot in slots:
        if slot != last + 1:
            if last >= 0:
                yield first, last
            first = slot
        last = slot
    if last >= 0:
        yield first, last


# --- why ---


def _why(known: ClusterMap, group: GroupView, nodes: Mapping[str, NodeView]) -> str:
    assert group.record is not None
    record, parts = group.record, []
    if group.name == METADATA.name:
        parts.append("every node follows the cluster map; a few vote, on different machines, over regions first")
    elif len(record.replicas) < group.replicas_allowed:
        parts.append(f"the cluster wants {group.replicas_allowed} replicas and gives it more as soon as it can")
    elif known.replicas and len(record.replicas) < known.replicas:
        machines = f"{group.machines_missing} more machines" if group.machines_missing > 1 else "one more machine"
        parts.append(f"the cluster wants {known.replicas} replicas, and needs {machines} for them")
    else:
        parts.append(f"the cluster wants {known.replicas or len(record.replicas)} replicas")
    if not group.leader:
        parts.append("nobody leads it")
    elif group.leader == record.preferred:
        parts.append(f"{group.leader} leads it, as the map prefers")
    elif not record.preferred:
        parts.append(f"{group.leader} leads it; the map prefers nobody")
    else:
        preferred = nodes.get(record.preferred)
        state = "which is not back yet" if preferred is None or not preferred.is_up else "which has yet to get it"
        parts.append(f"{group.leader} leads it instead of {record.preferred}, {state}")
    if record.region:
        parts.append(_where_led(group, nodes, record.region))
    return "; ".join(parts)


def _can_lead(nodes: Mapping[str, NodeView], node: str, region: str) -> bool:
    """Whether a node is there, in this region, and may lead."""
    view = nodes.get(node)
    return view is not None and view.is_up and not (view.drained or view.leaving) and _region(nodes, node) == region


def _where_led(group: GroupView, nodes: Mapping[str, NodeView], region: str) -> str:
    """Whether a group that prefers a region is led there, and why not."""
    if group.leader and _region(nodes, group.leader) == region:
        return f"it is led in {region}, as it should be"
    there = [node for node in group.voters if _region(nodes, node) == region]
    if not there:
        return f"it should be led in {region}, where it has no voter"
    if able := [node for node in there if _can_lead(nodes, node, region)]:
        return f"it should be led in {region}, and {people.listed(able)} can take it once caught up and settled"
    return f"it should be led in {region}, where no voter can: " + ", ".join(
        f"{node} is {view.state if (view := nodes.get(node)) is not None else 'no member'}" for node in there
    )


def _replicas(known: ClusterMap, group: GroupView, nodes: Mapping[str, NodeView]) -> Iterator[Row]:
    """A row for each node that has a replica, or is to have one."""
    assert group.record is not None
    record, followers = group.record, {one.node_id: one for one in group.followers}
    learners = group.status.learners if group.status is not None else record.learners
    regions = Counter(_region(nodes, node) for node in record.replicas)
    for node in sorted({*group.voters, *learners, *record.replicas, *record.learners}):
        follower = followers.get(node)
        is_voter, wanted = node in group.voters, node in (*record.replicas, *record.learners)
        role = "leader" if node == group.leader else "voter" if is_voter else "learner" if node in learners else "none"
        region = _region(nodes, node)
        yield {
            "node": node,
            "region": region or None,
            "role": role,
            "wanted": wanted,
            "state": follower.state if follower is not None else None,
            "reachable": node in group.available if is_voter else follower is not None and follower.reachable,
            "lag_entries": group.lag_entries(follower) if follower is not None else 0 if role == "leader" else None,
            "why": _why_here(group, nodes.get(node), node, regions[region] if region else 0),
        }


def _why_here(group: GroupView, view: NodeView | None, node: str, of_region: int) -> str:
    """Why a node has a replica of a group. ``of_region``: how many wanted voters are in its region; 0: it has none."""
    assert group.record is not None
    record = group.record
    if node in record.replicas:
        place = "the only one of its region" if of_region == 1 else "one of its region" if of_region else "by load"
        if node not in group.voters:
            return f"the map gives it a replica, {place}: it becomes a voter once it has the entries"
        return f"one of {len(record.replicas)} that the map wants, {place}"
    if view is not None and view.leaving:
        return "it is leaving: it stays until the others are enough"
    if node in record.learners:
        return (
            "every node follows the cluster map" if group.name == METADATA.name else "the map wants it without a vote"
        )
    return "the map gives its place to another: it goes when the others are enough"


def _region(nodes: Mapping[str, NodeView], node: str) -> str:
    view = nodes.get(node)
    return view.record.region if view is not None and view.record is not None else ""


# --- next ---


def _next(group: GroupView, nodes: Mapping[str, NodeView], moves: list[Row]) -> Iterator[str]:
    """What the leader, or whoever is to become it, does next, and what that waits for."""
    assert group.record is not None
    record = group.record
    if not group.has_quorum:
        away = [voter for voter in group.voters if voter not in group.available]
        yield f"nothing before a majority is back: {people.listed(away)} out of reach"
        return
    if not group.leader:
        yield "a voter is elected"
        return
    learners = group.status.learners if group.status is not None else []
    followers = {one.node_id: one for one in group.followers}
    for node in record.replicas:
        view = nodes.get(node)
        if node in group.voters:
            continue
        if view is None or not view.is_up:
            yield f"{node} is to get a replica, and is out of reach: waits for it"
        elif node in learners:
            lag = group.lag_entries(followers[node]) if node in followers else 0
            yield f"{node} becomes a voter once it has the entries: it lacks {lag:,}"
        else:
            yield f"{node} is taken in as a learner"
    for node in group.voters:
        if node not in record.replicas:
            yield f"{node} is taken out once the {len(record.replicas)} that the map wants vote and are in reach"
    for node in learners:
        if node not in (*record.replicas, *record.learners):
            yield f"{node} is taken out"
    if record.preferred and record.preferred != group.leader and record.preferred in group.voters:
        one, follower = nodes.get(record.preferred), followers.get(record.preferred)
        if one is None or not one.is_up or follower is None or not follower.reachable:
            there = [node for node in group.voters if _can_lead(nodes, node, record.region)]
            if there and record.region and not _can_lead(nodes, group.leader, record.region):
                yield f"{group.leader} hands over to {people.listed(there)}, in {record.region}"
            yield f"{record.preferred} leads again once it is back"
        else:
            yield f"{group.leader} hands over to {record.preferred}: it lacks {group.lag_entries(follower):,} entries"
    if group.closing:
        yield f"move {group.closing} is closed: its slots are in another group"
    yield from (f"move {move['move']} of {move['slots']} slots: {move['phase']}, {move['waits_for']}" for move in moves)


def _move(known: ClusterMap, views: Mapping[str, GroupView], move: SlotMove) -> Row:
    """How far a move of slots is, as the two groups say. :mod:`metad.state.moving.slot_migration` has the steps."""
    source, target = (views.get(group.name) for group in (move.source_id, move.target_id))
    gives = source.status if source is not None else None
    takes = target.status if target is not None else None
    groups = {move.source_id, move.target_id}
    before = [one.move for one in known.moves if one.move < move.move and groups & {one.source_id, one.target_id}]
    batches = 0
    if before:
        phase, waits_for = "queued", f"for move {min(before)}"
    elif source is None or not source.leader or target is None or not target.leader:
        names = [one.name for one in (source, target) if one is not None and not one.leader]
        phase, waits_for = "waiting", f"for a leader of {people.listed(names)}"
    elif takes is not None and takes.adopted_move == move.move:
        phase, waits_for = "adopted", "for the map to say so"
    elif gives is not None and gives.sealed_move == move.move:
        phase, waits_for = "sealed", "for the last rows: writes of these slots wait, too"
    elif gives is not None and gives.sealed_move:
        phase, waits_for = "waiting", f"for move {gives.sealed_move} to be closed"
    elif takes is not None and takes.opened_move == move.move:
        batches = takes.opened_batch
        phase, waits_for = "copying", f"for the rows: {batches:,} batches are there"
    elif (gives is not None and gives.tenants_moving) or (takes is not None and takes.tenants_moving):
        phase, waits_for = "waiting", "until no tenant is on the way to or from another cluster"
    else:
        phase, waits_for = "beginning", f"for {source.name} to begin"
    return {
        "move": move.move,
        "source": move.source_id.name,
        "target": move.target_id.name,
        "slots": slots_count(move.slots),
        "phase": phase,
        "batches": batches,
        "waits_for": waits_for,
    }
