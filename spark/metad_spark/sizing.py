"""The smallest cluster that has a storm over in time: nodes, groups, entries, brokers; with an error band, and on the
safe side of the cliff.

Only settings that metad has are searched: the number of nodes and of groups (at most one for each of the 1,024 slots),
and the items of an entry. Brokers, which are the operator's own, become more where theirs cannot do the handshakes in
time. Whatever else the scenario says, such as the bound of a queue and return slots, stays as it is.

A cluster meets the target if it does so three times: with the costs as they were measured; with every cost at the high
end of its interval and every group as large as the largest (:mod:`.band`); and it must not collapse, at these high
costs, with :data:`SAFE_LOAD` times as many clients. Where predictions were held against storms that happened, it must
also be in time if this one is as far off as the worst of them.

How the search can be both quick and complete: no cluster ends a storm before it can have served it, so sizes below that
bound need no storm. Above it, a round of sizes that are far apart brackets the answer, later rounds close in on it, and
in the end all sizes just below the answer are tried, because a larger cluster may do worse than a smaller one (its
groups are divided less evenly, or its queues hold more than clients wait for). Every question is a comparison
(:mod:`.reduced`), and a round of questions a few sweeps. Pure: whoever calls brings the sweep.

Some targets no cluster can meet, by counting alone: each reason is a bound that holds whatever it does. A search that
finds nothing is no proof. These are: clients cannot be back before they know that they were disconnected and have done
a handshake; nodes cannot serve more than their capacity times the time; nor brokers do more handshakes.

What a cluster takes of its machines (:class:`Footprint`): memory and disk of a node, replicas, slots. Memory is bounded
by configuration, not by the number of sessions, so it is a sum of budgets. The bytes of sessions, subscriptions and
groups are measured: see "Sizes" in docs/BENCHMARKS.md, and ``tests/spark/session_sizes.py``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from metad_wire.cluster import SLOTS

from .band import Uneven, heaviest, highest, lowest, unevenness
from .brokers.runner import Sweep
from .calibration import Calibration
from .changes import serves
from .models.node_input import brokers_of
from .models.results import StormResult
from .scenario import BROKERS_MAX, ENTRY_ITEMS_MAX, ROUND_TRIPS, Scenario
from .target import Target

MIB = 1024 * 1024
REPLICAS = 3
"""``cluster.replicas``."""
SESSION_BYTES = 140
"""On disk, of a session without its payload."""
PAYLOAD_BYTES = 320
"""On disk, of a payload of 200 bytes that cannot be compressed: 1.6 times its size. Of a session with subscriptions it
is there twice: the row that counts them has a copy."""
SUBSCRIPTION_BYTES = 160
"""On disk, of a filter of 30 bytes: 110 once files are merged, 300 before."""
COMPACTION_FACTOR = 2.0
"""Disk that the store needs while it merges files, over what its data takes."""
PROCESS_BYTES = 68 * MIB
"""Memory of a node without sessions."""
GROUP_BYTES = 64 * 1024
"""Memory of a replica of a group, beside its cached log."""
CONNECTION_BYTES = 64 * 1024
"""Memory of an idle connection: 20 KB over QUIC, with TLS somewhat more."""
ITEM_BYTES = 256
"""What the server counts for an item in flight, beside its bytes on the wire."""
WIRE_BYTES = 100
"""Of an item in a request: a tenant, a client's name, and what is restored."""
OWNER_BYTES = 8
"""``storage.owner_cache_bytes`` of one session."""
# Budgets of metad's configuration, by its defaults; the tests compare them with metad's own.
BLOCK_CACHE_BYTES = 192 * MIB
MEMTABLE_BYTES = 272 * MIB
OWNER_CACHE_BYTES = 128 * MIB
ROW_CACHE_BYTES = 96 * MIB
LOG_RETAINED_BYTES = 96 * MIB
WATCH_RETAINED_BYTES = 256 * MIB
LOG_CACHE_BYTES = 8 * MIB
IN_FLIGHT_BYTES = 128 * MIB
UNFINISHED_BYTES = 24 * MIB
UNSENT_BYTES = 24 * MIB
CONNECTIONS_MAX = 4_096


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Of the node that has most. Bytes."""

    replicas_per_node: int
    """Replicas of groups that a node has, led or followed."""
    slots_per_group: tuple[int, int]
    """Fewest and most."""
    sessions_per_node: int
    """Sessions that a node stores, led or followed."""
    memory_bytes: int
    """A bound: every budget used up."""
    disk_bytes: int
    """Room to plan for: data, logs, and what merging them needs for a while."""
    in_flight_bytes: int
    """Of requests that wait when every queue is full."""
    owner_cache_bytes: int
    """A cache that knows the owner of every session of the node."""
    connections: int
    """Of brokers."""


def footprint(scenario: Scenario) -> Footprint:
    """What a node of this cluster takes."""
    cluster = scenario.cluster
    few, more = divmod(SLOTS, cluster.groups)
    slots_most = few + (more > 0)
    replicas = -(-cluster.groups * min(REPLICAS, cluster.nodes) // cluster.nodes)
    sessions = -(-scenario.clients * replicas * slots_most // SLOTS)
    led = -(-cluster.groups // cluster.nodes)
    queue = cluster.queue_items or -(-scenario.clients // cluster.groups)
    waiting = led * max(queue, cluster.batch_items)
    in_flight = max(IN_FLIGHT_BYTES, waiting * (WIRE_BYTES + ITEM_BYTES))
    owners = max(OWNER_CACHE_BYTES, sessions * OWNER_BYTES)
    connections = scenario.brokers.count
    memory = (
        PROCESS_BYTES
        + BLOCK_CACHE_BYTES
        + MEMTABLE_BYTES
        + ROW_CACHE_BYTES
        + owners
        + in_flight
        + UNFINISHED_BYTES
        + UNSENT_BYTES
        + replicas * (GROUP_BYTES + LOG_CACHE_BYTES)
        + connections * CONNECTION_BYTES
    )
    subscriptions = scenario.sessions.subscriptions
    payloads = PAYLOAD_BYTES * (2 if subscriptions else 1)
    session = SESSION_BYTES + payloads + subscriptions * SUBSCRIPTION_BYTES
    logs = LOG_RETAINED_BYTES + replicas * WATCH_RETAINED_BYTES
    return Footprint(
        replicas_per_node=replicas,
        slots_per_group=(few, slots_most),
        sessions_per_node=sessions,
        memory_bytes=memory,
        disk_bytes=round(COMPACTION_FACTOR * session * sessions) + logs,
        in_flight_bytes=in_flight,
        owner_cache_bytes=owners,
        connections=connections,
    )


_OFF = 1.02
_OFF_S = 0.1
"""By these a bound is loosened: times are read from bins, and the first entries are on their way at once."""
_SIGMAS = 4.0


def why_impossible(scenario: Scenario, calibration: Calibration, target: Target, nodes_max: int) -> str:
    """Why no cluster of up to ``nodes_max`` nodes meets the target, in words; empty where that is not certain."""
    most_s = target.seconds * _OFF + _OFF_S
    if (knows_s := earliest_s(scenario, target.share)) > most_s:
        share = f"{target.share * 100:g} % of the clients"
        return f"{share} cannot be back before {knows_s:.4g} s: by then they have not learned of it and shaken hands"
    wanted = target.share * scenario.clients
    # Entries without end: the rest of a turn costs nothing then.
    item_s = calibration.item_s * scenario.sessions.item_weight() * min(1.0, *_slowdowns(scenario))
    if item_s and (least_s := wanted * item_s / nodes_max) > most_s:
        return (
            f"{nodes_max:,} nodes, the most that there can be, need {least_s:.4g} s to serve {wanted:,.0f} clients at"
            f" {item_s * 1e6:.3g} us each, the high end of what one costs"
        )
    if (brokers := brokers_least(scenario, target)) > BROKERS_MAX:
        return f"it takes {brokers:,} brokers to do that many handshakes in time, and {BROKERS_MAX:,} are the most"
    return ""


def _slowdowns(scenario: Scenario) -> list[float]:
    """Of the nodes that die: those that take over may be faster."""
    return [1.0, *(change.slowdown for change in scenario.leader_changes)]


def brokers_least(scenario: Scenario, target: Target) -> int:
    """No fewer brokers can do the handshakes in time; 1 where handshakes cost them nothing."""
    brokers = scenario.brokers
    if not brokers.connects_per_s:
        return 1
    wanted = target.share * scenario.clients / (brokers.connects_per_s * (target.seconds * _OFF + _OFF_S))
    # Each region has one broker at least, so a scenario may have more than it counts.
    spare = sum(brokers_of(scenario)) - brokers.count
    return max(1, math.ceil(wanted) - spare)


def earliest_s(scenario: Scenario, share: float) -> float:
    """Before that, so large a share of the clients cannot be back: not so many have begun a handshake long enough
    before. Chance is allowed for."""
    share -= _SIGMAS * math.sqrt(share * (1 - share) / scenario.clients) + 1 / scenario.clients
    disconnect = scenario.disconnect
    widths = [(1 - disconnect.silent_share, disconnect.spread_s)]
    widths += [(disconnect.silent_share * each.share, each.keepalive_s) for each in disconnect.keepalives]
    low, high = 0.0, max(width for _, width in widths)
    for _ in range(60):
        middle = (low + high) / 2
        begun = sum(part * (min(1.0, middle / width) if width else 1.0) for part, width in widths)
        low, high = (middle, high) if begun < share else (low, middle)
    rtt_s = min(region.rtt_ms for region in scenario.regions if region.share) / 1000
    trips = min(n for n, part in zip(ROUND_TRIPS, scenario.transports.shares(), strict=True) if part)
    return low + rtt_s * trips


NODES_MIN = 3
"""A group has three replicas, and no two of them on one machine."""
EVERY = 16
"""All sizes that are smaller than the answer by up to this many nodes are tried."""
SAFE_LOAD = 1.25
"""With so many times as many clients the answer must not collapse: no census is more exact than that."""
LOADS = (1.1, SAFE_LOAD, 1.5, 2.0, 3.0, 5.0)
"""How many times as many clients the chosen cluster is tried with."""
_CLIFF_ROUNDS = 2
_CLIFF_POINTS = 4
"""Loads that a further round tries between the last one without a collapse and the first with one."""
_BROKERS_AMPLE = 4
"""Times the least brokers that can do the handshakes in time: nodes are searched with so many, where they are too few,
and then as few brokers as will do."""
_REASON = "all sizes that were tried miss it, which is no proof that every size does"
_SPACING = 1.4
"""Of the sizes of the first round."""
_BETWEEN = 4
"""Sizes that a later round tries in between."""
_HORIZON = 1.25
"""Of the target: what is not over by then has missed it, however long it would take."""
_BATCH_FACTOR = 4.0
_BATCH_FACTORS_MORE = (16.0, 64.0)
"""Where nothing else meets the target: a node serves more with larger entries, and answers later."""
_GROUP_FACTORS = (0.5, 2.0)
_BOUND_OFF = 1.02
"""The bound below which no storm is tried is loosened by this: times are read from bins."""
_NEAREST_ROUNDS = 8
AS_IT_IS = "as it is"


@dataclass(frozen=True, kw_only=True)
class Option:
    """A cluster that was tried."""

    shape: str
    """What differs from the scenario besides the number of nodes."""
    scenario: Scenario
    storm: StormResult
    """With the costs at the high end, and all groups as large as the largest."""
    meets: bool
    """In time at the high end. Of clusters that may be the answer also with the costs as measured, and on the safe side
    of the cliff."""
    likely: StormResult | None = None
    """With the costs as measured; None where that was not looked at."""
    at_risk: str = ""
    """Why it does not meet the target although its storm at the high end is in time."""

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return self.scenario.cluster.nodes


@dataclass(frozen=True, kw_only=True)
class Load:
    """The chosen cluster with so many times as many clients, at high costs."""

    factor: float
    storm: StormResult
    meets: bool


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """The result of the search."""

    target: Target
    best: Option | None
    """The smallest cluster that meets the target; None where none does."""
    options: list[Option]
    """All that was tried."""
    rounds: int
    why_none: str = ""
    """Why no cluster meets the target."""
    proven: bool = False
    """Whether none can: by counting, not by search."""
    low: StormResult | None = None
    """The best cluster's storm with every cost at the low end."""
    loads: list[Load] = field(default_factory=list)
    """The best cluster under more load."""

    @property
    def nearest(self) -> Option | None:
        """The best or, where there is none, what came nearest to the target; None where nothing was tried."""
        return self.best or min(
            self.options, key=lambda option: (reached_s(option.storm, self.target), option.nodes), default=None
        )

    @property
    def band_s(self) -> tuple[float, float, float] | None:
        """When the target's share is back by the best cluster: low end, with the costs as measured, high end."""
        if self.best is None or self.low is None or self.best.likely is None:
            return None
        storms = (self.low, self.best.likely, self.best.storm)
        low, likely, high = (reached_s(storm, self.target) for storm in storms)
        return min(low, likely, high), likely, max(low, likely, high)

    @property
    def misses_at(self) -> float | None:
        """The least tried load at which the best cluster misses the target; None where it does not."""
        return min((load.factor for load in self.loads if not load.meets), default=None)

    @property
    def collapses_at(self) -> float | None:
        """The least tried load at which the best cluster collapses; None where it does not."""
        return min((load.factor for load in self.loads if load.storm.collapsed), default=None)


def size(
    scenario: Scenario,
    calibration: Calibration,
    target: Target,
    sweep: Sweep,
    on_round: Callable[[int, int], None] | None = None,
    nodes_max: int = SLOTS,
    uneven: Uneven = unevenness,
) -> Sizing:
    """Search among clusters of up to ``nodes_max`` nodes. ``on_round`` hears of each round and how many storms it has.
    Nodes that the scenario lets die are kept: a
    cluster that is sized for a calm storm is too small for one with a fault. Raises what the sweep raises."""
    horizon_s = min(scenario.horizon_s, _HORIZON * target.seconds + scenario.disconnect.spread_s)
    asked = replace(scenario, horizon_s=max(1.0, horizon_s))
    nodes_max = max(NODES_MIN, min(nodes_max, scenario.clients))  # no group without a client
    search = _Search(scenario, asked, calibration, target, sweep, on_round, uneven)
    if why := why_impossible(asked, highest(calibration), target, nodes_max):
        return Sizing(target=target, best=None, options=[], rounds=0, why_none=why, proven=True)
    least = brokers_least(asked, target)
    if least <= asked.brokers.count:
        search.nodes(asked, nodes_max)
    if search.best is None and asked.brokers.connects_per_s:
        search.nodes(with_brokers(asked, _BROKERS_AMPLE * max(least, asked.brokers.count)), nodes_max)
        if search.best is not None:
            search.brokers(max(least, min(asked.brokers.count + 1, search.best.scenario.brokers.count)))
    best = search.best
    if best is None:
        if not search.options:
            search.try_sizes(AS_IT_IS, asked, [nodes_max])
        why, proven = _why_none(search.options, target)
        return Sizing(
            target=target, best=None, options=search.options, rounds=search.rounds, why_none=why, proven=proven
        )
    (low,) = sweep([best.scenario], lowest(calibration))
    return Sizing(
        target=target,
        best=best,
        options=search.options,
        rounds=search.rounds,
        low=low,
        loads=_loads(best, scenario, target, calibration, sweep, uneven),
    )


def with_brokers(base: Scenario, count: int) -> Scenario:
    """The same with so many brokers."""
    return replace(base, brokers=replace(base.brokers, count=min(BROKERS_MAX, count)))


def _why_none(options: Sequence[Option], target: Target) -> tuple[str, bool]:
    """Why nothing meets the target, and whether that is proven."""
    largest = max(options, key=lambda option: (option.nodes, option.scenario.cluster.groups))
    storm = largest.storm
    if storm.rejected == storm.timeouts == 0 and reached_s(storm, target) > target.seconds:
        return (
            f"{largest.nodes:,} nodes refuse nobody and keep nobody waiting until it gives up: more would end it no"
            " sooner",
            True,
        )
    return _REASON, False


def shapes(asked: Scenario) -> dict[str, Scenario]:
    """What is tried at each size: the scenario's own entries and groups a node, and others."""
    cluster = asked.cluster
    found = {AS_IT_IS: asked} | _entries(asked, _BATCH_FACTOR)
    for factor in _GROUP_FACTORS:
        groups = max(cluster.nodes, round(cluster.groups * factor))
        if groups != cluster.groups:
            name = f"{groups / cluster.nodes:.3g} groups a node"
            found[name] = replace(asked, cluster=replace(cluster, groups=groups))
    return found


def _entries(asked: Scenario, factor: float) -> dict[str, Scenario]:
    """The shape with so many times as many items in an entry; none where there cannot be so many."""
    items = round(asked.cluster.batch_items * factor)
    if items > ENTRY_ITEMS_MAX:
        return {}
    return {f"entries of {items:,} items": replace(asked, cluster=replace(asked.cluster, batch_items=items))}


def sized(base: Scenario, nodes: int) -> Scenario:
    """The same with so many nodes, and as many groups on each as before, within the numbers of slots and of clients.
    The bound of a group's queue stays."""
    per_node = base.cluster.groups / base.cluster.nodes
    groups = max(nodes, min(SLOTS, base.clients, round(per_node * nodes)))
    dying = sum(change.nodes for change in base.leader_changes)
    changes = base.leader_changes if dying <= nodes else ()
    return replace(base, cluster=replace(base.cluster, nodes=nodes, groups=groups), leader_changes=changes)


def least_nodes(
    base: Scenario, calibration: Calibration, target: Target, nodes_max: int, uneven: Uneven = unevenness
) -> int:
    """No fewer nodes can serve the target's share of clients in its time; one more than ``nodes_max`` where those
    cannot either. What a node can serve hardly depends on the number of nodes, so a few more than that are ruled out
    than this says at most."""
    seconds = target.seconds * _BOUND_OFF + 0.1
    # What surviving nodes serve after a death may be more than before, if its slowdown is below 1.
    gain = max([1.0, *(1 / change.slowdown for change in base.leader_changes)])
    for nodes in range(NODES_MIN, nodes_max + 1):
        worst = heaviest(sized(base, nodes), uneven)
        if serves(worst, calibration) * gain * seconds >= target.share * worst.clients:
            return nodes
    return nodes_max + 1


class _Search:
    """The rounds and their results."""

    def __init__(
        self,
        whole: Scenario,
        asked: Scenario,
        calibration: Calibration,
        target: Target,
        sweep: Sweep,
        on_round: Callable[[int, int], None] | None,
        uneven: Uneven,
    ) -> None:
        self._uneven = uneven
        self._whole, self._asked, self._calibration, self._target = whole, asked, calibration, target
        self._high = highest(calibration)
        self._sweep, self._on_round = sweep, on_round
        self._known: dict[Scenario, Option] = {}
        self._safe: set[Scenario] = set()  # those that are in time and whose other storms were looked at
        self.rounds = 0

    @property
    def options(self) -> list[Option]:
        """All that was tried."""
        return list(self._known.values())

    @property
    def best(self) -> Option | None:
        """The smallest cluster that meets the target, of equals that with the fewest brokers, and then with the fewest
        attempts."""
        meeting = [option for option in self._known.values() if option.meets]
        meeting.sort(key=lambda one: (one.nodes, one.scenario.brokers.count, one.storm.attempts_per_client))
        return next((self._known[one.scenario] for one in meeting if self._meets(one.scenario)), None)

    def nodes(self, asked: Scenario, nodes_max: int) -> None:
        """Look for the fewest nodes, in every shape."""
        for name, base in shapes(asked).items():
            self.shape(name, base, nodes_max)
        for factor in _BATCH_FACTORS_MORE:
            for name, base in _entries(asked, factor).items() if self.best is None else ():
                self.shape(name, base, nodes_max)

    def brokers(self, low: int) -> None:
        """Look for fewer brokers with the best cluster's nodes."""
        if self.best is None:
            return
        name, base, high = self.best.shape, self.best.scenario, self.best.scenario.brokers.count
        while high > low:
            step = (high - low) / (_BETWEEN + 1)
            counts = sorted({min(high - 1, round(low + step * at)) for at in range(_BETWEEN + 1)})
            asked = {count: with_brokers(base, count) for count in counts}
            self.try_all(name, list(asked.values()))
            met = next((count for count in counts if self._meets(asked[count])), None)
            missed = [count for count in counts if met is None or count < met]
            high = high if met is None else met
            low = missed[-1] + 1 if missed else high

    def shape(self, name: str, base: Scenario, nodes_max: int) -> None:
        """Look for a smaller cluster than the best so far, of this shape."""
        low = least_nodes(base, self._high, self._target, nodes_max, self._uneven)
        high = self.best.nodes - 1 if self.best else nodes_max
        if low > high:
            return
        self.try_sizes(name, base, _spaced(low, high))
        if self.best is None:
            self._approach(name, base, low, high)
        while (found := self._smallest(base, low, high)) is not None:
            missed = max((n for n in range(low, found) if sized(base, n) in self._known), default=low - 1)
            if found - missed <= 1:
                break
            step = (found - missed) / (_BETWEEN + 1)
            self.try_sizes(name, base, sorted({round(missed + step * at) for at in range(1, _BETWEEN + 1)}))
        while True:
            below = (found if found is not None else high + 1) - 1
            self.try_sizes(name, base, range(max(low, below - EVERY + 1), below + 1))
            smaller = self._smallest(base, low, high)
            if smaller == found:
                return
            found = smaller

    def _approach(self, name: str, base: Scenario, low: int, high: int) -> None:
        """Where no size meets the target, try those around the one that came nearest: what a cluster needs may lie
        between sizes that are both wrong."""
        for _ in range(_NEAREST_ROUNDS):
            every = {nodes: self._known.get(sized(base, nodes)) for nodes in range(low, high + 1)}
            tried = {nodes: option for nodes, option in every.items() if option is not None}
            nearest = min(tried, key=lambda nodes: (reached_s(tried[nodes].storm, self._target), nodes))
            below = max((nodes for nodes in tried if nodes < nearest), default=low)
            above = min((nodes for nodes in tried if nodes > nearest), default=high)
            between = {(below + nearest) // 2, (nearest + above) // 2} - set(tried)
            if not between:
                return
            self.try_sizes(name, base, sorted(between))
            if self._smallest(base, low, high) is not None:
                return

    def _meets(self, scenario: Scenario) -> bool | None:
        """Whether a cluster meets the target; None where it was not tried. Only of one that is in time, and that may be
        the answer, the other storms are looked at."""
        option = self._known.get(scenario)
        if option is None or not option.meets or scenario in self._safe:
            return option.meets if option is not None else None
        (likely,) = self._sweep([scenario], self._calibration)
        (more,) = self._sweep([loaded(scenario, self._whole, SAFE_LOAD, self._uneven)], self._high)
        risk = ""
        likely_s = reached_s(likely, self._target)
        if likely_s > self._target.seconds:
            risk = "it is in time at high costs only"
        elif more.collapsed:
            risk = f"it collapses with {SAFE_LOAD:g} times as many clients"
        self._safe.add(scenario)
        self._known[scenario] = dataclasses.replace(option, meets=not risk, likely=likely, at_risk=risk)
        return not risk

    def _smallest(self, base: Scenario, low: int, high: int) -> int | None:
        return next((nodes for nodes in range(low, high + 1) if self._meets(sized(base, nodes))), None)

    def try_sizes(self, name: str, base: Scenario, sizes: Sequence[int]) -> None:
        """A round of these sizes, but for those that are known."""
        self.try_all(name, [sized(base, nodes) for nodes in sizes])

    def try_all(self, name: str, scenarios: Sequence[Scenario]) -> None:
        """A round of these clusters, but for those that are known."""
        asked = [scenario for scenario in dict.fromkeys(scenarios) if scenario not in self._known]
        if not asked:
            return
        self.rounds += 1
        if self._on_round is not None:
            self._on_round(self.rounds, len(asked))
        storms = self._sweep([heaviest(scenario, self._uneven) for scenario in asked], self._high)
        for scenario, storm in zip(asked, storms, strict=True):
            in_time = reached_s(storm, self._target) <= self._target.seconds
            self._known[scenario] = Option(shape=name, scenario=scenario, storm=storm, meets=in_time)


def _spaced(low: int, high: int) -> list[int]:
    """Sizes from one to the other, each larger than the one before by a factor; all of them where they are few."""
    if high - low <= EVERY:
        return list(range(low, high + 1))
    found = [low]
    while found[-1] < high:
        found.append(min(high, max(found[-1] + 1, round(found[-1] * _SPACING))))
    return found


def loaded(cluster: Scenario, whole: Scenario, factor: float, uneven: Uneven = unevenness) -> Scenario:
    """A cluster with so many times as many clients, its groups as large as the largest, to the scenario's own end."""
    return heaviest(replace(cluster, clients=round(whole.clients * factor), horizon_s=whole.horizon_s), uneven)


def _loads(
    best: Option, whole: Scenario, target: Target, calibration: Calibration, sweep: Sweep, uneven: Uneven
) -> list[Load]:
    """The chosen cluster with more clients, and more closely around where it begins to collapse."""
    found: dict[float, Load] = {}

    def try_loads(factors: Sequence[float]) -> None:
        asked = [loaded(best.scenario, whole, factor, uneven) for factor in factors]
        for factor, storm in zip(factors, sweep(asked, highest(calibration)), strict=True):
            found[factor] = Load(factor=factor, storm=storm, meets=reached_s(storm, target) <= target.seconds)

    try_loads(LOADS)
    for _ in range(_CLIFF_ROUNDS):
        beyond = min((factor for factor, load in found.items() if load.storm.collapsed), default=None)
        if beyond is None:
            break
        within = max((factor for factor in found if factor < beyond), default=1.0)
        step = (beyond - within) / (_CLIFF_POINTS + 1)
        try_loads([round(within + step * at, 3) for at in range(1, _CLIFF_POINTS + 1)])
    return [found[factor] for factor in sorted(found)]


def reached_s(storm: StormResult, target: Target) -> float:
    """When the target's share was back; infinite for never."""
    found = {"t50": storm.t50_s, "t99": storm.t99_s, "t999": storm.t999_s}[target.key]
    return float("inf") if found is None else found
