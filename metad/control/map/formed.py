"""Settings that count only when a cluster forms, held against the cluster that there is.

``seeds`` and ``[groups]`` of a node that is a member already have no effect. Without these checks they would be ignored
silently.
"""

from __future__ import annotations

from collections.abc import Iterator

from metad_wire.cluster import GROUP_KINDS, ClusterMap

from ...config import ClusterConfig, Config, GroupsConfig


def refusal(config: Config, current: ClusterMap) -> str | None:
    """Why the node cannot work in its cluster with these settings. None if it can."""
    others = sorted(node.node_id for node in current.nodes if node.node_id != config.node_id)
    seeds = sorted(set(config.cluster.seeds) - {config.node_id})
    alone = current.node(config.node_id)
    if others and not config.cluster.seeds and not config.cluster.join:
        return (
            f"cluster.seeds: this data directory is that of a member of a cluster with {', '.join(others)}. Without "
            "cluster.seeds or cluster.join the node does not listen for them. Set what was set when it became a member"
        )
    # A node that was a founder, or has joined, has told the address at which others reach it.
    if seeds and not others and alone is not None and not alone.peer_endpoint:
        return (
            f"cluster.seeds: this data directory was made by a cluster of {config.node_id!r} alone, and seeds do not "
            f"add {', '.join(seeds)} to it. To keep its data, name only this node in cluster.seeds and let the others "
            "join it (cluster.join). To begin anew, give every seed an empty data directory"
        )
    return None


def no_founder(config: Config, others: ClusterMap) -> str | None:
    """Why a node that has seeds, an empty data directory and no map cannot take part in the cluster of its seeds.
    ``others`` is their map. None if it is a founder that was not there when the cluster formed."""
    if others.node(config.node_id) is not None:
        return None
    join = ", ".join(f'"{node.peer_endpoint}"' for node in others.nodes if node.peer_endpoint)
    return (
        f"cluster.seeds: the cluster of these seeds is formed, and {config.node_id!r} is no member of it (any more). "
        f"To join it, replace cluster.seeds by cluster.join = [{join}]"
    )


def without_effect(config: Config, current: ClusterMap) -> Iterator[tuple[str, str]]:
    """Settings that differ from the cluster and change nothing, as key and text."""
    members = {node.node_id for node in current.nodes}
    if strangers := sorted(set(config.cluster.seeds) - members):
        yield "cluster.seeds", f"not in the cluster: {', '.join(strangers)}. Seeds form a cluster; later nodes join it"
    replicas = config.cluster.replicas
    if current.replicas and replicas not in (current.replicas, ClusterConfig().replicas):
        yield (
            "cluster.replicas",
            f"the cluster wants {current.replicas}; metadctl groups rebalance --replicas N changes that",
        )
    for kind in GROUP_KINDS:
        wanted, default = getattr(config.groups, kind), getattr(GroupsConfig(), kind)
        groups = [group for group in current.groups if group.kind == kind]
        formed_with = sum(bool(group.initial_slots) for group in groups)
        if wanted not in (default, formed_with, len(groups)):
            yield f"groups.{kind}", f"the cluster has {len(groups)}; metadctl groups add --kind {kind} adds one"
