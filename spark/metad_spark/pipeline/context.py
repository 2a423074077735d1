"""The common part of the commands: a Spark session, its progress, its duration and its memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from pyspark.sql import SparkSession

from ..brokers.runner import Task
from ..calibration import Calibration
from ..models.results import NodeResult, StormResult
from ..scenario import Scenario
from . import jobs
from .memory import Peak, watched
from .progress import Steps
from .session import open_session


class Context:
    """A working session."""

    def __init__(self, session: SparkSession, steps: Steps, peak: Peak, began_s: float) -> None:
        self.session, self.steps = session, steps
        self.jobs = 0
        """Jobs run so far."""
        self._peak, self._began_s = peak, began_s

    def run(self, tasks: Sequence[Task]) -> list[NodeResult]:
        """The nodes' results, in the tasks' order, by one job (:data:`metad_spark.brokers.runner.RunTasks`)."""
        self.jobs += 1
        models = "+".join(sorted({task.model for task in tasks}))
        with self.steps.step(f"job {self.jobs}, nodes by the {models} model", len(tasks)) as done_file:
            return jobs.run(self.session, tasks, done_file=done_file)

    def sweep(self, scenarios: Sequence[Scenario], calibration: Calibration) -> list[StormResult]:
        """The scenarios' storms, near enough for a comparison, by one job
        (:data:`metad_spark.brokers.runner.Sweep`)."""
        self.jobs += 1
        with self.steps.step(f"job {self.jobs}, storms to compare", len(scenarios)) as done_file:
            return jobs.sweep(self.session, scenarios, calibration, done_file=done_file)

    def cost(self) -> dict[str, float]:
        """``wall_s`` since the command began, Spark's start included; ``rss_max_mib`` of all processes together."""
        self._peak.look()
        return {"wall_s": time.monotonic() - self._began_s, "rss_max_mib": self._peak.rss_max_mib}


@contextlib.contextmanager
def open_context(*, master: str | None, connect: bool, quiet: bool = False) -> Iterator[Context]:
    """Start Spark, and end it. Raises the errors of :func:`metad_spark.pipeline.session.open_session`."""
    began_s = time.monotonic()
    steps = Steps(quiet=quiet)
    with watched() as peak, contextlib.ExitStack() as stack:
        with steps.step("starting Spark"):
            session = stack.enter_context(open_session(master=master, connect=connect))
        yield Context(session, steps, peak, began_s)
