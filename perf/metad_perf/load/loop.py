"""The load loop: ``in_flight`` workers that take the next batch, send it, and measure how long the answer took.

Closed loop (``interval_ns`` 0): a worker sends as soon as its previous request is answered, and the clock of a request
starts when it is sent. Open loop: request number i is due at ``begin + i * interval_ns`` whatever happened to the
others, and its clock starts when it was *due*, so a stall of the server shows in every request it delayed (no
coordinated omission, as in wrk2). A request whose worker is still busy starts late, and its latency includes that
delay.

Knows no SDK, server or clock: a :class:`Source` and a :class:`Time` stand for them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from metad_wire.errors import MetadError

from .timing import SYSTEM, Time


class Source(Protocol):
    """Makes batches and sends them."""

    def batch(self) -> Any:
        """The next batch, newly made; its making is not part of any latency in the closed loop."""

    async def send(self, batch: Any) -> Sequence[str]:
        """Send it, check the reply, return a name for each item that failed. Raises MetadError if all items failed."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a run: after so many requests, or so many seconds, whichever comes first."""

    requests: int | None = None
    seconds: float | None = None


class Tally(msgspec.Struct, kw_only=True):
    """The totals of a loop. ``failed`` counts items; ``begin_ns``/``end_ns`` are on the monotonic clock."""

    requests: int = 0
    failed: int = 0
    begin_ns: int = 0
    end_ns: int = 0
    errors: Counter[str] = msgspec.field(default_factory=Counter)


async def drive(
    source: Source,
    *,
    batch: int,
    in_flight: int,
    budget: Budget,
    note: Callable[[int], None],
    interval_ns: float = 0,
    time: Time = SYSTEM,
    progress: Callable[[int], None] | None = None,
) -> Tally:
    """Run the loop to the end of its budget. ``note`` gets each latency in ns, ``progress`` each request's items."""
    if budget.requests is None and budget.seconds is None:
        raise ValueError("a loop needs a budget")
    tally = Tally(begin_ns=time.now_ns())
    now_ns = time.now_ns
    requests_max = budget.requests
    until_ns = None if budget.seconds is None else tally.begin_ns + round(budget.seconds * 1e9)
    taken = 0

    async def worker() -> None:
        nonlocal taken
        while requests_max is None or taken < requests_max:
            due_ns = tally.begin_ns + round(taken * interval_ns)
            if until_ns is not None and (due_ns if interval_ns else now_ns()) >= until_ns:
                return
            taken += 1
            records = source.batch()
            if interval_ns:
                if due_ns > now_ns():
                    await time.sleep_until_ns(due_ns)
                started_ns = due_ns
            else:
                started_ns = now_ns()
            try:
                failed = await source.send(records)
            except MetadError as error:
                failed = [error.name] * batch
            note(now_ns() - started_ns)
            tally.requests += 1
            if failed:
                tally.failed += len(failed)
                tally.errors.update(failed)
            if progress is not None:
                progress(batch)

    async with asyncio.TaskGroup() as workers:
        for _ in range(in_flight):
            workers.create_task(worker())
    tally.end_ns = now_ns()
    return tally
