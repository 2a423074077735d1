"""Which nodes get replicas and leaders: over regions first, over machines second, evenly, and with as few moves as that
takes. Pure. Which groups get slots says ``metad_wire.policy.slots``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from metad_wire.cluster import METADATA, GroupRecord, machine_of

VOTERS_MAX = 5
"""Of metadata-0; everyone else follows it as a learner."""
Regions = Mapping[str, str]
"""Node -> region. Those without one are in a region together."""
NOWHERE: Regions = {}


def metadata_replicas(
    nodes: Sequence[str], keep: Sequence[str] = (), regions: Regions = NOWHERE
) -> tuple[list[str], list[str]]:
    """(voters, learners) of metadata-0: every node follows it, a few on different machines vote, those of ``keep``
    where the spread over regions allows it. Where all regions are known, as many vote as the loss of any one region
    leaves a quorum of, if that can be."""
    ordered = _by_region(nodes, VOTERS_MAX, keep, regions, rank=lambda node: node)
    voters = ordered
    if all(regions.get(node) for node in nodes):
        for count in range(len(ordered), 0, -1):
            (_, largest), *_ = Counter(regions[node] for node in ordered[:count]).most_common(1)
            if count - largest > count // 2:
                voters = ordered[:count]
                break
    return sorted(voters), sorted(set(nodes) - set(voters))


def spread(
    nodes: Sequence[str],
    count: int,
    groups: Sequence[GroupRecord],
    keep: Sequence[str] = (),
    avoid: Collection[str] = (),
    regions: Regions = NOWHERE,
) -> list[str]:
    """``count`` nodes on different machines (all machines, where there are fewer) for one more group, evenly over as
    many regions as can be; of each region those kept, then those with the fewest replicas of the groups so far. Those
    to ``avoid`` come last, unless they are kept."""
    return sorted(_by_region(nodes, count, keep, regions, rank=_least_loaded(nodes, groups), avoid=avoid))


def completed(
    replicas: Sequence[str], nodes: Sequence[str], count: int, groups: Sequence[GroupRecord], regions: Regions = NOWHERE
) -> list[str]:
    """``replicas`` and as many of ``nodes``, on other machines, as make them ``count``: of the regions that have fewest
    of them, those with the fewest replicas of the groups so far. None of ``replicas`` is given up."""
    rank = _least_loaded(nodes, groups)
    return sorted(_by_region(nodes, count, (), regions, rank=rank, chosen=replicas))


def _least_loaded(nodes: Sequence[str], groups: Sequence[GroupRecord]) -> Callable[[str], tuple[int, str]]:
    """Ranks nodes by the replicas of the groups that they have; every node has one of metadata-0."""
    load = dict.fromkeys(nodes, 0)
    for group in groups:
        for replica in group.replicas:
            if replica in load and group.group_id != METADATA:
                load[replica] += 1
    return lambda node: (load[node], node)


def _by_region(
    nodes: Sequence[str],
    count: int,
    keep: Sequence[str],
    regions: Regions,
    *,
    rank: Callable[[str], Any],
    avoid: Collection[str] = (),
    chosen: Sequence[str] = (),
) -> list[str]:
    """Those chosen already, and more nodes up to ``count``, all on different machines, each of a region that has the
    fewest of those before it."""
    machines = {machine_of(node) for node in chosen}
    used = Counter(regions.get(node, "") for node in chosen)
    chosen = list(chosen)
    candidates = [node for node in nodes if machine_of(node) not in machines]
    while candidates and len(chosen) < count:
        best = min(
            candidates,
            key=lambda n: (n in avoid and n not in keep, used[regions.get(n, "")], n not in keep, rank(n)),
        )
        chosen.append(best)
        used[regions.get(best, "")] += 1
        candidates = [node for node in candidates if machine_of(node) != machine_of(best)]
    return chosen


def in_region(group: GroupRecord, node: str, regions: Regions) -> bool:
    """Whether a node is in the region in which a group should be led, if it prefers one."""
    return group.region in ("", regions.get(node, ""))


def able_leaders(group: GroupRecord, nodes: Collection[str], regions: Regions) -> list[str]:
    """The replicas of a group that may be preferred as its leader, of these nodes: those in the region that it prefers
    if there are any, or else all."""
    able = [node for node in group.replicas if node in nodes]
    return [node for node in able if in_region(group, node, regions)] or able


def balanced_leaders(
    groups: Sequence[GroupRecord], nodes: Sequence[str], regions: Regions = NOWHERE
) -> list[GroupRecord]:
    """The groups, each with a preferred leader, so that per kind and altogether no node leads much more than another,
    nor a region where nodes do not differ. A group that prefers a region is led there if it has a replica there.
    Preferences that fit stay."""
    total = dict.fromkeys(nodes, 0)
    by_region: Counter[str] = Counter()
    by_kind: dict[tuple[str, str], int] = {}
    placed: list[GroupRecord] = []
    share: dict[str, int] = {}
    for kind in {group.kind for group in groups}:
        share[kind] = -(-sum(group.kind == kind for group in groups) // max(len(nodes), 1))
    for group in groups:
        candidates = able_leaders(group, total, regions)
        current = group.preferred
        if current not in candidates or by_kind.get((group.kind, current), 0) >= share[group.kind]:
            load = {
                node: (by_kind.get((group.kind, node), 0), total[node], by_region[regions.get(node, "")], node)
                for node in candidates
            }
            current = min(candidates, key=load.__getitem__, default="")
        if current:
            total[current] += 1
            by_region[regions.get(current, "")] += 1
            by_kind[group.kind, current] = by_kind.get((group.kind, current), 0) + 1
        placed.append(msgspec.structs.replace(group, preferred=current))
    return placed


def returned_leaders(
    groups: Sequence[GroupRecord], node: str, nodes: Sequence[str], regions: Regions = NOWHERE
) -> list[GroupRecord]:
    """The groups, with so many of them led by a node that leads less than its share as no other then leads two more. Of
    a node that leads most, it gets a group of the kind of which that leads most. None leaves the region it prefers."""
    placed = list(groups)
    while True:
        led = Counter(group.preferred for group in placed)
        of_kind = Counter((group.preferred, group.kind) for group in placed)
        candidates = [
            (led[group.preferred], of_kind[group.preferred, group.kind], -position)
            for position, group in enumerate(placed)
            if node in able_leaders(group, nodes, regions)
            and group.preferred in nodes
            and led[group.preferred] >= led[node] + 2
        ]
        if not candidates:
            return placed
        position = -max(candidates)[2]
        placed[position] = msgspec.structs.replace(placed[position], preferred=node)
