"""The smallest cluster that has a storm over in time: nodes, groups, entries, linger, queue bound and return slots.

Every question is a storm by the fluid model, and a round of questions one sweep, so the rounds are few and wide: first
the number of nodes by factors of two under each way to refuse clients, then what lies between the largest that is too
small and the smallest that is not, then what entries, linger and groups do at that size, and whether fewer nodes do
with the best of them. Pure: whoever calls brings the sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from .brokers.runner import Sweep
from .calibration import Calibration
from .changes import queue_s, serves, wise_queue_items
from .models.results import StormResult
from .scenario import NODES_MAX, Scenario
from .target import Target

_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Of the scenario's nodes, in the first round."""
_NODES_MIN = 3
"""A group has three replicas, and no two of them on one machine."""
_BETWEEN = 3
"""Sizes that a later round tries in between."""
_ROUNDS_MAX = 4
_NEAR = 1.05
"""Sizes this near to each other need not be told apart: calibration is not better."""
_RETURNS_OF_CAPACITY = 0.9
_HORIZON = 1.25
"""Of the target: what is not over by then has missed it, however long it would take."""
_LINGERS_MS = (0.0, 2.0, 10.0)
_BATCH_FACTORS = (0.25, 4.0)
_GROUP_FACTORS = (0.5, 2.0)


@dataclass(frozen=True, kw_only=True)
class Option:
    """A cluster that was tried."""

    policy: str
    """How it refuses clients."""
    scenario: Scenario
    storm: StormResult
    meets: bool
    costs: dict[str, str] = field(default_factory=dict)
    """What each of its settings costs, in words."""

    @property
    def nodes(self) -> int:
        """How large it is."""
        return self.scenario.cluster.nodes


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """What came of the search."""

    target: Target
    best: Option | None
    """The smallest cluster that meets the target; None where none did."""
    options: list[Option]
    """All that was tried, the scenario's own cluster first."""
    rounds: int

    @property
    def nearest(self) -> Option:
        """The best or, where there is none, what came nearest to the target."""
        return self.best or min(self.options, key=lambda option: _reached_s(option.storm, self.target))


def size(
    scenario: Scenario,
    calibration: Calibration,
    target: Target,
    sweep: Sweep,
    on_round: Callable[[int, int], None] | None = None,
) -> Sizing:
    """Search. ``on_round`` hears of each round and how many storms it has. Nodes that the scenario lets die are kept:
    a cluster that is sized for a calm storm is too small for one with a fault. Raises what the sweep raises."""
    horizon_s = min(scenario.horizon_s, _HORIZON * target.seconds + scenario.disconnect.spread_s)
    asked = replace(scenario, horizon_s=max(1.0, horizon_s))
    search = _Search(asked, calibration, target, sweep, on_round)
    policies = _policies(asked, calibration)
    sizes = sorted({_nodes(asked.cluster.nodes * factor) for factor in _FACTORS})
    search.round([(name, _sized(base, nodes)) for name, base in policies.items() for nodes in sizes])
    search.narrow(policies, _ROUNDS_MAX - 2)
    if search.best is not None:
        shapes = _shapes(search.best)
        search.round([(name, _sized(base, search.best.nodes)) for name, base in shapes.items()])
        better = {name: base for name, base in shapes.items() if search.largest_below(name) == 0}
        search.narrow({name: base for name, base in better.items() if search.improves(name)}, 2)
    return Sizing(target=target, best=search.best, options=search.options, rounds=search.rounds)


class _Search:
    """The rounds and what they found."""

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
        self.options: list[Option] = []
        self.rounds = 0

    @property
    def best(self) -> Option | None:
        """The smallest that meets the target, and of equals the one with the fewest attempts."""
        meeting = [option for option in self.options if option.meets]
        return min(meeting, key=lambda option: (option.nodes, option.storm.attempts_per_client), default=None)

    def round(self, tried: Sequence[tuple[str, Scenario]]) -> None:
        """Ask about these, but for what is known."""
        known = {option.scenario for option in self.options}
        asked: list[tuple[str, Scenario]] = []
        for name, scenario in tried:
            if scenario not in known:
                known.add(scenario)
                asked.append((name, scenario))
        if not asked:
            return
        self.rounds += 1
        if self._on_round is not None:
            self._on_round(self.rounds, len(asked))
        storms = self._sweep([scenario for _, scenario in asked], self._calibration)
        for (name, scenario), storm in zip(asked, storms, strict=True):
            meets = _reached_s(storm, self._target) <= self._target.seconds
            costs = _costs(self._asked, scenario, self._calibration)
            self.options.append(Option(policy=name, scenario=scenario, storm=storm, meets=meets, costs=costs))

    def largest_below(self, policy: str) -> int:
        """The largest that misses the target under a policy, below the smallest that meets it; 0 where none does."""
        meets = [option.nodes for option in self.options if option.policy == policy and option.meets]
        misses = [option.nodes for option in self.options if option.policy == policy and not option.meets]
        return max((nodes for nodes in misses if not meets or nodes < min(meets)), default=0)

    def improves(self, policy: str) -> bool:
        """Whether it meets the target sooner than what is best without it."""
        best = self.best
        if best is None:
            return False
        before = min(
            _reached_s(option.storm, self._target)
            for option in self.options
            if option.nodes == best.nodes and option.policy != policy and not option.policy.startswith("with ")
        )
        return any(_reached_s(o.storm, self._target) < before for o in self.options if o.policy == policy and o.meets)

    def narrow(self, policies: dict[str, Scenario], rounds: int) -> None:
        """Look between what is too small and what is not, for each policy that could still be the best."""
        for _ in range(rounds):
            tried: list[tuple[str, Scenario]] = []
            best = self.best
            if best is None:
                return
            for name, base in policies.items():
                meets = [option.nodes for option in self.options if option.policy == name and option.meets]
                low = self.largest_below(name) or round(min(meets, default=0) * 0.5)
                high = min(meets, default=0)
                if not meets or low >= best.nodes or high <= max(low * _NEAR, low + 1):
                    continue
                step = (high / max(1, low)) ** (1 / (_BETWEEN + 1))
                between = {_nodes(max(1, low) * step**at) for at in range(1, _BETWEEN + 1)} - {low, high}
                tried += [(name, _sized(base, nodes)) for nodes in sorted(between)]
            if not tried:
                return
            self.round(tried)


def _nodes(nodes: float) -> int:
    return min(NODES_MAX, max(_NODES_MIN, round(nodes)))


def _reached_s(storm: StormResult, target: Target) -> float:
    reached = {"t50": storm.t50_s, "t99": storm.t99_s, "t999": storm.t999_s}[target.key]
    return float("inf") if reached is None else reached


def _policies(scenario: Scenario, calibration: Calibration) -> dict[str, Scenario]:
    """Ways to refuse clients, the scenario's own first."""
    wise = replace(scenario, cluster=replace(scenario.cluster, queue_items=wise_queue_items(scenario, calibration)))
    told = replace(wise, returns=replace(wise.returns, of_capacity=_RETURNS_OF_CAPACITY))
    return {"as it is": scenario, "queue bounded by patience": wise, "queue bounded, return slots": told}


def _sized(base: Scenario, nodes: int) -> Scenario:
    """The same with so many nodes, and as many groups on each as before. The bound of a group's queue stays: what a
    group serves does not change with the number of nodes."""
    per_node = base.cluster.groups / base.cluster.nodes
    cluster = replace(base.cluster, nodes=nodes, groups=max(nodes, round(per_node * nodes)))
    dying = sum(change.nodes for change in base.leader_changes)
    changes = base.leader_changes if dying <= nodes else ()
    return replace(base, cluster=cluster, leader_changes=changes)


def _shapes(best: Option) -> dict[str, Scenario]:
    """The same cluster with other entries, linger and groups."""
    base = best.scenario
    cluster, brokers = base.cluster, base.brokers
    shapes: dict[str, Scenario] = {}
    for factor in _BATCH_FACTORS:
        items = max(1, round(cluster.batch_items * factor))
        shapes[f"with entries of {items:,} items"] = replace(base, cluster=replace(cluster, batch_items=items))
    for linger_ms in _LINGERS_MS:
        if linger_ms != brokers.linger_ms:
            shapes[f"with a linger of {linger_ms:g} ms"] = replace(base, brokers=replace(brokers, linger_ms=linger_ms))
    for factor in _GROUP_FACTORS:
        groups = max(cluster.nodes, round(cluster.groups * factor))
        # What may wait on a node stays the same.
        queue = round(cluster.queue_items * cluster.groups / groups)
        shaped = replace(cluster, groups=groups, queue_items=queue)
        if groups != cluster.groups:
            shapes[f"with {groups / cluster.nodes:g} groups a node"] = replace(base, cluster=shaped)
    return shapes


def _costs(asked: Scenario, scenario: Scenario, calibration: Calibration) -> dict[str, str]:
    """What each setting of a cluster costs."""
    cluster = scenario.cluster
    groups = cluster.groups / cluster.nodes
    turn_s = calibration.turn_s + groups * (calibration.entry_s + calibration.item_s * cluster.batch_items)
    more = cluster.nodes - asked.cluster.nodes
    waits = queue_s(scenario, calibration)
    return {
        "nodes": f"{more:+d} nodes; {serves(scenario, calibration) / 1000:,.0f} thousand items/s at best",
        "groups": f"{groups * calibration.entry_s * 1000:.1f} ms of each turn, for {groups:g} groups a node",
        "batch_items": f"a full turn takes {turn_s * 1000:.0f} ms, and who comes then waits for it",
        "linger_ms": f"{scenario.brokers.linger_ms:g} ms more for a client that comes alone",
        "queue_items": f"the last in a full queue waits {waits:.1f} s"
        if waits < float("inf")
        else "no bound on waiting",
        "returns": "clients must heed what they are told" if scenario.returns.of_capacity else "nothing",
    }
