"""Nodes that join the cluster of the fault run, get replicas and leave again: one at a time, each under a new name,
while everything else continues. They are learners: the groups already have all their voters."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from metad_client import Client, MetadError
from metad_client.errors import NotFoundError
from metad_wire.messages import StatusReply

from ..errors import ServerError
from .members import START_S, Member, Members

_POLL_S = 0.2
_ASK_S = 2.0
_TAKES_PART_S = 20.0
_STAYS_S = 3.0
_GOES_S = 60.0


class Visitors:
    """All visitors, one after the other. Failures are added to ``problems``."""

    def __init__(self, members: Members, problems: list[str]) -> None:
        self._members = members
        self._problems = problems
        self.joined = 0
        self.left = 0
        self.learned = 0
        """Visitors that were seen as learners of a group."""

    async def run(self, client: Client, going_on: Callable[[], bool]) -> None:
        """Run until ``going_on`` is false; returns when the last visitor has left."""
        visit = self._members.visit
        if visit is None:
            return
        while going_on():
            visitor = visit(f"v{self.joined + 1}")
            try:
                await asyncio.to_thread(visitor.start, START_S)
            except ServerError as error:
                self._problems.append(f"{visitor.name} could not join: {error}")
                return
            self.joined += 1
            await self._asked(lambda: client.cluster.rebalance(deadline_s=_ASK_S), _TAKES_PART_S)
            await self._takes_part(client, visitor, going_on)
            if await self._leaves(client, visitor):
                self.left += 1
            else:
                self._problems.append(f"{visitor.name} could not leave within {_GOES_S:g} s: {visitor.words()}")
            await asyncio.to_thread(visitor.kill)

    async def _takes_part(self, client: Client, visitor: Member, going_on: Callable[[], bool]) -> None:
        until = time.monotonic() + _TAKES_PART_S
        while going_on() and time.monotonic() < until:
            found = await client.cluster.statuses(deadline_s=_ASK_S)
            groups = [group for one in found.values() if isinstance(one, StatusReply) for group in one.groups]
            leaders = [group for group in groups if group.role == "leader"]
            if any(visitor.name in group.learners for group in leaders):
                self.learned += 1
                await asyncio.sleep(_STAYS_S)
                return
            await asyncio.sleep(_POLL_S)

    async def _leaves(self, client: Client, visitor: Member) -> bool:
        """Repeat the leave until the node is no longer a member."""
        until = time.monotonic() + _GOES_S
        while time.monotonic() < until:
            try:
                await client.cluster.leave(visitor.name, deadline_s=_ASK_S)
            except NotFoundError:
                return True
            except MetadError:
                pass
            await asyncio.sleep(_POLL_S)
        return False

    async def _asked(self, what: Callable[[], Awaitable[object]], seconds: float) -> None:
        """Repeat ``what`` until it succeeds, for a limited time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(MetadError):
                await what()
                return
            await asyncio.sleep(_POLL_S)
