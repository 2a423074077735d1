"""The phases in which every event is judged: at an even pace, and under faults.

The faults: nodes are killed in turn, leaders and followers; groups are added and slots move.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from metad_client import Client
from metad_client.errors import MetadError
from metad_wire import cluster as c

from ..commands import Watch
from ..errors import ServerError
from ..experiment.actor import Actor
from ..experiment.nodes import cpu_s
from ..experiment.stage import Stage, ask_all
from ..faults.health import Health
from ..faults.members import START_S, Member, Members
from ..report import output
from ..report.histogram import Latencies
from .crew import Finish, Finished, Mark, Marked, Plan, Write, open_crew
from .judge import COUNTS, Verdict

STRIKES = ("kill", "move", "compact")
"""``compact`` is no strike: the nodes keep a short log all the while, and some watches are slow, or away."""
_CALM_S = (0.5, 1.5)  # between faults
_DOWN_S = (0.2, 1.5)
_MOVES_WITHIN_S = 120.0
_POLL_S = 0.1
_GROUPS_MAX = 8  # data and offset groups: more of them only share the same cores
_TRIES = 20


class Strikes:
    """Strikes nodes; the next fault of a kind waits until all are well."""

    def __init__(
        self, members: Members, health: Health, client: Client, rng: random.Random, tell: Callable[[str], None]
    ) -> None:
        self._members = members
        self._health = health
        self._client = client
        self._rng = rng
        self._tell = tell
        self._kills = 0
        self.counts: dict[str, int] = {}
        self.slots = 0
        """How many slots have moved."""

    async def run(self, names: Sequence[str], seconds: float) -> None:
        """Strike until the time is over, in each of these ways once at least. Nodes are killed while slots move."""
        strikes: dict[str, Callable[[], Awaitable[str]]] = {"kill": self._kill, "move": self._move}
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            for name in strikes.keys() & set(names):
                tasks.create_task(self._again(name, strikes[name], until))
            await asyncio.sleep(seconds)

    async def _again(self, name: str, strike: Callable[[], Awaitable[str]], until: float) -> None:
        while name not in self.counts or time.monotonic() < until:
            await asyncio.sleep(self._rng.uniform(*_CALM_S))
            what = await strike()
            await self._health.settle()
            self.counts[name] = self.counts.get(name, 0) + 1
            self._tell(f"{name}: {what}")

    async def _kill(self) -> str:
        """A node that leads a data group, and then one that follows in one, in turn."""
        self._kills += 1
        leads = self._kills % 2 == 1
        victim = await self._victim(leads)
        victim.kill()
        await asyncio.sleep(self._rng.uniform(*_DOWN_S))
        await asyncio.to_thread(victim.start, START_S)
        return f"{victim.name}, which {'led' if leads else 'followed in'} a group, was killed and restarted"

    async def _victim(self, leads: bool) -> Member:
        statuses = await self._health.statuses()
        wanted = "leader" if leads else "follower"
        names = {one.node_id for one in statuses for g in one.groups if g.role == wanted and g.name.startswith("data")}
        return self._rng.choice([member for member in self._members.all if member.name in names] or self._members.all)

    async def _move(self) -> str:
        """Add a group, as long as there are few, and move slots to it; or spread what is not spread evenly."""
        known = await self._map()
        kinds = [group.kind for group in known.groups if group.kind != "metadata"]
        what = "slots were spread evenly"
        if len(kinds) < _GROUPS_MAX:
            kind = "data" if kinds.count("data") <= 2 * kinds.count("offset") else "offset"
            await self._done(lambda: self._client.cluster.add_group(kind))
            what = f"a group of kind {kind} was added"
        await self._done(self._client.cluster.rebalance)
        moved = await self._moved(known)
        self.slots += moved
        return f"{what}, and {moved:,} slots moved"

    async def _done(self, call: Callable[[], Awaitable[object]]) -> None:
        """The cluster may just have no leader: ask again."""
        for attempt in range(_TRIES):
            try:
                await call()
                return
            except MetadError:
                if attempt == _TRIES - 1:
                    raise
            await asyncio.sleep(_POLL_S * 5)

    async def _moved(self, before: c.ClusterMap) -> int:
        """Wait until no slot moves any more; returns how many have."""
        until = time.monotonic() + _MOVES_WITHIN_S
        last: bytes | None = None
        same = 0
        while time.monotonic() < until:
            await asyncio.sleep(_POLL_S)
            try:
                known = await self._map()
            except MetadError:
                continue
            slots = b"".join(known.slots[kind] for kind in sorted(known.slots))
            same = same + 1 if not known.moves and slots == last else 0
            last = slots
            if same >= 5:
                return sum(
                    a != b
                    for kind, table in known.slots.items()
                    for a, b in zip(c.unpack_slots(before.slots[kind]), c.unpack_slots(table), strict=True)
                )
        raise ServerError(f"slots still moved after {_MOVES_WITHIN_S:g} s")

    async def _map(self) -> c.ClusterMap:
        reply = await self._client.cluster.map()
        if reply.map is None:
            raise ServerError("the cluster has no map")
        return reply.map


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
