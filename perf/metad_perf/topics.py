"""``metad-perf topics``: what it costs to keep the metadata of many topics in a declared table.

One cluster has all topics. Some of them are created in turn with others on a cluster that has four groups for them, and
changes are made in turn with others on a cluster that has a thousand topics: so a busy machine slows both sides. One
process writes the topics of a cluster, and a broker in another has them in an image.

In the end every topic must have been written as often as its version says, for a read and in the image.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import msgspec
import psutil

from metad_client import U32, Client, Options, Record, TablePutItem
from metad_client.namespaces.tables import Records
from metad_wire.tables.table import PlainTable

from .commands import Topics
from .experiment.actor import Actor
from .experiment.nodes import cpu_s, quiet
from .experiment.stage import Stage, conduct, staged
from .load.loop import Budget, drive
from .load.measure import MIB
from .load.prepare import check, pour
from .report import output
from .report.conclusion import conclude
from .report.histogram import Latencies
from .target import open_client

_TENANTS: Final = 100
_OWNED: Final = 50  # topics of an owner, in a tenant
_SETTINGS: Final = {
    "cleanup.policy": "delete",
    "compression.type": "lz4",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "2",
    "retention.bytes": "-1",
    "segment.bytes": "1073741824",
}


class Topic(Record, frozen=True):
    """What a broker keeps of a topic."""

    tenant: str
    topic: str
    owner: str
    partitions: U32 = 1
    replication: U32 = 3
    permission: Literal["private", "read", "write"] = "private"
    attributes: dict[str, str] = msgspec.field(default_factory=dict)


def topic_of(number: int, partitions: int = 1) -> Topic:
    """A topic by its number."""
    tenant, topic = key_of(number)
    permission: Any = ("private", "read", "write")[number % 3]
    attributes = {**_SETTINGS, "retention.ms": str(3_600_000 + number)}
    return Topic(tenant, topic, _owner_of(number), partitions, 3, permission, attributes)


def key_of(number: int) -> tuple[str, str]:
    """Its key: tenant and topic."""
    return f"tenant-{number % _TENANTS:02}", f"orders-{number:09}"


def number_of(topic: str) -> int:
    """The number in its name."""
    return int(topic[-9:])


def owned_with(number: int, topics: int) -> tuple[tuple[str, str], int]:
    """Tenant and owner of a topic, and how many of so many topics are theirs."""
    first = number // _TENANTS // _OWNED * _OWNED * _TENANTS + number % _TENANTS
    return (key_of(number)[0], _owner_of(number)), len(range(first, min(topics, first + _OWNED * _TENANTS), _TENANTS))


def _owner_of(number: int) -> str:
    return f"owner-{number // _TENANTS // _OWNED:05}"


async def declared(client: Client, kind: str) -> PlainTable[Topic]:
    """The table, kept by groups of a kind."""
    key, indexes = ("tenant", "topic"), {"by_owner": ("tenant", "owner")}
    return await client.tables.declare("perf_topic", Topic, key=key, kind=kind, indexes=indexes)


# --- the process that writes them ------------------------------------------------------------------------------------


_SINGLES: Final = 64  # calls in flight
_PAGE: Final = 100


class Create(msgspec.Struct, frozen=True):
    """Order: create these topics. The reply: seconds."""

    first: int
    count: int


class Change(msgspec.Struct, frozen=True):
    """Order: make so many changes of the topics ``within``, each batch of different ones; in single calls if a batch
    has one, and then so many a second if there is a ``rate`` (:class:`Changed`)."""

    within: range
    count: int
    batch: int
    rate: float = 0.0


class Changed(msgspec.Struct, frozen=True):
    """The versions of the topics that were changed, and when the call for each number and version was answered, by the
    machine's clock, if they were single calls."""

    versions: dict[int, int]
    answered_ns: dict[tuple[int, int], int]


class List(msgspec.Struct, frozen=True):
    """Order: list the topics of so many owners of the first ``topics``, each a page. The reply: the time of each in ns,
    and how many pages were wrong."""

    topics: int
    count: int


class Verify(msgspec.Struct, frozen=True):
    """Order: read all topics. The reply: how many are not what the writes say."""


class Writer:
    """Carries out these orders."""

    def __init__(self, records: Records[Topic], batch: int, in_flight: int, seed: int) -> None:
        self._records, self._batch, self._in_flight = records, batch, in_flight
        self._rng = random.Random(seed)
        self._writes: Counter[int] = Counter()
        self._answered_ns: dict[tuple[int, int], int] = {}

    async def carry_out(self, order: Create | Change | List | Verify) -> Any:
        """Do it."""
        match order:
            case Create(first, count):
                begin = time.perf_counter()
                await self._pour(range(first, first + count), self._put_many)
                return time.perf_counter() - begin
            case Change():
                return await self._change(order)
            case List():
                return await self._list(order)
        return await self._verify()

    async def _pour(self, numbers: Sequence[int], send: Callable[[Sequence[int]], Awaitable[None]]) -> None:
        await pour(
            (numbers[at : at + self._batch] for at in range(0, len(numbers), self._batch)), send, self._in_flight
        )

    async def _put_many(self, numbers: Sequence[int]) -> None:
        items = [TablePutItem(topic_of(number, 1 + self._writes[number])) for number in numbers]
        check(await self._records.put_many(items), "topics")
        self._writes.update(numbers)

    async def _put(self, number: int) -> Sequence[str]:
        version = await self._records.put(topic_of(number, 1 + self._writes[number]))
        self._answered_ns[number, version] = time.monotonic_ns()
        self._writes[number] += 1
        return ()

    async def _change(self, order: Change) -> Changed:
        self._answered_ns = {}
        batch = min(order.batch, len(order.within))
        draws = [self._rng.sample(order.within, batch) for _ in range(-(-order.count // batch))]
        numbers = [number for draw in draws for number in draw]
        if batch > 1:
            await pour(iter(draws), self._put_many, self._in_flight)
        else:
            await drive(
                _Singles(iter(numbers), self._put),
                batch=1,
                in_flight=_SINGLES,
                budget=Budget(requests=len(numbers)),
                note=lambda _: None,
                interval_ns=1e9 / order.rate if order.rate else 0,
            )
        return Changed({number: self._writes[number] for number in numbers}, self._answered_ns)

    async def _list(self, order: List) -> tuple[list[int], int]:
        spent, wrong = [], 0
        for _ in range(order.count):
            owner, owned = owned_with(self._rng.randrange(order.topics), order.topics)
            begin_ns = time.perf_counter_ns()
            found = [one.record async for one in self._records.list_by("by_owner", *owner, page_size=_PAGE)]
            spent.append(time.perf_counter_ns() - begin_ns)
            wrong += len(found) != owned or {(one.tenant, one.owner) for one in found} != {owner}
        return spent, wrong

    async def _verify(self) -> int:
        wrong = 0

        async def look(numbers: Sequence[int]) -> None:
            nonlocal wrong
            found = await self._records.get_many([key_of(number) for number in numbers])
            found.raise_for_error()
            for number, one in zip(numbers, found, strict=True):
                wrong += one is None or (one.version, one.record) != (
                    self._writes[number],
                    topic_of(number, one.record.partitions),
                )

        await self._pour(list(self._writes), look)
        return wrong


class _Singles:
    """A source of the load's loop, of one call for each number."""

    def __init__(self, numbers: Iterator[int], put: Callable[[int], Awaitable[Sequence[str]]]) -> None:
        self._numbers, self._put = numbers, put

    def batch(self) -> int:
        """The next number."""
        return next(self._numbers)

    async def send(self, batch: int) -> Sequence[str]:
        """Change it."""
        return await self._put(batch)


@contextlib.asynccontextmanager
async def open_writer(target: str, kind: str, batch: int, in_flight: int, seed: int) -> AsyncIterator[Writer]:
    """The role of the process."""
    options = Options(client_name="topics", deadline_s=60.0, batch_items=batch)
    async with open_client(target, options) as client:
        yield Writer(client.table(await declared(client, kind)), batch, in_flight, seed)


# --- the broker ------------------------------------------------------------------------------------------------------


_WITHIN_S: Final = 600.0
_FOLLOWS_WITHIN_S: Final = 30.0
_LOOK_S: Final = 0.005


class Build(msgspec.Struct, frozen=True):
    """Order: build the image (:class:`Built`)."""


class Built(msgspec.Struct, frozen=True):
    """``rss_mib``: by how much the process has grown."""

    seconds: float
    cpu_s: float
    rss_mib: float
    records: int


class Begin(msgspec.Struct, frozen=True):
    """Order: changes follow. ``listen``: note when each comes."""

    listen: bool = False


class Follow(msgspec.Struct, frozen=True):
    """Order: wait until the image has these versions of topics (:class:`Followed`)."""

    versions: dict[int, int]


class Followed(msgspec.Struct, frozen=True):
    """Since :class:`Begin`: CPU time until the last one was there; how many versions are others; and when each version
    of a number came, by the machine's clock, if that was noted."""

    cpu_s: float
    wrong: int
    came_ns: dict[tuple[int, int], int]


class Broker:
    """Carries out these orders."""

    def __init__(self, client: Client, table: PlainTable[Topic]) -> None:
        self._client, self._table = client, table
        self._image: Any = None
        self._came_ns: dict[tuple[int, int], int] = {}
        self._begin_s = 0.0

    async def carry_out(self, order: Build | Begin | Follow) -> Any:
        """Do it."""
        match order:
            case Build():
                return await self._build()
            case Begin(listen):
                self._came_ns = {}
                if listen:
                    self._image.on_change(self._note)
                self._begin_s = time.process_time()
                return None
            case Follow(versions):
                return await self._follow(versions)

    async def _build(self) -> Built:
        gc.collect()
        process = psutil.Process()
        before, begin, begin_cpu_s = process.memory_info().rss, time.perf_counter(), time.process_time()
        self._image = self._client.image(self._table)
        await self._image.caught_up(_WITHIN_S)
        seconds, used_s = time.perf_counter() - begin, time.process_time() - begin_cpu_s
        rss_mib = (process.memory_info().rss - before) / MIB
        return Built(seconds, used_s, rss_mib, len(self._image[self._table]))

    async def _follow(self, versions: dict[int, int]) -> Followed:
        until_s = time.monotonic() + _FOLLOWS_WITHIN_S
        *_, last = versions.items()
        await self._has(*last, until_s)
        used_s = time.process_time() - self._begin_s
        wrong = sum([not await self._has(*each, until_s) for each in versions.items()])
        return Followed(used_s, wrong, self._came_ns)

    async def _has(self, number: int, version: int, until_s: float) -> bool:
        while (there := self._version(number)) < version and time.monotonic() < until_s:  # noqa: ASYNC110 - no listener
            await asyncio.sleep(_LOOK_S)
        return there == version

    def _version(self, number: int) -> int:
        record = self._image[self._table].get(self._table.plain.key(*key_of(number)))
        return 0 if record is None else int(record.version)

    def _note(self, event: Any) -> None:
        self._came_ns[number_of(event.key.topic), event.record.version] = time.monotonic_ns()


@contextlib.asynccontextmanager
async def open_broker(target: str, kind: str) -> AsyncIterator[Broker]:
    """The role of the process."""
    async with open_client(target, Options(client_name="broker")) as client:
        yield Broker(client, await declared(client, kind))


# --- what is compared ------------------------------------------------------------------------------------------------


FEW: Final = 1_000
GROUPS: Final = 4
_PARTS: Final = 10  # of the creation
_PARTS_IN_TURN: Final = 3
_SINGLES_SHARE: Final = 4  # a single call costs several times what a record of a batch does


def run(options: Topics) -> int:
    """Returns the exit code: 1 if a topic was lost or wrong, or a node was not well."""
    made = conduct(options, partial(_play, options))
    code = conclude("topics", made, options, "lost", "wrong")
    output.say(
        f"{made['topics']:,} topics created at {made['created_per_s']:,.0f}/s; a broker has all of them after"
        f" {made['image_seconds']:g} s, in {made['image_rss_mib']:,.0f} MiB."
    )
    return code


class _Side(NamedTuple):
    """A cluster, the process that writes its topics, and a broker of it."""

    stage: Stage
    writer: Actor
    broker: Actor
    topics: int


class _Way(NamedTuple):
    """How topics are changed: how often, in which batches, and how many different ones at most."""

    changes: int
    batch: int
    different: int

    def within(self, topics: int) -> range:
        """Which of so many."""
        return range(0, topics, max(1, topics // self.different))


async def _side(options: Topics, stage: Stage, topics: int, writer: Actor) -> tuple[_Side, Built]:
    broker = stage.actor(open_broker, stage.members.target, options.kind)
    await quiet(stage.members.all)
    return _Side(stage, writer, broker, topics), await broker.ask(Build())


def _writer(options: Topics, stage: Stage) -> Actor:
    return stage.actor(open_writer, stage.members.target, options.kind, options.batch, options.in_flight, options.seed)


async def _play(options: Topics, stage: Stage) -> dict[str, Any]:
    config, problems, shape = options.server_config, stage.problems, options.shape
    topics = options.topics
    many_groups = msgspec.structs.replace(shape, groups=f"{options.kind}={GROUPS}")
    writer = _writer(options, stage)
    found = await staged(many_groups, config, problems, partial(_created, options, writer))
    side, built = await _side(options, stage, topics, writer)
    found |= await staged(shape, config, problems, partial(_changed, options, side))
    with output.progress(f"list topics of {options.lists:,} owners", options.lists) as progress:
        spent, wrong_pages = await writer.ask(List(topics, options.lists))
        progress(options.lists)
    lags, not_followed = await _lags(options, side)
    wrong = await writer.ask(Verify())
    pages = _percentiles("list_index_ms", spent)
    return {
        "created_per_s": found["created_per_s"],
        "image_seconds": built.seconds,
        "image_rss_mib": built.rss_mib,
        "change_cost_ratio_1e6_to_1e3": found["change_cost_ratio_1e6_to_1e3"],
        "list_index_ms_p99": pages["list_index_ms_p99"],
        "watch_lag_ms_p99": lags["watch_lag_ms_p99"],
        "groups_ratio_4_to_1": found["groups_ratio_4_to_1"],
        "topics": topics,
        "lost": topics - built.records,
        "wrong": wrong + wrong_pages + not_followed + found["not_followed"],
        **pages,
        **lags,
        "image_cpu_s": built.cpu_s,
        "change_cost_us": found["change_cost_us"],
        "change_cost_ratios": found["change_cost_ratios"],
        "record_bytes": len(msgspec.msgpack.encode(topic_of(topics - 1))),
    }


async def _created(options: Topics, writer: Actor, beside: Stage) -> dict[str, Any]:
    """Create all topics, the first parts of them in turn with others on the cluster with more groups."""
    other, part = _writer(options, beside), -(-options.topics // _PARTS)
    seconds, ratios = 0.0, []
    with output.progress(f"create {options.topics:,} topics", options.topics) as progress:
        for at, first in enumerate(range(0, options.topics, part)):
            order = Create(first, min(part, options.topics - first))
            if at < _PARTS_IN_TURN:
                who = (writer, other) if at % 2 else (other, writer)
                spent = {actor: await actor.ask(order) for actor in who}
                ratios.append(output.ratio(spent[writer], spent[other]))
                seconds += spent[writer]
            else:
                seconds += await writer.ask(order)
            progress(order.count)
    return {
        "created_per_s": output.ratio(options.topics, seconds),
        "groups_ratio_4_to_1": statistics.median(ratios),
    }


async def _changed(options: Topics, many: _Side, beside: Stage) -> dict[str, Any]:
    """What a change costs with many topics and with few, in turn: of as many different ones, and of any."""
    topics = min(FEW, options.topics)
    writer = _writer(options, beside)
    await writer.ask(Create(0, topics))
    few, _ = await _side(options, beside, topics, writer)
    ways = {
        "batches": _Way(options.changes, options.batch, topics),
        "singles": _Way(-(-options.changes // _SINGLES_SHARE), 1, topics),
        "batches_anywhere": _Way(options.changes, options.batch, options.topics),
    }
    costs: dict[str, list[dict[int, float]]] = {way: [] for way in ways}
    wrong = 0
    with output.progress("change topics", len(ways) * (1 + options.pairs)) as progress:
        for name, way in ways.items():  # the last leaves the nodes with more to tidy up than the others
            for pair in range(1 + options.pairs):  # the first fills what is remembered, and does not count
                spent = {}
                for which in (0, 1) if pair % 2 else (1, 0):
                    spent[which], differing = await _cost((few, many)[which], way)
                    wrong += differing
                costs[name] += [spent] if pair else []
                progress(1)
    ratios = {way: output.median_ratio((one[1], one[0]) for one in found) for way, found in costs.items()}
    return {
        "change_cost_ratio_1e6_to_1e3": max(ratios["batches"], ratios["singles"]),
        "change_cost_ratios": ratios,
        "change_cost_us": {way: _medians(found, topics, options.topics) for way, found in costs.items()},
        "not_followed": wrong,
    }


def _medians(found: Sequence[Mapping[int, float]], few: int, many: int) -> dict[str, float]:
    return {str(topics): statistics.median(one[at] for one in found) for at, topics in enumerate((few, many))}


async def _cost(side: _Side, way: _Way) -> tuple[float, int]:
    """CPU time of all nodes and of the broker for a changed topic, in µs; and how many topics the broker has wrong."""
    members = side.stage.members.all
    before = sum(cpu_s(members).values())
    await side.broker.ask(Begin())
    changed: Changed = await side.writer.ask(Change(way.within(side.topics), way.changes, way.batch))
    followed: Followed = await side.broker.ask(Follow(changed.versions))
    used_s = sum(cpu_s(members).values()) - before + followed.cpu_s
    return 1e6 * used_s / way.changes, followed.wrong


async def _lags(options: Topics, side: _Side) -> tuple[dict[str, float], int]:
    """From the answer to a change until the broker hears of it."""
    count = max(1, round(options.rate * options.seconds))
    await side.broker.ask(Begin(listen=True))
    with output.progress(f"{options.rate:g} changes a second", count) as progress:
        changed: Changed = await side.writer.ask(Change(range(side.topics), count, 1, options.rate))
        progress(count)
    followed: Followed = await side.broker.ask(Follow(changed.versions))
    came_ns = followed.came_ns
    lags_ns = [max(0, came_ns[which] - answered) for which, answered in changed.answered_ns.items() if which in came_ns]
    return _percentiles("watch_lag_ms", lags_ns), followed.wrong + len(changed.answered_ns) - len(lags_ns)


def _percentiles(name: str, spent_ns: Sequence[int]) -> dict[str, float]:
    latencies = Latencies()
    latencies.extend(spent_ns)
    return {f"{name}_p50": latencies.percentile_ms(50), f"{name}_p99": latencies.percentile_ms(99)}
