"""What the cluster map becomes when somebody asks for a change. Pure.

A decision is a function of the map, the wish, and what the node that decides has seen of the others. It raises a
MetadError if the wish cannot be granted, and says in words for people what it means.

A node is refused whose name belongs to a member with another data directory, or with a copy of the same. Whoever reads
the refusal at night may act on it. So it never advises to remove a member that is alive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from metad_wire.cluster import (
    GROUP_KINDS,
    METADATA,
    MOVES_OF_A_MAP,
    SLOTS,
    ClusterMap,
    GroupId,
    GroupRecord,
    MoveReplica,
    MoveSlots,
    NodeRecord,
    SlotMove,
    Transfer,
    machine_count,
    machine_of,
    pack_slots,
    slot_bits,
    slots_count,
    slots_in,
    unpack_slots,
)
from metad_wire.errors import ConflictError, InvalidRequestError, NotFoundError
from metad_wire.messages import GroupStatus
from metad_wire.policy.slots import even_moves, even_slots, filling_moves

from ...config import REPLICAS_MAX, Config
from ...errors import LOST_DISK
from ...raft.messages import Configuration
from .bounds import GROUPS_MAX, ORDINALS_MAX, check_size
from .placement import Regions, able_leaders, balanced_leaders, in_region, metadata_replicas, returned_leaders, spread
from .seen import Reach


def foreign_directory(node_id: str, endpoint: str, reach: Reach) -> str:
    """Why a node is refused that has another data directory than the member of its name, whose address for nodes is
    ``endpoint`` and which is within this reach."""
    if reach is Reach.ALIVE:
        return (
            f"another node named {node_id} is alive at {endpoint} with its own data directory; give this node another "
            "node_id"
        )
    if reach is Reach.UNKNOWN:
        return (
            f"{node_id} is a member with another data directory, and it is not known yet whether that node is alive; "
            "ask again"
        )
    return f"{node_id} was here with another data directory, and has been out of reach since. {LOST_DISK}"


def copied_directory(node_id: str, endpoint: str) -> str:
    """Why a node is refused that runs on a copy of the data directory of a member that is alive at this address."""
    return (
        f"another node named {node_id} is alive at {endpoint}, and this one runs on a copy of its data directory; stop "
        "this node, or give it another node_id and an empty data directory"
    )


_NAMED = 8  # groups that a text names; there may be two thousand


def replicas_text(before: Sequence[GroupRecord], after: Sequence[GroupRecord]) -> Iterator[str]:
    """The replicas that change, a text for each group, such as ``data-1: n4 replaces n3``."""
    changes = [(now, then) for now, then in zip(before, after, strict=True) if {*now.replicas} != {*then.replicas}]
    for now, then in changes[:_NAMED]:
        new = [node for node in then.replicas if node not in now.replicas]
        gone = [node for node in now.replicas if node not in then.replicas]
        parts = [f"{new.pop(0)} replaces {gone.pop(0)}" for _ in range(min(len(new), len(gone)))]
        parts += [f"{node} is added" for node in new]
        parts += [f"{node} goes" for node in gone]
        yield f"{then.group_id.name}: {', '.join(parts)}"
    if len(changes) > _NAMED:
        yield f"{len(changes) - _NAMED} more groups get other replicas"


class Decision(NamedTuple):
    """The next cluster map, or None if it stays as it is, and what this means in words."""

    map: ClusterMap | None
    text: str


def founders(config: Config) -> Configuration:
    """The first replicas of ``metadata-0``. A node that joins an existing cluster knows none."""
    if config.cluster.join:
        return Configuration(())
    nodes = list(config.cluster.seeds) or [config.node_id]
    voters, learners = metadata_replicas(nodes, regions=config.cluster.seed_regions)
    return Configuration(tuple(voters), tuple(learners))


def first_map(config: Config, peer_endpoint: str, cluster_id: str) -> ClusterMap:
    """The map of a new cluster: the groups of the configuration, on its seeds."""
    seeds = config.cluster.seeds or {config.node_id: peer_endpoint}
    nodes, regions = sorted(seeds), config.cluster.seed_regions
    groups: list[GroupRecord] = []
    slots: dict[str, bytes] = {}
    for kind in GROUP_KINDS:
        even = even_slots(getattr(config.groups, kind))
        for ordinal in sorted(set(even)):
            mine = slot_bits(slot for slot, group in enumerate(even) if group == ordinal)
            if (kind, ordinal) == METADATA:
                voters, learners = metadata_replicas(nodes, regions=regions)
            else:
                voters, learners = spread(nodes, config.cluster.replicas, groups, regions=regions), []
            groups.append(GroupRecord(kind, ordinal, voters, voters, learners=learners, initial_slots=mine))
        slots[kind] = pack_slots(even)
    records = [NodeRecord(node, "", seeds[node], regions.get(node, "")) for node in nodes]
    placed = balanced_leaders(groups, nodes, regions)
    wanted = config.cluster.replicas if machine_count(nodes) > 1 else 0  # noted when others join
    return ClusterMap(1, records, placed, slots, cluster_id=cluster_id, replicas=wanted)


def join(current: ClusterMap, node: NodeRecord, reach: Reach, member_at: int = 0) -> Decision:
    """Take a node in, or note what it says of itself now. ``reach`` is that of the member of its name. Raises
    ConflictError if that is another node, and NotFoundError if there is none and the node was a member in the map
    ``member_at``: it was let go since, and does not know yet."""
    known = current.node(node.node_id)
    if known is None and member_at:
        raise NotFoundError(f"{node.node_id} was a member in map {member_at} and has left since")
    if known is not None:
        node = msgspec.structs.replace(node, leaving=known.leaving, drained=known.drained)
    if known == node:
        return Decision(None, "already known")
    if known is not None and known.store_id and known.store_id != node.store_id:
        raise ConflictError(foreign_directory(node.node_id, known.peer_endpoint, reach))
    nodes = sorted([*(n for n in current.nodes if n.node_id != node.node_id), node], key=lambda record: record.node_id)
    groups: Sequence[GroupRecord] = current.groups
    if known is None or known.region != node.region:
        groups = metadata_on(groups, nodes)
    return changed(current, f"{node.node_id} is a member", nodes=nodes, groups=groups)


def add_group(current: ClusterMap, kind: str, replicas: int, lost: Collection[str]) -> Decision:
    """Add a group without slots, with so many replicas."""
    added, groups = _with_another(current, kind, replicas, lost)
    return changed(current, f"{added.name} is added; it holds no slots yet", groups=groups)


def _with_another(
    current: ClusterMap, kind: str, replicas: int, lost: Collection[str], region: str = ""
) -> tuple[GroupId, list[GroupRecord]]:
    """The id of a group of this kind that is added, and all groups with it. It prefers leaders of this region."""
    if kind not in GROUP_KINDS:
        raise InvalidRequestError(f"groups of kind {kind!r} cannot be added")
    if sum(group.kind == kind for group in current.groups) >= GROUPS_MAX:
        raise InvalidRequestError(f"there are {GROUPS_MAX} groups of kind {kind!r}, as many as slots")
    added = GroupId(kind, current.next_ordinal(kind))
    if added.ordinal > ORDINALS_MAX:
        raise InvalidRequestError(f"there were {ORDINALS_MAX + 1} groups of kind {kind!r}, and no name is used twice")
    on = spread(staying(current.nodes), replicas, current.groups, (), lost, regions_of(current.nodes))
    groups = [*current.groups, GroupRecord(*added, on, on, region=region)]
    return added, balanced_leaders(groups, leading(current.nodes), regions_of(current.nodes))


def rebalance(
    current: ClusterMap, replicas: int, lost: Collection[str], noted: int, *, keep_slots: bool = False
) -> Decision:
    """Spread replicas, leaders and slots evenly; with ``keep_slots`` only groups without slots get some. From now on
    the cluster wants ``noted`` replicas of each group; 0: as many as is configured when it has several machines."""
    if not 1 <= replicas <= REPLICAS_MAX:
        raise InvalidRequestError(f"{replicas} replicas: there must be 1 to {REPLICAS_MAX}")
    if current.moves:
        raise ConflictError(f"{len(current.moves)} slot moves are under way; try again when they are done")
    nodes, regions = staying(current.nodes), regions_of(current.nodes)
    groups: list[GroupRecord] = []
    for group in metadata_on(current.groups, current.nodes):
        if group.group_id != METADATA:
            on = spread(nodes, replicas, groups, group.replicas, lost, regions)
            group = msgspec.structs.replace(group, replicas=on)
        groups.append(group)
    moves: list[SlotMove] = []
    number = current.version + 1
    share_out, uneven = filling_moves if keep_slots else even_moves, list[str]()
    for kind in GROUP_KINDS:
        ordinals = [group.ordinal for group in groups if group.kind == kind]
        owners = unpack_slots(current.slots[kind])
        for (source, target), slots in share_out(owners, ordinals).items():
            moves.append(SlotMove(number * MOVES_OF_A_MAP + len(moves), kind, source, target, slot_bits(slots)))
            for slot in slots:
                owners[slot] = target
        if even_moves(owners, ordinals):
            uneven.append(kind)
    groups = balanced_leaders(groups, leading(current.nodes), regions)
    led = sum(then.preferred != now.preferred for now, then in zip(current.groups, groups, strict=True))
    parts = [
        *replicas_text(current.groups, groups),
        f"{sum(slots_count(move.slots) for move in moves)} slots move",
        *([f"{led} groups get another leader"] if led else []),
        *(f"the numbers of slots of groups of kind {kind} are uneven, and stay so" for kind in uneven),
    ]
    return changed(current, "; ".join(parts), groups=groups, moves=moves, replicas=noted)


def moved(current: ClusterMap, number: int) -> Decision:
    """Note that a slot move is done."""
    move = next((one for one in current.moves if one.move == number), None)
    if move is None:
        return Decision(None, "already known")
    slots = unpack_slots(current.slots[move.kind])
    for slot in slots_in(move.slots):
        slots[slot] = move.target
    return changed(
        current,
        f"{slots_count(move.slots)} slots are {move.target_id.name}'s",
        slots=current.slots | {move.kind: pack_slots(slots)},
        moves=[one for one in current.moves if one is not move],
    )


def transfer(current: ClusterMap, wish: Transfer) -> Decision:
    """Note who should lead a group. Its leader hands over when it sees that."""
    record = _named(current, wish.group)
    if wish.to not in record.replicas:
        raise InvalidRequestError(f"{wish.to!r} is not one of {wish.group}'s voters: {', '.join(record.replicas)}")
    if (node := current.node(wish.to)) is not None and node.drained:
        raise ConflictError(f"{wish.to} is drained, and leads nothing until: metadctl node undrain {wish.to}")
    regions = regions_of(current.nodes)
    if not in_region(record, wish.to, regions):
        raise ConflictError(
            f"{wish.group} prefers leaders in {record.region}, and {wish.to} is not there: name a voter that is, or "
            f"first: metadctl groups prefer {wish.group} --none"
        )
    groups = [msgspec.structs.replace(g, preferred=wish.to) if g is record else g for g in current.groups]
    return changed(current, f"{wish.to} is now the preferred leader of {wish.group}", groups=groups)


def prefer(current: ClusterMap, wish: Transfer) -> Decision:
    """Note in which region a group should be led, if in any. Its leader hands over when it sees that."""
    name, region = wish.group, wish.region or ""
    record, regions = _named(current, name), regions_of(current.nodes)
    if wish.to:
        raise InvalidRequestError(f"{name} is to prefer either a node or a region, not both")
    if region not in ("", *regions.values()):
        there = ", ".join(sorted({*regions.values()} - {""})) or "none"
        raise InvalidRequestError(f"no node is in region {region[:256]!r}; regions of nodes: {there}")
    if region == record.region:
        return Decision(None, f"{name} prefers {region or 'no region'} already")
    record = msgspec.structs.replace(record, region=region)
    able = able_leaders(record, leading(current.nodes), regions)
    if record.preferred not in able:
        led = Counter(group.preferred for group in current.groups)
        record = msgspec.structs.replace(record, preferred=min(able, key=lambda node: (led[node], node), default=""))
    text = f"{name} is to be led in {region}" if region else f"{name} may be led in any region"
    if not any(in_region(record, node, regions) for node in record.replicas):
        text += f", where it has no replica: others lead it until it has (metadctl groups move {name} --from N --to N)"
    groups = [record if group.group_id == record.group_id else group for group in current.groups]
    return changed(current, text, groups=groups)


def drain(current: ClusterMap, node_id: str, lost: Collection[str]) -> Decision:
    """Have a node lead nothing until that is undone, and keep its replicas. Nodes that are ``lost`` cannot lead in its
    place."""
    record = _member(current, node_id)
    if record.drained:
        return Decision(None, f"{node_id} is drained already")
    if record.leaving:
        raise ConflictError(f"{node_id} is leaving: others lead what it led already")
    nodes = [msgspec.structs.replace(node, drained=True) if node is record else node for node in current.nodes]
    rest = [node for node in leading(nodes) if node not in lost]
    stuck = [
        group.group_id.name
        for group in current.groups
        if node_id in group.replicas and not {*rest}.intersection(group.replicas)
    ]
    if stuck:
        more = f" (and {len(stuck) - 1} more groups)" if len(stuck) > 1 else ""
        raise ConflictError(
            f"{node_id} cannot be drained: no other voter of {stuck[0]}{more} may lead it and is within reach"
        )
    groups = balanced_leaders(current.groups, leading(nodes), regions_of(nodes))
    return changed(
        current, f"{node_id} is drained: it leads nothing, and keeps its replicas", nodes=nodes, groups=groups
    )


def undrain(current: ClusterMap, node_id: str) -> Decision:
    """Let a node lead again, and have it lead its share."""
    record = _member(current, node_id)
    if not record.drained:
        return Decision(None, f"{node_id} is not drained")
    nodes = [msgspec.structs.replace(node, drained=False) if node is record else node for node in current.nodes]
    groups = balanced_leaders(current.groups, leading(nodes), regions_of(nodes))
    groups = returned_leaders(groups, node_id, leading(nodes), regions_of(nodes))
    count = sum(group.preferred == node_id for group in groups)
    return changed(current, f"{node_id} may lead again: {count} groups prefer it", nodes=nodes, groups=groups)


def _member(current: ClusterMap, node_id: str) -> NodeRecord:
    record = current.node(node_id)
    if record is None:
        raise NotFoundError(f"{node_id} is not a member")
    return record


def _named(current: ClusterMap, name: str) -> GroupRecord:
    """The record of the group that a request names. Raises NotFoundError."""
    group = GroupId.parse(name)
    record = current.group(group)
    if record is None:
        was = group is not None and current.has_removed(group)
        raise NotFoundError(f"{name} was removed" if was else f"there is no group {name[:256]!r}")
    return record


def move_slots(current: ClusterMap, wish: MoveSlots, replicas: int, lost: Collection[str]) -> Decision:
    """Have slots go to another group, or to one that is added with so many replicas."""
    source = _named(current, wish.group).group_id if wish.group else None
    target = _named(current, wish.to).group_id if wish.to else None
    kind = source.kind if source is not None else target.kind if target is not None else ""
    if not kind or (source is None and not wish.slots):
        raise InvalidRequestError("neither a group nor slots are named that are to move")
    if target is not None and target.kind != kind:
        raise InvalidRequestError(f"{wish.group} and {wish.to} are of different kinds: {kind} and {target.kind}")
    if source == target:
        raise InvalidRequestError(f"{wish.to} is to get slots of its own")
    moving = _slots_to_move(current, wish, kind, source)
    _check_at_rest(current, kind, {*moving} if target is None else {*moving, target.ordinal})
    groups: Sequence[GroupRecord] = current.groups
    if target is None:  # its records stay in the region in which they are led
        target, groups = _with_another(current, kind, replicas, lost, _named(current, wish.group).region)
    moves: list[SlotMove] = []
    number = (current.version + 1) * MOVES_OF_A_MAP
    for ordinal in sorted({*moving} - {target.ordinal}):
        moves.append(SlotMove(number + len(moves), kind, ordinal, target.ordinal, slot_bits(moving[ordinal])))
    if not moves:
        return Decision(None, f"{target.name} has these slots already")
    count = sum(slots_count(move.slots) for move in moves)
    names = ", ".join(move.source_id.name for move in moves[:_NAMED]) + (" and others" if moves[_NAMED:] else "")
    text = f"{count} slots move from {names} to {target.name}"
    return changed(current, text, groups=groups, moves=[*current.moves, *moves])


def _check_at_rest(current: ClusterMap, kind: str, ordinals: Collection[int]) -> None:
    """Raise ConflictError if slots are on their way from or to one of these groups. Moves of other groups do not
    matter: they share nothing with a new one."""
    for move in current.moves:
        if move.kind == kind and (busy := {move.source, move.target}.intersection(ordinals)):
            raise ConflictError(
                f"{GroupId(kind, min(busy)).name} has a part in a move of slots that is under way, from "
                f"{move.source_id.name} to {move.target_id.name}; try again when it is done"
            )


def _slots_to_move(current: ClusterMap, wish: MoveSlots, kind: str, source: GroupId | None) -> dict[int, list[int]]:
    """Ordinal of the group that has them -> slots."""
    owners = unpack_slots(current.slots[kind])
    if wish.slots and len(wish.slots) != SLOTS // 8:
        raise InvalidRequestError(f"a bit map of slots has {SLOTS // 8} bytes, not {len(wish.slots)}")
    named = (
        slots_in(wish.slots) if wish.slots else [slot for slot, owner in enumerate(owners) if source == (kind, owner)]
    )
    for slot in named:
        if source is not None and owners[slot] != source.ordinal:
            raise InvalidRequestError(f"slot {slot} is {GroupId(kind, owners[slot]).name}'s, not {source.name}'s")
    if wish.half:
        if len(named) < 2:
            raise InvalidRequestError(f"{len(named)} slots cannot be halved: a group with two or more can be split")
        named = named[(len(named) + 1) // 2 :]
    if not named:
        raise InvalidRequestError("there are no slots to move" if source is None else f"{source.name} has no slots")
    if kind == METADATA.kind and 0 in named:
        raise InvalidRequestError(f"slot 0 of kind {kind} stays in {METADATA.name}, which cannot be merged away")
    found: dict[int, list[int]] = {}
    for slot in named:
        found.setdefault(owners[slot], []).append(slot)
    return found


def move_replica(current: ClusterMap, wish: MoveReplica, lost: Collection[str]) -> Decision:
    """Give a group a replica on another node in place of one that it has. Nodes that are ``lost`` get none."""
    record = _named(current, wish.group)
    if record.group_id == METADATA:
        raise InvalidRequestError(f"every node has a replica of {METADATA.name}: it cannot be moved")
    if wish.source not in record.replicas:
        raise InvalidRequestError(f"{wish.source!r} has no replica of {wish.group}: {', '.join(record.replicas)} have")
    target = _member(current, wish.target)
    if target.leaving:
        raise ConflictError(f"{wish.target} is leaving, and gets no replicas")
    if wish.target in lost:
        raise ConflictError(f"{wish.target} is out of reach: bring it back first")
    others = [node for node in record.replicas if node != wish.source]
    if wish.target == wish.source or any(machine_of(node) == machine_of(wish.target) for node in others):
        raise InvalidRequestError(f"{wish.target} or its machine has a replica of {wish.group} already")
    record = msgspec.structs.replace(record, replicas=sorted([*others, wish.target]))
    able = able_leaders(record, leading(current.nodes), regions_of(current.nodes))
    if record.preferred not in able:
        led = Counter(group.preferred for group in current.groups)
        preferred = min(able, key=lambda node: (node != wish.target, led[node], node), default="")
        record = msgspec.structs.replace(record, preferred=preferred)
    groups = [record if group.group_id == record.group_id else group for group in current.groups]
    return changed(current, "; ".join(replicas_text(current.groups, groups)), groups=groups)


def check_removable(current: ClusterMap, name: str) -> GroupId | None:
    """The id of a group that may be removed as far as the map says; None: it was removed already. Raises MetadError if
    it may not."""
    group = GroupId.parse(name)
    if group is not None and current.has_removed(group):
        return None
    group = _named(current, name).group_id
    if group == METADATA:
        raise InvalidRequestError(f"{METADATA.name} cannot be removed")
    if any(group in (move.source_id, move.target_id) for move in current.moves):
        raise ConflictError(f"slots move from or to {name}; try again when that is done")
    if count := unpack_slots(current.slots[group.kind]).count(group.ordinal):
        raise ConflictError(f"{name} has {count} slots: move them first (metadctl groups merge {name} --into OTHER)")
    return group


def remove_group(current: ClusterMap, name: str, reports: Iterable[GroupStatus]) -> Decision:
    """Remove a group that has no slots, as its leader reports, too. No other group gets its ordinal."""
    group = check_removable(current, name)
    if group is None:
        return Decision(None, f"{name} is removed already")
    report = next((status for status in reports if status.name == name), None)
    if report is None or report.slots:
        raise ConflictError(f"the leader of {name} has not said that it has no slots; try again")
    groups = [record for record in current.groups if record.group_id != group]
    return changed(
        current,
        f"{name} is removed, with its replicas",
        groups=balanced_leaders(groups, leading(current.nodes), regions_of(current.nodes)),
        ordinals=current.ordinals | {group.kind: current.next_ordinal(group.kind)},
    )


def changed(current: ClusterMap, text: str, **fields: Any) -> Decision:
    """The next version of the map, with these fields. Raises InvalidRequestError if it would be too large to fetch."""
    following = msgspec.structs.replace(current, version=current.version + 1, **fields)
    check_size(following)
    return Decision(following, text)


VERSIONS_LOST = 1_000_000
"""More versions of the map than can have been lost with a majority of its replicas. Clients and nodes that know some of
them take the map of the recovered cluster for newer."""


class SettledSlots(msgspec.Struct, frozen=True):
    """What the map of a recovered cluster says about slots: :mod:`..settling` decides it."""

    version: int
    """Of that map: above all that any node which is left knows."""
    slots: dict[str, bytes]
    moves: list[SlotMove]
    unfounded: list[str]
    """Groups that were ordered and never begun: their first voters still begin them."""


def recovered(current: ClusterMap, cluster_id: str, lost: Collection[str], settled: SettledSlots | None) -> Decision:
    """Let the map say that the cluster was recovered and goes on by this id, without the nodes that were lost. New ones
    may have their names. ``settled``: who holds which slots; None: an older version recovered it, and did not say."""
    nodes = [node for node in current.nodes if node.node_id not in lost]
    nodes = [msgspec.structs.replace(node, drained=False) for node in nodes]  # those that are left are needed
    rest = staying(nodes) or [node.node_id for node in nodes]
    groups: list[GroupRecord] = []
    for group in current.groups:
        # Whoever never had a replica of a group that goes on must not begin it once more with those that are left.
        initial = [node for node in group.initial if node not in lost]
        if settled is not None:
            initial = group.initial if group.group_id.name in settled.unfounded else []
        replicas = [node for node in group.replicas if node not in lost] or rest[:1]
        learners = [node for node in group.learners if node not in lost]
        groups.append(msgspec.structs.replace(group, initial=initial, replicas=replicas, learners=learners))
    version, slots, moves = current.version + VERSIONS_LOST, current.slots, current.moves
    if settled is not None:
        version, slots, moves = max(current.version + 1, settled.version), slots | settled.slots, settled.moves
    following = msgspec.structs.replace(
        current,
        version=version,
        cluster_id=cluster_id,
        nodes=nodes,
        groups=balanced_leaders(metadata_on(groups, nodes), rest, regions_of(nodes)),
        slots=slots,
        moves=moves,
    )
    return Decision(following, f"the cluster was recovered as {cluster_id} without {', '.join(sorted(lost))}")


def staying(nodes: Iterable[NodeRecord]) -> list[str]:
    """The nodes that may be given something."""
    return [node.node_id for node in nodes if not node.leaving]


def leading(nodes: Iterable[NodeRecord]) -> list[str]:
    """The nodes that may be preferred as leaders."""
    return [node.node_id for node in nodes if not node.leaving and not node.drained]


def regions_of(nodes: Iterable[NodeRecord]) -> Regions:
    return {node.node_id: node.region for node in nodes}


def metadata_on(groups: Iterable[GroupRecord], nodes: Sequence[NodeRecord]) -> list[GroupRecord]:
    """The groups, with metadata-0 on these nodes."""
    placed: list[GroupRecord] = []
    for group in groups:
        if group.group_id == METADATA:
            voters, learners = metadata_replicas(staying(nodes), group.replicas, regions_of(nodes))
            learners = sorted([*learners, *(node.node_id for node in nodes if node.leaving)])
            group = msgspec.structs.replace(group, replicas=voters, learners=learners)
        placed.append(group)
    return placed
