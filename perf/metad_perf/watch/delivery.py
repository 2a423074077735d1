"""The phases in which every event is judged: at an even pace, and under faults."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..errors import UsageError
from ..faults.members import Members
from ..report.histogram import Latencies
from .actor import Actor
from .crew import Finish, Finished, Mark, Marked, Plan, Write, open_crew
from .judge import COUNTS, Verdict
from .nodes import cpu_s, running
from .strikes import Strikes

_WARM_UP_S = 2.0


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of these phases. Over all ``processes``: ``watchers``, ``rate`` events a second. A process has
    places of its own, each with ``fan_out`` watches."""

    watchers: int = 1_000
    fan_out: float = 3.0
    rate: float = 10_000.0
    seconds: float = 30.0
    processes: int = 2
    batch: int = 250
    spread: int = 10
    records: int = 64
    value_bytes: int = 100
    watches_each: int = 100
    within_s: float = 60.0
    seed: int = 1

    def checked(self) -> Delivery:
        """This. Raises UsageError."""
        for field in ("watchers", "processes", "batch", "spread", "records", "watches_each"):
            if getattr(self, field) < 1:
                raise UsageError(f"--{field.replace('_', '-')} must be at least 1")
        if self.rate <= 0 or self.seconds <= 0:
            raise UsageError("--rate and --seconds must be over 0")
        if not 1 <= self.fan_out <= self.watchers:
            raise UsageError("--fan-out must be 1 at least, and no more than --watchers")
        return msgspec.structs.replace(self, processes=min(self.processes, self.watchers))

    def plans(self, target: str) -> list[Plan]:
        """The part of each process. Raises UsageError."""
        run = random.Random(f"{self.seed}/run").getrandbits(32)
        each, rest = divmod(self.watchers, self.processes)
        plans = []
        for n in range(self.processes):
            watchers = each + (n < rest)
            plans.append(
                Plan(
                    target=target,
                    share=f"w{n}",
                    run=run,
                    watchers=watchers,
                    places=max(1, round(watchers / self.fan_out)),
                    records=self.records,
                    rate=self.rate * watchers / self.watchers,
                    batch=self.batch,
                    spread=self.spread,
                    value_bytes=self.value_bytes,
                    watches_each=self.watches_each,
                    seed=f"{self.seed}/{n}",
                )
            )
        return plans


async def steady(
    delivery: Delivery,
    *,
    nodes: int,
    groups: str,
    config: Path | None,
    scheme: str,
    problems: list[str],
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """Delivery without faults."""
    async with (
        running(nodes, groups=groups, config=config, scheme=scheme, problems=problems) as cluster,
        _crews(delivery, cluster.members) as crews,
    ):
        await asyncio.sleep(_WARM_UP_S)
        await _all(crews, Mark())
        before = cpu_s(cluster.members.all)
        async with _clock(progress):
            await asyncio.sleep(delivery.seconds)
        marked: list[Marked] = await _all(crews, Mark())
        cores = {name: (after - before[name]) / delivery.seconds for name, after in cpu_s(cluster.members.all).items()}
        finished: list[Finished] = await _all(crews, Finish(delivery.within_s))
    sent, acknowledged = _latencies(marked, "sent"), _latencies(marked, "acknowledged")
    return _judged(finished) | {
        "fsync": cluster.fsync,
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


async def under_faults(
    delivery: Delivery,
    faults: Sequence[str],
    *,
    nodes: int,
    groups: str,
    config: Path | None,
    scheme: str,
    problems: list[str],
    progress: Callable[[int], None],
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Delivery while nodes are killed, slots move and logs are cut."""
    async with (
        running(nodes, groups=groups, config=config, scheme=scheme, problems=problems) as cluster,
        _crews(delivery, cluster.members) as crews,
    ):
        strikes = Strikes(cluster.members, cluster.health, cluster.client, random.Random(delivery.seed), tell)
        await _all(crews, Mark(restless=True))
        async with _clock(progress):
            await strikes.run(faults, delivery.seconds)
        marked: list[Marked] = await _all(crews, Mark())
        finished: list[Finished] = await _all(crews, Finish(delivery.within_s))
    sent = _latencies(marked, "sent")
    return _judged(finished) | {
        "fsync": cluster.fsync,
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


@contextlib.asynccontextmanager
async def _crews(delivery: Delivery, members: Members) -> AsyncIterator[list[Actor]]:
    """The client processes, all watches open and the writers at work."""
    crews = [Actor(open_crew, plan) for plan in delivery.plans(members.target)]
    try:
        await _all(crews, Mark())  # all are open
        await _all(crews, Write())
        yield crews
    finally:
        for crew in crews:
            await asyncio.to_thread(crew.stop)


async def _all(crews: Sequence[Actor], order: object) -> list[Any]:
    return list(await asyncio.gather(*[crew.ask(order) for crew in crews]))


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
