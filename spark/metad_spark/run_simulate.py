"""``metad-spark simulate``: a storm, from a scenario to a few lines, JSON and a report."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from . import run_requests
from .calibration import load_calibration
from .errors import UsageError
from .models.results import StormResult
from .output import say, table, warn, write_json
from .pipeline.choice import Asked, Choice, choose
from .pipeline.context import Context, open_context
from .pipeline.session import submitted
from .population import in_words, load_census, of_census
from .population import told as census_told
from .reduced import answered
from .report import content
from .run_report import compare_around, storm_page
from .scenario import load_scenario
from .tables.queries import middle
from .tables.run import Question, Run, questions, runs_of, version
from .tables.store import Store
from .target import Target
from .validation import validity
from .wording import seconds, short

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
    model: Literal["vector", "requests"],
    seed: int,
    seeds: int,
    target: Target,
    runner: Asked,
    master: str | None,
    connect: bool,
    json: Path | None,
    tables: Path | None,
    report: Path | None,
    population: Path | None,
    command: str,
) -> int:
    """Exit code 0 whatever becomes of the storm: that is the answer, and no fault. 3 where the answer must not be
    relied on, because brokers and nodes do not agree."""
    wanted = load_scenario(scenario)
    if model == run_requests.MODEL:
        spark = runner == "spark" or master is not None or connect
        if tables is not None or report is not None or population is not None or spark:
            raise UsageError(
                "--model requests knows times and attempts of all clients together, in one process: leave --tables,"
                " --report, --population and Spark out"
            )
        small = wanted if clients is None else msgspec.structs.replace(wanted, clients=clients)
        return run_requests.run(small, calibration=calibration, seed=seed, seeds=seeds, json=json)
    costs = load_calibration(calibration or wanted.calibration)
    people = None if population is None else load_census(population)
    counted = {} if people is None else census_told(wanted, people)
    if people is not None:
        wanted = of_census(wanted, people)
    if clients is not None:
        wanted = msgspec.structs.replace(wanted, clients=clients)
    choice = choose(runner, clients=wanted.clients, storms=seeds, master=master, connect=connect, submitted=submitted())
    asked = questions(wanted, costs, model=model, seeds=range(seed, seed + seeds), version=version())
    with contextlib.ExitStack() as stack:
        store = _store(tables, report, stack)
        known = store is not None and all(store.has(question.run) for question in asked)
        if known and report is None:
            choice = Choice(runner="local", why="the tables have it")
        context = stack.enter_context(open_context(master=master, connect=connect, choice=choice))
        if store is not None and known:
            runs = [store.read(question.run) for question in asked]
        else:
            runs = _simulated(asked, store, context)
        found = middle(runs)
        if store is not None and report is not None:
            compare_around(store, found, context)
            made = [command, f"metad {found.question.version}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"]
            report.write_text(storm_page(store, found, target, made).html(), encoding="utf-8")
        cost = context.cost()
    storm = found.storm
    told: dict[str, Any] = {key: getattr(storm, key) for key in (*KEYS, *MORE)}
    told |= cost | context.ran()
    told |= {
        "model": storm.model,
        "seeds": seeds,
        "seed": seed,
        "scenario": wanted.name,
        "calibration": costs.setting,
        "settled": found.settled,
        "scale": found.scale,
        "asked_model": model,
        "doubt": None,
        "disagreement": None,
        "passes": [msgspec.to_builtins(each) for each in found.passes],
    }
    if counted:
        told["population"] = counted
    if seeds > 1:
        told["by_seed"] = [{key: getattr(each.storm, key) for key in KEYS} for each in runs]
    if tables is not None:
        told["runs"] = [each.run for each in runs]
    write_json(json, told)
    _print(storm, [each.storm for each in runs], cost, target)
    if counted:
        say(in_words(counted))
    if found.scale < 1:
        say(f"Everything is at {found.scale:.3g} of its size, times as they were: no node can have so many.")
    if known:
        say(f"{tables} has it: nothing was simulated.")
    else:
        say(f"Simulated {context.where}: {choice.why}.")
    if tables is not None:
        say(f"{tables} has {'the run' if seeds == 1 else 'the runs'} {', '.join(each.run for each in runs)}.")
    say(validity(storm.model))
    for fault in found.faults:
        warn(fault)
    return DISAGREE if found.faults else 0


def _store(tables: Path | None, report: Path | None, stack: contextlib.ExitStack) -> Store | None:
    """The tables; a report without any is made from some that are gone afterwards."""
    if tables is None and report is None:
        return None
    folder = tables or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="metad-spark-")))
    store = Store(folder)
    store.prepare()
    return store


def _simulated(asked: Sequence[Question], store: Store | None, context: Context) -> list[Run]:
    """Simulate a command's storms, and write their runs."""
    first = asked[0]
    found, scale = answered(
        first.scenario,
        first.calibration,
        seeds=[question.seed for question in asked],
        run=context.run,
    )
    runs = runs_of(asked, found, scale, context.choice.runner)
    if store is not None:
        for run, nodes in zip(runs, found.nodes, strict=True):
            store.write(run, nodes)
    return runs


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
