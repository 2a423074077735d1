"""The view of a cluster that ``metadctl`` prints: the map and every node's status, combined. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metad_wire.cluster import MapReply
from metad_wire.messages import GroupStatus, PeerLink, StatusReply

from ..errors import MetadError

Statuses = Mapping[str, StatusReply | MetadError]
Row = dict[str, Any]


def groups(known: MapReply, statuses: Statuses) -> list[Row]:
    """A row for each group, as its leader reports it, or else the replica that knows most."""
    heard: dict[str, GroupStatus] = {}
    for status in statuses.values():
        if not isinstance(status, StatusReply):
            continue
        for group in status.groups:
            other = heard.get(group.name)
            if other is None or _authority(group) > _authority(other):
                heard[group.name] = group
    records = known.map.groups if known.map is not None else []
    names = [record.group_id.name for record in records]
    return [_group(name, heard.get(name)) for name in names or sorted(heard)]


def _authority(group: GroupStatus) -> tuple[int, bool, int]:
    return group.term, group.role == "leader", group.applied


def _group(name: str, status: GroupStatus | None) -> Row:
    if status is None:
        return {"group": name, "leader": None}
    return {
        "group": name,
        "leader": status.leader or None,
        "term": status.term,
        "replicas": status.voters,
        "learners": status.learners,
        "commit": status.commit,
        "applied": status.applied,
        "slots": status.slots,
    }


def members(known: MapReply, statuses: Statuses, via: Mapping[str, str]) -> list[Row]:
    """A row for each node: its address, the groups it leads, its state. ``via`` names the transport that reaches it."""
    led: dict[str, int] = {}
    for group in groups(known, statuses):
        led[group["leader"]] = led.get(group["leader"], 0) + 1
    rows: list[Row] = [
        {
            "node": record.node_id,
            "clients": record.endpoint or None,
            "quic": record.quic_endpoint or None,
            "peers": record.peer_endpoint or None,
            "region": record.region or None,
        }
        for record in (known.map.nodes if known.map is not None else [])
    ]
    if not rows:  # no map yet
        rows = [{"node": node} for node in statuses]
    for row in rows:
        status = statuses.get(row["node"])
        row["state"] = "up" if isinstance(status, StatusReply) else "not reached"
        row["via"] = via.get(row["node"])
        row["leads"] = led.get(row["node"], 0)
        if isinstance(status, StatusReply):
            row["replicas"] = len(status.groups)
            row["version"] = status.version
            row["uptime_ms"] = status.uptime_ms
            row["cpu_us"] = status.cpu_us
            row["rss_bytes"] = status.rss_bytes
            row["connections"] = status.connections
            row["links"] = [_link(link) for link in status.links]
        elif status is not None:
            row["error"] = str(status.__cause__ or status)  # the cause says more than a passed deadline
    return rows


def _link(link: PeerLink) -> str:
    """A link as text, for example ``n2 quic 80.1 ms``."""
    if not link.up:
        return f"{link.node_id} down"
    return f"{link.node_id} {link.transport}" + (f" {link.rtt_us / 1000:.3g} ms" if link.rtt_us else "")


def cluster(known: MapReply, statuses: Statuses, via: Mapping[str, str]) -> Row:
    """The whole overview, with the sums that tell whether all is well."""
    nodes, led = members(known, statuses, via), groups(known, statuses)
    up = next((status for status in statuses.values() if isinstance(status, StatusReply)), None)
    return {
        "cluster_id": up.cluster_id if up is not None else None,
        "map_version": known.version,
        "via": ", ".join(sorted(set(via.values()))) or None,
        "nodes_up": f"{sum(node['state'] == 'up' for node in nodes)} of {len(nodes)}",
        "groups_led": f"{sum(group['leader'] is not None for group in led)} of {len(led)}",
        "nodes": nodes,
        "groups": led,
    }
