"""Produces and consumes: a route of metad finds the leader, and another one where a broker refuses the client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

import msgspec

from metad_client import Choice, Client, FencedError, Generation, Member, PartitionRoute

from . import protocol
from .protocol import ERRORS, KIND, Append, Appended, Connection, Fetch, Fetched, Message, Record

_AGAIN_S = 0.1
Handle = Callable[[int, Sequence[Record]], Awaitable[None]]


class Topic:
    """The partitions of a topic, wherever they are led. One append and one fetch of a partition at a time."""

    def __init__(self, metad: Client, tenant: str, topic: str, route: PartitionRoute) -> None:
        self.metad, self.tenant, self.topic, self._route = metad, tenant, topic, route
        self._connections: dict[tuple[int, type], tuple[str, Connection]] = {}

    @classmethod
    async def open(cls, metad: Client, tenant: str, topic: str) -> Self:
        return cls(metad, tenant, topic, await metad.assignments.route(tenant, topic, KIND))

    def close(self) -> None:
        for _, connection in self._connections.values():
            connection.close()

    async def append(self, to: int | bytes | None, payloads: list[bytes], *, deadline_s: float = 30.0) -> Appended:
        """Append records to a partition, by a key, or to any that has a leader. Raises UnknownOutcomeError if nobody
        knows what was done, and other errors of metad if no leader took them."""

        whom = {"partition" if isinstance(to, int) else "key": to}
        ask = partial(Append, self.tenant, self.topic, payloads=payloads)
        return await self._ask(ask, Appended, deadline_s=deadline_s, **whom)

    async def fetch(self, partition: int, offset: int, *, wait_s: float = 0.5, deadline_s: float = 30.0) -> Fetched:
        """Records from ``offset`` on that are acknowledged. Raises errors of metad."""

        ask = partial(Fetch, self.tenant, self.topic, offset=offset, wait_s=wait_s)
        return await self._ask(ask, Fetched, partition=partition, to="read", deadline_s=deadline_s)

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

    async def _ask(self, ask: Callable[[int, int], protocol.Request], answer: type[Message], **how: Any) -> Message:
        async def connect(choice: Choice) -> Connection:
            at, address = (choice.partition, answer), choice.broker.address
            known, connection = self._connections.get(at, ("", None))
            if connection is None or known != address or connection.writer.is_closing():
                if connection is not None:
                    connection.close()
                connection = await Connection.open(address)
                self._connections[at] = address, connection
            return connection

        async def send(connection: Connection, choice: Choice) -> Message:
            return await connection.ask(ask(choice.partition, choice.leader_epoch), answer, choice.wait_s)

        return await self._route.ask(connect, send, **how)
