"""One load-generating process: connect, warm up, wait for the signal, run the loop, return the measurements.

:mod:`metad_perf.load.fleet` starts it through multiprocessing's spawn, so that it shares neither interpreter lock nor
event loop. Over its pipe it sends ``Warm``, takes any message as the signal to begin, and sends :class:`Measured` or
:class:`Failed`.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from metad_client import Options
from metad_wire.errors import MetadError
from metad_wire.transport.tcp import install_uvloop

from ..errors import PerfError
from ..report.histogram import Latencies
from ..target import open_client
from .loop import Budget, Source, Tally, drive
from .singles import Singles
from .workload import VERBS, Settings

_WARM_UP_SECONDS_MAX = 2.0
_PROGRESS_REQUESTS = 64  # updating the shared counter takes a lock; this is often enough for a progress bar
REQUEST_DEADLINE_S = 30.0


@asynccontextmanager
async def open_metad(plan: Plan) -> AsyncIterator[Source]:
    """Load on metad, through the SDK."""
    options = Options(
        deadline_s=REQUEST_DEADLINE_S,
        batch_items=1_000 if plan.settings.singles else plan.settings.batch,
        waiting_max=max(10_000, 2 * plan.in_flight),
        client_name="metad-perf",
    )
    async with open_client(plan.endpoint, options) as client:
        yield (Singles if plan.settings.singles else VERBS[plan.settings.verb])(client, plan.settings)


OpenSource = Callable[["Plan"], AbstractAsyncContextManager[Source]]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one process. ``open_source`` is a module's function: the process gets its name, and imports it."""

    endpoint: str
    settings: Settings
    in_flight: int
    requests: int | None = None
    seconds: float | None = None
    interval_ns: float = 0
    open_source: OpenSource = open_metad


class Warm(msgspec.Struct, frozen=True):
    """The process is ready to be measured."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one process. ``latencies`` is an encoded histogram."""

    requests: int
    failed: int
    errors: dict[str, int]
    begin_ns: int
    end_ns: int
    cpu_s: float
    latencies: bytes


class Failed(msgspec.Struct, frozen=True):
    """The process gives up."""

    name: str
    message: str


def run(plan: Plan, pipe: Connection, done: Any) -> None:
    """Main function of the process. ``done`` is a shared counter of items, for the progress bar."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    install_uvloop()
    try:
        measured = asyncio.run(_measure(plan, pipe, done))
    except (MetadError, PerfError, OSError, ValueError) as error:
        pipe.send(Failed(getattr(error, "name", type(error).__name__), str(error)))
    except ExceptionGroup as group:
        pipe.send(Failed("bug", repr(group.exceptions[0])))
    else:
        pipe.send(measured)


async def _measure(plan: Plan, pipe: Connection, done: Any) -> Measured:
    async with plan.open_source(plan) as source:
        latencies = Latencies()
        await _drive(plan, source, _warm_up(plan), lambda _: None, None)
        pipe.send(Warm())
        await asyncio.to_thread(pipe.recv)
        cpu_s = time.process_time()
        tally = await _drive(
            plan, source, Budget(requests=plan.requests, seconds=plan.seconds), latencies.note, _counter(done)
        )
        return Measured(
            requests=tally.requests,
            failed=tally.failed,
            errors=dict(tally.errors),
            begin_ns=tally.begin_ns,
            end_ns=tally.end_ns,
            cpu_s=time.process_time() - cpu_s,
            latencies=latencies.encode(),
        )


async def _drive(
    plan: Plan,
    source: Source,
    budget: Budget,
    note: Callable[[int], None],
    progress: Callable[[int], None] | None,
) -> Tally:
    return await drive(
        source,
        batch=plan.settings.batch,
        in_flight=plan.in_flight,
        budget=budget,
        note=note,
        interval_ns=plan.interval_ns,
        progress=progress,
    )


def _warm_up(plan: Plan) -> Budget:
    """A tenth of the run, at least a few rounds, at most a few seconds."""
    if plan.requests is None:
        return Budget(seconds=min(_WARM_UP_SECONDS_MAX, (plan.seconds or 0.0) / 4))
    return Budget(requests=max(plan.requests // 10, 2 * plan.in_flight), seconds=_WARM_UP_SECONDS_MAX)


def _counter(done: Any) -> Callable[[int], None]:
    unreported = requests = 0

    def count(items: int) -> None:
        nonlocal unreported, requests
        unreported += items
        requests += 1
        if requests % _PROGRESS_REQUESTS == 0 or items > _PROGRESS_REQUESTS:
            with done.get_lock():
                done.value += unreported
            unreported = 0

    return count
