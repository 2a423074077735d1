"""Runs load-generating processes in step: all warm up, then all begin together. Their measurements are merged into one
result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec

from ..errors import WorkerError
from ..report.histogram import Latencies
from ..spawn import client_processes
from .worker import Failed, Measured, Plan, Warm, run

_PROGRESS_S = 0.2
_JOIN_S = 10.0


class Result(msgspec.Struct, kw_only=True):
    """The merged result of the processes. ``seconds`` from the first start to the last end."""

    requests: int
    items: int
    failed: int
    errors: dict[str, int]
    seconds: float
    client_cpu_s: float
    latencies: Latencies

    def items_per_s(self) -> float:
        """Successful items per second."""
        return (self.items - self.failed) / self.seconds if self.seconds else 0.0


def run_fleet(
    plans: Sequence[Plan], *, on_begin: Callable[[], None], on_end: Callable[[], None], progress: Callable[[int], None]
) -> Result:
    """Run one process per plan. ``on_begin`` is called when all are warm and idle, ``on_end`` when all are done."""
    with _started(plans) as (pipes, done):
        _collect(pipes, Warm, done=None, progress=None)
        on_begin()
        for pipe in pipes:
            pipe.send("go")
        measured = _collect(pipes, Measured, done=done, progress=progress)
        on_end()
    return _merge([(plan.settings.batch, one) for plan, one in zip(plans, measured, strict=True)])


@contextmanager
def _started(plans: Sequence[Plan]) -> Iterator[tuple[list[Connection], Any]]:
    context = client_processes()
    done = context.Value("q", 0)
    pipes: list[Connection] = []
    processes = []
    try:
        for plan in plans:
            ours, theirs = context.Pipe()
            process = context.Process(target=run, args=(plan, theirs, done), daemon=True)
            process.start()
            theirs.close()  # so that the end of the process ends the pipe
            pipes.append(ours)
            processes.append(process)
        yield pipes, done
        for process in processes:
            process.join(_JOIN_S)
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()
        for pipe in pipes:
            pipe.close()


def _collect(
    pipes: Sequence[Connection], kind: type, *, done: Any, progress: Callable[[int], None] | None
) -> list[Any]:
    """One message of ``kind`` from each pipe, in their order."""
    received: dict[int, Any] = {}
    seen = 0
    waiting = {id(pipe): (at, pipe) for at, pipe in enumerate(pipes)}
    while waiting:
        for pipe in wait([pipe for _, pipe in waiting.values()], _PROGRESS_S):
            assert isinstance(pipe, Connection)
            at, _ = waiting.pop(id(pipe))
            try:
                message = pipe.recv()
            except EOFError:
                raise WorkerError("a load-generating process died") from None
            if isinstance(message, Failed):
                raise WorkerError(f"{message.name}: {message.message}")
            assert isinstance(message, kind), message
            received[at] = message
        if progress is not None:
            total = done.value
            progress(total - seen)
            seen = total
    return [received[at] for at in range(len(pipes))]


def _merge(parts: Sequence[tuple[int, Measured]]) -> Result:
    errors: Counter[str] = Counter()
    for _, one in parts:
        errors.update(one.errors)
    return Result(
        requests=sum(one.requests for _, one in parts),
        items=sum(batch * one.requests for batch, one in parts),
        failed=sum(one.failed for _, one in parts),
        errors=dict(errors),
        seconds=(max(one.end_ns for _, one in parts) - min(one.begin_ns for _, one in parts)) / 1e9,
        client_cpu_s=sum(one.cpu_s for _, one in parts),
        latencies=Latencies.merged(one.latencies for _, one in parts),
    )
