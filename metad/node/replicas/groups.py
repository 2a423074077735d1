"""The groups that have a replica on this node, and the cluster map that the node knows. The agenda is what the groups
have for the next turns of the event loop; :mod:`metad.node.requests.scheduler` works it off. The observer is what the
node does when one of its replicas changes."""

from __future__ import annotations

from collections.abc import Callable

from metad_wire.cluster import ClusterMap, GroupId, MapReply, MapRequest
from metad_wire.errors import InvalidRequestError, NotLeaderError, NotReplicaError
from metad_wire.policy.rates import FULL_ITEMS
from metad_wire.table import ANY_KIND

from ... import log_events
from ...logs import event
from ...raft.messages import Snapshot
from ...raft.replica import RaftGroup
from ..environment import Environment
from ..health import Health
from ..meters import Meters
from .driver import GroupDriver


class Agenda:
    """The groups that wait for a turn, in order. The turns are called soon after something was put here."""

    def __init__(self, environment: Environment) -> None:
        self.dirty: dict[GroupDriver, None] = {}
        """Groups with requests that wait."""
        self.committed: dict[GroupDriver, None] = {}
        """Groups with entries to apply."""
        self.stalled: dict[GroupDriver, None] = {}
        """Groups whose writes wait until the leader is sure of itself."""
        self._environment = environment
        self._turn: Callable[[], None] = _nothing
        self._apply: Callable[[], None] = _nothing
        self._turn_scheduled = self._apply_scheduled = False
        self._wakes_replicas = False

    def serve(self, turn: Callable[[], None], apply: Callable[[], None]) -> None:
        """Have these called from now on: ``turn`` for what waits, ``apply`` for what is committed."""
        self._turn, self._apply = turn, apply

    def schedule(self, driver: GroupDriver | None = None) -> None:
        """Ask for a turn soon. A group that is given looks at its waiting requests in it."""
        if driver is not None:
            self.dirty[driver] = None
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._environment.call_soon(self._scheduled_turn)

    def woken(self) -> None:
        """Ask for a turn because a replica has something to do."""
        if not self._wakes_replicas:
            self.schedule()

    def commit(self, driver: GroupDriver) -> None:
        """Have the group's committed entries applied soon."""
        self.committed[driver] = None
        self.schedule_apply()

    def schedule_apply(self) -> None:
        """Have committed entries applied soon."""
        if not self._apply_scheduled:
            self._apply_scheduled = True
            self._environment.call_soon(self._scheduled_apply)

    def hold(self, driver: GroupDriver) -> None:
        """Apply nothing of the group until it is committed again. Otherwise it would hold up the others."""
        self.committed.pop(driver, None)

    def forget(self, driver: GroupDriver) -> None:
        """Drop everything of a group that is closed."""
        for drivers in (self.dirty, self.committed, self.stalled):
            drivers.pop(driver, None)

    def begin(self) -> list[GroupDriver]:
        """Take the groups whose requests wait. Until :meth:`end` no turn is needed for woken replicas: theirs comes
        next."""
        self._wakes_replicas = True
        taken = list(self.dirty)
        self.dirty.clear()
        return taken

    def end(self) -> None:
        """Ask for turns again if a replica wakes up."""
        self._wakes_replicas = False

    def put_first(self, drivers: list[GroupDriver]) -> None:
        """Have these groups come before those that wait already."""
        behind = list(self.dirty)
        self.dirty.clear()
        self.dirty.update(dict.fromkeys([*drivers, *behind]))

    def _scheduled_turn(self) -> None:
        self._turn_scheduled = False
        self._turn()

    def _scheduled_apply(self) -> None:
        self._apply_scheduled = False
        self._apply()


def _nothing() -> None:
    """Nobody serves the agenda yet."""


class Groups:
    """A registry. :mod:`..disk.replica_lifecycle` puts the groups in and takes them out."""

    def __init__(self, environment: Environment, health: Health) -> None:
        self.map: ClusterMap | None = None
        self.meters = Meters()
        """What all of them do is counted here."""
        self.drivers: dict[GroupId, GroupDriver] = {}
        self.on_change: list[Callable[[], None]] = []
        """Told when the map, or who leads a group, has changed."""
        self._environment = environment
        self._health = health
        self._by_name: dict[str, GroupDriver] = {}
        self._by_prefix: dict[bytes, GroupDriver] = {}
        self._is_told = False  # whether on_change is to be told in the next turn

    # --- what is here ------------------------------------------------------------------------------------

    def add(self, driver: GroupDriver) -> None:
        """Register a replica that was opened."""
        group = driver.group
        self.drivers[group.group_id] = self._by_name[group.name] = self._by_prefix[group.prefix] = driver

    def remove(self, group_id: GroupId) -> GroupDriver:
        """Take out a replica that is to be closed."""
        driver = self.drivers.pop(group_id)
        del self._by_name[driver.group.name], self._by_prefix[driver.group.prefix]
        return driver

    def has(self, prefix: bytes) -> bool:
        """Whether the node has a replica of the group with this prefix."""
        return prefix in self._by_prefix

    def follow(self, known: ClusterMap) -> None:
        """Go by this map from now on."""
        self.map = known

    def tell_soon(self) -> None:
        """Tell :attr:`on_change`, in the next turn of the event loop: once for all that changes in this one. A node
        with a thousand groups opens them all in one turn."""
        if not self._is_told:
            self._is_told = True
            self._environment.call_soon(self._tell)

    def _tell(self) -> None:
        self._is_told = False
        if self._health.failure is None:
            for listener in list(self.on_change):
                listener()

    # --- which groups hold what, and who leads them ------------------------------------------------------

    def named(self, name: str, kind: str) -> GroupDriver:
        """The driver of the group that a request names, which must be of this kind. Raises MetadError. Whether the
        group holds the items is for its own state to say, which also knows what it did before; before there is a map
        metadata-0 cannot say it."""
        driver = self._by_name.get(name)
        if driver is not None and kind in (driver.group.group_id.kind, ANY_KIND):
            if self.map is None:
                raise NotLeaderError("the cluster is being formed", retry_after_ms=200)
            return driver
        if not name:
            raise InvalidRequestError("the request names no group")
        group = GroupId.parse(name)
        if group is None or kind not in (group.kind, ANY_KIND):
            raise NotLeaderError(f"this node knows no such group: {name}")
        raise self.elsewhere(group)

    def here(self, name: str) -> GroupDriver | None:
        """The driver of the group with this name, if there is one on this node."""
        return self._by_name.get(name)

    def replica(self, name: str) -> GroupDriver:
        """The driver of the group with this name, whether this node leads it or not. Raises MetadError."""
        driver = self._by_name.get(name)
        if driver is not None:
            return driver
        if not name:
            raise InvalidRequestError("the request names no group")
        raise NotReplicaError(f"this node has no replica of {name}")

    def driver_of(self, group: RaftGroup) -> GroupDriver | None:
        """The driver of this replica. None means that the replica is being opened, or is closed."""
        driver = self._by_prefix.get(group.prefix)
        return driver if driver is not None and driver.group is group else None

    def elsewhere(self, group: GroupId) -> NotLeaderError:
        """Return the error that says where to go with a request for a group that has no replica here."""
        record = None if self.map is None else self.map.group(group)
        if self.map is not None and self.map.has_removed(group):
            return NotLeaderError(f"{group.name} was removed: other groups have its slots")
        if record is None:  # the map of this node may be an old one
            return NotLeaderError(f"this node knows no such group: {group.name}")
        return NotLeaderError(f"this node has no replica of {group.name}", leader=record.preferred)

    def map_reply(self, body: MapRequest) -> MapReply:
        """The cluster map, and who leads what."""
        known = self.map
        leaders = {driver.group.name: driver.group.named_leader() or "" for driver in self.drivers.values()}
        version = 0 if known is None else known.version
        return MapReply(version, known if version > body.version else None, leaders)

    def are_led(self) -> bool:
        """Whether the cluster is formed, and every group with a replica here has a leader that can work."""
        return self.map is not None and all(
            driver.group.ready if driver.group.is_leader else driver.group.leader is not None
            for driver in self.drivers.values()
        )

    def crowded(self) -> bool:
        """Whether many requests wait in front of a group of this node."""
        return any(driver.waiting_items >= FULL_ITEMS for driver in self.drivers.values())

    def drained(self) -> frozenset[str]:
        """The nodes that are to lead nothing, by the map."""
        return frozenset() if self.map is None else frozenset(one.node_id for one in self.map.nodes if one.drained)

    def abandon(self, reason: str) -> None:
        """Answer everything that waits."""
        for driver in self.drivers.values():
            driver.abandon(reason)


class Observer:
    """A :class:`metad.raft.replicas.Observer`, which documents the methods."""

    def __init__(
        self,
        groups: Groups,
        agenda: Agenda,
        health: Health,
        *,
        send_snapshot: Callable[[RaftGroup, str], None],
        install: Callable[[GroupDriver, Snapshot], None],
    ) -> None:
        self._groups = groups
        self._agenda = agenda
        self._send_snapshot = send_snapshot
        self._install = install
        self._led: dict[bytes, int] = {}  # group prefix -> the term that was logged
        self.unsafe = health.stop_for_bug
        self.drained = groups.drained

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
        self._send_snapshot(group, peer)

    def install_snapshot(self, group: RaftGroup, message: Snapshot) -> None:
        driver = self._groups.driver_of(group)
        assert driver is not None
        self._install(driver, message)
