"""Tasks in processes of this machine, without Spark and without a Java.

The processes are forked from one that has imported the models and runs no threads, and start with the first job that is
worth it: small ones run in this process, because a new one has to import numba first. A process ends with the one that
started it, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from ..errors import ProcessDied
from .progress import mark

T = TypeVar("T")


def processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Processes:
    """Runs tasks (:class:`metad_spark.pipeline.context.Runner`). Use it as a context manager."""

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
        self, work: Callable[[T], bytes], items: Sequence[T], *, done_file: str | None = None, small: bool = False
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
