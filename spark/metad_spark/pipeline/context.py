"""The common part of the commands: a runner of tasks, their progress, duration and memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from ..brokers.runner import Task
from ..calibration import Calibration
from ..models.results import NodeResult, StormResult
from ..scenario import Scenario
from . import work
from .choice import Choice
from .local import Processes
from .memory import Peak, watched
from .progress import Steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
SMALL_CLIENTS_MAX = 300_000
"""Clients that this process simulates within the time that others need to start."""
SMALL_FLUID_MAX = 2
"""Nodes of the fluid model: the same."""
_SPARK = Choice(runner="spark", why="this command writes with Spark")


class Runner(Protocol):
    """Runs tasks somewhere: :class:`metad_spark.pipeline.local.Processes`, :class:`metad_spark.pipeline.jobs.Jobs`."""

    def each(
        self, work: Callable[[T], bytes], items: Sequence[T], *, done_file: str | None = None, small: bool = False
    ) -> list[bytes]:
        """``work`` of each item, in their order. ``small``: it is done before other processes would have started."""


class Context:
    """A runner at work."""

    def __init__(self, runner: Runner, choice: Choice, where: str, steps: Steps, peak: Peak, began_s: float) -> None:
        self.choice, self.where, self.steps = choice, where, steps
        self.jobs = 0
        """Jobs run so far."""
        self._runner, self._peak, self._began_s = runner, peak, began_s

    @property
    def session(self) -> SparkSession:
        """The session, of a context that runs by Spark."""
        from .jobs import Jobs

        assert isinstance(self._runner, Jobs)
        return self._runner.session

    def run(self, tasks: Sequence[Task]) -> list[NodeResult]:
        """The nodes' results, in the tasks' order, by one job (:data:`metad_spark.brokers.runner.RunTasks`)."""
        models = "+".join(sorted({task.model for task in tasks}))
        clients = sum(task.input.clients for task in tasks if task.model != "fluid")
        fluid = sum(task.model == "fluid" for task in tasks)
        small = clients <= SMALL_CLIENTS_MAX and fluid <= SMALL_FLUID_MAX
        found = self.each(f"nodes by the {models} model", work.simulated, work.nodes(tasks), small=small)
        return [work.node_result(data) for data in found]

    def sweep(self, scenarios: Sequence[Scenario], calibration: Calibration) -> list[StormResult]:
        """The scenarios' storms, near enough for a comparison, by one job
        (:data:`metad_spark.brokers.runner.Sweep`)."""
        found = self.each("storms to compare", work.answered, work.comparisons(scenarios, calibration))
        return [work.storm_result(data) for data in found]

    def each(self, label: str, task: Callable[[T], bytes], items: Sequence[T], *, small: bool = False) -> list[bytes]:
        """``task`` of each item, in their order, by one job that is shown as ``label``."""
        self.jobs += 1
        with self.steps.step(f"job {self.jobs}, {label}", len(items)) as done_file:
            return self._runner.each(task, items, done_file=done_file, small=small)

    def ran(self) -> dict[str, str]:
        """Which runner it is and why, for the JSON."""
        return {"runner": self.choice.runner, "runner_why": self.choice.why}

    def cost(self) -> dict[str, float]:
        """``wall_s`` since the command began, Spark's start included; ``rss_max_mib`` of all processes together."""
        self._peak.look()
        return {"wall_s": time.monotonic() - self._began_s, "rss_max_mib": self._peak.rss_max_mib}


@contextlib.contextmanager
def open_context(
    *, master: str | None = None, connect: bool = False, choice: Choice = _SPARK, quiet: bool = False
) -> Iterator[Context]:
    """Start the chosen runner, and end it. Raises the errors of :func:`metad_spark.pipeline.session.open_session`."""
    began_s = time.monotonic()
    steps = Steps(quiet=quiet)
    with watched() as peak, contextlib.ExitStack() as stack:
        if choice.runner == "local":
            processes = stack.enter_context(Processes())
            where = f"in up to {processes.count} processes of this machine, without Spark"
            yield Context(processes, choice, where, steps, peak, began_s)
            return
        from .jobs import Jobs
        from .session import open_session

        with steps.step("starting Spark"):
            session = stack.enter_context(open_session(master=master, connect=connect))
        yield Context(Jobs(session), choice, "by Spark", steps, peak, began_s)
