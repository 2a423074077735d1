"""The groups that have a replica on this node, and the cluster map that the node knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from metad_wire import messages as m
from metad_wire.cluster import ClusterMap, MapReply, MapRequest, slots_count
from metad_wire.errors import NotLeaderError
from metad_wire.group import GroupId

from ..raft.base import ROLES
from ..raft.replica import RaftGroup
from ..routing.slots import even_slots, slots_of
from ..state.rows import SLOTS, Numbers, column
from .driver import GroupDriver
from .environment import Environment
from .health import Health


class Groups:
    """A registry. :mod:`.hosting` puts the groups in and takes them out."""

    def __init__(self, environment: Environment, health: Health) -> None:
        self.map: ClusterMap | None = None
        self.drivers: dict[GroupId, GroupDriver] = {}
        self.on_change: list[Callable[[], None]] = []
        """Told when the map, or who leads a group, has changed."""
        self._environment = environment
        self._health = health
        self._by_prefix: dict[bytes, GroupDriver] = {}
        self._slots: dict[str, Numbers] = {"metadata": even_slots(1)}
        self._meant: dict[str, Numbers] = {}  # group -> a slot map of nothing else

    # --- what is here ------------------------------------------------------------------------------------

    def add(self, driver: GroupDriver) -> None:
        """Register a replica that was opened."""
        self.drivers[driver.group.group_id] = self._by_prefix[driver.group.prefix] = driver

    def remove(self, group: GroupId) -> GroupDriver:
        """Take out a replica that is to be closed."""
        driver = self.drivers.pop(group)
        del self._by_prefix[driver.group.prefix]
        return driver

    def has(self, prefix: bytes) -> bool:
        """Whether the node has a replica of the group with this prefix."""
        return prefix in self._by_prefix

    def follow(self, known: ClusterMap) -> None:
        """Route by this map from now on."""
        self.map = known
        self._slots |= {kind: slots_of(packed) for kind, packed in known.slots.items()}

    def tell_soon(self) -> None:
        """Tell :attr:`on_change`, in the next turn of the event loop."""
        self._environment.call_soon(self._tell)

    def _tell(self) -> None:
        if self._health.failure is None:
            for listener in list(self.on_change):
                listener()

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

    def driver_of(self, group: RaftGroup) -> GroupDriver | None:
        """The driver of this replica. None means that the replica is being opened, or is closed."""
        driver = self._by_prefix.get(group.prefix)
        return driver if driver is not None and driver.group is group else None

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

    def abandon(self, reason: str) -> None:
        """Answer everything that waits."""
        for driver in self.drivers.values():
            driver.abandon(reason)
