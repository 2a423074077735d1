"""The command: partitions are made, brokers and a leader die, a broker is drained. Then sessions are updated beside
metadata verbs, and there are a million partitions.

The observer has all partitions and brokers by one watch. A producer in it appends to those that have a log.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from metad_client import Client, Options, Watched
from metad_client.assignment.serving import Key, key_of
from metad_wire.families.assignment import PARTITIONS
from metad_wire.families.core import TOPICS
from metad_wire.families.core import Topic as TopicRecord
from metad_wire.messages import Owner, TableRecord
from metad_wire.program.running import run_async
from metad_wire.tables.assignment import InSync, Partition, ResourceCreate
from metad_wire.tables.broker import Broker

from ..commands import Assignment
from ..core_speed import CoreSpeed
from ..errors import ServerError
from ..experiment.actor import Actor
from ..experiment.nodes import cpu_s, quiet, rss_bytes
from ..experiment.stage import Stage, ask_all, staged
from ..faults.members import START_S
from ..load.loop import Budget, drive
from ..load.measure import MIB, epoch_now
from ..load.prepare import check, fill_sessions, pour
from ..load.worker import REQUEST_DEADLINE_S
from ..load.workload import SessionUpdate, Settings
from ..report import output
from ..report.conclusion import conclude, reported
from ..report.histogram import Latencies
from ..target import open_client
from .brokers import LOG, TASK, Ask, Line, double_served, name_of, open_brokers, read_uses

_TENANT: Final = "perf"
_TOPIC: Final = "topic"
_EACH: Final = 4  # partitions of a topic
_FEW: Final = 1_000  # partitions
_LOGS: Final = 20
_TASKS: Final = 100
_PROCESSES: Final = 2  # of the brokers that die, and of the others
_PARTS: Final = 10  # of the creation of many
_IDLE_SHARE: Final = 0.02  # of a core
_IDLE_LOOKS_MAX: Final = 150
_SINGLES: Final = 64  # calls in flight
_LIVES: Final = 6
_UPDATES: Final = 100
_IN_FLIGHT: Final = 32
_CAPACITY_SHARE: Final = 0.25  # of the time that verbs are measured, to find how many updates there can be
_CALLS_PER_S: Final = 50.0  # of each verb
_LONG_LEASE_S: Final = 60.0
_LOOK_S: Final = 0.02
_CALM_S: Final = 1.0
_WATCHED: Final[list[Any]] = [Watched(PARTITIONS), Watched("broker")]
_PROMISES: Final = ("without_leader_after", "double_leaders", "double_serving", "acknowledged_lost", "moves_astray")


def run(options: Assignment) -> int:
    """Returns the exit code: 1 if a promise was broken, or a node or a living broker was not well."""
    problems: list[str] = []
    found: dict[str, Any] = {}
    with CoreSpeed() as core:
        plays: list[Callable[[Stage], Awaitable[dict[str, Any]]]] = [partial(_play, options), partial(_beside, options)]
        plays += [] if options.skip_many else [partial(_many, options)]
        for play in plays:
            found |= run_async(staged(options.shape, options.server_config, problems, play))
    return conclude(
        "assignment", reported(options, found | {"core_us": core.us, "problems": problems}), options, *_PROMISES
    )


def _topic(number: int) -> ResourceCreate:
    return ResourceCreate(_TENANT, f"orders-{number:09}", _TOPIC, partitions=_EACH, replication=3, min_isr=2)


async def _create(client: Client, options: Assignment, first: int, end: int) -> float:
    """Make topics. Returns the seconds."""

    async def send(numbers: range) -> None:
        check(await client.assignments.create_many([_topic(number) for number in numbers]), "topics")

    begin_s, step = time.monotonic(), options.batch
    await pour((range(at, min(end, at + step)) for at in range(first, end, step)), send, options.in_flight)
    return time.monotonic() - begin_s


# --- the observer ----------------------------------------------------------------------------------------------------


class Observer:
    """What the watch has shown, and a producer."""

    def __init__(self, dying: frozenset[str], home: Path) -> None:
        self.rows: dict[Key, TableRecord[Partition]] = {}
        self.fenced_ns: dict[str, int] = {}
        self.led_ns: dict[Key, tuple[str, int]] = {}
        """Of a partition whose leader died: which one last, and when another broker led."""
        self.leaders: defaultdict[tuple[Key, int], set[Owner]] = defaultdict(set)
        self.moving: set[Key] = set()
        self.moving_max = self.begun = 0
        self.acknowledged: defaultdict[Key, set[int]] = defaultdict(set)
        self.gaps = 0
        self.whole = asyncio.Event()
        self._dying = dying
        self._home = home
        self._waiting: dict[Key, str] = {}

    async def follow(self, client: Client) -> None:
        """Follow all partitions and brokers."""
        async with client.watch([*_WATCHED], start="snapshot") as watch:
            async for batch in watch:
                now_ns = time.monotonic_ns()
                self.gaps += batch.kind == "gap"
                for event in batch.events:
                    record: Any = event.record
                    if isinstance(record, TableRecord):
                        self.saw(record, now_ns)
                    elif isinstance(record, Broker) and record.state == "fenced":
                        self.fenced_ns.setdefault(record.broker, now_ns)
                if batch.kind == "snapshot" and batch.last:
                    self.whole.set()

    def saw(self, row: TableRecord[Partition], now_ns: int) -> None:
        """A partition is so."""
        p, key = row.record, key_of(row.record)
        self.rows[key] = row
        if p.leader is not None:
            self.leaders[key, p.leader_epoch].add(p.leader)
            if p.leader.broker in self._dying:
                self._waiting[key] = p.leader.broker
            elif (dead := self._waiting.pop(key, None)) is not None:
                self.led_ns[key] = dead, now_ns
        if p.plan is not None:
            self.begun += key not in self.moving
            self.moving.add(key)
            self.moving_max = max(self.moving_max, len(self.moving))
        else:
            self.moving.discard(key)

    def again_ms(self, owned: bool) -> list[float]:
        """From when a leader's death was known until another one led, in order."""
        found = [(key, led_ns - self.fenced_ns[dead]) for key, (dead, led_ns) in self.led_ns.items()]
        return sorted(max(0, spent_ns) / 1e6 for key, spent_ns in found if (key[2] == TASK) == owned)

    def without_leader(self, before: Mapping[Key, TableRecord[Partition]]) -> int:
        """Partitions that a living broker was in sync of, and that no living broker leads."""
        without = 0
        for key, row in before.items():
            leader = self.rows[key].record.leader
            able = key[2] != TASK and {member.broker for member in row.record.isr} - self._dying
            without += bool(able) and (leader is None or leader.broker in self._dying)
        return without

    async def produce(self, key: Key) -> None:
        """Append to a partition that has a log, one record after the other."""
        line, number = Line(self._home), 0
        while True:
            p, number = self.rows[key].record, number + 1
            ask = Ask(key, p.leader_epoch, number=number)
            if p.leader is not None and not (await line.ask(p.leader.broker, ask)).refused:
                self.acknowledged[key].add(number)
            else:
                await asyncio.sleep(_LOOK_S)


# --- brokers die, and one is drained ---------------------------------------------------------------------------------


async def _play(options: Assignment, stage: Stage) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="metad-perf-") as home:
        return await _Run(options, stage, await stage.client(), Path(home)).all()


class _Run:
    """One run."""

    def __init__(self, options: Assignment, stage: Stage, client: Client, home: Path) -> None:
        self._options = options
        self._stage = stage
        self._client = client
        self._home = home
        self._names = [name_of(number) for number in range(options.brokers)]
        self._observer = Observer(frozenset(self._names[: options.kill]), home)
        self._dying = self._actors(range(options.kill))
        self._living = self._actors(range(options.kill, options.brokers))

    def _actors(self, numbers: range) -> list[Actor]:
        parts = [numbers[n::_PROCESSES] for n in range(min(_PROCESSES, len(numbers)))]
        target, home = self._stage.members.target, str(self._home)
        return [self._stage.actor(open_brokers, target, home, part) for part in parts]

    async def all(self) -> dict[str, Any]:
        """All of it."""
        options, observer, story = self._options, self._observer, self._stage.story
        brokers, topics = [*self._dying, *self._living], -(-options.partitions // _EACH)
        await ask_all(brokers, "ready")
        story.step(f"{options.brokers} brokers live; make {topics:,} topics")
        used_s = self._cpu_s()
        seconds = await _create(self._client, options, 0, topics)
        used_s = self._cpu_s(used_s)
        await self._create_others()
        async with AsyncExitStack() as stack:

            def begin(work: Coroutine[Any, Any, None]) -> None:
                stack.callback(asyncio.create_task(work).cancel)

            begin(observer.follow(self._client))
            await observer.whole.wait()
            led = sum(await ask_all(brokers, "serve"))
            story.step(f"brokers lead {led:,} of {len(observer.rows):,} partitions; a producer appends")
            for key in [key for key in observer.rows if key[2] == LOG]:
                begin(observer.produce(key))
            await asyncio.sleep(2 * _CALM_S)
            died = await self._deaths()
            moved = await self._drain()
        created = {"created_per_s": topics / seconds, "created_cpu_us": 1e6 * used_s["nodes"] / topics}
        return {**created, **died, **moved, **await self._judged()}

    async def _create_others(self) -> None:
        """Half of the partitions with a log begin at brokers that die."""
        dying, living = self._names[: self._options.kill], self._names[self._options.kill :]
        places = [[living[(at + more) % len(living)] for more in range(3)] for at in range(_LOGS)]
        for at in range(0, _LOGS, 2):
            places[at][0] = dying[at % len(dying)]
        log = ResourceCreate(_TENANT, "log", LOG, partitions=_LOGS, replication=3, min_isr=2, replicas=places)
        task = ResourceCreate(_TENANT, "task", TASK, partitions=_TASKS, replication=2, election="owner")
        check(await self._client.assignments.create_many([log, task]), "resources")

    async def _deaths(self) -> dict[str, Any]:
        options, observer, story = self._options, self._observer, self._stage.story
        before, names = dict(observer.rows), self._names[: options.kill]
        killed_ns: dict[str, int] = {}
        victim = None
        story.step(f"kill -9 of {options.kill} brokers")
        used_s = self._cpu_s()
        for at, actor in enumerate(self._dying):
            if at and options.kill_leader:
                await self._until(lambda: bool(observer.fenced_ns), "a dead broker is fenced")
                victim = await self._stage.leader("metadata-0")
                used_s["nodes"] -= victim.cpu_s()
                victim.kill()
                story.event(f"kill -9 of {victim.name}, the leader of metadata-0")
            killed_ns.update(dict.fromkeys(names[at::_PROCESSES], time.monotonic_ns()))
            actor.kill()
        await self._until(lambda: observer.fenced_ns.keys() >= {*names}, "all dead brokers are fenced")
        detected_ms = [(observer.fenced_ns[name] - killed_ns[name]) / 1e6 for name in names]
        story.event(f"the last one is fenced after {max(detected_ms):,.0f} ms")
        await asyncio.sleep(_CALM_S)
        without = observer.without_leader(before)
        written, was = self._versions(before), -1
        while written != was:
            await asyncio.sleep(_CALM_S)
            written, was = self._versions(before), written
        used_s = self._cpu_s(used_s)
        if victim is not None:
            await asyncio.to_thread(victim.start, START_S)
            await self._stage.health.settle()
        again_ms, owned_ms = observer.again_ms(False), observer.again_ms(True)
        return {
            "led_again_ms_p99": again_ms[len(again_ms) * 99 // 100],
            "led_again_ms_p50": again_ms[len(again_ms) // 2],
            "led_again": len(again_ms),
            "owned_again_ms_max": max(owned_ms, default=0.0),
            "detected_ms": max(detected_ms),
            "detected_ms_p50": statistics.median(detected_ms),
            "without_leader_after": without,
            "writes_per_death": written / sum(name in names for row in before.values() for name in row.record.replicas),
            "deaths_cpu_s": used_s,
        }

    def _versions(self, before: Mapping[Key, TableRecord[Partition]]) -> int:
        return sum(self._observer.rows[key].version - row.version for key, row in before.items() if key[2] != LOG)

    def _cpu_s(self, before: Mapping[str, float] | None = None) -> dict[str, float]:
        living = sum(actor.cpu_s() for actor in self._living)
        nodes = sum(cpu_s([one for one in self._stage.members.all if one.runs]).values())
        now = {"nodes": nodes, "living brokers": living, "observer": time.process_time()}
        return {name: now_s - (before or {}).get(name, 0.0) for name, now_s in now.items()}

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + self._options.limit_s
        while not holds():
            if time.monotonic() > until_s:
                raise ServerError(f"waited {self._options.limit_s:g} s until {what}")
            await asyncio.sleep(_LOOK_S)

    async def _drain(self) -> dict[str, Any]:
        """Drain a broker, and pause meanwhile."""
        options, observer, plans = self._options, self._observer, self._client.plans
        drained, begin_s, state = self._names[options.kill], time.monotonic(), ""
        self._stage.story.step(f"drain {drained}, {options.moves} moves at a time")
        await plans.create("drain", "drain", [drained], moves=options.moves)
        await self._until(lambda: observer.begun > 0, "moves begin")
        await plans.pause("drain")
        await asyncio.sleep(_CALM_S)  # what was ordered before begins
        paused_at = observer.begun
        await asyncio.sleep(2 * _CALM_S)
        in_pause = observer.begun - paused_at
        await plans.resume("drain")
        until_s = time.monotonic() + options.limit_s
        while state != "done" and time.monotonic() < until_s:
            await asyncio.sleep(_CALM_S / 2)
            plan = await plans.get("drain")
            state = "" if plan is None else plan.state
        left = sum(drained in row.record.replicas for row in observer.rows.values())
        astray = (observer.moving_max > options.moves) + (in_pause > 0) + (state != "done") + (left > 0)
        return {
            "moves_throttled_ok": not astray,
            "moves_astray": astray,
            "moves_begun": observer.begun,
            "moves_max": observer.moving_max,
            "moves_begun_in_pause": in_pause,
            "moves_left": left,
            "moves_seconds": time.monotonic() - begin_s,
        }

    async def _judged(self) -> dict[str, Any]:
        observer, problems = self._observer, self._stage.problems
        problems += ["the watch of the observer has a gap"] * observer.gaps
        logs: dict[Key, tuple[int, list[int]]] = {}
        for led, lost in await ask_all(self._living, "logs"):
            problems += [f"{name}, which was not killed, has lost its life" for name in lost]
            for key, log in led.items():
                logs[key] = max(log, logs.get(key, log))
        uses = read_uses(self._home)
        for use in uses:
            observer.leaders[use.key, use.leader_epoch].add(use.member)
        acknowledged = observer.acknowledged
        return {
            "double_leaders": sum(len(leaders) > 1 for leaders in observer.leaders.values()),
            "double_serving": len(double_served(use for use in uses if use.begin_ns)),
            "acknowledged_lost": sum(len(each - {*logs.get(key, (0, []))[1]}) for key, each in acknowledged.items()),
            "acknowledged": sum(map(len, acknowledged.values())),
            "uses": sum(use.begin_ns > 0 for use in uses),
        }


# --- metadata verbs beside half of the session updates that the cluster can do ---------------------------------------


class Updater:
    """The role of a process that updates sessions. An order: how many a second, 0 for as many as can be, and for how
    long. The reply: how many a second succeeded."""

    def __init__(self, client: Client, sessions: int, epoch: int) -> None:
        self._source = SessionUpdate(
            client, Settings(verb="session.update", batch=_UPDATES, keys=sessions, value_bytes=200, epoch=epoch)
        )

    async def carry_out(self, order: tuple[float, float]) -> float:
        rate, seconds = order
        tally = await drive(
            self._source,
            batch=_UPDATES,
            in_flight=_IN_FLIGHT,
            budget=Budget(seconds=seconds),
            note=lambda _: None,
            interval_ns=1e9 * _UPDATES / rate if rate else 0,
        )
        return 1e9 * (tally.requests * _UPDATES - tally.failed) / (tally.end_ns - tally.begin_ns)


@asynccontextmanager
async def open_updater(target: str, sessions: int) -> AsyncIterator[Updater]:
    """The role, with so many sessions."""
    async with open_client(target, Options(deadline_s=REQUEST_DEADLINE_S, client_name="updater")) as client:
        epoch = epoch_now()
        await fill_sessions(client, epoch, sessions, 200, lambda _: None)
        yield Updater(client, sessions, epoch)


class _Calls:
    """One verb, a call at a time."""

    def __init__(self, call: Callable[[int], Awaitable[object]]) -> None:
        self._call = call
        self._numbers = itertools.count()

    def batch(self) -> int:
        return next(self._numbers)

    async def send(self, batch: int) -> list[str]:
        await self._call(batch)
        return []


def _verbs(client: Client, life: str) -> dict[str, Callable[[int], Awaitable[object]]]:
    topics, assignments = client.table(TOPICS), client.assignments
    return {
        "topic put": lambda at: topics.put(TopicRecord(_TENANT, f"topic-{at % 1000}")),
        "topic get": lambda at: topics.get(_TENANT, f"topic-{at % 1000}"),
        "broker get": lambda _: client.brokers.get(life),
        "resource create": lambda at: assignments.create(_TENANT, f"made-{at:06}", "topic"),
        "partition get": lambda at: assignments.partitions.get(_TENANT, f"made-{at % 100:06}", "topic", 0),
    }


async def _beside(options: Assignment, stage: Stage) -> dict[str, Any]:
    """The p99 of each verb, alone and beside the updates, each at an even pace."""
    client = await stage.client()
    life = await client.brokers.register("beside", lease_s=60.0)
    updater = stage.actor(open_updater, stage.members.target, options.sessions)
    capacity = await updater.ask((0.0, _CAPACITY_SHARE * options.seconds))
    calls = {name: _Calls(call) for name, call in _verbs(client, life.broker).items()}
    p99_ms: dict[str, dict[str, float]] = {}
    updated = 0.0
    for when, rate in (("alone", 0.0), ("beside", capacity / 2)):
        stage.story.step(f"metadata verbs {when}" + (f" {rate:,.0f} session updates/s" if rate else ""))
        work = asyncio.create_task(updater.ask((rate, options.seconds))) if rate else None
        found = {name: Latencies() for name in calls}
        tallies = await asyncio.gather(
            *(
                drive(
                    call,
                    batch=1,
                    in_flight=64,
                    budget=Budget(seconds=options.seconds),
                    note=found[name].note,
                    interval_ns=1e9 / _CALLS_PER_S,
                )
                for name, call in calls.items()
            )
        )
        failed = sum(tally.failed for tally in tallies)
        stage.problems += [f"{failed} metadata calls failed"] * bool(failed)
        p99_ms[when] = {name: one.percentile_ms(99) for name, one in found.items()}
        if work is not None:
            updated = await work
    return {
        "verbs_p99_ms": max(p99_ms["beside"].values()),
        "verbs_p99_ms_each": p99_ms,
        "session_updates_per_s": {"capacity": capacity, "beside": updated},
    }


# --- a million partitions --------------------------------------------------------------------------------------------


class Changer:
    """Orders: ``make``, the first topic, the last; and ``change``, over so many topics, so many changes of who is in
    sync, in such batches, of as many different partitions as there are few. Replies with how many were refused."""

    def __init__(self, client: Client, options: Assignment) -> None:
        self._client = client
        self._options = options
        self._known: list[Partition] = []
        self._changes: Counter[int] = Counter()

    async def carry_out(self, order: tuple[str, int, int, int]) -> Any:
        what, topics, count, batch = order
        if what == "make":
            return await _create(self._client, self._options, topics, count)
        if not self._known:
            numbers = range(0, topics, max(1, topics * _EACH // _FEW))
            keys = [(_TENANT, _topic(number).resource, _TOPIC, at) for number in numbers for at in range(_EACH)]
            rows = await self._client.assignments.partitions.get_many(keys)
            self._known = [row.record for row in rows if row is not None]
        refused = 0

        async def send(wanted: range) -> None:
            nonlocal refused
            items = [self._next(at % len(self._known)) for at in wanted]
            refused += len((await self._client.assignments.in_sync_many(items)).errors)

        steps = (range(at, min(count, at + batch)) for at in range(0, count, batch))
        await pour(steps, send, 1 if batch > 1 else _SINGLES)
        return refused

    def _next(self, at: int) -> InSync:
        """The last one is not in sync any more, or is again."""
        p, changes = self._known[at], self._changes[at]
        assert p.leader is not None
        self._changes[at] += 1
        isr = p.isr if changes % 2 else p.isr[:-1]
        said = (p.leader_epoch, p.partition_epoch + changes)
        return InSync(*key_of(p), p.leader.broker, p.leader.broker_epoch, *said, isr)


@asynccontextmanager
async def open_changer(target: str, options: Assignment) -> AsyncIterator[Changer]:
    """The role of a process: some brokers live, and another client says what they would."""
    async with AsyncExitStack() as stack:
        for name in map(name_of, range(_LIVES)):
            client = await stack.enter_async_context(open_client(target, Options(client_name=name)))
            await client.brokers.register(name, lease_s=_LONG_LEASE_S)
        settings = Options(client_name="changer", deadline_s=60.0)
        yield Changer(await stack.enter_async_context(open_client(target, settings)), options)


async def _at_rest(stage: Stage) -> tuple[float, float]:
    """Memory of all nodes in MiB: once they are quiet; and once they have started anew, and are quiet again."""
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
    topics, few = options.many // _EACH, _FEW // _EACH
    changer = stage.actor(open_changer, stage.members.target, options)
    await changer.ask(("make", 0, few, 0))
    before = await _at_rest(stage)
    seconds, part = 0.0, -(-topics // _PARTS)
    with output.progress(f"make {topics:,} topics", topics) as progress:
        for first in range(few, topics, part):
            seconds += await changer.ask(("make", first, min(topics, first + part), 0))
            progress(part)
    after = await _at_rest(stage)
    compared = partial(_compared, options, [(stage, changer, topics)], few)
    return {
        "created_per_s_1e6": output.ratio(topics - few, seconds),
        "rss_growth_mib_1e6": after[1] - before[1],
        "rss_mib": {"quiet": [before[0], after[0]], "started anew": [before[1], after[1]]},
        **await staged(options.shape, options.server_config, stage.problems, compared),
    }


async def _idle(stages: Sequence[Stage]) -> list[float]:
    """Wait until the first nodes do no more by themselves than the others: a new leader counts the replicas of all
    brokers. Returns the share of a core that each side uses."""
    used: list[float] = []
    for _ in range(_IDLE_LOOKS_MAX):
        before = [sum(cpu_s(stage.members.all).values()) for stage in stages]
        await asyncio.sleep(2 * _CALM_S)
        now = [sum(cpu_s(stage.members.all).values()) for stage in stages]
        used = [(end_s - begin_s) / (2 * _CALM_S) for begin_s, end_s in zip(before, now, strict=True)]
        if used[0] <= used[1] + _IDLE_SHARE:
            break
    return used


async def _compared(
    options: Assignment, sides: list[tuple[Stage, Actor, int]], few: int, other: Stage
) -> dict[str, Any]:
    """Changes with many partitions and with few, in turn."""
    sides.append((other, other.actor(open_changer, other.members.target, options), few))
    await sides[1][1].ask(("make", 0, few, 0))
    idle = await _idle([stage for stage, _, _ in sides])
    costs: dict[str, list[tuple[float, float]]] = {"batches": [], "singles": []}
    with output.progress("changes", len(costs) * (1 + options.pairs)) as progress:
        for way, batch, count in (("batches", options.batch, options.changes), ("singles", 1, options.changes // 4)):
            for pair in range(1 + options.pairs):  # the first fills what is remembered, and does not count
                spent = {}
                for at in (0, 1) if pair % 2 else (1, 0):
                    stage, changer, topics = sides[at]
                    used_s = sum(cpu_s(stage.members.all).values())
                    if refused := await changer.ask(("change", topics, count, batch)):
                        stage.problems.append(f"{refused} changes of who is in sync were refused")
                    spent[at] = 1e6 * (sum(cpu_s(stage.members.all).values()) - used_s) / count
                costs[way] += [(spent[0], spent[1])] if pair else []
                progress(1)
    ratios = {way: output.median_ratio(pairs) for way, pairs in costs.items()}
    return {
        "change_cost_ratio_1e6_to_1e3": max(ratios.values()),
        "change_cost_ratios": ratios,
        "idle_cores": idle,
        "change_cost_us": {
            way: [statistics.median(one) for one in zip(*each, strict=True)] for way, each in costs.items()
        },
    }
