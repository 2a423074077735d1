"""What a node sees of its cluster, and since when. Pure: time is an argument."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable

from metad_wire.cluster import GroupId

SETTLE_S = 1.0
"""A new leader keeps a group for this long before it hands the group to the preferred one, which must have been
connected for as long."""
CROWD_S = 60.0
"""While many requests wait on this node, a preferred leader that has come back is kept waiting for so long at most:
nothing of a group is in its caches yet, and all that waits would have to go to it once more."""
GONE_S = 10.0
"""A node that has been out of reach for so long does not just start again."""


class Reach(enum.Enum):
    """What a node knows of another."""

    ALIVE = enum.auto()
    """It is connected."""
    UNKNOWN = enum.auto()
    """It is not, but may just be starting again."""
    LOST = enum.auto()
    """It has been out of reach for long."""


class Seen:
    """Which nodes are within reach of node ``me``, which groups it leads, and since when."""

    def __init__(self, me: str) -> None:
        self.me = me
        self.reachable: Collection[str] = {me}
        """The nodes that this one is connected to, and itself."""
        self._lost_since: dict[str, float] = {}
        self._reached_since: dict[str, float] = {}
        self._led_since: dict[GroupId, float] = {}
        self._map_is_current = False
        self._crowded_s = float("-inf")  # when many requests waited last

    @property
    def lost(self) -> Collection[str]:
        """The members that are out of reach."""
        return self._lost_since.keys()

    def look(
        self, members: Iterable[str], connected: Collection[str], now_s: float, *, map_is_current: bool = True
    ) -> None:
        """Note which nodes are connected now. ``map_is_current``: whether this node has heard of all members."""
        self._map_is_current = map_is_current
        self.reachable = {self.me, *connected}
        lost = sorted({*members} - {*self.reachable})
        self._lost_since = {node: self._lost_since.get(node, now_s) for node in lost}
        self._reached_since = {node: self._reached_since.get(node, now_s) for node in sorted(connected)}

    def leads(self, group: GroupId, now_s: float) -> None:
        """Note that this node leads a group."""
        self._led_since.setdefault(group, now_s)

    def crowded(self, now_s: float) -> None:
        """Note that many requests wait on this node."""
        self._crowded_s = now_s

    def leads_no_longer(self, group: GroupId) -> None:
        """Note that this node does not lead a group."""
        self._led_since.pop(group, None)

    def is_gone(self, node: str, now_s: float) -> bool:
        """Whether a node has been out of reach for long, or is unreachable and no member any more. One of which the map
        says nothing may be newer than the map."""
        unknown_s = float("-inf") if self._map_is_current else now_s
        return node not in self.reachable and now_s - self._lost_since.get(node, unknown_s) >= GONE_S

    def reach(self, member: str, connected: Collection[str], now_s: float) -> Reach:
        """Whether a member is alive. ``connected`` are the nodes that this one is connected to now."""
        if member == self.me or member in connected:
            return Reach.ALIVE
        return Reach.LOST if now_s - self._lost_since.get(member, now_s) >= GONE_S else Reach.UNKNOWN

    def is_settled(self, group: GroupId, successor: str, now_s: float) -> bool:
        """Whether this node has led a group for a while, and its successor was connected all the while. A new leader
        may not have heard yet that it was made the preferred one. A node that is still starting would keep the group
        waiting. A successor that came back after this node took over also waits until no crowd has waited here for a
        while (:data:`CROWD_S`)."""
        led_s, reached_s = self._led_since.get(group, now_s), self._reached_since.get(successor, now_s)
        since_s = max(led_s, reached_s)
        if reached_s > led_s:
            since_s = max(since_s, min(self._crowded_s, reached_s + CROWD_S - SETTLE_S))
        return now_s - since_s >= SETTLE_S
