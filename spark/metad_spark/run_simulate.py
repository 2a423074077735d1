"""``metad-spark simulate``: a storm, from a scenario to a few lines, JSON and a report.

The model of requests answers (:mod:`.sliced`). The vector model is for what that leaves out, and says first that it is
not validated.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from . import sliced
from .calibration import load_calibration
from .errors import UsageError
from .models import collapse
from .models.node_input import check_clients
from .models.results import StormResult
from .output import say, table, warn, write_json
from .pipeline.choice import Asked, Choice, choose
from .pipeline.context import Context, open_context
from .pipeline.session import submitted
from .population import in_words, load_census, of_census
from .population import told as census_told
from .reduced import answered
from .report import content
from .requests import slices
from .requests.costs import load_costs
from .run_report import compare_around, made_by, page_of
from .scenario import Scenario, load_scenario
from .sliced import HAS_IT, Where
from .tables.queries import middle
from .tables.run import REQUESTS, Question, Run, questions, runs_of, version
from .tables.store import Store
from .target import Target
from .validation import validity
from .wording import seconds, short

_MANY_REFUSED = 0.05
"""Of the clients: with more, storms that happened differed from their predictions by more than the headline says."""
_DOUBT = (
    "Many are turned away. How many is hard to say: such storms, where one node led all, took up to twice as long as"
    " predicted, with up to two thirds more attempts, and one did not end."
)
KEYS = (
    *("clients", "restored", "t50_s", "t99_s", "t999_s", "p50_s", "p99_s", "p999_s"),
    *("attempts_per_client", "rejected", "queue_max", "collapsed"),
)
"""Of a storm, in the JSON: they are promised, with ``wall_s`` and ``rss_max_mib``."""
DISAGREE = 3
"""Exit code of a result that must not be relied on."""
COLLAPSES = 4
"""Exit code of a storm that collapses (:mod:`.models.collapse`)."""
MORE = ("timeouts", "wasted", "expired")
_SURE: Final[dict[str, float | None]] = {}


def run(
    *,
    scenario: str,
    calibration: str | None,
    clients: int | None,
    model: Literal["requests", "vector"],
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
    """0 where the storm does not collapse, 4 where it does, 3 where the answer must not be relied on, because brokers
    and nodes do not agree."""
    if sample is not None and model != REQUESTS:
        raise UsageError("--sample is of --model requests: the vector model simulates all nodes")
    wanted = load_scenario(scenario)
    people = None if population is None else load_census(population)
    counted = {} if people is None else census_told(wanted, people)
    if people is not None:
        wanted = of_census(wanted, people)
    if clients is not None:
        wanted = msgspec.structs.replace(wanted, clients=clients)
    where, storms = Where(runner, master, connect), range(seed, seed + seeds)
    with contextlib.ExitStack() as stack:
        store = _store(tables, report, stack)
        if model == REQUESTS:
            runs, told = _by_requests(wanted, calibration, storms, sample, where, store, target)
        else:
            runs, told = _by_vector(wanted, calibration, storms, where, store, target, compare=report is not None)
        if store is not None and report is not None:
            page = page_of(store, middle(runs), target, made_by(command, version()))
            report.write_text(page.html(), encoding="utf-8")
    told |= {"seeds": seeds, "seed": seed, "scenario": wanted.name, "asked_model": model}
    if counted:
        told["population"] = counted
        say(in_words(counted))
    if seeds > 1:
        told["by_seed"] = [{key: getattr(each.storm, key) for key in KEYS} for each in runs]
    if tables is not None:
        told["runs"] = [each.run for each in runs]
        say(f"{tables} has {'the run' if seeds == 1 else 'the runs'} {', '.join(told['runs'])}.")
    write_json(json, told)
    return _code(middle(runs), [each.storm.collapsed for each in runs])


def _code(found: Run, collapses: Sequence[bool]) -> int:
    """The exit code, and why it is not 0."""
    for fault in found.faults:
        warn(fault)
    if any(collapses):
        warn(collapse.in_words(collapse.keepalive_s(found.question.scenario.disconnect), collapses))
    return DISAGREE if found.faults else COLLAPSES if found.storm.collapsed else 0


def _by_requests(
    scenario: Scenario,
    calibration: str | None,
    seeds: Sequence[int],
    sample: int | None,
    where: Where,
    store: Store | None,
    target: Target,
) -> tuple[list[Run], dict[str, Any]]:
    """The runs, and what the JSON says of the middle one. Raises ScenarioError."""
    costs = load_costs(calibration or "default")
    answer = sliced.answer(scenario, costs, seeds, sample=sample, where=where, store=store)
    run, found = answer.middle
    storm = run.storm
    said, differs = sliced.validity(scenario, max(each.storm.rejected for each in answer.runs))
    told = _numbers(storm) | {
        "model": REQUESTS,
        "calibration": costs.setting,
        "errors_pct": found.errors_pct,
        "left_out": list(slices.unknown(scenario)),
        "doubt": _DOUBT if storm.rejected > _MANY_REFUSED * scenario.clients else "",
        "validation": said,
        "differs": differs,
        "slices": answer.of,
        "sampled": answer.sampled,
        "runner": answer.choice.runner,
        "runner_why": answer.choice.why,
        **answer.cost,
    }
    (warn if differs else say)(said)
    _print(run, answer.runs, target, answer.cost, found.errors_pct)
    if answer.sampled < answer.of:
        unsaid = "" if answer.sampled > 1 else " How far it is from all of them, one slice cannot say."
        say(f"From {answer.sampled} of {answer.of} slices of three nodes, drawn at random.{unsaid}")
    say(_where(answer.choice, answer.choice.runner))
    for what in told["left_out"]:
        warn(f"The model of requests leaves out {what}.")
    if told["doubt"]:
        warn(told["doubt"])
    return answer.runs, told


def _by_vector(
    scenario: Scenario,
    calibration: str | None,
    seeds: Sequence[int],
    where: Where,
    store: Store | None,
    target: Target,
    *,
    compare: bool,
) -> tuple[list[Run], dict[str, Any]]:
    """As :func:`_by_requests`; with ``compare`` the tables have what a page compares the storm with."""
    lacks = ", ".join(slices.unknown(scenario))
    why = f", and the model of requests leaves out {lacks}" if lacks else ""
    warn(f"{validity('vector')} --model vector is taken because the command says so{why}.")
    costs = load_calibration(calibration or scenario.calibration)
    check_clients(scenario.clients, scenario.cluster.groups)  # before Spark is started
    asked = questions(scenario, costs, model="vector", seeds=seeds, version=version())
    choice = choose(
        where.runner,
        clients=scenario.clients,
        storms=len(seeds),
        master=where.master,
        connect=where.connect,
        submitted=submitted(),
    )
    known = store is not None and all(store.has(question.run) for question in asked)
    if known and not compare:
        choice = Choice(runner="local", why=HAS_IT)
    with open_context(master=where.master, connect=where.connect, choice=choice) as context:
        if store is not None and known:
            runs = [store.read(question.run) for question in asked]
        else:
            runs = _simulated(asked, store, context)
        found = middle(runs)
        if store is not None and compare:
            compare_around(store, found, context)
        cost = context.cost()
    told = _numbers(found.storm) | {
        "model": found.storm.model,
        "calibration": costs.setting,
        "settled": found.settled,
        "scale": found.scale,
        "doubt": None,
        "disagreement": None,
        "passes": [msgspec.to_builtins(each) for each in found.passes],
        **cost,
        **context.ran(),
    }
    _print(found, runs, target, cost)
    if found.scale < 1:
        say(f"Everything is at {found.scale:.3g} of its size, times as they were: no node can have so many.")
    say(_where(choice, context.where))
    return runs, told


def _where(choice: Choice, runner: str) -> str:
    return (
        "The tables have it: nothing was simulated." if choice.why == HAS_IT else f"Simulated {runner}: {choice.why}."
    )


def _numbers(storm: StormResult) -> dict[str, Any]:
    return {key: getattr(storm, key) for key in (*KEYS, *MORE)}


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
        first.measured,
        seeds=[question.seed for question in asked],
        run=context.run,
    )
    runs = runs_of(asked, found, scale, context.choice.runner)
    if store is not None:
        for run, nodes in zip(runs, found.nodes, strict=True):
            store.write(run, nodes)
    return runs


def _print(
    run: Run, runs: Sequence[Run], target: Target, cost: dict[str, float], errors_pct: dict[str, float | None] = _SURE
) -> None:
    """``errors_pct``: what the choice of slices leaves open of a number."""
    storm = run.storm

    def number(key: str, words: str) -> str:
        error_pct = errors_pct.get(key)
        return f"{words}, give or take {error_pct:.2g} %" if error_pct else words

    times = [[f"{name} back", number(f"t{key}_s", _time(getattr(storm, f"t{key}_s")))] for name, key in _SHARES]
    waits = [[f"{name} of those back waited at most", _time(getattr(storm, f"p{key}_s"))] for name, key in _SHARES]
    rest = [
        ["back at the end", f"{storm.restored:,} of {storm.clients:,}"],
        ["attempts per client", number("attempts_per_client", f"{storm.attempts_per_client:.3g}")],
        ["refused", short(storm.rejected)],
        *([["longest queue of a group", short(storm.queue_max)]] if storm.queue_max is not None else []),
    ]
    by = ", by its requests" if storm.model == REQUESTS else ""
    table(f"A storm of {storm.clients:,} clients{by}", ["what", "value"], [*times, *waits, *rest])
    if len(runs) > 1:
        every = ", ".join(_time(each.storm.t999_s) for each in runs)
        say(f"Of {len(runs)} seeds the middle one; 99.9 % back: {every}.")
    say(content.verdict(storm, target))
    say(f"{cost['wall_s']:.1f} s, {cost['rss_max_mib']:,.0f} MiB.")


_SHARES = (("50 %", "50"), ("99 %", "99"), ("99.9 %", "999"))


def _time(value: float | None) -> str:
    return "never" if value is None else seconds(value)
