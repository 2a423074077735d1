"""The clients of a run with faults, all at once: what they write and read, and what their judges find in the end.

Three kinds: *lanes*, whose ledgers detect lost and repeated writes; *sharers*, which write and read the same registers,
so that their history can be searched for an order that explains it; *readers*, which keep hundreds of reads of these
registers in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import msgspec

from metad_client import Client
from metad_judge.acknowledged import Verdict

from .registers import DEADLINES_S, History, Reader, RegisterClient
from .writers import LANES, Lane

PATIENT_S = 90.0


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How many clients of each kind. ``deadlines_s``: of the sharers' calls, in turn. ``pause_s``: between two batches
    of a lane."""

    writers: int = 3
    """Clients with lanes of each kind."""
    sharers: int = 6
    readers: int = 2
    deadlines_s: Sequence[float] = DEADLINES_S
    pause_s: float = 0.0


class Crowd:
    """All clients of a run. ``client`` makes one from its name and its deadline, not opened yet."""

    def __init__(self, client: Callable[[str, float], Client], seed: int, size: Size) -> None:
        self.history = History()
        self.verdict = Verdict()
        self._client = client
        self._seed = seed
        self._size = size
        self._open = contextlib.AsyncExitStack()
        self._writers: list[Client] = []
        self._lanes: list[Lane] = []
        self._sharers: list[RegisterClient] = []
        self._readers: list[Reader] = []

    async def __aenter__(self) -> Self:
        """Open the clients."""
        size, seed = self._size, self._seed
        for n in range(size.writers):
            client = await self._open.enter_async_context(self._client(f"w{n}", PATIENT_S))
            self._writers.append(client)
            for kind in LANES:
                name = f"w{n}-{kind.__name__}"
                rng = random.Random(f"{seed}/{n}/{kind.__name__}")
                self._lanes.append(kind(name, client, rng, self.verdict, pause_s=size.pause_s))
        for n in range(size.sharers):
            deadline_s = size.deadlines_s[n % len(size.deadlines_s)]
            client = await self._open.enter_async_context(self._client(f"r{n}", deadline_s))
            self._sharers.append(RegisterClient(n, client, random.Random(f"{seed}/r{n}"), self.history))
        for n in range(size.readers):
            client = await self._open.enter_async_context(self._client(f"p{n}", size.deadlines_s[-1]))
            self._readers.append(Reader(client, random.Random(f"{seed}/p{n}"), self.history))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    def begin(self, tasks: asyncio.TaskGroup, going_on: Callable[[], bool]) -> None:
        """All work, in tasks that end when ``going_on`` is false and nothing is in flight."""
        workers: list[Lane | RegisterClient | Reader] = [*self._lanes, *self._sharers, *self._readers]
        for worker in workers:
            tasks.create_task(worker.run(going_on))

    async def read_all(self) -> None:
        """Read everything once more through fresh connections, and judge it. Nothing may be in flight."""
        async with self._client("lanes-reader", PATIENT_S) as reader:
            for lane in self._lanes:
                await lane.check(reader)
        async with self._client("registers-reader", PATIENT_S) as client:
            registered = RegisterClient(self._size.sharers, client, random.Random(0), self.history)
            keys = {operation.key: None for operation in self.history.operations}
            for key in keys:
                assert isinstance(key, tuple)
                await registered.read(key)

    @property
    def acknowledged(self) -> int:
        """Writes that were acknowledged."""
        return self.verdict.acknowledged + self.history.acknowledged

    @property
    def failed_calls(self) -> int:
        """Calls, and items of their batches, that did not succeed."""
        return self.verdict.unknown + self.verdict.refused + self.history.unknown + self.history.failed

    @property
    def retries(self) -> int:
        """Retries of the lanes' clients."""
        return sum(client.statistics().retries for client in self._writers)

    @property
    def reads_pipelined(self) -> int:
        """Reads that the readers asked for."""
        return sum(reader.asked for reader in self._readers)

    @property
    def reads_in_flight_max(self) -> int:
        """The most of them that one reader had in flight."""
        return max((reader.in_flight_max for reader in self._readers), default=0)
