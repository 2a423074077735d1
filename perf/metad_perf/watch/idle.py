"""What watches cost that nothing happens to: memory of the nodes, and the rate of writes beside them."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec

from metad_client import Client, Options, Watch

from ..load.measure import Load
from ..report import output
from ..target import open_client
from .actor import Actor
from .nodes import quiet, rss_bytes, running
from .windows import window

_LOAD = Load(verb="kv.put", batch=1_000, in_flight=8, value_bytes=200, items=1_000_000)
_OPEN_S = 120.0
_FIRST = 20  # watches that are opened before memory is measured: what the first of a kind takes is no watch's
_AT_ONCE = 50


class Open(msgspec.Struct, frozen=True):
    """Order: have so many watches open from now on."""

    watches: int


class Sleepers:
    """Watches of key-values that nobody writes."""

    def __init__(self, clients: list[Client]) -> None:
        self._clients = clients
        self._open: list[Watch] = []
        self._named = 0

    async def carry_out(self, order: Open) -> int:
        """Returns how many are open."""
        async with asyncio.timeout(_OPEN_S):
            while len(self._open) > order.watches:
                closing, self._open = self._open[-_AT_ONCE:], self._open[:-_AT_ONCE]
                keep = max(0, order.watches - len(self._open))
                self._open += closing[:keep]
                for watch in closing[keep:]:
                    await watch.close()
            while len(self._open) < order.watches:
                opening = [self._watch() for _ in range(min(_AT_ONCE, order.watches - len(self._open)))]
                self._open += opening
                for watch in opening:
                    await watch.opened()
        return len(self._open)

    def _watch(self) -> Watch:
        self._named += 1
        client = self._clients[self._named % len(self._clients)]
        return client.watch(["kv"], tenant=f"nobody-{self._named}")


@contextlib.asynccontextmanager
async def open_sleepers(target: str, clients: int) -> AsyncIterator[Sleepers]:
    """The role of the process with idle watches."""
    async with contextlib.AsyncExitStack() as stack:
        options = Options(client_name="idle-watches")
        opened = [await stack.enter_async_context(open_client(target, options)) for _ in range(clients)]
        sleepers = Sleepers(opened)
        try:
            yield sleepers
        finally:
            await sleepers.carry_out(Open(0))


async def measure(
    *,
    nodes: int,
    groups: str,
    config: Path | None,
    scheme: str,
    watchers: int,
    watches_each: int,
    pairs: int,
    seconds: float,
    problems: list[str],
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """Measure memory first, on nodes that have done nothing else, so that they have no memory to spare. Then windows of
    writes, without the watches and with them, in changing order."""
    async with running(nodes, groups=groups, config=config, scheme=scheme, problems=problems) as cluster:
        members, target = cluster.members, cluster.members.target
        sleepers = Actor(open_sleepers, target, -(-watchers // watches_each))
        try:
            await sleepers.ask(Open(min(_FIRST, watchers)))
            await quiet(members.all)
            first, before = min(_FIRST, watchers), rss_bytes(members.all)
            await sleepers.ask(Open(watchers))
            await quiet(members.all)
            grown = rss_bytes(members.all) - before
            await window(target, _LOAD, seconds)  # caches and memtables get the size that writes give them
            progress(1)
            rates: list[tuple[float, float]] = []
            for pair in range(pairs):
                found: dict[int, float] = {}
                for count in (0, watchers) if pair % 2 else (watchers, 0):
                    await sleepers.ask(Open(count))
                    found[count] = (await window(target, _LOAD, seconds)).items_per_s()
                    progress(1)
                rates.append((found[watchers], found[0]))
        finally:
            await asyncio.to_thread(sleepers.stop)
    return {
        "server_bytes_per_watcher": grown / max(1, watchers - first),
        "write_ratio_idle_watchers": output.median_ratio(rates),
        "fsync": cluster.fsync,
        "watchers": watchers,
        "rss_growth_bytes": grown,
        "writes_per_s_with": statistics.median(with_ for with_, _ in rates),
        "writes_per_s_without": statistics.median(without for _, without in rates),
        "ratios": [output.ratio(*pair) for pair in rates],
    }
