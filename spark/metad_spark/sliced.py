"""A storm by the model of requests: a task for each seed and slice, here or by Spark, and the runs that tables keep.

The storms that the model is validated with share the cores of one machine. Those of a scenario do not: each node, and
each broker, is a process with a core to itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyarrow import compute

from .errors import JavaMissing
from .pipeline.choice import Asked, Choice, choose
from .pipeline.context import Context, open_context
from .pipeline.java import find_java
from .pipeline.progress import clock
from .pipeline.session import submitted
from .pipeline.slices import collected
from .pipeline.slices import summed as by_spark
from .requests import slices
from .requests.costs import Costs
from .scenario import Scenario
from .tables.queries import middle, slice_rows
from .tables.run import REQUESTS, Question, Run, run_of_slices, sums_and_curve, version
from .tables.store import Store
from .validation import differences, headline, last_verdict

_HERE_CLIENTS_MAX: Final = 2_000_000
"""Clients of several slices that this process simulates in about the time that Spark takes to start."""


HAS_IT: Final = "the tables have it"


class Where(NamedTuple):
    """What the command line says of where to simulate."""

    runner: Asked = "auto"
    master: str | None = None
    connect: bool = False


_ANYWHERE: Final = Where()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The storms of one command, by seed."""

    runs: list[Run]
    found: list[slices.Estimate]
    of: int
    """Slices of the cluster, of which so many were simulated:"""
    sampled: int
    choice: Choice
    cost: dict[str, float]

    @property
    def middle(self) -> tuple[Run, slices.Estimate]:
        """The run with the median t99.9, and its numbers with their errors."""
        run = middle(self.runs)
        return run, self.found[self.runs.index(run)]

    def band_s(self, key: str, off_pct: float = 0.0) -> tuple[float | None, float | None]:
        """Between which times a share of the clients is back (``key``, as in t999_s), over the seeds, with what the
        choice of slices leaves open, and ``off_pct`` by which predictions were off. None: never."""
        times = [(getattr(one, key), (one.errors_pct[key] or 0.0) + off_pct) for one in self.found]
        known = [(time_s * (1 - pct / 100), time_s * (1 + pct / 100)) for time_s, pct in times if time_s is not None]
        low = min((low for low, _ in known), default=None)
        return low, max(high for _, high in known) if len(known) == len(times) else None


def answer(
    scenario: Scenario,
    costs: Costs,
    seeds: Sequence[int],
    *,
    sample: int | None = None,
    where: Where = _ANYWHERE,
    store: Store | None = None,
) -> Answer:
    """A storm for each seed. What ``store`` has is not simulated again. Raises ScenarioError and SparkFailed."""
    parts, _, asked = _asked(scenario, costs, seeds, sample)
    choice = choice_of(len(parts) * len(seeds), sum(part.clients for part in parts) * len(seeds), where)
    master, connect = where.master, where.connect
    if store is not None and all(store.has(question.run) for question in asked):
        choice, master, connect = Choice(runner="local", why=HAS_IT), None, False
    with open_context(master=master, connect=connect, choice=choice) as context:
        return answer_in(context, scenario, costs, seeds, sample=sample, store=store)


def answer_in(
    context: Context,
    scenario: Scenario,
    costs: Costs,
    seeds: Sequence[int],
    *,
    sample: int | None = None,
    store: Store | None = None,
) -> Answer:
    """As :func:`answer`, by a runner that is at work."""
    parts, of, asked = _asked(scenario, costs, seeds, sample)
    if store is not None and all(store.has(question.run) for question in asked):
        runs = [store.read(question.run) for question in asked]
        found = [estimate(store, run) for run in runs]
    else:
        tasks = slices.tasks_of(scenario.name, scenario, costs, parts, seeds)
        sums, curve, rows = _simulated(scenario, tasks, context, keep=store is not None)
        answers = [run_of_slices(question, sums, curve, context.choice.runner) for question in asked]
        runs, found = [run for run, _ in answers], [numbers for _, numbers in answers]
        if store is not None and rows is not None:
            for run in runs:
                store.write(run, rows=rows.filter(compute.equal(rows["seed"], run.question.seed)))
    return Answer(runs=runs, found=found, of=of, sampled=len(parts), choice=context.choice, cost=context.cost())


def estimate(store: Store, run: Run) -> slices.Estimate:
    """The numbers of a run of the tables, with their errors. Raises TablesError."""
    scenario = run.question.scenario
    sums = slices.summed(slice_rows(store, run).to_batches())
    return slices.estimated(sums, run.question.seed, scenario)


def validity(scenario: Scenario, rejected: int) -> tuple[str, list[str]]:
    """What is said of a prediction, and what of its storm no checked one had. ``rejected``: of its clients."""
    verdict = last_verdict()
    one = slices.storm_of_scenario(msgspec.structs.replace(scenario, clients=1), 0)
    settings = msgspec.structs.replace(one.settings, sessions=scenario.clients)
    storm = msgspec.structs.replace(one, settings=settings)
    differs = [] if verdict is None else differences(verdict, storm, rejected, apart=True)
    return headline(verdict, REQUESTS, differs), differs


def asked_of(scenario: Scenario, costs: Costs, seed: int, sample: int | None) -> tuple[Question, list[slices.Slice]]:
    """The question of one storm, and the slices that answer it. Raises ScenarioError."""
    parts, _, (question,) = _asked(scenario, costs, [seed], sample)
    return question, parts


def _asked(
    scenario: Scenario, costs: Costs, seeds: Sequence[int], sample: int | None
) -> tuple[list[slices.Slice], int, list[Question]]:
    """The slices to simulate, how many there are, and the question of each seed."""
    parts, of = slices.sampled(scenario, sample, seeds[0]), len(slices.slices_of(scenario))
    return parts, of, [_question(scenario, costs, seed, seeds[0], len(parts), of) for seed in seeds]


def _question(scenario: Scenario, costs: Costs, seed: int, first: int, sampled: int, of: int) -> Question:
    return Question(
        scenario=scenario,
        costs=costs,
        model=REQUESTS,
        seed=seed,
        brokers_seed=first if sampled < of else 0,
        sampled=sampled,
        version=version(),
    )


def _simulated(
    scenario: Scenario, tasks: pa.Table, context: Context, *, keep: bool
) -> tuple[slices.Sums, Sequence[dict[str, Any]], pa.Table | None]:
    """The sums, the curve by seed, slice and second, and, to ``keep`` them, the rows."""
    with contextlib.ExitStack() as stack:
        if context.choice.runner == "local":
            rows = pa.Table.from_batches([_looked_at(scenario, task) for task in tasks.to_pylist()])
        else:
            label = f"{scenario.cluster.nodes} nodes, by requests"
            done_file = stack.enter_context(context.steps.step(label, tasks.num_rows))
            if not keep:
                return *by_spark(context.session, tasks, done_file), None
            rows = collected(context.session, tasks, done_file)
    return *sums_and_curve(rows), rows


def choice_of(tasks: int, clients: int, where: Where) -> Choice:
    """Spark where it is asked for, or where several tasks, of so many clients together, last longer than it takes to
    start, and there is a Java."""
    asked, master, connect = where
    choice = choose(asked, clients=clients, master=master, connect=connect, submitted=submitted())
    if choice.runner == "spark" or asked == "local":
        return choice
    if tasks > 1 and clients > _HERE_CLIENTS_MAX:
        try:
            find_java()
        except JavaMissing as missing:
            return Choice(runner="local", why=f"one slice after the other, because {missing}")
        return Choice(runner="spark", why=f"there are {tasks:,} slices with more than {_HERE_CLIENTS_MAX:,} clients")
    return Choice(runner="local", why=f"there are no more than {_HERE_CLIENTS_MAX:,} clients, or one slice")


def _looked_at(scenario: Scenario, task: dict[str, Any]) -> pa.RecordBatch:
    what = f"seed {task['seed']}" + (f", slice {task['slice']}" if task["clients"] < scenario.clients else "")
    with clock(what, scenario.horizon_s, f"of {task['clients']:,} clients back") as look:
        return slices.simulated(task, look)
