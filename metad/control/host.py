"""What control needs of the node that it runs on."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from metad_wire.cluster import ClusterMap, GroupId, ReturnGrant, ReturnReport, StoreMap
from metad_wire.errors import MetadError
from metad_wire.messages import Items, StatusReply
from metad_wire.tables.feature import FeatureRecord
from metad_wire.tables.tenants import QuotaCounts, QuotaTotals
from metad_wire.transport.credentials import Principal

from ..errors import ServerError
from ..raft.replica import RaftGroup
from ..state.cluster.features import KnownFeatures
from ..state.core.entry import Entry
from ..state.machine import Machine

Done = Callable[[bytes | MetadError], None]
"""Takes the encoded reply to a request, or why there is none. Called exactly once, on the event loop."""


class Timer(Protocol):
    """A call to come."""

    def cancel(self) -> None:
        """Prevent the call."""


class Clock(Protocol):
    """Time and chance."""

    rng: random.Random

    def now(self) -> float:
        """Monotonic, in seconds."""

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        """Call back at a time of :meth:`now`."""


class Source(Protocol):
    """A client's connection."""

    @property
    def host(self) -> str:
        """The address at its other end, without the port; empty where it has none."""

    @property
    def principal(self) -> Principal | None:
        """The holder of the certificate or token that the client showed; None where nobody is checked."""

    @property
    def holder(self) -> str:
        """The party with which the client shares room: the URI of its principal, or its host where nobody is
        checked."""


class Replica(Protocol):
    """A replica on this node, and the state made from its log."""

    @property
    def group(self) -> RaftGroup:
        """The replica itself."""

    @property
    def machine(self) -> Machine:
        """Its state."""

    @property
    def installing(self) -> bool:
        """Whether a snapshot is being put in place of the state."""

    @property
    def doubted(self) -> Collection[str]:
        """Nodes whose state of the group may be wrong: they should not be made the leader."""

    def no_room(self) -> str:
        """Why the group takes nothing that needs more room; empty if it does."""

    def listening(self, listener: Callable[[Entry], None]) -> AbstractContextManager[None]:
        """Call the listener with every entry that is applied meanwhile, whatever its origin."""


class Hosted(Protocol):
    """The groups of a node."""

    @property
    def map(self) -> ClusterMap | None:
        """The cluster map. None means that the cluster is not formed yet."""

    @property
    def drivers(self) -> Mapping[GroupId, Replica]:
        """The replicas on this node."""

    def crowded(self) -> bool:
        """Whether many requests wait in front of a group of this node."""


class Sharing(Protocol):
    """What a node says while it turns requests away, and what it is granted."""

    def report(self, now_s: float) -> ReturnReport | None:
        """What to ask with; None if there is nothing to ask for."""

    def granted(self, grant: ReturnGrant, asked_s: float) -> None:
        """The answer to what was asked at that time."""


class Counting(Protocol):
    """What a node tells of tenants whose records are limited."""

    def report(self, node_id: str) -> QuotaCounts | None:
        """What its groups have; None if nobody's records are limited."""

    def heard(self, told: QuotaCounts, totals: QuotaTotals) -> None:
        """What all groups have, where this was told before."""


class Host(NamedTuple):
    """What a controller needs of its node."""

    groups: Hosted
    connected: Collection[str]
    """The nodes that this one is connected to, always as it is now."""
    status: Callable[[], StatusReply]
    """How the node and its groups are."""
    store: Callable[[StoreMap, Done], None]
    """Replaces the map in ``metadata-0``, which this node leads."""
    switch: Callable[[Items[FeatureRecord], Done], None]
    """Switches features on in ``metadata-0``, which this node leads."""
    features: KnownFeatures
    """How features are, by this node's copy."""
    call_peer: Callable[[str, int, bytes, Done], None]
    """Sends a request to another node: its id, the method's code, the payload."""
    close_group: Callable[[GroupId], None]
    """Drops a replica and its data."""
    left: Callable[[int], None]
    """Ends the node, because the map of this version has it no more."""
    fail: Callable[[ServerError], None]
    """Stops the node, and says what is wrong with it."""
    stop_for_bug: Callable[[BaseException], None]
    """Stops the node."""
    sharing: Sharing
    """Asks for this node's part of the cluster's budget of returns."""
    quotas: Counting
    """What is said of tenants whose records are limited."""
