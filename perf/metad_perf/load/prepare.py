"""Creates the records that a run needs, through the SDK, in full batches, a few in flight."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from metad_client import Client
from metad_client.results import WriteResult
from metad_wire import messages as m

from ..errors import PreparationError
from .draw import Values
from .workload import BROKER, EXPIRY_INTERVAL_S, TENANT, Settings, item_put, kv_keys, opened, session_names

PREPARE_BATCH = 1_000
PREPARE_IN_FLIGHT = 6
_FILLED: Final = ("kv.get", "table.get")
Batch = TypeVar("Batch")


def records_needed(verb: str) -> bool:
    """Whether the verb needs existing records."""
    return (verb.startswith("session.") and verb != "session.create") or verb.endswith(".get")


async def prepare(client: Client, settings: Settings, progress: Callable[[int], None]) -> None:
    """Create the records that ``settings.verb`` needs, if any. Raises PreparationError."""
    if settings.verb.startswith("session."):
        await fill_sessions(client, settings.epoch, settings.keys, settings.value_bytes, progress)
    elif settings.verb in _FILLED:
        await _fill(await opened(client, settings.verb), settings, progress)


async def fill_sessions(
    client: Client, epoch: int, count: int, value_bytes: int, progress: Callable[[int], None]
) -> None:
    """Create the sessions 0 ≤ i < count, as :func:`take_sessions` does."""
    await take_sessions(client, epoch, session_names(count), value_bytes, progress)


async def take_sessions(
    client: Client, epoch: int, names: Sequence[str], value_bytes: int, progress: Callable[[int], None]
) -> None:
    """Make :data:`~metad_perf.load.workload.BROKER` the owner of these sessions, each with its own value."""
    values = Values(random.Random(0), value_bytes)

    def batches() -> Iterator[list[m.SessionTakeoverItem]]:
        for begin in range(0, len(names), PREPARE_BATCH):
            chunk = names[begin : begin + PREPARE_BATCH]
            yield [
                m.SessionTakeoverItem(TENANT, name, True, m.SessionProperties(EXPIRY_INTERVAL_S, value))
                for name, value in zip(chunk, values.pick(len(chunk)), strict=True)
            ]

    async def send(batch: list[m.SessionTakeoverItem]) -> None:
        result = await client.sessions.takeover_many(BROKER, epoch, batch)
        check(result, "sessions")
        progress(len(batch))

    await pour(batches(), send)


async def _fill(client: Any, settings: Settings, progress: Callable[[int], None]) -> None:
    keys = kv_keys(settings.keys)
    values = Values(random.Random(0), settings.value_bytes)
    write, item = (client.kv.put_many, m.KvPutItem) if settings.verb == "kv.get" else (client.put_many, item_put)

    def batches() -> Iterator[list[Any]]:
        for begin in range(0, len(keys), PREPARE_BATCH):
            chunk = keys[begin : begin + PREPARE_BATCH]
            drawn = zip(chunk, values.pick(len(chunk)), strict=True)
            yield [item(namespace, key, value) for (namespace, key), value in drawn]

    async def send(batch: list[Any]) -> None:
        check(await write(batch), "keys")
        progress(len(batch))

    await pour(batches(), send)


async def pour(
    batches: Iterator[Batch], send: Callable[[Batch], Awaitable[None]], in_flight: int = PREPARE_IN_FLIGHT
) -> None:
    """Send every batch, ``in_flight`` at a time; the first failure ends it."""

    async def worker() -> None:
        for batch in batches:  # shared: each worker takes the next
            await send(batch)

    async with asyncio.TaskGroup() as workers:
        for _ in range(in_flight):
            workers.create_task(worker())


def check(result: WriteResult, what: str) -> None:
    """Raise PreparationError if items of a batch failed."""
    if not result.ok:
        first = next(iter(result.errors.values()))
        raise PreparationError(f"{len(result.errors)} {what} of a batch could not be created: {first.name}: {first}")
