"""``metad-perf watch``: are all changes delivered, once and in order; how soon; and what do watches cost?

Four phases, each on nodes of its own: ``steady`` (delivery at an even pace), ``faults`` (delivery while nodes are
killed, slots move and logs are cut), ``idle`` (memory of idle watches, writes beside them) and ``slow`` (a writer
beside a watch that is far behind). Every event of the first two is judged.

What is measured of watches that nothing happens to: the memory of the nodes, and the rate of writes beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from metad_client import Client, Options, Watch
from metad_wire.program.running import run_async

from .. import commands
from ..experiment.nodes import quiet, rss_bytes
from ..experiment.stage import Stage, staged
from ..experiment.windows import configured, window
from ..load.measure import Load
from ..report import output
from ..report.conclusion import reported
from ..spawn import disk_directory
from ..target import open_client
from . import slow
from .delivery import steady, together, under_faults

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


async def measure(options: commands.Watch, progress: Callable[[int], None], stage: Stage) -> dict[str, Any]:
    """Measure memory first, on nodes that have done nothing else, so that they have no memory to spare. Then windows of
    writes, without the watches and with them, in changing order."""
    members, target, watchers = stage.members, stage.members.target, options.idle_watchers
    sleepers = stage.actor(open_sleepers, target, -(-watchers // options.watches_each))
    await sleepers.ask(Open(min(_FIRST, watchers)))
    await quiet(members.all)
    first, before = min(_FIRST, watchers), rss_bytes(members.all)
    await sleepers.ask(Open(watchers))
    await quiet(members.all)
    grown = rss_bytes(members.all) - before
    await window(target, _LOAD, options.window_s)  # caches and memtables get the size that writes give them
    progress(1)
    rates: list[tuple[float, float]] = []
    for pair in range(options.pairs):
        found: dict[int, float] = {}
        for count in (0, watchers) if pair % 2 else (watchers, 0):
            await sleepers.ask(Open(count))
            found[count] = (await window(target, _LOAD, options.window_s)).items_per_s()
            progress(1)
        rates.append((found[watchers], found[0]))
    return {
        "server_bytes_per_watcher": grown / max(1, watchers - first),
        "write_ratio_idle_watchers": output.median_ratio(rates),
        "watchers": watchers,
        "rss_growth_bytes": grown,
        "writes_per_s_with": statistics.median(with_ for with_, _ in rates),
        "writes_per_s_without": statistics.median(without for _, without in rates),
        "ratios": [output.ratio(*pair) for pair in rates],
    }


JUDGED = ("steady", "faults")
FAULTS = ("missed", "repeated", "out_of_order", "phantom", "wrong", "split")
_LOG_BYTES_MIN = 64 * 1024
_EVENT_BYTES = 100


def run(options: commands.Watch) -> int:
    """Returns the exit code: 1 if an event was missed, repeated, out of order, invented, wrong or split, or if a node
    was not well."""
    if "move" in options.faults and options.scheme != "metad":
        output.say("fault move is left out: the nodes with certificates have no administrator")
        options = msgspec.structs.replace(options, faults=tuple(name for name in options.faults if name != "move"))
    problems: list[str] = []
    found: dict[str, dict[str, Any]] = {}
    directory = Path(tempfile.mkdtemp(prefix="metad-perf-", dir=disk_directory()))
    try:
        for phase in options.phases:
            if phase != "faults" or options.faults:
                found[phase] = _phase(phase, options, directory, problems)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    made = reported(options, _report(found, problems))
    output.write_json(options.json, made)
    return _show(made)


def _phase(phase: str, options: commands.Watch, directory: Path, problems: list[str]) -> dict[str, Any]:
    """What the phase found, on nodes of its own."""
    seconds, steps = round(options.seconds), 1 + 2 * options.pairs
    phases: dict[str, tuple[Callable[..., Awaitable[dict[str, Any]]], int, str, str, Mapping[str, Any]]] = {
        "steady": (steady, seconds, "seconds", f"{options.watchers:,} watches, {options.rate:,.0f} events/s", {}),
        "faults": (
            *(under_faults, seconds, "seconds", f"{', '.join(options.faults)} for {options.seconds:g} s"),
            short_log(options.rate) if "compact" in options.faults else {},
        ),
        "idle": (measure, steps, "idle watches", f"{options.idle_watchers:,} watches of what nobody writes", {}),
        "slow": (
            *(slow.measure, steps, "a slow watch"),
            *(f"a watch that is {options.behind:,} events behind, and one that does not read", slow.LONG_LOG),
        ),
    }
    play, total, unit, about, tables = phases[phase]
    output.say(f"{phase}: {about}")
    config = configured(options.server_config, directory, tables) if tables else options.server_config
    with output.progress(unit, total) as progress:
        return run_async(staged(options.shape, config, problems, partial(play, options, progress)))


def short_log(rate: float) -> dict[str, dict[str, int]]:
    """Configuration of nodes whose logs reach back for a second or so."""
    size = max(_LOG_BYTES_MIN, round(rate * _EVENT_BYTES))
    return {
        "storage": {"log_retained_bytes": size, "watch_retained_bytes": size // 2, "watch_retained_ms": 1_000},
        "raft": {"log_cache_bytes": size // 2},
    }


def _report(found: dict[str, dict[str, Any]], problems: list[str]) -> dict[str, Any]:
    """What a phase measures is None if it was left out."""
    even, idle_, slow_ = (found.get(phase, {}) for phase in ("steady", "idle", "slow"))
    return {
        **together([found[phase] for phase in JUDGED if phase in found]),
        "p50_delivery_ms": even.get("p50_delivery_ms"),
        "p99_delivery_ms": even.get("p99_delivery_ms"),
        "server_bytes_per_watcher": idle_.get("server_bytes_per_watcher"),
        "write_ratio_idle_watchers": idle_.get("write_ratio_idle_watchers"),
        "writer_p99_ratio_slow_watcher": slow_.get("writer_p99_ratio_slow_watcher"),
        "delivery_counts_from": "the moment the write was sent",
        "phases": found,
        "problems": problems,
        "fsync": all(one["fsync"] for one in found.values()),
    }


def _show(made: dict[str, Any]) -> int:
    """Print the tables; returns the exit code."""
    for phase, one in made["phases"].items():
        output.table(
            phase, ["", "value"], [row for row in one.items() if not isinstance(row[1], dict | list) and row[1] != ""]
        )
    bad = sum(made[field] for field in FAULTS)
    for line in (*made["examples"], *made["problems"]):
        output.say(line)
    if any(phase in made["phases"] for phase in JUDGED):
        counts = ", ".join(f"{made[field]:,} {field.replace('_', ' ')}" for field in FAULTS)
        output.say(
            f"{made['events']:,} events were written and {made['delivered']:,} delivered: {counts}; "
            f"{made['gaps']:,} gaps (seed {made['seed']})."
        )
    return 1 if bad or made["problems"] else 0
