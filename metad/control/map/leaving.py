"""When a node may leave, what the cluster map becomes, and when nothing needs the node any more. Pure.

A leave moves the node's replicas to nodes that stay. The node works on until no group counts on it; then it is
forgotten. A leave is refused if a group could not carry it out, or would have no majority within reach afterwards, or,
unless that is wanted, fewer replicas than before.

The group that keeps the map lets a node go that has left, and tells it nothing more. So a node that is leaving, or that
hears of no leader of that group, asks others for their map. A newer map without this node says that it has left. What a
node reads while it follows the log from the beginning proves nothing: it was no member yet in the first maps, and the
name may have been another's. Its data directory's id tells them apart. Nor does a node that was let go say where it is
until it is a member again: what it says names the newest map that has it, and is refused where it has left since. So
is a request to be taken in: asked again, it would take in anew whoever was let go between its answer and the first map.

That a node asked to be taken in, and what it was answered, is in its data directory. Otherwise a node that fails soon
after the answer would go by the maps that it hears of next, and one of before the answer would say that it has left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import msgspec

from metad_wire import messages as m
from metad_wire.cluster import METADATA, ClusterMap, GroupRecord
from metad_wire.errors import ConflictError, InvalidRequestError, MetadError, NotFoundError
from metad_wire.methods import CLUSTER_JOIN

from .decisions import Decision, SettledSlots, changed, leading, metadata_on, regions_of, staying
from .placement import balanced_leaders, spread
from .seen import Reach

ASK_S = 1.0
"""How often the others are asked."""


class Asked(NamedTuple):
    """What is kept of a node's requests to be taken in."""

    unanswered: bool = False
    """It has asked since the last answer."""
    member_at: int = 0
    """The version of the map that the last answer named; 0: there was none."""


class Directory(Protocol):
    """A node's data directory keeps what it asked."""

    @property
    def store_id(self) -> str:
        """Its random name."""

    @property
    def cluster_id(self) -> str:
        """Of its cluster; empty before that has formed, or has accepted the node."""

    @property
    def lost(self) -> Collection[str]:
        """The nodes without which the cluster was recovered."""

    @property
    def settled(self) -> SettledSlots | None:
        """What was decided about slots when it was recovered; None: nothing."""

    @property
    def asked(self) -> Asked:
        """What :meth:`note` has noted last."""

    def note(self, asked: Asked) -> None:
        """Keep this. What is unanswered is durable when this returns. Raises StorageError."""


class Departure:
    """What node ``me`` with this data directory knows of its own membership."""

    def __init__(self, me: str, directory: Directory) -> None:
        self._me = me
        self._directory = directory
        self.unsure, self.member_at = directory.asked
        """Whether this node has asked to be taken in and knows no answer: it may be taken in at any time. And the
        version of the newest map with this node; 0: it knows of none."""
        self._asked_s = float("-inf")

    @contextlib.contextmanager
    def joining(self) -> Iterator[None]:
        """The node asks to be taken in, and may be before it hears of it: no map proves that it has left until it is
        answered, for it may have been a member before. An answer that is lost is one to come. Raises StorageError
        before anything is asked."""
        before = self._asks()
        try:
            yield
        except MetadError as error:
            self._refused(error, before)
            raise

    def heard(self, answer: bytes | MetadError) -> None:
        """The leader of ``metadata-0`` has answered this node's ``cluster.join``."""
        if not isinstance(answer, MetadError):
            self.joined(CLUSTER_JOIN.decode_reply(answer).version)

    def joined(self, version: int) -> None:
        """The answer is that the map of this version has the node, which may not have heard of that map. Older ones
        prove nothing."""
        self.member_at = max(self.member_at, version)
        self._answered()

    def _asks(self) -> bool:
        kept = self._directory.asked
        if not kept.unanswered:
            self._directory.note(kept._replace(unanswered=True))
        before, self.unsure = self.unsure, True
        return before

    def _refused(self, error: MetadError, before: bool) -> None:
        if isinstance(error, NotFoundError):  # it was let go, and is not taken in anew
            self._answered()
        else:
            self.unsure = before or not error.outcome_known

    def _answered(self) -> None:
        self.unsure = False
        if self._directory.asked.unanswered:
            self._directory.note(Asked(False, self.member_at))

    def has_left(self, known: ClusterMap) -> bool:
        """Whether this map, of any node, proves that this one has left."""
        record = known.node(self._me)
        if record is not None and record.store_id == self._directory.store_id:
            self.member_at = max(self.member_at, known.version)
            return False
        return 0 < self.member_at < known.version and not self.unsure

    def asks(self, mine: ClusterMap, metadata_leader: str | None, now_s: float) -> bool:
        """Whether to ask others for their map now. ``mine`` is this node's."""
        record = mine.node(self._me)
        member = record is not None and not record.leaving and metadata_leader is not None
        return not member and self.asks_again(now_s)

    def asks_again(self, now_s: float) -> bool:
        """Whether it is time to ask again."""
        if now_s - self._asked_s < ASK_S:
            return False
        self._asked_s = now_s
        return True


_NAMED = 4  # groups that a text names; there may be two thousand


def is_leaving(current: ClusterMap, node_id: str) -> bool:
    """Whether a node's replicas move away already. Raises NotFoundError if it is no member."""
    record = current.node(node_id)
    if record is None:
        raise NotFoundError(f"{node_id} is not a member")
    return record.leaving


def check_lost(node_id: str, reach: Reach) -> None:
    """Raise ConflictError unless a node that is to leave as lost is out of reach indeed."""
    if reach is Reach.ALIVE:
        raise ConflictError(f"{node_id} is alive; to remove a node that is alive, use: metadctl leave {node_id}")
    if reach is Reach.UNKNOWN:
        raise ConflictError(f"{node_id} was within reach a moment ago; ask again")


def leave(
    current: ClusterMap,
    node_id: str,
    lost: Collection[str],
    reports: Iterable[m.GroupStatus],
    wanted: int,
    *,
    fewer: bool = False,
) -> Decision:
    """Move a node's replicas to nodes that stay. Nodes that are ``lost``, which means out of reach, come last.

    ``reports`` are what the leaders say of their groups. ``wanted`` is the number of replicas that groups should have;
    with ``fewer`` they may have fewer afterwards. Raises InvalidRequestError if no node would stay, and ConflictError
    if the node cannot leave now.
    """
    rest = [node for node in staying(current.nodes) if node != node_id]
    if not rest:
        raise InvalidRequestError("the last node cannot leave")
    nodes = [msgspec.structs.replace(n, leaving=True) if n.node_id == node_id else n for n in current.nodes]
    regions = regions_of(nodes)
    groups: list[GroupRecord] = []
    for group in metadata_on(current.groups, nodes):
        if group.group_id != METADATA and node_id in group.replicas:
            kept = [replica for replica in group.replicas if replica != node_id]
            replicas = spread(rest, len(group.replicas), groups, kept, lost, regions)
            group = msgspec.structs.replace(group, replicas=replicas)
        groups.append(group)
    voters = {status.name: status.voters for status in reports}
    touched = [
        (now, then, voters.get(now.group_id.name, now.replicas))
        for now, then in zip(current.groups, groups, strict=True)
        if node_id in (*now.replicas, *voters.get(now.group_id.name, ()))
    ]
    for now, then, actual in touched:
        _keeps_majority(node_id, now.group_id.name, actual, then.replicas, lost)
    fewest = [
        (then, len(now.replicas)) for now, then, _ in touched if len(then.replicas) < min(wanted, len(now.replicas))
    ]
    if fewest:
        _may_shrink(current, node_id, [then for then, _ in fewest], wanted, fewer=fewer)
    groups = balanced_leaders(groups, leading(nodes), regions)
    text = f"the replicas of {node_id} move away; it ends when nothing needs it any more"
    return changed(current, text, nodes=nodes, groups=groups)


def _keeps_majority(
    node_id: str, group: str, actual: Sequence[str], then: Sequence[str], lost: Collection[str]
) -> None:
    """Raise ConflictError if the group cannot decide about its replicas now, or could not once the node has left."""
    for voters, when in ((actual, "has"), (then, f"without {node_id} would have")):
        alive = [voter for voter in voters if voter not in lost]
        if len(alive) <= len(voters) // 2:
            away = ", ".join(sorted(set(voters) - set(alive)))
            raise ConflictError(
                f"{node_id} cannot leave now: {group} {when} {len(alive)} of {len(voters)} replicas within reach, no "
                f"majority. Bring {away} back first"
            )


def _may_shrink(current: ClusterMap, node_id: str, groups: Sequence[GroupRecord], wanted: int, *, fewer: bool) -> None:
    """Raise ConflictError if these groups may not have fewer replicas than they have now."""
    first = groups[0]
    more = f" (and {len(groups) - 1} more groups)" if len(groups) > 1 else ""
    text = f"{first.group_id.name}{more} with {len(first.replicas)} of {wanted} replicas"
    others = [node.node_id for node in current.nodes if node.leaving]
    if others:
        raise ConflictError(
            f"{node_id} cannot leave while {', '.join(others)} is still leaving: together they would leave {text}. "
            f"Wait until {', '.join(others)} is no longer a member"
        )
    if not fewer:
        raise ConflictError(
            f"{node_id} would leave {text}. Let another node join first, or allow fewer replicas "
            f"(metadctl leave {node_id} --allow-fewer-replicas)"
        )


def still_needed(current: ClusterMap, node_id: str, reports: Iterable[m.GroupStatus]) -> list[str]:
    """The groups that may count on a node that leaves, by name, as their leaders report. It may be the only one that
    has some of their data."""
    left = {
        status.name
        for status in reports
        # The node follows the map until the end. It would not hear otherwise that groups it leads go elsewhere.
        if node_id not in status.voters and (status.name == METADATA.name or node_id not in status.learners)
    }
    return sorted({group.group_id.name for group in current.groups} - left)


def forget(current: ClusterMap, node_id: str, reports: Iterable[m.GroupStatus]) -> Decision:
    """Remove a node that no group counts on any more. Raises ConflictError while one may."""
    holds = still_needed(current, node_id, reports)
    if holds:
        named = ", ".join(holds[:_NAMED]) + (f" and {len(holds) - _NAMED} more" if len(holds) > _NAMED else "")
        raise ConflictError(f"{node_id} is leaving, and may still be needed for {named}")
    nodes = [node for node in current.nodes if node.node_id != node_id]
    groups = [
        # Should the node come back with an empty disk, it was not there at the beginning.
        msgspec.structs.replace(group, initial=[node for node in group.initial if node != node_id])
        for group in metadata_on(current.groups, nodes)
    ]
    return changed(current, f"{node_id} is no longer a member", nodes=nodes, groups=groups)
