"""What a node says of its groups: each replica's state, its followers as a leader sees them, and for how long it has
known no leader."""

from __future__ import annotations

from collections.abc import Callable

from metad_wire import messages as m
from metad_wire.cluster import GroupId, slots_count

from ... import log_events
from ...logs import event
from ...raft.base import FULL, ROLES
from ...raft.replica import RaftGroup
from ...raft.roles.leadership import Progress, Sending
from ...state.cluster.fences import Fences
from ...state.cluster.tenant_moves import TenantMoves
from ...state.core.slot_assignment import HeldSlots
from ...state.machine import Machine
from ..environment import Environment, Timer
from .driver import GroupDriver
from .groups import Groups

_LOST_S = 5.0  # an election takes less
_TELL_AGAIN_S = 60.0
_NAMED_MAX = 10
LOOK_S = 0.5
"""How often the node looks whether its groups have a leader. The times without one are as exact as this."""


class GroupStatuses:
    """Looks at the groups from time to time, because a replica does not tell anybody that it has lost its leader."""

    def __init__(self, groups: Groups, environment: Environment) -> None:
        self._groups = groups
        self._environment = environment
        self._leaderless_since_s: dict[GroupId, float] = {}
        self._told_s: float | None = None  # when it was last logged that there is no leader
        self._longest_s = 0.0  # that one of those groups has had none
        self._timer: Timer | None = None
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call the listener whenever the node looks."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Begin to look."""
        self._timer = self._environment.call_at(self._environment.now() + LOOK_S, self.start)
        self._look()
        self._tell()
        for listener in tuple(self._listeners):
            listener()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now_s, before = self._environment.now(), self._leaderless_since_s
        self._leaderless_since_s = {
            group: before.get(group, now_s)
            for group, driver in self._groups.drivers.items()
            if driver.group.leader is None
        }

    def _tell(self) -> None:
        """Log that groups have had no leader for some seconds, now and then while it is so, and that it is over."""
        now_s = self._environment.now()
        lasting = {group: now_s - since_s for group, since_s in self._leaderless_since_s.items()}
        lost = [group.name for group, for_s in sorted(lasting.items()) if for_s >= _LOST_S]
        if lost:
            self._longest_s = max(lasting.values())
            if self._told_s is None or now_s - self._told_s >= _TELL_AGAIN_S:
                self._told_s = now_s
                longest_ms = round(self._longest_s * 1000)
                event(log_events.NO_LEADER, groups=lost[:_NAMED_MAX], count=len(lost), longest_ms=longest_ms)
        elif self._told_s is not None and not lasting:
            self._told_s = None
            event(log_events.LEADER_FOUND, longest_ms=round(self._longest_s * 1000))

    def all(self) -> list[m.GroupStatus]:
        """How each group is, by name."""
        self._look()
        return [self._one(group, driver) for group, driver in sorted(self._groups.drivers.items())]

    def _one(self, group: GroupId, driver: GroupDriver) -> m.GroupStatus:
        replica, log = driver.group, driver.group.log
        since_s = self._leaderless_since_s.get(group)
        restoring, restoring_ms = _restoring(driver.machine)
        return m.GroupStatus(
            name=group.name,
            kind=group.kind,
            slots=slots_count(driver.machine.holding.slots),
            applied=driver.machine.applied,
            first=log.base_index + 1,
            last=log.last_index,
            log_bytes=log.bytes,
            role=ROLES[replica.role],
            leader=replica.leader or "",
            term=replica.term,
            commit=replica.commit,
            voters=list(replica.configuration.voters),
            learners=list(replica.configuration.learners),
            configured=log.configuration_index,
            followers=_followers(replica),
            # At least 1: 0 means that there is a leader.
            leaderless_ms=0 if since_s is None else 1 + int((self._environment.now() - since_s) * 1000),
            fence_entries=driver.machine.parts[Fences].entries,
            waiting_items=driver.waiting_items,
            wait_ms=round(1000 * driver.wait_s(self._environment.now())),
            served_per_s=round(driver.rate.estimate(self._environment.now())),
            unlike=driver.unlike if replica.is_leader else [],
            undecided=driver.undecided and replica.is_leader,
            restoring=restoring,
            restoring_ms=restoring_ms,
            sealed_move=driver.machine.holding.sealed_move,
            opened_move=driver.machine.holding.opened_move,
            opened_batch=driver.machine.holding.opened_batch,
            adopted_move=driver.machine.holding.adopted_move,
            tenants_moving=len(driver.machine.parts[TenantMoves].under_way()),
        )


def _restoring(machine: Machine) -> tuple[str, int]:
    """Which backup is being put into a group, and for how long."""
    restore = machine.parts[HeldSlots].restore
    if restore is None or restore.done_at:
        return "", 0
    return restore.backup.partition("@")[0], max(0, machine.reader.now_ms() - restore.began_ms)


def _followers(replica: RaftGroup) -> list[m.FollowerStatus]:
    return [
        m.FollowerStatus(peer, _state(progress), progress.match, peer in replica.connected, _obstacle(progress))
        for peer, progress in sorted(replica.peers.items())
    ]


def _state(progress: Progress) -> str:
    return "lost" if progress.distrusted else progress.sending.value


def _obstacle(progress: Progress) -> str:
    needs_snapshot = progress.sending is Sending.SNAPSHOT
    if progress.shortage >= FULL:
        return "its disk is full"
    if progress.shortage and needs_snapshot:
        return "its disk has too little room"
    return progress.obstacle
