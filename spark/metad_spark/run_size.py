"""``metad-spark size``: the smallest cluster that has a storm over in time, its price, how near it is to collapse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from .brokers.storm import simulate_storms
from .calibration import load_calibration
from .changes import Grid, grid
from .errors import UsageError
from .models.results import StormResult
from .output import say, table, write_json
from .pipeline.context import open_context
from .reduced import reduced
from .report import content
from .run_simulate import KEYS
from .scenario import Scenario, load_scenario
from .sizing import Option, Sizing, size
from .target import Target
from .wording import seconds, short

_OPTIONS_SHOWN = 12
_CHECKED_CLIENTS_MAX = 10_000_000
"""More are checked at a reduced scale: all clients of a small cluster at once would take gigabytes and minutes."""


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
    """0 where a cluster was found (and, with ``check``, the vector model agrees), else 1."""
    wanted = load_scenario(scenario)
    costs = load_calibration(calibration or wanted.calibration)
    if clients is not None:
        wanted = replace(wanted, clients=clients)
    if target.seconds >= wanted.horizon_s:
        raise UsageError(f"the scenario ends after {wanted.horizon_s:g} s: no target can be later than that")
    with open_context(master=master, connect=connect) as context:
        found = size(wanted, costs, target, context.sweep)
        chosen = found.nearest
        around = grid(chosen.scenario, costs)
        flat = context.sweep([one for line in around.scenarios for one in line], costs)
        wide = len(around.columns)
        cells = [flat[at : at + wide] for at in range(0, len(flat), wide)]
        checked: StormResult | None = None
        checkable, checkable_costs, scale = reduced(chosen.scenario, costs, _CHECKED_CLIENTS_MAX)
        if check and found.best is not None:
            checked = simulate_storms(checkable, checkable_costs, model="vector", seeds=[seed], run=context.run).middle
        cost = context.cost()
    agreed = checked is None or _meets(checked, target)
    write_json(json, _told(found, around, cells, checked, scale) | {"scenario": wanted.name, "seed": seed} | cost)
    _print(found, wanted, around, cells, checked, scale)
    say(f"{len(found.options) + len(flat)} storms in {cost['wall_s']:.0f} s, {cost['rss_max_mib']:,.0f} MiB.")
    return 0 if found.best is not None and agreed else 1


def _told(
    found: Sizing, around: Grid, cells: Sequence[Sequence[StormResult]], checked: StormResult | None, scale: float
) -> dict[str, Any]:
    chosen = found.nearest
    return {
        "target": str(found.target),
        "met": found.best is not None,
        **_settings(chosen.scenario),
        "costs": chosen.costs,
        "policy": chosen.policy,
        "storm": _keys(chosen.storm),
        "checked": None if checked is None else {"model": "vector", "scale": scale, **_keys(checked)},
        "boundary": {
            "rows": around.rows,
            "columns": around.columns,
            "t999_s": [[cell.t999_s for cell in line] for line in cells],
            "restored": [[cell.restored / cell.clients for cell in line] for line in cells],
        },
        "options": [
            {"policy": option.policy, "meets": option.meets, **_settings(option.scenario), **_keys(option.storm)}
            for option in found.options
        ],
        "rounds": found.rounds,
    }


def _settings(scenario: Scenario) -> dict[str, Any]:
    cluster = scenario.cluster
    return {
        "nodes": cluster.nodes,
        "groups": cluster.groups,
        "batch_items": cluster.batch_items,
        "linger_ms": scenario.brokers.linger_ms,
        "queue_items": cluster.queue_items,
        "returns": msgspec.to_builtins(scenario.returns),
    }


def _keys(storm: StormResult) -> dict[str, Any]:
    return {key: getattr(storm, key) for key in KEYS}


def _meets(storm: StormResult, target: Target) -> bool:
    reached = content.reached_s(storm, target)
    return reached is not None and reached <= target.seconds


def _print(
    found: Sizing,
    asked: Scenario,
    around: Grid,
    cells: Sequence[Sequence[StormResult]],
    checked: StormResult | None,
    scale: float,
) -> None:
    chosen = found.nearest
    shown = sorted(found.options, key=lambda option: (not option.meets, option.nodes, option.storm.attempts_per_client))
    table(
        f"{asked.clients:,} clients, {found.target}: what was tried, the best first",
        ["cluster", "policy", "queue", "entries", "linger ms", str(found.target), "attempts", "back at the end"],
        [_row(option, found.target) for option in shown[:_OPTIONS_SHOWN]],
    )
    cluster = chosen.scenario.cluster
    settings = _settings(chosen.scenario)
    what = "what to set" if found.best is not None else "what comes nearest"
    table(what, ["setting", "value", "what it costs"], [
        [name, f"{settings[name]:,}" if name in settings and name != "returns" else _returns(chosen.scenario), price]
        for name, price in chosen.costs.items()
    ])  # fmt: skip
    table(
        "where it collapses: 99.9 % back, by a group's queue and the cluster's size",
        ["queue", *around.columns],
        [[row, *(_cell(cell) for cell in line)] for row, line in zip(around.rows, cells, strict=True)],
    )
    if found.best is None:
        say(f"No cluster that was tried meets {found.target}; {chosen.nodes} nodes come nearest.")
        return
    say(
        f"{cluster.nodes} nodes with {cluster.groups} groups meet it: {found.target.share * 100:g} % are back after"
        f" {seconds(content.reached_s(chosen.storm, found.target) or 0)} by the fluid model"
        + (f", {_time(content.reached_s(checked, found.target))} by the vector model" if checked is not None else "")
        + (f" with everything at {scale:.3g} of its size." if checked is not None and scale < 1 else ".")
    )


def _row(option: Option, target: Target) -> list[str]:
    cluster = option.scenario.cluster
    return [
        f"{cluster.nodes} nodes, {cluster.groups} groups",
        option.policy,
        short(cluster.queue_items) if cluster.queue_items else "no bound",
        f"{cluster.batch_items:,}",
        f"{option.scenario.brokers.linger_ms:g}",
        _time(content.reached_s(option.storm, target)),
        f"{option.storm.attempts_per_client:.3g}",
        content.percent(option.storm.restored / option.storm.clients),
    ]


def _returns(scenario: Scenario) -> str:
    share = scenario.returns.of_capacity
    return f"slots for {share * 100:g} % of what it serves" if share else "none"


def _cell(cell: StormResult) -> str:
    return _time(cell.t999_s) if cell.t999_s is not None else f"never: {content.percent(cell.restored / cell.clients)}"


def _time(value: float | None) -> str:
    return "never" if value is None else seconds(value)
