"""The process that writes topics, and knows how often it has written each: that is its version."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from metad_client import Options, TablePutItem
from metad_client.namespaces.tables import Records

from ..load.loop import Budget, drive
from ..load.prepare import check, pour
from ..target import open_client
from .records import Topic, declared, key_of, owned_with, topic_of

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
