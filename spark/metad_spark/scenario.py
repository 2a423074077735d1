"""A storm: the clients that come back, their transports and retries, and the cluster. Read from TOML.

Every value is checked when it is read, and an error names its key. Shares add up to 1. Times are seconds unless the key
ends in ``_ms``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec

from metad_wire.policy import Backoff, Family, RetryBudget

from . import toml
from .errors import ScenarioError

CLIENTS_MAX = 10_000_000_000
HORIZON_S_MAX = 3_600.0
"""The simulation's clock has 32 bits of microseconds; an hour leaves room for the last answers."""
NODES_MAX = 10_000
BROKERS_MAX = 1_000_000
ENTRY_ITEMS_MAX = 1_000_000
REGIONS_MAX = 64
"""Of SDKs, too."""
RTT_MS_MIN = 1.0
"""The models step in round trips of the nearest region: shorter ones cost time and show nothing."""
TRANSPORTS = ("tcp_tls", "quic", "quic_0rtt")
ROUND_TRIPS = (3, 2, 1)
"""Round trips from the first packet to CONNACK: TCP, TLS 1.3, CONNECT; QUIC's one handshake, CONNECT; CONNECT with the
first."""
_SHARES_OFF_MAX = 1e-6


def _within(key: str, value: float, low: float, high: float, allowed: str = "") -> None:
    if not low <= value <= high:
        raise ValueError(f"{key} must be {allowed or f'from {low:g} to {high:g}'}, not {value!r}")


def _shares(key: str, shares: list[float] | tuple[float, ...]) -> None:
    if not shares or min(shares) < 0 or abs(sum(shares) - 1) > _SHARES_OFF_MAX:
        raise ValueError(f"{key}: shares must be 0 or more and add up to 1, not {' + '.join(f'{s:g}' for s in shares)}")


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Region(_Strict, frozen=True):
    """A region of clients."""

    name: str
    share: float
    """Share of all clients."""
    rtt_ms: float
    """Round trip from client to broker and back."""
    loss: float = 0.0
    """Share of a handshake's packets that are lost, in each direction. A lost one costs a second, then two, then four,
    because neither end knows the round trip yet."""

    def __post_init__(self) -> None:
        _within("regions.rtt_ms", self.rtt_ms, RTT_MS_MIN, 10_000)
        _within("regions.share", self.share, 0, 1)
        _within("regions.loss", self.loss, 0, 0.5)


class Transports(_Strict, frozen=True):
    """Shares of the clients by transport."""

    tcp_tls: float = 1.0
    quic: float = 0.0
    quic_0rtt: float = 0.0

    def __post_init__(self) -> None:
        _shares("transports", self.shares())

    def shares(self) -> tuple[float, ...]:
        """The shares in the order of :data:`TRANSPORTS`."""
        return self.tcp_tls, self.quic, self.quic_0rtt


class Sdk(_Strict, frozen=True):
    """A share of the clients, and the retry policy of their SDK."""

    name: str
    share: float
    family: str
    """A family of :class:`metad_wire.policy.Backoff`."""
    base_s: float = 1.0
    cap_s: float = 60.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        _within("sdks.share", self.share, 0, 1)
        self.backoff()

    def backoff(self) -> Backoff:
        """The policy that the SDK ships."""
        try:
            return Backoff(base_s=self.base_s, cap_s=self.cap_s, family=cast("Family", self.family), jitter=self.jitter)
        except ValueError as why:
            raise ValueError(f"sdks.{why}") from None


class Keepalive(_Strict, frozen=True):
    """A share of the clients, and their ping interval."""

    share: float
    keepalive_s: float

    def __post_init__(self) -> None:
        _within("disconnect.keepalives.share", self.share, 0, 1)
        _within("disconnect.keepalives.keepalive_s", self.keepalive_s, 0.001, HORIZON_S_MAX)


class Disconnect(_Strict, frozen=True):
    """How clients learn of the disconnect."""

    spread_s: float = 1.0
    """Clients that are told learn of it within this time, evenly spread."""
    silent_share: float = 0.0
    """Share of the clients that are not told, and learn of it when a ping stays unanswered: evenly within a
    keepalive."""
    keepalives: tuple[Keepalive, ...] = (Keepalive(share=1.0, keepalive_s=60.0),)

    def __post_init__(self) -> None:
        _within("disconnect.spread_s", self.spread_s, 0, HORIZON_S_MAX)
        _within("disconnect.silent_share", self.silent_share, 0, 1)
        _shares("disconnect.keepalives", [each.share for each in self.keepalives])


class Expiry(_Strict, frozen=True):
    """A share of the sessions, and the time that they outlive their connection."""

    share: float
    expiry_s: float

    def __post_init__(self) -> None:
        _within("sessions.expiries.share", self.share, 0, 1)
        _within("sessions.expiries.expiry_s", self.expiry_s, 0, math.inf)


class Sessions(_Strict, frozen=True):
    """The stored sessions."""

    expiries: tuple[Expiry, ...] = (Expiry(share=1.0, expiry_s=3_600.0),)
    subscriptions: float = 5.0
    """Mean size of a session."""
    subscription_cost: float = 0.0
    """The server's cost of restoring one session, in items."""

    def __post_init__(self) -> None:
        _shares("sessions.expiries", [each.share for each in self.expiries])
        _within("sessions.subscriptions", self.subscriptions, 0, 1e6)
        _within("sessions.subscription_cost", self.subscription_cost, 0, 100)

    def item_weight(self) -> float:
        """The mean cost of a client, in items."""
        return 1.0 + self.subscriptions * self.subscription_cost


class Tenants(_Strict, frozen=True):
    """The owners of the clients. A tenant's clients are in one region and use one SDK; tenant i has a share that falls
    with i ** -exponent, so the large tenants determine the population."""

    count: int = 0
    """0: no tenants; every share is exact."""
    exponent: float = 1.1

    def __post_init__(self) -> None:
        _within("tenants.count", self.count, 0, 1_000_000)
        _within("tenants.exponent", self.exponent, 0, 10)


class Brokers(_Strict, frozen=True):
    """The brokers, which join clients that arrive together into requests. Each region has its share of them."""

    count: int = 120
    batch_items: int = 1_000
    """Maximum of items in a request."""
    linger_ms: float = 0.0
    """How long a request waits for further items after its first."""
    concurrency: int = 256
    """Requests in flight of one broker, over all groups; the SDK's default is 4 for each group."""
    connects_per_s: float = 0.0
    """Handshakes that one broker can do; 0: any number."""
    latency_ms: float = 0.25
    """One way, from a broker to a leader."""

    def __post_init__(self) -> None:
        _within("brokers.count", self.count, 1, BROKERS_MAX)
        _within("brokers.batch_items", self.batch_items, 1, 10_000)
        _within("brokers.linger_ms", self.linger_ms, 0, 10_000)
        _within("brokers.concurrency", self.concurrency, 1, 1_000_000)
        _within("brokers.connects_per_s", self.connects_per_s, 0, 1e9)
        _within("brokers.latency_ms", self.latency_ms, 0, 1_000)


class Cluster(_Strict, frozen=True):
    """The nodes that store the sessions."""

    nodes: int = 30
    groups: int = 120
    """Raft groups, led evenly by the nodes."""
    clients: tuple[int, ...] = ()
    """How many clients each group has, relative to the others; group i is led by node i mod ``nodes``. Empty, or of
    another number of groups: all have equally many. To the model ``vector`` the groups of one node have equally
    many."""
    batch_items: int = 1_000
    """Maximum of items in an entry."""
    queue_items: int = 20_000
    """Items that may wait for a group; 0: any number."""

    def __post_init__(self) -> None:
        _within("cluster.nodes", self.nodes, 1, NODES_MAX)
        _within("cluster.groups", self.groups, self.nodes, 100 * NODES_MAX, "cluster.nodes or more")
        _within("cluster.batch_items", self.batch_items, 1, ENTRY_ITEMS_MAX)
        if self.clients and (min(self.clients) < 0 or not sum(self.clients)):
            raise ValueError("cluster.clients must be 0 or more each, and not all 0")
        _within("cluster.queue_items", self.queue_items, 0, CLIENTS_MAX)

    @property
    def is_uneven(self) -> bool:
        """Whether :attr:`clients` says how many clients each group has."""
        return len(self.clients) == self.groups


class Returns(_Strict, frozen=True):
    """Whether the server tells refused clients when to come back."""

    of_capacity: float = 0.0
    """Slots given out, as a share of the cluster's capacity at its best; 0: it does not tell them."""
    wait_min_s: float = 0.05
    jitter_s: float = 0.05

    def __post_init__(self) -> None:
        _within("returns.of_capacity", self.of_capacity, 0, 10)
        _within("returns.wait_min_s", self.wait_min_s, 0, HORIZON_S_MAX)
        _within("returns.jitter_s", self.jitter_s, 0, HORIZON_S_MAX)


class LeaderChange(_Strict, frozen=True):
    """Nodes that die in the middle: each change takes the next ones, from the last one down. Calls that wait there, or
    arrive before others lead their groups, are repeated by their brokers then, as by the SDK, for as long as clients
    wait; in the model ``vector`` they are refused."""

    at_s: float
    outage_s: float = 1.0
    nodes: int = 1
    slowdown: float = 1.0
    """Factor on the groups' costs from then on, because they share a node with others."""

    def __post_init__(self) -> None:
        _within("leader_changes.at_s", self.at_s, 0, HORIZON_S_MAX)
        _within("leader_changes.outage_s", self.outage_s, 0, HORIZON_S_MAX)
        _within("leader_changes.nodes", self.nodes, 1, NODES_MAX)
        _within("leader_changes.slowdown", self.slowdown, 0.1, 100)


class Scenario(_Strict, frozen=True):
    """One storm. :func:`load_scenario` raises ScenarioError for values out of range."""

    name: str = "unnamed"
    description: str = ""
    clients: int = 1_000_000
    horizon_s: float = 600.0
    """A client that is not back then counts as not restored."""
    client_timeout_s: float = 10.0
    """From a client's first packet to its CONNACK; then it gives up and waits for its next attempt."""
    regions: tuple[Region, ...] = (Region(name="here", share=1.0, rtt_ms=20.0),)
    transports: Transports = Transports()
    sdks: tuple[Sdk, ...] = (Sdk(name="full-jitter", share=1.0, family="full"),)
    disconnect: Disconnect = Disconnect()
    sessions: Sessions = Sessions()
    tenants: Tenants = Tenants()
    brokers: Brokers = Brokers()
    cluster: Cluster = Cluster()
    returns: Returns = Returns()
    retry_budget: RetryBudget | None = None
    """The retry budget of each client."""
    leader_changes: tuple[LeaderChange, ...] = ()
    calibration: str = "default"
    """Name or path of the file with the costs of serving."""

    def __post_init__(self) -> None:
        _within("clients", self.clients, 1, CLIENTS_MAX)
        _within("horizon_s", self.horizon_s, 1, HORIZON_S_MAX)
        _within("client_timeout_s", self.client_timeout_s, 0.01, HORIZON_S_MAX)
        _shares("regions", [region.share for region in self.regions])
        _shares("sdks", [sdk.share for sdk in self.sdks])
        for key, rows in (("regions", self.regions), ("sdks", self.sdks)):
            names = [row.name for row in rows]
            if len(set(names)) < len(names):
                raise ValueError(f"{key}.name must differ from each other")
            if len(rows) > REGIONS_MAX:
                raise ValueError(f"{key} must be at most {REGIONS_MAX}")
        if self.client_timeout_s * 1000 < min(region.rtt_ms for region in self.regions):
            raise ValueError("client_timeout_s must be at least the shortest regions.rtt_ms")
        if sum(change.nodes for change in self.leader_changes) > self.cluster.nodes:
            raise ValueError("leader_changes.nodes must be at most cluster.nodes, all together")

    def dying(self) -> Iterator[tuple[int, LeaderChange]]:
        """The numbers of the nodes that die, each with its change."""
        node = self.cluster.nodes
        for change in self.leader_changes:
            for _ in range(change.nodes):
                node -= 1
                yield node, change


def load_scenario(name_or_path: str | Path = "default") -> Scenario:
    """A scenario of the package, by name, or one in a TOML file. Raises ScenarioError."""
    return toml.load("scenarios", name_or_path, Scenario, ScenarioError)


def scenario_names() -> list[str]:
    """The names of the package's scenarios."""
    return toml.shipped("scenarios")
