"""The verdict about a cluster: what is not as it should be, and how bad that is. Pure.

``critical`` means that some group has no leader or no quorum, or a disk too little room, so that some requests fail.
``warning`` means that everything is served, but a further failure may change that, or what should have ended by itself
has not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

from metad_wire.cluster import METADATA
from metad_wire.messages import StatusReply
from metad_wire.tables.access import AuditEntry
from metad_wire.tables.broker import Broker

from . import people
from .view import ClusterView, GroupView, NodeView

Severity = Literal["warning", "critical"]
Verdict = Literal["ok", "warning", "critical", "unknown"]

EXIT_STATUS: Final[dict[Verdict, int]] = {"ok": 0, "warning": 1, "critical": 2, "unknown": 3}
"""Of ``metadctl status --check``."""

CODES: Final[dict[str, Severity]] = {
    "node_unreachable": "warning",
    "node_refused": "warning",
    "node_leaving": "warning",
    "node_drained": "warning",
    "settings_differ": "warning",
    "versions_differ": "warning",
    "node_slow": "warning",
    "certificate_ended": "critical",
    "certificate_ends": "warning",
    "disk_failing": "warning",
    "disk_full": "critical",
    "disk_low": "warning",
    "group_no_leader": "critical",
    "group_no_quorum": "critical",
    "group_undecided": "critical",
    "restoring": "critical",
    "tenant_moving": "warning",
    "group_under_replicated": "warning",
    "group_overloaded": "warning",
    "replica_lagging": "warning",
    "replica_unlike": "warning",
    "replica_catching_up": "warning",
    "expiry_late": "warning",
    "wills_unclaimed": "warning",
    "broker_silent": "warning",
    "backup_old": "warning",
}

ALIKE: Final = {
    "fsync": "acknowledges what is not on its disk yet",
    "authorization": "lets every client do everything, whatever its roles say",
}
"""Settings that all nodes should have once one has them, and what one does that lacks them."""

LATE_MS: Final = 300_000
"""A deadline, or a will that no broker claims, may wait for so long after a leader changed or many clients
went at once."""

ENDS_MS: Final = 14 * 86_400_000
"""So long before its end a certificate is to be replaced."""

WAIT_MS: Final = 500
"""A group does in less time what comes at once."""

SLOW: Final = {
    "sync_us": "to make the log durable takes up to",
    "apply_us": "to apply what is committed takes up to",
    "loop_us": "its event loop is late by up to",
}
"""What a node may be slow at."""

SLOW_US: Final = 100_000
"""A node whose tail is longer is slow, if it is one among others that are not."""

SLOW_TIMES: Final = 4
"""So much longer than that of others."""

LAG_ENTRIES: Final = 1_000
"""A follower that gets every entry lacks some tens of them under load. One that lacks more than this is too slow."""


class Backup(NamedTuple):
    """The newest backup that the audit trail knows."""

    backup: str
    """Its name in its repository, which begins with when it was begun: ``20261129T201500.123Z-…``."""
    who: str
    age_ms: int
    """Since it was begun, by our calendar."""

    @classmethod
    def of(cls, line: AuditEntry, now_ms: int) -> Backup:
        """The one that a line of the audit trail tells of."""
        try:
            begun_ms = round(
                1_000 * datetime.strptime(line.names[:20], "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC).timestamp()
            )
        except ValueError:  # its program names it otherwise: then it was complete
            begun_ms = line.when_ms - line.waited_ms
        return cls(line.names, line.who, max(0, now_ms - begun_ms))


def too_old(newest: Backup | None, most_ms: int, unknown: str = "") -> list[Problem]:
    """That no backup is as new as wanted. ``unknown``: why nobody says what there is."""
    if unknown:
        return [Problem("backup_old", f"nobody says which backup is the newest: {unknown}")]
    if newest is None:
        return [Problem("backup_old", "the audit trail knows no complete backup")]
    if newest.age_ms > most_ms:
        return [Problem("backup_old", f"the newest backup, {newest.backup}, is {people.duration(newest.age_ms)} old")]
    return []


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it should be, about a node, a group, a group's replica on a node, or a broker."""

    code: str
    what: str
    node: str = ""
    group: str = ""
    lasting_ms: int = 0
    """0 if unknown."""
    detail: str = ""
    broker: str = ""

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return CODES[self.code]

    @property
    def subject(self) -> str:
        """What it is about. A node's problem in one group is about the group."""
        return self.group or self.node or self.broker

    @property
    def text(self) -> str:
        """A sentence for people."""
        return _sentence([self])

    def fields(self) -> dict[str, Any]:
        """For programs."""
        fields = {"code": self.code, "severity": self.severity}
        fields |= {"node": self.node, "group": self.group, "broker": self.broker}
        return {key: value for key, value in fields.items() if value} | {"text": self.text}


def verdict(cluster: ClusterView, found: Iterable[Problem], despite: Collection[str] = ()) -> Verdict:
    """The worst of all problems, but for those with the codes ``despite``."""
    if not cluster.answers:
        return "unknown"
    severities = {problem.severity for problem in found if problem.code not in despite}
    return "critical" if "critical" in severities else "warning" if severities else "ok"


def problems(cluster: ClusterView, brokers: Iterable[Broker] = (), backups: Iterable[Problem] = ()) -> list[Problem]:
    """Everything that is not as it should be, the worst first. ``brokers``: as far as they are known. ``backups``: what
    :func:`too_old` has found."""
    found = [problem for node in cluster.nodes for problem in _of_node(node, cluster)]
    found += _unlike([node for node in cluster.nodes if node.status is not None])
    found += _older([node for node in cluster.nodes if node.status is not None])
    found += _slow([node for node in cluster.nodes if node.status is not None])
    found += [problem for group in cluster.groups for problem in _of_group(group)]
    found += [
        Problem("broker_silent", "not heard of", broker=one.broker, lasting_ms=one.silent_ms, detail=_its_end(one))
        for one in brokers
        if one.silent_ms
    ]
    found += backups
    if cluster.forming and not any(problem.code == "group_no_leader" for problem in found):
        found.append(Problem("group_no_leader", "the cluster is being formed", group=METADATA.name))
    return sorted(found, key=lambda problem: (problem.severity, list(CODES).index(problem.code), problem.subject))


def lines(found: Iterable[Problem]) -> list[str]:
    """One line for each problem; the groups and nodes that have the same one share a line."""
    alike: dict[tuple[str, str, str], list[Problem]] = {}
    for problem in found:
        alike.setdefault((problem.code, problem.what, problem.detail), []).append(problem)
    return [f"{same[0].severity} {same[0].code}: {_sentence(same)}" for same in alike.values()]


def _sentence(same: Sequence[Problem]) -> str:
    lasting_ms = max(one.lasting_ms for one in same)
    lasting = f" for {people.duration(lasting_ms)}" if lasting_ms else ""
    detail = f"; {same[0].detail}" if same[0].detail else ""
    return f"{people.listed([one.subject for one in same]) or 'the cluster'}: {same[0].what}{lasting}{detail}"


def _of_node(node: NodeView, cluster: ClusterView) -> Iterator[Problem]:
    if node.refused_by:
        by = people.listed(sorted(node.refused_by))
        yield Problem("node_refused", f"refused by {by}: {min(node.refused_by.values())}", node.node)
    elif node.status is None and "certificate has expired" in node.error:
        yield Problem("certificate_ended", "its certificate has ended: clients and nodes refuse it", node.node)
    elif node.status is None:
        others = f"; {people.listed(node.connected)} can reach it" if node.connected else ""
        yield Problem("node_unreachable", f"not reached: {node.error}{others}", node.node)
    elif node.cut_off_from:
        from_ = people.listed(sorted(node.cut_off_from))
        why = max(node.cut_off_from.values())
        yield Problem("node_unreachable", f"no connection with {from_}" + (f": {why}" if why else ""), node.node)
    if node.leaving:
        holds = sum(_still_needs(group, node.node) for group in cluster.groups)
        yield Problem("node_leaving", f"leaving; {holds} replicas have not moved yet", node.node)
    if node.drained and not node.leaving:
        leads = sum(group.leader == node.node for group in cluster.groups)
        yet = f"; it leads {leads} groups yet" if leads else ""
        yield Problem("node_drained", f"drained: it leads nothing until it is undrained{yet}", node.node)
    if node.status is not None and node.status.failing:
        yield Problem("disk_failing", node.status.failing, node.node)
    if node.status is not None:
        yield from _disk(node.node, node.status)
        yield from _late(node.node, node.status)
        yield from _ending(node.node, node.status)


def _ending(node: str, status: StatusReply) -> Iterator[Problem]:
    for one in status.certificates:
        if not one.lasts_ms:
            yield Problem("certificate_ended", f"the certificate of `{one.key}` has ended: others refuse it", node)
        elif one.lasts_ms < ENDS_MS:
            yield Problem("certificate_ends", f"that of `{one.key}` ends in {people.duration(one.lasts_ms)}", node)


def _unlike(nodes: Sequence[NodeView]) -> Iterator[Problem]:
    """Settings of nodes that others do not have."""
    for setting, effect in ALIKE.items():
        on = {node.node: bool(getattr(node.status, setting)) for node in nodes}
        others = people.listed([node for node, has in on.items() if has])
        for node in on if others else ():
            if not on[node]:
                yield Problem("settings_differ", f"{setting} is off, and on at {others}: it {effect}", node)
    for version in {node.status.version for node in nodes if node.status is not None}:
        # Another version may not say what it has, or have another default.
        yield from _unlike_values(
            [node for node in nodes if node.status is not None and node.status.version == version]
        )


def _unlike_values(nodes: Sequence[NodeView]) -> Iterator[Problem]:
    """Where nodes of one version differ in what all should have; the rarer value is the wrong one."""
    told = {node.node: node.status.settings for node in nodes if node.status is not None}
    for setting in sorted({name for settings in told.values() for name in settings}):
        values = {node: settings.get(setting, "its default") for node, settings in told.items()}
        many = Counter(values.values())
        usual = max(many, key=lambda value: (many[value], value))
        for node, value in values.items():
            if value != usual:
                others = people.listed([other for other, its in values.items() if its == usual])
                yield Problem("settings_differ", f"{setting} is {value}, and {usual} at {others}", node)


def _older(nodes: Sequence[NodeView]) -> Iterator[Problem]:
    """Nodes whose version is not the newest: an upgrade has not ended."""
    versions = {node.node: node.status.version for node in nodes if node.status is not None}
    many = Counter(versions.values())  # builds of one version have no order: the one that most nodes run counts as new
    newest = max(many, key=lambda version: (_order(version), many[version]), default="")
    new = people.listed([node for node, version in versions.items() if version == newest])
    for node, version in versions.items():
        if version != newest:
            yield Problem("versions_differ", f"version {version}, and {newest} at {new}", node)


def _slow(nodes: Sequence[NodeView]) -> Iterator[Problem]:
    """Nodes that are slow at something which most others are not."""
    for field, what in SLOW.items():
        tails = {node.node: int(getattr(node.status.tail, field)) for node in nodes if node.status is not None}
        for node, tail_us in tails.items():
            others = sorted(other_us for other, other_us in tails.items() if other != node)
            usual_us = others[(len(others) - 1) // 2] if others else tail_us
            if tail_us > SLOW_US and tail_us >= SLOW_TIMES * usual_us:
                text = f"{what} {people.duration(tail_us // 1_000)}, at the others {people.duration(usual_us // 1_000)}"
                yield Problem("node_slow", text, node)


def _its_end(broker: Broker) -> str:
    return f"its life ends after {people.duration(broker.lease_ms)}"


def _order(version: str) -> list[tuple[int, str]]:
    """Of versions: ``0.10.0`` is newer than ``0.9.1``, and both than what is none. The commit behind a ``+`` says
    nothing of it."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in version.partition("+")[0].split(".")]


def _disk(node: str, status: StatusReply) -> Iterator[Problem]:
    """How much room there is, before there is too little."""
    disk = status.disk
    if disk.short or disk.free_bytes < 2 * disk.low_bytes:
        room = f"its disk has {people.room(disk.free_bytes, disk.total_bytes, disk.lasts_ms)}"
        if disk.short or disk.free_bytes < disk.low_bytes:
            yield Problem("disk_full", f"{room}: what needs more room may be refused", node)
        else:
            yield Problem("disk_low", f"{room}: below {people.size(disk.low_bytes)}, writes may be refused", node)


def _late(node: str, status: StatusReply) -> Iterator[Problem]:
    """What ends by itself, in the groups that the node leads."""
    backlog = status.backlog
    if status.overdue_ms > LATE_MS:
        what = f"{backlog.deadlines:,} deadlines have passed and are not carried out"
        yield Problem("expiry_late", what, node, lasting_ms=status.overdue_ms)
    if backlog.unclaimed_ms > LATE_MS:
        what = f"{backlog.unclaimed:,} due wills, and no broker publishes them"
        yield Problem("wills_unclaimed", what, node, lasting_ms=backlog.unclaimed_ms)


def _still_needs(group: GroupView, node: str) -> bool:
    """Whether a leaving node is still one of a group's replicas. It follows the map until the end."""
    learners = group.status.learners if group.status is not None and group.name != METADATA.name else []
    return node in group.voters or node in learners


def _of_group(group: GroupView) -> Iterator[Problem]:
    there, voters = len(group.available), len(group.voters)
    if not group.leader:
        detail = f"{there} of {voters} replicas reachable"
        yield Problem("group_no_leader", "no leader", "", group.name, group.leaderless_ms, detail)
    if not group.has_quorum:
        text = f"no quorum: {there} of {voters} voters reachable, {voters // 2 + 1} are needed"
        yield Problem("group_no_quorum", text, group=group.name)
    elif missing := _missing(group):
        yield Problem("group_under_replicated", missing, group=group.name)
    if group.status is not None and group.status.wait_ms > WAIT_MS:
        waits, per_s = people.duration(group.status.wait_ms), group.status.served_per_s
        text = f"{group.status.waiting_items:,} items wait, {waits} at {per_s:,} a second"
        yield Problem("group_overloaded", text, group=group.name)
    if group.status is not None and group.status.restoring:
        text = f"backup {group.status.restoring} is being put into it, and it serves nothing"
        yield Problem("restoring", text, group=group.name, lasting_ms=group.status.restoring_ms)
    if group.status is not None and group.status.tenants_moving:
        text = f"{group.status.tenants_moving} tenants on the way to or from another cluster: no slots move meanwhile"
        yield Problem("tenant_moving", text, group=group.name)
    unlike = [] if group.status is None else group.status.unlike
    if group.status is not None and group.status.undecided:
        text = f"the states of {people.listed(unlike)} differ, and no majority says which is right"
        yield Problem("group_undecided", text, group=group.name)
    else:
        for node in unlike:
            text = f"the state of {node} is not that of the majority, and is being replaced"
            yield Problem("replica_unlike", text, node, group.name)
    for follower in group.followers:
        node, lag = follower.node_id, group.lag_entries(follower)
        if not follower.reachable:
            continue
        if follower.state == "snapshot" or follower.obstacle:
            lacks = "needs a snapshot" if follower.state == "snapshot" else "lacks entries"
            gets = f"does not get what it lacks: {follower.obstacle}" if follower.obstacle else "gets it"
            yield Problem("replica_catching_up", f"{node} {lacks} and {gets}", node, group.name)
        elif follower.state == "probe":
            yield Problem("replica_catching_up", f"{node} has not told yet what it has", node, group.name)
        elif follower.state == "replicate" and lag > LAG_ENTRIES:
            yield Problem("replica_lagging", f"{node} lacks {lag:,} entries", node, group.name)


def _missing(group: GroupView) -> str:
    """Why a group has fewer replicas than it should have; empty if it has them all."""
    voters, wanted = len(group.voters), len(group.record.replicas) if group.record is not None else 0
    out = [voter for voter in group.voters if voter not in group.available]
    reasons: list[str] = []
    if out:
        reasons.append(f"{len(group.available)} of {voters} voters reachable; missing: {people.listed(out)}")
    if lost := [one.node_id for one in group.followers if one.state == "lost"]:
        reasons.append(f"{people.listed(lost)} has lost what it acknowledged")
    if voters < wanted:
        reasons.append(f"{voters} voters, the map wants {wanted}")
    if wanted < group.replicas_allowed and group.record is not None:
        reasons.append(f"the map wants {wanted} voters, {group.replicas_allowed} are possible")
    if few := group.few_wanted:
        replicas = "one replica" if few == 1 else f"{few} replicas"
        reasons.append(f"the cluster wants {replicas}, and the loss of a node may stop it")
    if missing := group.machines_missing:
        machines = "one machine" if missing == 1 else f"{missing} machines"
        reasons.append(f"{wanted} of {wanted + missing} replicas that the cluster wants; it needs {machines} more")
    return "; ".join(reasons)
