"""Produces and consumes: a client finds leaders by metad's records, and reads them again where a broker refuses it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Self, TypeVar

import msgspec

from metad_client import Client, FencedError, Generation, Member, Owner, Route
from metad_wire.families.assignment import PARTITIONS
from metad_wire.tables.assignment import Partition

from . import protocol
from .protocol import ERRORS, KIND, Append, Appended, Connection, Fetch, Fetched, Record, StaleRoute, UnknownOutcome

_AGAIN_S, _ANSWER_S = 0.1, 3.0
Ask = Callable[[int], protocol.Request]  # of a leader_epoch
Handle = Callable[[int, Sequence[Record]], Awaitable[None]]
Message = TypeVar("Message")


class Topic:
    """The partitions of a topic, wherever they are led. One append and one fetch of a partition at a time."""

    def __init__(self, metad: Client, tenant: str, topic: str, route: Route[Partition]) -> None:
        self.metad, self.tenant, self.topic = metad, tenant, topic
        self._route = route
        self._connections: dict[tuple[int, type], tuple[Owner, Connection]] = {}

    @classmethod
    async def open(cls, metad: Client, tenant: str, topic: str) -> Self:
        return cls(metad, tenant, topic, await metad.routes(PARTITIONS, tenant, topic, KIND))

    def close(self) -> None:
        for _, connection in self._connections.values():
            connection.close()

    async def append(self, partition: int, payloads: list[bytes], *, deadline_s: float = 30.0) -> Appended:
        """Append records. Raises TimeoutError if no leader took them, and UnknownOutcome if nobody knows."""
        ask = partial(Append, self.tenant, self.topic, partition, payloads=payloads)
        return await self._ask(partition, ask, Appended, deadline_s, once=True)

    async def fetch(self, partition: int, offset: int, *, wait_s: float = 0.5, deadline_s: float = 30.0) -> Fetched:
        """Records from ``offset`` on that are acknowledged. Raises TimeoutError."""
        ask = partial(Fetch, self.tenant, self.topic, partition, offset=offset, wait_s=wait_s)
        return await self._ask(partition, ask, Fetched, deadline_s)

    async def consume(self, group: str, handle: Handle, *, session_s: float = 5.0) -> None:
        """A member of a consumer group: ``handle`` gets the records of a partition in order, each at least once."""
        count = len(self._route.records)

        def share_out(_: str, members: Sequence[Member]) -> Mapping[str, bytes]:
            shares = {member.member: [*range(at, count, len(members))] for at, member in enumerate(members)}
            return {member: msgspec.msgpack.encode(share) for member, share in shares.items()}

        async with self.metad.consume(self.tenant, group, assign=share_out, session_s=session_s) as member:
            async for generation in member:
                share = msgspec.msgpack.decode(generation.assignment, type=list[int])
                over = asyncio.Event()  # for all, once one is told so: it may be current again a moment later
                async with asyncio.TaskGroup() as tasks:
                    for partition in share:
                        tasks.create_task(self._work(group, generation, partition, handle, over))
                if not share:
                    await generation.ended()

    async def _work(
        self, group: str, generation: Generation, partition: int, handle: Handle, over: asyncio.Event
    ) -> None:
        offset: int | None = None
        with suppress(FencedError):
            while generation.is_current and not over.is_set():
                try:
                    if offset is None:
                        stored = await self.metad.offsets.fetch(self.tenant, group, self.topic, partition)
                        offset = 0 if stored is None else stored.offset
                    fetched = await self.fetch(partition, offset)
                    if fetched.records and generation.is_current:
                        await handle(partition, fetched.records)
                        offset = fetched.records[-1].offset + 1
                        await generation.commit(self.topic, partition, offset)
                except FencedError:
                    raise
                except ERRORS:
                    offset = None  # from what is committed, again
                    await asyncio.sleep(_AGAIN_S)
        over.set()

    async def _ask(
        self, partition: int, request: Ask, answer: type[Message], deadline_s: float, once: bool = False
    ) -> Message:
        """Ask the leader. ``once``: what may have been done is not asked for again."""
        until_s = time.monotonic() + deadline_s
        while (left_s := until_s - time.monotonic()) > 0:
            sent, unknown = False, None
            try:
                record = self._route[partition].record
                if record.leader is not None:
                    connection = await self._connection(partition, answer, record.leader)
                    sent = True
                    return await connection.ask(
                        request(record.leader_epoch), answer, left_s if once else min(left_s, _ANSWER_S)
                    )
            except StaleRoute:
                pass
            except ERRORS as error:
                self._connections.pop((partition, answer), None)
                unknown = error if once and sent else None
            await asyncio.sleep(_AGAIN_S)
            with suppress(*ERRORS):
                await self._route.refresh(deadline_s=1.0)
            if unknown is not None:
                raise UnknownOutcome(f"{type(unknown).__name__}: {unknown}") from unknown
        raise TimeoutError(f"no leader of {self.topic}/{partition} has answered")

    async def _connection(self, partition: int, answer: type, leader: Owner) -> Connection:
        known = self._connections.get((partition, answer))
        if known is not None and known[0] == leader:
            return known[1]
        if known is not None:
            known[1].close()
        found = await self.metad.brokers.get(leader.broker, deadline_s=2.0)
        if found is None:
            raise StaleRoute(f"there is no broker {leader.broker}")
        connection = await Connection.open(found.address)
        self._connections[partition, answer] = leader, connection
        return connection
