"""The common part of the commands: a runner of tasks, their progress, duration and memory.

Tasks run in processes of this machine, without Spark and without a Java (:class:`Processes`). The processes are forked
from one that has imported the models and runs no threads, and start with the first job that is worth it: small ones run
in this process, because a new one has to import numba first. A process ends with the one that started it, however that
ends.
"""

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
from .memory import Peak, watched
from .progress import Steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from ..errors import ProcessDied
from .progress import mark

U = TypeVar("U")


def processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Processes:
    """Runs tasks (:class:`Runner`). Use it as a context manager."""

    def __init__(self, count: int | None = None) -> None:
        """``count`` processes; None: one for each processor."""
        self.count = processors() if count is None else count
        self._pool: ProcessPoolExecutor | None = None
        self._others = {child.pid for child in multiprocessing.active_children()}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is None:
            return
        if kind is not None:  # nobody waits for what is under way
            for child in multiprocessing.active_children():
                if child.pid not in self._others:
                    child.terminate()
        self._pool.shutdown(cancel_futures=True)
        self._pool = None

    def each(
        self, work: Callable[[U], bytes], items: Sequence[U], *, done_file: str | None = None, small: bool = False
    ) -> list[bytes]:
        """``work`` of each item, in their order. ``work`` is a function of a module; what it raises is raised here.
        ``small``: the items are so little work that this process does it. Raises ProcessDied if the system ends a
        process."""
        found: list[bytes] = []
        if small or self.count == 1 or len(items) < 2:
            for item in items:
                found.append(work(item))
                mark(done_file)
            return found
        try:
            waiting = [self._started().submit(work, item) for item in items]
            for future in waiting:
                future.add_done_callback(lambda _: mark(done_file))
            for future in waiting:
                found.append(future.result())
        except BrokenProcessPool:
            raise ProcessDied(
                "a process that simulated was ended from outside, as systems do that run out of memory: take"
                " --runner spark --master 'local[1]', or a machine with more memory"
            ) from None
        return found

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Forking this process would copy its threads' locks: the display and the memory have threads.
            start = multiprocessing.get_context("forkserver")
            start.set_forkserver_preload(["metad_spark.pipeline.work"])
            self._pool = ProcessPoolExecutor(self.count, mp_context=start, initializer=_begin)
        return self._pool


def _begin() -> None:
    """In a new process: leave Ctrl-C to the one that started it, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


T = TypeVar("T")
SMALL_CLIENTS_MAX = 300_000
"""Clients that this process simulates within the time that others need to start."""
_SPARK = Choice(runner="spark", why="this command writes with Spark")


class Runner(Protocol):
    """Runs tasks somewhere: :class:`metad_spark.pipeline.context.Processes`,
    :class:`metad_spark.pipeline.jobs.Jobs`."""

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
        small = sum(task.input.clients for task in tasks) <= SMALL_CLIENTS_MAX
        found = self.each("nodes", work.simulated, work.nodes(tasks), small=small)
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
