"""The smallest cluster that has a storm over in time: its nodes, groups and entries, and how far it is from collapse.

Only settings that metad has are searched: the number of nodes and of groups (at most one for each of the 1,024 slots),
and the items of an entry. Whatever else the scenario says, such as the bound of a queue and return slots, stays as it
is.

How the search can be both quick and complete: no cluster ends a storm before it can have served it, so sizes below that
bound need no storm. Above it, a round of sizes that are far apart brackets the answer, later rounds close in on it, and
in the end all sizes just below the answer are tried, because a larger cluster may do worse than a smaller one (its
groups are divided less evenly, or its queues hold more than clients wait for). Every question is a comparison
(:mod:`.reduced`), and a round of questions one sweep. Pure: whoever calls brings the sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from metad_wire.cluster import SLOTS

from .brokers.runner import Sweep
from .calibration import Calibration
from .changes import serves
from .models.node_input import brokers_of
from .models.results import StormResult
from .scenario import Scenario
from .target import Target

NODES_MIN = 3
"""A group has three replicas, and no two of them on one machine."""
EVERY = 16
"""All sizes that are smaller than the answer by up to this many nodes are tried."""
LOADS = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0)
"""How many times as many clients the chosen cluster is tried with."""
_SPACING = 1.4
"""Of the sizes of the first round."""
_BETWEEN = 4
"""Sizes that a later round tries in between."""
_HORIZON = 1.25
"""Of the target: what is not over by then has missed it, however long it would take."""
_BATCH_FACTOR = 4.0
_GROUP_FACTORS = (0.5, 2.0)
_BOUND_OFF = 1.02
"""The bound below which no storm is tried is loosened by this: times are read from bins."""
AS_IT_IS = "as it is"


@dataclass(frozen=True, kw_only=True)
class Option:
    """A cluster that was tried."""

    shape: str
    """What differs from the scenario besides the number of nodes."""
    scenario: Scenario
    storm: StormResult
    meets: bool
    costs: dict[str, str] = field(default_factory=dict)
    """The cost of each of its settings, in words."""

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return self.scenario.cluster.nodes


@dataclass(frozen=True, kw_only=True)
class Load:
    """The chosen cluster with so many times as many clients."""

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
    """Why no cluster can meet the target, where that needs no search."""
    loads: list[Load] = field(default_factory=list)
    """The best cluster under more load."""

    @property
    def nearest(self) -> Option | None:
        """The best or, where there is none, what came nearest to the target; None where nothing was tried."""
        return self.best or min(
            self.options, key=lambda option: (_reached_s(option.storm, self.target), option.nodes), default=None
        )

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
) -> Sizing:
    """Search among clusters of up to ``nodes_max`` nodes. ``on_round`` hears of each round and how many storms it has.
    Nodes that the scenario lets die are kept: a cluster that is sized for a calm storm is too small for one with a
    fault. Raises what the sweep raises."""
    horizon_s = min(scenario.horizon_s, _HORIZON * target.seconds + scenario.disconnect.spread_s)
    asked = replace(scenario, horizon_s=max(1.0, horizon_s))
    search = _Search(asked, calibration, target, sweep, on_round)
    why_none = _impossible(asked, target)
    if not why_none:
        for name, shape in shapes(asked).items():
            search.shape(name, shape, nodes_max)
        if search.best is None and not search.options:
            search.try_sizes(AS_IT_IS, asked, [nodes_max])
    loads = _loads(search.best, scenario, target, calibration, sweep) if search.best else []
    return Sizing(
        target=target, best=search.best, options=search.options, rounds=search.rounds, why_none=why_none, loads=loads
    )


def shapes(asked: Scenario) -> dict[str, Scenario]:
    """What is tried at each size: the scenario's own entries and groups a node, and others."""
    cluster = asked.cluster
    found = {AS_IT_IS: asked}
    items = round(cluster.batch_items * _BATCH_FACTOR)
    found[f"entries of {items:,} items"] = replace(asked, cluster=replace(cluster, batch_items=items))
    for factor in _GROUP_FACTORS:
        groups = max(cluster.nodes, round(cluster.groups * factor))
        if groups != cluster.groups:
            name = f"{groups / cluster.nodes:.3g} groups a node"
            found[name] = replace(asked, cluster=replace(cluster, groups=groups))
    return found


def sized(base: Scenario, nodes: int) -> Scenario:
    """The same with so many nodes, and as many groups on each as before, within the number of slots. The bound of a
    group's queue stays."""
    per_node = base.cluster.groups / base.cluster.nodes
    groups = min(SLOTS, max(nodes, round(per_node * nodes)))
    dying = sum(change.nodes for change in base.leader_changes)
    changes = base.leader_changes if dying <= nodes else ()
    return replace(base, cluster=replace(base.cluster, nodes=nodes, groups=groups), leader_changes=changes)


def least_nodes(base: Scenario, calibration: Calibration, target: Target, nodes_max: int) -> int:
    """No fewer nodes can serve the target's share of clients in its time; one more than ``nodes_max`` where those
    cannot either. What a node can serve hardly depends on the number of nodes, so a few more than that are ruled out
    than this says at most."""
    wanted = target.share * base.clients / (target.seconds * _BOUND_OFF + 0.1)
    # What surviving nodes serve after a death may be more than before, if its slowdown is below 1.
    gain = max([1.0, *(1 / change.slowdown for change in base.leader_changes)])
    for nodes in range(NODES_MIN, nodes_max + 1):
        if serves(sized(base, nodes), calibration) * gain >= wanted:
            return nodes
    return nodes_max + 1


class _Search:
    """The rounds and their results."""

    def __init__(
        self,
        asked: Scenario,
        calibration: Calibration,
        target: Target,
        sweep: Sweep,
        on_round: Callable[[int, int], None] | None,
    ) -> None:
        self._asked, self._calibration, self._target = asked, calibration, target
        self._sweep, self._on_round = sweep, on_round
        self._known: dict[Scenario, bool] = {}
        self.options: list[Option] = []
        self.rounds = 0

    @property
    def best(self) -> Option | None:
        """The smallest cluster that meets the target, and of equals the one with the fewest attempts."""
        meeting = [option for option in self.options if option.meets]
        return min(meeting, key=lambda option: (option.nodes, option.storm.attempts_per_client), default=None)

    def shape(self, name: str, base: Scenario, nodes_max: int) -> None:
        """Look for a smaller cluster than the best so far, of this shape."""
        low = least_nodes(base, self._calibration, self._target, nodes_max)
        high = self.best.nodes - 1 if self.best else nodes_max
        if low > high:
            return
        self.try_sizes(name, base, _spaced(low, high))
        while (found := self._smallest(base, low, high)) is not None:
            missed = max((n for n in range(low, found) if self._meets(base, n) is False), default=low - 1)
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

    def _meets(self, base: Scenario, nodes: int) -> bool | None:
        return self._known.get(sized(base, nodes))

    def _smallest(self, base: Scenario, low: int, high: int) -> int | None:
        return next((nodes for nodes in range(low, high + 1) if self._meets(base, nodes)), None)

    def try_sizes(self, name: str, base: Scenario, sizes: Sequence[int]) -> None:
        """A round of these sizes, but for those that are known."""
        asked: list[Scenario] = []
        for nodes in sizes:
            scenario = sized(base, nodes)
            if scenario not in self._known and scenario not in asked:
                asked.append(scenario)
        if not asked:
            return
        self.rounds += 1
        if self._on_round is not None:
            self._on_round(self.rounds, len(asked))
        for scenario, storm in zip(asked, self._sweep(asked, self._calibration), strict=True):
            meets = _reached_s(storm, self._target) <= self._target.seconds
            self._known[scenario] = meets
            costs = _costs(self._asked, scenario, self._calibration)
            self.options.append(Option(shape=name, scenario=scenario, storm=storm, meets=meets, costs=costs))


def _spaced(low: int, high: int) -> list[int]:
    """Sizes from one to the other, each larger than the one before by a factor; all of them where they are few."""
    if high - low <= EVERY:
        return list(range(low, high + 1))
    found = [low]
    while found[-1] < high:
        found.append(min(high, max(found[-1] + 1, round(found[-1] * _SPACING))))
    return found


def _impossible(scenario: Scenario, target: Target) -> str:
    """Why no cluster meets the target, where the brokers cannot."""
    brokers = scenario.brokers
    if not brokers.connects_per_s:
        return ""
    least_s = target.share * scenario.clients / (brokers.connects_per_s * sum(brokers_of(scenario)))
    if least_s <= target.seconds * _BOUND_OFF + 0.1:
        return ""
    return f"the brokers alone need {least_s:.4g} s for that many handshakes"


def _loads(best: Option, scenario: Scenario, target: Target, calibration: Calibration, sweep: Sweep) -> list[Load]:
    """The chosen cluster with more clients, to the scenario's own end."""
    asked = [
        replace(best.scenario, clients=round(scenario.clients * factor), horizon_s=scenario.horizon_s)
        for factor in LOADS
    ]
    return [
        Load(factor=factor, storm=storm, meets=_reached_s(storm, target) <= target.seconds)
        for factor, storm in zip(LOADS, sweep(asked, calibration), strict=True)
    ]


def _reached_s(storm: StormResult, target: Target) -> float:
    reached = {"t50": storm.t50_s, "t99": storm.t99_s, "t999": storm.t999_s}[target.key]
    return float("inf") if reached is None else reached


def _costs(asked: Scenario, scenario: Scenario, calibration: Calibration) -> dict[str, str]:
    """The cost of each setting of a cluster."""
    cluster = scenario.cluster
    groups = cluster.groups / cluster.nodes
    turn_s = calibration.turn_s + groups * (calibration.entry_s + calibration.item_s * cluster.batch_items)
    more = cluster.nodes - asked.cluster.nodes
    return {
        "nodes": f"{more:+d} nodes; {serves(scenario, calibration) / 1000:,.0f} thousand items/s at best",
        "groups": f"{groups * calibration.entry_s * 1000:.1f} ms of each turn, for {groups:.3g} groups a node",
        "batch_items": f"a full turn takes {turn_s * 1000:.0f} ms, and who comes then waits for it",
    }
