"""Other work beside the storm, in a process of its own: puts, session updates and offset commits at an even pace.

The load is an open loop: a batch is due at its time, whatever became of the others. Goodput is what was acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from metad_client import Client, MetadError, Options
from metad_client.results import WriteResult
from metad_wire.messages import (
    KvPutItem,
    OffsetCommitItem,
    SessionProperties,
    SessionTakeoverItem,
    SessionUpdateItem,
)

from ..leader_kill.rounds import percentile
from ..load.measure import epoch_now
from ..target import open_client

TENANT = "storm-background"
_BROKER = "storm-background"
_KEYS = 1_000
_VALUE = bytes(range(200))
_TICK_S = 0.02
_DEADLINE_S = 5.0
_WAITING_MAX = 2_000  # batches without an answer; what is due beyond them is not acknowledged either


class Begin(msgspec.Struct, frozen=True):
    """So many items a second from now on, a third of each verb."""

    rate: float


class End(msgspec.Struct, frozen=True):
    """Stop. The reply: :class:`Work`."""


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """A batch: when it was due and when it ended by the machine's monotonic clock, its items, and how many of them were
    acknowledged."""

    due_ns: int
    ended_ns: int
    items: int
    acknowledged: int


class Work(msgspec.Struct, frozen=True):
    """All of it."""

    samples: list[Sample] = []
    errors: dict[str, int] = {}

    def goodput(self, begin_ns: int, end_ns: int) -> float:
        """Items a second that were due between two moments, and were acknowledged by their deadline."""
        done = sum(one.acknowledged for one in self.samples if begin_ns <= one.due_ns < end_ns)
        return done / ((end_ns - begin_ns) / 1e9) if end_ns > begin_ns else 0.0

    def waits_ms(self, begin_ns: int, end_ns: int) -> dict[str, float]:
        """How long the batches that were due between two moments took, in milliseconds by percentile (``"50"``,
        ``"99"``), whatever came of them. Those that were not sent count as nothing."""
        took = [(one.ended_ns - one.due_ns) / 1e6 for one in self.samples if begin_ns <= one.due_ns < end_ns]
        return {f"{percent}": percentile(took, percent) for percent in (50, 99)}

    def curve(self, begin_ns: int, step_s: float, steps: int) -> list[float]:
        """What was acknowledged a second, step by step from a moment on: behind a pause, also what was due in it."""
        done = [0] * steps
        for one in self.samples:
            at = (one.ended_ns - begin_ns) // round(step_s * 1e9)
            if 0 <= at < steps:
                done[at] += one.acknowledged
        return [each / step_s for each in done]


class Background:
    """The role of the process."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._epoch = epoch_now()
        self._work = Work([], {})
        self._calls: set[asyncio.Task[None]] = set()
        self._driving: asyncio.Task[None] | None = None
        self._turn = 0

    async def carry_out(self, order: Any) -> Any:
        match order:
            case Begin(rate):
                items = [
                    SessionTakeoverItem(TENANT, f"b-{n}", True, SessionProperties(86_400, _VALUE)) for n in range(_KEYS)
                ]
                (await self._client.sessions.takeover_many(_BROKER, self._epoch, items)).raise_for_error()
                self._driving = asyncio.create_task(self._drive(rate))
                return None
            case End():
                await self._rest()
                await asyncio.gather(*self._calls)  # each has a deadline
                return self._work
        raise TypeError(f"no order {order!r}")

    async def stop(self) -> None:
        """End the load at once."""
        await self._rest()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _rest(self) -> None:
        if self._driving is not None:
            self._driving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._driving
            self._driving = None

    async def _drive(self, rate: float) -> None:
        verbs: list[Callable[[range], Awaitable[WriteResult]]] = [self._put, self._update, self._commit]
        begin_ns = time.monotonic_ns()
        due = 0
        while True:
            due += 1
            due_ns = begin_ns + round(due * _TICK_S * 1e9)
            await asyncio.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            count = round(rate * _TICK_S * due) - round(rate * _TICK_S * (due - 1))
            if not count:
                continue
            if len(self._calls) >= _WAITING_MAX:
                self._work.samples.append(Sample(due_ns, due_ns, count, 0))
                continue
            call = asyncio.create_task(self._one(verbs[due % len(verbs)], due_ns, count))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _one(self, verb: Callable[[range], Awaitable[WriteResult]], due_ns: int, count: int) -> None:
        begin = self._turn
        self._turn = (self._turn + count) % _KEYS
        done, errors = 0, self._work.errors
        try:
            result = await verb(range(begin, begin + count))
        except MetadError as error:
            errors[error.name] = errors.get(error.name, 0) + count
        else:
            done = count - len(result.errors)
            for why in result.errors.values():
                errors[why.name] = errors.get(why.name, 0) + 1
        self._work.samples.append(Sample(due_ns, time.monotonic_ns(), count, done))

    async def _put(self, keys: range) -> WriteResult:
        return await self._client.kv.put_many([KvPutItem(TENANT, f"key-{n % _KEYS}", _VALUE) for n in keys])

    async def _update(self, keys: range) -> WriteResult:
        properties = SessionProperties(86_400, _VALUE)
        items = [SessionUpdateItem(TENANT, f"b-{n % _KEYS}", properties) for n in keys]
        return await self._client.sessions.update_many(_BROKER, self._epoch, items)

    async def _commit(self, keys: range) -> WriteResult:
        now = time.monotonic_ns() // 1_000
        return await self._client.offsets.commit_many(
            [OffsetCommitItem(TENANT, "readers", "orders", n % _KEYS, now) for n in keys]
        )


@asynccontextmanager
async def open_background(target: str) -> AsyncIterator[Background]:
    """The role of a process."""
    async with open_client(target, Options(deadline_s=_DEADLINE_S, client_name="storm-background")) as client:
        background = Background(client)
        try:
            yield background
        finally:
            await background.stop()
