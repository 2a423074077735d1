"""A process of brokers: each has a client of the SDK and a life of its own, and many clients that are numbers.

An arrival does not wait for any answer (open loop): a client is due at its broker when its plan or its backoff says. A
broker puts the clients that are due in one tick, and belong to one group, into one call of the SDK.

In the end it reads sessions back through a fresh connection, with all that belongs to them.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from metad_client import Client, MetadError, Options
from metad_client.errors import OverloadedError
from metad_client.results import WriteResult
from metad_judge.sessions import Found, Sessions, Verdict
from metad_wire import methods
from metad_wire.cluster import unpack_slots
from metad_wire.messages import (
    Owner,
    SessionDeleteItem,
    SessionDisconnectItem,
    SessionKey,
    SessionTakeoverItem,
)
from metad_wire.routing import ROUTES, SLOT_MASK
from metad_wire.tables.inflight import Inflight
from metad_wire.tables.subscription import Subscription

from ..errors import PreparationError, ServerError
from ..load.prepare import pour
from ..target import open_client
from .broker import Broker
from .orders import Counts, Finish, Forget, Go, Leave, Look, Prepare, Register, Store, Verify
from .plan import WAYS, Places, Storm, places
from .population import Clients, Ints, Kind, client_id
from .trace import Trace
from .wave import Wave


async def read_back(
    client: Client,
    clients: Clients,
    judge: Sessions,
    described: Sequence[tuple[int, Kind]],
    ends: Sequence[bool],
    owners: Sequence[Sequence[Owner]],
) -> None:
    """Up to 1,000 clients: what is stored must be what was stored. ``ends``: their sessions must be gone. ``owners``:
    the lives that may own each."""
    keys = [SessionKey(kind.tenant, client_id(number)) for number, kind in described]
    sessions = await client.sessions.get_many(keys)
    sessions.raise_for_error()
    filters = await client.subscriptions.get_many(keys)
    filters.raise_for_error()
    waiting = await client.inflight.get_many(keys)
    waiting.raise_for_error()
    rows = zip(described, sessions, filters, waiting, ends, owners, strict=True)
    for (number, kind), session, some, states, gone, right in rows:
        if not gone:
            owner = None if session is None else Owner(session.broker, session.broker_epoch)
            stored = None if session is None else (session.properties, list(some or ()), list(states or ()))
            judge.see(number, right, clients.stored(number, kind), Found(owner, stored), "at the end")
        elif session is not None:
            judge.not_ended(number)


BATCH = 1_000
_DEADLINE_S = 60.0  # of calls before and after the storm
_RETRY_MS = 50


class Crew:
    """The brokers of one process."""

    def __init__(self, target: str, storm: Storm, process: int) -> None:
        self._target = target
        self._process = process
        self._storm = storm
        self._clients = Clients(storm.population, storm.seed)
        self._kinds = storm.population.kinds
        everyone = places(storm, self._clients)
        self._stored: Places = everyone.only(everyone.before % storm.processes == process)
        self._mine: Places = everyone.only(everyone.after % storm.processes == process)
        self.brokers = {n: Broker(target, storm, n) for n in range(process, storm.brokers, storm.processes)}
        self._running: asyncio.Task[None] | None = None
        self._wave: Wave | None = None

    async def carry_out(self, order: Any) -> Any:
        match order:
            case Register():
                async with asyncio.TaskGroup() as tasks:
                    for broker in self.brokers.values():
                        tasks.create_task(broker.begin())
                return {n: broker.owner for n, broker in self.brokers.items()}
            case Store(begin, end):
                return await self._store(begin, end)
            case Leave(moment_s):
                return await self._leave(moment_s)
            case Prepare(owners):
                # For millions of clients it takes longer than a lease, and the brokers' heartbeats must go on.
                self._wave = await asyncio.to_thread(self._made_ready, owners, await self._slots())
                return None
            case Go(t0_ns):
                assert self._wave is not None
                self._running = asyncio.create_task(self._wave.run(t0_ns))
                return None
            case Look():
                if self._running is not None and self._running.done():
                    await self._running  # raises what ended it
                return Counts() if self._wave is None else self._wave.counts()
            case Finish():
                assert self._wave is not None
                assert self._running is not None
                await self._running
                return self._wave.result(order)
            case Verify(begin, end):
                return await self._verify(begin, end)
            case Forget(begin, end):
                return await self._forget(begin, end)
        raise TypeError(f"no order {order!r}")

    async def stop(self) -> None:
        """End the brokers."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        for broker in self.brokers.values():
            await broker.end()

    # --- before the storm ---

    async def _store(self, begin: int, end: int) -> int:
        """Broker by broker, in full batches."""
        some = self._stored
        where = np.arange(begin, min(end, len(some.numbers)))
        by_broker = [(n, where[some.before[where] == n]) for n in self.brokers]
        batches = [(n, part[at : at + BATCH]) for n, part in by_broker for at in range(0, len(part), BATCH)]

        async def send(batch: tuple[int, Ints]) -> None:
            broker, part = self.brokers[batch[0]], batch[1]
            name, epoch, client = broker.owner.broker, broker.owner.broker_epoch, broker.client
            clients = self._described(some, part)
            items = [
                SessionTakeoverItem(kind.tenant, client_id(number), True, self._clients.properties(number, kind))
                for number, kind in clients
            ]
            await _patiently(lambda some: client.sessions.takeover_many(name, epoch, some), items)
            filters = [
                Subscription(kind.tenant, client_id(number), one.filter, one.options)
                for number, kind in clients
                for one in Clients.subscriptions(number, kind)
            ]
            await _patiently(lambda some: client.subscriptions.add_many(name, epoch, some), filters)
            waiting = [
                Inflight(kind.tenant, client_id(number), one.name, one.value)
                for number, kind in clients
                for one in Clients.inflight(number, kind)
            ]
            await _patiently(lambda some: client.inflight.put_many(name, epoch, some), waiting)

        await pour(iter(batches), send)
        return len(where)

    async def _leave(self, moment_s: float) -> int:
        some = self._stored
        left = 0
        for n, broker in self.brokers.items():
            where = np.flatnonzero(some.ends & (some.before == n))
            for at in range(0, len(where), BATCH):
                clients = self._described(some, where[at : at + BATCH])
                after_s = max(1, round(moment_s - time.time()))
                items = [
                    SessionDisconnectItem(kind.tenant, client_id(number), after_s, will_discard=True)
                    for number, kind in clients
                ]
                owner = broker.owner
                done = await broker.client.sessions.disconnect_many(owner.broker, owner.broker_epoch, items)
                done.raise_for_error()
                left += len(items)
        return left

    # --- after the storm ---

    async def _verify(self, begin: int, end: int) -> Verdict:
        wave = self._wave
        assert wave is not None
        judge = Sessions()
        mine = self._mine

        async def look(where: Ints) -> None:
            described = self._described(mine, where)
            await read_back(client, self._clients, judge, described, mine.ends[where].tolist(), wave.owners(where))

        async with open_client(self._target, Options(deadline_s=_DEADLINE_S)) as client:
            await pour(_batches(np.arange(begin, min(end, len(mine.numbers)))), look)
        return judge.verdict

    async def _forget(self, begin: int, end: int) -> int:
        async with open_client(self._target, Options(deadline_s=_DEADLINE_S)) as client:
            for where in _batches(np.arange(begin, min(end, len(self._mine.numbers)))):
                items = [
                    SessionDeleteItem(kind.tenant, client_id(number))
                    for number, kind in self._described(self._mine, where)
                ]
                await client.sessions.delete_many(items)
        return end - begin

    def _trace(self) -> Trace:
        directory, population = self._storm.trace, self._storm.population
        words = {"kind": [kind.name for kind in population.kinds], "region": population.regions, "policy": WAYS}
        path = str(Path(directory) / f"attempts-{self._process:02}.parquet") if directory else ""
        return Trace(path, words=words)

    async def _slots(self) -> Ints:
        """Slot -> ordinal of its group."""
        mapped = (await next(iter(self.brokers.values())).client.cluster.map()).map
        if mapped is None:
            raise ServerError("the cluster has no map yet")
        route = ROUTES[methods.SESSION_TAKEOVER.code]
        return np.array(unpack_slots(mapped.slots[route.kind]), dtype=np.int64)

    def _made_ready(self, owners: Mapping[int, Owner], slots: Ints) -> Wave:
        """The clients that come back to these brokers."""
        gc.disable()  # a collection would look at each of the storm's objects
        try:
            rng = np.random.default_rng([self._storm.seed, self._process])
            parts = (self._storm, self._clients, self._mine, self._groups(slots), self.brokers, owners, rng)
            return Wave(*parts, self._trace())
        finally:
            gc.freeze()
            gc.enable()

    def _groups(self, slots: Ints) -> Ints:
        """The group of each client, so that one call needs one request. If slots move, the SDK splits it again."""
        route = ROUTES[methods.SESSION_TAKEOVER.code]
        keys = [
            SessionKey(kind.tenant, client_id(number))
            for number, kind in self._described(self._mine, np.arange(len(self._mine.numbers)))
        ]
        crcs = np.fromiter(route.crcs(keys), dtype=np.int64, count=len(keys))
        groups: Ints = slots[crcs & SLOT_MASK]
        return groups

    def _described(self, some: Places, where: Ints) -> list[tuple[int, Kind]]:
        kinds = self._kinds
        return [
            (number, kinds[kind])
            for number, kind in zip(some.numbers[where].tolist(), some.kinds[where].tolist(), strict=True)
        ]


def _batches(where: Ints) -> Iterator[Ints]:
    for at in range(0, len(where), BATCH):
        yield where[at : at + BATCH]


async def _patiently(store: Callable[[list[Any]], Awaitable[WriteResult]], items: list[Any]) -> None:
    """Store a batch; what a server turns away again, as often as it does, for the SDK of a broker may not do that. What
    is stored is not sent again: a session that begins anew would publish its will. Raises PreparationError."""
    until_s = time.monotonic() + _DEADLINE_S
    while items:
        try:
            errors = (await store(items)).errors
        except MetadError as error:
            errors = dict.fromkeys(range(len(items)), error)
        after_ms = _RETRY_MS
        for failed in errors.values():
            if not isinstance(failed, OverloadedError) or time.monotonic() > until_s:
                raise PreparationError(f"records could not be stored: {failed.name}: {failed}")
            after_ms = max(after_ms, failed.retry_after_ms)
        items = [items[at] for at in sorted(errors)]
        if items:
            await asyncio.sleep(after_ms / 1000)


@asynccontextmanager
async def open_crew(target: str, storm: Storm, process: int) -> AsyncIterator[Crew]:
    """The role of a process."""
    crew = Crew(target, storm, process)
    try:
        yield crew
    finally:
        await crew.stop()
