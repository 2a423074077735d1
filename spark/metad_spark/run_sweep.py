"""``metad-spark sweep``: a grid of storms as one job. A task simulates a slice of a storm and keeps its rows, and the
last of a storm writes its run; by the vector model it simulates a whole storm. What the tables have is not run again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from . import sliced
from .calibration import load_calibration
from .errors import TablesError, UsageError
from .output import say, table, warn, write_json
from .pipeline import work
from .pipeline.choice import Asked, Choice, choose
from .pipeline.context import SMALL_CLIENTS_MAX, Context, open_context
from .pipeline.session import submitted
from .report import several
from .requests import slices
from .requests.costs import load_costs
from .run_report import made_by, worth
from .run_simulate import DISAGREE
from .scenario import Scenario, load_scenario
from .tables.queries import SPREAD, Group, groups
from .tables.run import REQUESTS, Question, questions, version
from .tables.store import Store
from .target import Target
from .vary import RUNS_MAX, Axis, cells

Parts = dict[str, list[slices.Slice]]
"""The slices that answer a question to the model of requests, by its run."""


def run(
    *,
    scenario: str,
    calibration: str | None,
    clients: int | None,
    vary: Sequence[Axis],
    model: Literal["requests", "vector"],
    seed: int,
    seeds: int,
    sample: int | None,
    target: Target,
    tables: Path,
    runner: Asked,
    master: str | None,
    connect: bool,
    json: Path | None,
    report: Path | None,
    command: str,
) -> int:
    """0 whatever becomes of the storms; 3 where one of them must not be relied on. Raises the errors of the runner,
    ScenarioError, UsageError and TablesError."""
    if sample is not None and model != REQUESTS:
        raise UsageError("--sample is of --model requests: the vector model simulates all nodes")
    wanted = load_scenario(scenario)
    if clients is not None:
        wanted = msgspec.structs.replace(wanted, clients=clients)
    if math.prod(len(axis.values) for axis in vary) * seeds > RUNS_MAX:
        raise UsageError(f"a sweep has at most {RUNS_MAX:,} runs")
    asked, parts = _asked(wanted, calibration, vary, model, range(seed, seed + seeds), sample)
    store = Store(tables)
    store.prepare()
    missing = [question for question in asked if not store.has(question.run)]
    if len(missing) < len(asked):
        say(f"{tables} has {len(asked) - len(missing):,} of the {len(asked):,} runs: they are not run again.")
    choice = _choice(missing, parts, sliced.Where(runner, master, connect))
    told: dict[str, Any] = {}
    if missing:
        with open_context(master=master, connect=connect, choice=choice) as context:
            _answer(context, missing, parts, str(tables.absolute()))
            told = context.cost() | context.ran()
        _want(missing, store)
        say(f"{len(missing):,} storms simulated {context.where}: {choice.why}. {told['wall_s']:.0f} s,"
            f" {told['rss_max_mib']:,.0f} MiB.")  # fmt: skip
    found = groups([store.read(question.run) for question in asked])
    faulty, said = sum(group.faulty for group in found), worth([run for group in found for run in group.runs])
    told |= {
        "scenario": wanted.name,
        "vary": {axis.key: list(axis.values) for axis in vary},
        "seeds": seeds,
        "seed": seed,
        "asked_model": model,
        "version": version(),
        "runs": len(asked),
        "simulated": len(missing),
        "faulty": faulty,
        "cells": [_told(group, target) for group in found],
    }
    write_json(json, told)
    if report is not None:
        page = several.report(
            found, target, worth([run for group in found for run in group.runs]), made_by(command, version())
        )
        report.write_text(page.html(), encoding="utf-8")
    keys = list(found[0].settings)
    table(
        f"{wanted.name}: of several seeds the median, and the range",
        [*keys, *several.COLUMNS],
        [several.row(group, keys) for group in found],
    )
    say(said)
    if model == REQUESTS:
        for what in dict.fromkeys(each for question in asked for each in slices.unknown(question.scenario)):
            warn(f"The model of requests leaves out {what}.")
    if faulty:
        warn(f"{faulty} of the runs must not be relied on. The JSON says of each why; the first: {_why(found)}")
    return DISAGREE if faulty else 0


def _asked(
    scenario: Scenario,
    calibration: str | None,
    vary: Sequence[Axis],
    model: Literal["requests", "vector"],
    seeds: Sequence[int],
    sample: int | None,
) -> tuple[list[Question], Parts]:
    """The questions of the grid, and what answers those to the model of requests."""
    if model == REQUESTS:
        priced = cells(scenario, load_costs(calibration or "default"), vary, load_costs)
        of_slices = [sliced.asked_of(one, costs, seed, sample) for one, costs in priced for seed in seeds]
        return [question for question, _ in of_slices], {question.run: parts for question, parts in of_slices}
    measured = cells(scenario, load_calibration(calibration or scenario.calibration), vary, load_calibration)
    asked = [
        question
        for one, costs in measured
        for seed in seeds
        for question in questions(one, costs, model=model, seeds=[seed], version=version())
    ]
    return asked, {}


def _choice(missing: Sequence[Question], parts: Parts, where: sliced.Where) -> Choice:
    if parts:
        clients = [part.clients for question in missing for part in parts[question.run]]
        return sliced.choice_of(len(clients), sum(clients), where)
    return choose(
        where.runner,
        clients=max((question.scenario.clients for question in missing), default=0),
        storms=len(missing),
        master=where.master,
        connect=where.connect,
        submitted=submitted(),
    )


def _answer(context: Context, missing: Sequence[Question], parts: Parts, folder: str) -> None:
    """Simulate what is missing, by one job."""
    runner = context.choice.runner
    if not parts:
        context.each("storms", work.written, [work.question(each, folder, runner) for each in missing])
        return
    asked = [(question, part) for question in missing for part in parts[question.run]]
    small = sum(part.clients for _, part in asked) <= SMALL_CLIENTS_MAX
    tasks = [work.slice_question(question, part.number, folder, runner) for question, part in asked]
    context.each("slices", work.slice_written, tasks, small=small)


def _why(found: Sequence[Group]) -> str:
    """The first fault of all runs."""
    return next(fault for group in found for run in group.runs for fault in run.faults)


def _want(asked: Sequence[Question], store: Store) -> None:
    """Check that the tasks wrote where this process reads. Raises TablesError."""
    missing = sum(not store.has(question.run) for question in asked)
    if missing:
        raise TablesError(
            f"{store.folder}: {missing} of {len(asked)} runs were written elsewhere: on a cluster, --tables must be a"
            " folder that all machines share"
        )


def _told(group: Group, target: Target) -> dict[str, Any]:
    """A cell of the grid, for the JSON."""
    metrics = {}
    for key in SPREAD:
        spread = group.spread(key)
        values = {"median": spread.median, "min": spread.low, "max": spread.high}
        metrics[key] = {name: None if math.isinf(value) else value for name, value in values.items()}
    return {
        "settings": group.settings,
        "clients": group.runs[0].storm.clients,
        "runs": [run.run for run in group.runs],
        "metrics": metrics,
        "meets": several.meets(group, target),
        "collapsed": group.collapsed,
        "faults": {run.run: run.faults for run in group.runs if run.faults},
    }
