"""What all actors have: lives in processes of their own, some of which are killed, and outcomes of what they ask."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Coroutine
from typing import Any, Final

from metad_client import (
    Client,
    ConflictError,
    FencedError,
    MetadError,
    NotFoundError,
    NotOwnerError,
    Options,
)

from ..cluster import Cluster, SimClient

REFUSALS: Final = (ConflictError, NotFoundError, NotOwnerError, FencedError)
_DEADLINE_S: Final = 3.0
DRIFT: Final = 1.06
"""No clock of a node is faster than time by more."""


class Actor:
    """One program. It begins anew until everything is quiet."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self.name = name
        self._names = 0

    def begin(self) -> None:
        """Have it live."""
        self._cluster.work(self.client().process, self._run(), self.name)

    def client(self) -> SimClient:
        """One more, that has not been opened."""
        return self._cluster.client(Options(deadline_s=_DEADLINE_S, connect_timeout_s=60.0))

    @property
    def now_s(self) -> float:
        """The time."""
        return self._cluster.loop.now

    @property
    def quiet(self) -> bool:
        """Whether it is to begin nothing any more."""
        return self._cluster.quiet

    def unique(self) -> str:
        """A name that was never used."""
        self._names += 1
        return f"{self.name}.{self._names}"

    def trace(self, text: str) -> None:
        """For who reads a failed run."""
        self._cluster.trace(f"{self.name}: {text}")

    def chance(self, share: float) -> bool:
        """Whether it happens this time."""
        return self._rng.random() < share

    async def pause(self, *choices: float) -> None:
        """Let one of these times pass, about."""
        await asyncio.sleep(self._rng.choice(choices) * self._rng.uniform(0.8, 1.2))

    def _kill_later(self, sim: SimClient, over: asyncio.Future[None], seconds: float) -> None:
        """A process dies, whatever it does then, unless its life is over before."""
        loop = self._cluster.loop

        def kill() -> None:
            if not self.quiet and not over.done():
                self.trace(f"{sim.name} is killed")
                self._cluster.network.crash(sim.process, sim.name, silently=False)
                over.set_result(None)

        loop.call_later(seconds, kill, context=loop.outside)

    async def ask(self, text: str, work: Awaitable[Any]) -> tuple[str, Any]:
        """(``done``, result), (``refused``, error), (``never``, error) or (``unknown``, error)."""
        self.trace(f"asks {text}")
        outcome: tuple[str, Any]
        try:
            outcome = "done", await work
        except REFUSALS as error:
            outcome = "refused", error
        except MetadError as error:
            outcome = "never" if error.outcome_known else "unknown", error
        self.trace(f"hears {text}: {outcome[0]} {outcome[1]!r:.200}")
        return outcome

    async def _run(self) -> None:
        """In a process that only begins the others."""
        while not self.quiet:
            sim = self.client()
            over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._cluster.work(sim.process, self._lived(sim, over), f"{self.name} at {sim.name}")
            if self.chance(0.4):
                self._kill_later(sim, over, self._rng.choice([0.3, 1.0, 2.5]))
            await over
            await self.pause(0.05, 0.5)

    async def _lived(self, sim: SimClient, over: asyncio.Future[None]) -> None:
        await self.live(sim, await sim.open())
        over.set_result(None)

    def live(self, sim: SimClient, client: Client) -> Coroutine[Any, Any, None]:
        """One life, in a process of its own."""
        raise NotImplementedError

    def settle(self) -> None:
        """All faults are over, and everything has come to rest: judge. Raises Violation."""
