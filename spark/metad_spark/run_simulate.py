"""``metad-spark simulate``: a storm, from a scenario to a few lines, JSON and a report.

``--model requests`` takes the scenario's storm by its requests: the same clients, network, brokers and cluster, in
slices of three nodes, here or by Spark. The storms that the model is validated with share the cores of one machine.
Those of a scenario do not: each node, and each broker, is a process with a core to itself.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import pyarrow as pa

from .calibration import load_calibration
from .errors import UsageError
from .models.node_input import check_clients
from .models.results import StormResult
from .output import say, table, warn, write_json
from .pipeline.choice import Asked, Choice, choose
from .pipeline.context import Context, open_context
from .pipeline.progress import clock
from .pipeline.session import submitted
from .pipeline.slices import summed as by_spark
from .population import in_words, load_census, of_census
from .population import told as census_told
from .reduced import answered
from .report import content
from .requests import slices
from .requests.costs import Costs, load_costs
from .run_report import compare_around, storm_page
from .scenario import Scenario, load_scenario
from .tables.queries import middle
from .tables.run import Question, Run, questions, runs_of, version
from .tables.store import Store
from .target import Target
from .validation import differences, headline, last_verdict, validity
from .wording import seconds, short

REQUESTS = "requests"
_HERE_CLIENTS_MAX: Final = 2_000_000
"""Clients of several slices that this process simulates in about the time that Spark takes to start."""
_MANY_REFUSED = 0.05
"""Of the clients: with more, storms that happened differed from their predictions by more than the headline says."""
_DOUBT = (
    "Many are turned away. How many is hard to say: storms that filled the nodes' queues took up to a fifth longer than"
    " predicted, with up to a third more attempts."
)


class _Where(NamedTuple):
    """What the command line says of where to simulate."""

    runner: Asked
    master: str | None
    connect: bool


def _by_requests(
    scenario: Scenario, costs: Costs, seeds: range, *, sample: int | None, where: _Where, json: Path | None
) -> int:
    """Returns 0 whatever becomes of the storm: that is the answer, and no fault. Raises ScenarioError."""
    parts, of = slices.sampled(scenario, sample, seeds[0]), len(slices.slices_of(scenario))
    tasks = slices.tasks_of(scenario.name, scenario, costs, parts, seeds)
    choice = _choice(tasks.num_rows, sum(tasks["clients"].to_pylist()), where)
    with open_context(master=where.master, connect=where.connect, choice=choice) as context:
        if choice.runner == "spark":
            with context.steps.step(f"{len(parts)} of {of} slices", tasks.num_rows) as done_file:
                sums = by_spark(context.session, tasks, done_file)
        else:
            sums = slices.summed([_looked_at(scenario, task) for task in tasks.to_pylist()])
        cost = context.cost()
    found = [slices.estimated(sums, each, scenario) for each in seeds]
    by_seed = [{"clients": scenario.clients} | msgspec.to_builtins(one) for one in found]
    told = sorted(by_seed, key=lambda one: math.inf if one["t999_s"] is None else one["t999_s"])[len(by_seed) // 2]
    more: dict[str, Any] = {
        "model": REQUESTS,
        "seeds": len(seeds),
        "seed": seeds[0],
        "scenario": scenario.name,
        "calibration": costs.setting,
        "left_out": list(slices.unknown(scenario)),
        "doubt": _DOUBT if told["rejected"] > _MANY_REFUSED * scenario.clients else "",
        **_validity_of(scenario, max(one["rejected"] for one in by_seed)),
        "slices": of,
        "sampled": len(parts),
        "runner": choice.runner,
        "runner_why": choice.why,
    }
    write_json(json, told | cost | more | ({"by_seed": by_seed} if len(seeds) > 1 else {}))
    _print_requests(told, more)
    say(f"{cost['wall_s']:.1f} s, {cost['rss_max_mib']:,.0f} MiB. Simulated {choice.runner}: {choice.why}.")
    for what in more["left_out"]:
        warn(f"The model of requests leaves out {what}.")
    if more["doubt"]:
        warn(more["doubt"])
    say(more["validation"])
    return 0


def _validity_of(scenario: Scenario, rejected: int) -> dict[str, Any]:
    """What is said of a prediction, and what of its storm no checked one had."""
    verdict = last_verdict()
    one = slices.storm_of_scenario(msgspec.structs.replace(scenario, clients=1), 0)
    settings = msgspec.structs.replace(one.settings, sessions=scenario.clients)
    storm = msgspec.structs.replace(one, settings=settings)
    differs = [] if verdict is None else differences(verdict, storm, rejected, apart=True)
    return {"validation": headline(verdict, REQUESTS, differs), "differs": differs}


def _print_requests(told: dict[str, Any], more: dict[str, Any]) -> None:
    names = (("50 %", "50"), ("99 %", "99"), ("99.9 %", "999"))
    errors = told["errors_pct"]
    table(
        f"A storm of {told['clients']:,} clients, by its requests",
        ["what", "value"],
        [
            *([f"{name} back", f"{_time(told[f't{key}_s'])}{_sampled(errors[f't{key}_s'])}"] for name, key in names),
            *([f"{name} of those back waited at most", _time(told[f"p{key}_s"])] for name, key in names),
            ["back at the end", f"{told['restored']:,} of {told['clients']:,}"],
            ["attempts per client", f"{told['attempts_per_client']:.3g}{_sampled(errors['attempts_per_client'])}"],
            ["refused", short(told["rejected"])],
        ],
    )
    if more["sampled"] < more["slices"]:
        unsaid = "" if more["sampled"] > 1 else " How far it is from all of them, one slice cannot say."
        say(f"From {more['sampled']} of {more['slices']} slices of three nodes, drawn at random.{unsaid}")


def _choice(tasks: int, clients: int, where: _Where) -> Choice:
    """Spark where it is asked for, or where several tasks last longer than it takes to start."""
    asked, master, connect = where
    choice = choose(asked, clients=clients, master=master, connect=connect, submitted=submitted())
    if choice.runner == "spark" or asked == "local":
        return choice
    if tasks > 1 and clients > _HERE_CLIENTS_MAX:
        return Choice(runner="spark", why=f"there are {tasks:,} slices with more than {_HERE_CLIENTS_MAX:,} clients")
    return Choice(runner="local", why=f"there are no more than {_HERE_CLIENTS_MAX:,} clients, or one slice")


def _looked_at(scenario: Scenario, task: dict[str, Any]) -> pa.RecordBatch:
    what = f"seed {task['seed']}" + (f", slice {task['slice']}" if task["clients"] < scenario.clients else "")
    with clock(what, scenario.horizon_s, f"of {task['clients']:,} clients back") as look:
        return slices.simulated(task, look)


def _sampled(error_pct: float | None) -> str:
    """How much of a number the choice of slices leaves open."""
    return f", give or take {error_pct:.2g} %" if error_pct else ""


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
    sample: int | None,
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
    if model == REQUESTS:
        _check_requests(tables, report, population)
        small = wanted if clients is None else msgspec.structs.replace(wanted, clients=clients)
        where, storms = _Where(runner, master, connect), range(seed, seed + seeds)
        return _by_requests(small, load_costs(calibration or "default"), storms, sample=sample, where=where, json=json)
    if sample is not None:
        raise UsageError("--sample is of --model requests: the vector model simulates all nodes")
    costs = load_calibration(calibration or wanted.calibration)
    people = None if population is None else load_census(population)
    counted = {} if people is None else census_told(wanted, people)
    if people is not None:
        wanted = of_census(wanted, people)
    if clients is not None:
        wanted = msgspec.structs.replace(wanted, clients=clients)
    check_clients(wanted.clients, wanted.cluster.groups)  # before Spark is started
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


def _check_requests(*unfit: Path | None) -> None:
    if any(one is not None for one in unfit):
        raise UsageError(
            "--model requests knows times and attempts of all clients together: leave --tables, --report and"
            " --population out"
        )


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
