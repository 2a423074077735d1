"""What ``metadctl`` shows of a cluster: rows for programs, with plain numbers, and tables for people. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from metad_wire.messages import PeerLink

from . import people
from .printing import plain
from .verdict import Backup, Problem, Verdict, lines
from .view import ClusterView, GroupView, NodeView

Row = dict[str, Any]


# --- for programs ---


def groups(cluster: ClusterView) -> list[Row]:
    """A row for each group."""
    return [_group(group) for group in cluster.groups]


def _group(group: GroupView) -> Row:
    status = group.status
    region = group.record.region if group.record is not None else ""
    row: Row = {"group": group.name, "leader": group.leader or None, "preferred_region": region or None}
    if status is None:
        return row
    return row | {
        "term": status.term,
        "replicas": group.voters,
        "learners": status.learners,
        "commit": status.commit,
        "applied": status.applied,
        "slots": status.slots,
        "restoring": status.restoring or None,
        "replicas_reachable": len(group.available),
        "leaderless_ms": group.leaderless_ms,
        "waiting_items": status.waiting_items,
        "wait_ms": status.wait_ms,
        "served_per_s": status.served_per_s,
        "followers": [
            {
                "node": one.node_id,
                "state": one.state,
                "reachable": one.reachable,
                "lag_entries": group.lag_entries(one),
            }
            for one in group.followers
        ],
    }


def members(cluster: ClusterView, via: Mapping[str, str]) -> list[Row]:
    """A row for each node: its addresses, its state, and what it says of itself. ``via`` names the transport that
    reaches it."""
    led = Counter(group.leader for group in cluster.groups)
    return [_member(node, led[node.node], via.get(node.node)) for node in cluster.nodes]


def _member(node: NodeView, leads: int, via: str | None) -> Row:
    row: Row = {"node": node.node}
    if node.record is not None:
        row |= {
            "clients": node.record.endpoint or None,
            "quic": node.record.quic_endpoint or None,
            "peers": node.record.peer_endpoint or None,
            "region": node.record.region or None,
        }
    row |= {"state": node.state, "via": via, "leads": leads}
    if (status := node.status) is not None:
        row |= {
            "replicas": len(status.groups),
            "version": status.version,
            "uptime_ms": status.uptime_ms,
            "cpu_us": status.cpu_us,
            "rss_bytes": status.rss_bytes,
            "connections": status.connections,
            "sessions_ended": status.sessions_ended,
            "wills_due": status.wills_due,
            "overdue_ms": status.overdue_ms,
            "backlog": plain(status.backlog),
            "wills_dropped": status.wills_dropped,
            "turned_away": plain(status.turned_away),
            "lanes": plain(status.lanes),
            "disk": plain(status.disk),
        }
    else:
        row["error"] = node.error
    return row


def links(cluster: ClusterView) -> list[Row]:
    """A row for each connection between nodes, as the node says that sends on it."""
    return [
        {
            "node": node.node,
            "to": link.node_id,
            "up": link.up,
            "transport": link.transport,
            "rtt_us": link.rtt_us or None,
            "reason": _why(link) or None,
        }
        for node in cluster.nodes
        if node.status is not None
        for link in node.status.links
    ]


def _why(link: PeerLink) -> str:
    if link.refuses:
        return f"{link.node_id} is refused: {link.refuses}"
    return f"{link.node_id} refuses it: {link.refused}" if link.refused else link.obstacle


def expiry(cluster: ClusterView) -> Row:
    """What is done and what is late of what ends by itself, of all nodes together; times are of the worst node."""
    statuses = [node.status for node in cluster.nodes if node.status is not None]
    backlogs = [status.backlog for status in statuses]
    return {
        "sessions_ended": sum(status.sessions_ended for status in statuses),
        "deadlines_late": sum(backlog.deadlines for backlog in backlogs),
        "overdue_ms": max((status.overdue_ms for status in statuses), default=None),
        "fences_unswept": sum(backlog.fences for backlog in backlogs),
        "wills_due": sum(status.wills_due for status in statuses),
        "wills_waiting": sum(backlog.wills for backlog in backlogs),
        "wills_unclaimed": sum(backlog.unclaimed for backlog in backlogs),
        "unclaimed_ms": max((backlog.unclaimed_ms for backlog in backlogs), default=None),
        "tenants_ending": sum(backlog.tenants for backlog in backlogs),
        "more": any(backlog.more for backlog in backlogs),
    }


def status(
    cluster: ClusterView,
    via: Mapping[str, str],
    verdict: Verdict,
    found: Sequence[Problem],
    brokers: Mapping[str, int] | None = None,
    backup: Backup | None = None,
) -> Row:
    """The whole overview. ``brokers``: how many are in each state; None if that is not known. ``backup``: the newest
    one that is."""
    return {
        "verdict": verdict,
        "problems": [problem.fields() for problem in found],
        "cluster_id": cluster.cluster_id or None,
        "map_version": cluster.version,
        "via": ", ".join(sorted(set(via.values()))) or None,
        "nodes_up": sum(node.is_up for node in cluster.nodes),
        "nodes_total": len(cluster.nodes),
        "groups_led": sum(bool(group.leader) for group in cluster.groups),
        "groups_total": len(cluster.groups),
        "slot_moves": cluster.moves,
        "brokers": brokers,
        "newest_backup": None if backup is None else backup._asdict(),
        "expiry": expiry(cluster),
        "nodes": members(cluster, via),
        "groups": groups(cluster),
    }


def unknown(reason: str) -> Row:
    """The overview of a cluster of which no node answered."""
    return {"verdict": "unknown", "problems": [], "reason": reason, "nodes": [], "groups": []}


# --- for people ---


def headline(row: Row) -> str:
    """The verdict in one line."""
    if row["verdict"] == "unknown":
        return f"UNKNOWN: no node could be asked: {row['reason']}"
    return (
        f"{row['verdict'].upper()}: {row['nodes_up']} of {row['nodes_total']} nodes up, "
        f"{row['groups_led']} of {row['groups_total']} groups led"
    )


def summary(row: Row, found: Sequence[Problem]) -> list[str]:
    """The verdict, and one line for each problem."""
    return [headline(row), *lines(found)]


def facts(row: Row) -> str:
    """Which cluster this is, and what it is doing."""
    moving = f", {row['slot_moves']} slot moves under way" if row["slot_moves"] else ""
    return f"cluster {row['cluster_id'] or '-'}, map version {row['map_version']}, via {row['via'] or '-'}{moving}"


def life(row: Row) -> list[str]:
    """What brokers there are, and what of their clients ends by itself. A line each, and none if there is nothing."""
    lines: list[str] = []
    if brokers := row["brokers"]:
        lines.append("brokers: " + ", ".join(f"{count:,} {state}" for state, count in brokers.items()))
    late = row["expiry"]
    over = "over " if late["more"] else ""
    if late["sessions_ended"] or late["deadlines_late"] or late["fences_unswept"]:
        parts = [f"{late['sessions_ended']:,} ended", f"{over}{late['deadlines_late']:,} deadlines not carried out"]
        if late["overdue_ms"]:
            parts.append(f"the oldest {people.duration(late['overdue_ms'])} late")
        if late["fences_unswept"]:
            parts.append(f"{late['fences_unswept']:,} fences not swept")
        lines.append(f"sessions: {', '.join(parts)}")
    if late["tenants_ending"]:
        lines.append(f"tenants: {late['tenants_ending']:,} orders to end one are not carried out yet")
    if late["wills_due"] or late["wills_waiting"]:
        parts = [f"{late['wills_due']:,} came due", f"{over}{late['wills_waiting']:,} wait"]
        if late["wills_unclaimed"]:
            oldest = people.duration(late["unclaimed_ms"])
            parts.append(f"no broker has {late['wills_unclaimed']:,} of them, the oldest for {oldest}")
        lines.append(f"wills: {', '.join(parts)}")
    if backup := row["newest_backup"]:
        lines.append(f"backup: the newest is {backup['backup']}, {people.duration(backup['age_ms'])} old")
    if row["groups_led"] < row["groups_total"] and lines:
        lines.append("(nothing is known of groups that nobody leads)")
    return lines


def room(cluster: ClusterView) -> list[str]:
    """How full the fullest disk is, and how long its room lasts. No line if no node says."""
    disks = [(node.node, node.status.disk) for node in cluster.nodes if node.status and node.status.disk.total_bytes]
    if not disks:
        return []
    name, disk = min(disks, key=lambda one: one[1].free_bytes / one[1].total_bytes)
    which = "disk" if len(disks) == 1 else "fullest disk"
    return [f"{which}: {name} has {people.room(disk.free_bytes, disk.total_bytes, disk.lasts_ms)}"]


def node_table(cluster: ClusterView) -> list[Row]:
    """A row for each node."""
    led = Counter(group.leader for group in cluster.groups)
    regions = any(node.record is not None and node.record.region for node in cluster.nodes)
    rows: list[Row] = []
    for node in cluster.nodes:
        row: Row = {"node": node.node, "state": node.state}
        if regions:
            row["region"] = node.record.region if node.record is not None else None
        row["leads"] = led[node.node]
        if (status := node.status) is not None:
            row |= {
                "replicas": len(status.groups),
                "up for": people.duration(status.uptime_ms),
                "cpu": people.duration(status.cpu_us // 1_000),
                "memory": people.size(status.rss_bytes),
                "room": people.size(status.disk.free_bytes) if status.disk.total_bytes else None,
                "clients": status.connections,
            }
        rows.append(row)
    return rows


def member_table(cluster: ClusterView, found: Sequence[Problem]) -> list[Row]:
    """A row for each node that fits a terminal: where it is, how it is, and what runs there. ``found``: the problems of
    the cluster."""
    led = Counter(group.leader for group in cluster.groups)
    regions = any(node.record is not None and node.record.region for node in cluster.nodes)
    rows: list[Row] = []
    for node in cluster.nodes:
        record, status = node.record, node.status
        about = [one.code for one in found if one.node == node.node and not one.group]
        ill = [code for code in about if code != f"node_{node.state}"]
        row: Row = {"node": node.node, "state": node.state, "health": ill or ("ok" if node.is_up else None)}
        if regions:
            row["region"] = record.region if record is not None else None
        row["endpoint"] = (record.endpoint or None) if record is not None else None
        row["leads"] = f"{led[node.node]} of {len(status.groups)}" if status is not None else led[node.node]
        if status is not None:
            row["disk free"] = people.size(status.disk.free_bytes) if status.disk.total_bytes else None
            row["version"] = status.version
            row["up for"] = people.duration(status.uptime_ms)
        rows.append(row)
    return rows


_UNITS: Final[Mapping[str, Callable[[int], str]]] = {
    "_ms": people.duration,
    "_us": lambda us: people.duration(us // 1_000),
    "_bytes": people.size,
}
_TITLES: Final = {
    "uptime_ms": "up for",
    "cpu_us": "CPU used",
    "rss_bytes": "memory",
    "clients": "endpoint",
    "peers": "endpoint for nodes",
    "connections": "clients",
    "sessions_ended": "sessions ended",
    "wills_due": "wills that came due",
    "overdue_ms": "oldest late deadline",
    "wills_dropped": "wills dropped",
    "unclaimed": "wills without a broker",
    "unclaimed_ms": "oldest of these",
    "deadlines": "late deadlines",
    "fences": "fences not swept",
    "wills": "wills that wait",
    "more": "and more than these",
    "tenants": "tenants to end",
    "requests": "requests turned away",
    "early": "of these came too early",
    "per_s": "returns per second",
    "ahead_ms": "returns are planned for",
    "granted": "returns by a common budget",
    "paced": "connections that waited",
    "free_bytes": "disk free",
    "total_bytes": "disk",
    "low_bytes": "disk low below",
    "short": "disk is short",
    "lasts_ms": "disk lasts",
}


def member_details(row: Row) -> list[Row]:
    """All that programs are told of a node, a line each, as people read it."""
    lines: list[Row] = []
    for name, value in row.items():
        if name == "lanes":
            lines += [{"field": f"lane {lane['lane']}", "value": _lane(**lane)} for lane in value]
            continue
        for title, shown in as_read(name, value)[1].items() if isinstance(value, dict) else [as_read(name, value)]:
            lines.append({"field": title, "value": shown})
    return lines


def as_read(name: str, value: Any) -> tuple[str, Any]:
    """A field as people read it: its name without a unit, and its value with one."""
    if isinstance(value, dict):
        return name, dict(as_read(*inner) for inner in value.items())
    for unit, said in _UNITS.items():
        if name.endswith(unit):
            title = name.removesuffix(unit).replace("_", " ")
            return _TITLES.get(name, title), None if value is None else said(value)
    return _TITLES.get(name, name), f"{value:,}" if type(value) is int else value


def _lane(lane: str, admitted: int, refused: int) -> str:
    return f"{admitted:,}" + (f" and {refused:,} refused" if refused else "")


def group_table(cluster: ClusterView) -> list[Row]:
    """A row for each group. The lag is that of the follower that lacks most. Regions are there if a group prefers
    one."""
    prefers = any(group.record is not None and group.record.region for group in cluster.groups)
    return [
        {
            "group": group.name,
            "leader": group.leader or None,
            **({"prefers": group.record.region if group.record is not None else None} if prefers else {}),
            "replicas": group.voters,
            "learners": group.status.learners if group.status is not None else [],
            "lag": max((group.lag_entries(one) for one in group.followers), default=None),
            "slots": group.status.slots if group.status is not None else None,
        }
        for group in cluster.groups
    ]


def link_table(cluster: ClusterView) -> list[Row]:
    """A row for each connection between nodes."""
    return [
        {
            "node": row["node"],
            "to": row["to"],
            "state": "up" if row["up"] else "down",
            "transport": row["transport"],
            "round trip": f"{row['rtt_us'] / 1000:.3g} ms" if row["rtt_us"] else None,
            "reason": row["reason"],
        }
        for row in links(cluster)
    ]
