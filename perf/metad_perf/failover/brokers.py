"""A process of brokers: each has a client of its own and lives a life of its own. Those that are to die die together,
when their process is killed; the others publish the wills."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from metad_client import BrokerLife, Client, FencedError, LifeState, MetadError, Options, SessionTakeoverItem

from ..errors import PreparationError
from ..target import open_client
from .ledger import Firing
from .plan import TENANT, Plan

BATCH = 1_000
_IN_FLIGHT = 4  # batches, of all brokers of the process
_DEADLINE_S = 60.0
_CLAIM = 250  # wills that a broker claims at a time


class Attach(msgspec.Struct, frozen=True):
    """Each broker's clients of these numbers connect. The reply: how many did."""

    begin: int
    end: int


class Publish(msgspec.Struct, frozen=True):
    """So many of these brokers publish wills from now on."""

    publishers: int


class Return(msgspec.Struct, frozen=True):
    """Clients of dead brokers connect to these brokers. The reply: for each, in order, whether its session was
    present."""

    clients: Sequence[str]


class Look(msgspec.Struct, frozen=True):
    """The reply: :class:`Seen`, since the last look."""


class Seen(msgspec.Struct, frozen=True):
    """Wills that were published, how many of them for the second time as far as metad knows, what went wrong, and how
    many brokers have lost their lives."""

    fired: list[Firing]
    claimed_again: int
    problems: list[str]
    lost: int


class Broker:
    """One broker."""

    def __init__(self, n: int, client: Client, life: BrokerLife) -> None:
        self.n = n
        self.client = client
        self.life = life

    async def take(self, items: Sequence[SessionTakeoverItem]) -> list[bool]:
        """Clients connect. Returns for each whether its session was present. Raises PreparationError."""
        taken = await self.client.sessions.takeover_many(self.life.broker, self.life.epoch, items)
        if not taken.ok:
            first = next(iter(taken.errors.values()))
            raise PreparationError(f"{len(taken.errors)} of {len(items)} clients could not connect: {first}")
        return [taken.session_present(i) for i in range(len(items))]


class Brokers:
    """The brokers of one process."""

    def __init__(self, plan: Plan, brokers: Sequence[Broker]) -> None:
        self._plan = plan
        self._brokers = brokers
        self._fired: list[Firing] = []
        self._claimed_again = 0
        self._problems: list[str] = []
        self._publishing: list[asyncio.Task[None]] = []
        self._room = asyncio.Semaphore(_IN_FLIGHT)

    async def carry_out(self, order: Any) -> Any:
        match order:
            case Attach(begin, end):
                return await self._attach(begin, end)
            case Publish(publishers):
                self._publishing = [asyncio.create_task(self._publish(one)) for one in self._brokers[:publishers]]
                return None
            case Return(clients):
                return await self._return(clients)
            case Look():
                return self._look()
        raise TypeError(f"no order {order!r}")

    async def stop(self) -> None:
        """End what the brokers do."""
        for task in self._publishing:
            task.cancel()
        await asyncio.gather(*self._publishing, return_exceptions=True)

    async def _attach(self, begin: int, end: int) -> int:
        work: list[Awaitable[list[bool]]] = []
        for broker in self._brokers:
            for first in range(begin, end, BATCH):
                items = [self._plan.item(broker.n, number) for number in range(first, min(end, first + BATCH))]
                work.append(self._take(broker, items))
        return sum(len(one) for one in await asyncio.gather(*work))

    async def _return(self, clients: Sequence[str]) -> list[bool]:
        work: list[Awaitable[list[bool]]] = []
        for first in range(0, len(clients), BATCH):
            items = [SessionTakeoverItem(TENANT, client) for client in clients[first : first + BATCH]]
            work.append(self._take(self._brokers[first // BATCH % len(self._brokers)], items))
        return [present for one in await asyncio.gather(*work) for present in one]

    async def _take(self, broker: Broker, items: Sequence[SessionTakeoverItem]) -> list[bool]:
        async with self._room:
            return await broker.take(items)

    async def _publish(self, broker: Broker) -> None:
        """Publish what is due, as a broker does: an error that a later attempt may not meet is no reason to stop."""
        while True:
            try:
                async for taken in broker.client.wills.due(broker.life.broker, broker.life.epoch, limit=_CLAIM):
                    key, will = taken.key, taken.will
                    self._fired.append(Firing(key.tenant, key.client_id, will.topic, will.payload))
                    self._claimed_again += taken.claims > 1
            except FencedError:
                return  # the next look tells
            except MetadError as error:
                self._problems.append(f"{broker.life.broker} had to begin again to publish: {error.name}: {error}")

    def _look(self) -> Seen:
        lost = [broker.life for broker in self._brokers if broker.life.state is LifeState.LOST]
        self._problems += [f"{life.broker} has lost its life: {life.over}" for life in lost]
        seen = Seen(self._fired, self._claimed_again, self._problems, len(lost))
        self._fired, self._claimed_again, self._problems = [], 0, []
        return seen


@asynccontextmanager
async def open_brokers(
    target: str, plan: Plan, numbers: Sequence[int], lease_s: float, probe: bool
) -> AsyncIterator[Brokers]:
    """The role of a process: these brokers begin their lives. ``probe``: they name a port of their process."""
    async with AsyncExitStack() as stack:
        port = 0
        if probe:
            server = await stack.enter_async_context(
                await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
            )
            port = server.sockets[0].getsockname()[1]
        brokers = []
        for n in numbers:
            options = Options(deadline_s=_DEADLINE_S, client_name=plan.broker(n))
            client = await stack.enter_async_context(open_client(target, options))
            life = await client.brokers.register(plan.broker(n), lease_s=lease_s, probe_port=port)
            brokers.append(Broker(n, client, life))
        made = Brokers(plan, brokers)
        try:
            yield made
        finally:
            await made.stop()
