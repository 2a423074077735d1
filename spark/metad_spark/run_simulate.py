"""``metad-spark simulate``: a storm, from a scenario to a few lines, JSON and a report.

``--model requests`` takes the scenario's storm by its requests, in this process, and needs no Java: the same clients,
network, brokers and cluster. That model's own storms share the cores of one machine. Those of a scenario do not: each
node, and each broker, is a process with a core to itself.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from .calibration import Calibration, load_calibration
from .errors import UsageError
from .models.node_input import node_inputs, shares
from .models.population import firsts_us
from .models.results import StormResult
from .output import say, table, warn, write_json
from .pipeline.choice import Asked, Choice, choose
from .pipeline.context import Context, open_context
from .pipeline.memory import watched
from .pipeline.progress import clock
from .pipeline.session import submitted
from .population import in_words, load_census, of_census
from .population import told as census_told
from .reduced import answered
from .report import content
from .requests.costs import Costs, load_costs
from .requests.simulate import Outcome, simulate
from .requests.storm import Kind, Population, Settings, Storm, storm_from
from .run_report import compare_around, storm_page
from .scenario import ROUND_TRIPS, TRANSPORTS, Brokers, Cluster, Scenario, load_scenario
from .tables.queries import middle
from .tables.run import Question, Run, questions, runs_of, version
from .tables.store import Store
from .target import Target
from .validation import differences, headline, last_verdict, validity
from .wording import seconds, short

_LINGER_MS_MIN: Final = 1.0
"""A tick of the model's brokers, where the scenario's do not wait for further items."""


def unknown(scenario: Scenario) -> Iterator[str]:
    """What the scenario has and the model does not know, in words."""
    if any(region.loss for region in scenario.regions):
        yield "lost packets"
    if scenario.brokers.connects_per_s:
        yield "the brokers' handshakes"
    if scenario.retry_budget is not None:
        yield "clients' retry budgets"
    if scenario.leader_changes:
        yield "leader changes at a time"
    if scenario.cluster.clients:
        yield "uneven groups"


def storm_of_scenario(scenario: Scenario, seed: int) -> Storm:
    """The scenario's storm, without what :func:`unknown` names. A group's queue is bounded by time, as the server's
    is. Raises ScenarioError if the model cannot hold it."""
    brokers = scenario.brokers.count
    settings = Settings(
        population=Population(kinds=tuple(_kinds(scenario)), timeout_s=scenario.client_timeout_s),
        sessions=scenario.clients,
        brokers=brokers,
        processes=brokers,
        policy="return-slot" if scenario.returns.of_capacity else "population",
        batch=min(scenario.brokers.batch_items, 1_000),
        linger_ms=max(scenario.brokers.linger_ms, _LINGER_MS_MIN),
        limit_s=scenario.horizon_s,
        background=0.0,
        seed=seed,
    )
    # When clients learn of the disconnect depends on nothing else, so one node has them all.
    alone = replace(scenario, brokers=Brokers(), cluster=Cluster(nodes=1, groups=1), leader_changes=())
    (node_input,) = node_inputs(alone, Calibration(turn_s=1.0, item_s=1.0))
    begin_ns = firsts_us(node_input, seed) * 1000
    groups = scenario.cluster.groups
    storm = storm_from(settings, nodes=scenario.cluster.nodes, data_groups=groups, begin_ns=begin_ns)
    return replace(storm, lane_calls=max(1, scenario.brokers.concurrency // groups))


def costs_apart(costs: Costs, storm: Storm) -> Costs:
    """The costs where each process has a core to itself."""
    return replace(costs, cores=storm.nodes + storm.settings.processes, unused_cores=0.0, unled_cores=0.0)


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


REQUESTS = "requests"
_MANY_REFUSED = 0.05
"""Of the clients: with more, storms that happened differed from their predictions by more than the headline says."""
_DOUBT = (
    "Many are turned away. How many is hard to say: storms that filled the nodes' queues took up to a fifth longer than"
    " predicted, with up to a third more attempts."
)


def _by_requests(scenario: Scenario, *, calibration: str | None, seed: int, seeds: int, json: Path | None) -> int:
    """Returns 0 whatever becomes of the storm: that is the answer, and no fault. Raises ScenarioError and
    CalibrationError."""
    began_s = time.monotonic()
    costs = load_costs(calibration or "default")
    left_out = list(unknown(scenario))
    with watched() as peak:
        found = []
        for each in range(seed, seed + seeds):
            storm = storm_of_scenario(scenario, each)
            with clock(f"seed {each}", storm.settings.limit_s, f"of {storm.returning:,} clients back") as look:
                found.append(simulate(storm, costs_apart(costs, storm), each, look))
        peak.look()
    by_seed = [_told(scenario, outcome) for outcome in found]
    told = sorted(by_seed, key=lambda one: math.inf if one["t999_s"] is None else one["t999_s"])[len(by_seed) // 2]
    doubt = _DOUBT if told["rejected"] > _MANY_REFUSED * scenario.clients else ""
    verdict = last_verdict()
    rejected = max(one["rejected"] for one in by_seed)
    differs = [] if verdict is None else differences(verdict, storm, rejected, apart=True)
    said = headline(verdict, REQUESTS, differs)
    cost = {"wall_s": time.monotonic() - began_s, "rss_max_mib": peak.rss_max_mib}
    more: dict[str, Any] = {
        "model": REQUESTS,
        "seeds": seeds,
        "seed": seed,
        "scenario": scenario.name,
        "calibration": costs.setting,
        "left_out": left_out,
        "doubt": doubt,
        "validation": said,
        "differs": differs,
        "runner": "local",
        "runner_why": "the model of requests is one process",
    }
    write_json(json, told | cost | more | ({"by_seed": by_seed} if seeds > 1 else {}))
    names = (("50 %", "50"), ("99 %", "99"), ("99.9 %", "999"))
    table(
        f"A storm of {scenario.clients:,} clients, by its requests",
        ["what", "value"],
        [
            *([f"{name} back", _time(told[f"t{key}_s"])] for name, key in names),
            *([f"{name} of those back waited at most", _time(told[f"p{key}_s"])] for name, key in names),
            ["back at the end", f"{told['restored']:,} of {told['clients']:,}"],
            ["attempts per client", f"{told['attempts_per_client']:.3g}"],
            ["refused", short(told["rejected"])],
        ],
    )
    say(f"{cost['wall_s']:.1f} s, {cost['rss_max_mib']:,.0f} MiB.")
    for what in left_out:
        warn(f"The model of requests leaves out {what}.")
    if doubt:
        warn(doubt)
    say(said)
    return 0


def _told(scenario: Scenario, outcome: Outcome) -> dict[str, Any]:
    """The fields that every model gives."""
    waits = np.array(outcome.waits_s)
    back = waits[np.isfinite(waits)]
    own = [float(np.quantile(back, share)) if len(back) else None for share in (0.5, 0.99, 0.999)]
    t50_s, t99_s, t999_s = outcome.storm_s
    return {
        "clients": scenario.clients,
        "restored": outcome.restored,
        "t50_s": t50_s,
        "t99_s": t99_s,
        "t999_s": t999_s,
        "p50_s": own[0],
        "p99_s": own[1],
        "p999_s": own[2],
        "attempts_per_client": outcome.attempts_per_session,
        "rejected": outcome.rejected,
        "timeouts": outcome.timeouts,
    }


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
    if model == REQUESTS:
        spark = runner == "spark" or master is not None or connect
        if tables is not None or report is not None or population is not None or spark:
            raise UsageError(
                "--model requests knows times and attempts of all clients together, in one process: leave --tables,"
                " --report, --population and Spark out"
            )
        small = wanted if clients is None else msgspec.structs.replace(wanted, clients=clients)
        return _by_requests(small, calibration=calibration, seed=seed, seeds=seeds, json=json)
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
