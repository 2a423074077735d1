"""``metad-perf retained``: how long a filter takes to find a hundred of many retained messages.

The topics are those of a fleet: regions, sites in each, devices in each, four sensors of each. Every filter matches a
hundred of them, in one of four ways: all below a site; all of a site by "+" in two levels; one sensor in all sites of a
region; one sensor in all regions. One client asks, one filter after the other, in one way after the other, for filters
that it draws from a seed. Its time includes the SDK, which asks every group and merges the answers. The nodes' CPU time
is beside it, because the times depend on what else the machine does.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from metad_client import Client, RetainedPutItem

from .commands import Retained
from .errors import UsageError
from .experiment.nodes import cpu_s, quiet
from .experiment.stage import Stage, conduct
from .report import output
from .report.conclusion import conclude
from .report.histogram import Latencies

TENANT = "acme"
FOUND = 100
"""By each filter."""
_SENSORS = ("battery", "door", "state", "temperature")
_DEVICES = FOUND // len(_SENSORS)
_SITES = FOUND
_REGION_TOPICS = _SITES * _DEVICES * len(_SENSORS)
_PUT_ITEMS = 10_000
_SEED = 11

WAYS: dict[str, Callable[[int, int, int, str], str]] = {
    "below a site": lambda region, site, device, sensor: f"fleet/{region}/{site}/#",
    "a site, by levels": lambda region, site, device, sensor: f"fleet/{region}/{site}/+/+",
    "one of each site": lambda region, site, device, sensor: f"fleet/{region}/+/{device}/{sensor}",
    "one of each region": lambda region, site, device, sensor: f"fleet/+/{site}/{device}/{sensor}",
}
"""The last one matches as many topics as there are regions."""


def topic(number: int) -> str:
    """One of the fleet's topics, by its number from 0."""
    number, sensor = divmod(number, len(_SENSORS))
    number, device = divmod(number, _DEVICES)
    region, site = divmod(number, _SITES)
    return f"fleet/{region}/{site}/{device}/{_SENSORS[sensor]}"


def run(options: Retained) -> int:
    """Returns the exit code: 1 if a filter found what it should not, or a node was not well. Raises UsageError."""
    if options.topics < _REGION_TOPICS or options.topics % _REGION_TOPICS:
        raise UsageError(f"--topics must be a multiple of {_REGION_TOPICS:,}")
    made = conduct(options, partial(_play, options))
    code = conclude("retained", made, options, "wrong")
    rows = [[way, *took.values()] for way, took in made["ways"].items()]
    output.table("a match, ms", ["", *next(iter(made["ways"].values()))], rows)
    return code


async def _play(options: Retained, stage: Stage) -> dict[str, Any]:
    client, topics = await stage.client("retained"), options.topics
    with output.progress(f"retain {topics:,} messages", topics) as progress:
        begin_s = time.monotonic()
        await _fill(client, topics, options.value_bytes, progress)
        fill_s = time.monotonic() - begin_s
    await quiet(stage.members.all)
    return {"puts_per_s": topics / fill_s} | await _measure(stage, client, topics, options.matches)


async def _fill(client: Client, topics: int, value_bytes: int, progress: Callable[[int], None]) -> None:
    # Not in their order: the messages of a site are written by many devices, each at another time.
    numbers = list(range(topics))
    random.Random(_SEED).shuffle(numbers)
    for at in range(0, topics, _PUT_ITEMS):
        part = numbers[at : at + _PUT_ITEMS]
        items = [
            RetainedPutItem(TENANT, topic(number), number.to_bytes(8, "big").ljust(value_bytes)) for number in part
        ]
        (await client.retained.put_many(items)).raise_for_error()
        progress(len(part))


async def _measure(stage: Stage, client: Client, topics: int, matches: int) -> dict[str, Any]:
    rng, regions = random.Random(_SEED + 1), topics // _REGION_TOPICS
    drawn = [
        (rng.randrange(regions), rng.randrange(_SITES), rng.randrange(_DEVICES), rng.choice(_SENSORS))
        for _ in range(matches)
    ]
    ways: dict[str, dict[str, float]] = {}
    wrong, used_s = 0, 0.0
    for way, filter_of in WAYS.items():
        took = Latencies()
        before = cpu_s(stage.members.all)
        for one in drawn:
            begin_ns = time.perf_counter_ns()
            found = [message async for message in client.retained.match(TENANT, filter_of(*one))]
            took.note(time.perf_counter_ns() - begin_ns)
            wanted = regions if way == "one of each region" else FOUND
            wrong += len(found) != wanted or any(topic(int.from_bytes(m.payload[:8], "big")) != m.topic for m in found)
        way_s = sum(after - before[name] for name, after in cpu_s(stage.members.all).items())
        used_s += way_s
        ways[way] = {
            "p50": took.percentile_ms(50),
            "p99": took.percentile_ms(99),
            "p99.9": took.percentile_ms(99.9),
            "max": took.max_ms(),
            "server CPU": way_s * 1_000 / matches,
        }
    return {
        "p99_ms": max(each["p99"] for each in ways.values()),
        "ways": ways,
        "wrong": wrong,
        "server_cpu_ms_per_match": used_s * 1_000 / (matches * len(WAYS)),
    }
