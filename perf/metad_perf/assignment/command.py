"""The command: partitions are made, brokers and a leader die, a broker is drained; then a million partitions.

The observer has all partitions and brokers by one watch. A producer in it appends to those that have a log.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from metad_client import Client, Options, Watched
from metad_client.assignment.serving import Key, key_of
from metad_wire.families.assignment import PARTITIONS
from metad_wire.messages import Owner, TableRecord
from metad_wire.tables.assignment import InSync, Partition, ResourceCreate
from metad_wire.tables.broker import Broker

from ..commands import Assignment
from ..errors import ServerError
from ..experiment.actor import Actor
from ..experiment.nodes import cpu_s, quiet, rss_bytes
from ..experiment.stage import Stage, ask_all, staged
from ..faults.members import START_S
from ..load.measure import MIB
from ..load.prepare import check, pour
from ..report import output
from ..report.conclusion import conclude, reported
from ..running import run_async
from ..target import open_client
from .brokers import LOG, TASK, TOPIC, Append, Line, Logs, Ready, Serve, double_served, name_of, open_brokers, read_uses

TENANT: Final = "perf"
_EACH: Final = 4  # partitions of a topic
_LOGS: Final = 20
_TASKS: Final = 100
_PROCESSES: Final = 2  # of the brokers that die, and of the others
_FEW: Final = 1_000
_WATCHED: Final[list[Any]] = [Watched(PARTITIONS), Watched("broker")]
_PARTS: Final = 10
_LOOK_S: Final = 0.02
_PAUSE_S: Final = 2.0
_CALM_S: Final = 1.0
_SINGLES: Final = 64
_LIVES: Final = 6
_CHANGER_LEASE_S: Final = 60.0


def run(options: Assignment) -> int:
    """Returns the exit code: 1 if a promise was broken, or a node or a living broker was not well."""
    problems: list[str] = []
    play = partial(_play, options)
    found = run_async(staged(options.shape, options.server_config, problems, play))
    if not options.skip_many:
        found |= run_async(staged(options.shape, options.server_config, problems, partial(_many, options)))
    made = reported(options, found | {"problems": problems})
    return conclude("assignment", made, options, *_PROMISES)


_PROMISES: Final = ("without_leader_after", "double_leaders", "double_serving", "acknowledged_lost", "moves_astray")


def topic(number: int) -> ResourceCreate:
    """A topic by its number."""
    return ResourceCreate(TENANT, f"orders-{number:09}", TOPIC, partitions=_EACH, replication=3, min_isr=2)


def key_of_number(number: int) -> Key:
    """A partition of all topics, by its number."""
    return TENANT, topic(number // _EACH).resource, TOPIC, number % _EACH


async def _create(client: Client, options: Assignment, first: int, end: int) -> float:
    """Make topics. Returns how many were made a second."""

    async def send(numbers: range) -> None:
        check(await client.assignments.create_many([topic(number) for number in numbers]), "topics")

    begin_s, step = time.monotonic(), options.batch
    await pour((range(at, min(end, at + step)) for at in range(first, end, step)), send, options.in_flight)
    return (end - first) / (time.monotonic() - begin_s)


# --- the observer -------------------------------------------------------------------------------------------


class Observer:
    """What the watch has shown."""

    def __init__(self, dying: frozenset[str]) -> None:
        self.rows: dict[Key, TableRecord[Partition]] = {}
        self.fenced_ns: dict[str, int] = {}
        self.led_ns: dict[Key, tuple[str, int]] = {}
        """Since the deaths: whose death a partition with a dead leader waited for last, and when another one led."""
        self.leaders: defaultdict[tuple[Key, int], set[Owner]] = defaultdict(set)
        self.moving: set[Key] = set()
        self.moving_max = self.begun = 0
        self.problems: list[str] = []
        self.whole = asyncio.Event()
        self._dying = dying
        self._waiting: dict[Key, str] = {}

    async def follow(self, client: Client) -> None:
        """Follow all partitions and brokers."""
        async with client.watch([*_WATCHED], start="snapshot") as watch:
            async for batch in watch:
                now_ns = time.monotonic_ns()
                if batch.kind == "gap":
                    self.problems.append("the watch of the observer has a gap")
                for event in batch.events:
                    record: Any = event.record
                    if isinstance(record, Broker):
                        if record.state == "fenced":
                            self.fenced_ns.setdefault(record.broker, now_ns)
                    elif record is not None:
                        self._partition(record, now_ns)
                if batch.kind == "snapshot" and batch.last:
                    self.whole.set()

    def _partition(self, row: TableRecord[Partition], now_ns: int) -> None:
        p = row.record
        key = key_of(p)
        self.rows[key] = row
        if p.leader is not None:
            self.leaders[key, p.leader_epoch].add(p.leader)
            if p.leader.broker in self._dying:
                self._waiting[key] = p.leader.broker
            elif (dead := self._waiting.pop(key, None)) is not None:
                self.led_ns[key] = dead, now_ns
        if p.plan is not None and key not in self.moving:
            self.begun += 1
            self.moving.add(key)
            self.moving_max = max(self.moving_max, len(self.moving))
        elif p.plan is None:
            self.moving.discard(key)

    def again_ms(self) -> list[float]:
        """For each partition whose leader died, from when its death was known until another one led."""
        return [max(0, led_ns - self.fenced_ns[dead]) / 1e6 for dead, led_ns in self.led_ns.values()]

    def without_leader(self, before: dict[Key, TableRecord[Partition]]) -> int:
        """Partitions that a living broker was in sync of, and that no living broker leads."""
        without = 0
        for key, row in before.items():
            leader = self.rows[key].record.leader
            able = {member.broker for member in row.record.isr} - self._dying
            without += bool(able) and key[2] != TASK and (leader is None or leader.broker in self._dying)
        return without


class Producer:
    """Appends to the partitions that have a log, one record after the other."""

    def __init__(self, observer: Observer, home: Path) -> None:
        self._observer = observer
        self._home = home
        self.acknowledged: defaultdict[Key, list[int]] = defaultdict(list)

    async def produce(self, key: Key) -> None:
        """Append to one."""
        line, number = Line(self._home), 0
        while True:
            p = self._observer.rows[key].record
            number += 1
            if (
                p.leader is not None
                and not (await line.ask(p.leader.broker, Append(key, p.leader_epoch, number))).refused
            ):
                self.acknowledged[key].append(number)
            else:
                await asyncio.sleep(_LOOK_S)


# --- brokers die, and move ----------------------------------------------------------------------------------


class _Run:
    """One run."""

    def __init__(self, options: Assignment, stage: Stage, client: Client, home: Path) -> None:
        self._options = options
        self._stage = stage
        self._client = client
        self._home = home
        self._observer = Observer(frozenset(map(name_of, range(options.kill))))
        self._producer = Producer(self._observer, home)
        parts = [range(n, options.kill, _PROCESSES) for n in range(min(_PROCESSES, options.kill))]
        living = [range(options.kill + n, options.brokers, _PROCESSES) for n in range(_PROCESSES)]
        self._dying, self._living = ([self._actor(part) for part in each if part] for each in (parts, living))

    def _actor(self, numbers: range) -> Actor:
        return self._stage.actor(open_brokers, self._stage.members.target, str(self._home), numbers)

    async def all(self) -> dict[str, Any]:
        """All of it."""
        options, observer, client, story = self._options, self._observer, self._client, self._stage.story
        topics = -(-options.partitions // _EACH)
        await ask_all([*self._dying, *self._living], Ready())
        story.step(f"{options.brokers} brokers live; make {topics:,} topics")
        created_per_s = await _create(client, options, 0, topics)
        await self._create_others()
        async with AsyncExitStack() as stack:

            def begin(work: Any) -> None:
                task = asyncio.create_task(work)
                stack.callback(task.cancel)

            begin(observer.follow(client))
            await observer.whole.wait()
            led = sum(await ask_all([*self._dying, *self._living], Serve()))
            story.step(f"brokers lead {led:,} of {len(observer.rows):,} partitions; a producer appends")
            for key in [key for key in observer.rows if key[2] == LOG]:
                begin(self._producer.produce(key))
            await asyncio.sleep(_PAUSE_S)
            died = await self._deaths()
            moved = await self._drain()
            await asyncio.sleep(_CALM_S)
        return {"created_per_s": created_per_s, **died, **moved, **await self._judged()}

    async def _create_others(self) -> None:
        """Half of the partitions with a log begin at brokers that die."""
        options = self._options
        spread = range(options.kill, options.brokers)
        places = [
            [name_of(at % options.kill if at % 2 else spread[at % len(spread)])]
            + [name_of(spread[(at + more) % len(spread)]) for more in (1, 2)]
            for at in range(_LOGS)
        ]
        log = ResourceCreate(TENANT, "log", LOG, partitions=_LOGS, replication=3, min_isr=2, replicas=places)
        task = ResourceCreate(TENANT, "task", TASK, partitions=_TASKS, replication=2, election="owner")
        check(await self._client.assignments.create_many([log, task]), "resources")

    async def _deaths(self) -> dict[str, Any]:
        options, observer, story = self._options, self._observer, self._stage.story
        before = dict(observer.rows)
        names = [name_of(n) for n in range(options.kill)]
        killed_ns: dict[str, int] = {}
        victim = None
        story.step(f"kill -9 of {options.kill} brokers")
        used_s = self._cpu_s()
        for at, actor in enumerate(self._dying):
            if at and options.kill_leader:
                await self._until(lambda: bool(observer.fenced_ns), "a dead broker is fenced")
                victim = await self._stage.leader("metadata-0")
                victim.kill()
                story.event(f"kill -9 of {victim.name}, the leader of metadata-0")
            killed_ns.update(dict.fromkeys(names[at::_PROCESSES], time.monotonic_ns()))
            actor.kill()
        await self._until(lambda: len(observer.fenced_ns) == len(names), "all dead brokers are fenced")
        detected_ms = [(observer.fenced_ns[name] - killed_ns[name]) / 1e6 for name in names]
        story.event(f"the last one is fenced after {max(detected_ms):,.0f} ms")
        await asyncio.sleep(_CALM_S)
        without = observer.without_leader(before)
        used_s = {name: now_s - used_s[name] for name, now_s in self._cpu_s().items()}
        if victim is not None:
            await asyncio.to_thread(victim.start, START_S)
            await self._stage.health.settle()
        written, was = self._versions(before), -1
        while written != was:
            await asyncio.sleep(_CALM_S)
            written, was = self._versions(before), written
        had = sum(broker in names for row in before.values() for broker in row.record.replicas)
        again_ms = sorted(observer.again_ms())
        return {
            "led_again_ms_p99": again_ms[len(again_ms) * 99 // 100],
            "led_again_ms_p50": again_ms[len(again_ms) // 2],
            "led_again_ms_max": again_ms[-1],
            "led_again": len(again_ms),
            "detected_ms": max(detected_ms),
            "detected_ms_p50": statistics.median(detected_ms),
            "without_leader_after": without,
            "writes_per_death": written / had,
            "deaths_cpu_s": used_s,
        }

    def _cpu_s(self) -> dict[str, float]:
        others = {"brokers": sum(actor.cpu_s() for actor in self._living), "observer": time.process_time()}
        return cpu_s(self._stage.members.all) | others

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + self._options.limit_s
        while not holds():
            if time.monotonic() > until_s:
                raise ServerError(f"waited {self._options.limit_s:g} s until {what}")
            await asyncio.sleep(_LOOK_S)

    def _versions(self, before: dict[Key, TableRecord[Partition]]) -> int:
        return sum(self._observer.rows[key].version - row.version for key, row in before.items())

    async def _drain(self) -> dict[str, Any]:
        """Drain a broker, and pause meanwhile."""
        options, observer, plans = self._options, self._observer, self._client.plans
        drained = name_of(options.kill)
        self._stage.story.step(f"drain {drained}, {options.moves} moves at a time")
        begin_s = time.monotonic()
        await plans.create("drain", "drain", [drained], moves=options.moves)
        await self._until(lambda: observer.begun > 0, "moves begin")
        await plans.pause("drain")
        await asyncio.sleep(_CALM_S)  # what was ordered before
        begun = observer.begun
        await asyncio.sleep(_PAUSE_S)
        begun_in_pause = observer.begun - begun
        await plans.resume("drain")
        until_s, plan = time.monotonic() + options.limit_s, None
        while (plan is None or plan.state != "done") and time.monotonic() < until_s:
            await asyncio.sleep(_CALM_S / 2)
            plan = await plans.get("drain")
        state = "" if plan is None else plan.state
        left = [row for row in observer.rows.values() if drained in row.record.replicas]
        astray = [observer.moving_max > options.moves, begun_in_pause > 0, state != "done", bool(left)]
        return {
            "moves_throttled_ok": not any(astray),
            "moves_astray": sum(astray),
            "moves_seconds": time.monotonic() - begin_s,
            "moves_max": observer.moving_max,
            "moves_begun": observer.begun,
            "moves_begun_in_pause": begun_in_pause,
            "moves_left": len(left),
            "plan_state": state,
        }

    async def _judged(self) -> dict[str, Any]:
        observer, problems = self._observer, self._stage.problems
        logs: dict[Key, tuple[int, set[int]]] = {}
        for led, lost in await ask_all(self._living, Logs()):
            problems += [f"{name}, which was not killed, has lost its life" for name in lost]
            for key, (epoch, numbers) in led.items():
                logs[key] = max((epoch, set(numbers)), logs.get(key, (0, set[int]())), key=lambda one: one[0])
        uses = read_uses(self._home)
        for use in uses:
            observer.leaders[use.key, use.leader_epoch].add(use.member)
        acknowledged = self._producer.acknowledged
        problems += observer.problems
        return {
            "double_leaders": sum(len(leaders) > 1 for leaders in observer.leaders.values()),
            "double_serving": len(double_served(use for use in uses if use.begin_ns)),
            "acknowledged_lost": sum(len({*each} - logs.get(key, (0, set()))[1]) for key, each in acknowledged.items()),
            "acknowledged": sum(map(len, acknowledged.values())),
            "uses": sum(use.begin_ns > 0 for use in uses),
        }


async def _play(options: Assignment, stage: Stage) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="metad-perf-") as home:
        return await _Run(options, stage, await stage.client(), Path(home)).all()


# --- a million ----------------------------------------------------------------------------------------------


class Make(msgspec.Struct, frozen=True):
    """Order: make the topics from this one on. The reply: how many a second."""

    first: int
    end: int


class Change(msgspec.Struct, frozen=True):
    """Order: so many changes of who is in sync, of as many different partitions as there are few, spread over so many
    topics. The reply: how many were refused."""

    topics: int
    count: int
    batch: int


class Changer:
    """Carries out these orders."""

    def __init__(self, client: Client, options: Assignment) -> None:
        self._client = client
        self._options = options
        self._known: list[Partition] = []
        self._changes: Counter[int] = Counter()

    async def carry_out(self, order: Make | Change) -> Any:
        match order:
            case Make(first, end):
                return await _create(self._client, self._options, first, end)
            case Change(topics, count, batch):
                self._known = self._known or await self._read(topics)
                refused, number = 0, len(self._known)

                async def send(wanted: Sequence[int]) -> None:
                    nonlocal refused
                    items = [self._next(at % number) for at in wanted]
                    refused += len((await self._client.assignments.in_sync_many(items)).errors)

                steps = (range(at, min(count, at + batch)) for at in range(0, count, batch))
                await pour(steps, send, 1 if batch > 1 else _SINGLES)
                return refused

    async def _read(self, topics: int) -> list[Partition]:
        numbers = range(0, topics * _EACH, max(1, topics * _EACH // _FEW))
        keys = [key_of_number(number) for number in numbers]
        return [row.record for row in await self._client.assignments.partitions.get_many(keys) if row is not None]

    def _next(self, at: int) -> InSync:
        """The last one is not in sync any more, or is again."""
        p, changes = self._known[at], self._changes[at]
        assert p.leader is not None
        self._changes[at] += 1
        isr = p.isr if changes % 2 else p.isr[:-1]
        epoch = p.partition_epoch + changes
        return InSync(*key_of(p), p.leader.broker, p.leader.broker_epoch, p.leader_epoch, epoch, isr)


@asynccontextmanager
async def open_changer(target: str, options: Assignment) -> AsyncIterator[Changer]:
    """The role of a process: some brokers live, and another client says what they would."""
    async with AsyncExitStack() as stack:
        for name in map(name_of, range(_LIVES)):
            client = await stack.enter_async_context(open_client(target, Options(client_name=name)))
            await client.brokers.register(name, lease_s=_CHANGER_LEASE_S)
        settings = Options(client_name="changer", deadline_s=60.0)
        yield Changer(await stack.enter_async_context(open_client(target, settings)), options)


async def _at_rest(stage: Stage) -> tuple[float, float]:
    """Memory of all nodes in MiB: once they are quiet, and after they have started anew, and are quiet again."""
    members = stage.members.all
    await quiet(members)
    running = rss_bytes(members) / MIB
    await asyncio.gather(*(asyncio.to_thread(member.stop) for member in members))
    await asyncio.to_thread(stage.members.start)
    await stage.health.settle()
    await quiet(members)
    return running, rss_bytes(members) / MIB


async def _many(options: Assignment, stage: Stage) -> dict[str, Any]:
    """What many partitions cost: memory at rest, and each change."""
    topics, few = options.many // _EACH, min(_FEW, options.many) // _EACH
    changer = stage.actor(open_changer, stage.members.target, options)
    await changer.ask(Make(0, few))
    before = await _at_rest(stage)
    rates, part = [], -(-(topics - few) // _PARTS)
    with output.progress(f"make {topics:,} topics", topics - few) as progress:
        for first in range(few, topics, part):
            rates.append(await changer.ask(Make(first, min(topics, first + part))))
            progress(part)
    after = await _at_rest(stage)
    compared = partial(_compared, options, [(stage, changer, topics)], few)
    return {
        "created_per_s_1e6": statistics.harmonic_mean(rates) if rates else 0.0,
        "rss_growth_mib_1e6": after[1] - before[1],
        "rss_mib": {"quiet": [before[0], after[0]], "started anew": [before[1], after[1]]},
        **await staged(options.shape, options.server_config, stage.problems, compared),
    }


async def _compared(
    options: Assignment, sides: list[tuple[Stage, Actor, int]], few: int, beside: Stage
) -> dict[str, Any]:
    """Changes with many partitions and with few, in turn."""
    sides.append((beside, beside.actor(open_changer, beside.members.target, options), few))
    await sides[1][1].ask(Make(0, few))
    for stage, _, _ in sides:
        await quiet(stage.members.all)
    costs: dict[str, list[tuple[float, float]]] = {"batches": [], "singles": []}
    with output.progress("changes", len(costs) * (1 + options.pairs)) as progress:
        for way, batch, count in (("batches", options.batch, options.changes), ("singles", 1, options.changes // 4)):
            for pair in range(1 + options.pairs):  # the first fills what is remembered, and does not count
                spent = {}
                for at in (0, 1) if pair % 2 else (1, 0):
                    stage, changer, topics = sides[at]
                    used_s = sum(cpu_s(stage.members.all).values())
                    if refused := await changer.ask(Change(topics, count, batch)):
                        stage.problems.append(f"{refused} changes of who is in sync were refused")
                    spent[at] = 1e6 * (sum(cpu_s(stage.members.all).values()) - used_s) / count
                costs[way] += [(spent[0], spent[1])] if pair else []
                progress(1)
    ratios = {way: output.median_ratio(pairs) for way, pairs in costs.items()}
    return {
        "change_cost_ratio_1e6_to_1e3": max(ratios.values()),
        "change_cost_ratios": ratios,
        "change_cost_us": {
            way: [statistics.median(one) for one in zip(*each, strict=True)] for way, each in costs.items()
        },
    }
