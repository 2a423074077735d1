"""The command: what it costs to be looked at, how long a look takes, and what :mod:`.alerts` found."""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec.structs import asdict, replace

from metad.server.lamps.alerts import ALERTS
from metad_wire.program.running import run_async

from ..commands import Lamps
from ..errors import ServerError, UsageError
from ..experiment.stage import Stage, mean_ratios, side_by_side, staged
from ..experiment.windows import Side, compared, window
from ..faults.members import Member
from ..load.measure import Load, epoch_now
from ..load.prepare import fill_sessions
from ..report import output
from ..report.conclusion import conclude, reported
from ..report.histogram import Latencies
from ..report.story import Story
from .alerts import missing, play

T = TypeVar("T")

_LOADS: Final = (
    Load(verb="session.takeover", batch=1_000, in_flight=4),
    Load(verb="kv.put", batch=1, in_flight=128, singles=True),
)
_SCRAPE_S: Final = 5.0
"""A third of Prometheus' own default."""
_LOOK_S: Final = 0.05
_LOOKS: Final = 30
_ASK_S: Final = 30.0
_FACTOR: Final = 3
"""The load by the capacity, while it is asked who lives."""


def _http(member: Member) -> str:
    """Where a node serves HTTP, as its log says. Raises ServerError."""
    for line in reversed(member.log()):
        if '"listening"' in line:
            return str(json.loads(line)["http"])
    raise ServerError(f"{member.name} does not say where it serves HTTP")


def _ask(endpoint: str, path: str) -> tuple[float, bytes]:
    """Seconds, and the page."""
    begin_s = time.perf_counter()
    with urllib.request.urlopen(f"http://{endpoint}{path}", timeout=_ASK_S) as answer:
        page: bytes = answer.read()
    return time.perf_counter() - begin_s, page


async def _again(every_s: float, endpoint: str, path: str, found_s: list[float]) -> None:
    while True:
        took_s, _ = await asyncio.to_thread(_ask, endpoint, path)
        found_s.append(took_s)
        await asyncio.sleep(every_s)


async def _beside(
    endpoints: list[str], path: str, every_s: float, work: Callable[[], Awaitable[T]]
) -> tuple[T, list[float]]:
    """What the work gave, and how long each page took that all nodes were asked for meanwhile, again and again."""
    found_s: list[float] = []
    asking = [asyncio.create_task(_again(every_s, endpoint, path, found_s)) for endpoint in endpoints]
    try:
        return await work(), found_s
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def _throughput(options: Lamps, looked_at: Stage, alone: Stage) -> dict[str, Any]:
    """Of nodes that are scraped each five seconds, by that of others, which count the same and which nobody asks."""
    endpoints = [_http(member) for member in looked_at.members.all]
    for stage in (looked_at, alone):
        await fill_sessions(await stage.client("fill"), epoch_now(), options.keys, 200, lambda _: None)
    first, second = (Side(stage.members.target, stage.members.all) for stage in (looked_at, alone))
    loads = {load.verb: replace(load, keys=options.keys) for load in _LOADS}
    work = partial(compared, (first, second), loads, options.pairs, options.seconds, looked_at.problems)
    found, _ = await _beside(endpoints, "/metrics", _SCRAPE_S, work)
    return found


async def _pages(options: Lamps, stage: Stage) -> dict[str, Any]:
    """How long the metrics take, and how many series they are, with few sessions and with many; how long ``/livez``
    takes beside more load than the nodes can take."""
    endpoints = [_http(member) for member in stage.members.all]
    client = await stage.client("fill")
    found: dict[str, Any] = {}
    for name, count in (("1e3", 1_000), ("1e6", options.sessions)):
        with output.progress("sessions", count) as progress:
            await fill_sessions(client, epoch_now(), count, 32, progress)
        # What was never asked or refused has no series: the same is asked for before both counts.
        few = replace(_LOADS[0], keys=1_000)
        await window(stage.members.target, few, options.seconds)
        await stage.health.settle()
        took_s, series = [], 0
        for _ in range(_LOOKS):
            pages = [await asyncio.to_thread(_ask, endpoint, "/metrics") for endpoint in endpoints]
            took_s += [seconds for seconds, _ in pages]
            series = max(sum(not line.startswith(b"#") for line in page.splitlines()) for _, page in pages)
        found[f"metrics_ms_{name}"] = 1_000 * statistics.median(took_s)
        found[f"series_{name}"] = series
    target, load = stage.members.target, replace(_LOADS[0], keys=options.keys)
    capacity = (await window(target, load, options.seconds)).items_per_s()
    too_much = replace(load, rate=_FACTOR * capacity, in_flight=256)
    overload = partial(window, target, too_much, 2 * options.seconds)
    _, looks_s = await _beside(endpoints, "/livez", _LOOK_S, overload)
    latencies = Latencies()
    for seconds in looks_s:
        latencies.note(round(seconds * 1e9))
    return found | {
        "sessions": options.sessions,
        "capacity_per_s": capacity,
        "livez_asked": len(looks_s),
        "livez_ms_p50_under_overload": latencies.percentile_ms(50),
        "livez_ms_p99_under_overload": latencies.percentile_ms(99),
    }


async def _measured(options: Lamps, problems: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as made:
        shown = Path(made) / "http.toml"
        base = options.server_config.read_text() if options.server_config is not None else ""
        shown.write_text(f'http = "127.0.0.1:0"\n{base}')
        pages = await staged(options.shape, shown, problems, partial(_pages, options))

        configs = shown, options.server_config
        found = await side_by_side(options.shape, configs, problems, partial(_throughput, options))
        ratios = mean_ratios(found, "throughput_ratios")
        return pages | {"throughput_ratio": min(ratios.values()), "throughput_ratios": ratios}


async def _alerts(options: Lamps, problems: list[str]) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        found = await play(stack.enter_context(Story()), tuple(filter(None, options.only.split(","))))
    for name, played in found.items():
        if played.why:
            problems.append(f"{name}: {played.why}")
    return {
        "alerts": len(found),
        "alerts_fired": sum(played.fired_s is not None for played in found.values()),
        "alerts_ended": sum(played.ended_s is not None for played in found.values()),
        "alerts_by_name": {name: asdict(played) for name, played in found.items()},
    }


def run(options: Lamps) -> int:
    """Returns the exit code: 1 if an alert did not fire or end, or a node was not well. Raises UsageError."""
    if unknown := set(filter(None, options.only.split(","))) - {alert.name for alert in ALERTS}:
        raise UsageError(f"--only: no alert {', '.join(sorted(unknown))}")
    if not options.no_alerts and (why := missing()):
        raise UsageError(f"{why}; --no-alerts measures the rest")
    problems: list[str] = []
    found: dict[str, Any] = {}
    if not options.only:
        found |= run_async(_measured(options, problems))
    if not options.no_alerts:
        found |= run_async(_alerts(options, problems))
    return conclude("lamps", reported(options, found | {"problems": problems}), options)
