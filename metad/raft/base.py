"""Definitions that all rules of Raft share: roles, times, and the host that a replica lives on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from .messages import AnyMessage, Snapshot

FOLLOWER: Final = 0
CANDIDATE: Final = 1
LEADER: Final = 2
ROLES: Final = ("follower", "candidate", "leader")

ROOM: Final = 0
LOW: Final = 1
FULL: Final = 2
"""How a node's disk is. ROOM: there is room, or the node does not say. LOW: there is less than the low-water mark, so
the node takes no snapshot, and should not lead. FULL: there is next to none, so the node takes no entries either."""

NEVER: Final = float("inf")

Group = TypeVar("Group")
_Told = TypeVar("_Told", contravariant=True)


class Timing(NamedTuple):
    """The durations that the rules use, in seconds."""

    election_s: float = 0.6
    """A follower that hears nothing for one to two of these asks for votes. It is also the longest promise that it
    gives, and the one that it gives to a leader that does not say which one it counts on."""
    heartbeat_s: float = 0.1
    lease_s: float = 0.2
    """The promise that this node counts on while it leads: for so long nobody votes for another who has heard it. Its
    leases for reads are as long, less drift, and a leader that is known to be dead is replaced no sooner."""
    step_down_s: float = 0.6
    """A leader that hears from no quorum for this long leads no longer. A peer whose host refuses to be dialled counts
    for :attr:`lease_s` only."""
    drift: float = 0.1
    """How much faster one node's clock may run than another's: leases are this much shorter."""
    sleep_after_s: float = 1.0
    """A group without work for this long stops its heartbeats."""
    look_after_s: float = 10.0
    """A leader whose group sleeps asks this often whether the others still follow it."""


class UnsafeStateError(AssertionError):
    """A rule of Raft is broken: the group must stop, because going on could lose acknowledged writes."""


class GroupObserver(Protocol[_Told]):
    """The part of a node that is told when a replica changes."""

    def committed(self, group: _Told) -> None:
        """``group.applicable`` is ahead of ``group.applied``: apply, then call ``group.applied_to``."""

    def role_changed(self, group: _Told) -> None:
        """The replica leads, is ready, leads no longer, or follows another."""

    def configured(self, group: _Told) -> None:
        """``group.configuration`` has changed."""

    def snapshot_wanted(self, group: _Told, peer: str) -> None:
        """Stream a snapshot to the peer, then call ``group.snapshot_streamed`` or ``group.snapshot_failed``."""

    def install_snapshot(self, group: _Told, message: Snapshot) -> None:
        """Put a streamed snapshot into the durable state, then call ``group.snapshot_installed``. The replica asks
        again until that is called."""


class Host(GroupObserver[_Told], Protocol[_Told]):
    """The node that a replica lives on."""

    def now(self) -> float:
        """The monotonic clock, in seconds. It counts the time during which the machine was suspended."""

    def calendar(self) -> float:
        """The calendar time in seconds. No rule goes by it: it only shows that the monotonic clock stood still."""

    def send(self, group: _Told, peer: str, message: AnyMessage) -> None:
        """Send a message, which may be lost. It is never delivered within this call."""

    def wake(self, group: _Told) -> None:
        """Call ``group.turn()`` soon, once however often this is asked."""

    def crowded(self) -> bool:
        """Whether many requests wait on this node."""

    def shortage(self) -> int:
        """How this node's disk is: :data:`ROOM`, :data:`LOW` or :data:`FULL`."""

    def yields(self) -> bool:
        """Whether others are to lead while they can: the node is drained."""

    def traffic(self, peer: str) -> Traffic:
        """What is on its way to a peer. Others wait behind it, and so do the peer's heartbeats."""


class Traffic:
    """What is on its way to a peer, of all groups of the node."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0
        """Of records without a reply."""


class BoundHost:
    """A :class:`Host` that fills in one replica as ``group``. The rules use it, so they need no reference to the
    replica that is composed of them."""

    def __init__(self, host: Host[Group], group: Group) -> None:
        self.now: Callable[[], float] = host.now
        self.calendar: Callable[[], float] = host.calendar
        self.crowded: Callable[[], bool] = host.crowded
        self.shortage: Callable[[], int] = host.shortage
        self.yields: Callable[[], bool] = host.yields
        self.traffic: Callable[[str], Traffic] = host.traffic
        self.send: Callable[[str, AnyMessage], None] = partial(host.send, group)
        self.wake: Callable[[], None] = partial(host.wake, group)
        self.committed: Callable[[], None] = partial(host.committed, group)
        self.role_changed: Callable[[], None] = partial(host.role_changed, group)
        self.configured: Callable[[], None] = partial(host.configured, group)
        self.snapshot_wanted: Callable[[str], None] = partial(host.snapshot_wanted, group)
        self.install_snapshot: Callable[[Snapshot], None] = partial(host.install_snapshot, group)
