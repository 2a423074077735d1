"""The writer and the watches of one client process, and its orders. Each process has places of its own, so that the
ledgers are in the memory of their judges, and no clock but the process's own is read."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from metad_client import Client, Options
from metad_wire.policy import Backoff

from ..report.histogram import Latencies
from ..target import open_client
from .judge import Verdict
from .places import Place, lay_out
from .reader import Delays, Reader
from .writer import Writer

_BACKOFF = Backoff(base_s=0.01, cap_s=0.2)
_DEADLINE_S = 30.0
_OPEN_S = 60.0
_LOOK_S = 0.05
_STRAY_S = 0.5  # what comes twice, or too late, comes within this
_PREVIOUS_ONE_IN = 8  # watches that ask for values before
_RESTLESS_ONE_IN = 3  # watches that are slow or away at times, if that is asked for


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one process. ``run``: the number of the whole run. ``rate``: events a second. One client has
    ``watches_each`` watches."""

    target: str
    share: str
    run: int
    watchers: int
    places: int
    records: int
    rate: float
    batch: int
    spread: int
    value_bytes: int
    watches_each: int
    seed: str


class Write(msgspec.Struct, frozen=True):
    """Order: begin to write."""


class Mark(msgspec.Struct, frozen=True):
    """Order: reply with the delays since the last mark (:class:`Marked`). ``restless``: from now on some watches are
    slow or away at times."""

    restless: bool = False


class Finish(msgspec.Struct, frozen=True):
    """Order: end writing, write every record once more, wait until all watches have everything, and judge
    (:class:`Finished`)."""

    within_s: float


class Marked(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured since the last mark; the latencies are encoded."""

    written: int
    sent: bytes
    acknowledged: bytes
    writes: bytes
    late_s: float
    cpu_s: float
    seconds: float


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """What the process has found."""

    verdict: Verdict
    acknowledged: int
    unknown: int
    refused: int
    errors: dict[str, int]
    waited_s: float
    """How long the watches took for everything after the last write."""


class Crew:
    """Carries out the orders."""

    def __init__(self, plan: Plan, writer: Client, watching: Sequence[Client], tasks: asyncio.TaskGroup) -> None:
        self._plan = plan
        self._tasks = tasks
        self._verdict = Verdict()
        self._delays = Delays()
        self._places: list[Place] = lay_out(plan.share, plan.places, plan.records)
        self._writer = Writer(
            writer,
            self._places,
            run=plan.run,
            name=f"broker-{plan.share}",
            batch=plan.batch,
            spread=plan.spread,
            value_bytes=plan.value_bytes,
            rng=random.Random(f"{plan.seed}/writer"),
        )
        self._readers = [self._reader(n, watching[n // plan.watches_each]) for n in range(plan.watchers)]
        self._reading: list[asyncio.Task[None]] = []
        self._writing: asyncio.Task[None] | None = None
        self._stopped = False
        self._restless = False
        self._marked_s = time.monotonic()
        self._marked_cpu_s = time.process_time()
        self._written = 0

    def _reader(self, n: int, client: Client) -> Reader:
        return Reader(
            client,
            self._places[n % len(self._places)],
            f"watch {self._plan.share}/{n}",
            run=self._plan.run,
            previous=n % _PREVIOUS_ONE_IN == 0,
            verdict=self._verdict,
            delays=lambda: self._delays,
            rng=random.Random(f"{self._plan.seed}/{n}"),
        )

    async def open(self) -> None:
        """Open all watches."""
        for n, reader in enumerate(self._readers):
            may_rest = n % _RESTLESS_ONE_IN == 1
            self._reading.append(self._tasks.create_task(reader.run(self._rests if may_rest else lambda: False)))
        async with asyncio.timeout(_OPEN_S):
            for reader in self._readers:
                await reader.opened.wait()

    def _rests(self) -> bool:
        return self._restless

    async def carry_out(self, order: Write | Mark | Finish) -> Marked | Finished | None:
        """Do it."""
        if isinstance(order, Write):
            self._writing = self._tasks.create_task(self._writer.run(self._plan.rate, lambda: not self._stopped))
            self._mark()
            return None
        if isinstance(order, Mark):
            self._restless = order.restless
            return self._mark()
        return await self._finish(order.within_s)

    def _mark(self) -> Marked:
        now, cpu_s = time.monotonic(), time.process_time()
        delays, self._delays = self._delays, Delays()
        writes, self._writer.latencies = self._writer.latencies, Latencies()
        marked = Marked(
            written=self._writer.acknowledged - self._written,
            sent=delays.sent.encode(),
            acknowledged=delays.acknowledged.encode(),
            writes=writes.encode(),
            late_s=self._writer.late_s,
            cpu_s=cpu_s - self._marked_cpu_s,
            seconds=now - self._marked_s,
        )
        self._writer.late_s = 0.0
        self._marked_s, self._marked_cpu_s, self._written = now, cpu_s, self._writer.acknowledged
        return marked

    async def _finish(self, within_s: float) -> Finished:
        self._stopped, self._restless = True, False
        if self._writing is not None:
            await self._writing
        await self._writer.seal()
        begin = time.monotonic()
        for _ in range(max(1, round(within_s / _LOOK_S))):
            if all(reader.judge.complete() for reader in self._readers):
                break
            await asyncio.sleep(_LOOK_S)
        waited_s = time.monotonic() - begin
        await asyncio.sleep(_STRAY_S)
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        for reader in self._readers:
            reader.judge.close()
        return Finished(
            verdict=self._verdict,
            acknowledged=self._writer.acknowledged,
            unknown=self._writer.unknown,
            refused=self._writer.refused,
            errors=self._writer.errors,
            waited_s=waited_s,
        )

    def end(self) -> None:
        """End whatever goes on."""
        for task in (*self._reading, *([] if self._writing is None else [self._writing])):
            task.cancel()


@contextlib.asynccontextmanager
async def open_crew(plan: Plan) -> AsyncIterator[Crew]:
    """The role of a client process."""
    async with contextlib.AsyncExitStack() as stack:

        async def client(name: str) -> Client:
            options = Options(deadline_s=_DEADLINE_S, backoff=_BACKOFF, client_name=name)
            return await stack.enter_async_context(open_client(plan.target, options))

        writer = await client(f"writer-{plan.share}")
        count = -(-plan.watchers // plan.watches_each)
        watching = [await client(f"watches-{plan.share}-{n}") for n in range(count)]
        async with asyncio.TaskGroup() as tasks:
            crew = Crew(plan, writer, watching, tasks)
            await crew.open()
            try:
                yield crew
            finally:
                crew.end()


def merged(parts: Sequence[Any], field: str) -> Latencies:
    """The sum of the latencies of that name."""
    return Latencies.merged(getattr(one, field) for one in parts)
