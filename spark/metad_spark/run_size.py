"""``metad-spark size``: the smallest cluster that ends a storm in time, its cost, and its distance from collapse.

A search asks for many storms (57 for ten million clients in 60 s), and one slice of three nodes with all of these took
the model of requests 323 s: so the vector model searches, in 35 s there, and the model of requests says what it makes
of the answer and of its neighbour.

What to set in metad for a scenario's cluster, and what each setting costs. Pure.

Only keys that ``metad config`` knows; a test compares every one with metad's declarations, and checks whole
configurations by metad's own rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from metad_wire.cluster import SLOTS

from . import band, sliced
from .calibration import Calibration, load_calibration
from .changes import Grid, grid, queue_s, serves
from .errors import ScenarioError, UsageError
from .models.results import StormResult
from .output import say, table, warn, write_json
from .pipeline.context import Context, open_context
from .population import fullest, in_words, load_census, to_size
from .population import told as census_told
from .report import content
from .requests import slices
from .requests.costs import load_costs
from .run_simulate import DISAGREE, KEYS
from .scenario import Scenario, load_scenario
from .sizing import (
    CONNECTIONS_MAX,
    IN_FLIGHT_BYTES,
    MIB,
    NODES_MIN,
    OWNER_CACHE_BYTES,
    REPLICAS,
    WIRE_BYTES,
    Footprint,
    Option,
    Sizing,
    footprint,
    size,
    sized,
)
from .tables.run import REQUESTS
from .tables.store import Store
from .target import Target
from .validation import last_verdict, validity
from .wording import percent, seconds

_ENTRY_BYTES = MIB
"""``commit.entry_bytes_max`` by default."""
_RETURNING_PER_S_MAX = 100_000_000
"""As the service takes it."""
_QUEUE_MS_MAX = 3_600_000
"""In place of no bound, which metad does not have: nobody waits for so long."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One key of metad's configuration."""

    key: str
    """As in ``groups.data``."""
    value: int
    cost: str
    """What it costs the operator, in words."""


def settings(scenario: Scenario, calibration: Calibration) -> list[Setting]:
    """What differs from metad's defaults, or must be as the simulation took it. The same on all nodes."""
    cluster, needs = scenario.cluster, footprint(scenario)
    led = cluster.groups / cluster.nodes
    turn_s = calibration.turn_s + led * (calibration.entry_s + calibration.item_s * cluster.batch_items)
    found = [
        Setting(
            key="groups.data",
            value=cluster.groups,
            cost=f"{led * calibration.entry_s * 1000:.1f} ms of each turn, for {led:.3g} groups a node",
        ),
        Setting(
            key="commit.entry_items_max",
            value=cluster.batch_items,
            cost=f"a full turn takes {turn_s * 1000:.0f} ms, and who comes then waits for it",
        ),
        Setting(
            key="limits.queue_ms",
            value=queue_ms(scenario, calibration),
            cost="who waits in front of a group waits no longer; more are turned away where it is shorter",
        ),
    ]
    entry_bytes = cluster.batch_items * WIRE_BYTES
    if entry_bytes > _ENTRY_BYTES:
        found.append(_bytes("commit.entry_bytes_max", entry_bytes, "of each entry on the disk and on the network"))
    if scenario.returns.of_capacity:
        per_node = scenario.returns.of_capacity * serves(scenario, calibration) / cluster.nodes
        found.append(
            Setting(
                key="limits.returning_per_s",
                value=max(1, min(_RETURNING_PER_S_MAX, round(per_node))),
                cost="who is turned away comes back no faster, also where a node could do more",
            )
        )
    return found + _memory(needs)


def queue_ms(scenario: Scenario, calibration: Calibration) -> int:
    """metad bounds a queue by the time that it takes, the simulation by items."""
    return max(1, min(_QUEUE_MS_MAX, round(1000 * min(queue_s(scenario, calibration), _QUEUE_MS_MAX / 1000))))


def _memory(needs: Footprint) -> list[Setting]:
    """Budgets that are too small by default."""
    found = []
    if needs.in_flight_bytes > IN_FLIGHT_BYTES:
        found.append(_bytes("limits.in_flight_bytes_max", needs.in_flight_bytes, "of memory, when all queues are full"))
    if needs.owner_cache_bytes > OWNER_CACHE_BYTES:
        found.append(_bytes("storage.owner_cache_bytes", needs.owner_cache_bytes, "of memory"))
    if needs.connections > CONNECTIONS_MAX:
        found.append(
            Setting(key="limits.connections_max", value=needs.connections, cost="memory of connections, and handshakes")
        )
    return found


def _bytes(key: str, value: int, what: str) -> Setting:
    return Setting(key=key, value=value, cost=f"{value / MIB:,.0f} MiB {what}")


def to_toml(chosen: list[Setting]) -> str:
    """The settings as a part of a file for ``metad serve --config``, each below what it costs."""
    sections: dict[str, list[str]] = {}
    for setting in chosen:
        section, _, key = setting.key.partition(".")
        sections.setdefault(section, []).extend(
            [f"# {setting.cost}", f"{key} = {msgspec.json.encode(setting.value).decode()}"]
        )
    return "\n".join(line for section, lines in sections.items() for line in (f"[{section}]", *lines, "")) + ""


_OPTIONS_SHOWN = 12
_SEEDS = 3
"""Of a storm that is checked, where that is quick; of larger ones the choice of slices says more than chance does."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What the model of requests makes of a cluster."""

    scenario: Scenario
    storm: StormResult
    answer: sliced.Answer
    meets: bool
    band_s: tuple[float | None, float | None]
    """Over seeds and slices; inside of what was checked, and by as much more as predictions of storms were off."""
    validation: str

    def told(self, key: str) -> dict[str, Any]:
        """For the JSON. ``key``: of the target's time."""
        return {
            "model": REQUESTS,
            "meets": self.meets,
            **_sizes(self.scenario),
            **_keys(self.storm),
            "band": {key: list(self.band_s), "seeds": len(self.answer.runs)},
            "slices": self.answer.of,
            "sampled": self.answer.sampled,
            "left_out": list(slices.unknown(self.scenario)),
            "validation": self.validation,
        }

    def words(self, target: Target) -> str:
        """In a sentence."""
        low, high = self.band_s
        return (
            f"{self.scenario.cluster.nodes} nodes by the model of requests, from {self.answer.sampled} of"
            f" {self.answer.of} slices: {target.share * 100:g} % are back after"
            f" {_time(content.reached_s(self.storm, target))} ({_time(low)} to {_time(high)}), which"
            f" {'meets' if self.meets else 'misses'} the target."
        )


def confirm(scenario: Scenario, target: Target, seed: int, context: Context, store: Store | None) -> Checked:
    """Ask the model of requests for a cluster's storm. Raises ScenarioError where it cannot hold it."""
    few = _SEEDS if scenario.clients * _SEEDS <= slices.SAMPLED_CLIENTS else 1
    answer = sliced.answer_in(context, scenario, load_costs(), range(seed, seed + few), store=store)
    storm = answer.middle[0].storm
    validation, differs = sliced.validity(scenario, storm.rejected)
    verdict, key = last_verdict(), f"{target.key}_s"
    off_pct = 0.0 if verdict is None or differs else verdict.worst_pct.get(key, 0.0)
    return Checked(
        scenario=scenario,
        storm=storm,
        answer=answer,
        meets=_meets(storm, target) and not storm.collapsed,
        band_s=answer.band_s(key, off_pct),
        validation=validation,
    )


def _confirmed(
    best: Scenario, target: Target, seed: int, context: Context, store: Store | None
) -> tuple[list[Checked], str]:
    """The answer and its neighbour, and why one of them was not looked at."""
    found: list[Checked] = []
    try:
        found.append(confirm(best, target, seed, context, store))
        if (other := neighbour(found[0])) is not None:
            found.append(confirm(other, target, seed, context, store))
    except ScenarioError as why:
        return found, f"Not all was asked of the model of requests: {why}."
    return found, ""


def neighbour(checked: Checked) -> Scenario | None:
    """A cluster of one node fewer, or of one more where the answer misses the target; None where there is none."""
    nodes = checked.scenario.cluster.nodes + (-1 if checked.meets else 1)
    return sized(checked.scenario, nodes) if NODES_MIN <= nodes <= SLOTS else None


def run(
    *,
    target: Target,
    scenario: str,
    calibration: str | None,
    clients: int | None,
    seed: int,
    check: bool,
    population: Path | None = None,
    master: str | None,
    connect: bool,
    json: Path | None,
    config: Path | None = None,
    tables: Path | None = None,
) -> int:
    """Write the answer to ``json``, what to set to ``config``, and what was tried to ``tables``; what these have is not
    tried again. 0 where a cluster was found (and, with ``check``, the model of requests agrees); 1 where there is none;
    3 where that disagrees."""
    wanted, counted, uneven = _asked(scenario, clients, population, target)
    costs = load_calibration(calibration or wanted.calibration)
    store = None if tables is None else Store(tables)
    if store is not None:
        store.prepare()
    with open_context(master=master, connect=connect) as context:
        sweep = context.sweep if store is None else store.compare(context.sweep, context.choice.runner)
        found = size(wanted, costs, target, sweep, uneven=uneven)
        around, cells = None, []
        if found.nearest is not None:
            around = grid(found.nearest.scenario, costs)
            flat = sweep([one for line in around.scenarios for one in line], costs)
            wide = len(around.columns)
            cells = [flat[at : at + wide] for at in range(0, len(flat), wide)]
        checked: list[Checked] = []
        unchecked = ""
        if check and found.best is not None:
            checked, unchecked = _confirmed(found.best.scenario, target, seed, context, store)
        cost = context.cost()
    faults = _faults(found, checked)
    told = _told(found, costs, checked, faults) | {"scenario": wanted.name, "seed": seed, "unchecked": unchecked} | cost
    told |= {"population": counted} if counted else {}
    if around is not None:
        told["boundary"] = _boundary(around, cells)
    write_json(json, told)
    if config is not None and found.best is not None:
        config.write_text(to_toml(settings(found.best.scenario, costs)))
    _print(found, wanted, costs, around, cells, checked)
    if found.band_s is not None:
        say(_band(found.band_s, costs))
    if counted:
        say(in_words(counted))
    for fault in [*faults, *filter(None, [unchecked])]:
        warn(fault)
    storms = len(found.options) + len(found.loads) + sum(map(len, cells))
    say(
        f"{storms} storms by the vector model in {cost['wall_s']:.0f} s, {cost['rss_max_mib']:,.0f} MiB."
        f" {validity('vector')}"
    )
    if faults:
        return DISAGREE
    return 0 if found.best is not None else 1


def _asked(
    scenario: str, clients: int | None, population: Path | None, target: Target
) -> tuple[Scenario, dict[str, Any], band.Uneven]:
    """The scenario to size, what is said of its census, and how uneven groups are. Raises UsageError."""
    wanted = load_scenario(scenario)
    uneven: band.Uneven = band.unevenness
    people = None if population is None else load_census(population)
    counted = {} if people is None else census_told(wanted, people)
    if people is not None:
        wanted = to_size(wanted, people)
        # With another number of clients, how many were counted in a slot is chance.
        uneven = band.unevenness if clients is not None else fullest(people)
    if clients is not None:
        wanted = replace(wanted, clients=clients)
    if target.seconds >= wanted.horizon_s:
        raise UsageError(f"the scenario ends after {wanted.horizon_s:g} s: no target can be later than that")
    return wanted, counted, uneven


def _faults(found: Sizing, checked: Sequence[Checked]) -> list[str]:
    """Why the answer must not be relied on."""
    if not checked or checked[0].meets:
        return []
    reached = _time(content.reached_s(checked[0].storm, found.target))
    return [
        f"The models disagree: {checked[0].scenario.cluster.nodes} nodes meet the target by the vector model, which is"
        f" not validated, and miss it by the model of requests ({reached})."
    ]


def _told(found: Sizing, costs: Calibration, checked: Sequence[Checked], faults: Sequence[str]) -> dict[str, Any]:
    key = f"{found.target.key}_s"
    told: dict[str, Any] = {
        "target": str(found.target),
        "met": found.best is not None and not faults,
        "faults": list(faults),
        "why_none": found.why_none or None,
        "proven": found.proven,
        "checked": checked[0].told(key) if checked else None,
        "neighbour": checked[1].told(key) if len(checked) > 1 else None,
        "misses_at_load": found.misses_at,
        "collapses_at_load": found.collapses_at,
        "loads": [{"load": load.factor, "meets": load.meets, **_keys(load.storm)} for load in found.loads],
        "options": [
            {
                "shape": option.shape,
                "meets": option.meets,
                "at_risk": option.at_risk or None,
                **_sizes(option.scenario),
                **_keys(option.storm),
            }
            for option in found.options
        ],
        "rounds": found.rounds,
    }
    if (chosen := found.nearest) is not None:
        needs = footprint(chosen.scenario)
        told |= _sizes(chosen.scenario)
        told |= {
            "shape": chosen.shape,
            "settings": {each.key: each.value for each in settings(chosen.scenario, costs)},
            "costs": {name: cost for name, _, _, cost in _prices(chosen.scenario, costs)},
            "each_node": {
                "memory_mib": needs.memory_bytes / MIB,
                "disk_mib": needs.disk_bytes / MIB,
                "replicas": needs.replicas_per_node,
                "sessions": needs.sessions_per_node,
                "connections": needs.connections,
            },
            "slots_per_group": {"min": needs.slots_per_group[0], "max": needs.slots_per_group[1]},
            "storm": _keys(chosen.likely or chosen.storm),
        }
    if (times := found.band_s) is not None and found.best is not None and found.low is not None:
        told["band"] = {
            "from": band.in_words(costs),
            "validation": validity("vector"),
            key: list(times),
            "low": _keys(found.low),
            "high": _keys(found.best.storm),
        }
    return told


def _boundary(around: Grid, cells: Sequence[Sequence[StormResult]]) -> dict[str, Any]:
    return {
        "rows": around.rows,
        "columns": around.columns,
        "t999_s": [[cell.t999_s for cell in line] for line in cells],
        "restored": [[cell.restored / cell.clients for cell in line] for line in cells],
    }


def _sizes(scenario: Scenario) -> dict[str, Any]:
    """What the search chooses. Everything else is the scenario's."""
    cluster = scenario.cluster
    return {
        "nodes": cluster.nodes,
        "groups": cluster.groups,
        "batch_items": cluster.batch_items,
        "brokers": scenario.brokers.count,
    }


def _prices(scenario: Scenario, costs: Calibration) -> list[tuple[str, str, str, str]]:
    """What the cluster consists of: a name, where metad has it, the value, the price."""
    needs = footprint(scenario)
    rows = [
        (
            "nodes",
            "cluster.seeds",
            f"{scenario.cluster.nodes:,}",
            f"each {needs.memory_bytes / MIB:,.0f} MiB of memory, {needs.disk_bytes / MIB / 1024:,.1f} GiB of disk;"
            f" {serves(scenario, costs) / 1000:,.0f} thousand items/s together, at best",
        ),
        ("brokers", "", f"{scenario.brokers.count:,}", f"{needs.connections:,} connections of each node"),
    ]
    return rows + [
        (_SHORT.get(each.key, each.key), each.key, f"{each.value:,}", each.cost) for each in settings(scenario, costs)
    ]


_SHORT = {"groups.data": "groups", "commit.entry_items_max": "batch_items"}
"""Settings that the scenario calls otherwise."""


def _keys(storm: StormResult) -> dict[str, Any]:
    return {key: getattr(storm, key) for key in KEYS}


def _meets(storm: StormResult, target: Target) -> bool:
    reached = content.reached_s(storm, target)
    return reached is not None and reached <= target.seconds


def _print(
    found: Sizing,
    asked: Scenario,
    costs: Calibration,
    around: Grid | None,
    cells: Sequence[Sequence[StormResult]],
    checked: Sequence[Checked],
) -> None:
    chosen = found.nearest
    if chosen is None or around is None:
        say(f"No cluster meets {found.target}: {found.why_none}.")
        return
    shown = sorted(found.options, key=lambda option: (not option.meets, option.nodes, option.storm.attempts_per_client))
    table(
        f"{asked.clients:,} clients, {found.target}: what was tried with costs at their high end, the best first",
        ["cluster", "shape", "entries", str(found.target), "attempts", "back at the end", "model"],
        [_row(option, found.target) for option in shown[:_OPTIONS_SHOWN]],
    )
    what = "what to set" if found.best is not None else "what comes nearest"
    table(what, ["", "in metad", "value", "what it costs"], _prices(chosen.scenario, costs))
    table(
        "where it collapses: 99.9 % back, by a group's queue and the cluster's size",
        ["queue", *around.columns],
        [[row, *(_cell(cell) for cell in line)] for row, line in zip(around.rows, cells, strict=True)],
    )
    if found.best is None or found.best.likely is None:
        say(f"No cluster meets {found.target}: {found.why_none}. {chosen.nodes} nodes come nearest.")
        return
    cluster = found.best.scenario.cluster
    say(
        f"{cluster.nodes} nodes with {cluster.groups} groups by the vector model: {found.target.share * 100:g} % are"
        f" back after {_time(content.reached_s(found.best.likely, found.target))}."
    )
    for one in checked:
        say(one.words(found.target))
    if len(checked) > 1 and all(one.meets for one in checked):
        say("So one node fewer may do, too: by the vector model, with costs at their high end, it does not.")
    for what in slices.unknown(found.best.scenario) if checked else ():
        warn(f"The model of requests leaves out {what}.")
    if checked:
        say(checked[0].validation)
    say(_slots(footprint(found.best.scenario), cluster.groups))
    say(_headroom(found))


def _band(times_s: tuple[float, float, float], costs: Calibration) -> str:
    low, _, high = times_s
    return f"Error band of the costs alone, not validated: {_time(low)} to {_time(high)} ({band.in_words(costs)})."


def _slots(needs: Footprint, groups: int) -> str:
    few, most = needs.slots_per_group
    each = f"{few}" if few == most else f"{few} or {most}"
    return (
        f"Each of the {groups:,} groups has {each} of the {SLOTS:,} slots and {REPLICAS} replicas, up to"
        f" {needs.replicas_per_node} on a node, with {needs.sessions_per_node:,} sessions."
    )


def _headroom(found: Sizing) -> str:
    """How far the chosen cluster is from missing the target and from collapse, in a sentence."""
    most = found.loads[-1].factor
    misses = f"it misses the target with {found.misses_at:g} times as many clients" if found.misses_at else (
        f"it meets the target with {most:g} times as many clients, too")  # fmt: skip
    collapses = f"it collapses with {found.collapses_at:g} times as many." if found.collapses_at else (
        f"it does not collapse with {most:g} times as many.")  # fmt: skip
    return f"With costs at their high end: {misses}, and {collapses}"


def _row(option: Option, target: Target) -> list[str]:
    cluster = option.scenario.cluster
    return [
        f"{cluster.nodes} nodes, {cluster.groups} groups",
        option.shape,
        f"{cluster.batch_items:,}",
        _time(content.reached_s(option.storm, target)),
        f"{option.storm.attempts_per_client:.3g}",
        percent(option.storm.restored / option.storm.clients),
        option.storm.model,
    ]


def _cell(cell: StormResult) -> str:
    return _time(cell.t999_s) if cell.t999_s is not None else f"never: {percent(cell.restored / cell.clients)}"


def _time(value: float | None) -> str:
    return "never" if value is None else seconds(value)
