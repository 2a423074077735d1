"""The phases in which every event is judged: at an even pace, and under faults."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from ..commands import Watch
from ..experiment.actor import Actor
from ..experiment.nodes import cpu_s
from ..experiment.stage import Stage, ask_all
from ..report import output
from ..report.histogram import Latencies
from .crew import Finish, Finished, Mark, Marked, Plan, Write, open_crew
from .judge import COUNTS, Verdict
from .strikes import Strikes

_WARM_UP_S = 2.0
_WITHIN_S = 60.0
"""Of the end, by which all that was written must have come."""


def plans(options: Watch, target: str) -> list[Plan]:
    """The part of each process, which has places of its own, each with ``fan_out`` watches."""
    run = random.Random(f"{options.seed}/run").getrandbits(32)
    each, rest = divmod(options.watchers, options.processes)
    found = []
    for n in range(options.processes):
        watchers = each + (n < rest)
        found.append(
            Plan(
                target=target,
                share=f"w{n}",
                run=run,
                watchers=watchers,
                places=max(1, round(watchers / options.fan_out)),
                records=options.records,
                rate=options.rate * watchers / options.watchers,
                batch=options.batch,
                spread=options.spread,
                value_bytes=options.value_bytes,
                watches_each=options.watches_each,
                seed=f"{options.seed}/{n}",
            )
        )
    return found


async def steady(options: Watch, progress: Callable[[int], None], stage: Stage) -> dict[str, Any]:
    """Delivery without faults."""
    crews = await _crews(options, stage)
    await asyncio.sleep(_WARM_UP_S)
    await ask_all(crews, Mark())
    before = cpu_s(stage.members.all)
    async with _clock(progress):
        await asyncio.sleep(options.seconds)
    marked: list[Marked] = await ask_all(crews, Mark())
    cores = {name: (after - before[name]) / options.seconds for name, after in cpu_s(stage.members.all).items()}
    finished: list[Finished] = await ask_all(crews, Finish(_WITHIN_S))
    sent, acknowledged = _latencies(marked, "sent"), _latencies(marked, "acknowledged")
    return _judged(finished) | {
        "p50_delivery_ms": sent.percentile_ms(50),
        "p99_delivery_ms": sent.percentile_ms(99),
        "p999_delivery_ms": sent.percentile_ms(99.9),
        "max_delivery_ms": sent.max_ms(),
        "p50_after_acknowledgement_ms": acknowledged.percentile_ms(50),
        "p99_after_acknowledgement_ms": acknowledged.percentile_ms(99),
        "p99_write_ms": _latencies(marked, "writes").percentile_ms(99),
        "deliveries": sent.count,
        "events_per_s": sum(one.written / one.seconds for one in marked),
        "deliveries_per_s": sent.count / max(one.seconds for one in marked),
        "writer_late_s_max": max(one.late_s for one in marked),
        "node_cores": cores,
        "client_cores": [one.cpu_s / one.seconds for one in marked],
    }


async def under_faults(options: Watch, progress: Callable[[int], None], stage: Stage) -> dict[str, Any]:
    """Delivery while nodes are killed, slots move and logs are cut."""
    crews = await _crews(options, stage)
    rng = random.Random(options.seed)
    strikes = Strikes(stage.members, stage.health, stage.nodes.client, rng, output.say)
    await ask_all(crews, Mark(restless=True))
    async with _clock(progress):
        await strikes.run(options.faults, options.seconds)
    marked: list[Marked] = await ask_all(crews, Mark())
    finished: list[Finished] = await ask_all(crews, Finish(_WITHIN_S))
    sent = _latencies(marked, "sent")
    return _judged(finished) | {
        "p50_delivery_ms_under_faults": sent.percentile_ms(50),
        "p99_delivery_ms_under_faults": sent.percentile_ms(99),
        "max_delivery_ms_under_faults": sent.max_ms(),
        "deliveries": sent.count,
        "strikes": strikes.counts,
        "slots_moved": strikes.slots,
    }


@contextlib.asynccontextmanager
async def _clock(progress: Callable[[int], None]) -> AsyncIterator[None]:
    """Counts seconds."""

    async def count() -> None:
        while True:
            await asyncio.sleep(1.0)
            progress(1)

    counting = asyncio.create_task(count())
    try:
        yield
    finally:
        counting.cancel()


async def _crews(options: Watch, stage: Stage) -> list[Actor]:
    """The client processes, all watches open and the writers at work."""
    crews = [stage.actor(open_crew, plan) for plan in plans(options, stage.members.target)]
    await ask_all(crews, Mark())  # all are open
    await ask_all(crews, Write())
    return crews


def _latencies(marked: Sequence[Marked], field: str) -> Latencies:
    return Latencies.merged(getattr(one, field) for one in marked)


def _judged(finished: Sequence[Finished]) -> dict[str, Any]:
    verdict = Verdict()
    errors: dict[str, int] = {}
    for one in finished:
        verdict.add(one.verdict)
        for name, count in one.errors.items():
            errors[name] = errors.get(name, 0) + count
    return {
        "events": sum(one.acknowledged for one in finished),
        **{field: getattr(verdict, field) for field in COUNTS},
        "unknown": sum(one.unknown for one in finished),
        "refused": sum(one.refused for one in finished),
        "errors_by_name": errors,
        "waited_s": max(one.waited_s for one in finished),
        "examples": verdict.examples,
    }


def together(phases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The judgement of several phases."""
    counted = ("events", *COUNTS, "unknown", "refused")
    errors: dict[str, int] = {}
    for phase in phases:
        for name, count in phase["errors_by_name"].items():
            errors[name] = errors.get(name, 0) + count
    return {
        **{field: sum(phase[field] for phase in phases) for field in counted},
        "errors_by_name": errors,
        "examples": [example for phase in phases for example in phase["examples"]],
    }
