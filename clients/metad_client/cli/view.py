"""One view of a cluster from the map and from what every node says: who is refused or cut off, and who leads. Pure.

Nodes may contradict each other. A node that the others refuse is not believed about groups, because it has forgotten
what it promised, nor is one of another cluster. Of the others, the leader of the highest term is believed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from metad_wire.cluster import METADATA, MOVES_OF_A_MAP, ClusterMap, GroupRecord, MapReply, NodeRecord, machine_count
from metad_wire.messages import FollowerStatus, GroupStatus, PeerLink, StatusReply

from ..errors import DeadlineExceededError, MetadError

Statuses = Mapping[str, StatusReply | MetadError]

METADATA_VOTERS_MIN = 3
"""``metadata-0`` has at least so many voters, whatever ``cluster.replicas`` is, if there are as many machines."""
SURVIVING_MIN = 3
"""So many voters have a majority after the loss of one."""
_RESTARTED_MS = 2_000  # a node that knows of no leader since its start says nothing about the time before


@dataclass(frozen=True, slots=True)
class NodeView:
    """A member. ``status`` is None if it did not answer, and ``error`` says why."""

    node: str
    record: NodeRecord | None
    status: StatusReply | None
    error: str
    refused_by: dict[str, str]
    """The nodes that refuse it -> why."""
    cut_off_from: dict[str, str]
    """The nodes that have no connection with it although both answer -> why, as far as known."""
    connected: list[str]
    """The nodes that are connected to it."""

    @property
    def leaving(self) -> bool:
        """Whether its replicas move to other nodes."""
        return self.record is not None and self.record.leaving

    @property
    def drained(self) -> bool:
        """Whether it is to lead nothing."""
        return self.record is not None and self.record.drained

    @property
    def state(self) -> str:
        """``up``, ``drained``, ``leaving``, ``refused`` or ``unreachable``."""
        if self.refused_by:
            return "refused"
        if self.status is None:
            return "unreachable"
        return "leaving" if self.leaving else "drained" if self.drained else "up"

    @property
    def is_up(self) -> bool:
        """Whether it answers, and the others do not refuse it."""
        return self.state in ("up", "drained", "leaving")


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group, as its leader reports it, or else the replica that knows most."""

    name: str
    record: GroupRecord | None
    leader: str
    """Empty if there is none."""
    status: GroupStatus | None
    """What the leader says, or else the replica that knows most. None if nobody knows anything."""
    voters: list[str]
    available: list[str]
    """The voters that are within reach and have what they acknowledged."""
    replicas_allowed: int
    """How many voters the cluster wants and its machines allow. 0 if that is unknown."""
    machines_missing: int
    """How many machines more the cluster needs for the replicas that it wants. One that never had more than one machine
    wants none yet."""
    leaderless_ms: int
    closing: int = 0
    """Number of a slot move that the map says is done, and that the group has not closed; 0: none."""
    few_wanted: int = 0
    """How many voters the cluster wants, if these survive no failure although it has machines for three; else 0."""

    @property
    def followers(self) -> list[FollowerStatus]:
        """The other members, as the leader sees them. Empty if the leader did not answer."""
        return self.status.followers if self.status is not None and self.status.role == "leader" else []

    @property
    def has_quorum(self) -> bool:
        """Whether enough voters are within reach to decide anything."""
        return len(self.available) > len(self.voters) // 2

    def lag_entries(self, follower: FollowerStatus) -> int:
        """How many log entries of the leader a follower lacks; 0 as long as a new leader does not know."""
        if self.status is None or (follower.state == "probe" and not follower.match):
            return 0
        return max(0, self.status.last - follower.match)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The whole cluster."""

    version: int
    cluster_id: str
    forming: bool
    """There is no map yet."""
    moves: int
    """Slot moves under way: those of the map, and those that are not closed."""
    nodes: list[NodeView]
    groups: list[GroupView]

    @property
    def answers(self) -> int:
        """How many nodes answered."""
        return sum(node.status is not None for node in self.nodes)


def view(known: MapReply, statuses: Statuses) -> ClusterView:
    """Combine the map and the statuses."""
    current = known.map
    records = {} if current is None else {record.node_id: record for record in current.nodes}
    names = list(records) or sorted(statuses)
    asked = {node: one for node in names if isinstance(one := statuses.get(node), StatusReply)}
    ours = _cluster_of(asked.values(), known)
    answered = {node: one for node, one in asked.items() if one.cluster_id in (ours, "")}
    strangers = {
        node: f"cluster {one.cluster_id!r} has its address" for node, one in asked.items() if node not in answered
    }
    refused = _refused(answered)
    believed = {node: status for node, status in answered.items() if node not in refused}
    cut_off = _cut_off(believed)
    nodes = [
        NodeView(
            node,
            records.get(node),
            answered.get(node),
            strangers.get(node) or _error(statuses.get(node)),
            refused.get(node, {}),
            cut_off.get(node, {}),
            sorted(other for other, status in believed.items() if other != node and _is_linked(status, node)),
        )
        for node in names
    ]
    groups = _groups(current, nodes, believed)
    moves = {group.closing for group in groups if group.closing}
    moves |= {move.move for move in current.moves} if current is not None else set()
    return ClusterView(known.version, ours, current is None, len(moves), nodes, groups)


def _error(status: StatusReply | MetadError | None) -> str:
    if isinstance(status, DeadlineExceededError) and status.__cause__ is None:
        return "it does not answer"
    if isinstance(status, MetadError):
        return str(status.__cause__ or status)  # the cause says more than a passed deadline
    return "" if status is not None else "it was not asked"


# --- nodes ---


def _cluster_of(asked: Iterable[StatusReply], known: MapReply) -> str:
    """The cluster of most nodes. Empty if none is known."""
    counts = Counter(status.cluster_id for status in asked if status.cluster_id)
    noted = "" if known.map is None else known.map.cluster_id
    return max(counts, key=lambda one: (counts[one], one == noted, one), default="")


def _refused(answered: Mapping[str, StatusReply]) -> dict[str, dict[str, str]]:
    """Node -> who refuses it, and why. Two nodes that do not fit refuse each other: the one that fits fewer others does
    not belong. At the address of a node that did not answer somebody else may refuse: that does not count."""
    edges: dict[str, dict[str, str]] = {}
    for node, status in answered.items():
        for link in _down(status):
            if link.refuses:
                edges.setdefault(link.node_id, {})[node] = link.refuses
            if link.refused and link.node_id in answered:
                edges.setdefault(node, {}).setdefault(link.node_id, link.refused)
    pairs = {frozenset((node, other)) for node, by in edges.items() for other in by}
    counts = Counter(node for pair in pairs for node in pair)
    fair = {
        node: {other: why for other, why in by.items() if counts[other] <= counts[node]} for node, by in edges.items()
    }
    return {node: by for node, by in fair.items() if by}


def _cut_off(believed: Mapping[str, StatusReply]) -> dict[str, dict[str, str]]:
    """Node -> the nodes that it has no connection with, and why. Of two such nodes, the one with more of them."""
    pairs: dict[tuple[str, str], str] = {}
    for node, status in believed.items():
        why = {link.node_id: link.obstacle or link.refused or link.refuses for link in _down(status)}
        for other in believed:
            if other != node and not _is_linked(status, other):
                pair = (min(node, other), max(node, other))
                pairs[pair] = pairs.get(pair) or why.get(other, "")
    counts = Counter(node for pair in pairs for node in pair)
    found: dict[str, dict[str, str]] = {}
    for pair, why_not in pairs.items():
        other, node = sorted(pair, key=lambda one: (counts[one], one))
        found.setdefault(node, {})[other] = why_not
    return found


def _down(status: StatusReply) -> Iterator[PeerLink]:
    return (link for link in status.links if not link.up)


def _is_linked(status: StatusReply, node: str) -> bool:
    return any(link.up and link.node_id == node for link in status.links)


# --- groups ---


@dataclass(slots=True)
class _Heard:
    """What the nodes say about one group."""

    by_node: dict[str, GroupStatus] = field(default_factory=dict)


def _groups(
    current: ClusterMap | None, nodes: Iterable[NodeView], believed: Mapping[str, StatusReply]
) -> list[GroupView]:
    heard: dict[str, _Heard] = {}
    for node, status in believed.items():
        for group in status.groups:
            heard.setdefault(group.name, _Heard()).by_node[node] = group
    records = {} if current is None else {record.group_id.name: record for record in current.groups}
    within_reach = {node.node for node in nodes if node.node in believed or (node.connected and not node.refused_by)}
    machines = 0 if current is None else machine_count(node.node_id for node in current.nodes if not node.leaving)
    wanted = 0 if current is None else current.replicas
    views: list[GroupView] = []
    for name in records or sorted(heard):
        by_node = heard[name].by_node if name in heard else {}
        record = records.get(name)
        metadata = name == METADATA.name
        most = METADATA_VOTERS_MIN if metadata else wanted or machines
        missing = max(0, (min(wanted, METADATA_VOTERS_MIN) if metadata else wanted) - machines)
        seen = _group(name, record, by_node, believed, within_reach, min(most, machines), missing)
        few = 0 < wanted < SURVIVING_MIN <= machines and not metadata
        closing = 0 if current is None else _closing(current, seen.status)
        views.append(replace(seen, closing=closing, few_wanted=wanted if few else 0) if few or closing else seen)
    return views


def _closing(current: ClusterMap, status: GroupStatus | None) -> int:
    """The move for which a group has given up slots, if it is over for the map. A restore gives up slots, too."""
    sealed = 0 if status is None or status.restoring else status.sealed_move
    is_ordered = current.version < sealed // MOVES_OF_A_MAP or any(move.move == sealed for move in current.moves)
    return 0 if is_ordered else sealed


def _group(
    name: str,
    record: GroupRecord | None,
    by_node: Mapping[str, GroupStatus],
    believed: Mapping[str, StatusReply],
    within_reach: set[str],
    allowed: int,
    machines_missing: int,
) -> GroupView:
    leader = _leader(by_node, believed)
    own = by_node.get(leader)
    best = own if own is not None else max(by_node.values(), key=_authority, default=None)
    voters = best.voters if best is not None and best.voters else record.replicas if record is not None else []
    if own is not None:
        lost = {one.node_id for one in own.followers if one.state == "lost" or not one.reachable}
        there = {leader, *(one.node_id for one in own.followers)} - lost
    else:
        # Nobody who knows better answered: a replica that answers is within reach, and so is a node that others reach.
        there = {node for node in within_reach if node not in believed or node in by_node}
    available = [voter for voter in voters if voter in there]
    leaderless_ms = _leaderless_ms(leader, by_node, believed)
    return GroupView(name, record, leader, best, voters, available, allowed, machines_missing, leaderless_ms)


def _authority(group: GroupStatus) -> tuple[int, bool, int]:
    return group.term, group.role == "leader", group.applied


def _leader(by_node: Mapping[str, GroupStatus], believed: Mapping[str, StatusReply]) -> str:
    """The leader: a node that says so itself, or one that did not answer but that a follower is connected to."""
    claims = [
        (group.term, node if group.role == "leader" else group.leader)
        for node, group in by_node.items()
        if group.role == "leader"
        or (group.leader and group.leader not in believed and _is_linked(believed[node], group.leader))
    ]
    return max(claims, default=(0, ""))[1]


def _leaderless_ms(leader: str, by_node: Mapping[str, GroupStatus], believed: Mapping[str, StatusReply]) -> int:
    """For how long the group has had no leader. A replica that has been cut off has known none for longer than that,
    and one that was started again for less."""
    told = {node: group.leaderless_ms for node, group in by_node.items() if group.leaderless_ms}
    if leader or not told:
        return 0
    steady = [ms for node, ms in told.items() if believed[node].uptime_ms > ms + _RESTARTED_MS]
    return min(steady) if steady else max(told.values())
