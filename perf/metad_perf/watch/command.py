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
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from metad_client import Client, Options, Watch

from ..errors import UsageError
from ..load.measure import Load
from ..report import output
from ..running import run_async
from ..spawn import Shape, disk_directory
from ..target import open_client
from . import slow
from .actor import Actor
from .delivery import Delivery, steady, together, under_faults
from .nodes import quiet, rss_bytes, running
from .windows import configured, window

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


PHASES = ("steady", "faults", "idle", "slow")
JUDGED = ("steady", "faults")
FAULTS = ("missed", "repeated", "out_of_order", "phantom", "wrong", "split")
_LOG_BYTES_MIN = 64 * 1024
_EVENT_BYTES = 100


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a run. ``idle_watchers`` and ``behind`` are for these phases, ``pairs`` of windows of
    ``window_s`` each."""

    delivery: Delivery
    faults: Sequence[str]
    phases: Sequence[str] = PHASES
    idle_watchers: int = 1_000
    behind: int = 500_000
    pairs: int = 11
    window_s: float = 3.0

    def checked(self) -> Measurement:
        """This. Raises UsageError."""
        for phase in self.phases:
            if phase not in PHASES:
                raise UsageError(f"there is no phase {phase!r}, but {', '.join(PHASES)}")
        if not self.phases:
            raise UsageError("nothing is left to be measured")
        if self.pairs < 1 or self.window_s <= 0 or self.idle_watchers < 1 or self.behind < 1:
            raise UsageError("--pairs, --window-s, --idle-watchers and --behind must be over 0")
        return msgspec.structs.replace(self, delivery=self.delivery.checked())


def run(measurement: Measurement, *, shape: Shape, config: Path | None, json: Path | None) -> int:
    """Returns the exit code: 1 if an event was missed, repeated, out of order, invented, wrong or split, or if a node
    was not well."""
    measurement, shape = measurement.checked(), shape.checked()
    if "move" in measurement.faults and shape.scheme != "metad":
        output.say("fault move is left out: the nodes with certificates have no administrator")
        measurement = msgspec.structs.replace(
            measurement, faults=[name for name in measurement.faults if name != "move"]
        )
    problems: list[str] = []
    found: dict[str, dict[str, Any]] = {}
    directory = Path(tempfile.mkdtemp(prefix="metad-perf-", dir=disk_directory()))
    try:
        for phase in PHASES:
            if phase in measurement.phases and (phase != "faults" or measurement.faults):
                found[phase] = run_async(_phase(phase, measurement, shape, config, directory, problems))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    made = output.rounded(_report(measurement, shape, found, problems))
    output.write_json(json, made)
    return _show(made)


async def _phase(
    phase: str, measurement: Measurement, shape: Shape, config: Path | None, directory: Path, problems: list[str]
) -> dict[str, Any]:
    delivery = measurement.delivery
    common: dict[str, Any] = {
        "nodes": shape.nodes,
        "groups": shape.groups,
        "scheme": shape.scheme,
        "problems": problems,
    }
    if phase == "steady":
        output.say(f"steady: {delivery.watchers:,} watches, {delivery.rate:,.0f} events/s for {delivery.seconds:g} s")
        with output.progress("seconds", round(delivery.seconds)) as progress:
            return await steady(delivery, config=config, progress=progress, **common)
    if phase == "faults":
        output.say(f"faults: {', '.join(measurement.faults)} for {delivery.seconds:g} s")
        cut = "compact" in measurement.faults
        used = configured(config, directory, short_log(delivery.rate)) if cut else config
        with output.progress("seconds", round(delivery.seconds)) as progress:
            return await under_faults(
                delivery, measurement.faults, config=used, tell=output.say, progress=progress, **common
            )
    steps = 1 + 2 * measurement.pairs
    common |= {"pairs": measurement.pairs, "seconds": measurement.window_s}
    if phase == "idle":
        output.say(f"idle: {measurement.idle_watchers:,} watches of what nobody writes")
        with output.progress("idle watches", steps) as progress:
            return await measure(
                watchers=measurement.idle_watchers,
                watches_each=delivery.watches_each,
                config=config,
                progress=progress,
                **common,
            )
    output.say(f"slow: a watch that is {measurement.behind:,} events behind, and one that does not read")
    used = configured(config, directory, slow.LONG_LOG)
    with output.progress("a slow watch", steps) as progress:
        return await slow.measure(behind=measurement.behind, config=used, progress=progress, **common)


def short_log(rate: float) -> dict[str, dict[str, int]]:
    """Configuration of nodes whose logs reach back for a second or so."""
    size = max(_LOG_BYTES_MIN, round(rate * _EVENT_BYTES))
    return {
        "storage": {"log_retained_bytes": size, "watch_retained_bytes": size // 2, "watch_retained_ms": 1_000},
        "raft": {"log_cache_bytes": size // 2},
    }


def _report(
    measurement: Measurement, shape: Shape, found: dict[str, dict[str, Any]], problems: list[str]
) -> dict[str, Any]:
    """What a phase measures is None if it was left out."""
    judged = together([found[phase] for phase in JUDGED if phase in found])
    even, idle_, slow_ = (found.get(phase, {}) for phase in ("steady", "idle", "slow"))
    delivery = measurement.delivery
    return {
        **judged,
        "p50_delivery_ms": even.get("p50_delivery_ms"),
        "p99_delivery_ms": even.get("p99_delivery_ms"),
        "server_bytes_per_watcher": idle_.get("server_bytes_per_watcher"),
        "write_ratio_idle_watchers": idle_.get("write_ratio_idle_watchers"),
        "writer_p99_ratio_slow_watcher": slow_.get("writer_p99_ratio_slow_watcher"),
        "delivery_counts_from": "the moment the write was sent",
        "phases": found,
        "problems": problems,
        "watchers": delivery.watchers,
        "fan_out": delivery.fan_out,
        "rate": delivery.rate,
        "seconds": delivery.seconds,
        "processes": delivery.processes,
        "batch": delivery.batch,
        "spread": delivery.spread,
        "records": delivery.records,
        "value_bytes": delivery.value_bytes,
        "watches_each": delivery.watches_each,
        "faults": list(measurement.faults),
        "nodes": shape.nodes,
        "groups": shape.groups,
        "scheme": shape.scheme,
        "fsync": all(one["fsync"] for one in found.values()),
        "seed": delivery.seed,
        "setting": output.machine(),
        "versions": output.versions(),
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
