"""Sessions that begin and end one by one: how many a second the nodes sustain, and how long a pair of calls takes.

Each client connects with a clean start and an expiry interval of 0, and disconnects: two single calls of the SDK, one
after the other. The load is paced: a client is due at its time whatever happened to the others, and the clock of its
pair starts then, so a stall shows in every client that it delayed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from metad_client import Client, Options

from ..load.fleet import Result, run_fleet
from ..load.loop import Source
from ..load.measure import Load, epoch_now, plans
from ..load.worker import REQUEST_DEADLINE_S, Plan
from ..load.workload import DIFFERENT, TENANT
from ..report import output
from ..target import open_client

_BATCH_ITEMS = 1_000  # that the SDK joins into a request at most
SUSTAINED = 0.98
"""A rate is sustained if so much of it was done, without an error."""


class CreateClose:
    """Clients that nobody has seen before, one at a time."""

    def __init__(self, client: Client, plan: Plan) -> None:
        self._client = client
        self._broker = f"broker-{plan.settings.share}"
        self._epoch = plan.settings.epoch
        self._prefix = f"once-{plan.settings.epoch}-{plan.settings.share}-"
        self._count = 0

    def batch(self) -> str:
        """The next client."""
        self._count += 1
        return f"{self._prefix}{self._count}"

    async def send(self, batch: str) -> Sequence[str]:
        """It comes and goes."""
        sessions = self._client.sessions
        taken = await sessions.takeover(self._broker, self._epoch, TENANT, batch, clean_start=True)
        await sessions.disconnect(self._broker, self._epoch, TENANT, batch)
        return () if taken.previous is None else (DIFFERENT,)


@asynccontextmanager
async def open_create_close(plan: Plan) -> AsyncIterator[Source]:
    """The role of a load-generating process."""
    options = Options(
        deadline_s=REQUEST_DEADLINE_S,
        batch_items=_BATCH_ITEMS,
        waiting_max=max(10_000, 4 * plan.in_flight),
        client_name="metad-perf",
    )
    async with open_client(plan.endpoint, options) as client:
        yield CreateClose(client, plan)


async def left(client: Client) -> int:
    """How many sessions there are still: none, or they were not ended."""
    count = 0
    async for _ in client.sessions.list(tenant=TENANT):
        count += 1
    return count


def run_rate(
    target: str, *, rate: float, seconds: float, processes: int, in_flight: int, progress: Callable[[int], None]
) -> dict[str, Any]:
    """One rate, in pairs a second; 0: as fast as ``in_flight`` clients at a time go."""
    load = Load(
        verb="session.takeover", batch=1, in_flight=in_flight, rate=rate, processes=processes, items=1_000_000
    ).checked()
    result: Result = run_fleet(
        plans(target, load, epoch_now(), seconds=seconds, open_source=open_create_close),
        on_begin=lambda: None,
        on_end=lambda: None,
        progress=progress,
    )
    done = result.items_per_s()
    errors = dict(result.errors)
    return {
        "rate": rate,
        "done_per_s": done,
        "sustained": bool(rate) and done >= SUSTAINED * rate and not errors,
        "p50_ms": result.latencies.percentile_ms(50),
        "p99_ms": result.latencies.percentile_ms(99),
        "p999_ms": result.latencies.percentile_ms(99.9),
        "max_ms": result.latencies.max_ms(),
        "pairs": result.requests,
        "client_cpu_us_per_pair": output.ratio(result.client_cpu_s * 1e6, result.requests),
        "errors_by_name": errors,
    }
