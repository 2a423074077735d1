"""One node: everything of a server but its sockets, put together; how it begins, works, fails and ends.

:mod:`.requests` has the way of a request, :mod:`.requests.scheduler` what the event loop does in its turns,
:mod:`.replicas.groups` the replicas that are here, :mod:`.health` whether the node goes on.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from metad_wire import messages as m
from metad_wire.cluster import ClusterMap, GroupCommand, GroupReply
from metad_wire.errors import NotReplicaError, UnknownOutcomeError, UnsupportedError
from metad_wire.methods import (
    ACCESS_MAY,
    ACTIVITY,
    CLUSTER_MAP,
    CLUSTER_STORE,
    COMPACT,
    EVENTS,
    FEATURE_SWITCH,
    GROUP_COMPARE,
    GROUP_REBUILD,
    QUOTA_USE,
    SETTING_SET,
    SETTINGS,
    STATUS,
    WATCH_OPEN,
    Method,
    encode,
)
from metad_wire.policy import Admission
from metad_wire.policy.fair_queue import Precedence
from metad_wire.policy.rates import ServiceRate
from metad_wire.policy.returns import ReturnShare
from metad_wire.policy.slices import Slices
from metad_wire.program.build import build
from metad_wire.tables.access import AuditEntry, May, Wish

from .. import log_events
from ..config import Config
from ..config.files import NOWHERE, Origins
from ..control.brokers.brokers import Brokers
from ..control.controller import Controller
from ..control.host import Done, Host, Source
from ..control.map.decisions import founders
from ..control.map.formed import refusal, without_effect
from ..control.map.presence import Presence
from ..control.migration import Migrations
from ..errors import ConfigError, LeftError, ServerError, StorageError
from ..logs import KEPT, bug, event, kept
from ..raft.base import Timing
from ..raft.replica import RaftGroup
from ..raft.replicas import PeerProtocolError, Replicas
from ..storage.log import LogWriter
from .calls.leader_calls import BrokerCalls, LeaderCalls, MigrationSteps
from .calls.peer_sender import PeerSender
from .chores.assignments import Assignments
from .chores.comparisons import Comparisons
from .chores.leases import LeaseEnds
from .chores.sweeps import Sweeps
from .disk.backups import Backups
from .disk.checkpoints import Checkpoints, Compaction, DiskRoom
from .disk.node_snapshots import NodeSnapshots
from .disk.replica_lifecycle import ReplicaLifecycle
from .disk.stores import StoreIdentity, Stores, open_stores
from .environment import AsyncEnvironment, Dial, Environment, nobody_is_dialled
from .health import Health
from .lives import Lives
from .replicas.driver import GroupDriver, Work
from .replicas.group_status import GroupStatuses
from .replicas.groups import Agenda, Groups, Observer
from .replicas.handover import Handover
from .replicas.machines import Machines
from .requests.admission import Gate, InFlightBudget
from .requests.audit import AuditQueue
from .requests.near import NearReads
from .requests.permissions import Permissions
from .requests.quotas import Quotas
from .requests.reads import Reads
from .requests.requests import Requests
from .requests.scheduler import Scheduler
from .settings import Settings
from .watches.watches import Watches
from .watches.will_turns import WillTurns

_LOOK_S = 0.002  # how often a node that ends looks whether it may
_NOTED_S = 0.5  # for so long it waits for what it has to write to the audit trail


class Node:
    """Use :meth:`open`, then :attr:`requests`."""

    certificates: Callable[[], list[m.CertificateStatus]] = list
    """Tells when those end that it uses."""

    def __init__(
        self, config: Config, stores: Stores, environment: Environment, dial: Dial = nobody_is_dialled
    ) -> None:
        self.settings, self.environment = Settings(config, environment, partial(_heed, self)), environment
        config = self.config = self.settings.config
        self.connections, self._paced, self.closed = 0, 0, False
        self.left: LeftError | None = None
        """That the node has left its cluster, and ends."""
        health = self.health = Health()
        health.on_failure.append(self._stopped)
        environment.catch(self._caught)
        outbound = self.outbound = PeerSender()
        """What is sent to peers."""
        self.presence = Presence(config, stores.identity.store_id)
        """What this node says of itself."""
        self._on_left: list[Callable[[ServerError], None]] = []
        self.stores, self._started_s = stores, time.monotonic()
        self.lives = Lives(stores.log, environment, health)
        syncer = environment.syncer(stores.log, fsync=config.fsync)
        writer = self._writer = LogWriter(stores.log, syncer, failed=health.fail)
        agenda = self._agenda = Agenda(environment)
        groups = self.groups = Groups(environment, health)
        self.drivers = groups.drivers
        self._statuses = GroupStatuses(groups, environment)
        precedence, slices = Precedence(environment.now, environment.is_behind), Slices(environment.call_soon)
        machines = Machines(config, stores.state, groups, environment)
        audit = self.audit = AuditQueue(environment, lambda payload, done: leaders.note(payload, done))
        quotas = Quotas(machines.quotas, environment)
        permissions = self.permissions = Permissions(config, groups, machines, audit, quotas, lambda d: leaders.last(d))
        watches = self.watches = Watches(
            config, stores.state, groups, outbound, precedence, slices, environment, health, permissions
        )
        self._statuses.listen(watches.look)
        snapshots = self.snapshots = NodeSnapshots(
            stores, groups, machines, agenda, outbound, watches, environment, health, has_room=self._has_room
        )
        replicas = self.replicas = Replicas(
            config.node_id,
            writer,
            Observer(groups, agenda, health, send_snapshot=snapshots.streams.wanted, install=snapshots.install),
            clock=environment.now,
            calendar=lambda: environment.wall_ms() / 1000,
            schedule=agenda.woken,
            transmit=outbound.send,
            crowded=groups.crowded,
            shortage=lambda: self.disk_room.shortage,
            timing=Timing(
                election_s=config.raft.election_timeout_ms / 1000,
                heartbeat_s=config.raft.heartbeat_ms / 1000,
                lease_s=config.raft.promised_ms / 1000,
                step_down_s=config.raft.patience_ms / 1000,
                sleep_after_s=config.raft.sleep_after_ms / 1000,
            ),
            rng=environment.rng,
        )
        self.lifecycle = ReplicaLifecycle(
            config,
            stores,
            writer,
            groups,
            replicas,
            machines,
            snapshots,
            agenda,
            watches,
            precedence,
            slices,
            environment,
            health,
        )
        self.checkpoints = Checkpoints(
            config, stores.state, stores.log.engine, groups, snapshots, watches, agenda, environment, health
        )
        self._statuses.listen(self.checkpoints.look)
        engines = stores.state, stores.log.engine
        disk = stores.directory, engines, config.storage
        self.disk_room = DiskRoom(*disk, environment, self.checkpoints)
        self._statuses.listen(self.disk_room.look)
        self.backups = Backups(stores, groups, outbound, environment, health, has_room=self._has_room)
        self.compaction = Compaction(engines, self.disk_room, groups, environment)
        self._scheduler = Scheduler(
            *(stores.state, writer, replicas, agenda, precedence, environment, health), meters=groups.meters
        )
        standstills = self.standstills = self._scheduler.standstills
        share = self.return_share = ReturnShare(
            config.node_id,
            ServiceRate(since_s=environment.now()),
            config.limits.returning_per_s,
            self._members,
            lambda: environment.call_soon(self.controller.ask_for_returns),
        )
        self.budget = InFlightBudget(config.limits.in_flight_bytes_max, share)
        near = self.near = NearReads(
            groups, outbound.call, environment, drift=replicas.timing.drift, enforced=permissions.enforced
        )
        self._reads = Reads(
            *(self.budget, environment, health, precedence, slices, near),
            frame_bytes_max=config.limits.frame_bytes_max,
        )
        gate = self.gate = Gate(_admission(config), groups, environment, share)
        self._statuses.listen(gate.ended)
        self.requests = Requests(
            groups,
            self._scheduler,
            self._reads,
            self.budget,
            share.returns,
            gate,
            environment,
            health,
            limits=config.limits,
            control=self._control,
            sweep=self._sweep,
            wait=self._wait_for_turn,
            permissions=permissions,
        )
        self.will_turns = WillTurns(self.requests, environment)
        self.sweeps = Sweeps(config.expiry, groups, self.requests, stores, environment, health)
        self._lease_ends = LeaseEnds(groups, self.requests, environment, health, standstills)
        self._handover = Handover(lambda: [one.group for one in self.drivers.values()], environment.now, groups.drained)
        self._to_others = Handover(self._led_in_vain, environment.now, groups.drained, at_all_costs=False)
        self._statuses.listen(self._lead_no_more)
        leaders = self.leaders = LeaderCalls(config.node_id, groups, self.requests, environment, outbound)
        self._assignments = Assignments(groups, self.requests, leaders, environment, health)
        self.comparisons = Comparisons(stores, groups, snapshots, outbound, agenda, environment, health, config.storage)
        self.migrations = Migrations(MigrationSteps(groups, leaders))
        self.brokers = Brokers(environment, groups, BrokerCalls(self.requests, leaders, dial), standstills.look)
        standstills.listeners += [replicas.overslept, self._overslept, self.brokers.overslept]
        host = Host(
            groups,
            replicas.connected,
            status=self.status,
            store=partial(self.requests.request, CLUSTER_STORE),
            switch=partial(self.requests.request, FEATURE_SWITCH),
            features=machines.features,
            call_peer=outbound.call,
            close_group=self.lifecycle.close,
            left=self._left,
            fail=health.fail,
            stop_for_bug=health.stop_for_bug,
            sharing=share,
            quotas=machines.quotas,
        )
        self.controller = Controller(config, self.presence, stores, environment, host, self.migrations, self.brokers)
        groups.on_change.append(self.controller.reconcile)

    @classmethod
    async def open(
        cls,
        config: Config,
        *,
        stores: Stores | None = None,
        environment: Environment | None = None,
        locked: Callable[[], None] | None = None,
        dial: Dial = nobody_is_dialled,
        origins: Origins = NOWHERE,
    ) -> Node:
        """Open the stores (or take these), call ``locked``, recover every group; a node without peers serves when this
        returns. ``dial``: how to learn whether a broker's process lives. ``origins``: where the settings are from.
        Raises :class:`ServerError` where starting would lose data."""
        stores = stores or open_stores(config)
        try:
            if locked is not None:
                locked()
            node = cls(config, stores, environment or AsyncEnvironment(), dial)
            node.settings.origins = origins
        except BaseException:
            stores.close()
            raise
        try:
            node.start()
            node._hold_settings()
            if node.failure is not None:
                raise node.failure
            if not config.cluster.seeds and not config.cluster.join:
                await node.serving()
        except BaseException as error:
            # What is scheduled already must not touch the stores any more, and nothing is flushed.
            node.health.end(error if isinstance(error, ServerError) else ServerError("the start was cancelled"))
            await node.close()
            raise
        return node

    def _hold_settings(self) -> None:
        """Hold the settings against the map, once, as soon as there is a map."""
        known = self.groups.map
        if known is None:
            if self._hold_settings not in self.groups.on_change:
                self.groups.on_change.append(self._hold_settings)
            return
        if self._hold_settings in self.groups.on_change:
            self.groups.on_change.remove(self._hold_settings)
        if (text := refusal(self.config, known)) is not None:
            self.health.fail(ConfigError(text))
            return
        for key, text in without_effect(self.config, known):
            event(log_events.SETTING_WITHOUT_EFFECT, key=key, reason=text)

    @property
    def failure(self) -> ServerError | None:
        """Why it has stopped; None while it works."""
        return self.health.failure

    @property
    def map(self) -> ClusterMap | None:
        """The cluster map; None while the cluster is being formed."""
        return self.groups.map

    @property
    def identity(self) -> StoreIdentity:
        """Of its data directory."""
        return self.stores.identity

    # --- what the node itself answers --------------------------------------------------------------------

    def _control(
        self, method: Method[Any, Any], body: Any, done: Done, arrived_s: float, source: Source | None
    ) -> None:
        if method is STATUS:
            done(encode(self.status()))
        elif method is ACTIVITY:
            permissions, meters = self.permissions, self.groups.meters
            shows_names = not permissions.enforced or (source is not None and permissions.administers(source.principal))
            done(encode(meters.activity(body, shows_names=shows_names)))
        elif method is EVENTS:
            wishes = [Wish("read", table) for table in KEPT]
            may = self.permissions.may(May("", wishes), source).allowed
            done(encode(kept().page(body, [wish.table for wish, allowed in zip(wishes, may, strict=True) if allowed])))
        elif method is ACCESS_MAY:
            done(encode(self.permissions.may(body, source)))
        elif method is QUOTA_USE:
            done(encode(self.permissions.quotas.use(body)))
        elif method is SETTINGS:
            done(encode(self.settings.get(body)))
        elif method is SETTING_SET:
            self.settings.set(body, done)
        elif method is COMPACT:
            done(encode(self.compaction.ask(body)))
        elif method is GROUP_COMPARE:
            self.comparisons.answer(body, done)
        elif method is GROUP_REBUILD:
            self.comparisons.rebuild(body, done)
        elif method is CLUSTER_MAP:
            self.standstills.look(self.environment.now())
            done(encode(self.groups.map_reply(body)))
        elif method.name.startswith("backup."):
            self.backups.handle(method, body, done)
        elif method is WATCH_OPEN:
            raise UnsupportedError("a watch needs a connection of its client")
        elif self.failure is not None:
            raise UnknownOutcomeError("the node has stopped; its log says why")
        else:
            self.controller.handle(body, done, arrived_s, source)

    def _sweep(self, driver: GroupDriver, body: GroupCommand, done: Done) -> None:
        if not driver.group.ready:
            raise driver.not_leader()
        self.migrations.sweep(driver, body, lambda error: done(error or encode(GroupReply([], []))))

    def _wait_for_turn(self, driver: GroupDriver, work: Work) -> None:
        self.will_turns.wait(driver, work)

    def serves(self, connections: int, paced: int) -> None:
        """Note how many connections of clients there are, and how many had to wait for their turn, for the status."""
        self.connections, self._paced = connections, paced

    def status(self) -> m.StatusReply:
        """How this node is."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return m.StatusReply(
            node_id=self.identity.node_id,
            cluster_id=self.identity.cluster_id,
            version=build(),
            pid=os.getpid(),
            uptime_ms=int((time.monotonic() - self._started_s) * 1000),
            cpu_us=int((usage.ru_utime + usage.ru_stime) * 1e6),
            rss_bytes=_rss_bytes(),
            fsync=self.config.fsync,
            replicas=max((len(d.group.configuration.voters) for d in self.drivers.values()), default=0),
            connections=self.connections,
            in_flight_bytes=self.budget.held + self._reads.behind_bytes,
            entries=self._writer.entries,
            syncs=self._writer.syncs,
            groups=self._statuses.all(),
            region=self.config.cluster.region,
            links=self.outbound.statuses(),
            failing=self._failing(),
            watch_streams=self.watches.count,
            sessions_ended=self.sweeps.counts["ended"],
            wills_due=self.sweeps.counts["wills"],
            overdue_ms=self.sweeps.overdue_ms,
            backlog=m.Backlog() if self.failure is not None else self.sweeps.backlog(),
            wills_dropped=self.sweeps.counts["dropped"],
            turned_away=self._turned_away(),
            lanes=self.gate.lanes(),
            disk=self.disk_room.status,
            authorization=self.permissions.enforced,
            certificates=self.certificates(),
            tail=self.groups.meters.tail(),
            settings=self.settings.unlike_default(),
        )

    def _turned_away(self) -> m.TurnedAway:
        now, share = self.environment.now(), self.return_share
        return share.returns.status(now, granted=share.granted_at(now), paced=self._paced)

    def _members(self) -> int:
        return 1 if self.groups.map is None else len(self.groups.map.nodes)

    def _failing(self) -> str:
        """Why this node can store nothing; empty if it can."""
        if self.failure is not None:
            return str(self.failure)
        hangs = any(driver.group.disk_hangs for driver in self.drivers.values())
        return "the disk makes nothing durable" if hangs else ""

    def adopt(self, cluster_id: str) -> None:
        """Belong to this cluster. Stops the node where it belongs to another already."""
        try:
            self.stores.adopt(cluster_id)
        except ServerError as error:
            self.health.fail(error)

    # --- peers -------------------------------------------------------------------------------------------

    def peer_connected(self, peer: str) -> None:
        """Payloads reach this node, in order."""
        self.replicas.peer_connected(peer)
        self._agenda.schedule()

    def peer_lost(self, peer: str) -> None:
        """They do not any more."""
        self.replicas.peer_lost(peer)
        self.snapshots.streams.peer_lost(peer)
        self._agenda.schedule()

    def peer_refused(self, peer: str) -> None:
        """A peer that could be reached before cannot, and its host refuses to be dialled."""
        self.replicas.peer_refused(peer)
        self._agenda.schedule()

    def peer_received(self, peer: str, payload: bytes) -> None:
        """A payload of Raft messages. Raises PeerProtocolError where it is none."""
        if self.failure is not None:
            return
        try:
            self.replicas.receive(peer, payload)
        except PeerProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - logged where it ends
            self.health.stop_for(error)

    def snapshot_received(self, peer: str, payload: bytes) -> None:
        """A payload of the snapshot channel. Raises PeerProtocolError where it is none."""
        if self.failure is None:
            self.snapshots.streams.receive(peer, payload)

    # --- life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Recover every group and begin. Raises DamagedStoreError where log or state lacks something."""
        self.stores.log.synced = self.groups.meters.sync_s.add
        self._scheduler.log_grown = self._log_grown
        self.disk_room.start()
        self.lifecycle.recover(founders(self.config))
        self.standstills.start()
        self.controller.start()
        self._statuses.start()
        self.sweeps.start()
        self._lease_ends.start()
        self._assignments.start()
        self.comparisons.start()
        _tell_recovery(self.stores, self.audit)

    async def serving(self) -> None:
        """Wait until the cluster is formed and every group here has a leader. Raises the error the node failed with
        meanwhile."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def look() -> None:
            if not waiter.done() and (self.failure is not None or self.groups.are_led()):
                waiter.set_result(None)

        def failed(_: ServerError) -> None:
            look()

        self.groups.on_change.append(look)
        self.health.on_failure.append(failed)
        try:
            look()
            await waiter
        finally:
            self.groups.on_change.remove(look)
            self.health.on_failure.remove(failed)
        if self.failure is not None:
            raise self.failure

    async def run(self) -> None:
        """Wait until the node fails or has left its cluster; raises why, or LeftError."""
        ended: asyncio.Future[ServerError] = asyncio.get_running_loop().create_future()

        def report(error: ServerError) -> None:
            if not ended.done():
                ended.set_result(error)

        listeners = (self.health.on_failure, self._on_left)
        for told in listeners:
            told.append(report)
        try:
            raise self.failure or self.left or await ended
        finally:
            for told in listeners:
                told.remove(report)

    def _left(self, version: int) -> None:
        """The map of this version has the node no more. It works on until it is told to end."""
        if self.left is not None or self.failure is not None:
            return
        name, cluster_id = self.identity.node_id, self.identity.cluster_id
        self.left = LeftError(f"{name} has left the cluster; to join again, it needs an empty data directory")
        event(log_events.NODE_LEFT, cluster=cluster_id, map_version=version)
        try:
            self.stores.leave()
        except StorageError as error:
            self.health.fail(error)
            return
        for listener in list(self._on_left):
            listener(self.left)

    def _log_grown(self, size: int) -> None:
        self.checkpoints.log_grown(size)
        self.disk_room.grown()

    def _overslept(self) -> None:
        now_s = self.environment.now()
        for driver in self.drivers.values():
            driver.not_keeping_up(now_s)

    def _caught(self, error: Exception) -> None:
        """A callback has raised. What looks from time to time looks again, so one that always fails stops no node."""
        if isinstance(error, ServerError):
            self.health.fail(error)
        else:
            bug("a callback", error)

    def _stopped(self, _: ServerError) -> None:
        self._abandon("the node has stopped; its log says why")

    def _abandon(self, reason: str) -> None:
        """Answer everything that waits."""
        self.groups.abandon(reason)
        self._reads.abandon(reason)
        self.will_turns.abandon(reason)
        self.watches.abandon(NotReplicaError(reason))

    async def hand_over(self, timeout_s: float) -> None:
        """Have others lead what this node leads, where they can, and wait until they do. It works on meanwhile."""
        begin_s, led = self.environment.now(), self._led()
        while self.failure is None and self._handover.step():
            if self.environment.now() - begin_s >= timeout_s:
                break
            await asyncio.sleep(_LOOK_S)
        if led > (left := self._led()):
            event(log_events.HANDED_OVER, groups=led - left, of=led, seconds=round(self.environment.now() - begin_s, 3))

    def _lead_no_more(self) -> None:
        self._to_others.step()

    def _has_room(self, size: int) -> bool:
        return self.disk_room.has_room_for(size)

    def _led_in_vain(self) -> list[RaftGroup]:
        """Groups that others should lead: those with room on their disks, or all but this node, which is drained."""
        drained = self.config.node_id in self.groups.drained()
        led = [driver.group for driver in self.drivers.values() if driver.group.is_leader]
        return [group for group in led if drained or group.should_leave]

    def _led(self) -> int:
        return sum(driver.group.is_leader for driver in self.drivers.values())

    async def drain(self, timeout_s: float) -> bool:
        """Take no more writes and wait for those taken. True if all were answered in time."""
        deadline_s = self.environment.now() + timeout_s
        self.audit.flush()
        noted_s = min(deadline_s, self.environment.now() + _NOTED_S)
        while len(self.audit):
            if self.environment.now() >= noted_s:
                break
            await asyncio.sleep(_LOOK_S)
        self.requests.drain()
        self.watches.drain()
        self.will_turns.drain()
        while not all(driver.idle for driver in self.drivers.values()):
            if self.environment.now() >= deadline_s:
                return False
            self._handover.step()
            await asyncio.sleep(_LOOK_S)
        return True

    async def close(self) -> None:
        """Flush the state, so that the next start has nothing to replay, and release the stores."""
        self.controller.stop()
        self.migrations.stop()
        if self.failure is None:
            flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.checkpoints.make(lambda: flushed.set_result(None))
            await flushed
        if self.failure is None:
            self._writer.flush()
        self.stop_timers()
        self._writer.close()
        self.environment.close()
        self.snapshots.streams.close()
        self._abandon("the node was closed")
        if self.failure is None:
            self.closed = True
            self.health.end(ServerError("the node was closed"))
        try:
            self.stores.close()
        except StorageError as error:
            event(log_events.STORES_NOT_CLOSED, error=str(error))

    def stop_timers(self) -> None:
        """Nothing is due any more."""
        self.controller.stop()
        self.checkpoints.stop()
        self.brokers.stop()
        self._statuses.stop()
        self.sweeps.stop()
        self._lease_ends.stop()
        self._assignments.stop()
        self.comparisons.stop()
        self.audit.stop()
        self._scheduler.stop()
        self._reads.stop()
        self.will_turns.stop()
        self.watches.stop()
        self.snapshots.stop()
        self.backups.stop()


def _heed(node: Node, config: Config) -> None:
    """Have whoever has copied a setting take what counts now."""
    storage, limits = config.storage, config.limits
    node.config = config
    node.checkpoints.log_retained_bytes = storage.log_retained_bytes
    node.disk_room.config = storage
    node.disk_room.look()
    watches = node.watches
    watches.limits = limits
    watches.streams.size_max = limits.watch_streams_max
    watches.retained_bytes = storage.watch_retained_bytes
    watches.retained_s = storage.watch_retained_ms / 1000
    watches.mark_bytes = storage.log_retained_bytes // 4
    node.gate.admission = _admission(config)
    node.budget.room.size_max = limits.in_flight_bytes_max
    node.return_share.per_s_max = limits.returning_per_s
    node.requests.deadline_default_ms = limits.deadline_default_ms
    node.controller.switches.after_s = config.cluster.features_after_ms / 1000
    node.sweeps.heed(config.expiry)
    node.comparisons.every_s = storage.compare_every_ms / 1000


def _admission(config: Config) -> Admission:
    return Admission(items_max=0, wait_max_s=config.limits.queue_ms / 1000)


def _tell_recovery(stores: Stores, audit: AuditQueue) -> None:
    """Log, and write to the audit trail, that groups were taken up here without a majority."""
    recovery, identity = stores.identity.recovery, stores.identity
    if recovery is None or recovery.told:
        return
    event(log_events.GROUPS_RECOVERED, cluster=identity.cluster_id, groups=recovery.groups, lost=recovery.lost)
    names = f"{', '.join(recovery.groups)} without {', '.join(recovery.lost)}"
    audit.note(AuditEntry("", 0, "admin", identity.node_id, "", "", "metad recover", names))
    stores.told()


def _rss_bytes() -> int:
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
