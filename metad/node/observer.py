"""What the node does when one of its replicas changes."""

from __future__ import annotations

import logging

from ..logs import event
from ..raft.messages import Snapshot
from ..raft.replica import RaftGroup
from .agenda import Agenda
from .groups import Groups
from .health import Health
from .node_snapshots import NodeSnapshots


class Observer:
    """A :class:`metad.raft.replicas.Observer`, which documents the methods."""

    def __init__(self, groups: Groups, snapshots: NodeSnapshots, agenda: Agenda, health: Health) -> None:
        self._groups = groups
        self._snapshots = snapshots
        self._agenda = agenda
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
        if group.ready:
            event("leading", logging.DEBUG, group=group.name, term=group.term)
        self._groups.tell_soon()

    def configured(self, group: RaftGroup) -> None:
        self._groups.tell_soon()

    def snapshot_wanted(self, group: RaftGroup, peer: str) -> None:
        event("snapshot wanted", group=group.name, peer=peer)
        self._snapshots.streams.wanted(group, peer)

    def install_snapshot(self, group: RaftGroup, message: Snapshot) -> None:
        driver = self._groups.driver_of(group)
        assert driver is not None
        self._snapshots.install(driver, message)
