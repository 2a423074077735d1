"""``metad-spark size``: the smallest cluster that ends a storm in time, its cost, and its distance from collapse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from metad_wire.cluster import SLOTS

from .brokers.storm import Storms, simulate_storms
from .calibration import load_calibration
from .changes import Grid, grid
from .errors import UsageError
from .models.results import StormResult
from .output import say, table, warn, write_json
from .pipeline.context import open_context
from .reduced import reduced
from .report import content
from .run_simulate import DISAGREE, KEYS
from .scenario import Scenario, load_scenario
from .sizing import Option, Sizing, size
from .target import Target
from .wording import UNVALIDATED, percent, seconds

_OPTIONS_SHOWN = 12
_CHECKED_CLIENTS_MAX = 10_000_000
"""More clients are checked at a reduced scale: all clients of a small cluster at once would take gigabytes and
minutes."""


def run(
    *,
    target: Target,
    scenario: str,
    calibration: str | None,
    clients: int | None,
    seed: int,
    check: bool,
    master: str | None,
    connect: bool,
    json: Path | None,
) -> int:
    """0 where a cluster was found (and, with ``check``, the vector model agrees); 1 where there is none; 3 where the
    models disagree."""
    wanted = load_scenario(scenario)
    costs = load_calibration(calibration or wanted.calibration)
    if clients is not None:
        wanted = replace(wanted, clients=clients)
    if target.seconds >= wanted.horizon_s:
        raise UsageError(f"the scenario ends after {wanted.horizon_s:g} s: no target can be later than that")
    with open_context(master=master, connect=connect) as context:
        found = size(wanted, costs, target, context.sweep)
        around, cells = None, []
        if found.nearest is not None:
            around = grid(found.nearest.scenario, costs)
            flat = context.sweep([one for line in around.scenarios for one in line], costs)
            wide = len(around.columns)
            cells = [flat[at : at + wide] for at in range(0, len(flat), wide)]
        checked: Storms | None = None
        scale = 1.0
        if check and found.best is not None:
            checkable, checkable_costs, scale = reduced(found.best.scenario, costs, _CHECKED_CLIENTS_MAX)
            checked = simulate_storms(checkable, checkable_costs, model="vector", seeds=[seed], run=context.run)
        cost = context.cost()
    faults = _faults(found, checked)
    told = _told(found, checked, scale, faults) | {"scenario": wanted.name, "seed": seed} | cost
    if around is not None:
        told["boundary"] = _boundary(around, cells)
    write_json(json, told)
    _print(found, wanted, around, cells, checked, scale)
    for fault in faults:
        warn(fault)
    say(f"{len(found.options) + len(found.loads) + sum(map(len, cells))} storms in {cost['wall_s']:.0f} s,"
        f" {cost['rss_max_mib']:,.0f} MiB. {UNVALIDATED}")  # fmt: skip
    if faults:
        return DISAGREE
    return 0 if found.best is not None else 1


def _faults(found: Sizing, checked: Storms | None) -> list[str]:
    """Why the answer must not be relied on."""
    if checked is None or found.best is None:
        return []
    faults = list(checked.faults)
    if not _meets(checked.middle, found.target):
        faults.append(
            f"The models disagree: {found.best.nodes} nodes meet the target by the {found.best.storm.model} model, and"
            f" miss it by the vector model ({_time(content.reached_s(checked.middle, found.target))})."
        )
    return faults


def _told(found: Sizing, checked: Storms | None, scale: float, faults: Sequence[str]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "target": str(found.target),
        "met": found.best is not None and not faults,
        "faults": list(faults),
        "why_none": found.why_none or None,
        "checked": None if checked is None else {"model": "vector", "scale": scale, **_keys(checked.middle)},
        "misses_at_load": found.misses_at,
        "collapses_at_load": found.collapses_at,
        "loads": [{"load": load.factor, "meets": load.meets, **_keys(load.storm)} for load in found.loads],
        "options": [
            {"shape": option.shape, "meets": option.meets, **_settings(option.scenario), **_keys(option.storm)}
            for option in found.options
        ],
        "rounds": found.rounds,
    }
    if (chosen := found.nearest) is not None:
        told |= _settings(chosen.scenario)
        told |= {"shape": chosen.shape, "costs": chosen.costs, "storm": _keys(chosen.storm)}
    return told


def _boundary(around: Grid, cells: Sequence[Sequence[StormResult]]) -> dict[str, Any]:
    return {
        "rows": around.rows,
        "columns": around.columns,
        "t999_s": [[cell.t999_s for cell in line] for line in cells],
        "restored": [[cell.restored / cell.clients for cell in line] for line in cells],
    }


def _settings(scenario: Scenario) -> dict[str, Any]:
    """What the search chooses. Everything else is the scenario's."""
    cluster = scenario.cluster
    return {"nodes": cluster.nodes, "groups": cluster.groups, "batch_items": cluster.batch_items}


def _keys(storm: StormResult) -> dict[str, Any]:
    return {key: getattr(storm, key) for key in KEYS}


def _meets(storm: StormResult, target: Target) -> bool:
    reached = content.reached_s(storm, target)
    return reached is not None and reached <= target.seconds


def _print(
    found: Sizing,
    asked: Scenario,
    around: Grid | None,
    cells: Sequence[Sequence[StormResult]],
    checked: Storms | None,
    scale: float,
) -> None:
    chosen = found.nearest
    if chosen is None or around is None:
        say(f"No cluster meets {found.target}: {found.why_none}.")
        return
    shown = sorted(found.options, key=lambda option: (not option.meets, option.nodes, option.storm.attempts_per_client))
    table(
        f"{asked.clients:,} clients, {found.target}: what was tried, the best first",
        ["cluster", "shape", "entries", str(found.target), "attempts", "back at the end", "model"],
        [_row(option, found.target) for option in shown[:_OPTIONS_SHOWN]],
    )
    settings = _settings(chosen.scenario)
    what = "what to set" if found.best is not None else "what comes nearest"
    table(what, ["setting", "in metad", "value", "what it costs"], [
        [name, _IN_METAD[name], f"{settings[name]:,}", price] for name, price in chosen.costs.items()
    ])  # fmt: skip
    table(
        "where it collapses: 99.9 % back, by a group's queue and the cluster's size",
        ["queue", *around.columns],
        [[row, *(_cell(cell) for cell in line)] for row, line in zip(around.rows, cells, strict=True)],
    )
    if found.best is None:
        say(f"No cluster of up to {SLOTS:,} nodes meets {found.target}; {chosen.nodes} nodes come nearest.")
        return
    cluster = found.best.scenario.cluster
    say(
        f"{cluster.nodes} nodes with {cluster.groups} groups: {found.target.share * 100:g} % are back after"
        f" {_time(content.reached_s(found.best.storm, found.target))} by the {found.best.storm.model} model"
        + (f", {_time(content.reached_s(checked.middle, found.target))} by the vector model" if checked else "")
        + (f" with everything at {scale:.3g} of its size." if checked is not None and scale < 1 else ".")
    )
    say(_headroom(found))


_IN_METAD = {"nodes": "nodes", "groups": "groups.data", "batch_items": "commit.entry_items_max"}
"""What the settings are called in metad's configuration."""


def _headroom(found: Sizing) -> str:
    """How far the chosen cluster is from missing the target and from collapse, in a sentence."""
    most = found.loads[-1].factor
    misses = f"It misses the target with {found.misses_at:g} times as many clients" if found.misses_at else (
        f"It meets the target with {most:g} times as many clients, too")  # fmt: skip
    collapses = f"it collapses with {found.collapses_at:g} times as many." if found.collapses_at else (
        f"it does not collapse with {most:g} times as many.")  # fmt: skip
    return f"{misses}, and {collapses}"


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
