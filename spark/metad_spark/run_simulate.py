"""``metad-spark simulate``: a storm, from a scenario to a few lines, JSON and a report."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from .brokers.storm import Storms, clients_by_region, simulate_storms
from .calibration import Calibration, load_calibration
from .changes import changes, grid
from .errors import DoesNotHold
from .models.results import StormResult
from .models.simulate import Model
from .output import say, table, warn, write_json
from .pipeline.context import Context, open_context
from .reduced import stand_in
from .report import content
from .report.page import Page
from .scenario import Scenario, load_scenario
from .target import Target
from .wording import UNVALIDATED, seconds, short

KEYS = (
    *("clients", "restored", "t50_s", "t99_s", "t999_s", "p50_s", "p99_s", "p999_s"),
    *("attempts_per_client", "rejected", "queue_max", "collapsed"),
)
"""Of a storm, in the JSON: they are promised, with ``wall_s`` and ``rss_max_mib``."""
DISAGREE = 3
"""Exit code of a result that must not be relied on."""
MORE = ("timeouts", "wasted", "expired")


def run(
    *,
    scenario: str,
    calibration: str | None,
    clients: int | None,
    model: Model,
    seed: int,
    seeds: int,
    target: Target,
    master: str | None,
    connect: bool,
    json: Path | None,
    report: Path | None,
    command: str,
) -> int:
    """Exit code 0 whatever becomes of the storm: that is the answer, and no fault. 3 where the answer must not be
    relied on, because brokers and nodes, or two models, do not agree."""
    wanted = load_scenario(scenario)
    costs = load_calibration(calibration or wanted.calibration)
    if clients is not None:
        wanted = msgspec.structs.replace(wanted, clients=clients)
    with open_context(master=master, connect=connect) as context:
        scale, numbers = 1.0, range(seed, seed + seeds)
        try:
            found = simulate_storms(wanted, costs, model=model, seeds=numbers, run=context.run)
        except DoesNotHold:
            found, scale = stand_in(wanted, costs, numbers, context.run)
        storm, storms = found.middle, found.by_seed
        if report is not None:
            report.write_text(_report(wanted, costs, found, target, context, command).html(), encoding="utf-8")
        cost = context.cost()
    told: dict[str, Any] = {key: getattr(storm, key) for key in (*KEYS, *MORE)}
    told |= cost | {
        "model": found.model,
        "seeds": seeds,
        "seed": seed,
        "scenario": wanted.name,
        "calibration": costs.setting,
    }
    told["settled"] = found.settled
    told["scale"] = scale
    told["asked_model"], told["doubt"], told["disagreement"] = model, found.doubt, found.disagreement
    told["passes"] = [msgspec.to_builtins(each) for each in found.passes]
    if seeds > 1:
        told["by_seed"] = [{key: getattr(each, key) for key in KEYS} for each in storms]
    write_json(json, told)
    _print(storm, storms, cost, target)
    if found.model != model:
        say(
            f"The {found.model} model answers: the {model} model does not hold here, because {found.doubt}."
            + (f" Everything is at {scale:.3g} of its size, and times as they were." if scale < 1 else "")
        )
    say(UNVALIDATED)
    for fault in found.faults:
        warn(fault)
    return DISAGREE if found.faults else 0


def _report(
    scenario: Scenario, costs: Calibration, found: Storms, target: Target, context: Context, command: str
) -> Page:
    """Draw the storm, and compute alternatives with the fluid model."""
    tried = [change for change in changes(scenario, costs) if change.scenario.cluster.groups <= scenario.clients]
    around = grid(scenario, costs)
    flat = [one for line in around.scenarios for one in line]
    asked = [*(change.scenario for change in tried), *flat]
    answers = context.sweep(asked, costs)
    cells = iter(answers[len(tried) :])
    return content.report(
        scenario=scenario,
        calibration=costs,
        storm=found.middle,
        clients=clients_by_region(scenario, costs),
        target=target,
        changes=list(zip(tried, answers, strict=False)),
        grid=around,
        cells=[[next(cells) for _ in line] for line in around.scenarios],
        faults=found.faults,
        made=[command, f"metad {_version()}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"],
        settings=[("model", found.model), *content.settings(scenario, costs)],
    )


def _version() -> str:
    try:
        return version("metad-service")
    except PackageNotFoundError:  # sources on a path, as with spark-submit
        return "from sources"


def _print(storm: StormResult, storms: list[StormResult], cost: dict[str, float], target: Target) -> None:
    times = [[f"{name} back", _time(getattr(storm, key))] for name, key in _TIMES]
    waits = [[f"{name} of those back waited at most", _time(getattr(storm, key))] for name, key in _WAITS]
    rest = [
        ["back at the end", f"{storm.restored:,} of {storm.clients:,}"],
        ["attempts per client", f"{storm.attempts_per_client:.3g}"],
        ["refused", short(storm.rejected)],
        ["longest queue of a group", short(storm.queue_max)],
    ]
    table(f"A storm of {storm.clients:,} clients", ["what", "value"], [*times, *waits, *rest])
    if len(storms) > 1:
        say(f"Of {len(storms)} seeds the middle one; 99.9 % back: {', '.join(_time(each.t999_s) for each in storms)}.")
    say(content.verdict(storm, target))
    say(f"{cost['wall_s']:.1f} s, {cost['rss_max_mib']:,.0f} MiB.")


_TIMES = (("50 %", "t50_s"), ("99 %", "t99_s"), ("99.9 %", "t999_s"))
_WAITS = (("50 %", "p50_s"), ("99 %", "p99_s"), ("99.9 %", "p999_s"))


def _time(value: float | None) -> str:
    return "never" if value is None else seconds(value)
