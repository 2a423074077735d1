"""Which groups have a replica on this node: opened as the cluster map says, recovered at the start, and closed."""

from __future__ import annotations

import time
from collections.abc import Iterable

from metad_wire.cluster import GROUP_KINDS, METADATA, ClusterMap, GroupId
from metad_wire.errors import HandshakeError, NotReplicaError
from metad_wire.policy import BatchWindow
from metad_wire.policy.fair_queue import Precedence
from metad_wire.policy.slices import Slices
from metad_wire.program.build import build
from metad_wire.tables.feature import FEATURES, FeatureRecord

from ... import formats, log_events
from ...config import Config
from ...control.map.leaving import Asked
from ...errors import ConfigError, DamagedStoreError, ServerError
from ...logs import event
from ...raft.log.journal import RaftLog, was_here
from ...raft.messages import Configuration
from ...raft.replicas import Replicas
from ...raft.snapshots.snapshots import restore_log
from ...state.cluster import cluster
from ...storage.keys import after_prefix, group_prefix
from ...storage.log import LogWriter
from ..environment import Environment, Queue
from ..health import Health
from ..replicas.driver import GroupDriver
from ..replicas.groups import Agenda, Groups
from ..replicas.machines import Machines
from ..watches.watches import Watches
from .node_snapshots import NodeSnapshots
from .stores import Stores


class ReplicaLifecycle:
    """Opens and closes replicas, and registers them in the groups."""

    def __init__(
        self,
        config: Config,
        stores: Stores,
        writer: LogWriter,
        groups: Groups,
        replicas: Replicas,
        machines: Machines,
        snapshots: NodeSnapshots,
        agenda: Agenda,
        watches: Watches,
        precedence: Precedence,
        slices: Slices,
        environment: Environment,
        health: Health,
    ) -> None:
        self._config = config
        self._stores = stores
        self._writer = writer
        self._groups = groups
        self._replicas = replicas
        self._machines = machines
        self._snapshots = snapshots
        self._agenda = agenda
        self._watches = watches
        self._precedence = precedence
        self._slices = slices
        self._environment = environment
        self._health = health
        self._recovering = False
        self._coming: set[GroupId] = set()  # groups whose earlier state is being dropped, to be opened then
        self._window = BatchWindow(
            items_max=config.commit.entry_items_max,
            bytes_max=config.commit.entry_bytes_max,
            linger_s=config.commit.linger_ms / 1000,
        )
        snapshots.listen(self._snapshot_installed)
        machines.listen(self._map_changed)
        self.features = machines.features
        """The features of the cluster, as far as this node has heard."""
        self.features.listeners.append(self._switched)

    def _switched(self, feature: FeatureRecord) -> None:
        """A feature of the cluster is on. Stops the node if its software does not know it."""
        try:
            if why := self.features.refusal(FEATURES, f"metad {build()}"):
                raise ConfigError(why)
            event(log_events.FEATURE_SWITCHED, feature=feature.feature)
            if feature.feature == formats.DATA_DIRECTORY.feature:
                self._stores.reach(formats.DATA_DIRECTORY.newest)
        except ServerError as error:
            self._health.fail(error)

    def check_software(self, features: Iterable[str], software: str) -> None:
        """Raise HandshakeError if a feature is on that is not among these, which some other node's software knows."""
        if why := self.features.refusal(features, software):
            raise HandshakeError(why)

    def recover(self, founders: Configuration) -> None:
        """Open all replicas that should be here. A new ``metadata-0`` begins with these founders. Raises
        DamagedStoreError if log or state lacks something."""
        started_s = time.monotonic()
        # A killed process may have left entries in the system's cache only. The state must never get ahead of what is
        # durable, nor may a read show what a power loss can still take back. Nor may a state be dropped before its log.
        self._stores.log.sync()
        self._recovering = True
        self._open(METADATA, founders)
        self.load_map()
        self._drop_removed()
        self._recovering = False
        if self._health.failure is not None:
            raise self._health.failure
        drivers = self._groups.drivers.values()
        event(
            log_events.RECOVERED,
            groups=len(drivers),
            entries_to_replay=sum(driver.group.log.last_index - driver.machine.applied for driver in drivers),
            state_rebuilt=self._stores.rebuild,
            seconds=round(time.monotonic() - started_s, 3),
        )
        self._agenda.schedule()

    def load_map(self) -> None:
        """Take over what metadata-0 says: route by its slots, and open the replicas that should be here."""
        known = cluster.read_map(self._stores.state)
        if known is None:
            return
        try:
            self._stores.adopt(known.cluster_id)
        except ServerError as error:
            self._health.fail(error)
            return
        self._groups.follow(known)
        me = self._config.node_id
        was_member = self._was_member(known)
        for record in known.groups:
            group = record.group_id
            if group in self._groups.drivers or group in self._coming:
                continue
            # A replica that is here stays until its group has let it go, whatever the map wants: it may be needed to
            # elect a leader. The first configuration is only for nodes that never had a replica.
            here = was_here(self._stores.log, group)
            if here is False and was_member and me in record.initial:
                self._open(group, Configuration(tuple(record.initial)))
            elif here or me in (*record.replicas, *record.learners):
                self._open(group, Configuration(()))

    def _drop_removed(self) -> None:
        """Drop what a life before has left of groups that were removed: it ended between the map and the drop."""
        known = self._groups.map
        if known is None or not known.ordinals:
            return
        there = {record.group_id for record in known.groups}
        for kind in GROUP_KINDS:
            for group in sorted({GroupId(kind, ordinal) for ordinal in range(known.next_ordinal(kind))} - there):
                here, prefix = was_here(self._stores.log, group), group_prefix(group)
                if here:
                    self._open(group, Configuration(()))  # and the controller closes it
                elif here is None and self._stores.state.scan(prefix, after_prefix(prefix), 1):
                    self._drop_state(prefix)

    def _was_member(self, known: ClusterMap) -> bool:
        """Whether the node of this name in a map is this data directory. A node that is taken in reads the log of
        metadata-0 from its beginning: the node of its name in the first maps may have been another one, whose
        acknowledgements it has not. A founder asks nobody to take it in, and is in maps that do not say yet which
        directory it has."""
        record = known.node(self._config.node_id)
        if record is None:
            return False
        return record.store_id == self._stores.store_id or (not record.store_id and self._stores.asked == Asked())

    def _map_changed(self) -> None:
        self.load_map()
        self._groups.tell_soon()

    def _snapshot_installed(self, driver: GroupDriver) -> None:
        if driver.group.group_id == METADATA:
            self.load_map()

    def _open(self, group_id: GroupId, initial: Configuration) -> None:
        log = RaftLog(
            group_id,
            self._stores.log,
            self._writer,
            initial=initial,
            cache_bytes=self._config.raft.log_cache_bytes,
        )
        if not log.removed:
            if restore_log(log, self._stores.state):
                event(log_events.SNAPSHOT_RESUMED, group=group_id.name, index=log.base_index)
            self._open_state(log)
        elif self._recovering:
            self._drop_state(log.prefix)
            self._stores.state.sync()
            log.come_back()
            self._open_state(log)
        else:
            self._come_back(log)

    def _come_back(self, log: RaftLog) -> None:
        """As in the recovery, beside the loop."""
        self._coming.add(log.group_id)

        def synced(error: BaseException | None) -> None:
            if self._goes_on(error):
                self._drop_state(log.prefix)
                self._environment.beside(self._stores.state.sync, flushed)

        def flushed(error: BaseException | None) -> None:
            if self._goes_on(error):
                self._coming.remove(log.group_id)
                log.come_back()
                self._open_state(log)
                self._groups.tell_soon()

        self._environment.beside(self._stores.log.sync, synced, Queue.SYNCS)

    def _goes_on(self, error: BaseException | None) -> bool:
        if error is not None:
            self._health.stop_for(error)
        return self._health.failure is None

    def _open_state(self, log: RaftLog) -> None:
        group_id, name = log.group_id, log.name
        machine = self._machines.open(group_id)
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
        group = self._replicas.open(log, applied=machine.applied)
        driver = GroupDriver(
            machine,
            group,
            self._precedence,
            self._slices,
            window=self._window,
            pipeline_max=self._config.commit.pipeline_entries_max,
            meters=self._groups.meters,
        )
        self._groups.add(driver)
        if group.applied < group.applicable:
            self._agenda.commit(driver)

    def close(self, group_id: GroupId) -> None:
        """Forget a group, because it is committed that this node has no replica of it any more. Term and vote stay:
        they must never be forgotten."""
        driver = self._groups.remove(group_id)
        group = driver.group
        prefix, term, vote = group.prefix, group.term, group.vote
        event(log_events.REPLICA_REMOVED, group=group.name, term=term)
        self._agenda.forget(driver)
        gone = f"this node has no replica of {group.name} any more"
        driver.close(gone)
        self._watches.end(driver, NotReplicaError(gone))
        self._replicas.close(group)
        self._snapshots.streams.group_closed(group)

        def dropped() -> None:
            if group_id not in self._groups.drivers and self._health.failure is None:  # it is not back already
                self._drop_state(prefix)

        group.log.remove(term, vote, dropped)
        self._writer.flush()

    def _drop_state(self, prefix: bytes) -> None:
        self._stores.state.write({}, delete_ranges=[(prefix, after_prefix(prefix))])
