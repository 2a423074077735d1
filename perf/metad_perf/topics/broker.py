"""The process of a broker that has all topics in an image."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
import psutil

from metad_client import Client, Options
from metad_wire.tables.table import PlainTable

from ..load.measure import MIB
from ..target import open_client
from .records import Topic, declared, key_of, number_of

_WITHIN_S: Final = 600.0
_FOLLOWS_WITHIN_S: Final = 30.0
_LOOK_S: Final = 0.005


class Build(msgspec.Struct, frozen=True):
    """Order: build the image (:class:`Built`)."""


class Built(msgspec.Struct, frozen=True):
    """``rss_mib``: by how much the process has grown."""

    seconds: float
    cpu_s: float
    rss_mib: float
    records: int


class Begin(msgspec.Struct, frozen=True):
    """Order: changes follow. ``listen``: note when each comes."""

    listen: bool = False


class Follow(msgspec.Struct, frozen=True):
    """Order: wait until the image has these versions of topics (:class:`Followed`)."""

    versions: dict[int, int]


class Followed(msgspec.Struct, frozen=True):
    """Since :class:`Begin`: CPU time until the last one was there; how many versions are others; and when each version
    of a number came, by the machine's clock, if that was noted."""

    cpu_s: float
    wrong: int
    came_ns: dict[tuple[int, int], int]


class Broker:
    """Carries out these orders."""

    def __init__(self, client: Client, table: PlainTable[Topic]) -> None:
        self._client, self._table = client, table
        self._image: Any = None
        self._came_ns: dict[tuple[int, int], int] = {}
        self._begin_s = 0.0

    async def carry_out(self, order: Build | Begin | Follow) -> Any:
        """Do it."""
        match order:
            case Build():
                return await self._build()
            case Begin(listen):
                self._came_ns = {}
                if listen:
                    self._image.on_change(self._note)
                self._begin_s = time.process_time()
                return None
            case Follow(versions):
                return await self._follow(versions)

    async def _build(self) -> Built:
        gc.collect()
        process = psutil.Process()
        before, begin, begin_cpu_s = process.memory_info().rss, time.perf_counter(), time.process_time()
        self._image = self._client.image(self._table)
        await self._image.caught_up(_WITHIN_S)
        seconds, used_s = time.perf_counter() - begin, time.process_time() - begin_cpu_s
        rss_mib = (process.memory_info().rss - before) / MIB
        return Built(seconds, used_s, rss_mib, len(self._image[self._table]))

    async def _follow(self, versions: dict[int, int]) -> Followed:
        until_s = time.monotonic() + _FOLLOWS_WITHIN_S
        *_, last = versions.items()
        await self._has(*last, until_s)
        used_s = time.process_time() - self._begin_s
        wrong = sum([not await self._has(*each, until_s) for each in versions.items()])
        return Followed(used_s, wrong, self._came_ns)

    async def _has(self, number: int, version: int, until_s: float) -> bool:
        while (there := self._version(number)) < version and time.monotonic() < until_s:  # noqa: ASYNC110 - no listener
            await asyncio.sleep(_LOOK_S)
        return there == version

    def _version(self, number: int) -> int:
        record = self._image[self._table].get(self._table.plain.key(*key_of(number)))
        return 0 if record is None else int(record.version)

    def _note(self, event: Any) -> None:
        self._came_ns[number_of(event.key.topic), event.record.version] = time.monotonic_ns()


@contextlib.asynccontextmanager
async def open_broker(target: str, kind: str) -> AsyncIterator[Broker]:
    """The role of the process."""
    async with open_client(target, Options(client_name="broker")) as client:
        yield Broker(client, await declared(client, kind))
