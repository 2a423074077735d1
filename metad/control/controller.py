"""The controller: every node has one; what it may decide depends on which groups its node leads.

- The leader of ``metadata-0`` decides about the map (:mod:`.map.decisions`): it forms the cluster, takes nodes in and
  lets them go, adds groups, and says where replicas should be and who should lead.
- A group's leader makes that true for it, step by step (:mod:`.map.upkeep`).
- Every node says where it is, until the map says the same.

Nothing here is remembered outside of the map and the groups' own configurations, so any step may be the last one before
a crash, and the next leader goes on from what it finds.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from math import inf
from typing import Any

import msgspec

from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.cluster import METADATA, ClusterMap, GroupId, GroupRecord, machine_count
from metad_wire.errors import (
    ConflictError,
    InvalidRequestError,
    MetadError,
    NoRoomError,
    NotFoundError,
    NotLeaderError,
    OverloadedError,
)
from metad_wire.methods import (
    CLUSTER_JOIN,
    CLUSTER_MAP,
    CLUSTER_RETURNS,
    CLUSTER_STORE,
    GROUP_COMMAND,
    QUOTA_COUNTS,
    STATUS,
    Method,
    Reply,
    encode,
)
from metad_wire.policy.returns import ReturnBudget
from metad_wire.tables.feature import LEADER_REGIONS, REMOVED_GROUPS, FeatureRecord
from metad_wire.tables.tenants import QuotaCounts

from .. import log_events
from ..config import Config
from ..errors import ConfigError
from ..logs import event
from ..raft.roles.membership import ChangeRefusedError
from ..state.cluster.quotas import TenantTotals
from .brokers.brokers import ABOUT_BROKERS, Brokers
from .features import Switches
from .host import Clock, Done, Host, Replica, Source, Timer
from .map import decisions, leaving, upkeep
from .map.bounds import check_node
from .map.decisions import Decision
from .map.formed import no_founder
from .map.leaving import Departure, Directory
from .map.presence import Presence
from .map.seen import GONE_S, Reach, Seen
from .migration import Migrations

RECONCILE_S = 0.5
"""How often the wanted state is compared with the actual one, besides after every change."""
SHARE_S = 1.0
"""How often a busy node asks for its part of the cluster's budget of returns."""
WAITING_MAX = 1_024
"""Changes of the map that wait for their turn, each a request of some bytes: all nodes of a large cluster may say at
once where they are."""
TEND_S = 1.0
"""How often the leaders of all groups are asked how far a change of the cluster is."""


class Controller:
    """Observes the node, asks :mod:`.map.decisions` and :mod:`.map.upkeep` what to do, and does it."""

    def __init__(
        self,
        config: Config,
        presence: Presence,
        directory: Directory,
        clock: Clock,
        host: Host,
        migrations: Migrations,
        brokers: Brokers,
    ) -> None:
        self._config = config
        self._presence = presence
        self._clock = clock
        self._host = host
        self._groups = host.groups
        self._migrations = migrations
        self._brokers = brokers
        self._seen = Seen(config.node_id)
        self._directory = directory
        self.departure = Departure(config.node_id, directory)
        self._timer: Timer | None = None
        self._changes = _Changes(host)
        self._announced_s = self._tended_s = self._shared_s = float("-inf")
        self._return_budget = ReturnBudget()
        self._totals = TenantTotals()
        self.switches = Switches(config.node_id, config.cluster.features_after_ms)
        self._tending = False
        self._retiring: set[GroupId] = set()  # replicas that should not be here, and are asked about

    # --- life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to reconcile."""
        self.reconcile()
        self._timer = self._clock.call_at(self._clock.now() + RECONCILE_S, self.start)

    def stop(self) -> None:
        """End the reconciling."""
        if self._timer is not None:
            self._timer.cancel()

    # --- reconciling -------------------------------------------------------------------------------------

    def reconcile(self) -> None:
        """Do the next step of whatever is not as it should be."""
        try:
            self._reconcile()
        except Exception as error:  # noqa: BLE001 - a node that no longer looks after its groups must not go on
            self._host.stop_for_bug(error)

    def _reconcile(self) -> None:
        groups, now_s = self._groups, self._clock.now()
        if self.leads_metadata and not self._changes.storing and groups.map is None:
            self._form()
        if groups.map is None:
            self._ask_whether_formed(now_s)
            return
        if self.departure.has_left(groups.map):
            self._host.left(groups.map.version)
            return
        self._ask_whether_left(groups.map, now_s)
        self._announce(groups.map, now_s)
        self._share(groups.map, now_s)
        metadata = groups.drivers[METADATA].group
        current = metadata.behind_s(now_s) != inf and metadata.silent_s(now_s) < GONE_S
        members = (node.node_id for node in groups.map.nodes)
        self._seen.look(members, self._host.connected, now_s, map_is_current=current)
        if groups.crowded():
            self._seen.crowded(now_s)
        for record in groups.map.groups:
            replica = groups.drivers.get(record.group_id)
            if replica is None:
                continue
            if replica.group.ready:
                self._seen.leads(record.group_id, now_s)
                with contextlib.suppress(ChangeRefusedError):  # not yet
                    self._keep(record, replica, now_s)
                continue
            self._seen.leads_no_longer(record.group_id)
            if record.group_id != METADATA and self._config.node_id not in (*record.replicas, *record.learners):
                self._retire(record)
        there = {record.group_id for record in groups.map.groups}  # the map looks for one group in all of them
        for group in [one for one in groups.drivers if one not in there and groups.map.has_removed(one)]:
            if not groups.drivers[group].installing:
                self._host.close_group(group)
        if not _is_of_before(groups.map, self._directory):
            self._migrations.follow(groups.map)
        self._brokers.follow(groups.map)
        self._tend(groups.map, now_s)
        if not self.leads_metadata:
            self.switches.forget()
        elif due := self.switches.due(groups.map, self._host.connected, self._host.features.records, now_s):
            self._host.switch(m.Items([FeatureRecord(name, "on") for name in due]), _ignore)

    @property
    def leads_metadata(self) -> bool:
        """Whether this node decides about the map."""
        return self._groups.drivers[METADATA].group.ready

    def _form(self) -> None:
        cluster_id = self._host.status().cluster_id or f"{self._clock.rng.getrandbits(128):032x}"
        first = decisions.first_map(self._config, self._presence.record.peer_endpoint, cluster_id)
        self._changes.store(first, 0, _ignore)

    def _announce(self, known: ClusterMap, now_s: float) -> None:
        """Say where this node is, until the map says so."""
        wanted = self._presence.record
        said = known.node(wanted.node_id)
        if said is not None:
            wanted = msgspec.structs.replace(wanted, leaving=said.leaving, drained=said.drained)
        if said == wanted or not wanted.endpoint or now_s - self._announced_s < RECONCILE_S:
            return
        self._announced_s = now_s
        leader = self._groups.drivers[METADATA].group.leader
        if leader == self._config.node_id:
            with contextlib.suppress(InvalidRequestError):
                self._grant(decisions.join(known, wanted, Reach.ALIVE), _ignore)
        elif leader is not None:
            asked = c.Join(wanted, self.departure.member_at)
            self._host.call_peer(leader, CLUSTER_JOIN.code, CLUSTER_JOIN.encode_request(asked), self.departure.heard)

    def heard(self, newer: ClusterMap) -> None:
        """Another node has shown its map."""
        if self.departure.has_left(newer):
            self._host.left(newer.version)

    def ask_for_returns(self) -> None:
        """This node has just become busy: ask for its part of the budget of returns now."""
        if self._groups.map is not None:
            self._shared_s = float("-inf")
            self._share(self._groups.map, self._clock.now())

    def _share(self, known: ClusterMap, now_s: float) -> None:
        """Ask the leader of ``metadata-0`` for this node's part of the budget of returns, while it is busy, and for
        what tenants have whose records are limited."""
        sharing = self._host.sharing
        if now_s - self._shared_s < SHARE_S:
            return
        self._shared_s = now_s
        if (report := sharing.report(now_s)) is not None:
            budget, nodes = self._return_budget, len(known.nodes)
            heard: Callable[[Any], None] = partial(sharing.granted, asked_s=now_s)
            self._report(CLUSTER_RETURNS, report, lambda asked: budget.grant(asked, nodes, now_s), heard)
        if (counts := self._host.quotas.report(self._config.node_id)) is not None:
            heard = partial(self._host.quotas.heard, counts)
            self._report(QUOTA_COUNTS, counts, partial(self._totals.add, now_s=now_s), heard)

    def _report(
        self, method: Method[Any, Reply], body: Any, answer: Callable[[Any], Reply], heard: Callable[[Reply], None]
    ) -> None:
        """Tell the leader of ``metadata-0`` something, and hear its answer; ``answer``: if that is this node."""

        def answered(result: bytes | MetadError) -> None:
            if not isinstance(result, MetadError):
                heard(method.decode_reply(result))

        leader = self._groups.drivers[METADATA].group.leader
        if self.leads_metadata:
            heard(answer(body))
        elif leader is not None and leader != self._config.node_id:
            self._host.call_peer(leader, method.code, method.encode_request(body), answered)

    def _ask_whether_formed(self, now_s: float) -> None:
        """Ask the other founders for the map, where this one may have been replaced and does not hear of it."""

        def answered(result: bytes | MetadError) -> None:
            if isinstance(result, MetadError) or self._groups.map is not None:
                return
            formed = CLUSTER_MAP.decode_reply(result).map
            if formed is not None and (text := no_founder(self._config, formed)) is not None:
                self._host.fail(ConfigError(text))

        if self._config.cluster.seeds and self.departure.asks_again(now_s):
            self._ask_for_map(0, answered)

    def _ask_for_map(self, version: int, answered: Done) -> None:
        """Ask every connected node for a map that is newer than this version."""
        payload = CLUSTER_MAP.encode_request(c.MapRequest(version))
        for node in sorted(self._host.connected):
            self._host.call_peer(node, CLUSTER_MAP.code, payload, answered)

    def _ask_whether_left(self, mine: ClusterMap, now_s: float) -> None:
        """Ask the others for a newer map, where this node may have left and does not hear of it."""

        def answered(result: bytes | MetadError) -> None:
            if isinstance(result, MetadError):
                return
            newer = CLUSTER_MAP.decode_reply(result).map
            if newer is not None:
                self.heard(newer)

        if self.departure.asks(mine, self._groups.drivers[METADATA].group.leader, now_s):
            self._ask_for_map(mine.version, answered)

    def _tend(self, known: ClusterMap, now_s: float) -> None:
        """Remove nodes that leave once nothing needs them any more, and add replicas where there are too few."""
        if self._changes.storing or self._tending or now_s - self._tended_s < TEND_S or not self.leads_metadata:
            return
        self._tended_s = now_s
        if _is_of_before(known, self._directory):
            directory = self._directory
            self._grant(decisions.recovered(known, directory.cluster_id, directory.lost, directory.settled), _ignore)
            return
        if not known.replicas and machine_count(node.node_id for node in known.nodes) > 1:
            text = "the configured number of replicas is noted"
            self._grant(decisions.changed(known, text, replicas=self._config.cluster.replicas), _ignore)
        elif any(node.leaving for node in known.nodes) or upkeep.lacking(known):
            self._mend()

    def _mend(self) -> None:
        """Ask the leaders of all groups how far they are, and take the next step then."""
        self._tending = True

        def answered(reports: list[m.GroupStatus]) -> None:
            self._tending = False
            if not self.leads_metadata or self._changes.storing:
                return
            decision = upkeep.repaired(self._map(), self._seen.reachable, reports)
            if decision.map is not None:
                event(log_events.REPLICAS_ADDED, detail=decision.text)
                self._grant(decision, _ignore)
            for node in self._map().nodes:
                if node.leaving and not self._changes.storing:
                    with contextlib.suppress(MetadError):  # not yet
                        self._grant(leaving.forget(self._map(), node.node_id, reports), _ignore)
                        event(log_events.NODE_FORGOTTEN, member=node.node_id)

        self._ask_all_leaders(answered)

    def reach(self, member: str) -> Reach:
        """What this node knows of a member."""
        return self._seen.reach(member, self._host.connected, self._clock.now())

    def _keep(self, record: GroupRecord, replica: Replica, now_s: float) -> None:
        """One step from the replicas a group has to those it should have, and to its preferred leader."""
        group = replica.group
        make = {"add": group.add_learner, "promote": group.promote, "remove": group.remove}
        for kind, member in upkeep.due_changes(record, group.configuration, self._seen, now_s):
            with contextlib.suppress(ChangeRefusedError):  # not yet; another may be possible
                make[kind](member)
                return
        for to in upkeep.successors(record, self._map(), group.configuration, group.lag, self._seen, now_s):
            if to not in group.short_of_room() and to not in replica.doubted:
                group.transfer(to)
                return

    def _retire(self, record: GroupRecord) -> None:
        """Close a replica that should not be here any more, once a leader of the group says that this node is out of
        it. The group does not tell the nodes that it has let go."""
        group = record.group_id
        if group in self._retiring:
            return
        self._retiring.add(group)

        def answered(reports: list[m.GroupStatus]) -> None:
            self._retiring.discard(group)
            replica = self._groups.drivers.get(group)
            if replica is None or replica.installing or replica.group.is_leader:
                return
            wanted = self._map().group(group) or record
            if upkeep.is_let_go(self._config.node_id, wanted, replica.group.log.configuration_index, reports):
                self._host.close_group(group)

        self._ask_leaders(record.replicas, answered)

    def _ask_all_leaders(self, then: Callable[[list[m.GroupStatus]], None]) -> None:
        """Ask every node for the groups that it leads, this one too."""
        here = upkeep.certain(self._host.status())
        self._ask_leaders([node.node_id for node in self._map().nodes], lambda reports: then(here + reports))

    def _ask_leaders(self, nodes: Iterable[str], then: Callable[[list[m.GroupStatus]], None]) -> None:
        """Ask the connected ones of these nodes for the groups that they lead, and pass on what is certain."""
        host = self._host
        reports: list[m.GroupStatus] = []
        asked = [node for node in nodes if node in host.connected]
        missing = len(asked)

        def answered(result: bytes | MetadError) -> None:
            nonlocal missing
            missing -= 1
            if not isinstance(result, MetadError):
                reports.extend(upkeep.certain(STATUS.decode_reply(result)))
            if not missing:
                then(reports)

        if not asked:
            then(reports)
        for node in asked:
            host.call_peer(node, STATUS.code, STATUS.encode_request(m.Status()), answered)

    # --- requests ----------------------------------------------------------------------------------------

    def handle(self, body: m.Message, done: Done, arrived_s: float, source: Source | None = None) -> None:
        """Answer a request about the cluster, which reached this node at ``arrived_s`` from this source. One that
        changes the map waits while another change is stored, and is decided from what that has made of the map. Raises
        MetadError instead of calling ``done``."""
        self._check_leads()
        current, lost = self._groups.map, self._seen.lost
        if current is None:
            raise NotLeaderError("the cluster is being formed", retry_after_ms=200)
        if isinstance(body, ABOUT_BROKERS):
            self._brokers.handle(body, done, arrived_s, source)
            return
        if self._changes.storing and not isinstance(body, c.ReturnReport | QuotaCounts):
            self._changes.wait(lambda: self.handle(body, done, arrived_s, source), done)
            return
        if _is_of_before(current, self._directory):
            raise NotLeaderError("the cluster was recovered, and its map does not say so yet", retry_after_ms=200)
        replicas = _wanted(current, self._config)
        match body:
            case c.Join(node, member_at):
                check_node(node)
                self._grant(decisions.join(current, node, self.reach(node.node_id), member_at), done)
                if current.node(node.node_id) is None:
                    event(log_events.NODE_JOINED, member=node.node_id, endpoint=node.endpoint)
            case c.Leave():
                self._leave(body, done)
            case c.AddGroup(kind):
                if no_room := self._groups.drivers[METADATA].no_room():
                    raise NoRoomError(no_room)
                self._grant(decisions.add_group(current, kind, replicas, lost), done)
            case c.Rebalance(wanted, keep_slots):
                count, noted = wanted or replicas, wanted or current.replicas
                self._grant(decisions.rebalance(current, count, lost, noted, keep_slots=keep_slots), done)
            case c.Transfer(region=None):
                self._grant(decisions.transfer(current, body), done)
            case c.Transfer():
                decided = decisions.prefer(current, body)
                _require(LEADER_REGIONS, self._host.features.on, "no group can prefer a region")
                self._grant(decided, done)
            case c.Drain(node_id, undo):
                decided = decisions.undrain(current, node_id) if undo else decisions.drain(current, node_id, lost)
                self._grant(decided, done)
            case c.MoveSlots():
                if no_room := "" if body.to else self._groups.drivers[METADATA].no_room():
                    raise NoRoomError(no_room)
                self._grant(decisions.move_slots(current, body, replicas, lost), done)
            case c.MoveReplica():
                self._grant(decisions.move_replica(current, body, lost), done)
            case c.RemoveGroup(name):
                self._remove(name, done)
            case c.ReturnReport(node_id) | QuotaCounts(node_id) if current.node(node_id) is None:
                raise NotFoundError(f"{node_id!r} is no member of the cluster")
            case c.ReturnReport():
                grant = self._return_budget.grant(body, len(current.nodes), self._clock.now())
                done(encode(grant))
            case QuotaCounts():
                done(encode(self._totals.add(body, now_s=self._clock.now())))
            case c.Moved(move):
                self._grant(decisions.moved(current, move), done)
            case _:
                raise InvalidRequestError(f"{type(body).__name__} is not about the cluster")

    def _check_leads(self) -> None:
        """Raise NotLeaderError if another node decides about the map."""
        if not self.leads_metadata:
            leader = self._groups.drivers[METADATA].group.leader or ""
            raise NotLeaderError("this node does not lead metadata-0", leader=leader)

    def _leave(self, wish: c.Leave, done: Done) -> None:
        """Let a node leave, or remove it if it is leaving and nothing needs it any more."""
        node_id = wish.node_id
        if not leaving.is_leaving(self._map(), node_id) and wish.lost:
            leaving.check_lost(node_id, self.reach(node_id))

        def decide(reports: list[m.GroupStatus]) -> None:
            self._check_leads()
            current = self._map()
            if leaving.is_leaving(current, node_id):
                decision = leaving.forget(current, node_id, reports)
            else:
                fewer, wanted = wish.fewer or wish.lost, _wanted(current, self._config)
                decision = leaving.leave(current, node_id, self._seen.lost, reports, wanted, fewer=fewer)
            self._grant(decision, done)

        self._ask_all_leaders(lambda reports: self._changes.in_turn(partial(decide, reports), done))

    def _remove(self, name: str, done: Done) -> None:
        """Remove a group, once its leader has dropped what rows of slots that are not its own it may have had."""
        group = decisions.check_removable(self._map(), name)
        _require(REMOVED_GROUPS, self._host.features.on, "no group can be removed")
        reports: list[m.GroupStatus] = []

        def decide() -> None:
            self._check_leads()
            self._grant(decisions.remove_group(self._map(), name, reports), done)

        def swept(result: bytes | MetadError | None) -> None:
            if isinstance(result, MetadError):
                done(result)
            else:
                self._changes.in_turn(decide, done)

        def answered(found: list[m.GroupStatus]) -> None:
            reports.extend(found)
            leader = next((status.leader for status in reports if status.name == name), "")
            driver, order = None if group is None else self._groups.drivers.get(group), c.GroupCommand("sweep", 0)
            if not leader or group is None:
                swept(None)
            elif leader != self._config.node_id:
                self._host.call_peer(leader, GROUP_COMMAND.code, GROUP_COMMAND.encode_request(order, group=name), swept)
            elif driver is not None:
                self._migrations.sweep(driver, order, swept)

        self._ask_all_leaders(answered)

    # --- storing -----------------------------------------------------------------------------------------

    def _map(self) -> ClusterMap:
        assert self._groups.map is not None
        return self._groups.map

    def _grant(self, decision: Decision, done: Done) -> None:
        """Store what was decided from the newest map, and answer."""
        version, (following, text) = self._map().version, decision
        if following is None:
            done(encode(c.Done(text, version)))
            return

        def answer(result: bytes | MetadError) -> None:
            done(result if isinstance(result, MetadError) else encode(c.Done(text, following.version)))

        self._changes.store(following, version, answer)


class _Changes:
    """Changes of the map, stored one at a time."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._waiting: deque[tuple[Callable[[], None], Done]] = deque()
        self._going_on = False
        self.storing = False
        """Whether one is being stored."""

    def store(self, following: ClusterMap, expected: int, done: Done) -> None:
        """Store a map in place of the version that it was decided from. Then those that wait get their turn."""
        if self.storing:
            done(ConflictError("another change of the cluster is being made; try again"))
            return
        self.storing = True

        def stored(result: bytes | MetadError) -> None:
            self.storing = False
            if isinstance(result, MetadError):
                done(result)
            else:
                reply = CLUSTER_STORE.decode_reply(result)
                done(ConflictError(reply.errors[0].message) if reply.errors else result)
            self._go_on()

        self._host.store(c.StoreMap(expected, following), stored)

    def _go_on(self) -> None:
        """Decide what waits, until something is being stored again."""
        if self._going_on:  # a change that was refused at once: whoever decides goes on
            return
        self._going_on = True
        try:
            while self._waiting and not self.storing:
                _tried(*self._waiting.popleft())
        finally:
            self._going_on = False

    def in_turn(self, decide: Callable[[], None], done: Done) -> None:
        """Decide now, or in turn while a change is being stored. A MetadError that this raises is the answer."""
        if self.storing:
            self.wait(decide, done)
        else:
            _tried(decide, done)

    def wait(self, decide: Callable[[], None], done: Done) -> None:
        """Decide when what is being stored is stored, behind those that wait already."""
        if len(self._waiting) >= WAITING_MAX:
            done(OverloadedError(f"{WAITING_MAX} changes of the cluster wait for their turn", retry_after_ms=200))
            return
        self._waiting.append((decide, done))


def _tried(decide: Callable[[], None], done: Done) -> None:
    try:
        decide()
    except MetadError as error:
        done(error)


def _ignore(_: bytes | MetadError) -> None:
    """Reconciling finds out whether it was done."""


def _is_of_before(known: ClusterMap, directory: Directory) -> bool:
    """Whether a map is of before the cluster was recovered: what it says about slots and their moves is over."""
    return bool(known.cluster_id) and directory.cluster_id not in ("", known.cluster_id)


def _require(feature: str, on: Collection[str], refused: str) -> None:
    """Raise ConflictError if a feature is not on, without which the map cannot say what is asked."""
    if feature not in on:
        raise ConflictError(
            f"{refused} before the feature {feature} is on, which is for ever: metadctl features allow {feature}"
        )


def _wanted(current: ClusterMap, config: Config) -> int:
    """How many replicas a group should have."""
    return current.replicas or config.cluster.replicas
