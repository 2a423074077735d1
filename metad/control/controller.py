"""The controller: every node has one; what it may decide depends on which groups its node leads.

- Whoever leads ``metadata-0`` decides about the map: it forms the cluster, takes nodes in and lets them go, adds
  groups, and says where replicas should be and who should lead.
- Whoever leads a group makes that true for it, step by step (:mod:`.changes`): take in a learner, promote it when it
  has caught up, and only then remove who should go; hand over to the preferred leader.
- Every node says where it is, until the map says the same.

Nothing here is remembered outside of the map and the groups' own configurations, so any step may be the last one before
a crash, and the next leader goes on from what it finds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.cluster import (
    SLOTS,
    ClusterMap,
    GroupRecord,
    NodeRecord,
    pack_slots,
    slot_bits,
    slots_count,
    slots_in,
    unpack_slots,
)
from metad_wire.errors import ConflictError, InvalidRequestError, MetadError, NotFoundError, NotLeaderError
from metad_wire.group import METADATA, GroupId
from metad_wire.methods import (
    CLUSTER_ADD_GROUP,
    CLUSTER_JOIN,
    CLUSTER_LEAVE,
    CLUSTER_MOVED,
    CLUSTER_REBALANCE,
    CLUSTER_STORE,
    CLUSTER_TRANSFER,
    METHODS,
    STATUS,
    Method,
    encode,
)

from ..config import Config
from ..logs import event
from ..raft.membership import CAUGHT_UP_ENTRIES, ChangeRefusedError
from ..raft.messages import Configuration
from ..raft.replica import RaftGroup
from ..routing.slots import even_slots
from .bounds import GROUPS_MAX, check_node, too_large
from .changes import changes
from .mover import MOVES_OF_A_MAP
from .placement import balanced_leaders, even_moves, metadata_replicas, spread

RECONCILE_S = 0.5
"""How often what should be is compared with what is, besides after every change."""
SETTLE_S = 1.0
"""How long a new leader keeps a group before it hands it to the preferred one, which has been there for as long."""
GONE_S = 10.0
"""A node that has been out of reach for so long does not just start again."""

Done = Callable[[bytes | MetadError], None]


class Host(Protocol):
    """The node, as its controller sees it."""

    config: Config
    environment: Any
    drivers: dict[GroupId, Any]
    replicas: Any
    mover: Any
    call_peer: Callable[[str, int, bytes, Done], None]

    @property
    def identity(self) -> Any:
        """Of the node's data directory."""

    @property
    def map(self) -> ClusterMap | None:
        """The cluster map; None while there is none."""

    def status(self) -> m.StatusReply:
        """How the node and its groups are."""

    def close_group(self, driver: Any) -> None:
        """Drop a replica and its data."""

    def stop_for_bug(self, error: BaseException) -> None:
        """Stop the node."""

    def request(self, method: Method[Any, Any], body: Any, done: Done) -> None:
        """A request from inside the process."""


class Controller:
    """See the module."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._timer: Any = None
        self._storing = False
        self._announced_s = float("-inf")
        self._led_since: dict[str, float] = {}  # groups led by this node
        self._lost_since: dict[str, float] = {}  # nodes of the map that this one is not connected to
        self._reached_since: dict[str, float] = {}  # those that it is connected to
        self._retiring: set[GroupId] = set()  # replicas that should not be here, and are asked about
        self.endpoint = ""
        """Where clients reach this node, once it listens."""
        self.quic_endpoint = ""
        """The same over QUIC; empty where there is none."""
        self.peer_endpoint = ""

    # --- life --------------------------------------------------------------------------------------------

    def founders(self) -> Configuration:
        """The first replicas of metadata-0; nobody on a node that joins a cluster that exists."""
        cluster = self._host.config.cluster
        if cluster.join:
            return Configuration(())
        nodes = list(cluster.seeds) or [self._host.config.node_id]
        voters, learners = metadata_replicas(nodes, regions=cluster.seed_regions)
        return Configuration(tuple(voters), tuple(learners))

    def start(self) -> None:
        """Begin to reconcile."""
        self._tick()

    def stop(self) -> None:
        """No more."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self.reconcile()
        environment = self._host.environment
        self._timer = environment.call_at(environment.now() + RECONCILE_S, self._tick)

    # --- what should be ----------------------------------------------------------------------------------

    def reconcile(self) -> None:
        """Do the next step of whatever is not as it should be."""
        try:
            self._reconcile()
        except Exception as error:  # noqa: BLE001 - a node that no longer looks after its groups must not go on
            self._host.stop_for_bug(error)

    def _reconcile(self) -> None:
        host = self._host
        if self.leads_metadata and not self._storing and host.map is None:
            self._form()
        if host.map is None:
            return
        self._announce()
        self._look_around()
        for record in host.map.groups:
            driver = host.drivers.get(record.group_id)
            if driver is None:
                continue
            if driver.group.ready:
                self._led_since.setdefault(driver.group.name, host.environment.now())
                with contextlib.suppress(ChangeRefusedError):  # not yet
                    self._keep(record, driver.group)
                continue
            self._led_since.pop(driver.group.name, None)
            if record.kind != "metadata" and host.config.node_id not in (*record.replicas, *record.learners):
                self._retire(record)
        host.mover.follow(host.map)

    @property
    def leads_metadata(self) -> bool:
        """Whether this node decides about the map."""
        return bool(self._host.drivers[METADATA].group.ready)

    def _form(self) -> None:
        """Found the cluster: the groups of the configuration, on its seeds."""
        config = self._host.config
        seeds = config.cluster.seeds or {config.node_id: self.peer_endpoint}
        nodes, regions = sorted(seeds), config.cluster.seed_regions
        voters, learners = metadata_replicas(nodes, regions=regions)
        groups = [GroupRecord("metadata", 0, voters, voters, learners=learners)]
        slots: dict[str, bytes] = {"metadata": pack_slots([0] * SLOTS)}
        for kind in ("offset", "data"):
            count: int = getattr(config.groups, kind)
            even = even_slots(count).tolist()
            for ordinal in range(count):
                replicas = spread(nodes, config.cluster.replicas, groups, regions=regions)
                mine = slot_bits(slot for slot, group in enumerate(even) if group == ordinal)
                groups.append(GroupRecord(kind, ordinal, replicas, replicas, initial_slots=mine))
            slots[kind] = pack_slots(even)
        groups = balanced_leaders(groups, nodes, regions)
        records = [NodeRecord(node, "", seeds[node], regions.get(node, "")) for node in nodes]
        cluster_id = self._host.identity.cluster_id or f"{self._host.environment.rng.getrandbits(128):032x}"
        self._store(ClusterMap(1, records, groups, slots, cluster_id=cluster_id), 0, _ignore)

    def _announce(self) -> None:
        """Say where this node is, until the map says so."""
        host, now = self._host, self._host.environment.now()
        wanted = NodeRecord(
            host.config.node_id,
            self.endpoint,
            self.peer_endpoint,
            host.config.cluster.region,
            host.identity.store_id,
            quic_endpoint=self.quic_endpoint,
        )
        said = self._map().node(wanted.node_id)
        if said is not None:
            wanted = msgspec.structs.replace(wanted, leaving=said.leaving)
        if said == wanted or not wanted.endpoint or now - self._announced_s < RECONCILE_S:
            return
        self._announced_s = now
        leader = host.drivers[METADATA].group.leader
        if leader == host.config.node_id:
            self._join(wanted, _ignore)
        elif leader is not None:
            host.call_peer(leader, CLUSTER_JOIN.code, CLUSTER_JOIN.encode_request(c.Join(wanted)), _ignore)

    def _look_around(self) -> None:
        """Note since when which nodes are out of reach, or within it."""
        host, now_s = self._host, self._host.environment.now()
        reached = sorted(host.replicas.connected)
        lost = sorted({node.node_id for node in self._map().nodes} - {host.config.node_id, *reached})
        self._lost_since = {node: self._lost_since.get(node, now_s) for node in lost}
        self._reached_since = {node: self._reached_since.get(node, now_s) for node in reached}

    def _keep(self, record: GroupRecord, group: RaftGroup) -> None:
        """One step from the replicas a group has to those it should have, and to its preferred leader."""
        host, now_s = self._host, self._host.environment.now()
        me = host.config.node_id
        reachable = {me, *host.replicas.connected}
        now = group.configuration
        gone = {
            member
            for member in now.voters  # also one that the map has forgotten
            if member not in reachable and now_s - self._lost_since.get(member, float("-inf")) >= GONE_S
        }
        make = {"add": group.add_learner, "promote": group.promote, "remove": group.remove}
        for kind, member in changes(now, record.replicas, record.learners, reachable=reachable, gone=gone):
            with contextlib.suppress(ChangeRefusedError):  # not yet; another may be possible
                make[kind](member)
                return
        preferred = record.preferred
        if now_s - self._led_since[group.name] < SETTLE_S:
            return  # this node may not have heard yet that it was made the preferred one
        if now_s - self._reached_since.get(preferred, now_s) < SETTLE_S:
            return  # it is still starting, and would keep the group waiting
        if preferred != me and preferred in group.configuration.voters:
            progress = group.peers.get(preferred)
            # One that has answered nothing yet has matched nothing; it cannot take over before it has.
            if progress is not None and progress.match and group.log.last_index - progress.match <= CAUGHT_UP_ENTRIES:
                group.transfer(preferred)

    def _retire(self, record: GroupRecord) -> None:
        """Close a replica that should not be here any more, once a leader of the group says that it is out of it. The
        group does not tell those it has let go."""
        host, me = self._host, self._host.config.node_id
        key = record.group_id
        if key in self._retiring:
            return
        self._retiring.add(key)

        def answered(reports: list[m.GroupStatus]) -> None:
            self._retiring.discard(key)
            driver = host.drivers.get(key)
            if driver is None or driver.installing or driver.group.is_leader:
                return
            wanted = self._map().group(key) or record
            if me in (*wanted.replicas, *wanted.learners):
                return
            for status in reports:
                # One that was taken in again since has a newer configuration in its log before it promises anything.
                if (
                    status.name == driver.group.name
                    and me not in (*status.voters, *status.learners)
                    and status.configured >= driver.group.log.configuration_index
                ):
                    host.close_group(driver)
                    return

        self._ask_leaders(record.replicas, answered)

    # --- what is asked -----------------------------------------------------------------------------------

    def handle(self, method: Method[Any, Any], body: Any, done: Done) -> None:
        """A request about the cluster. Raises MetadError, or answers."""
        if not self.leads_metadata:
            raise NotLeaderError(
                "this node does not lead metadata-0", leader=self._host.drivers[METADATA].group.leader or ""
            )
        if self._host.map is None:
            raise NotLeaderError("the cluster is being formed", retry_after_ms=200)
        if method is CLUSTER_JOIN:
            check_node(body.node)
            self._join(body.node, done)
        elif method is CLUSTER_LEAVE:
            self._leave(body, done)
        elif method is CLUSTER_ADD_GROUP:
            self._add_group(body, done)
        elif method is CLUSTER_REBALANCE:
            self._rebalance(done)
        elif method is CLUSTER_TRANSFER:
            self._transfer(body, done)
        elif method is CLUSTER_MOVED:
            self._moved(body, done)
        else:
            raise InvalidRequestError(f"{method.name} is not about the cluster")

    def _join(self, node: NodeRecord, done: Done) -> None:
        current = self._map()
        known = current.node(node.node_id)
        if known is not None:
            node = msgspec.structs.replace(node, leaving=known.leaving)
        if known == node:
            done(encode(c.Done("already known", current.version)))
            return
        if known is not None and known.store_id and known.store_id != node.store_id:
            raise ConflictError(
                f"{node.node_id} was here with another data directory; it has lost what it promised. Let it leave, "
                "then join under a new name."
            )
        nodes = sorted(
            [*(n for n in current.nodes if n.node_id != node.node_id), node], key=lambda record: record.node_id
        )
        groups = current.groups
        if known is None or known.region != node.region:
            groups = _metadata_on(groups, nodes)
        if known is None:
            event("node joins", node=node.node_id, endpoint=node.endpoint)
        self._change(msgspec.structs.replace(current, nodes=nodes, groups=groups), done, f"{node.node_id} is a member")

    def _leave(self, body: c.Leave, done: Done) -> None:
        current = self._map()
        record = current.node(body.node_id)
        if record is None:
            raise NotFoundError(f"{body.node_id} is not a member")
        rest = [node for node in _staying(current.nodes) if node != body.node_id]
        if not rest:
            raise InvalidRequestError("the last node cannot leave")
        if not record.leaving:
            nodes = [msgspec.structs.replace(n, leaving=True) if n is record else n for n in current.nodes]
            groups: list[GroupRecord] = []
            for group in _metadata_on(current.groups, nodes):
                if group.kind != "metadata" and body.node_id in group.replicas:
                    kept = [r for r in group.replicas if r != body.node_id]
                    replicas = self._spread(rest, len(group.replicas), groups, keep=kept)
                    group = msgspec.structs.replace(group, replicas=replicas)
                groups.append(group)
            groups = balanced_leaders(groups, rest, _regions(nodes))
            self._change(
                msgspec.structs.replace(current, nodes=nodes, groups=groups),
                done,
                f"the replicas of {body.node_id} move away",
            )
            return
        here = _leaders(self._host.status())
        self._ask_leaders(
            [node.node_id for node in current.nodes],
            lambda reports: self._forget(body.node_id, done, here + reports),
        )

    def _forget(self, node_id: str, done: Done, reports: list[m.GroupStatus]) -> None:
        """Once no group counts on a node any more. Before, it may be the only one that has some of the data."""
        current = self._map()
        left = {
            status.name
            for status in reports
            # It follows the map until the end, or it would not hear that groups it leads are to go elsewhere.
            if node_id not in status.voters and (status.kind == "metadata" or node_id not in status.learners)
        }
        holds = {group.group_id.name for group in current.groups} - left
        if holds:
            done(ConflictError(f"{node_id} may still be needed for {', '.join(sorted(holds))}; ask again"))
            return
        nodes = [n for n in current.nodes if n.node_id != node_id]
        groups = [
            # Should it come back with an empty disk, it is nobody who was there at the beginning.
            msgspec.structs.replace(group, initial=[node for node in group.initial if node != node_id])
            for group in _metadata_on(current.groups, nodes)
        ]
        changed = msgspec.structs.replace(current, nodes=nodes, groups=groups)
        self._change(changed, done, f"{node_id} is no longer a member")

    def _ask_leaders(self, nodes: Iterable[str], then: Callable[[list[m.GroupStatus]], None]) -> None:
        """What the groups' leaders on these nodes say of them, of those nodes that are connected and answer."""
        host = self._host
        reports: list[m.GroupStatus] = []
        asked = [node for node in nodes if node in host.replicas.connected]
        missing = len(asked)

        def answered(result: bytes | MetadError) -> None:
            nonlocal missing
            missing -= 1
            if not isinstance(result, MetadError):
                reports.extend(_leaders(STATUS.decode_reply(result)))
            if not missing:
                then(reports)

        if not asked:
            then(reports)
        for node in asked:
            host.call_peer(node, STATUS.code, STATUS.encode_request(m.Status()), answered)

    def _add_group(self, body: c.AddGroup, done: Done) -> None:
        current = self._map()
        if body.kind not in ("offset", "data"):
            raise InvalidRequestError(f"groups of kind {body.kind!r} cannot be added")
        if sum(group.kind == body.kind for group in current.groups) >= GROUPS_MAX:
            raise InvalidRequestError(f"there are {GROUPS_MAX} groups of kind {body.kind!r}, as many as slots")
        nodes = _staying(current.nodes)
        group = GroupId(body.kind, 1 + max(g.ordinal for g in current.groups if g.kind == body.kind))
        replicas = self._spread(nodes, self._host.config.cluster.replicas, current.groups)
        groups = [*current.groups, GroupRecord(*group, replicas, replicas)]
        self._change(
            msgspec.structs.replace(current, groups=balanced_leaders(groups, nodes, _regions(current.nodes))),
            done,
            f"{group.name} is added; it holds no slots yet",
        )

    def _rebalance(self, done: Done) -> None:
        current = self._map()
        if current.moves:
            raise ConflictError(f"{len(current.moves)} slot moves are under way; try again when they are done")
        nodes = _staying(current.nodes)
        groups: list[GroupRecord] = []
        for group in _metadata_on(current.groups, current.nodes):
            if group.kind != "metadata":
                replicas = self._spread(nodes, self._host.config.cluster.replicas, groups, keep=group.replicas)
                group = msgspec.structs.replace(group, replicas=replicas)
            groups.append(group)
        moves: list[c.SlotMove] = []
        number = current.version + 1
        for kind in ("offset", "data"):
            ordinals = [g.ordinal for g in groups if g.kind == kind]
            for (source, target), slots in even_moves(unpack_slots(current.slots[kind]), ordinals).items():
                moves.append(c.SlotMove(number * MOVES_OF_A_MAP + len(moves), kind, source, target, slot_bits(slots)))
        self._change(
            msgspec.structs.replace(
                current, groups=balanced_leaders(groups, nodes, _regions(current.nodes)), moves=moves
            ),
            done,
            f"{sum(slots_count(move.slots) for move in moves)} slots move between groups",
        )

    def _spread(
        self, nodes: Sequence[str], count: int, groups: Sequence[GroupRecord], keep: Sequence[str] = ()
    ) -> list[str]:
        """Replicas of one more group. Who is out of reach would only be waited for."""
        return spread(nodes, count, groups, keep, list(self._lost_since), _regions(self._map().nodes))

    def _moved(self, body: c.Moved, done: Done) -> None:
        current = self._map()
        move = next((one for one in current.moves if one.move == body.move), None)
        if move is None:
            done(encode(c.Done("already known", current.version)))
            return
        slots = unpack_slots(current.slots[move.kind])
        for slot in slots_in(move.slots):
            slots[slot] = move.target
        self._change(
            msgspec.structs.replace(
                current,
                slots=current.slots | {move.kind: pack_slots(slots)},
                moves=[one for one in current.moves if one.move != body.move],
            ),
            done,
            f"{slots_count(move.slots)} slots are {move.target_id.name}'s",
        )

    def _transfer(self, body: c.Transfer, done: Done) -> None:
        """Who leads a group is a preference, kept in the map; its leader hands over when it sees that."""
        current = self._map()
        record = current.group(GroupId.parse(body.group))
        if record is None:
            raise NotFoundError(f"there is no group {body.group!r}")
        if body.to not in record.replicas:
            raise InvalidRequestError(f"{body.to!r} is not one of {body.group}'s voters: {', '.join(record.replicas)}")
        groups = [msgspec.structs.replace(g, preferred=body.to) if g is record else g for g in current.groups]
        self._change(
            msgspec.structs.replace(current, groups=groups),
            done,
            f"{body.to} is now the preferred leader of {body.group}",
        )

    # --- storing -----------------------------------------------------------------------------------------

    def _map(self) -> ClusterMap:
        assert self._host.map is not None
        return self._host.map

    def _change(self, changed: ClusterMap, done: Done, text: str) -> None:
        version = self._map().version
        stored = msgspec.structs.replace(changed, version=version + 1)
        error = too_large(stored)
        if error is not None:
            done(error)
            return

        def answer(result: bytes | MetadError) -> None:
            done(result if isinstance(result, MetadError) else encode(c.Done(text, stored.version)))

        self._store(stored, version, answer)

    def _store(self, changed: ClusterMap, expected: int, done: Done) -> None:
        if self._storing:
            done(ConflictError("another change of the cluster is being made; try again"))
            return
        self._storing = True

        def stored(result: bytes | MetadError) -> None:
            self._storing = False
            if isinstance(result, MetadError):
                done(result)
                return
            reply: m.WriteReply = METHODS[CLUSTER_STORE.code].decode_reply(result)
            done(ConflictError(reply.errors[0].message) if reply.errors else result)

        self._host.request(CLUSTER_STORE, c.StoreMap(expected, changed), stored)


def _staying(nodes: Sequence[NodeRecord]) -> list[str]:
    """Those that may be given something."""
    return [node.node_id for node in nodes if not node.leaving]


def _regions(nodes: Sequence[NodeRecord]) -> dict[str, str]:
    return {node.node_id: node.region for node in nodes}


def _leaders(status: m.StatusReply) -> list[m.GroupStatus]:
    """What a node says of the groups it leads whose configuration is certain."""
    return [group for group in status.groups if group.role == "leader" and group.commit >= group.configured]


def _metadata_on(groups: Sequence[GroupRecord], nodes: Sequence[NodeRecord]) -> list[GroupRecord]:
    """The groups, with metadata-0 on these nodes."""
    placed: list[GroupRecord] = []
    for group in groups:
        if group.kind == "metadata":
            voters, learners = metadata_replicas(_staying(nodes), group.replicas, _regions(nodes))
            learners = sorted([*learners, *(node.node_id for node in nodes if node.leaving)])
            group = msgspec.structs.replace(group, replicas=voters, learners=learners)
        placed.append(group)
    return placed


def _ignore(_: bytes | MetadError) -> None:
    """Reconciling finds out whether it was done."""
