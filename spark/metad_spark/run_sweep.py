"""``metad-spark sweep``: a grid of storms, each a task that writes its run; what the tables have is not run again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from .calibration import load_calibration
from .errors import TablesError, UsageError
from .output import say, table, warn, write_json
from .pipeline import work
from .pipeline.choice import Asked, choose
from .pipeline.context import open_context
from .pipeline.session import submitted
from .report import several
from .run_report import made_by, worth
from .run_simulate import DISAGREE
from .scenario import load_scenario
from .tables.queries import SPREAD, Group, groups
from .tables.run import Question, questions, version
from .tables.store import Store
from .target import Target
from .validation import validity
from .vary import RUNS_MAX, Axis, cells


def run(
    *,
    scenario: str,
    calibration: str | None,
    clients: int | None,
    vary: Sequence[Axis],
    model: str,
    seed: int,
    seeds: int,
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
    wanted = load_scenario(scenario)
    costs = load_calibration(calibration or wanted.calibration)
    if clients is not None:
        wanted = msgspec.structs.replace(wanted, clients=clients)
    if math.prod(len(axis.values) for axis in vary) * seeds > RUNS_MAX:
        raise UsageError(f"a sweep has at most {RUNS_MAX:,} runs")
    asked = [
        question
        for one, its_costs in cells(wanted, costs, vary)
        for number in range(seed, seed + seeds)
        for question in questions(one, its_costs, model=model, seeds=[number], version=version())
    ]
    store = Store(tables)
    store.prepare()
    missing = [question for question in asked if not store.has(question.run)]
    if len(missing) < len(asked):
        say(f"{tables} has {len(asked) - len(missing):,} of the {len(asked):,} runs: they are not run again.")
    choice = choose(
        runner,
        clients=max(question.scenario.clients for question in asked),
        storms=len(missing),
        master=master,
        connect=connect,
        submitted=submitted(),
    )
    told: dict[str, Any] = {}
    if missing:
        with open_context(master=master, connect=connect, choice=choice) as context:
            folder = str(tables.absolute())
            context.each("storms", work.written, [work.question(each, folder, choice.runner) for each in missing])
            told = context.cost() | context.ran()
        _want(missing, store)
        say(f"{len(missing):,} storms simulated {context.where}: {choice.why}. {told['wall_s']:.0f} s,"
            f" {told['rss_max_mib']:,.0f} MiB.")  # fmt: skip
    found = groups([store.read(question.run) for question in asked])
    faulty = sum(group.faulty for group in found)
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
        page = several.report(found, target, worth(found[0].runs), made_by(command, version()))
        report.write_text(page.html(), encoding="utf-8")
    keys = list(found[0].settings)
    table(
        f"{wanted.name}: of several seeds the median, and the range",
        [*keys, *several.COLUMNS],
        [several.row(group, keys) for group in found],
    )
    say(validity(found[0].runs[0].storm.model))
    if faulty:
        warn(f"{faulty} of the runs must not be relied on. The JSON says of each why; the first: {_why(found)}")
    return DISAGREE if faulty else 0


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
