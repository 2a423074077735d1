"""What a watch that is far behind costs a writer: the writer's p99 while the watch catches up, and another one reads
nothing at all, against its p99 without them.

The watch that catches up runs in a process of its own, only when no other process wants the processor, because it
stands for another machine. So that the ratio shows the nodes and not the machine, a bystander computes as much in its
place in the windows without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from metad_client import Client, Options, Watch

from .. import commands
from ..experiment.nodes import quiet
from ..experiment.stage import Stage
from ..experiment.windows import poured, window
from ..load.measure import Load
from ..report import output
from ..report.histogram import Latencies
from ..target import open_client

_STEADY = Load(verb="kv.put", batch=10, in_flight=16, value_bytes=200, rate=2_000, items=1_000_000)
LONG_LOG = {"storage": {"log_retained_bytes": 1024 * 1024 * 1024}}
"""Configuration of the nodes: they keep the log that the watch needs."""


class Remember(msgspec.Struct, frozen=True):
    """Order: remember where the log ends now."""


class CatchUp(msgspec.Struct, frozen=True):
    """Order: begin to read from there, and again when ``events`` are read; another watch from there reads nothing."""

    events: int


class Compute(msgspec.Struct, frozen=True):
    """Order: begin to compute."""


class Rest(msgspec.Struct, frozen=True):
    """Order: end either, and reply with a :class:`Rested`."""


class Rested(msgspec.Struct, frozen=True, kw_only=True):
    """What the reader has done since it began."""

    events: int
    gaps: int
    seconds: float
    catch_ups: int


class Straggler:
    """The reader's process."""

    def __init__(self, client: Client, idler: Client) -> None:
        self._client = client
        self._idler = idler
        self._token = ""
        self._task: asyncio.Task[None] | None = None
        self._stalled: Watch | None = None
        self._computing = threading.Event()
        self._thread: threading.Thread | None = None
        self._events = self._gaps = self._catch_ups = 0
        self._begin = 0.0

    async def carry_out(self, order: Remember | CatchUp | Compute | Rest) -> Rested | None:
        """Do it."""
        if isinstance(order, Remember):
            async with self._client.watch(["kv"]) as watch:
                await watch.opened()
                self._token = watch.token
            return None
        if isinstance(order, Rest):
            return await self._rest()
        self._events = self._gaps = self._catch_ups = 0
        self._begin = time.monotonic()
        if isinstance(order, CatchUp):
            self._stalled = self._idler.watch(["kv"], token=self._token)
            await self._stalled.opened()
            self._task = asyncio.create_task(self._catch_up(order.events))
        else:
            self._computing.set()
            self._thread = threading.Thread(target=self._compute, daemon=True)
            self._thread.start()
        return None

    async def _catch_up(self, events: int) -> None:
        while True:
            came = 0
            async with self._client.watch(["kv"], token=self._token) as watch:
                async for batch in watch:
                    came += len(batch.events)
                    self._events += len(batch.events)
                    self._gaps += batch.kind == "gap"
                    if came >= events:
                        break
            self._catch_ups += 1

    def _compute(self) -> None:
        while self._computing.is_set():
            sum(range(1_000))

    async def _rest(self) -> Rested:
        seconds = time.monotonic() - self._begin
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        if self._stalled is not None:
            await self._stalled.close()
            self._stalled = None
        self._computing.clear()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return Rested(events=self._events, gaps=self._gaps, seconds=seconds, catch_ups=self._catch_ups)


@contextlib.asynccontextmanager
async def open_straggler(target: str) -> AsyncIterator[Straggler]:
    """The role of the reader's process."""
    options = Options(client_name="straggler")
    async with open_client(target, options) as client, open_client(target, options) as idler:
        straggler = Straggler(client, idler)
        try:
            yield straggler
        finally:
            await straggler.carry_out(Rest())


async def measure(options: commands.Watch, progress: Callable[[int], None], stage: Stage) -> dict[str, Any]:
    """Write events, then measure windows, without the readers and with them, in changing order."""
    target, behind = stage.members.target, options.behind
    straggler = stage.actor(open_straggler, target, idle=True)
    await straggler.ask(Remember())
    batch = min(1_000, behind)
    await poured(target, Load(verb="kv.put", batch=batch, items=behind, value_bytes=100), lambda _: None)
    await quiet(stage.members.all)
    progress(1)
    found: dict[bool, list[Latencies]] = {True: [], False: []}
    read: list[Rested] = []
    for pair in range(options.pairs):
        for with_it in (False, True) if pair % 2 else (True, False):
            await straggler.ask(CatchUp(behind) if with_it else Compute())
            found[with_it].append((await window(target, _STEADY, options.window_s)).latencies)
            rested: Rested = await straggler.ask(Rest())
            if with_it:
                read.append(rested)
            progress(1)
    with_, without = (Latencies.merged([one.encode() for one in found[kind]]) for kind in (True, False))
    p99 = [
        (one.percentile_ms(99), other.percentile_ms(99)) for one, other in zip(found[True], found[False], strict=True)
    ]
    return {
        "writer_p99_ratio_slow_watcher": output.median_ratio(p99),
        "behind": behind,
        "writer": "200 puts of 10 items a second, open loop",
        "writes_with": with_.count,
        "writer_p50_ms_with": with_.percentile_ms(50),
        "writer_p50_ms_without": without.percentile_ms(50),
        "writer_p99_ms_with": with_.percentile_ms(99),
        "writer_p99_ms_without": without.percentile_ms(99),
        "ratios": [output.ratio(*pair) for pair in p99],
        "caught_up_events_per_s": [output.ratio(one.events, one.seconds) for one in read],
        "catch_ups": sum(one.catch_ups for one in read),
        "gaps": sum(one.gaps for one in read),
    }
