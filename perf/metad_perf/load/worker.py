"""One load-generating process: connect, warm up, wait for the signal, run the loop, return the measurements.

:mod:`metad_perf.load.fleet` starts it. It shares neither interpreter lock nor event loop with another. Over its pipe
it sends ``Warm``, takes any message as the signal to begin, and sends :class:`Measured` or :class:`Failed`.

With ``--batch 1`` every item is one call of the SDK's single verb, which joins simultaneous calls into a request.

With ``--request-each`` a batch of 1 is a request of 1 instead, and joining is left to the server. The batches come from
the workload.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from metad_client import Client, Options
from metad_client.namespaces.tables import Records
from metad_wire.errors import MetadError
from metad_wire.transport.tcp import install_uvloop

from ..errors import PerfError
from ..report.histogram import Latencies
from ..target import open_client
from .loop import Budget, Source, Tally, drive
from .workload import ABSENT, BROKER, DIFFERENT, PRESENT, VERBS, Item, Settings, opened

Send = Callable[[Any, Settings, Any], Awaitable[str | None]]
"""Sends one item by what the workload is made with (:func:`.opened`); returns the name of the error in the reply.
Raises MetadError."""


class Singles:
    """A workload of one verb, one item at a time."""

    def __init__(self, client: Any, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._workload = VERBS[settings.verb](client, settings)
        self._send = SENDS[settings.verb]

    def batch(self) -> Any:
        """The next item, as a batch of one."""
        return self._workload.batch()

    async def send(self, batch: Any) -> Sequence[str]:
        wrong = await self._send(self._client, self._settings, batch)
        return () if wrong is None else (wrong,)


async def _takeover(client: Client, settings: Settings, batch: Any) -> str | None:
    broker, (item,) = batch
    taken = await client.sessions.takeover(
        broker, settings.epoch, item.tenant, item.client_id, restore=settings.restore
    )
    return ABSENT if taken.previous is None or (settings.restore and taken.properties is None) else None


async def _create(client: Client, settings: Settings, batch: Any) -> str | None:
    (item,) = batch
    taken = await client.sessions.takeover(
        BROKER, settings.epoch, item.tenant, item.client_id, clean_start=True, properties=item.properties
    )
    return None if taken.previous is None else PRESENT


async def _update(client: Client, settings: Settings, batch: Any) -> str | None:
    (item,) = batch
    await client.sessions.update(BROKER, settings.epoch, item.tenant, item.client_id, item.properties)
    return None


async def _get_session(client: Client, settings: Settings, batch: Any) -> str | None:
    (key,) = batch
    session = await client.sessions.get(key.tenant, key.client_id)
    if session is None:
        return ABSENT
    whole = session.client_id == key.client_id and len(session.properties.payload) == settings.value_bytes
    return None if whole else DIFFERENT


async def _commit(client: Client, settings: Settings, batch: Any) -> str | None:
    (item,) = batch
    await client.offsets.commit(item.tenant, item.group, item.topic, item.partition, item.offset)
    return None


async def _put(client: Client, settings: Settings, batch: Any) -> str | None:
    (item,) = batch
    version = await client.kv.put(item.namespace, item.key, item.value)
    return None if version else ABSENT


async def _get_kv(client: Client, settings: Settings, batch: Any) -> str | None:
    (key,) = batch
    record = await client.kv.get(key.namespace, key.key)
    if record is None:
        return ABSENT
    return None if record.key == key.key and len(record.value) == settings.value_bytes else DIFFERENT


async def _put_record(records: Records[Item], settings: Settings, batch: Any) -> str | None:
    (item,) = batch
    return None if await records.put(item.record) else ABSENT


async def _get_record(records: Records[Item], settings: Settings, batch: Any) -> str | None:
    (key,) = batch
    found = await records.get(key.namespace, key.key)
    if found is None:
        return ABSENT
    return None if found.record.key == key.key and len(found.record.value) == settings.value_bytes else DIFFERENT


SENDS: dict[str, Send] = {
    "session.create": _create,
    "session.takeover": _takeover,
    "session.update": _update,
    "session.get": _get_session,
    "offset.commit": _commit,
    "kv.put": _put,
    "kv.get": _get_kv,
    "table.put": _put_record,
    "table.get": _get_record,
}


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
        workload = Singles if plan.settings.singles else VERBS[plan.settings.verb]
        yield workload(await opened(client, plan.settings.verb), plan.settings)


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
