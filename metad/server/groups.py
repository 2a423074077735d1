"""The groups that have a replica on this node: opened as the cluster map says, recovered, told what Raft decides,
cut behind checkpoints, and dropped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

from metad_wire import messages as m
from metad_wire.cluster import ClusterMap, MapReply, MapRequest, slots_count
from metad_wire.errors import NotLeaderError
from metad_wire.group import METADATA, GroupId
from metad_wire.policy import BatchWindow

from ..config import Config
from ..errors import DamagedStoreError, ServerError
from ..logs import event
from ..raft.base import ROLES, Timing, UnsafeStateError
from ..raft.journal import RaftLog, was_here
from ..raft.messages import Configuration, Snapshot
from ..raft.replica import RaftGroup
from ..raft.replicas import Replicas
from ..raft.snapshots import Snapshots, replace_state, restore_log
from ..raft.staging import FileStaging, MemoryStaging
from ..raft.writer import LogWriter
from ..routing.slots import even_slots, slots_of
from ..state import cluster
from ..state.machine import ALL_SLOTS, Machine
from ..state.owners import OwnerCache
from ..state.rows import SLOTS, Numbers, column
from ..state.view import RowCaches
from ..storage.keys import after_prefix, group_prefix
from .driver import GroupDriver
from .environment import Environment, Timer
from .health import Health
from .outbound import Outbound
from .stores import Stores
from .turns import Turns


class Groups:
    """See the module. The observer of the replicas (:class:`metad.raft.replicas.Observer`)."""

    def __init__(
        self,
        config: Config,
        stores: Stores,
        writer: LogWriter,
        environment: Environment,
        health: Health,
        turns: Turns,
        outbound: Outbound,
    ) -> None:
        self.map: ClusterMap | None = None
        self.drivers: dict[GroupId, GroupDriver] = {}
        self.on_change: list[Callable[[], None]] = []
        """Told when the map, or who leads a group, has changed."""
        self._config = config
        self._stores = stores
        self._writer = writer
        self._environment = environment
        self._health = health
        self._turns = turns
        self._owners = OwnerCache(config.storage.owner_cache_bytes)
        self._row_caches = RowCaches(config.storage.row_cache_bytes)
        self._window = BatchWindow(
            items_max=config.commit.entry_items_max,
            bytes_max=config.commit.entry_bytes_max,
            linger_s=config.commit.linger_ms / 1000,
        )
        self._by_group: dict[RaftGroup, GroupDriver] = {}
        self._slots: dict[str, Numbers] = {"metadata": even_slots(1)}
        self._meant: dict[str, Numbers] = {}  # group -> a slot map of nothing else
        raft = config.raft
        self.replicas = Replicas(
            config.node_id,
            writer,
            self,
            clock=environment.now,
            schedule=turns.woken,
            transmit=outbound.send,
            timing=Timing(
                election_s=raft.election_timeout_ms / 1000,
                heartbeat_s=raft.heartbeat_ms / 1000,
                sleep_after_s=raft.sleep_after_ms / 1000,
            ),
            rng=environment.rng,
        )
        directory = stores.directory
        self.snapshots = Snapshots(
            stores.state,
            MemoryStaging() if directory is None else FileStaging(directory / "snapshots", environment.beside),
            clock=environment.now,
            schedule=self._snapshots_woken,
            transmit=outbound.send_bulk,
            receives=self.replicas.groups.__contains__,
            broken=health.fail,
            rng=environment.rng,
        )
        self._snapshots_timer: Timer | None = None
        self._log_bytes = 0  # appended since the last checkpoint
        self._checkpointing = False

    # --- which groups hold what, and who leads them ------------------------------------------------------

    def slots(self, kind: str) -> Numbers:
        """The slot map of a kind. Raises NotLeaderError."""
        slots = self._slots.get(kind)
        if slots is None:
            raise NotLeaderError("the cluster is being formed")
        return slots

    def slots_meant(self, kind: str, group: str) -> Numbers:
        """A slot map by which this group holds everything: whether it does is for its own state to say, which also
        knows what it did before. Another group would do a retry again. Raises NotLeaderError."""
        meant = self._meant.get(group)
        if meant is None:
            group_id = GroupId.parse(group)
            if group_id is None or group_id.kind != kind or self.map is None or self.map.group(group_id) is None:
                # Its own map may be the old one, and "stale" is for the group to say, which knows what it has done.
                raise NotLeaderError(f"this node knows no group {group} of kind {kind}")
            meant = self._meant[group] = column([group_id.ordinal] * SLOTS)
        return meant

    def driver(self, group: GroupId) -> GroupDriver:
        """Return a group's driver. Raises NotLeaderError if the group has no replica here."""
        driver = self.drivers.get(group)
        if driver is None:
            raise self.elsewhere(group)
        return driver

    def driver_of(self, group: RaftGroup) -> GroupDriver:
        """The one that drives this replica."""
        return self._by_group[group]

    def elsewhere(self, group: GroupId) -> NotLeaderError:
        """Return the error that says where to go with a request for a group that has no replica here."""
        record = None if self.map is None else self.map.group(group)
        leader = "" if record is None else record.preferred
        return NotLeaderError(f"this node has no replica of {group.name}", leader=leader)

    def map_reply(self, body: MapRequest) -> MapReply:
        """The cluster map, and who leads what."""
        known = self.map
        leaders = {driver.group.name: driver.group.leader or "" for driver in self.drivers.values()}
        version = 0 if known is None else known.version
        return MapReply(version, known if version > body.version else None, leaders)

    def status(self) -> list[m.GroupStatus]:
        """How each is, by name."""
        return [
            m.GroupStatus(
                group.name,
                group.kind,
                slots_count(driver.machine.holding.slots),
                driver.machine.applied,
                driver.group.log.base_index + 1,
                driver.group.log.last_index,
                driver.group.log.bytes,
                ROLES[driver.group.role],
                driver.group.leader or "",
                driver.group.term,
                driver.group.commit,
                list(driver.group.configuration.voters),
                list(driver.group.configuration.learners),
                driver.group.log.configuration_index,
            )
            for group, driver in sorted(self.drivers.items())
        ]

    def lead_any(self, kind: str, ordinals: Iterable[int]) -> bool:
        """Whether this node leads one of these groups."""
        drivers = [self.drivers.get(GroupId(kind, ordinal)) for ordinal in ordinals]
        return any(driver is not None and driver.group.is_leader for driver in drivers)

    def are_led(self) -> bool:
        """Whether the cluster is formed, and every group with a replica here has a leader that can work."""
        return self.map is not None and all(
            driver.group.ready if driver.group.is_leader else driver.group.leader is not None
            for driver in self.drivers.values()
        )

    # --- opening and closing -----------------------------------------------------------------------------

    def recover(self, founders: Configuration) -> None:
        """Open all that are to be here, ``metadata-0`` with those founders where it is new. Raises DamagedStoreError
        where log or state lacks something."""
        started_s = time.monotonic()
        # A killed process may have left entries in the system's cache only. The state must never get ahead of what is
        # durable, nor may a read show what a power loss can still take back.
        self._stores.log.sync()
        self._open(METADATA, founders)
        self.load_map()
        if self._health.failure is not None:
            raise self._health.failure
        event(
            "recovered",
            groups=len(self.drivers),
            entries_to_replay=sum(d.group.log.last_index - d.machine.applied for d in self.drivers.values()),
            state_rebuilt=self._stores.rebuild,
            seconds=round(time.monotonic() - started_s, 3),
        )
        self._turns.schedule()

    def load_map(self) -> None:
        """Take over what metadata-0 says: open the groups that are to be here, route by its slots."""
        known = cluster.read_map(self._stores.state)
        if known is None:
            return
        try:
            self._stores.adopt(known.cluster_id)
        except ServerError as error:
            self._health.fail(error)
            return
        self.map = known
        for record in known.groups:
            group, me = record.group_id, self._config.node_id
            if group in self.drivers:
                continue
            # A replica that is here stays until its group has let it go, whatever the map wishes for: it may be needed
            # to elect a leader. The first configuration is for who never had one.
            here = was_here(self._stores.log, group)
            if here is False and me in record.initial:
                self._open(group, Configuration(tuple(record.initial)))
            elif here or me in (*record.replicas, *record.learners):
                self._open(group, Configuration(()))
        self._slots |= {kind: slots_of(packed) for kind, packed in known.slots.items()}

    def _open(self, group_id: GroupId, initial: Configuration) -> None:
        name = group_id.name
        log = RaftLog(
            group_id,
            self._stores.log,
            self._writer,
            initial=initial,
            cache_bytes=self._config.raft.log_cache_bytes,
        )
        if log.removed:
            self._drop_state(log.prefix, sync=True)
            log.come_back()
        elif restore_log(log, self._stores.state):
            event("snapshot resumed", group=name, index=log.base_index)
        machine = self._machine(group_id)
        if log.base_index > machine.applied:
            raise DamagedStoreError(
                f"group {name}: the state ends at entry {machine.applied} but the log begins at "
                f"{log.base_index + 1}: entries between them are lost"
            )
        if log.last_index < machine.applied:
            raise DamagedStoreError(
                f"group {name}: the state has applied entry {machine.applied} but the log ends at {log.last_index}: "
                "the log has lost its tail"
            )
        machine.dedupe.load()
        group = self.replicas.open(log, applied=machine.applied)
        driver = GroupDriver(
            machine,
            group,
            self._turns.precedence,
            window=self._window,
            pipeline_max=self._config.commit.pipeline_entries_max,
        )
        self.drivers[group_id] = driver
        self._by_group[group] = driver
        if group.applied < group.applicable:
            self.committed(group)

    def _machine(self, group: GroupId) -> Machine:
        record = None if self.map is None or group == METADATA else self.map.group(group)
        prefix = group_prefix(group)
        return Machine(
            group.name,
            prefix,
            self._stores.state,
            self._owners,
            self._row_caches.open(prefix),
            self._config.dedupe,
            clock=self._environment.now,
            initial_slots=ALL_SLOTS if record is None else record.initial_slots,
        )

    def close(self, group_id: GroupId) -> None:
        """Forget a group, because it is committed that this node has no replica of it any more. Term and vote stay:
        they must never be forgotten."""
        driver = self.drivers.pop(group_id)
        group = driver.group
        prefix, term, vote = group.prefix, group.term, group.vote
        event("replica removed", group=group.name, term=term)
        del self._by_group[group]
        self._turns.forget(driver)
        driver.abandon(f"this node has no replica of {group.name} any more")
        self.replicas.close(group)
        self.snapshots.group_closed(group)
        self._owners.clear()

        def dropped() -> None:
            if prefix not in self.replicas.groups and self._health.failure is None:  # it is not back already
                self._drop_state(prefix, sync=False)

        group.log.remove(term, vote, dropped)
        self._writer.flush()

    def _drop_state(self, prefix: bytes, *, sync: bool) -> None:
        state = self._stores.state
        if sync:
            self._stores.log.sync()  # that the log is dropped, before what it needs is
        state.write({}, delete_ranges=[(prefix, after_prefix(prefix))])
        if sync:
            state.sync()

    def stop(self) -> None:
        """No more timers."""
        if self._snapshots_timer is not None:
            self._snapshots_timer.cancel()

    def abandon(self, reason: str) -> None:
        """Answer everything that waits."""
        for driver in self.drivers.values():
            driver.abandon(reason)

    # --- what the replicas report ------------------------------------------------------------------------

    def committed(self, group: RaftGroup) -> None:
        """See :class:`metad.raft.replicas.Observer`."""
        driver = self._by_group.get(group)
        # Or it was closed, or a snapshot is being installed: then it is told again.
        if driver is not None and not driver.installing:
            self._turns.apply(driver)

    def role_changed(self, group: RaftGroup) -> None:
        """See :class:`metad.raft.replicas.Observer`."""
        driver = self._by_group.get(group)
        if driver is None:  # it is being opened
            return
        if not group.is_leader:
            driver.demoted()
        else:
            self._turns.schedule(driver)
        if group.ready:
            event("leading", logging.DEBUG, group=group.name, term=group.term)
        self._environment.call_soon(self._changed)

    def configured(self, group: RaftGroup) -> None:
        """See :class:`metad.raft.replicas.Observer`."""
        self._environment.call_soon(self._changed)

    def unsafe(self, error: UnsafeStateError) -> None:
        """See :class:`metad.raft.replicas.Observer`."""
        self._health.stop_for_bug(error)

    def snapshot_wanted(self, group: RaftGroup, peer: str) -> None:
        """See :class:`metad.raft.replicas.Observer`."""
        event("snapshot wanted", group=group.name, peer=peer)
        self.snapshots.wanted(group, peer)

    def install_snapshot(self, group: RaftGroup, message: Snapshot) -> None:
        """See :class:`metad.raft.replicas.Observer`."""
        driver = self._by_group[group]
        parts = None if driver.installing else self.snapshots.install(group, message)
        if parts is None:
            return
        driver.installing = True
        self._turns.hold(driver)
        started_s = self._environment.now()

        def done(error: BaseException | None) -> None:
            self.snapshots.installed(group, message)
            if self._health.failure is not None:
                return
            if error is not None:
                self._health.stop_for(error)
                return
            self._owners.clear()
            machine = self._machine(group.group_id)
            machine.dedupe.load()
            driver.installed(machine)
            group.snapshot_installed(message)
            if group.group_id == METADATA:
                self.load_map()
            seconds = round(self._environment.now() - started_s, 3)
            event("snapshot installed", group=group.name, index=message.index, seconds=seconds)
            self._environment.call_soon(self._changed)

        work = partial(replace_state, self._stores.state, group.prefix, message, parts)
        self._environment.beside(work, done, long=True)

    def _tick_snapshots(self) -> None:
        self._snapshots_timer = None
        if self._health.failure is not None:
            return
        try:
            due_s = self.snapshots.tick(self._environment.now())
        except Exception as error:  # noqa: BLE001 - logged where it ends
            self._health.stop_for_bug(error)
            return
        if due_s < float("inf") and self._snapshots_timer is None:
            self._snapshots_timer = self._environment.call_at(due_s, self._tick_snapshots)

    def _snapshots_woken(self) -> None:
        if self._snapshots_timer is not None:
            self._snapshots_timer.cancel()
        self._snapshots_timer = self._environment.call_at(self._environment.now(), self._tick_snapshots)

    # --- what their turns report -------------------------------------------------------------------------

    def map_changed(self, driver: GroupDriver) -> None:
        """See :class:`metad.server.turns.Tended`."""
        self.load_map()
        self._environment.call_soon(self._changed)

    def log_grown(self, size: int) -> None:
        """See :class:`metad.server.turns.Tended`."""
        self._log_bytes += size
        if self._log_bytes >= self._config.storage.log_retained_bytes and not self._checkpointing:
            self.checkpoint()

    def checkpoint(self, then: Callable[[], None] | None = None) -> None:
        """Flush the state, then drop what of the log is in it."""
        self._checkpointing = True
        applied = {driver: driver.machine.applied for driver in self.drivers.values()}
        grown, self._log_bytes = self._log_bytes, 0
        started_s = time.monotonic()

        def done(error: BaseException | None) -> None:
            self._checkpointing = False
            if error is not None:
                self._health.stop_for(error)
            elif self._health.failure is None:
                for driver, through in applied.items():
                    held = self.snapshots.held_index(driver.group)
                    driver.group.compact(through if held is None else min(through, held))
                self._turns.schedule()
                event("checkpoint", logging.DEBUG, log_bytes=grown, seconds=round(time.monotonic() - started_s, 3))
            if then is not None:
                then()

        self._environment.beside(self._stores.state.sync, done)

    def _changed(self) -> None:
        if self._health.failure is None:
            for listener in list(self.on_change):
                listener()
