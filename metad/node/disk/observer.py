"""What the node does when one of its replicas changes."""

from __future__ import annotations

from ... import log_events
from ...logs import event
from ...raft.messages import Snapshot
from ...raft.replica import RaftGroup
from ..health import Health
from ..replicas.agenda import Agenda
from ..replicas.groups import Groups
from .node_snapshots import NodeSnapshots


class Observer:
    """A :class:`metad.raft.replicas.Observer`, which documents the methods."""

    def __init__(self, groups: Groups, snapshots: NodeSnapshots, agenda: Agenda, health: Health) -> None:
        self._groups = groups
        self._snapshots = snapshots
        self._agenda = agenda
        self._led: dict[bytes, int] = {}  # group prefix -> the term that was logged
        self.unsafe = health.stop_for_bug

    def committed(self, group: RaftGroup) -> None:
        driver = self._groups.driver_of(group)
        # Without a driver the group is closed. After a snapshot is installed, this is told again.
        if driver is not None and not driver.installing:
            self._agenda.commit(driver)

    def role_changed(self, group: RaftGroup) -> None:
        driver = self._groups.driver_of(group)
        if driver is None:  # it is being opened
            return
        if not group.is_leader:
            driver.demoted()
        else:
            self._agenda.schedule(driver)
        self._tell(group)
        self._groups.tell_soon()

    def _tell(self, group: RaftGroup) -> None:
        """Log that this node leads the group, once it can work, or that it leads it no longer."""
        before = self._led.get(group.prefix)
        if group.ready and before != group.term:
            self._led[group.prefix] = group.term
            event(log_events.LEADER_GAINED, group=group.name, term=group.term)
        elif not group.is_leader and before is not None:
            del self._led[group.prefix]
            event(log_events.LEADER_LOST, group=group.name, term=before, leader=group.leader)

    def configured(self, group: RaftGroup) -> None:
        self._groups.tell_soon()

    def snapshot_wanted(self, group: RaftGroup, peer: str) -> None:
        event(log_events.SNAPSHOT_WANTED, group=group.name, peer=peer)
        self._snapshots.streams.wanted(group, peer)

    def install_snapshot(self, group: RaftGroup, message: Snapshot) -> None:
        driver = self._groups.driver_of(group)
        assert driver is not None
        self._snapshots.install(driver, message)
