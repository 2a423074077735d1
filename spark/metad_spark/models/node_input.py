"""One node of a storm as numbers: everything that a task needs to simulate it, small enough to be sent.

Groups of one node share its CPU and its disk, so a node's groups are simulated together, and nodes apart. Nodes share
the brokers. Each node has the share of every broker's door that its clients are of all clients. So no model can let
more clients through than the brokers can do, whatever the other nodes do.

Times are whole microseconds. Clients have numbers from ``first_client`` on; inside of a node they are counted from 0,
and number i belongs to group i mod ``groups`` and, in its region, to broker (i div ``groups``) mod ``brokers``. Clients
of one kind (region, transport, SDK) have consecutive numbers.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from metad_wire.policy import Admission, Backoff, BatchWindow, RetryBudget, ReturnSlots

from ..calibration import Calibration
from ..errors import ScenarioError
from ..scenario import ROUND_TRIPS, TRANSPORTS, Cluster, Keepalive, Scenario

Array = npt.NDArray[np.float64]
WAVE_US = 200_000
"""The distance of two points of a wave. It must not depend on the horizon, or else the result would."""
FINE_US = 20_000
FINE_POINTS = 500
"""The first ten seconds are counted in points, too: most of a short storm is over within one second."""
_DOOR_NS_MAX = 20_000_000
"""A broker's door is divided among the nodes. If a node's share were slower than one handshake in this time, some of
its doors are one, so that a client that comes alone does not wait for what other nodes do not use."""


class Kind(msgspec.Struct, frozen=True, array_like=True):
    """Clients that differ only by chance."""

    region: int
    transport: int
    sdk: int
    clients: int


class Outage(msgspec.Struct, frozen=True, array_like=True):
    """The node dies at ``at_us``; other nodes lead its groups from ``until_us`` on, ``slowdown`` times as slowly."""

    at_us: int
    until_us: int
    slowdown: float


class NodeInput(msgspec.Struct, frozen=True, kw_only=True):
    """One node and its clients."""

    node: int
    copies: float = 1.0
    """How many times its clients the result is to stand for: nodes like this one, which may differ by a client."""
    first_client: int
    kinds: tuple[Kind, ...]
    """Region, transport and SDK by number."""
    regions: tuple[str, ...]
    sdks: tuple[str, ...]
    rtt_us: tuple[int, ...]
    """Round trip of each region; even."""
    loss: tuple[float, ...]
    round_trips: tuple[int, ...]
    """Round trips of each transport's handshake."""
    backoffs: tuple[Backoff, ...]
    """Backoff policy of each SDK."""
    timeout_us: int
    horizon_us: int
    spread_us: int
    silent_share: float
    keepalives: tuple[Keepalive, ...]
    groups: int
    batch_items: int
    admission: Admission
    """Bound of each group's queue."""
    returns: ReturnSlots | None
    """Return slots of each group."""
    budget: RetryBudget | None
    window: BatchWindow
    """Batch window of a broker for a group."""
    brokers: tuple[int, ...]
    """Brokers in each region."""
    latency_us: int
    turn_us: float
    entry_us: float
    item_us: float
    """Cost of an item, with the weight of restored sessions."""
    factors: tuple[float, ...]
    outages: tuple[Outage, ...] = ()
    wave_us: int
    """The distance of two points of a wave."""
    doors: tuple[int, ...] = ()
    """Doors of brokers in each region, each of which lets clients through one after the other in the order in which
    they reach it. Empty: no broker keeps a client waiting."""
    door_ns: tuple[tuple[int, ...], ...] = ()
    """The time from one client to the next at a door, by region and point; the last point holds from then on."""

    @property
    def clients(self) -> int:
        """The number of clients."""
        return sum(kind.clients for kind in self.kinds)

    @property
    def waves(self) -> int:
        """The number of points of a wave."""
        return -(-self.horizon_us // self.wave_us)

    @property
    def seconds(self) -> int:
        """Seconds of the horizon, rounded up."""
        return -(-self.horizon_us // 1_000_000)

    def back_us(self, region: int) -> int:
        """Time from a leader's answer until the client hears it, including the way from broker to leader by which the
        leaders' clock runs ahead."""
        return 2 * self.latency_us + self.rtt_us[region] // 2

    def forth_us(self, region: int, transport: int) -> int:
        """Time from a client's first packet to its CONNECT at an idle broker, without losses."""
        return self.round_trips[transport] * self.rtt_us[region] - self.rtt_us[region] // 2

    def items_per_s(self) -> float:
        """Items per second that the node serves at its best."""
        items = self.groups * self.batch_items
        return 1e6 * items / (self.turn_us + self.entry_us * self.groups + self.item_us * items)

    def doors_per_s(self) -> Array:
        """(region, point): clients that all doors together let through; no row where there are no doors."""
        points = max((len(row) for row in self.door_ns), default=0)
        rates = np.zeros((len(self.doors), points))
        for region, row in enumerate(self.door_ns):
            rates[region] = self.doors[region] * 1e9 / np.array([*row, *(row[-1:] * (points - len(row)))])
        return rates

    def encode(self) -> bytes:
        """The bytes to send to a task."""
        return _ENCODER.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> NodeInput:
        """The inverse of :meth:`encode`. Raises msgspec.DecodeError."""
        return _DECODER.decode(data)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(NodeInput)


def shares(scenario: Scenario) -> dict[tuple[int, int, int], float]:
    """The share of each (region, transport, SDK) of the population. Each tenant belongs to one region and one SDK, the
    next that its kind is short of, so the shares are as declared as far as the large tenants allow."""
    pairs: dict[tuple[int, int], float] = {}
    declared = {
        (r, s): region.share * sdk.share
        for r, region in enumerate(scenario.regions)
        for s, sdk in enumerate(scenario.sdks)
        if region.share * sdk.share > 0
    }
    if scenario.tenants.count:
        weights = np.arange(1, scenario.tenants.count + 1, dtype=np.float64) ** -scenario.tenants.exponent
        weights /= weights.sum()
        keys = list(declared)
        missing = np.array([declared[key] for key in keys])
        given = np.zeros(len(keys))
        for weight in weights.tolist():
            at = int(np.argmax(missing))
            given[at] += weight
            missing[at] -= weight
        pairs = {key: float(share) for key, share in zip(keys, given, strict=True) if share > 0}
    else:
        pairs = declared
    return {
        (r, t, s): share * transport
        for (r, s), share in pairs.items()
        for t, transport in enumerate(scenario.transports.shares())
        if transport > 0
    }


def apportioned(total: int, parts: list[float]) -> list[int]:
    """``total`` in whole numbers in proportion to ``parts``, largest remainders first."""
    whole = sum(parts)
    exact = [total * part / whole for part in parts]
    counts = [int(each) for each in exact]
    order = sorted(range(len(parts)), key=lambda at: counts[at] - exact[at])
    for at in order[: total - sum(counts)]:
        counts[at] += 1
    return counts


def check_clients(clients: int, groups: int) -> None:
    """Raises ScenarioError if there are fewer clients than groups."""
    if clients < groups:
        raise ScenarioError(f"clients must be at least cluster.groups, {groups}, not {clients}")


def node_inputs(
    scenario: Scenario, calibration: Calibration, clients: int | None = None, *, merged: bool = False
) -> list[NodeInput]:
    """The nodes of a storm of ``clients`` (None: the scenario's number). With ``merged``, nodes
    that differ only by chance are one input with ``copies``. Raises ScenarioError if there are fewer clients than
    groups."""
    total = scenario.clients if clients is None else clients
    cluster = scenario.cluster
    check_clients(total, cluster.groups)
    parts = shares(scenario)
    kinds_of = list(parts)
    weights = list(parts.values())
    horizon_us = round(scenario.horizon_s * 1e6)
    outages = _outages(scenario)
    groups_of = apportioned(cluster.groups, [1.0] * cluster.nodes)
    clients_of = apportioned(total, _weights(cluster, groups_of))
    if any(count < groups for count, groups in zip(clients_of, groups_of, strict=True)):
        raise ScenarioError("cluster.clients leaves a node fewer clients than the groups that it leads")
    capacity = sum(
        calibration.items_per_s(groups, cluster.batch_items, scenario.sessions.item_weight()) for groups in groups_of
    )
    returns = scenario.returns
    slots = (
        ReturnSlots(
            per_s=returns.of_capacity * capacity / cluster.groups,
            wait_min_s=returns.wait_min_s,
            jitter_s=returns.jitter_s,
        )
        if returns.of_capacity
        else None
    )
    mean_factor = sum(calibration.factors) / len(calibration.factors)
    inputs: list[NodeInput] = []
    alike: dict[tuple[int, int, tuple[Outage, ...]], int] = {}
    first = 0
    for node in range(cluster.nodes):
        uneven = clients_of[node] if cluster.is_uneven else 0
        key = (groups_of[node], uneven, outages.get(node, ()))
        first_client, first = first, first + clients_of[node]
        if merged and key in alike:
            at = alike[key]
            more = clients_of[node] / inputs[at].clients
            inputs[at] = msgspec.structs.replace(inputs[at], copies=inputs[at].copies + more)
            continue
        alike[key] = len(inputs)
        counts = apportioned(clients_of[node], weights)
        inputs.append(
            NodeInput(
                node=node,
                first_client=first_client,
                kinds=tuple(Kind(*kind, count) for kind, count in zip(kinds_of, counts, strict=True) if count),
                regions=tuple(region.name for region in scenario.regions),
                sdks=tuple(sdk.name for sdk in scenario.sdks),
                rtt_us=tuple(2 * round(region.rtt_ms * 500) for region in scenario.regions),
                loss=tuple(region.loss for region in scenario.regions),
                round_trips=ROUND_TRIPS,
                backoffs=tuple(sdk.backoff() for sdk in scenario.sdks),
                timeout_us=round(scenario.client_timeout_s * 1e6),
                horizon_us=horizon_us,
                spread_us=round(scenario.disconnect.spread_s * 1e6),
                silent_share=scenario.disconnect.silent_share,
                keepalives=scenario.disconnect.keepalives,
                groups=groups_of[node],
                batch_items=cluster.batch_items,
                admission=Admission(items_max=cluster.queue_items),
                returns=slots,
                budget=scenario.retry_budget,
                window=BatchWindow(items_max=scenario.brokers.batch_items, linger_s=scenario.brokers.linger_ms / 1000),
                brokers=brokers_of(scenario),
                latency_us=round(scenario.brokers.latency_ms * 1000),
                turn_us=calibration.turn_s * 1e6,
                entry_us=calibration.entry_s * 1e6,
                item_us=calibration.item_s * 1e6 * scenario.sessions.item_weight(),
                factors=tuple(factor / mean_factor for factor in calibration.factors),
                outages=outages.get(node, ()),
                wave_us=WAVE_US,
            )
        )
        if scenario.brokers.connects_per_s:
            inputs[-1] = with_doors(inputs[-1], door_rates(scenario, inputs[-1], total)[:, None])
    return inputs


def _weights(cluster: Cluster, groups_of: list[int]) -> list[float]:
    """How many of the clients each node has, relative to the others."""
    if not cluster.is_uneven:
        return [float(groups) for groups in groups_of]
    return [float(sum(cluster.clients[node :: cluster.nodes])) for node in range(cluster.nodes)]


def brokers_of(scenario: Scenario) -> tuple[int, ...]:
    """How many brokers each region has: its share of them, and one at least."""
    shares_of = [region.share for region in scenario.regions]
    return tuple(max(1, count) for count in apportioned(scenario.brokers.count, shares_of))


def door_rates(scenario: Scenario, node_input: NodeInput, clients: int) -> Array:
    """Handshakes a second that each region's brokers can do for a node's share of so many ``clients``."""
    share = node_input.clients / clients
    return scenario.brokers.connects_per_s * share * np.array(node_input.brokers, dtype=np.float64)


def doors_of(brokers: int, per_s: Array) -> tuple[int, npt.NDArray[np.int64]]:
    """How many doors so many brokers are that let through so many clients a second together, and how many nanoseconds
    pass from one client to the next: never fewer than the rate says."""
    count = min(brokers, max(1, int(float(per_s.min()) * _DOOR_NS_MAX * 1e-9)))
    return count, np.ceil(count * 1e9 / per_s).astype(np.int64)


def with_doors(node_input: NodeInput, per_s: Array) -> NodeInput:
    """The node with doors that let through so many clients a second, by region and point."""
    doors, door_ns = [], []
    for brokers, rates in zip(node_input.brokers, per_s, strict=True):
        count, row = doors_of(brokers, rates)
        changes = np.flatnonzero(np.diff(row))
        doors.append(count)
        door_ns.append(tuple(row[: int(changes[-1]) + 2 if len(changes) else 1].tolist()))
    return msgspec.structs.replace(node_input, doors=tuple(doors), door_ns=tuple(door_ns))


def _outages(scenario: Scenario) -> dict[int, tuple[Outage, ...]]:
    """The outages of each node."""
    found: dict[int, tuple[Outage, ...]] = {}
    for node, change in scenario.dying():
        at_us = round(change.at_s * 1e6)
        found[node] = (Outage(at_us, at_us + round(change.outage_s * 1e6), change.slowdown),)
    return found


def transport_name(transport: int) -> str:
    """The name of a transport's number."""
    return TRANSPORTS[transport]
