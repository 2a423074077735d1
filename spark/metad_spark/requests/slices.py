"""A scenario's storm in slices: three nodes with the groups that they lead, and the clients of these. Needs no Spark.

Groups are spread evenly over nodes and so are their followers, so nodes of different slices have nothing to do with
each other: a slice is a cluster of its own. What slices share is divided: of each broker's core and of its handshakes a
slice has its part. That the sum of slices is the storm that was not cut is a law that ``metad-spark verify`` checks.

A slice is simulated by a task, from one row of a table, and gives rows (:data:`SCHEMA`) that add up: the same here and
in a worker of Spark.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import replace

from ..calibration import Calibration
from ..errors import ScenarioError
from ..models.histogram import BINS, bin_of, quantile_s
from ..models.node_input import doors_of, node_inputs, shares
from ..models.population import firsts_us, loss_shares
from ..scenario import ROUND_TRIPS, TRANSPORTS, Brokers, Cluster, Scenario, Sessions
from .clients import AWAY
from .costs import REPLICAS, Costs
from .simulate import Look, Played, play
from .storm import CLIENTS_MAX, Handover, Kind, Population, Settings, Storm, slots_of_groups, storm_from

_LINGER_MS_MIN: Final = 1.0
"""A tick of the model's brokers, where the scenario's do not wait for further items."""
_COARSE_CLIENTS: Final = 2_000_000
_COARSE_MS: Final = 20.0
"""A tick of a slice of more clients, whose storm lasts many seconds: most of the work is a few clients of one tick and
one lane, and a tick of 2 ms is ten times the work."""
_SEEDS_APART: Final = 1_000_003
SAMPLED_CLIENTS: Final = 20_000_000
"""What slices have that are simulated where nobody says how many: some minutes on two cores."""

TASKS: Final = pa.schema(
    [
        ("place", pa.int64()),
        ("run", pa.string()),
        ("seed", pa.int64()),
        ("slice", pa.int32()),
        ("nodes", pa.int32()),
        ("clients", pa.int64()),
        ("slots", pa.list_(pa.int64())),
        ("scenario", pa.string()),
        ("costs", pa.string()),
    ]
)
"""A task in a row. ``slots``: as in :class:`Slice`. ``scenario`` and ``costs``: as JSON."""
_HISTOGRAM = pa.map_(pa.int32(), pa.int64())
SCHEMA: Final = pa.schema(
    [
        ("run", pa.string()),
        ("seed", pa.int64()),
        ("slice", pa.int32()),
        ("second", pa.int32()),
        ("kind", pa.string()),
        ("clients", pa.int64()),
        ("restored", pa.int64()),
        ("attempts", pa.int64()),
        ("refused", pa.int64()),
        ("timeouts", pa.int64()),
        ("histogram", _HISTOGRAM),
        ("storm_histogram", _HISTOGRAM),
    ]
)
"""What became of the clients of a kind (a region) in a second after the trigger: those that lost their connection then
(``clients``), came back, and how often they tried, were refused and gave up. ``histogram``: of those that came back,
how long each had waited, by the bins of :mod:`..models.histogram`; ``storm_histogram``: how long after the trigger
that was."""


class Slice(msgspec.Struct, frozen=True):
    """``slots``: how many clients each group has that its nodes lead, relative to the others."""

    number: int
    nodes: int
    clients: int
    slots: tuple[int, ...]


def slices_of(scenario: Scenario) -> list[Slice]:
    """The slices of a scenario's cluster: of three nodes each, and where that does not come out even, of one more."""
    nodes, groups = scenario.cluster.nodes, scenario.cluster.groups
    all_slots = _slots(scenario)
    found, given, clients = [], 0, 0
    for number in range(_count(nodes)):
        first, end = _first_node(nodes, number), _first_node(nodes, number + 1)
        slots = tuple(slot for at in range(0, groups, nodes) for slot in all_slots[at + first : at + end])
        given += sum(slots)
        until = scenario.clients * given // sum(all_slots)
        if until > clients:
            found.append(Slice(number, end - first, until - clients, slots))
        clients = until
    return found


def _count(nodes: int) -> int:
    return max(1, nodes // REPLICAS)


def _first_node(nodes: int, number: int) -> int:
    return nodes * number // _count(nodes)


def _slots(scenario: Scenario) -> Sequence[int]:
    cluster = scenario.cluster
    return cluster.clients if cluster.is_uneven else slots_of_groups(cluster.groups)


def struck(scenario: Scenario) -> set[int]:
    """Slices in which a leader changes: they are unlike the others."""
    nodes = scenario.cluster.nodes
    ends = [_first_node(nodes, number + 1) for number in range(_count(nodes))]
    return {bisect.bisect(ends, node) for node, _ in scenario.dying()}


def _handovers(scenario: Scenario, part: Slice | None = None) -> Iterator[Handover]:
    """Those of the storm, or of the nodes of a slice, which have numbers of their own."""
    nodes = scenario.cluster.nodes
    first, end = 0, nodes
    if part is not None:
        first, end = (_first_node(nodes, number) for number in (part.number, part.number + 1))
    for node, change in scenario.dying():
        if first <= node < end:
            yield Handover(change.at_s, node - first, change.outage_s, change.slowdown)


def sampled(scenario: Scenario, sample: int | None, seed: int) -> list[Slice]:
    """So many of the slices, drawn at random; None: all, or of a large storm as many as are done within minutes. Those
    in which a leader changes are always among them (:func:`struck`), and at least one of the others. Raises
    ScenarioError."""
    found = slices_of(scenario)
    largest = max(one.clients for one in found)
    if largest > CLIENTS_MAX:
        raise ScenarioError(
            f"a slice of three nodes has {largest:,} clients, and the model of requests can hold {CLIENTS_MAX:,}: give"
            f" the scenario {math.ceil(scenario.clients / CLIENTS_MAX * REPLICAS):,} nodes (cluster.nodes) or more"
        )
    if sample is None:
        sample = len(found) if scenario.clients <= SAMPLED_CLIENTS else max(2, SAMPLED_CLIENTS // largest)
    if sample >= len(found):
        return found
    rare = struck(scenario)
    alike = [one for one in found if one.number not in rare]
    chosen = random.Random(seed).sample(alike, min(len(alike), max(1, sample - len(rare))))
    return sorted([*chosen, *(one for one in found if one.number in rare)], key=lambda one: one.number)


def unknown(scenario: Scenario) -> Iterator[str]:
    """What the scenario has and the model does not know, in words."""
    if scenario.cluster.queue_items != Cluster().queue_items:
        yield "a bound of queues by items: the server bounds them by time"


def storm_of_scenario(scenario: Scenario, seed: int, part: Slice | None = None) -> Storm:
    """The scenario's storm, or a slice of it. A group's queue is bounded by time, as the server's is. Raises
    ScenarioError if the model cannot hold it."""
    brokers, groups = scenario.brokers.count, scenario.cluster.groups
    clients = scenario.clients if part is None else part.clients
    if part is not None:
        seed += _SEEDS_APART * part.number
    settings = Settings(
        population=Population(kinds=tuple(_kinds(scenario)), timeout_s=scenario.client_timeout_s),
        sessions=clients,
        brokers=brokers,
        processes=brokers,
        policy="return-slot" if scenario.returns.of_capacity else "population",
        batch=min(scenario.brokers.batch_items, 1_000),
        linger_ms=max(scenario.brokers.linger_ms, _COARSE_MS if clients > _COARSE_CLIENTS else _LINGER_MS_MIN),
        limit_s=scenario.horizon_s,
        background=0.0,
        seed=seed,
    )
    # When clients learn of the disconnect depends on nothing else, so one node has them all.
    one = Cluster(nodes=1, groups=1)
    alone = replace(scenario, clients=clients, brokers=Brokers(), cluster=one, leader_changes=())
    (node_input,) = node_inputs(alone, Calibration(turn_s=1.0, item_s=1.0))
    storm = storm_from(
        settings,
        nodes=scenario.cluster.nodes if part is None else part.nodes,
        data_groups=groups if part is None else len(part.slots),
        begin_ns=firsts_us(node_input, seed) * 1000,
        slots=_slots(scenario) if part is None else part.slots,
    )
    lane_calls = max(1, scenario.brokers.concurrency // groups)
    share = clients / scenario.clients
    doors, door_ns = 0, 0
    if per_s := scenario.brokers.connects_per_s * share * brokers:
        doors, row = doors_of(brokers, np.array([per_s]))
        door_ns = int(row[0])
    return replace(
        storm,
        lane_calls=lane_calls,
        broker_share=share,
        losses=tuple(_losses(scenario)),
        doors=doors,
        door_ns=door_ns,
        budget=scenario.retry_budget,
        leader_changes=tuple(_handovers(scenario, part)),
    )


def _losses(scenario: Scenario) -> Iterator[tuple[float, ...]]:
    """Of the same kinds as :func:`_kinds`."""
    if any(region.loss for region in scenario.regions):
        for region, transport, _ in shares(scenario):
            yield loss_shares(scenario.regions[region].loss, ROUND_TRIPS[transport])


def _kinds(scenario: Scenario) -> Iterator[Kind]:
    for (region, transport, sdk), share in shares(scenario).items():
        near, policy = scenario.regions[region], scenario.sdks[sdk]
        yield Kind(
            name=f"{near.name}, {TRANSPORTS[transport]}, {policy.name}",
            share=share,
            region=near.name,
            rtt_ms=ROUND_TRIPS[transport] * near.rtt_ms,
            backoff=policy.backoff(),
            subscriptions=round(scenario.sessions.subscriptions),
        )


def costs_apart(costs: Costs, storm: Storm) -> Costs:
    """The costs where each process has a core to itself."""
    cores = storm.nodes + storm.settings.processes + len(storm.leader_changes)
    return replace(costs, cores=cores, unused_cores=0.0, unled_cores=0.0)


# --- tasks, and what they give


def tasks_of(run: str, scenario: Scenario, costs: Costs, parts: Sequence[Slice], seeds: Sequence[int]) -> pa.Table:
    """A row for each seed and slice (:data:`TASKS`)."""
    # Sessions may live for ever, which JSON has no number for; and the model does not ask.
    sessions = replace(scenario.sessions, expiries=Sessions().expiries)
    common = {
        "run": run,
        "scenario": msgspec.json.encode(replace(scenario, sessions=sessions)).decode(),
        "costs": msgspec.json.encode(costs).decode(),
    }
    made = [
        {"seed": seed, "slice": part.number, "nodes": part.nodes, "clients": part.clients, "slots": list(part.slots)}
        for seed in seeds
        for part in parts
    ]
    rows = [{"place": place, **common, **one} for place, one in enumerate(made)]
    return pa.Table.from_pylist(rows, schema=TASKS)


def simulated(task: dict[str, Any], look: Look | None = None) -> pa.RecordBatch:
    """The rows of a task. The same task gives the same rows anywhere. Raises ScenarioError."""
    scenario = msgspec.json.decode(task["scenario"], type=Scenario)
    costs = msgspec.json.decode(task["costs"], type=Costs)
    part = Slice(task["slice"], task["nodes"], task["clients"], tuple(task["slots"]))
    storm = storm_of_scenario(scenario, task["seed"], part)
    played = play(storm, costs_apart(costs, storm), task["seed"] + _SEEDS_APART * part.number, look)
    return _rows(task, storm, played)


def _rows(task: dict[str, Any], storm: Storm, played: Played) -> pa.RecordBatch:
    clients = played.clients
    regions = list(dict.fromkeys(kind.region for kind in storm.settings.population.kinds))
    seconds = math.ceil(storm.settings.limit_s) + 1
    back = clients.restored_s != AWAY
    began = np.minimum((storm.begin_ns // 1_000_000_000).astype(np.int64), seconds - 1)
    ended = np.minimum(clients.restored_s.astype(np.int64), seconds - 1)
    places = clients.region * seconds
    sizes = len(regions) * seconds
    begun = np.bincount(places + began, minlength=sizes)
    restored = np.bincount((places + ended)[back], minlength=sizes)
    waits = _binned((places + ended)[back], clients.restored_s[back] - storm.begin_ns[back] / 1e9)
    storms = _binned((places + ended)[back], clients.restored_s[back])
    counts = [begun, restored, *(clients.told(name).ravel() for name in ("attempts", "refused", "timeouts"))]
    there = np.flatnonzero(sum(counts))
    names = [regions[place // seconds] for place in there.tolist()]
    columns = [
        *([task[name]] * len(there) for name in ("run", "seed", "slice")),
        (there % seconds).tolist(),
        names,
        *(each[there] for each in counts),
        *([found.get(place, []) for place in there.tolist()] for found in (waits, storms)),
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _binned(places: npt.NDArray[np.int64], times_s: npt.NDArray[np.float64]) -> dict[int, list[tuple[int, int]]]:
    """The histogram of each place, as pairs of a bin and a count."""
    found: dict[int, list[tuple[int, int]]] = {}
    keys, counts = np.unique(places * BINS + bin_of(times_s), return_counts=True)
    for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
        found.setdefault(key // BINS, []).append((key % BINS, count))
    return found


# --- sums


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """What rows add up to, by seed and slice: counts, and the two histograms by bin."""

    clients: dict[tuple[int, int], int]
    restored: dict[tuple[int, int], int]
    attempts: dict[tuple[int, int], int]
    refused: dict[tuple[int, int], int]
    timeouts: dict[tuple[int, int], int]
    waits: dict[tuple[int, int], npt.NDArray[np.float64]]
    storm: dict[tuple[int, int], npt.NDArray[np.float64]]


COUNTS: Final = ("clients", "restored", "attempts", "refused", "timeouts")
HISTOGRAMS: Final = {"waits": "histogram", "storm": "storm_histogram"}


def sums_of(counts: Sequence[dict[str, Any]], bins: dict[str, Sequence[dict[str, Any]]]) -> Sums:
    """From rows of sums: a row of counts for each seed and slice, and a row for each bin of each histogram."""
    found: dict[str, Any] = {name: {(row["seed"], row["slice"]): row[name] for row in counts} for name in COUNTS}
    for name, rows in bins.items():
        found[name] = {(row["seed"], row["slice"]): np.zeros(BINS) for row in counts}
        for row in rows:
            found[name][row["seed"], row["slice"]][row["bin"]] = row["count"]
    return Sums(**found)


def summed(batches: Sequence[pa.RecordBatch]) -> Sums:
    """The sums of rows that are here; :func:`metad_spark.pipeline.slices.summed` makes them by queries of Spark."""
    table = pa.Table.from_batches(list(batches), schema=SCHEMA)
    by = ["seed", "slice"]
    counts = table.group_by(by).aggregate([(name, "sum") for name in COUNTS])
    counts = counts.rename_columns([name.removesuffix("_sum") for name in counts.column_names])
    bins: dict[str, Sequence[dict[str, Any]]] = {}
    for name, column in HISTOGRAMS.items():
        pairs = table[column].combine_chunks()
        parents = np.repeat(np.arange(table.num_rows), np.diff(pairs.offsets.to_numpy()))
        flat = table.select(by).take(pa.array(parents))
        flat = flat.append_column("bin", pairs.keys).append_column("count", pairs.items)
        added = flat.group_by([*by, "bin"]).aggregate([("count", "sum")])
        bins[name] = added.rename_columns([*by, "bin", "count"]).to_pylist()
    return sums_of(counts.to_pylist(), bins)


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A storm from some of its slices. Times as in :class:`.simulate.Outcome`. ``errors_pct``: for each number two
    standard errors of the choice of slices, which are rough themselves where these are few; None where it is not known:
    of one slice, or where that share of the clients never came back in some."""

    restored: int
    t50_s: float | None
    t99_s: float | None
    t999_s: float | None
    p50_s: float | None
    p99_s: float | None
    p999_s: float | None
    attempts_per_client: float
    rejected: int
    timeouts: int
    errors_pct: dict[str, float | None]


ESTIMATED: Final = ("t50_s", "t99_s", "t999_s", "attempts_per_client")
_SHARES: Final = {"t50_s": 0.5, "t99_s": 0.99, "t999_s": 0.999}


def weights(scenario: Scenario, clients: Mapping[int, float]) -> dict[int, float]:
    """Of slices that were simulated, by their numbers: one in which a leader changes stands for itself only, the others
    for all that are like them. ``clients``: of each."""
    rare = struck(scenario)
    if not rare:
        return dict.fromkeys(clients, 1.0)
    whole = sum(part.clients for part in slices_of(scenario) if part.number not in rare)
    drawn = sum(count for number, count in clients.items() if number not in rare)
    return {number: drawn / whole if number in rare and drawn else 1.0 for number in clients}


def estimated(sums: Sums, seed: int, scenario: Scenario) -> Estimate:
    """The scenario's storm with this seed (:func:`weights`)."""
    rare = struck(scenario)
    clients = {key[1]: sums.clients[key] for key in sums.clients if key[0] == seed}
    drawn = [number for number in clients if number not in rare]
    of = sum(part.number not in rare for part in slices_of(scenario))

    def numbers(without: int | None = None) -> dict[str, Any]:
        mine = weights(scenario, {number: count for number, count in clients.items() if number != without})
        return _numbers(sums, {(seed, number): weight for number, weight in mine.items()})

    whole = numbers()
    scale = scenario.clients / whole["clients"]
    errors = {name: None if len(drawn) < of else 0.0 for name in ESTIMATED}
    if 1 < len(drawn) < of:
        left_out = [numbers(one) for one in drawn]
        errors = {name: _jackknife_pct([one[name] for one in left_out], whole[name], of) for name in ESTIMATED}
    return Estimate(
        restored=round(whole["restored"] * scale),
        rejected=round(whole["refused"] * scale),
        timeouts=round(whole["timeouts"] * scale),
        errors_pct=errors,
        **{name: whole[name] for name in (*_SHARES, "p50_s", "p99_s", "p999_s", "attempts_per_client")},
    )


def _numbers(sums: Sums, weights: dict[tuple[int, int], float]) -> dict[str, Any]:
    """Of some slices together, each times its weight."""
    counts = {name: sum(getattr(sums, name)[key] * weight for key, weight in weights.items()) for name in COUNTS}
    waits, storm = (
        np.sum([of[key] * weight for key, weight in weights.items()], axis=0) for of in (sums.waits, sums.storm)
    )
    found: dict[str, Any] = {name: quantile_s(storm, share, counts["clients"]) for name, share in _SHARES.items()}
    found |= {f"p{name[1:]}": quantile_s(waits, share, counts["restored"]) for name, share in _SHARES.items()}
    return counts | found | {"attempts_per_client": counts["attempts"] / max(1, counts["clients"])}


def _jackknife_pct(others: Sequence[float | None], whole: float | None, of: int) -> float | None:
    """Tukey's jackknife: how much the number changes when each slice is left out (Miller, "The jackknife: a review",
    1974), less what the slices that are simulated are of all. Two standard errors."""
    known = [one for one in others if one is not None]
    if whole is None or not whole or len(known) < len(others):
        return None
    count, mean = len(known), sum(known) / len(known)
    variance = (count - 1) / count * sum((one - mean) ** 2 for one in known) * (1 - count / of)
    return 100.0 * 2.0 * math.sqrt(variance) / whole
