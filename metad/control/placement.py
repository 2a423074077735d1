"""Where replicas and leaders go: evenly, and with as few moves as that takes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from metad_wire.cluster import GroupRecord

VOTERS_MAX = 5
"""Of metadata-0; everyone else follows it as a learner."""


def machine_of(node: str) -> str:
    """The machine a node is on: workers of one node share what is before the slash."""
    return node.partition("/")[0]


def metadata_replicas(nodes: Sequence[str], keep: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """(voters, learners) of metadata-0: every node follows it, a few on different machines vote."""
    voters: list[str] = []
    for node in [*(node for node in keep if node in nodes), *sorted(nodes)]:
        if len(voters) < VOTERS_MAX and machine_of(node) not in {machine_of(voter) for voter in voters}:
            voters.append(node)
    return sorted(voters), sorted(set(nodes) - set(voters))


def spread(
    nodes: Sequence[str],
    count: int,
    groups: Sequence[GroupRecord],
    keep: Sequence[str] = (),
    avoid: Collection[str] = (),
) -> list[str]:
    """``count`` nodes on different machines (all machines, where there are fewer) for one more group: those kept, then
    those with the fewest replicas of the groups so far. Those to ``avoid`` come last."""
    load = dict.fromkeys(nodes, 0)
    for group in groups:
        for replica in group.replicas:
            if replica in load and group.kind != "metadata":
                load[replica] += 1
    chosen = [node for node in keep if node in load][:count]
    machines = {machine_of(node) for node in chosen}
    for node in sorted(nodes, key=lambda n: (n in avoid, load[n], n)):
        if len(chosen) >= count:
            break
        if machine_of(node) not in machines:
            chosen.append(node)
            machines.add(machine_of(node))
    return sorted(chosen)


def balanced_leaders(groups: Sequence[GroupRecord], nodes: Sequence[str]) -> list[GroupRecord]:
    """The groups, each with a preferred leader, so that per kind and altogether no node leads much more than another.
    Preferences that fit stay."""
    total = dict.fromkeys(nodes, 0)
    by_kind: dict[tuple[str, str], int] = {}
    placed: list[GroupRecord] = []
    share: dict[str, int] = {}
    for kind in {group.kind for group in groups}:
        share[kind] = -(-sum(group.kind == kind for group in groups) // max(len(nodes), 1))
    for group in groups:
        candidates = [node for node in group.replicas if node in total]
        current = group.preferred
        if current not in candidates or by_kind.get((group.kind, current), 0) >= share[group.kind]:
            load = {node: (by_kind.get((group.kind, node), 0), total[node], node) for node in candidates}
            current = min(candidates, key=load.__getitem__, default="")
        if current:
            total[current] += 1
            by_kind[group.kind, current] = by_kind.get((group.kind, current), 0) + 1
        placed.append(msgspec.structs.replace(group, preferred=current))
    return placed


def even_moves(slots: Sequence[int], groups: Sequence[int]) -> dict[tuple[int, int], list[int]]:
    """(source, target) -> slots to move, so that every group holds as many as every other, give or take one, and no
    slot moves without need."""
    held: dict[int, list[int]] = {group: [] for group in groups}
    for slot, group in enumerate(slots):
        held[group].append(slot)
    share, more = divmod(len(slots), len(groups))
    # The groups that hold most keep the odd ones.
    wanted = {
        group: share + (position < more)
        for position, group in enumerate(sorted(groups, key=lambda g: (-len(held[g]), g)))
    }
    spare = [(group, slot) for group in groups for slot in held[group][wanted[group] :]]
    moves: dict[tuple[int, int], list[int]] = {}
    for target in groups:
        for _ in range(wanted[target] - len(held[target])):
            source, slot = spare.pop()
            moves.setdefault((source, target), []).append(slot)
    return moves
